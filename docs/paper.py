"""The paper beside ours: tables, verdicts and pictures of docs/reproduction.md, from benchmarks/results/paper."""

import hashlib
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from dekrr.lab.data_sets.catalogue import PAPER
from dekrr.lab.experiments.figures import pictures_of, save
from dekrr.lab.experiments.fits import PAPER_METHODS
from dekrr.lab.experiments.paper_tables import (
    METRICS,
    SIGNIFICANCE,
    Mean,
    Row,
    by,
    column,
    label_of,
    off,
    ordered,
    paired_p,
    tables_of,
    title_of,
)
from dekrr.lab.experiments.plans import run_of
from dekrr.lab.experiments.report_page import write_report
from dekrr.lab.experiments.running import RESULTS, Results

HERE = Path(__file__).parent
FOLDER = HERE.parent / "benchmarks" / "results" / "paper"
PICTURES = HERE / "images" / "paper"
THEIRS, SHARED, PLAIN = "DeKRR-DDRF", "DKLA-DDRF", "DKLA"
_SHOWN = {"response-paper-0", "norm-paper-0", "imbalanced-paper-0", "per-site-paper-0", "convergence-paper-0"}


@cache
def _results() -> Results:
    return Results(FOLDER)


@cache
def _rows(run: str) -> list[Row]:
    rows = [row for row in _results().rows if run_of(row) == run]
    if not rows:
        raise KeyError(f"benchmarks/results/paper has no run {run!r}")
    return rows


def one_table(run: str, *title: str) -> str:
    """Return one table of a run, by its title, with its note."""
    name = run.rsplit("-", 2)[0]
    found = {table.title: table for table in tables_of(name, _rows(run))}
    table = found[" ".join(title)]
    return f"{table.markdown()}\n\n{table.note}\n"


def data_sets() -> str:
    """Return the paper's Table 1 beside what is read here."""
    theirs = {
        "houses": (8, 20640),
        "airquality": (13, 9357),
        "energy": (27, 19735),
        "twitter": (77, 98704),
        "tomshardware": (96, 29179),
        "wave": (148, 63600),
    }
    here: dict[str, int] = {}
    for row in _results().rows:
        here[row["data"]] = max(here.get(row["data"], 0), row["n_train"] + row["n_test"])
    lines = ["| data | columns | rows in the paper | rows used here |", "|---|--:|--:|--:|"]
    for name, (n_columns, n_rows) in theirs.items():
        used = {"twitter": "twitter13813"}.get(name, name)
        ours = f"{here[used]:,}" if used in here else "none: not at hand"
        lines.append(f"| {title_of(name)} | {n_columns} | {n_rows:,} | {ours} |")
    return "\n".join(lines) + "\n"


def main_table() -> str:
    """Return the paper's Table 2: published, and here with both protocols, by both metrics."""
    runs = {"paper": "table-paper-0", "honest": "table-honest-0"}
    have = {protocol: {run_of(row) for row in _results().rows} & {run} for protocol, run in runs.items()}
    lines = [
        "| data | D | method | published | own, the paper's protocol | own, honest | union, the paper's protocol "
        "| union, honest |",
        "|---|---|---|--:|--:|--:|--:|--:|",
    ]
    for data in ("houses", "airquality", "energy", "twitter13813", "tomshardware", "wave"):
        for method in (*PAPER_METHODS, "ours"):
            cells = []
            for metric in ("own", "union"):
                for protocol, run in runs.items():
                    fits = _of(_rows(run) if have[protocol] else [], data=data, method=method)
                    cells.append(str(Mean.of(column(fits, f"{metric}_rse"))) if fits else "-")
            published = PAPER[data].published.get(method)
            if set(cells) == {"-"} and published is None:
                continue
            size = str(PAPER[data].table_features)
            shown = f"{published:.3f}" if published else "-"
            lines.append("| " + " | ".join([title_of(data), size, method, shown, *cells]) + " |")
    return "\n".join(lines) + f"\n\n{_repeats(*(run for p, run in runs.items() if have[p]))}\n"


def against_features(run: str) -> str:
    """Return RSE against D, own and union, with the authors' own mean in brackets where their files have it."""
    methods = [m for m in (*PAPER_METHODS, "ours") if _of(_rows(run), method=m)]
    lines = [
        "| data | D | " + " | ".join(f"{metric}: {m}" for metric in ("own", "union") for m in methods) + " |",
        "|---|---|" + "--:|" * (2 * len(methods)),
    ]
    for (data, size), group in ordered(_rows(run)):
        cells = []
        for metric in ("own", "union"):
            for method in methods:
                fits = _of(group, method=method)
                theirs = fits[0]["authors_rse"] if fits and metric == "own" else None
                beside = f" ({theirs:.4f})" if theirs is not None else ""
                cells.append(f"{Mean.of(column(fits, f'{metric}_rse'))}{beside}" if fits else "-")
        lines.append(f"| {title_of(data)} | {size} | " + " | ".join(cells) + " |")
    theirs = any(row["authors_rse"] is not None for row in _rows(run))
    brackets = "In brackets: the mean in the authors' files. " if theirs else ""
    return "\n".join(lines) + f"\n\n{brackets}{_repeats(run)}\n"


def _of(rows: Sequence[Row], **values: Any) -> list[Row]:
    return [row for row in rows if all(row[name] == value for name, value in values.items())]


def _repeats(*runs: str) -> str:
    said = []
    for run in runs:
        counts = {len(group) for _, group in by(_rows(run), "data", "n_features", "method", "allocation", "solver")}
        number = f"{min(counts)} to {max(counts)}" if len(counts) > 1 else f"{min(counts)}"
        said.append(f"`{run.rsplit('-', 1)[0]}` {number}")
    return f"Mean ± standard error over repetitions ({', '.join(said)}); seed 0."


def verdicts() -> str:
    """Return every table and figure of the paper with what is found here, and the verdict."""
    lines = ["| in the paper | found here | verdict |", "|---|---|---|"]
    for item, judge in _ITEMS.items():
        found, verdict = judge()
        lines.append(f"| {item} | {found} | {verdict} |")
    return "\n".join(lines) + "\n"


def _word(hits: int, of: int) -> str:
    if hits == of:
        return "**reproduced**"
    return "**reproduced, with exceptions**" if hits >= 0.75 * of else "**not reproduced**"


def _judge_figures() -> tuple[str, str]:
    hits, points, strange = 0, 0, []
    for (data, _), group in ordered(_rows("table-paper-0")):
        if group[0]["splits"] != "authors":
            continue
        for method in PAPER_METHODS:
            mean = Mean.of(column(_of(group, method=method), "own_rse"))
            published = PAPER[data].published[method]
            agrees = not off(mean, published, 0.0, rounding=0.0005)
            points, hits = points + 1, hits + agrees
            if not agrees:
                strange.append(f"{title_of(data)} {method} {published:.3f}, here {mean}")
    text = f"{hits} of {points} figures on the authors' splits within two standard errors"
    return text + (f"; not: {'; '.join(strange)}" if strange else ""), _word(hits, points)


def _judge_significance() -> tuple[str, str]:
    told: dict[str, tuple[int, int, int]] = {}
    for metric in ("own", "union"):
        won, lost, of = 0, 0, 0
        for _, group in ordered(_rows("table-paper-0")):
            ours = column(_of(group, method=THEIRS), f"{metric}_rse")
            for other in (PLAIN, SHARED):
                theirs = column(_of(group, method=other), f"{metric}_rse")
                decided = len(ours) == len(theirs) > 1 and paired_p(ours, theirs) < SIGNIFICANCE
                of, won = of + 1, won + (decided and ours.mean() < theirs.mean())
                lost += decided and ours.mean() > theirs.mean()
        told[metric] = (won, lost, of)
    text = "; ".join(f"{m}: better in {w} of {n} comparisons, worse in {lost}" for m, (w, lost, n) in told.items())
    word = _word(told["own"][0], told["own"][2])
    return text, f"{word} by own error; **the opposite** by union error" if told["union"][1] else word


def _judge_improvements() -> tuple[str, str]:
    gains = {}
    for metric in ("own", "union"):
        for other in (PLAIN, SHARED):
            ratios = [
                1
                - column(_of(group, method=THEIRS), f"{metric}_rse").mean()
                / column(_of(group, method=other), f"{metric}_rse").mean()
                for _, group in ordered(_rows("table-paper-0"))
            ]
            gains[metric, other] = float(np.mean(ratios)), len(ratios)
    text = "; ".join(f"{metric}, over {other}: {100 * gain:.1f} %" for (metric, other), (gain, _) in gains.items())
    n_sets = gains["own", PLAIN][1]
    return f"{text} ({n_sets} sets)", "**differs by the metric** (and in its sets)"


def _judge_order(run: str) -> Callable[[], tuple[str, str]]:
    def judge() -> tuple[str, str]:
        told, words = [], []
        for (splits,), rows in sorted(by(_rows(run), "splits")):
            groups = [g for g in ordered(rows) if {row["method"] for row in g[1]} >= set(PAPER_METHODS)]
            where = "on the authors' splits" if splits == "authors" else "on ours"
            hits = {metric: sum(_lowest(group, metric) == THEIRS for _, group in groups) for metric in METRICS}
            told.append(
                f"{where} at {hits['own']} of {len(groups)} points by own error, {hits['union']} by union error"
            )
            words.append(
                f"{where} {_word(hits['own'], len(groups))} by own, {_word(hits['union'], len(groups))} by union"
            )
        return f"DeKRR-DDRF has the lowest mean {'; '.join(told)}{_agreement(_rows(run))}", "; ".join(words)

    return judge


def _lowest(group: Sequence[Row], metric: str) -> str:
    means = {m: column(_of(group, method=m), f"{metric}_rse").mean() for m in PAPER_METHODS}
    return min(means, key=means.__getitem__)


def _agreement(rows: Sequence[Row]) -> str:
    told = []
    for method in dict.fromkeys(map(label_of, rows)):
        hits, points = 0, 0
        for _, group in ordered(rows):
            fits = [row for row in group if label_of(row) == method]
            if fits and fits[0]["authors_rse"] is not None:
                mean = Mean.of(column(fits, "own_rse"))
                hits += not off(mean, fits[0]["authors_rse"], fits[0]["authors_std"] / np.sqrt(10))
                points += 1
        if points:
            told.append(f"{hits} of {points} means of {method}")
    return f"; within two standard errors of the authors' files: {', '.join(told)}" if told else ""


def _judge_imbalanced() -> tuple[str, str]:
    told, words = [], []
    for (data,), rows in by(_rows("imbalanced-paper-0"), "data"):
        hits = dict.fromkeys((f"below {PLAIN}", f"below {SHARED}", "gain of unequal D"), 0)
        groups = [group for _, group in ordered(rows)]
        for group in groups:
            mean = {label: column(fits, "own_rse").mean() for (label,), fits in _labelled(group)}
            root, equal = mean[f"{THEIRS}, sqrt"], mean[f"{THEIRS}, equal"]
            hits[f"below {PLAIN}"] += max(root, equal) < mean[PLAIN]
            hits[f"below {SHARED}"] += max(root, equal) < mean[SHARED]
            hits["gain of unequal D"] += root < equal
        plain, shared, better = hits.values()
        told.append(
            f"{_whose(rows)}: both allocations below DKLA at {plain} and below DKLA-DDRF at {shared} of {len(groups)} "
            f"values of D, root-of-rows below equal at {better}{_agreement(rows)}"
        )
        words.append(f"{title_of(data)}: {', '.join(f'{what} {_word(n, len(groups))}' for what, n in hits.items())}")
    return "; ".join(told), "; ".join(words)


def _whose(rows: Sequence[Row]) -> str:
    return f"{title_of(rows[0]['data'])}, {'the authors' + chr(39) if rows[0]['splits'] == 'authors' else 'our'} split"


def _labelled(rows: Sequence[Row]) -> list[tuple[tuple[str], list[Row]]]:
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(label_of(row), []).append(row)
    return [((label,), fits) for label, fits in groups.items()]


# Each site's mean MSE at D = 80 in the authors' file of six unequal sites, Air Quality: the smallest site comes first.
AUTHORS_MSE = {
    f"{THEIRS}, equal": (0.01723, 0.01226, 0.01228, 0.01202, 0.01120, 0.01156),
    f"{THEIRS}, sqrt": (0.02759, 0.01602, 0.01249, 0.01163, 0.01036, 0.00917),
    PLAIN: (0.02981, 0.02243, 0.02492, 0.02270, 0.02251, 0.02259),
}


def _site_mse(rows: Sequence[Row]) -> dict[str, np.ndarray]:
    return {label: np.array([row["site_mse"] for row in fits]).mean(axis=0) for (label,), fits in _labelled(rows)}


def beside_the_authors_sites() -> str:
    """Return each site's MSE on the authors' six unequal sites, with theirs in brackets."""
    mse = _site_mse(_of(_rows("per-site-paper-0"), splits="authors"))
    lines = [f"| site | {' | '.join(mse)} |", "|---|" + "--:|" * len(mse)]
    for site in range(len(AUTHORS_MSE[PLAIN])):
        theirs = {label: f" ({1e4 * values[site]:.0f})" for label, values in AUTHORS_MSE.items()}
        cells = [f"{1e4 * values[site]:.0f}{theirs.get(label, '')}" for label, values in mse.items()]
        lines.append(f"| {site + 1} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n\nMSE times 10,000; in brackets: the authors' file. Site 1 has the fewest rows.\n"


def _judge_sites() -> tuple[str, str]:
    told, hits, sites = [], 0, 0
    for _, rows in by(_rows("per-site-paper-0"), "data"):
        mse = _site_mse(rows)
        root, equal = mse[f"{THEIRS}, sqrt"], mse[f"{THEIRS}, equal"]
        large = slice(len(root) // 2, None)
        n_large = len(root[large])
        better = int((root < equal)[large].sum())
        best = int((root < np.minimum(mse[PLAIN], mse[SHARED]))[large].sum())
        told.append(
            f"{_whose(rows)}: root-of-rows below equal at {better} of the {n_large} largest sites, below DKLA and "
            f"DKLA-DDRF at {best}"
        )
        hits, sites = hits + better, sites + n_large
    return f"MSE, which the figure really shows; {'; '.join(told)}", _word(hits, sites)


def _judge_rounds() -> tuple[str, str]:
    from dekrr.lab.experiments.paper_tables import until

    rows = {label: fits[0] for (label,), fits in _labelled(_rows("convergence-paper-0"))}
    first, second = (until(rows[f"{THEIRS}, {solver}"], 1e-6)[0] for solver in ("jacobi", "chebyshev"))
    curve = np.asarray(rows[f"{THEIRS}, jacobi"]["curve_objective"], dtype=float)
    falls = bool(np.all(np.diff(curve) <= 1e-12 * abs(curve[0])))
    text = f"the objective {'falls' if falls else 'does not fall'} in every round; a relative gap of 1e-6 takes "
    return text + f"{first} rounds of the paper's iteration, {second} with `chebyshev`", _word(int(falls), 1)


_ITEMS: dict[str, Callable[[], tuple[str, str]]] = {
    "Table 2, figures of three methods": _judge_figures,
    "Table 2, better at the 1 % level everywhere": _judge_significance,
    "25.5 % below DKLA, 13.6 % below DKLA-DDRF": _judge_improvements,
    "Figure 1, RSE against D, sites by \\|y\\|": _judge_order("response-paper-0"),
    "Figure 2, RSE against D, sites by \\|x\\|": _judge_order("norm-paper-0"),
    "Figure 3, sites of different sizes": _judge_imbalanced,
    "Figure 4, each site's error": _judge_sites,
    "Proposition 1, the objective falls": _judge_rounds,
}


def times() -> str:
    """Return how many fits each run has, and how long they took together."""
    lines = ["| run | fits | minutes of all fits together |", "|---|--:|--:|"]
    total = 0.0
    for (run,), rows in sorted(_by_run().items()):
        seconds = [row["seconds"] for row in rows if row["seconds"] is not None]
        total += sum(seconds)
        lines.append(f"| {run.rsplit('-', 1)[0]} | {len(rows)} | {sum(seconds) / 60:.0f} |")
    lines.append(f"| all | {len(_results().rows)} | {total / 60:.0f} |")
    return "\n".join(lines) + "\n"


def _by_run() -> dict[tuple[str], list[Row]]:
    groups: dict[tuple[str], list[Row]] = {}
    for row in _results().rows:
        groups.setdefault((run_of(row),), []).append(row)
    return groups


def digest() -> str:
    """Return the digest of the results, by which a test knows whether the pictures are theirs."""
    return hashlib.sha256((FOLDER / RESULTS).read_bytes()).hexdigest()


def write_pictures() -> None:
    """Draw the pictures of the page, unless they are of these results already."""
    from PIL import Image

    mark = PICTURES / "results.sha256"
    if mark.exists() and mark.read_text().strip() == digest():
        return
    PICTURES.mkdir(parents=True, exist_ok=True)
    for run in sorted(_SHOWN):
        for picture in pictures_of(run.rsplit("-", 2)[0], _rows(run), run):
            for path in save(picture, PICTURES):
                if path.suffix == ".png":
                    Image.open(path).convert("P", palette=Image.Palette.ADAPTIVE, colors=64).save(path, optimize=True)
                else:
                    path.unlink()
    mark.write_text(digest() + "\n")


def write_page_of_all(folder: Path) -> None:
    """Write the report of `dekrr report` into a folder of the site, unless it is of these results already."""
    mark = folder / "results.sha256"
    if not (mark.exists() and mark.read_text() == digest()):
        folder.mkdir(exist_ok=True)
        page = folder / "paper-report.html"
        write_report(FOLDER, page)
        back = '<p><a href="reproduction.html">Back to the documentation: reproduction</a></p>'
        text = page.read_text(encoding="utf-8").replace(str(FOLDER), str(FOLDER.relative_to(HERE.parent)))
        page.write_text(text.replace("<body>", f"<body>\n{back}", 1), encoding="utf-8")
        mark.write_text(digest())


BLOCKS: dict[str, Callable[..., str]] = {
    "paper": one_table,
    "paper-data": data_sets,
    "paper-main": main_table,
    "paper-features": against_features,
    "paper-verdicts": verdicts,
    "paper-sites": beside_the_authors_sites,
    "paper-times": times,
}
