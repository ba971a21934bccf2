"""Rows from sources: a mapping of site to source, or one source with a site column, for fits and for predictions."""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..errors import DataError, SettingsError
from ..labels import factorise
from ..rows import Rows, StreamedRows, split_by_site
from ..rows.batches import AnyColumns, block_of, column_names, inputs_of, labels_of
from ..rows.sources import TABLE, Source, is_mapping, is_source, open_source
from ..rows.spread import SpreadRows, SpreadSource
from ..types import Array
from .ranks import Here

Columns = Sequence[str] | int
"""The names of the columns, or how many there are where they have none."""


class Part(NamedTuple):
    """A batch of rows to predict.

    Parameters
    ----------
    X : ndarray of shape (n_rows, n_columns)
    y : ndarray of shape (n_rows,), or None
    labels : sequence of shape (n_rows,), or None
        The sites of the rows, where they are known.
    """

    X: Array
    y: Array | None
    labels: Sequence[Any] | np.ndarray | None


def trains_from_sources(X: Any, y: Any) -> bool:
    """Return whether rows to train on come from sources; a frame does where the response is one of its columns."""
    return is_mapping(X) or isinstance(y, str) or is_names(y)


def is_names(y: Any) -> bool:
    """Return whether `y` is a list of names: of the column of each output."""
    return isinstance(y, list | tuple) and bool(y) and all(isinstance(name, str) for name in y)


def predicts_from_sources(X: Any, sites: Any) -> bool:
    """Return whether rows to predict come from sources; a frame does where one of its columns has the site."""
    return is_mapping(X) or is_source(X) or (isinstance(sites, str) and column_names(X) is not None)


def refuse_weights(weight: Any) -> None:
    """Refuse weights of rows of sources that are not the name of a column."""
    if weight is not None and not isinstance(weight, str):
        raise DataError(f"for sources, sample_weight is the name of a column; got {type(weight).__name__}")


def open_sources(X: Any, y: Any, sites: Any) -> dict[Hashable, Source]:
    """Return the source of each site, or the only one, with the site column's name as its key.

    Parameters
    ----------
    X : source, or mapping of site to source
    y : str, list of str, or None
        The response's column, or those of several outputs.
    sites : str or None
        The column that has the site.
    """
    if y is not None and not isinstance(y, str) and not is_names(y):
        raise DataError(
            f"for sources, y is the name of the response's column; got {type(y).__name__}. Where a site's rows are "
            "arrays, give a mapping of site to the pair (X, y), and no y"
        )
    if is_mapping(X) and sites is not None:
        raise DataError("a mapping of site to source already says which site has which rows: leave sites out")
    if isinstance(X, list | tuple) and any(column_names(part) is not None for part in X):
        raise DataError(
            f"a {type(X).__name__} of {len(X)} tables does not say which site each belongs to: give a mapping, as in "
            f"fit({{'north': table, 'south': other}}, y='power')"
        )
    if isinstance(X, np.ndarray):
        raise DataError(f"y={y!r} is the name of a column, but the rows are an array: give y as an array, or a frame")
    if is_mapping(X) == isinstance(sites, str):
        raise DataError(
            "give either a mapping of site to source, or one source with sites the name of the column that has the site"
        )
    given = X if is_mapping(X) else {sites: X}
    sources = {label: open_source(source) for label, source in given.items()}
    for label, source in sources.items():
        if is_mapping(X) and source.name == TABLE:
            source.name = f"{TABLE} of site {label!r}"
    if not sources:
        raise DataError("there are no sites: the mapping of site to source is empty")
    return sources


def columns_of(source: Source, wanted: Sequence[str] | None, others: Sequence[str | None]) -> Columns:
    """Return the columns to predict from: those wanted, or all of a source's but for the `others`."""
    if isinstance(wanted, str) or (wanted is not None and set(wanted) & {name for name in others if name}):
        raise SettingsError(
            f"columns are the names of the columns to predict from, without the response and the site; got {wanted!r}"
        )
    columns: Columns
    if wanted is not None:
        columns = list(wanted)
    else:
        there = source.columns
        columns = source.n_columns if there is None else [name for name in there if name not in others]
    if not columns:
        raise DataError(f"{source.name} has no column to predict from")
    return columns


def rows_of(
    sources: Mapping[Hashable, Source],
    columns: AnyColumns,
    y: str | Sequence[str] | None,
    sites: str | None,
    seed: int,
    weight: Any = None,
    here: Here | None = None,
) -> dict[Hashable, Rows]:
    """Return the rows of each site, which are read when they are needed; one table with a site column is read at once.

    Parameters
    ----------
    sources : mapping
        As `open_sources` returned it.
    columns : sequence of str, int, or Columns
    y : str or None
        The response's column; batches of pairs X, y need none.
    sites : str or None
        The column that has the site.
    seed : int
        Of the sites' samples.
    weight : str, optional
        The column that has the weight of each row.
    here : callable, optional
        Says which sites of a table are driven in this process; the others' rows are not kept.
    """
    refuse_weights(weight)
    if sites is not None:
        if y is None or isinstance(columns, int):
            raise DataError("a source with a site column must have named columns, with y the response's name")
        source = next(iter(sources.values()))
        if not isinstance(source, SpreadSource):
            return split_by_site(source, columns, y, sites, seed, weight, here)
        sources = source.by_site(sites)
    labels, _ = factorise(list(sources), len(sources))
    rows: dict[Hashable, Rows] = {}
    for label in labels:
        source = sources[label]
        if isinstance(source, SpreadSource):
            rows[label] = SpreadRows(source, columns, y, weight=weight, seed=seed)
        else:
            rows[label] = StreamedRows(source, columns, y, weight=weight, seed=seed)
    return rows


def parts_of(X: Any, columns: AnyColumns, y: str | Sequence[str] | None, sites: Any) -> Iterator[Part]:
    """Yield rows, responses where `y` names them, and site labels, of each batch of a source or of several.

    Parameters
    ----------
    X : source, or mapping of site to source
    columns : sequence of str, int, or Columns
    y : str or None
        The response's column.
    sites : array-like of shape (n_rows,), str or None
        The site of every row, or the column that has it.
    """
    if is_mapping(X):
        for label, given in X.items():
            for part in _parts_of_one(given, columns, y, None):
                yield part._replace(labels=[label] * len(part.X))
    else:
        yield from _parts_of_one(X, columns, y, sites)


def _parts_of_one(X: Any, columns: AnyColumns, y: str | Sequence[str] | None, sites: Any) -> Iterator[Part]:
    source, seen = open_source(X, once=True), 0
    if sites is not None and not isinstance(sites, str | np.ndarray):
        sites = list(sites)
    names = [y] if y is None or isinstance(y, str) else y
    for batch in source.batches(columns, *names, sites if isinstance(sites, str) else None):
        if y is None:
            rows, responses = inputs_of(batch, columns), None
        else:
            rows, responses, *_ = block_of(batch, columns, y)
        labels = sites
        if isinstance(sites, str):
            labels = labels_of(batch, sites)
        elif sites is not None:
            labels = sites[seen : seen + len(rows)]
        seen += len(rows)
        yield Part(rows, responses, labels)
    if sites is not None and not isinstance(sites, str) and len(sites) != seen:
        raise DataError(f"{len(sites)} site labels for {seen} rows; give one label per row")
