"""What a site knows of the network once its sites are counted."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ..messages import Tally


@dataclass(frozen=True)
class Roster:
    """What a roll call tells a site about the network.

    Parameters
    ----------
    rows : mapping of site to int
        How many rows each site has (N_j); in a large network of this site and its neighbours alone. A row counts once
        here, whatever its weight is.
    whole : Tally
        What was counted over all sites.
    diameter : int
        The largest number of hops between two sites.
    root : str
        The root of the spanning tree: the site whose name sorts first.
    depth : int
        Hops from the root to this site.
    parent : str or None
        This site's neighbour on the way to the root.
    weights : mapping of site to float, optional
        Where rows have weights, the sum of them at this site and at each neighbour.
    total_weight : float, optional
        Where rows have weights, the sum of them over all sites.
    """

    rows: Mapping[str, int]
    whole: Tally
    diameter: int
    root: str
    depth: int
    parent: str | None
    weights: Mapping[str, float] | None = None
    total_weight: float | None = None

    def weight_of(self, site: str) -> float:
        """Return the sum of the weights at this site or at a neighbour: the number of rows where they have none."""
        return float(self.rows[site]) if self.weights is None else self.weights[site]

    @property
    def n_counted(self) -> float:
        """What the rows of all sites count together: N of the objective, their number where they have no weights."""
        return float(self.n_rows) if self.total_weight is None else self.total_weight

    @property
    def height(self) -> int:
        """The largest number of hops from the root to a site."""
        return self.whole.height

    @property
    def names_all(self) -> bool:
        """Whether every site is in `rows`."""
        return len(self.rows) == self.n_sites

    @property
    def n_rows(self) -> int:
        """How many rows all sites have together (N)."""
        return self.whole.rows

    @property
    def n_sites(self) -> int:
        """How many sites there are (J)."""
        return self.whole.sites


def tally_of(name: str, n_rows: int) -> Tally:
    """Return the tally of one site."""
    return Tally(1, n_rows, math.sqrt(n_rows), (n_rows, name), (n_rows, name), 0)


def joined(parts: Iterable[Tally]) -> Tally:
    """Return the tally of several parts of a tree; its height is that of the highest."""
    tallies = list(parts)
    return Tally(
        sites=sum(tally.sites for tally in tallies),
        rows=sum(tally.rows for tally in tallies),
        roots=sum(tally.roots for tally in tallies),
        fewest=min(tally.fewest for tally in tallies),
        most=max(tally.most for tally in tallies),
        height=max(tally.height for tally in tallies),
    )
