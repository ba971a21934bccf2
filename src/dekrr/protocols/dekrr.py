"""DeKRR-DDRF: every site with features of its own, consensus on predictions.

Yang, He, He, Yang and Huang, Decentralized kernel ridge regression based on data-dependent random feature,
IEEE Transactions on Neural Networks and Learning Systems, 2024. `train` is its Algorithm 1, with sums over
rows in the place of lines 4 to 6, which send features of every row. Training, online updates and private runs all
end in `rounds`.

**How coefficients travel: in full, rounded, as small differences, or not at all.**

A sender keeps what its neighbours know of its coefficients. "single" sends them rounded to 4 bytes. "int8" sends the
difference to what is known, in 255 steps of its largest entry; what rounding leaves out is part of the next
difference, so that the error goes to zero with the steps. A censored sender stays silent while it has moved less
than a threshold that falls with the rounds (Xu et al., COKE, Journal of Machine Learning Research 22, 2021).

All sites stop in the same round, once the largest residual of all is small enough.
"""

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from ..errors import DekrrError, MessageError, SettingsError, WrongRowsWarning
from ..messages import AnyMessage, Coefficients, Offer, Unchanged, expect_kind, expect_senders, expect_shape
from ..scaling import AnyScaling
from ..selection import Chooser
from ..settings import DeKRRSettings, Wire
from ..settings import check as check_settings
from ..solvers import make_solver
from ..statistics import OwnSums
from ..types import Array
from .cross_validation import tune
from .doubt import Doubts, doubts_of
from .exchange import exchange_of
from .feature_choice import choose, exchange_maps, read_offers, sized
from .masking import MOST_FLOODED, Agreement, MaskedRounds, Masking, fewest_of, products_of, unit_of
from .preparation import preparation_of
from .roll_call import RollCall
from .run import OpenRounds, Outcome, Run, SetUp, Start, Tuning, equal_outputs, weigh_rows
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
    """Train one site's model together with its neighbours (Algorithm 1), after `tuning` by cross-validation.

    The chooser's `n_features` is the mean over sites where the allocation is not equal. The outcome keeps the
    coefficients of every round, and the sums from which training can go on, where that is wanted.
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
    if run.tuning is not None:
        run = run.with_tuned((yield from tune(start, run, run.tuning)))
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
        scaling = yield from equal_outputs(site.rows.scaled(scaling), scaling, roll, agreement)
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


class Sender:
    """A site's coefficients as its neighbours know them."""

    def __init__(self, wire: Wire, known: Array) -> None:
        self._wire = wire
        self.known = known

    def message(self, coefficients: Array, rounds: int, progress: tuple[float, ...]) -> Coefficients | Unchanged:
        """Return the message of this round, and remember what neighbours know after it."""
        wire = self._wire
        moved = coefficients - self.known
        if wire.censor_start and np.linalg.norm(moved) < wire.censor_start * wire.censor_decay**rounds:
            return Unchanged(progress)
        if wire.precision == "int8":
            step = float(np.abs(moved).max()) / 127 or 1.0
            steps = np.rint(moved / step).astype(np.int8)
            self.known = self.known + step * steps
            return Coefficients(steps, progress, step)
        values = coefficients.astype(np.float32) if wire.precision == "single" else coefficients
        self.known = values.astype(np.float64, copy=False)
        return Coefficients(values, progress)


class Listener:
    """What a site knows of its neighbours' coefficients."""

    def __init__(self, known: Mapping[str, Array]) -> None:
        self.known = dict(known)

    def hear(self, inbox: Mapping[str, AnyMessage]) -> dict[str, tuple[float, ...]]:
        """Take in a round's messages and return what they say about progress."""
        expect_senders(inbox, self.known)
        shares = {}
        for p, message in inbox.items():
            if not isinstance(message, (Coefficients, Unchanged)):
                message = expect_kind(p, message, Coefficients)
            if isinstance(message, Coefficients):
                values, known = message.values, self.known[p]
                expect_shape(p, message, "values", known.shape)
                if values.dtype.kind == "i":
                    self.known[p] = known + message.step * values
                else:
                    self.known[p] = values.astype(np.float64, copy=False)
            shares[p] = message.progress
        return shares


_AT_A_TIME = 2  # rounds whose largest residual travels


class StoppingRule:
    """Decides, at all sites in the same round, whether the largest residual is small enough.

    Every site's residual and scale (what the residual is relative to) ride on the message of the next exchange. Each
    site passes on the largest of that round that it has heard. After `diameter` exchanges that is the largest of all
    sites. The largest residuals of two rounds travel at a time, so that every (diameter / 2)th round may be the last.
    It is settled when the largest residual is at most `tol` times the largest scale; `tol` 0 never settles.
    """

    def __init__(self, diameter: int, tol: float) -> None:
        self._diameter = diameter
        self._tol = tol
        self._interval = max(1, -(-diameter // _AT_A_TIME))
        self._exchanges = 0
        self.share: tuple[float, ...] = ()  # what rides on the next message: residual, scale, newest round first
        self.relative = np.inf
        self.settled = False

    def after_exchange(self, own: tuple[float, float], neighbors: Mapping[str, tuple[float, ...]]) -> None:
        """Take in what the neighbours passed on and this site's (residual, scale) after this exchange."""
        due = len(self.share)
        for sender, share in neighbors.items():
            if len(share) != due:
                raise MessageError(f"site {sender!r} sent {len(share)} numbers about progress, expected {due}", sender)
        heard = tuple(map(max, self.share, *neighbors.values())) if neighbors else self.share
        newest = self._exchanges % self._interval
        if newest == 0:
            heard = own + heard
        oldest = newest + (len(heard) // 2 - 1) * self._interval
        if oldest == self._diameter:
            *others, residual, scale = heard
            heard = tuple(others)
            self.relative = residual / scale if scale > 0 else 0.0
            self.settled = self._tol > 0 and self.relative <= self._tol
        self.share = heard
        self._exchanges += 1


_SUDDEN = 0.01  # of the last round's residual: less may be an accident of this round


def rounds(start: Start, ready: SetUp, run: Run, coefficients: Array | None = None) -> Procedure[Outcome]:
    """Assemble the block row, exchange coefficients and update them until all sites stop together (lines 7 to 14).

    Sums that are not kept are given up before the first exchange. Without coefficients all sites start from 0: no site
    has to be told so, and the first round goes without an exchange. An empty array has this site alone start from 0.

    The residual that decides is this round's, or the last one's where this round's is next to nothing against it:
    Chebyshev's rises again. Where sites do not depend on each other it is 0 in every other round. On a wire that rounds
    coefficients or leaves them out, what neighbours cannot see of this site's coefficients is added.
    """
    settings, from_zero = run.settings, coefficients is None
    assert settings.alpha is not None  # `training.train_parts` has set it
    system = ready.system(settings.alpha, settings.consensus)  # lines 7 and 8
    row, hessian = system.row, system.row.hessian.copy()
    if coefficients is None or not coefficients.size:
        coefficients = np.zeros_like(row.right_side)
    state = run.solver.start(system, coefficients)
    del system
    speaker = yield from _speaker(start, ready, run)
    if not run.keep_sums:
        ready = replace(ready, own=OwnSums(np.empty((0, 0)), np.empty(0), 0.0), received={}, sent={})
    outcome = Outcome(
        ready.roster,
        start.scaling,
        ready.own_map,
        state.coefficients,
        neighbor_maps=ready.maps,
        own_weight=settings.own_weight,
        tuned=run.tuned,
        ready=ready if run.keep_sums else None,
        privacy=ready.spent,
        admission=start.site.admission,
        hessian=hessian,
        settled=False,
    )
    outputs = state.coefficients.shape[1:]
    last_length = 0.0
    progress = StoppingRule(ready.roster.diameter, settings.tol)
    scale = float(np.linalg.norm(row.right_side))
    sender = Sender(settings.wire, state.coefficients if from_zero else np.zeros_like(state.coefficients))
    listener = Listener({p: np.zeros((known.n_features, *outputs)) for p, known in ready.maps.items()})
    outcome.neighbor_coefficients = listener.known
    doubts = None
    if start.site.doubts and from_zero:
        n_sites, known = ready.roster.n_sites, dict(listener.known)
        doubts = doubts_of(row, run.solver, settings, start.scaling, n_sites, known)
    most = yield from _most_rounds(start, ready, run, int(np.prod(outputs)), from_zero=from_zero)
    for k in range(most + 1):
        outcome.coefficients, outcome.rounds = state.coefficients, k
        shares: dict[str, tuple[float, ...]] = {}
        pull: Array | float = 0.0
        if k or not from_zero:
            message = sender.message(state.coefficients, k, progress.share)  # line 10
            inbox, pull = speaker.read((yield speaker.outbox(message, sender.known)))
            shares = listener.hear(inbox)  # line 11
            if doubts is not None:
                pull = _taken(start.site, doubts, listener.known, pull, drops=settings.exclude == "stop")
        residual = row.residual(state.coefficients, listener.known) + pull
        length = math.sqrt(np.vdot(residual, residual))
        if not math.isfinite(length):
            raise _overflow({**listener.known, "": state.coefficients})
        if sender.known is not state.coefficients:
            length += speaker.behind * row.unseen(state.coefficients - sender.known)
        is_sudden = bool(shares) and length <= _SUDDEN * last_length
        progress.after_exchange((last_length if is_sudden else length, scale), shares)
        last_length = length
        outcome.objective_shares.append(row.objective_share(state.coefficients, residual))
        outcome.settled, outcome.relative_residual = progress.settled, progress.relative
        if not k:
            start.site.kept.reached.append(outcome)  # no sums are to come: a loss leaves it as it is
        if run.keep_path:
            outcome.path.append(state.coefficients)
        if progress.settled or k == most:  # line 14
            break
        state = run.solver.update(state, residual)  # lines 12 and 13
    if most < settings.max_rounds and not outcome.settled:
        outcome.ended_by = "masks: with more rounds, neighbours could solve for the sums of single sites"
    return outcome


def _taken(site: Site, doubts: Doubts, said: dict[str, Array], pull: Array | float, *, drops: bool) -> Array | float:
    """Take of what neighbours said what honest ones can have said; tell the site who cannot be honest, or drop it."""
    liars, pull, is_false = doubts.heard(said, pull)
    for p in liars:
        text = f"the coefficients of {p} move further in a round than rows and settings that all agreed on let them"
        if drops:
            raise MessageError(text, p)
        site.tell(f"{text}: what goes further is cut off", WrongRowsWarning)
    if is_false and not liars:
        names = " or ".join(sorted(said))
        site.tell(f"{names}: one of them sends false products under masks, which are cut off", WrongRowsWarning)
    return pull


def _most_rounds(start: Start, ready: SetUp, run: Run, n_outputs: int, *, from_zero: bool) -> Procedure[int]:
    """Return how many rounds there are at most, the same at all sites.

    Every product of a round is a linear equation for C_jp of the neighbours p of a site j. As long as there are no more
    than the fewest features of a site, every combination of them has a part of each neighbour. So whoever has the
    products of j, and all that all but two of its neighbours know, has no product of one of the two.
    """
    if start.masking is None:
        return run.settings.max_rounds
    masks = yield from start.masking.masks()
    own = MOST_FLOODED
    if run.settings.lone_neighbor == "refuse":
        fewest = min(known.n_features for known in (ready.own_map, *ready.maps.values()))
        own = max(0, (fewest - masks.n_products) // n_outputs - (not from_zero))
    most = yield from fewest_of(start.site, ready.roster, own)
    return run.settings.max_rounds if most == MOST_FLOODED else min(most, run.settings.max_rounds)


def _speaker(start: Start, ready: SetUp, run: Run) -> Procedure[OpenRounds | MaskedRounds]:
    """Return how coefficients are sent: alone, or with masked products where the block row has no C_jp."""
    if start.masking is None:
        return OpenRounds(start.site)
    masks = yield from start.masking.masks()
    products = {p: products_of(sums.cross, ready.maps[p], len(ready.maps)) for p, sums in ready.sent.items()}
    units = unit_of(ready.own_map).reshape(-1, *[1] * (ready.own.moment.ndim - 1))
    return MaskedRounds(masks, products, units, run.settings.consensus / ready.roster.n_counted)


def _overflow(known: Mapping[str, Array]) -> DekrrError:
    """Return the error for a residual that is not finite, by who has the largest coefficients: "" is this site."""
    largest = max(known, key=lambda p: float(np.abs(known[p]).max()))
    if not largest:
        return SettingsError("the iteration does not converge; raise alpha, or scale rows and responses")
    return MessageError(f"site {largest!r} sent coefficients so large that nothing can be computed from them", largest)
