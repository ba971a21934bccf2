"""What a training procedure returns."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from ..classes import ClassCalibration
from ..features import FeatureMap
from ..frames import Columns
from ..intervals import Calibration
from ..privacy.admission import AnyAdmission
from ..privacy.mechanism import Spent
from ..rows import ArrayRows, Rows
from ..scaling import AnyScaling
from ..types import Array, Block
from .roster import Roster
from .stages import SetUp
from .tuning import Tuned


def neighborhood_weights(n_neighbors: int, own_weight: float = 0.5) -> list[float]:
    """Return the weights of a site's own model and of its neighbours' models in a neighbourhood prediction.

    The own model has `own_weight`; the neighbours share the rest equally. Without neighbours the own weight is 1.

    Examples
    --------
    >>> neighborhood_weights(4)
    [0.5, 0.125, 0.125, 0.125, 0.125]
    """
    return [own_weight, *[(1 - own_weight) / n_neighbors] * n_neighbors] if n_neighbors else [1.0]


@dataclass(frozen=True, eq=False)
class Part:
    """A part of a site's model beside the agreed one: the part that all sites share, or the site's local part.

    Parameters
    ----------
    feature_map : FeatureMap
    coefficients : ndarray of shape (n_features,) or (n_features, n_outputs)
    ridge : float, default=0.0
        The ridge of the shared part, in units of Z'Z / N.
    error : float, default=nan
        The squared error per row that was predicted for it.
    errors : ndarray of shape (n_ridges,)
        The squared error per row of each ridge, on held-out rows where there are some.
    gram : ndarray of shape (n_features, n_features), or None
        The sum over all sites' rows, at the root of the tree, for as long as training lasts.
    """

    feature_map: FeatureMap
    coefficients: Array
    ridge: float = 0.0
    error: float = float("nan")
    errors: Array = field(default_factory=lambda: np.zeros(0))
    gram: Array | None = None

    def residuals(self, rows: Rows) -> Rows:
        """Return the rows with what the part leaves of their responses."""

        def left(block: Block) -> Block:
            return block._replace(y=block.y - self.feature_map.apply(block.X, self.coefficients))

        return rows.mapped(left)


@dataclass(frozen=True, eq=False)
class Beneath:
    """The shared part of an earlier training, where the responses of this one are what it leaves.

    Parameters
    ----------
    shared : Part
    scaling : Scaling or Unscaled
        Of the earlier training.
    """

    shared: Part
    scaling: AnyScaling

    def __call__(self, X: Array, units: AnyScaling) -> Array:
        """Return what it predicts of rows that are not scaled, in the units of another scaling."""
        found = self.shared.feature_map.apply(self.scaling.rows(X), self.shared.coefficients)
        unit = units.undo(np.ones_like(found)) - units.undo(np.zeros_like(found))
        return np.asarray(self.scaling.undo(found) / unit)


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Rows that a second training was without. They stay at the site, and are dropped when their errors are known.

    Parameters
    ----------
    rows : ArrayRows
    left : ArrayRows
        The same rows with what the second training had to predict: all of the response, or what the shared part would
        leave without the row.
    fitted : callable
        What the second training of the site predicts of that, for any rows, in the units of the response.
    """

    rows: ArrayRows
    left: ArrayRows
    fitted: Callable[[Array], Array]


@dataclass
class Outcome:
    """What a site ends a run with.

    Parameters
    ----------
    roster : Roster
    scaling : Scaling or Unscaled
    feature_map : FeatureMap
    coefficients : ndarray of shape (n_features,) or (n_features, n_outputs)
    neighbor_maps : dict of neighbour to FeatureMap
    neighbor_coefficients : dict of neighbour to ndarray
    rounds : int
        Updates made.
    settled : bool
        Whether `tol` was reached.
    relative_residual : float
        The last relative residual that all sites knew.
    objective_shares : list of float
        This site's share of the objective before each round and after the last.
    path : list of ndarray
        Coefficients before each round and after the last, where they are kept.
    dual_path : list of ndarray
        The multipliers of the same rounds, of methods that have them.
    own_weight : float
        The weight of the site's own model when it predicts with its neighbourhood.
    tuned : Tuned or None
        What cross-validation chose, where settings were tuned.
    ready : SetUp or None
        The maps and sums, from which training can go on.
    privacy : Spent or None
        The privacy budget that the site spent.
    admission : callable or None
        The rule by which rows were in sums, for later sums.
    calibration : Calibration or None
        What intervals are made of, where the run found it.
    classes : ClassCalibration or None
        How predictions of class codes become probabilities, where the responses are codes.
    shared : Part or None
        The part that is the same at all sites, where there is one. The coefficients above fit what it leaves.
    local : Part or None
        The site's correction for its own rows, which it sends to nobody. It reads a row, and what the other parts
        predict for it.
    column_scales : ndarray of shape (n_columns,), or None
        What the response depends on, as all sites agreed; the largest is 1.
    sigma : float or None
        The bandwidth that sites agreed on, where none was given.
    encoding : Columns or None
        What raw columns became, where the sites of the run agreed on it.
    held_out : HeldOut or None
        Rows that a second training was without, where there was one.
    """

    roster: Roster
    scaling: AnyScaling
    feature_map: FeatureMap
    coefficients: Array
    neighbor_maps: dict[str, FeatureMap] = field(default_factory=dict)
    neighbor_coefficients: dict[str, Array] = field(default_factory=dict)
    rounds: int = 0
    settled: bool = True
    relative_residual: float = 0.0
    objective_shares: list[float] = field(default_factory=list)
    path: list[Array] = field(default_factory=list)
    dual_path: list[Array] = field(default_factory=list)
    own_weight: float = 0.5
    tuned: Tuned | None = None
    ready: SetUp | None = None
    privacy: Spent | None = None
    admission: AnyAdmission | None = None
    calibration: Calibration | None = None
    classes: ClassCalibration | None = None
    shared: Part | None = None
    local: Part | None = None
    column_scales: Array | None = None
    sigma: float | None = None
    encoding: Columns | None = None
    held_out: HeldOut | None = None

    def agreed_members(self, prediction: str) -> Iterator[tuple[FeatureMap, Array, float]]:
        """Yield the maps, coefficients and weights of the agreed part: the site's own first, then its neighbours'.

        Parameters
        ----------
        prediction : {"own", "neighborhood"}
        """
        maps = self.neighbor_maps if prediction == "neighborhood" else {}
        weights = neighborhood_weights(len(maps), self.own_weight)
        yield self.feature_map, self.coefficients, weights[0]
        for (p, feature_map), weight in zip(maps.items(), weights[1:], strict=True):
            yield feature_map, self.neighbor_coefficients[p], weight

    def agreed_prediction(self, X: Array, prediction: str) -> Array:
        """Return the agreed part's prediction for scaled rows, shape (n_rows,) or (n_rows, n_outputs)."""
        parts = [w * known.apply(X, theta) for known, theta, w in self.agreed_members(prediction)]
        return np.asarray(np.sum(parts, axis=0))

    def whole_prediction(self, X: Array, prediction: str, beneath: Array | float = 0.0) -> Array:
        """Return the prediction of all parts for scaled rows, shape (n_rows,) or (n_rows, n_outputs).

        Parameters
        ----------
        X : ndarray of shape (n_rows, n_columns)
        prediction : {"own", "neighborhood"}
        beneath : ndarray of shape (n_rows,) or (n_rows, n_outputs), default=0.0
            What `Beneath` predicts. The local part reads it, and it is not added.
        """
        found = self.agreed_prediction(X, prediction)
        if self.shared is not None:
            found = found + self.shared.feature_map.apply(X, self.shared.coefficients)
        if self.local is not None:
            read = np.column_stack((X, found + beneath))
            found = found + self.local.feature_map.apply(read, self.local.coefficients)
        return found
