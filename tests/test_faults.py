"""Faults that an operator met: rows that change, a log that nobody reads, slow and broken links, noise at the door."""

import os
import socket
import subprocess
import sys
import threading

import numpy as np
import pandas as pd
import pytest

from dekrr.errors import DataError, GoneError
from dekrr.mesh import keys
from dekrr.mesh.identity import REVOKED, revocation_list
from dekrr.mesh.node import CHECKPOINT
from dekrr.mesh.standard_error import SteadyStream
from dekrr.tables import rows as rows_module
from dekrr.tables.sources import StreamedRows, open_source
from lines import Line
from meshes import Mesh, run_command, wait_until

NODE = [sys.executable, "-c", "from dekrr.cli import main; main()", "node"]


def test_rows_that_are_replaced_between_two_passes_are_noticed(tmp_path, monkeypatch):
    monkeypatch.setattr(rows_module, "SAMPLE_ROWS", 20)
    table = pd.DataFrame({"u": np.arange(100.0), "y": np.arange(100.0) % 7})
    path = tmp_path / "rows.parquet"
    table.to_parquet(path)
    rows = StreamedRows(open_source(path), ["u"], "y")
    assert rows.n_rows == sum(block.n_rows for block in rows.blocks(30)) == 100
    table.assign(y=table["y"] + 1).to_parquet(path)
    with pytest.raises(DataError, match="gave other rows in one pass than in the next"):
        list(rows.blocks(64))
    table.to_parquet(path)
    assert sum(block.n_rows for block in rows.blocks(7)) == 100


def test_the_same_rows_in_other_bytes_are_the_same_rows(tmp_path):
    mesh = Mesh(tmp_path, 2)
    table = pd.read_parquet(tmp_path / "s00.parquet")

    def digest():
        node = mesh.node("s00", fresh=True)
        node._journal.close()
        return node.session.plan.digest

    first = digest()
    table.to_parquet(tmp_path / "s00.parquet", compression="gzip", row_group_size=7)
    assert digest() == first
    table.assign(more=1.0).to_csv(tmp_path / "s00.csv", index=False)
    mesh.edit("s00", "s00.parquet", "s00.csv")
    assert digest() == first
    table.assign(y=table["y"] + 1).to_csv(tmp_path / "s00.csv", index=False)
    assert digest() != first


def test_a_run_is_not_repeated_over_other_rows_under_the_same_id(tmp_path):
    mesh = Mesh(tmp_path, 2)
    assert set(mesh.run_in_threads()[1].values()) == {None}
    again = mesh.node("s00", force=True)
    again._journal.close()
    table = pd.read_parquet(tmp_path / "s00.parquet")
    (table + 0.5).to_parquet(tmp_path / "s00.parquet")
    with pytest.raises(DataError, match="run 'test' used other rows"):
        mesh.node("s00", force=True)


def test_a_log_that_nobody_reads_any_more_ends_no_site(tmp_path):
    mesh = Mesh(tmp_path, 2, settings={"tol": 0.0, "max_rounds": 300})
    options = {"stderr": subprocess.PIPE, "env": {**os.environ, "OMP_NUM_THREADS": "1"}}
    command = [*NODE, str(mesh.home("s00") / "site.toml"), "--log-json"]
    with subprocess.Popen(command, **options) as process:
        process.stderr.readline()
        process.stderr.close()
        assert mesh.run_in_threads(["s01"])[1] == {"s01": None}
        assert process.wait(60) == 0
    assert mesh.check_models(mesh.names) == {frozenset()}


def test_what_cannot_be_written_is_dropped():
    readable, writable = os.pipe()
    with os.fdopen(writable, "w") as stream:
        steady = SteadyStream(stream)
        steady.write("a line\n")
        steady.flush()
        assert os.read(readable, 100) == b"a line\n"
        os.close(readable)
        steady.write("nobody reads this\n")
        steady.flush()
        steady.write("nor this\n")
        steady.flush()


def test_a_link_that_breaks_for_good_costs_no_site(tmp_path):
    mesh = Mesh(tmp_path, 4, patience=3.0, settings={"tol": 0.0, "max_rounds": 5000})
    lines = []
    for one, other in ((0, 1), (1, 0)):  # either of the two may be the one that dials
        host, port = mesh.network.site[one].endpoint.split(":")
        lines.append(Line(f"{host}:{port}"))
        mesh.edit(f"s0{other}", f's0{one} = "{host}:{port}"', f's0{one} = "{lines[-1].endpoint}"')
    processes = {name: mesh.process(name) for name in mesh.names}
    checkpoint = mesh.home("s00") / CHECKPOINT
    wait_until(lambda: checkpoint.exists() and checkpoint.stat().st_size > 3e4)
    for line in lines:
        line.cut()
    for name, process in processes.items():
        process.join(100)
        assert process.exitcode == 0, name
    assert mesh.check_models(mesh.names) == {frozenset()}
    finished = [event for name in mesh.names for event in mesh.events(name) if event["event"] == "finished"]
    assert [event["lost"] for event in finished] == [["s00|s01"]] * 4


@pytest.fixture
def slow_place():
    """A network namespace whose loopback carries 4 Mbit/s, shared by all who use it."""
    name = f"dekrr-slow-{os.getpid()}"
    commands = [
        ["ip", "netns", "add", name],
        ["ip", "-n", name, "link", "set", "lo", "up"],
        [
            "tc",
            "-n",
            name,
            *["qdisc", "add", "dev", "lo", "root", "tbf", "rate", "4mbit", "burst", "70kb", "limit", "4mb"],
        ],
    ]
    try:
        for command in commands:
            subprocess.run(command, check=True, capture_output=True, text=True)
    except (FileNotFoundError, subprocess.CalledProcessError) as error:
        subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
        pytest.skip(f"no slow network can be made here: {getattr(error, 'stderr', error)}")
    yield name
    subprocess.run(["ip", "netns", "del", name], check=False)


@pytest.mark.slow
@pytest.mark.timeout(2000)
def test_frames_over_links_that_share_4_mbit_are_sent_once(tmp_path, slow_place):
    """A machine that has no time for a site breaks a link, too. So there are three attempts."""
    sent = []
    for attempt in range(3):
        (tmp_path / str(attempt)).mkdir()
        sent.append(_sent_over(slow_place, tmp_path / str(attempt)))
        if all(not broken and ratio < 1.2 for broken, ratio in sent[-1].values()):
            return
    pytest.fail(f"links broke, or frames were sent again, each time: {sent}")


def _sent_over(place, folder):
    """Run four sites in a network namespace; return how often each lost a link, and its bytes over its messages'."""
    settings = {"n_features": 150, "tol": 1e-3, "masks": False}
    mesh = Mesh(folder, 4, rows=900, patience=120.0, start_patience=300.0, settings=settings)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    files = [str(mesh.home(name) / "site.toml") for name in mesh.names]
    processes = [subprocess.Popen(["ip", "netns", "exec", place, *NODE, file], env=environment) for file in files]
    try:
        assert [process.wait(600) for process in processes] == [0] * 4
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert mesh.check_models(mesh.names) == {frozenset()}
    found = {}
    for name in mesh.names:
        events = mesh.events(name)
        at = next(number for number, event in enumerate(events) if event["event"] == "finished")
        n_broken = sum(event["event"] == "down" for event in events[:at])  # later, neighbours go down that have ended
        assert events[at]["message bytes sent"] > 500_000
        found[name] = n_broken, events[at]["wire bytes sent"] / events[at]["message bytes sent"]
    return found


def test_noise_at_the_door_does_not_keep_a_run_from_starting(tmp_path):
    mesh = Mesh(tmp_path, 2)
    host, port = mesh.network.site[0].endpoint.split(":")
    over = threading.Event()

    def knock():
        kept = []
        while not over.wait(1 / 30):
            try:
                kept.append(socket.create_connection((host, int(port)), 1.0))
                kept[-1].sendall(os.urandom(200))
            except OSError:
                continue
        for connection in kept:
            connection.close()

    knocking = threading.Thread(target=knock, daemon=True)
    knocking.start()
    try:
        _, errors = mesh.run_in_threads()
    finally:
        over.set()
        knocking.join()
    assert set(errors.values()) == {None}


def test_a_node_that_reads_parquet_needs_neither_pandas_nor_scikit_learn(tmp_path):
    mesh = Mesh(tmp_path, 2)
    program = (
        "import sys; from pathlib import Path; from dekrr.mesh.site_rows import open_rows; "
        "from dekrr.mesh.files import read_site; path = Path(sys.argv[1]); "
        "print(open_rows(read_site(path), path.parent).n_rows, {'pandas', 'sklearn', 'networkx'} & set(sys.modules))"
    )
    path = str(mesh.home("s00") / "site.toml")
    done = subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["60", "set()"]


@pytest.mark.parametrize("masks", [True, False])
def test_a_single_run_goes_on_when_its_certificate_is_renewed(tmp_path, monkeypatch, masks):
    monkeypatch.setattr("dekrr.mesh.node._LOOK_EVERY", 0.0)  # 4,000 rounds may take less than the usual wait
    mesh = Mesh(tmp_path, 2, settings={"tol": 0.0, "max_rounds": 4000, "masks": masks})
    process = mesh.process("s01")
    node = mesh.node("s00")
    thread = threading.Thread(target=node.run, daemon=True)
    thread.start()
    wait_until(lambda: node.session.course.progress.rounds > 20)
    home = mesh.home("s00")
    (home / "new").write_bytes(mesh.authority.sign(keys.read_request(home / keys.REQUEST), days=30))
    (home / "new").rename(home / keys.CERTIFICATE)
    wait_until(lambda: any(event["event"] == "down" for event in mesh.events("s01")))
    thread.join(100)
    process.join(100)
    assert process.exitcode == 0
    assert mesh.check_models(mesh.names) == {frozenset()}


@pytest.mark.parametrize("masks", [True, False])
def test_a_single_run_goes_on_without_a_revoked_certificate_and_says_when_its_own_ends(tmp_path, masks):
    mesh = Mesh(tmp_path, 3, settings={"masks": masks}, patience=20.0 if masks else 5.0)
    home = mesh.home("s00")
    revoked = [keys.read_certificate(mesh.home("s01") / keys.CERTIFICATE)]
    (home / REVOKED).write_bytes(revocation_list(mesh.authority, revoked, None))
    (home / "new").write_bytes(mesh.authority.sign(keys.read_request(home / keys.REQUEST), days=20))
    (home / "new").rename(home / keys.CERTIFICATE)
    process = mesh.process("s00", run_command)
    _, errors = mesh.run_in_threads(["s01", "s02"])
    process.join(60)
    said = (home / "said").read_text()
    assert process.exitcode == 0, said
    assert "the certificate expires in 20.0 days; renew it" in said
    (gone,) = [event for event in mesh.events("s00") if event["event"] == "gone"]
    assert gone["sites"] == ["s01"]
    refused = [event["reason"] for event in mesh.events("s00") if event["event"] == "refused"]
    (reason,) = [reason for reason in refused if "the certificate of 's01' with serial number" in reason]
    assert "is revoked" in reason
    assert gone["reason"] == (reason if masks else f"s01 missing at exchange {gone['exchange']}")
    assert isinstance(errors["s01"], GoneError)
    assert errors["s02"] is None
    assert mesh.check_models(["s00", "s02"]) == {frozenset({"s01"})}
