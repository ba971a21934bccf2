"""A site's rows: in memory, or read in batches from where they are.

Everything that a procedure asks of its rows is here: how many there are, their bounds, a sample to choose features
and settings by, and blocks to sum over. Rows that are read in batches are passed over twice at most: for the first
three together, and for the sums; once where only sums are asked for, over all rows.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import cached_property

import numpy as np

from .errors import DataError, SettingsError
from .labels import factorise, places_of
from .scaling import Scaling
from .sources import Source, arrays_of, labels_of
from .types import Array

SAMPLE_ROWS = 20_000
_BLOCK_ROWS = 1 << 14  # of passes that compute next to nothing
_SAMPLE_STREAM = 1  # sets the sample's random numbers apart from those of features with the same seed

Block = tuple[Array, Array]


def sampled(n_rows: int) -> int:
    """Return how many of a site's rows are in its sample."""
    return min(n_rows, SAMPLE_ROWS)


class Rows(ABC):
    """Rows of a site and their responses.

    Attributes
    ----------
    n_columns : int
    streamed : bool
        Whether they are read in batches, so that they cannot be had as arrays.
    weight : float
        How many rows of the site each of these stands for: above 1 for a sample.
    """

    n_columns: int
    streamed: bool = False
    weight: float = 1.0
    seed: int = 0

    @abstractmethod
    def blocks(self, size: int) -> Iterator[Block]:
        """Pass over all rows in blocks X (n, n_columns), y (n,) of at most `size` rows."""

    @cached_property
    def survey(self) -> "Survey":
        """The number of rows, their bounds and a sample, from one pass."""
        survey = Survey(self.n_columns, self.seed)
        for X, y in self.blocks(_BLOCK_ROWS):
            survey.add(X, y)
        return survey

    @property
    def n_rows(self) -> int:
        """How many rows there are."""
        return self.survey.n_rows

    @property
    def bounds(self) -> Scaling:
        """The smallest and largest value of each column and, last, of the response."""
        return self.survey.bounds

    @property
    def sample(self) -> "ArrayRows":
        """All rows if they are at most `SAMPLE_ROWS`, otherwise so many drawn at random without replacement."""
        return self.survey.sample

    def arrays(self) -> Block:
        """Return all rows and responses at once, where they are in memory."""
        if self.streamed:
            raise SettingsError("rows that are read in batches cannot be had all at once: load them before")
        return _joined(list(self.blocks(_BLOCK_ROWS)))

    def owned(self) -> "Rows":
        """Return the rows in memory that nobody else can write to, or where they are read from."""
        return self

    def mapped(self, function: Callable[[Array, Array], Block]) -> "Rows":
        """Return the rows with a function applied to each block."""
        return _MappedRows(self, function)

    def scaled(self, scaling: Scaling | None) -> "Rows":
        """Return the rows in the units of `scaling`."""
        if scaling is None:
            return self
        return self.mapped(lambda X, y: (scaling.rows(X), scaling.responses(y)))


class ArrayRows(Rows):
    """Rows in memory.

    Parameters
    ----------
    X : ndarray of shape (n_rows, n_columns)
    y : ndarray of shape (n_rows,)
    weight : float, default=1.0
    seed : int, default=0
        Of the sample.

    Examples
    --------
    >>> import numpy as np
    >>> rows = ArrayRows(np.arange(6.0).reshape(3, 2), np.zeros(3))
    >>> rows.n_rows, rows.bounds.upper.tolist(), [len(y) for _, y in rows.blocks(2)]
    (3, [4.0, 5.0, 0.0], [2, 1])
    """

    def __init__(self, X: Array, y: Array, *, weight: float = 1.0, seed: int = 0) -> None:
        self.X = X
        self.y = y
        self.n_columns = int(X.shape[1])
        self.weight = weight
        self.seed = seed

    @property
    def n_rows(self) -> int:
        """How many rows there are."""
        return len(self.y)

    @property
    def bounds(self) -> Scaling:
        """The smallest and largest value of each column and, last, of the response."""
        return Scaling.of(self.X, self.y)

    @property
    def sample(self) -> "ArrayRows":
        """These rows, or some of them; see `Rows.sample`."""
        return self if self.n_rows <= SAMPLE_ROWS else self.survey.sample

    def arrays(self) -> Block:
        """Return the arrays themselves."""
        return self.X, self.y

    def blocks(self, size: int) -> Iterator[Block]:
        """Pass over the rows; blocks are views."""
        for start in range(0, self.n_rows, size):
            yield self.X[start : start + size], self.y[start : start + size]

    def owned(self) -> "ArrayRows":
        """Return the rows in memory that nobody else can write to."""
        if self.X.flags.owndata and self.y.flags.owndata:
            return self
        return ArrayRows(self.X.copy(), self.y.copy(), weight=self.weight, seed=self.seed)

    def mapped(self, function: Callable[[Array, Array], Block]) -> Rows:
        """Return the rows with a function applied: at once where they are few."""
        if self.n_rows > SAMPLE_ROWS:
            return super().mapped(function)
        return ArrayRows(*function(self.X, self.y), weight=self.weight, seed=self.seed)

    def take(self, rows: np.ndarray | slice) -> "ArrayRows":
        """Return some of the rows, by a mask, indices or a slice."""
        return ArrayRows(self.X[rows], self.y[rows], weight=self.weight, seed=self.seed)


class _MappedRows(Rows):
    def __init__(self, rows: Rows, function: Callable[[Array, Array], Block]) -> None:
        self._rows = rows
        self._function = function
        self.n_columns = rows.n_columns
        self.streamed = rows.streamed
        self.weight = rows.weight

    @property
    def n_rows(self) -> int:
        return self._rows.n_rows

    @cached_property
    def sample(self) -> ArrayRows:
        sample = self._rows.sample
        return ArrayRows(*self._function(sample.X, sample.y), weight=sample.weight)

    def blocks(self, size: int) -> Iterator[Block]:
        for X, y in self._rows.blocks(size):
            yield self._function(X, y)


class ChainedRows(Rows):
    """Rows of several kinds, one after another.

    Parameters
    ----------
    parts : sequence of Rows
        With the same columns.
    """

    def __init__(self, parts: Sequence[Rows]) -> None:
        self.parts = parts
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


class StreamedRows(Rows):
    """Rows that are read in batches, each time they are passed over, and checked as they are read.

    Parameters
    ----------
    source : Source
    columns : sequence of str, or int
        The names of the columns, or how many there are where they have no names.
    response : str or None
        The name of the response's column.
    seed : int, default=0
        Of the sample.
    only : (str, label), optional
        Keep those rows alone that have this label in the column of that name.
    survey : Survey, optional
        What a pass over them has found already.
    """

    streamed = True

    def __init__(
        self,
        source: Source,
        columns: Sequence[str] | int,
        response: str | None,
        *,
        seed: int = 0,
        only: tuple[str, Hashable] | None = None,
        survey: "Survey | None" = None,
    ) -> None:
        self.source = source
        self.columns = columns
        self.n_columns = columns if isinstance(columns, int) else len(columns)
        self._response = response
        self._only = only
        self.seed = seed
        self._counted: int | None = None
        if survey is not None:
            self.survey, self._counted = survey, survey.n_rows

    @property
    def n_rows(self) -> int:
        """How many rows there are: as counted by any pass, or by one that surveys them."""
        return self.survey.n_rows if self._counted is None else self._counted

    def blocks(self, size: int) -> Iterator[Block]:
        """Read the rows from their source; so few that the sample has all of them are not read again."""
        if "survey" in self.__dict__ and self.survey.n_rows == self.survey.sample.n_rows:
            yield from self.survey.sample.blocks(size)
            return
        counted = 0
        for X, y in _rechunked(self._batches(), size):
            counted += len(y)
            yield X, y
        if not counted:
            raise DataError(f"{self.source.name} has no rows")
        if self._counted not in (None, counted):
            raise DataError(
                f"{self.source.name} gave {self._counted} rows in one pass and {counted} in the next: rows that change "
                "while they are read cannot be used"
            )
        self._counted = counted

    def _batches(self) -> Iterator[Block]:
        label_column = (self._only[0],) if self._only else ()
        for batch in self.source.batches(self.columns, self._response, *label_column):
            X, y = arrays_of(batch, self.columns, self._response)
            if self._only:
                own = np.asarray(labels_of(batch, self._only[0]) == self._only[1])
                X, y = X[own], y[own]
            yield X, y


def split_by_site(
    source: Source, columns: Sequence[str], response: str, site_column: str, seed: int
) -> dict[Hashable, Rows]:
    """Return the rows of every site of one table, surveyed in one pass over it.

    Each site's sums take another pass, which reads the whole table and keeps the site's rows.
    """
    surveys: dict[Hashable, Survey] = {}
    first_label: Hashable = None
    for batch in source.batches(columns, response, site_column):
        X, y = arrays_of(batch, columns, response)
        try:
            labels, index = factorise(labels_of(batch, site_column), len(y))
        except DataError as error:
            raise DataError(f"{batch.where}, column {site_column!r}, after row {batch.start}: {error}") from None
        for label, own in zip(labels, places_of(index, len(labels)), strict=True):
            first_label = label if first_label is None else first_label
            if source.guesses_types and isinstance(label, str) != isinstance(first_label, str):
                raise DataError(
                    f"{batch.where}, column {site_column!r}, after row {batch.start}: some site labels are read as "
                    f"numbers, {first_label!r} or {label!r}, others as words: have words in every row, or use Parquet"
                )
            surveys.setdefault(label, Survey(len(columns), seed)).add(X[own], y[own])
    if not surveys:
        raise DataError(f"{source.name} has no rows")
    return {
        label: StreamedRows(source, columns, response, seed=seed, only=(site_column, label), survey=surveys[label])
        for label in factorise(list(surveys), len(surveys))[0]
    }


def _rechunked(batches: Iterable[Block], size: int) -> Iterator[Block]:
    """Yield blocks of `size` rows, and what is left at the end, from batches of any size."""
    waiting: list[Block] = []
    n_waiting = 0
    for X, y in batches:
        n_waiting += len(y)
        if n_waiting < size:
            waiting.append((X.copy(), y.copy()))  # the next batch may be in the same memory
            continue
        X, y = _joined([*waiting, (X, y)])
        whole = n_waiting - n_waiting % size
        for start in range(0, whole, size):
            yield X[start : start + size], y[start : start + size]
        waiting, n_waiting = [(X[whole:].copy(), y[whole:].copy())], n_waiting - whole
    if n_waiting:
        yield _joined(waiting)


def _joined(blocks: Sequence[Block]) -> Block:
    filled = [block for block in blocks if len(block[1])]
    if len(filled) == 1:
        return filled[0]
    return np.concatenate([X for X, _ in filled]), np.concatenate([y for _, y in filled])


class Survey:
    """What a first pass over rows finds out.

    The sample is Vitter's reservoir (Algorithm R, ACM Transactions on Mathematical Software 11, 1985): row i, from 0,
    takes a place drawn from i + 1, if there is such a place in the sample. It does not depend on how rows come in
    blocks.

    Parameters
    ----------
    n_columns : int
    seed : int
    size : int, optional
        Of the sample.
    """

    def __init__(self, n_columns: int, seed: int, size: int | None = None) -> None:
        self.n_rows = 0
        self._size = SAMPLE_ROWS if size is None else size
        self._lower, self._upper = np.full(n_columns + 1, np.inf), np.full(n_columns + 1, -np.inf)
        self._rng = np.random.default_rng([seed, _SAMPLE_STREAM])
        self._X, self._y = np.empty((self._size, n_columns)), np.empty(self._size)
        self._numbers = np.empty(self._size, dtype=np.int64)

    def add(self, X: Array, y: Array) -> None:
        """Take in some rows."""
        if not len(y):
            return
        self._lower = np.minimum(self._lower, np.append(X.min(axis=0), y.min()))
        self._upper = np.maximum(self._upper, np.append(X.max(axis=0), y.max()))
        numbers = self.n_rows + np.arange(len(y))
        places = np.floor(self._rng.random(len(y)) * (numbers + 1)).astype(np.int64)
        places = np.where(numbers < self._size, numbers, places)
        taken = places < self._size
        self._X[places[taken]], self._y[places[taken]] = X[taken], y[taken]
        self._numbers[places[taken]] = numbers[taken]
        self.n_rows += len(y)

    @property
    def bounds(self) -> Scaling:
        """The smallest and largest value of each column and, last, of the response."""
        return Scaling(self._lower, self._upper)

    @cached_property
    def sample(self) -> ArrayRows:
        """The sampled rows, in their order."""
        size = min(self.n_rows, self._size)
        order = np.argsort(self._numbers[:size])
        return ArrayRows(self._X[order], self._y[order], weight=self.n_rows / max(size, 1))
