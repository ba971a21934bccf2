"""Several outputs, and weights of rows, through the estimators."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import settings as limits
from hypothesis import strategies as st
from scipy.linalg import solve
from sklearn.metrics import r2_score

import dekrr
from dekrr import (
    AllReduceRegressor,
    CentralizedKRR,
    CentralizedRFF,
    Chooser,
    DataError,
    DeKRRRegressor,
    DifferentialPrivacy,
    DKLARegressor,
    LocalRegressor,
    SettingsError,
)
from dekrr.data import make_sites
from dekrr.features import paired
from dekrr.messages import Total
from dekrr.networks.local import LocalNetwork
from dekrr.privacy.mechanism import SENSITIVITY, pack
from dekrr.protocols.roll_call import RollCall
from dekrr.protocols.run import weigh_rows
from dekrr.protocols.site import Site
from dekrr.selection import Plain
from dekrr.settings import ALONE
from dekrr.tables.rows import ArrayRows, Weighed

X, y, SITES = make_sites(n_sites=4, rows_per_site=80, random_state=0)
X_NEW, Y_NEW, SITES_NEW = make_sites(n_sites=4, rows_per_site=80, random_state=1)
TWO = np.column_stack([y, 1e4 * np.cos(3 * X[:, 0]) - 7])
TIMES = np.random.default_rng(0).integers(0, 4, len(y))
REPEATED = np.repeat(np.arange(len(y)), TIMES)
FIXED = {"sigma": 0.3, "alpha": 1e-4, "random_state": 0}
EXACT = {**ALONE, "consensus": 1.0, "tol": 1e-13, "n_features": 12}


def regressor(**changes):
    return DeKRRRegressor(**{**FIXED, **EXACT, **changes})


# Several outputs


@pytest.mark.parametrize(
    "estimator",
    [
        regressor(features="plain"),
        regressor(features="plain", prediction="own", solver="jacobi", max_rounds=5000),
        AllReduceRegressor(n_features=12, **FIXED),
        DKLARegressor(n_features=12, tol=0.0, max_rounds=40, **FIXED),
        LocalRegressor(n_features=12, features="plain", **FIXED),
        CentralizedRFF(n_features=12, **FIXED),
        CentralizedKRR(**FIXED),
    ],
)
@pytest.mark.parametrize("scale", ["minmax", None])
def test_two_outputs_are_two_fits_with_the_same_features(estimator, scale):
    estimator.set_params(scale=scale)
    both = estimator.fit(X, TWO, sites=SITES).predict(X_NEW, sites=SITES_NEW)
    assert both.shape == (len(X_NEW), 2)
    for k in (0, 1):
        alone = estimator.fit(X, TWO[:, k], sites=SITES).predict(X_NEW, sites=SITES_NEW)
        np.testing.assert_allclose(both[:, k], alone, rtol=1e-9, atol=1e-9 * np.abs(alone).max())


def test_outputs_of_different_spreads_count_alike():
    """One output with a single huge value would be next to nothing beside the others in units of its range."""
    spiky = 1e-3 * np.cos(3 * X[:, 0])
    spiky[0] = 50.0
    fitted = regressor(n_features=30, alpha=1e-6).fit(X, np.column_stack([y, spiky]), sites=SITES)
    scaling = fitted.models_[SITES[0]].scaling
    scaled = scaling.responses(np.column_stack([y, spiky]))
    np.testing.assert_allclose(scaled[:, 0].var(), scaled[:, 1].var())


@pytest.mark.parametrize("masks", [False, True])
@pytest.mark.parametrize("scale", ["minmax", "quantiles"])
def test_outputs_have_one_variance_however_bounds_are_agreed_on(scale, masks):
    heavy = np.exp(3 * y / y.std())
    fitted = regressor(scale=scale, masks=masks).fit(X, np.column_stack([y, heavy]), sites=SITES)
    spreads = fitted.models_[SITES[0]].scaling.responses(np.column_stack([y, heavy])).std(axis=0)
    assert spreads[0] == pytest.approx(spreads[1], rel=1e-6)


def test_a_site_that_joins_clips_outputs_of_one_variance_like_the_others():
    heavy = np.column_stack([y, np.exp(3 * y / y.std())])
    labels = np.unique(SITES)
    first = labels[:-1]
    known = np.isin(SITES, first)
    fitted = regressor(scale="quantiles", store_rows=True).fit(X[known], heavy[known], sites=SITES[known])
    fitted.partial_fit(X[~known], heavy[~known], sites=SITES[~known], edges=[(labels[-1], first[0])])
    scalings = [fitted.models_[label].scaling for label in (first[0], labels[-1])]
    for name in ("lower", "upper", "limits"):
        np.testing.assert_array_equal(*(getattr(scaling, name) for scaling in scalings))


def test_scores_of_several_outputs_are_means():
    fitted = regressor(n_features=30).fit(X, TWO, sites=SITES)
    prediction = fitted.predict(X_NEW, sites=SITES_NEW)
    truth = np.column_stack([Y_NEW, 1e4 * np.cos(3 * X_NEW[:, 0]) - 7])
    each = [dekrr.rse(truth[:, k], prediction[:, k]) for k in (0, 1)]
    assert max(each) < 0.4
    assert fitted.rse(X_NEW, truth, sites=SITES_NEW) == pytest.approx(np.mean(each))
    assert fitted.score(X_NEW, truth, sites=SITES_NEW) == pytest.approx(1 - np.mean(each))
    union = np.mean([dekrr.rse(truth, model.predict(X_NEW)) for model in fitted.models_.values()])
    assert fitted.rse(X_NEW, truth, metric="union") == pytest.approx(union)


def test_tuning_and_going_on_with_several_outputs():
    half = np.arange(len(y)) % 2 == 0
    fitted = DeKRRRegressor(n_features=20, sigma=1.0, folds=2, random_state=0, **ALONE).fit(
        X[half], TWO[half], sites=SITES[half]
    )
    assert len(fitted.tuning_["error"]) > 40
    given = {"sigma": fitted.sigma_, "alpha": fitted.alpha_, "consensus": fitted.consensus_, "tol": 1e-13}
    fitted = DeKRRRegressor(n_features=20, random_state=0, **given, **ALONE).fit(X[half], TWO[half], sites=SITES[half])
    fitted.partial_fit(X[~half], TWO[~half], sites=SITES[~half])
    assert fitted.rse(X_NEW[:, :], np.column_stack([Y_NEW, 1e4 * np.cos(3 * X_NEW[:, 0]) - 7]), sites=SITES_NEW) < 0.5
    with pytest.raises(DataError, match="have 1 outputs; the fit had 2"):
        fitted.partial_fit(X[half], y[half], sites=SITES[half])


def test_several_outputs_are_named_and_saved(tmp_path):
    frame = pd.DataFrame(X, columns=["place", "north", "east"]).assign(power=y, heat=TWO[:, 1], station=SITES)
    named = regressor().fit(frame, ["power", "heat"], sites="station")
    np.testing.assert_allclose(
        named.predict(X, sites=SITES), regressor().fit(X, TWO, sites=SITES).predict(X, sites=SITES)
    )
    assert named.feature_names_in_.tolist() == ["place", "north", "east"]
    assert named.rse(frame, ["power", "heat"], sites="station") == pytest.approx(named.rse(X, TWO, sites=SITES))
    model = named.models_[SITES[0]]
    model.save(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(dekrr.load(tmp_path / "model.safetensors").predict(X), model.predict(X))


def test_a_missing_output_is_named():
    bad = TWO.copy()
    bad[4, 1] = np.nan
    with pytest.raises(DataError, match="row 4, output 1 is nan"):
        regressor().fit(X, bad, sites=SITES)


@given(st.integers(1, 4), st.integers(0, 2**32 - 1))
@limits(max_examples=60, deadline=None)
def test_the_noise_of_a_private_run_covers_several_outputs(n_outputs, seed):
    """Replacing one row by another moves (G, m / sqrt(k)) by no more than the sensitivity for one output."""
    rng = np.random.default_rng(seed)
    features = paired(rng.normal(size=(2, 4)))
    rows, responses = rng.normal(size=(2, 2)), rng.choice([-1.0, 1.0], size=(2, n_outputs))
    z = features(rows)
    packed = [pack(np.outer(a, a), np.outer(a, b) / np.sqrt(n_outputs)) for a, b in zip(z, responses, strict=True)]
    assert np.linalg.norm(packed[0] - packed[1]) <= SENSITIVITY


def test_a_private_run_of_several_outputs():
    bounds = np.array([*X.min(axis=0), *TWO.min(axis=0)]), np.array([*X.max(axis=0), *TWO.max(axis=0)])
    private = regressor(features="plain", bounds=bounds, privacy=DifferentialPrivacy(5.0), tol=1e-6)
    assert private.fit(X, TWO, sites=SITES).predict(X).shape == TWO.shape
    alone = regressor(features="plain", bounds=bounds, tol=1e-6)
    with pytest.raises(
        SettingsError, match="bounds must be 5 finite lower and upper values each, those of the 2 outputs"
    ):
        alone.set_params(bounds=(bounds[0][:4], bounds[1][:4])).fit(X, TWO, sites=SITES)
    with pytest.raises(SettingsError, match="leave the weights out"):
        private.fit(X, TWO, sites=SITES, sample_weight=1 + np.arange(len(y)))
    with pytest.warns(UserWarning, match="sites was left out"):  # equal rows are not merged to rows with weights
        dealt = private.set_params(n_sites=2).fit(np.vstack([X, X[:1]]), np.vstack([TWO, TWO[:1]]))
    assert sum(dealt.n_rows_.values()) == len(y) + 1


# Weights


@pytest.mark.parametrize(
    "estimator",
    [
        *(regressor(features=name) for name in ("greedy", "plain", "energy", "leverage", "surrogate")),
        regressor(exchange="features"),
        regressor(allocation="sqrt"),
        AllReduceRegressor(n_features=12, features="greedy", **FIXED),
        DKLARegressor(n_features=12, tol=0.0, max_rounds=40, **FIXED),
        LocalRegressor(n_features=12, **FIXED),
        CentralizedRFF(n_features=12, **FIXED),
        CentralizedKRR(**FIXED),
    ],
)
def test_integer_weights_are_repeated_rows(estimator):
    weighted = estimator.fit(X, y, sites=SITES, sample_weight=TIMES).predict(X_NEW, sites=SITES_NEW)
    objective = estimator.objective_
    repeated = estimator.fit(X[REPEATED], y[REPEATED], sites=SITES[REPEATED])
    np.testing.assert_allclose(weighted, repeated.predict(X_NEW, sites=SITES_NEW), rtol=1e-9, atol=1e-9)
    assert objective == pytest.approx(repeated.objective_, rel=1e-9)
    unweighted = estimator.fit(X, y, sites=SITES).predict(X_NEW, sites=SITES_NEW)
    assert np.abs(weighted - unweighted).max() > 1e-3


def test_integer_weights_are_repeated_rows_in_all_that_sites_share():
    """No rows are held out here: a row counts once in folds. A level counts rows of the mean weight."""
    estimator = DeKRRRegressor(
        n_features=12, shared=20, site_effect=None, column_scales=[1.0, 0.5, 0.2], local=None, random_state=0
    )
    weighted = estimator.fit(X, y, sites=SITES, sample_weight=TIMES)
    found, sigma = [model.predict(X_NEW, elsewhere=True) for model in weighted.models_.values()], weighted.sigma_
    repeated = estimator.fit(X[REPEATED], y[REPEATED], sites=SITES[REPEATED])
    assert repeated.sigma_ == pytest.approx(sigma, rel=1e-9)
    again = [model.predict(X_NEW, elsewhere=True) for model in repeated.models_.values()]
    np.testing.assert_allclose(found, again, rtol=1e-8, atol=1e-8)


def test_rows_that_hardly_count_do_not_decide_anything_by_default():
    """Half of the rows are noise in one place, with next to no weight."""
    rng = np.random.default_rng(5)
    sites, weight = np.tile(SITES, 2), np.repeat([1.0, 1e-9], len(y))
    rows = np.vstack([X, X.mean(axis=0) + 0.05 * (X - X.mean(axis=0))])
    responses = np.append(y, rng.choice(y, len(y)))
    fitted = DeKRRRegressor(random_state=0).fit(rows, responses, sites=sites, sample_weight=weight)
    alone = DeKRRRegressor(random_state=0).fit(X, y, sites=SITES)
    assert fitted.sigma_ == pytest.approx(alone.sigma_, rel=1e-6)
    assert fitted.score(X_NEW, Y_NEW, sites=SITES_NEW) > alone.score(X_NEW, Y_NEW, sites=SITES_NEW) - 0.05


def test_weights_are_weighted_least_squares():
    """An independent solution: one site, its features, and the normal equations with weights."""
    weights = np.random.default_rng(1).uniform(0.1, 5, len(y))
    fitted = regressor(scale=None, prediction="own").fit(X, y, sites=np.zeros(len(y)), sample_weight=weights)
    Z = fitted.models_[0.0].feature_map(X)
    left = Z.T @ (Z * weights[:, None]) + weights.sum() * 1e-4 * np.eye(Z.shape[1])
    np.testing.assert_allclose(fitted.models_[0.0].coefficients, solve(left, Z.T @ (weights * y)), rtol=1e-7)


@pytest.mark.parametrize("factor", [1e-6, 0.5, 1e5])
def test_a_common_factor_changes_nothing(factor):
    fits = [regressor().fit(X, y, sites=SITES, sample_weight=w * (1.0 + TIMES)) for w in (1.0, factor)]
    np.testing.assert_allclose(*(fit.predict(X_NEW) for fit in fits), rtol=1e-8, atol=1e-8)


def test_weights_that_are_all_one_are_none():
    plain, ones = regressor().fit(X, y, sites=SITES), regressor().fit(X, y, sites=SITES, sample_weight=np.ones(len(y)))
    np.testing.assert_array_equal(plain.predict(X), ones.predict(X))
    assert plain.traffic_.total_bytes == ones.traffic_.total_bytes


def test_tuned_fits_without_sites_merge_equal_rows():
    tuned = DeKRRRegressor(n_features=12, sigma=1.0, folds=2, n_sites=3, random_state=0, **ALONE)
    weighted = tuned.fit(X, y, sample_weight=TIMES).predict(X_NEW)
    shuffled = np.random.default_rng(3).permutation(REPEATED)
    np.testing.assert_allclose(tuned.fit(X[shuffled], y[shuffled]).predict(X_NEW), weighted, rtol=1e-9, atol=1e-9)


def test_going_on_with_weights_is_going_on_with_repeated_rows():
    half = np.arange(len(y)) < 0
    half[::2] = True
    again = np.repeat(np.flatnonzero(~half), TIMES[~half])
    one = regressor().fit(X[half], y[half], sites=SITES[half])
    one.partial_fit(X[~half], y[~half], sites=SITES[~half], sample_weight=TIMES[~half])
    other = regressor().fit(X[half], y[half], sites=SITES[half])
    other.partial_fit(X[again], y[again], sites=SITES[again])
    np.testing.assert_allclose(one.predict(X_NEW), other.predict(X_NEW), rtol=1e-9, atol=1e-9)
    one.remove_site(one.sites_[0])
    other.remove_site(other.sites_[0])
    np.testing.assert_allclose(one.predict(X_NEW), other.predict(X_NEW), rtol=1e-9, atol=1e-9)


def test_weights_from_a_column():
    frame = pd.DataFrame(X, columns=["place", "north", "east"]).assign(power=y, station=SITES, often=TIMES)
    named = regressor().fit(frame, "power", sites="station", sample_weight="often")
    assert named.feature_names_in_.tolist() == ["place", "north", "east"]
    there = TIMES > 0  # a table's sites have their rows in the order of the table
    expected = regressor().fit(X[there], y[there], sites=SITES[there], sample_weight=TIMES[there])
    np.testing.assert_allclose(named.predict(X), expected.predict(X), rtol=1e-9, atol=1e-9)
    each = {site: frame[frame.station == site].drop(columns="station") for site in set(SITES)}
    np.testing.assert_allclose(regressor().fit(each, "power", sample_weight="often").predict(X), expected.predict(X))
    frame.loc[5, "often"] = -2
    with pytest.raises(DataError, match="sample_weight: row 5 has the weight -2"):
        regressor().fit(frame, "power", sites="station", sample_weight="often")
    each = {site: frame[frame.station == site].drop(columns="station") for site in set(SITES)}
    with pytest.raises(DataError, match="column 'often': row 5 has the weight -2"):
        regressor().fit(each, "power", sample_weight="often")
    with pytest.raises(DataError, match="sample_weight is the name of a column; got ndarray"):
        regressor().fit(each, "power", sample_weight=np.ones(len(y)))


def test_scores_with_weights():
    fitted = regressor().fit(X, y, sites=SITES)
    weights = np.random.default_rng(2).uniform(0, 3, len(Y_NEW))
    expected = r2_score(Y_NEW, fitted.predict(X_NEW, sites=SITES_NEW), sample_weight=weights)
    assert fitted.score(X_NEW, Y_NEW, sites=SITES_NEW, sample_weight=weights) == pytest.approx(expected)
    assert fitted.rse(X_NEW, Y_NEW, sites=SITES_NEW, sample_weight=weights) == pytest.approx(1 - expected)


@pytest.mark.parametrize(
    ("weight", "words"),
    [
        (np.where(np.arange(len(y)) == 7, -1.0, 1.0), "row 7 has the weight -1; a weight is a finite number"),
        (np.where(np.arange(len(y)) == 7, np.nan, 1.0), "row 7 has the weight nan"),
        (np.where(np.arange(len(y)) == 7, np.inf, 1.0), "row 7 has the weight inf"),
        (np.ones(3), "sample_weight has the shape \\(3,\\) for 320 rows; give one weight per row"),
        (np.zeros(len(y)), "all rows have the weight zero"),
        (np.where(SITES[0] == SITES, 0.0, 1.0), f"all rows of site '{SITES[0]}' have weight zero"),
        (np.full(len(y), "often"), "which is not a number; give how often"),
        (
            np.where(np.arange(len(y)) == 7, 1e6, 1.0),
            "so unequal that sums .* close to sums over 1 rows, fewer than min_rows",
        ),
    ],
)
def test_weights_that_cannot_be(weight, words):
    with pytest.raises(DataError, match=words):
        regressor(min_rows=10).fit(X, y, sites=SITES, sample_weight=weight)


def test_guards_count_effective_rows():
    assert Weighed.of(ArrayRows(X, y, np.r_[np.ones(10), np.zeros(310)]).arrays()).n_effective == pytest.approx(10)
    heavy = np.where(np.arange(len(y)) % 80 < 20, 1.0, 1e-3)
    regressor().fit(X, y, sites=SITES, sample_weight=heavy)
    with pytest.raises(DataError, match="has 20 rows, too few for sums"):
        regressor(rows_per_feature=1.5).fit(X, y, sites=SITES, sample_weight=heavy)
    regressor(rows_per_feature=1.5).fit(X, y, sites=SITES)


def test_a_chooser_that_takes_no_weights_is_refused():
    class Old(Chooser):
        def select(self, X, y, rng):
            return Plain(self.n_features, sigma=self.sigma).select(X, y, rng)

    regressor(features=Old()).fit(X, y, sites=SITES)
    with pytest.raises(SettingsError, match=r"Old\.select does not take them: give it the keyword weight"):
        regressor(features=Old()).fit(X, y, sites=SITES, sample_weight=TIMES)


def test_sites_tell_each_other_the_sums_of_weights():
    weights = {"a": [1.0, 2.0], "b": [5.0, 5.0, 0.5], "c": [0.25]}
    graph = {"a": ("b",), "b": ("a", "c"), "c": ("b",)}

    def procedure(name):
        rows = ArrayRows(np.zeros((len(weights[name]), 1)), np.zeros(len(weights[name])), np.array(weights[name]))
        roll = RollCall(Site(name, graph[name], rows))
        yield from weigh_rows(Site(name, graph[name], rows), roll)
        return (yield from roll.roster())

    rosters = LocalNetwork(graph).run({name: procedure(name) for name in graph})
    assert {roster.n_counted for roster in rosters.values()} == {13.75}
    assert rosters["a"].weights == {"a": 3.0, "b": 10.5}
    assert rosters["b"].weight_of("c") == 0.25

    def lying():
        roll = RollCall(Site("a", ("b",), ArrayRows(np.zeros((2, 1)), np.zeros(2))))
        yield from roll.roster()
        yield {"b": Total(np.array([-4.0]))}
        yield {}

    with pytest.raises(dekrr.MessageError, match="site 'a' sent -4 as its sum of weights"):
        LocalNetwork(graph).run({"a": lying(), "b": procedure("b"), "c": procedure("c")})
