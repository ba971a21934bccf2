"""Site labels and site names. Each row has a label of any hashable type; in a run each label has a name, a string."""

import re
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from .errors import DataError
from .rules import is_missing

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")  # of a site, in files and on the mesh
_FEWEST_TO_TELL = 10  # rows, to tell labels of rows from those of sites


def factorise(sites: Any, n_rows: int) -> tuple[list[Hashable], np.ndarray]:
    """Return the distinct labels, sorted if they can be compared, and for each row the index of its label."""
    if isinstance(sites, str):
        raise DataError(
            f"sites={sites!r} is one word: give the site of every row, or rows in a frame or a file that has the sites "
            "in a column of this name"
        )
    values = sites.to_numpy() if hasattr(sites, "to_numpy") else sites
    if len(values) != n_rows:
        raise DataError(f"{len(values)} site labels for {n_rows} rows; give one label per row")
    if isinstance(values, np.ndarray) and values.ndim != 1:
        raise DataError(
            f"site labels must be a vector, got an array of shape {values.shape}; give one column, such as "
            'sites=table["station"]'
        )
    if isinstance(values, np.ndarray) and values.dtype.kind in "mM":
        # Python's own dates and times have microseconds at best
        original, values = values, values.astype(f"{values.dtype.kind}8[us]")
        if not np.array_equal(original, values, equal_nan=True):
            raise DataError("site labels are times finer than a microsecond; give words or numbers")
    if isinstance(values, np.ndarray) and values.dtype.kind in "iub":
        labels, index = np.unique(values, return_inverse=True)
        return labels.tolist(), index
    return _factorise_objects(values)


def _factorise_objects(values: Sequence[Any]) -> tuple[list[Hashable], np.ndarray]:
    index = np.empty(len(values), dtype=np.intp)
    position: dict[Hashable, int] = {}
    for row, value in enumerate(values):
        label = value.item() if isinstance(value, np.generic) else value
        if is_missing(label):
            raise DataError(f"row {row} has no site label ({label!r}); drop such rows, or fill it in")
        try:
            index[row] = position.setdefault(label, len(position))
        except TypeError:
            raise DataError(f"the site label of row {row}, {label!r}, is not hashable") from None
    labels = list(position)
    try:
        order = sorted(range(len(labels)), key=lambda i: labels[i])  # type: ignore[arg-type, return-value]
    except TypeError:
        return labels, index
    rank = np.empty(len(labels), dtype=np.intp)
    rank[order] = np.arange(len(labels))
    return [labels[i] for i in order], rank[index]


def places_of(index: np.ndarray, n_labels: int) -> list[np.ndarray]:
    """Return for each label the indices of its rows, ascending; `index` has for each row the index of its label."""
    in_order = np.argsort(index.astype(np.min_scalar_type(n_labels)), kind="stable")
    return np.split(in_order, np.cumsum(np.bincount(index, minlength=n_labels)))[:-1]


def refuse_rows_as_sites(labels: Sequence[Hashable], n_rows: int) -> None:
    """Refuse labels that are those of rows: there is nothing that a site of one row each could learn."""
    if len(labels) == n_rows >= _FEWEST_TO_TELL:
        raise DataError(
            f"every row has a site of its own, such as {labels[0]!r} and {labels[1]!r}: sites are the label of what "
            "rows have in common, a station, a shop or a patient, and not that of a row"
        )


def remedy(small: Sequence[Hashable], n_rows: Mapping[Hashable, int]) -> str:
    """Return what to do with sites of too few rows, in words and in code."""
    others = [label for label in n_rows if label not in small]
    if not others:
        return "Join such sites to others, or drop their rows"
    largest = max(others, key=lambda label: n_rows[label])
    pairs = ", ".join(f"{label!r}: {largest!r}" for label in small)
    return (
        f"Join such sites to others, as in sites.replace({{{pairs}}}), or drop their rows, as in "
        f"table[~sites.isin({list(small)!r})]"
    )


def names_of(labels: Sequence[Hashable]) -> list[str]:
    """Return a unique name for each label; a label that is a string is its own name where names stay unique."""
    names = [_name(label) for label in labels]
    return names if len(set(names)) == len(names) else [repr(label) for label in labels]


def names_with(known: Mapping[Hashable, str], labels: Sequence[Hashable]) -> dict[Hashable, str]:
    """Return a unique name for each label; a label in `known` keeps its name."""
    names = {label: known[label] for label in labels if label in known}
    for label in labels:
        if label not in names:
            name = _name(label)
            while name in names.values():
                name = repr(name)
            names[label] = name
    return names


def _name(label: Hashable) -> str:
    return label if isinstance(label, str) else repr(label)


def listed(labels: Sequence[Any], most: int = 8) -> str:
    """Return the first labels in a line, for messages."""
    shown = ", ".join(repr(label) for label in labels[:most])
    return shown + (f", ... ({len(labels)} in all)" if len(labels) > most else "")
