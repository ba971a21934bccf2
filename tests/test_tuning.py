"""Tuning without a centre against the same done with all rows in one place."""

import re
import warnings
from dataclasses import replace

import numpy as np
import pytest

from conftest import make_problem
from dekrr import DeKRRRegressor, MessageError, SettingsError
from dekrr.data import make_sites
from dekrr.messages import Total
from dekrr.networks.local import LocalNetwork
from dekrr.protocols import dekrr
from dekrr.protocols.run import OWN_WEIGHTS, Tuning, neighborhood_weights
from dekrr.selection import Greedy, Plain
from dekrr.settings import ALONE, WITH_SHARED, DeKRRSettings, TuningSettings, entries

FOLDS = 2


def tuning(**changes):
    common = {"sigmas": (0.5,), "alphas": (1e-4, 1e-2), "consensuses": (0.5, 4.0), "folds": FOLDS}
    return Tuning(**{**common, **changes})


def run(problem, chosen):
    network = LocalNetwork(problem.graph)
    settings = DeKRRSettings(
        lone_neighbor="warn", scale=None, min_rows=1, rows_per_feature=0, max_leverage=1, verify_features=False
    )
    outcomes = network.run({name: dekrr.train(site, Plain(), settings, chosen) for name, site in problem.sites.items()})
    return outcomes, network.traffic


def held_out_errors(problem, chosen):
    """Solve every fold and candidate exactly and return the squared errors, summed over sites and folds."""
    fold_of = {n: s.fold_of(FOLDS) for n, s in problem.sites.items()}
    errors = []
    for _, alpha, consensus, own_weight in chosen.grid:
        total = 0.0
        for fold in range(FOLDS):
            kept = {n: replace(s, rows=s.rows.take(fold_of[n] != fold)) for n, s in problem.sites.items()}
            share = sum(s.n_rows for s in kept.values()) / problem.n_rows
            ridge = alpha * (1 - 1 / FOLDS) / share  # folds count as equally large, which N is divided by
            solution = replace(problem, sites=kept, alpha=ridge, consensus=consensus).solution()
            for name, site in problem.sites.items():
                X, y = site.X[fold_of[name] == fold], site.y[fold_of[name] == fold]
                held = [name, *site.neighbors]
                predictions = {p: problem.sites[p].feature_map(X) @ solution[p] for p in held}

                def error(middle, others, predictions=predictions, y=y, own_weight=own_weight):
                    n_others = len(others) if chosen.prediction == "neighborhood" else 0
                    weights = neighborhood_weights(n_others, own_weight)
                    mixed = sum(w * predictions[p] for w, p in zip(weights, [middle, *others], strict=False))
                    return np.sum((mixed - y) ** 2)

                total += error(name, site.neighbors)
        errors.append(total)
    return np.array(errors)


@pytest.mark.parametrize("prediction", ["own", "neighborhood"])
def test_scores_are_held_out_errors(prediction):
    problem = make_problem(4, n_sites=5, rows=(20, 21))
    chosen = tuning(prediction=prediction)
    outcomes, traffic = run(problem, chosen)
    expected = held_out_errors(problem, chosen)
    for outcome in outcomes.values():
        np.testing.assert_allclose(outcome.tuned.errors * problem.n_rows, expected, rtol=5e-3)
        best = chosen.grid[int(np.argmin(expected))]
        assert (outcome.tuned.sigma, outcome.tuned.alpha, outcome.tuned.consensus, outcome.tuned.own_weight) == best
        assert outcome.own_weight == best[-1]
    one_total = LocalNetwork({"a": ["b"], "b": ["a"]})
    one_total.run({"a": _say(Total(np.zeros(len(expected)))), "b": _say(None)})
    per_message = one_total.traffic.bytes[("a", "b")]
    assert traffic.bytes_by_kind["Total"] == per_message * traffic.messages_by_kind["Total"]


def _say(message):
    yield {"b": message} if message is not None else {}


@pytest.mark.parametrize(("seed", "best_alpha"), [(2, 1e-2), (5, 1e-4)])
def test_one_site_alone_is_tuned_too(seed, best_alpha):
    """Alone it has an exact solution for every alpha: its errors are those, and its choice is the smallest."""
    problem = make_problem(seed, n_sites=1, rows=(30, 31))
    chosen = tuning(prediction="own")
    outcomes, traffic = run(problem, chosen)
    expected = held_out_errors(problem, chosen)
    np.testing.assert_allclose(outcomes["0"].tuned.errors * problem.n_rows, expected, rtol=1e-6)
    assert chosen.grid[int(np.argmin(expected))][1] == best_alpha
    assert outcomes["0"].tuned.alpha == best_alpha
    assert traffic.total_bytes == 0


X, y, SITES = make_sites(n_sites=5, random_state=0)
X_NEW, Y_NEW, SITES_NEW = make_sites(n_sites=5, random_state=1)
SMALL = {"n_features": 16, "folds": 2, "random_state": 0}


def test_grids_are_searched_and_the_best_is_used():
    grid = {"sigma": (0.01, 0.5), "alpha": (1e-5, 10.0), "consensus": (0.5, 1.0)}
    fitted = DeKRRRegressor(**SMALL, **ALONE, **grid).fit(X, y, sites=SITES)
    assert fitted.sigma_ == 0.5
    assert fitted.alpha_ == 1e-5
    table = fitted.tuning_
    assert set(table) == {"sigma", "alpha", "consensus", "own_weight", "error"}
    assert len(table["error"]) == 8 * len(OWN_WEIGHTS)
    best = np.argmin(table["error"])
    chosen = (fitted.sigma_, fitted.alpha_, fitted.consensus_, fitted.own_weight_)
    assert chosen == tuple(table[name][best] for name in ("sigma", "alpha", "consensus", "own_weight"))
    numbers = dict(zip(("sigma", "alpha", "consensus"), chosen, strict=False))
    again = DeKRRRegressor(n_features=16, random_state=0, **ALONE, **numbers)
    again.fit(X, y, sites=SITES)
    for site, model in fitted.models_.items():
        np.testing.assert_allclose(again.models_[site].coefficients, model.coefficients)
        assert model.members[0].weight == fitted.own_weight_
    assert again.tuning_ is None
    assert fitted.models_["station 00"].header.sigma == 0.5


def test_defaults_beat_the_papers_method():
    ours = DeKRRRegressor(**SMALL).fit(X, y, sites=SITES)
    paper = DeKRRRegressor(**SMALL, **ALONE, features="energy", prediction="own").fit(X, y, sites=SITES)
    for metric in ("own", "union"):
        errors = [r.rse(X_NEW, Y_NEW, sites=SITES_NEW, metric=metric) for r in (ours, paper)]
        assert errors[0] < errors[1]


@pytest.mark.parametrize("bad", [(), (1.0, -1.0), (0.5, np.nan), ("wide",)])
def test_bad_grids(bad):
    with pytest.raises((SettingsError, ValueError), match=r"alpha|convert"):
        DeKRRRegressor(**SMALL, alpha=bad).fit(X, y, sites=SITES)


def test_neighbours_sums_take_part_in_the_choice():
    problem = make_problem(2, n_sites=4, rows=(60, 61))
    sites = {n: replace(s, feature_map=None) for n, s in problem.sites.items()}
    guards = {"masks": False, "min_rows": 1, "max_leverage": 1, "shortlist_rows": 0}
    settings = DeKRRSettings(lone_neighbor="warn", **guards, scale=None, consensus=1.0, verify_features=False)
    selector = Greedy(5, sigma=0.5, shortlist=2.0)
    network = LocalNetwork(problem.graph)
    outcomes = network.run({n: dekrr.train(s, selector, settings) for n, s in sites.items()})
    for name, site in sites.items():
        shortlist = selector.shortlisted(site.X, site.y, site.rng())
        assert shortlist.n_candidates == 10
        weighted = [(site, 1.0), *((sites[p], 1 / len(site.neighbors)) for p in site.neighbors)]
        features = [(shortlist.feature_map(s.X), s.y, w) for s, w in weighted]
        gram, moment = sum(w * Z.T @ Z for Z, _, w in features), sum(w * Z.T @ t for Z, t, w in features)
        expected = selector.choose_from(shortlist, gram, moment, 120.0)
        np.testing.assert_array_equal(outcomes[name].feature_map.frequencies, expected.frequencies)
    alone = LocalNetwork(problem.graph)
    alone.run({n: dekrr.train(s, selector.replace(shortlist=1.0), settings) for n, s in sites.items()})
    assert network.traffic.messages_by_kind["Moments"] > 0
    assert alone.traffic.messages_by_kind["Moments"] == 0


def test_what_cannot_be_solved_is_not_chosen():
    X, y, sites = make_sites(n_sites=4, rows_per_site=80, random_state=0)
    settings = {"n_features": 60, "features": "plain", "sigma": 2.0, "random_state": 0, "rows_per_feature": 0}
    grid = {"alpha": [1e-22, 1e-4], "consensus": [1.0, 8.0, 32.0]}
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        fitted = DeKRRRegressor(**settings, **grid).fit(X, y, sites=sites)
    assert fitted.alpha_ == 1e-4
    assert fitted.tuning_["error"].max() > 1e50
    assert fitted.rse(X, y, sites=sites) < 0.6


class Growing(Plain):
    """One feature more each time."""

    def select(self, X, y, rng):
        object.__setattr__(self, "n_features", self.n_features + 1)
        return super().select(X, y, rng)


def test_maps_of_another_size_for_another_fold_are_refused():
    problem = make_problem(3, n_sites=3)
    sites = {name: replace(site, feature_map=None) for name, site in problem.sites.items()}
    settings = DeKRRSettings(
        lone_neighbor="warn", scale=None, min_rows=1, rows_per_feature=0, max_leverage=1, verify_features=False
    )
    liar = sorted(problem.graph[min(sites)])[0]
    selectors = {name: Growing(4) if name == liar else Plain(4) for name in sites}
    procedures = {name: dekrr.train(sites[name], selectors[name], settings, tuning()) for name in sorted(sites)}
    with pytest.raises(MessageError, match=f"{liar!r} sent maps of different sizes for different folds"):
        LocalNetwork(problem.graph).run(procedures)


def test_what_auto_stands_for_is_what_the_settings_say():
    X, y, sites = make_sites(n_sites=3, random_state=0)
    fitted = DeKRRRegressor(n_features=8, intervals=False, random_state=0).fit(X, y, sites=sites)
    assert fitted.tuning_ is None
    texts = {name: entry.setting.text for name, entry in entries(TuningSettings).items()}
    assert "derives it from the spread" in texts["sigma"]
    assert fitted.consensus_ == float(re.search(r'"auto" is ([\d.e-]*\d)', texts["consensus"])[1])
    least = float(re.search(r'"auto" is the ridge of its small models, at least ([\d.e-]*\d)', texts["alpha"])[1])
    assert fitted.alpha_ >= least == WITH_SHARED["alpha"]
    alone = DeKRRRegressor(n_features=8, shared=None, local=None, column_scales=None, folds=2, intervals=False)
    assert {"sigma", "alpha", "consensus"} < set(alone.fit(X, y, sites=sites).tuning_)


def test_objective_is_told_to_have_no_effect():
    tuned = {**SMALL, **ALONE, "sigma": 0.5, "alpha": (1e-6, 1e-3), "consensus": (0.5, 2.0)}
    plain = DeKRRRegressor(**tuned).fit(X, y, sites=SITES)
    with pytest.warns(FutureWarning, match=r"objective='union' has no effect any more"):
        given = DeKRRRegressor(**tuned, objective="union").fit(X, y, sites=SITES)
    np.testing.assert_array_equal(given.predict(X, sites=SITES), plain.predict(X, sites=SITES))
    with pytest.raises(SettingsError, match="objective"):
        DeKRRRegressor(objective="all").fit(X, y, sites=SITES)


@pytest.mark.parametrize(("name", "value"), [("allocation", "gain"), ("precision", "mixed"), ("self_penalty", "bound")])
def test_a_value_that_is_gone_warns_and_stands_for_the_default(name, value):
    numbers = {**SMALL, **ALONE, "sigma": 0.5, "alpha": 1e-4, "consensus": 1.0, "solver": "jacobi"}
    plain = DeKRRRegressor(**numbers).fit(X, y, sites=SITES)
    with pytest.warns(FutureWarning, match=f"{name}='{value}' is gone"):
        given = DeKRRRegressor(**numbers, **{name: value}).fit(X, y, sites=SITES)
    np.testing.assert_array_equal(given.predict(X, sites=SITES), plain.predict(X, sites=SITES))
