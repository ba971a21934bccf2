"""The response: changed for training, changed back in everything that is predicted, and kept in its range."""

import pickle
import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.frozen import FrozenEstimator
from sklearn.preprocessing import FunctionTransformer, PowerTransformer, StandardScaler
from typer.testing import CliRunner

import dekrr
from dekrr import DeKRRRegressor
from dekrr.cli.app import app
from dekrr.errors import DataError, ModelFileError, SettingsError
from dekrr.model import as_rows
from dekrr.scaling import NAMES, Response
from dekrr.serving.one_row import OneRow
from meshes import COLUMNS, Mesh

BY_LOGARITHM = FunctionTransformer(np.log, inverse_func=np.exp)
BACKWARDS = FunctionTransformer(np.negative, inverse_func=np.negative)


def table_of(n_rows=480, seed=0):
    """Return a raw table of a positive response whose logarithm has a level for each site."""
    rng = np.random.default_rng(seed)
    site = np.array(["north", "south", "west"])[rng.integers(0, 3, n_rows)]
    hours, load = rng.uniform(-2, 2, size=(2, n_rows))
    level = np.select([site == "north", site == "south"], [0.0, 1.0], 2.0)
    y = np.exp(np.sin(2 * hours) + load + level + 0.3 * rng.normal(size=n_rows))
    kind = np.where(hours > 0, "late", "early")
    return pd.DataFrame({"hours": hours, "load": load, "kind": kind, "site": site, "y": y})


TRAIN, TEST = table_of(), table_of(seed=1)


@pytest.fixture(scope="module")
def of_logarithm():
    return DeKRRRegressor(transform="log", random_state=0).fit(TRAIN, "y", sites="site")


def test_the_logarithm_is_that_of_a_column_that_has_it(of_logarithm):
    """The same models as of np.log(y), and all that they say in the units of y."""
    by_hand = DeKRRRegressor(random_state=0).fit(TRAIN.assign(y=np.log(TRAIN.y)), "y", sites="site")
    expected = np.exp(by_hand.predict(TEST, sites="site"))
    np.testing.assert_allclose(of_logarithm.predict(TEST, sites="site"), expected, rtol=1e-12)
    ends = of_logarithm.predict_interval(TEST, sites="site", coverage=0.8)
    np.testing.assert_allclose(ends, np.exp(by_hand.predict_interval(TEST, sites="site", coverage=0.8)), rtol=1e-12)
    assert of_logarithm.rse(TEST, TEST.y, "site") == pytest.approx(dekrr.rse(TEST.y, expected))
    north = of_logarithm.models_["north"]
    away = np.exp(by_hand.models_["north"].predict(TEST, elsewhere=True))
    np.testing.assert_allclose(north.predict(TEST, elsewhere=True), away, rtol=1e-12)
    assert north.without_local().predict_interval(TEST).min() > 0


def test_held_out_errors_are_in_the_units_of_the_response(of_logarithm):
    """The held-out rows are the same with a transformer; the error is that of the response, not of its logarithm."""
    plain = DeKRRRegressor(random_state=0).fit(TRAIN.assign(y=np.log(TRAIN.y)), "y", sites="site")
    found, logs = of_logarithm.validation_["RSE"], plain.validation_["RSE"]
    assert found.n_rows == logs.n_rows
    assert found.mean_own != pytest.approx(logs.mean_own, rel=0.01)
    other = DeKRRRegressor(transform=BY_LOGARITHM, random_state=0).fit(TRAIN, "y", sites="site")
    assert other.validation_["RSE"].mean_own == pytest.approx(found.mean_own)
    assert other.validation_["RSE"].mean_alone == pytest.approx(found.mean_alone)


@pytest.mark.parametrize("name", NAMES)
def test_each_name_keeps_predictions_in_its_range_and_in_the_model_file(name, tmp_path):
    shares = name in ("logit", "share")
    y = (TRAIN.y > 5) * 0.9 + 0.05 if shares else np.floor(TRAIN.y) + (name == "log")
    regressor = DeKRRRegressor(transform=name, random_state=0).fit(TRAIN.assign(y=y), "y", sites="site")
    wild = TEST.assign(hours=3 * TEST.hours)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        predicted = regressor.predict(wild, sites="site")
        ends = regressor.predict_interval(wild, sites="site")
    assert (ends[:, 0] <= predicted).all()
    assert (predicted <= ends[:, 1]).all()
    assert ends.min() >= 0
    assert not shares or ends.max() <= 1
    regressor.models_["west"].save(tmp_path / "west.safetensors")
    model, own = dekrr.load(tmp_path / "west.safetensors"), wild[wild.site == "west"]
    np.testing.assert_array_equal(model.predict(own), predicted[wild.site == "west"])
    rows = as_rows(own, model.header)[:9]
    one_by_one = np.concatenate([OneRow(model)(row[None]) for row in rows])
    np.testing.assert_allclose(one_by_one, model.predict(own)[:9], rtol=1e-10, atol=1e-12)
    assert (model.header.transform, model.header.version) == (name, 6)


@pytest.mark.parametrize("name", NAMES)
def test_onnx_has_the_way_back(name):
    onnxruntime = pytest.importorskip("onnxruntime")
    from dekrr.serving.onnx_graph import onnx_graph

    X, y = TRAIN[["hours", "load"]].to_numpy(), TRAIN.y.to_numpy() / (TRAIN.y.max() + 1)
    model = DeKRRRegressor(transform=name, random_state=0).fit(X, y, sites=TRAIN.site).models_["north"]
    rows = 1.5 * X[:50]
    session = onnxruntime.InferenceSession(onnx_graph(model).SerializeToString())
    (found,) = session.run(None, {session.get_inputs()[0].name: rows})
    np.testing.assert_allclose(found, model.predict(rows), rtol=1e-6, atol=1e-9)


def test_a_decreasing_transformer_keeps_the_ends_in_order():
    regressor = DeKRRRegressor(transform=BACKWARDS, random_state=0).fit(TRAIN, "y", sites="site")
    ends = regressor.predict_interval(TEST, sites="site")
    assert (ends[:, 0] < ends[:, 1]).all()
    assert regressor.rse(TEST, TEST.y, "site") < 0.5


def test_a_transformer_is_pickled_and_refused_by_save(tmp_path):
    regressor = DeKRRRegressor(transform=BY_LOGARITHM, random_state=0).fit(TRAIN, "y", sites="site")
    again = pickle.loads(pickle.dumps(regressor))
    np.testing.assert_array_equal(again.predict(TEST, sites="site"), regressor.predict(TEST, sites="site"))
    with pytest.raises(ModelFileError, match=r"FunctionTransformer.* cannot be written.*log1p"):
        regressor.models_["north"].save(tmp_path / "north.safetensors")


def test_a_transformer_that_learns_from_rows_must_come_fitted():
    with pytest.raises(SettingsError, match=r"PowerTransformer.* learns from rows, which sites do not pool"):
        DeKRRRegressor(transform=PowerTransformer()).fit(TRAIN, "y", sites="site")
    scaler = FrozenEstimator(StandardScaler().fit([[0.0], [20.0]]))
    found = DeKRRRegressor(transform=scaler, random_state=0).fit(TRAIN, "y", sites="site")
    plain = DeKRRRegressor(random_state=0).fit(TRAIN, "y", sites="site")
    assert found.rse(TEST, TEST.y, "site") == pytest.approx(plain.rse(TEST, TEST.y, "site"), rel=0.25)  # other folds


def test_a_transformer_that_does_not_give_responses_back_is_refused():
    with pytest.raises(SettingsError, match="does not give responses back"):
        DeKRRRegressor(transform=FunctionTransformer(np.log)).fit(TRAIN, "y", sites="site")


@pytest.mark.parametrize("source", ["frame", "arrays", "file"])
def test_a_response_that_cannot_be_changed_is_named_with_the_remedy(source, tmp_path):
    table = TRAIN.copy()
    table.loc[[7, 9], "y"] = 0.0
    whose = table.site[7]
    if source == "file":
        table.to_csv(tmp_path / "rows.csv", index=False)
        given, expected = (tmp_path / "rows.csv", "y", "site"), "site '"
    elif source == "frame":
        given, expected = (table, "y", "site"), f"row 7 (site {whose})"
    else:
        given, expected = (table[["load"]].to_numpy(), table.y, table.site), f"row 7 (site {whose})"
    with pytest.raises(DataError) as told:
        DeKRRRegressor(transform="log").fit(given[0], given[1], sites=given[2])
    assert str(told.value).startswith(expected)
    assert "the response is 0" in str(told.value)
    assert '"log1p" and "sqrt" take 0' in str(told.value)


def test_public_bounds_are_in_the_units_of_the_response():
    X, y = TRAIN[["hours", "load"]].to_numpy(), TRAIN.y
    bounds = ([-2, -2, 0.01], [2, 2, 400])
    regressor = DeKRRRegressor(transform="log", bounds=bounds, random_state=0).fit(X, y, sites=TRAIN.site)
    scaling = regressor.models_["north"].scaling
    np.testing.assert_allclose([scaling.lower[-1], scaling.upper[-1]], np.log([0.01, 400]))
    with pytest.raises(SettingsError, match="bounds, the lower one: the response is -1"):
        DeKRRRegressor(transform="log", bounds=([-2, -2, -1], [2, 2, 400])).fit(X, y, sites=TRAIN.site)


def test_new_rows_are_changed_too():
    X, Y = TRAIN[["hours", "load"]].to_numpy(), np.column_stack([TRAIN.y, TRAIN.y**2])
    regressor = DeKRRRegressor(transform="log", random_state=0).fit(X[:300], Y[:300], sites=TRAIN.site[:300])
    regressor.partial_fit(X[300:], Y[300:], sites=TRAIN.site[300:])
    errors = np.log(regressor.predict(TEST[["hours", "load"]].to_numpy(), sites=TEST.site)) - np.log(
        np.column_stack([TEST.y, TEST.y**2])
    )
    assert (np.sqrt(np.mean(errors**2, axis=0)) < [0.45, 0.9]).all()
    with pytest.raises(DataError, match="takes numbers above 0"):
        regressor.partial_fit(X[:20], -Y[:20], sites=TRAIN.site[:20])


def told_by(do):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        do()
    return [str(each.message) for each in caught]


def test_predictions_that_leave_the_range_of_the_response_are_told_once():
    regressor = DeKRRRegressor(random_state=0).fit(TRAIN, "y", sites="site")
    (told,) = told_by(lambda: regressor.predict(TEST, sites="site"))
    count = int((regressor.predict(TEST, sites="site") < 0).sum())
    assert told.startswith(f"{count} of {len(TEST)} predictions are negative, and no response in training was")
    assert not told_by(lambda: regressor.predict(TEST[:0], sites="site"))
    shifted = DeKRRRegressor(random_state=0).fit(TRAIN.assign(y=TRAIN.y - 20), "y", sites="site")
    assert not told_by(lambda: shifted.predict(TEST, sites="site"))
    share = DeKRRRegressor(random_state=0).fit(TRAIN.assign(y=(TRAIN.y > 5) * 1.0), "y", sites="site")
    assert (
        'outside 0 to 1, and no response in training did: if none can, fit with transform="share"'
        in told_by(lambda: share.predict(TEST, sites="site"))[0]
    )
    both = DeKRRRegressor(random_state=0).fit(TRAIN.assign(z=TRAIN.y**2), ["y", "z"], sites="site")
    assert not told_by(lambda: both.predict(TEST, sites="site"))  # several outputs have bounds by their variances
    cut = DeKRRRegressor(transform="nonnegative", random_state=0).fit(TRAIN, "y", sites="site")
    assert not told_by(lambda: cut.predict(TEST, sites="site"))
    expected = np.maximum(regressor.predict(TEST, sites="site"), 0)
    np.testing.assert_array_equal(cut.predict(TEST, sites="site"), expected)


def test_an_unknown_name_in_a_file_is_refused(of_logarithm):
    data = of_logarithm.models_["north"].to_bytes().replace(b'"transform\\":\\"log\\"', b'"transform\\":\\"gol\\"')
    with pytest.raises(ModelFileError, match="unknown transform of the response, 'gol'"):
        dekrr.model.from_bytes(data)


def test_the_way_back_of_an_infinite_end_is_an_end():
    ends = np.array([[-np.inf, np.inf]])
    np.testing.assert_array_equal(Response("log").ends_back(ends), [[0.0, np.inf]])
    np.testing.assert_array_equal(Response("share").ends_back(ends), [[0.0, 1.0]])


def test_a_run_of_a_mesh_changes_the_response_that_sites_agree_on(tmp_path):
    """Its models are the exponentials of those of a run over a column of logarithms."""
    models = {}
    for kind, settings in {"changed": {"transform": "log"}, "by hand": {}}.items():
        (tmp_path / kind).mkdir()
        mesh = Mesh(tmp_path / kind, 2, settings={"intervals": True, "rows_per_feature": 0.0} | settings)
        for name in mesh.names:
            X, y = mesh.rows[name]
            table = pd.DataFrame(X, columns=COLUMNS).assign(y=np.exp(3 * y) if settings else np.log(np.exp(3 * y)))
            table.to_parquet(mesh.folder / f"{name}.parquet")
        _, errors = mesh.run_in_threads()
        assert set(errors.values()) == {None}
        models[kind] = {name: mesh.model(name) for name in mesh.names}
    for name, model in models["changed"].items():
        assert model.header.transform == "log"
        np.testing.assert_allclose(
            model.predict(table[COLUMNS]), np.exp(models["by hand"][name].predict(table[COLUMNS]))
        )
        assert model.predict_interval(table[COLUMNS]).min() > 0


def test_the_command_line_changes_the_response(tmp_path):
    TRAIN.to_csv(tmp_path / "rows.csv", index=False)
    names = ["--target", "y", "--site", "site", "--out", str(tmp_path / "models"), "--quiet", "--holdout", "0"]
    done = CliRunner().invoke(app, ["fit", str(tmp_path / "rows.csv"), *names, "--transform", "log"])
    assert done.exit_code == 0, done.output
    assert dekrr.load(tmp_path / "models" / "north.safetensors").header.transform == "log"
    TRAIN.assign(y=np.where(TRAIN.y > 5, "high", "low")).to_csv(tmp_path / "words.csv", index=False)
    done = CliRunner().invoke(app, ["fit", str(tmp_path / "words.csv"), *names, "--transform", "log", "--force"])
    assert "classes are no numbers" in str(done.exception)
