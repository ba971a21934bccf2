import dataclasses
import json
from contextlib import suppress

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError
from safetensors.numpy import save_file

import dekrr
from dekrr import CentralizedKRR, DeKRRRegressor, ModelFileError
from dekrr import model as models
from dekrr.data import make_sites
from dekrr.features import FeatureMap
from dekrr.model import FORMAT, Header, Member, SiteModel, members_of
from dekrr.protocols.run import Outcome
from dekrr.scaling import UNSCALED, Scaling
from dekrr.settings import ALONE

X, y, SITES = make_sites(n_sites=4, random_state=0)


@pytest.fixture(scope="module", params=[("minmax", "own"), ("minmax", "neighborhood"), (None, "own")])
def model(request):
    scale, prediction = request.param
    regressor = DeKRRRegressor(
        n_features=12, sigma=0.3, alpha=1e-4, consensus=1.0, scale=scale, prediction=prediction, random_state=0, **ALONE
    )
    return regressor.fit(X, y, sites=SITES).models_["station 01"]


def test_round_trip(model, tmp_path):
    path = tmp_path / "model.safetensors"
    model.save(path)
    loaded = dekrr.load(path)
    assert loaded.header == model.header
    np.testing.assert_array_equal(loaded.predict(X), model.predict(X))
    assert [file.name for file in tmp_path.iterdir()] == ["model.safetensors"]


@pytest.mark.parametrize("keep", [0, 5, 200, -9])
def test_damaged_file(model, tmp_path, keep):
    path = tmp_path / "model.safetensors"
    model.save(path)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ModelFileError, match=r"model.safetensors is damaged, or not a model file"):
        dekrr.load(path)


def test_flipped_bytes_never_pass_silently_as_nan(model, tmp_path):
    path = tmp_path / "model.safetensors"
    model.save(path)
    data = bytearray(path.read_bytes())
    data[-8:] = np.array([np.nan]).tobytes()
    path.write_bytes(data)
    with pytest.raises(ModelFileError, match="NaN or infinite"):
        dekrr.load(path)


def test_foreign_files(tmp_path):
    path = tmp_path / "other.safetensors"
    save_file({"weight": np.zeros(3)}, path)
    with pytest.raises(ModelFileError, match="not a dekrr model"):
        dekrr.load(path)
    path.write_text("hello")
    with pytest.raises(ModelFileError, match="damaged, or not a model file"):
        dekrr.load(path)
    with pytest.raises(FileNotFoundError):
        dekrr.load(tmp_path / "nothing")


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        ('{"site": "a"}', "header that cannot be read"),
        (
            '{"site": "a", "method": "m", "kernel": "k", "sigma": 1, "n_columns": 3, "version": 99}',
            "format version 99; this dekrr reads up to 6",
        ),
        ('{"site": "a", "method": "m", "kernel": "k", "sigma": 1, "n_columns": 3}', "lacks the tensor 'weights'"),
    ],
)
def test_bad_headers(tmp_path, header, reason):
    path = tmp_path / "bad.safetensors"
    save_file({"x": np.zeros(1)}, path, metadata={"dekrr-model": header})
    with pytest.raises(ModelFileError, match=reason):
        dekrr.load(path)


def test_tensors_that_do_not_fit(tmp_path):
    path = tmp_path / "bad.safetensors"
    header = '{"site": "a", "method": "m", "kernel": "k", "sigma": 1, "n_columns": 3}'
    vectors = {f"{name}_0": np.zeros(2) for name in ("phases", "amplitudes", "coefficients")}
    save_file(
        {"weights": np.ones(1), "frequencies_0": np.zeros((3, 4)), **vectors}, path, metadata={"dekrr-model": header}
    )
    with pytest.raises(ModelFileError, match="member 0 do not fit"):
        dekrr.load(path)


def test_a_local_part_of_rows_alone_is_read_as_before_and_a_wrong_one_refused(tmp_path):
    path = tmp_path / "model.safetensors"
    header = Header(
        site="a", method="m", kernel="k", sigma=1.0, n_columns=2, n_members=2, parts=["own", "local"]
    )  # fmt: skip
    rng = np.random.default_rng(0)

    def member(n_columns):
        return Member(FeatureMap.unweighted(rng.normal(size=(n_columns, 3)), np.zeros(3)), rng.normal(size=3))

    own, rows = member(2), rng.normal(size=(4, 2))
    for n_columns, version in [(2, 1), (3, 4)]:
        local = member(n_columns)
        SiteModel(msgspec.structs.replace(header, version=version), (own, local)).save(path)
        loaded = dekrr.load(path)
        read = rows if n_columns == 2 else np.column_stack([rows, own.predict(rows)])
        np.testing.assert_allclose(loaded.predict(rows), own.predict(rows) + local.predict(read))
        np.testing.assert_allclose(loaded.without_local().predict(rows), own.predict(rows))
        assert loaded.header.version == version
        loaded.save(path)
        again = dekrr.load(path)
        assert again.header.version == 5
        np.testing.assert_array_equal(again.predict(rows), loaded.predict(rows))
    SiteModel(header, (own, member(4))).save(path)
    with pytest.raises(ModelFileError, match="member 1 do not fit"):
        dekrr.load(path)
    shared = msgspec.structs.replace(header, parts=["own", "shared"])
    SiteModel(shared, (own, member(3))).save(path)
    with pytest.raises(ModelFileError, match="member 1 do not fit"):
        dekrr.load(path)


def test_a_failed_save_keeps_the_old_file(model, tmp_path, monkeypatch):
    path = tmp_path / "model.safetensors"
    model.save(path)
    before = path.read_bytes()

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("dekrr.model.save_file", full)
    with pytest.raises(OSError, match="No space left"):
        model.save(path)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["model.safetensors"]


def test_exact_kernel_models_hold_rows_and_are_not_saved(tmp_path):
    model = CentralizedKRR().fit(X, y).models_[0]
    with pytest.raises(ModelFileError, match="holds all sites' rows"):
        model.save(tmp_path / "krr.safetensors")


@pytest.mark.parametrize("prediction", ["own", "neighborhood"])
def test_members_weigh_one_in_all(prediction):
    maps = {name: FeatureMap.unweighted(np.ones((3, 2)), np.full(2, k)) for k, name in enumerate("abc")}
    around = {"b": np.full(2, 2.0), "c": np.full(2, 3.0)}
    outcome = Outcome(None, None, maps["a"], np.ones(2), {p: maps[p] for p in "bc"}, around)
    members = members_of(outcome, prediction)
    expected = [1 / 2, 1 / 4, 1 / 4] if prediction == "neighborhood" else [1.0]
    assert [member.weight for member in members] == pytest.approx(expected)
    assert members[0].feature_map is maps["a"]


def test_bounds_that_do_not_fit_are_refused(tmp_path):
    fitted = DeKRRRegressor(n_features=4, sigma=0.5, alpha=1e-3, consensus=1.0).fit(X, y, sites=SITES)
    model = next(iter(fitted.models_.values()))
    short = Scaling(model.scaling.lower[:-1], model.scaling.upper[:-1])
    dataclasses.replace(model, scaling=short).save(tmp_path / "short.safetensors")
    with pytest.raises(ModelFileError, match="3 bounds for 3 columns and a response"):
        dekrr.load(tmp_path / "short.safetensors")


def test_a_model_that_cannot_be_written_leaves_what_was_there(tmp_path, monkeypatch):
    fitted = DeKRRRegressor(n_features=4, sigma=0.5, alpha=1e-3, consensus=1.0).fit(X, y, sites=SITES)
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"what was there")

    def full(*_, **__):
        raise SafetensorError("no space left")

    monkeypatch.setattr(models, "save_file", full)
    with pytest.raises(ModelFileError, match=r"model\.safetensors cannot be written: no space left"):
        next(iter(fitted.models_.values())).save(path)
    assert [file.read_bytes() for file in tmp_path.iterdir()] == [b"what was there"]


@pytest.mark.parametrize("scaled", [True, False])
def test_a_model_of_two_outputs_is_two_models(scaled, tmp_path):
    rng = np.random.default_rng(0)
    maps = [FeatureMap.unweighted(rng.normal(size=(3, n)), rng.uniform(size=n)) for n in (4, 6)]
    coefficients = [rng.normal(size=(n, 2)) for n in (4, 6)]
    bounds = np.array([0.0, -1.0, 0.0, -3.0, 5.0]), np.array([1.0, 1.0, 2.0, 3.0, 6.0])
    header = Header(site="a", method="DeKRR", kernel="gaussian", sigma=1.0, n_columns=3, n_members=2, scaled=scaled)

    def model(outputs):
        members = tuple(Member(m, c[:, outputs], 0.5) for m, c in zip(maps, coefficients, strict=True))
        entries = [0, 1, 2, *np.atleast_1d(np.arange(3, 5)[outputs])]
        scaling = Scaling(bounds[0][entries], bounds[1][entries]) if scaled else UNSCALED
        return SiteModel(header, members, scaling)

    both = model(slice(0, 2))
    both.save(tmp_path / "both.safetensors")
    loaded = dekrr.load(tmp_path / "both.safetensors")
    expected = np.column_stack([model(k).predict(X) for k in (0, 1)])
    for rows in (X, lambda: iter([X[:7], X[7:]])):
        np.testing.assert_allclose(loaded.predict(rows), expected, rtol=1e-12)
    assert loaded.predict(X[:0]).shape == (0, 2)
    if scaled:
        wrong = dataclasses.replace(both, scaling=Scaling(bounds[0][:-1], bounds[1][:-1]))
        wrong.save(tmp_path / "wrong.safetensors")
        with pytest.raises(ModelFileError, match="4 bounds"):
            dekrr.load(tmp_path / "wrong.safetensors")


@pytest.mark.parametrize("kind", ["BF16", "F8_E4M3", "F8_E5M2", "F16", "I64", "BOOL", "F4", "U9"])
@pytest.mark.parametrize("shape", [[2], [1 << 62, 1 << 62], [-1], [0, 1 << 63]])
def test_tensors_that_no_model_has_are_damage(tmp_path, kind, shape):
    about = json.dumps({"site": "a", "method": "m", "kernel": "gaussian", "sigma": 1.0, "n_columns": 2})
    tensor = {"dtype": kind, "shape": shape, "data_offsets": [0, 16]}
    header = {"__metadata__": {FORMAT: about}, "weights": tensor}
    encoded = json.dumps(header).encode()
    path = tmp_path / "odd.safetensors"
    path.write_bytes(len(encoded).to_bytes(8, "little") + encoded + bytes(16))
    with pytest.raises(ModelFileError):
        dekrr.load(path)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.integers(0, 10_000), value=st.integers(0, 255), cut=st.booleans())
def test_any_bytes_are_a_model_or_damage(tmp_path, place, value, cut):
    path = tmp_path / "model.safetensors"
    if not path.exists():
        X, y, labels = make_sites(n_sites=3, random_state=0)
        fitted = DeKRRRegressor(n_features=4, sigma=0.5, alpha=1e-3, consensus=1.0, random_state=0)
        fitted.fit(X, y, sites=labels).models_["station 00"].save(path)
    data = bytearray(path.read_bytes())
    place %= len(data)
    data[place] = value
    changed = tmp_path / "changed.safetensors"
    changed.write_bytes(data[:place] if cut else data)
    with suppress(ModelFileError):
        dekrr.load(changed)
