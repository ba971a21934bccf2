"""DeKRR-DDRF: every site with features of its own, consensus on predictions.

Yang, He, He, Yang and Huang, Decentralized kernel ridge regression based on data-dependent random feature,
IEEE Transactions on Neural Networks and Learning Systems, 2024. `train` is its Algorithm 1, with sums over
rows in the place of lines 4 to 6, which send features of every row.
"""

from dataclasses import replace

from ..messages import Offer
from ..scaling import AnyScaling
from ..selection import Chooser
from ..settings import DeKRRSettings
from ..settings import check as check_settings
from ..solvers import make_solver
from .choosing import ALLOCATIONS, choose, exchange_maps, read_offers, sized
from .cross_validation import tuned
from .exchange import exchange_of
from .masking import Agreement, Masking
from .outcome import Outcome
from .preparation import preparation_of
from .roll_call import RollCall
from .rounds import rounds
from .run import Run, Start, Tuning, equal_outputs, weigh_rows
from .site import Procedure, Site


def train(
    site: Site,
    chooser: Chooser,
    settings: DeKRRSettings,
    tuning: Tuning | None = None,
    *,
    keep_path: bool = False,
    keep_sums: bool = True,
) -> Procedure[Outcome]:
    """Train one site's model together with its neighbours (Algorithm 1).

    Parameters
    ----------
    chooser : Chooser
        How to choose features. Its `n_features` is the mean over sites where the allocation is not equal.
    tuning : Tuning, optional
        Bandwidths, alphas and consensuses to choose from by cross-validation first.
    keep_path : bool, default=False
        Keep the coefficients of every round in the outcome.
    keep_sums : bool, default=True
        Keep the sums in the outcome, so that training can go on from them.
    """
    # fmt: off
    run = plan(chooser, settings, tuning, keep_path=keep_path, keep_sums=keep_sums)
    run.refuse(site)                                               # every reason at once, before anything is sent
    site = site if tuning is None else site.in_order()             # tuning has folds
    start = yield from begin(site, run)                            # who is there, N, J; rows in agreed units
    return (yield from agree(start, run))
    # fmt: on


def agree(start: Start, run: Run) -> Procedure[Outcome]:
    """Choose features, exchange sums, and solve together with the neighbours: what follows the start of a run."""
    # fmt: off
    run = yield from sized(start, run)                             # how many features, D_j
    run = yield from tuned(start, run)                             # nothing to do where all settings are numbers
    own = yield from choose(start, run)                            # line 3
    offers = yield from exchange_maps(start.site, own, run)        # lines 4, 5
    start.site.enter("sums over rows")
    sums = run.exchange.sums(start, own, offers, run)              # line 6: sums, noisy sums, or the paper's rows
    return (yield from rounds(start, (yield from sums), run, start.site.coefficients))  # lines 7 to 14
    # fmt: on


def plan(
    chooser: Chooser,
    settings: DeKRRSettings,
    tuning: Tuning | None = None,
    *,
    keep_path: bool = False,
    keep_sums: bool = True,
) -> Run:
    """Return the run that the settings ask for; refuse settings that are not what they may be."""
    solver = make_solver(settings.solver, settings.self_penalty)
    check_settings("the run", settings)
    return Run(
        chooser,
        settings,
        preparation=preparation_of(settings, settings.bounds),
        allocation=ALLOCATIONS[settings.allocation](),
        exchange=exchange_of(settings),
        solver=solver,
        tuning=tuning,
        keep_path=keep_path,
        keep_sums=keep_sums,
    )


def begin(site: Site, run: Run) -> Procedure[Start]:
    """Withhold rows that stand alone, call the roll, and bring rows to agreed units.

    Where nothing is asked of the rows but their sums, the roll is left to the exchange of sums, and rows that are read
    in batches are not read yet.
    """
    site = run.exchange.prepared(site, run).withholding(run.max_leverage)
    if run.counts_rows_first or not site.rows.streamed:
        site.require_rows(run.settings.min_rows)
    roll = RollCall(site)
    if run.counts_rows_first:
        yield from roll.roster()
    if run.settings.weighted:
        yield from weigh_rows(site, roll)
    agreement = agreement_of(site, roll, run)
    site.enter("scales")
    scaling = yield from run.preparation.agree(site, roll, agreement)
    if run.preparation.is_agreed and site.rows.n_outputs > 1:
        masks = (yield from agreement.masks()) if agreement is not None else None
        scaling = yield from equal_outputs(site.rows.scaled(scaling), scaling, site, roll, masks)
    return start_of(site, scaling, roll, agreement)


def agreement_of(site: Site, roll: RollCall, run: Run) -> Agreement | None:
    """Return the agreement on keys for masks, where the run has masks; it is made when a sum needs them."""
    return Agreement(site, roll, lone_neighbor=run.settings.lone_neighbor) if run.exchange.is_masked else None


def start_of(site: Site, scaling: AnyScaling, roll: RollCall, agreement: Agreement | None) -> Start:
    """Return the start of a run in agreed units."""
    rows = site.rows.scaled(scaling)
    return Start(site, rows, scaling, roll, Masking(agreement, rows, scaling) if agreement is not None else None)


def with_features(site: Site, offer: Offer, chooser: Chooser, settings: DeKRRSettings) -> Site:
    """Return the site with the features that it once offered its neighbours."""
    offers = read_offers(site, {site.name: offer}, site.rows.n_columns, plan(chooser, settings))
    return replace(site, feature_map=offers.maps[site.name])
