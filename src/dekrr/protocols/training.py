"""All of a site's training: the parts of its model and, where the run wants it, a second training to calibrate them.

The estimators and the nodes of a mesh call `train`, and so do the same.

`train_parts` trains all parts of a site's model: f_j = shared + agreed + local.

- The shared part is the same at all sites (`shared_part`). It reaches rows unlike a site's own.
- The agreed part is DeKRR (`dekrr`), on what the shared part leaves.
- At home the site adds its level and its local part (`home`), which it sends to nobody.

Under differential privacy there is no shared part. What leaves a site is the agreed part's noisy sums and what follows
from them; the local part and a level are found at home, when all that is sent has been sent (`home`).

The features of all parts are drawn in column scales that the sites agree on (`agree_on_scales`). Where a run has none
of this, it is `dekrr.train`, exactly.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import msgspec

from ..errors import DataError
from ..parts.local import NO_LEVEL
from ..scaling import UNSCALED, AnyScaling
from ..selection import Auto, Chooser, Mixed
from ..settings import WITH_SHARED, DeKRRSettings
from . import dekrr
from .calibration import Keep, calibrate, refusal_of_second
from .home import fit_home, fit_private_home
from .looking import Looked, look_under_guards
from .roll_call import Roster
from .run import Outcome, Run, SharedPart, Tuning
from .shared_part import (
    Learnt,
    agree_on_scales,
    agree_on_spreads,
    bandwidth_of,
    both_kinds,
    candidate_scales,
    fit_shared,
    shared_size,
)
from .site import FOLDS, Procedure, Site
from .spanning_tree import Tree

_SHARE_OF_SCALES = 2  # the models that scales are learnt from have so much fewer features than the shared part
_MOST_FOR_SCALES = 170  # and no more than these


def train_parts(
    site: Site,
    chooser: Chooser,
    settings: DeKRRSettings,
    tuning: Tuning | None = None,
    *,
    prediction: str = "neighborhood",
    keep_sums: bool = True,
    at_home: bool = True,
) -> Procedure[Outcome]:
    """Train one site's model, with all the parts that settings name, together with its neighbours.

    Chooser and tuning are of the agreed part. Where the chooser's sigma is None, the sites agree on one by the spread
    of their rows. The sums from which training can go on are in the outcome with `keep_sums`, what the site adds for
    its own rows with `at_home`.
    """
    if not has_parts(settings):
        return (yield from dekrr.train(site, chooser, settings, tuning, keep_sums=keep_sums))
    run = dekrr.plan(chooser, settings, tuning, keep_sums=keep_sums)
    run.refuse(site, also=reasons(settings))
    if settings.privacy is not None:
        outcome = yield from dekrr.train(site, chooser, settings, tuning, keep_sums=keep_sums)
        if at_home:
            fit_private_home(site, outcome, settings, prediction)
        return outcome
    site = site.in_order()
    scaling: AnyScaling = UNSCALED
    learnt, sigma, alpha = Learnt(), chooser.sigma, settings.alpha
    shared: SharedPart | None = None

    def complete(outcome: Outcome, tree: Tree, *, probed: bool = False) -> Procedure[None]:
        outcome.shared, outcome.column_scales = outcome.shared or shared, learnt.scales
        outcome.sigma, outcome.alpha = sigma, alpha
        if at_home:
            yield from fit_home(site, tree, outcome, settings, prediction, probed=probed)

    def after_loss(reached: Outcome | None, roster: Roster) -> Procedure[Outcome]:
        outcome = reached or Outcome.without_agreed(roster, scaling, site.rows)
        if outcome.home is None:
            yield from complete(outcome, Tree(outcome.roster.alone))  # no sums at all after a loss
        return outcome

    site.kept.at_home = after_loss
    if settings.local is not None:
        site.kept.reached.append(None)
    start = yield from dekrr.begin(site, run)
    scaling = start.scaling
    roster = yield from start.roll.roster()
    start.site.require_rows(settings.min_rows)
    start.site.enter("column scales")
    spreads = yield from agree_on_spreads(start)
    sigma = sigma or bandwidth_of(spreads)
    n_shared = shared_size(settings.shared or "auto", roster, start.rows.n_columns, settings.rows_per_feature)
    n_scaling = max(1, min(n_shared // _SHARE_OF_SCALES, _MOST_FOR_SCALES))
    learnt = yield from agree_on_scales(start, run, settings.column_scales, n_scaling, sigma, spreads)
    sets = candidate_scales(learnt.scales, spreads)
    agreed = start
    if settings.shared is not None:
        start.site.enter("shared part")
        kinds = both_kinds(n_shared, sets, candidate_scales(learnt.of_whole, spreads)[-1:])
        shared = yield from fit_shared(start, run, sigma, kinds, ridge=learnt.ridge, ratio=learnt.ratio)
        agreed = replace(start, rows=shared.residuals(start.rows))
        # Where sites agree on one function, sum_j alpha / J |theta_j|^2 is alpha |theta|^2: a ridge like the shared
        # part's, which held-out rows chose. What that part leaves has no less noise, and less to be found.
        alpha = alpha or max(WITH_SHARED["alpha"], learnt.alpha)
    start.site.enter("choosing features")
    outcome = yield from dekrr.agree(agreed, _run_of_agreed(run, sigma, alpha, sets))
    probed = not settings.rows_per_feature and not settings.masks  # no sums beyond those that the guards count
    yield from complete(outcome, (yield from start.tree()), probed=probed)
    return outcome


def look_first(
    site: Site, settings: DeKRRSettings, prediction: str = "neighborhood", *, has_codes: bool = False
) -> Procedure[tuple[Site, Looked]]:
    """Look at the rows of all sites under guards; return the site with what it learnt of far values, and the look.

    A site lost meanwhile leaves each of the others what it adds at home, as in the training that follows.
    """
    kept, alone = site.kept, site.in_order()

    def at_home(reached: Outcome | None, roster: Roster) -> Procedure[Outcome]:
        outcome = Outcome.without_agreed(roster, UNSCALED, alone.rows)
        yield from fit_home(alone, Tree(outcome.roster.alone), outcome, settings, prediction, probed=False)
        return outcome

    if settings.local is not None:
        kept.at_home = at_home
        kept.reached.append(None)
    looked = yield from look_under_guards(
        replace(site, identity=site.identity.within("looking")), settings, has_codes=has_codes
    )
    kept.reached.clear()
    return replace(site, limits=looked.limits), looked


def has_parts(settings: DeKRRSettings) -> bool:
    """Return whether a run is more than DeKRR alone."""
    return any(part is not None for part in (settings.shared, settings.local, settings.column_scales))


def reasons(settings: DeKRRSettings) -> Iterator[str]:
    """Yield why a run cannot have the parts that it asks for."""
    if settings.privacy is not None and not (settings.shared is None and settings.column_scales is None):
        yield "the privacy budget pays for the sums of DeKRR alone: with privacy give shared=None, column_scales=None"


def _run_of_agreed(run: Run, sigma: float, alpha: float | None, sets: tuple[tuple[float, ...], ...]) -> Run:
    """Return the run of the agreed part: its candidates are drawn in the agreed scales, with the agreed bandwidth.

    Where nobody has named a choice, it is greedy from a mixed pool.
    """
    chooser, tuning = run.chooser, run.tuning
    if run.settings.alpha is None and alpha is not None:
        run = replace(run, settings=msgspec.structs.replace(run.settings, alpha=alpha))
        tuning = tuning and msgspec.structs.replace(tuning, alphas=(alpha,))
    if chooser.sigma is None and tuning is not None and len(tuning.sigmas) == 1:
        tuning = msgspec.structs.replace(tuning, sigmas=(sigma,))
    if type(chooser) is Auto and chooser == _auto(chooser.n_features, chooser.sigma, chooser.mapping):
        chooser = _mixed(chooser.n_features, chooser.sigma or sigma, chooser.mapping, sets)
    else:
        chooser = chooser.replace(sigma=chooser.sigma or sigma, column_scales=sets)
    return replace(run, chooser=chooser, tuning=tuning)


# Of the default kernel, and the same for many sites of a process.


@lru_cache(maxsize=64)
def _auto(n_features: int, sigma: float | None, mapping: str) -> Auto:
    return Auto(n_features, sigma=sigma, mapping=mapping)


@lru_cache(maxsize=64)
def _mixed(n_features: int, sigma: float, mapping: str, sets: tuple[tuple[float, ...], ...]) -> Mixed:
    return Mixed(n_features, sigma=sigma, mapping=mapping, column_scales=sets)


@dataclass(frozen=True)
class SecondTraining:
    """A training without some rows, which intervals or probabilities of classes are made of."""

    keep: Keep  # what to keep of it; see `dekrr.protocols.calibration`
    fits_shared: bool = True  # whether it fits the shared part anew, which most of a fit's bytes are for


def train(
    site: Site,
    chooser: Chooser,
    settings: DeKRRSettings,
    tuning: Tuning | None = None,
    *,
    prediction: str = "neighborhood",
    second: SecondTraining | None = None,
    keep_sums: bool = True,
) -> Procedure[Outcome]:
    """Train one site's model together with its neighbours, and a `second` time where wanted; see `train_parts`."""
    if second is not None:
        site = site.in_order()
        check_second(site, chooser, settings)
    outcome = yield from train_parts(site, chooser, settings, tuning, prediction=prediction, keep_sums=keep_sums)
    if second is None:
        return outcome.at_the_end()
    fixed, found = _found(outcome, chooser, settings)
    if not second.fits_shared:
        fixed = msgspec.structs.replace(fixed, shared=None)  # `calibrate` takes it off the responses

    def again(other: Site) -> Procedure[Outcome]:
        try:
            return (yield from train_parts(other, found, fixed, prediction=prediction, keep_sums=False, at_home=False))
        except DataError as error:
            raise DataError(
                f"in the second training, for intervals or classes, which leaves a fifth of the rows out and needs "
                f"{FOLDS - 1} times as many rows per feature: {error}"
            ) from error

    fits_shared = second.fits_shared
    yield from calibrate(site, outcome, again, second.keep, settings, prediction=prediction, fits_shared=fits_shared)
    return outcome.at_the_end()


def check_second(site: Site, chooser: Chooser, settings: DeKRRSettings) -> None:
    """Refuse a run whose second training the site would refuse, before anything is sent; see `refusal_of_second`.

    Where sites have different numbers of features, a neighbour's number is not known yet and does not count.
    """
    if settings.allocation != "equal":
        return
    n_features = int(chooser.n_features)
    n_own = chooser.most_features(n_features, site.n_rows)
    n_other = min(n_features, settings.max_features)  # 0 where it is not the same at all sites
    reason = refusal_of_second(site, n_own, n_other, settings)
    if reason:
        raise DataError(f"site {site.name!r} {reason}; or join the site to another, or do without intervals")


def _found(outcome: Outcome, chooser: Chooser, settings: DeKRRSettings) -> tuple[DeKRRSettings, Chooser]:
    """Return the settings and the chooser with the numbers that a training found, for one without some rows."""
    # A fifth of the rows is what sums over all rows differ by from those over the others, four times as many. Where the
    # fifth is larger, three and a half times as many are left at least. All sites must have the same number here.
    found: dict[str, Any] = {"rows_per_feature": settings.rows_per_feature * (FOLDS - 1.5)}
    tuned, sigma = outcome.tuned, outcome.sigma
    if outcome.shared is not None:
        found["site_effect"] = None if outcome.shared.ratio == NO_LEVEL else outcome.shared.ratio
    if outcome.column_scales is not None:
        found["column_scales"] = tuple(outcome.column_scales.tolist())
    if settings.alpha is None:
        found["alpha"] = outcome.alpha
    if tuned is not None:
        sigma = tuned.sigma
        found |= {"alpha": tuned.alpha, "consensus": tuned.consensus, "own_weight": tuned.own_weight}
    return msgspec.structs.replace(settings, **found), chooser if sigma is None else chooser.replace(sigma=sigma)
