"""What differs in a DeKRR run under differential privacy; see `dekrr.privacy.mechanism`."""

import hashlib
from collections.abc import Mapping

import numpy as np

from ..errors import MessageError, SettingsError
from ..features import FeatureMap, paired
from ..messages import Sums, expect
from ..privacy.guards import fingerprint
from ..privacy.mechanism import GaussianSums, clip_responses
from ..rows import Rows
from ..selection import Chooser
from ..statistics import CrossSums, OwnSums, accumulate, pack_symmetric, unpack_symmetric
from ..types import Block
from .site import Procedure, Site


def require_private(
    selector: Chooser, site: Site, *, scale: str | None, bounded: bool, exchange: str, allocation: str, tuned: bool
) -> None:
    """Refuse, before anything is sent, a run that looks at rows outside the mechanism."""
    reasons = []
    if selector.uses_rows:
        reasons.append(f'{type(selector).__name__} chooses features from rows: take features="plain"')
    elif site.feature_map is not None:
        shared = shared_features(selector, site.rows.n_columns, site.seed)
        if fingerprint(shared) != fingerprint(site.feature_map):
            reasons.append("the site brings its own feature map: leave it out, so that all draw the same")
    if scale == "minmax" and not bounded:
        reasons.append("the smallest and largest values of the rows would be sent: give public bounds, or scale=None")
    if exchange != "sums":
        reasons.append(f'exchange="{exchange}" sends features of every row: take exchange="sums"')
    if allocation != "equal":
        reasons.append(f'allocation="{allocation}" gives sites different features: take allocation="equal"')
    if tuned:
        reasons.append("tuning would look at rows: give sigma, alpha and consensus as one number each")
    if reasons:
        raise SettingsError("this run cannot keep its privacy budget: " + "; ".join(reasons))


def shared_features(selector: Chooser, n_columns: int, seed: int) -> FeatureMap:
    """Return cos/sin pairs that every site draws alike from the run's seed, never looking at rows.

    The mechanism's noise is for features of length 1, which pairs of one amplitude have. Others are refused.
    """
    plain = selector.replace(mapping="cossin", n_features=selector.n_features + selector.n_features % 2)
    nothing = np.empty((0, n_columns))
    drawn = plain.select(nothing, np.empty(0), np.random.default_rng(seed))
    if fingerprint(drawn) != fingerprint(paired(drawn.frequencies[:, : drawn.n_features // 2])):
        raise SettingsError(
            f"{type(selector).__name__} does not give cos/sin pairs of one amplitude, which the noise of differential "
            'privacy is made for: take features="plain"'
        )
    return drawn


def sum_and_digest(rows: Rows, shared: FeatureMap, maps: Mapping[str, FeatureMap]) -> tuple[OwnSums, bytes]:
    """Return the exact sums over scaled rows, with responses clipped, and a digest of the rows; both stay at the site.

    Neighbours must have the same features.
    """
    for p, feature_map in maps.items():
        if not np.array_equal(feature_map.frequencies, shared.frequencies):
            raise MessageError(
                f"site {p!r} has other features than those of the run's seed; under differential privacy all sites "
                "share theirs: do all have the same seed, sigma, kernel and n_features?",
                p,
            )
    digest = hashlib.sha256()

    def clipped(block: Block) -> Block:
        if block.weight is not None or block.y.ndim > 1:
            raise SettingsError("the privacy budget is for one output and rows that count once each")
        y = clip_responses(block.y)
        for part in (block.X, y):
            digest.update(np.ascontiguousarray(part).data)
        return Block(block.X, y)

    own, _ = accumulate(rows.mapped(clipped), shared, {})
    return own, digest.digest()


def exchange_private_sums(
    site: Site,
    exact: OwnSums,
    digest: bytes,
    shared: FeatureMap,
    maps: Mapping[str, FeatureMap],
    mechanism: GaussianSums,
) -> Procedure[tuple[OwnSums, dict[str, CrossSums], dict[str, CrossSums]]]:
    """Perturb the site's sums once and exchange them: the same D (D + 1) / 2 numbers for every neighbour.

    Where all sites have the same features B_pj = C_pj = Z'Z, so one perturbed matrix takes the place of every
    block, and the blocks of the whole network still form a convex quadratic. What is released for the same digest
    of rows, features and budget is released once.
    """
    depends_on = digest + fingerprint(shared) + repr(mechanism.spent).encode()
    own = site.vault.once(hashlib.sha256(depends_on).digest(), lambda: mechanism.perturb(exact))
    size = shared.n_features
    message = Sums(pack_symmetric(own.gram), np.empty((0, size)))
    inbox = expect(
        (yield site.to_all(message)),
        Sums,
        gram=dict.fromkeys(maps, (size * (size + 1) // 2,)),
        cross=dict.fromkeys(maps, (0, size)),
    )
    received = {p: CrossSums(inbox[p].gram, unpack_symmetric(inbox[p].gram, size)) for p in maps}
    return own, received, dict.fromkeys(maps, CrossSums(message.gram, own.gram).kept())
