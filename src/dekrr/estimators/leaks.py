"""Columns of a frame that were left in by mistake: the response, the site of a row, and numbers of rows."""

import re
from typing import Any

import numpy as np

from ..errors import warn
from ..frames.tables import array_of, arrays_of, column_names

_FEW = 50  # rows that are looked at first
_NUMBER_OF_ROW = re.compile(r"(row|record|sample|unnamed)?[ _:.-]*(id|index|idx|no|nr|number|\d+)|row", re.IGNORECASE)


def tell_of_leaks(X: Any, y: Any, sites: Any) -> None:
    """Warn about columns to predict from that have the response, the site of each row, or a number of each row.

    Parameters
    ----------
    X : frame
        With the columns to predict from alone.
    y : array-like of shape (n_rows,) or (n_rows, n_outputs)
    sites : array-like of shape (n_rows,), or None
    """
    responses = np.asarray(y)
    outputs = list(responses.T) if responses.ndim == 2 else [responses]
    outputs = [output for output in outputs if _differs(output)]
    labels = None if sites is None else np.asarray(sites)
    few = X.iloc[:_FEW] if hasattr(X, "iloc") else X.slice(0, _FEW)
    names = column_names(X)
    for name, first in zip(names, arrays_of(few, names, exact=True), strict=True):
        if any(_equal(first, output[:_FEW]) and _equal(array_of(X, name, exact=True), output) for output in outputs):
            warn(
                f"column {name!r} equals the response, and is predicted from: leave it out of the frame, or give its "
                f"name, as in fit(table, {name!r}, sites=...)"
            )
        elif labels is not None and _equal(first, labels[:_FEW]) and _is_site(array_of(X, name, exact=True), labels):
            warn(
                f"column {name!r} has the site of every row, and is predicted from: sites={name!r} leaves it out of "
                "the inputs"
            )
        elif first.dtype.kind in "iu" and len(first) > 1 and _numbers_rows(array_of(X, name, exact=True), name):
            warn(
                f"column {name!r} looks like a number of each row, and is predicted from: leave it out of the frame, "
                "or of columns=[...], unless it says something about the response"
            )


def _differs(values: np.ndarray) -> bool:
    if values.dtype.kind != "O":
        return bool((values != values[:1]).any())
    try:
        return len(set(values.tolist())) > 1
    except TypeError:  # values that cannot be compared are refused elsewhere
        return False


def _is_site(values: np.ndarray, labels: np.ndarray) -> bool:
    return _differs(labels) and _equal(values, labels)


def _equal(one: np.ndarray, other: np.ndarray) -> bool:
    if one.shape != other.shape:
        return False
    if one.dtype.kind in "fiub" and other.dtype.kind in "fiub":
        return bool(np.array_equal(one, other))
    try:
        return bool(one.tolist() == other.tolist())
    except TypeError:  # pandas.NA cannot be compared
        return False


def _numbers_rows(values: np.ndarray, name: str) -> bool:
    """Return whether a column counts the rows, or has a different whole number in each and is called so."""
    if values.dtype.kind not in "iu" or len(values) < _FEW:
        return False
    if (np.diff(values) == 1).all():
        return True
    return bool(_NUMBER_OF_ROW.fullmatch(name)) and len(np.unique(values)) == len(values)
