"""The start of every method that gives all sites the same features."""

from dataclasses import dataclass

import numpy as np

from ...errors import SettingsError
from ...features import FeatureMap
from ...messages import Features, expect
from ...privacy.admission import check_frequencies, check_rows_of_shared, fingerprint
from ...scaling import AnyScaling
from ...selection import Chooser
from ...selection.choosers import weights_for
from ...settings import AllReduceSettings, SharedSettings
from ...statistics import OwnSums, accumulate
from ...tables.rows import Rows
from ..feature_choice import read_features
from ..masking import Agreement, Masking
from ..preparation import preparation_of
from ..roll_call import RollCall, Roster
from ..run import equal_outputs, weigh_rows
from ..site import Outbox, Procedure, Site
from ..spanning_tree import Tree, tree_of


@dataclass(frozen=True)
class Prepared:
    """What a site knows before it solves: the network, the scaling, its rows, the shared features, its own sums."""

    roster: Roster
    scaling: AnyScaling
    feature_map: FeatureMap
    sums: OwnSums
    tree: Tree


def prepare(
    site: Site, chooser: Chooser, settings: SharedSettings, shared: FeatureMap | None = None
) -> Procedure[Prepared]:
    """Agree on the network, the scaling and the features, unless these are given, and sum over the site's rows.

    Rows of a high leverage are in no sum at all (`dekrr.privacy.admission`). A site must have twice `rows_per_feature`
    rows for each feature: sums over all its rows may reach a neighbour. Where nothing is asked of the rows but their
    sums, the roll is called after them, so that one pass over rows on disk counts them too.
    """
    preparation = preparation_of(settings)
    chooses_from_rows = shared is None and chooser.uses_rows
    counts_rows_first = bool(preparation.looks_at_rows) or settings.max_leverage < 1 or chooses_from_rows
    counts_rows_first |= settings.weighted
    if counts_rows_first:
        site = site.withholding(settings.max_leverage)
        site.require_rows(settings.min_rows)
    roll = RollCall(site)
    if counts_rows_first:
        yield from roll.roster()
    if settings.weighted:
        yield from weigh_rows(site, roll)
    agreement = None
    if isinstance(settings, AllReduceSettings) and settings.masks:
        agreement = Agreement(site, roll, lone_neighbor=settings.lone_neighbor, over_tree=True)
    scaling = yield from preparation.agree(site, roll, agreement)
    if preparation.is_agreed and site.rows.n_outputs > 1:
        scaling = yield from equal_outputs(site.rows.scaled(scaling), scaling, roll, agreement)
    rows = site.rows.scaled(scaling)
    if chooses_from_rows:
        roster = yield from roll.roster()
        shared = yield from share_features(site, rows, chooser, roster, settings.selecting_site)
        if agreement is not None:
            (yield from agreement.masks()).bind(fingerprint(shared))
    elif shared is None:
        nothing = np.empty((0, site.rows.n_columns)), np.empty(0)
        shared = chooser.select(*nothing, np.random.default_rng(site.seed))  # alike at all sites
    if counts_rows_first:
        check_rows_of_shared(site.name, site.n_effective, shared, site.neighbors, settings.rows_per_feature)
    sums, _ = accumulate(rows, shared, {})
    if not counts_rows_first:
        site.require_rows(settings.min_rows)
        check_rows_of_shared(site.name, site.n_rows, shared, site.neighbors, settings.rows_per_feature)
    tree = yield from tree_of(roll, agreement and Masking(agreement, rows, scaling))
    return Prepared(tree.roster, scaling, shared, sums, tree)


def share_features(
    site: Site, rows: Rows, chooser: Chooser, roster: Roster, selecting_site: str | None
) -> Procedure[FeatureMap]:
    """Return features that one site chooses from its rows and that are flooded over the graph, in diameter exchanges.

    Without a `selecting_site` the site with most rows chooses.
    """
    selecting_site = selecting_site or roster.whole.most[1]
    if selecting_site not in roster.rows and roster.names_all:
        raise SettingsError(f"selecting_site={selecting_site!r} is not a site; the sites are {sorted(roster.rows)}")
    shared: FeatureMap | None = None
    if site.name == selecting_site:
        sample, rng = rows.sample, np.random.default_rng(site.seed)
        shared = chooser.select(sample.X, sample.y, rng, **weights_for(chooser, "select", sample.weight))
    is_passed_on = False
    for _ in range(roster.diameter):
        outbox: Outbox = {}
        if shared is not None and not is_passed_on:
            message = Features(shared.frequencies, shared.phases, shared.amplitudes, len(site.neighbors))
            outbox, is_passed_on = site.to_all(message), True
        inbox = yield outbox
        offers = expect(inbox, Features, frequencies=dict.fromkeys(inbox, (rows.n_columns, -1)))
        maps = {p: read_features(p, message) for p, message in offers.items()}
        check_frequencies(maps, chooser, rows.n_columns)
        shared = shared or next(iter(maps.values()), None)
    if shared is None:
        raise SettingsError(f"site {site.name!r} was not told the features that site {selecting_site!r} chose")
    return shared
