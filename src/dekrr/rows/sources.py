"""The sources that rows can be read from in batches: files, datasets, lazy frames, and batches that a user makes.

A source is one of

- the path of a Parquet or CSV file (also .csv.gz and .tsv), of a folder of Parquet files, or a list of paths;
- a pyarrow dataset;
- a Polars lazy frame;
- a Dask DataFrame (`dekrr.rows.spread`);
- a table in memory: a pandas or Polars frame, a pyarrow table, a mapping of names to columns;
- a pair of arrays X, y;
- a callable that returns an iterator of batches, or an iterable that is not an iterator. A batch is a table, or a pair
  of arrays X, y.

pandas, pyarrow and Polars are imported only for the sources that need them.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import DataError
from .batches import AnyColumns, Batch, column_names, is_pair, n_rows_of, names_of, without_index

BATCH_ROWS = 1 << 16
PARQUET = (".parquet", ".pq")
TABLE = "the table"  # what messages call one in memory


class Source(ABC):
    """Rows that can be read more than once.

    Parameters
    ----------
    name : str
        The name of the source in error messages.
    """

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


class _Dataset(Source):
    def __init__(self, dataset: Any) -> None:
        super().__init__("the dataset")
        self._dataset = dataset

    @property
    def columns(self) -> list[str]:
        return without_index(self._dataset.schema)

    def read(self, wanted: Sequence[str] | None) -> Iterator[Batch]:
        names = [name for name in self.columns if wanted is None or name in wanted]
        tables = self._dataset.to_batches(
            columns=names, batch_size=BATCH_ROWS, batch_readahead=1, fragment_readahead=1, use_threads=False
        )
        yield from _numbered(self.name, tables)


class _LazyFrame(Source):
    def __init__(self, frame: Any) -> None:
        super().__init__("the lazy frame")
        self._frame = frame

    @property
    def columns(self) -> list[str]:
        return list(self._frame.collect_schema().names())

    def read(self, wanted: Sequence[str] | None) -> Iterator[Batch]:
        names = [name for name in self.columns if wanted is None or name in wanted]
        yield from _numbered(self.name, self._frame.select(names).collect_batches(chunk_size=BATCH_ROWS))


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
        return column_names(self.first)

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


class _Again:
    """A function that returns the same iterable of batches at every call."""

    def __init__(self, batches: Iterable[Any]) -> None:
        self._batches = batches

    def __call__(self) -> Iterable[Any]:
        return self._batches


def _numbered(where: str, tables: Iterable[Any]) -> Iterator[Batch]:
    start = 0
    for table in tables:
        yield Batch(where, start, table)
        start += len(table[1]) if is_pair(table) else n_rows_of(table)


def open_source(given: Any, *, once: bool = False) -> Source:
    """Return the `Source` for an object that a user has given; see the module's documentation.

    Parameters
    ----------
    given : object
    once : bool, default=False
        Whether the caller needs one pass only; an iterator is then allowed, too.
    """
    if isinstance(given, str | os.PathLike):
        return _Files(files_of(Path(given)))
    if _is_paths(given):
        return _Files([file for path in given for file in files_of(Path(path))])
    if hasattr(given, "collect_schema") and hasattr(given, "collect_batches"):
        return _LazyFrame(given)
    if hasattr(given, "get_fragments"):
        return _Dataset(given)
    if hasattr(given, "to_delayed") and hasattr(given, "npartitions"):
        from .spread import SpreadSource

        return SpreadSource(given)
    if column_names(given) is not None:
        return _Batches(TABLE, _Again([given]))
    if isinstance(given, tuple) and len(given) == 2 and is_pair(given) and np.ndim(given[1]) == 1:
        return _Batches("the pair of arrays", _Again([_plain_pair(given)]))
    if callable(given):
        return _Batches("the function of batches", given)
    if isinstance(given, Iterable):
        if iter(given) is given and not once:
            raise DataError(
                f"an iterator ({type(given).__name__}) can be read only once, and rows are passed over twice: give a "
                "function that returns an iterator each time it is called"
            )
        return _Batches("the batches", _Again(given))
    raise DataError(
        f"rows cannot be read from an object of type {type(given).__name__}: give a path, a pyarrow dataset, a Polars "
        "lazy frame, a function that returns an iterator of batches, or a table"
    )


def _plain_pair(given: Any) -> Any:
    """Return a pair of arrays; refuse one with a frame, whose names would be lost."""
    if column_names(given[0]) is not None:
        raise DataError(
            "a site's rows are a pair of a table and a response: put the response into the table, and give its name, "
            "as in fit({'north': table}, y='power')"
        )
    return given


def is_mapping(given: Any) -> bool:
    """Return whether `given` maps sites to sources. Some sparse arrays are mappings, too; they have a shape."""
    return isinstance(given, Mapping) and not hasattr(given, "shape")


def is_source(given: Any) -> bool:
    """Return whether `given` is a source to be read in batches, and not an array or a table of rows."""
    if isinstance(given, str | os.PathLike | Mapping) or _is_paths(given):
        return not hasattr(given, "shape")
    if any(hasattr(given, name) for name in ("collect_batches", "get_fragments", "column_names", "npartitions")):
        return True
    if hasattr(given, "__array__") or hasattr(given, "shape") or column_names(given) is not None:
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
