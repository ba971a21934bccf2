"""Attacks on sums: the same attacker against the default exchange.

`views` has what one or several neighbours hear in a whole run. The attacks on it are:

- `rows_in_null_space`: recovery of rows. Where the rows are fewer than the features, the range of the sums contains the
  features of the rows and little else; solve for x as `features.recover_rows` does. `views.fold_blocks` has the sums
  over single folds, which are differences of sums.
- `rows_by_matching`: recovery of all rows at once, by least squares on all their sums.
- `Membership`: membership inference. Is a known row among the rows? The test is the likelihood ratio of a normal model
  for all sums.
- `Membership.guess_column`: attribute inference. One column of a known row is unknown; take the value with the best
  score.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.optimize import minimize
from scipy.spatial import KDTree
from scipy.special import logsumexp

from ...features import FeatureMap
from ...protocols.preparation import ROOM
from ...types import Array
from .recovery import stack
from .views import SumsBlock, View, of_rows

_STEPS = 100_000  # of matching, which its time ends before


def recovered(candidates: Array, truth: Array, tolerance: float, known: Array) -> float:
    """Return the share of true rows that a candidate matches in every column; rows known before do not count."""
    if not len(candidates):
        return 0.0
    return float(np.mean((_nearest(truth, candidates) < tolerance) & (_nearest(truth, known) >= tolerance)))


def _nearest(rows: Array, others: Array) -> Array:
    """Return the distance of each row to its nearest neighbour among `others`, in the maximum norm."""
    if not len(others):
        return np.full(len(rows), np.inf)
    distances, _ = KDTree(others).query(rows, p=np.inf)
    return np.asarray(distances)


class NullSpace:
    """The eigenvectors of a Gram matrix, Z'Z of one map, whose eigenvalues are zero or smallest."""

    def __init__(self, block: SumsBlock) -> None:
        self.feature_map = block.left
        self._values, self._vectors = np.linalg.eigh(block.sums)

    def directions(self, relative: float, least: int = 0) -> Array:
        """Return the eigenvectors whose eigenvalues are below `relative` times the largest, but at least `least`."""
        n_null = max(int((self._values < relative * self._values[-1]).sum()), least)
        return np.asarray(self._vectors[:, :n_null])


def rows_in_null_space(feature_map: FeatureMap, null: Array, begin: Array, steps: int = 50) -> Array:
    """Return, for each start, a point of the clipping box whose features are orthogonal to the null space.

    It minimises |Q'u(x)|^2 over x by Levenberg-Marquardt; u is the map, and Q are the columns of `null`. If these are
    no more than the columns of a row, x is not determined, and no point is returned.
    """
    if null.shape[1] <= begin.shape[1]:
        return np.empty((0, begin.shape[1]))
    frequencies = feature_map.frequencies
    weighted = null * feature_map.amplitudes[:, None]
    diagonal = np.arange(len(frequencies))
    X = begin.copy()
    angles = X @ frequencies + feature_map.phases
    residuals = np.cos(angles) @ weighted
    losses = np.sum(residuals**2, axis=1)
    damping = np.full(len(X), 0.1 * np.mean(frequencies**2) * np.sum(weighted**2))
    lowest = 1e-13 * damping
    for _ in range(steps):
        slopes = -np.sin(angles)
        jacobian = (slopes[:, None, :] * frequencies) @ weighted
        hessian = jacobian @ jacobian.transpose(0, 2, 1)
        hessian[:, diagonal, diagonal] += damping[:, None]
        gradient = (jacobian @ residuals[:, :, None])[:, :, 0]
        moved = np.clip(X - np.linalg.solve(hessian, gradient[:, :, None])[:, :, 0], -ROOM, 1 + ROOM)
        new_angles = moved @ frequencies + feature_map.phases
        new_residuals = np.cos(new_angles) @ weighted
        new_losses = np.sum(new_residuals**2, axis=1)
        better = new_losses < losses
        X[better], angles[better], residuals[better] = moved[better], new_angles[better], new_residuals[better]
        losses[better] = new_losses[better]
        damping = np.clip(damping * np.where(better, 0.2, 4.0), lowest, 1e12)
    return X


def rows_by_matching(
    view: View,
    begin: Array,
    begin_y: Array,
    *,
    seconds: float = 60.0,
    report: Callable[[], object] = lambda: None,
) -> tuple[Array, float]:
    """Return the rows whose sums are closest to the received sums, and the remaining mean relative misfit.

    It minimises the mean over blocks of |Z_left'Z_right - S|^2 / |S|^2 over all rows X in the unit box and all
    responses in [-1, 1] by L-BFGS-B, for so many seconds of CPU time; `report` is called in every step.
    """
    maps = list({id(m): m for b in view.blocks for m in (b.left, b.right) if m is not None}.values())
    joint = stack(*maps)
    ends = np.cumsum([feature_map.n_features for feature_map in maps])
    place = {id(m): slice(end - m.n_features, end) for m, end in zip(maps, ends, strict=True)}
    fold_of = view.fold_of_rows()
    parts = [_Part(b, b.folds[fold_of], place, len(view.blocks)) for b in view.blocks]
    until = time.process_time() + seconds
    size = begin.size

    def misfit(flat: Array) -> tuple[float, Array]:
        X, y = flat[:size].reshape(begin.shape), flat[size:]
        angles = X @ joint.frequencies + joint.phases
        features = np.cos(angles) * joint.amplitudes
        slope, slope_y = np.zeros_like(features), np.zeros_like(y)
        loss = sum(part.add(features, y, slope, slope_y) for part in parts)
        slope *= -np.sin(angles) * joint.amplitudes
        return loss, np.concatenate([(slope @ joint.frequencies.T).ravel(), slope_y])

    def stop(_: Array) -> None:
        report()
        if time.process_time() > until:
            raise StopIteration

    result: Any = minimize(  # type: ignore[call-overload]
        misfit,
        np.concatenate([begin.ravel(), begin_y]),
        jac=True,
        method="L-BFGS-B",
        bounds=[(0.0, 1.0)] * size + [(-1.0, 1.0)] * len(begin_y),
        callback=stop,
        options={"maxiter": _STEPS, "maxfun": _STEPS, "ftol": 0.0, "gtol": 0.0, "maxcor": 20},
    )
    return np.asarray(result.x[:size]).reshape(begin.shape), float(result.fun)


class _Part:
    def __init__(self, block: SumsBlock, rows: np.ndarray, place: dict[int, slice], n_blocks: int) -> None:
        self._rows = slice(None) if rows.all() else rows
        self._left = place[id(block.left)]
        self._right = place[id(block.right)] if block.right is not None else None
        self._sums = block.sums
        self._weight = 1 / (n_blocks * max(float(np.sum(block.sums**2)), 1e-300))

    def add(self, features: Array, y: Array, slope: Array, slope_y: Array) -> float:
        """Add the gradients with respect to features and responses to the slopes; return the loss."""
        left = features[self._rows, self._left]
        right = y[self._rows, None] if self._right is None else features[self._rows, self._right]
        difference = left.T @ right - self._sums
        slope[self._rows, self._left] += 2 * self._weight * right @ difference.T
        by_right = 2 * self._weight * left @ difference
        if self._right is None:
            slope_y[self._rows] += by_right[:, 0]
        else:
            slope[self._rows, self._right] += by_right
        return self._weight * float(np.sum(difference**2))


class _Centred:
    """A block, centred by the mean of the reference rows, and divided by its mean energy."""

    def __init__(self, block: SumsBlock, X: Array, y: Array, view: View) -> None:
        self._block = block
        self._left, self._right = of_rows(block, X, y)
        self._mean = self._left.T @ self._right / len(y)
        self._excess = block.sums - view.rows_in(block) * self._mean
        self._weight = 1 / np.mean(np.sum(self._left**2, axis=1) * np.sum(self._right**2, axis=1))

    def products(self, X: Array, y: Array) -> Array:
        """Return the inner products of the centred phi of rows with that of the reference rows."""
        left, right = of_rows(self._block, X, y)
        kernel = (left @ self._left.T) * (right @ self._right.T)
        kernel -= np.sum((left @ self._mean) * right, axis=1)[:, None]
        kernel -= np.sum((self._left @ self._mean) * self._right, axis=1) - np.sum(self._mean**2)
        return np.asarray(self._weight * kernel)

    def with_sums(self, X: Array, y: Array) -> Array:
        """Return the inner products of the centred phi of rows with the sums minus their expectation."""
        left, right = of_rows(self._block, X, y)
        sums = np.sum((left @ self._excess) * right, axis=1)
        return np.asarray(self._weight * (sums - np.sum(self._mean * self._excess)))

    def energies(self, X: Array, y: Array) -> Array:
        """Return the squared norms of the centred phi of rows."""
        left, right = of_rows(self._block, X, y)
        energy = np.sum(left**2, axis=1) * np.sum(right**2, axis=1)
        centred = energy - 2 * np.sum((left @ self._mean) * right, axis=1) + np.sum(self._mean**2)
        return np.asarray(self._weight * centred)


class Membership:
    """Membership inference: the likelihood ratio of "this row is in the sums", in a normal model for all sums.

    A row in fold f adds phi_f(x, y) to the attacker's sums s: its products in every block that has fold f. The mean and
    the covariance S of s are estimated from reference rows. The log-likelihood ratio is
    v'S^-1 (s - E s) - v'S^-1 v / 2, with v = phi_f(x, y) - E phi_f. The fold of a row is unknown, so that the ratios of
    the folds are averaged. phi has thousands of entries, so that S is the covariance of the reference rows plus a
    ridge, in units of the total variance, and is never formed: inner products of phi are enough. Each block is divided
    by its mean energy.
    """

    def __init__(self, view: View, X: Array, y: Array, ridge: float = 1e-4) -> None:
        blocks: dict[bytes, list[SumsBlock]] = {}
        for block in view.blocks:
            blocks.setdefault(block.folds.tobytes(), []).append(block)
        self._sources = [[_Centred(block, X, y, view) for block in group] for group in blocks.values()]
        self._has = np.array([group[0].folds for group in blocks.values()])
        sizes = np.asarray(view.fold_sizes, dtype=float)
        self._shares = sizes / sizes.sum()
        self._roots = np.sqrt(sizes / len(y))
        folds = range(len(sizes))
        kernels = self._summed(_Centred.products, X, y)
        gram = np.block([[self._weigh(f, g, kernels) for g in folds] for f in folds])
        self._ridge = ridge * float(np.trace(gram))
        gram[np.diag_indices(len(gram))] += self._ridge
        self._factor = cho_factor(gram, overwrite_a=True)
        with_sums = self._summed(_Centred.with_sums, X, y)
        right = np.concatenate([self._roots[f] * self._over(f, with_sums) for f in folds])
        self._solved_sums = cho_solve(self._factor, right)

    def _summed(self, what: Callable[[_Centred, Array, Array], Array], X: Array, y: Array) -> list[Array]:
        """Return the sums over the blocks of the same folds."""
        return [np.asarray(sum(what(block, X, y) for block in group)) for group in self._sources]

    def _over(self, fold: int, values: Sequence[Array]) -> Array:
        """Add the values of those sources that have a fold."""
        return np.asarray(sum(value for value, has in zip(values, self._has[:, fold], strict=True) if has))

    def _weigh(self, fold: int, other: int, kernels: Sequence[Array]) -> Array:
        both = self._has[:, fold] & self._has[:, other]
        total = sum((kernel for kernel, has in zip(kernels, both, strict=True) if has), np.zeros_like(kernels[0]))
        return np.asarray(self._roots[fold] * self._roots[other] * total)

    def scores(self, X: Array, y: Array) -> Array:
        """Return the log-likelihood ratios of rows, shape (n_rows,); members have higher ratios."""
        cross, with_sums, energies = (
            self._summed(what, X, y) for what in (_Centred.products, _Centred.with_sums, _Centred.energies)
        )
        ratios = []
        folds = range(len(self._shares))
        for fold in folds:
            to_reference = np.hstack([self._weigh(fold, g, cross) / self._roots[fold] for g in folds])
            shift = self._over(fold, with_sums) - to_reference @ self._solved_sums
            explained = np.sum(to_reference * cho_solve(self._factor, to_reference.T).T, axis=1)
            ratios.append((shift - (self._over(fold, energies) - explained) / 2) / self._ridge)
        return np.asarray(logsumexp(ratios, axis=0, b=self._shares[:, None]))

    def guess_column(self, X: Array, y: Array, column: int, values: Array) -> Array:
        """Return, for each row, of these values of one column the one with the best score."""
        trials = np.repeat(X, len(values), axis=0)
        trials[:, column] = np.tile(values, len(X))
        scores = self.scores(trials, np.repeat(y, len(values))).reshape(len(X), -1)
        return np.asarray(values[np.argmax(scores, axis=1)])


@dataclass(frozen=True)
class Advantage:
    """The quality of scores that separate members from other rows."""

    advantage: float  # the largest difference of true and false positive rates over all thresholds
    area: float  # under the ROC curve; 0.5 means guessing
    caught: float  # the true positive rate at a false positive rate of 1 %
    caught_surely: float  # of 0.1 %


def advantage(members: Array, others: Array) -> Advantage:
    """Return how well the scores separate members from other rows."""
    from sklearn.metrics import roc_auc_score, roc_curve

    truth = np.repeat([1, 0], [len(members), len(others)])
    scores = np.concatenate([members, others])
    false, true, _ = roc_curve(truth, scores)
    return Advantage(
        float(np.max(true - false)),
        float(roc_auc_score(truth, scores)),
        *(float(np.max(true[false <= rate], initial=0.0)) for rate in (0.01, 0.001)),
    )
