import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dekrr import DeKRRRegressor
from dekrr.data import make_sites
from dekrr.errors import SettingsError
from dekrr.features import FeatureMap
from dekrr.settings import ALONE
from dekrr.solvers import Chebyshev, SiteSystem
from dekrr.statistics import BlockRow, OwnSums, Weights, accumulate
from dekrr.tables.rows import ArrayRows


@given(seed=st.integers(0, 100), n_rows=st.integers(1, 3000), scale=st.floats(0.1, 10))
def test_mixed_sums_are_right_to_their_stated_accuracy(seed, n_rows, scale):
    rng = np.random.default_rng(seed)
    maps = [FeatureMap.unweighted(scale * rng.normal(size=(4, 12)), rng.uniform(size=12)) for _ in range(2)]
    rows = ArrayRows(rng.uniform(size=(n_rows, 4)), rng.normal(size=n_rows))
    (own, cross), (rough, rough_cross) = (accumulate(rows, maps[0], {"b": maps[1]}, p) for p in ("double", "mixed"))
    for exact, found in (
        (own.gram, rough.gram),
        (cross["b"].gram, rough_cross["b"].gram),
        (cross["b"].cross, rough_cross["b"].cross),
    ):
        assert found.dtype == np.float64
        assert np.abs(found - exact).max() <= 1e-5 * np.abs(own.gram).max()
    assert np.abs(rough.moment - own.moment).max() <= 1e-5 * np.sqrt(own.gram.max() * own.response_energy)
    assert rough.response_energy == own.response_energy


def test_a_mixed_fit_is_close_to_a_double_one():
    X, y, sites = make_sites(n_sites=6, random_state=0)
    settings = {**ALONE, "n_features": 30, "sigma": 0.3, "alpha": 1e-4, "consensus": 0.5, "random_state": 0}
    double, mixed = (
        DeKRRRegressor(**settings, precision=precision).fit(X, y, sites=sites) for precision in ("double", "mixed")
    )
    difference = mixed.predict(X, sites=sites) - double.predict(X, sites=sites)
    assert 0 < np.abs(difference).max() < 1e-3 * np.abs(y).max()
    assert mixed.rse(X, y, sites=sites) == pytest.approx(double.rse(X, y, sites=sites), rel=1e-3)


def test_a_system_that_is_not_positive_definite_says_what_to_do():
    row = BlockRow((), np.diag([1.0, -1e-9]), np.zeros(2), 0.0)
    system = SiteSystem(row, OwnSums(np.eye(2), np.zeros(2), 0.0), {}, Weights(1, 1, 0.0, 0.0, {}), 0.0)
    with pytest.raises(SettingsError, match="raise alpha"):
        Chebyshev().start(system, np.zeros(2))
