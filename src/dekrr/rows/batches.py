"""Batches of a source, and their conversion to arrays."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..errors import DataError, NotNumbersError
from ..frames import Columns
from ..types import Array, Block

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
    """Some rows of a source.

    Parameters
    ----------
    where : str
        The name of the file or of the source.
    start : int
        The number of rows before this batch in the file or the source.
    table : table or pair of arrays
    """

    where: str
    start: int
    table: Any


def without_index(schema: Any) -> list[str]:
    """Return the column names of an Arrow schema, without the columns of a pandas index."""
    index = (schema.pandas_metadata or {}).get("index_columns", [])
    return [name for name in schema.names if name not in index]


def n_rows_of(table: Any) -> int:
    """Return the number of rows of a table."""
    return len(next(iter(table.values()), ())) if isinstance(table, Mapping) else len(table)


def column_names(table: Any) -> list[str] | None:
    """Return the names of a table's columns, or None if `table` is not a table."""
    if isinstance(table, Mapping):
        return [str(name) for name in table]
    if hasattr(table, "schema") and hasattr(table, "column_names"):
        return without_index(table.schema)
    names = getattr(table, "columns", None)
    return None if names is None else [str(name) for name in names]


def is_pair(table: Any) -> bool:
    """Return whether `table` is a pair of arrays X, y."""
    return isinstance(table, tuple | list) and len(table) == 2 and np.ndim(table[0]) == 2


def numbers_in(block: Block) -> bytes:
    """Return the numbers of a block, row by row, for a digest: the division of rows into blocks does not matter."""
    return np.column_stack([part for part in block if part is not None]).astype("<f8", copy=False).tobytes()


def block_of(
    batch: Batch, columns: AnyColumns, response: str | Sequence[str] | None, weight: str | None = None
) -> Block:
    """Return a batch's rows as finite float64 arrays.

    Parameters
    ----------
    batch : Batch
    columns : sequence of str, int, or Columns
        The names of the columns, their number where they have no names, or their encoding.
    response : str, sequence of str, or None
        The name of the response's column, or of the column of each output; a pair X, y does not need it.
    weight : str, optional
        The name of the column of weights.
    """
    if is_pair(batch.table):
        responses = np.asarray(batch.table[1])
        columns_of_y = responses.T if responses.ndim == 2 else [responses]
        outputs = [_numbers(batch, column, "the response", _OF_RESPONSE) for column in columns_of_y]
        y = np.column_stack(outputs) if responses.ndim == 2 else outputs[0]
        X = inputs_of(batch, columns)
        if len(X) != len(y):
            raise DataError(f"{batch.where}: a batch has {len(X)} rows and {len(y)} responses")
        return Block(X, y)
    if column_names(batch.table) is None:
        raise DataError(
            f"{batch.where}: a batch must be a table or a pair of arrays X, y; got {type(batch.table).__name__}"
        )
    if response is None:
        raise DataError(f"{batch.where} has named columns: say which is the response, as in fit(..., y='power')")
    X = inputs_of(batch, columns)
    if isinstance(response, str):
        y = _numbers(batch, _column(batch, response), repr(response), _OF_RESPONSE)
    else:
        y = np.column_stack([_numbers(batch, _column(batch, name), repr(name), _OF_RESPONSE) for name in response])
    if weight is None:
        return Block(X, y)
    weights = _numbers(batch, _column(batch, weight), repr(weight))
    require_weights(weights, f"{batch.where}, column {weight!r}: ", batch.start)
    return Block(X, y, weights)


def require_weights(weights: Array, where: str = "", start: int = 0) -> None:
    """Refuse weights that are NaN, infinite or negative, and say where the first one is.

    Parameters
    ----------
    weights : ndarray of shape (n_rows,)
    where : str
        What the error begins with.
    start : int
        The number of rows before these.
    """
    bad = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))
    if bad.size:
        raise DataError(
            f"{where}row {start + bad[0]} has the weight {weights[bad[0]]:g}; a weight is a finite number of at "
            "least 0, and 0 leaves the row out"
        )


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
    if column_names(batch.table) is None or isinstance(columns, int):
        table = batch.table[0] if is_pair(batch.table) else batch.table
        rows = np.asarray(table)
        if rows.ndim != 2 or rows.shape[1] != n_columns:
            raise DataError(f"{batch.where}: expected rows of {n_columns} columns, got an array of shape {rows.shape}")
        parts = [_numbers(batch, column, str(j)) for j, column in enumerate(rows.T)] if rows.dtype.kind == "O" else []
        rows = np.column_stack(parts) if parts else np.asarray(rows, dtype=np.float64)
        _require_finite(batch, rows, columns)
        return rows
    values = np.empty((n_rows_of(batch.table), n_columns))
    there = column_names(batch.table)
    for j, name in enumerate(columns):
        values[:, j] = _numbers(batch, _column(batch, name, there), repr(name), finite=False)
    _require_finite(batch, values, columns)
    return values


def labels_of(batch: Batch, column: str) -> np.ndarray:
    """Return the site labels of a batch."""
    return _column(batch, column)


def _column(batch: Batch, name: str, there: list[str] | None = None) -> np.ndarray:
    """Return a column of a batch; `there` are the names of its columns, where they are known already."""
    names = there or column_names(batch.table) or []
    if name not in names:
        raise DataError(f"{batch.where} has no column {name!r}; it has {', '.join(names)}")
    if isinstance(batch.table, Mapping):
        return np.asarray(batch.table[list(batch.table)[names.index(name)]])
    named = hasattr(batch.table, "column_names")
    column = batch.table[name if named else batch.table.columns[names.index(name)]]
    dtype = np.dtype(_PLAIN.get(str(getattr(column, "type", "")), "O"))
    if dtype.kind != "O" and hasattr(column, "buffers") and len(column) > column.null_count == 0:
        # pyarrow's own conversion imports pandas, which takes 40 MB of a site's memory.
        return np.frombuffer(column.buffers()[1], dtype, len(column), column.offset * dtype.itemsize)
    return np.asarray(column)


def _numbers(
    batch: Batch, values: np.ndarray, name: str, remedy: str = "drop or encode the column", *, finite: bool = True
) -> Array:
    if values.dtype.kind in "OUST":
        row = _first_word(values)
        if row is not None:
            raise NotNumbersError(
                f"{batch.where}: row {batch.start + row}, column {name} is {values[row]!r}, not a number; {remedy}"
            )
        values = values.astype(np.float64)
    if values.dtype.kind not in "fiub":
        raise NotNumbersError(f"{batch.where}: column {name} holds {values.dtype}, not numbers; {remedy}")
    numbers = np.asarray(values, dtype=np.float64)
    if finite:
        _require_finite(batch, numbers[:, None], [name])
    return numbers


def _first_word(values: np.ndarray) -> int | None:
    """Return the row of the first text that is not a number; if all texts are numbers, that of the first text."""
    words = [row for row, value in enumerate(values.tolist()) if isinstance(value, str | bytes)]
    for row in words:
        try:
            float(values[row])
        except ValueError:
            return row
    return words[0] if words else None


def _require_finite(batch: Batch, values: Array, columns: Sequence[str] | int) -> None:
    if np.isfinite(values).all():
        return
    row, column = np.argwhere(~np.isfinite(values))[0]
    name = column if isinstance(columns, int) else columns[column]
    raise NotNumbersError(
        f"{batch.where}: row {batch.start + row}, column {name} is {values[row, column]}; fill or drop NaN and "
        "infinite values"
    )
