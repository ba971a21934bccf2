"""Training with all parts of a site's model: f_j = shared + agreed + local.

- The shared part is the same at all sites (`shared_part`). It reaches rows unlike a site's own.
- The agreed part is DeKRR (`dekrr`), on what the shared part leaves.
- The local part is the site's own correction of what both leave (`dekrr.local_part`). It reads a row, and what the
  other parts predict for it. It is sent to nobody.

The features of all parts are drawn in column scales that the sites agree on (`column_scales`). Where a run has none of
this, it is `dekrr.train`, exactly.
"""

from collections.abc import Iterator
from dataclasses import replace

import msgspec

from ..local_part import draw_for, fit_local, local_size, share_for_all, with_predictions
from ..selection import Chooser, Greedy, Mixed
from ..settings import DeKRRSettings
from ..types import Array
from . import dekrr
from .column_scales import agree_on_scales, candidate_scales
from .outcome import Beneath, Outcome, Part
from .run import Run
from .shared_part import agree_on_spreads, bandwidth_of, both_kinds, fit_shared, shared_size
from .site import Procedure, Site
from .tuning import Tuning

_SHARE_OF_SCALES = 2  # the models that scales are learnt from have so much fewer features than the shared part
_MOST_FOR_SCALES = 170  # and no more than these


def train(
    site: Site,
    chooser: Chooser,
    settings: DeKRRSettings,
    tuning: Tuning | None = None,
    *,
    prediction: str = "neighborhood",
    objective: str = "mean",
    keep_sums: bool = True,
    beneath: Beneath | None = None,
) -> Procedure[Outcome]:
    """Train one site's model, with all its parts, together with its neighbours.

    Parameters
    ----------
    site : Site
    chooser : Chooser
        Of the agreed part. Where its sigma is None, the sites agree on one by the spread of their rows.
    settings : DeKRRSettings
        `shared`, `local` and `column_scales` say which parts there are.
    tuning : Tuning, optional
        For the agreed part.
    prediction : {"neighborhood", "own"}
        How the site will predict with the agreed part.
    objective : {"mean", "own", "union"}
        Whose rows matter: the local part counts full for "own", in part for "mean" and not at all for "union".
    keep_sums : bool, default=True
        Keep the sums in the outcome, so that training can go on from them.
    beneath : Beneath, optional
        A shared part that was taken off the responses before.
    """
    if not has_parts(settings):
        return (yield from dekrr.train(site, chooser, settings, tuning, keep_sums=keep_sums))
    run = dekrr.plan(chooser, settings, tuning, keep_sums=keep_sums)
    run.refuse(site, also=reasons(settings))
    start = yield from dekrr.begin(site, run)
    roster = yield from start.roll.roster()
    start.site.require_rows(settings.min_rows)
    spreads = yield from agree_on_spreads(start)
    sigma = chooser.sigma or bandwidth_of(spreads)
    n_shared = shared_size(settings.shared or "auto", roster, start.rows.n_columns, settings.rows_per_feature)
    n_scaling = max(1, min(n_shared // _SHARE_OF_SCALES, _MOST_FOR_SCALES))
    learnt = yield from agree_on_scales(start, run, settings.column_scales, n_scaling, sigma, spreads)
    sets = candidate_scales(learnt.scales, spreads)
    shared: Part | None = None
    agreed = start
    if settings.shared is not None:
        kinds = both_kinds(n_shared, sets, candidate_scales(learnt.of_whole, spreads)[-1:])
        shared = yield from fit_shared(start, run, sigma, kinds, ridge=learnt.ridge)
        agreed = replace(start, rows=shared.residuals(start.rows))
    outcome = yield from dekrr.agree(agreed, _run_of_agreed(run, sigma, sets))
    outcome.shared, outcome.column_scales, outcome.sigma = shared, learnt.scales, sigma
    if settings.local is not None:
        outcome.local = local_part(site, outcome, settings, sets, spreads, prediction, objective, beneath)
    return outcome


def has_parts(settings: DeKRRSettings) -> bool:
    """Return whether a run is more than DeKRR alone."""
    return any(part is not None for part in (settings.shared, settings.local, settings.column_scales))


def reasons(settings: DeKRRSettings) -> Iterator[str]:
    """Yield why a run cannot have the parts that it asks for."""
    if settings.privacy is not None:
        yield (
            "the privacy budget pays for the sums of DeKRR alone: give shared=None, local=None and column_scales=None "
            "with privacy"
        )


def local_part(
    site: Site,
    outcome: Outcome,
    settings: DeKRRSettings,
    sets: tuple[tuple[float, ...], ...],
    spreads: Array,
    prediction: str,
    objective: str,
    beneath: Beneath | None = None,
) -> Part | None:
    """Return the site's correction for its own rows, with those that are in no sum; None where it does not help.

    Parameters
    ----------
    site : Site
        With all its rows; a sample stands for them where they are very many.
    outcome : Outcome
        The other parts.
    settings : DeKRRSettings
    sets : tuple of tuples of float
        The column scales of candidates.
    spreads : ndarray of shape (n_columns,)
    prediction, objective : str
    beneath : Beneath, optional
    """
    rows = site.rows.sample if site.rows.streamed else site.rows
    block = rows.scaled(outcome.scaling).arrays()
    n_features = local_size(settings.local, block.n_rows)
    if n_features < 1 or objective == "union":
        return None
    others = outcome.whole_prediction(block.X, prediction)
    read = others if beneath is None else others + beneath(rows.arrays().X, outcome.scaling)
    block = with_predictions(block._replace(y=block.y - others), read)
    scales = sets[-1] if sets else (1.0,) * rows.n_columns
    sigma = outcome.sigma or bandwidth_of(spreads)
    feature_map, ridge = draw_for(block, n_features, sigma, scales, site.rng("local part"))
    coefficients = fit_local(block, feature_map, site.rng("local folds"), ridge)
    if coefficients is None:
        return None
    if objective == "mean":
        coefficients = coefficients * share_for_all(block, feature_map, coefficients, site.rng("local share"))
    return Part(feature_map, coefficients)


def _run_of_agreed(run: Run, sigma: float, sets: tuple[tuple[float, ...], ...]) -> Run:
    """Return the run of the agreed part: its candidates are drawn in the agreed scales, with the agreed bandwidth.

    The default choice, greedy from Gaussian candidates, becomes a greedy choice from a mixed pool.
    """
    chooser, tuning = run.chooser, run.tuning
    if chooser.sigma is None and tuning is not None and len(tuning.sigmas) == 1:
        tuning = msgspec.structs.replace(tuning, sigmas=(sigma,))
    default = Greedy(chooser.n_features, sigma=chooser.sigma, mapping=chooser.mapping)
    if type(chooser) is Greedy and chooser == default:
        chooser = Mixed(chooser.n_features, sigma=chooser.sigma, mapping=chooser.mapping)
    chooser = chooser.replace(sigma=chooser.sigma or sigma, column_scales=sets)
    return replace(run, chooser=chooser, tuning=tuning)
