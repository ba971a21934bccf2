"""What a training procedure returns."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from ..classes import ClassCalibration
from ..features import FeatureMap
from ..intervals import Calibration
from ..parts.local import NO_LEVEL, Home, LevelSums
from ..privacy.admission import AnyAdmission
from ..privacy.mechanism import Spent
from ..scaling import AnyScaling
from ..tables.columns import Columns
from ..tables.rows import ArrayRows, Rows
from ..types import Array, Block
from .roll_call import Roster
from .run import SetUp, Tuned


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
    """The part of a model that all sites share, with the level of the site.

    Parameters
    ----------
    coefficients : ndarray of shape (n_features,) or (n_features, n_outputs)
    ridge : float, default=0.0
        The ridge of the shared part, in units of Z'Z / N.
    error : float, default=nan
        The squared error per row that was predicted for it.
    errors : ndarray of shape (n_ridges,)
        The squared error per row of each ridge, on held-out rows where there are some.
    gram : ndarray of shape (n_features, n_features), or None
        The sum over all sites' rows, at the root of the tree, for as long as training lasts.
    ratio : float, default=inf
        Of the variances of noise and of sites' levels.
    of_site : LevelSums or None
        What the site's level follows from.
    """

    feature_map: FeatureMap
    coefficients: Array
    ridge: float = 0.0
    error: float = float("nan")
    errors: Array = field(default_factory=lambda: np.zeros(0))
    gram: Array | None = None
    ratio: float = NO_LEVEL
    of_site: LevelSums | None = None

    @cached_property
    def level(self) -> Array:
        """The site's level, shape () or (n_outputs,), in the units of scaled responses."""
        if self.of_site is None or self.ratio == NO_LEVEL:
            return np.zeros(self.coefficients.shape[1:])
        return self.of_site.level(self.coefficients, self.ratio)

    def residuals(self, rows: Rows) -> Rows:
        """Return the rows with what the part and the site's level leave of their responses."""

        def left(block: Block) -> Block:
            return block._replace(y=block.y - self.feature_map.apply(block.X, self.coefficients) - self.level)

        return rows.mapped(left)


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Rows that a second training was without. They stay at the site, and are dropped when their errors are known.

    Parameters
    ----------
    own : ndarray of shape (n_rows,) or (n_rows, n_outputs)
        What the site's model would predict for them.
    alone : dict of str to ndarray
        What the site would predict for them without any other site: by its mean, by ridge regression, by its trees.
    best_alone : str
        Which of these has the least error in all folds.
    beneath : ndarray of shape (n_rows,) or (n_rows, n_outputs)
        What the shared part would predict, without levels, if the second training did not fit it anew; otherwise 0.
    fitted : callable
        What the second training of the site predicts, for rows from anywhere, of all that it had to fit.
    """

    rows: ArrayRows
    own: Array
    alone: dict[str, Array]
    best_alone: str
    beneath: Array
    fitted: Callable[[Array], Array]


@dataclass
class Outcome:
    """What a site ends a run with.

    Parameters
    ----------
    coefficients : ndarray of shape (n_features,) or (n_features, n_outputs)
    rounds : int
        Updates made.
    settled : bool
        Whether `tol` was reached.
    ended_by : str
        What ended the rounds before `tol` or `max_rounds`, in words; empty if nothing did.
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
    home : Home or None
        What the site adds for its own rows, and sends to nobody.
    column_scales : ndarray of shape (n_columns,), or None
        What the response depends on, as all sites agreed; the largest is 1.
    sigma : float or None
        The bandwidth that sites agreed on, where none was given.
    encoding : Columns or None
        What raw columns became, where the sites of the run agreed on it.
    held_out : HeldOut or None
        Rows that a second training was without, where there was one.
    hessian : ndarray of shape (n_features, n_features), or None
        H_jj, for as long as training lasts.
    out_of_fold : OutOfFold or None
        What would be predicted for the site's rows if each had not been seen, for as long as training lasts.
    """

    roster: Roster
    scaling: AnyScaling
    feature_map: FeatureMap
    coefficients: Array
    neighbor_maps: dict[str, FeatureMap] = field(default_factory=dict)
    neighbor_coefficients: dict[str, Array] = field(default_factory=dict)
    rounds: int = 0
    settled: bool = True
    ended_by: str = ""
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
    home: Home | None = None
    column_scales: Array | None = None
    sigma: float | None = None
    encoding: Columns | None = None
    held_out: HeldOut | None = None
    hessian: Array | None = None
    out_of_fold: Any = None

    def agreed_members(
        self, prediction: str, own_weight: float | None = None
    ) -> Iterator[tuple[FeatureMap, Array, float]]:
        """Yield the maps, coefficients and weights of the agreed part: the site's own first, then its neighbours'.

        Parameters
        ----------
        prediction : {"own", "neighborhood"}
        own_weight : float, optional
            Instead of that of predictions elsewhere.
        """
        maps = self.neighbor_maps if prediction == "neighborhood" else {}
        weights = neighborhood_weights(len(maps), self.own_weight if own_weight is None else own_weight)
        yield self.feature_map, self.coefficients, weights[0]
        for (p, feature_map), weight in zip(maps.items(), weights[1:], strict=True):
            yield feature_map, self.neighbor_coefficients[p], weight

    def others(self, X: Array, prediction: str, home: Home | None = None) -> Array:
        """Return what the shared and the agreed part predict for scaled rows, shape (n_rows,) or (n_rows, n_outputs).

        Parameters
        ----------
        X : ndarray of shape (n_rows, n_columns)
        prediction : {"own", "neighborhood"}
        home : Home, optional
            For rows of the site's own, which have its own weight; without it, rows are from anywhere.
        """
        members = self.agreed_members(prediction, None if home is None else home.own_weight)
        found = np.asarray(np.sum([w * known.apply(X, theta) for known, theta, w in members], axis=0))
        if self.shared is not None:
            found = found + self.shared.feature_map.apply(X, self.shared.coefficients)
        return found

    def predicted(self, X: Array, prediction: str, *, elsewhere: bool = False) -> Array:
        """Return the prediction for scaled rows of the site's own, or from `elsewhere`."""
        home = None if elsewhere else self.home
        found = self.others(X, prediction, home)
        return found if home is None else home.finished(X, found)

    def unit(self, y: Array) -> Array:
        """Return the units of scaled responses of the shape of `y`, in those of responses."""
        return np.asarray(self.scaling.undo(np.ones_like(y)) - self.scaling.undo(np.zeros_like(y)))
