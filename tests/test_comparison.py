"""The comparison of docs/accuracy.md is that of the results in the repository, and its rows are as it says."""

import json

import numpy as np
import pytest


@pytest.fixture
def comparison(benchmark_named):
    return benchmark_named("comparison")


def test_no_result_is_there_twice(comparison):
    results = json.loads(comparison.RESULTS.read_text())
    keys = [(result["data"], result["method"], result["seed"]) for result in results]
    assert len(set(keys)) == len(keys)


def test_a_table_has_means_and_standard_errors(comparison):
    made = {"data": "houses", "method": "ours", "union": 0.3, "megabytes": 2.0}
    results = [{**made, "seed": seed, "own": own} for seed, own in enumerate((0.1, 0.2))]
    own = comparison.table(results, ["houses", "energy"], "own")
    assert own.splitlines() == [
        "| own RSE | Houses |",
        "|---|--:|",
        "| default | **.1500 ± .0500** |",
        "| seeds of the default | 2 |",
    ]
    pooled = [{**made, "method": "hgb:pooled", "seed": 0, "own": 0.25}]
    assert "| HistGradientBoosting, pooled | .2500 |" in comparison.table([*results, *pooled], ["houses"], "own")
    assert "pooled" not in comparison.table([*results, *pooled], ["houses"], "union")


def test_costs_are_those_of_the_first_seed(comparison):
    sizes = {"features_own": 60.0, "features_shared": 709.0}
    made = {"data": "houses", "method": "ours", "megabytes": 3.2, "megabytes_tree": 2.41, **sizes}
    results = [made | {"seed": seed, "cpu_seconds": 4.0 + seed} for seed in (0, 1)]
    results += [{"data": "energy", "method": "hgb:pooled", "seed": 0, "cpu_seconds": 1.25}]
    results += [made | {"data": "beijing12", "seed": 0}]  # no time was taken
    *_, houses, beijing = comparison.costs(results).splitlines()
    assert houses == "| Houses | 709 + 60 | 3.2 | 2.4 | 4.0 |"
    assert beijing.endswith("| 709 + 60 | 3.2 | 2.4 |  |")
    head, _, ours, trees = comparison.seconds(results).splitlines()
    assert head == "| seconds of processor time | Houses | Energy | Beijing, half of the rows (190,000) |"
    assert (ours, trees) == ("| default | 4.0 |  |  |", "| HistGradientBoosting, pooled |  | 1.2 |  |")


def test_models_of_sites_are_scored_on_own_and_on_all_rows(comparison, monkeypatch):
    rng = np.random.default_rng(0)
    X, sites = rng.random((200, 2)), np.arange(200) % 2
    y = np.where(sites == 0, X[:, 0], -X[:, 0])  # what one site learns is wrong at the other
    monkeypatch.setattr(comparison, "rows_of", lambda name, directory: ((X, y, sites), (X, y, sites)))
    result = comparison.measured("hgb:sites", "made", 0, None)
    assert result["own"] < 0.2
    assert result["union"] > 0.5
    pooled = comparison.measured("hgb:pooled", "made", 0, None)
    assert pooled["own"] == pooled["union"] > 0.5


def test_the_page_holds_the_default_to_the_earlier_one_and_to_pooled_trees(comparison):
    made = [("houses", "ours", 0.1), ("houses", "earlier", 0.2), ("energy", "ours", 0.9), ("energy", "earlier", 1.0)]
    made += [("houses", "hgb:pooled", 0.15), ("energy", "hgb:pooled", 0.5)]
    results = [{"data": data, "method": method, "seed": 0, "own": own, "union": own / 2} for data, method, own in made]
    own, union, trees = comparison.comparisons(results).splitlines()
    assert own.endswith("less by: Houses 50.0 %, Energy 10.0 %; mean 30.0 %.")
    assert union.startswith("- union RSE")
    assert "ahead on 1 of 2 (Houses)" in trees


def test_the_earlier_results_are_those_of_the_other_benchmark(comparison):
    results = json.loads(comparison.RESULTS.read_text())
    kept = [result for result in results if result["method"] == "earlier"]
    assert kept == comparison.earlier(results)
    assert {result["data"] for result in kept} == {name.replace(":0.1", "") for name in comparison.SIX}


def test_tuned_trees_of_pooled_rows_know_the_site(comparison, monkeypatch):
    rng = np.random.default_rng(0)
    X, sites = rng.random((400, 2)), np.arange(400) % 4
    y = X[:, 0] + 5.0 * sites
    monkeypatch.setattr(comparison, "rows_of", lambda name, directory: ((X, y, sites), (X, y, sites)))
    for method in ("trees:pooled", "trees:sites", "ridge:pooled"):
        assert comparison.measured(method, "made", 0, None)["own"] < 0.02


def test_mixed_models_are_fitted_where_columns_follow_from_each_other(benchmark_named):
    """REML needs columns that do not: the sum of two takes nothing away. Sites that do not differ have no levels."""
    pytest.importorskip("statsmodels")
    module = benchmark_named("real_sites")
    rng = np.random.default_rng(0)
    X, site = rng.normal(size=(400, 2)), np.arange(400) % 8
    X = np.column_stack((X, X.sum(axis=1), np.ones(400)))
    for size in (3.0, 0.0):
        y = 50 + 2 * X[:, 0] - X[:, 1] + size * site + 0.1 * rng.normal(size=400)
        predicted = module.mixed(X[:300], y[:300], site[:300], X[300:], site[300:])
        assert module.rse(y[300:], predicted) < 0.01
