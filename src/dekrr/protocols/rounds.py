"""Solving: a site's block row, and the rounds in which sites send each other coefficients (lines 7 to 14).

Training, online updates and private runs all end here.
"""

import math
from collections.abc import Mapping

import numpy as np

from ..errors import DekrrError, MessageError, SettingsError
from ..solvers import SiteSystem
from ..types import Array
from .masking import MaskedRounds, OpenRounds, products_of, unit_of
from .outcome import Outcome
from .run import Run
from .site import Procedure
from .stages import SetUp, Start
from .stopping import Progress
from .wire import Listener, Sender

_SUDDEN = 0.01  # of the last round's residual: less may be an accident of this round


def assemble(ready: SetUp, run: Run) -> SiteSystem:
    """Return the site's block row of the linear system (lines 7 and 8)."""
    return ready.system(run.settings.alpha, run.settings.consensus)


def rounds(start: Start, ready: SetUp, run: Run, coefficients: Array | None = None) -> Procedure[Outcome]:
    """Assemble the block row, exchange coefficients and update them until all sites stop together (lines 7 to 14).

    Sums that are not kept are given up before the first exchange.

    All sites may start from 0. Then no site has to be told so, and the first round goes without an exchange.

    The residual that decides is this round's, or the last one's where this round's is next to nothing against it:
    Chebyshev's rises again. Where sites do not depend on each other it is 0 in every other round. On a wire that rounds
    coefficients or leaves them out, what neighbours cannot see of this site's coefficients is added.

    Parameters
    ----------
    start : Start
    ready : SetUp
    run : Run
    coefficients : ndarray of shape (n_features,) or (n_features, n_outputs), optional
        Where the site starts; None has all sites start from 0, and an empty array this site.
    """
    settings, from_zero = run.settings, coefficients is None
    system = assemble(ready, run)
    row = system.row
    if coefficients is None or not coefficients.size:
        coefficients = np.zeros_like(row.right_side)
    state = run.solver.start(system, coefficients)
    del system
    speaker = yield from _speaker(start, ready, run)
    if not run.keep_sums:
        ready = ready.without_sums()
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
    )
    outputs = state.coefficients.shape[1:]
    last_length = 0.0
    progress = Progress(ready.roster.diameter, settings.tol)
    scale = float(np.linalg.norm(row.right_side))
    sender = Sender(settings.wire, state.coefficients if from_zero else np.zeros_like(state.coefficients))
    listener = Listener({p: np.zeros((known.n_features, *outputs)) for p, known in ready.maps.items()})
    for k in range(settings.max_rounds + 1):
        shares: dict[str, tuple[float, ...]] = {}
        pull: Array | float = 0.0
        if k or not from_zero:
            message = sender.message(state.coefficients, k, progress.share)  # line 10
            inbox, pull = speaker.read((yield speaker.outbox(message, sender.known)))
            shares = listener.hear(inbox)  # line 11
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
        if run.keep_path:
            outcome.path.append(state.coefficients)
        if progress.settled or k == settings.max_rounds:  # line 14
            break
        state = run.solver.update(state, residual)  # lines 12 and 13
    outcome.coefficients = state.coefficients
    outcome.neighbor_coefficients = listener.known
    outcome.rounds = k
    outcome.settled = progress.settled
    outcome.relative_residual = progress.relative
    return outcome


def _speaker(start: Start, ready: SetUp, run: Run) -> Procedure[OpenRounds | MaskedRounds]:
    """Return how coefficients are sent: alone, or with masked products where the block row has no C_jp."""
    if start.masking is None:
        return OpenRounds(start.site)
    masks = yield from start.masking.agreed()
    products = {p: products_of(sums.cross, ready.maps[p], len(ready.maps)) for p, sums in ready.sent.items()}
    units = unit_of(ready.own_map).reshape(-1, *[1] * (ready.own.moment.ndim - 1))
    return MaskedRounds(masks, products, units, run.settings.consensus / ready.roster.n_counted)


def _overflow(known: Mapping[str, Array]) -> DekrrError:
    """Return the error for a residual that is not finite, by who has the largest coefficients: "" is this site."""
    largest = max(known, key=lambda p: float(np.abs(known[p]).max()))
    if not largest:
        return SettingsError("the iteration does not converge; raise alpha, or scale rows and responses")
    return MessageError(f"site {largest!r} sent coefficients so large that nothing can be computed from them", largest)
