"""Install the wheel and the source archive into empty environments, and use them as a newcomer would."""

import subprocess
import sys
import tempfile
import venv
from pathlib import Path

TRIAL = """
import dekrr
from dekrr.data import make_sites
X, y, sites = make_sites(n_sites=3, random_state=0)
model = dekrr.DeKRRRegressor(n_features=10, sigma=0.5, alpha=1e-3, consensus=1.0, random_state=0)
assert model.fit(X, y, sites=sites).rse(X, y, sites=sites) < 0.5
print(dekrr.__version__, "fits")
"""


def try_archive(archive: Path, constraints: Path) -> None:
    """Install one archive, fit, and call the command line."""
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        python = Path(folder) / "bin" / "python"
        install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-c", constraints]
        subprocess.run([*install, f"{archive.resolve()}[cli]"], check=True)
        subprocess.run([python, "-c", TRIAL], check=True, cwd=folder)
        subprocess.run([Path(folder) / "bin" / "dekrr", "--version"], check=True, cwd=folder)
        shown = subprocess.run([Path(folder) / "bin" / "dekrr", "docs"], check=True, cwd=folder, capture_output=True)
        assert b"privacy" in shown.stdout


if __name__ == "__main__":
    archives = sorted(path for path in Path(sys.argv[1]).iterdir() if path.suffix in (".whl", ".gz"))
    assert len(archives) == 2, f"wanted a wheel and a source archive, found {archives}"
    for archive in archives:
        try_archive(archive, Path(__file__).parents[1] / "constraints.txt")
        print(archive.name, "works")
