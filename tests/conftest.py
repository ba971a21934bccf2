"""What tests share: a small random problem with its full linear system, and the data directory."""

import importlib
import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import networkx as nx
import numpy as np
import pandas as pd
import pytest
from hypothesis import settings

from dekrr.features import FeatureMap
from dekrr.privacy.admission import learn
from dekrr.protocols.site import Site
from dekrr.tables.rows import ArrayRows, RowHash

settings.register_profile("untimed", deadline=None)  # no test asserts a time
settings.load_profile("untimed")


@pytest.fixture(scope="session")
def data_directory():
    directory = os.environ.get("DEKRR_DATA")
    if not directory or not Path(directory).is_dir():
        pytest.skip("needs real data: set DEKRR_DATA to its directory")
    return Path(directory)


@pytest.fixture
def open_folds(monkeypatch):
    """Give nodes in threads of this process the folds of an estimator, so that their models can be compared."""
    monkeypatch.setattr(Site, "in_order", lambda site: replace(site, rows=site.rows.in_order(RowHash())))


@pytest.fixture
def benchmark_named(monkeypatch):
    """Return a function that imports a script of benchmarks/ by its name."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "benchmarks"))
    known = set(sys.modules)
    yield importlib.import_module
    for name in set(sys.modules) - known:
        if "benchmarks" in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def write_made_up_sets(folder, n_rows):
    """Write made-up rows under the names of two data sets, with as many columns as these have."""
    rng = np.random.default_rng(0)
    for name, d in (("houses", 8), ("airquality", 13)):
        X = rng.uniform(size=(n_rows, d))
        y = np.sin(4 * X[:, 0]) + X[:, 1] ** 2 + 0.1 * rng.normal(size=n_rows)
        pd.DataFrame(X, columns=[f"x{i}" for i in range(d)]).assign(y=y).to_parquet(folder / f"{name}.parquet")


@pytest.fixture(scope="session")
def load_split(data_directory):
    """Return a function that reads one of the authors' splits: (X, y, sites) to train and to test, and the file."""

    def load(name):
        path = data_directory / "splits" / f"{name}.npz"
        if not path.exists():
            pytest.skip(f"needs {path.name} in {path.parent}")
        split = np.load(path)
        n_sites = int(split["n_nodes"])

        def part(kind):
            ys = [split[f"y_{kind}_{j}"] for j in range(n_sites)]
            X = np.vstack([split[f"X_{kind}_{j}"] for j in range(n_sites)])
            return X, np.concatenate(ys), np.repeat(np.arange(n_sites), [len(y) for y in ys])

        return part("train"), part("test"), split

    return load


@dataclass
class Problem:
    """Sites with given feature maps on a random connected graph, and the system solved with everything in sight."""

    graph: nx.Graph
    sites: dict[str, Site]
    alpha: float
    consensus: float
    max_leverage: float = 1.0

    @property
    def n_rows(self):
        return sum(int(self.typical(site).sum()) for site in self.sites.values())

    def design(self):
        """Return A, b and slices with |A theta - b|^2 the objective: one row a term, built from rows of data."""
        ends = np.cumsum([site.feature_map.n_features for site in self.sites.values()])
        slices = {n: slice(e - s.feature_map.n_features, e) for (n, s), e in zip(self.sites.items(), ends, strict=True)}
        total = ends[-1]
        blocks, targets = [], []

        def add(weight, parts, target):
            block = np.zeros((len(target), total))
            for name, matrix in parts.items():
                block[:, slices[name]] = matrix
            blocks.append(np.sqrt(weight) * block)
            targets.append(np.sqrt(weight) * target)

        for name, site in self.sites.items():
            kept = self.typical(site)
            own = site.feature_map(site.X[kept])
            add(1 / self.n_rows, {name: own}, site.y[kept])
            add(self.alpha / len(self.sites), {name: np.eye(own.shape[1])}, np.zeros(own.shape[1]))
            for p in site.neighbors:
                weight = self.consensus / (self.n_rows * len(site.neighbors))
                theirs = self.sites[p].feature_map(site.X[kept])
                add(weight, {name: own, p: -theirs}, np.zeros(kept.sum()))
        return np.vstack(blocks), np.concatenate(targets), slices

    def typical(self, site):
        """Return which rows of a site are in the sums for its neighbours: the same for all of them."""
        if self.max_leverage == 1 or not site.neighbors:
            return np.ones(site.n_rows, dtype=bool)
        return learn(site.rows, self.max_leverage)(site.X)

    def objective(self, coefficients):
        A, b, slices = self.design()
        theta = np.empty(A.shape[1])
        for name, part in slices.items():
            theta[part] = coefficients[name]
        return float(np.sum((A @ theta - b) ** 2))

    def solution(self):
        A, b, slices = self.design()
        theta = np.linalg.lstsq(A, b, rcond=None)[0]
        return {name: theta[part] for name, part in slices.items()}


def make_problem(seed, n_sites=5, consensus=1.0, alpha=1e-3, rows=(12, 40), features=(2, 7), n_columns=3):
    rng = np.random.default_rng(seed)
    graph = nx.gnp_random_graph(n_sites, 0.4, seed=int(rng.integers(1 << 30)))
    order = rng.permutation(n_sites)
    graph.add_edges_from(zip(order[:-1].tolist(), order[1:].tolist(), strict=True))
    sites = {}
    for j in range(n_sites):
        n_rows, n_features = int(rng.integers(*rows)), int(rng.integers(*features))
        X = rng.uniform(size=(n_rows, n_columns)) + rng.normal(scale=0.3, size=n_columns)
        y = np.sin(3 * X.sum(axis=1)) + rng.normal(scale=0.1, size=n_rows)
        frequencies = rng.normal(scale=2.0, size=(n_columns, n_features))
        feature_map = FeatureMap.unweighted(frequencies, rng.uniform(0, 2 * np.pi, n_features))
        neighbors = tuple(str(p) for p in graph[j])
        sites[str(j)] = Site(str(j), neighbors, ArrayRows(X, y), feature_map=feature_map)
    return Problem(nx.relabel_nodes(graph, str), sites, alpha, consensus)


def tampered(procedure, change):
    """Follow a procedure, but send what `change(receiver, message)` gives: another message, or None for none at all."""
    outbox = next(procedure)
    while True:
        changed = {receiver: change(receiver, message) for receiver, message in outbox.items()}
        inbox = yield {receiver: message for receiver, message in changed.items() if message is not None}
        try:
            outbox = procedure.send(inbox)
        except StopIteration as stop:
            return stop.value
