"""Dates and times as numbers: the year as it passes, and the day of the year, the hour and the weekday as circles."""

import numpy as np

from ..types import Array

PARTS = ("year", "day of year", "hour", "weekday")
_DAYS, _HOURS, _WEEK = 365.2425, 24.0, 7.0
_MICROSECONDS = 3_600_000_000  # of an hour


def years(dates: np.ndarray) -> Array:
    """Return dates as years, with fractions; NaN where there is none.

    Examples
    --------
    >>> years(np.array(["2024-01-01", "NaT"], dtype="datetime64[us]")).tolist()
    [2024.0, nan]
    """
    missing = np.isnat(dates)
    known = np.where(missing, np.datetime64("1970-01-01", "us"), dates)
    start = known.astype("datetime64[Y]")
    length = (start + 1).astype("datetime64[D]") - start.astype("datetime64[D]")
    passed = (known - start.astype("datetime64[us]")) / length.astype("timedelta64[us]")
    return np.where(missing, np.nan, 1970.0 + start.astype(np.int64) + passed)


def places(dates: np.ndarray, part: str) -> Array:
    """Return where dates are on a circle: a share of its round in [0, 1); NaN where there is none.

    Parameters
    ----------
    dates : ndarray of datetime64[us]
    part : {"day of year", "hour", "weekday"}

    Examples
    --------
    >>> places(np.array(["2024-01-01T06:00"], dtype="datetime64[us]"), "hour").tolist()
    [0.25]
    """
    missing = np.isnat(dates)
    known = np.where(missing, np.datetime64("1970-01-01", "us"), dates)
    days = known.astype("datetime64[D]")
    if part == "hour":
        share = (known - days.astype("datetime64[us]")).astype(np.int64) / _MICROSECONDS / _HOURS
    elif part == "weekday":
        share = (days.astype(np.int64) + 3) % 7 / _WEEK  # the first of January 1970 was a Thursday
    else:
        share = (days - known.astype("datetime64[Y]").astype("datetime64[D]")).astype(np.int64) / _DAYS
    return np.where(missing, np.nan, share)


def parts_that_differ(dates: np.ndarray) -> tuple[str, ...]:
    """Return the parts that are not the same in all rows; a column of dates without times has no hours, for instance.

    Examples
    --------
    >>> parts_that_differ(np.array(["2024-01-01", "2024-01-08"], dtype="datetime64[us]"))
    ('year', 'day of year')
    """
    known = dates[~np.isnat(dates)]
    if not len(known):
        return ()
    values = {part: years(known) if part == "year" else places(known, part) for part in PARTS}
    return tuple(part for part in PARTS if np.ptp(values[part]) > 0)
