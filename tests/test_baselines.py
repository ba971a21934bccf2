"""Each baseline against scikit-learn, and against each other where theory says they are the same."""

import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.exceptions import ConvergenceWarning
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import Ridge, RidgeCV

from conftest import tampered
from dekrr import (
    AllReduceRegressor,
    CentralizedKRR,
    CentralizedRFF,
    COKERegressor,
    DKLARegressor,
    LocalRegressor,
    SettingsError,
    rse,
)
from dekrr.data import make_sites
from dekrr.messages import Total
from dekrr.networks.local import LocalNetwork
from dekrr.protocols.baselines import allreduce
from dekrr.protocols.site import Site
from dekrr.selection import Plain
from dekrr.settings import AllReduceSettings
from dekrr.tables.rows import ArrayRows

X, y, SITES = make_sites(n_sites=6, random_state=0)
X_NEW, Y_NEW, SITES_NEW = make_sites(n_sites=6, random_state=1)
COMMON = {"sigma": 0.3, "alpha": 1e-3, "random_state": 0}


def test_all_reduce_is_centralised_on_the_same_features():
    shared = AllReduceRegressor(n_features=30, **COMMON).fit(X, y, sites=SITES)
    pooled = CentralizedRFF(n_features=30, **COMMON).fit(X, y, sites=SITES)
    for site in shared.sites_:
        np.testing.assert_allclose(shared.models_[site].coefficients, pooled.models_[site].coefficients, atol=1e-8)
    np.testing.assert_allclose(shared.predict(X_NEW), pooled.predict(X_NEW), atol=1e-8)
    assert shared.objective_ == pytest.approx(pooled.objective_, abs=1e-12)


def test_centralised_features_are_ridge_regression():
    regressor = CentralizedRFF(n_features=30, scale=None, **COMMON).fit(X, y)
    features = regressor.models_[0].feature_map(X)
    ridge = Ridge(alpha=len(y) * 1e-3, fit_intercept=False).fit(features, y)
    np.testing.assert_allclose(regressor.models_[0].coefficients, ridge.coef_, atol=1e-8)
    residual = features @ ridge.coef_ - y
    assert regressor.objective_ == pytest.approx(np.mean(residual**2) + 1e-3 * ridge.coef_ @ ridge.coef_)


@pytest.mark.parametrize("kernel", ["gaussian", "laplacian"])
def test_centralised_kernel_ridge_is_scikit_learns(kernel):
    regressor = CentralizedKRR(kernel=kernel, scale=None, sigma=0.5, alpha=1e-3).fit(X, y)
    name, gamma = ("rbf", 1 / (2 * 0.5**2)) if kernel == "gaussian" else ("laplacian", 1 / 0.5)
    expected = KernelRidge(alpha=len(y) * 1e-3, kernel=name, gamma=gamma).fit(X, y)
    np.testing.assert_allclose(regressor.predict(X_NEW), expected.predict(X_NEW), atol=1e-8)


def test_local_is_a_ridge_regression_per_site():
    regressor = LocalRegressor(n_features=10, scale=None, **COMMON).fit(X, y, sites=SITES)
    for site, model in regressor.models_.items():
        own = site == SITES
        ridge = Ridge(alpha=own.sum() * 1e-3, fit_intercept=False).fit(model.feature_map(X[own]), y[own])
        np.testing.assert_allclose(model.coefficients, ridge.coef_, atol=1e-8)
    assert regressor.traffic_.total_bytes == 0


@pytest.mark.parametrize("noise", [0.3, 1.0, 3.0])
def test_local_is_never_far_above_ridge_regression_at_the_site(noise):
    rng = np.random.default_rng(0)
    site = np.repeat(np.arange(9), np.tile([20, 40, 80], 3) * 2)
    table = pd.DataFrame(rng.normal(size=(len(site), 4)), columns=list("abcd")).assign(
        kind=rng.choice(["x", "y"], len(site)), site=site
    )
    table["y"] = table["a"] + table["b"] / 2 + (table["kind"] == "x") + 20 * rng.normal(size=9)[site]
    table["y"] += noise * rng.normal(size=len(site))
    new, known = table[1::2], table[::2]
    alone = LocalRegressor(random_state=0).fit(known, "y", sites="site")
    assert set(alone.sigma_) == set(alone.alpha_) == set(range(9))
    assert alone.models_[3].header.sigma == alone.sigma_[3]
    columns, ridge = pd.get_dummies(table.drop(columns=["site", "y"]), dtype=float), pd.Series(0.0, table.index)
    for _, rows in table.groupby("site"):
        at, there = rows.index.intersection(known.index), rows.index.intersection(new.index)
        fitted = RidgeCV(np.logspace(-3, 4, 15)).fit(columns.loc[at], table["y"][at])
        ridge[there] = fitted.predict(columns.loc[there])
    level = table.groupby("site")["y"].transform("mean")[new.index]
    found = alone.predict(new.drop(columns="y"), sites="site")
    assert rse(new["y"] - level, found - level) < 1.3 * rse(new["y"] - level, ridge[new.index] - level)


def test_what_local_chose_gives_the_same_model_when_it_is_given():
    own = SITES[0] == SITES
    chosen = LocalRegressor(n_features=10, alpha=[1e-6, 1e-3], random_state=0).fit(X[own], y[own], sites=SITES[own])
    sigma, alpha = chosen.sigma_[SITES[0]], chosen.alpha_[SITES[0]]
    assert alpha in (1e-6, 1e-3)
    given = LocalRegressor(n_features=10, sigma=sigma, alpha=alpha, random_state=0).fit(
        X[own], y[own], sites=SITES[own]
    )
    np.testing.assert_array_equal(chosen.predict(X[own]), given.predict(X[own]))
    assert chosen.traffic_.total_bytes == 0
    assert (given.sigma_, given.alpha_) == (chosen.sigma_, chosen.alpha_)
    told = chosen.fit_summary().sites[SITES[0]]
    assert (told["sigma"], told["alpha"]) == (f"{sigma:g}", f"{alpha:g}")


def test_local_takes_sites_of_a_few_rows_weights_outputs_and_rows_in_batches():
    few, many = slice(0, 1), slice(1, 60)
    rows = {"few": [(X[few], y[few])], "many": [(X[1:30], y[1:30]), (X[30:60], y[30:60])]}
    streamed = LocalRegressor(n_features=10, random_state=0).fit(rows)
    labels = np.where(np.arange(60) < 1, "few", "many")
    held = LocalRegressor(n_features=10, random_state=0).fit(X[:60], y[:60], sites=labels)
    assert streamed.alpha_["many"] == held.alpha_["many"]
    np.testing.assert_allclose(
        streamed.models_["many"].predict(X[many]), held.models_["many"].predict(X[many]), rtol=1e-6
    )
    two = LocalRegressor(n_features=10, random_state=0).fit(
        X, np.column_stack([y, -y]), sites=SITES, sample_weight=y**2
    )
    assert np.isfinite(two.predict(X_NEW, sites=SITES_NEW)).all()


def test_dkla_converges_to_all_reduce():
    exact = AllReduceRegressor(n_features=20, **COMMON).fit(X, y, sites=SITES)
    admm = DKLARegressor(n_features=20, tol=1e-9, max_rounds=5000, **COMMON).fit(X, y, sites=SITES)
    for site in exact.sites_:
        np.testing.assert_allclose(admm.models_[site].coefficients, exact.models_[site].coefficients, atol=1e-5)
    assert admm.history_["objective"][-1] == pytest.approx(exact.objective_, rel=1e-5)


def test_dkla_says_where_it_stops_before_its_tolerance():
    with pytest.warns(ConvergenceWarning, match="DKLARegressor stopped after 5 rounds at a relative residual of"):
        DKLARegressor(n_features=20, max_rounds=5, **COMMON).fit(X, y, sites=SITES)


def test_coke_saves_messages_at_the_same_error():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        every, censored = (
            cls(n_features=20, tol=0.0, max_rounds=600, **COMMON).fit(X, y, sites=SITES)
            for cls in (DKLARegressor, COKERegressor)
        )
    errors = [regressor.rse(X_NEW, Y_NEW, sites=SITES_NEW) for regressor in (every, censored)]
    assert errors[1] == pytest.approx(errors[0], rel=1e-2)
    assert censored.messages_saved_ > 0.3
    assert censored.traffic_.total_bytes < 0.8 * every.traffic_.total_bytes


def test_coke_without_a_threshold_is_dkla():
    every, censored = (
        cls(n_features=20, tol=1e-6, **extra, **COMMON).fit(X, y, sites=SITES)
        for cls, extra in ((DKLARegressor, {}), (COKERegressor, {"censor_start": 0.0}))
    )
    np.testing.assert_array_equal(every.predict(X_NEW), censored.predict(X_NEW))
    assert censored.messages_saved_ == 0


@pytest.mark.parametrize("chooser", [None, "station 02"])
def test_one_site_chooses_for_all(chooser):
    regressor = AllReduceRegressor(n_features=20, features="energy", selecting_site=chooser, **COMMON)
    regressor.fit(X, y, sites=SITES)
    maps = [model.feature_map for model in regressor.models_.values()]
    assert all(np.array_equal(m.frequencies, maps[0].frequencies) for m in maps)
    sizes = {site: (site == SITES).sum() for site in regressor.sites_}
    expected = chooser or max(sizes, key=sizes.get)
    from dekrr.selection import Energy

    own = expected == SITES
    scaling = regressor.models_[expected].scaling
    seed = int(np.random.RandomState(0).randint(np.iinfo(np.int32).max))
    alone = Energy(20, sigma=0.3).select(scaling.rows(X[own]), scaling.responses(y[own]), np.random.default_rng(seed))
    np.testing.assert_array_equal(maps[0].frequencies, alone.frequencies)


def test_unknown_chooser():
    with pytest.raises(SettingsError, match="selecting_site='nobody' is not a site"):
        DKLARegressor(features="energy", selecting_site="nobody").fit(X, y, sites=SITES)


def test_sums_that_cannot_be_solved_are_told():
    def absurd(to, message):
        return Total(np.full_like(message.values, -1e30)) if isinstance(message, Total) else message

    graph = {"a": ("b",), "b": ("a",)}
    rng = np.random.default_rng(0)
    procedures = {}
    for name in graph:
        site = Site(name, graph[name], ArrayRows(rng.uniform(size=(20, 2)), rng.uniform(size=20)))
        procedures[name] = allreduce.train(site, Plain(4), AllReduceSettings(scale=None, masks=False))
    procedures["b"] = tampered(procedures["b"], absurd)
    with pytest.raises(SettingsError, match="not positive definite"):
        LocalNetwork(graph).run(procedures)
