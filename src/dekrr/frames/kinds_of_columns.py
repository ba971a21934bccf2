"""One column of a table, as one of five kinds: numbers, booleans, categories, dates and times, or no value at all."""

import datetime
import re
from collections.abc import Iterable
from decimal import Decimal
from numbers import Real
from typing import Any, Literal, NamedTuple

import numpy as np

from ..errors import UnusableError
from ..rules import LARGEST, is_number

Kind = Literal["number", "boolean", "category", "datetime", "empty"]
WORDS: dict[str, str] = {
    "number": "numbers",
    "boolean": "True and False",
    "category": "words",
    "datetime": "dates",
    "empty": "no value",
}
_ISO = re.compile(r"\d{4}-\d\d-\d\d([ T]\d\d:\d\d(:\d\d(\.\d{1,9})?)?(Z|[+-]\d\d:?\d\d)?)?")
_OTHER_DATES = re.compile(
    r"(\d{1,2}\.\d{1,2}\.\d{4}|\d{1,2}/\d{1,2}/(\d{4}|\d\d)|\d{1,2}-\d{1,2}-\d{4}|\d{4}[/.]\d{1,2}[/.]\d{1,2}"
    r"|\d{1,2}[ -][a-z]{3,9}\.?[ -]\d{4}|[a-z]{3,9}\.? \d{1,2}, \d{4})([ T,]+\d{1,2}:\d\d(:\d\d(\.\d+)?)?( ?[ap]m)?)?",
    re.IGNORECASE,
)
_ZONE = re.compile(r"(Z|[+-]\d\d:?\d\d)$")
_MOST_TO_LOOK_AT = 1000
_MOST_CODES = 64  # different words that may be codes, some of digits alone
_LONGEST = 200  # characters of a category


class Raw(NamedTuple):
    """The values of a column.

    Parameters
    ----------
    kind : {"number", "boolean", "category", "datetime", "empty"}
    values : ndarray of shape (n_rows,)
        Numbers and booleans are float64 with NaN, dates are datetime64[us] with NaT, categories are objects, str or
        None.
    """

    kind: Kind
    values: np.ndarray

    @property
    def missing(self) -> np.ndarray:
        """Which rows have no value, shape (n_rows,)."""
        if self.kind == "category":
            return np.array([value is None for value in self.values], dtype=bool)
        if self.kind == "empty":
            return np.ones(len(self.values), dtype=bool)
        return np.asarray(np.isnat(self.values) if self.kind == "datetime" else np.isnan(self.values))

    def take(self, rows: np.ndarray) -> "Raw":
        """Return the values of some rows."""
        return Raw(self.kind, self.values[rows])


def raw_of(values: np.ndarray, start: int = 0) -> Raw:
    """Return an array as a raw column, or raise an `UnusableError` that says why it cannot be used.

    Parameters
    ----------
    values : ndarray of shape (n_rows,)
    start : int
        The number of rows before these, for messages.

    Examples
    --------
    >>> raw_of(np.array([True, None], dtype=object))
    Raw(kind='boolean', values=array([ 1., nan]))
    >>> raw_of(np.array(["2024-03-01", "2024-03-02"]))[0]
    'datetime'
    """
    if values.ndim != 1:
        raise UnusableError(f"has values of shape {values.shape[1:]}; give each its own column")
    code = values.dtype.kind
    if code in "fiu":
        return _numbers(values, start)
    if code == "b":
        return Raw("boolean", values.astype(np.float64))
    if code == "M":
        return Raw("datetime", values.astype("datetime64[us]"))
    if code == "m":
        hours = values / np.timedelta64(1, "h")
        return Raw("number", np.where(np.isnat(values), np.nan, hours))
    if code in "OUST":
        return _objects(values.astype(object), start)
    raise UnusableError(f"has values of type {values.dtype}; make them numbers, words or dates, or drop the column")


def _numbers(values: np.ndarray, start: int) -> Raw:
    numbers = values.astype(np.float64)
    if np.isinf(numbers).any():
        row = int(np.flatnonzero(np.isinf(numbers))[0])
        raise UnusableError(
            f"row {start + row} is {numbers[row]}; replace infinite values, by None where they are not known"
        )
    if (np.abs(numbers) > LARGEST).any():
        row = int(np.flatnonzero(np.abs(numbers) > LARGEST)[0])
        raise UnusableError(
            f"row {start + row} is {numbers[row]:g}, too large to compute with; give the column in another unit, or "
            "its logarithm"
        )
    return Raw("number", numbers)


def _objects(values: np.ndarray, start: int) -> Raw:
    """Read Python objects, which must be of one kind."""
    known = [(row, value) for row, value in enumerate(values.tolist()) if not is_missing(value)]
    if not known:
        return Raw("empty", np.full(len(values), np.nan))
    kinds = {_kind_of(value) for _, value in known}
    if kinds <= {"boolean", "number"}:
        numbers = np.full(len(values), np.nan)
        numbers[[row for row, _ in known]] = [_as_float(value) for _, value in known]
        return Raw("boolean", numbers) if kinds == {"boolean"} else _numbers(numbers, start)
    if kinds == {"category"}:
        return _words(values, known, start)
    if kinds == {"datetime"}:
        dates = np.full(len(values), np.datetime64("NaT"), dtype="datetime64[us]")
        dates[[row for row, _ in known]] = [_naive(value) for _, value in known]
        return Raw("datetime", dates)
    if kinds <= {"category", "number", "boolean"}:
        row, value = next((row, value) for row, value in known if isinstance(value, str))
        raise UnusableError(
            f"has words and numbers: row {start + row} is {value!r}. Replace the words by None where numbers are "
            "missing, or make all values words to get categories"
        )
    others = [(row, value) for row, value in known if _kind_of(value) not in WORDS]
    if not others:
        row, value = next((row, value) for row, value in known if _kind_of(value) != "datetime")
        raise UnusableError(
            f"has dates and other values: row {start + row} is {value!r}. Make these None where a date is not known"
        )
    row, value = others[0]
    raise UnusableError(
        f"row {start + row} is of type {type(value).__name__}; turn it into a number or a word, or drop the column"
    )


def _as_float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:  # a whole number of more than 308 digits
        return np.inf


def _kind_of(value: Any) -> str:
    if isinstance(value, bool | np.bool_):
        return "boolean"
    if isinstance(value, Real | Decimal):
        return "number"
    if isinstance(value, str):
        return "category"
    if isinstance(value, datetime.date | datetime.time | np.datetime64):
        return "datetime"
    return "?"


def _words(values: np.ndarray, known: list[tuple[int, Any]], start: int) -> Raw:
    if all(_ISO.fullmatch(word) for _, word in known[:_MOST_TO_LOOK_AT]):
        dates = _dates(len(values), known)
        if dates is not None:
            return Raw("datetime", dates)
    if all(_OTHER_DATES.fullmatch(word) for _, word in known[:_MOST_TO_LOOK_AT]):
        row, word = known[0]
        raise UnusableError(
            f"looks like dates, but row {start + row} is {word!r}: write dates as 2023-10-31 or 2023-10-31 12:00. In "
            "pandas, table[name] = pd.to_datetime(table[name], dayfirst=True) reads 31.10.2023, and dayfirst=False "
            "10/31/2023"
        )
    longest = max(len(word) for _, word in known)
    if longest > _LONGEST:
        raise UnusableError(
            f"is free text of up to {longest} characters; turn it into categories or numbers, or drop it"
        )
    stray = _stray_word(known)
    if stray is not None:
        raise UnusableError(
            f"has numbers, but row {start + stray[0]} is {stray[1]!r}: leave such cells empty, or None, for a number "
            "that is not known"
        )
    words = np.full(len(values), None, dtype=object)
    words[[row for row, _ in known]] = [word for _, word in known]
    return Raw("category", words)


def _stray_word(known: list[tuple[int, Any]]) -> tuple[int, str] | None:
    """Return the first word among words that are mostly different numbers; None where they are words, or all numbers.

    A table in a text file whose column has one such cell has words in all of them.
    """
    if len({word for _, word in known}) <= _MOST_CODES:
        return None
    strays = [(row, word) for row, word in known if not is_number(word)]
    return strays[0] if 0 < len(strays) < len(known) / 2 else None


def _dates(n_rows: int, known: list[tuple[int, Any]]) -> np.ndarray | None:
    """Return words as the dates that they all are, by the clock on the wall; None where a word is no date."""
    dates = np.full(n_rows, np.datetime64("NaT"), dtype="datetime64[us]")
    try:
        parsed = [np.datetime64(_ZONE.sub("", word) if len(word) > 16 else word, "us") for _, word in known]
    except ValueError:
        return None
    dates[[row for row, _ in known]] = parsed
    return dates


def _naive(value: Any) -> Any:
    if isinstance(value, datetime.time):
        return datetime.datetime.combine(datetime.date(1970, 1, 1), value.replace(tzinfo=None))
    return value.replace(tzinfo=None) if isinstance(value, datetime.datetime) else value


def is_missing(value: Any) -> bool:
    """Return whether a value stands for one that is not there: None, NaN, NaT, pandas.NA."""
    if value is None:
        return True
    if isinstance(value, str):
        return False
    try:
        return bool(value != value)
    except (TypeError, ValueError):  # a comparison with pandas.NA has no truth value, nor has one of arrays
        return type(value).__name__ == "NAType"


def as_words(raw: Raw) -> np.ndarray:
    """Return the values as words or None: categories may be given as numbers, too.

    Examples
    --------
    >>> as_words(Raw("number", np.array([1.0, 2.5, np.nan]))).tolist()
    ['1', '2.5', None]
    """
    if raw.kind == "category":
        return raw.values
    none = raw.missing
    if raw.kind == "boolean":
        texts: Iterable[str] = (str(bool(value)) for value in raw.values)
    elif raw.kind == "number":
        texts = (f"{value:.15g}" for value in raw.values)
    else:
        texts = (str(value) for value in raw.values)
    words = np.full(len(none), None, dtype=object)
    for row, text in enumerate(texts):
        if not none[row]:
            words[row] = text
    return words
