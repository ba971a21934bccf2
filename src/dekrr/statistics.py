"""The sums over a site's rows that replace the rows (docs/architecture.md, "Only sums leave a site").

Z_ij has the features of map i on the rows of site j: one row of the array per row of data. Site j computes Z_jj'Z_jj
and Z_jj'y_j for its own map. For each neighbour p, whose map it knows, it computes B_pj = Z_pj'Z_pj and
C_pj = Z_pj'Z_jj. Rows are read in blocks, from memory or from disk, and one pass is enough. A row of weight w counts w
times in every sum: its features and responses are multiplied by the square root of w.
"""

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import DTypeLike

from .cosines import loops_for
from .features import FeatureMap
from .types import Array, Block

PRECISIONS = ("double", "mixed")
_BYTES_PER_BLOCK = 1 << 22  # the features of one block; the blocks of two threads fit into a third-level cache
_NOTHING = np.empty(0, dtype=np.uint8)
_of_thread = threading.local()


class RowBlocks(Protocol):
    """The part of `dekrr.rows.Rows` that sums need."""

    @property
    def expansion(self) -> float:
        """The number of rows of the site that each of these rows stands for; above 1 for a sample."""

    def blocks(self, size: int) -> Iterable[Block]:
        """Pass over all rows in blocks of at most `size` rows. There is at least one block; it may be empty."""


@dataclass(frozen=True)
class OwnSums:
    """A site's sums over its own rows and its own features.

    Parameters
    ----------
    gram : ndarray of shape (n_features, n_features)
        Z_jj'Z_jj.
    moment : ndarray of shape (n_features,) or (n_features, n_outputs)
        Z_jj'y_j.
    response_energy : float
        y_j'y_j, summed over outputs.
    """

    gram: Array
    moment: Array
    response_energy: float

    def plus(self, more: "OwnSums") -> "OwnSums":
        """Return the sums over these rows and some more."""
        return OwnSums(self.gram + more.gram, self.moment + more.moment, self.response_energy + more.response_energy)

    def times(self, factor: float) -> "OwnSums":
        """Return the sums where every row counts `factor` times."""
        return OwnSums(factor * self.gram, factor * self.moment, factor * self.response_energy)


@dataclass(frozen=True)
class CrossSums:
    """Sums over the rows of one site, the owner, and the features of a neighbour.

    Parameters
    ----------
    gram : ndarray of shape (n_features * (n_features + 1) / 2,)
        The upper triangle of B: the neighbour's features times themselves.
    cross : ndarray of shape (n_features, n_features_of_owner)
        C: the neighbour's features times the owner's features.
    """

    gram: Array
    cross: Array

    def kept(self) -> "CrossSums":
        """Return the part that the owner itself needs: all but B."""
        return CrossSums(np.empty(0), self.cross)

    def plus(self, more: "CrossSums") -> "CrossSums":
        """Return the sums over these rows and some more."""
        return CrossSums(self.gram + more.gram, self.cross + more.cross)

    def times(self, factor: float) -> "CrossSums":
        """Return the sums where every row counts `factor` times."""
        return CrossSums(factor * self.gram, factor * self.cross)


@lru_cache(maxsize=4)
def _upper(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the flat index of each entry of the upper triangle, and for each matrix entry its index among them."""
    rows, columns = np.triu_indices(size)
    places = np.empty((size, size), dtype=np.intp)
    places[rows, columns] = places[columns, rows] = np.arange(rows.size)
    return np.ravel_multi_index((rows, columns), (size, size)), places


def pack_symmetric(matrix: Array) -> Array:
    """Return the upper triangle of a matrix (D, D) as a vector of D (D + 1) / 2 numbers."""
    return matrix.take(_upper(len(matrix))[0])


def unpack_symmetric(packed: Array, size: int) -> Array:
    """Return the symmetric matrix whose upper triangle is `packed`.

    Examples
    --------
    >>> unpack_symmetric(np.array([1.0, 2.0, 3.0]), 2)
    array([[1., 2.],
           [2., 3.]])
    """
    return packed.take(_upper(size)[1])


def weigh(weights: Array, features: Array) -> Array:
    """Return weights'features; products and sums are in double precision even if the features are not.

    Parameters
    ----------
    weights : ndarray of shape (n_rows,)
    features : ndarray of float64 or float32, shape (n_rows, n_features)

    Examples
    --------
    >>> weigh(np.array([1.0, 1e-9]), np.ones((2, 1), dtype=np.float32)) - 1 > 0
    array([ True])
    """
    loops = loops_for(features.size) if features.dtype == np.float32 else None
    if loops is None:
        return np.asarray(np.matmul(weights, features, dtype=np.float64))
    return np.asarray(loops.weigh(weights.astype(np.float64), features))


def rows_per_block(bytes_per_row: int) -> int:
    """Return the number of rows in a block: few enough for the cache, enough for a fast matrix product."""
    return max(256, _BYTES_PER_BLOCK // bytes_per_row)


def weighted_features(feature_map: FeatureMap, block: Block, out: Array | None = None) -> Array:
    """Return the features of a block; each row is multiplied by the square root of its weight.

    The shape is (n_rows, n_features).
    """
    features = feature_map(block.X, out=out)
    if block.weight is not None:
        features *= np.sqrt(block.weight)[:, None].astype(features.dtype)
    return features


def _scratch(shape: tuple[int, int], dtype: DTypeLike, use: str = "features") -> Array:
    """Return an array of this thread for one use, with anything in it.

    Fresh memory costs up to a quarter of a small fit. It also costs where freed memory goes back at once, as in Dask
    workers.
    """
    n_bytes = np.dtype(dtype).itemsize * shape[0] * shape[1]
    if getattr(_of_thread, use, _NOTHING).size < n_bytes:
        setattr(_of_thread, use, np.empty(n_bytes, dtype=np.uint8))
    array: Array = np.ndarray(shape, dtype, getattr(_of_thread, use, _NOTHING))
    return array


def _product(features: Array, one: slice, other: slice) -> Array:
    """Return the products of two ranges of columns, in memory that the next product overwrites."""
    left, right = features[:, one], features[:, other]
    return np.matmul(left.T, right, out=_scratch((left.shape[1], right.shape[1]), features.dtype, "products"))


def weighted_responses(block: Block) -> Array:
    """Return the responses of a block; each row is multiplied by the square root of its weight."""
    return block.y if block.weight is None else (block.y.T * np.sqrt(block.weight)).T


def accumulate(
    rows: RowBlocks,
    own: FeatureMap,
    others: Mapping[str, FeatureMap],
    precision: str = "double",
) -> tuple[OwnSums, dict[str, CrossSums]]:
    """Return a site's own sums and the sums for each neighbour, from one pass over its rows.

    Parameters
    ----------
    rows : RowBlocks
        For instance `dekrr.rows.Rows`.
    own : FeatureMap
    others : mapping of neighbour to FeatureMap
    precision : {"double", "mixed"}, default="double"
        "mixed" computes the features and the products of a block of rows in single precision, and adds the blocks in
        double precision. It is about twice as fast; its error is below 1e-5 of a sum's largest entry.
    """
    spread = getattr(rows, "summed", None)  # rows on several machines
    if spread is not None:
        own_sums, cross_sums = spread(partial(_accumulate, own=own, others=others, precision=precision), _plus)
        return own_sums, cross_sums
    return _accumulate(rows, own, others, precision)


def _plus(one: tuple[OwnSums, dict[str, CrossSums]], other: tuple[OwnSums, dict[str, CrossSums]]) -> Any:
    return one[0].plus(other[0]), {name: sums.plus(other[1][name]) for name, sums in one[1].items()}


def _accumulate(
    rows: RowBlocks, own: FeatureMap, others: Mapping[str, FeatureMap], precision: str
) -> tuple[OwnSums, dict[str, CrossSums]]:
    maps = [own, *others.values()]
    ends = np.cumsum([feature_map.n_features for feature_map in maps])
    slices = [slice(end - m.n_features, end) for end, m in zip(ends, maps, strict=True)]
    joint = FeatureMap(
        np.hstack([m.frequencies for m in maps]),
        np.concatenate([m.phases for m in maps]),
        np.concatenate([m.amplitudes for m in maps]),
    )
    with_own = np.zeros((own.n_features, joint.n_features))
    grams = [np.zeros((m.n_features, m.n_features)) for m in maps[1:]]
    moment = np.zeros(())  # the first block's moment sets the shape
    response_energy = 0.0
    dtype = np.dtype(np.float32 if precision == "mixed" else np.float64)
    for block in rows.blocks(rows_per_block(joint.n_features * dtype.itemsize)):
        features = weighted_features(joint, block, _scratch((block.n_rows, joint.n_features), dtype))
        y = weighted_responses(block)
        moment = moment + (y.T.astype(features.dtype, copy=False) @ features[:, slices[0]]).T
        response_energy += float(np.vdot(y, y))
        with_own += _product(features, slices[0], slice(None))
        for gram, part in zip(grams, slices[1:], strict=True):
            gram += _product(features, part, part)
    own_sums = OwnSums(with_own[:, slices[0]].copy(), moment, response_energy)
    cross = {
        name: CrossSums(pack_symmetric(gram), np.ascontiguousarray(with_own[:, part].T))
        for name, gram, part in zip(others, grams, slices[1:], strict=True)
    }
    if rows.expansion == 1:
        return own_sums, cross
    return own_sums.times(rows.expansion), {name: sums.times(rows.expansion) for name, sums in cross.items()}
