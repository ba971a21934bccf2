"""A site's rows: in memory, from several places, or as another module reads them.

Everything that a procedure asks of its rows is here: how many there are, their bounds, a sample to choose features
and settings by, and blocks to sum over.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial

import numpy as np

from ..errors import SettingsError
from ..scaling import AnyScaling, Scaling, Unscaled
from ..types import Array, Block
from .survey import Survey, sampled

_BLOCK_ROWS = 1 << 14  # of passes that compute next to nothing
Admits = Callable[[Array], np.ndarray]


class Rows(ABC):
    """Rows of a site and their responses.

    Attributes
    ----------
    n_columns : int
    streamed : bool
        Whether they are read in batches, so that they cannot be had as arrays.
    expansion : float
        How many rows of the site each of these stands for: above 1 for a sample. The weight of a single row is another
        thing, and is in its `Block`.
    seed : int
        Of the sample.
    """

    n_columns: int
    streamed: bool = False
    expansion: float = 1.0
    seed: int = 0

    @abstractmethod
    def blocks(self, size: int) -> Iterator[Block]:
        """Pass over all rows in blocks of at most `size` rows: at least one block, which may be empty."""

    @cached_property
    def survey(self) -> Survey:
        """The number of rows, their bounds and a sample, from one pass."""
        survey = Survey(self.seed)
        for block in self.blocks(_BLOCK_ROWS):
            survey.add(block)
        return survey

    @property
    def n_rows(self) -> int:
        """How many rows there are."""
        return self.survey.n_rows

    @property
    def bounds(self) -> Scaling:
        """The smallest and largest value of each column and, last, of each output."""
        return self.survey.bounds

    @property
    def sample(self) -> "ArrayRows":
        """All rows if they are few, otherwise some drawn at random without replacement; see `sampled`."""
        return ArrayRows(*self.survey.sample, expansion=self.survey.expansion)

    def arrays(self) -> Block:
        """Return all rows at once, where they are in memory."""
        if self.streamed:
            raise SettingsError("rows that are read in batches cannot be had all at once: load them before")
        return joined(list(self.blocks(_BLOCK_ROWS)))

    def owned(self) -> "Rows":
        """Return the rows in memory that nobody else can write to, or where they are read from."""
        return self

    def mapped(self, function: Callable[[Block], Block]) -> "Rows":
        """Return the rows with a function applied to each block."""
        return _MappedRows(self, function)

    def scaled(self, scaling: AnyScaling) -> "Rows":
        """Return the rows in the units of `scaling`."""
        if isinstance(scaling, Unscaled):
            return self
        return self.mapped(lambda block: block._replace(X=scaling.rows(block.X), y=scaling.responses(block.y)))

    def withholding(self, admits: Admits) -> "Rows":
        """Return the rows with those marked as withheld that `admits` does not let into sums.

        Parameters
        ----------
        admits : callable
            Returns a mask from rows, shape (n_rows, n_columns).
        """
        return _JudgedRows(self, partial(_mark, admits))

    def admitted(self) -> "Rows":
        """Return the rows without those that are withheld."""
        return _AdmittedRows(self)

    @property
    def n_withheld(self) -> int:
        """How many rows are withheld, as far as the sample tells."""
        return 0


class ArrayRows(Rows):
    """Rows in memory.

    Parameters
    ----------
    X : ndarray of shape (n_rows, n_columns)
    y : ndarray of shape (n_rows,) or (n_rows, n_outputs)
    weight : ndarray of shape (n_rows,), optional
        How often each row counts; see `dekrr.types.Block`.
    withheld : ndarray of bool, shape (n_rows,), optional
        Which rows are in no sum that leaves the site.
    expansion : float, default=1.0
        How many rows of the site each of these stands for.
    seed : int, default=0
        Of the sample.

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
        withheld: np.ndarray | None = None,
        *,
        expansion: float = 1.0,
        seed: int = 0,
    ) -> None:
        self._block = Block(X, y, weight, withheld)
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
    def n_rows(self) -> int:
        """How many rows there are."""
        return self._block.n_rows

    @property
    def bounds(self) -> Scaling:
        """The smallest and largest value of each column and, last, of each output."""
        return Scaling.of(self.X, self.y)

    @property
    def sample(self) -> "ArrayRows":
        """These rows, or some of them; see `Rows.sample`."""
        return self if self._is_sample else super().sample

    @property
    def _is_sample(self) -> bool:
        """Whether the rows are so few that the sample has all of them."""
        return sampled(self.n_rows) == self.n_rows

    def arrays(self) -> Block:
        """Return the arrays themselves."""
        return self._block

    def blocks(self, size: int) -> Iterator[Block]:
        """Pass over the rows; blocks are views."""
        for start in range(0, max(self.n_rows, 1), size):
            yield self._block.take(slice(start, start + size))

    def owned(self) -> "ArrayRows":
        """Return the rows in memory that nobody else can write to."""
        if all(part.flags.owndata for part in self._block if part is not None):
            return self
        return self._like(self._block.copy())

    def mapped(self, function: Callable[[Block], Block]) -> Rows:
        """Return the rows with a function applied: at once where they are few."""
        return self._like(function(self._block)) if self._is_sample else super().mapped(function)

    def take(self, rows: np.ndarray | slice) -> "ArrayRows":
        """Return some of the rows, by a mask, indices or a slice."""
        return self._like(self._block.take(rows))

    def withholding(self, admits: Admits) -> "ArrayRows":
        """Return the rows with those marked as withheld that `admits` does not let into sums."""
        return self._like(_mark(admits, self._block))

    def admitted(self) -> "ArrayRows":
        """Return the rows without those that are withheld."""
        return self._like(_without_withheld(self._block))

    @property
    def n_withheld(self) -> int:
        """How many rows are withheld."""
        return 0 if self._block.withheld is None else int(self._block.withheld.sum())

    def _like(self, block: Block) -> "ArrayRows":
        return ArrayRows(*block, expansion=self.expansion, seed=self.seed)


class _MappedRows(Rows):
    def __init__(self, rows: Rows, function: Callable[[Block], Block]) -> None:
        self._rows = rows
        self._function = function
        self.n_columns = rows.n_columns
        self.streamed = rows.streamed
        self.expansion = rows.expansion

    @property
    def n_rows(self) -> int:
        return self._rows.n_rows

    @cached_property
    def sample(self) -> ArrayRows:
        sample = self._rows.sample
        return ArrayRows(*self._function(sample.arrays()), expansion=sample.expansion)

    @property
    def n_withheld(self) -> int:
        return self._rows.n_withheld

    def blocks(self, size: int) -> Iterator[Block]:
        return map(self._function, self._rows.blocks(size))

    def admitted(self) -> Rows:
        return self._rows.admitted().mapped(self._function)


class _JudgedRows(_MappedRows):
    """Rows of which some are marked as withheld; nothing else of them changes."""

    @property
    def bounds(self) -> Scaling:
        return self._rows.bounds

    @property
    def n_withheld(self) -> int:
        return round(self.sample.n_withheld * self.n_rows / max(self.sample.n_rows, 1))

    def admitted(self) -> Rows:
        return _AdmittedRows(self)


class _AdmittedRows(Rows):
    """Rows without those that are withheld."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self.n_columns = rows.n_columns
        self.streamed = rows.streamed
        self.expansion = rows.expansion
        self.seed = rows.seed

    def blocks(self, size: int) -> Iterator[Block]:
        return map(_without_withheld, self._rows.blocks(size))


class ChainedRows(Rows):
    """Rows of several kinds, one after another.

    Parameters
    ----------
    parts : sequence of Rows
        With the same columns. A chain among them is replaced by its own parts, so that chains of chains stay flat.
    """

    def __init__(self, parts: Sequence[Rows]) -> None:
        self.parts: list[Rows] = []
        for part in parts:
            self.parts += part.parts if isinstance(part, ChainedRows) else [part]
        self.n_columns = parts[0].n_columns
        self.streamed = any(part.streamed for part in parts)
        self.seed = parts[0].seed

    @property
    def n_rows(self) -> int:
        """How many rows there are."""
        return sum(part.n_rows for part in self.parts)

    def blocks(self, size: int) -> Iterator[Block]:
        """Pass over one part after another."""
        for part in self.parts:
            yield from part.blocks(size)


def joined(blocks: Sequence[Block]) -> Block:
    """Return the rows of all blocks as one; empty blocks count only where there is no other."""
    filled = [block for block in blocks if block.n_rows] or list(blocks[:1])
    if len(filled) == 1:
        return filled[0]
    parts = (None if part[0] is None else np.concatenate(part) for part in zip(*filled, strict=True))
    return Block(*parts)  # type: ignore[arg-type]


def _mark(admits: Admits, block: Block) -> Block:
    return block._replace(withheld=~admits(block.X))


def _without_withheld(block: Block) -> Block:
    return block if block.withheld is None else block.take(~block.withheld)._replace(withheld=None)
