"""DeKRR-DDRF: every site with features of its own, consensus on predictions.

Yang, He, He, Yang and Huang, Decentralized kernel ridge regression based on data-dependent random feature,
IEEE Transactions on Neural Networks and Learning Systems, 2024. `train` is its Algorithm 1, with sums over
rows in the place of lines 4 to 6, which send features of every row.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np

from ..errors import DataError, DekrrError, MessageError, SettingsError
from ..features import FeatureMap
from ..messages import (
    Chosen,
    Features,
    Moments,
    RowFeatures,
    Sums,
    expect,
    expect_senders,
)
from ..privacy import guards
from ..privacy.mechanism import GaussianSums
from ..rows import Rows
from ..rows.survey import sampled
from ..scaling import UNSCALED, AnyScaling, Scaling
from ..selection import Chooser, Pool
from ..settings import DeKRRSettings
from ..solvers import SiteSystem, Solver, make_solver
from ..statistics import CrossSums, OwnSums, accumulate, pack_symmetric, unpack_symmetric
from ..system import Weights, penalty
from ..types import Array
from .consensus import Progress, Roster, agree_on_scaling, roll_call, tree_sum
from .outcome import Outcome
from .private import exchange_private_sums, require_private, shared_features, sum_and_digest
from .site import Inbox, Procedure, Site
from .tuning import Tuned, Tuning, tune
from .wire import Listener, Sender

# Squared error per row of the whole network, in scaled units, from high to low; and how far from the mean a site's
# number of features may be.
_THRESHOLDS = np.logspace(-2, -12, 121)
_MOST_OF_MEAN = 3
_SUDDEN = 0.01  # of the last round's residual: less may be an accident of this round


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
    received : mapping of neighbour to CrossSums
        Over the neighbour's rows about this site's features.
    sent : mapping of neighbour to CrossSums
        What was sent the other way round, without its B, which is of no use here.
    """

    own_map: FeatureMap
    maps: dict[str, FeatureMap]
    degrees: dict[str, int]
    own: OwnSums
    received: dict[str, CrossSums]
    sent: dict[str, CrossSums]

    def system(self, roster: Roster, alpha: float, consensus: float) -> SiteSystem:
        """Return the site's block row of the linear system, and what it is assembled from."""
        weights = self.weights(roster, alpha, consensus)
        return SiteSystem.assembled(self.own, self.received, self.sent, weights, consensus)

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
    selector: Chooser,
    settings: DeKRRSettings,
    tuning: Tuning | None = None,
    *,
    keep_path: bool = False,
) -> Procedure[Outcome]:
    """Train one site's model together with its neighbours (Algorithm 1).

    Parameters
    ----------
    site : Site
    selector : Chooser
        How to choose features; its `n_features` is the mean over sites where the allocation is not equal.
    settings : DeKRRSettings
    tuning : Tuning, optional
        Bandwidths, alphas and consensuses to choose from by cross-validation first.
    keep_path : bool, default=False
        Keep the coefficients of every round in the outcome.
    """
    if settings.exchange == "features" and site.rows.streamed:
        raise SettingsError(
            f'exchange="features" sends features of every row, but the rows of site {site.name!r} are read in batches: '
            'load them, or take exchange="sums"'
        )
    if settings.privacy is not None:
        require_private(
            selector,
            site,
            scale=settings.scale,
            bounded=settings.bounds is not None,
            exchange=settings.exchange,
            allocation=settings.allocation,
            tuned=tuning is not None,
        )
    solver = make_solver(settings.solver, settings.self_penalty)
    scaling: AnyScaling = UNSCALED
    if settings.scale == "minmax" and settings.bounds is not None:
        scaling = public_scaling(settings.bounds, site.rows.n_columns)
    mechanism: GaussianSums | None = None
    tuned: Tuned | None = None
    if asks_for_sums_alone(selector, settings, tuning):
        roster, ready, mechanism = yield from set_up_in_one_pass(site, site.rows.scaled(scaling), selector, settings)
    else:
        site = site.withholding(settings.max_leverage)
        site.require_rows(settings.min_rows)
        roster = yield from roll_call(site)
        if settings.scale == "minmax" and settings.bounds is None:
            scaling = yield from agree_on_scaling(site, roster)
        rows = site.rows.scaled(scaling)
        n_features = yield from allocate(site, rows, selector, settings.allocation, roster)
        n_features = selector.most_features(n_features, site.n_rows)
        if site.feature_map is not None:
            n_features = site.feature_map.n_features
        if n_features != selector.n_features:
            selector = selector.replace(n_features=n_features)
        if tuning is not None:
            tuned = yield from tune(site, rows.sample, selector, settings, tuning, roster)
            selector = selector.replace(sigma=tuned.sigma)
            settings = msgspec.structs.replace(
                settings, alpha=tuned.alpha, consensus=tuned.consensus, own_weight=tuned.own_weight
            )
        ready = yield from set_up(site, rows, selector, roster, settings)
    alpha = settings.alpha
    if mechanism is not None:
        alpha += roster.n_sites * mechanism.ridge(ready.own_map.n_features) / roster.n_rows
    system = ready.system(roster, alpha, settings.consensus)
    zeros = np.zeros_like(system.row.right_side)
    outcome = Outcome(roster, scaling, ready.own_map, zeros, neighbor_maps=ready.maps, tuned=tuned, ready=ready)
    outcome.own_weight = settings.own_weight
    outcome.admission = site.admission
    outcome.privacy = mechanism.spent if mechanism is not None else None
    yield from iterate(site, system, solver, settings, outcome, from_zero=True, keep_path=keep_path)
    return outcome


def set_up(
    site: Site,
    rows: Rows,
    selector: Chooser,
    roster: Roster,
    settings: DeKRRSettings,
    shortlist: Pool | None = None,
) -> Procedure[SetUp]:
    """Choose features from scaled rows, or from a shortlist, and exchange maps and sums (lines 3 to 6)."""
    own_map = yield from choose_features(site, rows, selector, roster, settings, shortlist)
    maps, degrees = yield from exchange_maps(site, own_map, selector, settings)
    if settings.exchange == "features":
        own, received, sent = yield from exchange_rows(rows, own_map, maps)
    else:
        guards.check_rows(site.name, rows.n_rows, own_map, maps, settings.rows_per_feature)
        own, received, sent = yield from exchange_sums(site, rows, own_map, maps, settings)
    return SetUp(own_map, maps, degrees, own, received, sent)


def asks_for_sums_alone(selector: Chooser, settings: DeKRRSettings, tuning: Tuning | None) -> bool:
    """Return whether a run wants nothing of its rows but their sums; all sites of a run answer alike."""
    return not (
        selector.uses_rows
        or tuning is not None
        or settings.allocation != "equal"
        or settings.exchange != "sums"
        or (settings.scale == "minmax" and settings.bounds is None)
        or (settings.max_leverage < 1 and settings.privacy is None)
    )


def set_up_in_one_pass(
    site: Site, rows: Rows, selector: Chooser, settings: DeKRRSettings
) -> Procedure[tuple[Roster, SetUp, GaussianSums | None]]:
    """Exchange maps, sum over the scaled rows, which counts them too, and only then call the roll and exchange sums.

    Under differential privacy features are those of the run's seed, and sums leave with the noise of a mechanism.
    """
    if not rows.streamed:
        site.require_rows(settings.min_rows)
    own_map = site.feature_map
    if settings.privacy is not None:
        own_map = shared_features(selector, rows.n_columns, site.seed)
    elif own_map is None:
        own_map = selector.select(np.empty((0, rows.n_columns)), np.empty(0), site.rng())
    maps, degrees = yield from exchange_maps(site, own_map, selector, settings)
    if settings.privacy is not None:
        own, digest = sum_and_digest(rows, own_map, maps)
        site.require_rows(settings.min_rows)
        roster = yield from roll_call(site)
        mechanism = GaussianSums(settings.privacy, site.n_rows)
        own, received, sent = yield from exchange_private_sums(site, own, digest, own_map, maps, mechanism)
        return roster, SetUp(own_map, maps, degrees, own, received, sent), mechanism
    site.ledger.admit(maps, settings.max_maps)
    own, sums = accumulate(rows, own_map, maps, settings.precision)
    site.require_rows(settings.min_rows)
    guards.check_rows(site.name, site.n_rows, own_map, maps, settings.rows_per_feature)
    roster = yield from roll_call(site)
    received = yield from trade_sums(own_map, maps, sums)
    return roster, SetUp(own_map, maps, degrees, own, received, kept_of(sums)), None


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


Offers = tuple[dict[str, FeatureMap], dict[str, int]]


def exchange_maps(
    site: Site, feature_map: FeatureMap, selector: Chooser, settings: DeKRRSettings, *, chosen: bool = True
) -> Procedure[Offers]:
    """Exchange maps with all neighbours; return theirs and how many neighbours each of them has."""
    inbox = yield site.to_all(offer_of(site, feature_map, selector, settings, chosen=chosen))
    expect_senders(inbox, site.neighbors)
    maps, degrees = read_offers(site, inbox, feature_map.n_columns, selector, settings)
    if chosen:
        check_degrees(degrees)
    return maps, degrees


def check_degrees(degrees: Mapping[str, int]) -> None:
    """Refuse a neighbour that says it has no neighbours."""
    for neighbor, degree in degrees.items():
        if degree < 1:
            raise MessageError(f"site {neighbor!r} says that it has {degree} neighbours, but it has this one", neighbor)


def offer_of(
    site: Site, feature_map: FeatureMap, selector: Chooser, settings: DeKRRSettings, *, chosen: bool = True
) -> Features | Chosen:
    """Return the message that tells a neighbour the map: as it is, or as a proof of where it is from."""
    n_neighbors = len(site.neighbors) if chosen else 0
    if _proves(settings):
        return guards.prove(selector, feature_map, site.seed, site.name, n_neighbors)
    return Features(feature_map.frequencies, feature_map.phases, feature_map.amplitudes, n_neighbors)


def read_offers(site: Site, inbox: Inbox, n_columns: int, selector: Chooser, settings: DeKRRSettings) -> Offers:
    """Return maps and numbers of neighbours from messages of `offer_of`.

    Maps are checked: lengths of frequencies or, with `verify_features`, that each comes from the pool that the
    run's seed and the sender's name give.
    """
    if _proves(settings):
        proofs = expect(inbox, Chosen)
        check_sizes(proofs, selector, settings)
        maps = {p: guards.redraw(selector, message, site.seed, p, n_columns) for p, message in proofs.items()}
        return maps, {p: message.n_neighbors for p, message in proofs.items()}
    offers = expect(inbox, Features, frequencies=dict.fromkeys(inbox, (n_columns, -1)))
    check_sizes(offers, selector, settings)
    maps = {p: read_features(p, message) for p, message in offers.items()}
    guards.check_frequencies(maps, guards.frequency_limit(selector, n_columns))
    return maps, {p: message.n_neighbors for p, message in offers.items()}


def check_sizes(offers: Mapping[str, Features | Chosen], selector: Chooser, settings: DeKRRSettings) -> None:
    """Refuse a choice, or a shortlist, of more features than have been agreed on."""
    for sender, offer in offers.items():
        most = float(settings.max_features)
        if not offer.n_neighbors:
            most *= selector.shortlist
        if isinstance(offer, Features):
            size = offer.frequencies.shape[1]
        else:
            size = max(offer.n_features, len(offer.indices) * selector.width)
        if most and size > most + selector.width:
            raise MessageError(f"site {sender!r} sent {size} features where {most:g} are the most", sender)


def with_features(site: Site, offer: Features | Chosen, selector: Chooser, settings: DeKRRSettings) -> Site:
    """Return the site with the features that it once offered its neighbours."""
    maps, _ = read_offers(site, {site.name: offer}, site.rows.n_columns, selector, settings)
    return replace(site, feature_map=maps[site.name])


def _proves(settings: DeKRRSettings) -> bool:
    return settings.verify_features and settings.privacy is None


def asks_neighbors(selector: Chooser, site: Site) -> bool:
    """Return whether the site's choice of features takes its neighbours' sums into account."""
    return selector.asks_neighbors and bool(site.neighbors)


def limit_shortlist(selector: Chooser, fewest_rows: int, rows_per_feature: float) -> Chooser:
    """Return the selector with a shortlist that a neighbour of `fewest_rows` rows still sends sums of."""
    return selector.shortened(guards.longest_shortlist(fewest_rows, rows_per_feature))


def choose_features(
    site: Site,
    rows: Rows,
    selector: Chooser,
    roster: Roster,
    settings: DeKRRSettings,
    shortlist: Pool | None = None,
) -> Procedure[FeatureMap]:
    """Choose features from the site's own scaled rows and, for a selector that asks them, from its neighbours' sums.

    A shortlist by the site's own rows goes to the neighbours, who answer with their sums Z'Z and Z'y over it. In
    the final choice the rows of each of n neighbours count 1/n. Where a site has many rows, a sample stands for them.
    A site that has features already keeps them, but takes part for those neighbours that have none.
    """
    sample = rows.sample
    if not asks_neighbors(selector, site):
        return selector.select(sample.X, sample.y, site.rng()) if site.feature_map is None else site.feature_map
    if site.feature_map is not None:
        shortlist, own_map = None, site.feature_map
    else:
        if shortlist is None:
            fewest = min(sampled(roster.rows[p]) for p in site.neighbors)
            limited = limit_shortlist(selector, fewest, settings.rows_per_feature)
            shortlist = limited.shortlisted(sample.X, sample.y, site.rng())
        own_map = shortlist.feature_map
    maps, _ = yield from exchange_maps(site, own_map, selector, settings, chosen=False)
    guards.check_rows_of_shortlists(site.name, sample.n_rows, maps, settings.rows_per_feature)
    if settings.max_leverage < 1:
        guards.check_leverages(site.name, sample, None, maps, settings.rows_per_feature)
    site.ledger.admit(maps, settings.max_maps)
    answers, admitted = {}, sample.admitted()
    for p, feature_map in maps.items():
        sums, _ = accumulate(admitted, feature_map, {})
        answers[p] = Moments(pack_symmetric(sums.gram), sums.moment)
    size = own_map.n_features
    shapes = {"gram": dict.fromkeys(answers, (size * (size + 1) // 2,)), "moment": dict.fromkeys(answers, (size,))}
    inbox = expect((yield answers), Moments, **shapes)
    if shortlist is None:
        return own_map
    own, _ = accumulate(sample, own_map, {})
    weight = 1 / len(inbox)
    gram, moment, n_rows = own.gram, own.moment, sample.n_rows * sample.expansion
    for p, answer in sorted(inbox.items()):
        gram = gram + weight * unpack_symmetric(answer.gram, size)
        moment = moment + weight * answer.moment
        n_rows += weight * roster.rows[p]
    return selector.choose_from(shortlist, gram, moment, n_rows)


def allocate(site: Site, rows: Rows, selector: Chooser, allocation: str, roster: Roster) -> Procedure[int]:
    """Return this site's number of features; all sites together have `selector.n_features` each on average.

    "sqrt" shares them out in proportion to sqrt(N_j). "gain" gives each to the site where it lowers the squared
    error most: sites sum over the spanning tree how many features each would take at every threshold of a fixed
    scale, and the threshold at which the total is right tells each its number.
    """
    mean = int(selector.n_features)
    if allocation == "equal" or roster.n_sites == 1:
        return mean
    if allocation == "sqrt":
        return in_candidates(selector, mean * roster.n_sites * math.sqrt(site.n_rows) / roster.whole.roots)
    if allocation != "gain" or not selector.tells_gains:
        raise SettingsError(f'allocation={allocation!r}: choose "equal", "sqrt" or, for greedy features, "gain"')
    sample, width = rows.sample, selector.width
    gains = sample.expansion * selector.gains(sample.X, sample.y, _MOST_OF_MEAN * mean // width, site.rng())
    gains = np.maximum.accumulate(gains[::-1])[::-1]
    candidates = np.sum(gains[:, None] >= _THRESHOLDS * roster.n_rows, axis=0)
    wanted = width * np.maximum(candidates, max(1, mean // _MOST_OF_MEAN // width)).astype(float)
    total = yield from tree_sum(site, roster, wanted)
    return in_candidates(selector, np.interp(mean * roster.n_sites, total, wanted))


def in_candidates(selector: Chooser, n_features: float) -> int:
    """Return the nearest number of features that whole candidates give, and not 0."""
    return selector.width * max(1, round(float(n_features) / selector.width))


def read_features(sender: str, message: Features) -> FeatureMap:
    """Return the feature map in a message whose frequencies have the right number of columns."""
    size = (message.frequencies.shape[1],)
    if size == (0,):
        raise MessageError(f"site {sender!r} chose no features at all", sender)
    expect({sender: message}, Features, phases={sender: size}, amplitudes={sender: size})
    guards.check_amplitudes(sender, message.amplitudes)
    return FeatureMap(message.frequencies, message.phases, message.amplitudes)


_Exchanged = tuple[OwnSums, dict[str, CrossSums], dict[str, CrossSums]]


def exchange_sums(
    site: Site,
    rows: Rows,
    own_map: FeatureMap,
    maps: Mapping[str, FeatureMap],
    settings: DeKRRSettings,
) -> Procedure[_Exchanged]:
    """Exchange B_jp and C_jp: sums over rows, D (D + 1) / 2 + D^2 numbers an edge and direction."""
    site.ledger.admit(maps, settings.max_maps)
    own, sent = sum_up(site, rows, own_map, maps, settings)
    received = yield from trade_sums(own_map, maps, sent)
    return own, received, kept_of(sent)


def sum_up(
    site: Site, rows: Rows, own_map: FeatureMap, maps: Mapping[str, FeatureMap], settings: DeKRRSettings
) -> tuple[OwnSums, dict[str, CrossSums]]:
    """Return the site's sums, those for neighbours over the rows that it admits; refuse them over too few rows."""
    if settings.max_leverage < 1 and maps and rows.n_rows:
        guards.check_leverages(site.name, rows, own_map, maps, settings.rows_per_feature)
    if maps and rows.n_withheld and rows.n_rows - rows.n_withheld < settings.min_rows:
        raise DataError(
            f"all but {rows.n_rows - rows.n_withheld} of {rows.n_rows} rows of site {site.name!r} stand alone and are "
            f"withheld, which leaves fewer than min_rows={settings.min_rows} for sums; join it to another site"
        )
    return accumulate(rows, own_map, maps, settings.precision)


def trade_sums(
    own_map: FeatureMap, maps: Mapping[str, FeatureMap], sent: Mapping[str, CrossSums]
) -> Procedure[dict[str, CrossSums]]:
    """Send each neighbour its sums and return theirs, which are about this site's map."""
    size = own_map.n_features
    inbox = expect(
        (yield {p: Sums(sums.gram, np.ascontiguousarray(sums.cross)) for p, sums in sent.items()}),
        Sums,
        gram=dict.fromkeys(maps, (size * (size + 1) // 2,)),
        cross={p: (size, maps[p].n_features) for p in maps},
    )
    return {p: CrossSums(inbox[p].gram, inbox[p].cross) for p in maps}


def kept_of(sent: Mapping[str, CrossSums]) -> dict[str, CrossSums]:
    """Return what a site keeps of the sums that it sent."""
    return {p: sums.kept() for p, sums in sent.items()}


def exchange_rows(rows: Rows, own_map: FeatureMap, maps: Mapping[str, FeatureMap]) -> Procedure[_Exchanged]:
    """Exchange features of every row, as the paper's lines 4 to 6 do. Rows can be recovered from them."""
    own, sent = accumulate(rows, own_map, maps)
    X = rows.arrays().X
    own_features = own_map(X)
    outbox = {p: RowFeatures(own_features, feature_map(X)) for p, feature_map in maps.items()}
    inbox = expect(
        (yield outbox),
        RowFeatures,
        own={p: (-1, maps[p].n_features) for p in maps},
        receivers=dict.fromkeys(maps, (-1, own_map.n_features)),
    )
    received = {
        p: CrossSums(pack_symmetric(rows.receivers.T @ rows.receivers), rows.receivers.T @ rows.own)
        for p, rows in inbox.items()
    }
    return own, {p: received[p] for p in maps}, kept_of(sent)


def iterate(
    site: Site,
    system: SiteSystem,
    solver: Solver[Any],
    settings: DeKRRSettings,
    outcome: Outcome,
    *,
    from_zero: bool,
    keep_path: bool = False,
) -> Procedure[None]:
    """Exchange coefficients and update them until all sites stop in the same round (lines 9 to 14).

    Where all sites start `from_zero` nobody has to be told so, and the first round goes without an exchange.
    The residual that decides is the last round's, where this round's is next to nothing against it: Chebyshev's rises
    again. Where sites do not depend on each other it is 0 in every other round. To it comes what neighbours cannot see
    of this site's coefficients, on a wire that rounds them or leaves them out.
    """
    row, state = system.row, solver.start(system, outcome.coefficients)
    outputs = outcome.coefficients.shape[1:]
    last_length = 0.0
    progress = Progress(outcome.roster.diameter, settings.tol)
    scale = float(np.linalg.norm(row.right_side))
    sender = Sender(settings.wire, state.coefficients if from_zero else np.zeros_like(state.coefficients))
    listener = Listener({p: np.zeros((known.n_features, *outputs)) for p, known in outcome.neighbor_maps.items()})
    for rounds in range(settings.max_rounds + 1):
        shares: dict[str, tuple[float, ...]] = {}
        if rounds or not from_zero:
            shares = listener.hear((yield site.to_all(sender.message(state.coefficients, rounds, progress.share))))
        residual = row.residual(state.coefficients, listener.known)
        length = math.sqrt(np.vdot(residual, residual))
        if not math.isfinite(length):
            raise _overflow({**listener.known, "": state.coefficients})
        if sender.known is not state.coefficients:
            length += row.unseen(state.coefficients - sender.known)
        sudden = bool(shares) and length <= _SUDDEN * last_length
        progress.after_exchange((last_length if sudden else length, scale), shares)
        last_length = length
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


def _overflow(known: Mapping[str, Array]) -> DekrrError:
    """Return the error for a residual that is not finite, by who has the largest coefficients: "" is this site."""
    largest = max(known, key=lambda p: float(np.abs(known[p]).max()))
    if not largest:
        return SettingsError("the iteration does not converge; raise alpha, or scale rows and responses")
    return MessageError(f"site {largest!r} sent coefficients so large that nothing can be computed from them", largest)
