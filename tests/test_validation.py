"""Errors on held-out rows that a fit tells of: own and union, by a training without these rows."""

import pickle
import re
import warnings
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import pytest
from sklearn.compose import TransformedTargetRegressor
from sklearn.metrics import accuracy_score, log_loss

from dekrr import CentralizedKRR, DeKRRClassifier, DeKRRRegressor, LocalRegressor, rse
from dekrr.classes import scores
from dekrr.errors import DekrrWarning, PoorFitWarning
from dekrr.estimators import model_set
from dekrr.estimators.model_set import share_of_few, tell_of_many_columns, tell_of_poor_fit
from dekrr.model import Header, model_of
from dekrr.parts.local import Home
from dekrr.protocols import calibration
from dekrr.tables.rows import ArrayRows

RNG = np.random.default_rng(0)
X = RNG.random((900, 3))
SITES = np.repeat(["north", "south", "west"], [400, 350, 150])
y = np.sin(6 * X[:, 0]) + X[:, 1] * (SITES == "west") + 0.3 * RNG.normal(size=900)
SMALL = {"n_features": 30, "random_state": 0}


@pytest.fixture
def seconds(monkeypatch):
    """What every site has after its second training, by the site's name."""
    found, kept = {}, calibration.Second

    def second(site, *others):
        found[site.name] = kept(site, *others)
        return found[site.name]

    monkeypatch.setattr(calibration, "Second", second)
    return found


def predicted(seconds, by, at, elsewhere=False):
    """Return responses of the held-out rows of one site, and what the second model of another predicts for them.

    Where the second training has no shared part, what the first one's would predict without the row comes on top. For
    a site's own rows there are its level and its local part: the first training's, without the trees of the fold.
    """
    header = Header(site=by, method="DeKRR", kernel="gaussian", sigma=1.0, columns=None, n_columns=3, scaled=True)
    done = seconds[by]
    first, second, held = done.first, done.second, seconds[at].held_out
    model = model_of(second, header, "neighborhood")
    assert model.home is None
    if by != at or elsewhere:
        there = seconds[at]
        return held.rows.y, there.from_anywhere.beneath[there.is_held] + model.predict(held.rows.X)
    level = np.zeros_like(first.home.level) if second.shared is None else second.shared.level
    whole = replace(model, home=Home(first.home.own_weight, level)).predict(held.rows.X) + held.beneath
    if done.home.local is None:
        return held.rows.y, whole
    assert np.array_equal(done.home.level, first.home.level)
    unit = first.scaling.undo(np.ones_like(whole)) - first.scaling.undo(np.zeros_like(whole))
    scaled = (whole - first.scaling.undo(np.zeros_like(whole))) / unit
    read = np.column_stack([first.scaling.rows(held.rows.X), scaled])
    slopes = done.home.local.slopes
    own = done.home.local.trees.predict(read) + slopes[0] + read[:, : len(slopes) - 1] @ slopes[1:]
    return held.rows.y, first.scaling.undo(done.home.local.share * scaled + own.reshape(whole.shape))


@pytest.mark.parametrize("intervals", [True, "auto"])
def test_own_and_union_errors_are_those_of_the_second_models(seconds, intervals):
    fitted = DeKRRRegressor(**SMALL, intervals=intervals).fit(X, y, sites=SITES)
    errors = fitted.validation_["RSE"]
    names = list(seconds)
    for site, second in seconds.items():
        held = second.held_out.rows
        ours = {tuple(row) for row in X[site == SITES].tolist()}
        assert {tuple(row) for row in held.X.tolist()} <= ours - {tuple(row) for row in second.kept.rows.X.tolist()}
        assert errors.n_rows[site] == held.n_rows == pytest.approx(len(ours) / 5, abs=1.2 * len(ours) ** 0.5)
        assert errors.own[site] == pytest.approx(rse(*predicted(seconds, site, site)))
        everywhere = [predicted(seconds, site, at, elsewhere=True) for at in names]
        assert errors.union[site] == pytest.approx(rse(*map(np.concatenate, zip(*everywhere, strict=True))))
    own = [predicted(seconds, site, site) for site in names]
    assert errors.mean_own == pytest.approx(rse(*map(np.concatenate, zip(*own, strict=True))))
    assert errors.mean_union == pytest.approx(np.mean(list(errors.union.values())))
    assert errors.n_union == sum(errors.n_rows.values())


def test_held_out_errors_are_near_those_on_new_rows_and_above_those_on_training_rows():
    """In the mean over three draws of rows: the error on the 180 rows that one draw holds out varies by a tenth."""

    def drawn(rng, n_rows):
        X, sites = rng.random((n_rows, 3)), rng.choice(["north", "south", "west"], n_rows, p=[4 / 9, 3.5 / 9, 1.5 / 9])
        return X, np.sin(6 * X[:, 0]) + X[:, 1] * (sites == "west") + 0.3 * rng.normal(size=n_rows), sites

    X_new, y_new, sites_new = drawn(np.random.default_rng(1), 3000)
    found = []
    for X_one, y_one, sites in [(X, y, SITES), *(drawn(np.random.default_rng(seed), 900) for seed in (101, 102))]:
        fitted = DeKRRRegressor(**SMALL).fit(X_one, y_one, sites=sites)
        errors = fitted.validation_["RSE"]
        on_new = [fitted.rse(X_new, y_new, sites=sites_new, metric=metric) for metric in ("own", "union")]
        found.append([errors.mean_own, errors.mean_union, *on_new, fitted.rse(X_one, y_one, sites=sites)])
    own, union, own_new, union_new, own_seen = np.mean(found, axis=0)
    assert own == pytest.approx(own_new, rel=0.15)
    assert union == pytest.approx(union_new, rel=0.15)
    assert own > 1.1 * own_seen


def test_the_summary_shows_them_with_the_rows_they_rest_on():
    fitted = DeKRRRegressor(**SMALL).fit(X, y, sites=SITES)
    errors, summary = fitted.validation_["RSE"], fitted.fit_summary()
    n_rows = sum(errors.n_rows.values())
    alone = f"own {errors.mean_own:.4g}, alone {errors.mean_alone:.4g} on {n_rows} rows"
    told = f"{alone}, union {errors.mean_union:.4g} on all of them"
    assert f"held-out RSE: {told}; by a second training without them" in str(summary)
    west = summary.sites["west"]
    assert (west["held out"], west["own RSE"]) == (str(errors.n_rows["west"]), f"{errors.own['west']:.4g}")
    assert west["union RSE"] == f"{errors.union['west']:.4g}"
    assert told in summary._repr_html_()
    assert f"<td>{errors.own['west']:.4g}</td>" in summary._repr_html_()


@pytest.mark.parametrize(
    ("regressor", "reason"),
    [
        (DeKRRRegressor(**SMALL, intervals=False), "none, because no rows were held out, .*; fit with intervals=True"),
        (CentralizedKRR(sigma=0.5, alpha=1e-3), "none, because this method holds out no rows; see dekrr.model_sel"),
    ],
)
def test_where_there_is_none_the_summary_says_what_gives_it(regressor, reason):
    assert re.search(f"held-out error: {reason}", str(regressor.fit(X, y, sites=SITES).fit_summary()))


def test_models_that_went_on_have_none():
    fitted = DeKRRRegressor(**SMALL).fit(X[:600], y[:600], sites=SITES[:600])
    fitted.partial_fit(X[100:200], y[100:200], SITES[100:200])
    assert fitted.validation_ is None
    assert "the models have been updated since" in str(fitted.fit_summary())


def test_union_errors_of_many_rows_rest_on_a_share_of_each_site(monkeypatch):
    monkeypatch.setattr(model_set, "_MOST_PREDICTIONS", 180)
    few = DeKRRRegressor(**SMALL).fit(X, y, sites=SITES).validation_["RSE"]
    monkeypatch.undo()
    every = DeKRRRegressor(**SMALL).fit(X, y, sites=SITES).validation_["RSE"]
    assert few.n_union == 60
    assert every.n_union == sum(every.n_rows.values()) == sum(few.n_rows.values())
    assert few.own == every.own
    assert few.mean_union == pytest.approx(every.mean_union, rel=0.4)
    monkeypatch.setattr(model_set, "_MOST_SITES", 2)
    two = DeKRRRegressor(**SMALL).fit(X, y, sites=SITES).validation_["RSE"]
    assert two.n_union == every.n_rows["north"] + every.n_rows["west"]
    assert list(two.union) == list(every.union)


def test_weights_count_in_them(seconds):
    weight = RNG.integers(1, 4, 900).astype(float)
    errors = DeKRRRegressor(**SMALL).fit(X, y, sites=SITES, sample_weight=weight).validation_["RSE"]
    for site, second in seconds.items():
        of_rows = second.held_out.rows.weight
        assert len(np.unique(of_rows)) == 3
        assert errors.own[site] == pytest.approx(rse(*predicted(seconds, site, site), of_rows))


@pytest.mark.parametrize("n_classes", [2, 3])
def test_a_classifier_has_accuracy_and_log_loss(seconds, n_classes):
    classes = np.digitize(y, np.quantile(y, np.arange(1, n_classes) / n_classes))
    fitted = DeKRRClassifier(**SMALL).fit(X, classes, sites=SITES)
    accuracies, losses = fitted.validation_["accuracy"], fitted.validation_["log loss"]
    platt = fitted.models_["west"].class_calibration.platt
    for site in seconds:
        truth, found = predicted(seconds, site, site)
        own = np.argmax(scores(truth), axis=1)
        probabilities = platt.probabilities(scores(found))
        assert accuracies.own[site] == pytest.approx(accuracy_score(own, np.argmax(probabilities, axis=1)))
        assert losses.own[site] == pytest.approx(log_loss(own, probabilities, labels=np.arange(n_classes)))
    text = str(fitted.fit_summary())
    assert f"held-out accuracy: own {accuracies.mean_own:.4g}, alone {accuracies.mean_alone:.4g} on" in text
    assert "own log loss" in text
    assert "DeKRRClassifier" in text


def test_no_held_out_row_stays_in_the_estimator():
    fitted = DeKRRRegressor(**SMALL).fit(X, y, sites=SITES)
    stored = pickle.dumps(fitted)
    inner = np.sort(X[:, 0])[1:-1]  # the scaling has the others
    assert np.sort(X[:, 0])[0].tobytes() in stored
    assert not any(value.tobytes() in stored for value in inner)


def test_where_the_union_error_rests_on_fewer_rows_the_summary_says_how_many(monkeypatch):
    monkeypatch.setattr("dekrr.estimators.model_set._MOST_PREDICTIONS", 60)
    fitted = DeKRRRegressor(**SMALL).fit(X, y, sites=SITES)
    errors = fitted.validation_["RSE"]
    assert errors.n_union < sum(errors.n_rows.values())
    assert f" on {errors.n_union} of them; by a second" in str(fitted.fit_summary())


def _warnings_of(fit):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit()
    return [str(each.message) for each in caught if issubclass(each.category, PoorFitWarning)]


def _with_one_large():
    responses = np.exp(y)
    responses[7] = 49_454.0
    return responses


def test_a_fit_that_is_worse_than_the_mean_says_so_and_what_to_do():
    regressor = DeKRRRegressor(random_state=0)
    responses = _with_one_large()
    assert not _warnings_of(lambda: regressor.fit(X, responses, sites=SITES))  # one site alone: it is limited
    responses[-1] = 49_454.0
    (told,) = _warnings_of(lambda: regressor.fit(X, responses, sites=SITES))
    errors = regressor.validation_["RSE"]
    assert f"the held-out RSE is {errors.mean_own:.3g} (own) and {errors.mean_union:.3g} (union), and 1 is" in told
    assert f"3 of {len(y)} rows carry nearly all of the variance of the response" in told
    assert 'DeKRRRegressor(transform="log1p")' in told
    of_logarithm = TransformedTargetRegressor(DeKRRRegressor(**SMALL), func=np.log1p, inverse_func=np.expm1)
    assert not _warnings_of(lambda: of_logarithm.fit(X, np.exp(y), sites=SITES))


@pytest.mark.parametrize("kind", [LocalRegressor, CentralizedKRR, partial(DeKRRRegressor, intervals=False)])
def test_where_nothing_is_held_out_few_rows_with_most_of_the_variance_are_told(kind):
    (told,) = _warnings_of(lambda: kind(sigma=0.5, alpha=1e-4, random_state=0).fit(X, _with_one_large(), sites=SITES))
    assert told.startswith(f"3 of {len(y)} rows carry nearly all of the variance of the response: look whether")
    assert not _warnings_of(lambda: kind(sigma=0.5, alpha=1e-4, random_state=0).fit(X, y, sites=SITES))


def test_rows_of_files_are_judged_by_what_the_fit_has_read(tmp_path):
    frame = pd.DataFrame(X, columns=["a", "b", "c"]).assign(y=_with_one_large(), site=SITES)
    frame.to_csv(tmp_path / "rows.csv", index=False)
    regressor = DeKRRRegressor(**SMALL | {"intervals": False})
    (told,) = _warnings_of(lambda: regressor.fit(tmp_path / "rows.csv", "y", sites="site"))
    assert f"3 of {len(y)} rows" in told


@pytest.mark.parametrize(
    ("errors", "few", "told"),
    [
        ((0.4, 0.9), (0.9, 500), None),  # a few rows carry most of it, and are predicted
        ((None, None), (0.4, 500), None),
        ((None, None), (0.6, 500), "3 of 500 rows carry 60 % of the variance"),
        ((1.2, 1.1), (0.1, 500), "1.2 (own) and 1.1 (union), and 1 is that of always predicting the mean: these mod"),
        ((1.2, float("nan")), (0.1, 500), "RSE is 1.2 (own), and 1 is"),
        ((0.5, 1.4), (0.1, 500), "a site's model is of no use for rows of other sites. Give sites to predict"),
    ],
)
def test_what_is_told_of_poor_fits(errors, few, told):
    found = _warnings_of(lambda: tell_of_poor_fit(*errors, few))
    assert len(found) == (told is not None)
    assert all(told in text for text in found)


def test_rare_classes_are_no_large_responses():
    classes = np.where(X[:, 0] > 0.5, "high", "low").astype(object)
    classes[:2] = "rare"
    assert not _warnings_of(lambda: DeKRRClassifier(n_features=10, random_state=0).fit(X, classes, sites=SITES))


@pytest.mark.parametrize("n_rows", [99, 100])
def test_the_share_of_few_rows_is_that_of_many(n_rows):
    responses = np.zeros((n_rows, 2))
    responses[:, 0] = np.arange(n_rows)
    responses[5, 1] = 1.0
    share, counted = share_of_few(
        {"a": ArrayRows(X[:60], responses[:60]), "b": ArrayRows(X[60:n_rows], responses[60:])}
    )
    by_hand = (0.99**2 + 2 * 0.01**2) / (0.99**2 + 99 * 0.01**2)  # of the second output, whose mean is 0.01
    assert (share, counted) == (pytest.approx(by_hand if n_rows == 100 else 0.0), n_rows)
    assert share_of_few({"a": ArrayRows(X[:200], np.ones(200))})[0] == 0


def test_thousands_of_columns_are_told_before_a_fit():
    with pytest.warns(DekrrWarning, match=r"3001 columns of numbers: .* 4,000 columns took about 20 s .*SelectKBest"):
        tell_of_many_columns(3001)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tell_of_many_columns(3000)
