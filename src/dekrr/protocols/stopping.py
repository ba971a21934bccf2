"""When to stop: all sites in the same round, once the largest residual of all is small enough."""

from collections.abc import Mapping

import numpy as np

from ..errors import MessageError

_AT_A_TIME = 2  # rounds whose largest residual travels


class Progress:
    """Decides, at all sites in the same round, whether the largest residual is small enough.

    Every site's residual and scale (what the residual is relative to) ride on the message of the next exchange. Each
    site passes on the largest of that round that it has heard. After `diameter` exchanges that is the largest of all
    sites. The largest residuals of two rounds travel at a time, so that every (diameter / 2)th round may be the last.

    Parameters
    ----------
    diameter : int
    tol : float
        Settled when the largest residual is at most `tol` times the largest scale; 0 never settles.
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
