"""A table one of a site's rows before a study: counts, means and missing values, each of enough rows, and rounded.

No figure follows from fewer than `min_rows` rows: counts are rounded down to multiples of it, a mean counts no value
beyond those that so many rows reach, and is rounded by the spread. One row more or less rarely changes any.
"""

import math
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ...tables.columns import arrays_of
from ..config import StandingFile, StudyFile
from ..policy import Policy
from ..site_rows import source_of


class Described(NamedTuple):
    """What is told of a column: its name, and in words how many values it has, how many are missing, and their mean."""

    name: str
    present: str
    missing: str
    mean: str


def describe_rows(study: StudyFile, config: StandingFile, folder: Path, policy: Policy) -> list[Described]:
    """Return what is told of each column that a study reads, under the site's own guard.

    It is not the study's: counts in multiples of many numbers, of a series of studies, would tell the count.
    """
    run = config.run_of(study, "describe", folder)
    names = run.data.used
    least = policy.least_min_rows
    parts: list[list[np.ndarray]] = [[] for _ in names]
    for batch in source_of(run, folder).batches(names):
        for part, values in zip(parts, arrays_of(batch.table, names), strict=True):
            part.append(values)
    return [_described(name, np.concatenate(part), least) for name, part in zip(names, parts, strict=True)]


def in_a_line(columns: list[Described]) -> str:
    """Return a table as text, for the reason of an approval.

    Examples
    --------
    >>> in_a_line([Described("age", "100", "fewer than 10", "48")])
    'rows here: age 100, missing fewer than 10, mean 48'
    """
    told = [f"{one.name} {one.present}, missing {one.missing}, {_mean(one)}" for one in columns]
    return f"rows here: {'; '.join(told)}"


def _mean(one: Described) -> str:
    return one.mean if " " in one.mean else f"mean {one.mean}"


def _described(name: str, values: np.ndarray, least: int) -> Described:
    if values.dtype.kind in "biuf":
        is_there = np.isfinite(values.astype(float))
        mean = _mean_of(values[is_there].astype(float), least)
    else:
        is_there = np.array([value is not None and value == value for value in values.tolist()], dtype=bool)
        counts = Counter(map(str, values[is_there].tolist()))
        mean = f"{sum(count >= least for count in counts.values())} words that enough rows have"
    return Described(name, _count(int(is_there.sum()), least), _count(int((~is_there).sum()), least), mean)


def _count(number: int, least: int) -> str:
    """Return a number of rows, rounded down.

    Examples
    --------
    >>> _count(1234, 10), _count(9, 10), _count(0, 10)
    ('1230', 'fewer than 10', 'fewer than 10')
    """
    return f"{number - number % least}" if number >= least else f"fewer than {least}"


def _mean_of(values: np.ndarray, least: int) -> str:
    if len(values) < 3 * least:
        return "too few values"
    ordered = np.sort(values)
    clipped = np.clip(ordered, ordered[least - 1], ordered[-least])
    spread = float(clipped.std())
    if spread == 0:
        return "nearly all equal"
    step = 10.0 ** math.floor(math.log10(spread / 2))  # between a twentieth and a half of the spread
    return f"{step * round(float(clipped.mean()) / step):.6g}"
