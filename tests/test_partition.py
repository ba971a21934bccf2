"""A partition between two halves of a network, made with network namespaces."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dekrr.mesh.node import CHECKPOINT
from meshes import Mesh, wait_until

HALVES = {"dekrr-west": "10.77.0.1", "dekrr-east": "10.77.0.2"}


def ip(*words, **options):
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True, **options)


@pytest.fixture
def halves():
    west, east = HALVES
    try:
        for name in HALVES:
            ip("netns", "add", name)
        ip("link", "add", "dekrr0", "netns", west, "type", "veth", "peer", "name", "dekrr1", "netns", east)
        for (name, address), device in zip(HALVES.items(), ("dekrr0", "dekrr1"), strict=True):
            ip("-n", name, "addr", "add", f"{address}/24", "dev", device)
            ip("-n", name, "link", "set", device, "up")
            ip("-n", name, "link", "set", "lo", "up")
    except (FileNotFoundError, subprocess.CalledProcessError) as error:
        for name in HALVES:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
        pytest.skip(f"no network namespaces can be made here: {getattr(error, 'stderr', error)}")
    yield west, east
    for name in HALVES:
        ip("netns", "del", name)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_partition_of_ten_seconds_heals_and_the_result_is_right(tmp_path, halves):
    west, _ = halves
    hosts = [f"{address}:{7601 + j}" for address in HALVES.values() for j in range(3)]
    mesh = Mesh(tmp_path, 6, hosts=hosts, patience=60.0, settings={"tol": 0.0, "max_rounds": 1500})
    places = dict(zip(mesh.names, [name for name in HALVES for _ in range(3)], strict=True))
    program = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import meshes; meshes.run_node(sys.argv[1])"
    )
    processes = {
        name: subprocess.Popen(
            ["ip", "netns", "exec", place, sys.executable, "-c", program, str(mesh.home(name) / "site.toml")],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        for name, place in places.items()
    }
    try:
        checkpoint = mesh.home("s02") / CHECKPOINT
        wait_until(lambda: checkpoint.exists() and checkpoint.stat().st_size > 3e4, 120)
        ip("-n", west, "link", "set", "dekrr0", "down")
        wait_until(lambda: any(event["event"] == "down" for event in mesh.events("s02")))
        before = checkpoint.stat().st_size
        time.sleep(8)  # the partition goes on
        assert checkpoint.stat().st_size == before, "the run went on across the partition"
        ip("-n", west, "link", "set", "dekrr0", "up")
        for name, process in processes.items():
            assert process.wait(120) == 0, name
    finally:
        for process in processes.values():
            process.kill()
    assert mesh.check_models(mesh.names) == {frozenset()}
    assert any(event["event"] == "down" for event in mesh.events("s02"))
