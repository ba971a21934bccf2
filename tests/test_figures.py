"""The figures in the pages are those of the committed results, or the page says when and how they were measured."""

import calendar
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "docs"))

import figures  # noqa: E402  (these are in docs/)
import paper  # noqa: E402
import privacy_cost  # noqa: E402

NUMBER = re.compile(r"(?<![\w.-])\d*\.\d+(?!\.)\b")


README = ROOT / "README.md"


def test_blocks_are_what_the_results_say():
    text = README.read_text(encoding="utf-8")
    assert text.count("<!-- figures:") == text.count("<!-- end of figures -->") == len(figures.BLOCK.findall(text))
    assert figures.written(text) == text, "the README differs from benchmarks/results; run `make figures`"


@pytest.mark.parametrize("path", [path for path in figures.pages() if path != README], ids=lambda path: path.name)
def test_marks_of_pages_become_blocks(path):
    text = path.read_text(encoding="utf-8")
    assert text.count("<!-- figures:") == len(figures.MARK.findall(text))
    assert "<!-- end of figures -->" not in text, "the build writes the block; leave its mark alone"
    for words in figures.MARK.findall(text):
        assert figures.block(words).strip(), words


@pytest.mark.parametrize("path", [*figures.pages()], ids=lambda path: path.name)
def test_who_wins_on_how_many_tables_is_said_by_blocks_alone(path):
    text = figures.BLOCK.sub("", path.read_text(encoding="utf-8"))
    assert not re.search(r"\bon [\w ]+ of (12|(the )?twelve)( tables)?\b", text), "write a block in docs/figures.py"


def test_a_changed_figure_is_found():
    text = README.read_text(encoding="utf-8")
    number = NUMBER.search(figures.BLOCK.search(text).group())[0]
    assert figures.written(text.replace(number, "9.99")) != text.replace(number, "9.99")


def test_pictures_are_of_these_results():
    pictures = ROOT / "docs" / "images" / "paper"
    assert (pictures / "results.sha256").read_text().strip() == paper.digest(), "run `make figures`"
    page = (ROOT / "docs" / "reproduction.md").read_text(encoding="utf-8")
    assert set(re.findall(r"images/paper/([\w.-]+)", page)) <= {path.name for path in pictures.glob("*.png")}


def test_the_verdicts_count_the_authors_splits_apart():
    text = figures.block("paper-verdicts")
    assert re.search(r"Figure 2.*on the authors' splits at \d+ of 18 points", text)
    assert re.search(r"Figure 3.*Air Quality, the authors' split:.*Twitter", text)
    assert len(figures.block("paper-sites").splitlines()) == 2 + 6 + 2


def test_the_readme_is_short_and_its_picture_is_of_these_results():
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 90
    assert figures.drawn_from() == figures.digest(), "run `make figures`"


def test_the_picture_of_what_privacy_costs_is_of_these_results():
    assert privacy_cost.drawn_from() == privacy_cost.digest(), "run `make figures`"


def test_what_privacy_costs_is_measured_alike_on_both_data_sets():
    found = privacy_cost.fits()
    assert set(found) == {(data, run) for data in privacy_cost.DATA for run in privacy_cost.runs()}
    for data in privacy_cost.DATA:
        seeds = [sorted(fit["seed"] for fit in found[data, run]) for run in privacy_cost.runs()]
        assert all(each == seeds[0] and len(set(each)) == len(each) >= 2 for each in seeds), data


WHEN = re.compile(rf"\b(?:{'|'.join(calendar.month_name[1:])})\s+20\d\d")
SETTINGS = {"privacy-officer.md"}  # their tables have settings, which nobody measured


@pytest.mark.parametrize("path", list(figures.pages()), ids=lambda path: path.name)
def test_pages_with_other_tables_of_figures_say_when_they_were_measured(path):
    text = figures.BLOCK.sub("", path.read_text(encoding="utf-8"))
    tables = re.findall(r"(?:^\|.*\n)+", text, flags=re.M)
    measured = [table for table in tables if len(NUMBER.findall(table)) >= 4]
    assert not measured or path.name in SETTINGS or WHEN.search(text), (
        f"{path.name}: write this table by docs/figures.py, or say when and how it was measured:\n{measured[0][:300]}"
    )
