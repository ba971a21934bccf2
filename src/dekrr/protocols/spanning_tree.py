"""Sums over all sites: partial sums go up the spanning tree of the roll call. The total, or a result, comes down."""

import hashlib
from collections.abc import Callable

import numpy as np

from ..errors import MessageError
from ..messages import Masked, Total, expect
from ..types import Array
from .masking import Masks
from .roster import Roster
from .site import Procedure, Site


def tree_sum(
    site: Site, roster: Roster, values: Array, masks: Masks | None = None, largest: Array | float = 1.0
) -> Procedure[Array]:
    """Return the exact sum of all sites' vectors, after 2 height exchanges over the spanning tree.

    Partial sums go up, those of the deepest sites first. The total comes down. Every edge of the tree carries one
    vector each way, whatever the number of sites.

    Under masks a partial sum tells nothing. A site shares masks with its neighbours and with their neighbours. The
    masks of two sites cancel where the partial sums of both have met. All have met at the root alone. So a parent sees
    a child's sum only where no third site shares masks with a site behind that child, as in a network of two sites.

    Parameters
    ----------
    site : Site
    roster : Roster
    values : ndarray of shape (n,)
    masks : Masks, optional
    largest : float or ndarray of shape (n,), default=1.0
        A public bound on every site's values. Masked sums are right to about 1e-18 of it, times the number of sites.
    """
    return (yield from tree_result(site, roster, values, lambda total: total, len(values), masks, largest))


def tree_result(
    site: Site,
    roster: Roster,
    values: Array,
    compute: Callable[[Array], Array],
    n_results: int,
    masks: Masks | None = None,
    largest: Array | float = 1.0,
) -> Procedure[Array]:
    """Return what the root of the tree computes of the sum of all sites' vectors; the sum itself stays at the root.

    Parameters
    ----------
    site : Site
    roster : Roster
    values : ndarray of shape (n,)
    compute : callable
        Takes the sum, and returns a vector of `n_results` numbers. The root alone calls it.
    n_results : int
    masks : Masks, optional
    largest : float or ndarray of shape (n,), default=1.0
        As in `tree_sum`.
    """
    if masks is None:
        partial, children = yield from _climb(site, roster, values, Total, "values")
    else:
        words = masks.hide_over_tree(values / largest, roster.n_sites)
        partial, children = yield from _climb(site, roster, words, Masked, "words")
        if roster.parent is None:
            partial = largest * masks.reveal_over_tree(partial, roster.n_sites)
    result = compute(partial) if roster.parent is None else partial
    for step in range(roster.height):
        inbox = yield dict.fromkeys(children, Total(result)) if step == roster.depth else {}
        due = {roster.parent: (n_results,)} if roster.parent and step == roster.depth - 1 else {}
        for message in expect(inbox, Total, values=due).values():
            result = message.values
    if masks is not None:  # who heard another result shares no masks any more
        masks.bind(hashlib.sha256(np.asarray(result, dtype=np.float64).tobytes()).digest())
    return result


def _climb(
    site: Site, roster: Roster, own: Array, kind: type[Total] | type[Masked], field: str
) -> Procedure[tuple[Array, list[str]]]:
    """Send the sum over this site's branch to its parent; return that sum, and the site's children in the tree."""
    total = own
    children: list[str] = []
    for step in range(roster.height):
        my_turn = roster.parent is not None and step == roster.height - roster.depth
        inbox = yield {roster.parent: kind(total)} if my_turn and roster.parent else {}
        for child, message in expect(inbox, kind, **{field: dict.fromkeys(inbox, own.shape)}).items():
            if child == roster.parent or step != roster.height - roster.depth - 1:
                raise MessageError(f"site {child!r} sent a partial sum out of turn", child)
            children.append(child)
            total = total + getattr(message, field)
    return total, children
