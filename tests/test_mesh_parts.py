"""What the estimators train, over the mesh: all parts of a model, and what a lost site or a restart does to them."""

import json
import socket
import subprocess
import sys
import urllib.request
from contextlib import nullcontext

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from dekrr import DeKRRRegressor
from dekrr.cli.app import app
from dekrr.data import make_sites
from dekrr.errors import DataError, SettingsError
from dekrr.estimators.network import seed_of
from dekrr.mesh.files import read_site
from dekrr.mesh.node import MODEL
from dekrr.privacy.admission import kept
from meshes import Mesh, free_ports, wait_until

COLUMNS = ["u", "v", "w"]
SIZES = {"n_features": 12, "seed": seed_of(0)}


def mesh_of(folder, n_sites=4, settings=None, rows=120, **more):
    """Return a mesh of sites along a coast, with the settings of a deployment but for `SIZES`."""
    settings = {"lone_neighbor": "refuse", **(settings or {})}
    X, y, labels = make_sites(n_sites=n_sites, rows_per_site=rows, random_state=0)
    mesh = Mesh(folder, n_sites, settings={**SIZES, **settings}, defaults=True, data={"columns": COLUMNS}, **more)
    for name, label in zip(mesh.names, sorted(set(labels.tolist())), strict=True):
        own = labels == label
        mesh.rows[name] = X[own], y[own]
        pd.DataFrame(X[own], columns=COLUMNS).assign(y=y[own]).to_parquet(mesh.folder / f"{name}.parquet")
    return mesh


def estimated(mesh, **changes):
    """Return the estimator of the same rows, under a deployment's guards."""
    X = np.concatenate([mesh.rows[name][0] for name in mesh.names])
    y = np.concatenate([mesh.rows[name][1] for name in mesh.names])
    sites = np.repeat(mesh.names, [len(mesh.rows[name][1]) for name in mesh.names])
    edges = [tuple(sorted(edge)) for edge in mesh.graph.edges]
    regressor = DeKRRRegressor(topology=edges, random_state=0, deployment=True, **{"n_features": 12, **changes})
    return regressor.fit(pd.DataFrame(X, columns=COLUMNS), y, sites=sites)


def check_same(model, expected, rows):
    """Compare a node's model with the estimator's, part by part."""
    assert model.header.parts == expected.header.parts
    assert model.header.sigma == pytest.approx(expected.header.sigma, rel=1e-12)
    assert model.home.own_weight == pytest.approx(expected.home.own_weight, rel=1e-9)
    np.testing.assert_allclose(model.home.level, expected.home.level, rtol=0, atol=1e-9)
    if expected.header.column_scales is not None:
        np.testing.assert_allclose(model.header.column_scales, expected.header.column_scales, rtol=1e-9)
    for own, other in zip(model.members, expected.members, strict=True):
        assert own.weight == other.weight
        np.testing.assert_allclose(own.feature_map.frequencies, other.feature_map.frequencies, rtol=1e-9)
    np.testing.assert_allclose(model.predict(rows), expected.predict(rows), rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"shared": "none", "column_scales": "none", "sigma": 0.5, "alpha": 1e-3, "consensus": 1.0},
        {"local": "none", "shared": 10, "column_scales": [1.0, 0.5, 0.25]},
    ],
)
def test_nodes_train_the_model_that_the_estimator_trains(tmp_path, settings, open_folds):
    mesh = mesh_of(tmp_path, settings=settings)
    _, errors = mesh.run_in_threads()
    assert set(errors.values()) == {None}, errors
    given = {key: None if value == "none" else value for key, value in settings.items()}
    reference = estimated(mesh, **given)
    rows = pd.DataFrame(np.random.default_rng(0).uniform(size=(30, 3)), columns=COLUMNS)
    for name in mesh.names:
        check_same(mesh.model(name), reference.models_[name], rows)
    parts = [part for name in mesh.names for part in mesh.model(name).header.parts]
    assert ("shared" in parts) == (settings.get("shared") != "none")
    has_local = [mesh.model(name).home.local is not None for name in mesh.names]
    assert any(has_local) == (settings.get("local") != "none")


def test_intervals_of_nodes_are_those_of_the_estimator(tmp_path, open_folds):
    settings = {"intervals": True, "n_features": 8, "shared": 10}
    mesh = mesh_of(tmp_path, n_sites=3, rows=200, settings=settings)
    _, errors = mesh.run_in_threads()
    assert set(errors.values()) == {None}, errors
    reference = estimated(mesh, intervals=True, n_features=8, shared=10)
    X, y, _ = make_sites(n_sites=3, rows_per_site=200, random_state=1)
    rows = pd.DataFrame(X, columns=COLUMNS)
    for name in mesh.names:
        model, expected = mesh.model(name), reference.models_[name]
        np.testing.assert_array_equal(model.calibration.pooled, expected.calibration.pooled)
        found = model.predict_interval(rows, coverage=0.9)
        np.testing.assert_allclose(found, expected.predict_interval(rows, coverage=0.9), rtol=0, atol=1e-9)
    own = slice(0, 200)
    ends = mesh.model("s00").predict_interval(rows[own])
    assert np.mean((ends[:, 0] <= y[own]) & (y[own] <= ends[:, 1])) > 0.7
    rows.to_csv(tmp_path / "new.csv", index=False)
    out = str(tmp_path / "out.csv")
    command = ["predict", str(mesh.home("s00") / MODEL), str(tmp_path / "new.csv"), "--interval", "0.9", "--out", out]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    new = pd.read_csv(out)
    np.testing.assert_allclose(new[["prediction_lower", "prediction_upper"]][own], ends, rtol=1e-9)
    served = served_intervals(mesh.home("s00") / MODEL, rows[own])
    np.testing.assert_allclose(served, ends, rtol=1e-9)


def served_intervals(path, rows):
    """Return the ends of 90 % intervals that the command `dekrr serve` answers with, over loopback."""
    (port,) = free_ports(1)
    command = [sys.executable, "-c", "from dekrr.cli import main; main()", "serve", str(path), "--port", str(port)]
    body = json.dumps({"rows": rows.to_dict("records")}).encode()
    url = f"http://127.0.0.1:{port}/predict?coverage=0.9"
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as server:
        try:
            wait_until(lambda: is_open(port))
            request = urllib.request.Request(url, body, {"content-type": "application/json"})
            with urllib.request.urlopen(request, timeout=60) as reply:
                answer = json.load(reply)
        finally:
            server.terminate()
    return np.column_stack([answer["lower"], answer["upper"]])


def is_open(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_the_model_of_a_node_predicts_with_its_withheld_rows_in_the_local_part_alone(tmp_path, open_folds):
    mesh = mesh_of(tmp_path, n_sites=3)
    X, y = mesh.rows["s00"]
    X, y = np.vstack([X, np.full((1, 3), 40.0)]), np.append(y, 9.0)  # a row that stands alone
    pd.DataFrame(X, columns=COLUMNS).assign(y=y).to_parquet(mesh.folder / "s00.parquet")
    nodes, errors = mesh.run_in_threads()
    assert set(errors.values()) == {None}, errors
    assert nodes["s00"].n_rows == len(y)
    finished = mesh.model("s00")
    with_row = {name: mesh.model(name) for name in mesh.names}
    for other in ("s01", "s02"):  # the others have no trace of the row
        assert with_row[other].header.parts.count("shared") == 1
    shared = [model.members[model.header.parts.index("shared")].coefficients for model in with_row.values()]
    np.testing.assert_array_equal(shared[0], shared[1])
    mesh.rows["s00"] = X[:-1], y[:-1]
    reference = estimated(mesh)
    expected = reference.models_["s00"]
    part = expected.header.parts.index("shared")
    np.testing.assert_allclose(shared[0], expected.members[part].coefficients, rtol=0, atol=1e-9)
    rows = pd.DataFrame(X[:20], columns=COLUMNS)
    np.testing.assert_allclose(
        finished.without_local().predict(rows), expected.without_local().predict(rows), rtol=0, atol=1e-9
    )


@pytest.mark.slow
def test_the_others_begin_again_when_a_site_is_lost_and_a_restart_changes_nothing(tmp_path):
    mesh = mesh_of(tmp_path, settings={"max_rounds": 400, "tol": 0.0, "lone_neighbor": "warn"}, patience=4.0)
    processes = {name: mesh.process(name) for name in mesh.names}

    def in_rounds(name):
        path = mesh.home(name) / "run.jsonl"
        return path.exists() and any(event.get("round", 0) > 2 for event in mesh.events(name))

    wait_until(lambda: all(in_rounds(name) for name in mesh.names))
    processes["s01"].kill()  # it comes back from its checkpoint
    processes["s01"].join()
    processes["s01"] = mesh.process("s01")
    wait_until(lambda: any(event["event"] == "resumed" for event in mesh.events("s01")))
    processes["s03"].kill()  # it does not
    processes["s03"].join()
    left = [name for name in mesh.names if name != "s03"]
    for name in left:
        processes[name].join(120)
        assert processes[name].exitcode == 0, (mesh.home(name) / "log").read_text()
    assert not (mesh.home("s03") / MODEL).exists()
    finished = {name: next(e for e in reversed(mesh.events(name)) if e["event"] == "finished") for name in left}
    without = all(event["gone"] == ["s03"] for event in finished.values())
    assert without, finished
    expected, _ = mesh.reference(without=["s03"])
    for name in left:
        model = mesh.model(name)
        shared = model.members[model.header.parts.index("shared")]
        np.testing.assert_allclose(shared.coefficients, expected[name].shared.coefficients, rtol=0, atol=1e-7)
        np.testing.assert_allclose(model.home.level, expected[name].home.level, rtol=0, atol=1e-7)
        np.testing.assert_allclose(model.coefficients, expected[name].coefficients, rtol=0, atol=1e-7)


def test_mistakes_in_parts_are_told_before_a_run(tmp_path):
    mesh = mesh_of(tmp_path, n_sites=2, settings={"lone_neighbor": "warn"})
    text = (mesh.home("s00") / "site.toml").read_text()
    for line, words in {
        "shared = 0": "shared is 0; it must be",
        "column_scales = [1.0, 0.5]": "column_scales has 2 numbers for 3 columns",
        'scale = "none"': 'scale is "none": masks hide only numbers of known size',
        'local = "nothing"': "local is 'nothing'; it must be",
        'features = "plain"\nbounds = [[0, 0, 0, 0], [1, 1, 1, 1]]\nprivacy = { epsilon = 1.0 }\nshared = 5': (
            "settings.shared: the privacy budget does not pay for this part"
        ),
    }.items():
        (mesh.home("s00") / "site.toml").write_text(text.replace("[settings]\n", f"[settings]\n{line}\n"))
        with pytest.raises(SettingsError) as refusal:
            read_site(mesh.home("s00") / "site.toml")
        assert words in str(refusal.value)


def test_a_prototype_tells_that_the_second_training_would_be_refused():
    X, y, sites = make_sites(n_sites=3, rows_per_site=120, random_state=0)
    settings = {"n_features": 12, "random_state": 0, "deployment": True}
    assert DeKRRRegressor(**settings).fit(X, y, sites=sites).deployment_
    words = "refuse 3 of 3 sites.*second training, for intervals or classes, leaves.*sums of its 12 features"
    with pytest.raises(DataError, match=words):
        DeKRRRegressor(**settings, intervals=True).fit(X, y, sites=sites)


def test_too_few_rows_for_a_second_training_are_refused_before_anything_is_sent(tmp_path, monkeypatch):
    mesh = mesh_of(tmp_path, n_sites=3, settings={"intervals": True})
    before = (mesh.home("s01") / "site.toml").read_text()
    monkeypatch.setattr("dekrr.mesh.driving.MeshNetwork.run", lambda *_: pytest.fail("the node speaks to others"))
    with pytest.raises(DataError) as refusal:
        mesh.node("s01").run()
    n_rows, text = len(mesh.rows["s01"][1]), str(refusal.value)
    n_alone = n_rows - int(kept(next(mesh.home("s01").glob("admission-*")), None, 3)(mesh.rows["s01"][0]).sum())
    n_out = -(-n_rows // 5)
    n_left = n_rows - n_out - n_alone
    alone = f", and {n_alone} stand alone" if n_alone else ""
    for words in (
        f"site 's01' has {n_rows} rows. The second training, for intervals or classes, leaves {n_out} of",
        f"{n_out} of them out{alone}.",
        f"The other {n_left} are too few for sums of its 12 features and the 12 of a neighbour, which need 144",
        "6 rows per feature, 4 times rows_per_feature=1.5",
        f"n_features={n_left // 12} would do",
    ):
        assert words in text
    fits = n_left // 12
    for n_features, refused in ((fits, False), (fits + 1, True)):  # what it advises is the most that is not refused
        (mesh.home("s01") / "site.toml").write_text(before.replace("n_features = 12", f"n_features = {n_features}"))
        with pytest.raises(DataError, match="The second") if refused else nullcontext():
            mesh.node("s01").close()


def test_a_prototype_withholds_the_rows_that_a_node_withholds(tmp_path):
    """Also where columns are not in the order of their names: the rule depends on the order."""
    rng = np.random.default_rng(3)
    X = rng.standard_t(2, size=(360, 3)) * (1, 1, 5)
    y, sites = X[:, 0] + np.sin(X[:, 2]), np.repeat(["s00", "s01", "s02"], 120)
    frame = pd.DataFrame(X, columns=["z", "m", "a"])
    mesh = Mesh(tmp_path, 3, settings={**SIZES, "n_features": 8}, defaults=True, data={"columns": ["z", "m", "a"]})
    fitted = DeKRRRegressor(n_features=8, random_state=0, deployment=True).fit(frame, y, sites=sites)
    n_withheld = {}
    for name in mesh.names:
        own = sites == name
        frame[own].assign(y=y[own]).to_parquet(mesh.folder / f"{name}.parquet")
        node = mesh.node(name)
        node.close()
        n_withheld[name] = 120 - node._own._admission(node._own.rows.sample.X).sum()
    assert {name: verdict.n_withheld for name, verdict in fitted.deployment_.items()} == n_withheld
    assert min(n_withheld.values()) > 0
