"""Which rank has which site: a partition of the graph with few edges between its parts (METIS)."""

from collections import deque
from collections.abc import Sequence

import numpy as np

from ..errors import NetworkError, TopologyError
from .base import Neighbors


def place(neighbors: Neighbors, n_ranks: int) -> np.ndarray:
    """Return the rank of each site, in the order of `neighbors`.

    METIS divides the graph. A site weighs as much as it has maps to sum over: its own and one for each neighbour. The
    rank with the first site is rank 0, and so on.

    Parameters
    ----------
    neighbors : mapping of site to its neighbours
    n_ranks : int

    Returns
    -------
    ndarray of shape (n_sites,)

    Examples
    --------
    >>> place({"a": ["b"], "b": ["a", "c"], "c": ["b", "d"], "d": ["c"]}, 2).tolist()
    [0, 0, 1, 1]
    """
    n_sites = len(neighbors)
    if n_ranks > n_sites:
        raise NetworkError(
            f"{n_ranks} ranks for {n_sites} site{'s' * (n_sites != 1)}: every rank needs a site; start fewer ranks"
        )
    if n_ranks == 1:
        return np.zeros(n_sites, dtype=np.intp)
    places = {name: i for i, name in enumerate(neighbors)}
    try:
        adjacency = [sorted(places[p] for p in around) for around in map(neighbors.__getitem__, neighbors)]
    except KeyError as error:
        raise TopologyError(f"site {error} is a neighbour, but not a site") from None
    ranks = _divided(adjacency, n_ranks)
    if len(np.unique(ranks)) < n_ranks:  # METIS may leave a part of a very small graph empty
        ranks = _in_a_row(adjacency, n_ranks)
    _, first = np.unique(ranks, return_index=True)
    numbers = np.empty(n_ranks, dtype=np.intp)
    numbers[ranks[np.sort(first)]] = np.arange(n_ranks)
    return np.asarray(numbers[ranks])


def _divided(adjacency: Sequence[Sequence[int]], n_ranks: int) -> np.ndarray:
    try:
        import pymetis
    except ImportError:
        raise ImportError("sites on several ranks need pymetis: pip install 'dekrr[mpi]'", name="pymetis") from None
    starts = np.cumsum([0, *map(len, adjacency)])
    ends = np.fromiter((p for around in adjacency for p in around), np.intp, count=int(starts[-1]))
    weights = [1 + len(around) for around in adjacency]
    graph = pymetis.CSRAdjacency(starts, ends)
    _, ranks = pymetis.part_graph(n_ranks, graph, vweights=weights)
    return np.asarray(ranks, dtype=np.intp)


def _in_a_row(adjacency: Sequence[Sequence[int]], n_ranks: int) -> np.ndarray:
    """Return parts of nearly equal size, of sites in breadth-first order."""
    order: dict[int, None] = {}
    for start in range(len(adjacency)):
        waiting = deque([start])
        while waiting:
            site = waiting.popleft()
            if site not in order:
                order[site] = None
                waiting.extend(adjacency[site])
    ranks = np.empty(len(adjacency), dtype=np.intp)
    ranks[list(order)] = np.arange(len(adjacency)) * n_ranks // len(adjacency)
    return ranks
