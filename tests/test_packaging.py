"""The units, the image and the compose file: what they start exists, and the units are hardened."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dekrr.cli.app import COMMANDS
from dekrr.mesh.files import parse_study, read_relay, read_standing
from dekrr.mesh.identity import SiteIdentity
from dekrr.mesh.policy import read_policy, refusals

FOLDER = Path(__file__).parents[1] / "packaging"
UNITS = sorted(FOLDER.glob("*.service"))


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_unit_is_right_and_hardened(unit, tmp_path):
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not here")
    text = unit.read_text().replace("/opt/dekrr/bin/dekrr", sys.executable)
    copy = tmp_path / unit.name
    copy.write_text(text)
    verified = subprocess.run(["systemd-analyze", "verify", copy], capture_output=True, text=True, check=False)
    assert unit.name.split("@")[0] not in verified.stderr, verified.stderr
    command = ["systemd-analyze", "security", "--offline=true", "--threshold=20", copy]
    exposed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert exposed.returncode == 0, exposed.stdout[-500:] + exposed.stderr


def test_what_is_started_is_a_command():
    assert len(UNITS) == 3
    started = [re.search(r"ExecStart=/opt/dekrr/bin/dekrr (\w+)", unit.read_text()).group(1) for unit in UNITS]
    started += re.findall(r'CMD \["(\w+)"', (FOLDER / "Containerfile").read_text())
    started += re.findall(r"command: \[(\w+)", (FOLDER / "compose.yaml").read_text())
    assert sorted(started) == ["node", "node", "relay", "relay", "serve"]
    assert set(started) <= set(COMMANDS)


def test_the_compose_file_has_four_hardened_sites_and_a_relay():
    yaml = pytest.importorskip("yaml", reason="PyYAML is not here")
    services = yaml.safe_load((FOLDER / "compose.yaml").read_text())["services"]
    assert sorted(services) == ["relay", *(f"station-0{j}" for j in range(4))]
    for service in services.values():
        assert service["read_only"]
        assert service["cap_drop"] == ["ALL"]


def test_the_trial_of_the_compose_file_has_what_its_containers_need(tmp_path):
    yaml = pytest.importorskip("yaml", reason="PyYAML is not here")
    shutil.copytree(FOLDER, tmp_path / "packaging")
    program = tmp_path / "dekrr"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -c "from dekrr.cli import main; main()" "$@"\n')
    (tmp_path / "chown").write_text("#!/bin/sh\n")  # a user of the image, whom only root can name
    for made in (program, tmp_path / "chown"):
        made.chmod(0o755)
    environment = {**os.environ, "DEKRR": str(program), "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["sh", "packaging/trial.sh"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    services = yaml.safe_load((FOLDER / "compose.yaml").read_text())["services"]
    homes = {name: tmp_path / "packaging" / entry["volumes"][0].split(":")[0] for name, entry in services.items()}
    relay = read_relay(homes.pop("relay") / "relay.toml")
    assert set(relay.sites) == set(homes)
    study = parse_study((homes["station-00"] / "study.toml").read_text())
    assert set(study.sites) == set(homes)
    for name, home in homes.items():
        site = read_standing(home / "site.toml")
        assert site.relay == "relay:7700"
        assert SiteIdentity.of(site, home).site == name
        assert set(site.neighbors) == set(homes) - {name}
        assert (home / site.sources[study.source]).exists()
        assert refusals(read_policy(home / "policy.toml"), study, "station-00", site.sources) == []
