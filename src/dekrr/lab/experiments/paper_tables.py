"""The tables: means with standard errors, the published figures for comparison, and paired tests."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import ttest_rel

from ...types import Array
from ..data_sets.catalogue import CATALOGUE, PAPER
from .fits import PAPER_METHODS, TABLE_METHODS

SIGNIFICANCE = 0.01
METRICS = ("own", "union")
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Cell:
    """A cell: its text and its mark, "best" (of its row), "off" (more than two standard errors away) or none."""

    text: str
    mark: str = ""


def cells(*parts: Any) -> list[Cell]:
    return [Cell(str(part)) for part in parts]


@dataclass(frozen=True)
class Table:
    """A table that can be printed, put on a page, or written as Markdown."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    note: str = ""
    n_labels: int = 1  # the columns that name the row; the others have figures

    def markdown(self) -> str:
        """Return the table as Markdown; cells marked "best" are bold, cells marked "off" are italic.

        Examples
        --------
        >>> print(Table("", ["a", "b"], [[Cell("x"), Cell("1", "best")]]).markdown())
        | a | b |
        |---|--:|
        | x | **1** |
        """
        marks = {"best": "**", "off": "_", "": ""}
        lines = [
            "| " + " | ".join(self.columns) + " |",
            "|" + "|".join("---" if i < self.n_labels else "--:" for i in range(len(self.columns))) + "|",
        ]
        lines += ["| " + " | ".join(f"{marks[c.mark]}{c.text}{marks[c.mark]}" for c in row) + " |" for row in self.rows]
        return "\n".join(lines)


@dataclass(frozen=True)
class Mean:
    value: float
    error: float

    @classmethod
    def of(cls, values: Array) -> "Mean":
        """Return the mean of `values`. The error of a single value is NaN; if a value is not finite, both are NaN."""
        if not np.isfinite(values).all():
            return cls(float("nan"), float("nan"))
        spread = float(values.std(ddof=1)) if len(values) > 1 else float("nan")
        return cls(float(values.mean()), spread / np.sqrt(len(values)))

    def __str__(self) -> str:
        if not np.isfinite(self.value):
            return "-"
        digits = 4 if abs(self.value) < 10 else 1
        if not np.isfinite(self.error):
            return f"{self.value:.{digits}f}"
        return f"{self.value:.{digits}f} ± {self.error:.{digits}f}"


def off(ours: Mean, theirs: float, error: float, rounding: float = 0.0) -> bool:
    """Return whether two means differ by more than two combined standard errors plus `rounding`.

    Examples
    --------
    >>> off(Mean(0.250, 0.001), 0.244, 0.0, rounding=0.0005), off(Mean(0.250, 0.001), 0.252, 0.001)
    (True, False)
    """
    combined = np.hypot(ours.error if np.isfinite(ours.error) else 0.0, error)
    return bool(abs(ours.value - theirs) > 2 * combined + rounding)


def by(rows: Sequence[Row], *names: str) -> Iterator[tuple[tuple[Any, ...], list[Row]]]:
    """Group rows by columns, in the order in which the groups first occur."""
    order: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        order.setdefault(tuple(row[name] for name in names), []).append(row)
    yield from order.items()


def column(rows: Sequence[Row], name: str) -> Array:
    """Return one column, in the order of repetitions."""
    return np.array([row[name] for row in sorted(rows, key=lambda row: row["repetition"])], dtype=float)


def title_of(data: str) -> str:
    return CATALOGUE[data].title if data in CATALOGUE else data


def _methods(rows: Sequence[Row]) -> dict[str, list[Row]]:
    groups = {method: group for (method,), group in by(rows, "method")}
    return {method: groups[method] for method in sorted(groups, key=_rank)}


def _rank(method: str) -> tuple[int, str]:
    return (TABLE_METHODS.index(method) if method in TABLE_METHODS else len(TABLE_METHODS), method)


def _settings(rows: Sequence[Row]) -> str:
    row = rows[0]
    kinds = ("n_features", "method", "allocation", "n_sites", "solver")
    counts = [{len(group) for _, group in by(fits, *kinds)} for _, fits in by(rows, "data")]
    fewest, largest = min(map(min, counts)), max(map(max, counts))
    repeats = f"{largest} repetition{'s' * (largest != 1)}"
    if fewest != largest:
        unfinished = " (unfinished)" if any(len(each) > 1 for each in counts) else ""
        repeats = f"{fewest} to {largest} repetitions{unfinished}"
    rows_used = f", {row['n_rows']} rows of each set" if row["n_rows"] else ""
    split = "; authors' splits where they exist" if any(r["splits"] == "authors" for r in rows) else ""
    graphs = dict.fromkeys(f"{r['n_sites']} sites, {r['n_neighbors']} neighbours each" for r in rows)
    return (
        f"{' or '.join(graphs)}, protocol {row['protocol']}{split}{rows_used}, "
        f"{repeats}, seed {row['seed']}. Mean ± standard error of test RSE."
    )


def main_tables(rows: Sequence[Row]) -> Iterator[Table]:
    for metric in METRICS:
        yield _means(rows, metric)
    published = _published(rows)
    if any(cell.text != "-" for line in published.rows for cell in line[3:5]):
        yield published
    yield _tests(rows)
    yield _improvements(rows)


def ordered(rows: Sequence[Row]) -> list[tuple[tuple[Any, ...], list[Row]]]:
    """Group rows by data set and D, in the paper's order of data sets."""
    known = list(PAPER)
    groups = list(by(rows, "data", "n_features"))
    return sorted(groups, key=lambda group: (known.index(group[0][0]), group[0][1]))


def _means(rows: Sequence[Row], metric: str, label: Callable[[Row], str] = lambda row: row["method"]) -> Table:
    """Return a line for each data set and D, and a column for each label."""
    labels = sorted(dict.fromkeys(map(label, rows)), key=lambda name: _rank(name.partition(",")[0]))
    lines = []
    for (data, n_features), group in ordered(rows):
        of_label = {name: [row for row in group if label(row) == name] for name in labels}
        means = {name: Mean.of(column(fits, f"{metric}_rse")) for name, fits in of_label.items() if fits}
        lines.append([*cells(title_of(data), n_features), *_compared(means.get(name) for name in labels)])
    meaning = {
        "own": "own: each test row predicted by the model of its own site, as the paper scores.",
        "union": "union: every site's model predicts all sites' test rows; the mean over sites.",
    }[metric]
    note = f"{meaning} Best in bold. {_settings(rows)}"
    return Table(f"Test RSE, {metric}", ["data", "D", *labels], lines, note, n_labels=2)


def _compared(means: Iterable[Mean | None]) -> list[Cell]:
    """Return a cell for each mean, with the best marked."""
    shown = list(means)
    best = min((mean.value for mean in shown if mean is not None and np.isfinite(mean.value)), default=None)
    return [Cell("-") if mean is None else Cell(str(mean), "best" if mean.value == best else "") for mean in shown]


def _published(rows: Sequence[Row]) -> Table:
    lines = []
    for (data, n_features), group in ordered(rows):
        for method, fits in _methods(group).items():
            if method not in PAPER_METHODS:
                continue
            ours = Mean.of(column(fits, "own_rse"))
            table = PAPER[data]
            paper = table.published.get(method) if n_features == table.table_features else None
            paper_off = paper is not None and off(ours, paper, 0.0, rounding=0.0005)
            published = Cell(f"{paper:.3f}" if paper is not None else "-", "off" if paper_off else "")
            mean, spread = fits[0]["authors_rse"], fits[0]["authors_std"]
            theirs = Cell("-")
            if mean is not None:
                error = spread / np.sqrt(10)
                theirs = Cell(f"{mean:.4f} ± {error:.4f}", "off" if off(ours, mean, error) else "")
            lines.append([*cells(title_of(data), n_features, method), published, theirs, *cells(ours)])
    other = "" if rows[0]["protocol"] == "paper" else " The settings here are not the paper's: expect other figures."
    return Table(
        "Published, the authors' files, and ours",
        ["data", "D", "method", "paper", "authors' files", "here"],
        lines,
        "Own RSE. Marked where it differs from ours by more than two (combined) standard errors. The paper gives "
        "three digits and no spread; the authors' files have mean and spread of ten repetitions."
        f"{other} {_settings(rows)}",
        n_labels=3,
    )


def _tests(rows: Sequence[Row]) -> Table:
    lines = []
    pairs = [("DeKRR-DDRF", "DKLA"), ("DeKRR-DDRF", "DKLA-DDRF"), ("ours", "DeKRR-DDRF"), ("ours", "DKLA-DDRF")]
    for (data, n_features), group in ordered(rows):
        methods = _methods(group)
        for ours, theirs in pairs:
            if ours not in methods or theirs not in methods:
                continue
            verdicts = [_verdict(methods[ours], methods[theirs], metric, ours, theirs) for metric in METRICS]
            lines.append([*cells(title_of(data), n_features, f"{ours} or {theirs}"), *verdicts])
    return Table(
        "Who is better",
        ["data", "D", "of", "own", "union"],
        lines,
        f"Paired t-tests over repetitions, two-sided, at the {SIGNIFICANCE:.0%} level; p in brackets.",
        n_labels=3,
    )


def _verdict(ours: Sequence[Row], theirs: Sequence[Row], metric: str, name: str, other: str) -> Cell:
    a, b = column(ours, f"{metric}_rse"), column(theirs, f"{metric}_rse")
    if len(a) != len(b) or len(a) < 2:
        return Cell("-")
    p = paired_p(a, b)
    if p >= SIGNIFICANCE:
        return Cell(f"undecided ({p:.2g})")
    return Cell(f"{name if a.mean() < b.mean() else other} ({p:.0e})")


def paired_p(a: Array, b: Array) -> float:
    """Return the two-sided p value of a paired t-test; 1 if both samples are the same.

    Examples
    --------
    >>> paired_p(np.array([1.0, 2.0]), np.array([1.0, 2.0]))
    1.0
    """
    if np.allclose(a, b, rtol=1e-12, atol=0):
        return 1.0
    return float(ttest_rel(a, b).pvalue)


def _improvements(rows: Sequence[Row]) -> Table:
    published = {"DKLA": "25.5 %", "DKLA-DDRF": "13.6 %"}
    lines = []
    for ours in ("DeKRR-DDRF", "ours"):
        for theirs in TABLE_METHODS:
            if theirs == ours or theirs == "ours":
                continue
            gains = {metric: _gains(rows, ours, theirs, metric) for metric in METRICS}
            if gains["own"]:
                shown = [f"{100 * np.mean(gains[metric]):.1f} %" for metric in METRICS]
                paper = published.get(theirs, "-") if ours == "DeKRR-DDRF" else "-"
                lines.append(cells(ours, theirs, *shown, paper, len(gains["own"])))
    return Table(
        "Average improvement",
        ["method", "over", "own", "union", "paper (own, six sets)", "sets"],
        lines,
        "1 - RSE / RSE of the other, of the means, averaged over data sets. Negative: worse.",
        n_labels=2,
    )


def _gains(rows: Sequence[Row], ours: str, theirs: str, metric: str) -> list[float]:
    gains = []
    for _, group in ordered(rows):
        methods = _methods(group)
        if ours in methods and theirs in methods:
            a, b = (column(methods[m], f"{metric}_rse").mean() for m in (ours, theirs))
            gains.append(float(1 - a / b))
    return gains


def label_of(row: Row) -> str:
    """Return a method's name, with its allocation or its solver where these distinguish fits."""
    allocation = f", {row['allocation']}" if row["partition"] == "imbalanced" and row["consensus"] is not None else ""
    solver = f", {row['solver']}" if row["solver"] else ""
    return f"{row['method']}{allocation}{solver}"


def feature_tables(rows: Sequence[Row]) -> Iterator[Table]:
    """Yield RSE against the mean D, and where sites are equal the authors' figures if their files have them."""
    for metric in METRICS:
        yield _means(rows, metric, label_of)
    if rows[0]["partition"] != "imbalanced" and any(row["authors_rse"] is not None for row in rows):
        yield _published(rows)


def site_tables(rows: Sequence[Row]) -> Iterator[Table]:
    """Yield every site's RSE and MSE on its own rows, and its model's RSE on all sites' rows."""
    for quantity, title, factor, note in (
        ("rse", "Each site's RSE, own", 1.0, "RSE of a site's model on its own test rows."),
        ("union_rse", "Each site's RSE, union", 1.0, "RSE of a site's model on all sites' test rows."),
        ("mse", "Each site's MSE", 1e4, "MSE times 10000, of responses scaled to [-1, 1], on a site's own test rows."),
    ):
        labels = list(dict.fromkeys(map(label_of, rows)))
        lines = []
        for (data,), group in by(rows, "data"):
            per_label = [
                factor * np.array([row[f"site_{quantity}"] for row in group if label_of(row) == label])
                for label in labels
            ]
            for site, n_rows in enumerate(group[0]["site_rows"]):
                means = _compared(Mean.of(values[:, site]) for values in per_label)
                lines.append([*cells(title_of(data), site + 1, n_rows), *means])
        yield Table(title, ["data", "site", "rows", *labels], lines, f"{note} {_settings(rows)}", n_labels=3)


def convergence_tables(rows: Sequence[Row]) -> Iterator[Table]:
    """Yield the rounds and bytes until the relative objective gap is at most 1e-6."""
    lines = []
    for (data, n_features), group in ordered(rows):
        for row in group:
            rounds, kilobytes = until(row, 1e-6)
            consensus = f"{row['consensus']:g}" if row["consensus"] is not None else "-"
            errors = [f"{row[f'{metric}_rse']:.4f}" for metric in METRICS]
            lines.append(cells(title_of(data), n_features, label_of(row), consensus, rounds, kilobytes, *errors))
    yield Table(
        "Rounds and bytes",
        ["data", "D", "method", "c", "rounds to 1e-06", "kB a site", "own RSE", "union RSE"],
        lines,
        "Relative gap of the method's own objective; kB are sent by a site until then, set-up and all. "
        f"RSE at the end. {_settings(rows)}",
        n_labels=3,
    )


def kilobytes_of_site(row: Row) -> float:
    """Return what a site has sent in a fit, the mean over sites."""
    return float(row["bytes"] / row["n_sites"] / 1e3)


def gap_curve(row: Row) -> Array:
    """Return the relative objective gap |L - L*| / |L_0 - L*| after every recorded round; L* is the minimum."""
    objective = np.asarray(row["curve_objective"], dtype=float)
    best = row["best_objective"]
    start = abs(objective[0] - best)
    return np.asarray(np.abs(objective - best) / (start if start > 0 else 1.0))


def until(row: Row, gap: float) -> tuple[str, str]:
    """Return the round from which on the gap stays at most `gap`, and the kilobytes that a site has sent by then."""
    if not row["curve_round"]:
        return "-", f"{kilobytes_of_site(row):.0f}"
    above = np.flatnonzero(gap_curve(row) > gap)
    first = int(above[-1]) + 1 if len(above) else 0
    if first == len(row["curve_round"]):
        return f"over {row['curve_round'][-1]}", "-"
    return str(row["curve_round"][first]), f"{row['curve_bytes'][first] / row['n_sites'] / 1e3:.0f}"


def scaling_tables(rows: Sequence[Row]) -> Iterator[Table]:
    lines = []
    for row in rows:
        if row["repetition"] == 0:
            seconds = f"{row['seconds']:.2f}" if row["seconds"] is not None else "-"
            kilobytes, errors = kilobytes_of_site(row), [f"{row[f'{metric}_rse']:.4f}" for metric in METRICS]
            sizes = (row["n_sites"], row["n_rows"], row["n_features"])
            lines.append(cells(*sizes, row["method"], seconds, row["rounds"], f"{kilobytes:.0f}", *errors))
    yield Table(
        "Cost",
        ["J", "N", "D", "method", "seconds", "rounds", "kB a site", "own RSE", "union RSE"],
        lines,
        "Seconds of one fit, all sites in one process on one thread, tuning left out; kB sent by a site.",
        n_labels=4,
    )


_TABLES: Mapping[str, Callable[[Sequence[Row]], Iterator[Table]]] = {
    "table": main_tables,
    "response": feature_tables,
    "norm": feature_tables,
    "imbalanced": feature_tables,
    "per-site": site_tables,
    "convergence": convergence_tables,
    "scaling": scaling_tables,
}


def tables_of(experiment: str, rows: Sequence[Row]) -> list[Table]:
    return list(_TABLES[experiment](rows)) if rows else []
