"""The documentation site builds without a warning, and its pages are complete."""

import html
import re
import subprocess
import sys
from pathlib import Path

import pytest

import dekrr
from dekrr.cli.app import COMMANDS

ROOT = Path(__file__).parents[1]


def test_the_site(tmp_path):
    """One build serves all checks. Its examples are run by `make docs`."""
    pytest.importorskip("sphinx_gallery", reason="the site needs the extra docs")
    quick = ["-D", "plot_gallery=0", "-D", "nb_execution_mode=off", "-d", tmp_path / "trees"]
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", *quick]
    site = tmp_path / "html"
    done = subprocess.run([*command, ROOT / "docs", site], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    names = set(dekrr.__all__) - {"__version__"}
    assert not [name for name in names if not (site / "reference" / "api" / f"dekrr.{name}.html").exists()]
    commands = (site / "reference" / "commands.html").read_text()
    assert not [name for name in COMMANDS if f"dekrr {name}" not in commands]
    page = (site / "reference" / "api" / "dekrr.DeKRRRegressor.html").read_text()
    assert not [
        name for name in ("fit", "predict_interval", "partial_fit") if f'id="dekrr.DeKRRRegressor.{name}"' not in page
    ]
    text = html.unescape(re.sub(r"<[^>]+>", "", page))
    assert "+ sum_{p in N_j} c~_j |Z_jj theta_j - Z_pj theta_p|^2" in text, "the objective is not as it is written"
    assert "plot_14_pictures_of_a_fit" in (site / "reference" / "api" / "dekrr.plot.scales.html").read_text()
    assert "pip install" in (site / "index.html").read_text()
    assert any((site / "_downloads").rglob("intervals.py")), "files of the source archive do not come along"
    assert not dead_links(site)
    assert (site / "searchindex.js").exists()
    assert not from_elsewhere(site)


def from_elsewhere(site):
    """Return what the pages would fetch from other places; the animated example is only run by `make docs`."""
    wanted = re.compile(r'<(?:script|link|img)[^>]+(?:src|href)="(https?://[^"]+)')
    return [(page.name, url) for page in site.rglob("*.html") for url in wanted.findall(page.read_text())]


def dead_links(site):
    dead = []
    for page in (page for page in site.rglob("*.html") if "_static" not in page.parts):
        targets = re.findall(r'href="([^"#?]+)', page.read_text())
        inside = [target for target in targets if not re.match(r"\w+:", target)]
        dead += [(page.name, target) for target in inside if not (page.parent / target).exists()]
    return dead


def test_the_gallery_has_a_dozen_examples():
    assert len(list((ROOT / "docs" / "gallery").glob("plot_*.py"))) >= 12
