"""What a site finds in its own columns, and what of it the others may know.

A category is told only where at least `min_rows` rows of the site have it. Its share of the site's rows goes along,
in whole percents, since the most frequent categories are kept where there are too many. The middle and the spread of
numbers are rounded: to two digits, in units of the spread.
"""

import math
from collections import Counter
from typing import Any, cast

import numpy as np

from ..errors import DataError
from ..types import Array
from .dates import PARTS, parts_that_differ, years
from .kinds_of_columns import WORDS, Kind, Raw, as_words
from .tables import RawTable

MOST_CATEGORIES = 64
_MOST_VALUES = 20_000  # of a column, from which its middle is taken
_MOST_COUNTED = 100_000  # distinct words of a column


class FactsOfColumn:
    """What a site knows of one of its columns, from rows that are added batch by batch.

    Attributes
    ----------
    kind : str
    n_rows, n_missing : int
    counts : Counter
        Rows by category.
    parts : set of str
        Of dates: the parts that differ.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.kind: Kind = "empty"
        self.n_rows = self.n_missing = 0
        self.counts: Counter[str] = Counter()
        self.parts: set[str] = set()
        self._values: list[Array] = []
        self._first_date: Any = None

    def add(self, raw: Raw, where: str, start: int = 0) -> None:
        """Take in some rows; `where` and `start`, the number of rows before these, are for messages."""
        if {self.kind, raw.kind} == {"number", "category"}:
            row = start + int(np.flatnonzero(~raw.missing)[0])
            raise DataError(
                f"{where}: column {self.name!r} has {WORDS[self.kind]} first, but row {row} is in a part with "
                f"{WORDS[raw.kind]}, such as {_example(raw)!r}: leave cells empty where a number is not known"
            )
        self.kind = joined_kind(self.name, (self.kind, where), (raw.kind, where))
        missing = raw.missing
        self.n_rows += len(missing)
        self.n_missing += int(missing.sum())
        if raw.kind == "category":
            self.counts.update(word for word in as_words(raw) if word is not None)
            if len(self.counts) > _MOST_COUNTED:
                raise DataError(
                    f"{where}: column {self.name!r} has more than {_MOST_COUNTED} different words, too many for "
                    "categories: drop it, or turn it into numbers or fewer categories"
                )
            return
        known = raw.values[~missing]
        if not len(known):
            return
        if raw.kind == "datetime":
            first = known[:1] if self._first_date is None else self._first_date
            self._first_date = first
            self.parts |= set(parts_that_differ(np.concatenate([first, known])))
            known = years(known)
        if sum(map(len, self._values)) < _MOST_VALUES:
            self._values.append(known[:_MOST_VALUES])

    def middle(self, min_rows: int = 1) -> tuple[float, float]:
        """Return the middle and the spread of the numbers, both rounded.

        Where most values are the same, the spread is their standard deviation. It would tell the size of a single value
        that is far from all others. So the `min_rows` - 1 values at each end count as the next one does.
        """
        if not self._values:
            return 0.0, 0.0
        values = np.sort(np.concatenate(self._values))
        if self.kind == "boolean":
            return round(20 * float(values.mean())) / 20, 1.0
        low, median, high = np.percentile(values, [25, 50, 75])
        ends = min(min_rows, (len(values) + 1) // 2)
        spread = float(high - low) or float(values.clip(values[ends - 1], values[-ends]).std())
        if not (spread > 0 and math.isfinite(spread)):
            return _rounded(float(median), abs(float(median)) or 1.0), 0.0
        return _rounded(float(median), spread), _rounded(spread, spread)

    def shares(self, min_rows: int) -> dict[str, int]:
        """Return the categories that may be told, with their share of the rows in percent."""
        told = [(word, count) for word, count in self.counts.most_common(MOST_CATEGORIES) if count >= min_rows]
        return {word: round(100 * count / self.n_rows) for word, count in told}

    def dated_parts(self) -> list[str]:
        """Return the parts of dates that differ, in order."""
        return [part for part in PARTS if part in self.parts]


class Facts:
    """What a site knows of its columns.

    Parameters
    ----------
    names : sequence of str

    Examples
    --------
    >>> facts = Facts(["wind"])
    >>> facts.add({"wind": Raw("category", np.array(["N"] * 12 + ["S"], dtype=object))})
    >>> facts.columns["wind"].shares(min_rows=10)
    {'N': 92}
    """

    def __init__(self, names: Any) -> None:
        self.columns = {name: FactsOfColumn(name) for name in names}

    def add(self, table: RawTable, where: str = "the frame", start: int = 0) -> None:
        """Take in some rows; `where` and `start`, the number of rows before these, are for messages."""
        for name, facts in self.columns.items():
            facts.add(table[name], where, start)

    @property
    def n_rows(self) -> int:
        """How many rows there were."""
        return max((facts.n_rows for facts in self.columns.values()), default=0)


def joined_kind(name: str, one: tuple[str, str], other: tuple[str, str]) -> Kind:
    """Return the kind of a column that is of two kinds in two places; refuse kinds that do not go together.

    Parameters
    ----------
    name : str
        The column.
    one, other : pair of str
        The kind and the place.
    """
    kinds = {one[0], other[0]} - {"empty"}
    if len(kinds) == 2 and kinds != {"number", "boolean"}:
        raise DataError(
            f"column {name!r} has {WORDS[one[0]]} in {one[1]} and {WORDS[other[0]]} in {other[1]}: make it the same "
            "everywhere, or drop it"
        )
    kind: Any = "number" if len(kinds) == 2 else next(iter(kinds), "empty")
    return cast(Kind, kind)


def _example(raw: Raw) -> object:
    """Return a value that is no number, where there is one."""
    for value in raw.values[~raw.missing]:
        try:
            float(value)
        except ValueError:
            return value
    return raw.values[~raw.missing][0]


def _rounded(value: float, spread: float) -> float:
    step = 10.0 ** (math.floor(math.log10(spread)) - 1)
    return round(round(value / step) * step, 12)
