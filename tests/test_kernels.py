import numpy as np
import pytest
import scipy.stats
from sklearn.metrics.pairwise import laplacian_kernel, rbf_kernel

from dekrr.errors import SettingsError
from dekrr.features import FeatureMap, paired
from dekrr.kernels import KERNELS, Cauchy, Gaussian, Laplacian, make_kernel

X = np.random.default_rng(0).uniform(size=(12, 4))


@pytest.mark.parametrize("name", sorted(KERNELS))
@pytest.mark.parametrize("sigma", [0.4, 1.5])
@pytest.mark.parametrize("mapping", ["cos", "cossin"])
def test_features_tend_to_the_kernel(name, sigma, mapping):
    kernel = make_kernel(name, sigma)
    rng = np.random.default_rng(1)
    n_features = 40_000
    if mapping == "cos":
        frequencies = kernel.draw_frequencies(4, n_features, rng)
        feature_map = FeatureMap.unweighted(frequencies, rng.uniform(0, 2 * np.pi, n_features))
    else:
        feature_map = paired(kernel.draw_frequencies(4, n_features // 2, rng))
    estimate = feature_map(X) @ feature_map(X).T
    # The standard deviation of one entry is at most sqrt(3/2 / D) = 0.006; 78 entries, five of them.
    np.testing.assert_allclose(estimate, kernel(X, X), atol=0.03)


def test_kernels_against_scikit_learn():
    np.testing.assert_allclose(Gaussian(0.7)(X, X), rbf_kernel(X, gamma=1 / (2 * 0.7**2)))
    np.testing.assert_allclose(Laplacian(0.7)(X, X), laplacian_kernel(X, gamma=1 / 0.7))


def test_cauchy_is_a_product_over_columns():
    expected = np.prod([Cauchy(0.7)(X[:, [k]], X[:, [k]]) for k in range(4)], axis=0)
    np.testing.assert_allclose(Cauchy(0.7)(X, X), expected)


@pytest.mark.parametrize(
    ("kernel", "density"),
    [
        (Gaussian(0.3), scipy.stats.norm(scale=1 / 0.3)),
        (Laplacian(0.3), scipy.stats.cauchy(scale=1 / 0.3)),
        (Cauchy(0.3), scipy.stats.laplace(scale=1 / 0.3)),
    ],
)
def test_densities_and_draws(kernel, density):
    frequencies = kernel.draw_frequencies(3, 2000, np.random.default_rng(0))
    np.testing.assert_allclose(kernel.log_density(frequencies), density.logpdf(frequencies).sum(axis=0))
    assert scipy.stats.kstest(frequencies.ravel(), density.cdf).pvalue > 1e-3


@pytest.mark.parametrize("sigma", [0.0, -1.0, np.nan, np.inf])
def test_bad_bandwidth(sigma):
    with pytest.raises(SettingsError, match="sigma must be a positive number"):
        Gaussian(sigma)


def test_unknown_kernel():
    with pytest.raises(SettingsError, match="unknown kernel 'rbf'; choose one of cauchy, gaussian, laplacian"):
        make_kernel("rbf", 1.0)
