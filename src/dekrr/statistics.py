"""The sums over a site's rows that replace the rows (docs/architecture.md, "Only sums leave a site").

Z_ij has the features of map i on the rows of site j: one row of the array per row of data. Site j computes Z_jj'Z_jj
and Z_jj'y_j for its own map. For each neighbour p, whose map it knows, it computes B_pj = Z_pj'Z_pj and
C_pj = Z_pj'Z_jj. Rows are read in blocks, from memory or from disk, and one pass is enough. A row of weight w counts w
times in every sum: its features and responses are multiplied by the square root of w.
"""

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, NamedTuple, Protocol, Self

import numpy as np

from .features import FeatureMap, loops_for
from .types import Array, Block

_BYTES_PER_BLOCK = 1 << 22  # the features of one block; the blocks of two threads fit into a third-level cache
_NOTHING = np.empty(0)
_of_thread = threading.local()


class RowBlocks(Protocol):
    """The part of `dekrr.tables.rows.Rows` that sums need."""

    @property
    def expansion(self) -> float:
        """The number of rows of the site that each of these rows stands for; above 1 for a sample."""

    def blocks(self, size: int) -> Iterable[Block]:
        """Pass over all rows in blocks of at most `size` rows. There is at least one block; it may be empty."""


class Additive:
    """Sums over rows, field by field."""

    def plus(self, more: Self) -> Self:
        """Return the sums over these rows and some more."""
        return type(self)(*(one + other for one, other in zip(vars(self).values(), vars(more).values(), strict=True)))

    def times(self, factor: float) -> Self:
        """Return the sums where every row counts `factor` times."""
        return type(self)(*(factor * one for one in vars(self).values()))


@dataclass(frozen=True)
class OwnSums(Additive):
    """A site's sums over its own rows and its own features."""

    gram: Array  # shape (n_features, n_features): Z_jj'Z_jj
    moment: Array  # shape (n_features,) or (n_features, n_outputs): Z_jj'y_j
    response_energy: float  # y_j'y_j, summed over outputs


@dataclass(frozen=True)
class CrossSums(Additive):
    """Sums over the rows of one site, the owner, and the features of a neighbour."""

    # shape (n_features * (n_features + 1) / 2,): the upper triangle of B: the neighbour's features times themselves
    gram: Array
    cross: Array  # shape (n_features, n_features_of_owner): C: the neighbour's features times the owner's features

    def kept(self) -> "CrossSums":
        """Return the part that the owner itself needs: all but B."""
        return CrossSums(np.empty(0), self.cross)


@lru_cache(maxsize=16)
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
    """Return the symmetric matrix whose upper triangle is `packed`."""
    return packed.take(_upper(size)[1])


def weigh(weights: Array, features: Array) -> Array:
    """Return weights'features of rows (n_rows, n_features); sums are in double precision even if the features are not.

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
        features *= np.sqrt(block.weight)[:, None]
    return features


def _scratch(shape: tuple[int, int], use: str = "features") -> Array:
    """Return an array of this thread for one use, with anything in it.

    Fresh memory costs up to a quarter of a small fit. It also costs where freed memory goes back at once, as in Dask
    workers.
    """
    size = shape[0] * shape[1]
    if getattr(_of_thread, use, _NOTHING).size < size:
        setattr(_of_thread, use, np.empty(size))
    array: Array = getattr(_of_thread, use, _NOTHING)[:size].reshape(shape)
    return array


def _product(features: Array, one: slice, other: slice) -> Array:
    """Return the products of two ranges of columns, in memory that the next product overwrites."""
    left, right = features[:, one], features[:, other]
    return np.matmul(left.T, right, out=_scratch((left.shape[1], right.shape[1]), "products"))


def weighted_responses(block: Block) -> Array:
    """Return the responses of a block; each row is multiplied by the square root of its weight."""
    return block.y if block.weight is None else (block.y.T * np.sqrt(block.weight)).T


def accumulate(
    rows: RowBlocks,
    own: FeatureMap,
    others: Mapping[str, FeatureMap],
) -> tuple[OwnSums, dict[str, CrossSums]]:
    """Return a site's own sums and the sums for each neighbour, from one pass over its rows."""
    spread = getattr(rows, "summed", None)  # rows on several machines
    if spread is not None:
        own_sums, cross_sums = spread(partial(_accumulate, own=own, others=others), _plus)
        return own_sums, cross_sums
    return _accumulate(rows, own, others)


def _plus(one: tuple[OwnSums, dict[str, CrossSums]], other: tuple[OwnSums, dict[str, CrossSums]]) -> Any:
    return one[0].plus(other[0]), {name: sums.plus(other[1][name]) for name, sums in one[1].items()}


def _accumulate(
    rows: RowBlocks, own: FeatureMap, others: Mapping[str, FeatureMap]
) -> tuple[OwnSums, dict[str, CrossSums]]:
    maps = [own, *others.values()]
    ends = np.cumsum([feature_map.n_features for feature_map in maps])
    slices = [slice(end - m.n_features, end) for end, m in zip(ends, maps, strict=True)]
    joint = FeatureMap.joined(maps)
    with_own = np.zeros((own.n_features, joint.n_features))
    grams = [np.zeros((m.n_features, m.n_features)) for m in maps[1:]]
    moment = np.zeros(())  # the first block's moment sets the shape
    response_energy = 0.0
    for block in rows.blocks(rows_per_block(8 * joint.n_features)):
        features = weighted_features(joint, block, _scratch((block.n_rows, joint.n_features)))
        y = weighted_responses(block)
        moment = moment + (y.T @ features[:, slices[0]]).T
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


@dataclass(frozen=True)
class Weights:
    """The numbers that weigh the terms of the objective at one site."""

    # N: the number of rows of all sites that are in the sums, or the sum of their weights where they have some
    n_rows: float
    n_sites: int  # J
    alpha: float  # the regularisation (the paper's lambda)
    own_penalty: float  # c~_j
    penalties: Mapping[str, float]  # c~_p of each neighbour


def penalty(consensus: float, n_rows: float, n_neighbors: int) -> float:
    """Return c~_j = consensus / (N |N_j|), and 0 for a site without neighbours."""
    return consensus / (n_rows * n_neighbors) if n_neighbors else 0.0


@dataclass(frozen=True)
class BlockRow:
    """H_jj, P_jp, d_j of one site, and y_j'y_j / N."""

    neighbors: tuple[str, ...]  # the neighbours, in the order of their blocks in `matrix`
    matrix: Array  # shape (D_j, D_j + sum of D_p): H_jj, and beside it -P_jp of all neighbours p
    right_side: Array  # shape (D_j,) or (D_j, n_outputs): d_j
    response_energy: float  # y_j'y_j / N, summed over outputs

    @property
    def hessian(self) -> Array:
        """H_jj, shape (D_j, D_j)."""
        return self.matrix[:, : len(self.matrix)]

    @property
    def couplings(self) -> Array:
        """P_jp of all neighbours, side by side, shape (D_j, sum of D_p)."""
        return -self.matrix[:, len(self.matrix) :]

    def residual(self, coefficients: Array, of_neighbors: Mapping[str, Array]) -> Array:
        """Return d_j - H_jj theta_j + sum_p P_jp theta_p, of the shape of d_j."""
        known = np.concatenate([coefficients, *map(of_neighbors.__getitem__, self.neighbors)])
        residual: Array = self.right_side - self.matrix.dot(known)
        return residual

    def unseen(self, behind: Array) -> float:
        """Return the norm of P_jp'behind over all neighbours p.

        `behind` is the error in the neighbours' copies of theta_j. The result is the error that this causes in the
        residuals that the neighbours compute.
        """
        return float(np.linalg.norm(behind.T @ self.couplings))

    def objective_share(self, coefficients: Array, residual: Array) -> float:
        """Return this site's share of L: y_j'y_j / N - theta_j'(d_j + residual_j). All shares sum to L."""
        return self.response_energy - float(np.vdot(coefficients, self.right_side + residual))


def assemble(
    own: OwnSums, received: Mapping[str, CrossSums], sent: Mapping[str, CrossSums], weights: Weights
) -> BlockRow:
    """Return the block row of site j (the paper's equation 16, without the self penalty).

    `received` has B_jp and C_jp over p's rows, `sent` C_pj over this site's rows.
    """
    n_features = len(own.moment)
    hessian = (1 / weights.n_rows + len(received) * weights.own_penalty) * own.gram
    hessian.flat[:: n_features + 1] += weights.alpha / weights.n_sites
    if received:
        hessian += unpack_symmetric(pull(received, weights), n_features)
    blocks = [hessian]
    for p, sums in received.items():
        coupling = -weights.penalties[p] * sums.cross
        coupling -= weights.own_penalty * sent[p].cross.T
        blocks.append(coupling)
    return BlockRow(
        neighbors=tuple(received),
        matrix=np.hstack(blocks),
        right_side=own.moment / weights.n_rows,
        response_energy=own.response_energy / weights.n_rows,
    )


def pull(received: Mapping[str, CrossSums], weights: Weights) -> Array:
    """Return the upper triangle of sum_p c~_p B_jp: the neighbours' rows in the penalty on this site's features."""
    return np.asarray(sum(weights.penalties[p] * sums.gram for p, sums in received.items()))


class Ridge(NamedTuple):
    """A ridge regression."""

    coefficients: Array  # shape (n_features,) or (n_features, n_outputs)
    ridge: float  # what was added to the diagonal of Z'Z / n_rows
    error: float  # the predicted squared error per row, summed over outputs


def path_of(
    sums: OwnSums, n_rows: float, ridges: Sequence[float], n_unweighted: float | None = None, n_others: float = 0.0
) -> list[Ridge]:
    """Return the regression of every ridge (in units of Z'Z / n_rows), with its generalised cross-validation error.

    The error is the mean squared residual divided by (1 - t / n)^2, where n is the number of rows and t is the trace of
    the hat matrix. Where `n_rows` is the sum of their weights, n is `n_unweighted`. The degrees of freedom of what was
    eliminated from the sums, `n_others`, count in t.
    """
    values, vectors = np.linalg.eigh(sums.gram / n_rows)
    values = np.maximum(values, 0.0)
    projected = (vectors.T @ sums.moment / n_rows).reshape(len(values), -1)
    shifted = values + np.array(ridges, dtype=float)[:, None]
    solved = projected / shifted[:, :, None]
    in_rows = solved.reshape(len(solved), 1, -1)
    residual = sums.response_energy / n_rows - 2 * (in_rows @ projected.reshape(-1, 1))
    residual = (residual + in_rows @ (values[:, None] * solved).reshape(len(solved), -1, 1)).ravel()
    free = 1 - (np.sum(values / shifted, axis=1) + n_others) / (n_unweighted or n_rows)
    errors = [
        max(one, 0.0) / max(other, 1e-3) ** 2 for one, other in zip(residual.tolist(), free.tolist(), strict=True)
    ]
    coefficients = (vectors @ solved).reshape(len(solved), *sums.moment.shape)
    return [Ridge(*one) for one in zip(coefficients, map(float, ridges), errors, strict=True)]


def path_with_intercept(
    sums: OwnSums,
    place: int,
    n_rows: float,
    ridges: Sequence[float],
    n_unweighted: float | None = None,
    n_others: float = 0.0,
) -> list[Ridge]:
    """Return what `path_of` does where one feature, the constant at `place`, has no ridge: it is eliminated first."""
    square, others = float(sums.gram[place, place]), np.delete(np.arange(len(sums.gram)), place)
    if not square > 1e-12 * np.trace(sums.gram):
        return path_of(sums, n_rows, ridges, n_unweighted, n_others)
    s, t = sums.gram[place, others] / square, np.asarray(sums.moment[place] / square)
    gram = sums.gram[np.ix_(others, others)] - square * np.outer(s, s)
    moment = sums.moment[others] - square * np.multiply.outer(s, t)
    energy = max(sums.response_energy - square * float(np.vdot(t, t)), 0.0)
    fits = path_of(OwnSums(gram, moment, energy), n_rows, ridges, n_unweighted, n_others + 1)
    return [
        fit._replace(coefficients=np.insert(fit.coefficients, place, t - s @ fit.coefficients, axis=0)) for fit in fits
    ]


def squared_gradients(rows: RowBlocks, feature_map: FeatureMap, coefficients: Array) -> Array:
    """Return the diagonal of G: for each column, the sum over rows and outputs of the squared derivative.

    A row of weight w counts w times.
    """
    sines = FeatureMap(feature_map.frequencies, feature_map.phases - np.pi / 2, feature_map.amplitudes)
    by_output = coefficients.reshape(feature_map.n_features, -1)
    slopes = [np.ascontiguousarray((feature_map.frequencies * one).T) for one in by_output.T]
    total = np.zeros(feature_map.n_columns)
    for block in rows.blocks(rows_per_block(8 * feature_map.n_features)):
        features = sines(block.X)
        for slope in slopes:
            gradients = features @ slope
            weights = np.ones(block.n_rows) if block.weight is None else block.weight
            total += weights @ gradients**2
    return rows.expansion * total


def largest_squared_gradients(feature_map: FeatureMap, coefficients: Array) -> Array:
    """Return a bound on the squared derivatives at any row, from the model alone, shape (n_columns,)."""
    sizes = np.abs(feature_map.frequencies * feature_map.amplitudes) @ np.abs(
        coefficients.reshape(feature_map.n_features, -1)
    )
    return np.asarray((sizes**2).sum(axis=1))
