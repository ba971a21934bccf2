"""How sites agree on what the columns of their raw tables become: categories, fill values, parts of dates.

What a site tells is in `dekrr.frames.facts`. Kinds, categories and flags are flooded, since their union does not depend
on the way. The middles and spreads of numbers are means over sites, weighted by rows, from one sum over the tree.
"""

from collections.abc import Mapping

import numpy as np

from ..errors import DataError, MessageError
from ..frames import Column, Columns, Facts
from ..frames.dates import PARTS
from ..frames.facts import MOST_CATEGORIES, FactsOfColumn, joined_kind
from ..frames.kinds_of_columns import WORDS
from ..messages import RawColumns, ToldColumn, expect, expect_senders
from ..types import Array
from .roll_call import roll_call
from .site import Procedure, Site
from .spanning_tree import tree_sum

_MOST_TOLD = 100 * MOST_CATEGORIES  # categories of a column in a message


def agree_on_columns(site: Site, facts: Facts, min_rows: int) -> Procedure[Columns]:
    """Return what the columns of all sites become; it is the same at all sites.

    Parameters
    ----------
    site : Site
    facts : Facts
        What it knows of its own columns.
    min_rows : int
        The fewest rows of a site that have a category, or no value, for the site to tell so.
    """
    site.require_rows(min_rows)
    roster = yield from roll_call(site)
    told = {name: _tell(site.name, column, min_rows) for name, column in facts.columns.items()}
    for _ in range(roster.diameter):
        inbox = expect((yield site.to_all(RawColumns(told))), RawColumns)
        expect_senders(inbox, site.neighbors)
        for sender in sorted(inbox):
            _check(sender, inbox[sender].columns, told)
            told = {name: _joined(name, told[name], inbox[sender].columns[name]) for name in told}
    totals = yield from tree_sum(site, roster, _middles(facts, min_rows))
    _refuse_unusable(told, min_rows)
    middles = totals.reshape(-1, 3)
    return Columns(tuple(_column(name, told[name], middle) for name, middle in zip(told, middles, strict=True)))


def columns_alone(facts: Facts) -> Columns:
    """Return what columns become by one site's rows alone; a column without any value is taken for numbers.

    Examples
    --------
    >>> import pandas as pd
    >>> from dekrr.frames import read_raw
    >>> facts = Facts(["wind"])
    >>> facts.add(read_raw(pd.DataFrame({"wind": ["N", "E", None]}), ["wind"]))
    >>> columns_alone(facts).names_out
    ['wind=N', 'wind missing']
    """
    told = {name: _tell("", column, min_rows=1) for name, column in facts.columns.items()}
    told = {name: ToldColumn("number", "", True, {}, []) if t.kind == "empty" else t for name, t in told.items()}
    middles = _middles(facts, min_rows=1).reshape(-1, 3)
    return Columns(tuple(_column(name, told[name], middle) for name, middle in zip(told, middles, strict=True)))


def _tell(site: str, facts: FactsOfColumn, min_rows: int) -> ToldColumn:
    missing = facts.n_missing >= max(min_rows, 1)
    return ToldColumn(facts.kind, site, missing, facts.shares(min_rows), facts.dated_parts())


def _middles(facts: Facts, min_rows: int) -> Array:
    """Return weight, weighted middle and weighted spread of every column.

    A site with values in fewer than `min_rows` rows has no weight: the middle of one value is that value.
    """
    found = []
    for column in facts.columns.values():
        middle, spread = column.middle(min_rows)
        # all rows count, also those without a value: how many these are is not for others to know
        is_told = column.n_rows - column.n_missing >= max(min_rows, 1) and column.kind != "category"
        weight = column.n_rows if is_told else 0
        found.append([weight, weight * middle, weight * spread])
    return np.array(found, dtype=np.float64).ravel()


def _check(sender: str, theirs: Mapping[str, ToldColumn], own: Mapping[str, ToldColumn]) -> None:
    if list(theirs) != list(own):
        raise MessageError(
            f"site {sender!r} has the columns {', '.join(theirs)}, not {', '.join(own)}: all sites need the same "
            "columns, in the same order",
            sender,
        )
    for name, column in theirs.items():
        shares, parts = column.shares, column.parts
        if column.kind not in WORDS or len(shares) > _MOST_TOLD or not set(parts) <= set(PARTS):
            raise MessageError(f"site {sender!r} describes a column {name!r} that cannot exist", sender)
        if not all(0 <= share <= 100 and len(word) <= 200 for word, share in shares.items()):
            raise MessageError(f"site {sender!r} describes categories of {name!r} that cannot exist", sender)


def _joined(name: str, one: ToldColumn, other: ToldColumn) -> ToldColumn:
    kind = joined_kind(name, (one.kind, f"site {one.site!r}"), (other.kind, f"site {other.site!r}"))
    first = min((told for told in (one, other) if told.kind == kind), key=lambda told: told.site, default=one)
    words = one.shares.keys() | other.shares.keys()
    return ToldColumn(
        kind,
        first.site,
        one.missing or other.missing,
        {word: max(one.shares.get(word, 0), other.shares.get(word, 0)) for word in sorted(words)},
        [part for part in PARTS if part in one.parts or part in other.parts],
    )


def _refuse_unusable(told: Mapping[str, ToldColumn], min_rows: int) -> None:
    """Refuse columns that nothing can be learnt from, all of them at once."""
    reasons = []
    for name, column in told.items():
        if column.kind == "empty":
            reasons.append(f"column {name!r} has no value in any row: drop it")
        elif column.kind == "category" and not column.shares:
            reasons.append(
                f"column {name!r} has words, none of them in at least min_rows={min_rows} rows of a site, like a "
                "column of names or identifiers: drop it, or turn it into numbers or fewer categories. If these are "
                f"numbers written as text: table[{name!r}] = pd.to_numeric(table[{name!r}])"
            )
    if reasons:
        raise DataError("; ".join(reasons))


def _column(name: str, told: ToldColumn, middle: Array) -> Column:
    weight, fill, spread = (float(value) for value in middle)
    fill, spread = (fill / weight, spread / weight) if weight else (0.0, 0.0)
    most = sorted(told.shares, key=lambda word: (-told.shares[word], word))[:MOST_CATEGORIES]
    return Column(
        name=name,
        kind=told.kind,  # type: ignore[arg-type]
        fill=fill,
        spread=spread if spread > 0 else 1.0,
        missing=told.missing,
        categories=tuple(sorted(most)),
        parts=tuple(told.parts) or (("year",) if told.kind == "datetime" else ()),
    )
