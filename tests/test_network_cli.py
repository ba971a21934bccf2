import io
import json
import os
import re
import signal
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import networkx as nx
import numpy as np
import pandas as pd
import pytest
from cryptography import x509
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rich.console import Console
from typer.testing import CliRunner

from dekrr import DeKRRRegressor, DifferentialPrivacy, load
from dekrr.cli.app import app
from dekrr.errors import DataError, KeysError, SettingsError
from dekrr.mesh.commands import up
from dekrr.mesh.files import read_network, read_site, to_toml
from dekrr.mesh.keys import Authority, check, host_of, read_request, site_of
from dekrr.mesh.site_rows import row_hash
from dekrr.protocols.site import Site
from dekrr.settings import grid_of
from meshes import Mesh, free_ports, wait_until

runner = CliRunner()


def run(*words):
    result = runner.invoke(app, [str(word) for word in words])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture
def trial(tmp_path):
    run("network", "example", tmp_path / "trial", "--sites", 3, "--port", free_ports(1)[0])
    return tmp_path / "trial"


def test_three_commands_from_nothing_to_models(trial):
    run("network", "init", trial / "network.toml")
    command = [sys.executable, "-c", "from dekrr.cli import main; main()", "up", str(trial / "network.toml")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, env={**os.environ, "COLUMNS": "150"})
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 models in" in done.stdout
    models = [load(path) for path in sorted(trial.glob("sites/*/model.safetensors"))]
    assert [model.header.site for model in models] == ["station-00", "station-01", "station-02"]
    assert np.isfinite(models[0].predict(np.full((2, 3), 0.5))).all()


def test_a_trial_tells_how_good_its_models_are(trial):
    path = trial / "network.toml"
    path.write_text(path.read_text().replace("n_features = 30", "n_features = 10\nintervals = true"))
    run("network", "init", path)
    command = [sys.executable, "-c", "from dekrr.cli import main; main()", "up", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, env={**os.environ, "COLUMNS": "150"})
    assert done.returncode == 0, done.stdout + done.stderr
    assert "held-out RSE" in done.stdout
    assert re.search(r"\d\d:\d\d:\d\d station-01: running, round \d+", done.stdout)  # also without a terminal
    frames = {file.stem: pd.read_csv(file) for file in sorted(trial.glob("station-*.csv"))}
    frame = pd.concat([table.assign(station=name) for name, table in frames.items()])
    edges = [("station-00", "station-01"), ("station-00", "station-02"), ("station-01", "station-02")]
    numbers = {"n_features": 10, "sigma": 0.3, "alpha": 1e-4, "consensus": 1.0, "topology": edges}

    def in_order_of_nodes(site):  # a node's folds follow from its secret
        name = sorted(frames)[int(site.name)] if site.name.isdigit() else site.name
        secret = (trial / "sites" / name / "secret").read_bytes()
        columns = [column for column in frames[name] if column != "y"]
        return replace(site, rows=site.rows.in_order(row_hash(secret, columns)))

    seed = read_site(trial / "sites/station-00/site.toml").features().seed
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dekrr.estimators.site_regressor.seed_of", lambda _: seed)
        patch.setattr(Site, "in_order", in_order_of_nodes)
        fitted = DeKRRRegressor(**numbers, intervals=True, deployment=True).fit(frame, "y", sites="station")
    errors = fitted.validation_["RSE"]
    for name in frames:
        lines = (trial / "sites" / name / "run.jsonl").read_text().splitlines()
        finished = next(json.loads(line) for line in lines if '"event":"finished"' in line)
        assert finished["held-out rows"] == errors.n_rows[name]
        assert finished["held-out RSE"] == pytest.approx(errors.own[name], rel=1e-6)
        assert f"{errors.own[name]:.4f}" in done.stdout
        assert not any("held-out RSE" in line for line in lines if '"event":"finished"' not in line)
    page = run("report", trial).split("page:")[1].strip().replace("\n", "")
    assert "held-out RSE" in Path(page).read_text()
    frame.to_csv(trial / "all.csv", index=False)
    told = [["--target", "y", "--site", "station"], ["--target", "y"]]
    own = {run("score", folder, trial / "all.csv", *told[0]).split("\n")[-2] for folder in (trial, trial / "sites")}
    files = sorted(trial.glob("sites/*/model.safetensors"))
    assert own == {run("score", *files, trial / "all.csv", *told[0]).split("\n")[-2]}
    alone = run("score", trial / "sites" / "station-00", trial / "station-00.csv", *told[1])
    assert alone == run("score", files[0], trial / "station-00.csv", *told[1])
    with pytest.raises(DataError, match="are both models of site 'station-00'"):
        run("score", files[0], trial / "sites", trial / "all.csv", *told[1])
    with pytest.raises(DataError, match="no folder of sites"):
        run("score", trial.parent, trial / "all.csv", *told[1])


def test_up_does_not_wait_for_a_site_that_cannot_take_part(trial):
    path = trial / "network.toml"
    path.write_text(path.read_text().replace("patience = 30.0", "patience = 30.0\nstart_patience = 3000.0"))
    run("network", "init", path)
    rows = trial / "station-01.csv"
    rows.write_text("\n".join(rows.read_text().split("\n")[:3]).replace("y", "why", 1))
    command = [sys.executable, "-c", "from dekrr.cli import main; main()", "up", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    told = done.stdout + done.stderr
    assert done.returncode != 0
    assert told.count("has no columns y") == 1, told
    assert "1 of 3 sites cannot take part:\n  station-01 (exit 1): " in told
    assert "has no columns y" in told
    assert "start_patience = 3000 seconds, and were stopped" in told


def test_up_ends_its_sites_when_it_is_asked_to_stop(trial):
    path = trial / "network.toml"
    path.write_text(path.read_text().replace("[settings]", "[settings]\ntol = 0.0\nmax_rounds = 100000"))
    run("network", "init", path)
    records = [trial / "sites" / f"station-0{j}" / "run.jsonl" for j in range(3)]
    command = [sys.executable, "-c", "from dekrr.cli import main; main()", "up", str(path)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        wait_until(lambda: all(record.exists() and b'"exchange"' in record.read_bytes() for record in records), 120)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 143
    for record in records:
        last = json.loads(record.read_text().splitlines()[-1])
        assert last["event"] == "stopped"
        assert "SIGTERM" in last["reason"]
        assert (record.parent / "checkpoint").exists()


def test_files_have_safe_permissions_and_nothing_is_overwritten(trial):
    run("network", "init", trial / "network.toml")
    modes = {path.relative_to(trial / "sites"): path.stat().st_mode & 0o777 for path in trial.glob("sites/**/*.pem")}
    private = [path for path, mode in modes.items() if path.name in ("key.pem", "authority-key.pem")]
    assert len(private) == 4
    assert {modes[path] for path in private} == {0o600}
    before = {path: path.read_bytes() for path in trial.glob("sites/**/*") if path.is_file()}
    with pytest.raises(KeysError, match="nothing is overwritten"):
        run("network", "init", trial / "network.toml")
    with pytest.raises(KeysError, match="nothing is overwritten"):
        run("keys", "new", "station-00", "--host", "127.0.0.1", "--out", trial / "sites" / "station-00")
    with pytest.raises(KeysError, match="nothing is overwritten"):
        run("network", "example", trial)
    assert {path: path.read_bytes() for path in before} == before


def test_a_changed_network_file_is_told_and_an_update_keeps_keys(trial):
    path = trial / "network.toml"
    run("network", "init", path)
    home = trial / "sites" / "station-00"
    kept = {file: file.read_bytes() for file in trial.glob("sites/**/*.pem")}
    (home / "site.toml").write_text((home / "site.toml").read_text() + "\n[page]\nport = 8123\n")
    text = path.read_text().replace("n_features = 30", "n_features = 40\nintervals = true")
    path.write_text(text)
    with pytest.raises(
        SettingsError, match=r"settings\.n_features is 30, not 40 \(at station-00, station-01, .*--update"
    ):
        run("up", path)
    said = run("network", "init", path, "--update")
    assert "station-01: settings.intervals is left out, not True; settings.n_features is 30, not 40" in said
    assert {file: file.read_bytes() for file in kept} == kept
    site = read_site(home / "site.toml")
    assert (site.features().n_features, site.settings["intervals"], site.page.port) == (40, True, 8123)
    assert "3 of 3 files are as they were" in run("network", "init", path, "--update")


def test_an_update_makes_new_sites_and_certificates_for_new_hosts(trial):
    path = trial / "network.toml"
    run("network", "init", path)
    path.write_text(path.read_text().replace('"127.0.0.1:', '"127.0.0.2:', 1))
    with path.open("a") as file:
        file.write('[[site]]\nname = "late"\nendpoint = "127.0.0.1:9"\ndata = "station-00.csv"\n')
    with pytest.raises(DataError, match="lacks late; first run: dekrr network init --update"):
        run("up", path)
    key, certificate = (trial / "sites/station-00" / name for name in ("key.pem", "certificate.pem"))
    before = key.read_bytes()
    said = run("network", "init", path, "--update")
    assert "late is new" in said
    assert "station-00 has a new certificate, for the same key, at 127.0.0.2" in said
    assert key.read_bytes() == before
    signed = x509.load_pem_x509_certificate(certificate.read_bytes())
    assert (site_of(signed), host_of(signed)) == ("station-00", "127.0.0.2")
    for name in ("station-00", "late"):
        home = trial / "sites" / name
        check(home / "authority.pem", home / "certificate.pem", home / "key.pem", name)
    path.write_text(path.read_text()[: path.read_text().rindex("[[site]]")])
    assert "late no longer belongs to a site" in run("network", "init", path, "--update")
    assert (trial / "sites" / "late" / "key.pem").exists()


def test_no_private_key_travels(trial, tmp_path):
    run("network", "init", trial / "network.toml", "--no-keys")
    assert [path.name for path in trial.glob("sites/**/*key*.pem")] == ["authority-key.pem"]
    home = tmp_path / "organisation"
    run("keys", "new", "station-01", "--host", "127.0.0.1", "--out", home)
    assert sorted(path.name for path in home.iterdir()) == ["key.pem", "request.pem"]
    run("network", "sign", trial / "network.toml", home / "request.pem")
    certificate = x509.load_pem_x509_certificate((trial / "sites/station-01/certificate.pem").read_bytes())
    assert (site_of(certificate), host_of(certificate)) == ("station-01", "127.0.0.1")
    with pytest.raises(KeysError, match="nothing is overwritten"):
        run("network", "sign", trial / "network.toml", home / "request.pem")
    for name, host, reason in (("mallory", "127.0.0.1", "not a site"), ("station-02", "10.0.0.9", "for host")):
        run("keys", "new", name, "--host", host, "--out", tmp_path / name)
        with pytest.raises(KeysError, match=reason):
            run("network", "sign", trial / "network.toml", tmp_path / name / "request.pem")
    (home / "request.pem").write_bytes(b"rubbish")
    with pytest.raises(KeysError, match="cannot be read"):
        run("network", "sign", trial / "network.toml", home / "request.pem")


def test_a_wrong_choice_lists_the_choices_and_hides_no_other_mistake(tmp_path):
    path = tmp_path / "network.toml"
    site = '[[site]]\nname = "a"\nendpoint = "127.0.0.1:7000"\ndata = "a.csv"\n'
    data = '[data]\ntarget = "y"\ncolumns = ["x"]\n[settings]\nalpha = -1\nconsensus = -2.0\n'
    path.write_text('run = "a run"\nmethod = "dekr"\npatiense = 3.0\n' + data + site)
    with pytest.raises(SettingsError) as caught:
        read_network(path)
    text = str(caught.value)
    assert "has 5 mistakes" in text
    assert "method is 'dekr'; it must be one of dekrr, dkla, allreduce; did you mean dekrr?" in text
    assert "run 'a run'" in text
    assert "patiense is not known; did you mean patience?" in text
    assert text.count("settings.alpha is -1;") == text.count("settings.consensus is -2.0;") == 1
    path.write_text('run = "r"\nmethod = "boosting"\n' + data + site)
    with pytest.raises(SettingsError, match=r"it must be one of dekrr, dkla, allreduce$"):
        read_network(path)


def test_all_mistakes_of_a_network_file_are_told_at_once(tmp_path):
    path = tmp_path / "network.toml"
    path.write_text(
        """
        run = "a run"
        method = "dekrr"
        patiense = 3.0
        start_patience = -1.0
        edges = [["a", "b"], ["a", "c"]]
        [data]
        target = "y"
        columns = ["x", "x", "y"]
        [settings]
        alhpa = 1.0
        alpha = -1.0
        n_features = 0
        solver = "magic"
        [[site]]
        name = "a"
        endpoint = "127.0.0.1:7000"
        data = "a.csv"
        [[site]]
        name = "a"
        endpoint = "somewhere"
        """
    )
    with pytest.raises(SettingsError) as caught:
        read_network(path)
    text = str(caught.value)
    for mistake in ("patiense is not known; did you mean patience?", "start_patience", "site 2: data is missing"):
        assert mistake in text
    path.write_text(path.read_text().replace("patiense = 3.0", "").replace("-1.0\n        edges", "1.0\n        edges"))
    path.write_text(path.read_text() + 'data = "b.csv"\n')
    with pytest.raises(SettingsError) as caught:
        read_network(path)
    text = str(caught.value)
    for mistake in (
        "run 'a run'",
        "site 'a' appears more than once",
        "endpoint 'somewhere'",
        "column 'x' appears more than once",
        "has the target 'y'",
        "settings.alhpa is not known to dekrr; did you mean alpha?",
        "settings.alpha is -1.0",
        "settings.n_features",
        "settings.solver is 'magic'",
        "edges or topology",
    ):
        assert mistake in text, mistake


def test_mistakes_of_a_site_file(tmp_path):
    mesh = Mesh(tmp_path, 2)
    path = mesh.home("s00") / "site.toml"
    mesh.edit("s00", 'sites = [\n    "s00",\n    "s01",\n]', 'sites = ["s01", "s02"]')
    mesh.edit("s00", "[neighbors]", '[neighbors]\nnobody = "127.0.0.1:1"')
    with pytest.raises(SettingsError) as caught:
        read_site(path)
    assert "site 's00' is not one of sites" in str(caught.value)
    assert "neighbors.nobody is not one of sites" in str(caught.value)
    path.write_text("this is = not TOML")
    with pytest.raises(SettingsError, match="not TOML"):
        read_site(path)


def test_exit_codes_and_errors_of_the_command(tmp_path):
    mesh = Mesh(tmp_path, 2)
    mesh.edit("s00", "start_patience = 60.0", "start_patience = 0.5")
    command = [sys.executable, "-c", "from dekrr.cli import main; main()"]
    alone = subprocess.run([*command, "node", str(mesh.home("s00") / "site.toml")], capture_output=True, text=True)
    assert alone.returncode == 3
    assert "not heard of: s01" in alone.stderr
    silent = subprocess.run([*command, "status", str(mesh.home("s00") / "site.toml")], capture_output=True, text=True)
    assert "no answer" in silent.stdout


def test_a_site_file_says_what_the_network_file_says(tmp_path):
    mesh = Mesh(tmp_path, 5)
    graph = nx.Graph([(a, b) for a, them in mesh.network.neighbors().items() for b in them])
    for name in mesh.names:
        site = read_site(mesh.home(name) / "site.toml")
        assert set(site.neighbors) == set(graph[name])
        assert set(site.sites) == set(mesh.names)
        assert site.terms("1", site.sites) == mesh.network.terms("1", mesh.names)


def test_what_is_tuned_is_what_the_estimator_tunes_by_default(tmp_path):
    mesh = Mesh(tmp_path, 3)
    path = mesh.home("s00") / "site.toml"
    assert read_site(path).tuning() is None
    text = path.read_text()
    path.write_text(text[: text.index("[settings]")] + text[text.index("[neighbors]") :])
    found, regressor = read_site(path), DeKRRRegressor()
    assert found.tuning() is None  # beside a shared part nothing is
    assert found.chooser().sigma is None
    expected = regressor.run_settings()
    for name in ("alpha", "consensus", "own_weight", "shared", "local", "column_scales"):
        assert getattr(found.method_settings(), name) == getattr(expected, name)
    path.write_text(
        text[: text.index("[settings]")] + '[settings]\nshared = "none"\n' + text[text.index("[neighbors]") :]
    )
    tuning = read_site(path).tuning()
    assert tuning.sigmas == grid_of("sigma", regressor.sigma)
    assert tuning.alphas == grid_of("alpha", regressor.alpha)
    assert tuning.consensuses == grid_of("consensus", regressor.consensus)
    assert (tuning.folds, tuning.prediction) == (5, regressor.prediction)
    features, settings = read_site(path).features(), read_site(path).method_settings()
    assert (features.n_features, regressor.n_features) == (100, "auto")
    for name in ("features", "kernel", "mapping"):
        assert getattr(features, name) == getattr(regressor, name)
    for name in ("solver", "self_penalty", "tol", "max_rounds", "allocation", "exchange"):
        assert getattr(settings, name) == getattr(regressor, name)


@pytest.mark.parametrize(
    ("settings", "mistake"),
    [
        ({"alpha": "best"}, "settings.alpha is 'best'"),
        ({"sigma": []}, "settings.sigma is []"),
        ({"consensus": [0.0, -1.0]}, "settings.consensus is"),
        ({"folds": 1}, "settings.folds"),
        ({"objective": "all"}, "settings.objective"),
        ({"sigma": "auto", "privacy": {"epsilon": 1.0}}, "settings.privacy: give sigma as one number each"),
    ],
)
def test_mistakes_about_tuning_are_told(tmp_path, settings, mistake):
    with pytest.raises(SettingsError, match=re.escape(mistake)):
        Mesh(tmp_path, 2, settings=settings)


def test_toml_round_trip():
    table = {"a": 'q"uote', "b": [1, 2.5], "c": {"x.y": True, "z": "é", "inner": {"x.y": [[0.5], [1]], "deep": {}}}}
    assert tomllib.loads(to_toml(table)) == table


characters = st.characters(codec="utf-8")
plain = st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(characters, max_size=8)
tables = st.dictionaries(
    st.text(characters, max_size=6),
    st.recursive(
        plain,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(characters, max_size=6), inner, max_size=3),
        max_leaves=8,
    ),
    max_size=5,
)


@settings(max_examples=300, deadline=None)
@given(tables)
@example({"inf": float("inf"), "beyond": "\U0001f600", "control": "\x00\x7f\r\n"})
def test_what_is_written_as_toml_is_read_again(table):
    assert tomllib.loads(to_toml(table)) == table


def test_toml_has_no_word_for_nothing():
    assert tomllib.loads(to_toml({"a": None, "b": {"c": None, "d": 1}})) == {"b": {"d": 1}}


def test_a_privacy_budget_travels_from_the_network_file_to_every_site(tmp_path):
    privacy = {"features": "plain", "privacy": {"epsilon": 4.0}, "bounds": [[0.0] * 3, [1.0] * 3]}
    mesh = Mesh(tmp_path, 3, settings=privacy)
    settings = read_site(mesh.home("s01") / "site.toml").method_settings()
    assert settings.privacy == DifferentialPrivacy(4.0)
    assert settings.bounds == ((0.0,) * 3, (1.0,) * 3)
    (tmp_path / "bad").mkdir()
    with pytest.raises(SettingsError, match=r"epsilon is -1\.0; it must be a positive number"):
        Mesh(tmp_path / "bad", 3, settings=privacy | {"privacy": {"epsilon": -1.0}})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"features": "greedy"},
            "settings.features is 'greedy' and looks at rows; with privacy write features = \"plain\"",
        ),
        ({"bounds": None}, "settings.bounds is missing"),
        ({"allocation": "sqrt"}, "settings.allocation"),
        ({"intervals": True}, "settings.intervals: the privacy budget does not pay for the second training"),
    ],
)
def test_settings_that_break_a_privacy_budget_are_refused_when_the_file_is_read(tmp_path, changes, words):
    settings = {"features": "plain", "privacy": {"epsilon": 4.0}, "bounds": [[0.0] * 4, [1.0] * 4], **changes}
    with pytest.raises(SettingsError) as caught:
        Mesh(tmp_path, 3, settings={key: value for key, value in settings.items() if value is not None})
    assert words in str(caught.value)


@pytest.mark.parametrize("method", ["dkla", "allreduce"])
def test_other_methods_say_that_they_offer_no_differential_privacy(tmp_path, method):
    with pytest.raises(SettingsError, match=f'only method = "dekrr" offers differential privacy, not {method}'):
        Mesh(tmp_path, 3, method=method, settings={"privacy": {"epsilon": 4.0}})


def test_an_init_that_fails_leaves_nothing_behind(trial):
    path = trial / "network.toml"
    good = path.read_text()
    path.write_text(re.sub(r"127\.0\.0\.1:(\d+)", r"münchen.de:\1", good, count=1))
    with pytest.raises(KeysError, match="is not a host name"):
        run("network", "init", path)
    assert not list(trial.glob("*sites*"))
    path.write_text(good.replace("station-01.csv", "nowhere.csv"))
    (trial / "there").mkdir()
    (trial / "link").symlink_to(trial / "there")
    assert "does not exist yet" in run("network", "init", path, "--out", trial / "link").replace("\n", "")
    assert {part.name for part in (trial / "there").iterdir()} >= {"station-00", "station-01", "station-02"}
    assert not list((trial / "there").glob(".*"))


@pytest.mark.parametrize(
    ("settings", "mistake"),
    [
        ({"seed": -1}, "settings.seed"),
        ({"seed": 2**70}, "settings.seed"),
        ({"wire": {"foo": 1}}, "settings.wire.foo is not known"),
        ({"privacy": {"epsilon": 1.0, "delt": 1e-9}}, "delt is not known; did you mean delta"),
        ({"bounds": [[0.0] * 2, [1.0] * 2]}, "settings.bounds must be 3 finite"),
        ({"bounds": [[1.0] * 3, [0.0] * 3]}, "settings.bounds: the lower value of entry 0"),
    ],
)
def test_mistakes_inside_settings_are_told(tmp_path, settings, mistake):
    mesh = Mesh(tmp_path, 2)
    path = tmp_path / "network.toml"
    table = tomllib.loads(path.read_text())
    table["settings"] |= {"features": "plain", "bounds": [[0.0] * 3, [1.0] * 3], **settings}
    path.write_text(to_toml(table))
    assert mesh.names
    with pytest.raises(SettingsError, match=mistake):
        read_network(path)


def test_a_certificate_does_not_outlive_its_authority(trial):
    run("network", "init", trial / "network.toml", "--no-keys")
    run("keys", "new", "station-00", "--host", "127.0.0.1", "--out", trial / "key")
    request = read_request(trial / "key" / "request.pem")
    with pytest.raises(KeysError, match="the authority itself is valid only until"):
        Authority.load(trial / "sites").sign(request, days=5000)


def test_patience_is_a_number_of_seconds(tmp_path):
    Mesh(tmp_path, 2)
    path = tmp_path / "network.toml"
    path.write_text(path.read_text().replace("patience = 20.0", "patience = inf"))
    with pytest.raises(SettingsError, match="patience"):
        read_network(path)


def test_a_network_has_sites(tmp_path):
    Mesh(tmp_path, 2)
    path = tmp_path / "network.toml"
    path.write_text("site = []\n" + path.read_text().partition("[[site]]")[0])
    with pytest.raises(SettingsError, match="there is no site"):
        read_network(path)


class Shown:
    """What the table of `dekrr up` shows of a site."""

    def __init__(self, name, *, errors, neighbors, code=0, reason="", gone=()):
        about = {p: {"waited for": True} for p in neighbors}
        self.status = {"phase": "running", "round": 1234, "residual": 1e-3, "message bytes sent": 1_234_567_890}
        self.status |= {"gone": list(gone), "neighbors": about}
        self.name, self.errors, self.code, self.reason = name, errors, code, reason
        self.running, self.phase = not code, f"exit {code}" if code else "running"


@pytest.mark.parametrize("width", [60, 80, 120, 200])
@pytest.mark.parametrize("errors", [{}, {"held-out RSE": 0.5}, {"held-out accuracy": 0.5, "held-out log loss": 0.7}])
@pytest.mark.parametrize("stem", ["station", "a-hospital-with-a-long-name"])
@pytest.mark.parametrize("gone", [(), ("elsewhere",)])
def test_names_of_sites_are_whole_whatever_the_width(width, errors, stem, gone):
    names = [f"{stem}-{k:02d}" for k in range(3)]
    fleet = [Shown(name, errors=errors, neighbors=names, gone=gone) for name in names]
    console = Console(width=width, file=io.StringIO())
    console.print(up._table(fleet, width))
    told = console.file.getvalue()
    assert all(len(line) <= width for line in told.splitlines())
    assert all(re.search(rf"│ {name} +│ running +│", told) for name in names), told
    assert ("kB sent" in told) or width < 200
    assert gone or "gone" not in told
    assert all(name in told.replace("\n", " ") for name in errors if width >= (80 if stem == "station" else 120))


def test_errors_of_sites_are_told_once_for_each_reason():
    fleet = [Shown(name, errors={}, neighbors=[], code=3, reason="error: c is missing") for name in "ab"]
    fleet.append(Shown("c", errors={}, neighbors=[], code=1, reason="error: rows.csv does not exist"))
    assert up._endings(fleet) == "  a (exit 3), b (exit 3): c is missing\n  c (exit 1): rows.csv does not exist"
    assert "missing" not in "".join(str(cell) for column in up._table(fleet, 80).columns for cell in column.cells)
