from dataclasses import dataclass

import numpy as np
import pytest
import scipy.stats
from sklearn.metrics.pairwise import laplacian_kernel, rbf_kernel

from dekrr import CentralizedKRR, DeKRRRegressor, Kernel
from dekrr.data import make_sites
from dekrr.errors import SettingsError
from dekrr.features import FeatureMap, paired
from dekrr.kernels import KERNELS, Cauchy, Gaussian, Laplacian, make_kernel
from dekrr.settings import ALONE

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
def test_draws(kernel, density):
    frequencies = kernel.draw_frequencies(3, 2000, np.random.default_rng(0))
    assert scipy.stats.kstest(frequencies.ravel(), density.cdf).pvalue > 1e-3


@pytest.mark.parametrize("sigma", [0.0, -1.0, np.nan, np.inf])
def test_bad_bandwidth(sigma):
    with pytest.raises(SettingsError, match="sigma must be a positive number"):
        Gaussian(sigma)


def test_unknown_kernel():
    with pytest.raises(SettingsError, match="unknown kernel 'rbf'; choose one of cauchy, gaussian, laplacian"):
        make_kernel("rbf", 1.0)


def test_a_kernel_is_given_by_name_class_or_object():
    for kernel in ("laplacian", Laplacian, Laplacian(), Laplacian(0.5)):
        assert make_kernel(kernel, 0.5) == Laplacian(0.5)
    assert Laplacian(0.5).with_bandwidth(2.0) == Laplacian(2.0)


@pytest.mark.parametrize("kernel", [3, None, "rbf", dict, np.cos])
def test_what_is_no_kernel(kernel):
    with pytest.raises(SettingsError, match=r"unknown kernel .* or give a subclass of dekrr\.Kernel"):
        make_kernel(kernel, 1.0)


def test_a_kernel_object_with_another_bandwidth_is_refused():
    with pytest.raises(SettingsError, match=r"0.3 in kernel=Gaussian\(sigma=0.3\) and 0.5 in sigma.*as Gaussian\(\)"):
        make_kernel(Gaussian(0.3), 0.5)


@pytest.mark.parametrize("n_columns", [1, 2, 7, 90])
@pytest.mark.parametrize("chance", [1e-12, 1e-2])
def test_longest_frequencies_have_their_chance(n_columns, chance):
    assert Gaussian(0.3).longest_frequency(n_columns, chance) == pytest.approx(
        scipy.stats.chi.isf(chance, n_columns) / 0.3
    )
    for kernel, law in ((Laplacian(0.3), scipy.stats.cauchy), (Cauchy(0.3), scipy.stats.laplace)):
        each = kernel.longest_frequency(n_columns, chance) * 0.3 / np.sqrt(n_columns)
        assert 2 * n_columns * law.sf(each) == pytest.approx(chance, rel=1e-3)
    if chance > 1e-3:
        for kernel in (Gaussian(0.3), Laplacian(0.3), Cauchy(0.3)):
            drawn = np.linalg.norm(kernel.draw_frequencies(n_columns, 20_000, np.random.default_rng(0)), axis=0)
            assert np.mean(drawn > kernel.longest_frequency(n_columns, chance)) < 1.3 * chance


@dataclass(frozen=True)
class Mixed(Kernel):
    """A gaussian kernel at two bandwidths at once."""

    ratio: float = 3.0

    def __call__(self, X, Y):
        return (Gaussian(self.sigma)(X, Y) + Gaussian(self.ratio * self.sigma)(X, Y)) / 2

    def draw_frequencies(self, n_columns, n_frequencies, rng):
        narrow = Gaussian(self.sigma).draw_frequencies(n_columns, n_frequencies, rng)
        return np.where(rng.random(n_frequencies) < 0.5, narrow, narrow / self.ratio)


class Judged(Mixed):
    def longest_frequency(self, n_columns, chance):
        return Gaussian(self.sigma).longest_frequency(n_columns, chance)


ROWS, RESPONSES, SITES = make_sites(n_sites=4, random_state=0)
NUMBERS = {**ALONE, "n_features": 20, "alpha": 1e-4, "consensus": 1.0, "random_state": 0}


@pytest.mark.parametrize("kernel", [Judged, Judged(), Judged(ratio=2.0)])
def test_a_kernel_of_one_s_own_works_like_a_name(kernel):
    fitted = DeKRRRegressor(kernel=kernel, sigma=0.3, **NUMBERS).fit(ROWS, RESPONSES, sites=SITES)
    assert fitted.score(ROWS, RESPONSES, sites=SITES) > 0.7
    assert fitted.models_[fitted.sites_[0]].header.kernel == "judged"
    exact = CentralizedKRR(kernel=kernel, sigma=0.3, alpha=1e-4).fit(ROWS, RESPONSES)
    assert exact.score(ROWS, RESPONSES) > 0.7


def test_the_bandwidth_of_a_kernel_of_one_s_own_is_tuned():
    fitted = DeKRRRegressor(kernel=Judged(), sigma=[0.3, 30.0], folds=2, **NUMBERS).fit(ROWS, RESPONSES, sites=SITES)
    assert fitted.sigma_ == 0.3
    np.testing.assert_array_equal(np.unique(fitted.tuning_["sigma"]), [0.3, 30.0])


def test_a_kernel_object_is_its_parameters():
    fits = [
        DeKRRRegressor(kernel=kernel, sigma=0.3, features="plain", **NUMBERS).fit(ROWS, RESPONSES, sites=SITES)
        for kernel in (Judged(ratio=1.0), "gaussian", Judged(ratio=9.0))
    ]
    frequencies = [fit.models_[fit.sites_[0]].feature_map.frequencies for fit in fits]
    np.testing.assert_allclose(frequencies[0], frequencies[1])
    assert np.linalg.norm(frequencies[2]) < 0.9 * np.linalg.norm(frequencies[1])


def test_a_kernel_that_does_not_say_how_long_its_frequencies_are_is_not_judged_by_another_s_law():
    with pytest.raises(
        SettingsError, match=r"write Mixed\.longest_frequency\(n_columns, chance\), or set verify_features"
    ):
        DeKRRRegressor(kernel=Mixed, sigma=0.3, **NUMBERS).fit(ROWS, RESPONSES, sites=SITES)
    proved = DeKRRRegressor(kernel=Mixed, sigma=0.3, verify_features=True, **NUMBERS)
    assert proved.fit(ROWS, RESPONSES, sites=SITES).score(ROWS, RESPONSES, sites=SITES) > 0.7
