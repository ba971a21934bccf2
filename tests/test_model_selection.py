"""Splitters and scorers that know of sites."""

import numpy as np
import pandas as pd
import pytest
import sklearn
from sklearn.model_selection import GridSearchCV, KFold, cross_validate

from dekrr import DataError, DeKRRRegressor
from dekrr.data import make_sites
from dekrr.model_selection import OWN, UNION, LeaveOneSiteOut, SiteKFold

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
