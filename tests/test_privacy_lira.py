"""Attacks that a release must pass: membership by shadows, and rows from differences; both find what is there."""

import numpy as np
import pytest

from dekrr.features import FeatureMap
from dekrr.lab.attacks import members, release
from dekrr.lab.attacks.sums import advantage, recovered
from dekrr.lab.attacks.views import summed

WHOLE = np.ones(1, dtype=bool)


def features_of(n_features, n_columns, seed=0, scale=3.0):
    rng = np.random.default_rng(seed)
    frequencies = rng.normal(scale=scale, size=(n_columns, n_features))
    return FeatureMap.unweighted(frequencies, rng.uniform(0, 7, n_features))


@pytest.mark.parametrize(("n_rows", "least", "most"), [(80, 0.9, 1.0), (2000, 0.5, 0.62)])
def test_members_show_where_rows_are_few_for_the_features(n_rows, least, most):
    rng = np.random.default_rng(1)
    pool = rng.uniform(size=(2 * n_rows, 3))
    heard = [summed(m, m, pool[:n_rows], pool[:n_rows, 0], WHOLE) for m in (features_of(60, 3, s) for s in (0, 1))]
    one = advantage(*np.split(members.shadow_scores(heard[:1], pool, n_rows, rng, 48), 2))
    two = advantage(*np.split(members.shadow_scores(heard, pool, n_rows, rng, 48), 2))
    assert least < one.area <= most
    assert two.area > one.area - 0.05


def test_shadows_have_as_many_rows_of_each_site_as_the_sum():
    rng = np.random.default_rng(5)
    sites, n_rows = np.repeat([0, 1], [80, 300]), [40, 150]
    pool = rng.uniform(size=(len(sites), 3)) + sites[:, None]
    of_one, of_both = np.arange(40), np.append(np.arange(40), 80 + np.arange(150))
    features = features_of(40, 3)
    found = []
    for rows, known in ((of_one, slice(80)), (of_both, slice(None))):
        heard = [summed(features, features, pool[rows], pool[rows, 0], WHOLE)]
        counts = n_rows[: sites[known].max() + 1]
        scores = members.shadow_scores(heard, pool[known], counts, rng, 48, sites=sites[known])
        found.append(advantage(scores[:40], scores[40:80]).area)
    assert 0.5 < found[1] < found[0] - 0.05  # hidden among the other site's rows


def test_who_was_not_in_the_sum_does_not_score():
    rng = np.random.default_rng(2)
    pool, others = rng.uniform(size=(300, 3)), rng.uniform(size=(150, 3))
    heard = summed(features_of(60, 3), features_of(60, 3), others, others[:, 0], WHOLE)
    found = advantage(*np.split(members.shadow_scores([heard], pool, 150, rng, 48), 2))
    assert 0.4 < found.area < 0.6


@pytest.mark.parametrize("n_different", [1, 4, 12])
def test_rows_that_one_sum_has_and_another_has_not_come_back_exactly(n_different):
    rng = np.random.default_rng(3)
    X = rng.uniform(size=(500, 3))
    every, chosen = features_of(40, 3), features_of(40, 3)
    part = FeatureMap(chosen.frequencies[:, 5:], chosen.phases[5:], 3.0 * chosen.amplitudes[5:])
    blocks = [summed(every, every, X, X[:, 0], WHOLE), summed(part, part, X[n_different:], X[n_different:, 0], WHOLE)]
    (found,) = release.differences(blocks)
    assert found.is_telling
    assert found.rank == n_different
    candidates = release.rows_from(found, rng.uniform(size=(400, 3)))
    assert recovered(candidates, X[:n_different], 1e-6, np.empty((0, 3))) == 1.0


def test_equal_sums_and_sums_over_many_other_rows_tell_nothing():
    rng = np.random.default_rng(4)
    X, features = rng.uniform(size=(500, 3)), features_of(30, 3)
    blocks = [summed(features, features, rows, rows[:, 0], WHOLE) for rows in (X, X, X[200:])]
    assert [(d.rank, d.is_telling) for d in release.differences(blocks)] == [(0, False), (30, False), (30, False)]
