"""How the units of rows are found: by quantiles or extremes that sites agree on, by public bounds, or as rows are.

Before that, sites with raw tables agree on what columns become.

Quantiles are from rounded counts of rows, so that nobody is told anybody's smallest or largest value. Sites count how
many of their rows lie below each edge of a grid, and sum the counts over all sites. The first grid is the same for all
data: 0 and the powers of 2^16, of both signs. The next one divides the cells that hold the bounds into equal cells, and
so on. A bound is the innermost edge outside which a share q of all rows lies at most.

A site rounds its own counts before it sends them. A count below the site's middle is rounded down to a multiple of k,
a count above it is rounded so that the number of rows beyond the edge is a multiple of k. What is sent for an edge
depends on that edge alone, not on the rest of the grid. So all grids of a run together tell of any interval how many
rows are in it up to k, and nothing where fewer than k rows lie beyond an edge. At most q N + (k - 1) J rows of N at J
sites lie outside a bound.

**How sites agree on what the columns of their raw tables become: categories, fill values, parts of dates.**

What a site tells is in `dekrr.tables.columns`. It goes up the spanning tree, and each site joins what its branch tells
to its own. The root settles kinds, categories and the order of days and months, and what it settled comes down. The
middles and spreads of numbers are means over sites, weighted by rows, from one sum over the tree.

- A category is a word that enough rows of all sites together have. Rarer ones are pooled: they count as none of the
  others. Rows without a value have a column of their own if there are as many.
- A column of words is left out where few rows have a category: its words are names or identifiers.
- In a column of dates such as 02/11/2014 any site can settle whether the day or the month comes first. If none does, it
  is the day.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from msgspec.structs import replace

from ..errors import DataError, MessageError, SettingsError, one_line
from ..messages import Bounds, RawColumns, ToldColumn, expect
from ..privacy.masks import exponent_of
from ..scaling import AS_IT_IS, UNSCALED, AnyScaling, Response, Scaling
from ..settings import GuardSettings
from ..tables.columns import (
    MOST_CATEGORIES,
    PARTS,
    WORDS,
    Column,
    Columns,
    Facts,
    FactsOfColumn,
    joined_kind,
    joined_parts,
    require_one_order,
)
from ..tables.rows import ArrayRows
from ..types import Array
from .masking import Agreement
from .roll_call import RollCall, Roster, roll_call
from .site import Procedure, Site, without_exchange
from .spanning_tree import Extremes, Tree, single, tree_of

SHARE = 1e-3
ROOM = 0.25  # how far outside its bounds a column is clipped, in spans
N_CELLS = 128
FEWEST_CELLS = 32  # between two bounds that need no further grid
MOST_GRIDS = 8
_MOST_CLIPPED = 0.25  # of a site's rows in a column: with more of them outside, the rest would stand alone

BoundsPair = tuple[tuple[float, ...], tuple[float, ...]]


def agree_on_scaling(site: Site, roster: Roster) -> Procedure[Scaling]:
    """Find the bounds of every column and of the response over all sites.

    Few sites tell their neighbours, in diameter exchanges; many do so over the tree, where each says it once.
    """
    lower, upper = site.rows.bounds.lower, site.rows.bounds.upper
    if site.limits is not None:
        lower, upper = np.clip(lower, *site.limits), np.clip(upper, *site.limits)
    tree = Tree(roster)
    if tree.rounds:
        ends = np.append(-lower, upper)
        form = Extremes(len(ends))
        lower, upper = np.split((yield from tree.result(ends, np.copy, len(ends), form=form)), 2)
        return Scaling(-lower, upper, site.limits)
    shapes = dict.fromkeys(site.neighbors, lower.shape)
    for _ in range(roster.diameter):
        inbox = expect((yield site.to_all(Bounds(lower, upper))), Bounds, lower=shapes, upper=shapes)
        lower = np.min([lower, *(message.lower for message in inbox.values())], axis=0)
        upper = np.max([upper, *(message.upper for message in inbox.values())], axis=0)
    return Scaling(lower, upper, site.limits)


def first_edges() -> Array:
    """Return the edges of the first grid, shape (257,)."""
    powers = np.ldexp(1.0, 16 * np.arange(1, 128) - 1023)
    positive = np.append(powers, np.finfo(float).max)
    return np.concatenate([-positive[::-1], [0.0], positive])


def equal_edges(lower: Array, upper: Array) -> Array:
    """Return the edges of equal cells between two bounds of each column, shape (N_CELLS + 1, n_columns)."""
    steps = np.linspace(0.0, 1.0, N_CELLS + 1)[:, None]
    return np.asarray(lower * (1 - steps) + upper * steps)


def rounded_counts(values: Array, edges: Array, fewest: int) -> Array:
    """Return how many values (n_rows, n_columns) lie below each edge (n_edges, n_columns), shape (n_edges, n_columns).

    They are rounded so that no edge separates fewer than `fewest` of them. Edges ascend.
    """
    n_rows = len(values)
    pairs = zip(np.sort(values, axis=0).T, edges.T, strict=True)
    below = np.column_stack([np.searchsorted(column, edge) for column, edge in pairs])
    above = n_rows - below
    rounded = np.where(below <= above, below // fewest * fewest, n_rows - above // fewest * fewest)
    return rounded.astype(float)


def bounds_between(edges: Array, below: Array, n_rows: float, share: float = SHARE) -> tuple[np.ndarray, np.ndarray]:
    """Return the places of the innermost edges that leave out a share of the rows of each column at most.

    `edges` and the counts `below` them over all sites have the shape (n_edges, n_columns). The first edge has no row
    below it and the last one all rows, whatever is counted.
    """
    lowest = below <= share * n_rows
    highest = n_rows - below <= share * n_rows
    lowest[0], highest[-1] = True, True
    last = len(edges) - 1 - np.argmax(lowest[::-1], axis=0)
    return np.minimum(last, len(edges) - 2), np.maximum(np.argmax(highest, axis=0), 1)


def agree_on_quantiles(
    sample: ArrayRows, tree: Tree, fewest: int, *, share: float = SHARE, of_sites: bool = False
) -> Procedure[tuple[Array, Array]]:
    """Find bounds of every column and response over all sites; a `share` of rows lies outside each at most.

    Every grid takes 2 height exchanges over the spanning tree. Sites stop at the same grid, because all have the same
    totals. Of many rows a `sample` is counted; counts of fewer than `fewest` rows are not told. Under masks, sites
    learn counts over all sites alone. With `of_sites`, sites count alike, instead of rows.
    """
    factor, whole = sample.expansion, float(tree.roster.n_rows)
    if of_sites:
        factor, whole = 1 / max(sample.n_rows, 1), float(tree.roster.n_sites)
    values = np.column_stack([sample.X, sample.y])
    lower, upper = np.empty(values.shape[1]), np.empty(values.shape[1])
    coarse = np.arange(values.shape[1])  # the columns whose bounds are not fine enough yet
    edges = np.tile(first_edges()[:, None], len(coarse))
    for grid in range(MOST_GRIDS):
        counts = factor * rounded_counts(values[:, coarse], edges, fewest)
        total = yield from tree.sum(counts, 2.0 ** exponent_of(tree.roster.n_rows), single)
        first, last = bounds_between(edges, total, whole, share)
        each = np.arange(len(coarse))
        lower[coarse], upper[coarse] = edges[first, each], edges[last, each]
        is_coarse = (last - first < FEWEST_CELLS) | (grid == 0)
        if not is_coarse.any():
            return lower, upper
        coarse, constant = coarse[is_coarse], coarse[last - first == 1]
        edges = equal_edges(lower[coarse], upper[coarse])
    upper[constant] = lower[constant]  # all in one cell of the finest grid
    return lower, upper


def public_scaling(bounds: BoundsPair, n_columns: int, n_outputs: int = 1, response: Response = AS_IT_IS) -> Scaling:
    """Return the scaling by bounds that everybody knows beforehand: of the columns, then of each output."""
    lower, upper = (np.asarray(bound, dtype=float) for bound in bounds)
    if not (lower.shape == upper.shape == (n_columns + n_outputs,) and np.isfinite([lower, upper]).all()):
        last = "the response last" if n_outputs == 1 else f"those of the {n_outputs} outputs last"
        raise SettingsError(
            f"bounds must be {n_columns + n_outputs} finite lower and upper values each, {last}; "
            f"got {lower.size} and {upper.size}"
        )
    if not (lower < upper).all():
        entry = int(np.argmin(lower < upper))
        raise SettingsError(f"bounds: the lower value of entry {entry} is not below the upper one")
    ends = np.stack([lower[n_columns:], upper[n_columns:]])
    ends = response.forward(ends, lambda end: f"bounds, the {('lower', 'upper')[end]} one")
    lower, upper = np.append(lower[:n_columns], ends.min(axis=0)), np.append(upper[:n_columns], ends.max(axis=0))
    return Scaling.clipping(lower, upper, n_columns)


class Preparation(ABC):
    """How the units of rows are found."""

    # what of the rows is looked at before their sums, and what to take instead; empty where nothing is
    looks_at_rows: str = ""
    # whether sites agree on units by their rows, so that outputs can be brought to one variance too
    is_agreed: bool = False
    clips: bool = True  # whether rows far outside the bounds are clipped

    def reasons(self, site: Site) -> list[str]:
        """Return why a site cannot be part of the run."""
        return []

    @abstractmethod
    def agree(self, site: Site, roll: RollCall, agreement: Agreement | None = None) -> Procedure[AnyScaling]:
        """Return the scaling, which is the same at all sites; an agreement on keys masks what is summed for it."""


@dataclass(frozen=True)
class AgreedQuantiles(Preparation):
    """By quantiles near the ends of each column over all sites, from rounded counts; rows are clipped to them."""

    min_rows: int  # counts of fewer rows than this are not told
    lone: int = 0

    is_agreed = True
    looks_at_rows = "counts of the rows would be sent: give public bounds, or scale=None"

    def agree(self, site: Site, roll: RollCall, agreement: Agreement | None = None) -> Procedure[AnyScaling]:
        """Return the scaling after some 6 times the tree's height in exchanges."""
        tree = yield from tree_of(roll, agreement)
        fewest = max(self.min_rows, min(self.lone, site.n_rows // 10))
        lower, upper = yield from agree_on_quantiles(site.rows.sample, tree, fewest)
        n_columns = site.rows.n_columns
        if (lower[n_columns:] == upper[n_columns:]).any():
            raise DataError(
                f"too few responses differ from {lower[n_columns]:.6g} to agree on their bounds without revealing "
                'them: give public bounds, scale="minmax", or scale=None'
            )
        if site.limits is not None:
            lower, upper = np.clip(lower, *site.limits), np.clip(upper, *site.limits)
        scaling = Scaling.clipping(lower, upper, n_columns, ROOM)
        _refuse_narrow(site, scaling)
        return scaling


def _refuse_narrow(site: Site, scaling: Scaling) -> None:
    """Refuse bounds outside which many of the site's rows lie: a liar's, or of a site unlike all others."""
    X = site.rows.sample.X
    varies = scaling.lower[: X.shape[1]] < scaling.upper[: X.shape[1]]  # in a constant column, no row stands alone
    scaled = scaling.rows(X)
    clipped = varies * np.mean((scaled <= -ROOM) | (scaled >= 1 + ROOM), axis=0)
    if len(X) and (clipped > _MOST_CLIPPED).any():
        column = int(np.argmax(clipped))
        raise DataError(
            f"{clipped[column]:.0%} of the rows of site {site.name!r} lie far outside the agreed bounds "
            f"{scaling.lower[column]:.6g} and {scaling.upper[column]:.6g} of column {column}: give public bounds, or "
            "put the site into a run with sites like it"
        )


class AgreedBounds(Preparation):
    """By the smallest and largest value of each column over all sites, which the sites tell each other."""

    is_agreed = True
    clips = False
    looks_at_rows = "the smallest and largest values of the rows would be sent: give public bounds, or scale=None"

    def agree(self, site: Site, roll: RollCall, agreement: Agreement | None = None) -> Procedure[AnyScaling]:
        """Return the scaling after diameter exchanges."""
        roster = yield from roll.roster()
        return (yield from agree_on_scaling(site, roster))


@dataclass(frozen=True)
class PublicBounds(Preparation):
    """By bounds that everybody knows before the run."""

    bounds: BoundsPair  # the lower and the upper bounds of the columns and, last, of the response
    response: Response = AS_IT_IS  # how the response is changed for training

    def _scaling(self, site: Site) -> Scaling:
        """Return the scaling; rows that would have to be read for it have as many outputs as there are bounds."""
        rows = site.rows
        n_outputs = rows.n_outputs if rows.knows_outputs else max(1, len(self.bounds[0]) - rows.n_columns)
        return public_scaling(self.bounds, rows.n_columns, n_outputs, self.response)

    def reasons(self, site: Site) -> list[str]:
        """Return in what way the bounds do not fit the site's columns."""
        try:
            self._scaling(site)
        except (SettingsError, DataError) as error:
            return [str(error)]
        return []

    def agree(self, site: Site, roll: RollCall, agreement: Agreement | None = None) -> Procedure[AnyScaling]:
        """Return the scaling."""
        return without_exchange(self._scaling(site))


class OwnUnits(Preparation):
    """Rows stay in their own units."""

    def agree(self, site: Site, roll: RollCall, agreement: Agreement | None = None) -> Procedure[AnyScaling]:
        """Return the scaling that changes nothing."""
        return without_exchange(UNSCALED)


PREPARATIONS: dict[str | None, Callable[[int], Preparation]] = {
    # A lone value decides no bound, even where no guard asks for it: ten rows, or a tenth of a site, stay uncounted.
    "quantiles": lambda min_rows: AgreedQuantiles(min_rows, lone=10),
    "minmax": lambda min_rows: AgreedBounds(),
    None: lambda min_rows: OwnUnits(),
}


def preparation_of(settings: GuardSettings, bounds: BoundsPair | None = None) -> Preparation:
    """Return the preparation that the settings, and public bounds where there are some, ask for."""
    if settings.scale is not None and bounds is not None:
        return PublicBounds(bounds, Response.of(getattr(settings, "transform", None)))
    return PREPARATIONS[settings.scale](settings.min_rows)


_MOST_TOLD = 1000  # words of a column in a message
_FEWEST, _MOST_NEEDED = 2, 10  # rows of all sites that a category needs: a hundredth of them, within these
_LEAST_COVER = 0.2  # share of the rows that have a category; below, words are names or identifiers
_ORDERS = {"day", "month", "either", "short"}
_LONGEST_PLACE = 400  # characters of a site, or of why a column is refused

Told = dict[str, ToldColumn]


def agree_on_columns(site: Site, facts: Facts, min_rows: int) -> Procedure[Columns]:
    """Return what the columns of all sites become, the same at all sites, from what each knows of its own.

    A site tells of a category, or of no value, where at least `min_rows` of its rows have it.
    """
    site.require_rows(min_rows)
    roster = yield from roll_call(site)
    told = {name: _tell(f"site {site.name!r}", column, min_rows) for name, column in facts.columns.items()}
    settled = yield from _settle(site, roster, told)
    _refuse_unusable(settled)
    totals = yield from Tree(roster).sum(_middles(facts, settled, min_rows))
    for remark in remarks(settled):
        site.tell(remark)
    return _columns(settled, totals)


def columns_alone(facts: Facts) -> Columns:
    """Return what columns become by one site's rows alone; a column without any value is taken for numbers.

    Examples
    --------
    >>> import pandas as pd
    >>> from dekrr.tables.columns import read_raw
    >>> facts = Facts(["wind"])
    >>> facts.add(read_raw(pd.DataFrame({"wind": ["N", "E", None, None]}), ["wind"]))
    >>> columns_alone(facts).names_out
    ['wind=N', 'wind missing']
    """
    settled = {}
    for name, column in facts.columns.items():
        told = _tell("", column, min_rows=1)
        if told.kind == "empty":
            told = replace(told, kind="number")
        settled[name] = replace(told, counts=_most_frequent(told.counts, MOST_CATEGORIES))
    return _columns(settled, _middles(facts, settled, min_rows=1))


def _tell(where: str, facts: FactsOfColumn, min_rows: int) -> ToldColumn:
    return ToldColumn(
        facts.told_kind,
        where,
        facts.absent,
        facts.n_known // min_rows * min_rows,
        facts.n_missing // min_rows * min_rows,
        facts.told_counts(min_rows),
        facts.told_parts(min_rows) if facts.told_kind in ("datetime", "dated") else {},
        dict.fromkeys(facts.orders, where),
    )


def _settle(site: Site, roster: Roster, told: Told) -> Procedure[Told]:
    """Return what the root settles of what all sites tell, after 2 height exchanges over the spanning tree."""
    children = []
    for step in range(roster.height):
        my_turn = roster.parent is not None and step == roster.height - roster.depth
        inbox = expect((yield {roster.parent: RawColumns(told)} if my_turn and roster.parent else {}), RawColumns)
        for child, message in sorted(inbox.items()):
            if child == roster.parent or step != roster.height - roster.depth - 1:
                raise MessageError(f"site {child!r} told of its columns out of turn", child)
            children.append(child)
            _check(child, message.columns, told)
            told = {name: _joined(name, told[name], message.columns[name]) for name in told}
    settled = told
    if roster.parent is None:
        settled = {name: _settled(column) for name, column in told.items()}
    for step in range(roster.height):
        inbox = expect((yield dict.fromkeys(children, RawColumns(settled)) if step == roster.depth else {}), RawColumns)
        for sender, message in inbox.items():
            if sender != roster.parent or step != roster.depth - 1:
                raise MessageError(f"site {sender!r} told of columns out of turn", sender)
            _check(sender, message.columns, told)
            settled = message.columns
    return settled


def _check(sender: str, theirs: Mapping[str, ToldColumn], own: Mapping[str, ToldColumn]) -> None:
    if list(theirs) != list(own):
        raise MessageError(
            f"site {sender!r} has the columns {', '.join(theirs)}, not {', '.join(own)}: all sites need the same "
            "columns, in the same order",
            sender,
        )
    for name, column in theirs.items():
        is_known = column.kind in (*WORDS, "none", "refused") and min(column.n_known, column.n_missing) >= 0
        is_known &= max(map(len, (column.site, *column.orders.values()))) <= _LONGEST_PLACE
        if not (is_known and set(column.parts) <= set(PARTS) and set(column.orders) <= _ORDERS):
            raise MessageError(f"site {sender!r} describes a column {name!r} that cannot exist", sender)
        counts = column.counts
        if len(counts) > _MOST_TOLD or not all(count > 0 and len(word) <= 200 for word, count in counts.items()):
            raise MessageError(f"site {sender!r} describes categories of {name!r} that cannot exist", sender)


def _joined(name: str, one: ToldColumn, other: ToldColumn) -> ToldColumn:
    if "refused" in (one.kind, other.kind):
        return one if one.kind == "refused" else other
    orders = {**other.orders, **one.orders}
    try:
        kind = joined_kind(name, (one.kind, one.site), (other.kind, other.site))
        require_one_order(name, orders)
    except DataError as error:  # which all sites are to know
        return ToldColumn("refused", one_line(str(error)), False, 0, 0, {}, {}, {})
    first = min((told for told in (one, other) if told.kind == kind), key=lambda told: told.site, default=one)
    counts = {word: one.counts.get(word, 0) + other.counts.get(word, 0) for word in one.counts | other.counts}
    return ToldColumn(
        kind,
        first.site,
        one.absent or other.absent,
        one.n_known + other.n_known,
        one.n_missing + other.n_missing,
        _most_frequent(counts, _MOST_TOLD),
        joined_parts(one.parts, other.parts),
        orders,
    )


def _most_frequent(counts: Mapping[str, int], n_most: int) -> dict[str, int]:
    most = counts if len(counts) <= n_most else sorted(counts, key=lambda word: (-counts[word], word))[:n_most]
    return {word: counts[word] for word in sorted(most)}


def _are_enough(n_rows: int, told: ToldColumn) -> bool:
    """Return whether so many rows of all sites are enough for a column of their own, as a category or without value."""
    return n_rows >= min(max((told.n_known + told.n_missing) / 100, _FEWEST), _MOST_NEEDED)


def _categories(told: ToldColumn) -> dict[str, int]:
    """Return the words that enough rows of all sites have."""
    return {word: count for word, count in told.counts.items() if _are_enough(count, told)}


def _left_out(told: ToldColumn) -> bool:
    """Return whether nothing can be learnt from a column."""
    # of rows that are told of: a site with many different words tells of the most frequent ones alone
    cover = sum(_categories(told).values())
    return told.kind == "empty" or (told.kind == "category" and cover <= _LEAST_COVER * sum(told.counts.values()))


def _settled(told: ToldColumn) -> ToldColumn:
    """Return what all sites take for true of a column; a kind of "none" leaves it out."""
    if told.kind == "refused":
        return told
    if _left_out(told):
        return ToldColumn("none", told.site, told.absent, told.n_known, told.n_missing, {}, {}, {})
    counts = _most_frequent(_categories(told), MOST_CATEGORIES)
    kind = "datetime" if told.kind == "dated" else told.kind
    return replace(told, kind=kind, counts=counts, parts=told.parts if kind == "datetime" else {})


def _refuse_unusable(settled: Mapping[str, ToldColumn]) -> None:
    """Refuse columns that differ too much between sites, all of them at once, and a table of none that is of use."""
    refused = [column.site for column in settled.values() if column.kind == "refused"]
    if refused:
        raise DataError("; ".join(refused))
    if all(column.kind == "none" for column in settled.values()):
        raise DataError("there is no column to predict from: " + "; ".join(remarks(settled)))


def remarks(settled: Mapping[str, ToldColumn]) -> list[str]:
    """Return in words what was assumed of columns, or left out, and how to have it otherwise."""
    found = []
    for name, column in settled.items():
        if column.kind == "none" and not column.n_known:
            found.append(f"column {name!r} has no value in any row: it says nothing, and is left out")
        elif column.kind == "none":
            found.append(
                f"column {name!r} is left out: nearly every row has a word of its own there, like a name or an "
                "identifier. If the words have something in common, turn them into numbers or fewer categories; if "
                f"they are numbers written as text, table[{name!r}] = pd.to_numeric(table[{name!r}])"
            )
        if "either" in column.orders and not {"day", "month"} & set(column.orders):
            found.append(
                f"column {name!r} has dates that could have the day or the month first, at all sites: the day was "
                f"taken to be first, as in 31/10/2023. If it is the month, table[{name!r}] = "
                f"pd.to_datetime(table[{name!r}], dayfirst=False), also where rows are predicted"
            )
        if "short" in column.orders:
            found.append(
                f"column {name!r} has years of two digits: they were taken to come last, and from 1969 to 2068. "
                "Otherwise, write dates as 2023-10-31"
            )
    return found


def _order_of(column: ToldColumn) -> str:
    if "month" in column.orders:
        return "month"
    return "day" if {"day", "either"} & set(column.orders) else ""


def _middles(facts: Facts, settled: Mapping[str, ToldColumn], min_rows: int) -> Array:
    """Return weight, weighted middle and weighted spread of every column.

    A site with values in fewer than `min_rows` rows has no weight: the middle of one value is that value.
    """
    found = []
    for name, column in facts.columns.items():
        kind = settled[name].kind
        reading = "number" if kind != "datetime" else _order_of(settled[name]) or "day"
        middle, spread = column.middle(min_rows, reading)
        # all rows count, also those without a value: how many these are is not for others to know
        is_told = column.n_known >= min_rows and kind not in ("category", "none")
        weight = column.n_rows // min_rows * min_rows if is_told else 0
        found.append([weight, weight * middle, weight * spread])
    return np.array(found, dtype=np.float64).ravel()


def _columns(settled: Mapping[str, ToldColumn], totals: Array) -> Columns:
    middles = totals.reshape(-1, 3)
    return Columns(tuple(_column(name, settled[name], middle) for name, middle in zip(settled, middles, strict=True)))


def _column(name: str, told: ToldColumn, middle: Array) -> Column:
    weight, fill, spread = (float(value) for value in middle)
    fill, spread = (fill / weight, spread / weight) if weight else (0.0, 0.0)
    parts = tuple(part for part in PARTS if told.parts.get(part, 0.0) is None)
    return Column(
        name=name,
        kind=told.kind,  # type: ignore[arg-type]
        fill=fill,
        spread=spread if spread > 0 else 1.0,
        missing=told.kind != "none" and _are_enough(told.n_missing, told),
        categories=tuple(told.counts),
        parts=parts or (("year",) if told.kind == "datetime" else ()),
        order=_order_of(told),
        absent=told.absent,
    )
