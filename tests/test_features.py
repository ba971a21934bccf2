import numpy as np
import pytest

from dekrr.errors import DataError
from dekrr.features import FeatureMap, paired


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
