"""Hops between sites: the diameter of a graph, without networkx, which a node does not load."""

import numpy as np

_WORDS = 8  # of 64 searches each, side by side: a site's part of a search stays in one line of the cache
_COLUMNS = 32  # neighbours that are taken one by one
_MOST_WORK = 3e10  # words, beyond which the diameter is bounded


def diameter_at_most(ends: np.ndarray, n_sites: int, most_work: float = _MOST_WORK) -> int | None:
    """Return the diameter of a graph, or an upper bound if the graph is too large; None if it is not connected.

    Parameters
    ----------
    ends : ndarray of int, shape (n_edges, 2)
        The two sites of each edge.
    most_work : float, optional
        The number of operations up to which the diameter is exact.

    Examples
    --------
    >>> path = np.array([[0, 1], [1, 2], [2, 3], [3, 4]])
    >>> diameter_at_most(path, 5), diameter_at_most(path, 5, most_work=0), diameter_at_most(path, 6)
    (4, 4, None)
    """
    if n_sites == 1:
        return 0
    starts, around = _neighbors(ends, n_sites)
    if len(starts) != n_sites:
        return None
    bounds = _bounds(starts, around)
    if bounds is None:
        return None
    farthest, bound = bounds
    if farthest == bound or len(around) * (n_sites / 64) * bound > most_work:
        return bound
    return _exact(starts, around)


def _neighbors(ends: np.ndarray, n_sites: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the neighbours of all sites, one after another, and where those of each site start."""
    both = np.vstack([ends, ends[:, ::-1]])
    both = np.unique(both[:, 0] * n_sites + both[:, 1])
    _, starts = np.unique(both // n_sites, return_index=True)
    return starts, both % n_sites


def _hops_from(source: int, starts: np.ndarray, around: np.ndarray) -> np.ndarray:
    """Return the number of hops from a source to each site; -1 where there is no way."""
    hops = np.full(len(starts), -1)
    front = np.zeros(len(starts), dtype=bool)
    hops[source], front[source], level = 0, True, 0
    while front.any():
        level += 1
        front = np.logical_or.reduceat(front[around], starts) & (hops < 0)
        hops[front] = level
    return hops


def _bounds(starts: np.ndarray, around: np.ndarray) -> tuple[int, int] | None:
    """Return a lower and an upper bound of the diameter by four searches; None where not all sites are joined.

    The first two searches find a long shortest path. A site in its middle has a small eccentricity.
    """
    one = _hops_from(0, starts, around)
    if one.min() < 0:
        return None
    two = _hops_from(int(one.argmax()), starts, around)
    far = int(two.argmax())
    three = _hops_from(far, starts, around)
    longest = int(two.max())
    on_a_path = two + three == longest
    middle = int(np.flatnonzero(on_a_path & (two == longest // 2))[0])
    four = _hops_from(middle, starts, around)
    largest = [int(hops.max()) for hops in (one, two, three, four)]
    return max(largest), min(2 * min(largest), len(starts) - 1)


def _exact(starts: np.ndarray, around: np.ndarray) -> int:
    n_sites, farthest = len(starts), 0
    spread = _Spread(starts, around)
    for first in range(0, n_sites, 64 * _WORDS):
        sources = np.arange(first, min(first + 64 * _WORDS, n_sites))
        place = sources - first
        front = np.zeros((n_sites, _WORDS), dtype=np.uint64)
        front[spread.place[sources], place // 64] = np.uint64(1) << (place % 64).astype(np.uint64)
        unseen, level = ~front, 0
        while True:
            front = spread(front) & unseen
            if not front.any():
                break
            unseen ^= front
            level += 1
        farthest = max(farthest, level)
    return farthest


class _Spread:
    """One hop of all searches: each site gets the bits of all its neighbours.

    Sites are sorted by their number of neighbours. The i-th neighbours of all sites that have so many are taken at
    once. What a hub has beyond `_COLUMNS` neighbours is taken together.

    Attributes
    ----------
    place : ndarray of int, shape (n_sites,)
        Where each site is after sorting.
    """

    def __init__(self, starts: np.ndarray, around: np.ndarray) -> None:
        degrees = np.diff(np.append(starts, len(around)))
        order = np.argsort(-degrees, kind="stable")
        self.place = np.empty_like(order)
        self.place[order] = np.arange(len(order))
        around, starts, degrees = self.place[around], starts[order], degrees[order]
        self._columns = [around[starts[degrees > i] + i] for i in range(min(degrees[0], _COLUMNS))]
        hubs = np.flatnonzero(degrees > _COLUMNS)
        rest = [around[starts[hub] + _COLUMNS : starts[hub] + degrees[hub]] for hub in hubs]
        self._rest = np.concatenate(rest) if rest else np.empty(0, dtype=np.intp)
        self._starts = np.cumsum([0, *map(len, rest)])[:-1]

    def __call__(self, front: np.ndarray) -> np.ndarray:
        first, *others = self._columns
        spread = front.take(first, axis=0)
        for column in others:
            spread[: len(column)] |= front.take(column, axis=0)
        if len(self._rest):
            spread[: len(self._starts)] |= np.bitwise_or.reduceat(front[self._rest], self._starts, axis=0)
        return np.asarray(spread)
