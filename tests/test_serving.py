"""The HTTP service: what it answers, what it refuses and why, who may ask, and a newer model under load."""

import asyncio
import hashlib
import io
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import warnings
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import httpx
import jsonschema
import msgspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow.csv import write_csv

from dekrr import DeKRRRegressor
from dekrr.classes import ClassCalibration, Platt
from dekrr.errors import DataError, KeysError, SettingsError
from dekrr.features import FeatureMap
from dekrr.intervals import N_BINS, Calibration, Scale, histogram
from dekrr.mesh import keys
from dekrr.model import Header, Member, SiteClassifier, SiteModel
from dekrr.parts.local import Home, TreesPart, WavesPart
from dekrr.parts.trees import fit_trees
from dekrr.scaling import Scaling
from dekrr.serving import one_row as one_row_module
from dekrr.serving import server as server_module
from dekrr.serving.bodies import ARROW, CSV, JSON, is_compressed
from dekrr.serving.current import CurrentModel, find_model
from dekrr.serving.guards import Limits, Tokens, new_token
from dekrr.serving.server import Place, server_of
from dekrr.serving.service import Service
from meshes import free_ports

COLUMNS = ["length", "wi,dth"]


def make_model(seed=0, *, columns=COLUMNS, n_outputs=None, scaled=True, n_members=2, local=""):
    rng = np.random.default_rng(seed)
    outputs = () if n_outputs is None else (n_outputs,)
    members = tuple(
        Member(
            FeatureMap.unweighted(rng.normal(size=(2, 5 + i)), rng.uniform(size=5 + i)),
            rng.normal(size=(5 + i, *outputs)),
            1 / n_members,
        )
        for i in range(n_members)
    )
    home, n_read = None, 2 + (n_outputs or 1)  # a local part reads what the others predict
    if local == "waves":
        of_both = FeatureMap.unweighted(rng.normal(size=(n_read, 4)), rng.uniform(size=4))
        home = Home(0.3, rng.normal(size=outputs), WavesPart(of_both, rng.normal(size=(4, *outputs))))
    elif local:
        X = rng.normal(size=(60, n_read))
        trees = fit_trees(X, X[:, : n_outputs or 1] ** 2, None, np.arange(60) % 3, seed=0).trees
        home = Home(0.3, rng.normal(size=outputs), TreesPart(0.7, trees, rng.normal(size=(3, n_outputs or 1))))
    header = Header(
        site="here",
        method="DeKRRRegressor",
        kernel="gaussian",
        sigma=1.0,
        n_columns=2,
        columns=columns,
        n_members=len(members),
        parts=["own", *["neighbor"] * (n_members - 1)],
        scaled=scaled,
    )
    n_bounds = 2 + (n_outputs or 1)
    scaling = {"scaling": Scaling(-np.ones(n_bounds), np.arange(1.0, n_bounds + 1))} if scaled else {}
    return SiteModel(header, members, **scaling, home=home)


@pytest.fixture
def path(tmp_path):
    make_model().save(tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


def service_of(path, limits=None, **options):
    limits = limits or Limits()
    return Service(CurrentModel(path, limits.max_rows), limits, **options)


def ask(service, method, url, host="http://localhost", **request):
    async def asking():
        transport = httpx.ASGITransport(app=service.app())
        async with httpx.AsyncClient(transport=transport, base_url=host) as client:
            return await client.request(method, url, **request)

    return asyncio.run(asking())


def post(service, body, media_type=JSON, url="/predict", **headers):
    body = msgspec.json.encode(body) if isinstance(body, dict) else body
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return ask(service, "POST", url, content=body, headers={"content-type": media_type, **named})


ROWS = [[1.0, 2.0], [0.25, -0.5], [3.0, 1e-3]]
NAMED = {"rows": [dict(zip(COLUMNS, row, strict=True)) for row in ROWS]}
TABLE = pa.table({"wi,dth": [row[1] for row in ROWS], "length": [row[0] for row in ROWS]})


def arrow(table, **options):
    buffer = io.BytesIO()
    with pa.ipc.new_stream(buffer, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table)
    return buffer.getvalue()


def csv(table):
    buffer = io.BytesIO()
    write_csv(table, buffer)
    return buffer.getvalue()


@pytest.mark.parametrize("wanted", [JSON, CSV, ARROW])
@pytest.mark.parametrize(
    ("body", "given"), [(msgspec.json.encode(NAMED), JSON), (csv(TABLE), CSV), (arrow(TABLE), ARROW)]
)
def test_predictions_in_every_format(path, body, given, wanted):
    answer = post(service_of(path), body, given, accept=wanted)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == wanted
    if wanted == JSON:
        values = answer.json()["predictions"]
        assert answer.json()["model"] == answer.headers["dekrr-model"]
    elif wanted == CSV:
        values = pd.read_csv(io.BytesIO(answer.content))["prediction"].tolist()
    else:
        values = pa.ipc.open_stream(answer.content).read_all()["prediction"].to_pylist()
    np.testing.assert_allclose(values, make_model().predict(np.array(ROWS)), rtol=1e-14)


def test_the_answer_has_the_format_of_the_request(path):
    for body, media_type in ((csv(TABLE), CSV), (arrow(TABLE), ARROW)):
        assert (
            post(service_of(path), body, f"{media_type}; charset=utf-8", accept="*/*")
            .headers["content-type"]
            .startswith(media_type)
        )
    assert ask(service_of(path), "POST", "/predict", json=NAMED).status_code == 200


def test_columns_without_names_and_several_outputs(tmp_path):
    model = make_model(columns=None, n_outputs=3)
    model.save(tmp_path / "m.safetensors")
    service = service_of(tmp_path / "m.safetensors")
    wanted = model.predict(np.array(ROWS))
    np.testing.assert_allclose(post(service, {"rows": ROWS}).json()["predictions"], wanted, rtol=1e-14)
    lines = "\n".join(",".join(map(str, row)) for row in ROWS).encode()
    table = pd.read_csv(io.BytesIO(post(service, lines, CSV).content))
    assert list(table.columns) == ["prediction_0", "prediction_1", "prediction_2", "outside"]
    np.testing.assert_allclose(table.to_numpy()[:, :3], wanted, rtol=1e-14)
    assert "row 1 has 1 numbers instead of 2" in post(service, {"rows": [[1, 2], [3]]}).json()["detail"]
    assert "lines of 3" in post(service, b"1,2,3\n", CSV).json()["detail"]
    assert ask(service, "GET", "/schema").json()["outputs"] == 3


FRAME = pd.DataFrame(
    {
        "gust": [3.5, None, 40.0, 7.0],
        "wind": ["N", "E", None, "unheard of"],
        "wet": [True, False, None, True],
        "code": ["007", "8", "007", None],
        "when": pd.to_datetime(["2024-03-01 06:00", "2023-12-31 23:30", None, "2024-07-01 12:00"]),
    }
)


@pytest.mark.parametrize("numba", [True, False])
@given(
    seed=st.integers(0, 1000),
    n_outputs=st.sampled_from([None, 1, 3]),
    kind=st.sampled_from(["unscaled", "scaled", "clipped"]),
    offset=st.sampled_from([0.0, 2026.0]),
    local=st.sampled_from(["", "waves", "trees"]),
)
@settings(max_examples=60, deadline=None)
def test_one_row_is_predicted_as_many_are(numba, seed, n_outputs, kind, offset, local):
    rng = np.random.default_rng(seed)
    model = make_model(seed, n_outputs=n_outputs, scaled=kind != "unscaled", n_members=3, local=local)
    lower = offset + rng.uniform(-1, 1, size=2 + (n_outputs or 1))
    upper = lower + rng.choice([0.0, 0.5, 30.0], size=len(lower))
    if kind == "scaled":
        model = replace(model, scaling=Scaling(lower, upper))
    elif kind == "clipped":
        model = replace(model, scaling=Scaling.clipping(lower, upper, 2, room=0.5))
    rows = offset * (kind != "unscaled") + rng.uniform(-3, 40, size=(5, 2))
    with pytest.MonkeyPatch.context() as patch:
        if not numba:
            patch.setattr(one_row_module, "compiled", lambda: None)
        predict = one_row_module.OneRow(model)
        found = np.concatenate([predict(rows[i : i + 1]) for i in range(len(rows))])
    expected = model.predict(rows)
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-11)


@pytest.fixture(scope="module")
def raw_model():
    """A model of a frame with words, dates and missing values."""
    rng = np.random.default_rng(0)
    n = 400
    frame = pd.DataFrame(
        {
            "gust": np.where(rng.uniform(size=n) < 0.1, np.nan, rng.uniform(0, 30, size=n)),
            "wind": rng.choice(["N", "E", "S", "W"], size=n),
            "wet": rng.uniform(size=n) < 0.3,
            "code": rng.choice(["007", "8", "9"], size=n),
            "when": pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 8000, size=n), "h"),
        }
    )
    y = frame["gust"].fillna(3) + (frame["wind"] == "N") + rng.normal(size=n)
    regressor = DeKRRRegressor(n_features=20, sigma=1.0, alpha=1e-3, consensus=1.0, n_sites=2, intervals=True)
    return next(iter(regressor.fit(frame, y, sites=np.arange(n) % 2).models_.values()))


def test_raw_columns(raw_model, tmp_path):
    """Words, dates, booleans and missing values predict as the model predicts the frame, in every format."""
    raw_model.save(tmp_path / "m.safetensors")
    service = service_of(tmp_path / "m.safetensors")
    wanted = raw_model.predict(FRAME)
    rows = [
        {
            "gust": None if np.isnan(row.gust) else row.gust,
            "wind": row.wind if isinstance(row.wind, str) else None,
            "wet": row.wet,
            "code": row.code if isinstance(row.code, str) else None,
            "when": None if row.when is pd.NaT else row.when.isoformat(),
        }
        for row in FRAME.itertuples()
    ]
    table = FRAME.to_csv(index=False, date_format="%Y-%m-%dT%H:%M:%S").encode()
    bodies = {JSON: msgspec.json.encode({"rows": rows}), CSV: table, ARROW: arrow(pa.Table.from_pandas(FRAME))}
    for media_type, body in bodies.items():
        answer = post(service, body, media_type, accept=JSON)
        assert answer.status_code == 200, answer.text
        np.testing.assert_allclose(answer.json()["predictions"], wanted, rtol=1e-12, err_msg=media_type)
    for row, value in zip(rows, wanted, strict=True):
        np.testing.assert_allclose(post(service, {"rows": [row]}).json()["predictions"], [value], rtol=1e-12)
    schema = ask(service, "GET", "/schema").json()
    assert [column["kind"] for column in schema["columns"]] == ["number", "category", "boolean", "category", "datetime"]
    assert 25 < schema["columns"][0]["upper"] <= 30
    for media_type, example in schema["example"].items():
        answer = post(service, example if isinstance(example, dict) else example.encode(), media_type)
        assert answer.status_code == 200, answer.text
    ask(service, "GET", "/openapi.json").raise_for_status()
    wanted = raw_model.predict_interval(FRAME, coverage=0.8)
    for media_type, body in bodies.items():
        answer = post(service, body, media_type, url="/predict?coverage=0.8", accept=JSON).json()
        np.testing.assert_allclose(np.column_stack([answer["lower"], answer["upper"]]), wanted, rtol=1e-12)
    good = {column["name"]: None for column in schema["columns"]}
    for column, value, words in (
        ("gust", "strong", "row 1, column 'gust' is \"strong\"; it must be a number, or null"),
        ("wet", "yes", "it must be true or false, or null"),
        ("when", 3, "it must be a date or a time"),
        ("when", "soon", "trained on dates there"),
        ("wind", ["N"], "it must be a word or a number"),
    ):
        answer = post(service, {"rows": [good, {**good, column: value}]})
        assert answer.status_code == 422
        assert words in answer.json()["detail"]
    bad = table.replace(b"3.5", b"strong")
    assert "row 0, column 'gust' is 'strong'" in post(service, bad, CSV).json()["detail"]
    assert post(service, {"rows": []}).status_code == 422


@given(st.lists(st.tuples(*[st.floats(-1e6, 1e6)] * 2), min_size=1, max_size=30))
@settings(max_examples=25)
def test_formats_agree(shared_service, rows):
    array = np.array(rows)
    wanted = make_model().predict(array)
    named = {"rows": [dict(zip(COLUMNS, row, strict=True)) for row in rows]}
    table = pa.table(dict(zip(COLUMNS, array.T, strict=True)))
    for body, media_type in ((msgspec.json.encode(named), JSON), (csv(table), CSV), (arrow(table), ARROW)):
        found = post(shared_service, body, media_type, accept=JSON).json()["predictions"]
        # An angle is a column times a frequency: its rounding error grows with the column.
        np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-14 * abs(array).max())


@pytest.fixture(scope="module")
def shared_service(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "model.safetensors"
    make_model().save(path)
    return service_of(path)


@pytest.mark.parametrize(
    ("body", "status", "words", "row", "column"),
    [
        (b"{", 400, "not JSON", None, None),
        (b"[" * 100_000, 400, "not JSON", None, None),
        (b"\xff", 400, "not JSON", None, None),
        ({"row": []}, 422, '{"rows": [...]}', None, None),
        ({"rows": []}, 422, "no rows", None, None),
        ({"rows": [], "coverage": 1}, 422, "unknown fields 'coverage'", None, None),
        ({"rows": [[1, 2]]}, 422, "row 0 must be an object", 0, None),
        ({"rows": [NAMED["rows"][0], {"length": 1}]}, 422, "row 1 lacks the column 'wi,dth'; the model", 1, "wi,dth"),
        (
            {"rows": [{"length": 1, "width": 2}]},
            422,
            "lacks the column 'wi,dth' and has the unknown",
            0,
            "wi,dth",
        ),
        ({"rows": [{"length": "1", "wi,dth": 2}]}, 422, "row 0, column 'length' is \"1\"; it must be", 0, "length"),
        ({"rows": [{"length": None, "wi,dth": 2}]}, 422, "column 'length' is null", 0, "length"),
        ({"rows": [{"length": True, "wi,dth": 2}]}, 422, "column 'length' is true", 0, "length"),
        (b'{"rows": [{"length": 1e999, "wi,dth": 2}]}', 400, "not JSON", None, None),
        (b'{"rows": [{"length": NaN, "wi,dth": 2}]}', 400, "not JSON", None, None),
    ],
)
def test_wrong_json_is_refused_by_row_and_column(shared_service, body, status, words, row, column):
    answer = post(shared_service, body)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    about = answer.json()
    assert words in about["detail"]
    assert (about.get("row"), about.get("column")) == (row, column)


def test_further_columns_are_ignored_as_predict_does(shared_service):
    """So a table can be posted as it is, with the response and what else it has."""
    expected = post(shared_service, NAMED).json()
    more = {"rows": [{**row, "hue": "red", "age": None} for row in NAMED["rows"]]}
    assert post(shared_service, more).json() == expected
    table = TABLE.append_column("hue", pa.array(["red", "", "blue"])).append_column("x", pa.array([1, 2, None]))
    assert post(shared_service, arrow(table), ARROW, accept=JSON).json() == expected
    buffer = io.BytesIO()
    write_csv(table, buffer)
    assert post(shared_service, buffer.getvalue(), CSV, accept=JSON).json() == expected
    twice = b'length,"wi,dth",hue,hue\n1.0,2.0,a,b\n'
    assert post(shared_service, twice, CSV, accept=JSON).json()["predictions"] == expected["predictions"][:1]


def test_an_answer_names_values_outside_those_of_training(tmp_path):
    rng = np.random.default_rng(0)
    n_rows = 240
    frame = pd.DataFrame({"speed": rng.gamma(2.0, size=n_rows), "sky": rng.choice(["clear", "rain", "fog"], n_rows)})
    frame["wet"], frame["when"] = (
        rng.choice(["no", "yes"], n_rows),
        pd.Timestamp("2023-01-01") + pd.to_timedelta(np.arange(n_rows), unit="D"),
    )
    frame.loc[:30, "speed"] = np.nan
    y = frame.speed.fillna(2) + (frame.sky == "rain")
    options = {"n_features": 10, "random_state": 0, "intervals": False}
    known = {"speed": 1.5, "sky": "fog", "wet": "no", "when": "2023-03-01"}
    rows = [
        known,
        {**known, "speed": 5000.0, "sky": "hail"},
        {**known, "wet": "perhaps", "when": "2031-01-01"},
        {**known, "sky": None, "wet": None, "speed": None},
    ]
    expected = [[], ["speed", "sky"], ["when", "wet"], []]
    for scale in ("minmax", "quantiles"):
        fitted = DeKRRRegressor(**options, scale=scale).fit(frame, y, sites=np.arange(n_rows) % 2)
        fitted.models_[0].save(tmp_path / f"{scale}.safetensors")
        service = service_of(tmp_path / f"{scale}.safetensors")
        answer = post(service, {"rows": rows}).json()
        assert [sorted(names) for names in answer["outside"]] == [sorted(names) for names in expected]
        assert [post(service, {"rows": [row]}).json().get("outside") for row in rows] == [
            [names] if names else None for names in answer["outside"]
        ]
        assert "outside" not in post(service, {"rows": [known]}).json()
        table = pa.csv.read_csv(io.BytesIO(post(service, {"rows": rows}, accept=CSV).content)).to_pydict()
        assert table["outside"] == ["; ".join(names) for names in answer["outside"]]
        of_speed = ask(service, "GET", "/schema").json()["columns"][0]
        assert (of_speed["clipped"] is None) == (scale == "minmax")
        described = ask(service, "GET", "/openapi.json").json()["components"]["schemas"]["Row"]["properties"]["speed"]
        assert described["description"].startswith("From" if scale == "minmax" else "Most values of training lie from")


def test_values_inside_the_bounds_of_training_are_never_outside(path):
    service = service_of(path)
    upper = {"length": 1.0, "wi,dth": 2.0}
    assert "outside" not in post(service, {"rows": [upper, {"length": -1.0, "wi,dth": -1.0}]}).json()
    beyond = post(service, {"rows": [upper, {"length": 1.0, "wi,dth": 2.001}]}).json()
    assert beyond["outside"] == [[], ["wi,dth"]]


def test_requests_are_logged_and_docs_is_a_page(path, caplog):
    service = service_of(path)
    with caplog.at_level("WARNING", logger="dekrr.serving.access"):  # a node in this process may have set another
        ask(service, "GET", "/health")
    assert not [record for record in caplog.records if record.name == "dekrr.serving.access"]
    with caplog.at_level("INFO", logger="dekrr.serving.access"):
        post(service, NAMED)
        ask(service, "GET", "/nowhere%0Afaked")
        page = ask(service, "GET", "/docs")
    assert page.content == ask(service, "GET", "/").content
    lines = [record.getMessage() for record in caplog.records if record.name == "dekrr.serving.access"]
    assert '"POST /predict" 200 ' in lines[0]
    assert lines[0].startswith("127.0.0.1 ")
    assert '"GET /nowhere faked" 404 ' in lines[1]
    assert '"GET /docs" 200 ' in lines[2]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "not a CSV table"),
        (b"length\n1\n", "the table lacks the column 'wi,dth'"),
        (b"length,width,hue\n1,2,3\n", "lacks the column 'wi,dth' and has the unknown columns 'width', 'hue'"),
        (b'length,length,"wi,dth"\n1,2,3\n', "'length' more than once"),
        (b'length,"wi,dth"\n1,2\n3,red\n', "row 1, column 'wi,dth' is 'red'; it must be a number"),
        (b'length,"wi,dth"\n1,2\n3\n', "not a CSV table"),
        (b'length,"wi,dth"\n1,\n', "row 0, column wi,dth is nan"),
        (b'length,"wi,dth"\n1,inf\n', "row 0, column wi,dth is inf"),
        (b'length,"wi,dth"\n', "no rows"),
        (b"\xff\xfe\x00", "not a CSV table"),
    ],
)
def test_wrong_csv_is_refused_by_row_and_column(shared_service, body, words):
    answer = post(shared_service, body, CSV)
    assert answer.status_code == 422
    assert words in answer.json()["detail"]


def test_wrong_arrow_is_refused(shared_service):
    for body in (b"", b"nothing", arrow(TABLE)[:-40], arrow(TABLE)[:100]):
        answer = post(shared_service, body, ARROW)
        assert answer.status_code == 422, body
    texts = pa.table({"length": ["a"], "wi,dth": [1.0]})
    assert "row 0, column 'length' is 'a'" in post(shared_service, arrow(texts), ARROW).json()["detail"]
    holes = pa.table({"length": [1.0, None], "wi,dth": [1.0, 2.0]})
    assert "row 1, column length is nan" in post(shared_service, arrow(holes), ARROW).json()["detail"]
    assert "lacks the column" in post(shared_service, arrow(TABLE.select(["length"])), ARROW).json()["detail"]


@given(st.data())
@settings(max_examples=60)
def test_damaged_arrow_never_breaks_the_service(shared_service, data):
    body = bytearray(arrow(TABLE))
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    assert post(shared_service, bytes(body), ARROW).status_code in (200, 413, 415, 422)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*COLUMNS, "x"]), inner, max_size=3),
    max_leaves=8,
)


@given(VALUES, st.sampled_from([CSV, JSON, ARROW]))
@settings(max_examples=80)
def test_any_body_is_answered_or_refused_in_words(shared_service, value, media_type):
    for body in (value, {"rows": value}, {"rows": [value]}, {"rows": [{"length": value, "wi,dth": 1}]}):
        answer = post(shared_service, json.dumps(body).encode(), media_type)
        assert answer.status_code in (200, 400, 415, 422), answer.text
        assert answer.status_code == 200 or answer.json()["detail"]


@given(st.text(alphabet='ab,"1.e-\n\r;\x00é', max_size=40))
@settings(max_examples=80)
def test_any_text_is_a_table_or_refused_in_words(shared_service, text):
    for start in ("", 'length,"wi,dth"\n', 'length,"wi,dth"\n1,2\n'):
        answer = post(shared_service, (start + text).encode(), CSV)
        assert answer.status_code in (200, 422), answer.text


def test_compressed_arrow_is_refused(shared_service):
    zeros = pa.table({name: np.zeros(1000) for name in COLUMNS})
    answer = post(shared_service, arrow(zeros, compression="zstd"), ARROW)
    assert answer.status_code == 415
    assert "compressed" in answer.json()["detail"]
    assert post(shared_service, arrow(zeros), ARROW).status_code == 200
    coded = pa.table({"c": pa.array(["a", "b", "a"]).dictionary_encode()})
    flags = [
        [is_compressed(m.metadata.to_pybytes()) for m in pa.ipc.MessageReader.open_stream(arrow(coded, **options))]
        for options in ({}, {"compression": "lz4"})
    ]
    assert flags == [[False, False, False], [False, True, True]]


def test_formats_and_encodings_that_are_not_offered(shared_service):
    assert post(shared_service, NAMED, "application/x-pickle").status_code == 415
    assert post(shared_service, NAMED, accept="image/png").status_code == 415
    assert post(shared_service, NAMED, content_encoding="gzip").status_code == 415
    assert ask(shared_service, "GET", "/predict").status_code == 405
    missing = ask(shared_service, "GET", "/nothing")
    assert missing.status_code == 404
    assert "there is no /nothing" in missing.json()["detail"]


def test_limits_on_size(path):
    service = service_of(path, Limits(max_bytes=300, max_rows=2))
    assert post(service, NAMED).status_code == 413
    few = {"rows": NAMED["rows"][:1]}
    assert post(service, few).status_code == 200
    assert post(service, {"rows": few["rows"] * 30}).status_code == 413

    async def pieces():
        for _ in range(10):
            yield b"x" * 100

    answer = ask(service, "POST", "/predict", content=pieces(), headers={"content-type": JSON})
    assert answer.status_code == 413
    assert answer.headers["connection"] == "close"


def test_limits_on_rate(path):
    service = service_of(path, Limits(rate=0.001, burst=3))
    answers = [post(service, NAMED) for _ in range(4)]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
    assert int(answers[-1].headers["retry-after"]) > 100
    assert ask(service, "GET", "/schema").status_code == 429
    assert ask(service, "GET", "/health").status_code == 200


def test_tokens(path, tmp_path):
    file = tmp_path / "tokens"
    token, other = new_token(file, "anna"), new_token(file, "bert")
    assert token not in file.read_text()
    with pytest.raises(KeysError, match="already has a token"):
        new_token(file, "anna")
    service = service_of(path, Limits(rate=0.001, burst=2), tokens=Tokens(file))
    for header in ({}, {"authorization": "Bearer wrong"}, {"authorization": f"Basic {token}"}):
        answer = post(service, NAMED, **header)
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"] == "Bearer"
    for url in ("/schema", "/openapi.json", "/metrics"):
        assert ask(service, "GET", url).status_code == 401
    for url in ("/", "/health"):
        answer = ask(service, "GET", url)
        assert answer.status_code == 200
        assert "length" not in re_columns(answer.text)
    assert post(service, NAMED, authorization=f"Bearer {token}").status_code == 200
    assert post(service, NAMED, authorization=f"bearer {token}").status_code == 200
    assert post(service, NAMED, authorization=f"Bearer {token}").status_code == 429
    assert post(service, NAMED, authorization=f"Bearer {other}").status_code == 200
    file.write_text("".join(line for line in file.read_text().splitlines(True) if not line.startswith("bert")))
    asyncio.run(service.refresh())
    assert post(service, NAMED, authorization=f"Bearer {other}").status_code == 401
    file.write_text("anna\n")
    asyncio.run(service.refresh())
    assert post(service, NAMED, authorization=f"Bearer {token}").status_code == 429
    with pytest.raises(KeysError, match="line 1"):
        Tokens(file)


def test_the_access_log_names_whose_token_was_used(path, tmp_path, caplog):
    token = new_token(tmp_path / "tokens", "anna")
    service = service_of(path, tokens=Tokens(tmp_path / "tokens"))
    with caplog.at_level("INFO", logger="dekrr.serving.access"):
        post(service, NAMED, authorization=f"Bearer {token}")
        post(service, NAMED, authorization="Bearer wrong")
    lines = [record.getMessage() for record in caplog.records if record.name == "dekrr.serving.access"]
    assert [line.split()[0] for line in lines] == ["anna", "127.0.0.1"]
    assert token not in "".join(lines)


def re_columns(text):
    """Return the words of a page that could be column names of the model."""
    return [word for word in COLUMNS if f">{word}<" in text or f'"{word}"' in text]


def test_a_web_page_cannot_ask_through_a_browser(path):
    service = service_of(path)
    for host, status in (("localhost:8080", 200), ("127.0.0.1", 200), ("[::1]:80", 200), ("evil.example", 421)):
        answer = ask(service, "POST", "/predict", host=f"http://{host}", json=NAMED)
        assert answer.status_code == status
        assert ask(service, "GET", "/schema", host=f"http://{host}").status_code == status
        assert "access-control-allow-origin" not in answer.headers


def test_schema_and_openapi_follow_the_model(shared_service):
    schema = ask(shared_service, "GET", "/schema").json()
    assert [column["name"] for column in schema["columns"]] == COLUMNS
    assert schema["columns"][0] | {"lower": -1.0, "upper": 1.0} == schema["columns"][0]
    for media_type, example in schema["example"].items():
        body = example if isinstance(example, dict) else example.encode()
        assert post(shared_service, body, media_type).status_code == 200
    api = ask(shared_service, "GET", "/openapi.json").json()
    assert set(api["paths"]) == {"/predict", "/schema", "/health", "/metrics"}
    row = api["components"]["schemas"]["Row"]
    assert row["required"] == COLUMNS
    assert not schema["intervals"]
    answer = post(shared_service, NAMED, url="/predict?coverage=0.9")
    assert answer.status_code == 422
    assert "no intervals" in answer.json()["detail"]
    assert "coverage must be" in post(shared_service, NAMED, url="/predict?coverage=2").json()["detail"]
    assert "unknown parameter" in post(shared_service, NAMED, url="/predict?x=2").json()["detail"]


def documented(service, name):
    """Return the schema of a part of the OpenAPI description, with the parts that it refers to."""
    api = ask(service, "GET", "/openapi.json").json()
    operation = api["paths"]["/predict"]["post"]
    parts = {"request": operation["requestBody"]["content"][JSON]["schema"]}
    parts["answer"] = operation["responses"]["200"]["content"][JSON]["schema"]
    parts["problem"] = {"$ref": "#/components/schemas/Problem"}
    return jsonschema.Draft202012Validator({**parts[name], "components": api["components"]}), operation


ANY_VALUE = st.one_of(
    st.none(), st.booleans(), st.integers(-9, 9), st.floats(-1e6, 1e6), st.sampled_from(["N", "", "2026-03-01"])
)


@given(st.lists(st.fixed_dictionaries({}, optional=dict.fromkeys(FRAME.columns, ANY_VALUE)), max_size=3), st.data())
@settings(max_examples=150)
def test_the_answers_of_the_service_are_those_of_its_schema(raw_service, rows, data):
    """What the description allows is answered, what it forbids is refused, and both as it says."""
    complete = data.draw(st.booleans())
    rows = [{name: row.get(name) for name in FRAME.columns} for row in rows] if complete else rows
    body = {"rows": rows}
    request, operation = documented(raw_service, "request")
    answer = post(raw_service, body, url="/predict?coverage=0.8")
    allowed = request.is_valid(body)
    if allowed and any(not isinstance(row["when"], str | None) or row["when"] in ("N", "") for row in rows):
        allowed = False  # words that are no date, which a schema cannot tell
    assert answer.status_code == (200 if allowed else 422), (body, answer.text)
    assert str(answer.status_code) in operation["responses"]
    schema, _ = documented(raw_service, "answer" if allowed else "problem")
    schema.validate(answer.json())


@pytest.fixture(scope="module")
def raw_service(raw_model, tmp_path_factory):
    path = tmp_path_factory.mktemp("raw") / "m.safetensors"
    raw_model.save(path)
    return service_of(path)


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS", "POST", "TRACE"])
def test_another_method_is_refused_with_those_that_may_be_used(shared_service, method):
    for path, known in ask(shared_service, "GET", "/openapi.json").json()["paths"].items():
        allowed = {name.upper() for name in known} | ({"HEAD"} if "get" in known else set())
        answer = ask(shared_service, method, path)
        if method in allowed:
            assert answer.status_code != 405
        else:
            assert answer.status_code == 405
            assert set(answer.headers["allow"].split(", ")) == allowed, path


@pytest.mark.parametrize("n_outputs", [None, 2])
def test_intervals_where_the_model_has_them(tmp_path, monkeypatch, n_outputs):
    model = make_model(n_outputs=n_outputs)
    model.save(tmp_path / "m.safetensors")

    def interval_encoded(X, coverage):
        if coverage > 0.99:
            return np.full((len(X), 2, *model.coefficients.shape[1:]), np.inf)
        return np.stack([model.predict(X) - coverage, model.predict(X) + coverage], axis=1)

    names = (
        "header",
        "members",
        "joined_at_home",
        "home",
        "scaling",
        "response",
        "coefficients",
        "predict",
        "predict_encoded",
    )
    parts = {name: getattr(model, name) for name in names}
    able = SimpleNamespace(**parts, calibration=object(), interval_encoded=interval_encoded)
    monkeypatch.setattr("dekrr.serving.current.load", lambda path: able)
    service = service_of(tmp_path / "m.safetensors")
    answer = post(service, NAMED, url="/predict?coverage=0.5").json()
    np.testing.assert_allclose(np.subtract(answer["upper"], answer["lower"]), np.ones_like(answer["predictions"]))
    np.testing.assert_allclose(np.add(answer["upper"], answer["lower"]), 2 * np.array(answer["predictions"]))
    table = pd.read_csv(io.BytesIO(post(service, NAMED, url="/predict?coverage=0.5", accept=CSV).content))
    last = "" if n_outputs is None else "_1"
    np.testing.assert_allclose(table[f"lower{last}"], table[f"prediction{last}"] - 0.5)
    unbounded = post(service, NAMED, url="/predict?coverage=0.999").json()["upper"]
    assert np.ravel(unbounded).tolist() == [None] * 3 * (n_outputs or 1)
    assert ask(service, "GET", "/openapi.json").json()["paths"]["/predict"]["post"]["parameters"]
    assert ask(service, "GET", "/schema").json()["intervals"]


def test_an_end_that_too_few_held_out_rows_know_is_null(tmp_path):
    model = make_model()
    n_features = model.feature_map.n_features
    scale = Scale(np.zeros(1), np.zeros((n_features, 1)), np.zeros(n_features))
    counts = histogram(np.linspace(0.1, 2, 20)[:, None])
    calibration = Calibration(scale, counts, np.zeros((N_BINS, 1)))
    replace(model, calibration=calibration).save(tmp_path / "m.safetensors")
    service = service_of(tmp_path / "m.safetensors")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.isfinite(post(service, NAMED, url="/predict?coverage=0.9").json()["lower"]).all()
        answer = post(service, NAMED, url="/predict?coverage=0.99").json()
    assert answer["lower"] == answer["upper"] == [None] * 3
    assert np.isfinite(answer["predictions"]).all()


def test_metrics(path):
    service = service_of(path)
    post(service, NAMED)
    post(service, b"{")
    lines = dict(
        line.rsplit(" ", 1) for line in ask(service, "GET", "/metrics").text.splitlines() if not line.startswith("#")
    )
    assert lines['dekrr_requests_total{status="200"}'] == "1.0"
    assert lines['dekrr_requests_total{status="400"}'] == "1.0"
    assert lines["dekrr_rows_total"] == "3.0"
    assert lines["dekrr_request_seconds_count"] == "1.0"
    assert lines['dekrr_request_seconds_bucket{le="+Inf"}'] == "1.0"


def test_the_file_of_a_path(tmp_path):
    with pytest.raises(DataError, match="has no model"):
        find_model(tmp_path)
    for name in ("a", "b"):
        make_model().save(tmp_path / f"{name}.safetensors")
    with pytest.raises(DataError, match="2 models, one for each site"):
        find_model(tmp_path)
    (tmp_path / "versions" / "3").mkdir(parents=True)
    third = tmp_path / "versions" / "3" / "model.safetensors"
    make_model().save(third)
    (tmp_path / "current").write_text("3\n")
    assert find_model(tmp_path) == third
    (tmp_path / "current").write_text("../../etc/passwd")
    with pytest.raises(DataError, match="names the version"):
        find_model(tmp_path)
    (tmp_path / "current").unlink()
    (tmp_path / "current").symlink_to("versions/3")
    assert find_model(tmp_path) == third.resolve()
    (tmp_path / "current").unlink()
    (tmp_path / "current").symlink_to("a.safetensors")
    assert find_model(tmp_path) == (tmp_path / "a.safetensors").resolve()


def test_a_damaged_newer_model_changes_nothing(path):
    service = service_of(path)
    before = post(service, NAMED).content
    path.write_bytes(b"half a model")
    asyncio.run(service.refresh())
    asyncio.run(service.refresh())
    assert post(service, NAMED).content == before
    assert ask(service, "GET", "/health").json()["status"] == "stale"
    assert "dekrr_reload_failures_total 1.0" in ask(service, "GET", "/metrics").text
    path.unlink()
    asyncio.run(service.refresh())
    assert post(service, NAMED).content == before
    make_model(1).save(path)
    asyncio.run(service.refresh())
    assert ask(service, "GET", "/health").json()["status"] == "ok"
    assert post(service, NAMED).content != before


@contextmanager
def running(path, limits=None, **place):
    """Run a server in a thread on a port that the system gives it."""
    server = server_of(path, Place(port=0, **place), limits or Limits(), watch=0.02)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        until = time.monotonic() + 30
        while not server.started and time.monotonic() < until:
            time.sleep(0.02)
        assert server.started
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(60)


def test_a_newer_model_under_load_loses_no_request(tmp_path):
    """Four clients ask without a pause while `current` turns from version to version. Each answer is whole."""
    models = {str(i): make_model(i) for i in range(6)}
    for name, model in models.items():
        (tmp_path / "versions" / name).mkdir(parents=True)
        model.save(tmp_path / "versions" / name / "model.safetensors")
    (tmp_path / "current").write_text("0")
    wanted = {name: model.predict(np.array(ROWS)) for name, model in models.items()}
    over = threading.Event()
    answers, errors = [], []

    def client(port, rows):
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as connection:
                while not over.is_set():
                    answers.append((rows, connection.post("/predict", json={"rows": NAMED["rows"] * rows})))
        except Exception as error:
            errors.append(error)

    with running(tmp_path) as port:
        clients = [threading.Thread(target=client, args=(port, rows)) for rows in (1, 1, 1, 400)]
        for thread in clients:
            thread.start()
        for name in [*models, *models]:
            (tmp_path / "next").write_text(name)
            (tmp_path / "next").replace(tmp_path / "current")
            turned = len(answers)
            digest = hashlib.sha256((tmp_path / "versions" / name / "model.safetensors").read_bytes()).hexdigest()
            wait_for(lambda n=turned, d=digest[:12]: errors or d in {a.headers["dekrr-model"] for _, a in answers[n:]})
        wait_for(lambda: errors or {rows for rows, _ in answers} == {1, 400})
        over.set()
        for thread in clients:
            thread.join(60)
    assert not errors
    assert {answer.status_code for _, answer in answers} == {200}
    seen = {}
    for rows, answer in answers:
        found = np.array(answer.json()["predictions"])
        (name,) = [n for n, values in wanted.items() if np.allclose(found, np.tile(values, rows), rtol=1e-9)]
        assert seen.setdefault(answer.headers["dekrr-model"], name) == name
    assert sorted(seen.values()) == sorted(models)


def half_open(port, count):
    sockets = [socket.create_connection(("127.0.0.1", port), timeout=30) for _ in range(count)]
    for number, one in enumerate(sockets):
        if number % 2:
            one.sendall(b"GET /health HTTP/1.1\r\nhost: local")
    return sockets


def is_closed(one):
    try:
        return one.recv(1000) == b""
    except ConnectionError:
        return True


def test_half_open_connections_do_not_keep_others_out(path, monkeypatch):
    monkeypatch.setattr(server_module, "_MOST_WAITING", 20)
    with running(path) as port, httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
        sockets = half_open(port, 60)
        assert client.get("/health").status_code == 200
        assert all(is_closed(one) for one in sockets[:39])
        sockets[-1].sendall(b"host\r\n\r\n")
        assert sockets[-1].recv(1000).startswith(b"HTTP/1.1 200")
        for _ in range(5):
            assert client.post("/predict", json=NAMED).status_code == 200
        for one in sockets:
            one.close()


def test_headers_that_do_not_arrive_or_do_not_end_are_given_up(path, monkeypatch):
    monkeypatch.setattr(server_module, "_SECONDS_TO_ARRIVE", 0.3)
    with running(path) as port:
        for one in half_open(port, 2):
            assert is_closed(one)
            one.close()
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
            assert client.get("/health").status_code == 200
            time.sleep(0.6)
            assert client.get("/health").status_code == 200, "a connection that has asked before may pause"
    monkeypatch.setattr(server_module, "_SECONDS_TO_ARRIVE", 30.0)
    with running(path) as port, socket.create_connection(("127.0.0.1", port), timeout=30) as one:
        one.sendall(b"GET /health HTTP/1.1\r\n")
        with suppress(ConnectionError):
            for number in range(400):
                one.sendall(b"x-%d: " % number + 1000 * b"x" + b"\r\n")
        assert is_closed(one)


def test_a_slow_body_is_given_up(path):
    with (
        running(path, Limits(seconds_for_body=0.3)) as port,
        socket.create_connection(("127.0.0.1", port), timeout=30) as client,
    ):
        client.sendall(b"POST /predict HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{")
        assert client.recv(1000).startswith(b"HTTP/1.1 408")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """An authority, and certificates of a server and of a caller."""
    folder = tmp_path_factory.mktemp("keys")
    authority = keys.Authority.new("trial")
    authority.save(folder)
    for name in ("server", "caller"):
        key, request = keys.new_request(name, "127.0.0.1")
        (folder / f"{name}-request.pem").write_bytes(request)
        (folder / f"{name}-key.pem").write_bytes(key)
        signed = authority.sign(keys.read_request(folder / f"{name}-request.pem"))
        (folder / f"{name}.pem").write_bytes(signed)
    return folder


def test_mutual_tls(path, certificates):
    place = {"certificate": certificates / "server.pem", "key": certificates / "server-key.pem"}
    with running(path, authority=certificates / "authority.pem", **place) as port:
        trusting = ssl.create_default_context(cafile=str(certificates / "authority.pem"))
        trusting.verify_flags |= ssl.VERIFY_X509_STRICT  # the default from Python 3.13 on
        with pytest.raises((httpx.HTTPError, ssl.SSLError)):
            httpx.post(f"https://127.0.0.1:{port}/predict", json=NAMED, verify=trusting)
        with pytest.raises(httpx.HTTPError):
            httpx.post(f"http://127.0.0.1:{port}/predict", json=NAMED)
        trusting.load_cert_chain(certificates / "caller.pem", certificates / "caller-key.pem")
        assert httpx.post(f"https://127.0.0.1:{port}/predict", json=NAMED, verify=trusting).status_code == 200


def test_other_machines_need_tokens_or_certificates(path, certificates, tmp_path):
    tls = {"certificate": certificates / "server.pem", "key": certificates / "server-key.pem"}
    tokens = {"tokens": tmp_path / "tokens"}
    new_token(tokens["tokens"], "anna")
    for place in ({}, tls, {"behind_proxy": True}):
        with pytest.raises(SettingsError, match="reached from other machines"):
            server_of(path, Place(host="0.0.0.0", **place), Limits())
    with pytest.raises(SettingsError, match="in the clear"):
        server_of(path, Place(host="0.0.0.0", **tokens), Limits())
    for place in ({**tokens, **tls}, {**tokens, "behind_proxy": True}):
        server_of(path, Place(host="0.0.0.0", **place), Limits())
    server_of(path, Place(host="::", **tls, authority=certificates / "authority.pem"), Limits())
    with pytest.raises(SettingsError, match="belong together"):
        server_of(path, Place(certificate=tls["certificate"]), Limits())
    with pytest.raises(SettingsError, match="certificates cannot be used"):
        server_of(path, Place(certificate=tls["key"], key=tls["key"]), Limits())


def dekrr(*arguments, **options):
    command = [sys.executable, "-c", "from dekrr.cli import main; main()", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


def test_the_command(path):
    """It serves, reads a newer model on SIGHUP, and ends on SIGTERM."""
    (port,) = free_ports(1)
    process = dekrr("serve", path, "--port", port, "--watch", "0")
    try:
        address = f"http://127.0.0.1:{port}"
        assert address in process.stderr.readline()
        first = wait_for(lambda: httpx.get(f"{address}/health").json()["model"])
        make_model(1).save(path)
        assert httpx.post(f"{address}/predict", json=NAMED).headers["dekrr-model"] == first
        process.send_signal(signal.SIGHUP)
        assert wait_for(lambda: (now := httpx.get(f"{address}/health").json()["model"]) != first and now)
        second = dekrr("serve", path, "--port", port)
        assert "cannot listen on" in second.communicate(timeout=60)[1]
        assert second.returncode == 1
        process.terminate()
        assert process.wait(60) == -signal.SIGTERM
    finally:
        process.kill()
        process.wait(10)


def test_a_service_imports_no_scikit_learn():
    code = (
        "import sys; from dekrr.serving import commands, server; print({'sklearn', 'pandas', 'zenoh'} & {*sys.modules})"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "set()"


def wait_for(something, seconds=60):
    until = time.monotonic() + seconds
    while True:
        try:
            found = something()
            if found:
                return found
        except httpx.TransportError:
            pass
        assert time.monotonic() < until, "nothing came"
        time.sleep(0.05)


def test_the_command_for_tokens(tmp_path):
    file = tmp_path / "tokens"
    process = dekrr("keys", "token", "anna", "--file", file, env={**os.environ, "COLUMNS": "200"})
    out, _ = process.communicate(timeout=60)
    assert Tokens(file).caller(f"Bearer {out.strip()}") == "anna"
    assert Path(file).stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("wanted", [JSON, CSV, ARROW])
def test_classes_come_with_their_probabilities(tmp_path, n_classes, wanted):
    classes = ["calm", "breeze", "gale"][:n_classes]
    codes = make_model(n_outputs=n_classes if n_classes > 2 else None)
    calibration = ClassCalibration(Platt(3.0, np.arange(float(n_classes))), np.ones(9), np.ones(9))
    model = SiteClassifier.of(codes, classes, calibration, "wind")
    model.save(tmp_path / "model.safetensors")
    service = service_of(tmp_path / "model.safetensors")
    for n_rows in (1, 3):  # one row has a way of its own
        answer = post(service, {"rows": NAMED["rows"][:n_rows]}, accept=wanted)
        assert answer.status_code == 200, answer.text
        if wanted == JSON:
            found, shares = answer.json()["predictions"], answer.json()["probabilities"]
        else:
            read = pa.ipc.open_stream(answer.content).read_all().to_pandas() if wanted == ARROW else None
            table = pd.read_csv(io.BytesIO(answer.content)) if read is None else read
            found, shares = table.prediction.tolist(), {name: table[f"probability_{name}"] for name in classes}
        rows = np.array(ROWS)[:n_rows]
        assert found == model.predict(rows).tolist()
        np.testing.assert_allclose(np.column_stack([shares[name] for name in classes]), model.predict_proba(rows))
    schema = ask(service, "GET", "/schema").json()
    assert (schema["classes"], schema["targets"], schema["intervals"]) == (classes, ["wind"], False)
    assert ask(service, "GET", "/openapi.json").status_code == 200
    assert post(service, NAMED, url="/predict?coverage=0.9").status_code == 422
