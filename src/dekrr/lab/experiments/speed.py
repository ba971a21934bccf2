"""The speed of a fit, as ratios within one run: to competitors, and to a floor that the processor sets.

The floor of a fit is the time of the operations that no fit can avoid, measured in the same run on the same cores, in
double precision. These are each cosine once, at the best rate; the products of rows with frequencies; and the products
of features in the sums. The products are timed in their actual shapes. A lower floor assumes the rate of large square
products. The choice of features, messages, solving and everything else come on top of the floor.
"""

import platform
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec
import networkx as nx
import numpy as np

from ...data.partitions import by_response
from ...errors import DataError
from ...estimators import DeKRRRegressor
from ...features import block_rows, compiled, terms_of, wave_blocks
from ...networks.local import free_cores, one_blas_thread
from ...selection import Greedy
from ...settings import ALONE
from ...statistics import rows_per_block
from ...tables.rows import SAMPLE_ROWS
from ...topology import build
from ...types import Array
from ..data_sets.loading import read_table

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


class TimedFigure(msgspec.Struct, frozen=True, kw_only=True):
    """One figure: a ratio of two times within one run.

    Parameters
    ----------
    text : str
        The ratio in words.
    seconds : dict of str to float
        The times that were measured.
    better : {"higher", "lower"}
    """

    name: str
    ratio: float
    text: str
    seconds: dict[str, float]
    better: str
    settings: dict[str, Any]


@dataclass(frozen=True)
class TimedProblem:
    """Scaled rows with sites, and the settings of a fit on them."""

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
        """Return the settings to report with a figure."""
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


_LOWER = "floor at the best rate of all"
_CHOSEN_BY = Greedy().max_rows or 0  # the number of rows by which a site chooses its features

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
    """Return the shortest time of `repeats` runs, in seconds."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


@dataclass(frozen=True)
class FlopRates:
    """The best rates of all cores together, in operations per second.

    Parameters
    ----------
    cosines : float
        Cosines with phase and amplitude, for angles that are already computed.
    products : float
        Multiplications with an addition, in double precision.
    """

    cosines: float
    products: float

    @classmethod
    def measured(cls, n_threads: int) -> "FlopRates":
        """Measure both rates with `n_threads` threads."""
        rng = np.random.default_rng(0)
        size = 1 << 15
        angles = [rng.uniform(size=(size // 256, 256)) for _ in range(n_threads)]
        phases, amplitudes = np.zeros(256), np.ones(256)
        loops = compiled()

        def cosines(block: Array) -> None:
            if loops is not None:
                for _ in range(200):
                    loops.overwrite(block, phases, amplitudes, *terms_of(block.dtype))
                return
            for _ in range(200):
                np.cos(block, out=block)

        matrices = [rng.uniform(size=(3, 1024, 1024)) for _ in range(n_threads)]

        def products(matrices: Array) -> None:
            left, right, out = matrices
            for _ in range(3):
                np.matmul(left.T, right, out=out)

        with one_blas_thread, ThreadPoolExecutor(n_threads) as pool:
            cosine_seconds = best_seconds(lambda: list(pool.map(cosines, angles)), 5)
            product_seconds = best_seconds(lambda: list(pool.map(products, matrices)), 5)
        return cls(200 * size * n_threads / cosine_seconds, 3 * 1024.0**3 * n_threads / product_seconds)

    def floor(self, problem: TimedProblem, candidates: int = 0, sample: int | None = None) -> float:
        """Return the floor in seconds, with products at the rate of large square products.

        A site and its four neighbours have D features each. For every row a fit takes 5 D cosines, 5 D d
        multiplications for their angles, D (D + 1) / 2 + 4 D^2 multiplications for products with the site's own
        features, and 4 D (D + 1) / 2 for products of the neighbours' features with themselves. The choice of features
        takes one cosine and d multiplications per candidate, for every row by which features are chosen.
        """
        size, n_columns, n_rows = problem.n_features, problem.X.shape[1], len(problem.y)
        products = n_rows * (5.0 * size * n_columns + 5 * size * (size + 1) / 2 + 4 * size**2)
        products += _chosen_by(problem, sample) * candidates * n_columns
        return self.seconds(_cosines(problem, candidates, sample), products)

    def floor_of_shapes(
        self, problem: TimedProblem, n_threads: int, candidates: int = 0, sample: int | None = None
    ) -> float:
        """Return the floor in seconds, with products timed in their actual shapes on one of `n_threads` cores."""
        size, (n_rows, n_columns) = problem.n_features, problem.X.shape
        n_timed = min(n_rows // (int(problem.sites.max()) + 1), rows_per_block(5 * size * 8))
        rng = np.random.default_rng(0)
        rows, frequencies = rng.uniform(size=(n_timed, n_columns)), rng.uniform(size=(n_columns, 5 * size))
        features, pool = np.empty((n_timed, 5 * size)), rng.uniform(size=(n_columns, candidates))
        block = block_rows(pool)
        angles = np.empty((block, candidates))

        def sums() -> None:
            np.matmul(rows, frequencies, out=features)
            features[:, :size].T @ features
            for start in range(size, 5 * size, size):
                part = features[:, start : start + size]
                part.T @ part

        def choice() -> None:
            for start in range(0, n_timed, block):
                taken = rows[start : start + block]
                np.matmul(taken, pool, out=angles[: len(taken)])

        with one_blas_thread:
            seconds = n_rows * best_seconds(sums, 60)
            if candidates:
                seconds += _chosen_by(problem, sample) * best_seconds(choice, 60)
        return float(self.seconds(_cosines(problem, candidates, sample), 0) + seconds / (n_timed * n_threads))

    def greedy_choice(self, problem: TimedProblem, candidates: int) -> float:
        """Return the seconds of the further operations that no greedy choice can avoid; L is the shortlist's size.

        Every row by which a site chooses takes L products with all candidates. Every row of its sample takes, for each
        of five shortlists (its own and its four neighbours'), L cosines, L d multiplications for angles, and
        L (L + 1) / 2 multiplications for products.
        """
        n_sites = int(problem.sites.max()) + 1
        listed, n_columns = Greedy().shortlist * problem.n_features, problem.X.shape[1]
        chosen_by, sampled = (min(len(problem.y), n_sites * max_rows) for max_rows in (_CHOSEN_BY, SAMPLE_ROWS))
        cosines = 5 * sampled * listed
        products = chosen_by * listed * candidates + 5 * sampled * listed * (n_columns + (listed + 1) / 2)
        return self.seconds(cosines, products)

    def seconds(self, cosines: float, products: float) -> float:
        """Return the seconds that these numbers of cosines and products take."""
        return float(cosines / self.cosines + products / self.products)


def _chosen_by(problem: TimedProblem, sample: int | None) -> int:
    return len(problem.y) if sample is None else min(len(problem.y), sample)


def _cosines(problem: TimedProblem, candidates: int, sample: int | None) -> float:
    return float(len(problem.y) * 5 * problem.n_features + _chosen_by(problem, sample) * candidates)


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
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    return {"processor": model, "cores": free_cores(), "python": platform.python_version(), **versions}


def split_fit(directory: Path | None, *, quick: bool) -> Iterator[TimedFigure]:
    """Time a fit with energy features on Houses and Tom's against the paper's port, the floor, and scikit-learn."""
    for name in ("houses", "tomshardware")[: 1 if quick else 2]:
        workload = problem(name, directory)
        fit = workload.fit("energy")
        fit()
        cores, candidates = free_cores(), 20 * workload.n_features
        port = partial(
            paper_port,
            workload.X,
            workload.y,
            workload.sites,
            workload.n_features,
            sigma=workload.sigma,
            alpha=workload.alpha,
        )
        turns = []
        for _ in range(1 if quick else 3):
            rates = FlopRates.measured(cores)
            turns.append(
                {
                    "fit": best_seconds(fit, 7),
                    "port": best_seconds(port, 1),
                    "floor": rates.floor_of_shapes(workload, cores, candidates),
                    _LOWER: rates.floor(workload, candidates),
                }
            )
        seconds = {what: min(turn[what] for turn in turns) for what in turns[0]}
        settings = workload.settings | {"features": "energy", "consensus": 1.0, "tol": 1e-6, "solver": "chebyshev"}
        yield _ratio(f"{name}: port / fit", "port", "fit", seconds, "higher", settings)
        for floor in ("floor", _LOWER):
            yield _ratio(f"{name}: fit / {floor}", "fit", floor, seconds, "lower", settings)
        pooled = pooled_peers(workload.X, workload.y, workload.n_features, sigma=workload.sigma, alpha=workload.alpha)
        for peer, run in pooled.items():
            timed = {"fit": seconds["fit"], peer: best_seconds(run, 1 if peer == "KernelRidge" else 3)}
            yield _ratio(f"{name}: {peer} / fit", peer, "fit", timed, "higher", settings)


def large_fit(directory: Path | None, *, quick: bool) -> Iterator[TimedFigure]:
    """Time fits on two million rows of household power against the floor and against scikit-learn."""
    workload = problem("household_power", directory, 200_000 if quick else None)
    rates = FlopRates.measured(free_cores())
    pooled = pooled_peers(workload.X, workload.y, workload.n_features, sigma=workload.sigma, alpha=workload.alpha)
    peer = "RBFSampler + Ridge"
    peer_seconds = best_seconds(pooled[peer], 1)
    floors = {}
    for features, candidates in (("plain", 0), ("greedy", 20 * workload.n_features)):
        floors[features] = {
            "floor": rates.floor_of_shapes(workload, free_cores(), candidates, sample=10 * _CHOSEN_BY),
            _LOWER: rates.floor(workload, candidates, sample=10 * _CHOSEN_BY),
        }
    chosen = rates.greedy_choice(workload, 20 * workload.n_features)
    floors["greedy"]["floor with the choice"] = floors["greedy"]["floor"] + chosen
    for features in ("plain", "greedy"):
        fit = workload.fit(features)
        seconds = {"fit": best_seconds(fit, 3 if quick else 1), **floors[features], peer: peer_seconds}
        settings = workload.settings | {"features": features, "consensus": 1.0, "tol": 1e-6}
        name = f"household_power, {features}, double"
        for floor in floors[features]:
            yield _ratio(f"{name}: fit / {floor}", "fit", floor, seconds, "lower", settings)
        yield _ratio(f"{name}: {peer} / fit", peer, "fit", seconds, "higher", settings)


def greedy_choice(directory: Path | None, *, quick: bool) -> Iterator[TimedFigure]:
    """Time the choice of 150 of 3000 candidates at one site, on one core, against evaluating the candidates."""
    for n_rows in (1400, 100_000)[: 1 if quick else 2]:
        rng = np.random.default_rng(0)
        X = rng.uniform(size=(n_rows, 96))
        y = np.sin(X @ rng.normal(size=96))
        selector = Greedy(150, sigma=4.0)
        pool = selector.draw_pool(96, rng).feature_map
        rows = X[: min(n_rows, _CHOSEN_BY)]
        parts = (pool.frequencies, pool.phases, pool.amplitudes)

        def evaluate(rows: Array = rows, parts: Any = parts) -> None:
            for _ in wave_blocks(rows, *parts):
                pass

        def choose(X: Array = X, y: Array = y, selector: Greedy = selector) -> None:
            selector.select(X, y, np.random.default_rng(0))

        with one_blas_thread:
            choose()
            seconds = {"choice": best_seconds(choose, 5), "candidates once": best_seconds(evaluate, 5)}
        settings = {"rows": n_rows, "columns": 96, "candidates": pool.n_features, "n_features": 150, "cores": 1}
        name = f"greedy, {n_rows} rows: choice / candidates once"
        yield _ratio(name, "choice", "candidates once", seconds, "lower", settings)


def many_sites(directory: Path | None, *, quick: bool, network: Any = None) -> Iterator[TimedFigure]:
    """Time fits on random 4-regular graphs of more and more sites, per site, against ten sites."""
    per_site: dict[int, float] = {}
    _network_fit(10, 100, network)()
    for n_sites in (10, 32, 100) if quick else (10, 32, 100, 320, 1000):
        seconds = best_seconds(_network_fit(n_sites, 100, network), 1)
        per_site[n_sites] = seconds / n_sites
        timed = {"fit": seconds, "a site": per_site[n_sites], "a site of ten": per_site[10]}
        settings = {"sites": n_sites, "neighbors": 4, "n_features": 100, "rows a site": 200, "features": "plain"}
        yield _ratio(f"{n_sites} sites: a site / a site of ten", "a site", "a site of ten", timed, "lower", settings)
    if not quick:
        timed = {f"D = {size}": best_seconds(_network_fit(100, size, network), 1) for size in (100, 400)}
        settings = {"sites": 100, "neighbors": 4, "n_features": 400, "rows a site": 200, "features": "plain"}
        yield _ratio("100 sites: D = 400 / D = 100", "D = 400", "D = 100", timed, "lower", settings)


def _network_fit(n_sites: int, n_features: int, network: Any) -> Callable[[], Any]:
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(200 * n_sites, 8))
    y, sites = np.sin(3 * X.sum(axis=1)), np.repeat(np.arange(n_sites), 200)
    workload = TimedProblem("made", X, y, sites, n_features, sigma=0.5, made=True)
    return workload.fit("plain", topology=nx.random_regular_graph(4, n_sites, seed=0), network=network)


def _ratio(name: str, above: str, below: str, seconds: Mapping[str, float], better: str, settings: Any) -> TimedFigure:
    ratio = seconds[above] / seconds[below]
    text = f"{above} takes {ratio:.3g} times as long as {below}"
    return TimedFigure(name=name, ratio=ratio, text=text, seconds=dict(seconds), better=better, settings=dict(settings))


FIGURES: dict[str, Callable[..., Iterator[TimedFigure]]] = {
    "split": split_fit,
    "large": large_fit,
    "greedy": greedy_choice,
    "sites": many_sites,
}
