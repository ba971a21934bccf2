import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dekrr.errors import DataError
from dekrr.features import FeatureMap, cosine_of_turns, paired


@given(arrays(np.float64, st.integers(0, 300), elements=st.floats(-1000, 1000)))
def test_cosine_is_accurate(turns):
    fraction = turns - np.rint(turns)  # exact, so that numpy's cosine has no argument to reduce
    np.testing.assert_allclose(cosine_of_turns(turns.copy()), np.cos(2 * np.pi * fraction), rtol=0, atol=1e-15 * 10)


def test_cosine_over_more_than_one_block():
    turns = np.random.default_rng(0).uniform(-40, 40, size=(300, 400))
    np.testing.assert_allclose(cosine_of_turns(turns.copy()), np.cos(2 * np.pi * turns), rtol=0, atol=1e-13)


def test_map_is_its_formula():
    rng = np.random.default_rng(0)
    X, frequencies, phases = rng.normal(size=(7, 3)), rng.normal(size=(3, 5)), rng.uniform(size=5)
    amplitudes = rng.uniform(size=5)
    expected = amplitudes * np.cos(X @ frequencies + phases)
    np.testing.assert_allclose(FeatureMap(frequencies, phases, amplitudes)(X), expected, atol=1e-14)
    unweighted = FeatureMap.unweighted(frequencies, phases)
    np.testing.assert_allclose(unweighted(X), np.sqrt(2 / 5) * np.cos(X @ frequencies + phases), atol=1e-14)


def test_pairs_are_cosines_and_sines():
    rng = np.random.default_rng(0)
    X, frequencies = rng.normal(size=(7, 3)), rng.normal(size=(3, 5))
    angles = X @ frequencies
    expected = np.hstack([np.cos(angles), np.sin(angles)]) / np.sqrt(5)
    np.testing.assert_allclose(paired(frequencies)(X), expected, atol=1e-14)


def test_wrong_number_of_columns():
    with pytest.raises(DataError, match=r"expected rows of 3 columns, got an array of shape \(2, 4\)"):
        paired(np.ones((3, 2)))(np.zeros((2, 4)))
