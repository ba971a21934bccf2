import errno
import json
import logging
import os
import random
import signal
import subprocess
import sys
import threading
import time
import traceback
import urllib.request
from pathlib import Path
from types import SimpleNamespace

import msgspec
import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from dekrr.cli.app import app
from dekrr.disk import LockedFile
from dekrr.errors import AbsenceError, AgreementError, DataError, GoneError, KeysError, ModelFileError, SettingsError
from dekrr.mesh.addresses import Link, zenoh_config
from dekrr.mesh.driving import MeshNetwork, _take
from dekrr.mesh.files import read_site
from dekrr.mesh.monitoring import serve
from dekrr.mesh.node import CHECKPOINT, MODEL, SECRET, Node
from dekrr.mesh.record import RECORD, JsonFormatter, Log, Record, logger
from dekrr.mesh.session import journal as journals
from dekrr.mesh.session.events import Exchanged, Refused, Up
from dekrr.mesh.session.frames import Hello, frame_decoder
from dekrr.mesh.status import STATE, of_one_run, read_state
from dekrr.model import SiteModel
from dekrr.privacy.masks import Identity
from meshes import Mesh, free_ports, run_command, wait_until


def without_keys(traffic, name):
    """Return what a site sent, but for keys of masks: their proofs are certificates here, and nothing there."""
    return {key: counted for key, counted in traffic._items() if key[0] == name and "MaskKey" not in key[2]}


@pytest.mark.parametrize("method", ["dekrr", "dkla", "allreduce"])
def test_ten_sites_equal_the_local_network(tmp_path, method):
    settings = {"features": "plain", "max_rounds": 150} if method == "dkla" else {}
    mesh = Mesh(tmp_path, 10, method=method, settings=settings)
    nodes, errors = mesh.run_in_threads()
    assert set(errors.values()) == {None}
    reference, traffic = mesh.reference()
    for name in mesh.names:
        np.testing.assert_allclose(
            mesh.model(name).coefficients, reference[name].coefficients, rtol=0, atol=1e-9, err_msg=name
        )
        sent = nodes[name].session.course.progress.traffic
        assert without_keys(traffic, name) == without_keys(sent, name)
        assert {edge: size for edge, size in traffic.messages.items() if edge[0] == name} == dict(sent.messages)
        assert nodes[name].network.wire_bytes > sent.total_bytes
        assert not (mesh.home(name) / CHECKPOINT).exists()
        assert (mesh.home(name) / MODEL).exists()


def test_sites_tune_together_as_the_local_network_does(tmp_path):
    grids = {"sigma": [0.3, 1.0], "alpha": "auto", "consensus": [0.25, 1.0], "folds": 3}
    settings = {"features": "greedy", "n_features": 6, "rows_per_feature": 0.0, **grids}
    mesh = Mesh(tmp_path, 3, settings=settings, rows=40)
    _, errors = mesh.run_in_threads()
    assert set(errors.values()) == {None}
    reference, _ = mesh.reference()
    for name in mesh.names:
        tuned = reference[name].tuned
        np.testing.assert_allclose(
            mesh.model(name).coefficients, reference[name].coefficients, rtol=0, atol=1e-9, err_msg=name
        )
        assert mesh.model(name).header.sigma == tuned.sigma
        finished = next(event for event in mesh.events(name) if event["event"] == "finished")
        assert [finished[key] for key in ("sigma", "alpha", "consensus")] == [tuned.sigma, tuned.alpha, tuned.consensus]
        assert finished["held-out error"] == pytest.approx(tuned.errors.min())


def test_links_exist_along_edges_only(tmp_path):
    mesh = Mesh(tmp_path, 4, edges=[["s00", "s01"], ["s01", "s02"], ["s02", "s03"]])
    nodes, errors = mesh.run_in_threads()
    assert set(errors.values()) == {None}
    for name, node in nodes.items():
        ups = {event["neighbor"] for event in mesh.events(name) if event["event"] == "up"}
        assert ups <= set(mesh.graph[name])
        assert set(node.session.course.progress.traffic.bytes) == {(name, p) for p in mesh.graph[name]}


def test_two_runs_at_once_do_not_meet(tmp_path):
    meshes = []
    for run in ("one", "two"):
        (tmp_path / run).mkdir()
        mesh = Mesh(tmp_path / run, 3)
        for name in mesh.names:
            mesh.edit(name, 'run = "test"', f'run = "{run}"')
        meshes.append(mesh)
    threads = [threading.Thread(target=mesh.run_in_threads) for mesh in meshes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for mesh in meshes:
        assert mesh.check_models(mesh.names) == {frozenset()}


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("alpha = 0.001", "alpha = 0.002", ("alpha is", "0.001 at 's00'", "0.002 at 's02'")),
        (
            'columns = [\n    "u",\n    "v",\n]',
            'columns = ["v", "u"]',
            ("columns is", "u, v at 's00'", "v, u at 's02'"),
        ),
        ('features = "energy"', 'features = "plain"', ("features is", "energy", "plain")),
        ("consensus = 1.0", "consensus = [0.5, 1.0]", ("consensus is", "1.0 at 's00'", "[0.5, 1.0] at 's02'")),
    ],
)
def test_what_sites_do_not_agree_on_is_named_before_anything_is_sent(tmp_path, old, new, named):
    mesh = Mesh(tmp_path, 4, edges=[["s00", "s01"], ["s00", "s02"], ["s01", "s03"]])
    mesh.edit("s02", old, new)
    nodes, errors = mesh.run_in_threads()
    assert {type(error) for error in errors.values()} == {AgreementError}
    assert all("do not agree" in str(error) for error in errors.values())
    assert all(word in str(error) for error in errors.values() for word in named)
    assert all(node.session.course.progress.traffic.total_bytes == 0 for node in nodes.values())


def test_releases_that_differ_in_the_third_number_work_together_and_others_say_so(tmp_path, monkeypatch):
    for turn, (other, fails) in enumerate((("0.3.99", False), ("9.9.0", True))):
        (tmp_path / str(turn)).mkdir()
        mesh = Mesh(tmp_path / str(turn), 2)
        monkeypatch.setattr("dekrr.mesh.node.version", lambda name: "0.3.0")
        one = mesh.node("s00")
        monkeypatch.setattr("dekrr.mesh.node.version", lambda name, other=other: other)
        two = mesh.node("s01")
        agreed = one.session.plan.terms == two.session.plan.terms
        assert agreed is not fails
        one.close()
        two.close()


def test_a_site_that_does_not_start_is_named(tmp_path):
    mesh = Mesh(tmp_path, 3)
    for name in mesh.names:
        mesh.edit(name, "start_patience = 60.0", "start_patience = 1.0")
    _, errors = mesh.run_in_threads(["s00", "s02"])
    assert {type(error) for error in errors.values()} == {AbsenceError}
    assert "not heard of: s01" in str(errors["s00"])


def test_a_late_site_and_one_that_comes_back_leave_the_result_as_it_is(tmp_path):
    mesh = Mesh(tmp_path, 5, settings={"tol": 0.0, "max_rounds": 800})
    processes = {name: mesh.process(name) for name in mesh.names[:4]}
    wait_until(lambda: (mesh.home("s00") / "run.jsonl").exists())
    processes["s04"] = mesh.process("s04")
    wait_until(
        lambda: (mesh.home("s02") / CHECKPOINT).exists() and (mesh.home("s02") / CHECKPOINT).stat().st_size > 3e4
    )
    os.kill(processes["s02"].pid, signal.SIGKILL)
    processes["s02"].join()
    processes["s02"] = mesh.process("s02")
    for process in processes.values():
        process.join(60)
        assert process.exitcode == 0
    assert mesh.check_models(mesh.names) == {frozenset()}
    assert any(event["event"] == "resumed" and event["exchange"] > 0 for event in mesh.events("s02"))


def test_a_killed_site_is_declared_gone_and_stays_gone(tmp_path):
    mesh = Mesh(tmp_path, 5, patience=1.5, settings={"tol": 0.0, "max_rounds": 1500})
    processes = {name: mesh.process(name) for name in mesh.names}
    checkpoint = mesh.home("s01") / CHECKPOINT
    wait_until(lambda: checkpoint.exists() and checkpoint.stat().st_size > 3e4)
    os.kill(processes.pop("s01").pid, signal.SIGKILL)
    wait_until(lambda: any(event["event"] == "gone" for event in mesh.events("s03")))
    _, errors = mesh.run_in_threads(["s01"])
    assert isinstance(errors["s01"], GoneError)
    for process in processes.values():
        process.join(60)
        assert process.exitcode == 0
    assert mesh.check_models(list(processes)) == {frozenset({"s01"})}


def test_a_full_disk_at_checkpoint_is_told_once_and_harms_nothing(tmp_path, monkeypatch):
    mesh = Mesh(tmp_path, 3)

    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(LockedFile, "write", full)
    _, errors = mesh.run_in_threads()
    assert set(errors.values()) == {None}
    for name in mesh.names:
        told = [event for event in mesh.events(name) if event["event"] == "checkpoint lost"]
        assert len(told) == 1
        assert "No space left" in told[0]["reason"]
    assert mesh.check_models(mesh.names) == {frozenset()}


def test_status_of_a_network_that_runs_and_of_one_that_has_ended(tmp_path):
    mesh = Mesh(tmp_path, 4, settings={"tol": 0.0, "max_rounds": 3000})
    processes = {name: mesh.process(name) for name in mesh.names[:3]}
    wait_until(lambda: all((mesh.home(name) / "run.jsonl").exists() for name in mesh.names[:3]))
    path, answers = str(mesh.folder / "network.toml"), {}

    def ask():
        words = ["status", path, "--folder", str(mesh.folder), "--json"]
        lines = CliRunner().invoke(app, words).stdout.splitlines()
        answers.update({answer["site"]: answer for answer in map(json.loads, lines)})
        return {name: answer["phase"] for name, answer in answers.items()}

    wait_until(lambda: list(ask().values()) == ["greeting"] * 3 + ["no answer"])
    processes["s03"] = mesh.process("s03")
    wait_until(lambda: set(ask().values()) == {"running"})
    wait_until(lambda: ask() and {about["state"] for about in answers["s03"]["neighbors"].values()} == {"up"})
    for process in processes.values():
        process.join(60)
    assert set(ask().values()) == {"no answer; its model is there"}
    table = CliRunner().invoke(app, ["status", path, "--folder", str(mesh.folder)]).stdout
    assert all(name in table for name in mesh.names)


def test_status_and_metrics_of_a_running_site(tmp_path):
    mesh = Mesh(tmp_path, 2)
    for name in mesh.names:
        mesh.edit(name, "start_patience = 60.0", "start_patience = 5.0")
    node = mesh.node("s00")
    (port,) = free_ports(1)
    serve(port, lambda: of_one_run(node.config, mesh.home("s00"), msgspec.to_builtins(node.status())))

    def run():
        with pytest.raises(AbsenceError):
            node.run()

    thread = threading.Thread(target=run)
    thread.start()
    state = mesh.home("s00") / STATE
    wait_until(lambda: (read_state(state) or {}).get("phase") == "greeting", 5)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as page:
        text = page.read().decode()
    assert "dekrr_exchange -1.0" in text
    assert 'dekrr_neighbor{neighbor="s01",state="away"} 1.0' in text
    assert 'dekrr_message_bytes_total{neighbor="s01"} 0.0' in text
    thread.join()
    assert read_state(state) is None


def test_no_start_without_keys_or_with_bad_ones(tmp_path):
    mesh = Mesh(tmp_path, 2)
    home = mesh.home("s00")
    (home / "key.pem").chmod(0o644)
    with pytest.raises(KeysError, match="chmod 600"):
        mesh.node("s00")
    (home / "key.pem").chmod(0o600)
    (home / "certificate.pem").write_bytes((mesh.home("s01") / "certificate.pem").read_bytes())
    with pytest.raises(KeysError, match="certificate of 's01'"):
        mesh.node("s00")
    text = (home / "site.toml").read_text()
    (home / "site.toml").write_text(text[: text.index("[keys]")])
    with pytest.raises(SettingsError, match="no keys"):
        mesh.node("s00")
    mesh.edit("s00", "127.0.0.1", "10.1.2.3")
    with pytest.raises(SettingsError, match="only talk over loopback"):
        mesh.node("s00", insecure=True)


def test_insecure_on_loopback(tmp_path):
    mesh = Mesh(tmp_path, 3)
    _, errors = mesh.run_in_threads(insecure=True)
    assert set(errors.values()) == {None}
    assert mesh.check_models(mesh.names) == {frozenset()}
    with pytest.raises(DataError, match="already there"):
        mesh.node("s00")


def test_sigterm_and_ctrl_c_leave_a_checkpoint_that_goes_on(tmp_path):
    mesh = Mesh(tmp_path, 3, patience=90.0, settings={"tol": 0.0, "max_rounds": 1500})
    processes = {name: mesh.process(name, run_command) for name in mesh.names}
    checkpoints = {name: mesh.home(name) / CHECKPOINT for name in ("s00", "s01")}
    # Both before either is stopped: the other then waits, and its checkpoint grows no more.
    wait_until(lambda: all(path.exists() and path.stat().st_size > 2e4 for path in checkpoints.values()))
    for name, number, code in (("s00", signal.SIGTERM, 143), ("s01", signal.SIGINT, 130)):
        os.kill(processes[name].pid, number)
        processes[name].join(30)
        assert processes[name].exitcode == code
        assert "resumes from the checkpoint" in (mesh.home(name) / "said").read_text()
        assert checkpoints[name].stat().st_size > 2e4
    _, errors = mesh.run_in_threads(["s00", "s01"])
    assert set(errors.values()) == {None}
    processes["s02"].join(60)
    assert processes["s02"].exitcode == 0
    said = (mesh.home("s02") / "said").read_text().splitlines()
    assert {"started", "agreed", "finished", "ended"} <= {json.loads(line)["event"] for line in said}
    assert mesh.check_models(mesh.names) == {frozenset()}


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_kill_9_of_one_of_ten_sites_at_a_random_moment(tmp_path):
    rng = random.Random(5)
    for turn in range(20):
        (tmp_path / str(turn)).mkdir()
        # A site that comes back must do so within the patience, and a process can take long to start.
        patience = 30.0 if turn % 2 == 0 else 6.0
        mesh = Mesh(tmp_path / str(turn), 10, patience=patience, settings={"tol": 0.0, "max_rounds": 600})
        processes = {name: mesh.process(name) for name in mesh.names}
        victim = rng.choice(mesh.names)
        checkpoint = mesh.home(victim) / CHECKPOINT
        wait_until(lambda path=checkpoint: path.exists() and path.stat().st_size > 0)
        time.sleep(rng.uniform(0, 3))
        processes[victim].kill()
        processes[victim].join()
        returns = turn % 2 == 0 and not (mesh.home(victim) / MODEL).exists()
        if returns:
            time.sleep(rng.uniform(0, 2))
            processes[victim] = mesh.process(victim)
        else:
            del processes[victim]
        for name, process in processes.items():
            process.join(120)
            assert process.exitcode == 0, f"turn {turn}: {name} ended with {process.exitcode}"
        gone = mesh.check_models(list(processes))
        assert gone <= ({frozenset()} if returns else {frozenset(), frozenset({victim})}), f"turn {turn}"


def test_a_private_run_that_is_repeated_releases_nothing_new(tmp_path):
    pytest.importorskip("opendp", reason="the extra dp is not installed")
    bounds = [[0.0, 0.0, -1.0], [1.0, 1.0, 1.0]]
    settings = {"features": "plain", "privacy": {"epsilon": 4.0}, "bounds": bounds, "prediction": "neighborhood"}
    mesh = Mesh(tmp_path, 3, settings=settings, rows=60)
    _, errors = mesh.run_in_threads()
    assert errors == dict.fromkeys(mesh.names)
    first = {name: mesh.model(name) for name in mesh.names}
    assert all(0 < model.header.privacy.epsilon <= 4.0 for model in first.values())
    (told,) = (event["reason"] for event in mesh.events("s01") if event["event"] == "noisy")
    assert "to sums over the 60 rows of the smallest site" in told
    assert all(sum(member.weight for member in model.members) == pytest.approx(1) for model in first.values())
    _, errors = mesh.run_in_threads(force=True, fresh=True)
    assert errors == dict.fromkeys(mesh.names)
    for name in mesh.names:
        np.testing.assert_array_equal(mesh.model(name).coefficients, first[name].coefficients)


def test_a_record_that_cannot_be_kept_does_not_end_the_run(tmp_path, monkeypatch, capsys):
    mesh = Mesh(tmp_path, 2)
    record = Record(mesh.home("s00") / RECORD)
    record(Up(neighbor="s01"))
    whole = (mesh.home("s00") / RECORD).read_bytes()
    real = record._file.write

    def full(data):
        if len(data) > 40:
            return real(data[:40])
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(record, "_file", SimpleNamespace(write=full, truncate=record._file.truncate, close=int))
    record(Up(neighbor="s01" + "x" * 50))
    record(Up(neighbor="s01"))
    assert (mesh.home("s00") / RECORD).read_bytes() == whole
    assert capsys.readouterr().err.count("can no longer be written") == 1


def test_what_a_crash_left_of_a_records_line_is_dropped(tmp_path):
    path = tmp_path / RECORD
    path.write_bytes(b'{"event": "started"}\n{"event": "u')
    Record(path)(Up(neighbor="s01"))
    assert [json.loads(line)["event"] for line in path.read_text().splitlines()] == ["started", "up"]


def test_a_model_is_written_when_there_is_space_again(tmp_path, monkeypatch):
    mesh = Mesh(tmp_path, 2)
    save, failures = SiteModel.save, iter([ModelFileError("no space left"), OSError("no space left")])

    def full_at_first(model, path):
        for failure in failures:
            raise failure
        save(model, path)

    monkeypatch.setattr(SiteModel, "save", full_at_first)
    _, errors = mesh.run_in_threads()
    assert set(errors.values()) == {None}
    assert mesh.check_models(mesh.names) == {frozenset()}
    events = [event["event"] for name in mesh.names for event in mesh.events(name)]
    assert events.count("model not written") == 2


def test_the_driver_saves_the_model_before_a_neighbour_hears_that_the_site_has_finished(tmp_path, monkeypatch):
    mesh = Mesh(tmp_path, 2)
    save, flush, order = SiteModel.save, MeshNetwork._flush, {name: [] for name in mesh.names}

    def noting_save(model, path):
        places = {Path(frame.filename).parent.name for frame in traceback.extract_stack()}
        order[model.header.site].append(("saved", "session" in places))
        save(model, path)

    def noting_flush(network, session, speak):
        frames = [frame_decoder.decode(data) for _, data in session.out]
        if any(isinstance(frame, Hello) and frame.finished for frame in frames):
            order[session.plan.name].append(("told", False))
        flush(network, session, speak)

    monkeypatch.setattr(SiteModel, "save", noting_save)
    monkeypatch.setattr(MeshNetwork, "_flush", noting_flush)
    _, errors = mesh.run_in_threads()
    assert set(errors.values()) == {None}
    for happened in order.values():
        assert happened[:2] == [("saved", False), ("told", False)]


def test_a_listener_that_is_slow_does_not_hold_up_the_session(tmp_path):
    mesh = Mesh(tmp_path, 2)
    node = mesh.node("s00")
    places = []
    node.listeners.append(lambda event: places.extend(traceback.extract_stack()))
    thread = threading.Thread(target=node.run, daemon=True)
    thread.start()
    assert mesh.run_in_threads(["s01"])[1] == {"s01": None}
    thread.join(30)
    assert places
    assert not [frame for frame in places if Path(frame.filename).parent.name == "session"]


def test_events_go_to_logging_and_an_exchange_is_a_debug_message(caplog, monkeypatch):
    monkeypatch.setattr(logger, "propagate", True)
    monkeypatch.setattr(logger, "handlers", [])
    caplog.set_level(logging.DEBUG, "dekrr")
    events = [Up(neighbor="s01"), Exchanged(exchange=3, round=1, residual=0.5), Refused(sender="s01", reason="no")]
    for event in events:
        Log("s00")(event)
    assert [record.levelname for record in caplog.records] == ["INFO", "DEBUG", "WARNING"]
    assert [record.event for record in caplog.records] == events
    assert {record.name for record in caplog.records} == {"dekrr"}
    assert caplog.records[1].getMessage() == "s00 exchange exchange=3 round=1 residual=0.5"
    line = json.loads(JsonFormatter().format(caplog.records[2]))
    told = {"site": "s00", "event": "refused", "sender": "s01", "reason": "no"}
    assert line == {"time": line["time"], "level": "WARNING", **told}


def test_a_site_that_was_stopped_after_its_model_was_written_has_nothing_left_to_do(tmp_path):
    mesh = Mesh(tmp_path, 2)
    _, errors = mesh.run_in_threads()
    assert set(errors.values()) == {None}
    home = mesh.home("s00")
    journal = journals.FileJournal(home / CHECKPOINT)
    journal.append(journals.Opening("test", "s00", "", (), None, {}))
    journal.append(journals.Ended())
    journal.close()
    again = CliRunner().invoke(app, ["node", str(home / "site.toml")])
    assert again.exit_code == 0
    assert not (home / CHECKPOINT).exists()
    with pytest.raises(DataError, match="already there; --force"):
        mesh.node("s00")


def test_a_link_that_never_was_keeps_the_run_from_starting(tmp_path):
    mesh = Mesh(tmp_path, 3)
    port = mesh.network.site[1].endpoint
    for name in mesh.names:
        mesh.edit(name, "start_patience = 60.0", "start_patience = 4.0")
    mesh.edit("s02", f's01 = "{port}"', f's01 = "127.0.0.1:{free_ports(1)[0]}"')
    _, errors = mesh.run_in_threads()
    assert {type(error) for error in errors.values()} == {AbsenceError}
    assert "not heard of: s01" in str(errors["s02"])
    assert "not heard of: s02" in str(errors["s01"])
    assert "not in touch with all neighbours: s01, s02" in str(errors["s00"])


def test_a_site_that_comes_back_with_other_rows_is_out(tmp_path):
    mesh = Mesh(tmp_path, 3, settings={"features": "plain", "tol": 0.0, "max_rounds": 3000})
    processes = {name: mesh.process(name) for name in mesh.names}
    checkpoint = mesh.home("s01") / CHECKPOINT
    wait_until(lambda: checkpoint.exists() and checkpoint.stat().st_size > 20_000, 60)
    processes["s01"].kill()
    processes["s01"].join()
    table = pd.read_parquet(mesh.folder / "s01.parquet")
    table["u"] = np.roll(table["u"], 1)  # no row is as it was: otherwise the site's own history refuses
    table.to_parquet(mesh.folder / "s01.parquet")
    command = [sys.executable, "-c", "from dekrr.cli import main; main()", "node", mesh.home("s01") / "site.toml"]
    assert subprocess.run([*command, "--fresh"], timeout=60, check=False).returncode == 4
    for name in ("s00", "s02"):
        processes[name].join(60)
        assert processes[name].exitcode == 0
    assert mesh.check_models(["s00", "s02"]) == {frozenset({"s01"})}
    reasons = [event["reason"] for name in ("s00", "s02") for event in mesh.events(name) if event["event"] == "gone"]
    assert any("came back with other rows" in reason for reason in reasons)


def test_what_a_checkpoint_says_of_the_end_is_taken_for_its_own_run_alone(tmp_path):
    mesh = Mesh(tmp_path, 2)
    home = mesh.home("s00")

    def leave(run):
        journal = journals.FileJournal(home / CHECKPOINT, fresh=True)
        journal.append(journals.Opening(run, "s00", "", (), None, {}))
        journal.append(journals.Ended())
        journal.close()
        return (home / CHECKPOINT).read_bytes()

    (home / MODEL).write_bytes(b"model")
    for run, options in (("another", {}), ("test", {"fresh": True})):
        left = leave(run)
        with pytest.raises(DataError, match="already there; --force"):
            mesh.node("s00", **options)
        assert (home / CHECKPOINT).read_bytes() == left
    leave("test")
    over = mesh.node("s00")
    assert over.is_over
    over._journal.close()
    left = leave("test")
    (home / MODEL).unlink()
    node = mesh.node("s00")
    assert not node.is_over
    assert (home / CHECKPOINT).read_bytes() == left


def test_a_secret_stays_with_the_site_and_what_neighbours_hear_depends_on_it(tmp_path):
    mesh = Mesh(tmp_path, 2)
    secret = mesh.home("s00") / SECRET
    plans = []
    secrets = []
    for fresh in (True, False, True):
        node = mesh.node("s00", fresh=fresh)
        plans.append(node.session.plan)
        secrets.append(node._identity().private)
        node._journal.close()
    assert secret.stat().st_mode & 0o777 == 0o600
    assert plans[0].origin == plans[1].origin != plans[0].digest
    assert plans[0].digest == plans[2].digest
    assert plans[0].origin != plans[2].origin  # otherwise masks would be used for two runs
    assert secrets[0] == secrets[1] != secrets[2]
    secret.unlink()
    other = mesh.node("s00")
    assert other.session.plan.digest == plans[0].digest
    assert other.session.plan.origin != plans[0].origin


def test_no_frame_is_lost_where_more_wait_than_are_taken_at_a_time():
    waiting = [("b", b"")] * 5000
    arrivals = SimpleNamespace(recv=waiting.pop, try_recv=lambda: waiting.pop() if waiting else None)
    taken = len(_take(arrivals, 1))
    assert taken < 5000
    assert taken + len(waiting) == 5000


def test_what_a_site_writes_is_for_its_owner_alone(tmp_path):
    Record(tmp_path / RECORD)(Up(neighbor="s01"))
    assert (tmp_path / RECORD).stat().st_mode & 0o077 == 0


def test_the_transport_keeps_nothing_in_shared_memory():
    config = zenoh_config(Link("a", "127.0.0.1:7000", {"b": "127.0.0.1:7001"}, None))
    assert config["transport"]["shared_memory"] == {"enabled": False}


def test_origins_are_the_same_within_a_run_and_differ_between_runs(tmp_path):
    home = Mesh(tmp_path, 2).home("s00")

    def origin(run):
        node = Node(msgspec.structs.replace(read_site(home / "site.toml"), run=run), home, insecure=True)
        node._journal.close()
        return node.session.plan.origin

    first = origin("first")
    assert origin("first") == first
    assert origin("second") != first


def test_training_again_after_one_new_row_is_refused_and_after_many_is_not(tmp_path):
    mesh = Mesh(tmp_path, 2, rows=60)
    home = mesh.home("s00")
    config = read_site(home / "site.toml")
    data = home / config.data.file
    frame = pd.read_csv(data) if data.suffix == ".csv" else pd.read_parquet(data)

    def node(run, n_rows):
        kept = pd.concat([frame, frame.sample(40, random_state=0, replace=True) + 0.01]).iloc[:n_rows]
        kept.to_csv(data, index=False) if data.suffix == ".csv" else kept.to_parquet(data)
        made = Node(msgspec.structs.replace(config, run=run), home, insecure=True)
        made._journal.close()
        return made

    node("june", 60).note_rows()
    node("july", 60).note_rows()
    with pytest.raises(DataError, match="separates 1 row, fewer than"):
        node("august", 61)
    node("september", 100)


@pytest.mark.parametrize(
    "settings", [None, {"features": "plain", "privacy": {"epsilon": 6.0}}], ids=["sums", "private"]
)
def test_a_run_with_another_target_or_other_columns_is_over_the_same_rows(tmp_path, settings):
    """Sums over columns tell a new row whatever the target is, and budgets add up whatever the columns are."""
    bounds = {"bounds": [[0.0, 0.0, -1.0], [1.0, 1.0, 1.0]]}
    mesh = Mesh(tmp_path, 2, rows=60, settings=settings and {**settings, **bounds})
    home = mesh.home("s00")
    config = read_site(home / "site.toml")
    data = home / config.data.file
    frame = pd.read_csv(data) if data.suffix == ".csv" else pd.read_parquet(data)
    frame["z"] = -frame["y"]

    def node(run, n_rows, **changes):
        kept = pd.concat([frame, frame.sample(40, random_state=0, replace=True) + 0.01]).iloc[:n_rows]
        kept.to_csv(data, index=False) if data.suffix == ".csv" else kept.to_parquet(data)
        changed = msgspec.structs.replace(config, run=run, data=msgspec.structs.replace(config.data, **changes))
        made = Node(changed, home, insecure=True)
        made._journal.close()
        return made

    node("june", 60).note_rows()
    if settings is None:
        with pytest.raises(DataError, match="separates 1 row, fewer than"):
            node("july", 61, target="z")
        node("august", 60, target="z")
        node("september", 100, target="z")
    else:
        with pytest.raises(DataError, match="1 run with differential privacy over these rows spent epsilon 6 together"):
            node("july", 60, columns=("u", "z"))


def test_what_a_node_keeps_of_its_rows_holds_for_its_columns_in_any_order(tmp_path):
    mesh = Mesh(tmp_path, 2, rows=60)
    home = mesh.home("s00")
    config = read_site(home / "site.toml")
    turned = msgspec.structs.replace(config.data, columns=config.data.columns[::-1])
    rules = []
    for run, data in (("june", config.data), ("july", turned)):
        node = Node(msgspec.structs.replace(config, run=run, data=data), home, insecure=True)
        node.note_rows()
        node.close()
        rules.append(node._own._admission)
    assert len(list(home.glob("admission-*"))) == 1
    assert len({tuple(entry.rows.values()) for entry in node._own.ledger.entries}) == 1
    X = np.random.default_rng(0).normal(size=(200, len(turned.columns)))
    np.testing.assert_array_equal(rules[0](X), rules[1](X[:, ::-1]))
    assert 0 < rules[0](X).sum() < 200


def test_keys_for_masks_are_proved_by_certificates(tmp_path):
    """A signature counts for its own site, statement and network alone, and the refusal names the site."""
    folders = tmp_path / "one", tmp_path / "two"
    for folder in folders:
        folder.mkdir()
    mesh, other = Mesh(folders[0], 3), Mesh(folders[1], 2)
    signers = {name: mesh.node(name)._signer for name in mesh.names}
    proof = signers["s00"].sign(b"statement")
    signers["s01"].verify("s00", b"statement", proof)
    with pytest.raises(KeysError, match="the certificate of 's00', used in the name of 's02'"):
        signers["s01"].verify("s02", b"statement", proof)
    with pytest.raises(KeysError, match="it is not signed by the key of 's00'"):
        signers["s01"].verify("s00", b"another statement", proof)
    with pytest.raises(KeysError, match="a certificate that the authority has not signed"):
        other.node("s01")._signer.verify("s00", b"statement", proof)
    for nonsense in (b"", b"\x93", msgspec.msgpack.encode(["a", "b"]), proof[:-1]):
        with pytest.raises(KeysError, match=r"it has no proof that 's00' made it|a certificate that the authority"):
            signers["s01"].verify("s00", b"statement", nonsense)


def test_a_node_compares_signed_neighbors_with_the_graph_that_all_sites_told(tmp_path, monkeypatch):
    """So no site can name fewer neighbours for its masks than it has."""
    mesh, graphs, real = Mesh(tmp_path, 4), [], Identity.verify

    def verify(self, site, neighbors, public, proof):
        graphs.append(self.graph)
        real(self, site, neighbors, public, proof)

    monkeypatch.setattr(Identity, "verify", verify)
    _, errors = mesh.run_in_threads()
    assert set(errors.values()) == {None}
    expected = {name: sorted(neighbors) for name, neighbors in mesh.network.neighbors().items()}
    assert graphs
    assert all({name: sorted(around) for name, around in graph.items()} == expected for graph in graphs)


def test_the_only_neighbor_is_told_in_its_log(tmp_path):
    mesh = Mesh(tmp_path, 2)
    _, errors = mesh.run_in_threads()
    assert set(errors.values()) == {None}
    told = [event["reason"] for event in mesh.events("s00") if event["event"] == "exposed"]
    assert len(told) == 1
    assert "site 's00' is the only neighbour of 's01'" in told[0]
