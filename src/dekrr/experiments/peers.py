"""The competitors in timings: the paper's algorithm as it is written, and scikit-learn on pooled rows."""

from collections.abc import Callable, Mapping

import numpy as np

from ..topology import build
from ..types import Array

ROUNDS = 1500


def paper_port(
    X: Array, y: Array, sites: np.ndarray, n_features: int, *, sigma: float, alpha: float
) -> tuple[list[tuple[Array, Array]], list[Array]]:
    """Run Algorithm 1 in plain numpy: energy features, exchange of every row's features, 1500 rounds, consensus 1.

    Nothing is measured, recorded or checked during the run.

    Parameters
    ----------
    X : ndarray of shape (n_rows, n_columns)
    y : ndarray of shape (n_rows,)
    sites : ndarray of int, shape (n_rows,)
    n_features : int
    sigma, alpha : float

    Returns
    -------
    maps : list of (frequencies, phases)
        The map of every site, of shapes (n_columns, n_features) and (n_features,).
    coefficients : list of ndarray of shape (n_features,)
    """
    n_sites, rng = int(sites.max()) + 1, np.random.default_rng(0)
    graph = build("ring", list(range(n_sites)))
    rows = [(X[sites == j], y[sites == j]) for j in range(n_sites)]
    maps = []
    for X_j, y_j in rows:
        frequencies = rng.standard_normal((X.shape[1], 20 * n_features)) / sigma
        phases = rng.uniform(0, 2 * np.pi, 20 * n_features)
        scores = np.abs(np.cos(X_j @ frequencies + phases).T @ y_j)
        chosen = np.argsort(scores)[::-1][:n_features]
        maps.append((frequencies[:, chosen], rng.uniform(0, 2 * np.pi, n_features)))
    features = {
        (i, j): np.sqrt(2 / n_features) * np.cos(rows[j][0] @ maps[i][0] + maps[i][1])
        for j in range(n_sites)
        for i in [j, *graph[j]]
    }
    inverses, couplings, right_sides, self_penalties = [], [], [], []
    for j in range(n_sites):
        weight = 1 / len(graph[j])
        own = features[j, j]
        gram = own.T @ own
        matrix = (2 + 5 * weight) * gram + len(y) * alpha / n_sites * np.eye(n_features)
        row = {}
        for p in graph[j]:
            matrix += weight * features[j, p].T @ features[j, p]
            row[p] = weight * (own.T @ features[p, j] + features[j, p].T @ features[p, p])
        inverses.append(np.linalg.inv(matrix))
        couplings.append(row)
        right_sides.append(own.T @ rows[j][1])
        self_penalties.append(5 * weight * gram)
    coefficients = [np.zeros(n_features) for _ in range(n_sites)]
    for _ in range(ROUNDS):
        coefficients = [
            inverses[j]
            @ (
                right_sides[j]
                + self_penalties[j] @ coefficients[j]
                + sum(coupling @ coefficients[p] for p, coupling in couplings[j].items())
            )
            for j in range(n_sites)
        ]
    return maps, coefficients


def pooled_peers(
    X: Array, y: Array, n_features: int, *, sigma: float, alpha: float
) -> Mapping[str, Callable[[], None]]:
    """Return fits of scikit-learn's estimators on the pooled rows with the same number of features, by name.

    Exact kernel ridge regression and Nystroem are left out where there are too many rows for them.
    """
    from sklearn.kernel_approximation import Nystroem, RBFSampler
    from sklearn.kernel_ridge import KernelRidge
    from sklearn.linear_model import Ridge
    from sklearn.pipeline import make_pipeline

    gamma, ridge = 1 / (2 * sigma**2), alpha * len(y)
    peers = {"RBFSampler + Ridge": make_pipeline(RBFSampler(gamma=gamma, n_components=n_features), Ridge(alpha=ridge))}
    if len(y) <= 500_000:
        peers["Nystroem + Ridge"] = make_pipeline(Nystroem(gamma=gamma, n_components=n_features), Ridge(alpha=ridge))
    if len(y) <= 12_000:
        peers["KernelRidge"] = KernelRidge(kernel="rbf", gamma=gamma, alpha=ridge)
    return {name: _fitting(peer, X, y) for name, peer in peers.items()}


def _fitting(peer: object, X: Array, y: Array) -> Callable[[], None]:
    def fit() -> None:
        peer.fit(X, y)  # type: ignore[attr-defined]

    return fit
