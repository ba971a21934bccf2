"""The figures. Each is a list of panels: a page can arrange them for any width, and a file can join them."""

import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .paper_tables import METRICS, Row, by, column, gap_curve, kilobytes_of_site, label_of, ordered, title_of

INK = "#1a1b1c"  # in a page, this colour is replaced by the page's text colour
_LOOKS = {  # colour and marker
    "DKLA": ("#8c8c8c", "o"),
    "DKLA-DDRF": ("#c98a00", "s"),
    "DeKRR-DDRF": ("#2f83d0", "^"),
    "ours": ("#d6453d", "D"),
    "COKE": ("#8a63b8", "v"),
    "AllReduce": ("#1f9a72", "*"),
}
_STYLE: Any = {
    "font.size": 10,
    "svg.fonttype": "path",
    "svg.hashsalt": "dekrr",
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), INK),
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#888888",
    "grid.alpha": 0.25,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "axes.titlesize": 11,
    "axes.facecolor": "none",
    "figure.constrained_layout.use": True,
}
Draw = Callable[[Any], None]


@dataclass(frozen=True)
class Panel:
    """One pair of axes: a description in words, and a function that draws it."""

    about: str
    draw: Draw


@dataclass(frozen=True)
class Picture:
    name: str  # of its files
    caption: str
    panels: Sequence[Panel]
    size: tuple[float, float] = (4.4, 3.2)  # of a panel, in inches


@contextmanager
def _pyplot() -> Iterator[Any]:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    with matplotlib.rc_context(_STYLE):
        yield plt


def svg_of(panel: Panel, size: tuple[float, float], prefix: str) -> str:
    """Return a panel as SVG for a page: in the page's text colour, and with ids that start with `prefix`."""
    with _pyplot() as plt:
        figure, axes = plt.subplots(figsize=size)
        panel.draw(axes)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
        plt.close(figure)
    text = buffer.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    text = re.sub(r'\bid="([^"]+)"', rf'id="{prefix}-\1"', text)
    text = re.sub(r'href="#([^"]+)"', rf'href="#{prefix}-\1"', text)
    text = re.sub(r"url\(#([^)]+)\)", rf"url(#{prefix}-\1)", text)
    text = text.replace(INK, "currentColor")
    return re.sub(r'<svg ([^>]*?)width="[^"]*"', r"<svg \1", re.sub(r'height="[^"]*pt"', "", text, count=1), count=1)


def save(picture: Picture, folder: Path) -> list[Path]:
    """Write a figure, all panels together, as PNG, PDF and SVG, and return the files."""
    n_columns = min(3, len(picture.panels))
    n_rows = -(-len(picture.panels) // n_columns)
    paths = [folder / f"{picture.name}.{kind}" for kind in ("png", "pdf", "svg")]
    folder.mkdir(parents=True, exist_ok=True)
    with _pyplot() as plt:
        width, height = picture.size
        figure, grid = plt.subplots(n_rows, n_columns, figsize=(width * n_columns, height * n_rows), squeeze=False)
        for axes, panel in zip(grid.flat, picture.panels, strict=False):
            panel.draw(axes)
        for axes in grid.flat[len(picture.panels) :]:
            axes.set_axis_off()
        for path in paths:
            dates = {"png": {}, "pdf": {"CreationDate": None}, "svg": {"Date": None}}[path.suffix[1:]]
            figure.savefig(path, dpi=200, metadata=dates, facecolor="white")
        plt.close(figure)
    return paths


def _name(*parts: Any) -> str:
    return "-".join(str(part) for part in parts if part != "")


def _look(row: Row, *, marked: bool = False) -> dict[str, Any]:
    dashed = row["allocation"] != "equal" or row["solver"] == "jacobi"
    colour, marker = _LOOKS.get(row["method"], ("#555555", "o"))
    look = {"color": colour, "linestyle": "--" if dashed else "-", "label": label_of(row)}
    return look | ({"marker": marker, "markersize": 4} if marked else {})


def _legend(axes: Any) -> None:
    """Put the legend into the axes, or below them if it is long."""
    if len(axes.get_legend_handles_labels()[1]) <= 4:
        axes.legend()
    else:
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2)


def _lines_against_features(rows: Sequence[Row], metric: str, title: str) -> Panel:
    def draw(axes: Any) -> None:
        for _, group in by(rows, "method", "allocation"):
            sizes = sorted({row["n_features"] for row in group})
            values = [column([r for r in group if r["n_features"] == size], f"{metric}_rse") for size in sizes]
            means = np.array([v.mean() for v in values])
            spreads = np.array([v.std(ddof=1) if len(v) > 1 else 0.0 for v in values])
            look = _look(group[0], marked=True)
            axes.plot(sizes, means, **look)
            axes.fill_between(sizes, means - spreads, means + spreads, color=look["color"], alpha=0.15, linewidth=0)
            if metric == "own":
                _draw_authors(axes, group, look["color"])
        axes.set(title=title, xlabel="features per site (mean D)", ylabel=f"test RSE, {metric}")
        _legend(axes)

    return Panel(f"{title}: test RSE ({metric}) against the number of features, a line per method", draw)


def _draw_authors(axes: Any, rows: Sequence[Row], colour: str) -> None:
    """Add the authors' means and standard deviations, where their files have them."""
    theirs = {r["n_features"]: (r["authors_rse"], r["authors_std"]) for r in rows if r["authors_rse"] is not None}
    if theirs:
        means, spreads = zip(*theirs.values(), strict=True)
        label = f"{rows[0]['method']}, the authors'"
        axes.errorbar(list(theirs), means, spreads, fmt="x", color=colour, markersize=6, linewidth=0.9, label=label)


def against_features(name: str, rows: Sequence[Row]) -> Iterator[Picture]:
    """Yield RSE against D: a panel per data set, a figure per metric."""
    for metric in METRICS:
        panels = [_lines_against_features(group, metric, title_of(data)) for data, group in _by_data(rows)]
        caption = f"Test RSE ({metric}) against the features per site: mean and band of one standard deviation."
        size = (4.4, 3.8) if rows[0]["partition"] == "imbalanced" else (4.4, 3.2)
        yield Picture(_name(name, metric), caption, panels, size)


def _by_data(rows: Sequence[Row]) -> Iterator[tuple[str, list[Row]]]:
    seen: dict[str, list[Row]] = {}
    for (data, _), group in ordered(rows):
        seen.setdefault(data, []).extend(group)
    yield from seen.items()


def comparison(name: str, rows: Sequence[Row]) -> Iterator[Picture]:
    """Yield every method's RSE for both metrics: a panel per data set, a dot per repetition."""
    panels = [_dots(group, title_of(data)) for data, group in _by_data(rows)]
    yield Picture(
        name, "Test RSE of every repetition; the bar is the mean. Filled: own; open: union. Lower is better.", panels
    )


def _dots(rows: Sequence[Row], title: str) -> Panel:
    def draw(axes: Any) -> None:
        methods = sorted({row["method"] for row in rows}, key=list(_LOOKS).index)
        for i, method in enumerate(methods):
            for shift, metric in ((-0.17, "own"), (0.17, "union")):
                values = column([row for row in rows if row["method"] == method], f"{metric}_rse")
                places = i + shift + np.linspace(-0.08, 0.08, len(values)) * (len(values) > 1)
                colour, _ = _LOOKS[method]
                face = colour if metric == "own" else "none"
                axes.scatter(places, values, s=14, facecolors=face, edgecolors=colour, linewidths=0.9)
                axes.hlines(values.mean(), i + shift - 0.13, i + shift + 0.13, color=colour, linewidth=2)
        axes.set_xticks(range(len(methods)), methods)
        axes.grid(axis="x", visible=False)
        axes.set(title=f"{title}, D = {rows[0]['n_features']}", ylabel="test RSE")

    return Panel(f"{title}: test RSE of every method, own and union", draw)


def per_site(name: str, rows: Sequence[Row]) -> Iterator[Picture]:
    """Yield RSE and MSE of every site's own model."""
    panels = []
    for data, group in _by_data(rows):
        panels += [_site_lines(group, quantity, title_of(data)) for quantity in ("rse", "union_rse", "mse")]
    yield Picture(
        name,
        "A site's model on its own test rows (own) and on all (union); mean over repetitions. The last has most rows.",
        panels,
        size=(4.4, 3.8),
    )


def _site_lines(rows: Sequence[Row], quantity: str, title: str) -> Panel:
    words = {"rse": "RSE, own", "union_rse": "RSE, union", "mse": "MSE, own"}[quantity]

    def draw(axes: Any) -> None:
        for _, group in by(rows, "method", "allocation"):
            values = np.array([row[f"site_{quantity}"] for row in group]).mean(axis=0)
            axes.plot(np.arange(1, len(values) + 1), values, **_look(group[0], marked=True))
        axes.set(title=title, xlabel="site", ylabel=f"test {words}", ylim=(0, None))
        axes.set_xticks(range(1, len(values) + 1))
        _legend(axes)

    return Panel(f"{title}: {words} of every site, a line per method", draw)


def convergence(name: str, rows: Sequence[Row]) -> Iterator[Picture]:
    """Yield the objective gap, and RSE for each metric, against rounds and against bytes."""
    for data, group in _by_data(rows):
        first = [row for row in group if row["repetition"] == 0]
        panels = [
            _curves(first, quantity, axis, title_of(data))
            for quantity in ("gap", "own", "union")
            for axis in ("rounds", "bytes")
        ]
        caption = (
            "Relative objective gap and test RSE against rounds, and against the kilobytes that a site has sent, "
            "set-up and all. AllReduce is done in one pass: a star."
        )
        yield Picture(_name(name, data), caption, panels, size=(4.4, 4.0))


def _curves(rows: Sequence[Row], quantity: str, axis: str, title: str) -> Panel:
    def draw(axes: Any) -> None:
        for row in rows:
            kilobytes = kilobytes_of_site(row)
            if not row["curve_round"]:
                if quantity != "gap" and axis == "bytes":
                    axes.plot(kilobytes, row[f"{quantity}_rse"], "*", markersize=11, **_look(row))
                continue
            x = np.array(row["curve_round"]) + 1.0
            if axis == "bytes":
                x = np.array(row["curve_bytes"]) / row["n_sites"] / 1e3
            y = np.maximum(gap_curve(row), 1e-14) if quantity == "gap" else np.array(row[f"curve_{quantity}_rse"])
            axes.plot(x, y, **_look(row))
        axes.set(xscale="log", xlabel="rounds + 1" if axis == "rounds" else "kB sent by a site", title=title)
        if quantity == "gap":
            axes.set(yscale="log", ylabel="relative objective gap")
        else:
            final = [row[f"{quantity}_rse"] for row in rows]
            axes.set(ylabel=f"test RSE, {quantity}", ylim=(0.95 * min(final), min(1.0, 2 * max(final))))
        _legend(axes)

    return Panel(f"{title}: {quantity} against {axis}", draw)


def scaling(name: str, rows: Sequence[Row]) -> Iterator[Picture]:
    """Yield seconds and kilobytes against the number of sites, rows and features."""
    centre = {"n_sites": 10, "n_rows": 10000, "n_features": 60}
    centre |= {key: int(np.median([row[key] for row in rows])) for key in centre}
    panels = []
    for what in ("seconds", "kilobytes"):
        for key, words in (("n_sites", "sites (J)"), ("n_rows", "rows (N)"), ("n_features", "features per site (D)")):
            others = [other for other in centre if other != key]
            chosen = [row for row in rows if all(row[other] == centre[other] for other in others)]
            if len({row[key] for row in chosen}) > 1:
                panels.append(_cost(chosen, what, key, words))
    if panels:
        yield Picture(
            name, "Time of a fit on one thread, all sites in one process, and kilobytes sent by a site.", panels
        )


def _cost(rows: Sequence[Row], what: str, key: str, words: str) -> Panel:
    def cost(row: Row) -> float:
        seconds = np.nan if row["seconds"] is None else row["seconds"]
        return float(seconds) if what == "seconds" else kilobytes_of_site(row)

    def draw(axes: Any) -> None:
        for _, group in by(rows, "method"):
            values = sorted({row[key] for row in group})
            means = [np.mean([cost(row) for row in group if row[key] == value]) for value in values]
            axes.plot(values, means, **_look(group[0], marked=True))
        axes.set(
            xscale="log", yscale="log", xlabel=words, ylabel="seconds" if what == "seconds" else "kB sent by a site"
        )
        axes.set_xticks(values, [str(value) for value in values])
        axes.minorticks_off()
        _legend(axes)

    return Panel(f"{what} against {words}", draw)


_PICTURES: Mapping[str, Callable[[str, Sequence[Row]], Iterator[Picture]]] = {
    "table": comparison,
    "response": against_features,
    "norm": against_features,
    "imbalanced": against_features,
    "per-site": per_site,
    "convergence": convergence,
    "scaling": scaling,
}


def pictures_of(experiment: str, rows: Sequence[Row], name: str) -> list[Picture]:
    return list(_PICTURES[experiment](name, rows))
