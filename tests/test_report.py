import re
from pathlib import Path

import msgspec
import pytest

from browsers import STICKING_OUT, WIDTHS, is_bright, launched, new_tab
from conftest import write_made_up_sets
from dekrr.errors import DataError
from dekrr.lab.experiments.figures import INK, pictures_of, svg_of
from dekrr.lab.experiments.plans import EXPERIMENTS, Options, plan, run_name
from dekrr.lab.experiments.report_page import tables_as_markdown, traffic_table, write_report
from dekrr.lab.experiments.running import Results, execute, task_of


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Results of every experiment, from tiny fits of made-up data."""
    folder = tmp_path_factory.mktemp("results")
    write_made_up_sets(folder, 300)
    kept = Results(folder / "results")
    for name in EXPERIMENTS:
        options = Options(data=("houses", "airquality")[: 2 if name == "table" else 1], protocol="paper", quick=True)
        small = {task: max(3, task.n_features // 8) for task in plan(name, options)}
        repeats, tuned = (2, True) if name == "table" else (1, name in ("imbalanced", "convergence"))
        tasks = [
            msgspec.structs.replace(task, n_features=size, max_rounds=15, n_sites=min(task.n_sites, 10))
            for task, size in small.items()
            if task.repetition < repeats and (tuned or task.method != "ours")
        ]
        execute(list(dict.fromkeys(tasks)), kept, directory=folder)
        run = run_name(name, "paper", quick=True, seed=0)
        kept.note_command(run, f"dekrr reproduce {name} --quick --protocol paper")
    return kept.folder


@pytest.fixture(scope="module")
def page(results):
    return write_report(results)


@pytest.fixture(scope="module")
def browser():
    yield from launched()


# Drawn elements of a figure that lie outside its frame.
OUTSIDE_THEIR_FIGURE = """() => {
  const out = [];
  for (const svg of document.querySelectorAll("svg")) {
    const frame = svg.getBoundingClientRect();
    for (const text of svg.querySelectorAll("g[id*='text_']")) {
      const box = text.getBoundingClientRect();
      if (box.left < frame.left - 1 || box.right > frame.right + 1 || box.top < frame.top - 1
          || box.bottom > frame.bottom + 1) out.push(svg.parentElement.getAttribute("aria-label"));
    }
  }
  return out;
}"""


def open_page(page, browser, width, **options):
    """Return a tab with the page, which must load nothing, complain of nothing and have nothing cut off."""
    tab, complaints, requests = new_tab(browser, width, offline=True, **options)
    tab.goto(page.as_uri())
    assert complaints == []
    assert [url for url in requests if not url.startswith(("file:", "data:"))] == []
    assert tab.evaluate(STICKING_OUT) == []
    assert tab.evaluate(OUTSIDE_THEIR_FIGURE) == []
    return tab


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_the_page_in_a_browser(page, browser, width, scheme):
    tab = open_page(page, browser, width, color_scheme=scheme)
    for experiment in EXPERIMENTS.values():
        assert tab.get_by_role("heading", name=experiment.title, exact=False).first.is_visible()
    figures = tab.locator("figure svg")
    assert figures.count() >= 18
    assert all(figures.nth(i).bounding_box()["width"] > 200 for i in range(figures.count()))
    assert tab.locator("table").count() >= 12
    assert tab.get_by_text("Houses").first.is_visible()
    assert tab.locator("td.best").count() > 4
    assert is_bright(tab) == (scheme == "light")
    drawn_in = tab.evaluate("getComputedStyle(document.querySelector('figure svg g[id*=text_] g')).fill")
    assert drawn_in == tab.evaluate("getComputedStyle(document.body).color")
    tab.close()


def test_the_copy_button_copies_the_command(page, browser):
    context = browser.new_context(permissions=["clipboard-read", "clipboard-write"])
    tab = context.new_page()
    tab.goto(page.as_uri())
    button = tab.get_by_role("button", name="Copy").first
    command = tab.locator(".command code").first.inner_text()
    button.click()
    tab.get_by_role("button", name="Copied").wait_for(timeout=5000)
    assert command.startswith("dekrr reproduce table")
    assert tab.evaluate("navigator.clipboard.readText()") == command
    context.close()


def test_the_page_prints(page, browser, tmp_path):
    tab = browser.new_page()
    tab.goto(page.as_uri())
    tab.emulate_media(media="print")
    assert not tab.get_by_role("button", name="Copy").first.is_visible()
    tab.pdf(path=tmp_path / "page.pdf", format="A4")
    assert (tmp_path / "page.pdf").stat().st_size > 50_000
    tab.close()


def test_the_page_needs_nothing_else(page):
    text = page.read_text()
    assert re.findall(r"""(?:src|href)=["'](?!#|data:)[^"']+""", re.sub(r"xlink:href", "href", text)) == []
    assert "@import" not in text
    assert re.findall(r"url\((?!#)", text) == []
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    targets = set(re.findall(r'href="#([^"]+)"', text)) | set(re.findall(r"url\(#([^)]+)\)", text))
    assert targets <= set(ids)


def test_the_page_says_how_it_came_about(page, results):
    text = page.read_text()
    for name in EXPERIMENTS:
        assert f"dekrr reproduce {name} --quick --protocol paper" in text
    for row in Results(results).rows[:1]:
        assert row["numpy"] in text


def test_figures_for_papers(results, tmp_path):
    few = Results(tmp_path)
    for row in Results(results).rows:
        if row["experiment"] == "table" and row["data"] == "houses":
            few.add(task_of(row), row, 0.1)
    write_report(tmp_path, tmp_path / "page.html", figures=tmp_path / "figures")
    kinds = {kind: {path.stem for path in (tmp_path / "figures").glob(f"*.{kind}")} for kind in ("png", "pdf", "svg")}
    assert kinds["png"] == kinds["pdf"] == kinds["svg"] == {"table-paper-quick-0"}


def test_figures_take_the_pages_colour(results):
    rows = [row for row in Results(results).rows if row["experiment"] == "table"]
    picture = pictures_of("table", rows, "x")[0]
    svg = svg_of(picture.panels[0], picture.size, "x")
    assert INK not in svg
    assert "currentColor" in svg
    assert svg_of(picture.panels[0], picture.size, "x") == svg


def test_traffic_adds_up(results):
    rows = [r for r in Results(results).rows if r["experiment"] == "table" and r["method"] == "ours"]
    for row in rows:
        assert sum(row["edge_bytes"]) == row["bytes"]
    (first, *_) = traffic_table([row for row in rows if row["data"] == "houses"]).rows
    assert first[2].text == "ours"


def test_no_results_say_so(tmp_path):
    with pytest.raises(DataError, match="dekrr reproduce table"):
        write_report(Path(tmp_path))


def test_tables_as_markdown(results):
    text = tables_as_markdown(results)
    for name, experiment in EXPERIMENTS.items():
        assert f"## {experiment.title} (paper protocol)\n\n    dekrr reproduce {name} --quick" in text
    widths = [line.count("|") for line in text.splitlines() if line.startswith("|")]
    assert min(widths) >= 5
