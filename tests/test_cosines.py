import sys

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import dekrr
from dekrr import features
from dekrr.features import FeatureMap, wave_blocks

PATHS = ["numpy", "compiled"]


@pytest.fixture(params=PATHS)
def path(request, monkeypatch):
    if request.param == "compiled":
        pytest.importorskip("numba")
    monkeypatch.setattr(features, "exact_loops", lambda: None)
    monkeypatch.setattr(features, "_WORTH_COMPILING", 0 if request.param == "compiled" else np.inf)
    return request.param


def waves(X, frequencies, phases, amplitudes, dtype=np.float64):
    arrays = [np.asarray(a, dtype=dtype) for a in (X, frequencies, phases, amplitudes)]
    return np.vstack([block.copy() for _, block in wave_blocks(*arrays)])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(turns=arrays(np.float64, st.integers(1, 300), elements=st.floats(-1000, 1000)))
def test_cosine_is_accurate(path, turns):
    fraction = turns - np.rint(turns)  # exact, so that numpy's cosine has no argument to reduce
    found = waves(turns[:, None], [[1.0]], [0.0], [1.0])[:, 0]
    np.testing.assert_allclose(found, np.cos(2 * np.pi * fraction), rtol=0, atol=1e-14)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(turns=arrays(np.float32, st.integers(1, 300), elements=st.floats(-128, 128, width=32)))
def test_single_precision_is_as_accurate_as_its_angles(path, turns):
    found = waves(turns[:, None], [[1.0]], [0.0], [1.0], np.float32)[:, 0]
    fraction = turns - np.rint(turns)
    np.testing.assert_allclose(found, np.cos(2 * np.pi * fraction.astype(float)), rtol=0, atol=1e-6)


@pytest.mark.parametrize(("dtype", "accuracy"), [(np.float64, 1e-13), (np.float32, 5e-5)])
def test_more_than_one_block(path, dtype, accuracy):
    rng = np.random.default_rng(0)
    X, frequencies = rng.uniform(size=(700, 5)), rng.normal(scale=8, size=(5, 400))
    phases, amplitudes = rng.uniform(size=400), rng.uniform(size=400)
    expected = amplitudes * np.cos(2 * np.pi * (X @ frequencies + phases))
    np.testing.assert_allclose(waves(X, frequencies, phases, amplitudes, dtype), expected, rtol=0, atol=accuracy)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_compiled_loops_of_few_rows_round_as_numpy_does(dtype, monkeypatch):
    pytest.importorskip("numba")
    rng = np.random.default_rng(0)
    parts = 5 * rng.normal(size=(30, 3)), rng.normal(size=(3, 50)), rng.uniform(size=50), rng.uniform(size=50)
    assert features.compiled() is features.exact_loops()
    found = waves(*parts, dtype)
    monkeypatch.setattr(features, "exact_loops", lambda: None)
    np.testing.assert_array_equal(found, waves(*parts, dtype))


def test_both_paths_agree(monkeypatch):
    pytest.importorskip("numba")
    rng = np.random.default_rng(0)
    parts = rng.uniform(size=(300, 3)), rng.normal(size=(3, 50)), rng.uniform(size=50), rng.uniform(size=50)
    found = []
    for threshold in (0, np.inf):
        monkeypatch.setattr(features, "_WORTH_COMPILING", threshold)
        found.append(waves(*parts))
    np.testing.assert_allclose(*found, rtol=0, atol=1e-15)


def test_without_numba(monkeypatch):
    monkeypatch.delattr(dekrr, "_compiled", raising=False)
    monkeypatch.setitem(sys.modules, "dekrr._compiled", None)
    features.compiled.cache_clear()
    try:
        assert features.compiled() is None
        X = np.random.default_rng(0).uniform(size=(600, 2))
        frequencies, zeros = np.ones((2, 300)), np.zeros(300)
        found = FeatureMap(frequencies, zeros, np.ones(300))(X)
        np.testing.assert_allclose(found, np.cos(X @ frequencies), atol=1e-14)
    finally:
        features.compiled.cache_clear()


@given(n_rows=st.integers(0, 50), n_features=st.integers(1, 40), seed=st.integers(0, 100))
def test_moments_and_predictions_need_no_matrix(n_rows, n_features, seed):
    rng = np.random.default_rng(seed)
    feature_map = FeatureMap(rng.normal(size=(3, n_features)), rng.uniform(size=n_features), np.ones(n_features))
    X, y, coefficients = rng.normal(size=(n_rows, 3)), rng.normal(size=n_rows), rng.normal(size=n_features)
    features = feature_map(X)
    np.testing.assert_allclose(feature_map.moment(X, y), y @ features, atol=1e-11)
    np.testing.assert_allclose(feature_map.apply(X, coefficients), features @ coefficients, atol=1e-11)
