import subprocess
import sys
from dataclasses import dataclass, fields

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks

from dekrr import Chooser, DeKRRRegressor, DifferentialPrivacy, DKLARegressor
from dekrr.data import make_sites
from dekrr.errors import SettingsError
from dekrr.features import compiled
from dekrr.kernels import Gaussian, Laplacian
from dekrr.selection import CHOOSERS, Energy, Greedy, Leverage, Plain, Pool, Surrogate
from dekrr.selection.greedy import GramSums, PoolSums, Products, greedy_path
from dekrr.selection.transformers import (
    EnergySelector,
    GreedySelector,
    LeverageSelector,
    PlainSelector,
    SurrogateSelector,
)
from dekrr.settings import ALONE

SELECTORS = [PlainSelector, EnergySelector, LeverageSelector, SurrogateSelector, GreedySelector]


def problem(seed=0, n_rows=60, n_columns=3):
    rng = np.random.default_rng(seed)
    X = rng.uniform(size=(n_rows, n_columns))
    return X, np.sin(5 * X[:, 0]) + X[:, 1] ** 2 + rng.normal(scale=0.1, size=n_rows)


@parametrize_with_checks([selector(n_features=10) for selector in SELECTORS])
def test_scikit_learn_conventions(estimator, check):
    check(estimator)


@pytest.mark.parametrize("selector_type", SELECTORS)
@pytest.mark.parametrize("mapping", ["cos", "cossin"])
def test_pipeline_with_ridge(selector_type, mapping):
    X, y = problem(n_rows=200)
    selector = selector_type(n_features=40, sigma=0.5, mapping=mapping, random_state=0)
    pipeline = make_pipeline(selector, Ridge(alpha=1e-3)).fit(X, y)
    assert pipeline[0].transform(X).shape == (200, 40)
    assert pipeline.score(X, y) > 0.9


def ridge_objective(features, y, ridge):
    design = np.vstack([features, np.sqrt(ridge) * np.eye(features.shape[1])])
    target = np.append(y, np.zeros(features.shape[1]))
    residual = target - design @ np.linalg.lstsq(design, target, rcond=None)[0]
    return residual @ residual


def sums_of(features, y):
    return GramSums(features.T @ features, features.T @ y, len(y))


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


@pytest.mark.parametrize("outputs", [(), (1,), (3,)])
def test_compiled_loops_take_the_same_candidates_with_the_same_bits(outputs, monkeypatch):
    if compiled() is None:
        pytest.skip("numba is not installed")
    rng = np.random.default_rng(0)
    sums = sums_of(rng.normal(size=(40, 120)), rng.normal(size=(40, *outputs)))
    found = greedy_path(sums, 50, ridge=1e-3)
    monkeypatch.setattr("dekrr.selection.greedy.exact_loops", lambda: None)
    for one, other in zip(found, greedy_path(sums, 50, ridge=1e-3), strict=True):
        np.testing.assert_array_equal(one, other)


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
    selector = Greedy(16, mapping=mapping)
    pool = selector.draw_pool(3, np.random.default_rng(0))
    fold_of = np.arange(n_rows) % 3
    products = Products(pool, X, y, 4, fold_of)
    single = products._parts[0].dtype == np.float32
    assert single == (n_rows == 121 and compiled() is not None)
    for kept in ([0, 1, 2], [0, 2]):
        rows = np.isin(fold_of, kept)
        lazily = greedy_path(PoolSums(products, np.array(kept)), 4, ridge=1e-4, width=pool.width)
        expected = greedy_path(sums_of(pool.feature_map(X[rows]), y[rows]), 4, ridge=1e-4, width=pool.width)
        np.testing.assert_array_equal(lazily[0], expected[0])
        np.testing.assert_allclose(lazily[1], expected[1], rtol=1e-4 if single else 1e-6)


def test_a_pool_in_single_precision_serves_for_features_that_nearly_depend_on_each_other():
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(400, 3))
    y = np.sin(5 * X[:, 0]) * X[:, 1] + 1e-3 * rng.normal(size=400)
    selector = Greedy(40, sigma=2.0, bandwidths=(1.0,))
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
    selector = Greedy(30, sigma=0.5, linear=False)
    near_pool = selector.draw_pool(3, np.random.default_rng(0))
    far_pool = Pool(near_pool.frequencies, near_pool.phases - far * near_pool.frequencies.sum(axis=0))
    chosen = [
        greedy_path(PoolSums(Products(pool, rows, y, 30)), 30, ridge=selector.ridge * 400)[0]
        for pool, rows in ((near_pool, X), (far_pool, X + far))
    ]
    np.testing.assert_array_equal(*chosen)


def test_shortlists_of_folds_are_those_of_the_rows_outside():
    X, y = problem(n_rows=90)
    fold_of = np.arange(90) % 3
    selector = Greedy(10, sigma=0.5, shortlist=2.0)
    shortlists = selector.fold_shortlists(X, y, fold_of, 3, np.random.default_rng(0))
    assert len(shortlists) == 4
    for fold, shortlist in enumerate(shortlists):
        kept = fold_of != fold
        alone = selector.shortlisted(X[kept], y[kept], np.random.default_rng(0))
        assert shortlist.n_candidates == 20
        np.testing.assert_array_equal(shortlist.frequencies, alone.frequencies)


def test_candidates_look_at_few_columns_with_the_same_length():
    dense, sparse = (
        Plain(20_000, max_columns=most).draw_pool(9, np.random.default_rng(0)).frequencies for most in (None, 3)
    )
    used = (sparse != 0).sum(axis=0)
    assert set(used) == {1, 2, 3}
    lengths = [np.mean((frequencies**2).sum(axis=0)) for frequencies in (dense, sparse)]
    assert lengths[1] == pytest.approx(lengths[0], rel=0.05)
    assert (Plain(50, max_columns=99).draw_pool(2, np.random.default_rng(0)).frequencies != 0).any()


def test_raw_columns_and_a_constant_are_candidates():
    X, _ = problem(n_rows=200)
    pool = Greedy(5).draw_pool(3, np.random.default_rng(0))
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
    selector = Energy(5, redraw_phases=False)
    pool = selector.draw_pool(3, np.random.default_rng(0))
    scores = np.abs(np.mean(y[:, None] * np.sqrt(2 / 100) * np.cos(X @ pool.frequencies + pool.phases), axis=0))
    np.testing.assert_allclose(selector.scores(pool, X, y), scores, atol=1e-14)
    chosen = selector.select(X, y, np.random.default_rng(0))
    np.testing.assert_array_equal(chosen.frequencies, pool.frequencies[:, np.argsort(-scores)[:5]])
    np.testing.assert_array_equal(chosen.phases, pool.phases[np.argsort(-scores)[:5]])


def test_energy_redraws_phases():
    X, y = problem()
    kept = Energy(5, redraw_phases=False).select(X, y, np.random.default_rng(0))
    redrawn = Energy(5, redraw_phases=True).select(X, y, np.random.default_rng(0))
    np.testing.assert_array_equal(kept.frequencies, redrawn.frequencies)
    assert not np.isin(redrawn.phases, kept.phases).any()


def test_phase_free_score_is_the_best_over_phases():
    X, y = problem()
    selector = Energy(5, phase_free=True)
    pool = selector.draw_pool(3, np.random.default_rng(0))
    phases = np.linspace(0, 2 * np.pi, 721)
    angles = (X @ pool.frequencies)[:, :, None] + phases
    best = np.abs(np.einsum("n,nip->ip", y, np.cos(angles))).max(axis=1) * np.sqrt(2 / 100) / len(y)
    np.testing.assert_allclose(selector.scores(pool, X, y), best, rtol=1e-4)


@pytest.mark.parametrize("n_rows", [30, 300])
def test_leverage_scores_are_their_definition(n_rows):
    X, y = problem(n_rows=n_rows)
    selector = Leverage(5, alpha=1e-2)
    pool = selector.draw_pool(3, np.random.default_rng(0))
    Z = np.sqrt(2 / 100) * np.cos(X @ pool.frequencies + pool.phases)
    gram = Z.T @ Z
    expected = np.diag(gram @ np.linalg.inv(gram + n_rows * 1e-2 * np.eye(100)))
    np.testing.assert_allclose(selector.scores(pool, X, y), expected, atol=1e-10)


def test_surrogate_scores_are_their_definition():
    X, y = problem()
    selector = Surrogate(5)
    pool = selector.draw_pool(3, np.random.default_rng(0))
    Z = np.cos(X @ pool.frequencies + pool.phases)
    expected = np.diag(Z.T @ (np.outer(y, y) + len(y) * np.eye(len(y))) @ Z)
    np.testing.assert_allclose(selector.scores(pool, X, y), expected)


@pytest.mark.parametrize("selector", [Leverage, Surrogate])
def test_sampled_features_stay_unbiased(selector):
    X, y = problem(n_rows=15)
    chosen = (
        selector(4000, sigma=0.7, pool_ratio=1, alpha=1.0)
        if selector is Leverage
        else selector(4000, sigma=0.7, pool_ratio=1)
    )
    features = chosen.select(X, y, np.random.default_rng(0))(X)
    np.testing.assert_allclose(features @ features.T, Gaussian(0.7)(X, X), atol=0.12)


def test_several_bandwidths_share_the_pool():
    selector = Plain(3000, sigma=0.5, bandwidths=(1.0, 4.0, 16.0))
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
    selector = Energy(10, kernel=kernel, sigma=0.3, mapping=mapping, phase_free=phase_free)
    pool = selector.draw_pool(3, rng)
    expected = np.argsort(-selector.scores(pool, X, y), kind="stable")[: 10 // pool.width]
    np.testing.assert_array_equal(selector.best(pool, X, y), expected)


def test_selection_needs_no_scikit_learn():
    code = "import sys, dekrr.selection, dekrr.protocols.dekrr; print('sklearn' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"


@pytest.mark.parametrize("selector_type", SELECTORS)
def test_a_transformer_has_the_parameters_of_its_chooser(selector_type):
    chooser_type = selector_type.chooser_type
    assert selector_type().chooser() == chooser_type()
    assert set(selector_type().get_params()) == {each.name for each in fields(chooser_type)} | {"random_state"}
    assert selector_type(7).set_params(sigma=0.5, kernel=Laplacian).chooser() == chooser_type(
        7, sigma=0.5, kernel=Laplacian
    )
    assert chooser_type in CHOOSERS.values()


@pytest.mark.parametrize(
    ("chooser_type", "wrong", "words"),
    [
        (Plain, {"n_features": 0}, "n_features must be an integer of at least 1, got 0"),
        (Plain, {"n_features": 2.5}, "n_features must be an integer of at least 1, got 2.5"),
        (
            Plain,
            {"kernel": "rbf"},
            "kernel must be one of 'gaussian', 'laplacian', 'cauchy', or a dekrr.Kernel, got 'rbf'",
        ),
        (Plain, {"sigma": -1.0}, "sigma must be a positive number, or None, got -1.0"),
        (Plain, {"sigma": np.inf}, "sigma must be a positive number, or None, got inf"),
        (Plain, {"bandwidths": 2.0}, "bandwidths must be positive numbers, one or more, got 2.0"),
        (Plain, {"max_columns": 0}, "max_columns must be an integer of at least 1, or None, got 0"),
        (Plain, {"mapping": "sin"}, "mapping must be one of 'cos', 'cossin', got 'sin'"),
        (Plain, {"pool_ratio": "many"}, "pool_ratio must be a positive number, got 'many'"),
        (Energy, {"phase_free": 1}, "phase_free must be True or False, got 1"),
        (Leverage, {"alpha": 0}, "alpha must be a positive number, got 0"),
        (Greedy, {"shortlist": 0.5}, "shortlist must be a number of at least 1, got 0.5"),
        (Greedy, {"ridge": -1, "linear": None}, "the 'linear' parameter and the 'ridge' parameter of Greedy are wrong"),
    ],
)
def test_bad_parameters_are_named(chooser_type, wrong, words):
    with pytest.raises(SettingsError) as refusal:
        chooser_type(**wrong)
    assert words in str(refusal.value)
    with pytest.raises(SettingsError) as refusal:
        chooser_type().replace(**wrong)
    assert words in str(refusal.value)


def test_the_length_of_the_long_wave_is_a_parameter():
    X, _ = problem(n_rows=50)
    pool = Greedy(5, long_wave=0.001).draw_pool(3, np.random.default_rng(0))
    np.testing.assert_allclose(pool.feature_map(100 * X)[:, -3:], np.sqrt(2) * 100 * X, rtol=2e-3)
    assert Greedy(5, sigma=1e6, long_wave=0.3).longest_frequency(3, 1e-12) == 0.3
    assert Greedy(5, sigma=1e6, long_wave=0.3, linear=False).longest_frequency(3, 1e-12) < 0.01


def responses_of(X, n_outputs=3, seed=5):
    rng = np.random.default_rng(seed)
    return np.cos(X @ rng.normal(scale=4, size=(X.shape[1], n_outputs))) + rng.normal(
        scale=0.1, size=(len(X), n_outputs)
    )


@pytest.mark.parametrize("name", sorted(CHOOSERS))
@pytest.mark.parametrize("mapping", ["cos", "cossin"])
@pytest.mark.parametrize("n_rows", [60, 400])
def test_one_column_of_responses_is_a_vector_of_them(name, mapping, n_rows):
    X, y = problem(n_rows=n_rows)
    chooser = CHOOSERS[name](20, sigma=0.5, mapping=mapping)
    vector, column = (chooser.select(X, part, np.random.default_rng(0)) for part in (y, y[:, None]))
    for part in ("frequencies", "phases", "amplitudes"):
        np.testing.assert_array_equal(getattr(vector, part), getattr(column, part))


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**31), ridge=st.sampled_from([1e-6, 1e-2]), width=st.sampled_from([1, 2]))
def test_greedy_of_several_outputs_is_brute_force(seed, ridge, width):
    rng = np.random.default_rng(seed)
    features, Y = rng.normal(size=(20, 12)), rng.normal(size=(20, 3))
    n_candidates, expected, lowered = 12 // width, [], []
    before = (Y**2).sum()
    for _ in range(4):
        objectives = {}
        for candidate in set(range(n_candidates)) - set(expected):
            columns = [c + k * n_candidates for c in [*expected, candidate] for k in range(width)]
            objectives[candidate] = sum(ridge_objective(features[:, columns], y, ridge) for y in Y.T)
        expected.append(min(objectives, key=objectives.get))
        lowered.append(before - min(objectives.values()))
        before = min(objectives.values())
    taken, gains = greedy_path(sums_of(features, Y), 4, ridge=ridge, width=width)
    assert taken.tolist() == expected
    np.testing.assert_allclose(gains, lowered, rtol=1e-6, atol=1e-9)


def test_shortlists_of_several_outputs_add_up_over_folds():
    X, _ = problem(n_rows=90)
    Y = responses_of(X)
    fold_of = np.arange(90) % 3
    chooser = Greedy(10, sigma=0.5, shortlist=2.0)
    shortlists = chooser.fold_shortlists(X, Y, fold_of, 3, np.random.default_rng(0))
    for fold, shortlist in enumerate(shortlists):
        kept = fold_of != fold
        alone = chooser.shortlisted(X[kept], Y[kept], np.random.default_rng(0))
        np.testing.assert_array_equal(shortlist.frequencies, alone.frequencies)
    features = shortlists[-1].feature_map(X)
    sums = features.T @ features, features.T @ Y
    assert chooser.choose_from(shortlists[-1], *sums, 90.0).n_features == 10


@pytest.mark.parametrize("mapping", ["cos", "cossin"])
@pytest.mark.parametrize("phase_free", [False, True])
def test_energy_of_several_outputs_is_the_length_of_their_correlations(mapping, phase_free):
    X, _ = problem()
    Y = responses_of(X)
    chooser = Energy(10, sigma=0.5, mapping=mapping, phase_free=phase_free)
    pool = chooser.draw_pool(3, np.random.default_rng(0))
    each = [chooser.scores(pool, X, y) for y in Y.T]
    np.testing.assert_allclose(chooser.scores(pool, X, Y), np.linalg.norm(each, axis=0), atol=1e-14)
    expected = np.argsort(-chooser.scores(pool, X, Y), kind="stable")[: chooser.n_kept]
    np.testing.assert_array_equal(chooser.best(pool, X, Y), expected)


def test_surrogate_scores_of_several_outputs_are_their_definition():
    X, _ = problem()
    Y = responses_of(X)
    chooser = Surrogate(5)
    pool = chooser.draw_pool(3, np.random.default_rng(0))
    Z = np.cos(X @ pool.frequencies + pool.phases)
    expected = np.diag(Z.T @ (Y @ Y.T + len(Y) * np.eye(len(Y))) @ Z)
    np.testing.assert_allclose(chooser.scores(pool, X, Y), expected)


@pytest.mark.parametrize("selector_type", SELECTORS)
def test_transformers_take_several_outputs(selector_type):
    X, _ = problem(n_rows=200)
    Y = responses_of(X)
    pipeline = make_pipeline(selector_type(60, sigma=0.5, random_state=0), Ridge(alpha=1e-3)).fit(X, Y)
    assert pipeline.score(X, Y) > 0.8


class Smoothest(Chooser):
    """Keeps the lowest frequencies."""

    def select(self, X, y, rng):
        pool = self.draw_pool(X.shape[1], rng)
        return pool.keep(np.argsort(np.linalg.norm(pool.frequencies, axis=0))[: self.n_kept])


@dataclass(frozen=True, kw_only=True)
class Strongest(Chooser):
    """Keeps what correlates most with the response, the neighbours' rows included."""

    shortlist: float = 2.0

    def choose(self, pool, X, y, rng):
        return pool.keep(self._best(pool, X, y, self.n_kept))

    def shortlisted(self, X, y, rng):
        pool = self.draw_pool(X.shape[1], rng)
        return pool.take(self._best(pool, X, y, round(self.shortlist * self.n_kept)))

    def choose_from(self, pool, gram, moment, n_rows):
        return pool.keep(np.argsort(-np.abs(moment) / np.sqrt(np.diag(gram)))[: self.n_kept])

    def _best(self, pool, X, y, n_kept):
        features = pool.feature_map(X)
        return np.argsort(-np.abs(features.T @ y) / np.linalg.norm(features, axis=0))[:n_kept]


ROWS, RESPONSES, SITES = make_sites(n_sites=4, rows_per_site=80, random_state=0)
NUMBERS = {**ALONE, "n_features": 20, "alpha": 1e-4, "consensus": 1.0, "random_state": 0}


@pytest.mark.parametrize("verify", [False, True])
@pytest.mark.parametrize(
    "chooser", [Smoothest(sigma=0.2, pool_ratio=3), Strongest(sigma=0.5), Strongest(sigma=0.5, shortlist=1.0)]
)
def test_a_chooser_of_one_s_own_serves_a_network(chooser, verify):
    fitted = DeKRRRegressor(features=chooser, verify_features=verify, **NUMBERS).fit(ROWS, RESPONSES, sites=SITES)
    assert fitted.score(ROWS, RESPONSES, sites=SITES) > 0.5
    assert (fitted.traffic_.messages_by_kind["Moments"] > 0) == (chooser.shortlist > 1)
    assert fitted.models_[fitted.sites_[0]].feature_map.n_features == 20
    shared = DKLARegressor(n_features=20, features=chooser, tol=0.0, max_rounds=5).fit(ROWS, RESPONSES, sites=SITES)
    assert shared.models_[shared.sites_[0]].header.sigma == chooser.sigma


def test_a_chooser_of_one_s_own_is_tuned_with_its_neighbours_sums():
    settings = {**NUMBERS, "alpha": [1e-6, 1e-4], "rows_per_feature": 1.0, "n_features": 6, "folds": 2}
    fitted = DeKRRRegressor(features=Strongest(), sigma=[0.3, 3.0], **settings).fit(ROWS, RESPONSES, sites=SITES)
    assert fitted.sigma_ in (0.3, 3.0)
    np.testing.assert_array_equal(np.unique(fitted.tuning_["sigma"]), [0.3, 3.0])


def test_shortlists_of_a_chooser_of_one_s_own_come_from_one_pool():
    X, y = problem(n_rows=40)
    shortlists = Strongest(5).fold_shortlists(X, y, np.arange(40) % 2, 2, np.random.default_rng(0))
    pool = Strongest(5).draw_pool(3, np.random.default_rng(0))
    for shortlist in shortlists:
        assert shortlist.n_candidates == 10
        assert np.isin(shortlist.frequencies, pool.frequencies).all()


def test_what_a_chooser_lacks_is_named():
    X, y = problem()
    rng = np.random.default_rng(0)

    @dataclass(frozen=True, kw_only=True)
    class Idle(Chooser):
        shortlist: float = 2.0

    with pytest.raises(
        SettingsError, match=r"Idle must have the method choose\(pool, X, y, rng\) or select\(X, y, rng\)"
    ):
        Idle().select(X, y, rng)
    for call, method in (
        (lambda: Idle().shortlisted(X, y, rng), "shortlisted"),
        (lambda: Idle().choose_from(Idle().draw_pool(3, rng), np.eye(2), np.ones(2), 5.0), "choose_from"),
    ):
        with pytest.raises(SettingsError, match=f"Idle must have the method {method}"):
            call()


class Blind(Smoothest):
    """Looks at no rows, and gives features of a length that no noise is made for."""

    uses_rows = False

    def select(self, X, y, rng):
        pool = self.draw_pool(X.shape[1], rng)
        return pool.keep(np.arange(self.n_kept), weights=np.full(self.n_kept, 3.0))


class BlindPairs(Smoothest):
    """Looks at no rows, and gives cos/sin pairs."""

    uses_rows = False


@pytest.mark.parametrize(
    ("chooser", "words"),
    [
        (Smoothest(sigma=0.2), "Smoothest chooses features from rows"),
        (Blind(sigma=0.2), "Blind does not give cos/sin pairs of one amplitude"),
    ],
)
def test_a_chooser_that_privacy_cannot_stand_is_refused(chooser, words):
    private = DeKRRRegressor(features=chooser, privacy=DifferentialPrivacy(1.0), scale=None, **NUMBERS)
    with pytest.raises(SettingsError, match=words):
        private.fit(ROWS, RESPONSES, sites=SITES)


def test_a_chooser_of_one_s_own_that_privacy_can_stand():
    pytest.importorskip("opendp")
    chooser = BlindPairs(sigma=0.2, pool_ratio=3)
    budget = DifferentialPrivacy(100.0, max_epsilon=100.0)
    private = DeKRRRegressor(features=chooser, privacy=budget, scale=None, **NUMBERS)
    fitted = private.fit(ROWS, RESPONSES, sites=SITES)
    assert fitted.score(ROWS, RESPONSES, sites=SITES) > 0.5


def sigma_of(features, regressor_type=DeKRRRegressor, **given):
    numbers = NUMBERS if regressor_type is DeKRRRegressor else {"n_features": 20, "tol": 0.0, "max_rounds": 3}
    fitted = regressor_type(features=features, **{**numbers, **given}).fit(ROWS, RESPONSES, sites=SITES)
    model = next(iter(fitted.models_.values()))
    return model.header.sigma, getattr(fitted, "tuning_", None) is not None


@pytest.mark.parametrize("make", [Energy, EnergySelector])
def test_a_chooser_s_sigma_is_never_ignored(make):
    assert sigma_of(make(sigma=0.2)) == (0.2, False)  # "auto" is not given
    assert sigma_of(make(sigma=0.2), sigma=0.2) == (0.2, False)
    assert sigma_of(make(), sigma=0.7) == (0.7, False)
    assert sigma_of(make(), sigma=[0.3, 30.0], folds=2) == (0.3, True)
    assert sigma_of(make(sigma=0.2), DKLARegressor) == (0.2, False)
    assert sigma_of(make(), DKLARegressor, sigma=0.7) == (0.7, False)
    for sigma in (0.7, [0.1, 0.2]):
        with pytest.raises(SettingsError, match=r"sigma is .* in DeKRRRegressor and 0.2 in Energy, .*: give it once"):
            sigma_of(make(sigma=0.2), sigma=sigma)
    with pytest.raises(SettingsError, match=r"sigma is 0.7 in DKLARegressor and 0.2 in Energy"):
        sigma_of(make(sigma=0.2), DKLARegressor, sigma=0.7)


@pytest.mark.parametrize(
    ("brought", "given"),
    [({"kernel": "cauchy"}, {"kernel": "laplacian"}), ({"n_features": 12}, {"n_features": 20})],
)
def test_what_a_chooser_and_its_regressor_both_give_must_agree(brought, given):
    (name, value), (_, other) = *brought.items(), *given.items()
    with pytest.raises(SettingsError, match=f"{name} is {other!r} in DeKRRRegressor and {value!r} in Energy"):
        sigma_of(Energy(sigma=0.3, **brought), **given)


def test_what_is_given_once_counts_wherever_it_is_given():
    # a second training would bring the rows in an order of their own, and sums would differ in their last digits
    settings = {**ALONE, "alpha": 1e-4, "consensus": 1.0, "random_state": 0, "intervals": False}
    there = DeKRRRegressor(features=Energy(12, sigma=0.3, kernel=Laplacian, mapping="cossin"), **settings)
    here = DeKRRRegressor(features=Energy(), n_features=12, sigma=0.3, kernel="laplacian", mapping="cossin", **settings)
    named = DeKRRRegressor(
        features="energy", n_features=12, sigma=0.3, kernel="laplacian", mapping="cossin", **settings
    )
    predictions = [each.fit(ROWS, RESPONSES, sites=SITES).predict(ROWS, sites=SITES) for each in (there, here, named)]
    np.testing.assert_array_equal(predictions[0], predictions[1])
    np.testing.assert_array_equal(predictions[0], predictions[2])


@dataclass(frozen=True, kw_only=True)
class Rough(Smoothest):
    """Has defaults of its own."""

    kernel: str = "laplacian"
    sigma: float = 0.5


def test_a_default_of_a_chooser_of_one_s_own_counts_as_given():
    fitted = DeKRRRegressor(features=Rough(), **NUMBERS).fit(ROWS, RESPONSES, sites=SITES)
    header = fitted.models_[fitted.sites_[0]].header
    assert (header.kernel, header.sigma) == ("laplacian", 0.5)
