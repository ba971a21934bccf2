"""The documentation site builds without a warning, and its pages are complete."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site without its examples run: `make docs` runs them."""
    pytest.importorskip("sphinx_gallery", reason="the site needs the extra docs")
    folder = tmp_path_factory.mktemp("site")
    quick = ["-D", "plot_gallery=0", "-D", "nb_execution_mode=off"]
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", *quick, "-d", folder / "trees"]
    done = subprocess.run([*command, ROOT / "docs", folder / "html"], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return folder / "html"


def test_every_public_name_has_a_page(site):
    import dekrr

    for name in set(dekrr.__all__) - {"__version__"}:
        assert (site / "reference" / "api" / f"dekrr.{name}.html").exists()


def test_every_command_is_on_its_page(site):
    from dekrr.cli.app import COMMANDS

    page = (site / "reference" / "commands.html").read_text()
    assert all(f"dekrr {name}" in page for name in COMMANDS)


def test_no_dead_internal_link(site):
    dead = []
    for page in (page for page in site.rglob("*.html") if "_static" not in page.parts):
        targets = re.findall(r'href="([^"#?]+)', page.read_text())
        inside = [target for target in targets if not re.match(r"\w+:", target)]
        dead += [(page.name, target) for target in inside if not (page.parent / target).exists()]
    assert not dead


def test_search_works_offline(site):
    assert (site / "searchindex.js").exists()
    loaded = re.findall(r'<(?:script|link)[^>]+(?:src|href)="(https?://[^"]+)', (site / "index.html").read_text())
    assert not loaded


def test_the_gallery_has_a_dozen_examples():
    assert len(list((ROOT / "docs" / "gallery").glob("plot_*.py"))) >= 12
