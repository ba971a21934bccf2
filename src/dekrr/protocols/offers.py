"""How sites tell each other their features: maps, or proofs of them, and the checks on what arrives."""

import hashlib
from collections.abc import Mapping

from ..errors import MessageError
from ..features import FeatureMap
from ..messages import AnyMessage, Chosen, Features, Offer, Shortlist, encode, expect, expect_senders
from ..privacy.maps_of_neighbors import check_amplitudes, check_frequencies, frequency_limit
from ..privacy.proofs import prove, redraw
from .run import Run
from .site import Inbox, Procedure, Site
from .stages import Offers


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
    check_frequencies(maps, frequency_limit(run.chooser, n_columns))
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
