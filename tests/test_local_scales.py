"""Column scales of a site's own: likelihood, gradient and leave-one-out error beside plain computations."""

import numpy as np
import pytest
from scipy.optimize import check_grad
from scipy.stats import multivariate_normal

from dekrr import local_part, local_scales
from dekrr.local_part import draw_for, draw_local
from dekrr.local_scales import learn_kernel
from dekrr.types import Block

RNG = np.random.default_rng(0)
X = RNG.random((600, 3))
STEEP = np.sin(30 * X[:, 1])
SCALES = np.array([1.0, 2.0, 0.5])


def kernel(rows, scales):
    return np.exp(-sum(a * np.abs(np.subtract.outer(x, x)) for a, x in zip(scales, rows.T, strict=True)))


@pytest.mark.parametrize("outputs", [1, 2])
def test_the_loss_is_the_likelihood_of_a_gaussian_process_and_its_gradient(outputs):
    y = RNG.normal(size=(600, outputs)) + STEEP[:, None]
    groups = [local_scales._group(X, y, SCALES, middle, 12) for middle in (0, 5)]
    parameters = np.array([0.3, -0.4, 0.2, -1.0])

    def plain(parameters):
        total = 0.5 * parameters[:-1] @ parameters[:-1]
        for middle in (0, 5):
            near = np.argsort(np.abs(X - X[middle]) @ SCALES)[:12]
            noisy = kernel(X[near], SCALES * np.exp(parameters[:-1])) + np.exp(parameters[-1]) * np.eye(12)
            size = np.mean([one @ np.linalg.solve(noisy, one) / 12 for one in y[near].T])
            total -= sum(multivariate_normal(np.zeros(12), size * noisy).logpdf(one) for one in y[near].T)
        return total / 24

    constant = outputs * 0.5 * (np.log(2 * np.pi) + 1)
    np.testing.assert_allclose(local_scales._loss(parameters, groups)[0], plain(parameters) - constant, rtol=1e-5)
    error = check_grad(plain, lambda p: local_scales._loss(p, groups)[1], parameters)
    assert error < 1e-5


def test_the_leave_one_out_error_is_that_of_predictions_without_each_row():
    group = local_scales._group(X, STEEP[:, None], SCALES, 3, 15)
    near = np.argpartition(np.abs(X - X[3]) @ SCALES, 14)[:15]
    noisy, errors = kernel(X[near], SCALES) + 0.1 * np.eye(15), []
    for i in range(15):
        others = np.arange(15) != i
        predicted = noisy[i, others] @ np.linalg.solve(noisy[np.ix_(others, others)], STEEP[near][others])
        errors.append((STEEP[near][i] - predicted) ** 2)
    found = local_scales._left_out(np.append(np.zeros(3), np.log(0.1)), [group])
    np.testing.assert_allclose(found, np.sum(errors), rtol=1e-4)


def test_a_site_learns_which_column_is_steep_and_how_much_is_noise():
    found = learn_kernel(X, STEEP, np.ones(3), np.random.default_rng(1))
    assert found.scales[1] > 4 * max(found.scales[0], found.scales[2])
    noisy = learn_kernel(X, STEEP + RNG.normal(size=600), np.ones(3), np.random.default_rng(1))
    assert noisy is None or noisy.noise > 10 * found.noise
    assert learn_kernel(X, np.zeros(600), np.ones(3), np.random.default_rng(1)) is None


def test_features_are_drawn_in_own_scales_where_they_are_many():
    few = draw_for(Block(X, STEEP), 30, 0.3, SCALES, np.random.default_rng(2))
    plain = draw_local(30, 0.3, SCALES, (), np.random.default_rng(2))
    np.testing.assert_array_equal(few[0].frequencies, plain.frequencies)
    assert few[1] == local_part._RIDGE
    many, ridge = draw_for(Block(X, STEEP), local_part._MOST_SUMMED + 1, 0.3, (1.0, 1.0, 1.0), np.random.default_rng(2))
    steepness = np.median(np.abs(many.frequencies), axis=1)
    assert steepness[1] > 4 * max(steepness[0], steepness[2])
    assert ridge >= local_part._LEAST_RIDGE
