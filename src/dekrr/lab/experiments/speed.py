"""The speed of a fit, as ratios within one run: to the paper's algorithm in plain numpy, and to scikit-learn."""

import platform
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec
import networkx as nx
import numpy as np

from ...errors import DataError
from ...estimators import DeKRRRegressor
from ...networks.local import free_cores
from ...settings import ALONE
from ...topology import build
from ...types import Array
from ..data_sets.loading import read_table
from ..data_sets.partitions import by_response

ROUNDS = 1500


def paper_port(
    X: Array, y: Array, sites: np.ndarray, n_features: int, *, sigma: float, alpha: float
) -> tuple[list[tuple[Array, Array]], list[Array]]:
    """Run Algorithm 1 in plain numpy: energy features, exchange of every row's features, 1500 rounds, consensus 1.

    Nothing is measured, recorded or checked during the run. It returns frequencies and phases, and the coefficients, of
    every site.
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


def pooled_peers(X: Array, y: Array, n_features: int, *, sigma: float, alpha: float) -> Mapping[str, Callable[[], Any]]:
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
    return {name: partial(peer.fit, X, y) for name, peer in peers.items()}


class TimedFigure(msgspec.Struct, frozen=True, kw_only=True):
    """One figure: a ratio of two times within one run, of which "higher" or "lower" is better."""

    name: str
    ratio: float
    text: str
    seconds: dict[str, float]
    better: str
    settings: dict[str, Any]


@dataclass(frozen=True)
class TimedProblem:
    name: str
    X: Array
    y: Array
    sites: np.ndarray
    n_features: int
    sigma: float
    alpha: float = 1e-6
    made: bool = False

    @property
    def settings(self) -> dict[str, Any]:
        return {
            "data": f"made up, in the shape of {self.name}" if self.made else self.name,
            "rows": len(self.y),
            "columns": self.X.shape[1],
            "sites": int(self.sites.max()) + 1,
            "n_features": self.n_features,
            "sigma": self.sigma,
            "alpha": self.alpha,
        }

    def fit(self, features: str, **changes: Any) -> Callable[[], Any]:
        """Return a function that fits without tuning, on a ring with four neighbours, at consensus 1."""
        settings: dict[str, Any] = {
            "n_features": self.n_features,
            "features": features,
            "sigma": self.sigma,
            "alpha": self.alpha,
            "consensus": 1.0,
            "tol": 1e-6,
            "scale": None,
            "random_state": 0,
            **ALONE,
        }
        return lambda: DeKRRRegressor(**settings | changes).fit(self.X, self.y, sites=self.sites)


_SHAPES = {  # rows, columns, features, sigma
    "houses": (10_320, 8, 60, 0.25),
    "tomshardware": (14_090, 96, 150, 4.0),
    "household_power": (2_049_280, 9, 200, 0.5),
}


def problem(name: str, directory: Path | None, n_rows: int | None = None) -> TimedProblem:
    """Return a data set's rows, scaled and divided over ten sites; without the data set, random rows of its shape."""
    size, n_columns, n_features, sigma = _SHAPES[name]
    try:
        if directory is None:
            raise DataError("no directory")
        table = read_table(Path(directory) / f"{name}.parquet")
    except (DataError, OSError):
        rng = np.random.default_rng(0)
        X = rng.uniform(size=(n_rows or size, n_columns))
        y = np.sin(6 * X @ rng.normal(size=n_columns) / np.sqrt(n_columns))
        return TimedProblem(name, X, y, np.arange(len(y)) * 10 // len(y), n_features, sigma, made=True)
    y = table["y"].to_numpy(np.float64)[:n_rows]
    X = table.drop(columns="y").to_numpy(np.float64)[:n_rows]
    y = 2 * (y - y.min()) / np.ptp(y) - 1
    X = (X - X.min(axis=0)) / np.where(np.ptp(X, axis=0) > 0, np.ptp(X, axis=0), 1)
    if name == "household_power":
        return TimedProblem(name, X, y, np.arange(len(y)) * 10 // len(y), n_features, sigma)
    train = np.random.default_rng(0).permutation(len(y))[: len(y) // 2]
    return TimedProblem(name, X[train], y[train], by_response(y[train], 10, mix=0.2, random_state=0), n_features, sigma)


def best_seconds(run: Callable[[], Any], repeats: int = 3) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def machine() -> dict[str, Any]:
    """Return the processor, the cores and the versions that the figures depend on."""
    packages = ("dekrr", "numpy", "scipy", "scikit-learn", "numba")
    versions = {}
    for package in packages:
        try:
            versions[package] = version(package)
        except ModuleNotFoundError:
            versions[package] = "not installed"
    model = platform.processor() or platform.machine()
    with suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    return {"processor": model, "cores": free_cores(), "python": platform.python_version(), **versions}


def split_fit(directory: Path | None, *, quick: bool) -> Iterator[TimedFigure]:
    """Time a fit with energy features on Houses and Tom's against the paper's port and scikit-learn."""
    for name in ("houses", "tomshardware")[: 1 if quick else 2]:
        workload = problem(name, directory)
        numbers: dict[str, Any] = {"n_features": workload.n_features, "sigma": workload.sigma, "alpha": workload.alpha}
        fit = workload.fit("energy")
        fit()
        port = partial(paper_port, workload.X, workload.y, workload.sites, **numbers)
        seconds = {"fit": np.inf, "port": np.inf}
        for _ in range(1 if quick else 3):  # in turns, since other work on the machine comes and goes
            seconds = {
                "fit": min(seconds["fit"], best_seconds(fit, 7)),
                "port": min(seconds["port"], best_seconds(port, 1)),
            }
        settings = workload.settings | {"features": "energy", "consensus": 1.0, "tol": 1e-6, "solver": "chebyshev"}
        yield ratio_of(f"{name}: port / fit", "port", "fit", seconds, "higher", settings)
        for peer, run in pooled_peers(workload.X, workload.y, **numbers).items():
            timed = {"fit": seconds["fit"], peer: best_seconds(run, 1 if peer == "KernelRidge" else 3)}
            yield ratio_of(f"{name}: {peer} / fit", peer, "fit", timed, "higher", settings)


def many_sites(directory: Path | None, *, quick: bool) -> Iterator[TimedFigure]:
    """Time fits on random 4-regular graphs of more and more sites, per site, against ten sites."""
    per_site: dict[int, float] = {}
    _network_fit(10, 100)()
    for n_sites in (10, 32, 100) if quick else (10, 32, 100, 320, 1000):
        seconds = best_seconds(_network_fit(n_sites, 100), 1)
        per_site[n_sites] = seconds / n_sites
        timed = {"fit": seconds, "a site": per_site[n_sites], "a site of ten": per_site[10]}
        settings = {"sites": n_sites, "neighbors": 4, "n_features": 100, "rows a site": 200, "features": "plain"}
        yield ratio_of(f"{n_sites} sites: a site / a site of ten", "a site", "a site of ten", timed, "lower", settings)
    if not quick:
        timed = {f"D = {size}": best_seconds(_network_fit(100, size), 1) for size in (100, 400)}
        settings = {"sites": 100, "neighbors": 4, "n_features": 400, "rows a site": 200, "features": "plain"}
        yield ratio_of("100 sites: D = 400 / D = 100", "D = 400", "D = 100", timed, "lower", settings)


def _network_fit(n_sites: int, n_features: int) -> Callable[[], Any]:
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(200 * n_sites, 8))
    y, sites = np.sin(3 * X.sum(axis=1)), np.repeat(np.arange(n_sites), 200)
    workload = TimedProblem("made", X, y, sites, n_features, sigma=0.5, made=True)
    return workload.fit("plain", topology=nx.random_regular_graph(4, n_sites, seed=0))


def ratio_of(
    name: str, above: str, below: str, seconds: Mapping[str, float], better: str, settings: Any
) -> TimedFigure:
    ratio = seconds[above] / seconds[below]
    text = f"{above} takes {ratio:.3g} times as long as {below}"
    return TimedFigure(name=name, ratio=ratio, text=text, seconds=dict(seconds), better=better, settings=dict(settings))


FIGURES: dict[str, Callable[..., Iterator[TimedFigure]]] = {
    "split": split_fit,
    "sites": many_sites,
}
