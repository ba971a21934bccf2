"""One self-contained page of all results."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import Any

from ...errors import DataError
from ..data_sets.catalogue import CATALOGUE
from .figures import Picture, pictures_of, save, svg_of
from .fits import METHODS
from .paper_tables import Row, Table, by, cells, column, ordered, tables_of, title_of
from .plans import EXPERIMENTS, is_quick, run_of
from .running import RESULTS, Results

_COUNTED = ("data", "method", "experiment")
_TITLE = "Decentralised kernel ridge regression: the results"


@dataclass(frozen=True)
class Section:
    anchor: str
    title: str
    about: str
    command: str
    figures: Sequence[Picture]
    tables: Sequence[Table]


def write_report(folder: Path, out: Path | None = None, *, figures: Path | None = None) -> Path:
    """Write the page of the results in `folder`, ``report.html`` in it by default, and return the page's path.

    Where a folder for figures is given, they are written to it as PNG, PDF and SVG.
    """
    results = Results(folder)
    rows = results.rows
    if not rows:
        raise DataError(
            f"{folder} has no {RESULTS} with a fit in it; run for instance: dekrr reproduce table --out {folder}"
        )
    sections = []
    for name in EXPERIMENTS:
        for run, group in _runs(name, rows):
            drawn = pictures_of(name, group, run)
            if figures is not None:
                for picture in drawn:
                    save(picture, figures)
            sections.append(_section(name, run, group, drawn, results.commands.get(run, "")))
    return render(
        out or folder / "report.html",
        title=_TITLE,
        sections=sections,
        facts=[
            ("fits", str(len(rows))),
            *((f"{name.replace('data', 'data set')}s", str(len({row[name] for row in rows}))) for name in _COUNTED),
        ],
        methods=[(name, method.about) for name, method in METHODS.items() if any(r["method"] == name for r in rows)],
        data=[(title_of(name), CATALOGUE[name]) for (name,), _ in by(rows, "data") if name in CATALOGUE],
        settings=_settings(rows),
        report_command=f"dekrr report {folder}",
    )


def render(path: Path, **parts: Any) -> Path:
    """Write a page from the template and these parts, and return its path."""
    try:
        from jinja2 import Environment, select_autoescape
    except ImportError:
        raise ImportError("the report needs jinja2 and matplotlib: pip install 'dekrr[report]'") from None
    environment = Environment(autoescape=select_autoescape(default=True), trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(files(__package__).joinpath("report.html.j2").read_text(encoding="utf-8"))
    page = template.render(date=datetime.now(UTC).date().isoformat(), svg_of=svg_of, **parts)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page, encoding="utf-8")
    return path


def tables_as_markdown(folder: Path) -> str:
    """Return all tables of the results in `folder` as Markdown, under a heading and a command each."""
    results = Results(folder)
    parts = []
    for name, experiment in EXPERIMENTS.items():
        for run, group in _runs(name, results.rows):
            title = f"## {experiment.title} ({group[0]['protocol']} protocol)"
            parts.append(f"{title}\n\n    {results.commands.get(run, '')}")
            parts += [f"### {table.title}\n\n{table.markdown()}\n\n{table.note}" for table in tables_of(name, group)]
    return "\n\n".join(parts) + "\n"


def _runs(name: str, rows: Sequence[Row]) -> list[tuple[str, list[Row]]]:
    """Divide an experiment's rows into runs; the rows of a run share tables."""
    runs: dict[str, list[Row]] = {}
    for row in rows:
        if row["experiment"] == name:
            runs.setdefault(run_of(row), []).append(row)
    return sorted(runs.items())


def _section(name: str, run: str, rows: Sequence[Row], drawn: Sequence[Picture], command: str) -> Section:
    experiment, tables = EXPERIMENTS[name], tables_of(name, rows)
    if name in ("table", "imbalanced"):
        tables.append(traffic_table(rows))
    title = f"{experiment.title} ({rows[0]['protocol']} protocol{', quick' * is_quick(rows[0])})"
    return Section(run, title, experiment.about, command, drawn, tables)


def traffic_table(rows: Sequence[Row]) -> Table:
    """Return the table of the bytes that each method sends, per edge and per site."""
    lines = []
    groups = [(*key, *by_method) for key, fits in ordered(rows) for by_method in by(fits, "method")]
    for data, n_features, (method,), group in groups:
        edges = [size / 1e3 for row in group for size in row["edge_bytes"]]
        sent = column(group, "bytes").mean() / group[0]["n_sites"] / 1e3
        figures = (column(group, "rounds").mean(), min(edges), sum(edges) / len(edges), max(edges), sent)
        lines.append(cells(title_of(data), n_features, method, *(f"{figure:.0f}" for figure in figures)))
    return Table(
        "Traffic",
        ["data", "D", "method", "rounds", "least kB an edge", "mean", "most", "kB sent by a site"],
        lines,
        "Encoded messages, both ways over an edge, set-up and all; means over repetitions.",
        n_labels=3,
    )


def _settings(rows: Sequence[Row]) -> list[tuple[str, str]]:
    words = {
        "protocol": "protocol",
        "splits": "splits by",
        "partition": "rows divided by",
        "n_sites": "sites",
        "n_neighbors": "neighbours of a site",
        "mix": "share drawn at random",
        "n_features": "features per site (D)",
        "sigma": "bandwidth (sigma)",
        "alpha": "regularisation (alpha)",
        "consensus": "consensus (c), chosen",
        "max_rounds": "most rounds",
        "seed": "seed",
        "repetition": "repetitions",
        "dekrr": "dekrr",
        "python": "Python",
        "numpy": "numpy",
        "scipy": "scipy",
    }
    return [(label, _values(rows, name)) for name, label in words.items()]


def _values(rows: Sequence[Row], name: str) -> str:
    values: list[Any] = sorted({row[name] for row in rows if row[name] is not None})
    if name == "repetition":
        return str(len(values))
    return ", ".join(f"{value:g}" if isinstance(value, float) else str(value) for value in values)
