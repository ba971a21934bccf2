"""Folds by a keyed hash of the row: no seed, no order and no purpose moves them, and no series of runs tells them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dekrr import DeKRRRegressor
from dekrr.lab.attacks.overhearing import Overheard
from dekrr.messages import Sums, Total
from dekrr.networks.local import LocalNetwork
from dekrr.privacy.admission import site_rng
from dekrr.protocols import calibration, dekrr, training
from dekrr.protocols.run import Tuning
from dekrr.protocols.site import Site
from dekrr.selection import Greedy
from dekrr.settings import DeKRRSettings
from dekrr.tables import rows as rows_module
from dekrr.tables.rows import CELLS, ArrayRows, RowHash, fold_of, is_usual, signs_of
from dekrr.types import Block
from meshes import Mesh

OPEN = {"masks": False, "scale": None, "rows_per_feature": 0.0, "max_leverage": 1.0, "min_rows": 1}
GRAPH = {"a": ("b",), "b": ("a",)}


def rows_of(seed, n_rows, n_columns=2):
    rng = np.random.default_rng(seed)
    X = rng.random((n_rows, n_columns))
    return Block(X, np.sin(5 * X[:, 0]) + 0.2 * rng.normal(size=n_rows))


@given(st.integers(0, 10**6), st.integers(1, 60), st.integers(2, 25))
def test_the_fold_of_a_row_depends_on_the_row_alone(seed, n_rows, n_folds):
    rng, rows, hash_of = np.random.default_rng(seed), rows_of(seed, n_rows, 3), RowHash(b"a site")
    folds = fold_of(hash_of(rows), n_folds)
    some = rng.permutation(n_rows)[: rng.integers(1, n_rows + 1)]  # in another order, and others missing
    np.testing.assert_array_equal(fold_of(hash_of(rows.take(some)), n_folds), folds[some])
    twice = fold_of(hash_of(rows.take(np.tile(np.arange(n_rows), 2))), n_folds)  # a copy changes no other row's fold
    np.testing.assert_array_equal(twice[:n_rows], folds)
    weighted = rows._replace(weight=rng.random(n_rows))
    np.testing.assert_array_equal(fold_of(hash_of(weighted), n_folds), folds)
    order = rng.permutation(3)
    other = RowHash(b"a site", tuple(np.argsort(order).tolist()))
    np.testing.assert_array_equal(fold_of(other(rows._replace(X=rows.X[:, order])), n_folds), folds)
    assert folds.min() >= 0
    assert folds.max() < n_folds


def test_keys_make_folds_that_have_nothing_to_do_with_each_other():
    rows = rows_of(0, 20_000)
    here, there = (fold_of(RowHash(key)(rows), 5) for key in (b"here", b"there"))
    counts = np.histogram2d(here, there, bins=5)[0]
    assert np.sum((counts - 800) ** 2 / 800) < 52.6  # chi squared of 25 cells: one draw in a thousand has more
    assert RowHash()(Block(np.zeros((1, 1)), np.array([-0.0])))[0] == RowHash()(Block(np.zeros((1, 1)), np.zeros(1)))[0]


@pytest.mark.parametrize("n_folds", range(2, CELLS + 1))
def test_folds_are_made_of_the_same_cells(n_folds):
    hashes = RowHash()(rows_of(1, 3000))
    cells, folds = fold_of(hashes, CELLS), fold_of(hashes, n_folds)
    assert all(len(set(folds[cells == cell])) == 1 for cell in range(CELLS))
    if n_folds <= 10:
        assert all(is_usual(n_held, 3000, n_folds) for n_held in np.bincount(folds))


def test_signs_of_equal_rows_do_not_depend_on_each_other():
    hashes = RowHash()(Block(np.ones((4000, 1)), np.ones(4000)))
    signs = signs_of(hashes, 8)
    assert np.abs(signs.mean(axis=0)).max() < 0.08
    np.testing.assert_allclose(np.cov(signs.T), np.eye(8), atol=0.08)
    some = np.random.default_rng(0).permutation(300)
    different = RowHash()(rows_of(0, 300))
    np.testing.assert_array_equal(signs_of(different[some], 8), signs_of(different, 8)[some])


@settings(max_examples=4, deadline=None)
@given(st.integers(0, 10**6), st.booleans())
def test_rows_in_another_order_give_the_same_model(seed, weighted):
    rng = np.random.default_rng(seed)
    X, sites = rng.normal(size=(150, 3)).round(1), rng.integers(0, 3, 150)
    X[:20] = X[20:40]
    y = np.sin(2 * X[:, 0]) + X[:, 1] * (sites - 1) + 0.1 * rng.normal(size=150)
    weight = rng.uniform(0.5, 2.0, 150) if weighted else None
    new, of_new, order = rng.normal(size=(40, 3)), rng.integers(0, 3, 40), rng.permutation(150)

    def predicted(order):
        own = None if weight is None else weight[order]
        model = DeKRRRegressor(random_state=0).fit(X[order], y[order], sites=sites[order], sample_weight=own)
        return model.predict(new, sites=of_new)

    np.testing.assert_allclose(predicted(order), predicted(np.arange(150)), rtol=1e-9, atol=1e-9)


def test_a_seed_does_not_move_the_rows_that_are_held_out(monkeypatch):
    found = []
    X, y = rows_of(3, 200)[:2]
    sites, sets = np.arange(200) % 2, []
    before = calibration.HeldOut

    def noted(rows, *more):
        found.append(np.sort(rows.y))
        return before(rows, *more)

    monkeypatch.setattr(calibration, "HeldOut", noted)
    for seed in (0, 1):
        found.clear()
        DeKRRRegressor(n_features=8, random_state=seed).fit(X, y, sites=sites)
        sets.append(np.sort(np.concatenate(found)))
    np.testing.assert_array_equal(*sets)


def energies(rows, seed):
    """Return y'y of site b's rows in the sums that column scales are learnt from, as site a hears them."""
    sites = {name: Site(name, GRAPH[name], ArrayRows(*rows[name]), seed=seed) for name in GRAPH}
    record = Overheard()
    network = LocalNetwork(GRAPH, observers=[record])
    run = DeKRRSettings(lone_neighbor="warn", **OPEN, tol=0.0, max_rounds=1)
    network.run({n: training.train_parts(s, Greedy(3, sigma=None), run) for n, s in sites.items()})
    sums = [message.values for message in record.between("b", "a", Total)]
    energy = np.sum(rows["b"].y ** 2)
    size = 7 * 8 // 2  # of 6 features and the response; votes for features, which follow from the seed, are shorter
    return [values[-1] for values in sums if len(values) == size and np.isclose(values[-1], energy, rtol=0.7)][:4]


def test_a_series_of_runs_with_other_seeds_gives_no_equations():
    """Who knows the folds of every seed solves for the squared response of each row; one seed now tells as much."""
    n_rows = 30
    rows = {name: rows_of(place, n_rows) for place, name in enumerate(GRAPH)}
    squares = rows["b"].y ** 2
    heard = np.array([energies(rows, seed)[:2] for seed in range(22)])

    def known(seed):  # how folds once followed from the seed
        return site_rng(seed, "b", "held out").permutation(n_rows) % 5

    equations = np.array([known(seed) != fold for seed in range(22) for fold in (0, 1)], dtype=float)
    assert np.linalg.matrix_rank(equations) == n_rows, "the attack would find all rows"
    solved = np.linalg.lstsq(equations, equations @ squares, rcond=None)[0]
    np.testing.assert_allclose(solved, squares, atol=1e-9)

    found = np.linalg.lstsq(equations, heard.ravel(), rcond=None)[0]
    assert np.sum(np.isclose(found, squares, rtol=1e-3)) <= 1
    np.testing.assert_allclose(heard, heard[:1].repeat(22, axis=0), rtol=1e-9)
    # Without site b's key the folds cannot be told: under others, other rows are held out.
    mine = [np.sum(squares[fold_of(RowHash(b"guess %d" % k)(rows["b"]), 5) != 0]) for k in range(20)]
    assert not np.isclose(mine, heard[0, 0], rtol=1e-6).any()


def test_sums_of_tuning_are_the_same_whatever_the_seed():
    rows = {name: rows_of(place, 60) for place, name in enumerate(GRAPH)}
    tuning = Tuning(sigmas=(1.0,), alphas=(1e-3,), consensuses=(1.0,), folds=4)
    maps = {n: Greedy(4, sigma=1.0).select(*rows[n][:2], np.random.default_rng(0)) for n in GRAPH}
    told = []
    for seed in (0, 1):
        record = Overheard()
        sites = {n: Site(n, GRAPH[n], ArrayRows(*rows[n]), seed=seed, feature_map=maps[n]) for n in GRAPH}
        run = DeKRRSettings(lone_neighbor="warn", **OPEN, verify_features=False, tol=0.0, max_rounds=1)
        LocalNetwork(GRAPH, observers=[record]).run(
            {n: dekrr.train(s, Greedy(4, sigma=1.0), run, tuning) for n, s in sites.items()}
        )
        told.append([message.gram for message in record.between("b", "a", Sums)])
    assert len(told[0]) == 5
    np.testing.assert_array_equal(*told)


def test_large_sites_have_samples_with_hashes_of_their_rows(monkeypatch):
    monkeypatch.setattr(rows_module, "SAMPLE_ROWS", 50)
    rows = ArrayRows(*rows_of(0, 130)).in_order(RowHash())
    sample = rows.mapped(lambda block: block._replace(y=0 * block.y)).sample
    known = dict(zip(RowHash()(rows.arrays()).tolist(), rows.X[:, 0], strict=True))
    assert sample.n_rows == 50
    assert [known[one] for one in sample.hashes.tolist()] == sample.X[:, 0].tolist()
    assert np.all(np.diff(sample.hashes.astype(float)) > 0)
    few = rows.take(slice(40))
    np.testing.assert_array_equal(few.hashes, np.sort(RowHash()(rows.arrays().take(slice(40)))))


def test_a_node_keeps_its_key(tmp_path):
    """The key is made of the secret in the site's folder: two sites with the same rows have other folds."""
    mesh = Mesh(tmp_path, 2)
    rows, folds = rows_of(0, 400), {}
    for name in mesh.names:
        for start in range(2):
            node = mesh.node(name, fresh=True)
            prepared = LocalNetwork({name: ()}).run({name: node._own.prepared(Site(name, (), node._own.rows))})
            node.close()
            folds[name, start] = fold_of(prepared[name][0].hash_of(rows), 5)
        assert (mesh.home(name) / "secret").stat().st_mode & 0o777 == 0o600
        np.testing.assert_array_equal(folds[name, 0], folds[name, 1])
    first, second = mesh.names
    assert 0.1 < np.mean(folds[first, 0] == folds[second, 0]) < 0.3
