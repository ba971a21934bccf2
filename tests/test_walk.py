"""The page docs/how-to/two-organisations.md, run as it stands: every block, in its place, in the order of the page."""

import json
import os
import re
import signal
import subprocess
import sys
import venv
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "how-to" / "two-organisations.md"
ADDRESSES = {"clinic": "10.78.1.1", "hospital": "10.78.2.1"}
PREDICTING = "http://127.0.0.1:8080/predict"


def blocks():
    """Return the blocks of the page: their language, the places or the file that the first line names, the text."""
    found = re.findall(r"^```(sh|toml)\n# ([^\n]*)\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), flags=re.M | re.S)
    assert len(found) == PAGE.read_text(encoding="utf-8").count("```") // 2, "a block has no first line with its place"
    return found


def run(*words, **options):
    return subprocess.run(words, check=True, capture_output=True, text=True, **options)


@pytest.fixture
def spaces():
    """A namespace for each organisation, with a line between them."""
    names = {place: f"dekrr-{place}-{os.getpid()}" for place in ADDRESSES}
    clinic, hospital = names.values()
    try:
        for name in names.values():
            run("ip", "netns", "add", name)
            run("ip", "-n", name, "link", "set", "lo", "up")
        run("ip", "link", "add", "dkw", "netns", clinic, "type", "veth", "peer", "name", "dkw", "netns", hospital)
        for place, name in names.items():
            run("ip", "-n", name, "addr", "add", f"{ADDRESSES[place]}/16", "dev", "dkw")
            run("ip", "-n", name, "link", "set", "dkw", "up")
    except (FileNotFoundError, subprocess.CalledProcessError) as error:
        for name in names.values():
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
        pytest.skip(f"no network namespaces can be made here: {getattr(error, 'stderr', error)}")
    yield names
    for name in names.values():
        for pid in run("ip", "netns", "pids", name).stdout.split():
            os.kill(int(pid), signal.SIGKILL)
        run("ip", "netns", "del", name)


@pytest.fixture
def environment(tmp_path):
    """An empty environment, and where pip finds the wheel that was just built."""
    dist = tmp_path / "dist"
    done = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", dist, ROOT], capture_output=True, text=True
    )
    if done.returncode:
        pytest.skip(f"no wheel can be built here: {done.stderr[-300:]}")
    venv.create(tmp_path / "venv", with_pip=True)
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    links = f"{dist} {os.environ.get('PIP_FIND_LINKS', '')}".strip()
    path = f"{tmp_path / 'venv' / 'bin'}{os.pathsep}{os.environ['PATH']}"
    return {**kept, "PATH": path, "PIP_FIND_LINKS": links, "PIP_QUIET": "1", "OMP_NUM_THREADS": "1"}


def rows(rng, count):
    table = pd.DataFrame({"age": rng.uniform(20, 95, count), "severity": rng.uniform(0, 5, count)})
    return table.assign(name="somebody", days=2 + table["severity"] + np.sin(table["age"] / 10))


def listens_outside(space):
    """Whether a process of a namespace listens on an address that others can reach."""
    lines = run("ip", "netns", "exec", space, "cat", "/proc/net/tcp").stdout.splitlines()[1:]
    return any(line.split()[3] == "0A" and not line.split()[1].startswith("0100007F") for line in lines)


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_the_walk_of_two_organisations(tmp_path, spaces, environment):
    places = {place: tmp_path / place for place in ("authority", *ADDRESSES)}
    rng = np.random.default_rng(0)
    for place, folder in places.items():
        folder.mkdir()
        if place in ADDRESSES:
            rows(rng, 400).to_csv(folder / "patients.csv", index=False)
            rows(rng, 400).to_csv(folder / "january.csv", index=False)
    said = []
    for language, first, text in blocks():
        if language == "toml":
            (tmp_path / first).write_text(f"# {first}\n{text}")
            continue
        for place in first.split(", ") if first != "once on each machine" else [""]:
            inside = ["ip", "netns", "exec", spaces[place]] if place in spaces else []
            done = subprocess.run(
                [*inside, "bash", "-euo", "pipefail", "-c", text],
                cwd=places.get(place, tmp_path),
                env=environment,
                capture_output=True,
                text=True,
                timeout=1500,
            )
            logs = {path: path.read_text()[-2000:] for path in tmp_path.glob("*/*.log")} if done.returncode else ""
            assert done.returncode == 0, f"at {place or 'install'}:\n{text}\n{done.stdout}{done.stderr}{logs}"
            said.append((place, text, done.stdout))
    answers = {place: json.loads(out) for place, text, out in said if PREDICTING in text}
    assert answers["clinic"].keys() == answers["hospital"].keys() == {"predictions", "model"}
    for answer in answers.values():
        assert answer["predictions"][0] == pytest.approx(2 + 2.5 + np.sin(7.1), abs=0.4)
    assert len([out for _, text, out in said if "audit verify" in text and "is whole" in out]) == 2
    asking = ["curl", "--silent", PREDICTING, "-H", "Content-Type: application/json", "--data"]
    asking.append('{"rows": [{"age": 71, "severity": 2.5}]}')
    again = {place: json.loads(run("ip", "netns", "exec", spaces[place], *asking).stdout) for place in ADDRESSES}
    assert again["clinic"]["model"] != answers["clinic"]["model"], "the service does not follow the new version"
    assert again["hospital"]["model"] == answers["hospital"]["model"], "the hospital went back to version 1"
    assert listens_outside(spaces["hospital"])
    assert not listens_outside(spaces["clinic"])
    assert "version used" in (places["hospital"] / "audit.html").read_text()
