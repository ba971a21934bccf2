"""Batches of a source, and their conversion to arrays."""

import hashlib
import math
import os
import tempfile
import threading
import weakref
from abc import ABC, abstractmethod
from array import array
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence, Set
from functools import partial
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..errors import DataError, NotNumbersError
from ..labels import factorise, places_of
from ..rules import is_number
from ..types import Array, Block
from .columns import Columns, names_in, without_index
from .rows import Rows, Survey, joined

AnyColumns = Sequence[str] | int | Columns
"""The names of the columns, how many there are where they have no names, or what columns that are no numbers become."""


def names_of(columns: AnyColumns) -> Sequence[str] | None:
    """Return the names of columns; None where they have no names."""
    if isinstance(columns, int):
        return None
    return columns.names if isinstance(columns, Columns) else columns


def count_of(columns: AnyColumns) -> int:
    """Return how many columns rows have, as numbers."""
    if isinstance(columns, int):
        return columns
    return columns.n_out if isinstance(columns, Columns) else len(columns)


_OF_RESPONSE = "a regressor predicts numbers; DeKRRClassifier predicts classes"
_PLAIN = {"double": "f8", "float": "f4", "int64": "i8", "int32": "i4", "int16": "i2", "int8": "i1"}  # Arrow's names


class Batch(NamedTuple):
    """Some rows of a source."""

    where: str  # the name of the file or of the source
    start: int  # the number of rows before this batch in the file or the source
    table: Any


def n_rows_of(table: Any) -> int:
    """Return the number of rows of a table."""
    return len(next(iter(table.values()), ())) if isinstance(table, Mapping) else len(table)


def is_pair(table: Any) -> bool:
    """Return whether `table` is a pair of arrays X, y."""
    return isinstance(table, tuple | list) and len(table) == 2 and np.ndim(table[0]) == 2


def numbers_in(block: Block) -> bytes:
    """Return the numbers of a block, row by row, for a digest: the division of rows into blocks does not matter."""
    return np.column_stack([part for part in block if part is not None]).astype("<f8", copy=False).tobytes()


def block_of(
    batch: Batch, columns: AnyColumns, response: str | Sequence[str] | None, weight: str | None = None
) -> Block:
    """Return a batch's rows as finite float64 arrays; a pair X, y needs no name of a response."""
    if is_pair(batch.table):
        responses = np.asarray(batch.table[1])
        columns_of_y = responses.T if responses.ndim == 2 else [responses]
        outputs = [numbers_of(batch, column, "the response", _OF_RESPONSE) for column in columns_of_y]
        y = np.column_stack(outputs) if responses.ndim == 2 else outputs[0]
        X = inputs_of(batch, columns)
        if len(X) != len(y):
            raise DataError(f"{batch.where}: a batch has {len(X)} rows and {len(y)} responses")
        return Block(X, y)
    if names_in(batch.table) is None:
        raise DataError(
            f"{batch.where}: a batch must be a table or a pair of arrays X, y; got {type(batch.table).__name__}"
        )
    if response is None:
        raise DataError(f"{batch.where} has named columns: say which is the response, as in fit(..., y='power')")
    X = inputs_of(batch, columns)
    several = [response] if isinstance(response, str) else response
    outputs = [numbers_of(batch, column_of(batch, name), repr(name), _OF_RESPONSE) for name in several]
    y = outputs[0] if isinstance(response, str) else np.column_stack(outputs)
    if weight is None:
        return Block(X, y)
    weights = numbers_of(batch, column_of(batch, weight), repr(weight))
    require_weights(weights, f"{batch.where}, column {weight!r}: ", batch.start)
    return Block(X, y, weights)


def require_weights(weights: Array, where: str = "", start: int = 0) -> None:
    """Refuse weights that are NaN, infinite or negative; say `where` the first is, after `start` rows."""
    bad = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))
    if bad.size:
        raise DataError(
            f"{where}row {start + bad[0]} has the weight {weights[bad[0]]:g}; a weight is a finite number of at "
            "least 0, and 0 leaves the row out"
        ).about(code="weights")


def counted(block: Block) -> Block:
    """Return the rows of positive weight: rows of weight 0 are as if they were not there."""
    if block.weight is None or (block.weight > 0).all():
        return block
    return block.take(block.weight > 0)


def inputs_of(batch: Batch, columns: AnyColumns) -> Array:
    """Return the inputs of a batch, without responses, as a finite float64 array."""
    if isinstance(columns, Columns):
        return columns.encode(batch.table[0] if is_pair(batch.table) else batch.table, batch.where, batch.start)
    n_columns = columns if isinstance(columns, int) else len(columns)
    if names_in(batch.table) is None or isinstance(columns, int):
        table = batch.table[0] if is_pair(batch.table) else batch.table
        rows = np.asarray(table)
        if rows.ndim != 2 or rows.shape[1] != n_columns:
            raise DataError(f"{batch.where}: expected rows of {n_columns} columns, got an array of shape {rows.shape}")
        parts = [numbers_of(batch, column, str(j)) for j, column in enumerate(rows.T)] if rows.dtype.kind == "O" else []
        rows = np.column_stack(parts) if parts else np.asarray(rows, dtype=np.float64)
        _require_finite(batch, rows, columns)
        return rows
    values = np.empty((n_rows_of(batch.table), n_columns))
    there = names_in(batch.table)
    for j, name in enumerate(columns):
        values[:, j] = numbers_of(batch, column_of(batch, name, there), repr(name), finite=False)
    _require_finite(batch, values, columns)
    return values


def column_of(batch: Batch, name: str, there: list[str] | None = None) -> np.ndarray:
    """Return a column of a batch; `there` are the names of its columns, where they are known already."""
    names = there or names_in(batch.table) or []
    if name not in names:
        raise DataError(f"{batch.where} has no column {name!r}; it has {', '.join(names)}").about(
            name, "column-missing"
        )
    if isinstance(batch.table, Mapping):
        return np.asarray(batch.table[list(batch.table)[names.index(name)]])
    named = hasattr(batch.table, "column_names")
    column = batch.table[name if named else batch.table.columns[names.index(name)]]
    dtype = np.dtype(_PLAIN.get(str(getattr(column, "type", "")), "O"))
    if dtype.kind != "O" and hasattr(column, "buffers") and len(column) > column.null_count == 0:
        # pyarrow's own conversion imports pandas, which takes 40 MB of a site's memory.
        return np.frombuffer(column.buffers()[1], dtype, len(column), column.offset * dtype.itemsize)
    return np.asarray(column)


def numbers_of(
    batch: Batch, values: np.ndarray, name: str, remedy: str = "drop or encode the column", *, finite: bool = True
) -> Array:
    """Return a column of a batch as numbers; refuse others by row and name."""
    if values.dtype.kind in "OUST":
        row = _first_word(values)
        if row is not None:
            raise NotNumbersError(
                f"{batch.where}: row {batch.start + row}, column {name} is {values[row]!r}, not a number; {remedy}"
            ).about(name)
        values = values.astype(np.float64)
    if values.dtype.kind not in "fiub":
        raise NotNumbersError(f"{batch.where}: column {name} holds {values.dtype}, not numbers; {remedy}").about(name)
    numbers = np.asarray(values, dtype=np.float64)
    if finite:
        _require_finite(batch, numbers[:, None], [name])
    return numbers


def _first_word(values: np.ndarray) -> int | None:
    """Return the row of the first text that is not a number; if all texts are numbers, that of the first text."""
    words = [row for row, value in enumerate(values.tolist()) if isinstance(value, str | bytes)]
    return next((row for row in words if not is_number(values[row])), words[0] if words else None)


def _require_finite(batch: Batch, values: Array, columns: Sequence[str] | int) -> None:
    if np.isfinite(values).all():
        return
    row, column = np.argwhere(~np.isfinite(values))[0]
    name = column if isinstance(columns, int) else columns[column]
    raise NotNumbersError(
        f"{batch.where}: row {batch.start + row}, column {name} is {values[row, column]}; fill or drop NaN and "
        "infinite values"
    ).about(str(name))


BATCH_ROWS = 1 << 16
PARQUET = (".parquet", ".pq")
TABLE = "the table"  # what messages call one in memory


class Source(ABC):
    """Rows that can be read more than once; the name is for error messages."""

    guesses_types: bool = False  # True if a column can be read as numbers in one batch and as text in another

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    @abstractmethod
    def columns(self) -> list[str] | None:
        """The names of the columns; None where they have no names."""

    @property
    def n_columns(self) -> int:
        """The number of columns."""
        return len(self.columns or [])

    @abstractmethod
    def read(self, wanted: Sequence[str] | None) -> Iterator[Batch]:
        """Read all rows. Each batch has at least the wanted columns that exist."""

    def batches(self, columns: AnyColumns, *more: str | None) -> Iterator[Batch]:
        """Read the columns with the names `columns` and `more`; all columns where `columns` is a number."""
        names = names_of(columns)
        wanted = None if names is None else [*names, *(name for name in more if name is not None)]
        yield from self.read(wanted)


class SpreadTable(Source):
    """A table whose rows are on other machines, which compute the sums over them."""

    @abstractmethod
    def by_site(self, column: str) -> "Mapping[Hashable, SpreadTable]":
        """Return the rows of each site that a column names."""

    @abstractmethod
    def rows(self, columns: AnyColumns, response: str | Sequence[str] | None, *, weight: str | None, seed: int) -> Rows:
        """Return the rows to train on."""

    @abstractmethod
    def predicted(self, predict: Callable[[Any], Array], n_outputs: int) -> Any:
        """Return predictions that are computed where the rows are, when they are asked for."""


def is_spread(given: Any) -> bool:
    """Return whether `given` is a Dask DataFrame."""
    return hasattr(given, "to_delayed") and hasattr(given, "npartitions") and hasattr(given, "columns")


def open_spread(given: Any) -> SpreadTable:
    """Return a Dask DataFrame as a source; the annex that can is imported by name, for the core imports none."""
    source: SpreadTable = import_module("dekrr.cluster.spread").SpreadSource(given)
    return source


class _Files(Source):
    def __init__(self, paths: Sequence[Path]) -> None:
        super().__init__(str(paths[0]) if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} more")
        self._paths = paths
        self.guesses_types = any(path.suffix not in PARQUET for path in paths)
        for path in paths:
            if not path.exists():
                raise DataError(f"{path} does not exist")
            if not {".csv", ".tsv", ".txt", *PARQUET} & {suffix.lower() for suffix in path.suffixes}:
                raise DataError(
                    f"{path} is not a kind of file that can be read: its name ends in {path.suffix or 'no suffix'!r}. "
                    "Save it as .csv (or .csv.gz), .tsv or .parquet"
                )

    @property
    def columns(self) -> list[str]:
        path = self._paths[0]
        try:
            if path.suffix in PARQUET:
                return without_index(_parquet().read_schema(path))
            return [str(name) for name in _read_csv(path, nrows=0).columns]
        except (ValueError, OSError) as error:
            raise DataError(f"{path} cannot be read as a table: {_reason(error)}") from None

    def read(self, wanted: Sequence[str] | None) -> Iterator[Batch]:
        for path in self._paths:
            start = 0
            tables = _parquet_tables(path, wanted) if path.suffix in PARQUET else _csv_tables(path, wanted)
            while True:
                try:
                    table = next(tables, None)
                except (ValueError, OSError) as error:
                    raise DataError(f"{path} cannot be read as a table, after row {start}: {_reason(error)}") from None
                if table is None:
                    break
                yield Batch(str(path), start, table)
                start += len(table)


def _reason(error: Exception) -> str:
    """Return why a file cannot be read; of a text in another encoding than UTF-8, with what to do."""
    if not isinstance(error, UnicodeDecodeError):
        return str(error)
    return (
        f"its text is not UTF-8 ({error}). Save it as CSV UTF-8, or convert it, as in "
        "pd.read_csv(path, encoding='latin-1').to_csv(path, index=False)"
    )


def _parquet_tables(path: Path, wanted: Sequence[str] | None) -> Iterator[Any]:
    with _parquet().ParquetFile(path) as file:
        yield from file.iter_batches(BATCH_ROWS, columns=wanted, use_threads=False)


def _csv_tables(path: Path, wanted: Sequence[str] | None) -> Iterator[Any]:
    _read_csv(path, header=None, nrows=2, dtype=str)  # raises an error if the first row is longer than the header
    with _read_csv(path, chunksize=BATCH_ROWS, index_col=False, low_memory=False) as chunks:
        for chunk in chunks:
            yield chunk if wanted is None else chunk[[name for name in chunk.columns if name in wanted]]


def _read_csv(path: Path, **options: Any) -> Any:
    try:
        import pandas as pd
    except ImportError:
        raise ImportError("reading CSV files needs pandas: pip install 'dekrr[files]'") from None
    return pd.read_csv(path, sep="\t" if ".tsv" in path.suffixes else ",", **options)


def _parquet() -> Any:
    try:
        import pyarrow.parquet as parquet
    except ImportError:
        raise ImportError("reading Parquet files needs pyarrow: pip install 'dekrr[files]'") from None
    return parquet


class _Frames(Source):
    """A dataset or a lazy frame, which gives its tables in batches."""

    def __init__(
        self, name: str, columns: Callable[[], list[str]], tables: Callable[[list[str]], Iterable[Any]]
    ) -> None:
        super().__init__(name)
        self._columns, self._tables = columns, tables

    @property
    def columns(self) -> list[str]:
        return self._columns()

    def read(self, wanted: Sequence[str] | None) -> Iterator[Batch]:
        names = [name for name in self.columns if wanted is None or name in wanted]
        yield from _numbered(self.name, self._tables(names))


def _lazy_frame(frame: Any) -> Source:
    return _Frames(
        "the lazy frame",
        lambda: list(frame.collect_schema().names()),
        lambda names: frame.select(names).collect_batches(chunk_size=BATCH_ROWS),
    )


def _dataset(given: Any) -> Source:
    batches = partial(
        given.to_batches, batch_size=BATCH_ROWS, batch_readahead=1, fragment_readahead=1, use_threads=False
    )
    return _Frames("the dataset", lambda: without_index(given.schema), lambda names: batches(columns=names))


class _Batches(Source):
    """Batches from a function. The first batch, which is read to learn the columns, is part of the next pass."""

    def __init__(self, name: str, start: Callable[[], Iterable[Any]]) -> None:
        super().__init__(name)
        self._start = start
        self._opened: tuple[Any, Iterator[Any]] | None = None

    @property
    def first(self) -> Any:
        if self._opened is None:
            iterator = iter(self._start())
            first = next(iterator, None)
            if first is None:
                raise DataError(f"{self.name} gave no batch")
            self._opened = first, iterator
        return self._opened[0]

    @property
    def columns(self) -> list[str] | None:
        return names_in(self.first)

    @property
    def n_columns(self) -> int:
        return int(np.shape(self.first[0] if is_pair(self.first) else self.first)[-1])

    def read(self, wanted: Sequence[str] | None) -> Iterator[Batch]:
        if self._opened is not None:
            first, rest = self._opened
            self._opened = None
            yield from _numbered(self.name, chain([first], rest))
        else:
            yield from _numbered(self.name, self._start())


def _numbered(where: str, tables: Iterable[Any]) -> Iterator[Batch]:
    start = 0
    for table in tables:
        yield Batch(where, start, table)
        start += len(table[1]) if is_pair(table) else n_rows_of(table)


def hint_of(names: Sequence[str]) -> str:
    """Return what to do about a table whose columns are not told apart; an empty string if they are."""
    if len(names) == 1 and any(mark in names[0] for mark in ";\t|"):
        return ". Its columns are not separated by commas: save it with commas, or as .tsv with tabs"
    return ""


def open_source(given: Any, *, once: bool = False) -> Source:
    """Return the `Source` for an object that a user has given; with `once` an iterator is allowed, too."""
    if isinstance(given, str | os.PathLike):
        return _Files(files_of(Path(given)))
    if _is_paths(given):
        return _Files([file for path in given for file in files_of(Path(path))])
    if hasattr(given, "collect_schema") and hasattr(given, "collect_batches"):
        return _lazy_frame(given)
    if hasattr(given, "get_fragments"):
        return _dataset(given)
    if is_spread(given):
        return open_spread(given)
    if names_in(given) is not None:
        return _Batches(TABLE, partial(iter, [given]))
    if isinstance(given, tuple) and len(given) == 2 and is_pair(given) and np.ndim(given[1]) == 1:
        if names_in(given[0]) is not None:  # its names would be lost
            raise DataError(
                "a site's rows are a pair of a table and a response: put the response into the table, and give its "
                "name, as in fit({'north': table}, y='power')"
            )
        return _Batches("the pair of arrays", partial(iter, [given]))
    if callable(given):
        return _Batches("the function of batches", given)
    if isinstance(given, Iterable):
        if iter(given) is given and not once:
            raise DataError(
                f"an iterator ({type(given).__name__}) can be read only once, and rows are passed over twice: give a "
                "function that returns an iterator each time it is called"
            )
        return _Batches("the batches", partial(iter, given))
    raise DataError(
        f"rows cannot be read from an object of type {type(given).__name__}: give a path, a pyarrow dataset, a Polars "
        "lazy frame, a function that returns an iterator of batches, or a table"
    )


def is_mapping(given: Any) -> bool:
    """Return whether `given` maps sites to sources. Some sparse arrays are mappings, too; they have a shape."""
    return isinstance(given, Mapping) and not hasattr(given, "shape")


def is_source(given: Any) -> bool:
    """Return whether `given` is a source to be read in batches, and not an array or a table of rows."""
    if isinstance(given, str | os.PathLike | Mapping) or _is_paths(given):
        return not hasattr(given, "shape")
    if any(hasattr(given, name) for name in ("collect_batches", "get_fragments", "column_names", "npartitions")):
        return True
    if hasattr(given, "__array__") or hasattr(given, "shape") or names_in(given) is not None:
        return False
    if isinstance(given, Sequence):
        return bool(given) and np.ndim(given[0]) == 2
    return callable(given) or isinstance(given, Iterable)


def _is_paths(value: Any) -> bool:
    return isinstance(value, list | tuple) and bool(value) and all(isinstance(p, str | os.PathLike) for p in value)


def files_of(path: Path) -> list[Path]:
    """Return a file, or the Parquet files of a folder."""
    if not path.is_dir():
        return [path]
    files = sorted(file for suffix in PARQUET for file in path.rglob(f"*{suffix}"))
    if not files:
        raise DataError(f"the folder {path} has no Parquet file")
    return files


_IN_MEMORY = 1 << 26  # bytes; larger spools go to a file


class Spool:
    """Blocks of rows by site, in memory if they are few and on disk otherwise.

    The file has no name, and is erased together with the object. Several threads may read at the same time.
    """

    def __init__(self) -> None:
        self._file = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY)  # noqa: SIM115
        weakref.finalize(self, self._file.close)
        self._turn = threading.Lock()
        self._end = 0
        self._shapes: list[tuple[int, ...]] = []  # shapes of one row of X, of y and, if there is one, of weight
        self._places: dict[Hashable, array[int]] = defaultdict(lambda: array("q"))  # offset and n_rows of each block

    def __contains__(self, site: Hashable) -> bool:
        return site in self._places

    def write(self, site: Hashable, block: Block) -> None:
        """Add some rows of a site."""
        parts = [np.ascontiguousarray(part, dtype=np.float64) for part in block if part is not None]
        self._shapes = [part.shape[1:] for part in parts]
        self._places[site].extend((self._end, block.n_rows))
        try:
            for part in parts:
                self._file.write(part.data)
        except OSError as error:
            raise DataError(
                f"the rows of large sites do not fit into the folder for temporary files, {tempfile.gettempdir()}: "
                f"{error}; name another one in the environment variable TMPDIR, or give each site a file"
            ) from None
        self._end += sum(part.nbytes for part in parts)

    def read(self, site: Hashable) -> Iterator[Block]:
        """Pass over the rows of a site, in the blocks in which they were written."""
        widths = [math.prod(shape) for shape in self._shapes]
        places = self._places[site]
        for start, n_rows in zip(places[::2], places[1::2], strict=True):
            with self._turn:
                self._file.seek(start)
                data = self._file.read(8 * n_rows * sum(widths))
            parts = np.split(np.frombuffer(data), n_rows * np.cumsum(widths)[:-1])
            yield Block(*(part.reshape(n_rows, *shape) for part, shape in zip(parts, self._shapes, strict=True)))


_BLOCK_ROWS = 1 << 14


class StreamedRows(Rows):
    """Rows that every pass reads from their source in batches, and checks; response and weight are names of columns."""

    streamed = True

    def __init__(
        self,
        source: Source,
        columns: AnyColumns,
        response: str | Sequence[str] | None,
        *,
        weight: str | None = None,
        seed: int = 0,
    ) -> None:
        self.source = source
        self.columns = columns
        self.n_columns = count_of(columns)
        self.seed = seed
        self._response = response
        self._weight = weight
        self.weighted = weight is not None
        self._counted: int | None = None
        self._digest: str | None = None

    @property
    def n_rows(self) -> int:
        """The number of rows, as an earlier pass has counted them; if there was none, a survey counts them now."""
        return self.survey.n_rows if self._counted is None else self._counted

    @property
    def digest(self) -> str:
        """The SHA-256 of the numbers in all rows, in their order: the same rows in another kind of file have the same.

        A pass over the source finds it; if there was none yet, one is made now.
        """
        if self._digest is None:
            read = hashlib.sha256()
            for block in self.blocks(_BLOCK_ROWS):
                read.update(numbers_in(block))
            self._digest = read.hexdigest()
        return self._digest

    @property
    def knows_outputs(self) -> bool:
        """Whether the number of outputs is known: the response has a name, or the rows are surveyed."""
        return self._response is not None or "survey" in self.__dict__

    @property
    def n_outputs(self) -> int:
        """The number of outputs; where it is not known yet, the first batch is read."""
        if self._response is None:
            return self.sample.n_outputs if self.knows_outputs else super().n_outputs
        return 1 if isinstance(self._response, str) else len(self._response)

    def blocks(self, size: int) -> Iterator[Block]:
        """Read the rows from their source; rows that are all in the sample are not read again.

        Rows that are not those of an earlier pass raise `DataError`, at the end of the pass.
        """
        if "survey" in self.__dict__ and self.survey.is_whole:
            yield from self.sample.blocks(size)
            return
        counted, read = 0, hashlib.sha256()
        for block in _rechunked(self._read(), size):
            counted += block.n_rows
            read.update(numbers_in(block))
            yield block
        if not counted:
            raise DataError(f"{self.source.name} has no rows")
        if self._counted not in (None, counted):
            raise DataError(
                f"{self.source.name} gave {self._counted} rows in one pass and {counted} in the next: rows that change "
                "while they are read cannot be used"
            )
        if self._digest not in (None, read.hexdigest()):
            raise DataError(
                f"{self.source.name} gave other rows in one pass than in the next: rows that change while they are "
                "read cannot be used. Write a new file and rename it, and start again"
            )
        self._counted, self._digest = counted, read.hexdigest()

    def _read(self) -> Iterator[Block]:
        return (counted(self._block_of(batch)) for batch in self._batches())

    def _batches(self, *more: str) -> Iterator[Batch]:
        """Read the columns of these rows, and the columns `more`."""
        responses = [self._response] if self._response is None or isinstance(self._response, str) else self._response
        return self.source.batches(self.columns, *responses, self._weight, *more)

    def _block_of(self, batch: Batch) -> Block:
        return block_of(batch, self.columns, self._response, self._weight)


class _SiteOfTable(StreamedRows):
    """The rows of one site of a table, which the first pass over the table has left in a spool."""

    def __init__(
        self, *given: Any, site_column: str, site: Hashable, survey: Survey, spool: Spool, **more: Any
    ) -> None:
        super().__init__(*given, **more)
        self._site_column = site_column
        self._site = site
        self._spool: Spool | None = spool
        self.survey, self._counted = survey, survey.n_rows

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the temporary file: a copy in another process reads the table again."""
        return {**self.__dict__, "_spool": None}

    def _read(self) -> Iterator[Block]:
        if self._spool is not None:
            yield from self._spool.read(self._site)
            return
        for batch in self._batches(self._site_column):
            yield counted(self._block_of(batch).take(np.asarray(column_of(batch, self._site_column) == self._site)))


def split_by_site(
    source: Source,
    columns: AnyColumns,
    response: str | Sequence[str],
    site_column: str,
    seed: int,
    weight: str | None = None,
    here: Callable[[Sequence[Hashable]], Set[Hashable]] | None = None,
) -> dict[Hashable, Rows]:
    """Return the rows of every site of one table, from one pass over it.

    The pass surveys all sites. If a site is larger than its sample, its rows go to a temporary file, and its sums are
    later made from that file. Memory holds the samples and one batch. The table is not read again. Where not all sites
    are read `here`, a pass over the column of sites comes first, and rows of the others are not kept.
    """
    labels: Sequence[Hashable] = []
    if here is not None:
        found = dict.fromkeys(label for _, own, _ in _labelled(source, [], site_column=site_column) for label in own)
        labels, _ = factorise(list(found), len(found))
    wanted = here(labels) if here is not None and labels else None
    surveys: dict[Hashable, Survey] = defaultdict(lambda: Survey(seed))
    spool = Spool()
    responses = [response] if isinstance(response, str) else response
    for batch, batch_labels, index in _labelled(source, columns, *responses, weight, site_column=site_column):
        if wanted is not None and wanted.isdisjoint(batch_labels):
            continue
        block = block_of(batch, columns, response, weight)
        for label, places in zip(batch_labels, places_of(index, len(batch_labels)), strict=True):
            if wanted is not None and label not in wanted:
                continue
            survey, own = surveys[label], counted(block.take(places))
            if survey.n_rows + own.n_rows > survey.size:
                if label not in spool and survey.n_rows:
                    spool.write(label, survey.sample_so_far())  # all earlier rows of the site
                spool.write(label, own)
            survey.add(own)
    if not surveys and not labels:
        raise DataError(f"{source.name} has no rows")
    for label, survey in surveys.items():
        if not survey.n_rows:
            raise DataError(f"all rows of site {label!r} have weight zero: leave the site out, or give it weights")
    elsewhere = StreamedRows(source, columns, response, seed=seed)
    of_site = partial(
        _SiteOfTable, source, columns, response, weight=weight, site_column=site_column, spool=spool, seed=seed
    )
    return {
        label: of_site(site=label, survey=surveys[label]) if label in surveys else elsewhere
        for label in labels or factorise(list(surveys), len(surveys))[0]
    }


def _labelled(
    source: Source, columns: AnyColumns, *more: str | None, site_column: str
) -> Iterator[tuple[Batch, Sequence[Hashable], np.ndarray]]:
    """Yield the batches of a table, the sites of each, and the place of each row's site among them."""
    first_label: Hashable = None
    for batch in source.batches(columns, *more, site_column):
        column = column_of(batch, site_column)
        try:
            labels, index = factorise(column, len(column))
        except DataError as error:
            raise DataError(f"{batch.where}, column {site_column!r}, after row {batch.start}: {error}") from None
        for label in labels:
            first_label = label if first_label is None else first_label
            if source.guesses_types and isinstance(label, str) != isinstance(first_label, str):
                raise DataError(
                    f"{batch.where}, column {site_column!r}, after row {batch.start}: some site labels are read as "
                    f"numbers and others as words, such as {first_label!r} and {label!r}: make all of them words, or "
                    "use Parquet"
                )
        yield batch, labels, index


def _rechunked(batches: Iterable[Block], size: int) -> Iterator[Block]:
    """Yield blocks of `size` rows from batches of any size; the last block has the remaining rows."""
    waiting: list[Block] = []
    n_waiting = 0
    for batch in batches:
        n_waiting += batch.n_rows
        if n_waiting < size:
            waiting.append(batch.copy())  # the next batch may overwrite this batch's memory
            continue
        rows = joined([*waiting, batch])
        whole = n_waiting - n_waiting % size
        for start in range(0, whole, size):
            yield rows.take(slice(start, start + size))
        waiting, n_waiting = [rows.take(slice(whole, None)).copy()], n_waiting - whole
    if n_waiting:
        yield joined(waiting)
