"""Going on from a fitted network against training on all rows with the same features and scaling."""

import pickle
import weakref
from dataclasses import replace
from unittest import mock

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import Ridge

from dekrr import DataError, DeKRRRegressor, GreedySelector, SettingsError, TopologyError
from dekrr.data import make_sites
from dekrr.errors import DekrrWarning
from dekrr.estimators.network import run, sites_of
from dekrr.networks.local import LocalNetwork
from dekrr.parts.local import constant_of
from dekrr.protocols import dekrr, training
from dekrr.protocols.online import go_on
from dekrr.protocols.shared_part import solve_shared
from dekrr.protocols.site import Site
from dekrr.selection import Greedy
from dekrr.settings import ALONE, DeKRRSettings
from dekrr.solvers import Chebyshev
from dekrr.tables.rows import ArrayRows

X, y, SITES = make_sites(n_sites=5, random_state=0)
X_MORE, Y_MORE, SITES_MORE = make_sites(n_sites=5, random_state=1)
SETTINGS = {**ALONE, "n_features": 8, "sigma": 0.5, "alpha": 1e-2, "consensus": 1.0, "tol": 1e-13, "max_rounds": 5000}
QUICK = {**ALONE, "n_features": 8, "sigma": 0.5, "alpha": 1e-2, "consensus": 1.0, "random_state": 0}


def fitted(store_rows=True, **more):
    return DeKRRRegressor(**SETTINGS, random_state=0, store_rows=store_rows, **more).fit(X, y, sites=SITES)


def trained_again(regressor, X, y, sites):
    """Train from nothing on all rows, with the features and scaling that a regressor has."""
    settings = DeKRRSettings(
        lone_neighbor="warn",
        alpha=1e-2,
        consensus=1.0,
        tol=1e-13,
        max_rounds=5000,
        scale=None,
        max_leverage=1,
        verify_features=False,
    )
    scaling = regressor.models_[regressor.sites_[0]].scaling
    rows = {
        label: ArrayRows(scaling.rows(X[sites == label]), scaling.responses(y[sites == label]))
        for label in regressor.sites_
    }
    made = {
        label: replace(site, feature_map=regressor.models_[label].feature_map)
        for label, site in sites_of(rows, regressor.graph_).items()
    }
    return run(made, lambda _, site: dekrr.train(site, Greedy(sigma=0.5), settings)).outcomes


def same(regressor, expected):
    for label in regressor.sites_:
        actual = regressor.models_[label].coefficients
        np.testing.assert_allclose(actual, expected[label].coefficients, rtol=0, atol=1e-8)
    objective = sum(outcome.objective_shares[-1] for outcome in expected.values())
    assert regressor.objective_ == pytest.approx(objective, abs=1e-10)


@pytest.mark.parametrize("store_rows", [False, True])
def test_new_rows(store_rows):
    regressor = fitted(store_rows)
    before = regressor.traffic_.bytes_by_kind["Features"]
    some = np.isin(SITES_MORE, ["station 01", "station 03"])
    regressor.partial_fit(X_MORE[some], Y_MORE[some], sites=SITES_MORE[some])
    every = np.vstack([X, X_MORE[some]]), np.append(y, Y_MORE[some]), np.append(SITES, SITES_MORE[some])
    same(regressor, trained_again(regressor, *every))
    assert before > 0
    assert regressor.traffic_.bytes_by_kind["Features"] == 0
    regressor.partial_fit(X_MORE[~some], Y_MORE[~some], sites=SITES_MORE[~some])
    every = np.vstack([X, X_MORE]), np.append(y, Y_MORE), np.append(SITES, SITES_MORE)
    same(regressor, trained_again(regressor, *every))


def test_warm_start_takes_fewer_rounds():
    settings = {**SETTINGS, "tol": 1e-5, "n_sites": 5}
    regressor = DeKRRRegressor(**settings, random_state=0).fit(np.repeat(X, 20, axis=0), np.repeat(y, 20))
    cold = regressor.n_rounds_
    assert regressor.partial_fit(X_MORE, Y_MORE).n_rounds_ < cold


@pytest.mark.parametrize("store_rows", [False, True])
def test_a_site_leaves(store_rows):
    regressor = fitted(store_rows).remove_site("station 02")
    assert regressor.sites_ == ["station 00", "station 01", "station 03", "station 04"]
    stay = SITES != "station 02"
    same(regressor, trained_again(regressor, X[stay], y[stay], SITES[stay]))
    with pytest.raises(DataError, match="unknown sites"):
        regressor.predict(X[:1], sites=["station 02"])


BOUNDS = [*X.min(axis=0), -4.0], [*X.max(axis=0), 4.0]  # public: folds are made by rows that are not scaled
PARTS = {"n_features": 8, "bounds": BOUNDS, "shared": 30, "local": Ridge(1e-3), "exclude": None, "intervals": False}
PARTS |= {"tol": 1e-13, "max_rounds": 5000, "store_rows": True}


@settings(max_examples=6)
@given(st.integers(0, 2**16), st.sampled_from(sorted(set(SITES))), st.booleans(), st.sampled_from(["auto", 3.0, None]))
def test_a_site_leaves_all_parts(seed, leaver, is_weighted, site_effect):
    """The model is that of the others' rows with the same features, scales and ridge: to the last digits."""
    rng = np.random.default_rng(seed)
    y_here = y + 0.5 * np.unique(SITES, return_inverse=True)[1]
    weight = rng.uniform(0.5, 2.0, len(y)) if is_weighted else None
    regressor = DeKRRRegressor(**PARTS, site_effect=site_effect, random_state=seed)
    regressor.fit(X, y_here, sites=SITES, sample_weight=weight).remove_site(leaver)
    outcomes = regressor._standing.outcomes
    assert leaver not in outcomes

    # The shared part and levels, as one regression whose columns are features and sites.
    stay, labels = leaver != SITES, regressor.sites_
    part, scaling = outcomes[labels[0]].shared, outcomes[labels[0]].scaling
    Z = part.feature_map(scaling.rows(X[stay]))
    has_levels = site_effect is not None and np.isfinite(part.ratio)
    design = np.hstack([Z, SITES[stay, None] == labels]) if has_levels else Z
    weights = np.ones(stay.sum()) if weight is None else weight[stay]
    penalty = np.full(design.shape[1], part.ridge * weights.sum())
    penalty[constant_of(part.feature_map)] = 0.0
    penalty[Z.shape[1] :] = part.ratio * weights.mean()
    root = np.sqrt(weights)
    stacked = np.vstack([design * root[:, None], np.diag(np.sqrt(penalty))])
    y_scaled = scaling.responses(y_here[stay])
    solution = np.linalg.lstsq(stacked, np.append(y_scaled * root, np.zeros(len(penalty))), rcond=None)[0]
    ours = [Z[SITES[stay] == name] @ part.coefficients + outcomes[name].shared.level for name in labels]
    theirs = [(design @ solution)[SITES[stay] == name] for name in labels]
    np.testing.assert_allclose(np.concatenate(ours), np.concatenate(theirs), rtol=0, atol=1e-9)

    # All parts, by training the others from nothing.
    def given_part(start, run, *_, **__):
        return (yield from solve_shared(start, run, part.feature_map, part.ridge, part.ratio, settled=True))

    fixed = {"column_scales": tuple(outcomes[labels[0]].column_scales)}
    chosen = regressor.run_settings(site_effect=site_effect and 1.0, weighted=is_weighted, **fixed)
    chooser, pick = regressor._choosing().chooser(8), {name: name == SITES for name in labels}
    rows = {name: ArrayRows(X[own], y_here[own], None if weight is None else weight[own]) for name, own in pick.items()}
    made = sites_of(rows, regressor.graph_, seed=regressor._standing.seed)
    made = {name: replace(site, feature_map=outcomes[name].feature_map) for name, site in made.items()}
    with mock.patch.object(training, "fit_shared", given_part):
        expected = run(made, lambda _, site: training.train_parts(site, chooser, chosen)).outcomes
    for name in labels:
        for elsewhere in (False, True):
            ours, theirs = (one[name].predicted(X, "neighborhood", elsewhere=elsewhere) for one in (outcomes, expected))
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-8)


def test_which_sites_can_leave_a_model_with_a_shared_part():
    sums_alone = DeKRRRegressor(**{**PARTS, "store_rows": False}, random_state=0).fit(X, y, sites=SITES)
    with pytest.raises(SettingsError, match="store_rows=True to let sites leave"):
        sums_alone.remove_site("station 02")
    hidden = DeKRRRegressor(**{**PARTS, "options": {"masks": True}}, random_state=0)
    with pytest.raises(SettingsError, match="would tell its own"):
        hidden.fit(X, y, sites=SITES).remove_site("station 02")
    X_ours, y_ours, names = make_sites(n_sites=5, rows_per_site=120, random_state=0)
    wrong = np.where(names == "station 04", -y_ours, y_ours)
    with pytest.warns(DekrrWarning, match="it is left out"):
        sifted = DeKRRRegressor(**{**PARTS, "exclude": "harmful"}, random_state=0).fit(X_ours, wrong, sites=names)
    before = sifted.predict(X[:9], sites=["station 01"] * 9)
    assert set(sifted.remove_site("station 04").models_) == set(sifted.sites_) == set(SITES) - {"station 04"}
    np.testing.assert_array_equal(sifted.predict(X[:9], sites=["station 01"] * 9), before)
    assert list(sifted.remove_site("station 01").models_) == sifted.sites_


def test_a_site_joins():
    regressor = fitted()
    newcomer = np.full(40, "harbour")
    edges = [("harbour", "station 00"), ("harbour", "station 03")]
    regressor.partial_fit(X_MORE[:40], Y_MORE[:40], sites=newcomer, edges=edges)
    assert set(regressor.graph_["harbour"]) == {"station 00", "station 03"}
    every = np.vstack([X, X_MORE[:40]]), np.append(y, Y_MORE[:40]), np.append(SITES.astype(object), newcomer)
    same(regressor, trained_again(regressor, *every))
    assert np.isfinite(regressor.predict(X_MORE[:3], sites=newcomer[:3])).all()


def test_first_call_fits():
    first = DeKRRRegressor(**SETTINGS, random_state=0).partial_fit(X, y, sites=SITES)
    np.testing.assert_array_equal(first.predict(X), fitted().predict(X))


def test_a_newcomer_s_settings_are_checked():
    regressor = fitted().set_params(features=GreedySelector(ridge=-1.0))
    edges = [("harbour", "station 00")]
    with pytest.raises(ValueError, match="'ridge' parameter"):
        regressor.partial_fit(X_MORE[:40], Y_MORE[:40], sites=np.full(40, "harbour"), edges=edges)


def test_what_cannot_be():
    regressor = fitted()
    before = regressor.predict(X)
    with pytest.raises(DataError, match="station 00' has 3 new rows, fewer than min_rows=10"):
        fitted(min_rows=10).partial_fit(X[:3], y[:3], sites=["station 00"] * 3)
    with pytest.raises(DataError, match=r"sites \['harbour'\] are new: give their edges"):
        regressor.partial_fit(X[:30], y[:30], sites=["harbour"] * 30)
    with pytest.raises(DataError, match="'atlantis' is not a site"):
        regressor.remove_site("atlantis")
    with pytest.raises(ValueError, match="X has 2 features"):
        regressor.partial_fit(X[:, :2], y, sites=SITES)
    with pytest.raises(DataError, match="row 5"):
        regressor.partial_fit(np.where(np.arange(len(X))[:, None] == 5, np.nan, X), y, sites=SITES)
    np.testing.assert_array_equal(regressor.predict(X), before)
    star = DeKRRRegressor(**SETTINGS, topology="star").fit(X, y, sites=SITES)
    with pytest.raises(TopologyError, match="falls into 4 parts"):
        star.remove_site("station 00")
    assert nx.is_connected(star.graph_)


def test_rows_without_sites_are_dealt_out_to_those_there_are():
    network = DeKRRRegressor(**QUICK, store_rows=True).fit(X, y, sites=SITES).partial_fit(X, y)
    assert sum(network.n_rows_.values()) == 2 * len(y)
    assert sum(rows.n_rows for rows in network.rows_.values()) == 2 * len(y)


def test_sites_keep_their_names_when_another_joins():
    labels = np.array(["1", "2", "3", "4", "5"])[np.unique(SITES, return_inverse=True)[1]]
    network = DeKRRRegressor(**QUICK, store_rows=True).fit(X, y, sites=labels)
    network.partial_fit(X[:60], y[:60], sites=[1] * 60, edges=[(1, "1")])
    assert network.sites_ == ["1", "2", "3", "4", "5", 1]
    assert network.models_["1"].header.site == "1"


def test_a_newcomer_has_no_more_features_than_rows():
    settings = {**QUICK, "n_features": 30, "features": "greedy", "rows_per_feature": 0, "store_rows": True}
    network = DeKRRRegressor(**settings).fit(X, y, sites=SITES)
    network.partial_fit(X[:12], y[:12], sites=["new"] * 12, edges=[("new", network.sites_[0])])
    assert network.models_["new"].feature_map.n_features == 12


def test_what_cannot_be_either():
    network = DeKRRRegressor(**QUICK).fit(X, y, sites=np.repeat("only", len(y)))
    with pytest.raises(DataError, match="'only' is the only site"):
        network.remove_site("only")
    with pytest.raises(SettingsError, match="give a topology"):
        DeKRRRegressor(**QUICK).partial_fit(X, y, sites=SITES, edges=[("a", "b")])


def test_any_number_of_updates():
    """Rows of each are kept one after another, not one inside another."""
    network = DeKRRRegressor(**{**QUICK, "n_features": 2}, features="plain", min_rows=1, store_rows=True)
    network.fit(X[:20], y[:20], sites=np.repeat("only", 20))
    for k in range(520):
        network.partial_fit(X[k % len(X)][None], y[k % len(X)][None], sites=["only"])
    assert network.rows_["only"].n_rows == 540


def test_updates_validate_their_settings_and_refuse_features_of_rows():
    rows = ArrayRows(X[:20], y[:20])
    site = Site("a", ("b",), rows)
    for change, reason in (
        ({"exchange": "features"}, 'exchange="features" cannot continue an earlier fit'),
        ({"max_rounds": -3}, "max_rounds is -3; it must be"),
        ({"alpha": 0.0}, "alpha is 0.0; it must be a positive number"),
    ):
        with pytest.raises(SettingsError, match=reason):
            next(go_on(site, None, rows, Greedy(4, sigma=0.5), DeKRRSettings(lone_neighbor="warn", **change)))


def test_without_rows_no_site_joins_and_no_edge_is_added():
    network = DeKRRRegressor(**QUICK, topology="ring", n_neighbors=2).fit(X, y, sites=SITES)
    before = network.predict(X)
    for labels, edge in ((["new"] * 60, ("new", "station 00")), (SITES[:60], ("station 00", "station 02"))):
        with pytest.raises(SettingsError, match="store_rows=True"):
            network.partial_fit(X[:60], y[:60], sites=labels, edges=[edge])
    np.testing.assert_array_equal(network.predict(X), before)
    network.set_params(rows_per_feature=0.1)  # a rule for rows that stand alone would be learnt from all rows
    with pytest.raises(SettingsError, match="store_rows=True"):
        network.partial_fit(X, y, sites=SITES)


def test_rows_are_kept_as_long_as_they_are_asked_for():
    network = DeKRRRegressor(**QUICK, store_rows=True).fit(X, y, sites=SITES)
    assert sum(rows.n_rows for rows in network.rows_.values()) == len(y)
    network.set_params(store_rows=False).partial_fit(X, y, sites=SITES)
    assert not hasattr(network, "rows_")
    network.set_params(store_rows=True).partial_fit(X, y, sites=SITES)
    assert not hasattr(network, "rows_")  # those of before are gone
    assert sum(network.n_rows_.values()) == 3 * len(y)


@pytest.mark.parametrize(("name", "value"), [("max_rounds", -3), ("tol", "small"), ("min_rows", 0)])
def test_going_on_checks_parameters_like_fit(name, value):
    network = DeKRRRegressor(**QUICK).fit(X, y, sites=SITES).set_params(**{name: value})
    with pytest.raises(SettingsError, match=f"The '{name}' parameter of DeKRRRegressor is wrong"):
        network.partial_fit(X, y, sites=SITES)
    with pytest.raises(SettingsError, match=f"The '{name}' parameter of DeKRRRegressor is wrong"):
        network.remove_site("station 00")


def test_new_rows_are_not_sent_as_sums_where_features_are_asked_for():
    network = DeKRRRegressor(**QUICK, exchange="features").partial_fit(X, y, sites=SITES)
    with pytest.raises(SettingsError, match="adds up sums, but exchange is 'features'"):
        network.partial_fit(X, y, sites=SITES)


def test_without_sums_the_models_are_the_same_and_nothing_goes_on():
    kept = DeKRRRegressor(**QUICK).fit(X, y, sites=SITES)
    lean = DeKRRRegressor(**QUICK, store_sums=False).fit(X, y, sites=SITES)
    for label in kept.sites_:
        np.testing.assert_array_equal(lean.models_[label].coefficients, kept.models_[label].coefficients)
    assert len(pickle.dumps(lean)) < len(pickle.dumps(kept))
    lean.set_params(store_sums=True)
    with pytest.raises(SettingsError, match="store_sums=True"):
        lean.partial_fit(X_MORE, Y_MORE, sites=SITES_MORE)
    with pytest.raises(SettingsError, match="store_sums=True"):
        lean.remove_site("station 02")


def test_sums_that_are_not_kept_are_given_up_before_the_rounds():
    """A solver sees the sums when it starts, and after the first exchange of coefficients nobody has them."""
    seen = []

    class Looking(Chebyshev):
        def start(self, system, coefficients):
            seen.append([weakref.ref(sums.gram) for sums in system.received.values()])
            return super().start(system, coefficients)

        def update(self, state, residual):
            if state.relaxation > 1:
                assert not any(ref() is not None for refs in seen for ref in refs)
            return super().update(state, residual)

    DeKRRRegressor(**QUICK, solver=Looking(), store_sums=False).fit(X, y, sites=SITES)
    assert len(seen) == 5
    with pytest.raises(AssertionError):
        DeKRRRegressor(**QUICK, solver=Looking(), store_sums=True).fit(X, y, sites=SITES)


@pytest.mark.parametrize("shared", [None, 20])
def test_sites_that_start_from_an_earlier_model_and_one_that_has_none_reach_the_same_model(shared):
    """What a study with `warm = true` does: the features stay, and only the start of the rounds differs."""
    rng = np.random.default_rng(0)
    graph = nx.cycle_graph(4)
    graph = nx.relabel_nodes(graph, {i: f"s{i}" for i in graph})
    rows = {name: (X, np.sin(3 * X[:, 0])) for name in graph for X in [rng.uniform(size=(150, 2))]}
    given = {"shared": shared, "local": None, "column_scales": None}
    settings = DeKRRSettings(lone_neighbor="warn", alpha=1e-3, consensus=1.0, tol=1e-9, max_rounds=5000, **given)

    def train(share, **changes):
        procedures = {}
        for name, (inputs, responses) in rows.items():
            some = slice(round(share * len(inputs)))
            site = Site(name, tuple(graph[name]), ArrayRows(inputs[some], responses[some]), seed=0)
            site = replace(site, **{key: value[name] for key, value in changes.items()})
            procedures[name] = training.train_parts(site, Greedy(10, sigma=0.5), settings)
        return LocalNetwork(graph).run(procedures)

    first = train(0.98)
    maps = {name: outcome.feature_map for name, outcome in first.items()}
    starts = {name: outcome.coefficients for name, outcome in first.items()}
    cold = train(1.0, feature_map=maps)
    for changed in ({}, {"s2": np.empty(0)}):
        warm = train(1.0, feature_map=maps, coefficients={**starts, **changed})
        for name, outcome in warm.items():
            scale = abs(outcome.coefficients).max()
            np.testing.assert_allclose(outcome.coefficients, cold[name].coefficients, rtol=0, atol=1e-5 * scale)
        if not changed:
            assert warm["s0"].rounds < cold["s0"].rounds
