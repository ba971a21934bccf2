"""What a site adds for its own rows: its level, its local part and the weights of both, by other means."""

import pickle

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import minimize
from sklearn.linear_model import Ridge

import dekrr
from dekrr import DeKRRClassifier, DeKRRRegressor
from dekrr.data import make_sites
from dekrr.errors import ModelFileError, SettingsError
from dekrr.features import FeatureMap
from dekrr.networks.local import LocalNetwork
from dekrr.parts.local import NO_LEVEL, RATIOS, constant_of, weights_of
from dekrr.protocols import dekrr as algorithm
from dekrr.protocols import home, shared_part
from dekrr.protocols.home import left_by_shared
from dekrr.protocols.roll_call import RollCall
from dekrr.protocols.run import Start, weigh_rows
from dekrr.protocols.site import Site
from dekrr.scaling import UNSCALED
from dekrr.selection import Greedy
from dekrr.settings import DeKRRSettings
from dekrr.tables.rows import ArrayRows

IN_PROCESS = {"rows_per_feature": 0.0, "max_leverage": 1.0, "verify_features": False, "scale": None}
SMALL = {"n_features": 12, "random_state": 0}
GRAPH = {"a": ["b"], "b": ["a", "c"], "c": ["b", "d"], "d": ["c"]}
X, y, SITES = make_sites(n_sites=3, random_state=0)
X_NEW, Y_NEW, SITES_NEW = make_sites(n_sites=3, random_state=1)


@pytest.fixture(scope="module")
def fitted():
    return DeKRRRegressor(**SMALL).fit(X, y, sites=SITES)


def rows_with_levels(outputs, weighted, levels=(3.0, -2.0, 0.5, 0.0)):
    rng, found = np.random.default_rng(1), {}
    for name, level, n_rows in zip(GRAPH, levels, (30, 41, 25, 37), strict=True):
        inputs = rng.random((n_rows, 3))
        response = np.sin(5 * inputs[:, 0]) + inputs[:, 1] + level + 0.1 * rng.normal(size=n_rows)
        response = np.stack([response, -2 * response], axis=1) if outputs else response
        found[name] = ArrayRows(inputs, response, rng.uniform(0.5, 2.0, n_rows) if weighted else None)
    return found


def fit_shared(rows, settings, **how):
    run = algorithm.plan(Greedy(5), DeKRRSettings(**IN_PROCESS, **settings))
    network = LocalNetwork(GRAPH)

    def procedure(site):
        start = Start(site, site.rows, UNSCALED, RollCall(site))
        if site.rows.weighted:
            yield from weigh_rows(site, start.roll)
        return (yield from shared_part.fit_shared(start, run, 0.7, [shared_part.Candidates("test", 14)], **how))

    return network.run({name: procedure(Site(name, tuple(GRAPH[name]), rows[name])) for name in GRAPH})


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("outputs", [(), (2,)])
def test_levels_are_those_of_the_mixed_model_of_pooled_rows(outputs, weighted):
    """One ridge regression of all rows on the features and an indicator of each site, whose ridge is the ratio."""
    rows, ratio = rows_with_levels(outputs, weighted), 1.7
    parts = fit_shared(rows, {"site_effect": ratio}, ratio=ratio)
    Z = parts["a"].feature_map(np.vstack([one.X for one in rows.values()]))
    responses = np.concatenate([one.y for one in rows.values()])
    weight = np.concatenate([np.ones(one.n_rows) if one.weight is None else one.weight for one in rows.values()])
    indicators = np.repeat(np.eye(4), [one.n_rows for one in rows.values()], axis=0)
    both = np.hstack([Z, indicators])
    of_features = np.full(Z.shape[1], weight.sum() * parts["a"].ridge)
    of_features[constant_of(parts["a"].feature_map)] = 0.0  # the intercept is free
    ridges = np.diag(np.concatenate([of_features, np.full(4, ratio * weight.mean())]))
    exact = np.linalg.solve((both.T * weight) @ both + ridges, (both.T * weight) @ responses)
    for name, level in zip(GRAPH, exact[-4:], strict=True):
        np.testing.assert_allclose(parts[name].level, level, atol=1e-7)
        np.testing.assert_allclose(
            parts[name].feature_map(rows[name].X) @ parts[name].coefficients,
            parts[name].feature_map(rows[name].X) @ exact[:-4],
            atol=1e-6,
        )


def test_sites_agree_on_the_ratio_and_find_none_where_they_do_not_differ():
    parts = fit_shared(rows_with_levels((), False), {}, fold=1)
    assert len({part.ratio for part in parts.values()}) == 1
    assert parts["a"].ratio in RATIOS[:-1]
    without = 0
    for seed in range(3):
        rng = np.random.default_rng(seed)
        inputs = rng.random((600, 2))
        response = np.sin(4 * inputs[:, 0]) + 0.3 * rng.normal(size=600)
        found = DeKRRRegressor(**SMALL, local=None, intervals=False).fit(inputs, response, sites=np.arange(600) % 6)
        levels = np.array(list(found.site_effects_.values()))
        assert np.abs(levels).max() < 0.1  # three standard errors of the mean of a site's rows
        without += not levels.any()
    assert without >= 2


@pytest.mark.parametrize("n_rows", [8, 20])
def test_a_level_for_each_of_many_sites_is_found(n_rows):
    rng = np.random.default_rng(0)
    sites = np.repeat(np.arange(30), n_rows)
    inputs, levels = rng.uniform(size=(30 * n_rows, 1)), 5 * rng.normal(size=30)
    response = levels[sites] + np.sin(2 * inputs[:, 0])
    new = np.arange(30 * n_rows) % 4 == 0
    found = DeKRRRegressor(random_state=0, intervals=False).fit(inputs[~new], response[~new], sites=sites[~new])
    assert found.rse(inputs[new], response[new], sites=sites[new]) < 1e-3
    told = np.array([found.site_effects_[site] for site in range(30)])
    np.testing.assert_allclose(told - told.mean(), levels - levels.mean(), rtol=0.03, atol=0.1)  # they are shrunk
    assert {site: float(model.level) for site, model in found.models_.items()} == pytest.approx(found.site_effects_)


@pytest.mark.parametrize("with_prior", [False, True])
def test_weights_of_candidates_have_the_least_error(with_prior):
    rng = np.random.default_rng(0)
    for _ in range(20):
        errors, others = rng.normal(size=(8, 3)) * rng.uniform(0.1, 2, 3), rng.normal(size=(50, 3))
        errors += rng.normal(size=(8, 1))  # they go together
        products, of_prior = errors.T @ errors, others.T @ others / 50
        prior = rng.dirichlet(np.ones(3)) if with_prior else None
        strength = 20 * np.trace(of_prior) / 3 if with_prior else 0.0

        def loss(w, products=products, strength=strength, prior=prior):
            near = 0.0 if prior is None else strength * np.sum((w - prior) ** 2)
            return w @ products @ w + near

        found = weights_of(products, prior, of_prior if with_prior else None)
        best = minimize(
            loss,
            np.full(3, 1 / 3),
            method="SLSQP",
            bounds=[(0, 1)] * 3,
            constraints={"type": "eq", "fun": lambda w: w.sum() - 1},
            options={"ftol": 1e-14, "maxiter": 500},
        )
        assert found.min() >= 0
        assert found.sum() == pytest.approx(1.0)
        assert loss(found) <= loss(best.x) + 1e-9 * loss(best.x)
        assert loss(found) <= min(loss(corner) for corner in np.eye(3)) + 1e-12


@pytest.mark.parametrize("weighted", [False, True])
def test_what_parts_predict_without_a_row_is_that_of_refits(weighted):
    """One site: a shared part with a level, then an agreed part on what it leaves; both are fitted without each row."""
    from types import SimpleNamespace

    rng = np.random.default_rng(0)
    n_rows, ratio, ridge, alpha = 40, 2.0, 1e-2, 1e-2
    inputs = rng.random((n_rows, 2))
    w = rng.integers(1, 3, n_rows).astype(float) if weighted else np.ones(n_rows)
    response = np.sin(5 * inputs[:, 0]) + 1 + 0.2 * rng.normal(size=n_rows)
    shared_map, agreed_map = (FeatureMap(3 * rng.normal(size=(2, 5)), rng.random(5), np.ones(5)) for _ in range(2))
    shared_map = shared_part.with_constant(shared_map)
    count, Z, A = w.sum(), shared_map(inputs), agreed_map(inputs)

    def refit(kept):
        """Return the prediction of all rows, and what it is made of."""
        both, v = np.column_stack([Z, np.ones(n_rows)])[kept], w[kept]
        ridges = np.diag([*[ridge * count] * 6, ratio * w.mean()])
        theta = np.linalg.solve((both.T * v) @ both + ridges, (both.T * v) @ response[kept])
        left = response - Z @ theta[:-1] - theta[-1]
        hessian = (A[kept].T * v) @ A[kept] / count + alpha * np.eye(5)
        own = np.linalg.solve(hessian, (A[kept].T * v) @ left[kept] / count)
        return response - left + A @ own, theta, hessian, own

    _, theta, hessian, own = refit(np.ones(n_rows, dtype=bool))
    root = np.column_stack([Z, np.ones(n_rows)])
    sums = shared_part.LevelSums((Z.T * w).sum(axis=1), w @ response, count, w.mean())
    part = shared_part.SharedPart(shared_map, theta[:-1], ridge=ridge, ratio=ratio, of_site=sums)
    assert part.level == pytest.approx(theta[-1])
    rows = ArrayRows(inputs, response, w if weighted else None)
    outcome = SimpleNamespace(
        shared=part, scaling=UNSCALED, roster=SimpleNamespace(n_counted=count), admission=None, feature_map=agreed_map,
        coefficients=own, hessian=hessian, neighbor_maps={}, unit=np.ones_like,
    )  # fmt: skip
    left = LocalNetwork({"alone": ()}).run({"alone": left_by_shared(outcome, rows, probed=False)})["alone"]
    hat = root @ np.linalg.solve(
        (root.T * w) @ root + np.diag([*[ridge * count] * 6, ratio * w.mean()]), (root * w[:, None]).T
    )
    exact = np.diag(hat)
    # Rows of one site stand for all, without its level's share of each: leverages are near those of the hat matrix.
    np.testing.assert_allclose(left.leverages, exact, atol=0.06)
    left = left._replace(leverages=exact)
    refits = [refit(np.arange(n_rows) != i) for i in range(n_rows)]
    of_shared = [response[i] - Z[i] @ refits[i][1][:-1] - refits[i][1][-1] for i in range(n_rows)]
    np.testing.assert_allclose(left.without_row().y, of_shared, rtol=1e-7, atol=1e-9)
    # Of both parts one after the other it is near: what rows say of each other through both is left out.
    found, _ = home._unseen(outcome, rows, rows.arrays(), left, "own")
    expected = np.array([refits[i][0][i] for i in range(n_rows)])
    seen = refit(np.ones(n_rows, dtype=bool))[0]
    assert np.mean((found[:, 0] - expected) ** 2) < 0.8 * np.mean((seen - expected) ** 2)
    # Of the agreed part alone it is exact.
    outcome.shared, left = None, left._replace(rows=rows, leverages=np.zeros(n_rows))
    outcome.coefficients = np.linalg.solve(hessian, (A.T * w) @ response / count)
    found, _ = home._unseen(outcome, rows, rows.arrays(), left, "own")
    for i in range(n_rows):
        kept = np.arange(n_rows) != i
        gram = (A[kept].T * w[kept]) @ A[kept] / count + alpha * np.eye(5)
        alone = np.linalg.solve(gram, (A[kept].T * w[kept]) @ response[kept] / count)
        assert found[i, 0] == pytest.approx(A[i] @ alone, rel=1e-7, abs=1e-9)


def test_a_regressor_of_the_user_is_the_local_part_and_is_not_saved(tmp_path):
    found = DeKRRRegressor(**SMALL, local=Ridge(1e-3), intervals=False).fit(X, y, sites=SITES)
    assert found.rse(X_NEW, Y_NEW, sites=SITES_NEW) < 1
    model = next(model for model in found.models_.values() if model.home.local is not None)
    rows = model.scaling.rows(X_NEW)
    others = model.joined_at_home.predict(rows) + model.home.level
    np.testing.assert_allclose(model.predict(X_NEW), model.scaling.undo(model.home.local(rows, others)))
    again = pickle.loads(pickle.dumps(found))
    np.testing.assert_array_equal(again.predict(X, sites=SITES), found.predict(X, sites=SITES))
    with pytest.raises(ModelFileError, match=r"a regressor that was given as local=.*without_local\(\)\.save"):
        model.save(tmp_path / "model.safetensors")
    model.without_local().save(tmp_path / "model.safetensors")
    loaded = dekrr.load(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(loaded.predict(X_NEW), model.predict(X_NEW, elsewhere=True))
    from sklearn.neighbors import KNeighborsRegressor

    with pytest.raises(SettingsError, match="rows have weights, which local=KNeighborsRegressor"):
        DeKRRRegressor(**SMALL, local=KNeighborsRegressor()).fit(X, y, sites=SITES, sample_weight=np.ones(len(y)) * 2)


def test_union_is_the_error_of_predictions_elsewhere(fitted):
    errors = [dekrr.rse(Y_NEW, model.without_local().predict(X_NEW)) for model in fitted.models_.values()]
    assert fitted.rse(X_NEW, Y_NEW, metric="union") == pytest.approx(np.mean(errors))
    for model in fitted.models_.values():
        np.testing.assert_array_equal(model.predict(X_NEW, elsewhere=True), model.without_local().predict(X_NEW))
        assert not np.array_equal(model.predict(X_NEW), model.predict(X_NEW, elsewhere=True))


def test_a_file_has_the_level_and_the_trees(fitted, tmp_path):
    model = fitted.models_["station 00"]
    model.save(tmp_path / "model.safetensors")
    loaded = dekrr.load(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(loaded.predict(X_NEW), model.predict(X_NEW))
    np.testing.assert_array_equal(loaded.level, model.level)
    assert loaded.home.own_weight == model.home.own_weight


@pytest.mark.parametrize("n_outputs", [1, 2])
def test_trees_of_classes_and_of_outputs_are_at_home(n_outputs):
    classes = np.digitize(y, np.quantile(y, np.arange(1, n_outputs + 1) / (n_outputs + 1)))
    found = DeKRRClassifier(**SMALL).fit(X, classes, sites=SITES)
    assert found.score(X_NEW, np.digitize(Y_NEW, np.quantile(y, np.arange(1, n_outputs + 1) / (n_outputs + 1))), sites=SITES_NEW) > 0.6  # fmt: skip # noqa: E501
    assert all(model.home is not None for model in found.models_.values())


def test_rows_of_files_have_the_model_of_rows_in_memory(fitted, tmp_path):
    import pandas as pd

    frame = pd.DataFrame(X, columns=["a", "b", "c"]).assign(y=y, site=SITES)
    frame.to_parquet(tmp_path / "rows.parquet")
    streamed = DeKRRRegressor(**SMALL).fit(tmp_path / "rows.parquet", "y", sites="site")
    expected = DeKRRRegressor(**SMALL).fit(frame, "y", sites="site")
    for site, model in expected.models_.items():
        np.testing.assert_allclose(streamed.models_[site].level, model.level, atol=1e-9)
        rows = frame[["a", "b", "c"]]
        np.testing.assert_allclose(streamed.models_[site].predict(rows), model.predict(rows), atol=1e-9)


@pytest.mark.parametrize("prediction", ["own", "neighborhood"])
def test_without_a_shared_part_the_mean_of_responses_does_not_matter(prediction):
    """What the parts would predict for unseen rows is in the units of scaled responses, whose middle is 0."""
    errors = [
        DeKRRRegressor(shared=None, prediction=prediction, **SMALL)
        .fit(X, y + mean, sites=SITES)
        .rse(X_NEW, Y_NEW + mean, sites=SITES_NEW)
        for mean in (0.0, 100.0)
    ]
    assert errors[1] == pytest.approx(errors[0], abs=0.02)
    assert errors[0] < 0.5


def test_no_level_is_no_level():
    assert NO_LEVEL == RATIOS[-1] == np.inf


def test_what_is_left_out_of_a_mean_does_not_tell_trees_the_row():
    """Rows of a site differ by nothing that matters: no candidate may look better than the noise is."""
    rng = np.random.default_rng(0)
    sites = np.repeat(np.arange(20), 40)
    inputs = (rng.random((800, 2)) > 0.5).astype(float)
    found = []
    fitted = home.LocalFits.fitted

    def kept(*given):
        found.append((fitted(*given), given[1]))
        return found[-1][0]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(home.LocalFits, "fitted", kept)
        DeKRRRegressor(random_state=0, intervals=False).fit(inputs, rng.normal(size=800), sites=sites)
    errors = np.sum([((one.predictions() - y.reshape(-1, 1)) ** 2).sum((1, 2)) for one, y in found], axis=0)
    spread = sum(((y - y.mean()) ** 2).sum() for _, y in found)
    assert len(found) == 20
    assert np.all(errors > 0.97 * spread)


def test_equal_rows_are_in_different_folds():
    """Otherwise the other folds tell the opposite of what such rows are, and nothing is learnt from them."""
    rng = np.random.default_rng(0)
    kind = np.repeat([0, 1], 300)
    said = np.where(rng.random(600) < 0.2 + 0.6 * kind, "yes", "no")
    table = pd.DataFrame({"kind": np.where(kind, "new", "old"), "said": said, "site": np.arange(600) % 6})
    found = DeKRRClassifier(random_state=0).fit(table, "said", sites="site")
    chance = found.predict_proba(table, sites="site")[:, 1]
    np.testing.assert_allclose([chance[kind == 0].mean(), chance[kind == 1].mean()], [0.2, 0.8], atol=0.06)
