"""The start of every method that gives all sites the same features."""

from dataclasses import dataclass, replace

import numpy as np

from ..errors import SettingsError
from ..features import FeatureMap
from ..messages import Features, expect
from ..privacy import guards
from ..rows import Rows
from ..scaling import UNSCALED, AnyScaling
from ..selection import Chooser
from ..statistics import OwnSums, accumulate
from .consensus import Roster, agree_on_scaling, roll_call
from .dekrr import read_features
from .site import Outbox, Procedure, Site


@dataclass(frozen=True)
class Prepared:
    """What a site knows before it solves: the network, the scaling, the shared features, its own sums."""

    roster: Roster
    scaling: AnyScaling
    feature_map: FeatureMap
    sums: OwnSums


def prepare(
    site: Site,
    selector: Chooser,
    *,
    scale: str | None,
    min_rows: int,
    rows_per_feature: float,
    max_leverage: float,
    selecting_site: str | None,
    shared: FeatureMap | None = None,
) -> Procedure[Prepared]:
    """Agree on the network, the scaling and the features, and sum over the site's rows.

    Parameters
    ----------
    site : Site
    selector : Chooser
    scale : {"minmax"} or None
    min_rows : int
    rows_per_feature : float
        Half of the fewest rows that a site must have for each feature: sums over all its rows may reach a neighbour.
    max_leverage : float
        Rows of a higher leverage are in no sum; see `dekrr.privacy.admission`.
    selecting_site : str or None
        Who chooses features that depend on rows; None is the site with most rows.
    shared : FeatureMap, optional
        Features that all sites already have.
    """
    if scale is None and max_leverage >= 1 and (shared is not None or not selector.uses_rows):
        shared = shared or draw_shared(selector, site)
        sums, _ = accumulate(site.rows, shared, {})
        site.require_rows(min_rows)
        guards.check_rows_of_shared(site.name, site.n_rows, shared, site.neighbors, rows_per_feature)
        roster = yield from roll_call(site)
        return Prepared(roster, UNSCALED, shared, sums)
    site = site.withholding(max_leverage)
    site = replace(site, rows=site.rows.admitted())
    site.require_rows(min_rows)
    roster = yield from roll_call(site)
    scaling: AnyScaling = UNSCALED
    if scale == "minmax":
        scaling = yield from agree_on_scaling(site, roster)
    rows = site.rows.scaled(scaling)
    if shared is None:
        shared = yield from share_features(site, rows, selector, roster, selecting_site)
    guards.check_rows_of_shared(site.name, site.n_rows, shared, site.neighbors, rows_per_feature)
    sums, _ = accumulate(rows, shared, {})
    return Prepared(roster, scaling, shared, sums)


def draw_shared(selector: Chooser, site: Site) -> FeatureMap:
    """Return features that do not depend on rows, drawn from the run's seed alike at all sites."""
    return selector.select(np.empty((0, site.rows.n_columns)), np.empty(0), np.random.default_rng(site.seed))


def share_features(
    site: Site, rows: Rows, selector: Chooser, roster: Roster, selecting_site: str | None
) -> Procedure[FeatureMap]:
    """Return features that are the same everywhere.

    Features that do not depend on rows are drawn by each site from the run's seed. Others are chosen by one
    site from its rows and flooded over the graph, in diameter exchanges.
    """
    if not selector.uses_rows:
        return draw_shared(selector, site)
    chooser = selecting_site or roster.whole.most[1]
    if chooser not in roster.rows and roster.names_all:
        raise SettingsError(f"selecting_site={chooser!r} is not a site; the sites are {sorted(roster.rows)}")
    mine: FeatureMap | None = None
    if site.name == chooser:
        mine = selector.select(rows.sample.X, rows.sample.y, np.random.default_rng(site.seed))
    told = False
    limit = guards.frequency_limit(selector, rows.n_columns)
    for _ in range(roster.diameter):
        outbox: Outbox = {}
        if mine is not None and not told:
            message = Features(mine.frequencies, mine.phases, mine.amplitudes, len(site.neighbors))
            outbox, told = site.to_all(message), True
        inbox = yield outbox
        offers = expect(inbox, Features, frequencies=dict.fromkeys(inbox, (rows.n_columns, -1)))
        maps = {p: read_features(p, message) for p, message in offers.items()}
        guards.check_frequencies(maps, limit)
        mine = mine or next(iter(maps.values()), None)
    if mine is None:
        raise SettingsError(f"site {site.name!r} was not told the features that site {chooser!r} chose")
    return mine
