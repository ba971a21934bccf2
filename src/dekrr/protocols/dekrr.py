"""DeKRR-DDRF: every site with features of its own, consensus on predictions.

Yang, He, He, Yang and Huang, Decentralized kernel ridge regression based on data-dependent random feature,
IEEE Transactions on Neural Networks and Learning Systems, 2024. `train` is its Algorithm 1, with sums over
rows in the place of lines 4 to 6, which send features of every row.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeGuard

import msgspec
import numpy as np
from sklearn.base import clone

from ..errors import SettingsError
from ..features import FeatureMap
from ..messages import (
    Features,
    Moments,
    RowFeatures,
    Sums,
    expect,
    pack_symmetric,
    unpack_symmetric,
)
from ..scaling import Scaling
from ..selection import GreedySelector, Pool, Selector
from ..solvers import SelfPenalty, Solver, make_solver
from ..statistics import CrossSums, OwnSums, accumulate
from ..system import BlockRow, Weights, assemble, penalty
from ..types import Array
from .consensus import Progress, Roster, agree_on_scaling, roll_call, tree_sum
from .outcome import Outcome
from .site import Procedure, Site
from .tuning import Tuned, Tuning, tune
from .wire import Listener, Sender, Wire

# Squared error per row of the whole network, in scaled units, from high to low; and how far from the mean a site's
# number of features may be.
_THRESHOLDS = np.logspace(-2, -12, 121)
_MOST_OF_MEAN = 3


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
    allocation : {"equal", "sqrt", "gain"}
        Features per site, at the same total: see `allocate`.
    min_rows : int
        The fewest rows that a site sends sums over.
    wire : Wire
        How coefficients travel.
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
    wire: Wire = Wire()


@dataclass(frozen=True)
class SetUp:
    """What a site has when features are chosen and sums exchanged: all that solving needs of the rows.

    Parameters
    ----------
    own_map : FeatureMap
    maps : mapping of neighbour to FeatureMap
    degrees : mapping of neighbour to int
        How many neighbours each neighbour has.
    own : OwnSums
    received, sent : mapping of neighbour to CrossSums
        Over the neighbour's rows about this site's features, and the other way round.
    """

    own_map: FeatureMap
    maps: dict[str, FeatureMap]
    degrees: dict[str, int]
    own: OwnSums
    received: dict[str, CrossSums]
    sent: dict[str, CrossSums]

    def weights(self, roster: Roster, alpha: float, consensus: float, share: float = 1.0) -> Weights:
        """Return the weights of the objective's terms when a `share` of all rows is in the sums."""
        n_rows = roster.n_rows * share
        return Weights(
            n_rows=n_rows,
            n_sites=roster.n_sites,
            alpha=alpha,
            own_penalty=penalty(consensus, n_rows, len(self.maps)),
            penalties={p: penalty(consensus, n_rows, degree) for p, degree in self.degrees.items()},
        )


def train(
    site: Site,
    selector: Selector,
    settings: Settings,
    tuning: Tuning | None = None,
    *,
    keep_path: bool = False,
) -> Procedure[Outcome]:
    """Train one site's model together with its neighbours (Algorithm 1).

    Parameters
    ----------
    site : Site
    selector : Selector
        How to choose features; its `n_features` is the mean over sites where the allocation is not equal.
    settings : Settings
    tuning : Tuning, optional
        Bandwidths, alphas and consensuses to choose from by cross-validation first.
    keep_path : bool, default=False
        Keep the coefficients of every round in the outcome.
    """
    site.require_rows(settings.min_rows)
    roster = yield from roll_call(site)
    scaling: Scaling | None = None
    X, y = site.X, site.y
    if settings.scale == "minmax":
        scaling = yield from agree_on_scaling(site, roster)
        X, y = scaling.rows(X), scaling.responses(y)
    n_features = yield from allocate(site, X, y, selector, settings.allocation, roster)
    selector = clone(selector).set_params(n_features=n_features)
    tuned: Tuned | None = None
    if tuning is not None:
        tuned = yield from tune(site, X, y, selector, settings, tuning, roster)
        selector = clone(selector).set_params(sigma=tuned.sigma)
        settings = msgspec.structs.replace(settings, alpha=tuned.alpha, consensus=tuned.consensus)

    ready = yield from set_up(site, X, y, selector, roster, settings.exchange)
    weights = ready.weights(roster, settings.alpha, settings.consensus)
    row = assemble(ready.own, ready.received, ready.sent, weights)
    solver = make_solver(
        settings.solver, settings.self_penalty, settings.consensus, row, ready.own, ready.received, weights
    )
    zeros = np.zeros(ready.own_map.n_features)
    outcome = Outcome(roster, scaling, ready.own_map, zeros, neighbor_maps=ready.maps, tuned=tuned, ready=ready)
    yield from iterate(site, row, solver, settings, outcome, keep_path=keep_path)
    return outcome


def set_up(
    site: Site,
    X: Array,
    y: Array,
    selector: Selector,
    roster: Roster,
    exchange: str = "sums",
    shortlist: Pool | None = None,
) -> Procedure[SetUp]:
    """Choose features from scaled rows, or from a shortlist, and exchange maps and sums (lines 3 to 6)."""
    own_map = site.feature_map
    if own_map is None:
        own_map = yield from choose_features(site, X, y, selector, roster, shortlist)
    offers = yield from exchange_maps(site, own_map)
    maps = {p: read_features(p, message) for p, message in offers.items()}
    swap = exchange_rows if exchange == "features" else exchange_sums
    own, received, sent = yield from swap(site, X, y, own_map, maps)
    degrees = {p: message.n_neighbors for p, message in offers.items()}
    return SetUp(own_map, maps, degrees, own, received, sent)


def exchange_maps(site: Site, feature_map: FeatureMap) -> Procedure[dict[str, Features]]:
    """Send a feature map to all neighbours and get theirs, with as many columns."""
    offer = Features(feature_map.frequencies, feature_map.phases, feature_map.amplitudes, len(site.neighbors))
    shapes = dict.fromkeys(site.neighbors, (feature_map.n_columns, -1))
    return expect((yield site.to_all(offer)), Features, frequencies=shapes)


def asks_neighbors(selector: Selector, site: Site) -> TypeGuard[GreedySelector]:
    """Return whether the site's choice of features takes its neighbours' sums into account."""
    return isinstance(selector, GreedySelector) and selector.shortlist > 1 and bool(site.neighbors)


def choose_features(
    site: Site, X: Array, y: Array, selector: Selector, roster: Roster, shortlist: Pool | None = None
) -> Procedure[FeatureMap]:
    """Choose features from the site's own scaled rows and, for greedy selection, from its neighbours' sums.

    A shortlist by the site's own rows goes to the neighbours, who answer with their sums Z'Z and Z'y over it. In
    the final choice the rows of each of n neighbours count 1/n.
    """
    if not asks_neighbors(selector, site):
        return selector.select(X, y, site.rng())
    pool = shortlist or selector.shortlisted(X, y, site.rng())
    own_map = pool.feature_map
    offers = yield from exchange_maps(site, own_map)
    answers = {}
    for p, message in offers.items():
        sums, _ = accumulate(X, y, read_features(p, message), {})
        answers[p] = Moments(pack_symmetric(sums.gram), sums.moment)
    size = own_map.n_features
    shapes = {"gram": dict.fromkeys(answers, (size * (size + 1) // 2,)), "moment": dict.fromkeys(answers, (size,))}
    inbox = expect((yield answers), Moments, **shapes)
    own, _ = accumulate(X, y, own_map, {})
    weight = 1 / len(inbox)
    gram, moment, n_rows = own.gram, own.moment, float(len(y))
    for p, answer in sorted(inbox.items()):
        gram = gram + weight * unpack_symmetric(answer.gram, size)
        moment = moment + weight * answer.moment
        n_rows += weight * roster.rows[p]
    return selector.choose_from(pool, gram, moment, n_rows)


def allocate(site: Site, X: Array, y: Array, selector: Selector, allocation: str, roster: Roster) -> Procedure[int]:
    """Return this site's number of features; all sites together have `selector.n_features` each on average.

    "sqrt" shares them out in proportion to sqrt(N_j). "gain" gives each to the site where it lowers the squared
    error most: sites sum over the spanning tree how many features each would take at every threshold of a fixed
    scale, and the threshold at which the total is right tells each its number.
    """
    mean = int(selector.n_features)
    if allocation == "equal" or roster.n_sites == 1:
        return mean
    if allocation == "sqrt":
        roots = {name: np.sqrt(rows) for name, rows in roster.rows.items()}
        return max(1, round(float(mean * roster.n_sites * roots[site.name] / sum(roots.values()))))
    if allocation != "gain" or not isinstance(selector, GreedySelector):
        raise SettingsError(f'allocation={allocation!r}: choose "equal", "sqrt" or, for greedy features, "gain"')
    gains = np.maximum.accumulate(selector.gains(X, y, _MOST_OF_MEAN * mean, site.rng())[::-1])[::-1]
    wanted = np.maximum(np.sum(gains[:, None] >= _THRESHOLDS * roster.n_rows, axis=0), max(1, mean // _MOST_OF_MEAN))
    total = yield from tree_sum(site, roster, wanted.astype(float))
    return max(1, round(float(np.interp(mean * roster.n_sites, total, wanted.astype(float)))))


def read_features(sender: str, message: Features) -> FeatureMap:
    """Return the feature map in a message whose frequencies have the right number of columns."""
    size = (message.frequencies.shape[1],)
    expect({sender: message}, Features, phases={sender: size}, amplitudes={sender: size})
    return FeatureMap(message.frequencies, message.phases, message.amplitudes)


_Exchanged = tuple[OwnSums, dict[str, CrossSums], dict[str, CrossSums]]


def exchange_sums(
    site: Site, X: Array, y: Array, own_map: FeatureMap, maps: Mapping[str, FeatureMap]
) -> Procedure[_Exchanged]:
    """Exchange B_jp and C_jp: sums over rows, D (D + 1) / 2 + D^2 numbers an edge and direction."""
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
    sender = Sender(settings.wire, np.zeros_like(outcome.coefficients))
    listener = Listener({p: np.zeros(known.n_features) for p, known in outcome.neighbor_maps.items()})
    for rounds in range(settings.max_rounds + 1):
        inbox = yield site.to_all(sender.message(state.coefficients, rounds, progress.share))
        shares = listener.hear(inbox)
        residual = row.residual(state.coefficients, listener.known)
        own_progress = (float(np.linalg.norm(residual)), scale)
        progress.after_exchange(own_progress, shares)
        outcome.objective_shares.append(row.objective_share(state.coefficients, residual))
        if keep_path:
            outcome.path.append(state.coefficients)
        if progress.settled or rounds == settings.max_rounds:
            break
        state = solver.update(state, residual)
    outcome.coefficients = state.coefficients
    outcome.neighbor_coefficients = listener.known
    outcome.rounds = rounds
    outcome.settled = progress.settled
    outcome.relative_residual = progress.relative
