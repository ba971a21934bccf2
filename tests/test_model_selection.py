"""Splitters and scorers that know of sites."""

import numpy as np
import pandas as pd
import pytest
import sklearn
from sklearn.base import clone
from sklearn.compose import TransformedTargetRegressor
from sklearn.linear_model import Ridge
from sklearn.metrics import log_loss, mean_absolute_error
from sklearn.model_selection import GridSearchCV, KFold, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from dekrr import DataError, DeKRRClassifier, DeKRRRegressor, SettingsError
from dekrr.data import make_sites
from dekrr.metrics import rse
from dekrr.model_selection import OWN, UNION, LeaveOneSiteOut, Scorer, SiteKFold

X, y, SITES = make_sites(n_sites=4, random_state=0)
ORDER = np.argsort(SITES, kind="stable")
X, y, SITES = X[ORDER], y[ORDER], SITES[ORDER]  # sorted, as tables often are


def regressor(**changes):
    return DeKRRRegressor(
        **{"n_features": 8, "sigma": 0.3, "alpha": 1e-4, "consensus": 1.0, "random_state": 0} | changes
    )


@pytest.fixture
def routing():
    with sklearn.config_context(enable_metadata_routing=True):
        yield


def test_every_site_is_in_every_fold():
    seen = np.zeros(len(X), dtype=int)
    for train, test in SiteKFold(5).split(X, y, SITES):
        assert set(SITES[test]) == set(SITES[train]) == set(SITES)
        assert not set(train) & set(test)
        assert len(train) + len(test) == len(X)
        seen[test] += 1
        counts = np.unique(SITES[test], return_counts=True)[1]
        wanted = np.unique(SITES, return_counts=True)[1] / 5
        assert (np.abs(counts - wanted) < 1).all()
    assert (seen == 1).all()
    by_column = list(SiteKFold(5, sites="station").split(pd.DataFrame({"station": SITES})))
    again = list(SiteKFold(5).split(X, sites=SITES))
    assert all((a[1] == b[1]).all() for a, b in zip(by_column, again, strict=True))


def test_one_site_is_left_out():
    for train, test in LeaveOneSiteOut().split(X, sites=SITES):
        assert len(set(SITES[test])) == 1
        assert set(SITES[train]) == set(SITES) - set(SITES[test])
    assert LeaveOneSiteOut().get_n_splits(X, sites=SITES) == 4


def test_cross_validation_against_a_loop(routing):
    scores = cross_validate(
        regressor(), X, y, cv=SiteKFold(3), scoring={"own": OWN, "union": UNION}, params={"sites": SITES}
    )
    for k, (train, test) in enumerate(SiteKFold(3).split(X, sites=SITES)):
        fitted = regressor().fit(X[train], y[train], sites=SITES[train])
        assert scores["test_own"][k] == pytest.approx(-fitted.rse(X[test], y[test], sites=SITES[test]))
        assert scores["test_union"][k] == pytest.approx(-fitted.rse(X[test], y[test], metric="union"))


def test_a_pipeline_is_scored_by_any_loss_against_a_loop(routing):
    def pipeline():
        return make_pipeline(StandardScaler(), regressor())

    scoring = {"own": OWN, "union": UNION}
    scoring |= {f"{metric} mae": Scorer(metric, mean_absolute_error) for metric in ("own", "union")}
    found = cross_validate(pipeline(), X, y, cv=SiteKFold(3), scoring=scoring, params={"sites": SITES})
    for k, (train, test) in enumerate(SiteKFold(3).split(X, sites=SITES)):
        scaler = StandardScaler().fit(X[train])
        fitted = regressor().fit(scaler.transform(X[train]), y[train], sites=SITES[train])
        rows, truth = scaler.transform(X[test]), y[test]
        own = fitted.predict(rows, sites=SITES[test])
        each = [model.predict(rows, elsewhere=True) for model in fitted.models_.values()]
        assert found["test_own"][k] == pytest.approx(-fitted.rse(rows, truth, sites=SITES[test]))
        assert found["test_union"][k] == pytest.approx(-fitted.rse(rows, truth, metric="union"))
        assert found["test_own mae"][k] == pytest.approx(-np.mean(np.abs(own - truth)))
        assert found["test_union mae"][k] == pytest.approx(-np.mean(np.abs(np.array(each) - truth)))


def test_classes_are_scored_against_a_loop(routing):
    classes = np.where(y > np.median(y), "high", "low")
    classifier = DeKRRClassifier(n_features=8, sigma=0.3, alpha=1e-4, consensus=1.0, random_state=0)
    losses = {metric: Scorer(metric, log_loss, response="predict_proba") for metric in ("own", "union")}
    for estimator in (classifier, make_pipeline(StandardScaler(), classifier)):
        scoring = {"own": OWN, "union": UNION, "own loss": losses["own"], "union loss": losses["union"]}
        found = cross_validate(estimator, X, classes, cv=SiteKFold(2), scoring=scoring, params={"sites": SITES})
        for k, (train, test) in enumerate(SiteKFold(2).split(X, sites=SITES)):
            rows = StandardScaler().fit(X[train]).transform(X) if estimator is not classifier else X
            fitted = clone(classifier).fit(rows[train], classes[train], sites=SITES[train])
            for metric in ("own", "union"):
                score = fitted.score(rows[test], classes[test], sites=SITES[test], metric=metric)
                loss = fitted.score(rows[test], classes[test], sites=SITES[test], metric=metric, loss="log_loss")
                assert found[f"test_{metric}"][k] == pytest.approx(score)
                assert found[f"test_{metric} loss"][k] == pytest.approx(-loss)
    plain = cross_validate(classifier, X, classes, cv=SiteKFold(2), params={"sites": SITES})
    again = cross_validate(classifier, X, classes, cv=SiteKFold(2), params={"sites": SITES}, scoring=OWN)
    np.testing.assert_allclose(plain["test_score"], again["test_score"])


def test_a_transformed_target_with_sites(routing):
    positive = np.exp(y)
    estimator = TransformedTargetRegressor(regressor(), func=np.log, inverse_func=np.exp)
    scoring = {"own": OWN, "union": UNION}
    found = cross_validate(estimator, X, positive, cv=SiteKFold(2), scoring=scoring, params={"sites": SITES})
    for k, (train, test) in enumerate(SiteKFold(2).split(X, sites=SITES)):
        fitted = regressor().fit(X[train], np.log(positive[train]), sites=SITES[train])
        own = np.exp(fitted.predict(X[test], sites=SITES[test]))
        models = fitted.models_.values()
        each = [rse(positive[test], np.exp(model.predict(X[test], elsewhere=True))) for model in models]
        assert found["test_own"][k] == pytest.approx(-rse(positive[test], own))
        assert found["test_union"][k] == pytest.approx(-np.mean(each))


def test_a_frame_with_a_column_of_sites_is_scored(routing):
    frame = pd.DataFrame(X, columns=[f"x{j}" for j in range(X.shape[1])]).assign(station=SITES)
    fitted = regressor().fit(frame, y, sites="station")
    for metric in ("own", "union"):
        given = Scorer(metric, mean_absolute_error)
        by_array = given(fitted, frame.drop(columns="station"), y, sites=SITES)
        assert given(fitted, frame, y, sites="station") == pytest.approx(by_array)


def test_errors_of_scorers():
    with pytest.raises(SettingsError, match='metric is "own" or "union"'):
        Scorer("all")
    with pytest.raises(SettingsError, match="cannot find an estimator of dekrr in Ridge"):
        UNION(Ridge().fit(X, y), X, y, sites=SITES)
    assert repr(Scorer("own", mean_absolute_error)) == "Scorer('own', mean_absolute_error)"


def test_grid_search_routes_sites_without_a_request(routing):
    search = GridSearchCV(regressor(), {"sigma": [0.3, 1.0]}, cv=SiteKFold(2), scoring=OWN)
    search.fit(X, y, sites=SITES)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    assert len(search.best_estimator_.models_) == 4


def test_leave_one_site_out_predicts_by_the_mean(routing):
    found = cross_validate(regressor(unknown_sites="mean"), X, y, cv=LeaveOneSiteOut(), params={"sites": SITES})
    assert np.isfinite(found["test_score"]).all()


def test_plain_folds_over_sorted_rows_say_why_they_fail(routing):
    rows = np.concatenate([np.flatnonzero(label == SITES)[:30] for label in np.unique(SITES)])
    table = X[rows], y[rows]
    with pytest.warns(UserWarning, match=r"unknown sites .*SiteKFold keeps every site in every fold"):
        found = cross_validate(regressor(), *table, cv=KFold(4), params={"sites": SITES[rows]})
    assert np.isnan(found["test_score"]).all()
    with pytest.raises(DataError, match="SiteKFold keeps every site in every fold"):
        cross_validate(regressor(), *table, cv=KFold(4), params={"sites": SITES[rows]}, error_score="raise")


def test_errors_of_splitters():
    with pytest.raises(DataError, match=r"SiteKFold needs the site of every row: .*params=\{\"sites\": sites\}"):
        next(SiteKFold().split(X))
    with pytest.raises(DataError, match="site 'b' has 2 rows, too few for 5 folds"):
        next(SiteKFold().split(np.zeros(12), sites=["a"] * 10 + ["b"] * 2))
    with pytest.raises(DataError, match="the rows are not a frame"):
        next(SiteKFold(sites="station").split(X))
    with pytest.raises(DataError, match="only one site, 'a'"):
        next(LeaveOneSiteOut().split(X[:3], sites=["a"] * 3))
