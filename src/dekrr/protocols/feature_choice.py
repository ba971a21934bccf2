"""How a site chooses its features: how many, from its own rows, and with its neighbours' sums over a shortlist.

Sites then tell each other their features: maps, or proofs of them, with checks on what arrives.
"""

import hashlib
import math
from collections.abc import Mapping

import numpy as np

from ..errors import MessageError
from ..features import FeatureMap
from ..messages import AnyMessage, Chosen, Features, Moments, Offer, Shortlist, encode, expect, expect_senders
from ..privacy.admission import (
    check_amplitudes,
    check_frequencies,
    check_leverages,
    check_rows_of_shared,
    longest_shortlist,
    prove,
    redraw,
)
from ..selection import Chooser, Pool
from ..selection.choosers import weights_for
from ..statistics import accumulate, pack_symmetric, unpack_symmetric
from ..tables.rows import ArrayRows, Rows, sampled
from ..types import Array
from .masking import ROOM, unit_of, unit_of_gram
from .roll_call import Roster
from .run import Offers, Run, Start
from .site import Inbox, Procedure, Site


def exchange_maps(site: Site, own_map: FeatureMap, run: Run) -> Procedure[Offers]:
    """Send the site's map to all neighbours, and return theirs (lines 4 and 5)."""
    inbox = yield site.to_all(offer_of(site, own_map, run))
    expect_senders(inbox, site.neighbors)
    return read_offers(site, inbox, own_map.n_columns, run)


def exchange_shortlists(
    site: Site, candidates: FeatureMap, run: Run
) -> Procedure[tuple[dict[str, FeatureMap], dict[str, bytes]]]:
    """Send the site's shortlist to all neighbours, and return theirs, with digests of what was told."""
    inbox = yield site.to_all(Shortlist(offer_of(site, candidates, run)))
    expect_senders(inbox, site.neighbors)
    offers = {p: shortlist.candidates for p, shortlist in expect(inbox, Shortlist).items()}
    maps = _read_maps(site, offers, candidates.n_columns, run, run.settings.max_features * run.chooser.shortlist)
    return maps, _digests(offers, run)


def offer_of(site: Site, feature_map: FeatureMap, run: Run) -> Offer:
    """Return the message that tells a neighbour a map: as it is, or as a proof of where it comes from."""
    if run.proves_features:
        return prove(run.chooser, feature_map, site.seed, site.name, len(site.neighbors))
    return Features(feature_map.frequencies, feature_map.phases, feature_map.amplitudes, len(site.neighbors))


def read_offers(site: Site, inbox: Inbox, n_columns: int, run: Run) -> Offers:
    """Return what neighbours chose, from messages of `offer_of`.

    Maps are checked. Frequencies must not be longer than an honest site's or, with `verify_features`, must come from
    the pool that the run's seed and the sender's name give.
    """
    maps = _read_maps(site, inbox, n_columns, run, float(run.settings.max_features))
    degrees = {p: message.n_neighbors for p, message in inbox.items() if isinstance(message, Offer)}
    check_degrees(degrees)
    return Offers(maps, degrees, _digests(inbox, run))


def _digests(offers: Mapping[str, AnyMessage], run: Run) -> dict[str, bytes]:
    """Return digests for masks. They are of messages: two machines may draw the maps with another last bit."""
    if not run.exchange.is_masked:
        return {}
    return {p: hashlib.sha256(encode(message)).digest() for p, message in offers.items()}


def _read_maps(
    site: Site, offers: Mapping[str, AnyMessage], n_columns: int, run: Run, max_features: float
) -> dict[str, FeatureMap]:
    if run.proves_features:
        proofs = expect(offers, Chosen)
        _check_sizes(proofs, run, max_features)
        return {p: redraw(run.chooser, message, site.seed, p, n_columns) for p, message in proofs.items()}
    plain = expect(offers, Features, frequencies=dict.fromkeys(offers, (n_columns, -1)))
    _check_sizes(plain, run, max_features)
    maps = {p: read_features(p, message) for p, message in plain.items()}
    check_frequencies(maps, run.chooser, n_columns)
    return maps


def _check_sizes(offers: Mapping[str, Offer], run: Run, max_features: float) -> None:
    """Refuse a choice, or a shortlist, of more features than have been agreed on; 0 is no limit."""
    for sender, offer in offers.items():
        if isinstance(offer, Features):
            size = offer.frequencies.shape[1]
        else:
            size = max(offer.n_features, len(offer.indices) * run.chooser.width)
        if max_features and size > max_features + run.chooser.width:
            raise MessageError(f"site {sender!r} sent {size} features; the limit is {max_features:g}", sender)


def check_degrees(degrees: Mapping[str, int]) -> None:
    """Refuse a neighbour that says it has no neighbours."""
    for neighbor, degree in degrees.items():
        if degree < 1:
            raise MessageError(
                f"site {neighbor!r} says that it has {degree} neighbours, but this site is one", neighbor
            )


def read_features(sender: str, message: Features) -> FeatureMap:
    """Return the feature map in a message whose frequencies have the right number of columns."""
    size = (message.frequencies.shape[1],)
    if size == (0,):
        raise MessageError(f"site {sender!r} chose no features at all", sender)
    expect({sender: message}, Features, phases={sender: size}, amplitudes={sender: size})
    check_amplitudes(sender, message.amplitudes)
    return FeatureMap(message.frequencies, message.phases, message.amplitudes)


def sized(start: Start, run: Run) -> Procedure[Run]:
    """Return the run with this site's number of features (D_j): the chooser's, or in proportion to sqrt(N_j)."""
    site, n_features = start.site, int(run.chooser.n_features)
    if run.settings.allocation == "sqrt" and (roster := (yield from start.roll.roster())).n_sites > 1:
        wanted, width = n_features * roster.n_sites * math.sqrt(site.n_rows) / roster.whole.roots, run.chooser.width
        n_features = width * max(1, round(wanted / width))  # whole candidates
    if site.feature_map is not None:
        n_features = site.feature_map.n_features
    elif run.chooser.uses_rows:
        n_features = run.chooser.most_features(n_features, site.n_rows)
    return run if n_features == run.chooser.n_features else run.with_n_features(n_features)


def choose(start: Start, run: Run, shortlist: Pool | None = None) -> Procedure[FeatureMap]:
    """Choose features from the site's rows and, for a chooser that asks them, from its neighbours' sums (line 3).

    A shortlist by the site's own rows, unless one is given, goes to the neighbours, who answer with their sums Z'Z and
    Z'y over it. In the final choice the rows of each of n neighbours count 1/n. A sample stands for the rows of a large
    site. A site that has features already keeps them, but answers those neighbours that have none.
    """
    site, chooser = start.site, run.chooser
    if not asks_neighbors(site, chooser):
        return choose_alone(site, start.rows, chooser) if site.feature_map is None else site.feature_map
    roster, sample = (yield from start.roll.roster()), start.rows.sample
    if site.feature_map is not None:
        own_map, shortlist = site.feature_map, None
    else:
        if shortlist is None:
            fewest_rows = min(sampled(roster.rows[p]) for p in site.neighbors)
            per_feature, discreet = run.settings.rows_per_feature, run.settings.shortlist_rows
            limited = limit_shortlist(chooser, fewest_rows, per_feature, rows_around(site, roster), discreet)
            weight = weights_for(limited, "shortlisted", sample.weight)
            shortlist = limited.shortlisted(sample.X, sample.y, site.rng(), **weight)
        own_map = shortlist.feature_map
    maps, digests = yield from exchange_shortlists(site, own_map, run)
    around = yield from _sums_of_neighbors(start, own_map, maps, digests, _answers(site, sample, maps, run))
    return own_map if shortlist is None else _choose_with(around, shortlist, sample, roster, site, chooser)


def asks_neighbors(site: Site, chooser: Chooser) -> bool:
    """Return whether the site's choice of features takes its neighbours' sums into account."""
    return chooser.asks_neighbors and bool(site.neighbors)


def choose_alone(site: Site, rows: Rows, chooser: Chooser) -> FeatureMap:
    """Return features chosen from the site's own scaled rows; a chooser that uses none is shown none."""
    if not chooser.uses_rows:
        return chooser.select(np.empty((0, rows.n_columns)), np.empty(0), site.rng())
    sample = rows.sample
    return chooser.select(sample.X, sample.y, site.rng(), **weights_for(chooser, "select", sample.weight))


def rows_around(site: Site, roster: Roster) -> int:
    """Return how many rows a site's neighbours have together, in the samples that they choose features by."""
    return sum(sampled(roster.rows[p]) for p in site.neighbors)


def limit_shortlist(
    chooser: Chooser, fewest_rows: int, rows_per_feature: float, n_rows_around: int, discreet: float
) -> Chooser:
    """Return the chooser with a shortlist so short that a neighbour of `fewest_rows` rows still sends sums over it.

    A site keeps by itself to one feature for `discreet` rows of all neighbours together, 0 is no limit: a neighbour
    does not know how many rows the others have in the sum. With 30 rows a feature, and four neighbours under masks,
    fewer than 8 of 100 known members are found at one false alarm in a hundred;
    docs/explanation/privacy-evidence.md has the figures.
    """
    most = np.floor(n_rows_around / discreet) if discreet else np.inf
    return chooser.shortened(min(longest_shortlist(fewest_rows, rows_per_feature), most))


def _answers(site: Site, sample: ArrayRows, maps: dict[str, FeatureMap], run: Run) -> dict[str, Moments]:
    """Return the site's sums over its neighbours' shortlists; refuse those that it must not send."""
    settings = run.settings
    for p, feature_map in maps.items():
        whose = f"that site {p!r} has on its shortlist"
        check_rows_of_shared(site.name, sample.n_effective, feature_map, [p], settings.rows_per_feature, whose)
    if settings.max_leverage < 1:
        check_leverages(site.name, sample, None, maps, settings.rows_per_feature)
    site.ledger.admit(maps, settings.max_maps)
    answers = {}
    for p, feature_map in maps.items():
        sums, _ = accumulate(sample, feature_map, {})
        answers[p] = Moments(pack_symmetric(sums.gram), sums.moment)
    return answers


def _sums_of_neighbors(
    start: Start,
    own_map: FeatureMap,
    maps: dict[str, FeatureMap],
    digests: dict[str, bytes],
    answers: dict[str, Moments],
) -> Procedure[Moments]:
    """Send the answers to the neighbours' shortlists, masked or not; return the sum of all answers to this site's."""
    size, outputs = own_map.n_features, start.rows.sample.y.shape[1:]
    if start.masking is None:
        inbox = expect(
            (yield answers),
            Moments,
            gram=dict.fromkeys(maps, (size * (size + 1) // 2,)),
            moment=dict.fromkeys(maps, (size, *outputs)),
        )
        heard = [inbox[p] for p in sorted(inbox)]
        return Moments(
            np.sum([message.gram for message in heard], axis=0), np.sum([message.moment for message in heard], axis=0)
        )
    masks = yield from start.masking.masks()
    masks.bind_offers(digests)
    response = 2.0**masks.responses

    def unit(feature_map: FeatureMap) -> Array:
        of_moment = np.repeat(response * unit_of(feature_map), math.prod(outputs))
        return np.concatenate([unit_of_gram(feature_map), of_moment])

    values = {p: np.concatenate([sent.gram, sent.moment.ravel()]) / unit(maps[p]) for p, sent in answers.items()}
    own = unit(own_map)
    total = own * (yield from masks.sum_over_neighbors(values, own.size, masks.rows + ROOM))
    gram, moment = np.split(total, [size * (size + 1) // 2])
    return Moments(gram, moment.reshape(size, *outputs))


def _choose_with(
    around: Moments, shortlist: Pool, sample: ArrayRows, roster: Roster, site: Site, chooser: Chooser
) -> FeatureMap:
    """Choose from a shortlist by the site's own sums and those of its neighbours together."""
    own, _ = accumulate(sample, shortlist.feature_map, {})
    share = 1 / len(site.neighbors)
    gram = own.gram + share * unpack_symmetric(around.gram, len(own.gram))
    n_rows = sample.weights.total * sample.expansion + share * sum(roster.weight_of(p) for p in site.neighbors)
    return chooser.choose_from(shortlist, gram, own.moment + share * around.moment, n_rows)
