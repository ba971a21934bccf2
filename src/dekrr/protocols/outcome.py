"""What a training procedure returns."""

from dataclasses import dataclass, field

from ..features import FeatureMap
from ..intervals import Calibration
from ..privacy.admission import Admission
from ..privacy.mechanism import Spent
from ..scaling import AnyScaling
from ..types import Array
from .roster import Roster
from .stages import SetUp
from .tuning import Tuned


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
    admission : Admission or None
        The rule by which rows were in sums, for later sums.
    calibration : Calibration or None
        What intervals are made of, where the run found it.
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
    admission: Admission | None = None
    calibration: Calibration | None = None
