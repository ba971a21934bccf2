"""The interface of a site's rows, rows in memory, and chains of rows.

A procedure needs four things of its rows: their number, their bounds, a sample for the choice of features and settings,
and blocks for the sums.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property

import numpy as np

from ..errors import SettingsError
from ..scaling import AnyScaling, Scaling, Unscaled
from ..types import Array, Block
from .survey import Survey, Weighed, sampled

_BLOCK_ROWS = 1 << 14  # the block size of passes that compute very little per row
Admits = Callable[[Array], np.ndarray]


class Rows(ABC):
    """Rows of a site and their responses.

    Attributes
    ----------
    n_columns : int
    streamed : bool
        Whether the rows are read in batches; `arrays` is then not available.
    weighted : bool
        Whether the rows have weights.
    expansion : float
        The number of rows of the site that each of these rows stands for; above 1 for a sample. It is not the weight of
        a single row, which is in the `Block`.
    seed : int
        The seed of the sample.
    """

    n_columns: int
    streamed: bool = False
    weighted: bool = False
    expansion: float = 1.0
    seed: int = 0

    @abstractmethod
    def blocks(self, size: int) -> Iterator[Block]:
        """Pass over all rows in blocks of at most `size` rows. There is at least one block; it may be empty."""

    @cached_property
    def survey(self) -> Survey:
        """The number of rows, their bounds and a sample, from one pass."""
        survey = Survey(self.seed)
        for block in self.blocks(_BLOCK_ROWS):
            survey.add(block)
        return survey

    @property
    def n_rows(self) -> int:
        """The number of rows."""
        return self.survey.n_rows

    @property
    def knows_outputs(self) -> bool:
        """Whether the number of outputs is known without reading rows."""
        return True

    @property
    def n_outputs(self) -> int:
        """The number of outputs: 1 where responses are a vector."""
        shape = next(iter(self.blocks(_BLOCK_ROWS))).y.shape[1:]
        return int(shape[0]) if shape else 1

    @property
    def n_effective(self) -> int:
        """How many rows of equal weights these rows are worth: what guards count; see `dekrr.rows.survey.Weighed`."""
        return min(self.n_rows, int(self.weights.n_effective + 1e-6)) if self.weighted else self.n_rows

    @property
    def weights(self) -> Weighed:
        """The sums over the rows' weights; a row without a weight counts once."""
        return self.survey.weights

    @property
    def bounds(self) -> Scaling:
        """The smallest and largest value of each column, followed by those of each output."""
        return self.survey.bounds

    @property
    def sample(self) -> "ArrayRows":
        """All rows if they are few, otherwise a random sample without replacement; see `survey.sampled`."""
        return ArrayRows(*self.survey.sample, expansion=self.survey.expansion)

    def arrays(self) -> Block:
        """Return all rows as arrays; rows that are read in batches raise `SettingsError`."""
        if self.streamed:
            raise SettingsError("rows that are read in batches are not available all at once: load them first")
        return joined(list(self.blocks(_BLOCK_ROWS)))

    def owned(self) -> "Rows":
        """Return the rows in memory that no other object can write to; rows that are streamed stay as they are."""
        return self

    def mapped(self, function: Callable[[Block], Block]) -> "Rows":
        """Return the rows with a function applied to each block."""
        return _MappedRows(self, function)

    def scaled(self, scaling: AnyScaling) -> "Rows":
        """Return the rows in the units of `scaling`."""
        if isinstance(scaling, Unscaled):
            return self
        return self.mapped(lambda block: block._replace(X=scaling.rows(block.X), y=scaling.responses(block.y)))

    def admitted(self, admits: Admits) -> "Rows":
        """Return the rows that may be in sums.

        Parameters
        ----------
        admits : callable
            Takes rows of shape (n_rows, n_columns) and returns a mask: True for rows that may be in sums.
        """
        return _AdmittedRows(self, admits)


class ArrayRows(Rows):
    """Rows in memory.

    Parameters
    ----------
    X : ndarray of shape (n_rows, n_columns)
    y : ndarray of shape (n_rows,) or (n_rows, n_outputs)
    weight : ndarray of shape (n_rows,), optional
        The weight of each row; see `dekrr.types.Block`.
    expansion : float, default=1.0
        The number of rows of the site that each of these rows stands for.
    seed : int, default=0
        The seed of the sample.

    Examples
    --------
    >>> import numpy as np
    >>> rows = ArrayRows(np.arange(6.0).reshape(3, 2), np.zeros(3))
    >>> rows.n_rows, rows.bounds.upper.tolist(), [block.n_rows for block in rows.blocks(2)]
    (3, [4.0, 5.0, 0.0], [2, 1])
    """

    def __init__(
        self,
        X: Array,
        y: Array,
        weight: Array | None = None,
        *,
        expansion: float = 1.0,
        seed: int = 0,
    ) -> None:
        self._block = Block(X, y, weight)
        self.weighted = weight is not None
        self.n_columns = int(X.shape[1])
        self.expansion = expansion
        self.seed = seed

    @property
    def X(self) -> Array:
        """The inputs, shape (n_rows, n_columns)."""
        return self._block.X

    @property
    def y(self) -> Array:
        """The responses, shape (n_rows,) or (n_rows, n_outputs)."""
        return self._block.y

    @property
    def weight(self) -> Array | None:
        """The weight of each row, shape (n_rows,); None where each counts once."""
        return self._block.weight

    @property
    def n_rows(self) -> int:
        """The number of rows."""
        return self._block.n_rows

    @property
    def n_outputs(self) -> int:
        """The number of outputs."""
        return int(self.y.shape[1]) if self.y.ndim > 1 else 1

    @property
    def weights(self) -> Weighed:
        """The sums over the rows' weights."""
        return Weighed.of(self._block)

    @property
    def bounds(self) -> Scaling:
        """The smallest and largest value of each column, followed by those of each output."""
        return Scaling.of(self.X, self.y)

    @property
    def sample(self) -> "ArrayRows":
        """All rows or a random sample; see `Rows.sample`."""
        return self if self._is_sample else super().sample

    @property
    def _is_sample(self) -> bool:
        """Whether the sample has all rows, because they are few."""
        return sampled(self.n_rows) == self.n_rows

    def arrays(self) -> Block:
        """Return the arrays themselves."""
        return self._block

    def blocks(self, size: int) -> Iterator[Block]:
        """Pass over the rows; blocks are views."""
        for start in range(0, max(self.n_rows, 1), size):
            yield self._block.take(slice(start, start + size))

    def owned(self) -> "ArrayRows":
        """Return the rows in memory that no other object can write to."""
        if all(part.flags.owndata for part in self._block if part is not None):
            return self
        return self._like(self._block.copy())

    def mapped(self, function: Callable[[Block], Block]) -> Rows:
        """Return the rows with a function applied: at once if they are few, otherwise block by block."""
        return self._like(function(self._block)) if self._is_sample else super().mapped(function)

    def take(self, rows: np.ndarray | slice) -> "ArrayRows":
        """Return the rows of a mask, of indices or of a slice."""
        return self._like(self._block.take(rows))

    def admitted(self, admits: Admits) -> "ArrayRows":
        """Return the rows that may be in sums; see `Rows.admitted`."""
        return self.take(admits(self.X))

    def _like(self, block: Block) -> "ArrayRows":
        return ArrayRows(*block, expansion=self.expansion, seed=self.seed)


class _MappedRows(Rows):
    def __init__(self, rows: Rows, function: Callable[[Block], Block]) -> None:
        self._rows = rows
        self._function = function
        self.n_columns = rows.n_columns
        self.streamed = rows.streamed
        self.weighted = rows.weighted
        self.expansion = rows.expansion

    @property
    def n_rows(self) -> int:
        return self._rows.n_rows

    @property
    def n_outputs(self) -> int:
        return self._rows.n_outputs

    @property
    def weights(self) -> Weighed:
        return self._rows.weights

    @cached_property
    def sample(self) -> ArrayRows:
        sample = self._rows.sample
        return ArrayRows(*self._function(sample.arrays()), expansion=sample.expansion)

    def blocks(self, size: int) -> Iterator[Block]:
        return map(self._function, self._rows.blocks(size))


class _AdmittedRows(Rows):
    """The rows that a rule admits."""

    def __init__(self, rows: Rows, admits: Admits) -> None:
        self._rows = rows
        self._admits = admits
        self.n_columns = rows.n_columns
        self.streamed = rows.streamed
        self.weighted = rows.weighted
        self.expansion = rows.expansion
        self.seed = rows.seed

    @property
    def n_outputs(self) -> int:
        return self._rows.n_outputs

    def blocks(self, size: int) -> Iterator[Block]:
        for block in self._rows.blocks(size):
            yield block.take(self._admits(block.X))


class ChainedRows(Rows):
    """Rows of several kinds, one after another.

    Parameters
    ----------
    parts : sequence of Rows
        All have the same columns. A chain among them is replaced by its own parts, so that chains of chains stay flat.
    """

    def __init__(self, parts: Sequence[Rows]) -> None:
        self.parts: list[Rows] = []
        for part in parts:
            self.parts += part.parts if isinstance(part, ChainedRows) else [part]
        self.n_columns = parts[0].n_columns
        self.streamed = any(part.streamed for part in parts)
        self.weighted = any(part.weighted for part in parts)
        self.seed = parts[0].seed

    @property
    def n_rows(self) -> int:
        """The number of rows."""
        return sum(part.n_rows for part in self.parts)

    @property
    def n_outputs(self) -> int:
        """The number of outputs."""
        return self.parts[0].n_outputs

    @property
    def weights(self) -> Weighed:
        """The sums over the rows' weights."""
        total = self.parts[0].weights
        for part in self.parts[1:]:
            total = total.plus(part.weights)
        return total

    def blocks(self, size: int) -> Iterator[Block]:
        """Pass over one part after another."""
        for part in self.parts:
            yield from part.blocks(size)


def joined(blocks: Sequence[Block]) -> Block:
    """Return the rows of all blocks as one block; empty blocks are ignored unless all are empty."""
    filled = [block for block in blocks if block.n_rows] or list(blocks[:1])
    if len(filled) == 1:
        return filled[0]
    if len({block.weight is None for block in filled}) > 1:  # rows without weights count once
        filled = [
            block if block.weight is not None else block._replace(weight=np.ones(block.n_rows)) for block in filled
        ]
    parts = (None if part[0] is None else np.concatenate(part) for part in zip(*filled, strict=True))
    return Block(*parts)  # type: ignore[arg-type]
