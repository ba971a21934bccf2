"""Which values of rows lie outside what a model was trained on: there a prediction is a guess."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from .frames import Column, Columns
from .scaling import AnyScaling
from .types import Array

_SLACK = 1e-9  # of a column's span, for rounding


class Outside:
    """Names the columns of each row whose values lie outside: beyond the bounds of a number or a date, or a new word.

    The bounds are those to which the model clips a column, where it does, and otherwise those of training.

    Parameters
    ----------
    n_columns : int
    names : sequence of str or None
        Of the columns; None for their numbers.
    encoding : Columns or None
        How raw columns became numbers.
    scaling : Scaling

    Examples
    --------
    >>> from dekrr.scaling import Scaling
    >>> outside = Outside(1, ["speed"], None, Scaling(np.zeros(2), np.array([30.0, 1.0])))
    >>> rows = np.array([[12.0], [5000.0]])
    >>> outside(rows, rows)
    [[], ['speed']]
    """

    def __init__(
        self, n_columns: int, names: Sequence[str] | None, encoding: Columns | None, scaling: AnyScaling
    ) -> None:
        self._lowest, self._highest = np.full(n_columns, -np.inf), np.full(n_columns, np.inf)
        self._owners = list(names or [str(j) for j in range(n_columns)])
        self._words: list[tuple[int, Column]] = []
        bounds = scaling.tensors
        if bounds:
            lowest, highest = bounds.get("lowest", bounds["lower"]), bounds.get("highest", bounds["upper"])
            room = _SLACK * np.maximum(highest - lowest, np.abs(lowest) + np.abs(highest))[:n_columns]
            self._lowest, self._highest = lowest[:n_columns] - room, highest[:n_columns] + room
        if encoding is not None:
            self._owners = [column.name for column in encoding.columns for _ in column.names_out]
            made = encoding.names_out
            ordered = [made.index(name) for name in made if name not in _bounded(encoding.columns)]
            self._lowest[ordered], self._highest[ordered] = -np.inf, np.inf
            places = np.cumsum([0, *(len(column.names_out) for column in encoding.columns)])
            known = zip(places, encoding.columns, strict=False)
            self._words = [(int(place), column) for place, column in known if column.kind == "category"]

    def __call__(self, rows: Any, encoded: Array) -> list[list[str]] | None:
        """Return for each row the columns whose values lie outside; None where there are none at all.

        Parameters
        ----------
        rows : mapping of str to ndarray, or ndarray of shape (n_rows, n_columns)
            As they came.
        encoded : ndarray of shape (n_rows, n_columns)
            As the model takes them.
        """
        beyond = (encoded < self._lowest) | (encoded > self._highest)
        found: list[list[str]] | None = None
        if beyond.any():
            found = [[] for _ in encoded]
            for i, j in np.argwhere(beyond).tolist():
                found[i].append(self._owners[j])
        for place, column in self._words:
            for i in np.flatnonzero(_unknown(encoded, place, column)).tolist():
                if not _is_missing(rows[column.name][i]):
                    found = found or [[] for _ in encoded]
                    found[i].append(column.name)
        return found


def _bounded(columns: tuple[Column, ...]) -> set[str]:
    """Return the encoded columns that have a meaning beyond their bounds: numbers, and the years of dates."""
    return {column.name for column in columns if column.kind == "number"} | {
        f"{column.name} year" for column in columns if column.kind == "datetime"
    }


def _unknown(encoded: Array, place: int, column: Column) -> np.ndarray:
    """Return which rows have none of the words that the model knows."""
    if len(column.categories) == 2:
        return np.asarray(encoded[:, place] == 0.5)
    return np.asarray(~encoded[:, place : place + len(column.categories)].any(axis=1))


def _is_missing(value: Any) -> bool:
    return value is None or value != value
