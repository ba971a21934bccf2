"""Frames at the front door: names of columns in the place of arrays, and what raw columns become."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from .. import topology as topologies
from ..errors import DataError, SettingsError, warn
from ..frames import Columns, Facts, RawTable, is_frame, is_plain, read_raw
from ..frames.kinds_of_columns import is_missing
from ..frames.tables import array_of, column_names, require_columns, select
from ..labels import factorise, places_of
from ..networks.base import Connect
from ..networks.traffic import Traffic
from ..protocols.columns import agree_on_columns
from ..rows.batches import labels_of
from ..rows.sources import Source
from ..rules import is_number
from .network import Graph, run, sites_of
from .streams import is_names
from .updates import ForgottenRows

_FEW_CODES = 10  # categories that may be codes, though all are numbers


class Named(NamedTuple):
    """A frame's columns to predict from, and what names of other columns stood for.

    Parameters
    ----------
    X : frame
    y : object
        An array, where it was a name or names.
    sites, weight : object
        An array, where it was a name.
    """

    X: Any
    y: Any
    sites: Any
    weight: Any


def named(X: Any, y: Any, sites: Any, columns: Sequence[str] | None, weight: Any = None) -> Named:
    """Return a frame without the columns that are the response, the site and the weight, and these as arrays.

    Parameters
    ----------
    X : frame
    y, sites : array-like, name of a column, or None
        `y` may be a list of names.
    columns : sequence of str, optional
        The columns to predict from; by default all others.
    weight : array-like or name of a column, optional
    """
    outputs = [y] if isinstance(y, str) else y if is_names(y) else []
    others = [*outputs, *(name for name in (sites, weight) if isinstance(name, str))]
    if isinstance(sites, str) and sites in outputs:
        raise SettingsError(f"{sites!r} cannot be both the response and the site of a row")
    require_columns(X, others)
    if isinstance(columns, str) or (columns is not None and set(columns) & set(others)):
        raise SettingsError(
            f"columns are the names of the columns to predict from, without the response and the site; got {columns!r}"
        )
    if outputs:
        y = array_of(X, y, exact=True) if isinstance(y, str) else np.column_stack([array_of(X, name) for name in y])
    if isinstance(sites, str):
        sites = _labels(X, sites)
    elif isinstance(sites, list) and len(sites) == 1 and len(X) > 1 and sites[0] in column_names(X):
        raise DataError(f"sites={sites!r} is a list; for the column of this name give sites={sites[0]!r}")
    if isinstance(weight, str):
        weight = array_of(X, weight)
    if columns is None:
        columns = [name for name in column_names(X) if name not in others]
    if not len(columns):
        raise DataError(
            "the frame has no column to predict from beside the response, the site and the weight: give it some, or "
            "name them in columns"
        )
    require_columns(X, columns)
    unchanged = list(columns) == column_names(X)
    return Named(X if unchanged else select(X, columns), y, sites, weight)


def picked(X: Any, sites: Any, known: Sequence[str] | None) -> tuple[Any, Any]:
    """Return the columns of a frame that models know, and the sites of its rows; the frame may have further columns.

    Parameters
    ----------
    X : frame, or anything else, which is returned as it is
    sites : array-like, name of a column, or None
    known : sequence of str or None
    """
    if is_frame(X) and (isinstance(sites, str) or known is not None):
        X, _, sites, _ = named(X, None, sites, known)
    return X, sites


def _labels(X: Any, name: str) -> np.ndarray:
    """Return the column of sites; refuse rows without one."""
    labels = array_of(X, name, exact=True)
    for row, label in enumerate(labels.tolist()):
        if is_missing(label):
            raise DataError(f"column {name!r}: row {row} has no site label; drop such rows, or fill it in")
    return labels


def with_words_as_names(X: Any) -> Any:
    """Return a frame with the names of its columns as words: those of a frame of pandas may be numbers."""
    names = column_names(X)
    return X if list(getattr(X, "columns", names)) == names or not hasattr(X, "set_axis") else X.set_axis(names, axis=1)


def refuse_empty(X: Any, y: Any) -> None:
    """Refuse a frame without rows, or that comes without a response."""
    if not len(X):
        raise DataError("the frame has no rows (0 samples)")
    if y is None:
        raise DataError(
            "fit requires y to be passed, but the target y is None: give an array, or the name of the column to predict"
        )


def needs_encoding(X: Any) -> bool:
    """Return whether a frame has anything but numbers, or has missing values."""
    names = column_names(X)
    require_columns(X, names)
    return not is_plain(X, names)


def facts_of_frame(X: Any, labels: Sequence[Hashable], index: np.ndarray) -> dict[Hashable, Facts]:
    """Return what each site knows of its columns, from a frame with the rows of all.

    Parameters
    ----------
    X : frame
    labels : sequence of hashable
        The sites.
    index : ndarray of shape (n_rows,)
        The place of each row's site in `labels`.
    """
    table = read_raw(X, column_names(X))
    return {
        label: _facts(table, own, f"site {label!r}")
        for label, own in zip(labels, places_of(index, len(labels)), strict=True)
    }


def _facts(table: RawTable, rows: np.ndarray, where: str) -> Facts:
    facts = Facts(list(table))
    facts.add({name: raw.take(rows) for name, raw in table.items()}, where)
    return facts


def facts_of_sources(
    sources: Mapping[Hashable, Source], columns: Sequence[str], sites: str | None
) -> dict[Hashable, Facts]:
    """Return what each site knows of its columns, from one pass over sources.

    Parameters
    ----------
    sources : mapping of site to Source
        Or one of the name of the column that has the site to the only source.
    columns : sequence of str
    sites : str or None
        The column that has the site.
    """
    found: dict[Hashable, Facts] = {}
    for label, source in sources.items():
        for batch in source.batches(columns, sites):
            table = read_raw(batch.table, columns, batch.where, batch.start)
            if sites is None:
                found.setdefault(label, Facts(columns)).add(table, batch.where, batch.start)
                continue
            labels, index = factorise(labels_of(batch, sites), len(next(iter(table.values())).values))
            for own, rows in zip(labels, places_of(index, len(labels)), strict=True):
                part = {name: raw.take(rows) for name, raw in table.items()}
                found.setdefault(own, Facts(columns)).add(part, batch.where)
    labels, _ = factorise(list(found), len(found))
    return {label: found[label] for label in labels}


def judged(facts: Mapping[Hashable, Facts], columns: Columns) -> dict[str, int]:
    """Return how many rows have words that are no category, by column; warn of columns that were meant otherwise.

    Parameters
    ----------
    facts : mapping of site to Facts
        Of the sites of this process. Nothing is sent.
    columns : Columns
        As all sites agreed.
    """
    others = {}
    for column in columns.columns:
        own = [site.columns[column.name] for site in facts.values()]
        if own and all(each.n_missing == each.n_rows for each in own):
            warn(f"column {column.name!r} has no value in any row: it says nothing, so leave it out")
        if column.kind != "category":
            continue
        if len(column.categories) > _FEW_CODES and all(map(is_number, column.categories)):
            warn(
                f"column {column.name!r} has numbers written as text, such as {column.categories[0]!r}, and they "
                "became categories: if they are amounts, make them numbers, as in "
                f"table[{column.name!r}] = pd.to_numeric(table[{column.name!r}])"
            )
        known = set(column.categories)
        n_other = sum(count for each in own for word, count in each.counts.items() if word not in known)
        if n_other:
            others[column.name] = n_other
    return others


def agree(
    facts: Mapping[Hashable, Facts],
    min_rows: int,
    graph_of: Callable[[Mapping[Hashable, Any]], Graph] | None,
    connect: Connect | None,
) -> tuple[Columns, Traffic]:
    """Return what columns become, as the sites agree on it over edges, and the traffic of that.

    Parameters
    ----------
    facts : mapping of site to Facts
    min_rows : int
    graph_of : callable, optional
        Makes the graph of the sites; by default a ring.
    connect : Connect, optional
        Makes the network; by default all sites are in this process.
    """
    rows = {label: ForgottenRows(own.n_rows, len(own.columns)) for label, own in facts.items()}
    graph = topologies.build("ring", list(rows), 2, 0) if graph_of is None else graph_of(rows)
    done = run(
        sites_of(rows, graph),
        lambda label, site: agree_on_columns(site, facts[label], min_rows),  # type: ignore[arg-type, return-value]
        connect,
    )
    agreed: Any = next(iter(done.outcomes.values()))
    return agreed, done.traffic
