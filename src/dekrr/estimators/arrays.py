"""Rows in arrays: what cannot be used, told by row and column, and each site's part."""

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from ..errors import DataError
from ..labels import places_of
from ..rows import ArrayRows, Rows
from ..types import Array


def by_site(X: Array, y: Array, labels: Sequence[Hashable], index: np.ndarray, seed: int) -> dict[Hashable, Rows]:
    """Return each site's part of rows in memory; it is a view where the part is in one piece.

    Parameters
    ----------
    X : ndarray of shape (n_rows, n_columns)
    y : ndarray of shape (n_rows,)
    labels : sequence of hashable
        The sites.
    index : ndarray of shape (n_rows,)
        The place of each row's site in `labels`.
    seed : int
        Of the sites' samples.
    """
    parts = map(_in_one_piece, places_of(index, len(labels)))
    return {label: ArrayRows(X[own], y[own], seed=seed) for label, own in zip(labels, parts, strict=True)}


def _in_one_piece(places: np.ndarray) -> np.ndarray | slice:
    """Return increasing indices as a slice where they leave out none."""
    if len(places) and places[-1] - places[0] + 1 == len(places):
        return slice(int(places[0]), int(places[-1]) + 1)
    return places


def refuse_bad_rows(
    X: Array, columns: Sequence[str] | int, labels: Sequence[Any] = (), index: np.ndarray | None = None
) -> None:
    """Refuse rows with NaN or infinite values, and say where the first one is.

    Parameters
    ----------
    X : ndarray of shape (n_rows, n_columns)
    columns : sequence of str, or int
        The names of the columns, or how many there are.
    labels, index
        The sites and the place of each row's site among them, where rows have one.
    """
    if np.isfinite(X).all():
        return
    row, column = np.argwhere(~np.isfinite(X))[0]
    name = column if isinstance(columns, int) else repr(columns[column])
    where = f" of site {labels[index[row]]!r}" if index is not None else ""
    count = int((~np.isfinite(X)).sum())
    raise DataError(
        f"Input X contains NaN or infinity: row {row}{where}, column {name} is {X[row, column]} "
        f"({count} such values in all); fill or drop them"
    )


def refuse_missing_responses(y: Any) -> None:
    """Refuse responses that are None, NaN or infinite, and say where the first one is."""
    values = np.asarray(y)
    if values.dtype == object and values.ndim == 1:
        missing = [row for row, value in enumerate(values) if value is None]
        if missing:
            raise DataError(f"Input y contains NaN or infinity: row {missing[0]} is None; drop such rows")
    if values.dtype.kind != "f":
        return
    if values.ndim == 1 and not np.isfinite(values).all():
        row = int(np.flatnonzero(~np.isfinite(values))[0])
        count = int((~np.isfinite(values)).sum())
        raise DataError(
            f"Input y contains NaN or infinity: row {row} is {values[row]} ({count} in all); drop those rows"
        )
