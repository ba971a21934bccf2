"""Warnings point at the line that called dekrr, however deep inside it they come from."""

import sys
import warnings

import pytest
from sklearn.exceptions import ConvergenceWarning

import dekrr.model
from dekrr import DeKRRRegressor, DifferentialPrivacy
from dekrr.data import make_sites
from dekrr.errors import DekrrWarning
from dekrr.settings import ALONE

X, y, SITES = make_sites(n_sites=4, random_state=0)
HASTY = {**ALONE, "n_features": 8, "sigma": 0.5, "alpha": 1e-4, "consensus": 1.0, "max_rounds": 2, "random_state": 0}


def warned(call, category):
    """Return the line of the only warning of a category, which must be of this file."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    (warning,) = [each for each in caught if each.category is category]
    assert warning.filename == __file__
    return warning.lineno


def here():
    """Return the line of the caller."""
    return sys._getframe(1).f_lineno


def test_warnings_of_fit_and_partial_fit_point_at_the_caller():
    regressor = DeKRRRegressor(**HASTY)
    assert warned(lambda: regressor.fit(X, y, sites=SITES), ConvergenceWarning) == here()
    assert warned(lambda: regressor.partial_fit(X, y, sites=SITES), ConvergenceWarning) == here()


def test_warnings_of_features_under_privacy_point_at_the_caller():
    settings = {**HASTY, "scale": None, "max_rounds": 500, "features": "energy"}
    regressor = DeKRRRegressor(**settings, privacy=DifferentialPrivacy(5.0))
    assert warned(lambda: regressor.fit(X, y, sites=SITES), DekrrWarning) == here()


def test_warnings_of_predict_point_at_the_caller(monkeypatch):
    """No prediction warns today: a function that would is put into the package."""
    regressor = DeKRRRegressor(**{**HASTY, "max_rounds": 500}).fit(X, y, sites=SITES)
    source = "def neighborhood_prediction(self, rows):\n    warn('far away', FutureWarning)\n    return rows[:, 0]"
    inside = {"warn": dekrr.errors.warn}
    exec(compile(source, dekrr.model.__file__, "exec"), inside)
    monkeypatch.setattr(dekrr.model.SiteModel, "predict_encoded", inside["neighborhood_prediction"])
    one_site = SITES[0] == SITES
    assert warned(lambda: regressor.predict(X[one_site], sites=SITES[one_site]), FutureWarning) == here()


@pytest.mark.parametrize("category", [UserWarning, ConvergenceWarning])
def test_a_warning_from_outside_points_at_who_warns(category):
    assert warned(lambda: dekrr.errors.warn("told", category), category) == here()
