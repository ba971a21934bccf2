"""Going on from a fitted network: new rows, a site that joins, sites that have left.

Sums over rows add up, so new rows cost their own sums only, which are sent as they are; features and scaling stay.
A site that joins chooses features from its own rows and exchanges full sums with its neighbours; the others are
not touched but for N, J and the number of neighbours. A site that leaves takes its edges with it. The solver starts
from the coefficients that were there. The result is that of training on all rows with the same features. Whether a new
row is in sums is decided by the site's first rule; see `dekrr.privacy.admission`.
"""

from dataclasses import replace

import numpy as np

from ..errors import DataError, MessageError, SettingsError
from ..features import FeatureMap
from ..messages import Bounds, Degree, Message, expect, expect_senders
from ..privacy import guards
from ..rows import Rows
from ..scaling import UNSCALED, AnyScaling, Scaling
from ..selection import Chooser
from ..settings import DeKRRSettings
from ..solvers import make_solver
from .consensus import roll_call
from .dekrr import (
    Offers,
    SetUp,
    check_degrees,
    iterate,
    kept_of,
    offer_of,
    read_offers,
    sum_up,
    trade_sums,
)
from .outcome import Outcome
from .site import Procedure, Site


def go_on(
    site: Site, before: Outcome | None, new: Rows, selector: Chooser, settings: DeKRRSettings
) -> Procedure[Outcome]:
    """Bring one site's model up to date together with its neighbours.

    Parameters
    ----------
    site : Site
        With all its rows, and its neighbours as they are now.
    before : Outcome or None
        Where it stood; None for a site that joins.
    new : Rows
        Those of its rows that are new; maybe none.
    selector : Chooser
        For a site that joins, and to check the features of new neighbours.
    settings : DeKRRSettings
    """
    if settings.privacy is not None:
        raise SettingsError("the privacy budget is spent by the first fit: a second release of sums would exceed it")
    solver = make_solver(settings.solver, settings.self_penalty)
    admission = before.admission if before is not None else None
    site = replace(site, admission=admission or site.admission).withholding(settings.max_leverage)
    if site.admission is not None and new.n_rows:
        new = new.withholding(site.admission)
    n_new = new.n_rows - new.n_withheld
    if new.n_rows and n_new < settings.min_rows and site.neighbors:
        alone = f", besides {new.n_withheld} that stand alone" if new.n_withheld else ""
        raise DataError(
            f"site {site.name!r} has {n_new} new rows{alone}, fewer than min_rows={settings.min_rows}: sums over so "
            "few would give them away; hold them back until there are more"
        )
    roster = yield from roll_call(site)
    met = before.ready.maps if before is not None and before.ready is not None else {}
    known = tuple(p for p in site.neighbors if p in met)
    scaling = yield from _pass_on_scaling(site, before, known, settings)
    rows, new = site.rows.scaled(scaling), new.scaled(scaling)
    if before is None:
        n_features = selector.most_features(int(selector.n_features), site.n_rows)
        selector = selector.replace(n_features=n_features)
        own_map = selector.select(rows.sample.X, rows.sample.y, site.rng())
    else:
        own_map = before.feature_map
        selector = selector.replace(n_features=own_map.n_features)
    maps, degrees = yield from _exchange_maps(site, own_map, before, known, selector, settings)
    _check_rows(site, own_map, maps, known, n_new, settings)
    ready = yield from _exchange_sums(site, rows, new, before, known, own_map, maps, degrees, settings)
    system = ready.system(roster, settings.alpha, settings.consensus)
    start = before.coefficients if before is not None else np.zeros_like(system.row.right_side)
    outcome = Outcome(roster, scaling, own_map, start, neighbor_maps=maps, ready=ready)
    outcome.own_weight = settings.own_weight
    outcome.admission = site.admission
    yield from iterate(site, system, solver, settings, outcome, from_zero=False)
    return outcome


def _pass_on_scaling(
    site: Site, before: Outcome | None, known: tuple[str, ...], settings: DeKRRSettings
) -> Procedure[AnyScaling]:
    """Tell new neighbours the scaling; a site that joins takes the one it is told."""
    outbox: dict[str, Message] = {}
    if before is not None and isinstance(before.scaling, Scaling):
        message = Bounds(before.scaling.lower, before.scaling.upper)
        outbox = {p: message for p in site.neighbors if p not in known}
    inbox = yield outbox
    if before is not None or settings.scale is None:
        return before.scaling if before is not None else UNSCALED
    shapes = dict.fromkeys(inbox, site.rows.bounds.lower.shape)
    told = expect(inbox, Bounds, lower=shapes, upper=shapes)
    if not told:
        raise MessageError(f"site {site.name!r} joins, but no neighbour told it the scaling: join one site at a time")
    first = told[min(told)]
    return Scaling(first.lower, first.upper)


def _exchange_maps(
    site: Site,
    own_map: FeatureMap,
    before: Outcome | None,
    known: tuple[str, ...],
    selector: Chooser,
    settings: DeKRRSettings,
) -> Procedure[Offers]:
    """Send the map to new neighbours, and the number of neighbours to all."""
    outbox: dict[str, Message] = {p: Degree(len(site.neighbors)) for p in known}
    strangers = [p for p in site.neighbors if p not in known]
    if strangers:
        outbox |= dict.fromkeys(strangers, offer_of(site, own_map, selector, settings))
    inbox = yield outbox
    expect_senders(inbox, site.neighbors)
    familiar = expect({p: m for p, m in inbox.items() if p in known}, Degree)
    offers = {p: m for p, m in inbox.items() if p not in known}
    maps, degrees = read_offers(site, offers, own_map.n_columns, selector, settings)
    degrees |= {p: m.n_neighbors for p, m in familiar.items()}
    check_degrees(degrees)
    if before is not None:
        maps |= {p: before.neighbor_maps[p] for p in known}
    return {p: maps[p] for p in site.neighbors}, degrees


def _check_rows(
    site: Site,
    own_map: FeatureMap,
    maps: dict[str, FeatureMap],
    known: tuple[str, ...],
    n_new: int,
    settings: DeKRRSettings,
) -> None:
    """Refuse sums over too few rows: of the new ones to old neighbours, of all to new neighbours."""
    strangers = {p: feature_map for p, feature_map in maps.items() if p not in known}
    guards.check_rows(site.name, site.n_rows, own_map, strangers, settings.rows_per_feature)
    if n_new:
        familiar = {p: maps[p] for p in known}
        guards.check_rows(site.name, n_new, own_map, familiar, settings.rows_per_feature)
    site.ledger.admit(maps, settings.max_maps)


def _exchange_sums(
    site: Site,
    rows: Rows,
    new: Rows,
    before: Outcome | None,
    known: tuple[str, ...],
    own_map: FeatureMap,
    maps: dict[str, FeatureMap],
    degrees: dict[str, int],
    settings: DeKRRSettings,
) -> Procedure[SetUp]:
    """Exchange sums over new rows with old neighbours, and over all rows with new ones; add them up."""
    strangers = {p: maps[p] for p in maps if p not in known}
    if before is None:
        own, changes = sum_up(site, rows, own_map, maps, settings)
    else:
        own, changes = sum_up(site, new, own_map, {p: maps[p] for p in known}, settings)
        if strangers:
            changes |= sum_up(site, rows, own_map, strangers, settings)[1]
    received = yield from trade_sums(own_map, maps, changes)
    sent = kept_of(changes)
    if before is not None and before.ready is not None:
        old = before.ready
        own = old.own.plus(own)
        received |= {p: old.received[p].plus(received[p]) for p in known}
        sent |= {p: old.sent[p].plus(sent[p]) for p in known}
    return SetUp(own_map, maps, degrees, own, received, {p: sent[p] for p in maps})
