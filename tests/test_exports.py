"""A model as an ONNX graph, run by onnxruntime, and as an MLflow model."""

from dataclasses import dataclass, replace

import msgspec
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from dekrr import DeKRRClassifier, DeKRRRegressor
from dekrr.cli.app import app
from dekrr.data import make_sites
from dekrr.errors import ModelFileError
from dekrr.features import FeatureMap
from dekrr.model import Header, Member, SiteModel
from dekrr.parts.local import Home, LearntPart, TreesPart, WavesPart
from dekrr.parts.trees import TreeEnsemble, fit_trees
from dekrr.scaling import UNSCALED, Scaling
from dekrr.serving.onnx_graph import Nodes, add_trees, feeds, graph_model, onnx_graph, write_onnx

onnxruntime = pytest.importorskip("onnxruntime", reason="running a graph needs onnxruntime")


def make_model(seed=0, n_columns=3, n_members=3, outputs=(), scaled=True, n_features=40, clipped=False, local=""):
    rng = np.random.default_rng(seed)
    members = tuple(
        Member(
            FeatureMap(
                rng.normal(scale=5, size=(n_columns, n_features)),
                rng.uniform(0, 6, size=n_features),
                rng.uniform(0.1, 1, size=n_features),
            ),
            rng.normal(size=(n_features, *outputs)),
            float(rng.uniform()),
        )
        for _ in range(n_members)
    )
    home, n_outputs = None, int(np.prod(outputs))
    if local:
        home = Home(float(rng.uniform()), rng.normal(size=outputs), local_part(local, rng, n_columns, outputs))
    names = [f"c{j}" for j in range(n_columns)]
    header = Header(
        site="s", method="m", kernel="gaussian", sigma=1.0, n_columns=n_columns, columns=names, n_members=len(members),
        scaled=scaled,
    )  # fmt: skip
    lower = rng.normal(scale=100, size=n_columns + n_outputs)
    scaling = Scaling(lower, lower + rng.uniform(0, 50, size=len(lower))) if scaled else UNSCALED
    if clipped and scaled:
        scaling = Scaling.clipping(scaling.lower, scaling.upper, n_columns, room=0.25)
    return SiteModel(header, members, scaling, home=home)


def local_part(kind, rng, n_columns, outputs):
    """Return boosted trees, waves of rows, waves of rows and predictions, or none."""
    n_outputs = int(np.prod(outputs))
    if kind == "trees":
        X = rng.normal(size=(120, n_columns + n_outputs))
        fitted = fit_trees(X, rng.normal(size=(120, n_outputs)) + X[:, :1], None, np.arange(120) % 3, seed=0)
        return TreesPart(0.7, fitted.trees, rng.normal(size=(1 + n_columns, n_outputs)))
    if kind == "level":
        return None
    frequencies = rng.normal(size=(n_columns + n_outputs * (kind == "waves"), 40))
    frequencies[n_columns:] /= 50  # predictions are large here, and steep features would magnify their rounding
    of_both = FeatureMap(frequencies, rng.uniform(0, 6, size=40), np.ones(40))
    return WavesPart(of_both, rng.normal(size=(40, *outputs)))


def run(path, rows):
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return session.run(["prediction"], {"rows": rows})[0]


@given(
    st.integers(0, 10_000),
    st.integers(1, 6),
    st.integers(1, 4),
    st.sampled_from([(), (1,), (3,)]),
    st.sampled_from(["", "scaled", "clipped"]),
    st.sampled_from(["", "trees", "waves", "waves of rows", "level"]),
)
@settings(max_examples=30)
def test_onnxruntime_predicts_what_the_model_predicts(seed, n_columns, n_members, outputs, scaling, local):
    model = make_model(seed, n_columns, n_members, outputs, bool(scaling), clipped=scaling == "clipped", local=local)
    rng = np.random.default_rng(seed)
    bounds = model.scaling.tensors or {"lower": np.zeros(9), "upper": np.ones(9)}
    lower, upper = bounds["lower"][:n_columns], bounds["upper"][:n_columns]
    rows = lower + (upper - lower) * rng.uniform(-1, 2, size=(50, n_columns))
    found, wanted = run(onnx_graph(model).SerializeToString(), rows), model.predict(rows)
    assert found.shape == wanted.shape
    assert np.abs(found - wanted).max() <= 1e-9 * max(1.0, np.abs(wanted).max())


def test_a_constant_column_and_one_row():
    model = make_model()
    upper = model.scaling.upper.copy()
    upper[1] = model.scaling.lower[1]
    model = SiteModel(model.header, model.members, Scaling(model.scaling.lower, upper))
    rows = model.scaling.lower[None, :3] + 0.5
    np.testing.assert_allclose(run(onnx_graph(model).SerializeToString(), rows), model.predict(rows), rtol=1e-9)


def test_the_command(tmp_path):
    model = make_model()
    model.save(tmp_path / "m.safetensors")
    runner = CliRunner()
    arguments = ["export", str(tmp_path / "m.safetensors"), str(tmp_path / "m.onnx")]
    said = runner.invoke(app, arguments)
    assert said.exit_code == 0, said.output
    rows = np.random.default_rng(0).uniform(size=(7, 3))
    np.testing.assert_allclose(run(tmp_path / "m.onnx", rows), model.predict(rows), rtol=1e-9)
    assert "already there" in str(runner.invoke(app, arguments).exception)
    assert runner.invoke(app, [*arguments, "--force"]).exit_code == 0
    assert ".onnx" in str(runner.invoke(app, [*arguments[:2], str(tmp_path / "m.pmml")]).exception)
    meta = onnxruntime.InferenceSession(tmp_path / "m.onnx", providers=["CPUExecutionProvider"]).get_modelmeta()
    assert msgspec.json.decode(meta.custom_metadata_map["columns"]) == ["c0", "c1", "c2"]


def test_a_model_with_names_is_exported(tmp_path):
    X, y, sites = make_sites(n_sites=3, random_state=0)
    table = pd.DataFrame(X, columns=["a", "b", "c"]).assign(pm25=y, station=sites)
    settings = {"n_features": 10, "sigma": 0.4, "alpha": 1e-4, "consensus": 1.0, "intervals": True, "random_state": 0}
    regressor = DeKRRRegressor(**settings).fit(table, "pm25", sites="station")
    model = next(iter(regressor.models_.values()))
    assert model.header.targets == ["pm25"]
    model.save(tmp_path / "m.safetensors")
    said = CliRunner().invoke(app, ["export", str(tmp_path / "m.safetensors"), str(tmp_path / "m.onnx")])
    assert said.exit_code == 0, said.exception
    np.testing.assert_allclose(run(tmp_path / "m.onnx", X), model.predict(table), rtol=1e-6)
    meta = onnxruntime.InferenceSession(tmp_path / "m.onnx", providers=["CPUExecutionProvider"]).get_modelmeta()
    assert msgspec.json.decode(meta.custom_metadata_map["targets"]) == ["pm25"]
    two = DeKRRRegressor(**settings).fit(table.assign(no2=y**2), ["pm25", "no2"], sites="station").models_[sites[0]]
    np.testing.assert_allclose(run(onnx_graph(two).SerializeToString(), X), two.predict(table), rtol=1e-6, atol=1e-9)


def raw_table(n_rows=400, seed=0):
    """Return a table with every kind of column, and missing values in each."""
    rng = np.random.default_rng(seed)
    table = pd.DataFrame(
        {
            "gust": rng.normal(20, 5, size=n_rows),
            "wet": (rng.uniform(size=n_rows) > 0.5).astype(object),
            "wind": rng.choice(["N", "S", "E"], size=n_rows).astype(object),
            "code": rng.choice(["1", "22"], size=n_rows).astype(object),
            "when": pd.Timestamp("1959-12-30") + pd.to_timedelta(rng.uniform(0, 44_000, size=n_rows), unit="D"),
        }
    )
    y = np.sin(table["gust"] / 5) + (table["wind"] == "N") + 0.1 * rng.normal(size=n_rows)
    for name in table.columns:
        table.loc[rng.uniform(size=n_rows) < 0.1, name] = None
    return table.assign(y=y, site=rng.choice(["p", "q"], size=n_rows))


SETTINGS = {"n_features": 10, "sigma": 0.4, "alpha": 1e-4, "consensus": 1.0, "random_state": 0}


def run_raw(model, table, outputs):
    session = onnxruntime.InferenceSession(onnx_graph(model).SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(outputs, feeds(model.header.encoding, table))


def test_raw_columns_are_exported():
    table = raw_table()
    model = DeKRRRegressor(**SETTINGS).fit(table, "y", sites="site").models_["p"]
    rows = raw_table(seed=1)
    rows.loc[:4, "wind"] = ["NNE", "N ", "n", "", None]
    # Ends of years, leap years, and moments before 1970.
    dates = ["1969-12-31T23:59:59.999999", "2000-02-29", "2000-12-31T23:59", "1900-03-01", "2100-01-01", "1968-12-31"]
    rows["when"] = rows["when"].astype("datetime64[us]")
    rows.loc[: len(dates) - 1, "when"] = np.array(dates, dtype="datetime64[us]")
    (found,) = run_raw(model, rows, ["prediction"])
    wanted = model.predict(rows.assign(wind=rows["wind"].replace("", None)))
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-9)
    of_one_row = run_raw(model, rows.iloc[:1], ["prediction"])[0]
    np.testing.assert_allclose(of_one_row, wanted[:1], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(
    "classes", [np.array(["low", "high"]), np.array([3, 1, 2]), np.array([True, False]), np.array([0.0, 1.0, 2.0])]
)
@pytest.mark.parametrize("raw", [True, False])
def test_classes_are_exported(classes, raw):
    table = raw_table()
    if not raw:
        table = table.drop(columns=["wet", "wind", "code", "when"]).fillna({"gust": 20.0})
    places = np.digitize(table["y"], [0.5, 1.0][: len(classes) - 1])
    classifier = DeKRRClassifier(**SETTINGS).fit(table.assign(y=classes[places]), "y", sites="site")
    model = classifier.models_["p"]
    if raw:
        found, probabilities = run_raw(model, table, ["prediction", "probabilities"])
    else:
        graph = onnx_graph(model).SerializeToString()
        session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
        found, probabilities = session.run(None, {"rows": table[["gust"]].to_numpy()})
    assert found.tolist() == model.predict(table).tolist()
    np.testing.assert_allclose(probabilities, model.predict_proba(table), atol=1e-6)


def test_a_column_with_the_name_of_an_output_is_refused():
    table = raw_table().rename(columns={"wind": "prediction"})
    model = DeKRRRegressor(**SETTINGS).fit(table, "y", sites="site").models_["p"]
    with pytest.raises(ModelFileError, match="'prediction' has the name of an output"):
        onnx_graph(model)


def test_an_empty_word_as_a_category_is_refused():
    table = raw_table()
    table["wind"] = table["wind"].replace("E", "")
    model = DeKRRRegressor(**SETTINGS).fit(table, "y", sites="site").models_["p"]
    assert "" in model.header.encoding.columns[2].categories
    with pytest.raises(ModelFileError, match="'wind' has an empty word"):
        onnx_graph(model)


def graph_of_trees(trees, n_columns):
    from onnx import TensorProto, checker, helper

    nodes = Nodes(taken=["rows"])
    nodes.add("Identity", add_trees(nodes, trees, "rows"), name="prediction")
    shapes = {"rows": n_columns, "prediction": trees.n_outputs}
    rows, prediction = (
        helper.make_tensor_value_info(name, TensorProto.DOUBLE, ["n_rows", size]) for name, size in shapes.items()
    )
    made = graph_model(nodes, [rows], [prediction])
    checker.check_model(made, full_check=True)
    return made.SerializeToString()


@pytest.mark.parametrize("n_outputs", [1, 3])
def test_trees_are_exported(n_outputs):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 3)).round(1)  # many rows lie on thresholds
    y = np.sin(X @ rng.normal(size=(3, n_outputs)))
    trees = fit_trees(X, y, None, np.arange(300) % 3, seed=0).trees
    none = TreeEnsemble.constant(np.arange(1.0, 1 + n_outputs))
    leaf, here = np.array([-1], dtype=np.int32), np.zeros(1, dtype=np.int32)
    lone = TreeEnsemble(leaf, np.zeros(1), here, here, np.array([2.5]), here, here, np.zeros(n_outputs))
    rows = np.vstack([X, rng.normal(size=(100, 3)), 1e300 * rng.normal(size=(10, 3))])
    for each in (trees, none, lone, TreeEnsemble.joined([lone, trees, none, lone])):
        np.testing.assert_allclose(run(graph_of_trees(each, 3), rows), each.predict(rows), rtol=1e-12, atol=1e-12)


def test_what_the_graph_does_not_have_is_refused(tmp_path):
    @dataclass(frozen=True, eq=False)
    class Wider(SiteModel):
        other: Member | None = None

    model = make_model()
    onnx_graph(Wider(model.header, model.members, model.scaling))
    with pytest.raises(ModelFileError, match="the model has other, which cannot be exported"):
        write_onnx(Wider(model.header, model.members, model.scaling, other=model.members[0]), tmp_path / "m.onnx")
    learnt = LearntPart(1.0, lambda X: np.zeros((len(X), 1)), lambda X: np.zeros((len(X), 1)), np.zeros((1, 1)))
    model = replace(model, home=Home(0.5, np.zeros(()), learnt))
    with pytest.raises(ModelFileError, match=r"a regressor that was given as local=, .* model\.without_local\(\)"):
        write_onnx(model, tmp_path / "m.onnx")
    assert not (tmp_path / "m.onnx").exists()
    write_onnx(model.without_local(), tmp_path / "m.onnx")


def test_a_graph_that_predicts_otherwise_is_not_written(monkeypatch):
    model = make_model()
    monkeypatch.setattr(SiteModel, "predict", lambda self, X: np.zeros(len(X)))
    with pytest.raises(ModelFileError, match="does not predict what the model predicts"):
        onnx_graph(model)


def test_mlflow_loads_the_model_file(tmp_path):
    """The recipe of docs/serving.md."""
    mlflow = pytest.importorskip("mlflow", reason="the recipe needs mlflow-skinny")
    model = make_model()
    model.save(tmp_path / "m.safetensors")
    mlflow.pyfunc.save_model(
        tmp_path / "saved",
        loader_module="dekrr.serving.mlflow",
        data_path=tmp_path / "m.safetensors",
        pip_requirements=["dekrr"],
    )
    frame = pd.DataFrame(np.random.default_rng(0).uniform(size=(4, 3)), columns=["c2", "c1", "c0"])
    found = mlflow.pyfunc.load_model(tmp_path / "saved").predict(frame)
    np.testing.assert_array_equal(found, model.predict(frame))
    assert not [path for path in (tmp_path / "saved").rglob("*") if path.suffix == ".pkl"]
