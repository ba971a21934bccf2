"""The columns of tables in memory: pandas and Polars frames, pyarrow tables, mappings of names to arrays.

narwhals reads the frames. It is imported when the first frame is read.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import DataError, UnusableError
from .kinds_of_columns import Raw, raw_of

RawTable = dict[str, Raw]
"""The columns of a table by name."""


def is_frame(table: Any) -> bool:
    """Return whether an object is a table in memory with named columns: of pandas, Polars or pyarrow."""
    if hasattr(table, "collect_schema") and hasattr(table, "collect_batches"):
        return False  # a lazy frame
    if hasattr(table, "npartitions"):
        return False  # a Dask frame
    is_arrow = hasattr(table, "schema") and hasattr(table, "column_names") and hasattr(table, "num_rows")
    return is_arrow or (hasattr(table, "columns") and hasattr(table, "shape") and hasattr(table, "__getitem__"))


def column_names(table: Any) -> list[str]:
    """Return the names of a table's columns as words."""
    if isinstance(table, Mapping):
        return [str(name) for name in table]
    if hasattr(table, "column_names"):
        index = (getattr(table.schema, "pandas_metadata", None) or {}).get("index_columns", [])
        return [str(name) for name in table.column_names if name not in index]
    return [str(name) for name in table.columns]


def select(table: Any, names: Sequence[str]) -> Any:
    """Return a frame with some of its columns, of the same library."""
    there = table.columns if not hasattr(table, "column_names") else table.column_names
    if len(names) == 1 and names[0] in there:
        wanted = list(names)
    else:
        by_word = {str(name): name for name in there}
        wanted = [by_word[name] for name in names]
    return table.select(wanted) if hasattr(table, "column_names") else table[wanted]


def require_columns(table: Any, names: Sequence[str], where: str = "the frame") -> None:
    """Refuse a table that lacks columns, or that has two of one name, and say which."""
    there = column_names(table)
    counts = Counter(there)
    lacking = [name for name in names if name not in counts]
    if lacking:
        raise DataError(f"{where} has no column {', '.join(map(repr, lacking))}; it has {', '.join(map(repr, there))}")
    twice = sorted({name for name in names if counts[name] > 1})
    if twice:
        raise DataError(f"{where} has two columns of the name {twice[0]!r}; rename one")


def array_of(table: Any, name: str, *, exact: bool = False) -> np.ndarray:
    """Return a column as an array: categories as words, times by the clock on the wall.

    Parameters
    ----------
    table : frame, or mapping of name to array
    name : str
    exact : bool, default=False
        Whether integers stay integers, where none is missing: they may be labels. Otherwise all numbers are float64.
    """
    if not isinstance(table, Mapping):
        table = select(table, [name])
    return next(arrays_of(table, [name], exact=exact))


def arrays_of(table: Any, names: Sequence[str], *, exact: bool = False) -> Iterator[np.ndarray]:
    """Give columns as arrays, one after another, as `array_of` does; a table of many columns is looked into once.

    Parameters
    ----------
    table : frame, or mapping of name to array
    names : sequence of str
    exact : bool, default=False

    Examples
    --------
    >>> [column.tolist() for column in arrays_of({"gust": [1, 2], "temp": [3, 4], 7: [5, 6]}, ["temp", "7"])]
    [[3, 4], [5, 6]]
    """
    if isinstance(table, Mapping):
        columns = {str(key): column for key, column in table.items()}
        yield from (np.asarray(columns[name]) for name in names)
        return
    import narwhals as nw

    if type(table).__name__ == "RecordBatch":
        import pyarrow as pa

        table = pa.Table.from_batches([table])
    frame = nw.from_native(table, eager_only=True)
    by_word = {str(name): name for name in frame.columns}
    for name in names:
        yield _array(frame.get_column(by_word[name]), exact=exact)


def _array(column: Any, *, exact: bool) -> np.ndarray:
    """Return a column that narwhals reads as an array."""
    import narwhals as nw

    kind = column.dtype
    if isinstance(kind, nw.Categorical | nw.Enum):
        column = column.cast(nw.String)
    elif isinstance(kind, nw.Datetime) and kind.time_zone is not None:
        column = column.dt.replace_time_zone(None)
    elif kind == nw.Date:
        column = column.cast(nw.Datetime("us"))
    elif exact and kind.is_integer() and not column.is_null().any():
        return np.asarray(column.to_numpy()).astype(np.int64)
    elif kind.is_numeric():
        column = column.cast(nw.Float64)
        return np.asarray(column.to_numpy(), dtype=np.float64)
    return np.asarray(column.to_numpy())


def read_raw(table: Any, names: Sequence[str], where: str = "the frame", start: int = 0) -> RawTable:
    """Return some columns of a table; refuse those that cannot be used, all of them at once.

    Parameters
    ----------
    table : frame or mapping of name to array
    names : sequence of str
    where : str
        What to call the table in messages.
    start : int
        The number of rows before these, for messages.

    Examples
    --------
    >>> table = read_raw({"wind": np.array(["N", None], dtype=object), "gust": np.array([1, 2])}, ["wind", "gust"])
    >>> [raw.kind for raw in table.values()]
    ['category', 'number']
    """
    require_columns(table, names, where)
    found: RawTable = {}
    reasons = []
    for name, values in zip(names, arrays_of(table, names), strict=True):
        try:
            found[name] = raw_of(values, start)
        except UnusableError as error:
            reasons.append(f"column {name!r} {error}")
    if reasons:
        raise UnusableError(f"{where}: " + "; ".join(reasons))
    return found


def is_plain(table: Any, names: Sequence[str]) -> bool:
    """Return whether some columns of a frame are finite numbers, or True and False, in every row: nothing to encode."""
    return all(values.dtype.kind in "fiub" and not np.isnan(values).any() for values in arrays_of(table, names))
