"""A model as an ONNX graph, run by onnxruntime, and as an MLflow model."""

from dataclasses import dataclass

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
from dekrr.scaling import UNSCALED, Scaling
from dekrr.serving.onnx_graph import onnx_graph, write_onnx

onnxruntime = pytest.importorskip("onnxruntime", reason="running a graph needs onnxruntime")


def make_model(seed=0, n_columns=3, n_members=3, outputs=(), scaled=True, n_features=40, clipped=False, local=False):
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
    if local:  # it reads what the others predict
        shape = n_columns + int(np.prod(outputs)), n_features
        frequencies = rng.normal(size=shape)
        frequencies[n_columns:] /= 50  # predictions are large here, and steep features would magnify their rounding
        of_both = FeatureMap(frequencies, rng.uniform(0, 6, size=n_features), np.ones(n_features))
        members = (*members, Member(of_both, rng.normal(size=(n_features, *outputs))))
    names = [f"c{j}" for j in range(n_columns)]
    header = Header(
        site="s", method="m", kernel="gaussian", sigma=1.0, n_columns=n_columns, columns=names, n_members=len(members),
        scaled=scaled,
    )  # fmt: skip
    lower = rng.normal(scale=100, size=n_columns + int(np.prod(outputs)))
    scaling = Scaling(lower, lower + rng.uniform(0, 50, size=len(lower))) if scaled else UNSCALED
    if clipped and scaled:
        scaling = Scaling.clipping(scaling.lower, scaling.upper, n_columns, room=0.25)
    return SiteModel(header, members, scaling)


def run(path, rows):
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return session.run(["prediction"], {"rows": rows})[0]


@given(
    st.integers(0, 10_000),
    st.integers(1, 6),
    st.integers(1, 4),
    st.sampled_from([(), (1,), (3,)]),
    st.sampled_from(["", "scaled", "clipped"]),
    st.booleans(),
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
    tolerance = 1e-5 if local else 1e-6  # the runtime's cosine of some angles is right to 1e-7, and errors go on
    assert np.abs(found - wanted).max() <= tolerance * max(1.0, np.abs(wanted).max())


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
    classes = DeKRRClassifier(**{name: value for name, value in settings.items() if name != "intervals"})
    classes.fit(table.assign(pm25=y > 0), "pm25", sites="station")
    with pytest.raises(ModelFileError, match="probabilities of classes, classes, which cannot be exported"):
        onnx_graph(classes.models_[sites[0]])
    raw = DeKRRRegressor(**settings).fit(table.assign(wind=np.where(y > 0, "N", "S")), "pm25", sites="station")
    with pytest.raises(ModelFileError, match="the model has columns of words, dates or missing values"):
        onnx_graph(raw.models_[sites[0]])


def test_what_the_graph_does_not_have_is_refused(tmp_path):
    @dataclass(frozen=True, eq=False)
    class Wider(SiteModel):
        local: Member | None = None

    model = make_model()
    onnx_graph(Wider(model.header, model.members, model.scaling))
    with pytest.raises(ModelFileError, match="the model has local, which cannot be exported"):
        write_onnx(Wider(model.header, model.members, model.scaling, local=model.members[0]), tmp_path / "m.onnx")
    assert not (tmp_path / "m.onnx").exists()


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
