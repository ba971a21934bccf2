import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks

from dekrr.cosines import compiled
from dekrr.errors import SettingsError
from dekrr.kernels import Gaussian
from dekrr.selection import (
    SELECTORS,
    EnergySelector,
    GreedySelector,
    LeverageSelector,
    PlainSelector,
    Pool,
    SurrogateSelector,
    _GramSums,
    _PoolSums,
    _Products,
    greedy_path,
)


def problem(seed=0, n_rows=60, n_columns=3):
    rng = np.random.default_rng(seed)
    X = rng.uniform(size=(n_rows, n_columns))
    return X, np.sin(5 * X[:, 0]) + X[:, 1] ** 2 + rng.normal(scale=0.1, size=n_rows)


@parametrize_with_checks([selector(n_features=10) for selector in SELECTORS.values()])
def test_scikit_learn_conventions(estimator, check):
    check(estimator)


@pytest.mark.parametrize("name", sorted(SELECTORS))
@pytest.mark.parametrize("mapping", ["cos", "cossin"])
def test_pipeline_with_ridge(name, mapping):
    X, y = problem(n_rows=200)
    selector = SELECTORS[name](n_features=40, sigma=0.5, mapping=mapping, random_state=0)
    pipeline = make_pipeline(selector, Ridge(alpha=1e-3)).fit(X, y)
    assert pipeline[0].transform(X).shape == (200, 40)
    assert pipeline.score(X, y) > 0.9


def ridge_objective(features, y, ridge):
    design = np.vstack([features, np.sqrt(ridge) * np.eye(features.shape[1])])
    target = np.append(y, np.zeros(features.shape[1]))
    residual = target - design @ np.linalg.lstsq(design, target, rcond=None)[0]
    return residual @ residual


def sums_of(features, y):
    return _GramSums(features.T @ features, features.T @ y, len(y))


def brute_force(features, y, n_taken, ridge, width):
    n_candidates = features.shape[1] // width
    taken = []
    for _ in range(n_taken):
        objectives = {}
        for candidate in set(range(n_candidates)) - set(taken):
            columns = [c + k * n_candidates for c in [*taken, candidate] for k in range(width)]
            objectives[candidate] = ridge_objective(features[:, columns], y, ridge)
        taken.append(min(objectives, key=objectives.get))
    return taken


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**31), ridge=st.sampled_from([1e-6, 1e-2, 1.0]), width=st.sampled_from([1, 2]))
def test_greedy_is_brute_force(seed, ridge, width):
    rng = np.random.default_rng(seed)
    features, y = rng.normal(size=(20, 12)), rng.normal(size=20)
    expected = brute_force(features, y, 4, ridge, width)
    taken = greedy_path(sums_of(features, y), 4, ridge=ridge, width=width)[0]
    assert taken.tolist() == expected


def test_greedy_does_not_take_copies():
    X, y = problem()
    features = np.cos(X @ np.random.default_rng(0).normal(size=(3, 6)))
    copies = np.hstack([features, features])
    taken = greedy_path(sums_of(copies, y), 6, ridge=1e-8)[0]
    assert sorted(taken % 6) == list(range(6))


@pytest.mark.parametrize("mapping", ["cos", "cossin"])
@pytest.mark.parametrize("n_rows", [12, 121])
def test_columns_when_asked_for_take_the_same_way_as_the_whole_gram(mapping, n_rows):
    X, y = problem(n_rows=n_rows)
    selector = GreedySelector(16, mapping=mapping)
    pool = selector.draw_pool(3, np.random.default_rng(0))
    fold_of = np.arange(n_rows) % 3
    products = _Products(pool, X, y, 4, fold_of)
    single = products._parts[0].dtype == np.float32
    assert single == (n_rows == 121 and compiled() is not None)
    for kept in ([0, 1, 2], [0, 2]):
        rows = np.isin(fold_of, kept)
        lazily = greedy_path(_PoolSums(products, np.array(kept)), 4, ridge=1e-4, width=pool.width)
        expected = greedy_path(sums_of(pool.feature_map(X[rows]), y[rows]), 4, ridge=1e-4, width=pool.width)
        np.testing.assert_array_equal(lazily[0], expected[0])
        np.testing.assert_allclose(lazily[1], expected[1], rtol=1e-4 if single else 1e-6)


def test_a_pool_in_single_precision_serves_for_features_that_nearly_depend_on_each_other():
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(400, 3))
    y = np.sin(5 * X[:, 0]) * X[:, 1] + 1e-3 * rng.normal(size=400)
    selector = GreedySelector(40, sigma=2.0, bandwidths=(1.0,))
    chosen = selector.select(X, y, np.random.default_rng(0))
    pool = selector.draw_pool(3, np.random.default_rng(0))
    best = greedy_path(sums_of(pool.feature_map(X), y), 40, ridge=selector.ridge * 400)[0]
    errors = [ridge_objective(features, y, 1e-7) for features in (chosen(X), pool.keep(best)(X))]
    assert errors[0] < 1.05 * errors[1]


def test_rows_far_from_zero_are_chosen_by_as_well_as_others():
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(400, 3))
    y = np.sin(5 * X[:, 0]) * X[:, 1]
    far = 2.0**17  # moves rows without rounding them much
    selector = GreedySelector(30, sigma=0.5, linear=False)
    near_pool = selector.draw_pool(3, np.random.default_rng(0))
    far_pool = Pool(near_pool.frequencies, near_pool.phases - far * near_pool.frequencies.sum(axis=0))
    chosen = [
        greedy_path(_PoolSums(_Products(pool, rows, y, 30)), 30, ridge=selector.ridge * 400)[0]
        for pool, rows in ((near_pool, X), (far_pool, X + far))
    ]
    np.testing.assert_array_equal(*chosen)


def test_shortlists_of_folds_are_those_of_the_rows_outside():
    X, y = problem(n_rows=90)
    fold_of = np.arange(90) % 3
    selector = GreedySelector(10, sigma=0.5, shortlist=2.0)
    shortlists = selector.fold_shortlists(X, y, fold_of, 3, np.random.default_rng(0))
    assert len(shortlists) == 4
    for fold, shortlist in enumerate(shortlists):
        kept = fold_of != fold
        alone = selector.shortlisted(X[kept], y[kept], np.random.default_rng(0))
        assert shortlist.n_candidates == 20
        np.testing.assert_array_equal(shortlist.frequencies, alone.frequencies)


def test_candidates_look_at_few_columns_with_the_same_length():
    dense, sparse = (
        PlainSelector(20_000, max_columns=most).draw_pool(9, np.random.default_rng(0)).frequencies for most in (None, 3)
    )
    used = (sparse != 0).sum(axis=0)
    assert set(used) == {1, 2, 3}
    lengths = [np.mean((frequencies**2).sum(axis=0)) for frequencies in (dense, sparse)]
    assert lengths[1] == pytest.approx(lengths[0], rel=0.05)
    assert (PlainSelector(50, max_columns=99).draw_pool(2, np.random.default_rng(0)).frequencies != 0).any()


def test_raw_columns_and_a_constant_are_candidates():
    X, _ = problem(n_rows=200)
    pool = GreedySelector(5).draw_pool(3, np.random.default_rng(0))
    assert pool.n_candidates == 5 * 20 + 1 + 3
    added = pool.feature_map(X)[:, -4:]
    np.testing.assert_allclose(added, np.column_stack([np.ones(200), np.sqrt(2) * X]), atol=2e-4)
    line = 3 * X[:, 1] + 7
    greedy, without = (GreedySelector(8, sigma=0.3, linear=linear, random_state=0) for linear in (True, False))
    errors = [ridge_objective(s.fit(X, line).transform(X), line, 1e-9) for s in (greedy, without)]
    assert errors[0] < 0.5 * errors[1]


def test_a_sample_of_the_rows_is_enough():
    X, y = problem(n_rows=400)
    selector = GreedySelector(10, sigma=0.5, max_rows=100, random_state=0).fit(X, y)
    features = selector.transform(X)
    assert ridge_objective(features, y, 1e-6) < 0.1 * y.var() * len(y)


def test_greedy_beats_energy_at_the_same_size():
    X, y = problem(n_rows=300)
    errors = {}
    for selector in (EnergySelector(10, sigma=0.3, random_state=0), GreedySelector(10, sigma=0.3, random_state=0)):
        features = selector.fit(X, y).transform(X)
        errors[type(selector)] = ridge_objective(features, y, 1e-6)
    assert errors[GreedySelector] < 0.8 * errors[EnergySelector]


def test_energy_keeps_the_highest_scores():
    X, y = problem()
    selector = EnergySelector(5, redraw_phases=False)
    pool = selector.draw_pool(3, np.random.default_rng(0))
    scores = np.abs(np.mean(y[:, None] * np.sqrt(2 / 100) * np.cos(X @ pool.frequencies + pool.phases), axis=0))
    np.testing.assert_allclose(selector.scores(pool, X, y), scores, atol=1e-14)
    chosen = selector.select(X, y, np.random.default_rng(0))
    np.testing.assert_array_equal(chosen.frequencies, pool.frequencies[:, np.argsort(-scores)[:5]])
    np.testing.assert_array_equal(chosen.phases, pool.phases[np.argsort(-scores)[:5]])


def test_energy_redraws_phases():
    X, y = problem()
    kept = EnergySelector(5, redraw_phases=False).select(X, y, np.random.default_rng(0))
    redrawn = EnergySelector(5, redraw_phases=True).select(X, y, np.random.default_rng(0))
    np.testing.assert_array_equal(kept.frequencies, redrawn.frequencies)
    assert not np.isin(redrawn.phases, kept.phases).any()


def test_phase_free_score_is_the_best_over_phases():
    X, y = problem()
    selector = EnergySelector(5, phase_free=True)
    pool = selector.draw_pool(3, np.random.default_rng(0))
    phases = np.linspace(0, 2 * np.pi, 721)
    angles = (X @ pool.frequencies)[:, :, None] + phases
    best = np.abs(np.einsum("n,nip->ip", y, np.cos(angles))).max(axis=1) * np.sqrt(2 / 100) / len(y)
    np.testing.assert_allclose(selector.scores(pool, X, y), best, rtol=1e-4)


@pytest.mark.parametrize("n_rows", [30, 300])
def test_leverage_scores_are_their_definition(n_rows):
    X, y = problem(n_rows=n_rows)
    selector = LeverageSelector(5, alpha=1e-2)
    pool = selector.draw_pool(3, np.random.default_rng(0))
    Z = np.sqrt(2 / 100) * np.cos(X @ pool.frequencies + pool.phases)
    gram = Z.T @ Z
    expected = np.diag(gram @ np.linalg.inv(gram + n_rows * 1e-2 * np.eye(100)))
    np.testing.assert_allclose(selector.scores(pool, X, y), expected, atol=1e-10)


def test_surrogate_scores_are_their_definition():
    X, y = problem()
    selector = SurrogateSelector(5)
    pool = selector.draw_pool(3, np.random.default_rng(0))
    Z = np.cos(X @ pool.frequencies + pool.phases)
    expected = np.diag(Z.T @ (np.outer(y, y) + len(y) * np.eye(len(y))) @ Z)
    np.testing.assert_allclose(selector.scores(pool, X, y), expected)


@pytest.mark.parametrize("selector", [LeverageSelector, SurrogateSelector])
def test_sampled_features_stay_unbiased(selector):
    X, y = problem(n_rows=15)
    chosen = (
        selector(4000, sigma=0.7, pool_ratio=1, alpha=1.0)
        if selector is LeverageSelector
        else selector(4000, sigma=0.7, pool_ratio=1)
    )
    features = chosen.select(X, y, np.random.default_rng(0))(X)
    np.testing.assert_allclose(features @ features.T, Gaussian(0.7)(X, X), atol=0.12)


def test_several_bandwidths_share_the_pool():
    selector = PlainSelector(3000, sigma=0.5, bandwidths=(1.0, 4.0, 16.0))
    frequencies = selector.draw_pool(2, np.random.default_rng(0)).frequencies
    spreads = [part.std() for part in np.split(frequencies, 3, axis=1)]
    np.testing.assert_allclose(spreads, [1 / 0.5, 1 / 2.0, 1 / 8.0], rtol=0.05)


def test_more_features_than_candidates():
    X, y = problem()
    with pytest.raises(SettingsError, match="10 features cannot be chosen from a pool of 5: pool_ratio"):
        GreedySelector(10, pool_ratio=0.5, linear=False).fit(X, y)


def test_odd_number_of_paired_features():
    X, y = problem()
    with pytest.raises(SettingsError, match="even number of features, got 5"):
        GreedySelector(5, mapping="cossin").fit(X, y)


@pytest.mark.parametrize("bandwidths", [(), (0.0,), (-1.0, 1.0), (np.nan,)])
def test_bad_bandwidths(bandwidths):
    X, y = problem()
    with pytest.raises(SettingsError, match="bandwidths must be positive"):
        EnergySelector(5, bandwidths=bandwidths).fit(X, y)


def test_same_seed_same_features():
    X, y = problem()
    first, second = (GreedySelector(5, random_state=3).fit(X, y).feature_map_ for _ in range(2))
    np.testing.assert_array_equal(first.frequencies, second.frequencies)


@given(
    seed=st.integers(0, 1000),
    kernel=st.sampled_from(["gaussian", "laplacian", "cauchy"]),
    mapping=st.sampled_from(["cos", "cossin"]),
    phase_free=st.booleans(),
    scale=st.sampled_from([1.0, 100.0]),
)
def test_screening_in_single_precision_loses_no_candidate(seed, kernel, mapping, phase_free, scale):
    rng = np.random.default_rng(seed)
    X, y = scale * rng.uniform(-1, 1, size=(40, 3)), rng.normal(size=40)
    selector = EnergySelector(10, kernel=kernel, sigma=0.3, mapping=mapping, phase_free=phase_free)
    pool = selector.draw_pool(3, rng)
    expected = np.argsort(-selector.scores(pool, X, y), kind="stable")[: 10 // pool.width]
    np.testing.assert_array_equal(selector.best(pool, X, y), expected)
