"""Boosted trees: as arrays beside LightGBM's own predictions, from files, and fitted to folds."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from safetensors.numpy import load as read_tensors
from safetensors.numpy import save as write_tensors

from dekrr.errors import DataError, ModelFileError, SettingsError
from dekrr.parts import trees as module
from dekrr.parts.trees import TreeEnsemble, fit_trees

lightgbm = pytest.importorskip("lightgbm")
QUIET = {"verbosity": -1, "num_threads": 1, "use_missing": False, "min_data_in_bin": 1, "feature_pre_filter": False}


def train(X: np.ndarray, y: np.ndarray, n_trees: int = 20, **settings: Any) -> Any:
    parameters = QUIET | {"objective": "regression", "min_data_in_leaf": 1, "num_leaves": 8} | settings
    return lightgbm.train(parameters, lightgbm.Dataset(X, y, params=parameters), n_trees)


def smooth(n_rows: int = 300, n_columns: int = 4, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n_rows, n_columns))
    return X, np.sin(2 * X[:, 0]) + X[:, -1] + 0.1 * rng.normal(size=n_rows)


@pytest.fixture(params=["compiled", "numpy"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways of prediction, however few rows there are."""
    loops = None
    if request.param == "compiled":
        pytest.importorskip("numba")
        from dekrr import _compiled as loops
    monkeypatch.setattr(module, "loops_for", lambda n: loops)


VALUES = st.one_of(
    st.floats(-3, 3).map(lambda value: round(value, 1)),  # many ties, and rows on thresholds
    st.sampled_from([0.0, -0.0, 1e300, -1e300, 1.7e308, 1e-300, 5e-324, 1e-35, -1e-35]),
)


@st.composite
def tables(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    n_rows, n_columns = draw(st.integers(2, 30)), draw(st.integers(1, 4))
    X = draw(arrays(np.float64, (n_rows, n_columns), elements=VALUES))
    y = draw(arrays(np.float64, n_rows, elements=st.sampled_from([1.0, 2.0, -7.5]) | st.floats(-1e6, 1e6)))
    return X, np.full(n_rows, y[0]) if draw(st.booleans()) else y


@pytest.mark.usefixtures("way")
class TestPredictions:
    @given(tables(), st.booleans(), st.integers(1, 12))
    @settings(max_examples=60, deadline=None)
    def test_equal_those_of_lightgbm(self, table, from_average, n_trees):
        X, y = table
        booster = train(X, y, n_trees, boost_from_average=from_average)
        trees = TreeEnsemble.from_lightgbm(booster)
        splits = np.unique(trees.threshold[trees.column >= 0])
        points = np.concatenate([np.unique(X), splits, np.nextafter(splits, np.inf), np.nextafter(splits, -np.inf)])
        rows = np.vstack([X, np.random.default_rng(0).choice(points, size=(50, X.shape[1]))])
        wanted = booster.predict(rows)
        tolerance = 1e-12 * max(1.0, np.abs(y).max())
        np.testing.assert_allclose(trees.predict(rows)[:, 0], wanted, rtol=1e-12, atol=tolerance)

    def test_of_the_first_iterations_and_of_several_outputs(self):
        X, y = smooth()
        booster = train(X, np.digitize(y, [-0.5, 0.5]), 12, objective="multiclass", num_class=3)
        for n_trees in (1, 5, 12):
            trees = TreeEnsemble.from_lightgbm(booster, n_trees)
            wanted = booster.predict(X, raw_score=True, num_iteration=n_trees)
            assert trees.n_trees == 3 * n_trees
            np.testing.assert_allclose(trees.predict(X), wanted, atol=1e-12)
        assert TreeEnsemble.from_lightgbm(booster, 0).predict(X).tolist() == [[0, 0, 0]] * len(X)

    def test_of_sums_and_multiples(self):
        X, y = smooth()
        first, second = (TreeEnsemble.from_lightgbm(train(X, target)) for target in (y, -(y**2)))
        both = TreeEnsemble.joined(
            [
                first.placed(1.0, np.zeros(X.shape[1]), 0, np.array([1.0, 0])),
                second.placed(1.0, np.zeros(X.shape[1]), 1, np.array([0, 2.0])),
            ]
        )
        wanted = np.column_stack([1 + first.predict(X), 2 + second.predict(X)])
        np.testing.assert_allclose(both.predict(X), wanted, atol=1e-12)
        np.testing.assert_allclose(both.scaled(np.array([3.0, -1])).predict(X), wanted * [3, -1], atol=1e-12)
        np.testing.assert_allclose(both.scaled(0.5).predict(X), wanted / 2, atol=1e-12)
        again = TreeEnsemble.joined([both, TreeEnsemble.constant(np.ones(2)), both])
        np.testing.assert_allclose(again.predict(X), 2 * wanted + 1, atol=1e-12)
        assert (again.n_trees, again.depth) == (80, both.depth)

    def test_of_values_that_are_not_numbers_go_to_the_right(self):
        trees = TreeEnsemble.from_lightgbm(train(*smooth(), n_trees=1, num_leaves=2, boost_from_average=False))
        assert trees.predict(np.full((1, 4), np.nan))[0] == trees.value[trees.right[0]]

    def test_of_columns_in_any_layout(self):
        X, y = smooth()
        trees = TreeEnsemble.from_lightgbm(train(X, y))
        np.testing.assert_array_equal(trees.predict(np.asfortranarray(X)), trees.predict(X))
        np.testing.assert_array_equal(trees.predict(X[::-1]), trees.predict(X)[::-1])


def test_rows_with_too_few_columns_are_refused():
    trees = TreeEnsemble.from_lightgbm(train(*smooth()))
    with pytest.raises(DataError, match="read 4 columns"):
        trees.predict(np.zeros((2, 3)))


@pytest.mark.parametrize(
    "other", [{"linear_tree": True}, {"boosting": "rf", "bagging_freq": 1, "bagging_fraction": 0.5}]
)
def test_trees_of_another_kind_are_refused(other):
    with pytest.raises(SettingsError, match="linear leaves"):
        TreeEnsemble.from_lightgbm(train(*smooth(), **other))


class TestFile:
    def test_gives_the_same_trees(self):
        X, y = smooth()
        trees = TreeEnsemble.from_lightgbm(train(X, y))
        read = TreeEnsemble.from_tensors(
            read_tensors(write_tensors(trees.tensors("a_"))), "a_", n_columns=4, n_outputs=1
        )
        np.testing.assert_array_equal(read.predict(X), trees.predict(X))

    @pytest.mark.parametrize(
        ("name", "change", "words"),
        [
            ("left", lambda values: values * 0, "after its parent"),
            ("left", lambda values: np.append(np.int32(5000), values[1:]), "after its parent"),
            ("right", lambda values: values - 1, "leaf has a child|after its parent"),
            ("right", lambda values: values[:-1], "differ in length"),
            ("right", lambda values: values.astype(np.int64), "vector of int32"),
            ("value", lambda values: values.reshape(1, -1), "vector of float64"),
            ("value", lambda values: values * np.nan, "not finite"),
            ("threshold", lambda values: values + np.inf, "not finite"),
            ("column", lambda values: values + 4, "column"),
            ("column", lambda values: np.full_like(values, -1), "leaf has a child"),
            ("column", lambda values: np.zeros_like(values), "after its parent"),
            ("roots", lambda values: values[::-1], "roots"),
            ("roots", lambda values: values[1:], "output|length"),
            ("roots", lambda values: values + 1, "exactly one|roots"),
            ("output", lambda values: values - 1, "outputs"),
            ("base", lambda values: np.zeros(2), "outputs"),
        ],
    )
    def test_with_damage_is_refused(self, name, change, words):
        tensors = TreeEnsemble.from_lightgbm(train(*smooth())).tensors()
        tensors["trees_" + name] = change(tensors["trees_" + name])
        with pytest.raises(ModelFileError, match=words):
            TreeEnsemble.from_tensors(tensors, n_columns=4, n_outputs=1)

    def test_without_an_array_is_refused(self):
        tensors = TreeEnsemble.constant(np.zeros(1)).tensors()
        assert TreeEnsemble.from_tensors(tensors, n_columns=0, n_outputs=1).n_trees == 0
        del tensors["trees_roots"]
        with pytest.raises(ModelFileError, match="trees_roots is missing"):
            TreeEnsemble.from_tensors(tensors, n_columns=0, n_outputs=1)

    @pytest.mark.parametrize("n_splits", [40, 100_000])
    def test_whose_walks_would_take_for_ever_is_refused(self, n_splits):
        """Both children of a node are the next one, or each tree is a chain of a hundred thousand splits."""
        nodes = np.arange(n_splits + 1, dtype=np.int32)
        below = np.minimum(nodes + 1, n_splits).astype(np.int32)
        column = np.where(nodes < n_splits, 0, -1).astype(np.int32)
        one, zeros = np.zeros(1, dtype=np.int32), np.zeros(n_splits + 1)
        with pytest.raises(ModelFileError, match="exactly one tree"):
            TreeEnsemble(column, zeros, below, below, zeros, one, one, np.zeros(1))._check("trees", 1, 1)
        chain = np.arange(2 * n_splits + 1, dtype=np.int32)
        is_split = (chain % 2 == 0) & (chain < 2 * n_splits)
        left, right = (np.where(is_split, chain + step, chain).astype(np.int32) for step in (1, 2))
        column, zeros = np.where(is_split, 0, -1).astype(np.int32), np.zeros(len(chain))
        trees = TreeEnsemble(column, zeros, left, right, zeros, one, one, np.zeros(1))
        if n_splits == 40:
            trees._check("trees", 1, 1)
            assert trees.depth == 40
        else:
            with pytest.raises(ModelFileError, match="levels"):
                trees._check("trees", 1, 1)

    @given(st.data())
    @settings(max_examples=100, deadline=None)
    def test_with_any_numbers_is_read_or_refused(self, data):
        tensors = TreeEnsemble.from_lightgbm(SMALL).tensors()
        name = data.draw(st.sampled_from(sorted(tensors)))
        values = tensors[name].copy()
        place = data.draw(st.integers(0, len(values) - 1))
        whole = st.integers(-(2**31), 2**31 - 1) | st.integers(-2, 12)
        values[place] = data.draw(whole if values.dtype == np.int32 else st.floats())
        try:
            trees = TreeEnsemble.from_tensors(tensors | {name: values}, n_columns=4, n_outputs=1)
        except ModelFileError:
            return
        assert np.isfinite(trees.predict(np.zeros((3, 4)))).all()


SMALL = train(*smooth(), n_trees=3, num_leaves=3)


def leaf_values(trees: TreeEnsemble, first: int, last: int, rows: np.ndarray) -> np.ndarray:
    """Return what one tree says, row by row and step by step."""
    found = []
    for row in rows:
        node = first
        while trees.column[node] >= 0:
            node = (trees.left if row[trees.column[node]] <= trees.threshold[node] else trees.right)[node]
        assert first <= node < last
        found.append(trees.value[node])
    return np.array(found)


class TestFit:
    def test_is_the_mean_of_boosters_that_have_not_seen_their_fold(self):
        """Each row is predicted as LightGBM's own objective, trained on the other folds' rows, predicts it."""
        X, y = smooth(400)
        fold_of = np.random.default_rng(1).integers(0, 4, size=400) * 3
        same = {"min_sum_hessian_in_leaf": 9.5, "num_leaves": 31, "min_data_in_leaf": 1, "max_bin": 63, "max_depth": -1}
        same["learning_rate"] = 0.1
        fitted = fit_trees(X, y, None, fold_of, seed=0, settings=same)
        (number,) = fitted.n_trees
        predictions, positive = [], X - X.min(axis=0) + 1
        for fold in np.unique(fold_of):
            table = lightgbm.Dataset(positive, y, params=QUIET | same).construct()
            booster = lightgbm.train(QUIET | same, table.subset(np.flatnonzero(fold_of != fold)), number)
            predictions.append(booster.predict(positive))
            np.testing.assert_allclose(
                fitted.out_of_fold[fold_of == fold, 0], predictions[-1][fold_of == fold], atol=0.02
            )
        np.testing.assert_allclose(fitted.trees.predict(X)[:, 0], np.mean(predictions, axis=0), atol=0.02)

    def test_no_threshold_is_nearer_to_a_row_than_rounding(self):
        """Values that differ by rounding alone are one, and zero is a number as any other."""
        rng = np.random.default_rng(0)
        X = np.column_stack([np.where(rng.random(300) < 0.5, 0.0, 6e-17), rng.integers(-2, 3, 300)]).astype(float)
        y = (X[:, 0] > 0) + (X[:, 1] >= 0) + 0.1 * rng.normal(size=300)
        trees = fit_trees(X, y, None, np.arange(300) % 3, seed=0).trees
        assert trees.n_trees
        for noise in (1e-12, -1e-12):
            np.testing.assert_array_equal(trees.predict(X + noise), trees.predict(X))

    def test_predictions_are_those_of_the_trees_that_are_kept(self):
        """Trees that were grown after the last one that is kept leave no trace."""
        X, y = smooth(60)
        fold_of = np.arange(60) % 3
        fitted = fit_trees(X, y, None, fold_of, seed=0)
        (number,) = fitted.n_trees
        stopped = fit_trees(X, y, None, fold_of, seed=0, n_trees=number)
        np.testing.assert_array_equal(fitted.out_of_fold, stopped.out_of_fold)
        np.testing.assert_array_equal(fitted.trees.value, stopped.trees.value)
        trees, nodes = fitted.trees, np.append(fitted.trees.roots, fitted.trees.n_nodes)
        for k in range(3):  # the trees of the booster that has not seen fold k
            places = range(k * number, (k + 1) * number)
            leaves = sum(leaf_values(trees, nodes[i], nodes[i + 1], X[fold_of == k]) for i in places)
            wanted = y[fold_of != k].mean() + 3 * leaves
            np.testing.assert_allclose(fitted.out_of_fold[fold_of == k, 0], wanted, atol=1e-6)

    @pytest.mark.parametrize("seed", range(4))  # without ties of two splits, which rounding decides
    def test_compiled_loop_grows_the_trees_of_lightgbm(self, seed, monkeypatch):
        """At small sites, also with weights, constant columns and values that occur often."""
        pytest.importorskip("numba")
        X, y = smooth(60, seed=seed)
        X = np.column_stack([X, np.ones(60), np.random.default_rng(seed).integers(0, 3, 60)])
        weight = [None, np.random.default_rng(seed).uniform(0.5, 2, 60)][seed % 2]
        given = {"weight": weight, "fold_of": np.arange(60) % 5, "seed": 0, "n_trees": 12}
        looped = fit_trees(X, y, **given)
        monkeypatch.setattr("dekrr.parts.trees.compiled", lambda: None)
        plain = fit_trees(X, y, **given)
        assert looped.n_trees == plain.n_trees
        assert looped.trees.n_nodes == plain.trees.n_nodes
        np.testing.assert_allclose(looped.out_of_fold, plain.out_of_fold, atol=1e-7)
        np.testing.assert_allclose(looped.trees.predict(X), plain.trees.predict(X), atol=1e-7)

    def test_predicts_new_rows_and_knows_how_well(self):
        X, y = smooth(1000)
        fitted = fit_trees(X[:500], y[:500], None, np.arange(500) % 5, seed=0)
        held_out, new = (
            np.mean((found - wanted) ** 2) / np.var(y)
            for found, wanted in [(fitted.out_of_fold[:, 0], y[:500]), (fitted.trees.predict(X[500:])[:, 0], y[500:])]
        )
        assert new < 0.1
        assert abs(held_out - new) < 0.05

    def test_finds_nothing_in_noise(self):
        rng = np.random.default_rng(0)
        X, y = rng.normal(size=(60, 5)), 3 + rng.normal(size=60)
        fitted = fit_trees(X, y, None, np.arange(60) % 5, seed=0)
        assert fitted.n_trees[0] < 20
        assert np.var(fitted.trees.predict(X)) < np.var(y)

    def test_several_outputs_are_fits_of_their_own(self):
        X, y = smooth()
        both = np.column_stack([y, X[:, 1] ** 2])
        fold_of = np.arange(300) % 3
        fitted = fit_trees(X, both, None, fold_of, seed=0)
        for k in range(2):
            alone = fit_trees(X, both[:, k], None, fold_of, seed=0)
            assert alone.n_trees == fitted.n_trees[k : k + 1]
            np.testing.assert_array_equal(fitted.out_of_fold[:, k], alone.out_of_fold[:, 0])
            np.testing.assert_allclose(fitted.trees.predict(X)[:, k], alone.trees.predict(X)[:, 0], atol=1e-12)

    def test_a_weight_counts_as_often_as_the_row(self):
        """Rows of weight 2 are rows that occur twice; scaling all weights changes nothing."""
        X, y = smooth(200)
        X = X.round(1)  # as many values as bins, so that repeated rows do not move the bins
        weight = np.tile([1.0, 2.0], 100)
        twice = np.repeat(np.arange(200), weight.astype(int))
        fold_of = np.arange(200) // 2 % 4

        def fit(rows, weight, per_leaf):
            limits = {"n_trees": 10, "settings": {"min_sum_hessian_in_leaf": per_leaf}}
            return fit_trees(X[rows], y[rows], weight, fold_of[rows], seed=0, **limits).trees.predict(X)

        repeated, plain = fit(twice, None, 4.5), fit(slice(None), None, 3.0)
        weighted, scaled = fit(slice(None), weight, 3.0), fit(slice(None), 7 * weight, 3.0)
        np.testing.assert_allclose(scaled, weighted, atol=1e-6)
        # Splits between the same training rows may lie at either end of a gap, in which there are rows of the fold.
        assert np.mean((weighted - repeated) ** 2) < 0.1 * np.mean((weighted - plain) ** 2)

    def test_units_of_the_response_do_not_matter(self):
        X, y = smooth()
        fold_of = np.arange(300) % 3
        fitted = fit_trees(X, y, None, fold_of, seed=0).trees.predict(X)
        for spread, level in [(1e-30, 0.0), (1e30, 0.0), (1.0, 1e6)]:
            other = fit_trees(X, level + spread * y, None, fold_of, seed=0).trees.predict(X)
            np.testing.assert_allclose((other - level) / spread, fitted, atol=1e-3)

    def test_threads_give_the_same(self):
        X, y = smooth()
        with ThreadPoolExecutor(4) as pool:
            fits = list(pool.map(lambda k: fit_trees(X, y, None, np.arange(300) % (3 + k % 2), seed=0), range(8)))
        for k, fitted in enumerate(fits):
            for name, values in fits[k % 2].trees.tensors().items():
                np.testing.assert_array_equal(fitted.trees.tensors()[name], values)

    def test_few_rows(self):
        X, y = smooth(20)
        assert fit_trees(X[:1], y[:1], None, np.zeros(1, dtype=int), seed=0) is None
        assert fit_trees(X[:5], y[:5], None, np.arange(5), seed=0) is None
        assert fit_trees(X, y, None, np.zeros(20, dtype=int), seed=0) is None
        for n_rows in range(2, 20):
            fitted = fit_trees(X[:n_rows], y[:n_rows], None, np.arange(n_rows) % 3, seed=0)
            assert fitted is None or np.isfinite(fitted.out_of_fold).all()

    def test_constant_columns_and_responses(self):
        X, y = smooth(50)
        fold_of = np.arange(50) % 5
        level = fit_trees(X, np.full(50, 7.0), None, fold_of, seed=0)
        np.testing.assert_allclose(level.trees.predict(X), 7.0)
        np.testing.assert_allclose(level.out_of_fold, 7.0)
        assert fit_trees(np.zeros((50, 3)), y, None, fold_of, seed=0) is None
