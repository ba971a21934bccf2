"""Classes: least squares on codes, calibrated probabilities, prediction sets."""

import pickle

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import minimize
from sklearn.base import clone, is_classifier
from sklearn.inspection import permutation_importance
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, log_loss
from sklearn.utils.estimator_checks import parametrize_with_checks
from typer.testing import CliRunner

import dekrr
from dekrr import DataError, DeKRRClassifier, DeKRRRegressor, SettingsError
from dekrr.classes import N_BINS, NEWTON_STEPS, ClassCalibration, Platt, codes, histogram, scores
from dekrr.cli.app import app
from dekrr.data import make_sites
from dekrr.protocols import calibration

N_SITES = 4
FIXED = {"n_features": 40, "sigma": 1.0, "alpha": 1e-5, "consensus": 0.5, "random_state": 0}
QUICK = {"n_features": 10, "folds": 2, "sigma": 1.0, "alpha": (1e-6, 1e-3), "consensus": (0.5, 1.0)}


def rows_of(seed, n_rows=1600, n_classes=3):
    """Return rows, classes drawn by known probabilities, sites, and the probabilities."""
    rng = np.random.default_rng(seed)
    X = rng.random((n_rows, 3))
    logits = np.column_stack([4 * X[:, 0], 3 * np.sin(4 * X[:, 1]) + 1, 4 * X[:, 2] ** 2])[:, :n_classes]
    truth = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    places = (rng.random(n_rows)[:, None] > np.cumsum(truth, axis=1)).sum(axis=1)
    return X, np.array(["low", "mid", "top"])[places], rng.choice(N_SITES, n_rows), truth


X, y, SITES, _ = rows_of(0)
X_NEW, Y_NEW, SITES_NEW, TRUTH = rows_of(1, 4000)


@pytest.fixture(scope="module")
def fitted():
    return DeKRRClassifier(**FIXED).fit(X, y, sites=SITES)


@parametrize_with_checks([DeKRRClassifier(**QUICK)])
def test_scikit_learn_conventions(estimator, check):
    check(estimator)


def test_classes_and_probabilities(fitted):
    shares = fitted.predict_proba(X_NEW, sites=SITES_NEW)
    assert fitted.classes_.tolist() == ["low", "mid", "top"]
    np.testing.assert_allclose(shares.sum(axis=1), 1)
    assert shares.min() > 0
    best = log_loss(Y_NEW, TRUTH)
    assert log_loss(Y_NEW, shares) < best + 0.06
    assert (
        fitted.score(X_NEW, Y_NEW, sites=SITES_NEW)
        > accuracy_score(Y_NEW, fitted.classes_[TRUTH.argmax(axis=1)]) - 0.04
    )
    prediction = fitted.predict(X_NEW, sites=SITES_NEW)
    np.testing.assert_array_equal(prediction, fitted.classes_[shares.argmax(axis=1)])
    np.testing.assert_array_equal(
        prediction, fitted.classes_[fitted.decision_function(X_NEW, SITES_NEW).argmax(axis=1)]
    )


def test_probabilities_are_calibrated(fitted):
    """Of rows that get a probability near p, a share near p is of that class."""
    shares, own = fitted.predict_proba(X_NEW, sites=SITES_NEW), Y_NEW[:, None] == fitted.classes_
    for low in (0.1, 0.3, 0.5, 0.7):
        there = (shares >= low) & (shares < low + 0.2)
        assert own[there].mean() == pytest.approx(shares[there].mean(), abs=0.06)


def test_own_and_union(fitted):
    each = [model.predict_proba(X_NEW, elsewhere=True) for model in fitted.models_.values()]
    union = np.mean([log_loss(Y_NEW, share) for share in each])
    assert fitted.score(X_NEW, Y_NEW, metric="union", loss="log_loss") == pytest.approx(union)
    accuracy = np.mean([accuracy_score(Y_NEW, fitted.classes_[share.argmax(axis=1)]) for share in each])
    assert fitted.score(X_NEW, Y_NEW, metric="union") == pytest.approx(accuracy)
    own = fitted.score(X_NEW, Y_NEW, sites=SITES_NEW, loss="log_loss")
    assert own == pytest.approx(log_loss(Y_NEW, fitted.predict_proba(X_NEW, sites=SITES_NEW)))
    with pytest.raises(SettingsError, match='loss "accuracy" or "log_loss"'):
        fitted.score(X_NEW, Y_NEW, loss="hinge")


def test_it_is_the_regression_of_codes(fitted):
    """An independent solution: the regressor with one output per class, given the same settings."""
    regressor = DeKRRRegressor(**FIXED).fit(X, np.eye(3)[np.unique(y, return_inverse=True)[1]], sites=SITES)
    np.testing.assert_allclose(
        fitted.regressor_.predict(X_NEW, sites=SITES_NEW), regressor.predict(X_NEW, sites=SITES_NEW), atol=1e-9
    )


def test_two_classes_are_one_output():
    two, new = np.where(y == "mid", 7, 3), np.where(Y_NEW == "mid", 7, 3)
    classifier = DeKRRClassifier(**FIXED).fit(X, two, sites=SITES)
    assert classifier.regressor_.models_[0].n_outputs == 1
    margins = classifier.decision_function(X_NEW, sites=SITES_NEW)
    assert margins.shape == (len(X_NEW),)
    np.testing.assert_array_equal(classifier.predict(X_NEW, sites=SITES_NEW), np.where(margins > 0, 7, 3))
    logistic = LogisticRegression().fit(X, two).predict_proba(X_NEW)
    assert log_loss(new, classifier.predict_proba(X_NEW, sites=SITES_NEW)) < log_loss(new, logistic)


@pytest.mark.parametrize("coverage", [0.8, 0.9, 0.95])
def test_prediction_sets_cover(fitted, coverage):
    inside = fitted.predict_set(X_NEW, SITES_NEW, coverage)
    assert inside.shape == (len(X_NEW), 3)
    own = np.searchsorted(fitted.classes_, Y_NEW)
    hit = inside[np.arange(len(own)), own]
    assert hit.mean() == pytest.approx(coverage, abs=0.06)
    for site in range(N_SITES):
        assert hit[site == SITES_NEW].mean() > coverage - 0.1
    assert 1 < inside.sum(axis=1).mean() < 2.7
    np.testing.assert_array_equal(
        fitted.models_[2].predict_set(X_NEW[SITES_NEW == 2], coverage), inside[SITES_NEW == 2]
    )


@pytest.mark.parametrize("slope", [0.5, -0.5], ids=["of use", "worse than nothing"])
def test_platt_has_the_least_log_loss(slope):
    rng = np.random.default_rng(0)
    own = np.eye(3)[rng.choice(3, 500, p=[0.7, 0.2, 0.1])]
    found = slope * own + rng.normal(0.2, 0.3, size=own.shape)
    weight = rng.uniform(0.5, 2, 500)
    platt = Platt.start(3)
    for _ in range(NEWTON_STEPS):
        halves = [platt.sums(found[part], own[part], weight[part]) for part in (slice(0, 200), slice(200, None))]
        platt = platt.stepped(np.sum(halves, axis=0))

    def loss(at):
        log_shares = np.log(Platt(at[0], at[1:]).probabilities(found))
        return -weight @ np.sum(own * log_shares, axis=1) + ((at[0] - 4) ** 2 + at[1:] @ at[1:]) / 2

    bounds = [(0.1, 30), *[(-30, 30)] * 3]
    best = minimize(loss, np.array([4.0, 0, 0, 0]), bounds=bounds, tol=1e-12)
    assert loss(np.append(platt.slope, platt.offsets)) == pytest.approx(best.fun, rel=1e-7)


def test_few_held_out_rows_borrow():
    own, pooled = np.zeros(N_BINS), np.zeros(N_BINS)
    own[10], pooled[200] = 5, 1000
    lonely = ClassCalibration(Platt.start(2), own, np.zeros(N_BINS))
    assert lonely.least_probability(0.9) == 0
    assert ClassCalibration(Platt.start(2), own, pooled).least_probability(0.9) == pytest.approx(1 - 201 / N_BINS)
    with pytest.raises(SettingsError, match="between 0 and 1"):
        lonely.least_probability(1.0)
    counts = histogram(np.array([[0.2, 0.8], [0.5, 0.5]]), np.array([[0.0, 1.0], [1.0, 0.0]]), np.ones(2))
    assert counts[[51, 128]].tolist() == [1, 1]
    np.testing.assert_array_equal(scores(codes(np.array([0, 1]), 2)), np.eye(2))


def test_weights_are_repeated_rows():
    times = np.random.default_rng(0).integers(1, 4, len(y))
    repeated = np.repeat(np.arange(len(y)), times)
    classifier = DeKRRClassifier(**FIXED, tol=1e-12, shared=None, local=None, column_scales=None)
    weighted = clone(classifier).fit(X, y, sites=SITES, sample_weight=times)
    expected = classifier.fit(X[repeated], y[repeated], sites=SITES[repeated])
    found = [each.regressor_.predict(X_NEW, sites=SITES_NEW) for each in (weighted, expected)]
    np.testing.assert_allclose(*found, atol=1e-9)


def test_names_frames_pickles_and_a_model_among_scikit_learn_s_tools():
    frame = pd.DataFrame(X, columns=["a", "b", "c"]).assign(wind=np.where(X[:, 0] > 0.5, "N", "S"), kind=y, site=SITES)
    classifier = DeKRRClassifier(**FIXED).fit(frame, "kind", sites="site")
    assert classifier.feature_names_in_.tolist() == ["a", "b", "c", "wind"]
    same = pickle.loads(pickle.dumps(classifier))
    np.testing.assert_array_equal(same.predict(frame, sites="site"), classifier.predict(frame, sites="site"))
    model = classifier.models_[0]
    assert is_classifier(model)
    assert repr(model).startswith("<DeKRRClassifier of site ")
    assert "4 columns, 3 classes, 40 features" in repr(model)
    own = frame[frame.site == 0].drop(columns=["site", "kind"])
    found = permutation_importance(model, own, y[SITES == 0], n_repeats=2, random_state=0)
    assert found.importances_mean.shape == (4,)
    assert model.score(own, y[SITES == 0]) == accuracy_score(y[SITES == 0], model.predict(own))
    assert clone(classifier).get_params() == classifier.get_params()


def test_names_of_columns_are_taken_by_every_method():
    frame = pd.DataFrame(X, columns=["a", "b", "c"]).assign(kind=y, station=SITES, n=1.0 + SITES)
    columns = ["a", "b", "c"]
    classifier = DeKRRClassifier(**FIXED).fit(frame, "kind", sites="station", columns=columns)
    given = frame[columns], y, SITES
    assert classifier.score(frame, "kind", sites="station") == classifier.score(*given)
    for how in ({"metric": "union"}, {"loss": "log_loss"}, {"metric": "union", "loss": "log_loss"}):
        assert classifier.score(frame, "kind", sites="station", **how) == classifier.score(*given, **how)
    weighted = classifier.score(*given, sample_weight=1.0 + SITES)
    assert classifier.score(frame, "kind", sites="station", sample_weight="n") == weighted
    sets = classifier.predict_set(frame, sites="station")
    np.testing.assert_array_equal(sets, classifier.predict_set(frame[columns], SITES))
    with pytest.raises(DataError, match="y='kind' is the name of a column, but the rows are not a frame"):
        classifier.score(X, "kind", sites=SITES)


def test_sets_of_sites_with_too_few_held_out_rows_have_all_classes():
    some = np.concatenate([np.flatnonzero(label == SITES)[: None if label else 100] for label in range(N_SITES)])
    classifier = DeKRRClassifier(**FIXED, unknown_sites="mean").fit(X[some], y[some], sites=SITES[some])
    with pytest.warns(UserWarning, match=r"site 0 has too few held-out rows for a coverage of 0\.983, which takes 58"):
        sets = classifier.predict_set(X_NEW, SITES_NEW, coverage=0.983)
    assert sets[SITES_NEW == 0].all()
    assert not sets[SITES_NEW != 0].all()
    with pytest.warns(UserWarning, match="site 0 has too few"):
        assert classifier.predict_set(X_NEW[:3], ["elsewhere"] * 3, coverage=0.983).all()
    with pytest.warns(UserWarning, match="too few held-out rows"):
        assert classifier.models_[0].predict_set(X_NEW[:3], coverage=0.983).all()


def test_going_on():
    half = np.arange(len(y)) % 2 == 0
    classifier = DeKRRClassifier(**FIXED).partial_fit(X[half], y[half], sites=SITES[half])
    before = classifier.score(X_NEW, Y_NEW, sites=SITES_NEW, loss="log_loss")
    classifier.partial_fit(X[~half], y[~half], sites=SITES[~half])
    assert classifier.score(X_NEW, Y_NEW, sites=SITES_NEW, loss="log_loss") < before + 0.02
    with pytest.raises(DataError, match=r"unknown classes \['other'\]"):
        classifier.partial_fit(X[:40], np.full(40, "other"), sites=SITES[:40])


def test_what_cannot_be_classified():
    with pytest.raises(DataError, match="there is one class, 'low'"):
        DeKRRClassifier(**FIXED).fit(X, np.full(len(X), "low"), sites=SITES)
    with pytest.raises(DataError, match="not files or mappings"):
        DeKRRClassifier(**FIXED).fit("rows.csv", "kind", sites="site")
    with pytest.raises(SettingsError, match="'alpha' parameter of DeKRRClassifier"):
        DeKRRClassifier(alpha=-1).fit(X, y, sites=SITES)
    bounds = np.array([*X.min(axis=0), 0.0, 0.0, 0.0]), np.array([*X.max(axis=0), 1.0, 1.0, 1.0])
    private = DeKRRClassifier(**FIXED, features="plain", bounds=bounds, privacy=5.0, classes=np.unique(y))
    assert private.fit(X, y, sites=SITES).predict_proba(X_NEW).shape == (len(X_NEW), 3)
    with pytest.raises(SettingsError, match="no prediction sets in these models, because no rows were held out"):
        private.predict_set(X_NEW, SITES_NEW)


@pytest.mark.parametrize("labels", [["low", "high"], ["c", "a", "b"], [3, 1], [False, True]])
def test_a_model_of_classes_is_saved_and_loaded(tmp_path, labels):
    rows, y, sites = make_sites(n_sites=3, rows_per_site=120, random_state=0)
    places = np.searchsorted(np.quantile(y, np.arange(1, len(labels)) / len(labels)), y)
    table = pd.DataFrame(rows, columns=["u", "v", "w"]).assign(kind=np.asarray(labels)[places], station=sites)
    settings = {"n_features": 12, "sigma": 0.4, "alpha": 1e-4, "consensus": 1.0, "random_state": 0}
    fitted = DeKRRClassifier(**settings).fit(table, "kind", sites="station")
    for number, (name, model) in enumerate(fitted.models_.items()):
        model.save(tmp_path / f"{number}.safetensors")
        again = dekrr.load(tmp_path / f"{number}.safetensors")
        own = table[table.station == name]
        assert again.header.targets == ["kind"]
        np.testing.assert_array_equal(again.classes_, fitted.classes_)
        np.testing.assert_array_equal(again.predict(own), fitted.predict(own, sites="station"))
        np.testing.assert_array_equal(again.predict_proba(own), model.predict_proba(own))
        np.testing.assert_array_equal(again.predict_set(own), model.predict_set(own))
        assert again.score(own, own.kind) > 0.7
    out = tmp_path / "new.csv"
    table.to_csv(tmp_path / "rows.csv", index=False)
    command = ["predict", str(tmp_path), str(tmp_path / "rows.csv"), "--site", "station", "--out", str(out)]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    new = pd.read_csv(out)
    assert new.prediction.tolist() == fitted.predict(table, sites="station").tolist()
    shares = fitted.predict_proba(table, sites="station")
    for k, label in enumerate(fitted.classes_.tolist()):
        np.testing.assert_allclose(new[f"prediction_{label}"], shares[:, k], rtol=1e-9)


def test_probabilities_of_small_sites_rest_on_all_rows(monkeypatch):
    """By the held-out fifth alone, a slope from few rows is a matter of luck: the log loss of new rows is higher."""

    def losses():
        found = []
        for seed in range(6):
            X, y, sites, _ = rows_of(10 + seed, 120, n_classes=2)
            X_new, y_new, sites_new, _ = rows_of(20 + seed, 1500, n_classes=2)
            classifier = DeKRRClassifier(n_features=10, random_state=seed).fit(X, y, sites=sites)
            found.append(log_loss(y_new, classifier.predict_proba(X_new, sites=sites_new)))
        return np.array(found)

    of_all = losses()
    monkeypatch.setattr(calibration, "_with_kept", lambda done: [done.held_out])
    of_a_fifth = losses()
    assert of_all.mean() < 0.97 * of_a_fifth.mean()
