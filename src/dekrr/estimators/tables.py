"""Rows in arrays: what cannot be used, told by row and column, and each site's part."""

import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from ..errors import DataError, SettingsError, warn
from ..labels import factorise, listed, places_of, refuse_rows_as_sites, remedy
from ..networks.base import Connect, Traffic
from ..protocols.preparation import agree_on_columns
from ..rules import LARGEST, is_missing, is_number
from ..tables.columns import (
    Columns,
    Facts,
    RawTable,
    array_of,
    arrays_of,
    column_names,
    is_frame,
    names_in,
    read_raw,
    require_columns,
    select,
)
from ..tables.rows import ArrayRows, ForgottenRows, Rows
from ..tables.sources import (
    TABLE,
    AnyColumns,
    Source,
    SpreadTable,
    StreamedRows,
    block_of,
    column_of,
    counted,
    inputs_of,
    is_mapping,
    names_of,
    open_source,
    require_weights,
    split_by_site,
)
from ..topology import build
from ..types import Array, Block
from .network import Graph, Here, Watch, run, sites_of


def weights_of(sample_weight: Any, n_rows: int) -> Array | None:
    """Return the weight of each row, or refuse what cannot be one; weights that are all 1 are none."""
    if sample_weight is None:
        return None
    weights = np.asarray(sample_weight)
    if weights.shape != (n_rows,):
        raise DataError(f"sample_weight has the shape {weights.shape} for {n_rows} rows; give one weight per row")
    if weights.dtype.kind not in "fiub":
        try:
            weights = weights.astype(np.float64)
        except (TypeError, ValueError):
            row = next((row for row, value in enumerate(weights.tolist()) if not is_number(value)), 0)
            raise DataError(
                f"sample_weight: row {row} has {weights[row]!r}, which is not a number; give how often each row counts"
            ) from None
    weights = weights.astype(np.float64)
    require_weights(weights, "sample_weight: ")
    if not weights.any():
        raise DataError("all rows have the weight zero: give at least one row a positive sample_weight")
    return None if (weights == 1).all() else weights


def naming(sites: Any) -> Callable[[int], str]:
    """Return what says in words which row a number is, and of which site, where `sites` has the site of every row."""
    labels = None if sites is None or isinstance(sites, str) else sites

    def where(row: int) -> str:
        return f"row {row}" if labels is None else f"row {row} (site {np.asarray(labels)[row]})"

    return where


def merged(block: Block) -> Block:
    """Return rows with equal ones merged into one that has the sum of their weights, in an order by content.

    Rows that all differ and have no weights are returned as they are. So rows that are repeated, and rows with as large
    a weight, are the same rows from here on.
    """
    X, y, weight = block
    parts = [X, y[:, None] if y.ndim == 1 else y]
    contents = np.ascontiguousarray(np.hstack(parts) + 0.0)  # + 0.0 makes -0.0 a 0.0
    keys = contents.view(np.dtype((np.void, contents.shape[1] * contents.itemsize))).ravel()
    _, first, which = np.unique(keys, return_index=True, return_inverse=True)
    if weight is None and len(first) == len(keys):
        return block
    counts = np.ones(len(keys)) if weight is None else weight
    return Block(X[first], y[first], np.asarray(np.bincount(which.ravel(), weights=counts), dtype=np.float64))


def by_site(
    X: Array, y: Array, labels: Sequence[Hashable], index: np.ndarray, seed: int, weight: Array | None = None
) -> dict[Hashable, Rows]:
    """Return each site's part of rows in memory; it is a view where the part is in one piece.

    Rows of weight 0 are left out; a site that has no others is refused. `index` has the place of each row's site in
    `labels`; the seed is of the sites' samples.
    """
    rows: dict[Hashable, Rows] = {}
    for label, own in zip(labels, places_of(index, len(labels)), strict=True):
        in_one_piece = len(own) > 0 and own[-1] - own[0] + 1 == len(own)
        block = counted(Block(X, y, weight).take(slice(own[0], own[-1] + 1) if in_one_piece else own))
        if not block.n_rows:
            raise DataError(f"all rows of site {label!r} have weight zero: leave the site out, or give it weights")
        rows[label] = ArrayRows(*block, seed=seed)
    return rows


def refuse_small_sites(n_rows: Mapping[Hashable, int], min_rows: int) -> None:
    """Refuse sites of fewer rows than `min_rows`, all of them at once; rows that are read in batches say so later."""
    small = [label for label, count in n_rows.items() if count < min_rows]
    if small and len(n_rows) > 1:
        named = "; ".join(f"site {site!r} has {n_rows[site]} row{'s' * (n_rows[site] != 1)}" for site in small)
        raise DataError(f"{named}, fewer than min_rows={min_rows}. {remedy(small, n_rows)}, or lower min_rows")


def refuse_bad_rows(
    X: Array, columns: Sequence[str] | int, labels: Sequence[Any] = (), index: np.ndarray | None = None
) -> None:
    """Refuse rows with NaN, infinite or far too large values, and say where the first one is.

    `columns` are names or how many there are; `index` has the place of each row's site in `labels`, where rows have
    one.
    """
    fits = np.abs(X) <= LARGEST
    if fits.all():
        return
    is_large = bool(np.isfinite(X).all())
    row, column = np.argwhere(~fits if is_large else ~np.isfinite(X))[0]
    name = column if isinstance(columns, int) else repr(columns[column])
    where = f" of site {labels[index[row]]!r}" if index is not None else ""
    if is_large:
        raise DataError(
            f"row {row}{where}, column {name} is {X[row, column]:g}, too large to compute with: give the column in "
            "another unit, or its logarithm"
        )
    count = int((~np.isfinite(X)).sum())
    raise DataError(
        f"Input X contains NaN or infinity: row {row}{where}, column {name} is {X[row, column]} "
        f"({count} such values in all); fill or drop them"
    )


@contextmanager
def telling_of_words(X: Any) -> Iterator[None]:
    """Say where the first word of an array is, where words cannot be made numbers."""
    try:
        yield
    except TypeError as error:
        if "Sparse data" not in str(error):
            raise
        raise TypeError(f"{error} In a pipeline, write OneHotEncoder(sparse_output=False)") from None
    except ValueError as error:
        values = np.asarray(X)
        if "could not convert string to float" not in str(error) or values.ndim != 2:
            raise
        places = ((row, column) for row, own in enumerate(values.tolist()) for column, _ in enumerate(own))
        row, column = next(place for place in places if isinstance(values[place], str) and not is_number(values[place]))
        raise DataError(
            f"row {row}, column {column} of the array is {str(values[row, column])!r}, not a number: give the rows as "
            "a pandas or Polars frame, whose words become categories, or encode the column"
        ) from None


def refuse_missing_responses(y: Any) -> None:
    """Refuse responses that are None, NaN or infinite, and say where the first one is."""
    values = np.asarray(y)
    if values.dtype.kind in "mM":
        raise DataError(
            f"the responses are of type {values.dtype}: a regressor predicts numbers; make them so, as in hours since "
            "a date"
        )
    if values.dtype.kind in "OUST" and values.ndim == 1:
        rows = list(enumerate(values.tolist()))
        missing = next((row for row, value in rows if value is None), None)
        if missing is not None:
            raise DataError(f"Input y contains NaN or infinity: row {missing} is None; drop such rows")
        texts = [(row, value) for row, value in rows if isinstance(value, str)]
        words = [(row, value) for row, value in texts if not is_number(value)]
        if words:
            row, word = words[0]
            raise DataError(
                f"the response of row {row} is {word!r}: a regressor predicts numbers; DeKRRClassifier predicts classes"
            )
        if texts:
            raise DataError(
                f"the response of row {texts[0][0]} is {texts[0][1]!r}, a number written as text: make all of them "
                "numbers, as in table[name] = pd.to_numeric(table[name])"
            )
    if values.dtype.kind != "f" or values.ndim not in (1, 2) or (np.abs(values) <= LARGEST).all():
        return
    if np.isfinite(values).all():
        row = int(np.argwhere(np.abs(values) > LARGEST)[0][0])
        raise DataError(f"the response of row {row} is too large to compute with: give it in another unit")
    row, *column = np.argwhere(~np.isfinite(values))[0]
    output = f", output {column[0]}" if column else ""
    count = int((~np.isfinite(values)).sum())
    raise DataError(
        f"Input y contains NaN or infinity: row {row}{output} is {values[(row, *column)]} ({count} in all); drop those "
        "rows"
    )


_FEW_CODES = 10  # categories that may be codes, though all are numbers


class Named(NamedTuple):
    """A frame's columns to predict from, and what names of other columns stood for."""

    X: Any
    y: Any  # an array, where it was a name or names
    sites: Any  # sites, weight: an array, where it was a name
    weight: Any


def named(X: Any, y: Any, sites: Any, columns: Sequence[str] | None, weight: Any = None) -> Named:
    """Return a frame without the columns that are the response, the site and the weight, and these as arrays.

    Each may be an array or the name of a column, `y` also a list of names. `columns` are those to predict from; by
    default all others.
    """
    outputs = [y] if isinstance(y, str) else y if is_names(y) else []
    others = [*outputs, *(name for name in (sites, weight) if isinstance(name, str))]
    if isinstance(sites, str) and sites in outputs:
        raise SettingsError(f"{sites!r} cannot be both the response and the site of a row")
    require_columns(X, others)
    _refuse_columns(columns, others)
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


def _refuse_columns(columns: Sequence[str] | None, others: Sequence[str | None]) -> None:
    if isinstance(columns, str) or (columns is not None and set(columns) & set(others)):
        raise SettingsError(
            f"columns are the names of the columns to predict from, without the response and the site; got {columns!r}"
        )


def picked(X: Any, sites: Any, reading: AnyColumns) -> tuple[Any, Any]:
    """Return the columns of a frame that models know, and the sites of its rows; the frame may have further columns.

    A frame without sites that has other columns than models know is left to scikit-learn, which has words for that.
    What columns become says itself which of them it needs.
    """
    if not is_frame(X):
        return X, sites
    known, there = names_of(reading), column_names(X)
    is_encoded = isinstance(reading, Columns)
    if not is_encoded and known is not None and (sites is not None or set(known) < set(there)):
        X, _, sites, _ = named(X, None, sites, known)
    elif isinstance(sites, str):
        sites = _labels(X, sites)
    return X, sites


def _labels(X: Any, name: str) -> np.ndarray:
    """Return the column of sites; refuse rows without one."""
    require_columns(X, [name])
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


def facts_of_frame(X: Any, labels: Sequence[Hashable], index: np.ndarray) -> dict[Hashable, Facts]:
    """Return what each site knows of its columns, from a frame with the rows of all; see `by_site`."""
    table, found = read_raw(X, column_names(X)), {label: Facts(column_names(X)) for label in labels}
    _add_by_site(found, table, labels, index, "site {!r}")
    return found


def _add_by_site(
    found: dict[Hashable, Facts], table: RawTable, labels: Sequence[Hashable], index: np.ndarray, where: str
) -> None:
    for label, rows in zip(labels, places_of(index, len(labels)), strict=True):
        found[label].add({name: raw.take(rows) for name, raw in table.items()}, where.format(label))


def facts_of_sources(
    sources: Mapping[Hashable, Source], columns: Sequence[str], sites: str | None
) -> dict[Hashable, Facts]:
    """Return what each site knows of its columns, from one pass over its source, or over one source of all."""
    found: dict[Hashable, Facts] = defaultdict(lambda: Facts(columns))
    for label, source in sources.items():
        for batch in source.batches(columns, sites):
            there = set(column_names(batch.table))
            wanted = [name for name in columns if name in there]
            table = read_raw(batch.table, wanted or columns, batch.where, batch.start)
            if sites is None:
                found[label].add(table, batch.where, batch.start)
            else:
                labels, index = factorise(column_of(batch, sites), len(next(iter(table.values())).values))
                _add_by_site(found, table, labels, index, batch.where.replace("{", "{{").replace("}", "}}"))
    labels, _ = factorise(list(found), len(found))
    return {label: found[label] for label in labels}


def judged(facts: Mapping[Hashable, Facts], columns: Columns) -> dict[str, int]:
    """Return how many rows have words that are no category, by column; warn of columns that were meant otherwise.

    Facts are of the sites of this process; nothing is sent.
    """
    others = {}
    for column in columns.columns:
        own = [site.columns[column.name] for site in facts.values()]
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
    watch: Watch | None = None,
) -> tuple[Columns, Traffic]:
    """Return what columns become, as the sites agree on it over edges, and the traffic of that.

    Without `graph_of` the graph is "auto"; without `connect` all sites are in this process; `watch` follows the first
    site.
    """
    refuse_small_sites({label: own.n_rows for label, own in facts.items()}, min_rows)
    rows = {label: ForgottenRows(own.n_rows, len(own.columns)) for label, own in facts.items()}
    graph = build("auto", list(rows), seed=0) if graph_of is None else graph_of(rows)
    done = run(
        sites_of(rows, graph),
        lambda label, site: agree_on_columns(site, facts[label], min_rows),  # type: ignore[arg-type, return-value]
        connect,
        watch,
    )
    agreed: Any = next(iter(done.outcomes.values()))
    return agreed, done.traffic


ColumnNames = Sequence[str] | int
"""The names of the columns, or how many there are where they have none."""


class LabelledRows(NamedTuple):
    """A batch of rows to predict."""

    X: Array  # shape (n_rows, n_columns)
    y: Array | None  # shape (n_rows,)
    labels: Sequence[Any] | np.ndarray | None  # shape (n_rows,): the sites of the rows, where they are known


def trains_from_sources(X: Any, y: Any) -> bool:
    """Return whether rows to train on come from sources; a frame does where the response is one of its columns."""
    return is_mapping(X) or isinstance(y, str) or is_names(y)


def is_names(y: Any) -> bool:
    """Return whether `y` is a list of names: of the column of each output."""
    return isinstance(y, list | tuple) and bool(y) and all(isinstance(name, str) for name in y)


def open_sources(X: Any, y: Any, sites: Any, weight: Any) -> dict[Hashable, Source]:
    """Return the source of each site, or the only one, with the site column's name as its key."""
    if weight is not None and not isinstance(weight, str):
        raise DataError(f"for sources, sample_weight is the name of a column; got {type(weight).__name__}")
    if y is not None and not isinstance(y, str) and not is_names(y):
        raise DataError(
            f"for sources, y is the name of the response's column; got {type(y).__name__}. Where a site's rows are "
            "arrays, give a mapping of site to the pair (X, y), and no y"
        )
    if is_mapping(X) and sites is not None:
        raise DataError("a mapping of site to source already says which site has which rows: leave sites out")
    if isinstance(X, list | tuple) and any(names_in(part) is not None for part in X):
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


def columns_of(
    sources: Mapping[Hashable, Source], wanted: Sequence[str] | None, others: Sequence[str | None]
) -> ColumnNames:
    """Return the columns to predict from: those wanted, or all that a source has but for the `others`."""
    _refuse_columns(wanted, others)
    columns: ColumnNames
    source, there = next(iter(sources.values())), named_in(sources)
    if wanted is not None:
        columns = list(wanted)
        require_columns(there, columns, source.name)
    else:
        columns = source.n_columns if not there else [name for name in there if name not in others]
    if not columns:
        raise DataError(f"{source.name} has no column to predict from")
    return columns


def named_in(sources: Mapping[Hashable, Source]) -> dict[str, list[Hashable]]:
    """Return the names of columns, in the order in which sources have them, each with the sites that have it."""
    found: dict[str, list[Hashable]] = {}
    if next(iter(sources.values())).columns is None:  # no names: nothing to compare, so other sites' rows stay unread
        return found
    for label, source in sources.items():
        for name in source.columns or []:
            found.setdefault(name, []).append(label)
    return found


def some_lack(sources: Mapping[Hashable, Source], columns: ColumnNames) -> bool:
    """Return whether a site's source lacks a column that others have; warn of such columns by name."""
    there = named_in(sources)
    lacking = [] if isinstance(columns, int) else [name for name in columns if len(there[name]) < len(sources)]
    if lacking:
        sites = [label for label in sources if any(label not in there[name] for name in lacking)]
        warn(
            f"columns {', '.join(map(repr, lacking))} are not in the tables of all sites (not in that of "
            f"{listed(sites)}): rows there count as rows without a value. Names must be written alike at all sites"
        )
    return bool(lacking)


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

    `sources` are as from `open_sources`; `y`, `sites` and `weight` are names of columns, and batches of pairs X, y need
    none. Of a table, the rows of sites that are not `here` are not kept.
    """
    if sites is not None:
        if y is None or isinstance(columns, int):
            raise DataError("a source with a site column must have named columns, with y the response's name")
        source = next(iter(sources.values()))
        if not isinstance(source, SpreadTable):
            found = split_by_site(source, columns, y, sites, seed, weight, here)
            refuse_rows_as_sites(list(found), sum(own.n_rows for own in found.values()))
            return found
        sources = source.by_site(sites)
    labels, _ = factorise(list(sources), len(sources))

    def rows(source: Source) -> Rows:
        if isinstance(source, SpreadTable):
            return source.rows(columns, y, weight=weight, seed=seed)
        return StreamedRows(source, columns, y, weight=weight, seed=seed)

    return {label: rows(sources[label]) for label in labels}


def parts_of(X: Any, columns: AnyColumns, y: str | Sequence[str] | None, sites: Any) -> Iterator[LabelledRows]:
    """Yield rows, responses where `y` names them, and site labels, of each batch of a source or of several."""
    if is_mapping(X):
        for label, given in X.items():
            for part in _parts_of_one(given, columns, y, None):
                yield part._replace(labels=[label] * len(part.X))
    else:
        yield from _parts_of_one(X, columns, y, sites)


def _parts_of_one(X: Any, columns: AnyColumns, y: str | Sequence[str] | None, sites: Any) -> Iterator[LabelledRows]:
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
            labels = column_of(batch, sites)
        elif sites is not None:
            labels = sites[seen : seen + len(rows)]
        seen += len(rows)
        yield LabelledRows(rows, responses, labels)
    if sites is not None and not isinstance(sites, str) and len(sites) != seen:
        raise DataError(f"{len(sites)} site labels for {seen} rows; give one label per row")


_FEW = 50  # rows that are looked at first
_NUMBER_OF_ROW = re.compile(r"(row|record|sample|unnamed)?[ _:.-]*(id|index|idx|no|nr|number|\d+)|row", re.IGNORECASE)


def tell_of_leaks(X: Any, y: Any, sites: Any) -> None:
    """Warn about columns to predict from that have the response, the site of each row, or a number of each row."""
    responses = np.asarray(y)
    outputs = list(responses.T) if responses.ndim == 2 else [responses]
    outputs = [output for output in outputs if _differs(output)]
    labels = None if sites is None else np.asarray(sites)
    few = X.iloc[:_FEW] if hasattr(X, "iloc") else X.slice(0, _FEW)
    names = column_names(X)

    def is_site(name: str, first: np.ndarray) -> bool:
        if labels is None or not _equal(first, labels[:_FEW]) or not _differs(labels):
            return False
        return _equal(array_of(X, name, exact=True), labels)

    for name, first in zip(names, arrays_of(few, names, exact=True), strict=True):
        if any(_equal(first, output[:_FEW]) and _equal(array_of(X, name, exact=True), output) for output in outputs):
            warn(
                f"column {name!r} equals the response, and is predicted from: leave it out of the frame, or give its "
                f"name, as in fit(table, {name!r}, sites=...)"
            )
        elif is_site(name, first):
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
