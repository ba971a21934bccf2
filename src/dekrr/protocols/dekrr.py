"""DeKRR-DDRF: every site with features of its own, consensus on predictions.

Yang, He, He, Yang and Huang, Decentralized kernel ridge regression based on data-dependent random feature,
IEEE Transactions on Neural Networks and Learning Systems, 2024. `train` is its Algorithm 1, with sums over
rows in the place of lines 4 to 6, which send features of every row.
"""

from collections.abc import Mapping

import msgspec
import numpy as np
from sklearn.base import clone

from ..errors import SettingsError
from ..features import FeatureMap
from ..messages import (
    Chosen,
    Coefficients,
    Features,
    RowFeatures,
    Sums,
    expect,
    pack_symmetric,
    unpack_symmetric,
)
from ..privacy import guards
from ..privacy.mechanism import DifferentialPrivacy, GaussianSums
from ..scaling import Scaling
from ..selection import Selector
from ..solvers import SelfPenalty, Solver, make_solver
from ..statistics import CrossSums, OwnSums, accumulate
from ..system import BlockRow, Weights, assemble, penalty
from ..types import Array
from .consensus import Progress, Roster, agree_on_scaling, roll_call
from .outcome import Outcome
from .private import exchange_private_sums, require_private, shared_features
from .site import Procedure, Site


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What all sites of a DeKRR run must agree on, beside the selector.

    Parameters
    ----------
    alpha : float
        Regularisation (the paper's lambda).
    consensus : float
        Weight of the agreement with neighbours (c of the authors' code).
    solver : {"jacobi", "chebyshev"}
    self_penalty : float, "bound" or "adaptive"
        For jacobi alone.
    tol : float
        Relative residual to stop at; 0 runs `max_rounds`.
    max_rounds : int
    exchange : {"sums", "features"}
        "features" is the paper's own: it gives the rows away, and is here for comparison.
    scale : {"minmax"} or None
    allocation : {"equal", "sqrt"}
        Features per site: all the same, or in proportion to the root of its rows at the same total.
    min_rows : int
        The fewest rows that a site sends sums over.
    rows_per_feature : float
        The fewest rows that a site must have, for each feature of its own and of a neighbour, to send it sums.
    max_maps : int
        The most feature maps that a neighbour may ask sums for in a run.
    verify_features : bool
        Sites send which candidates of their pool they chose, and receivers draw the pool again.
    bounds : pair of tuples, optional
        Public lower and upper bounds of the columns and, last, of the response, instead of agreed ones.
    privacy : DifferentialPrivacy, optional
    """

    alpha: float = 1e-6
    consensus: float = 1.0
    solver: str = "chebyshev"
    self_penalty: SelfPenalty = 5.0
    tol: float = 1e-6
    max_rounds: int = 1500
    exchange: str = "sums"
    scale: str | None = "minmax"
    allocation: str = "equal"
    min_rows: int = 10
    rows_per_feature: float = guards.ROWS_PER_FEATURE
    max_maps: int = guards.MAX_MAPS
    verify_features: bool = False
    bounds: tuple[tuple[float, ...], tuple[float, ...]] | None = None
    privacy: DifferentialPrivacy | None = None


def train(site: Site, selector: Selector, settings: Settings, *, keep_path: bool = False) -> Procedure[Outcome]:
    """Train one site's model together with its neighbours (Algorithm 1).

    Parameters
    ----------
    site : Site
    selector : Selector
        How to choose features; its `n_features` is the mean over sites where the allocation is not equal.
    settings : Settings
    keep_path : bool, default=False
        Keep the coefficients of every round in the outcome.
    """
    site.require_rows(settings.min_rows)
    mechanism: GaussianSums | None = None
    if settings.privacy is not None:
        require_private(
            selector, site, scale=settings.scale, bounded=settings.bounds is not None, exchange=settings.exchange
        )
        mechanism = GaussianSums(settings.privacy, site.n_rows)
    roster = yield from roll_call(site)
    scaling: Scaling | None = None
    X, y = site.X, site.y
    if settings.scale == "minmax":
        scaling = (
            public_scaling(settings.bounds, X.shape[1])
            if settings.bounds is not None
            else (yield from agree_on_scaling(site, roster))
        )
        X, y = scaling.rows(X), scaling.responses(y)
    if mechanism is not None:
        own_map = shared_features(selector, X.shape[1], site.seed)
    else:
        own_map = site.feature_map or choose_features(site, X, y, selector, settings, roster)

    maps, degrees = yield from exchange_maps(site, own_map, selector, settings, roster)
    alpha = settings.alpha
    if mechanism is not None:
        own, received, sent = yield from exchange_private_sums(site, X, y, own_map, maps, mechanism)
        alpha += roster.n_sites * mechanism.ridge(own_map.n_features) / roster.n_rows
    elif settings.exchange == "features":
        own, received, sent = yield from exchange_rows(site, X, y, own_map, maps)
    else:
        guards.check_rows(site.name, site.n_rows, own_map, maps, settings.rows_per_feature)
        own, received, sent = yield from exchange_sums(site, X, y, own_map, maps, max_maps=settings.max_maps)

    weights = Weights(
        n_rows=roster.n_rows,
        n_sites=roster.n_sites,
        alpha=alpha,
        own_penalty=penalty(settings.consensus, roster.n_rows, len(site.neighbors)),
        penalties={p: penalty(settings.consensus, roster.n_rows, degree) for p, degree in degrees.items()},
    )
    row = assemble(own, received, sent, weights)
    solver = make_solver(settings.solver, settings.self_penalty, settings.consensus, row, own, received, weights)
    outcome = Outcome(roster, scaling, own_map, np.zeros(own_map.n_features), neighbor_maps=maps)
    outcome.privacy = mechanism.spent if mechanism is not None else None
    yield from iterate(site, row, solver, settings, outcome, keep_path=keep_path)
    return outcome


def choose_features(
    site: Site, X: Array, y: Array, selector: Selector, settings: Settings, roster: Roster
) -> FeatureMap:
    """Return the features that the site chooses from its own scaled rows."""
    n_features = allocate(site, selector.n_features, settings.allocation, roster)
    chosen: FeatureMap = clone(selector).set_params(n_features=n_features).select(X, y, site.rng())
    return chosen


def allocate(site: Site, mean: int, allocation: str, roster: Roster) -> int:
    """Return this site's number of features: `mean`, or in proportion to sqrt(N_j) with that mean."""
    if allocation == "equal":
        return mean
    if allocation != "sqrt":
        raise SettingsError(f'unknown allocation {allocation!r}; choose "equal" or "sqrt"')
    roots = {name: np.sqrt(rows) for name, rows in roster.rows.items()}
    return max(1, round(float(mean * roster.n_sites * roots[site.name] / sum(roots.values()))))


def public_scaling(bounds: tuple[tuple[float, ...], tuple[float, ...]], n_columns: int) -> Scaling:
    """Return the scaling by bounds that everybody knows beforehand: columns, then the response."""
    lower, upper = (np.asarray(bound, dtype=float) for bound in bounds)
    if not (lower.shape == upper.shape == (n_columns + 1,) and np.isfinite([lower, upper]).all()):
        raise SettingsError(
            f"bounds must be {n_columns + 1} finite lower and upper values each, the response last; "
            f"got {lower.size} and {upper.size}"
        )
    if not (lower < upper).all():
        entry = int(np.argmin(lower < upper))
        raise SettingsError(f"bounds: the lower value of entry {entry} is not below the upper one")
    return Scaling(lower, upper)


def exchange_maps(
    site: Site, own_map: FeatureMap, selector: Selector, settings: Settings, roster: Roster
) -> Procedure[tuple[dict[str, FeatureMap], dict[str, int]]]:
    """Exchange feature maps; return the neighbours' and how many neighbours each of them has (lines 4 and 5).

    Maps are checked as they arrive: lengths of frequencies, or, with `verify_features`, that each comes from
    the pool that the run's seed and the sender's name give.
    """
    n_columns, n_own = own_map.n_columns, len(site.neighbors)
    if settings.verify_features and settings.privacy is None:
        proof = guards.prove(selector, own_map, site.seed, site.name, n_own)
        proofs = expect((yield site.to_all(proof)), Chosen)
        maps = {p: guards.redraw(selector, message, site.seed, p, n_columns) for p, message in proofs.items()}
        return maps, {p: message.n_neighbors for p, message in proofs.items()}
    offer = Features(own_map.frequencies, own_map.phases, own_map.amplitudes, n_own)
    offers = expect((yield site.to_all(offer)), Features, frequencies=dict.fromkeys(site.neighbors, (n_columns, -1)))
    maps = {p: read_features(message) for p, message in offers.items()}
    if site.feature_map is None:
        guards.check_frequencies(maps, guards.frequency_limit(selector, n_columns))
    return maps, {p: message.n_neighbors for p, message in offers.items()}


def read_features(message: Features) -> FeatureMap:
    """Return the feature map in a message whose frequencies have the right number of columns."""
    n_features = message.frequencies.shape[1]
    for name in ("phases", "amplitudes"):
        if getattr(message, name).shape != (n_features,):
            raise SettingsError(f"a feature map of {n_features} frequencies came with {name} of another length")
    return FeatureMap(message.frequencies, message.phases, message.amplitudes)


_Exchanged = tuple[OwnSums, dict[str, CrossSums], dict[str, CrossSums]]


def exchange_sums(
    site: Site,
    X: Array,
    y: Array,
    own_map: FeatureMap,
    maps: Mapping[str, FeatureMap],
    *,
    max_maps: int = guards.MAX_MAPS,
) -> Procedure[_Exchanged]:
    """Exchange B_jp and C_jp: sums over rows, D (D + 1) / 2 + D^2 numbers an edge and direction."""
    site.ledger.admit(maps, max_maps)
    own, sent = accumulate(X, y, own_map, maps)
    outbox = {p: Sums(pack_symmetric(sums.gram), np.ascontiguousarray(sums.cross)) for p, sums in sent.items()}
    size = own_map.n_features
    inbox = expect(
        (yield outbox),
        Sums,
        gram=dict.fromkeys(maps, (size * (size + 1) // 2,)),
        cross={p: (size, maps[p].n_features) for p in maps},
    )
    received = {p: CrossSums(unpack_symmetric(inbox[p].gram, size), inbox[p].cross) for p in maps}
    return own, received, sent


def exchange_rows(
    site: Site, X: Array, y: Array, own_map: FeatureMap, maps: Mapping[str, FeatureMap]
) -> Procedure[_Exchanged]:
    """Exchange features of every row, as the paper's lines 4 to 6 do. Rows can be recovered from them."""
    own, sent = accumulate(X, y, own_map, maps)
    own_features = own_map(X)
    outbox = {p: RowFeatures(own_features, feature_map(X)) for p, feature_map in maps.items()}
    inbox = expect(
        (yield outbox),
        RowFeatures,
        own={p: (-1, maps[p].n_features) for p in maps},
        receivers=dict.fromkeys(maps, (-1, own_map.n_features)),
    )
    received = {
        p: CrossSums(rows.receivers.T @ rows.receivers, rows.receivers.T @ rows.own) for p, rows in inbox.items()
    }
    return own, {p: received[p] for p in maps}, sent


def iterate(
    site: Site, row: BlockRow, solver: Solver, settings: Settings, outcome: Outcome, *, keep_path: bool
) -> Procedure[None]:
    """Exchange coefficients and update them until all sites stop in the same round (lines 9 to 14)."""
    state = solver.start(outcome.coefficients)
    progress = Progress(outcome.roster.diameter, settings.tol)
    scale = float(np.linalg.norm(row.right_side))
    shapes = {p: (feature_map.n_features,) for p, feature_map in outcome.neighbor_maps.items()}
    for rounds in range(settings.max_rounds + 1):
        message = Coefficients(state.coefficients, progress.share)
        inbox = expect((yield site.to_all(message)), Coefficients, values=shapes)
        of_neighbors = {p: message.values for p, message in inbox.items()}
        residual = row.residual(state.coefficients, of_neighbors)
        own_progress = (float(np.linalg.norm(residual)), scale)
        progress.after_exchange(own_progress, [message.progress for message in inbox.values()])
        outcome.objective_shares.append(row.objective_share(state.coefficients, residual))
        if keep_path:
            outcome.path.append(state.coefficients)
        if progress.settled or rounds == settings.max_rounds:
            break
        state = solver.update(state, residual)
    outcome.coefficients = state.coefficients
    outcome.neighbor_coefficients = of_neighbors
    outcome.rounds = rounds
    outcome.settled = progress.settled
    outcome.relative_residual = progress.relative
