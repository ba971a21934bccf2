"""Studies over a relay, as docs/studies.md has them: two organisations that accept no connection, and both dial it.

The organisations and the relay are three network namespaces. The organisations have no way to each other.
"""

import os
import socket
import subprocess

import numpy as np
import pandas as pd
import pytest

from consortium import WARN, Consortium, wait_until

CLINIC, HOSPITAL, RELAY = "10.78.1.1", "10.78.2.1", "10.78.9.9"


def run(*words):
    return subprocess.run(words, check=True, capture_output=True, text=True)


@pytest.fixture
def places():
    """Three namespaces: west and east, which have no way to each other, and a third party that both can dial."""
    names = west, middle, east = [f"dekrr-{side}-{os.getpid()}" for side in ("w", "m", "e")]
    try:
        for name in names:
            run("ip", "netns", "add", name)
            run("ip", "-n", name, "link", "set", "lo", "up")
        # A machine with containers forwards packets, and new namespaces do as it does.
        run("ip", "netns", "exec", middle, "sysctl", "-q", "-w", "net.ipv4.ip_forward=0")
        run("ip", "-n", middle, "addr", "add", f"{RELAY}/32", "dev", "lo")
        for number, (name, address) in enumerate(((west, CLINIC), (east, HOSPITAL)), 1):
            outer, inner = f"dko{number}", f"dki{number}"
            run("ip", "link", "add", outer, "netns", name, "type", "veth", "peer", "name", inner, "netns", middle)
            run("ip", "-n", name, "addr", "add", f"{address}/24", "dev", outer)
            run("ip", "-n", middle, "addr", "add", f"10.78.{number}.254/24", "dev", inner)
            run("ip", "-n", name, "link", "set", outer, "up")
            run("ip", "-n", middle, "link", "set", inner, "up")
            run("ip", "-n", name, "route", "add", "default", "via", f"10.78.{number}.254")
    except (FileNotFoundError, subprocess.CalledProcessError) as error:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
        pytest.skip(f"no network namespaces can be made here: {getattr(error, 'stderr', error)}")
    yield [["ip", "netns", "exec", name] for name in names]
    for name in names:
        run("ip", "netns", "del", name)


def can_connect(place, host, port):
    program = f"import socket; socket.create_connection(({host!r}, {port}), 1.5)"
    return subprocess.run([*place, "python3", "-c", program], capture_output=True, check=False).returncode == 0


def listens(place):
    """Whether any process of a namespace listens for TCP connections."""
    tables = "".join(run(*place, "cat", f"/proc/net/{kind}").stdout for kind in ("tcp", "tcp6"))
    return any(line.split()[3] == "0A" for line in tables.splitlines() if line.split()[0] != "sl")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_two_organisations_that_accept_no_connection(tmp_path, places):
    west, middle, east = places
    hosts = {"clinic": f"{CLINIC}:7701", "hospital": f"{HOSPITAL}:7701", "relay": f"{RELAY}:7700"}
    both = Consortium(tmp_path, ["clinic", "hospital"], relayed=("clinic", "hospital"), hosts=hosts)
    listener = subprocess.Popen([*east, "python3", "-m", "http.server", "7999"], stderr=subprocess.DEVNULL)
    processes = [both.process("relay", place=middle, file="relay.toml", command="relay")]
    try:
        wait_until(lambda: can_connect(east, HOSPITAL, 7999))
        assert not can_connect(west, HOSPITAL, 7999), "the hospital can be reached"
        listener.kill()
        listener.wait()
        wait_until(lambda: can_connect(east, RELAY, 7700))
        processes += [both.process("clinic", place=west), both.process("hospital", place=east)]
        (both.home("clinic") / "policy.toml").write_text(f'approval = "policy"\nproposers = ["hospital"]\n{WARN}')
        said = both.command("hospital", "propose", both.study(sites=both.names))
        digest = said.split("digest ")[1][:64]
        assert "Masked" in both.command("hospital", "preview", "air")
        wait_until(lambda: "air" in both.command("clinic", "list"))
        both.command("hospital", "approve", "air", "--digest", digest[:12], "--reason", "reviewed")
        wait_until(both.done(1))
        assert not listens(east)
        assert not listens(west)
        table = pd.read_parquet(both.home("clinic") / "rows.parquet")
        predicted = both.model("clinic").predict(table[["u", "v"]].to_numpy())
        assert np.corrcoef(predicted, table["y"])[0, 1] > 0.9
        processes[0].terminate()
        processes[0].wait()
        processes[0] = both.process("relay", place=middle, file="relay.toml", command="relay")
        both.command("clinic", "run", "air", "--reason", "new month")
        wait_until(both.done(2), 100)
        for name in both.names:
            assert "is whole" in both.command(name, "audit", "verify")
    finally:
        for process in [listener, *processes]:
            process.kill()
            process.wait()


@pytest.mark.timeout(120)
def test_a_relay_carries_frames_that_it_cannot_read(tmp_path):
    sites = Consortium(tmp_path, ["a", "b", "c"], relayed=("b",))
    relay = sites.process("relay", file="relay.toml", command="relay")
    host, port = sites.relay_host.split(":")

    def is_up():
        try:
            socket.create_connection((host, int(port)), 1.0).close()
        except OSError:
            return False
        return True

    processes = [relay]
    try:
        wait_until(is_up)
        for name in sites.names:
            (sites.home(name) / "policy.toml").write_text('approval = "policy"\n')
        sites.command("b", "propose", sites.study())
        processes += [sites.process(name) for name in sites.names]
        wait_until(sites.done(1), 60)
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            assert process.wait(30) == 0
    for name in sites.names:
        assert "is whole" in sites.command(name, "audit", "verify")
