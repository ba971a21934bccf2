"""Intervals with a guarantee, and a site's model among scikit-learn's tools."""

import pickle
import re
import subprocess
import sys
import warnings
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import settings as limits
from hypothesis import strategies as st
from sklearn.base import is_regressor
from sklearn.inspection import partial_dependence, permutation_importance
from sklearn.metrics import get_scorer, r2_score
from typer.testing import CliRunner

import dekrr
from dekrr import (
    CentralizedKRR,
    DataError,
    DeKRRClassifier,
    DeKRRRegressor,
    DifferentialPrivacy,
    LocalRegressor,
    SettingsError,
)
from dekrr.cli.app import app
from dekrr.features import FeatureMap
from dekrr.intervals import BEYOND, N_BINS, Calibration, Scale, histogram, rows_for
from dekrr.networks.local import LocalNetwork
from dekrr.protocols.home import left_by_shared, with_sum
from dekrr.protocols.run import SharedPart
from dekrr.scaling import UNSCALED
from dekrr.settings import ALONE
from dekrr.tables.rows import ArrayRows, RowHash

COUNT = 6


def rows_of(seed, n_rows=2400):
    """Return rows whose noise grows with the first column; site 5 has a tenth of the rows of the others."""
    rng = np.random.default_rng(seed)
    X = rng.random((n_rows, 3))
    sites = rng.choice(COUNT, n_rows, p=[0.196] * 5 + [0.02])
    noise = 0.05 + 0.6 * X[:, 0] ** 2
    return X, np.sin(4 * X[:, 1]) + X[:, 2] * sites / COUNT + noise * rng.normal(size=n_rows), sites, noise


X, y, SITES, _ = rows_of(0)
X_NEW, Y_NEW, SITES_NEW, _ = rows_of(1, 6000)
FIXED = {**ALONE, "n_features": 30, "sigma": 1.0, "alpha": 1e-5, "consensus": 0.5, "random_state": 0}


def regressor(**changes):
    return DeKRRRegressor(**{**FIXED, "intervals": True, **changes})


@pytest.fixture(scope="module")
def fitted():
    return regressor().fit(X, y, sites=SITES)


def covered(ends, truth):
    return (ends[:, 0] <= truth) & (truth <= ends[:, 1])


@pytest.mark.parametrize("coverage", [0.5, 0.8, 0.9, 0.95])
def test_intervals_cover_new_rows_at_every_site(fitted, coverage):
    ends = fitted.predict_interval(X_NEW, sites=SITES_NEW, coverage=coverage)
    assert ends.shape == (len(X_NEW), 2)
    hit = covered(ends, Y_NEW)
    assert hit.mean() == pytest.approx(coverage, abs=0.07)  # over draws of rows .53 for .5, with a spread of .02
    for site in range(COUNT):
        assert hit[site == SITES_NEW].mean() > coverage - 0.1
    np.testing.assert_allclose(ends.mean(axis=1), fitted.predict(X_NEW, sites=SITES_NEW))


def test_intervals_are_wide_where_errors_are_large(fitted):
    ends = fitted.predict_interval(X_NEW, sites=SITES_NEW)
    width = ends[:, 1] - ends[:, 0]
    noisy, quiet = X_NEW[:, 0] > 0.8, X_NEW[:, 0] < 0.3
    assert width[noisy].mean() > 2 * width[quiet].mean()
    hit = covered(ends, Y_NEW)
    assert hit[noisy].mean() > 0.8
    equal = np.quantile(np.abs(fitted.predict(X_NEW, sites=SITES_NEW) - Y_NEW), 0.9)
    assert width.mean() < 2 * equal


def test_a_row_of_no_known_site_gets_the_hull(fitted):
    ends = fitted.predict_interval(X_NEW)
    each = np.array([model.predict_interval(X_NEW) for model in fitted.models_.values()])
    np.testing.assert_array_equal(ends, np.column_stack([each[:, :, 0].min(axis=0), each[:, :, 1].max(axis=0)]))
    assert covered(ends, Y_NEW).mean() > 0.9
    with pytest.raises(DataError, match="unknown sites"):
        fitted.predict_interval(X_NEW[:2], sites=[0, "elsewhere"])
    open_to_all = regressor(unknown_sites="mean").fit(X, y, sites=SITES)
    mixed = open_to_all.predict_interval(X_NEW[:2], sites=[0, 77])
    np.testing.assert_allclose(mixed[1], ends[1])
    np.testing.assert_allclose(mixed[0], open_to_all.models_[0].predict_interval(X_NEW[:1])[0])


def test_the_guarantee_whatever_the_scale():
    """Scores of held-out rows against fresh ones, with a scale that is made up: an independent check of the ranks."""
    rng = np.random.default_rng(0)
    hits = []
    for _ in range(400):
        scale = Scale(np.zeros(1), rng.normal(size=(2, 1)), np.zeros(2))
        Z, fresh = rng.random((40, 2)), rng.random((20, 2))
        scores = np.abs(rng.standard_cauchy((40, 1))) / scale(Z)
        calibration = Calibration(scale, histogram(scores), np.zeros((N_BINS, 1)))
        hits.append(np.abs(rng.standard_cauchy((20, 1))) <= calibration.radius(fresh, 0.8))
    assert 0.8 <= np.mean(hits) < 0.84  # P(covered) is in [0.8, 0.8 + 1/41], and bins of 2 %


@given(st.lists(st.floats(1e-2, 50), min_size=12, max_size=60), st.floats(0.05, 0.9))
@limits(max_examples=80, deadline=None)
def test_quantiles_of_a_histogram_are_those_of_the_scores(scores, coverage):
    scale = Scale(np.zeros(1), np.zeros((1, 1)), np.zeros(1))
    counts = histogram(np.array(scores)[:, None])
    found = Calibration(scale, counts, np.zeros((N_BINS, 1))).quantiles(coverage)[0]
    exact = np.sort(scores)[int(np.ceil((len(scores) + 1) * coverage - 1e-9)) - 1]
    assert exact * (1 - 1e-12) <= found <= exact * 1.021


def test_few_held_out_rows_borrow_from_all_sites():
    scale = Scale(np.zeros(1), np.zeros((1, 1)), np.zeros(1))
    own, pooled = histogram(np.full((10, 1), 1.0)), histogram(np.full((5000, 1), 5.0))
    lonely = Calibration(scale, own, np.zeros_like(pooled))
    assert Calibration(scale, own, pooled).quantiles(0.9)[0] == pytest.approx(5, rel=0.03)
    assert lonely.quantiles(0.9)[0] == pytest.approx(1, rel=0.03)
    assert lonely.quantiles(0.95)[0] == np.inf
    assert [lonely.reaches(10 / 11 - 1e-6), lonely.reaches(10 / 11 + 1e-6)] == [True, False]
    enough = round(BEYOND / (1 - 0.9))
    many = Calibration(scale, histogram(np.full((enough, 1), 1.0)), pooled)
    assert many.quantiles(0.9)[0] == pytest.approx(1, rel=0.03)
    none = Calibration(scale, 0 * own, pooled)
    assert none.quantiles(0.999)[0] == pytest.approx(5, rel=0.03)


@pytest.mark.parametrize("n_own", [4, 9, 30, 60])
def test_a_quantile_of_own_and_borrowed_scores_covers_in_the_mean(n_own):
    """Sites whose scores are alike, of all kinds of tails: the rank allows for the few that they are."""
    rng = np.random.default_rng(n_own)
    scale, hits = Scale(np.zeros(1), np.zeros((1, 1)), np.zeros(1)), []
    for _ in range(30):
        scores = np.abs(rng.standard_t(2.0, (40, n_own)))
        pooled = histogram(scores.reshape(-1, 1))
        factors = [Calibration(scale, histogram(one[:, None]), pooled).quantiles(0.9)[0] for one in scores]
        hits.append(np.abs(rng.standard_t(2.0, (40, 50))) <= np.array(factors)[:, None])
    assert 0.895 < np.mean(hits) < 0.925


@given(st.integers(1, 300), st.floats(0.01, 0.99))
@limits(max_examples=80, deadline=None)
def test_the_number_of_rows_that_a_coverage_takes(n_rows, coverage):
    scale = Scale(np.zeros(1), np.zeros((1, 1)), np.zeros(1))
    scores = histogram(np.ones((n_rows, 1)))
    assert Calibration(scale, scores, 0 * scores).reaches(coverage) == (n_rows >= rows_for(coverage))


def test_sites_with_too_few_held_out_rows_get_infinite_ends_and_one_warning(tmp_path):
    rng = np.random.default_rng(0)
    X, labels = rng.random((300, 2)), np.repeat(["big", "small", "tiny"], [150, 100, 50])
    frame = pd.DataFrame(X, columns=["a", "b"]).assign(y=np.sin(4 * X[:, 0]), station=labels)
    fitted = DeKRRRegressor(n_features=10, sigma=1.0, intervals=True, random_state=0).fit(frame, "y", sites="station")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        ends = fitted.predict_interval(frame, sites="station", coverage=0.99)
    assert len(told) == 1
    said = (
        r"sites 'big', 'small', 'tiny' have too few held-out rows for a coverage of 0\.99, which takes 99: .* infinite"
    )
    assert re.match(said, str(told[0].message))
    np.testing.assert_array_equal(ends, np.tile([-np.inf, np.inf], (300, 1)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.isfinite(fitted.predict_interval(frame, sites="station", coverage=0.95)).all()
    with pytest.warns(UserWarning, match="site 'tiny' has too few held-out rows"):
        assert np.isinf(fitted.models_["tiny"].predict_interval(frame[:3], coverage=0.99)).all()

    for name, model in fitted.models_.items():
        model.save(tmp_path / f"{name}.safetensors")
    frame.to_csv(tmp_path / "rows.csv", index=False)
    arguments = [*map(str, (tmp_path, tmp_path / "rows.csv")), "--site", "station", "--interval", "0.99"]
    done = CliRunner().invoke(app, ["predict", *arguments, "--out", str(tmp_path / "out.csv")], catch_exceptions=False)
    assert done.exit_code == 0
    assert re.search(said, " ".join(done.stderr.split()))
    table = pd.read_csv(tmp_path / "out.csv")
    np.testing.assert_allclose(table[["prediction_lower", "prediction_upper"]], ends, rtol=1e-9)


def test_the_scale_is_a_ridge_regression_of_logarithms():
    rng = np.random.default_rng(0)
    Z = rng.normal(size=(3000, 4))
    truth = np.exp(0.3 * Z[:, 0])
    scale = Scale.fit(Z, (truth * rng.normal(size=3000))[:, None])
    ratio = scale(Z)[:, 0] / truth
    assert np.std(np.log(ratio)) < 0.1
    nothing = Scale.fit(Z[:50], rng.normal(size=(50, 1)))
    assert np.std(np.log(nothing(Z))) < 0.5
    weights = np.repeat([1.0, 0.0], 1500)
    half = Scale.fit(Z, (truth * rng.normal(size=3000))[:, None], np.maximum(weights, 1e-12))
    assert np.corrcoef(np.log(half(Z))[:, 0], Z[:, 0])[0, 1] > 0.9


def test_several_outputs_have_intervals_each():
    both = np.column_stack([y, 100 * np.cos(3 * X[:, 0])])
    ends = regressor().fit(X, both, sites=SITES).predict_interval(X_NEW, sites=SITES_NEW)
    assert ends.shape == (len(X_NEW), 2, 2)
    assert covered(ends[:, :, 0], Y_NEW).mean() == pytest.approx(0.9, abs=0.04)
    assert covered(ends[:, :, 1], 100 * np.cos(3 * X_NEW[:, 0])).mean() > 0.85


def test_intervals_are_saved_with_the_model(fitted, tmp_path):
    model = fitted.models_[2]
    model.save(tmp_path / "model.safetensors")
    loaded = dekrr.load(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(loaded.predict_interval(X_NEW, 0.8), model.predict_interval(X_NEW, 0.8))
    np.testing.assert_array_equal(
        pickle.loads(pickle.dumps(fitted)).predict_interval(X_NEW), fitted.predict_interval(X_NEW)
    )
    stored = model.calibration.tensors
    with pytest.raises(ValueError, match="interval_own has the shape"):
        Calibration.of({**stored, "interval_own": np.zeros((3, 1))}, 30, 1)


def test_when_a_fit_finds_intervals():
    quick = {"n_features": 10, "sigma": 1.0, "folds": 2, "random_state": 0}
    tuned = DeKRRRegressor(alpha=(1e-6, 1e-4), consensus=1.0, **quick).fit(X, y, sites=SITES)
    assert covered(tuned.predict_interval(X_NEW, sites=SITES_NEW), Y_NEW).mean() == pytest.approx(0.9, abs=0.04)
    given = DeKRRRegressor(alpha=1e-6, consensus=1.0, **quick).fit(X, y, sites=SITES)
    with pytest.raises(SettingsError, match="fit DeKRRRegressor with intervals=True"):
        given.predict_interval(X_NEW, sites=SITES_NEW)
    with pytest.raises(SettingsError, match="has no intervals: it was fitted without them"):
        given.models_[0].predict_interval(X_NEW)
    with pytest.raises(SettingsError, match="which the privacy budget does not pay for"):
        regressor(privacy=DifferentialPrivacy(1.0), features="plain", scale=None).fit(X, y, sites=SITES)
    for baseline in (LocalRegressor(n_features=10), CentralizedKRR()):
        with pytest.raises(SettingsError, match="intervals"):
            baseline.fit(X[:200], y[:200], sites=SITES[:200]).predict_interval(X_NEW, sites=SITES_NEW)
    with pytest.raises(SettingsError, match="a number between 0 and 1; got 90"):
        tuned.predict_interval(X_NEW, sites=SITES_NEW, coverage=90)
    with pytest.raises(SettingsError, match="'intervals' parameter"):
        DeKRRRegressor(intervals="always").fit(X, y, sites=SITES)


def test_a_site_with_too_few_rows_has_those_of_all_sites_and_says_so(tmp_path):
    few = np.concatenate([np.flatnonzero(SITES != 5)[:600], np.flatnonzero(SITES == 5)[:11]])
    fit = regressor(min_rows=10).fit(X[few], y[few], sites=SITES[few])
    with pytest.warns(UserWarning, match="site '5' held no rows out"):
        ends = fit.models_[5].predict_interval(X_NEW)
    own = SITES_NEW == 5
    assert covered(ends[own], Y_NEW[own]).mean() == pytest.approx(0.9, abs=0.12)
    with pytest.warns(UserWarning, match="site 5 held no rows out") as told:
        table = fit.predict_interval(X_NEW, sites=SITES_NEW)
    assert len(told) == 1
    np.testing.assert_allclose(table[own], ends[own], rtol=1e-9, atol=1e-12)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit.predict_interval(X_NEW[~own], sites=SITES_NEW[~own])
    fit.models_[5].save(tmp_path / "m.safetensors")
    with pytest.warns(UserWarning, match="site '5' held no rows out"):
        np.testing.assert_array_equal(dekrr.load(tmp_path / "m.safetensors").predict_interval(X_NEW), ends)
    assert fit.models_[0].calibration.pooled.sum() == pytest.approx(
        sum(fit.models_[site].calibration.own.sum() for site in range(5))
    )


def sites_of_levels(seed, n_sites, n_rows, heavy):
    """Return training rows and new ones of sites that differ in their level and in the size of their errors."""
    rng = np.random.default_rng(seed)
    level, size = rng.normal(size=n_sites) / 2, 0.3 * np.exp(0.3 * rng.normal(size=n_sites))

    def rows(n_each):
        sites, X = np.repeat(np.arange(n_sites), n_each), rng.random((n_sites * n_each, 3))
        noise = rng.standard_t(2.5, len(X)) if heavy else rng.normal(size=len(X))
        return X, np.sin(4 * X[:, 1]) + X[:, 2] + level[sites] + size[sites] * noise * (0.5 + X[:, 0]), sites

    return rows(n_rows), rows(6000 // n_sites)


@pytest.mark.parametrize("heavy", [False, True])
@pytest.mark.parametrize(
    ("n_sites", "n_rows", "seeds"),
    [(10, 300, 3), (40, 45, 2), pytest.param(160, 45, 3, marks=pytest.mark.slow)],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_ninety_of_a_hundred_are_covered_at_few_large_and_at_many_small_sites(n_sites, n_rows, seeds, heavy):
    at_home, passed_on = [], []
    for seed in range(seeds):
        (X, y, sites), (X_new, y_new, new_sites) = sites_of_levels(seed, n_sites, n_rows, heavy)
        fitted = DeKRRRegressor(random_state=seed).fit(X, y, sites=sites)
        at_home.append(covered(fitted.predict_interval(X_new, sites=new_sites), y_new).mean())
        ends = np.empty((len(y_new), 2))
        for site, model in fitted.models_.items():
            ends[new_sites == site] = model.predict_interval(X_new[new_sites == site], elsewhere=True)
        passed_on.append(covered(ends, y_new).mean())
    error = 0.3 * np.sqrt(5 / (n_sites * n_rows * seeds))  # the binomial one of the held-out fifth
    for each in (at_home, passed_on):
        assert 0.9 - 2.5 * error < np.mean(each) < 0.9 + 2.5 * error + 0.015  # the model that is kept has all rows


def test_intervals_under_masks_and_after_updates():
    plain, masked = (regressor(masks=masks).fit(X, y, sites=SITES) for masks in (False, True))
    np.testing.assert_allclose(plain.predict_interval(X_NEW), masked.predict_interval(X_NEW), atol=1e-6)
    before = plain.predict_interval(X_NEW, sites=SITES_NEW)
    plain.partial_fit(X_NEW[:600], Y_NEW[:600], sites=SITES_NEW[:600])
    after = plain.predict_interval(X_NEW, sites=SITES_NEW)
    np.testing.assert_allclose(np.diff(after), np.diff(before))
    assert covered(after, Y_NEW).mean() == pytest.approx(0.9, abs=0.04)


# A site's model among scikit-learn's tools


def test_a_model_is_a_regressor_to_scikit_learn(fitted, tmp_path):
    model = fitted.models_[1]
    own = SITES_NEW == 1
    assert is_regressor(model)
    assert model.score(X_NEW[own], Y_NEW[own]) == pytest.approx(r2_score(Y_NEW[own], model.predict(X_NEW[own])))
    assert get_scorer("r2")(model, X_NEW[own], Y_NEW[own]) == pytest.approx(model.score(X_NEW[own], Y_NEW[own]))
    found = permutation_importance(model, X_NEW[own], Y_NEW[own], n_repeats=2, random_state=0)
    assert np.argmax(found.importances_mean) == 1
    dependence = partial_dependence(model, X_NEW[own], [1], kind="average", grid_resolution=20)
    grid = dependence["grid_values"][0]
    assert np.corrcoef(dependence["average"][0], np.sin(4 * grid))[0, 1] > 0.9
    assert repr(model) == "<DeKRRRegressor of site '1': 3 columns, 30 features, 5 models, intervals>"
    assert model.n_features_in_ == 3
    assert not hasattr(model, "feature_names_in_")
    with pytest.raises(SettingsError, match="cannot be fitted by itself"):
        model.fit(X, y)


def test_a_loaded_model_of_a_raw_frame_is_one_too(tmp_path):
    frame = pd.DataFrame(X, columns=["a", "b", "c"]).assign(kind=np.where(X[:, 1] > 0.5, "high", "low"), site=SITES)
    fitted = regressor().fit(frame, y, sites="site")
    fitted.models_[1].save(tmp_path / "model.safetensors")
    model = dekrr.load(tmp_path / "model.safetensors")
    own = frame[frame.site == 1].drop(columns="site")
    assert model.feature_names_in_.tolist() == ["a", "b", "c", "kind"]
    assert permutation_importance(model, own, y[SITES == 1], n_repeats=2, random_state=0).importances_mean.shape == (4,)
    ends = fitted.predict_interval(frame, sites="site")
    np.testing.assert_allclose(ends[SITES == 1], model.predict_interval(own))


def test_values_outside_those_of_training_are_named(fitted, tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"speed": rng.uniform(0, 30, 400), "wind": rng.choice(["N", "E", "S", None], 400)})
    frame["y"], frame["site"] = np.sin(frame["speed"] / 9) + (frame["wind"] == "S"), rng.choice(["a", "b"], 400)
    model = DeKRRRegressor(**FIXED).fit(frame, "y", sites="site").models_["a"]
    odd = frame.iloc[:4].assign(speed=[5000.0, 3.0, np.nan, -9.0], wind=["N", "upwards", None, "NNW"])
    assert model.outside(frame) == [[]] * 400
    assert model.outside(odd) == [["speed"], ["wind"], [], ["speed", "wind"]]
    assert model.outside(odd[["speed", "wind"]].to_numpy(dtype=object)) == model.outside(odd)
    model.save(tmp_path / "m.safetensors")
    assert dekrr.load(tmp_path / "m.safetensors").outside(odd) == model.outside(odd)
    assert fitted.models_[0].outside(np.vstack([X[:2], X[:1] + 7])) == [[], [], ["0", "1", "2"]]


def test_a_model_file_is_read_without_scikit_learn(fitted, tmp_path):
    fitted.models_[0].save(tmp_path / "model.safetensors")
    code = (
        "import sys, numpy, dekrr; m = dekrr.load(sys.argv[1]); m.predict_interval(numpy.zeros((1, 3))); "
        "assert 'sklearn' not in sys.modules; print(m)"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "model.safetensors"], capture_output=True, text=True, check=True
    )
    assert "intervals>" in run.stdout


@pytest.mark.parametrize("weighted", [False, True])
def test_what_the_shared_part_leaves_without_a_row_is_that_of_a_refit(weighted):
    rng = np.random.default_rng(0)
    rows = ArrayRows(
        rng.random((60, 2)), rng.normal(size=60), rng.integers(1, 4, 60).astype(float) if weighted else None
    )
    count = rows.weights.total
    feature_map = FeatureMap(rng.normal(size=(2, 12)), rng.random(12), np.ones(12))
    Z, w = feature_map(rows.X), np.ones(60) if rows.weight is None else rows.weight

    def solved(kept):
        gram = (Z[kept].T * w[kept]) @ Z[kept] + 1e-3 * count * np.eye(12)
        return np.linalg.solve(gram, (Z[kept].T * w[kept]) @ rows.y[kept])

    everything = np.arange(60)
    shared = SharedPart(feature_map, solved(everything), ridge=1e-3)
    outcome = SimpleNamespace(shared=shared, scaling=UNSCALED, roster=SimpleNamespace(n_counted=count), admission=None)
    expected = [rows.y[i] - Z[i] @ solved(everything != i) for i in everything]
    left = LocalNetwork({"alone": ()}).run({"alone": left_by_shared(outcome, rows, probed=False)})["alone"]
    np.testing.assert_allclose(left.rows.y, rows.y - Z @ shared.coefficients, atol=1e-12)
    np.testing.assert_allclose(left.without_row().y, expected, rtol=1e-8)


def test_leverages_of_sites_unlike_each_other_add_up_as_those_of_the_pooled_rows():
    """Two sites in different corners: rows that stand for all rows would have half their leverage."""
    rng = np.random.default_rng(1)
    rows = [ArrayRows(rng.random((200, 2)) / 3 + 0.6 * k, rng.normal(size=200)) for k in range(2)]
    feature_map = FeatureMap(4 * rng.normal(size=(2, 60)), 6 * rng.random(60), np.ones(60))
    Z = feature_map(np.vstack([each.X for each in rows]))
    gram, ridge = Z.T @ Z, 1e-5 * 400 * np.eye(60)
    theta = np.linalg.solve(gram + ridge, Z.T @ np.concatenate([each.y for each in rows]))
    exact = np.einsum("ij,ji->i", Z, np.linalg.solve(gram + ridge, Z.T))
    graph = {"a": ("b",), "b": ("a",)}

    def leverages(*, probed, key=b""):
        procedures = {}
        for name, each in zip("ab", rows, strict=True):
            part = SharedPart(feature_map, theta, ridge=1e-5, gram=gram if name == "a" else None)
            roster = SimpleNamespace(n_counted=400, height=1, depth=int(name == "b"), parent=None, n_sites=2)
            roster.parent = "a" if name == "b" else None
            outcome = SimpleNamespace(shared=part, scaling=UNSCALED, roster=roster, admission=None)
            signed = ArrayRows(each.X, each.y, hashes=RowHash(key)(each.arrays()))
            procedures[name] = left_by_shared(outcome, signed, probed=probed)
        found = LocalNetwork(graph).run(procedures)
        return [
            1 - (each.y - feature_map(each.X) @ theta) / found[name].without_row().y
            for name, each in zip("ab", rows, strict=True)
        ]

    by_signs = np.mean([leverages(probed=True, key=bytes([key])) for key in range(9)], axis=0)
    for k, (plain, probed) in enumerate(zip(leverages(probed=False), by_signs, strict=True)):
        own = exact[200 * k : 200 * (k + 1)]
        assert plain.sum() < 0.75 * own.sum()
        assert probed.sum() == pytest.approx(own.sum(), rel=0.15)
        assert np.abs(probed - own).mean() < np.abs(plain - own).mean()


def test_odds_of_leverages_have_one_factor():
    before = np.array([0.05, 0.2, 0.6])
    after = with_sum(before, 1.2, 100.0)
    odds = after / (1 - after) / (before / (1 - before))
    assert after.sum() == pytest.approx(1.2)
    np.testing.assert_allclose(odds, odds[0])
    np.testing.assert_allclose(with_sum(before, 2.9, 2.0) / (1 - with_sum(before, 2.9, 2.0)), 2 * before / (1 - before))


def test_one_row_that_decides_the_model_makes_intervals_wide():
    rng = np.random.default_rng(5)
    X, sites = rng.normal(size=(1200, 3)), np.arange(1200) % 3
    y = np.exp(2 + 0.6 * X[:, 0] + 0.5 * rng.normal(size=1200))
    train, covered = np.arange(1200) < 700, []
    for place in (46, 276, 506):  # one of these is held out of the second training
        spoilt = y.copy()
        spoilt[place] = 50_000.0
        settings = {"n_features": 20, "sigma": 1.0, "alpha": 1e-6, "consensus": 1.0, "random_state": 2}
        regressor = DeKRRRegressor(intervals=True, **settings).fit(X[train], spoilt[train], sites=sites[train])
        ends = regressor.predict_interval(X[~train], sites=sites[~train])
        covered.append(np.mean((ends[:, 0] <= y[~train]) & (y[~train] <= ends[:, 1])))
    assert min(covered) > 0.8, covered


def unlike_sites(seed, n_rows):
    """Return rows of four sites whose responses differ, so that the local part counts for much."""
    rng = np.random.default_rng(seed)
    X, sites = rng.random((n_rows, 3)), rng.integers(0, 4, n_rows)
    return X, np.sin(4 * X[:, 1]) + (1 + sites) * np.cos(3 * X[:, 0] + sites) + 0.2 * rng.normal(size=n_rows), sites


@pytest.mark.parametrize("intervals", [True, "auto"])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_intervals_of_what_is_passed_on_cover_as_often_as_those_of_the_whole_model(intervals, tmp_path):
    whole, passed_on = [], []
    for seed in range(3):
        X, y, sites = unlike_sites(seed, 1200)
        X_new, y_new, new_sites = unlike_sites(seed + 100, 4000)
        fitted = DeKRRRegressor(n_features=30, intervals=intervals, random_state=seed).fit(X, y, sites=sites)
        for site, model in fitted.models_.items():
            model.save(tmp_path / "model.safetensors")
            own, without = new_sites == site, dekrr.load(tmp_path / "model.safetensors").without_local()
            assert model.home.local is not None
            whole.append(covered(model.predict_interval(X_new[own]), y_new[own]).mean())
            passed_on.append(covered(without.predict_interval(X_new[own]), y_new[own]).mean())
            again = without.without_local()
            np.testing.assert_array_equal(again.predict_interval(X_new[:9]), without.predict_interval(X_new[:9]))
    # The mean of all folds' trees errs less than the trees of one fold, which the scores of the whole model are of.
    # With 720 rows held out in all, two standard errors of a coverage are 0.02.
    for each in (whole, passed_on):
        assert 0.87 < np.mean(each) < 0.95
        assert min(each) > 0.72, each  # of twelve sites, each with about 60 rows held out


@pytest.mark.parametrize("of_classes", [False, True])
@pytest.mark.parametrize("changes", [{"y": -3.0}, {"x": (1.0, 0.0, 0.0)}])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_what_is_passed_on_does_not_depend_on_a_row_that_is_withheld(of_classes, changes):
    def tensors(x=(1.0, 0.0, 1.0), y=5.0):
        X, response, sites = unlike_sites(0, 1200)
        X *= 0.3
        X[7], response[7], sites[7] = x, y, 0
        settings = {"n_features": 12, "shared": 20, "rows_per_feature": 1.5, "scale": "quantiles", "random_state": 0}
        if of_classes:
            fitted = DeKRRClassifier(**settings).fit(X, (response > 0).astype(int), sites=sites)
        else:
            fitted = DeKRRRegressor(intervals=True, **settings).fit(X, response, sites=sites)
        assert fitted.models_[0].home.local is not None
        passed_on = {name: model.without_local() for name, model in fitted.models_.items()}
        return {name: one._contents()[0] for name, one in fitted.models_.items()}, {
            name: one.to_bytes() for name, one in passed_on.items()
        }

    def same(one, other):
        return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)

    (whole, passed_on), (whole_then, passed_on_then) = tensors(), tensors(**changes)
    assert not same(whole[0], whole_then[0]), "the row is in the local part"
    assert passed_on == passed_on_then  # every byte, the header too
    for name in whole.keys() - {0}:  # a local part has seen the row, so nothing of it is in sums
        assert same(whole[name], whole_then[name])


def test_a_file_without_intervals_of_what_is_passed_on_says_so(tmp_path):
    model = DeKRRRegressor(n_features=30, random_state=0, intervals=True).fit(X, y, sites=SITES).models_[0]
    old = replace(model, calibration=replace(model.calibration, elsewhere=None))
    old.save(tmp_path / "old.safetensors")
    loaded = dekrr.load(tmp_path / "old.safetensors")
    loaded.predict_interval(X_NEW[:3])
    with pytest.warns(UserWarning, match="without its local part has no intervals"):
        without = loaded.without_local()
    with pytest.raises(SettingsError, match="has no intervals"):
        without.predict_interval(X_NEW[:3])
