"""The first pass over rows, which finds their number, their bounds and a sample (reservoir sampling)."""

from functools import cached_property
from typing import NamedTuple

import numpy as np

from ..scaling import Scaling
from ..types import Array, Block

SAMPLE_ROWS = 20_000
_SAMPLE_STREAM = 1  # makes the sample's random numbers independent of the features' with the same seed


def sampled(n_rows: int) -> int:
    """Return the number of rows in a site's sample: all rows if they are few, otherwise at most half of them.

    The difference between a sum over all rows and a sum over the sample is a sum over the other rows. These are then
    as many as the sample, and not just a few rows.
    """
    return _within(SAMPLE_ROWS, n_rows)


def _within(size: int, n_rows: int) -> int:
    return n_rows if n_rows <= size else min(size, n_rows // 2)


class Weighed(NamedTuple):
    """Sums over the weights of rows.

    Parameters
    ----------
    total : float
        The sum of the weights: how many rows of weight 1 count as much.
    squares : float
        The sum of the squared weights.

    Examples
    --------
    >>> equal, unequal = Weighed(total=100.0, squares=100.0), Weighed(total=100.0, squares=9_100.0)
    >>> equal.n_effective, round(unequal.n_effective, 1)
    (100.0, 1.1)
    """

    total: float
    squares: float

    @classmethod
    def of(cls, block: Block) -> "Weighed":
        """Return the sums over a block's weights."""
        if block.weight is None:
            return cls(float(block.n_rows), float(block.n_rows))
        return cls(float(block.weight.sum()), float(block.weight @ block.weight))

    def plus(self, more: "Weighed") -> "Weighed":
        """Return the sums over these rows and some more."""
        return Weighed(self.total + more.total, self.squares + more.squares)

    @property
    def n_effective(self) -> float:
        """Kish's effective number of rows, (sum w)^2 / sum w^2: what guards count, at most the number of rows."""
        return self.total**2 / self.squares if self.squares else 0.0


class Survey:
    """The number of rows, their bounds and a sample, from blocks that are added one after another.

    The sample is Vitter's reservoir (Algorithm R, ACM Transactions on Mathematical Software 11, 1985). For row i,
    counted from 0, one of i + 1 places is drawn; if the reservoir has that place, the row takes it. The sample does not
    depend on the division into blocks.

    Parameters
    ----------
    seed : int
    size : int, optional
        The size of the sample; `SAMPLE_ROWS` by default.

    Examples
    --------
    >>> survey = Survey(seed=0, size=2)
    >>> survey.add(Block(np.arange(6.0).reshape(3, 2), np.zeros(3)))
    >>> survey.n_rows, survey.expansion, survey.is_whole, survey.bounds.upper.tolist()
    (3, 3.0, False, [4.0, 5.0, 0.0])
    """

    def __init__(self, seed: int, size: int | None = None) -> None:
        self.n_rows = 0
        self.weights = Weighed(0.0, 0.0)
        self.size = SAMPLE_ROWS if size is None else size
        self._rng = np.random.default_rng([seed, _SAMPLE_STREAM])
        self._numbers = np.empty(self.size, dtype=np.int64)
        self._reservoir: Block | None = None
        self._lower: Array = np.array(np.inf)
        self._upper: Array = np.array(-np.inf)

    def add(self, block: Block) -> None:
        """Take in some rows."""
        if self._reservoir is None:
            self._reservoir = _empty_like(block, self.size)
        if not block.n_rows:
            return
        bounds = Scaling.of(block.X, block.y)
        self._lower, self._upper = np.minimum(self._lower, bounds.lower), np.maximum(self._upper, bounds.upper)
        numbers = self.n_rows + np.arange(block.n_rows)
        places = np.floor(self._rng.random(block.n_rows) * (numbers + 1)).astype(np.int64)
        places = np.where(numbers < self.size, numbers, places)
        taken = places < self.size
        for kept, part in zip(self._reservoir, block, strict=True):
            if kept is not None and part is not None:
                kept[places[taken]] = part[taken]
        self._numbers[places[taken]] = numbers[taken]
        self.n_rows += block.n_rows
        self.weights = self.weights.plus(Weighed.of(block))

    @property
    def bounds(self) -> Scaling:
        """The smallest and largest value of each column, followed by those of each output."""
        return Scaling(self._lower, self._upper)

    @property
    def is_whole(self) -> bool:
        """Whether all rows are in the sample."""
        return self.n_rows <= self.size

    @property
    def expansion(self) -> float:
        """The number of rows that each row of the sample stands for."""
        return self.n_rows / max(_within(self.size, self.n_rows), 1)

    @cached_property
    def sample(self) -> Block:
        """The sample, in the order of the rows; it is final once all rows are added."""
        n_sampled = _within(self.size, self.n_rows)
        if n_sampled == min(self.n_rows, self.size):
            return self.sample_so_far()
        return self.sample_so_far().take(np.sort(self._rng.permutation(self.size)[:n_sampled]))

    def sample_so_far(self) -> Block:
        """Return the reservoir, that is, a sample of the rows added so far, in the order of the rows."""
        assert self._reservoir is not None, "a survey of no block has no sample"
        return self._reservoir.take(np.argsort(self._numbers[: min(self.n_rows, self.size)]))


def _empty_like(block: Block, n_rows: int) -> Block:
    """Return a block of `n_rows` uninitialised rows with the shapes and types of `block`."""
    parts = (None if part is None else np.empty((n_rows, *part.shape[1:]), part.dtype) for part in block)
    return Block(*parts)  # type: ignore[arg-type]
