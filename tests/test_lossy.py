"""A run over links that lose packets: it ends well, and nothing is sent twice that TCP sends again by itself."""

import os
import subprocess
import sys

import pytest

from lossy import LossyPath, run
from meshes import Mesh

ADDRESSES = ("10.79.0.1", "10.79.0.2")
NODE = [sys.executable, "-c", "from dekrr.cli import main; main()", "node"]


@pytest.fixture
def spaces():
    names = [f"dekrr-{side}-{os.getpid()}" for side in ("l", "r")]
    try:
        for name in names:
            run("ip", "netns", "add", name)
            run("ip", "-n", name, "link", "set", "lo", "up")
        os.close(os.open("/dev/net/tun", os.O_RDWR))
    except (OSError, subprocess.CalledProcessError) as error:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
        pytest.skip(f"no network namespaces or TUN devices can be made here: {getattr(error, 'stderr', error)}")
    yield names
    for name in names:
        run("ip", "netns", "del", name)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("loss", [0.05, 0.2])
def test_a_run_ends_well_where_packets_are_lost(tmp_path, spaces, loss):
    """Four sites, all of whose links lose packets both ways; a packet takes 5 ms."""
    hosts = [f"{ADDRESSES[i % 2]}:{7501 + i}" for i in range(4)]
    edges = [[f"s0{i}", f"s0{j}"] for i in (0, 2) for j in (1, 3)]
    settings = {"n_features": 120, "tol": 0.0, "max_rounds": 10}
    times = {"patience": 120.0, "start_patience": 300.0}
    mesh = Mesh(tmp_path, 4, hosts=hosts, edges=edges, rows=400, settings=settings, **times)
    path = LossyPath(spaces, ADDRESSES, loss=loss, delay=0.005)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            ["ip", "netns", "exec", spaces[i % 2], *NODE, str(mesh.home(name) / "site.toml")],
            env=environment,
            stderr=(mesh.home(name) / "log").open("w"),
        )
        for i, name in enumerate(mesh.names)
    ]
    try:
        for name, process in zip(mesh.names, processes, strict=True):
            assert process.wait(500) == 0, (mesh.home(name) / "log").read_text()
    finally:
        for process in processes:
            process.kill()
            process.wait()
        path.close()
    assert path.lost > 0.5 * loss * path.carried
    assert mesh.check_models(mesh.names) == {frozenset()}
    for name in mesh.names:
        finished = next(event for event in mesh.events(name) if event["event"] == "finished")
        assert finished["wire bytes sent"] < 1.2 * finished["message bytes sent"]
