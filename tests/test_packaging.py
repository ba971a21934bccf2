"""The units, the image and the compose file: what they start exists, and the units are hardened."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dekrr.cli.app import COMMANDS

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
    assert len(UNITS) == 2
    started = [re.search(r"ExecStart=/opt/dekrr/bin/dekrr (\w+)", unit.read_text()).group(1) for unit in UNITS]
    started += re.findall(r'CMD \["(\w+)"', (FOLDER / "Containerfile").read_text())
    started += re.findall(r"command: \[(\w+)", (FOLDER / "compose.yaml").read_text())
    assert sorted(started) == ["node", "node", "relay", "relay"]
    assert set(started) <= set(COMMANDS)


def test_the_compose_file_has_four_hardened_sites_and_a_relay():
    yaml = pytest.importorskip("yaml", reason="PyYAML is not here")
    services = yaml.safe_load((FOLDER / "compose.yaml").read_text())["services"]
    assert sorted(services) == ["relay", *(f"station-0{j}" for j in range(4))]
    for service in services.values():
        assert service["read_only"]
        assert service["cap_drop"] == ["ALL"]
