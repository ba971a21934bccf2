"""The parts of a model beside the agreed one: column scales, the shared part and the local part, by other means."""

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dekrr
from dekrr import DeKRRRegressor, DifferentialPrivacy, MessageError, SettingsError
from dekrr.data import make_sites
from dekrr.features import FeatureMap
from dekrr.messages import Total, decode, encode
from dekrr.networks.local import LocalNetwork
from dekrr.parts.local import constant_of, has_constant
from dekrr.protocols import dekrr as algorithm
from dekrr.protocols import shared_part, spanning_tree, training
from dekrr.protocols.home import leverage_among
from dekrr.protocols.roll_call import RollCall, roll_call
from dekrr.protocols.run import Start
from dekrr.protocols.shared_part import best_ridge, candidate_scales
from dekrr.protocols.site import Site
from dekrr.protocols.spanning_tree import BranchSums, SparseSums, Tree
from dekrr.scaling import UNSCALED
from dekrr.selection import Greedy, Mixed
from dekrr.selection.choosers import random_columns
from dekrr.selection.greedy import with_columns
from dekrr.settings import ALONE, DeKRRSettings
from dekrr.statistics import OwnSums, largest_squared_gradients, path_of, squared_gradients
from dekrr.tables.rows import ArrayRows

X, y, SITES = make_sites(n_sites=5, random_state=0)
X_NEW, Y_NEW, SITES_NEW = make_sites(n_sites=5, random_state=1)
SMALL = {"n_features": 12, "random_state": 0}
IN_PROCESS = {"rows_per_feature": 0.0, "max_leverage": 1.0, "verify_features": False, "scale": None}


def random_map(rng, n_columns=3, n_features=7):
    shape = (n_columns, n_features)
    return FeatureMap(rng.normal(size=shape), rng.uniform(0, 6, n_features), rng.uniform(0.5, 2, n_features))


@given(st.integers(0, 2**16), st.sampled_from([(), (2,)]), st.booleans())
def test_gradients_are_those_of_finite_differences(seed, outputs, weighted):
    rng = np.random.default_rng(seed)
    feature_map, rows = random_map(rng), rng.random((6, 3))
    theta, weight = rng.normal(size=(7, *outputs)), rng.random(6)
    block = ArrayRows(rows, np.zeros(6), weight if weighted else None)
    step, numerical = 1e-6, np.zeros(3)
    for k in range(3):
        shift = step * np.eye(3)[k]
        slope = (feature_map(rows + shift) - feature_map(rows - shift)) @ theta / (2 * step)
        squares = (slope**2).reshape(6, -1).sum(axis=1)
        numerical[k] = (weight if weighted else np.ones(6)) @ squares
    exact = squared_gradients(block, feature_map, theta)
    np.testing.assert_allclose(exact, numerical, rtol=1e-5, atol=1e-6)
    assert (exact <= block.n_rows * largest_squared_gradients(feature_map, theta) + 1e-12).all()


def sums_of(Z, y):
    return OwnSums(Z.T @ Z, Z.T @ y, float(np.vdot(y, y)))


@given(st.integers(0, 2**16), st.sampled_from([(), (2,)]))
def test_generalised_cross_validation_is_that_of_the_hat_matrix(seed, outputs):
    rng = np.random.default_rng(seed)
    Z, y = rng.normal(size=(20, 6)), rng.normal(size=(20, *outputs))
    ridges = [1e-3, 1e-1, 10.0]
    errors = []
    for ridge in ridges:
        hat = Z @ np.linalg.solve(Z.T @ Z + 20 * ridge * np.eye(6), Z.T)
        errors.append(np.sum((y - hat @ y) ** 2) / 20 / (1 - np.trace(hat) / 20) ** 2)
    fits = path_of(sums_of(Z, y), 20, ridges)
    assert [fit.error for fit in fits] == pytest.approx(errors)
    fit = min(fits, key=lambda fit: fit.error)
    best = int(np.argmin(errors))
    assert (fit.ridge, fit.error) == (ridges[best], pytest.approx(errors[best]))
    expected = np.linalg.solve(Z.T @ Z + 20 * ridges[best] * np.eye(6), Z.T @ y)
    np.testing.assert_allclose(fit.coefficients, expected, atol=1e-9)


def driven(procedure, graph, rows):
    """Run a procedure of a site for each site of a graph; return what comes of it, and the network."""
    network = LocalNetwork(graph)
    sites = {name: Site(name, tuple(graph[name]), rows[name]) for name in graph}
    return network.run({name: procedure(site) for name, site in sites.items()}), network


GRAPH = {"a": ["b"], "b": ["a", "c"], "c": ["b", "d"], "d": ["c"]}


def rows_of(rng, n_outputs=()):
    def some(n):
        rows = rng.random((n, 3))
        response = np.sin(5 * rows[:, 0]) + rows[:, 1]
        return ArrayRows(rows, np.stack([response, -2 * response], axis=1) if n_outputs else response)

    return {name: some(n) for name, n in zip(GRAPH, (30, 41, 25, 37), strict=True)}


def test_only_the_root_has_the_sum_and_all_have_the_result():
    seen = []

    def procedure(site):
        roster = yield from roll_call(site)

        def compute(total):
            seen.append(site.name)
            return np.array([total.sum(), 7.0])

        return (yield from Tree(roster).result(np.full(3, float(len(site.name))), compute, 2))

    results, _ = driven(procedure, GRAPH, rows_of(np.random.default_rng(0)))
    assert seen == ["a"]
    for result in results.values():
        np.testing.assert_array_equal(result, [12.0, 7.0])


def penalised(feature_map):
    """Return the identity without the constant: an intercept has no ridge."""
    ones = np.ones(feature_map.n_features)
    if has_constant(feature_map):
        ones[constant_of(feature_map)] = 0.0
    return np.diag(ones)


@pytest.mark.parametrize("ridge", [None, 1e-9, 2.0])
@pytest.mark.parametrize("outputs", [(), (2,)])
def test_the_shared_part_is_the_ridge_regression_of_pooled_rows(outputs, ridge):
    rows = rows_of(np.random.default_rng(1), outputs)
    run = algorithm.plan(Greedy(5), DeKRRSettings(**IN_PROCESS))

    def procedure(site):
        start = Start(site, site.rows, UNSCALED, RollCall(site))
        kinds = shared_part.both_kinds(14, ((1.0,) * 3,), ((1.0,) * 3,))
        return (yield from shared_part.fit_shared(start, run, 0.7, kinds, ridge=ridge))

    fitted, network = driven(procedure, GRAPH, rows)
    pooled_X = np.vstack([part.X for part in rows.values()])
    pooled_y = np.concatenate([part.y for part in rows.values()])
    for part in fitted.values():
        Z = part.feature_map(pooled_X)
        expected = np.linalg.solve(Z.T @ Z + len(Z) * part.ridge * penalised(part.feature_map), Z.T @ pooled_y)
        np.testing.assert_allclose(Z @ part.coefficients, Z @ expected, atol=1e-6)
        np.testing.assert_array_equal(part.coefficients, fitted["a"].coefficients)
        left = part.residuals(rows["a"]).arrays().y
        np.testing.assert_allclose(left, rows["a"].y - part.feature_map(rows["a"].X) @ part.coefficients, atol=1e-12)
        assert part.ridge == ridge if ridge == 2.0 else part.ridge in shared_part.RIDGES
    assert set(network.traffic.bytes_by_kind) == {"Roll", "Total"}


def test_the_ridge_has_the_least_error_on_the_fold_that_is_held_out():
    """A few rows far from all others have large responses: generalised cross-validation takes a smaller ridge."""
    rows = rows_of(np.random.default_rng(1))
    for part in rows.values():
        part.y[:3] += 40.0
    run = algorithm.plan(Greedy(5), DeKRRSettings(**IN_PROCESS))

    def procedure(site):
        start = Start(site, site.rows, UNSCALED, RollCall(site))
        part = yield from shared_part.fit_shared(start, run, 0.7, [shared_part.Candidates("test", 14)], fold=2)
        return part, *shared_part.held_out(start, run.settings, 2)

    found, _ = driven(procedure, GRAPH, rows)
    part = found["a"][0]
    kept_X, kept_y = (np.concatenate([getattr(kept, name) for _, kept, _ in found.values()]) for name in ("X", "y"))
    held_X, held_y = (np.concatenate([getattr(held, name) for _, _, held in found.values()]) for name in ("X", "y"))
    n_rows = len(kept_y) + len(held_y)
    assert n_rows == sum(part.n_rows for part in rows.values())
    assert 0 < len(held_y) < n_rows / 4
    Z, held, errors = part.feature_map(kept_X), part.feature_map(held_X), []
    for ridge in shared_part.RIDGES:
        theta = np.linalg.solve(Z.T @ Z + n_rows * ridge * penalised(part.feature_map), Z.T @ kept_y)
        errors.append(np.sum((held @ theta - held_y) ** 2))
    assert part.ridge == pytest.approx(shared_part.RIDGES[int(np.argmin(errors))])
    np.testing.assert_allclose(part.errors, np.array(errors) / len(held_y), rtol=1e-5)


def test_folds_divide_the_rows():
    rows = rows_of(np.random.default_rng(1))["a"]
    start = Start(Site("a", (), rows), rows, UNSCALED, RollCall(Site("a", (), rows)))
    settings = DeKRRSettings(**IN_PROCESS)
    folds = [shared_part.held_out(start, settings, fold) for fold in range(5)]
    together = np.concatenate([held.y for _, held in folds])
    np.testing.assert_array_equal(np.sort(together), np.sort(rows.y))
    assert all(kept.n_rows + held.n_rows == rows.n_rows for kept, held in folds)


def test_the_ridge_of_several_models_has_the_least_mean_of_relative_errors():
    n_ridges = len(shared_part.RIDGES)
    falling, rising = np.linspace(2.0, 1.0, n_ridges), np.linspace(100.0, 101.0, n_ridges)
    assert best_ridge([falling, rising]) == shared_part.RIDGES[-1]
    assert best_ridge([falling, rising**100]) == shared_part.RIDGES[0]
    assert best_ridge([np.zeros_like(falling)]) == shared_part.RIDGES[0]


def test_maps_are_joined_and_raw_columns_have_a_slope_of_one_bandwidth():
    rng = np.random.default_rng(3)
    maps = [random_map(rng, 2, 5), random_map(rng, 2, 3)]
    joined = with_columns(maps, 0.4)
    step = np.array([[0.0, 0.0], [1e-4, 0.0], [0.0, 1e-4]])
    expected = np.sqrt(2 / 11) * np.hstack([one(step) / one.amplitudes for one in maps])
    np.testing.assert_allclose(joined(step)[:, :8], expected)
    constant, first, second = joined(step)[:, 8:].T
    np.testing.assert_allclose(constant, 1 / np.sqrt(2) / 0.4)
    np.testing.assert_allclose([first[1] / 1e-4, second[2] / 1e-4], 1 / 0.4, rtol=1e-6)


def test_half_of_the_shared_features_are_smooth_and_of_all_columns():
    scales = ((1.0, 2.0),)
    mixed, smooth = shared_part.both_kinds(15, (), scales)
    assert (mixed.n_features, smooth.n_features) == (8, 7)
    pool = smooth.chooser(0.5, linear=False).draw_pool(2, np.random.default_rng(0))
    assert np.all(pool.frequencies != 0)
    np.testing.assert_allclose(pool.frequencies.std(axis=1), [2.0, 4.0], rtol=0.3)
    assert np.any(mixed.chooser(0.5, linear=False).draw_pool(2, np.random.default_rng(0)).frequencies == 0)
    assert [kind.n_features for kind in shared_part.both_kinds(15, scales, ())] == [15]


def test_features_without_votes_are_the_drawn_ones_and_nothing_is_sent_for_them():
    kind = shared_part.Candidates("plain", 14, rough=False, whole=True, voted=False)

    def procedure(site):
        start = Start(site, site.rows, UNSCALED, RollCall(site))
        return (yield from shared_part.elect(start, 0.7, kind, linear=True))

    maps, network = driven(procedure, GRAPH, rows_of(np.random.default_rng(1)))
    assert set(network.traffic.bytes_by_kind) == {"Roll"}
    assert maps["a"].n_features == 14
    for one in maps.values():
        np.testing.assert_array_equal(one.frequencies, maps["a"].frequencies)
    assert np.all(maps["a"].frequencies != 0)


def test_votes_are_gains_of_the_greedy_path_and_the_most_wanted_are_elected():
    rng = np.random.default_rng(0)
    rows, chooser = rng.random((60, 2)), Mixed(8, sigma=0.5, pool_ratio=4)
    response = np.cos(7 * rows[:, 0])
    pool = chooser.draw_pool(2, np.random.default_rng(3))
    votes = chooser.votes(pool, rows, response, 5, rng)
    assert np.count_nonzero(votes) == 5
    Z = pool.feature_map(rows)
    alone = (Z.T @ response) ** 2 / (np.sum(Z**2, axis=0) + 60 * chooser.ridge)
    first, best = int(np.argmax(alone)), int(np.argmax(votes[:32]))
    assert votes[first] == pytest.approx(alone[first])
    elected = pool.keep(chooser.elected(votes))
    assert elected.n_features == 8
    assert any(np.array_equal(column, pool.frequencies[:, best]) for column in elected.frequencies.T)


def test_candidates_take_turns_in_column_scales():
    scales = ((1.0, 1.0), (0.5, 2.0))
    plain = Mixed(6, sigma=1.0, linear=False).draw_pool(2, np.random.default_rng(0))
    scaled = Mixed(6, sigma=1.0, linear=False, column_scales=scales).draw_pool(2, np.random.default_rng(0))
    np.testing.assert_allclose(scaled.frequencies[:, ::2], plain.frequencies[:, ::2])
    np.testing.assert_allclose(scaled.frequencies[:, 1::2], plain.frequencies[:, 1::2] * [[0.5], [2.0]])
    with pytest.raises(SettingsError, match="2 factors for 3 columns"):
        Greedy(4, column_scales=scales).draw_pool(3, np.random.default_rng(0))


def test_few_columns_are_drawn_by_their_scales():
    scales, rng = np.repeat([[4.0], [2.0], [1.0], [1.0]], 4000, axis=1), np.random.default_rng(0)
    drawn = random_columns(4, 4000, 1, rng, scales)
    np.testing.assert_allclose((drawn > 0).mean(axis=1), [0.5, 0.25, 0.125, 0.125], atol=0.03)
    np.testing.assert_allclose(np.sum((drawn * scales) ** 2, axis=0), 4.0)
    several = random_columns(4, 4000, 3, rng, scales)
    np.testing.assert_allclose(np.sum((several * scales) ** 2, axis=0), 4.0)
    assert set(np.count_nonzero(several, axis=0)) == {1, 2, 3}
    equal = random_columns(4, 50, 3, np.random.default_rng(1), np.ones((4, 50)))
    np.testing.assert_allclose(equal, random_columns(4, 50, 3, np.random.default_rng(1)))


def test_columns_of_noise_are_found_by_squares_of_scales():
    """The third model is taken where it is better, and columns of noise then cost little."""
    rng = np.random.default_rng(0)
    rows = rng.random((1500, 30))
    response = 4 * np.sin(4 * rows[:, 0] * rows[:, 1]) + 8 * (rows[:, 2] - 0.5) ** 2 + 0.3 * rng.normal(size=1500)
    sites, new = np.arange(1500) % 5, np.arange(1500) >= 1000

    def error(columns):
        fitted = DeKRRRegressor(**SMALL).fit(rows[~new, :columns], response[~new], sites=sites[~new])
        return fitted.rse(rows[new, :columns], response[new], sites=sites[new]), fitted.column_scales_

    without, _ = error(3)
    with_noise, scales = error(30)
    assert set(np.argsort(-scales)[:3]) == {0, 1, 2}
    assert np.sort(scales)[:-3].max() < 0.05
    assert len(candidate_scales(scales, np.ones(30))) == 2, "no candidates in equal scales"
    assert with_noise < 1.6 * without


def test_a_site_whose_responses_are_a_narrow_band_learns_it_from_the_predictions():
    rng = np.random.default_rng(0)
    rows = rng.random((3000, 4))
    response = np.sin(5 * rows[:, 0]) + rows[:, 1] + 0.5 * rng.normal(size=3000)
    sites = np.argsort(np.argsort(np.abs(response - 1))) * 5 // 3000  # by the size of the response
    new = np.arange(3000) >= 2000
    fitted = DeKRRRegressor(**SMALL).fit(rows[~new], response[~new], sites=sites[~new])
    error = fitted.predict(rows[new], sites=sites[new]) - response[new]
    others = np.array([fitted.models_[j].without_local().predict(rows[new]) for j in range(5)])
    without = others[sites[new], np.arange(1000)] - response[new]
    assert np.mean(error**2) < 0.8 * np.mean(without**2)


def test_a_common_factor_of_weights_changes_nothing():
    weight = np.random.default_rng(0).uniform(0.5, 2.0, len(y))
    first, second = (
        DeKRRRegressor(**SMALL).fit(X, y, sites=SITES, sample_weight=factor * weight) for factor in (1.0, 1e3)
    )
    np.testing.assert_allclose(first.predict(X_NEW, sites=SITES_NEW), second.predict(X_NEW, sites=SITES_NEW), atol=1e-5)


def test_without_parts_it_is_algorithm_1_to_the_last_bit():
    settings = {"sigma": 0.4, "alpha": 1e-4, "consensus": 0.5, **SMALL}
    fitted = DeKRRRegressor(**settings, **ALONE).fit(X, y, sites=SITES)
    rows = {label: ArrayRows(X[label == SITES], y[label == SITES], seed=0) for label in fitted.sites_}
    names = {label: str(label) for label in fitted.sites_}
    graph = {names[a]: [names[b] for b in fitted.graph_[a]] for a in fitted.sites_}
    seed = int(np.random.RandomState(0).randint(np.iinfo(np.int32).max))
    run = DeKRRSettings(
        alpha=1e-4, consensus=0.5, **ALONE, **{**IN_PROCESS, "scale": "minmax", "masks": False, "shortlist_rows": 0}
    )
    procedures = {
        names[label]: training.train_parts(
            Site(names[label], tuple(graph[names[label]]), rows[label], seed=seed), Greedy(12, sigma=0.4), run
        )
        for label in fitted.sites_
    }
    outcomes = LocalNetwork(graph).run(procedures)
    for label in fitted.sites_:
        np.testing.assert_array_equal(fitted.models_[label].coefficients, outcomes[names[label]].coefficients)
        assert fitted.models_[label].header.parts.count("own") == 1
        assert not {"shared", "local"} & set(fitted.models_[label].header.parts)


def test_a_model_is_the_sum_of_its_parts_and_a_file_has_them_all(tmp_path):
    fitted = DeKRRRegressor(**SMALL).fit(X, y, sites=SITES)
    model = fitted.models_["station 01"]
    assert {"own", "neighbor", "shared"} == set(model.header.parts)
    rows = model.scaling.rows(X_NEW)
    without = sum(member.weight * member.predict(rows) for member in model.members)
    *agreed, shared = [member.predict(rows) for member in model.members]
    own, home = model.home.own_weight, model.home
    others = own * agreed[0] + (1 - own) * np.mean(agreed[1:], axis=0) + shared + home.level
    corrected = home.local.share * others + home.local.trees.predict(np.column_stack([rows, others]))[:, 0]
    corrected = corrected + np.column_stack([np.ones(len(rows)), rows]) @ home.local.slopes[:, 0]
    np.testing.assert_allclose(model.predict(X_NEW), model.scaling.undo(corrected), atol=1e-12)
    model.save(tmp_path / "model.safetensors")
    loaded = dekrr.load(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(loaded.predict(X_NEW), model.predict(X_NEW))
    assert loaded.header == msgspec.structs.replace(model.header, version=5)
    for_others = loaded.without_local()
    assert for_others.home is None
    np.testing.assert_allclose(for_others.predict(X_NEW), model.scaling.undo(without), atol=1e-12)
    np.testing.assert_array_equal(for_others.predict(X_NEW), model.predict(X_NEW, elsewhere=True))
    for_others.save(tmp_path / "others.safetensors")
    np.testing.assert_array_equal(dekrr.load(tmp_path / "others.safetensors").predict(X_NEW), for_others.predict(X_NEW))
    sent = fitted.traffic_
    alone = DeKRRRegressor(**SMALL, local=None).fit(X, y, sites=SITES).traffic_
    assert {kind for kind, n in sent.bytes_by_kind.items() if n != alone.bytes_by_kind[kind]} == {"Total"}
    # The local part is sent to nobody: six products of errors and a count are, up the tree and down.
    n_edges_of_tree = 4
    assert sent.bytes_by_kind["Total"] - alone.bytes_by_kind["Total"] < 2 * n_edges_of_tree * (8 * 11 + 20)


def test_an_explicit_greedy_choice_stays_one_beside_a_shared_part():
    def fitted(features):
        return DeKRRRegressor(**SMALL, features=features).fit(X, y, sites=SITES).models_["station 01"].feature_map

    auto, mixed, *greedy = (fitted(features) for features in ("auto", Mixed(), "greedy", Greedy()))
    np.testing.assert_array_equal(auto.frequencies, mixed.frequencies)
    np.testing.assert_array_equal(greedy[0].frequencies, greedy[1].frequencies)
    assert not np.array_equal(auto.frequencies, greedy[0].frequencies)
    assert DeKRRRegressor().features == "auto"


def test_columns_that_do_not_matter_have_small_scales():
    rng = np.random.default_rng(0)
    rows = rng.random((1500, 8))
    response = np.sin(6 * rows[:, 0]) + 0.5 * rows[:, 3]
    sites = np.arange(1500) % 5
    fitted = DeKRRRegressor(**SMALL).fit(rows, response, sites=sites)
    assert fitted.column_scales_.max() == 1
    assert set(np.argsort(-fitted.column_scales_)[:2]) == {0, 3}
    assert np.delete(fitted.column_scales_, [0, 3]).max() < 0.2
    assert fitted.models_[0].header.column_scales == fitted.column_scales_.tolist()
    given_scales = DeKRRRegressor(**SMALL, column_scales=[2.0, *[0.1] * 7]).fit(rows, response, sites=sites)
    np.testing.assert_allclose(given_scales.column_scales_, [1.0, *[0.05] * 7])
    np.testing.assert_array_equal(
        DeKRRRegressor(**SMALL, column_scales=None).fit(rows, response, sites=sites).column_scales_, np.ones(8)
    )
    with pytest.raises(SettingsError, match="column_scales has 2 numbers for 8 columns"):
        DeKRRRegressor(**SMALL, column_scales=[1.0, 2.0]).fit(rows, response, sites=sites)


def test_parts_lower_both_errors_where_sites_differ():
    errors = {}
    for name, settings in {"default": {}, "alone": {**ALONE, "sigma": 0.3, "alpha": 1e-6, "consensus": 0.5}}.items():
        fitted = DeKRRRegressor(**SMALL, **settings).fit(X, y, sites=SITES)
        errors[name] = [fitted.rse(X_NEW, Y_NEW, sites=SITES_NEW, metric=metric) for metric in ("own", "union")]
    assert errors["default"][0] < errors["alone"][0]
    assert errors["default"][1] < errors["alone"][1]


@pytest.mark.parametrize("settings", [{"verify_features": True}, {"masks": True}])
def test_parts_of_runs_of_other_kinds(settings):
    plain, fitted = (DeKRRRegressor(**SMALL, **one).fit(X, y, sites=SITES) for one in ({}, settings))
    for site, model in plain.models_.items():
        other, own = fitted.models_[site], X_NEW[site == SITES_NEW]
        expected = model.predict(X_NEW, elsewhere=True)
        np.testing.assert_allclose(other.predict(X_NEW, elsewhere=True), expected, atol=1e-4)
        np.testing.assert_allclose(other.level, model.level, atol=1e-6)
        # A mask rounds sums. That may turn a split of trees, and leverages have no sum over the tree.
        tolerance = 0.1 if "masks" in settings else 1e-4
        np.testing.assert_allclose(other.predict(own), model.predict(own), atol=tolerance)


def test_several_outputs_have_parts():
    Y = np.stack([y, 3 - 2 * y], axis=1)
    fitted = DeKRRRegressor(**SMALL).fit(X, Y, sites=SITES)
    assert fitted.predict(X_NEW, sites=SITES_NEW).shape == (len(X_NEW), 2)
    model = fitted.models_["station 01"]
    assert "shared" in model.header.parts
    assert model.home.level.shape == (2,)
    assert model.home.local.trees.n_outputs == 2


def test_intervals_are_those_of_a_second_training_with_all_parts():
    fitted = DeKRRRegressor(**SMALL, intervals=True).fit(X, y, sites=SITES)
    ends = fitted.predict_interval(X_NEW, sites=SITES_NEW, coverage=0.9)
    covered = np.mean((ends[:, 0] <= Y_NEW) & (ends[:, 1] >= Y_NEW))
    assert 0.85 < covered < 0.99  # at least what is promised; more with so few rows held out, but not all


def test_new_rows_are_fitted_on_what_the_shared_part_leaves():
    fitted = DeKRRRegressor(**SMALL).fit(X, y, sites=SITES)
    before = fitted.models_["station 00"].members[fitted.models_["station 00"].header.parts.index("shared")]
    error = fitted.rse(X_NEW, Y_NEW, sites=SITES_NEW)
    fitted.partial_fit(X_NEW, Y_NEW, sites=SITES_NEW)
    after = fitted.models_["station 00"].members[fitted.models_["station 00"].header.parts.index("shared")]
    np.testing.assert_array_equal(before.coefficients, after.coefficients)
    assert fitted.rse(X_NEW, Y_NEW, sites=SITES_NEW) < error
    with pytest.raises(SettingsError, match="a site cannot join"):
        fitted.partial_fit(X_NEW[:50], Y_NEW[:50], sites=["new"] * 50, edges=[("new", "station 00")])


def test_what_cannot_be():
    budget = DifferentialPrivacy(4.0)
    numbers = {"sigma": 0.5, "alpha": 1e-3, "consensus": 1.0, "features": "plain", "scale": None, "random_state": 0}
    with pytest.raises(SettingsError, match="pays for the sums of DeKRR alone"):
        DeKRRRegressor(n_features=8, shared=20, privacy=budget, **numbers).fit(X, y, sites=SITES)
    for name, bad in [("shared", 0), ("local", "much"), ("column_scales", [1.0, -1.0])]:
        with pytest.raises(SettingsError, match=name):
            DeKRRRegressor(**SMALL, **{name: bad}).fit(X, y, sites=SITES)


def test_guards_limit_the_shared_part_and_withheld_rows_are_in_the_local_part():
    fitted = DeKRRRegressor(n_features=4, random_state=0, rows_per_feature=1.5).fit(X, y, sites=SITES)
    model = fitted.models_["station 00"]
    fewest = min(fitted.n_rows_.values())
    assert model.members[model.header.parts.index("shared")].feature_map.n_features <= fewest / 3


def test_totals_are_all_that_the_shared_part_sends():
    only = DeKRRRegressor(**SMALL, local=None).fit(X, y, sites=SITES).traffic_.bytes_by_kind
    alone = DeKRRRegressor(**SMALL, **ALONE, sigma=0.3, alpha=1e-4, consensus=1.0, features=Mixed()).fit(
        X, y, sites=SITES
    )
    assert set(only) - set(alone.traffic_.bytes_by_kind) == {Total.__name__}


@pytest.mark.parametrize("n_rows", [0, 1, 30, 80])
def test_leverages_of_fewer_rows_than_features_are_those_of_the_gram(n_rows):
    features = np.random.default_rng(n_rows).normal(size=(80, 50))
    summed = features[:n_rows]
    found = leverage_among([summed[:20], summed[20:]], summed.shape, 7.0, 0.01)(features)
    wanted = np.diag(features @ np.linalg.solve(7.0 * summed.T @ summed + 0.01 * np.eye(50), features.T))
    np.testing.assert_allclose(found, wanted, rtol=1e-8)


@pytest.mark.parametrize("weighted", [False, True])
def test_sums_of_few_rows_travel_as_a_factor_and_are_the_same(weighted, monkeypatch):
    monkeypatch.setattr(spanning_tree, "MANY_SITES", 40)  # nothing is rounded
    X, y, sites = make_sites(n_sites=40, rows_per_site=12, random_state=0)
    weight = np.random.default_rng(0).uniform(0.5, 2.0, len(y)) if weighted else None
    # Without trees, which make much of the last digits, and without a look at rows, which sends as much in either form.
    short = DeKRRRegressor(local=None, exclude=None, random_state=0).fit(X, y, sites=sites, sample_weight=weight)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BranchSums, "most_rows", -1)
        long = DeKRRRegressor(local=None, exclude=None, random_state=0).fit(X, y, sites=sites, sample_weight=weight)
    assert short.traffic_.bytes_by_kind["Total"] < 0.95 * long.traffic_.bytes_by_kind["Total"]
    np.testing.assert_allclose(short.predict(X, sites=sites), long.predict(X, sites=sites), atol=1e-6 * np.std(y))


@given(st.integers(0, 2**31), st.lists(st.integers(0, 9), min_size=1, max_size=5), st.integers(1, 12))
def test_sums_of_branches_add_up_in_every_form(seed, numbers, size):
    rng, form = np.random.default_rng(seed), BranchSums(size, 2)
    rows = [rng.normal(size=(n, size)) for n in numbers]
    parts = [
        form.of_rows(Z, np.ones(2)) if len(Z) <= form.most_rows else form.of_gram(Z.T @ Z, np.ones(2)) for Z in rows
    ]
    total = form.plus(parts)
    assert all(form.fits(len(part)) for part in [*parts, total])
    gram, beside = form.whole(total)
    np.testing.assert_allclose(gram, np.vstack(rows).T @ np.vstack(rows), atol=1e-10)
    assert beside.tolist() == [len(rows)] * 2
    votes = [np.where(rng.random(size) < 0.3, rng.random(size), 0.0) for _ in numbers]
    sparse = SparseSums(size)
    told = sparse.plus([sparse.of(one) for one in votes])
    assert sparse.fits(len(told))
    np.testing.assert_allclose(sparse.whole(told), np.sum(votes, axis=0), rtol=1e-14)


@given(st.integers(0, 2**31), st.integers(0, 40), st.floats(1e-6, 1e-2), st.integers(0, 2))
def test_what_rounding_changes_has_room(seed, n_rows, share, first):
    rng, form = np.random.default_rng(seed), BranchSums(30, 2, room=share * (n_rows + 1), first=first)
    Z, beside = rng.normal(size=(n_rows, 30)) * np.geomspace(1, 1e-3, 30), rng.normal(size=2)
    sums = form.of_rows(Z, beside) if n_rows <= form.most_rows else form.of_gram(Z.T @ Z, beside)
    heard = form.heard("b", decode(encode(form.sent(sums)), "b"))
    assert form.fits(len(heard))
    gram, told = form.whole(heard)
    assert np.linalg.norm(gram - Z.T @ Z) <= 2 * form.room + 1e-12
    np.testing.assert_array_equal(told, beside)


def test_many_sites_send_less_and_know_as_much():
    X, y, sites = make_sites(n_sites=30, rows_per_site=20, random_state=0)
    settings = {"local": None, "exclude": None, "random_state": 0}
    rounded = DeKRRRegressor(**settings).fit(X, y, sites=sites)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spanning_tree, "MANY_SITES", 30)
        exact = DeKRRRegressor(**settings).fit(X, y, sites=sites)
    kinds = rounded.traffic_.bytes_by_kind
    assert "Rounded" not in exact.traffic_.bytes_by_kind
    assert kinds["Total"] + kinds["Rounded"] < 0.55 * exact.traffic_.bytes_by_kind["Total"]
    assert np.std(rounded.predict(X, sites=sites) - exact.predict(X, sites=sites)) < 0.02 * np.std(y)


@pytest.mark.parametrize("places", [[-1, 2], [3, 3], [5, 10**6], [1.5, 2]])
def test_features_that_are_no_candidates_are_refused(monkeypatch, places):
    monkeypatch.setattr(Mixed, "elected", lambda self, votes: np.array(places))

    def procedure(site):
        start = Start(site, site.rows, UNSCALED, RollCall(site))
        return (yield from shared_part.elect(start, 0.7, shared_part.Candidates("plain", 2), linear=True))

    with pytest.raises(MessageError, match="no candidates"):
        driven(procedure, GRAPH, rows_of(np.random.default_rng(1)))
