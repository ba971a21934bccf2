import json

import networkx as nx
import numpy as np
import pytest

pytest.importorskip("typer")

from typer.testing import CliRunner

from conftest import Problem
from dekrr import DeKRRRegressor
from dekrr.cli.app import app
from dekrr.errors import DekrrError
from dekrr.features import FeatureMap
from dekrr.lab.experiments import speed
from dekrr.protocols.site import Site
from dekrr.tables.rows import ArrayRows
from dekrr.topology import build


def test_the_port_solves_the_full_system(monkeypatch):
    """Its fixed point is the minimum of the objective, found from all rows at once."""
    monkeypatch.setattr(speed, "ROUNDS", 8000)
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(300, 3))
    y, labels = np.sin(4 * X.sum(axis=1)), np.sort(rng.integers(6, size=300))
    maps, coefficients = speed.paper_port(X, y, labels, 8, sigma=0.5, alpha=1e-3)
    graph = nx.relabel_nodes(build("ring", list(range(6))), str)
    sites = {}
    for j, (frequencies, phases) in enumerate(maps):
        rows = ArrayRows(X[labels == j], y[labels == j])
        feature_map = FeatureMap.unweighted(frequencies, phases)
        sites[str(j)] = Site(str(j), tuple(graph[str(j)]), rows, feature_map=feature_map)
    solution = Problem(graph, sites, alpha=1e-3, consensus=1.0).solution()
    for j, theta in enumerate(coefficients):
        np.testing.assert_allclose(theta, solution[str(j)], rtol=1e-6, atol=1e-9)


def test_floors_grow_with_what_is_needed(benchmark_named):
    rates = benchmark_named("floors").FlopRates(cosines=1e9, products=1e10)
    rng = np.random.default_rng(0)
    small, large = (
        speed.TimedProblem("made", rng.uniform(size=(n, 4)), np.zeros(n), np.arange(n) % 10, 20, 1.0, made=True)
        for n in (1000, 2000)
    )
    assert rates.floor(large) == pytest.approx(2 * rates.floor(small))
    assert rates.floor(small, candidates=400) > rates.floor(small)
    by_hand = 1000 * (5 * 20 / 1e9 + (5 * 20 * 4 + 5 * 20 * 21 / 2 + 4 * 20**2) / 1e10)
    assert rates.floor(small) == pytest.approx(by_hand)
    of_shortlists = 1000 * (60 * 400 + 5 * 60 * 4 + 5 * 60 * 61 / 2) / 1e10
    assert rates.greedy_choice(small, 400) == pytest.approx(1000 * 5 * 60 / 1e9 + of_shortlists)


def test_made_rows_stand_in_for_data_that_is_not_there(tmp_path):
    given = speed.problem("houses", tmp_path, n_rows=500)
    assert given.made
    assert given.settings["data"] == "made up, in the shape of houses"
    fitted = given.fit("plain", n_features=5)()
    assert isinstance(fitted, DeKRRRegressor)


def test_bench_writes_and_compares(tmp_path, monkeypatch):
    def figure(directory, *, quick):
        yield speed.TimedFigure(
            name="a / b", ratio=4.0, text="", seconds={"a": 4.0, "b": 1.0}, better="higher", settings={"quick": quick}
        )

    monkeypatch.setattr("dekrr.lab.commands.bench.FIGURES", {"one": figure})
    path = tmp_path / "figures" / "speed.json"
    run = CliRunner().invoke(app, ["bench", "--quick", "--out", str(path)])
    assert run.exit_code == 0, run.output
    kept = json.loads(path.read_text())
    assert kept["figures"][0]["ratio"] == 4.0
    assert kept["machine"]["cores"] >= 1
    kept["figures"][0]["ratio"] = 8.0
    path.write_text(json.dumps(kept))
    compared = CliRunner().invoke(app, ["bench", "--compare", str(path)])
    assert "8 slower" in compared.output
    missing = CliRunner().invoke(app, ["bench", "--compare", str(tmp_path / "none.json")])
    assert isinstance(missing.exception, DekrrError)
    assert "dekrr bench --out" in str(missing.exception)


def test_unknown_figures_are_named():
    run = CliRunner().invoke(app, ["bench", "--only", "everything"])
    assert "unknown figures everything; choose from" in str(run.exception)
