"""What sites send each other about their rows (line 6): sums, masked or with noise, or the paper's features of rows."""

import hashlib
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from ..errors import MessageError, NoiseWarning, SettingsError
from ..features import FeatureMap, paired
from ..messages import RowFeatures, Sums, expect
from ..privacy.admission import check_leverages, check_rows, fingerprint
from ..privacy.mechanism import GaussianSums, SharedNoise, clip_columns, clip_responses, warning_of_noise
from ..selection import Chooser
from ..settings import DeKRRSettings
from ..statistics import CrossSums, OwnSums, accumulate, pack_symmetric, unpack_symmetric, weighted_features
from ..tables.rows import Rows
from ..types import Block
from .masking import ROOM, Agreement, fewest_of, unit_of_gram
from .run import Exchange, Offers, Run, SetUp, Start
from .site import Procedure, Site
from .spanning_tree import Tree


class ExactSums(Exchange):
    """B_jp and C_jp: sums over rows, D (D + 1) / 2 + D^2 numbers an edge and direction."""

    def sums(self, start: Start, own_map: FeatureMap, offers: Offers, run: Run) -> Procedure[SetUp]:
        """Sum over the site's rows and trade sums. Rows that are not counted yet are counted by that."""
        site, rows, maps, settings = start.site, start.rows, offers.maps, run.settings
        is_counted = start.roll.is_over
        if is_counted:
            check_rows(site.name, rows.n_effective, own_map, maps, settings.rows_per_feature)
        site.ledger.admit(maps, settings.max_maps)
        own, sent = sum_up(site, rows, own_map, maps, settings)
        if not is_counted:
            site.require_rows(settings.min_rows)
            check_rows(site.name, rows.n_effective, own_map, maps, settings.rows_per_feature)
        roster = yield from start.roll.roster()
        received = yield from self.trade(start, own_map, offers, sent)
        return SetUp(roster, own_map, maps, offers.degrees, own, received, self.kept(sent), masked=self.is_masked)

    def trade(
        self, start: Start, own_map: FeatureMap, offers: Offers, sent: Mapping[str, CrossSums]
    ) -> Procedure[dict[str, CrossSums]]:
        """Send each neighbour its sums and return theirs, which are about this site's map."""
        maps, size = offers.maps, own_map.n_features
        inbox = expect(
            (yield {p: Sums(sums.gram, np.ascontiguousarray(sums.cross)) for p, sums in sent.items()}),
            Sums,
            gram=dict.fromkeys(maps, (size * (size + 1) // 2,)),
            cross={p: (size, maps[p].n_features) for p in maps},
        )
        return {p: CrossSums(inbox[p].gram, inbox[p].cross) for p in maps}

    def kept(self, sent: Mapping[str, CrossSums]) -> dict[str, CrossSums]:
        """Return what a site keeps of the sums that it sent."""
        return kept_of(sent)


class MaskedSums(ExactSums):
    """sum_p B_jp / |N_p| over all neighbours p, masked: D (D + 1) / 2 numbers an edge and direction.

    H_jj needs no more of the neighbours' rows. The products with C_jp are taken by its owner p in every round, and
    masked too; see `dekrr.protocols.masking.MaskedRounds`. So no C is sent. A site keeps the B that it summed: where
    numbers of neighbours change, it sends them again, with another weight.
    """

    is_masked = True

    def trade(
        self, start: Start, own_map: FeatureMap, offers: Offers, sent: Mapping[str, CrossSums]
    ) -> Procedure[dict[str, CrossSums]]:
        """Send each neighbour its B, masked; return equal shares of the sum of theirs, without any C."""
        assert start.masking is not None
        masks = yield from start.masking.masks()
        masks.bind_offers(offers.digests)
        own, n = unit_of_gram(own_map), len(offers.maps)
        values = {p: sums.gram / (n * unit_of_gram(offers.maps[p])) for p, sums in sent.items()}
        total = yield from masks.sum_over_neighbors(values, own.size, masks.rows + ROOM)
        nothing = {p: np.broadcast_to(0.0, (own_map.n_features, known.n_features)) for p, known in offers.maps.items()}
        return {p: CrossSums(own * total * (offers.degrees[p] / n), nothing[p]) for p in offers.maps}

    def kept(self, sent: Mapping[str, CrossSums]) -> dict[str, CrossSums]:
        """Return all of the sums that were sent."""
        return dict(sent)


class NoisySums(Exchange):
    """Sums under differential privacy: perturbed once, the same D (D + 1) / 2 numbers for every neighbour.

    All sites have the same features, those of the run's seed. Then B_pj = C_pj = Z'Z. One perturbed matrix therefore
    takes the place of every block, and the blocks of the whole network still form a convex quadratic. What is released
    for the same digest of rows, features and budget is released once. See `dekrr.privacy.mechanism`.
    """

    def reasons(self, site: Site, run: Run) -> list[str]:
        """Return why the site's features are not those that the noise is made for."""
        if run.chooser.uses_rows:
            return []
        try:
            shared = shared_features(run.chooser, site.rows.n_columns, site.seed)
        except SettingsError as error:
            return [str(error)]
        if site.feature_map is None or fingerprint(shared) == fingerprint(site.feature_map):
            return []
        return [
            "this run cannot keep its privacy budget: the site brings its own feature map: leave it out, so that all "
            "sites draw the same features"
        ]

    def prepared(self, site: Site, run: Run) -> Site:
        """Return the site with the features of the run's seed."""
        return replace(site, feature_map=shared_features(run.chooser, site.rows.n_columns, site.seed))

    def sums(self, start: Start, own_map: FeatureMap, offers: Offers, run: Run) -> Procedure[SetUp]:
        """Sum over the site's rows, perturb the sums and trade them."""
        site, maps, settings = start.site, offers.maps, run.settings
        if settings.privacy is None:
            raise SettingsError("only differential privacy adds noise to sums: give privacy")
        exact, digest = sum_and_digest(start.rows, own_map, maps)
        site.require_rows(settings.min_rows)
        roster = yield from start.roll.roster()
        if settings.privacy.colluders is not None:
            return (yield from _shared_noise(start, own_map, offers, settings, exact, digest))
        mechanism, fewest = GaussianSums(settings.privacy, site.n_rows), max(roster.whole.fewest[0], 1)
        scale = GaussianSums(settings.privacy, fewest).spent.noise_scale  # of the site that noise costs most
        warning = warning_of_noise(settings.privacy, scale, own_map.n_features, fewest)
        if warning:
            site.tell(warning, NoiseWarning)
        depends_on = digest + fingerprint(own_map) + repr(mechanism.spent).encode()
        own = site.vault.once(hashlib.sha256(depends_on).digest(), lambda: mechanism.perturb(exact))
        size = own_map.n_features
        message = Sums(pack_symmetric(own.gram), np.empty((0, size)))
        inbox = expect(
            (yield site.to_all(message)),
            Sums,
            gram=dict.fromkeys(maps, (size * (size + 1) // 2,)),
            cross=dict.fromkeys(maps, (0, size)),
        )
        received = {p: CrossSums(inbox[p].gram, unpack_symmetric(inbox[p].gram, size)) for p in maps}
        sent = dict.fromkeys(maps, CrossSums(message.gram, own.gram).kept())
        noise = mechanism.ridge(size), mechanism.spent
        return SetUp(roster, own_map, maps, offers.degrees, own, received, sent, *noise)


def _shared_noise(
    start: Start, own_map: FeatureMap, offers: Offers, settings: DeKRRSettings, exact: OwnSums, digest: bytes
) -> Procedure[SetUp]:
    """Sum over all sites with noise that the sites share, and give every site an equal share of the total.

    See `dekrr.privacy.mechanism`. A site sends its sums once, for one roster: without a site that was lost, the
    difference of two totals would be that site's sums, with its share of the noise alone.
    """
    site, maps, privacy = start.site, offers.maps, settings.privacy
    assert privacy is not None
    roster = yield from start.roll.roster()
    masks = yield from Agreement(site, start.roll, lone_neighbor=settings.lone_neighbor, over_tree=True).masks()
    fewest = yield from fewest_of(site, roster, masks.n_partners)
    noise = SharedNoise(privacy, roster.whole.most[0], fewest, roster.n_sites, exact.moment.shape)
    of_total = noise.share * np.sqrt(roster.n_sites)
    warning = warning_of_noise(privacy, of_total, own_map.n_features, roster.n_rows, roster.n_sites)
    if warning:
        site.tell(warning, NoiseWarning)
    depends_on = (
        digest + fingerprint(own_map) + repr((noise.spent, sorted(roster.rows.items()), roster.n_rows)).encode()
    )
    kept = site.vault.once(hashlib.sha256(depends_on).digest(), lambda: OwnSums(np.empty(0), noise.perturb(exact), 0.0))
    total = yield from Tree(roster, masks).sum(kept.moment, noise.largest(roster.n_rows))
    own = noise.share_of(total)
    sums = CrossSums(pack_symmetric(own.gram), own.gram)
    sent = dict.fromkeys(maps, sums.kept())
    received = dict.fromkeys(maps, sums)
    return SetUp(roster, own_map, maps, offers.degrees, own, received, sent, noise.ridge, noise.spent)


class FeaturesOfRows(Exchange):
    """Features of every row, as the paper's lines 4 to 6 have it. Rows can be recovered from them."""

    looks_at_rows = 'exchange="features" sends features of every row: use exchange="sums"'

    def reasons(self, site: Site, run: Run) -> list[str]:
        """Return that the rows cannot be had one by one, or cannot be masked, if so."""
        reasons = []
        if run.settings.masks:
            reasons.append('exchange="features" sends features of every row, which masks cannot hide: set masks=False')
        if not site.rows.streamed:
            return reasons
        return [
            *reasons,
            f'exchange="features" sends features of every row, but the rows of site {site.name!r} are read in batches: '
            'load them, or use exchange="sums"',
        ]

    def sums(self, start: Start, own_map: FeatureMap, offers: Offers, run: Run) -> Procedure[SetUp]:
        """Trade features of rows, and sum over them."""
        roster, maps = (yield from start.roll.roster()), offers.maps
        own, sent = accumulate(start.rows, own_map, maps)
        block = start.rows.arrays()
        own_features = weighted_features(own_map, block)
        inbox = expect(
            (yield {p: RowFeatures(own_features, weighted_features(theirs, block)) for p, theirs in maps.items()}),
            RowFeatures,
            own={p: (-1, maps[p].n_features) for p in maps},
            receivers=dict.fromkeys(maps, (-1, own_map.n_features)),
        )
        received = {}
        for p in maps:
            theirs, mine = inbox[p].own, inbox[p].receivers
            received[p] = CrossSums(pack_symmetric(mine.T @ mine), mine.T @ theirs)
        return SetUp(roster, own_map, maps, offers.degrees, own, received, kept_of(sent))


EXCHANGES: dict[str, type[Exchange]] = {"sums": ExactSums, "features": FeaturesOfRows}


def exchange_of(settings: DeKRRSettings) -> Exchange:
    """Return the exchange that the settings ask for."""
    kind = EXCHANGES[settings.exchange]
    if kind is ExactSums and settings.privacy is not None:
        return NoisySums()
    return MaskedSums() if kind is ExactSums and settings.masks else kind()


def sum_up(
    site: Site, rows: Rows, own_map: FeatureMap, maps: Mapping[str, FeatureMap], settings: DeKRRSettings
) -> tuple[OwnSums, dict[str, CrossSums]]:
    """Return the site's sums, refuse them over rows that stand alone."""
    if settings.max_leverage < 1 and maps and rows.n_rows:
        check_leverages(site.name, rows, own_map, maps, settings.rows_per_feature)
    return accumulate(rows, own_map, maps)


def kept_of(sent: Mapping[str, CrossSums]) -> dict[str, CrossSums]:
    """Return what a site keeps of the sums that it sent."""
    return {p: sums.kept() for p, sums in sent.items()}


def shared_features(chooser: Chooser, n_columns: int, seed: int) -> FeatureMap:
    """Return cos/sin pairs that every site draws alike from the run's seed, never looking at rows.

    The mechanism's noise is for features of length 1, which pairs of one amplitude have. Others are refused.
    """
    plain = chooser.replace(mapping="cossin", n_features=chooser.n_features + chooser.n_features % 2)
    nothing = np.empty((0, n_columns))
    drawn = plain.select(nothing, np.empty(0), np.random.default_rng(seed))
    if fingerprint(drawn) != fingerprint(paired(drawn.frequencies[:, : drawn.n_features // 2])):
        raise SettingsError(
            f"{type(chooser).__name__} does not give cos/sin pairs of one amplitude, which the noise of differential "
            'privacy is made for: use features="plain"'
        )
    return drawn


def sum_and_digest(rows: Rows, shared: FeatureMap, maps: Mapping[str, FeatureMap]) -> tuple[OwnSums, bytes]:
    """Return the exact sums over scaled and clipped rows, and a digest of the rows; both stay at the site.

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
        if block.weight is not None:
            raise SettingsError("the privacy budget is for rows that count once each: leave the weights out")
        X, y = clip_columns(block.X, shared.frequencies), clip_responses(block.y)
        for part in (X, y):
            digest.update(np.ascontiguousarray(part).data)
        return Block(X, y)

    own, _ = accumulate(rows.mapped(clipped), shared, {})
    return own, digest.digest()
