"""Going on from a fitted network: new rows, a site that joins, sites that have left.

Sums over rows add up, so new rows cost their own sums only, which are sent as they are; features and scaling stay.
A site that joins chooses features from its own rows and exchanges full sums with its neighbours; the others are
not touched but for N, J and the number of neighbours. A site that leaves takes its edges with it. The solver starts
from the coefficients that were there. The result is that of training on all rows with the same features. Whether a new
row is in sums is decided by the site's first rule; see `dekrr.privacy.admission`.

**A site leaves the shared part exactly.** Its coefficients a minimise the sum over sites i of |y_i - Z_i a - u_i|^2 +
lambda u_i^2, plus N r |a|^2 with the ridge r. Given a, the level u_i follows from site i alone, and a'A_i a - 2 a'b_i
is left, with the reduced sums A_i and b_i of site i (`dekrr.parts.local.LevelSums`). So the minimiser is
a = (sum_i A_i + N r I)^-1 sum_i b_i. Without A_k, b_k and the rows of site k in N it is the minimiser of the sum over
the other sites: what these get without k, if Z, r and lambda are the same. The site that leaves takes no part: the
others sum their own rows again, which is the same as to subtract A_k and b_k, and loses no digits. The agreed part then
fits what the new shared part leaves: its products of features stay, and its moments are summed again. What a site adds
at home is found last, as in training. Features, scales, r, lambda and tuned numbers were found with site k, and stay.
Whoever knows the totals before and after knows the sums of site k. Masks promise otherwise: with them no site leaves.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from ..errors import DataError, MessageError
from ..features import FeatureMap
from ..messages import Bounds, Degree, Message, expect, expect_senders
from ..privacy.admission import check_rows, fingerprint
from ..scaling import UNSCALED, AnyScaling, Scaling
from ..selection import Chooser
from ..settings import DeKRRSettings
from ..tables.rows import Rows
from .dekrr import agreement_of, plan, rounds, start_of
from .exchange import ExactSums, sum_up
from .feature_choice import check_degrees, choose_alone, offer_of, read_offers
from .home import fit_home
from .roll_call import RollCall
from .run import Offers, Outcome, Run, SetUp, Start, weigh_rows
from .shared_part import solve_shared
from .site import Procedure, Site


@dataclass(frozen=True, eq=False)
class _Update:
    """What changes at a site."""

    before: Outcome | None  # where the site stood; None where it joins
    new: Rows  # the site's new rows
    known: tuple[str, ...]  # neighbours that the site has exchanged sums with before


def go_on(
    site: Site,
    before: Outcome | None,
    new: Rows,
    chooser: Chooser,
    settings: DeKRRSettings,
    prediction: str | None = None,
) -> Procedure[Outcome]:
    """Bring one site's model up to date together with its neighbours, from where it stood `before`.

    The site has all its rows and its present neighbours; of `new` rows there may be none. A site that joins stood
    nowhere and uses the chooser, which also checks the features of new neighbours. Where a `prediction` is given, all
    parts are solved for again from all rows, and none are new.
    """
    run, again = plan(chooser, settings), prediction is not None
    everything = site.in_order() if again else site
    run.refuse(site, also=_reasons(run, before))
    admission = before.admission if before is not None else None
    site = replace(site, admission=admission or site.admission).withholding(settings.max_leverage)
    if site.admission is not None and new.n_rows:
        new = new.admitted(site.admission)
    _check_new_rows(site, new, settings)
    roll = RollCall(site)
    yield from roll.roster()
    if settings.weighted:
        yield from weigh_rows(site, roll)
    met = before.ready.maps if before is not None and before.ready is not None else {}
    update = _Update(before, new, tuple(p for p in site.neighbors if p in met))
    scaling = yield from _pass_on_scaling(site, update, run)
    start = start_of(site, scaling, roll, agreement_of(site, roll, run))
    update = replace(update, new=new.scaled(scaling))
    shared = before.shared if before is not None else None
    if shared is not None:  # the agreed part fits what it leaves
        if again:
            shared = yield from solve_shared(start, run, shared.feature_map, shared.ridge, shared.ratio, settled=True)
        start = replace(start, rows=shared.residuals(start.rows))
        update = replace(update, new=shared.residuals(update.new))
    if before is None:
        run = run.with_n_features(chooser.most_features(int(chooser.n_features), site.n_rows))
        own_map = choose_alone(site, start.rows, run.chooser)
    else:
        own_map = before.feature_map
        run = run.with_n_features(own_map.n_features)
        if again and before.ready is not None:
            own, _ = sum_up(start.site, start.rows, own_map, {}, settings)
            update = replace(update, before=replace(before, ready=replace(before.ready, own=own)))
    offers = yield from _exchange_maps(site, own_map, update, run)
    ready = yield from _exchange_sums(start, own_map, offers, update, run)
    coefficients = before.coefficients if before is not None else np.zeros_like(ready.own.moment)
    outcome = yield from rounds(start, ready, run, coefficients)
    if before is not None:
        outcome.calibration, outcome.classes = before.calibration, before.classes
        outcome.shared, outcome.home = shared, before.home
        outcome.column_scales, outcome.sigma, outcome.alpha = before.column_scales, before.sigma, before.alpha
    if prediction is not None:
        probed = not settings.rows_per_feature and not settings.masks
        yield from fit_home(everything, (yield from start.tree()), outcome, settings, prediction, probed=probed)
    return outcome.at_the_end()


def _reasons(run: Run, before: Outcome | None) -> Iterator[str]:
    """Yield why a run cannot be brought up to date."""
    if before is not None and before.ready is not None and before.ready.masked != run.exchange.is_masked:
        yield f"the first fit had masks={before.ready.masked}, and its sums can only be added to sums of that kind"
    if run.settings.privacy is not None:
        yield "the privacy budget is spent by the first fit: a second release of sums would exceed it"
    elif not isinstance(run.exchange, ExactSums):
        yield (
            f'exchange="{run.settings.exchange}" cannot continue an earlier fit, because that adds up sums: use '
            'exchange="sums", or fit again'
        )


def _check_new_rows(site: Site, new: Rows, settings: DeKRRSettings) -> None:
    """Refuse new rows that are so few that sums over them would give them away.

    A deployment's guards count them even where the site has no neighbour now. A neighbour that comes back would get
    sums over all rows, and has those over the rows before.
    """
    if new.n_rows > 0 and new.n_effective < settings.min_rows and (site.neighbors or settings.rows_per_feature):
        raise DataError(
            f"site {site.name!r} has {new.n_effective} new rows, fewer than min_rows={settings.min_rows}: sums over so "
            "few would give them away; hold them back until there are more"
        )


def _pass_on_scaling(site: Site, update: _Update, run: Run) -> Procedure[AnyScaling]:
    """Tell new neighbours the scaling; a site that joins takes the one it is told."""
    before = update.before
    outbox: dict[str, Message] = {}
    if before is not None and isinstance(before.scaling, Scaling):
        lowest, highest = before.scaling.limits or ((), ())
        message = Bounds(np.append(before.scaling.lower, lowest), np.append(before.scaling.upper, highest))
        outbox = {p: message for p in site.neighbors if p not in update.known}
    inbox = yield outbox
    if before is not None:
        return before.scaling
    if run.settings.scale is None:
        return UNSCALED
    n_bounds, clips = len(site.rows.bounds.lower), run.preparation.clips
    shapes = dict.fromkeys(inbox, (n_bounds * (1 + clips),))  # after the bounds, the limits that rows are clipped to
    bounds = expect(inbox, Bounds, lower=shapes, upper=shapes)
    if not bounds:
        raise MessageError(f"site {site.name!r} joins, but no neighbour told it the scaling: join one site at a time")
    first = bounds[min(bounds)]
    limits = (first.lower[n_bounds:], first.upper[n_bounds:]) if clips else None
    return Scaling(first.lower[:n_bounds], first.upper[:n_bounds], limits)


def _exchange_maps(site: Site, own_map: FeatureMap, update: _Update, run: Run) -> Procedure[Offers]:
    """Send the map to new neighbours, and the number of neighbours to all."""
    known, before = update.known, update.before
    outbox: dict[str, Message] = {p: Degree(len(site.neighbors)) for p in known}
    strangers = [p for p in site.neighbors if p not in known]
    if strangers:
        outbox |= dict.fromkeys(strangers, offer_of(site, own_map, run))
    inbox = yield outbox
    expect_senders(inbox, site.neighbors)
    familiar = expect({p: m for p, m in inbox.items() if p in known}, Degree)
    check_degrees({p: m.n_neighbors for p, m in familiar.items()})
    offers = read_offers(site, {p: m for p, m in inbox.items() if p not in known}, own_map.n_columns, run)
    maps = offers.maps
    if before is not None:
        maps |= {p: before.neighbor_maps[p] for p in known}
    degrees = offers.degrees | {p: m.n_neighbors for p, m in familiar.items()}
    maps = {p: maps[p] for p in site.neighbors}
    return Offers(maps, degrees, {p: fingerprint(known) for p, known in maps.items()})


def _exchange_sums(start: Start, own_map: FeatureMap, offers: Offers, update: _Update, run: Run) -> Procedure[SetUp]:
    """Exchange sums over new rows with old neighbours, and over all rows with new ones; add them up."""
    site, rows, maps, settings = start.site, start.rows, offers.maps, run.settings
    familiar = {p: maps[p] for p in update.known}
    strangers = {p: maps[p] for p in maps if p not in update.known}
    check_rows(site.name, site.n_effective, own_map, strangers, settings.rows_per_feature)
    if update.new.n_rows and update.before is not None:
        check_rows(site.name, update.new.n_effective, own_map, maps, settings.rows_per_feature)
    site.ledger.admit(maps, settings.max_maps)
    if update.before is None:
        own, changes = sum_up(site, rows, own_map, maps, settings)
    else:
        own, changes = sum_up(site, update.new, own_map, familiar, settings)
        if strangers:
            changes |= sum_up(site, rows, own_map, strangers, settings)[1]
    old = update.before.ready if update.before is not None else None
    exchange = run.exchange
    assert isinstance(exchange, ExactSums)
    sent = exchange.kept(changes)
    if old is not None:
        own = old.own.plus(own)
        sent |= {p: old.sent[p].plus(sent[p]) for p in update.known}
    # Masked sums are sent again as a whole: a share of an old sum cannot be weighed anew.
    received = yield from exchange.trade(start, own_map, offers, sent if exchange.is_masked else changes)
    if old is not None and not exchange.is_masked:
        received |= {p: old.received[p].plus(received[p]) for p in update.known}
    roster = yield from start.roll.roster()
    sent = {p: sent[p] for p in maps}
    return SetUp(roster, own_map, maps, offers.degrees, own, received, sent, masked=exchange.is_masked)
