"""How coefficients travel: in full, rounded, as small differences, or not at all.

A sender keeps what its neighbours know of its coefficients. "single" sends them rounded to 4 bytes. "int8" sends the
difference to what is known, in 255 steps of its largest entry; what rounding leaves out is part of the next
difference, so that the error goes to zero with the steps. A censored sender stays silent while it has moved less
than a threshold that falls with the rounds (Xu et al., COKE, Journal of Machine Learning Research 22, 2021).
"""

from collections.abc import Mapping

import numpy as np

from ..messages import AnyMessage, Coefficients, Unchanged, expect_kind, expect_senders, expect_shape
from ..settings import Wire
from ..types import Array


class Sender:
    """A site's coefficients as its neighbours know them.

    Parameters
    ----------
    wire : Wire
    known : ndarray of shape (n_features,)
        What neighbours know before the first message.
    """

    def __init__(self, wire: Wire, known: Array) -> None:
        self._wire = wire
        self.known = known

    def message(self, coefficients: Array, rounds: int, progress: tuple[float, ...]) -> Coefficients | Unchanged:
        """Return the message of this round, and remember what neighbours know after it."""
        wire = self._wire
        if wire.censor_start and self._moved(coefficients) < wire.censor_start * wire.censor_decay**rounds:
            return Unchanged(progress)
        if wire.precision == "int8":
            moved = coefficients - self.known
            step = float(np.abs(moved).max()) / 127 or 1.0
            steps = np.rint(moved / step).astype(np.int8)
            self.known = self.known + step * steps
            return Coefficients(steps, progress, step)
        values = coefficients.astype(np.float32) if wire.precision == "single" else coefficients
        self.known = values.astype(np.float64, copy=False)
        return Coefficients(values, progress)

    def _moved(self, coefficients: Array) -> float:
        return float(np.linalg.norm(coefficients - self.known))


class Listener:
    """What a site knows of its neighbours' coefficients.

    Parameters
    ----------
    known : mapping of neighbour to ndarray of shape (n_features,)
        Before the first message.
    """

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
