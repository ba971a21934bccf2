"""Recovery of rows from their features: the paper's exchange does not protect the rows.

Under ``exchange="features"`` a neighbour receives, for every row x, the features cos(w'x + b) of two maps. It knows
their frequencies w and phases b. `recover_rows` solves for x in the unit box by Levenberg-Marquardt on

    sum_m (cos(w_m'x + b_m) - c_m)^2,

for all rows and starts at once. The cosine is periodic, so that most starts end in a wrong local minimum. In the right
minimum the residual vanishes, so that the attacker recognises it. The first starts are the attacker's own rows. Further
starts are random rows, and rows that are already recovered: those that are most similar to the unknown row. The
similarity is the inner product of features, which estimates the kernel.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from ...features import FeatureMap
from ...types import Array

_SOLVED = 1e-9  # the mean squared residual below which a row counts as solved
# A start is in a wrong local minimum if its loss is above _VALLEY and a step lowers it by a share below _PROGRESS.
_VALLEY, _PROGRESS = 1e-3, 1e-3
_JITTER = 0.1
_STARTS, _STEPS = 20, 40  # for each row and sweep; of each start


@dataclass(frozen=True)
class Recovery:
    rows: Array  # the best candidate for each row
    residuals: Array  # the mean squared residual of each candidate, which the attacker can compute
    seconds: float  # of CPU time
    starts: int  # over all rows

    @property
    def solved(self) -> np.ndarray:
        """A mask of the rows that the attacker knows to be right by their residual."""
        return np.asarray(self.residuals < _SOLVED)

    def share(self, truth: Array, tolerance: float) -> float:
        """Return the share of rows with every column within `tolerance` of `truth`."""
        return float(np.mean(np.abs(self.rows - truth).max(axis=1) < tolerance))


def stack(*maps: FeatureMap) -> FeatureMap:
    """Return one map with the features of all maps, side by side."""
    return FeatureMap.joined(maps)


def recover_rows(
    feature_map: FeatureMap,
    features: Array,
    *,
    known: Array | None = None,
    seconds: float = 60.0,
    sweeps: int = 200,
    report: Callable[[float], None] = lambda seconds: None,
) -> Recovery:
    """Recover rows in the unit box from their features.

    The map is that of all features that the attacker has of each row; see `stack`. `known` are the attacker's own rows,
    as starts. After so many seconds of CPU time no further sweep starts. Of the starts for each row and sweep, random
    ones are a quarter, because one recovered row is a better start than many random ones.
    """
    begun = time.process_time()
    rng = np.random.default_rng(0)
    used = feature_map.amplitudes != 0
    frequencies, phases = feature_map.frequencies[:, used], feature_map.phases[used]
    cosines = features[:, used] / feature_map.amplitudes[used]
    rows = np.full((len(features), len(frequencies)), 0.5)
    residuals = np.full(len(features), np.inf)
    tried = 0
    for kind in _start_kinds(sweeps, known is not None):
        todo = np.flatnonzero(residuals >= _SOLVED)
        if not todo.size or time.process_time() - begun > seconds:
            break
        found = residuals < _SOLVED
        pool = known if kind == "known" else rows[found]
        if kind != "random" and pool is not None and len(pool):
            begin = _most_alike(cosines[todo], pool, np.cos(pool @ frequencies + phases), _STARTS)
            if kind == "jittered":
                begin = np.clip(begin + rng.normal(scale=_JITTER, size=begin.shape), 0, 1)
        else:
            begin = rng.uniform(size=(len(todo), _STARTS // 4, len(frequencies)))
        n_starts = begin.shape[1]
        tried += begin.shape[0] * n_starts
        ends, losses = _levenberg_marquardt(
            frequencies, phases, np.repeat(cosines[todo], n_starts, axis=0), begin.reshape(-1, len(frequencies))
        )
        losses = losses.reshape(-1, n_starts)
        best = losses.argmin(axis=1)
        better = losses.min(axis=1) < residuals[todo]
        picked = ends.reshape(len(todo), n_starts, -1)[np.arange(len(todo)), best]
        rows[todo[better]] = picked[better]
        residuals[todo[better]] = losses.min(axis=1)[better]
        report(time.process_time() - begun)
    return Recovery(rows, residuals, time.process_time() - begun, tried)


def _start_kinds(sweeps: int, has_known: bool) -> Iterator[str]:
    if has_known:
        yield "known"
    for _ in range(sweeps):
        yield from ("recovered", "random", "jittered")


def _most_alike(cosines: Array, pool: Array, pool_cosines: Array, count: int) -> Array:
    """Return, for each row, the `count` rows of the pool with the most similar features."""
    count = min(count, len(pool))
    likeness = cosines @ pool_cosines.T
    order = np.argpartition(-likeness, count - 1, axis=1)[:, :count]
    return np.asarray(pool[order])


def _levenberg_marquardt(frequencies: Array, phases: Array, cosines: Array, begin: Array) -> tuple[Array, Array]:
    """Minimise the mean squared residual from each start; return the end points and their losses.

    A start leaves the batch when it has converged or no longer improves.
    """
    n_columns, n_features = frequencies.shape
    products = (frequencies[:, None] * frequencies[None]).reshape(-1, n_features).T.copy()
    diagonal = np.arange(n_columns)
    X, losses = begin.copy(), np.empty(len(begin))
    live = np.arange(len(begin))
    damping = np.full(len(begin), 5e-3 * np.mean(frequencies**2))
    angles = X @ frequencies + phases
    losses[:] = np.mean((np.cos(angles) - cosines) ** 2, axis=1)
    for _ in range(_STEPS):
        slopes = -np.sin(angles)
        residuals = np.cos(angles) - cosines[live]
        hessian = ((slopes * slopes) @ products).reshape(-1, n_columns, n_columns) / n_features
        hessian[:, diagonal, diagonal] += damping[live, None]
        gradient = (slopes * residuals) @ frequencies.T / n_features
        step = np.linalg.solve(hessian, gradient[:, :, None])[:, :, 0]
        moved = np.clip(X[live] - step, 0, 1)
        new_angles = moved @ frequencies + phases
        new_losses = np.mean((np.cos(new_angles) - cosines[live]) ** 2, axis=1)
        better = new_losses < losses[live]
        stuck = better & (new_losses > _VALLEY) & (losses[live] - new_losses < _PROGRESS * losses[live])
        X[live[better]] = moved[better]
        losses[live[better]] = new_losses[better]
        damping[live] *= np.where(better, 0.2, 4.0)
        angles = np.where(better[:, None], new_angles, angles)
        going = (losses[live] > 1e-26) & (damping[live] < 1e8) & ~stuck
        live, angles = live[going], angles[going]
        if not live.size:
            break
    return X, losses
