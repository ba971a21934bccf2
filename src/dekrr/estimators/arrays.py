"""Rows in arrays: what cannot be used, told by row and column, and each site's part."""

from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from ..errors import DataError
from ..labels import places_of
from ..rows import ArrayRows, Rows
from ..rows.batches import counted, require_weights
from ..rules import LARGEST, is_number
from ..types import Array, Block


def weights_of(sample_weight: Any, n_rows: int) -> Array | None:
    """Return the weight of each row, or refuse what cannot be one; weights that are all 1 are none."""
    if sample_weight is None:
        return None
    weights = np.asarray(sample_weight)
    if weights.shape != (n_rows,):
        raise DataError(f"sample_weight has the shape {weights.shape} for {n_rows} rows; give one weight per row")
    if weights.dtype.kind not in "fiub":
        try:
            weights = weights.astype(np.float64)
        except (TypeError, ValueError):
            row = next((row for row, value in enumerate(weights.tolist()) if not _is_weight(value)), 0)
            raise DataError(
                f"sample_weight: row {row} has {weights[row]!r}, which is not a number; give how often each row counts"
            ) from None
    weights = weights.astype(np.float64)
    require_weights(weights, "sample_weight: ")
    if not weights.any():
        raise DataError("all rows have the weight zero: give at least one row a positive sample_weight")
    return None if (weights == 1).all() else weights


def _is_weight(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


def merged(block: Block) -> Block:
    """Return rows with equal ones merged into one that has the sum of their weights, in an order by content.

    Rows that all differ and have no weights are returned as they are. So rows that are repeated, and rows with as large
    a weight, are the same rows from here on.
    """
    X, y, weight = block
    parts = [X, y[:, None] if y.ndim == 1 else y]
    contents = np.ascontiguousarray(np.hstack(parts) + 0.0)  # + 0.0 makes -0.0 a 0.0
    keys = contents.view(np.dtype((np.void, contents.shape[1] * contents.itemsize))).ravel()
    _, first, which = np.unique(keys, return_index=True, return_inverse=True)
    if weight is None and len(first) == len(keys):
        return block
    counts = np.ones(len(keys)) if weight is None else weight
    return Block(X[first], y[first], np.asarray(np.bincount(which.ravel(), weights=counts), dtype=np.float64))


def by_site(
    X: Array, y: Array, labels: Sequence[Hashable], index: np.ndarray, seed: int, weight: Array | None = None
) -> dict[Hashable, Rows]:
    """Return each site's part of rows in memory; it is a view where the part is in one piece.

    Rows of weight 0 are left out. A site that has no others is refused.

    Parameters
    ----------
    X : ndarray of shape (n_rows, n_columns)
    y : ndarray of shape (n_rows,) or (n_rows, n_outputs)
    labels : sequence of hashable
        The sites.
    index : ndarray of shape (n_rows,)
        The place of each row's site in `labels`.
    seed : int
        Of the sites' samples.
    weight : ndarray of shape (n_rows,), optional
    """
    rows: dict[Hashable, Rows] = {}
    for label, own in zip(labels, map(_in_one_piece, places_of(index, len(labels))), strict=True):
        block = counted(Block(X, y, weight).take(own))
        if not block.n_rows:
            raise DataError(f"all rows of site {label!r} have weight zero: leave the site out, or give it weights")
        rows[label] = ArrayRows(*block, seed=seed)
    return rows


def _in_one_piece(places: np.ndarray) -> np.ndarray | slice:
    """Return increasing indices as a slice where they leave out none."""
    if len(places) and places[-1] - places[0] + 1 == len(places):
        return slice(int(places[0]), int(places[-1]) + 1)
    return places


def refuse_bad_rows(
    X: Array, columns: Sequence[str] | int, labels: Sequence[Any] = (), index: np.ndarray | None = None
) -> None:
    """Refuse rows with NaN, infinite or far too large values, and say where the first one is.

    Parameters
    ----------
    X : ndarray of shape (n_rows, n_columns)
    columns : sequence of str, or int
        The names of the columns, or how many there are.
    labels, index
        The sites and the place of each row's site among them, where rows have one.
    """
    fits = np.abs(X) <= LARGEST
    if fits.all():
        return
    is_large = bool(np.isfinite(X).all())
    row, column = np.argwhere(~fits if is_large else ~np.isfinite(X))[0]
    name = column if isinstance(columns, int) else repr(columns[column])
    where = f" of site {labels[index[row]]!r}" if index is not None else ""
    if is_large:
        raise DataError(
            f"row {row}{where}, column {name} is {X[row, column]:g}, too large to compute with: give the column in "
            "another unit, or its logarithm"
        )
    count = int((~np.isfinite(X)).sum())
    raise DataError(
        f"Input X contains NaN or infinity: row {row}{where}, column {name} is {X[row, column]} "
        f"({count} such values in all); fill or drop them"
    )


@contextmanager
def telling_of_words(X: Any) -> Iterator[None]:
    """Say where the first word of an array is, where words cannot be made numbers."""
    try:
        yield
    except TypeError as error:
        if "Sparse data" not in str(error):
            raise
        raise TypeError(f"{error} In a pipeline, write OneHotEncoder(sparse_output=False)") from None
    except ValueError as error:
        values = np.asarray(X)
        if "could not convert string to float" not in str(error) or values.ndim != 2:
            raise
        places = ((row, column) for row, own in enumerate(values.tolist()) for column, _ in enumerate(own))
        row, column = next(place for place in places if isinstance(values[place], str) and not is_number(values[place]))
        raise DataError(
            f"row {row}, column {column} of the array is {str(values[row, column])!r}, not a number: give the rows as "
            "a pandas or Polars frame, whose words become categories, or encode the column"
        ) from None


def refuse_missing_responses(y: Any) -> None:
    """Refuse responses that are None, NaN or infinite, and say where the first one is."""
    values = np.asarray(y)
    if values.dtype.kind in "mM":
        raise DataError(
            f"the responses are of type {values.dtype}: a regressor predicts numbers; make them so, as in hours since "
            "a date"
        )
    if values.dtype == object and values.ndim == 1:
        missing = [row for row, value in enumerate(values) if value is None]
        if missing:
            raise DataError(f"Input y contains NaN or infinity: row {missing[0]} is None; drop such rows")
    if values.dtype.kind in "OUST" and values.ndim == 1:
        texts = [row for row, value in enumerate(values) if isinstance(value, str)]
        words = [row for row in texts if not is_number(values[row])]
        if texts and not words:
            raise DataError(
                f"the response of row {texts[0]} is {values[texts[0]]!r}, a number written as text: make all of them "
                "numbers, as in table[name] = pd.to_numeric(table[name])"
            )
        if words:
            raise DataError(
                f"the response of row {words[0]} is {values[words[0]]!r}: a regressor predicts numbers; "
                "DeKRRClassifier predicts classes"
            )
    if values.dtype.kind != "f" or values.ndim not in (1, 2) or (np.abs(values) <= LARGEST).all():
        return
    if np.isfinite(values).all():
        row = int(np.argwhere(np.abs(values) > LARGEST)[0][0])
        raise DataError(f"the response of row {row} is too large to compute with: give it in another unit")
    row, *column = np.argwhere(~np.isfinite(values))[0]
    output = f", output {column[0]}" if column else ""
    count = int((~np.isfinite(values)).sum())
    raise DataError(
        f"Input y contains NaN or infinity: row {row}{output} is {values[(row, *column)]} ({count} in all); drop those "
        "rows"
    )
