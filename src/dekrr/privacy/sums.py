"""What a neighbour can make of sums: the same attacker against the default exchange.

Site p receives, over the rows of its neighbour j, B = Z_pj'Z_pj and C = Z_pj'Z_jj once, and j's
coefficients in every round. Coefficients depend on j's rows through A = Z_jj'Z_jj, m = Z_jj'y_j and the C that j
sent to third sites. A `View` with ``granted=True`` is that of an attacker who is *given* A and m, exactly, instead of
working out from coefficients what they show of them.

- `rows_in_null_space`: where the rows are fewer than the features, only the rows' features (and little else)
  lie in the range of the sums; solve for x as `rows.recover_rows` does.
- `rows_by_matching`: least squares over all rows at once, so that their sums match.
- `membership_scores`: was a known row among them? The likelihood ratio of a normal model for the sums.
- `guess_column`: a known row but for one column; take the value with the best membership score.
"""

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import minimize

from ..features import FeatureMap
from ..messages import Sums, unpack_symmetric
from ..protocols.outcome import Outcome
from ..protocols.site import Site
from ..statistics import accumulate
from ..types import Array
from .overhearing import Record
from .rows import stack


@dataclass(frozen=True)
class View:
    """What the attacker knows about the target's rows.

    Parameters
    ----------
    attackers_map, targets_map : FeatureMap
        z_p and z_j.
    gram, cross : ndarray
        B of shape (D_p, D_p) and C of shape (D_p, D_j).
    targets_gram, moment : ndarray or None
        A of shape (D_j, D_j) and m of shape (D_j,), where granted.
    n_rows : int
    """

    attackers_map: FeatureMap
    targets_map: FeatureMap
    gram: Array
    cross: Array
    n_rows: int
    targets_gram: Array | None = None
    moment: Array | None = None

    @property
    def joint_map(self) -> FeatureMap:
        """The attacker's features, then the target's."""
        return stack(self.attackers_map, self.targets_map)

    @property
    def joint_gram(self) -> Array:
        """[[B, C], [C', A]], for the attacker to whom A was granted; B alone for the other."""
        if self.targets_gram is None:
            return self.gram
        return np.block([[self.gram, self.cross], [self.cross.T, self.targets_gram]])

    @property
    def gram_map(self) -> FeatureMap:
        """The map whose sums of products `joint_gram` are."""
        return self.attackers_map if self.targets_gram is None else self.joint_map


def view_of(record: Record, attacker: str, target: Site, outcomes: dict[str, Outcome], *, granted: bool) -> View:
    """Return what `attacker` heard of `target`, from the messages of a run.

    `target` itself is used for A and m only, and only if they are granted.
    """
    attackers_map, targets_map = outcomes[attacker].feature_map, outcomes[target.name].feature_map
    (sums,) = record.between(target.name, attacker, Sums)
    view = View(
        attackers_map,
        targets_map,
        unpack_symmetric(sums.gram, attackers_map.n_features),
        np.asarray(sums.cross),
        outcomes[attacker].roster.rows[target.name],
    )
    if not granted:
        return view
    own, _ = accumulate(target.rows, targets_map, {})
    return View(attackers_map, targets_map, view.gram, view.cross, view.n_rows, own.gram, own.moment)


def recovered(candidates: Array, truth: Array, tolerance: float, known: Array) -> float:
    """Return the share of true rows that a candidate meets in every column, not counting rows known before."""
    if not len(candidates):
        return 0.0
    return float(np.mean((_nearest(truth, candidates) < tolerance) & (_nearest(truth, known) >= tolerance)))


def _nearest(rows: Array, others: Array) -> Array:
    """Return each row's largest difference over columns to the other that is nearest in that sense."""
    return np.array([np.min(np.abs(others - row).max(axis=1), initial=np.inf) for row in rows])


def rows_in_null_space(
    view: View, begin: Array, *, relative: float = 1e-11, least: int = 0, batch: int = 200, seconds: float = np.inf
) -> Array:
    """Return points of the unit box whose features lie in the range of the sums, from each start.

    Minimises |Q'u(x)|^2, where Q spans the eigenvectors of the joint Gram matrix with eigenvalues below
    `relative` times the largest, and `least` of the smallest at any rate.

    Parameters
    ----------
    view : View
    begin : ndarray of shape (n_starts, n_columns)
    relative : float
    least : int
    batch : int
        Starts at a time.
    seconds : float
        After which no further batch starts.
    """
    values, vectors = np.linalg.eigh(view.joint_gram)
    n_null = max(int((values < relative * values[-1]).sum()), least)
    if n_null <= begin.shape[1]:
        return np.empty((0, begin.shape[1]))
    ends = []
    until = time.perf_counter() + seconds
    for start in range(0, len(begin), batch):
        if time.perf_counter() > until:
            break
        ends.append(_to_null_space(view.gram_map, vectors[:, :n_null], begin[start : start + batch]))
    return np.vstack(ends)


def _to_null_space(feature_map: FeatureMap, null: Array, begin: Array, steps: int = 50) -> Array:
    frequencies = feature_map.frequencies
    weighted = null * feature_map.amplitudes[:, None]
    diagonal = np.arange(len(frequencies))
    X = begin.copy()
    angles = X @ frequencies + feature_map.phases
    residuals = np.cos(angles) @ weighted
    losses = np.sum(residuals**2, axis=1)
    damping = np.full(len(X), 0.1 * np.mean(frequencies**2) * np.sum(weighted**2))
    for _ in range(steps):
        slopes = -np.sin(angles)
        jacobian = (slopes[:, None, :] * frequencies) @ weighted
        hessian = jacobian @ jacobian.transpose(0, 2, 1)
        hessian[:, diagonal, diagonal] += damping[:, None]
        gradient = (jacobian @ residuals[:, :, None])[:, :, 0]
        moved = np.clip(X - np.linalg.solve(hessian, gradient[:, :, None])[:, :, 0], 0, 1)
        new_angles = moved @ frequencies + feature_map.phases
        new_residuals = np.cos(new_angles) @ weighted
        new_losses = np.sum(new_residuals**2, axis=1)
        better = new_losses < losses
        X[better], angles[better], residuals[better] = moved[better], new_angles[better], new_residuals[better]
        losses[better] = new_losses[better]
        damping *= np.where(better, 0.2, 4.0)
        damping = np.minimum(damping, 1e12)
    return X


def rows_by_matching(view: View, begin: Array, *, seconds: float = 60.0, steps: int = 100_000) -> tuple[Array, float]:
    """Return rows whose sums come closest to the ones received, and the relative misfit that is left.

    Minimises |U(X)'U(X) - S|^2 over all rows X in the unit box by L-BFGS-B, where S has the blocks that the
    attacker knows.

    Parameters
    ----------
    view : View
    begin : ndarray of shape (n_rows, n_columns)
    seconds : float, default=60
    steps : int
    """
    joint = view.joint_map
    n_own = view.attackers_map.n_features
    size = joint.n_features
    target = np.zeros((size, size))
    target[:n_own, :n_own], target[:n_own, n_own:], target[n_own:, :n_own] = view.gram, view.cross, view.cross.T
    heard = np.ones((size, size))
    if view.targets_gram is None:
        heard[n_own:, n_own:] = 0
    else:
        target[n_own:, n_own:] = view.targets_gram
    scale = float(np.sum(target**2))
    until = time.perf_counter() + seconds

    def misfit(flat: Array) -> tuple[float, Array]:
        X = flat.reshape(begin.shape)
        angles = X @ joint.frequencies + joint.phases
        features = np.cos(angles) * joint.amplitudes
        difference = (features.T @ features - target) * heard
        slope = features @ difference
        slope *= -np.sin(angles) * joint.amplitudes
        return float(np.sum(difference**2)) / scale, (4 / scale * slope @ joint.frequencies.T).ravel()

    def stop(_: Array) -> None:
        if time.perf_counter() > until:
            raise StopIteration

    result: Any = minimize(  # type: ignore[call-overload]
        misfit,
        begin.ravel(),
        jac=True,
        method="L-BFGS-B",
        bounds=[(0.0, 1.0)] * begin.size,
        callback=stop,
        options={"maxiter": steps, "maxfun": steps, "ftol": 0.0, "gtol": 0.0, "maxcor": 20},
    )
    return np.asarray(result.x).reshape(begin.shape), float(result.fun)


class Membership:
    """The likelihood ratio of "this row is among them" in a normal model for the sums.

    The sums are a sum of phi(x, y) = (z_p z_p', z_p z_j', z_j z_j', y z_j) over rows, as far as the attacker
    has its blocks. With the mean mu and covariance S of phi over rows like the target's, the log-likelihood ratio of
    N mean(phi) with and without the row is phi'S^-1 (mean(phi) - mu) - phi'S^-1 phi / (2N), phi centred. phi has
    thousands of entries, so that S is the reference rows' with a ridge, by inner products alone.

    Parameters
    ----------
    view : View
    X, y : ndarray of shapes (n_reference, n_columns) and (n_reference,)
        Rows like the target's that the attacker has.
    ridge : float, default=1e-4
        In units of the mean variance.
    """

    def __init__(self, view: View, X: Array, y: Array, ridge: float = 1e-4) -> None:
        self._view = view
        self._reference = self._features(X, y)
        kernel = self._products(self._reference, self._reference)
        self._row_means, self._mean = kernel.mean(axis=0), float(kernel.mean())
        centred = kernel - self._row_means - self._row_means[:, None] + self._mean
        self._ridge = ridge * float(np.trace(centred))
        inverse = np.linalg.inv(centred + self._ridge * np.eye(len(y)))
        self._inverse = (inverse + inverse.T) / 2
        self._sums_mean = float(np.mean(self._with_sums(self._reference)))
        self._reference_sums = self._centre_sums(self._reference, self._row_means)

    def _features(self, X: Array, y: Array) -> tuple[Array, Array, Array]:
        return self._view.attackers_map(X), self._view.targets_map(X), y

    def _products(self, left: tuple[Array, Array, Array], right: tuple[Array, Array, Array]) -> Array:
        """Return the inner products of phi of two sets of rows."""
        attackers, targets = left[0] @ right[0].T, left[1] @ right[1].T
        products = attackers**2 + attackers * targets
        if self._view.targets_gram is not None:
            products += targets**2
        if self._view.moment is not None:
            products += targets * np.outer(left[2], right[2])
        return np.asarray(products)

    def _with_sums(self, rows: tuple[Array, Array, Array]) -> Array:
        """Return the inner products of phi with the mean of phi over the target's rows."""
        view = self._view
        total = np.einsum("ni,ij,nj->n", rows[0], view.gram, rows[0], optimize=True)
        total += np.einsum("ni,ij,nj->n", rows[0], view.cross, rows[1], optimize=True)
        if view.targets_gram is not None:
            total += np.einsum("ni,ij,nj->n", rows[1], view.targets_gram, rows[1], optimize=True)
        if view.moment is not None:
            total += rows[2] * (rows[1] @ view.moment)
        return np.asarray(total / view.n_rows)

    def _centre_sums(self, rows: tuple[Array, Array, Array], with_mean: Array) -> Array:
        """Return <phi - mu, mean(phi) - mu>, given <phi, mu>."""
        return np.asarray(self._with_sums(rows) - self._sums_mean - with_mean + self._mean)

    def scores(self, X: Array, y: Array) -> Array:
        """Return the log-likelihood ratios of rows, shape (n_rows,); higher is likelier a member."""
        rows = self._features(X, y)
        cross = self._products(rows, self._reference)
        with_mean = cross.mean(axis=1)
        centred = cross - with_mean[:, None] - self._row_means + self._mean
        own = self._own_products(rows) - 2 * with_mean + self._mean
        solved = centred @ self._inverse
        shift = self._centre_sums(rows, with_mean) - solved @ self._reference_sums
        energy = own - np.sum(solved * centred, axis=1)
        return np.asarray((shift - energy / (2 * self._view.n_rows)) / self._ridge)

    def _own_products(self, rows: tuple[Array, Array, Array]) -> Array:
        attackers, targets = np.sum(rows[0] ** 2, axis=1), np.sum(rows[1] ** 2, axis=1)
        total = attackers**2 + attackers * targets
        if self._view.targets_gram is not None:
            total += targets**2
        if self._view.moment is not None:
            total += targets * rows[2] ** 2
        return np.asarray(total)

    def guess_column(self, X: Array, y: Array, column: int, values: Array) -> Array:
        """Return, for each row with one column unknown, the value of it that scores best.

        Parameters
        ----------
        X : ndarray of shape (n_rows, n_columns)
            The entries in `column` are not used.
        y : ndarray of shape (n_rows,)
        column : int
        values : ndarray of shape (n_values,)
        """
        scores = []
        for value in values:
            trial = X.copy()
            trial[:, column] = value
            scores.append(self.scores(trial, y))
        return np.asarray(values[np.argmax(scores, axis=0)])


@dataclass(frozen=True)
class Advantage:
    """How well scores tell members from others.

    Parameters
    ----------
    advantage : float
        The largest difference of true and false positive rates over thresholds.
    area : float
        Under the curve of these rates; 0.5 is guessing.
    caught : float
        The true positive rate at a false positive rate of 1 %.
    """

    advantage: float
    area: float
    caught: float


def advantage(members: Array, others: Array) -> Advantage:
    """Return how well scores tell members from others.

    Examples
    --------
    >>> import numpy as np
    >>> advantage(np.array([2.0, 3.0]), np.array([0.0, 1.0])).area
    1.0
    """
    from sklearn.metrics import roc_auc_score, roc_curve

    truth = np.repeat([1, 0], [len(members), len(others)])
    scores = np.concatenate([members, others])
    false, true, _ = roc_curve(truth, scores)
    return Advantage(
        float(np.max(true - false)),
        float(roc_auc_score(truth, scores)),
        float(np.max(true[false <= 0.01], initial=0.0)),
    )


def fingerprinting_map(n_columns: int, n_features: int, scale: float, seed: int = 0) -> FeatureMap:
    """Return the map of a malicious neighbour: frequencies so high that sums become fingerprints of rows.

    Products of such features are nearly uncorrelated for any two rows that differ at all, so that the
    D (D + 1) / 2 sums of products tell single rows apart.

    Parameters
    ----------
    n_columns, n_features : int
    scale : float
        Standard deviation of a frequency.
    seed : int
    """
    rng = np.random.default_rng(seed)
    frequencies = rng.normal(scale=scale, size=(n_columns, n_features))
    return FeatureMap.unweighted(frequencies, rng.uniform(0, 2 * np.pi, n_features))
