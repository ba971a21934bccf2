"""The authors' own splits: errors where theirs are, and rounds where theory puts them."""

import numpy as np
import pytest

from dekrr import AllReduceRegressor, CentralizedRFF, DeKRRRegressor
from dekrr.settings import ALONE

SPLITS = [("houses", 60, 0.252, 0.268), ("airquality", 70, 0.088, 0.104), ("energy", 90, 0.806, 0.822)]


def settings(split, n_features, **changes):
    common = {"sigma": float(split["sigma"]), "alpha": float(split["alpha"]), "scale": None, "random_state": 0}
    return {"n_features": n_features, **common, **changes}


@pytest.mark.parametrize(("name", "n_features", "lowest", "highest"), SPLITS)
def test_own_error_is_the_papers(load_split, name, n_features, lowest, highest):
    (X, y, sites), (X_test, y_test, test_sites), split = load_split(f"{name}-by-response")
    errors = []
    for seed in range(5):
        changes = {
            **ALONE,
            "features": "energy",
            "consensus": 1.0,
            "solver": "jacobi",
            "random_state": seed,
            "prediction": "own",
        }
        regressor = DeKRRRegressor(**settings(split, n_features, **changes)).fit(X, y, sites=sites)
        errors.append(regressor.rse(X_test, y_test, sites=test_sites))
    assert lowest <= np.mean(errors) <= highest


@pytest.mark.parametrize(("name", "n_features", "lowest", "highest"), SPLITS)
def test_all_reduce_is_centralised(load_split, name, n_features, lowest, highest):
    (X, y, sites), (X_test, _, _), split = load_split(f"{name}-by-response")
    shared, pooled = (
        cls(**settings(split, n_features)).fit(X, y, sites=sites) for cls in (AllReduceRegressor, CentralizedRFF)
    )
    np.testing.assert_allclose(shared.predict(X_test), pooled.predict(X_test), atol=1e-8)


@pytest.mark.parametrize(("name", "n_features", "lowest", "highest"), SPLITS)
def test_chebyshev_needs_few_rounds(load_split, name, n_features, lowest, highest):
    (X, y, sites), _, split = load_split(f"{name}-by-response")
    common = settings(split, n_features, **ALONE, features="energy", consensus=4.0, tol=0.0)
    best = DeKRRRegressor(**common, solver="jacobi", max_rounds=1500).fit(X, y, sites=sites).objective_
    objective = DeKRRRegressor(**common, solver="chebyshev", max_rounds=40).fit(X, y, sites=sites).history_["objective"]
    gap = (objective - best) / (objective[0] - best)
    assert np.flatnonzero(gap < 1e-6)[0] <= 25
