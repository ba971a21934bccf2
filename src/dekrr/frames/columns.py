"""The columns that all sites agreed on, and how they become numbers.

- A number is counted from the agreed middle, in agreed spreads. Where it is missing it is the middle.
- True and False are 1 and 0. Where they are missing the share of True stands for them.
- A category is a column of 0 and 1 for each agreed category; two categories are one column. Words that are no agreed
  category are 0 in all of them (one half, where there are two).
- A date is the year, with its fraction, and a sine and a cosine each of the day of the year, the hour and the weekday,
  as far as they differ.
- Where enough rows of a site had no value, a further column is 1 for rows without.
"""

from collections.abc import Sequence
from typing import Any, Literal

import msgspec
import numpy as np

from ..errors import DataError
from ..types import Array
from .dates import places, years
from .kinds_of_columns import WORDS, Raw, as_words
from .tables import RawTable, column_names, is_frame, read_raw


class Column(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A column of the user's table, and what it becomes.

    Parameters
    ----------
    name : str
    kind : {"number", "boolean", "category", "datetime"}
    fill : float
        What stands for a missing number, share of True, or year.
    spread : float
        The unit of numbers and years.
    missing : bool
        Whether there is a column for rows without a value.
    categories : tuple of str
    parts : tuple of str
        Of a date.

    Examples
    --------
    >>> Column(name="wind", kind="category", categories=("E", "N", "W"), missing=True).names_out
    ['wind=E', 'wind=N', 'wind=W', 'wind missing']
    >>> Column(name="when", kind="datetime", parts=("year", "hour")).names_out
    ['when year', 'when hour sin', 'when hour cos']
    """

    name: str
    kind: Literal["number", "boolean", "category", "datetime"]
    fill: float = 0.0
    spread: float = 1.0
    missing: bool = False
    categories: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()

    @property
    def names_out(self) -> list[str]:
        """The names of the columns that it becomes."""
        if self.kind == "category":
            shown = self.categories[1:] if len(self.categories) == 2 else self.categories
            names = [f"{self.name}={category}" for category in shown]
        elif self.kind == "datetime":
            names = []
            for part in self.parts:
                names += [f"{self.name} {part}{circle}" for circle in ([""] if part == "year" else [" sin", " cos"])]
        else:
            names = [self.name]
        return [*names, f"{self.name} missing"] if self.missing else names

    def encode(self, raw: Raw, where: str = "the frame", start: int = 0) -> Array:
        """Return the columns that it becomes, shape (n_rows, len(names_out)).

        Parameters
        ----------
        raw : Raw
        where : str
            What to call the table in messages.
        start : int
            The number of rows before these.
        """
        if self.kind != "category" and raw.kind not in (self.kind, "empty") and {raw.kind, self.kind} != _NUMERIC:
            row = int(np.flatnonzero(~raw.missing)[0])
            raise DataError(
                f"{where}: column {self.name!r} has {WORDS[raw.kind]} (row {start + row} is {raw.values[row]!r}), but "
                f"the model was trained on {WORDS[self.kind]} there"
            )
        missing = raw.missing
        if self.kind == "category":
            parts = self._categories(as_words(raw))
        elif self.kind == "datetime":
            parts = self._dates(raw)
        else:
            parts = [(np.where(missing, self.fill, raw.values.astype(np.float64)) - self.fill) / self.spread]
            if self.kind == "boolean":
                parts = [np.where(missing, self.fill, raw.values.astype(np.float64))]
        if self.missing:
            parts.append(missing.astype(np.float64))
        return np.column_stack(parts) if parts else np.empty((len(missing), 0))

    def _categories(self, words: np.ndarray) -> list[Array]:
        place = {category: index for index, category in enumerate(self.categories)}
        index = np.array([place.get(word, -1) for word in words], dtype=np.intp)
        if len(self.categories) == 2:
            return [np.where(index < 0, 0.5, index)]
        return [(index == j).astype(np.float64) for j in range(len(self.categories))]

    def _dates(self, raw: Raw) -> list[Array]:
        if raw.kind == "empty":
            raw = Raw("datetime", np.full(len(raw.values), np.datetime64("NaT"), dtype="datetime64[us]"))
        found: list[Array] = []
        for part in self.parts:
            if part == "year":
                found.append(np.nan_to_num((years(raw.values) - self.fill) / self.spread))
            else:
                turns = 2 * np.pi * places(raw.values, part)
                found += [np.nan_to_num(np.sin(turns)), np.nan_to_num(np.cos(turns))]
        return found


_NUMERIC = {"number", "boolean"}


class Columns(msgspec.Struct, frozen=True):
    """All columns that a model is made from, as the user has them.

    Parameters
    ----------
    columns : tuple of Column

    Examples
    --------
    >>> import pandas as pd
    >>> columns = Columns((Column(name="gust", kind="number"), Column(name="wet", kind="boolean", fill=0.5)))
    >>> columns.encode(pd.DataFrame({"wet": [True, None], "gust": [3, 4]}))
    array([[3. , 1. ],
           [4. , 0.5]])
    """

    columns: tuple[Column, ...]

    @property
    def names(self) -> list[str]:
        """The names of the user's columns."""
        return [column.name for column in self.columns]

    @property
    def names_out(self) -> list[str]:
        """The names of the columns that they become."""
        return [name for column in self.columns for name in column.names_out]

    @property
    def n_out(self) -> int:
        """The number of columns that they become."""
        return len(self.names_out)

    def encode(self, table: Any, where: str = "the frame", start: int = 0) -> Array:
        """Return the rows of a table as numbers.

        Parameters
        ----------
        table : frame, mapping of name to array, or array-like of shape (n_rows, n_columns)
            It may have further columns. The columns of an array are taken to be these, in this order.
        where : str
            What to call the table in messages.
        start : int
            The number of rows before these.

        Returns
        -------
        ndarray of shape (n_rows, n_out)
        """
        raw = self.read(table, where, start)
        return np.hstack([column.encode(raw[column.name], where, start) for column in self.columns])

    def read(self, table: Any, where: str = "the frame", start: int = 0) -> RawTable:
        """Return the raw columns of a table, before they become numbers; see `encode`."""
        if not (is_frame(table) or isinstance(table, dict)):
            table = self._named(np.array(table, dtype=object) if isinstance(table, list) else np.asarray(table))
        there = set(column_names(table))
        lacking = [name for name in self.names if name not in there]
        if lacking:
            raise DataError(f"{where} lacks columns {lacking}; the model was trained on {self.names}")
        return read_raw(table, self.names, where, start)

    def _named(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        if rows.ndim != 2 or rows.shape[1] != len(self.columns):
            raise DataError(
                f"expected rows of {len(self.columns)} columns, {', '.join(map(repr, self.names))}; got an array of "
                f"shape {rows.shape}"
            )
        return {name: rows[:, j] for j, name in enumerate(self.names)}

    def spread(self, values: Sequence[float] | Array) -> Array:
        """Return one number per column that the user's become from one per column of the user: each for all its parts.

        Examples
        --------
        >>> when = Column(name="when", kind="datetime", parts=("hour",))
        >>> Columns((when, Column(name="gust", kind="number"))).spread([0.5, 1.0])
        array([0.5, 0.5, 1. ])
        """
        sizes = [len(column.names_out) for column in self.columns]
        return np.repeat(np.asarray(values, dtype=np.float64), sizes)

    def per_column(self, values: Sequence[float] | Array) -> Array:
        """Return one number per column of the user from one per column that they become: the largest of each.

        Examples
        --------
        >>> when = Column(name="when", kind="datetime", parts=("hour",))
        >>> Columns((when, Column(name="gust", kind="number"))).per_column([0.5, 1.0, 0.2])
        array([1. , 0.2])
        """
        ends = np.cumsum([len(column.names_out) for column in self.columns])
        parts = np.split(np.asarray(values, dtype=np.float64), ends[:-1])
        return np.array([part.max(initial=0.0) for part in parts])
