"""What raw columns become: numbers, words, dates, missing values, and how a table is read.

Dates and times become numbers: the year as it passes, and the day of the year, the hour and the weekday as circles.
Words are dates where all of a column are. Most forms of dates can be read in one way alone. 02/11/2014 can be read in
two, and other words of the column, at any site, say which: a part above 12 is a day.
"""

import datetime
import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from numbers import Real
from typing import Any, Literal, NamedTuple, NoReturn, cast

import msgspec
import numpy as np

from ..errors import DataError, UnusableError
from ..rules import LARGEST, is_missing, is_number
from ..types import Array

PARTS = ("year", "day of year", "hour", "weekday")
_DAYS, _HOURS, _WEEK = 365.2425, 24.0, 7.0
_MICROSECONDS = 3_600_000_000  # of an hour


def place_in(dates: np.ndarray, part: str) -> Array:
    """Return where dates are in time, NaN where there is none: years with fractions; or a place on a circle, in [0, 1).

    The circles are "day of year", "hour" and "weekday".
    """
    missing = np.isnat(dates)
    known = np.where(missing, np.datetime64("1970-01-01", "us"), dates)
    year, days = known.astype("datetime64[Y]"), known.astype("datetime64[D]")
    if part == "year":
        length = (year + 1).astype("datetime64[D]") - year.astype("datetime64[D]")
        passed = (known - year.astype("datetime64[us]")) / length.astype("timedelta64[us]")
        found = 1970.0 + year.astype(np.int64) + passed
    elif part == "hour":
        found = (known - days.astype("datetime64[us]")).astype(np.int64) / _MICROSECONDS / _HOURS
    elif part == "weekday":
        found = (days.astype(np.int64) + 3) % 7 / _WEEK  # the first of January 1970 was a Thursday
    else:
        found = (days - year.astype("datetime64[D]")).astype(np.int64) / _DAYS
    return np.where(missing, np.nan, found)


class Dates(NamedTuple):
    """Words read as dates and times, by the clock on the wall."""

    # what each word says, in microseconds since 1970; with the day before the month, where the word leaves that open
    values: dict[str, int]
    swapped: dict[str, int]  # what the words say with the month before the day, where all of them can be read so
    order: str  # what comes first where the order matters, by the words themselves: a part above 12 is a day
    short: bool  # whether a year has two digits


class OrderError(ValueError):
    """Words have the day first in one place and the month first in another; the arguments are two such words."""


# Forms of dates that nobody mistakes for another one, each with the groups year, month or name, and day.
_MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
_ZONE = r"(?:Z|[+-]\d\d:?\d\d)?"
_CLOCK = r"(?P<hour>\d{1,2}):(?P<minute>\d\d)(?::(?P<second>\d\d)(?:[.,](?P<fraction>\d{1,9}))?)?(?: ?(?P<half>[ap])m)?"
_TIME = rf"(?:(?:T|,? ){_CLOCK}{_ZONE})?"
_YEAR = r"(?P<year>(?:18|19|20|21)\d\d)"
_NAME = r"(?P<name>[a-z]{3,9})\.?"
_PLAIN = [
    re.compile(form, re.IGNORECASE)
    for form in (
        rf"(?P<year>\d{{4}})-(?P<month>\d\d)-(?P<day>\d\d){_TIME}",  # 2014-10-13, 2014-10-13T12:00:00Z
        rf"{_YEAR}[-/.](?P<month>\d{{1,2}})[-/.](?P<day>\d{{1,2}}){_TIME}",  # 2014/10/13
        rf"{_YEAR}(?P<month>\d\d)(?P<day>\d\d)(?:T(?P<hour>\d\d)(?P<minute>\d\d)(?P<second>\d\d)?{_ZONE})?",
        rf"{_YEAR}[-/](?P<month>\d\d)",  # 2014-10
        rf"(?P<day>\d{{1,2}})[ -]{_NAME},?[ -](?P<year>\d{{4}}|\d\d){_TIME}",  # 13 Oct 2014
        rf"{_NAME} (?P<day>\d{{1,2}}),? {_YEAR}{_TIME}",  # October 13, 2014
        rf"{_NAME}[ -]{_YEAR}",  # Oct 2014
    )
]
_ALONE = re.compile(_CLOCK, re.IGNORECASE)  # 13:45
_EITHER = re.compile(rf"(?P<one>\d{{1,2}})(?P<by>[-/.])(?P<two>\d{{1,2}})(?P=by)(?P<year>\d{{4}}|\d\d){_TIME}", re.I)
_FORMS = (*_PLAIN, _EITHER, _ALONE)
_LAST_OF_THIS_CENTURY = 68  # of years with two digits, as POSIX has it


def dates_of_words(words: Iterable[str]) -> Dates | None:
    """Return words as the dates and times that they all are; None where a word is none.

    Raises `OrderError` where some words have the day first and others the month.
    """
    first: dict[str, int] = {}
    second: dict[str, int] = {}
    only: dict[str, str] = {}
    short = has_order = False
    n_clocks = 0
    form = _PLAIN[0]
    for word in words:
        found = form.fullmatch(word)  # the next word is of the same form, most likely
        found = found or next((match for other in _FORMS if (match := other.fullmatch(word))), None)
        if found is None:
            return None
        form, parts = found.re, found.groupdict()
        month, day = parts.get("month") or _month_of(parts.get("name") or "jan"), parts.get("day") or "1"
        orders = [(parts["two"], parts["one"]), (parts["one"], parts["two"])] if form is _EITHER else [(month, day)] * 2
        by_day, by_month = (_moment(parts, *order) for order in orders)
        if by_day is None and by_month is None:
            return None
        if by_day is None or by_month is None:
            only.setdefault("month" if by_day is None else "day", word)
        if by_day is not None:
            first[word] = by_day
        if by_month is not None:
            second[word] = by_month
        short |= len(parts.get("year") or "") == 2
        has_order |= form is _EITHER
        n_clocks += form is _ALONE
    if 0 < n_clocks < len(first | second):
        return None  # times of no day among dates
    if len(only) == 2:
        raise OrderError(only["day"], only["month"])
    order = next(iter(only), "either" if has_order else "")
    return Dates(second if order == "month" else first, second if order == "either" else {}, order, short)


def is_date(word: str) -> bool:
    """Return whether a word can be read as a date or a time."""
    return dates_of_words([word]) is not None


def _month_of(name: str) -> str:
    """Return the number of a month by its English name, which may be cut to three letters; 0 for other words."""
    known = [name.lower().startswith(month) for month in _MONTHS]
    return str(known.index(True) + 1) if any(known) else "0"


def _moment(parts: Mapping[str, str | None], month: str, day: str) -> int | None:
    """Return a date and time, or a time of no date, in microseconds since 1970; None where there is no such one."""
    year = int(parts.get("year") or 1970)
    if len(parts.get("year") or "") == 2:
        year += 2000 if year <= _LAST_OF_THIS_CENTURY else 1900
    hour, minute, second = (int(parts.get(part) or 0) for part in ("hour", "minute", "second"))
    if half := parts.get("half"):
        if not 1 <= hour <= 12:
            return None
        hour = hour % 12 + 12 * (half.lower() == "p")
    fraction = int((parts.get("fraction") or "").ljust(6, "0")[:6])
    try:
        moment = datetime.datetime(year, int(month), int(day), hour, minute, second, fraction)
    except ValueError:  # a 13th month, a 30th of February, a 25th hour
        return None
    return (moment - datetime.datetime(1970, 1, 1)) // datetime.timedelta(microseconds=1)


def dates_of_numbers(numbers: Array) -> np.ndarray | None:
    """Return numbers such as 20141013 as dates; None where one of them is no date between 1800 and 2199."""
    missing = np.isnan(numbers)
    known = numbers[~missing]
    if not len(known) or not ((known >= 18000101) & (known <= 21991231) & (known % 1 == 0)).all():
        return None
    years, rest = np.divmod(known.astype(np.int64), 10_000)
    months, days = np.divmod(rest, 100)
    if not ((months >= 1) & (months <= 12) & (days >= 1)).all():
        return None
    starts = (years - 1970).astype("datetime64[Y]").astype("datetime64[M]") + (months - 1)
    found = starts.astype("datetime64[D]") + (days - 1)
    if (found.astype("datetime64[M]") != starts).any():
        return None  # a 30th of February
    dates = np.full(len(numbers), np.datetime64("NaT"), dtype="datetime64[us]")
    dates[~missing] = found
    return dates


Kind = Literal["number", "boolean", "category", "datetime", "empty", "dated"]
WORDS: dict[str, str] = {
    "number": "numbers",
    "boolean": "True and False",
    "category": "words",
    "datetime": "dates",
    "empty": "no value",
    "dated": "numbers",
}
_MOST_CODES = 64  # different words that may be codes, some of digits alone
LONGEST = 200  # characters of a category


class Raw(NamedTuple):
    """The values of a column."""

    kind: Kind
    # shape (n_rows,): numbers and booleans are float64 with NaN, dates are datetime64[us] with NaT, categories are
    # objects, str or None. Dates are read with the day before the month, where their words leave that open.
    values: np.ndarray
    # shape (n_rows,): dates with the month before the day, where all words can be read so as well
    swapped: np.ndarray | None = None
    words: np.ndarray | None = None  # shape (n_rows,): dates as they are written, str or None
    order: str = ""  # what comes first in dates whose words say it, or leave it open
    short: bool = False  # whether a year has two digits

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
        swapped, words = (part if part is None else part[rows] for part in (self.swapped, self.words))
        return Raw(self.kind, self.values[rows], swapped, words, self.order, self.short)

    @property
    def dates(self) -> np.ndarray | None:
        """Numbers such as 20141013 as dates; None where they are none, or no numbers."""
        return dates_of_numbers(self.values) if self.kind == "number" else None


def raw_of(values: np.ndarray, start: int = 0) -> Raw:
    """Return an array as a raw column, or raise an `UnusableError` that says why it cannot be used."""
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
    for wrong, why in (
        (np.isinf(numbers), "; replace infinite values, by None where they are not known"),
        (np.abs(numbers) > LARGEST, ", too large to compute with; give the column in another unit, or its logarithm"),
    ):
        if wrong.any():
            row = int(np.flatnonzero(wrong)[0])
            raise UnusableError(f"row {start + row} is {numbers[row]:g}{why}")
    return Raw("number", numbers)


def _objects(values: np.ndarray, start: int) -> Raw:
    """Read Python objects, which must be of one kind."""
    known = [(row, value) for row, value in enumerate(values.tolist()) if not is_missing(value)]
    if not known:
        return Raw("empty", np.full(len(values), np.nan))
    kinds = {_kind_of(value) for _, value in known}
    if kinds <= {"boolean", "number"}:
        numbers = np.full(len(values), np.nan)
        try:
            numbers[[row for row, _ in known]] = [float(value) for _, value in known]
        except OverflowError:  # a whole number of more than 308 digits
            numbers[[row for row, value in known if abs(value) > LARGEST]] = np.inf
        return Raw("boolean", numbers) if kinds == {"boolean"} else _numbers(numbers, start)
    if kinds == {"category"}:
        return _words(values, known, start)
    if kinds == {"datetime"}:
        dates = np.full(len(values), np.datetime64("NaT"), dtype="datetime64[us]")
        dates[[row for row, _ in known]] = [_naive(value) for _, value in known]
        return Raw("datetime", dates)

    def first(*wrong: str) -> tuple[int, Any]:
        return next((start + row, value) for row, value in known if _kind_of(value) in wrong)

    if "?" in kinds:
        row, value = first("?")
        raise UnusableError(
            f"row {row} is of type {type(value).__name__}; turn it into a number or a word, or drop the column"
        )
    if "datetime" in kinds:
        row, value = first("boolean", "number", "category")
        raise UnusableError(
            f"has dates and other values: row {row} is {value!r}. Make these None where a date is not known"
        )
    row, value = first("category")
    raise UnusableError(
        f"has words and numbers: row {row} is {value!r}. Replace the words by None where numbers are missing, or make "
        "all values words to get categories"
    )


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
    different = dict.fromkeys(word for _, word in known)
    rows = [row for row, _ in known]
    words = np.full(len(values), None, dtype=object)
    words[rows] = [word for _, word in known]
    try:
        read = dates_of_words(different)
    except OrderError as error:
        first, second = (f"{word!r} in row {start + int(np.flatnonzero(words == word)[0])}" for word in error.args)
        raise UnusableError(
            f"has dates with the day first, such as {first}, and with the month first, such as {second}: write them in "
            "one order, or as 2023-10-31"
        ) from None
    if read is None:
        longest = max(map(len, different))
        if longest > LONGEST:
            raise UnusableError(
                f"is free text of up to {longest} characters; turn it into categories or numbers, or drop it"
            )
        _refuse_strays(known, different, start)
        return Raw("category", words)

    def column(read: dict[str, int]) -> np.ndarray:
        dates = np.full(len(values), np.datetime64("NaT"), dtype="datetime64[us]")
        dates[rows] = np.array([read[word] for _, word in known]).astype("datetime64[us]")
        return dates

    swapped = column(read.swapped) if read.swapped else None
    return Raw("datetime", column(read.values), swapped, words, read.order, read.short)


def _refuse_strays(known: list[tuple[int, Any]], different: Collection[str], start: int) -> None:
    """Refuse amounts that are written as text, and a few words among different numbers, or among dates.

    A table in a text file whose column has one such cell has words in all of them.
    """
    if len(different) <= _MOST_CODES:
        return
    if all(map(is_number, different)) and any("." in word for word in different):
        raise UnusableError(
            f"has numbers written as text, such as {known[0][1]!r} in row {start + known[0][0]}: make them numbers, as "
            "in table[name] = pd.to_numeric(table[name])"
        )
    for kind, belongs in (("number", is_number), ("date", is_date)):
        others = {word for word in different if not belongs(word)}
        strays = [(row, word) for row, word in known if word in others]
        if 0 < len(strays) < len(known) / 2:
            row, word = strays[0]
            raise UnusableError(
                f"has {kind}s, but row {start + row} is {word!r}: leave such cells empty, or None, for a {kind} that "
                "is not known"
            )


def _naive(value: Any) -> Any:
    if isinstance(value, datetime.time):
        return datetime.datetime.combine(datetime.date(1970, 1, 1), value.replace(tzinfo=None))
    return value.replace(tzinfo=None) if isinstance(value, datetime.datetime) else value


def as_words(raw: Raw) -> np.ndarray:
    """Return the values as words or None: categories may be given as numbers, too."""
    if raw.kind == "category":
        return raw.values
    if raw.words is not None:
        return raw.words
    forms: dict[str, Callable[[Any], str]] = {"boolean": lambda value: str(bool(value)), "number": "{:.15g}".format}
    form = forms.get(raw.kind, str)
    words = [None if none else form(value) for value, none in zip(raw.values, raw.missing, strict=True)]
    return np.array(words, dtype=object)


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


def without_index(schema: Any) -> list[str]:
    """Return the column names of an Arrow schema, without the columns of a pandas index."""
    index = (getattr(schema, "pandas_metadata", None) or {}).get("index_columns", [])
    return [str(name) for name in schema.names if name not in index]


def names_in(table: Any) -> list[str] | None:
    """Return the names of a table's columns as words, or None if `table` is not a table."""
    if isinstance(table, Mapping):
        return [str(name) for name in table]
    if hasattr(table, "schema") and hasattr(table, "column_names"):
        return without_index(table.schema)
    names = getattr(table, "columns", None)
    return None if names is None else [str(name) for name in names]


def column_names(table: Any) -> list[str]:
    """Return the names of a table's columns as words."""
    return names_in(table) or []


def select(table: Any, names: Sequence[str]) -> Any:
    """Return a frame with some of its columns, of the same library."""
    is_arrow = hasattr(table, "column_names")
    by_word = {str(name): name for name in (table.column_names if is_arrow else table.columns)}
    wanted = [by_word[name] for name in names]
    return table.select(wanted) if is_arrow else table[wanted]


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

    With `exact` integers stay integers where none is missing: they may be labels. Otherwise all numbers are float64.
    """
    if not isinstance(table, Mapping):
        table = select(table, [name])
    return next(arrays_of(table, [name], exact=exact))


def arrays_of(table: Any, names: Sequence[str], *, exact: bool = False) -> Iterator[np.ndarray]:
    """Give columns as arrays, one after another, as `array_of` does; a table of many columns is looked into once."""
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
    """Return some columns of a table; refuse those that cannot be used, all of them at once."""
    require_columns(table, names, where)
    found: RawTable = {}
    reasons, unusable = [], []
    for name, values in zip(names, arrays_of(table, names), strict=True):
        try:
            found[name] = raw_of(values, start)
        except UnusableError as error:
            reasons.append(f"column {name!r} {error}")
            unusable.append(name)
    if reasons:
        raise UnusableError(f"{where}: " + "; ".join(reasons)).about(unusable[0])
    return found


def is_plain(table: Any, names: Sequence[str]) -> bool:
    """Return whether some columns of a frame are finite numbers, or True and False, in every row: nothing to encode."""
    return all(values.dtype.kind in "fiub" and not np.isnan(values).any() for values in arrays_of(table, names))


MOST_CATEGORIES = 64
MOST_WORDS = 200  # of a column, that a site tells
_MOST_VALUES = 20_000  # of a column, from which its middle is taken
_MOST_COUNTED = 100_000  # distinct words of a column
_MOST_PARTS = 100  # values of a part of dates
_JOINED = {"number": {"number", "boolean", "dated"}, "datetime": {"datetime", "dated"}}


class Sample:
    """Some of many numbers, each as likely as any other; all of them where they are few."""

    def __init__(self) -> None:
        self.values, self._keys = np.empty(0), np.empty(0)
        self._rng: np.random.Generator | None = None

    def add(self, values: Array) -> None:
        """Take in numbers; how they are divided into batches does not matter."""
        self._rng = self._rng or np.random.default_rng(0)
        keys = self._rng.random(len(values))
        self.values, self._keys = np.concatenate([self.values, values]), np.concatenate([self._keys, keys])
        if len(self._keys) > _MOST_VALUES:  # those with the smallest of random keys stay
            kept = np.sort(np.argpartition(self._keys, _MOST_VALUES)[:_MOST_VALUES])
            self.values, self._keys = self.values[kept], self._keys[kept]


class FactsOfColumn:
    """What a site knows of one of its columns, from rows that are added batch by batch."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.kind: Kind = "empty"
        self.n_rows = self.n_missing = 0
        self.absent = False  # whether a table has no such column
        self.counts: Counter[str] = Counter()  # rows by category
        self.parts: dict[str, float | None] = {}  # of dates, with their only value, None where they differ
        # of dates, by reading and part: rows by value, up to `_MOST_PARTS` values and one more
        self._rows_of: defaultdict[tuple[str, str], Counter[float]] = defaultdict(Counter)
        # Of dates: what comes first, "day", "month" or "either", and "short" for years of two digits, each with a place
        # that has it.
        self.orders: dict[str, str] = {}
        self.dated = True  # whether all numbers are dates such as 20141013
        # numbers; and years, which depend on whether the day or the month comes first
        self._samples = {reading: Sample() for reading in ("number", "", "day", "month")}

    @property
    def told_kind(self) -> Kind:
        """The kind, where numbers that are all dates such as 20141013 are one of their own: "dated"."""
        return "dated" if self.kind == "number" and self.dated else self.kind

    @property
    def n_known(self) -> int:
        """How many rows have a value."""
        return self.n_rows - self.n_missing

    def lack(self, n_rows: int) -> None:
        """Take in rows of a table without this column."""
        self.absent = True
        self.n_rows += n_rows
        self.n_missing += n_rows

    def add(self, raw: Raw, where: str, start: int = 0) -> None:
        """Take in some rows; `where` and `start`, the number of rows before these, are for messages."""
        if {self.kind, raw.kind} == {"number", "category"}:
            row, known = start + int(np.flatnonzero(~raw.missing)[0]), raw.values[~raw.missing]
            example = next((value for value in known if not is_number(value)), known[0])
            raise DataError(
                f"{where}: column {self.name!r} has {WORDS[self.kind]} first, but row {row} is in a part with "
                f"{WORDS[raw.kind]}, such as {example!r}: leave cells empty where a number is not known"
            ).about(self.name, UnusableError.code)
        missing = raw.missing
        self.n_rows += len(missing)
        self.n_missing += int(missing.sum())
        if missing.all():
            return
        self.kind = joined_kind(self.name, (self.kind, where), (raw.kind, where))
        if raw.kind == "category":
            self.counts.update(word for word in as_words(raw) if word is not None)
            if len(self.counts) > _MOST_COUNTED:
                raise DataError(
                    f"{where}: column {self.name!r} has more than {_MOST_COUNTED} different words, too many for "
                    "categories: drop it, or turn it into numbers or fewer categories"
                ).about(self.name, UnusableError.code)
            return
        if raw.kind != "datetime":
            self._samples["number"].add(raw.values[~missing])
            dates = raw.dates if self.dated else None
            self.dated = dates is not None
            if dates is not None:
                self._add_dates(dates[~missing])
            return
        if raw.order:
            self.orders.setdefault(raw.order, where)
            require_one_order(self.name, self.orders)
        if raw.short:
            self.orders.setdefault("short", where)
        self._add_dates(raw.values[~missing], "day" if raw.order == "either" else raw.order)
        if raw.swapped is not None:
            self._add_dates(raw.swapped[~missing], "month")

    def _add_dates(self, dates: np.ndarray, reading: str = "") -> None:
        self._samples[reading].add(place_in(dates, "year"))
        days = dates.astype("datetime64[D]").astype(dates.dtype)  # hours of one day are no years
        values = {part: place_in(days if part == "year" else dates, part) for part in PARTS}
        only = {part: float(own[0]) if np.ptp(own) == 0 else None for part, own in values.items()}
        self.parts = joined_parts(self.parts, only)
        for part, own in values.items():
            rows = self._rows_of[reading, part]
            if len(rows) <= _MOST_PARTS:
                found, counts = np.unique(own, return_counts=True)
                rows.update(dict(zip(found[: _MOST_PARTS + 1].tolist(), counts.tolist(), strict=False)))

    def middle(self, min_rows: int = 1, reading: str = "number") -> tuple[float, float]:
        """Return the middle and the spread of the numbers, or of years by what comes first in dates, both rounded.

        Where most values are the same, the spread is their standard deviation. It would tell the size of a single value
        that is far from all others. So the `min_rows` - 1 values at each end count as the next one does.
        """
        values = self._samples[reading].values
        if reading in ("day", "month"):
            values = np.concatenate([self._samples[""].values, values])
        if not len(values):
            return 0.0, 0.0
        values = np.sort(values)
        if self.kind == "boolean":
            return round(20 * float(values.mean())) / 20, 1.0
        low, median, high = np.percentile(values, [25, 50, 75])
        ends = min(min_rows, (len(values) + 1) // 2)
        spread = float(high - low) or float(values.clip(values[ends - 1], values[-ends]).std())
        if not (spread > 0 and math.isfinite(spread)):
            return _rounded(float(median), abs(float(median)) or 1.0), 0.0
        return _rounded(float(median), spread), _rounded(spread, spread)

    def told_counts(self, min_rows: int) -> dict[str, int]:
        """Return the categories that may be told with their rows, in whole multiples of `min_rows`."""
        told = [(word, count) for word, count in self.counts.most_common(MOST_WORDS) if count >= min_rows]
        return {word: count // min_rows * min_rows for word, count in told}

    def told_parts(self, min_rows: int) -> dict[str, float | None]:
        """Return the parts of dates, with the only value that they have in at least `min_rows` rows.

        Fewer than `min_rows` rows with other values are not told.
        """
        told = {part: self._usual(part, min_rows) if only is None else only for part, only in self.parts.items()}
        if self.n_known < min_rows:
            return {part: None for part, only in told.items() if only is None}
        return {part: only if only is None else round(only, 6) for part, only in told.items()}

    def _usual(self, part: str, min_rows: int) -> float | None:
        """Return the value of a part that all but fewer than `min_rows` rows have; None where there is none."""
        usual = set()
        for (_, known), rows in self._rows_of.items():
            if known == part:
                value, count = rows.most_common(1)[0]
                usual.add(value if len(rows) <= _MOST_PARTS and rows.total() - count < min_rows else None)
        return usual.pop() if len(usual) == 1 else None


class Facts:
    """What a site knows of its columns."""

    def __init__(self, names: Iterable[str]) -> None:
        self.columns = {name: FactsOfColumn(name) for name in names}

    def add(self, table: RawTable, where: str = "the frame", start: int = 0) -> None:
        """Take in some rows; `where` and `start`, the number of rows before these, are for messages."""
        n_rows = len(next(iter(table.values())).values) if table else 0
        for name, facts in self.columns.items():
            if name in table:
                facts.add(table[name], where, start)
            else:
                facts.lack(n_rows)

    @property
    def n_rows(self) -> int:
        """How many rows there were."""
        return max((facts.n_rows for facts in self.columns.values()), default=0)


def joined_kind(name: str, one: tuple[str, str], other: tuple[str, str]) -> Kind:
    """Return the kind of a column of two kinds, each given with its place; refuse kinds that do not go together."""
    kinds = {one[0], other[0]} - {"empty"}
    kind: Any = next(iter(kinds), "empty")
    if len(kinds) == 2:
        kind = next((joined for joined, parts in _JOINED.items() if kinds <= parts), None)
    if kind is None:
        raise DataError(
            f"column {name!r} has {WORDS[one[0]]} in {one[1]} and {WORDS[other[0]]} in {other[1]}: make it the same "
            "everywhere, or drop it"
        ).about(name, UnusableError.code)
    return cast(Kind, kind)


def joined_parts(one: Mapping[str, float | None], other: Mapping[str, float | None]) -> dict[str, float | None]:
    """Return the parts of dates of two places: with their only value, or None where they differ."""
    found: dict[str, float | None] = {}
    for part in PARTS:
        values = [place[part] for place in (one, other) if part in place]
        if values:
            found[part] = None if None in values or len(set(values)) > 1 else values[0]
    return found


def require_one_order(name: str, orders: Mapping[str, str]) -> None:
    """Refuse a column of dates whose day comes first in one place and whose month does in another."""
    if {"day", "month"} <= set(orders):
        raise DataError(
            f"column {name!r} has dates with the day first in {orders['day']} and with the month first in "
            f"{orders['month']}: write them in one order, or as 2023-10-31"
        )


def _rounded(value: float, spread: float) -> float:
    step = 10.0 ** (math.floor(math.log10(spread)) - 1)
    return round(round(value / step) * step, 12)


class Column(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A column of the user's table, and what it becomes."""

    name: str
    # "none" is left out: nothing can be learnt from it
    kind: Literal["number", "boolean", "category", "datetime", "none"]
    fill: float = 0.0  # what stands for a missing number, share of True, or year
    spread: float = 1.0  # the unit of numbers and years
    missing: bool = False  # whether there is a column for rows without a value
    categories: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()  # of a date
    order: str = ""  # what comes first in dates such as 02/11/2014
    absent: bool = False  # whether a site's table has no such column: rows to predict may come without

    @property
    def names_out(self) -> list[str]:
        """The names of the columns that it becomes."""
        if self.kind == "none":
            return []
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
        """Return the columns that it becomes, shape (n_rows, len(names_out)); `where` and `start` are for messages."""
        if self.kind == "none":
            return np.empty((len(raw.values), 0))
        missing, values = raw.missing, self.values(raw, where, start)
        if self.kind == "category":
            parts = self._categories(values)
        elif self.kind == "datetime":
            parts = self._dates(values)
        else:
            parts = [(np.where(missing, self.fill, values) - self.fill) / self.spread]
            if self.kind == "boolean":
                parts = [np.where(missing, self.fill, values)]
        if self.missing:
            parts.append(missing.astype(np.float64))
        return np.column_stack(parts) if parts else np.empty((len(missing), 0))

    def values(self, raw: Raw, where: str = "the frame", start: int = 0) -> np.ndarray:
        """Return raw values as the column's own kind: words or None, datetime64[us], or float64 with NaN."""
        if self.kind == "category":
            return as_words(raw)
        if self.kind == "datetime" and (dates := raw.dates) is not None:
            raw = Raw("datetime", dates)
        if raw.kind not in (self.kind, "empty") and {raw.kind, self.kind} != _NUMERIC:
            if raw.missing.all():
                raw = Raw("empty", raw.values)
            else:
                self._refuse(raw, WORDS[raw.kind], WORDS[self.kind], where, start)
        if self.kind != "datetime":
            return raw.values.astype(np.float64)
        if raw.kind == "empty":
            return np.full(len(raw.values), np.datetime64("NaT"), dtype="datetime64[us]")
        if {raw.order, self.order} == {"day", "month"}:
            self._refuse(raw, f"dates with the {raw.order} first", f"dates with the {self.order} first", where, start)
        return raw.swapped if raw.swapped is not None and self.order == "month" else raw.values

    def _refuse(self, raw: Raw, found: str, wanted: str, where: str, start: int) -> NoReturn:
        row = int(np.flatnonzero(~raw.missing)[0])
        value = raw.values[row] if raw.words is None else raw.words[row]
        raise DataError(
            f"{where}: column {self.name!r} has {found} (row {start + row} is {value!r}), but the model was trained "
            f"on {wanted} there"
        )

    def _categories(self, words: np.ndarray) -> list[Array]:
        place = {category: index for index, category in enumerate(self.categories)}
        index = np.array([place.get(word, -1) for word in words], dtype=np.intp)
        if len(self.categories) == 2:
            return [np.where(index < 0, 0.5, index)]
        return [(index == j).astype(np.float64) for j in range(len(self.categories))]

    def _dates(self, dates: np.ndarray) -> list[Array]:
        found: list[Array] = []
        for part in self.parts:
            place = place_in(dates, part)
            on_circle = [np.sin(2 * np.pi * place), np.cos(2 * np.pi * place)]
            found += map(np.nan_to_num, [(place - self.fill) / self.spread] if part == "year" else on_circle)
        return found


_NUMERIC = {"number", "boolean"}


class Columns(msgspec.Struct, frozen=True):
    """All columns that a model is made from, as the user has them."""

    columns: tuple[Column, ...]

    @property
    def names(self) -> list[str]:
        """The names of the user's columns."""
        return [column.name for column in self.columns]

    @property
    def used(self) -> list[Column]:
        """The columns that become something."""
        return [column for column in self.columns if column.kind != "none"]

    @property
    def names_out(self) -> list[str]:
        """The names of the columns that they become."""
        return [name for column in self.columns for name in column.names_out]

    @property
    def n_out(self) -> int:
        """The number of columns that they become."""
        return len(self.names_out)

    def encode(self, table: Any, where: str = "the frame", start: int = 0) -> Array:
        """Return the rows of a table as numbers, shape (n_rows, n_out); `where` and `start` are for messages.

        The table may have further columns. The columns of an array are taken to be these, in this order.
        """
        raw = self.read(table, where, start)
        return np.hstack([column.encode(raw[column.name], where, start) for column in self.used])

    def read(self, table: Any, where: str = "the frame", start: int = 0) -> RawTable:
        """Return the raw columns of a table, before they become numbers; see `encode`."""
        if not (is_frame(table) or isinstance(table, dict)):
            table = self._named(np.array(table, dtype=object) if isinstance(table, list) else np.asarray(table))
        there = set(column_names(table))
        lacking = [column for column in self.used if column.name not in there]
        needed = [column.name for column in lacking if not column.absent]
        if needed or len(lacking) == len(self.used):
            names = [column.name for column in self.used]
            raise DataError(f"{where} lacks columns {needed or names}; the model was trained on {names}")
        found = read_raw(table, [column.name for column in self.used if column.name in there], where, start)
        n_rows = len(next(iter(found.values())).values)
        return found | {column.name: Raw("empty", np.full(n_rows, np.nan)) for column in lacking}

    def _named(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        if rows.ndim != 2 or rows.shape[1] != len(self.columns):
            raise DataError(
                f"expected rows of {len(self.columns)} columns, {', '.join(map(repr, self.names))}; got an array of "
                f"shape {rows.shape}"
            )
        return {name: rows[:, j] for j, name in enumerate(self.names)}

    def spread(self, values: Sequence[float] | Array) -> Array:
        """Return one number per column that the user's become from one per column of the user, for all its parts."""
        sizes = [len(column.names_out) for column in self.columns]
        return np.repeat(np.asarray(values, dtype=np.float64), sizes)

    def indicated(self, X: Array) -> list[Array]:
        """Return what encoded rows tell of few values: each column that they have, and whether a word has none."""
        ends = np.cumsum([len(column.names_out) for column in self.used])
        parts = zip(self.used, np.split(X, ends[:-1], axis=1), strict=True)
        return [*X.T, *(part.any(axis=1) for column, part in parts if column.kind == "category")]

    def per_column(self, values: Sequence[float] | Array) -> Array:
        """Return one number per column of the user from one per column that they become: the largest of each."""
        ends = np.cumsum([len(column.names_out) for column in self.columns])
        parts = np.split(np.asarray(values, dtype=np.float64), ends[:-1])
        return np.array([part.max(initial=0.0) for part in parts])
