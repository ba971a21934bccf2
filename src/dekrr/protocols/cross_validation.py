"""Choosing bandwidth, alpha and consensus by cross-validation, without a centre.

Every site divides its own rows into folds. For each bandwidth and fold, features are chosen and sums exchanged
as in training, from the rows outside the fold. `scoring` then scores every (alpha, consensus) and the weight of a
site's own model in its prediction on the rows that were held out. What a site gives away to agree on a choice is one
number per candidate, summed over the spanning tree, so that all sites choose the same.
"""

from dataclasses import replace

import msgspec
import numpy as np

from ..errors import DataError
from ..privacy.rows_per_feature import discreet_shortlist
from ..rows.survey import sampled
from ..selection import Pool
from ..selection.choosers import weights_for
from ..types import Array
from .choosing import asks_neighbors, choose, limit_shortlist, rows_around
from .exchange import ExactSums
from .offers import exchange_maps
from .roster import Roster
from .run import Run
from .scoring import HeldOut, n_products, score_grid
from .site import Procedure
from .spanning_tree import tree_sum
from .stages import SetUp, Start
from .tuning import Tuned, Tuning

_HOPELESS = 1e4  # squared errors of a row, in units of the largest response; under masks larger ones are cut


def tuned(start: Start, run: Run) -> Procedure[Run]:
    """Return the run with the numbers of the least held-out error; as it is where nothing is tuned."""
    if run.tuning is None:
        return run
    return run.with_tuned((yield from tune(start, run, run.tuning)))


def tune(start: Start, run: Run, tuning: Tuning) -> Procedure[Tuned]:
    """Agree with all sites on the candidate of the least held-out error.

    Parameters
    ----------
    start : Start
        A sample stands for its rows, where they are many.
    run : Run
    tuning : Tuning
    """
    site, rows, settings = start.site, start.rows.sample, run.settings
    roster = yield from start.roll.roster()
    if settings.rows_per_feature:
        tuning = msgspec.structs.replace(tuning, folds=folds_of_enough_rows(roster, tuning.folds, settings.min_rows))
    discreet = discreet_shortlist(rows_around(site, roster), settings.shortlist_rows)
    # What is sent for two folds has nearly the same features, so that its difference tells sums over one fold's rows:
    # the guard is about those, a (folds - 1)th of the rows in a sum.
    settings = msgspec.structs.replace(settings, rows_per_feature=settings.rows_per_feature * (tuning.folds - 1))
    run = replace(run, settings=settings, exchange=run.exchange if isinstance(run.exchange, ExactSums) else ExactSums())
    masks = (yield from start.masking.agreed()) if start.masking is not None else None
    if masks is not None:
        masks.tell_solvable(n_products(tuning) * rows.n_outputs, run.chooser.n_features, settings.lone_neighbor)
    fewest_rows = min((n - -(-n // tuning.folds) for n in (sampled(roster.rows[p]) for p in site.neighbors)), default=0)
    fold_of = site.rng("folds").permutation(rows.n_rows) % tuning.folds
    errors: list[Array] = []
    for sigma in tuning.sigmas:
        run = replace(run, chooser=run.chooser.replace(sigma=sigma))
        shortlists: list[Pool | None] = [None] * tuning.folds
        if asks_neighbors(site, run.chooser):
            limited = limit_shortlist(run.chooser, fewest_rows, settings.rows_per_feature).shortened(discreet)
            shortlists = [
                *limited.fold_shortlists(
                    rows.X,
                    rows.y,
                    fold_of,
                    tuning.folds,
                    site.rng(),
                    **weights_for(limited, "fold_shortlists", rows.weight),
                )
            ]
        ready: list[SetUp] = []
        for fold in range(tuning.folds):
            outside = replace(start, rows=rows.take(fold_of != fold))
            ready.append((yield from set_up(outside, run, shortlists[fold])))
        held_out = [HeldOut(rows.take(fold_of == k).arrays(), ready[k], tuning) for k in range(tuning.folds)]
        errors += yield from score_grid(site, ready, held_out, tuning, masks)
    own = rows.expansion * np.concatenate(errors)
    if masks is None:
        total = yield from tree_sum(site, roster, own)
    else:
        largest = _HOPELESS * 2.0 ** (masks.rows + 2 * masks.responses)
        total = yield from tree_sum(site, roster, np.fmin(own, largest), masks, largest)
    best = tuning.grid[int(np.argmin(total))]
    return Tuned(*best, grid=tuning.grid, errors=total / roster.n_counted)


def set_up(start: Start, run: Run, shortlist: Pool | None = None) -> Procedure[SetUp]:
    """Choose features from rows, or from a shortlist, and exchange maps and sums, as training does (lines 3 to 6)."""
    own = yield from choose(start, run, shortlist)
    offers = yield from exchange_maps(start.site, own, run)
    return (yield from run.exchange.sums(start, own, offers, run))


def folds_of_enough_rows(roster: Roster, folds: int, min_rows: int) -> int:
    """Return how many folds, up to `folds`, have at least `min_rows` rows at every site: what differences sum over."""
    n_rows, site = roster.whole.fewest
    if roster.n_sites == 1 or n_rows >= folds * min_rows:
        return folds
    if n_rows < 2 * min_rows:
        raise DataError(
            f"site {site!r} has {n_rows} rows, too few for two folds of min_rows={min_rows}: tuning would send sums "
            "that differ by fewer rows. Give sigma, alpha and consensus as numbers, join the site to another, or "
            "lower min_rows"
        )
    return n_rows // min_rows
