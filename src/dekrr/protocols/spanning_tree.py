"""Sums over all sites: partial sums go up the spanning tree of the roll call, and the total comes down."""

from ..errors import MessageError
from ..messages import Total, expect
from ..types import Array
from .roster import Roster
from .site import Procedure, Site


def tree_sum(site: Site, roster: Roster, values: Array) -> Procedure[Array]:
    """Return the exact sum of all sites' vectors, after 2 height exchanges over the spanning tree.

    Partial sums go up, those of the deepest sites first. The total comes down. Every edge of the tree carries one
    vector each way, whatever the number of sites.
    """
    total = values
    children: list[str] = []
    for step in range(roster.height):
        my_turn = roster.parent is not None and step == roster.height - roster.depth
        inbox = yield {roster.parent: Total(total)} if my_turn and roster.parent else {}
        for child, message in expect(inbox, Total, values=dict.fromkeys(inbox, values.shape)).items():
            if child == roster.parent or step != roster.height - roster.depth - 1:
                raise MessageError(f"site {child!r} sent a partial sum out of turn", child)
            children.append(child)
            total = total + message.values
    for step in range(roster.height):
        inbox = yield dict.fromkeys(children, Total(total)) if step == roster.depth else {}
        due = {roster.parent: values.shape} if roster.parent and step == roster.depth - 1 else {}
        for message in expect(inbox, Total, values=due).values():
            total = message.values
    return total
