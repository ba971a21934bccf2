"""The rows of a site: a first pass finds their number, their bounds and a sample (reservoir sampling).

**Folds, by a keyed hash of each row.** The sums over all rows but a fold are sums that leave a site. If a run's seed
moved the folds, a series of runs would give linear equations for the rows, and who knows the seeds would solve them. So
the fold of a row depends on the row and on a key of the site alone: not on other rows, not on their order, not on a
seed, and not on what the fold is for. The key of a node is a secret, and stays there. In one process there is nothing
to keep from anybody: the key is a constant, and fits repeat.

A row is its columns and its response. Its weight does not count: a run with other weights must not move folds, and a
row of weight 2 is the same as the row twice. Equal rows are in the same fold.

All folds are made of the same 20 cells. Runs may ask for different numbers of folds. Any combination of their sums is
then still one of sums over cells.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple, Self

import numpy as np

from ..errors import SettingsError
from ..scaling import AnyScaling, Response, Scaling, Unscaled
from ..types import Array, Block

SAMPLE_ROWS = 20_000
_SAMPLE_STREAM = 1  # makes the sample's random numbers independent of the features' with the same seed

HashOf = Callable[[Block], np.ndarray]
"""Gives each row of a block its hash, of type uint64, shape (n_rows,)."""


def sampled(n_rows: int) -> int:
    """Return the number of rows in a site's sample: all rows if they are few, otherwise at most half of them.

    The difference between a sum over all rows and a sum over the sample is a sum over the other rows. These are then
    as many as the sample, and not just a few rows.
    """
    return _within(SAMPLE_ROWS, n_rows)


def _within(size: int, n_rows: int) -> int:
    return n_rows if n_rows <= size else min(size, n_rows // 2)


class Weighed(NamedTuple):
    """Sums over the weights of rows."""

    total: float  # the sum of the weights: how many rows of weight 1 count as much
    squares: float  # the sum of the squared weights

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
            parts = (None if part is None else np.empty((self.size, *part.shape[1:]), part.dtype) for part in block)
            self._reservoir = Block(*parts)  # type: ignore[arg-type]
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


_BLOCK_ROWS = 1 << 14  # the block size of passes that compute very little per row
Admits = Callable[[Array], np.ndarray]


class Rows(ABC):
    """Rows of a site and their responses."""

    n_columns: int
    streamed: bool = False  # whether the rows are read in batches; `arrays` is then not available
    weighted: bool = False  # whether the rows have weights
    # the number of rows of the site that each of these rows stands for; above 1 for a sample. It is not the weight of a
    # single row, which is in the `Block`.
    expansion: float = 1.0
    seed: int = 0  # the seed of the sample
    hash_of: HashOf | None = None  # how rows are hashed, where the sample is in the order of the hashes; see `in_order`

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
        """How many rows of equal weights these rows are worth: what guards count; see `dekrr.tables.rows.Weighed`."""
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
        return self._sample if self.hash_of is None else self._sample_in_order

    @property
    def _sample(self) -> "ArrayRows":
        return ArrayRows(*self.survey.sample, expansion=self.survey.expansion)

    @cached_property
    def _sample_in_order(self) -> "ArrayRows":
        assert self.hash_of is not None
        sample = self._sample
        hashes = self.hash_of(sample.arrays()) if sample.hashes is None else sample.hashes
        return ArrayRows(*sample.arrays(), expansion=sample.expansion, hashes=hashes).take(np.argsort(hashes))

    def in_order(self, hash_of: HashOf) -> "Rows":
        """Return the rows with a hash for each row of their sample, which is in the order of the hashes.

        What is computed from the sample then does not depend on the order in which the site has its rows. Rows that
        have hashes stay as they are.
        """
        return self._hashed_by(hash_of)

    def _hashed_by(self, hash_of: HashOf) -> Self:
        if self.hash_of is not None:
            return self
        _ = self.sample  # from a pass over the rows that both objects would make
        rows = object.__new__(type(self))
        rows.__dict__.update(self.__dict__)
        rows.hash_of = hash_of
        return rows

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

    def transformed(self, response: Response, whose: str) -> "Rows":
        """Return the rows with their responses as they are trained on; `whose` they are is for errors."""
        return self if response.transform is None else self.mapped(partial(response.changed, whose=whose))

    def scaled(self, scaling: AnyScaling) -> "Rows":
        """Return the rows in the units of `scaling`."""
        if isinstance(scaling, Unscaled):
            return self
        return self.mapped(lambda block: block._replace(X=scaling.rows(block.X), y=scaling.responses(block.y)))

    def admitted(self, admits: Admits) -> "Rows":
        """Return the rows that may be in sums: `admits` takes rows (n_rows, n_columns) and returns a mask."""
        rows = _DerivedRows(self, lambda block: block.take(admits(block.X)))
        rows.seed, rows.hash_of = self.seed, self.hash_of
        return rows


class ArrayRows(Rows):
    """Rows in memory, with weights of shape (n_rows,) where they have some.

    Each stands for `expansion` rows of the site; the seed is of the sample. Hashes of type uint64, shape (n_rows,), are
    of the rows as the site has them; they stay with the rows when these are scaled, or when something is taken off
    their responses.
    """

    def __init__(
        self,
        X: Array,
        y: Array,
        weight: Array | None = None,
        *,
        expansion: float = 1.0,
        seed: int = 0,
        hashes: np.ndarray | None = None,
    ) -> None:
        self._block = Block(X, y, weight)
        self.X, self.y, self.weight = X, y, weight
        self.hashes = hashes
        self.weighted = weight is not None
        self.n_columns = int(X.shape[1])
        self.expansion = expansion
        self.seed = seed

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

    def in_order(self, hash_of: HashOf) -> "ArrayRows":
        """Return the rows with their hashes and in the order of these, if they are few; see `Rows.in_order`."""
        if self.hashes is not None:
            return self
        if not self._is_sample:
            return self._hashed_by(hash_of)
        hashes = hash_of(self._block)
        return self._like(self._block, hashes).take(np.argsort(hashes, kind="stable"))

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
        return self._like(self._block.copy(), self.hashes)

    def mapped(self, function: Callable[[Block], Block]) -> Rows:
        """Return the rows with a function applied: at once if they are few, otherwise block by block."""
        return self._like(function(self._block), self.hashes) if self._is_sample else super().mapped(function)

    def take(self, rows: np.ndarray | slice) -> "ArrayRows":
        """Return the rows of a mask, of indices or of a slice."""
        taken = self._like(self._block.take(rows), None if self.hashes is None else self.hashes[rows])
        return taken if self.hash_of is None else taken.in_order(self.hash_of)

    def admitted(self, admits: Admits) -> "ArrayRows":
        """Return the rows that may be in sums; see `Rows.admitted`."""
        return self.take(admits(self.X))

    def _like(self, block: Block, hashes: np.ndarray | None) -> "ArrayRows":
        return ArrayRows(*block, expansion=self.expansion, seed=self.seed, hashes=hashes)


class _DerivedRows(Rows):
    """Rows that a function makes of others, block by block."""

    def __init__(self, rows: Rows, function: Callable[[Any], Any]) -> None:
        self._rows = rows
        self._function = function
        self.n_columns = rows.n_columns
        self.streamed = rows.streamed
        self.weighted = rows.weighted
        self.expansion = rows.expansion

    @property
    def n_outputs(self) -> int:
        return self._rows.n_outputs

    def blocks(self, size: int) -> Iterator[Block]:
        return map(self._function, self._rows.blocks(size))


class _MappedRows(_DerivedRows):
    """Rows that stay as many as they were."""

    @property
    def n_rows(self) -> int:
        return self._rows.n_rows

    @property
    def weights(self) -> Weighed:
        return self._rows.weights

    @cached_property
    def _sample(self) -> ArrayRows:
        sample = self._rows.sample
        return ArrayRows(*self._function(sample.arrays()), expansion=sample.expansion, hashes=sample.hashes)


class ChainedRows(Rows):
    """Rows of several kinds with the same columns, one after another; chains of chains stay flat."""

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


class ForgottenRows(Rows):
    """Rows that are not here: all that is known of them is how many there are, and the sums of their weights."""

    _why = "this needs the rows of the first fit, which were not kept: fit with store_rows=True"

    def __init__(self, n_rows: int, n_columns: int, weights: Weighed | None = None) -> None:
        self.n_columns = n_columns
        self.weighted = weights is not None
        same = Weighed(float(n_rows), float(n_rows))
        self.counted: tuple[int, Weighed] | None = n_rows, same if weights is None else weights

    @property
    def n_rows(self) -> int:
        """How many rows there are."""
        return self._count()[0]

    @property
    def weights(self) -> Weighed:
        """The sums of the rows' weights."""
        return self._count()[1]

    def _count(self) -> tuple[int, Weighed]:
        if self.counted is None:
            raise SettingsError("rows of a site of another process are not counted before the end of a run")
        return self.counted

    def blocks(self, size: int) -> Iterator[Block]:
        """Refuse."""
        raise SettingsError(self._why)


class RowsElsewhere(ForgottenRows):
    """The rows of a site that another process drives; after a run their number is known."""

    streamed = True
    _why = "these are the rows of a site that another process drives; this one does not have them"

    def __init__(self, n_columns: int, *, weighted: bool) -> None:
        super().__init__(0, n_columns)
        self.weighted, self.counted = weighted, None


CELLS = 20
_OPEN = b"rows of one process"
_LEAST, LARGEST = 2 / 3, 3 / 2  # of an equal share of the rows, that a fold may have where guards count on its size


@dataclass(frozen=True)
class RowHash:
    """A keyed hash of rows."""

    key: bytes = _OPEN  # at most 64 bytes
    # the places of the columns in the order of their names: runs with the columns in another order have the same folds
    order: tuple[int, ...] | None = None

    def __call__(self, block: Block) -> np.ndarray:
        """Return the hash of each row, shape (n_rows,); rows are as the site has them, before they are scaled."""
        X = block.X if self.order is None else block.X[:, self.order]
        cells = np.column_stack([X, block.y]).astype("<f8") + 0.0  # -0.0 and 0.0 are the same number
        width, numbers = cells.shape[1] * cells.itemsize, memoryview(cells.tobytes())
        start, digests = hashlib.blake2b(key=self.key, digest_size=8), []
        for place in range(0, len(numbers), width):
            one = start.copy()
            one.update(numbers[place : place + width])
            digests.append(one.digest())
        return np.frombuffer(b"".join(digests), dtype="<u8").astype(np.uint64)


def fold_of(hashes: np.ndarray, n_folds: int) -> np.ndarray:
    """Return the fold of each row, shape (n_rows,).

    Folds have equally many rows in the mean where 20 is a multiple of their number. A fold can be empty. The folds of
    the second, third ... of equal rows do not depend on that of the first: if all were in one fold, what the other
    folds tell of such rows would be the opposite of what they are.
    """
    place = _place_among_equals(hashes)
    if place.any():
        hashes = np.where(place > 0, _hash_of_place(hashes, place), hashes)
    cells = hashes % np.uint64(CELLS) if n_folds <= CELLS else hashes
    return np.asarray(cells % np.uint64(n_folds), dtype=np.intp)


def is_usual(n_held: float, n_rows: float, n_folds: int) -> bool:
    """Return whether a fold has about as many rows as others: guards count on it, and a hash does not promise it."""
    return _LEAST * n_rows <= n_held * n_folds <= LARGEST * n_rows


def rows_per_feature_outside(rows_per_feature: float, n_outside: int, n_rows: int, n_folds: int) -> float:
    """Return how many rows per feature the sums over all rows but a fold need.

    Two such sums differ by a sum over the rows of one fold, a (folds - 1)th of the others, and these are to be
    `rows_per_feature`. Where a fold is larger, fewer rows are left for each of its own, and they suffice.
    """
    equal = n_rows - -(-n_rows // n_folds)
    return rows_per_feature * (n_folds - 1) * min(1.0, n_outside / max(equal, 1))


def signs_of(hashes: np.ndarray, n_signs: int) -> np.ndarray:
    """Return `n_signs` random signs of each row, at most 64, shape (n_rows, n_signs).

    Signs of the second, third ... of equal rows do not depend on those of the first.
    """
    signs = _hash_of_place(hashes, _place_among_equals(hashes))
    return np.where(signs[:, None] >> np.arange(n_signs, dtype=np.uint64) & np.uint64(1), 1.0, -1.0)


def _place_among_equals(hashes: np.ndarray) -> np.ndarray:
    order = np.argsort(hashes, kind="stable")
    place: np.ndarray = np.empty(len(hashes), dtype=np.uint64)
    place[order] = np.arange(len(hashes)) - np.searchsorted(hashes[order], hashes[order])
    return place


def _hash_of_place(hashes: np.ndarray, place: np.ndarray) -> np.ndarray:
    halves = np.column_stack([hashes >> np.uint64(32), hashes & np.uint64(0xFFFFFFFF)]).astype(float)
    return RowHash()(Block(halves, place.astype(float)))
