"""The figures in the pages that come from committed results.

`make figures` writes every block between ``<!-- figures: NAME -->`` and ``<!-- end of figures -->`` in README.md and in
the pages of docs/. A test checks that each block is what its function returns. To add a block, write a function that
returns Markdown, add it to `BLOCKS`, and put the two marks into a page.
"""

import csv
import json
import re
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import paper  # it is beside this file, as the next one
import privacy_cost

HERE = Path(__file__).parent
RESULTS = HERE.parent / "benchmarks" / "results"
BLOCK = re.compile(r"(<!-- figures: (.+?) -->\n).*?(<!-- end of figures -->)", re.DOTALL)


def pages() -> Iterator[Path]:
    """Yield the pages that people write: the README and those of docs/ that no build makes."""
    made = {"_build", "auto_gallery", "api"}
    yield HERE.parent / "README.md"
    yield from sorted(path for path in HERE.rglob("*.md") if not made & set(path.relative_to(HERE).parts))


def written(text: str) -> str:
    """Return a page with its blocks written anew."""
    return BLOCK.sub(lambda found: f"{found[1]}\n{block(found[2]).strip()}\n\n{found[3]}", text)


def block(words: str) -> str:
    """Return the Markdown of a block, by its name and what follows the name."""
    name, *rest = words.split()
    if name not in BLOCKS:
        raise KeyError(f"no block {name!r}; docs/figures.py has {', '.join(sorted(BLOCKS))}")
    return BLOCKS[name](*rest)


def table(head: Sequence[str], rows: Iterable[Sequence[str]], n_labels: int = 1) -> str:
    """Return a table in Markdown; the columns after the first `n_labels` are figures."""
    ruler = ["---" if i < n_labels else "--:" for i in range(len(head))]
    lines = ["| " + " | ".join(row) + " |" for row in (head, *rows)]
    return "\n".join([lines[0], "|" + "|".join(ruler) + "|", *lines[1:]]).replace("|  |", "| |") + "\n"


def spread(values: Sequence[float]) -> str:
    """Return mean ± standard error."""
    error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else float("nan")
    return f"{statistics.fmean(values):.4f}" + (f" ± {error:.4f}" if len(values) > 1 else "")


@cache
def _json(name: str) -> Any:
    return json.loads((RESULTS / name).read_text(encoding="utf-8"))


def _speed(name: str) -> dict[str, Any]:
    return {figure["name"]: figure for figure in _json("speed.json")["figures"]}[name]


def speed() -> str:
    """Return the table of fits beside their floors."""
    rows = []
    power = "household_power"
    for title, data, floor in (
        ("Houses, {} rows, D = 60, energy features", "houses", "floor"),
        ("Tom's Hardware, {} rows, D = 150, energy features", "tomshardware", "floor"),
        ("household_power, {} rows, D = 200, plain", f"{power}, plain, double", "floor"),
        ('the same, `precision="mixed"`', f"{power}, plain, mixed", "floor"),
        ("household_power, D = 200, greedy", f"{power}, greedy, double", "floor"),
        ("the same, floor with the choice", f"{power}, greedy, double", "floor with the choice"),
    ):
        figure = _speed(f"{data}: fit / {floor}")
        names = [f["name"] for f in _json("speed.json")["figures"]]
        others = (
            f"{data}: fit / floor at the best rate of all",
            f"{data}: port / fit",
            f"{data}: RBFSampler + Ridge / fit",
        )
        ratios = [f"{_speed(name)['ratio']:.2f}" if name in names else "-" for name in others]
        ratios[0] = "-" if floor != "floor" else ratios[0]
        seconds = [_digits(figure["seconds"][key], 3) for key in ("fit", floor)]
        rows.append([title.format(f"{figure['settings']['rows']:,}"), *seconds, f"{figure['ratio']:.2f}", *ratios])
    head = ["", "fit, s", "floor, s", "fit / floor", "fit / floor at the best rate of all"]
    return table([*head, "port / fit", "RBFSampler + Ridge / fit"], rows)


def _digits(value: float, n: int) -> str:
    """Return a number with `n` significant digits, and never in powers of ten."""
    shown = f"{value:.{n}g}"
    return shown if "e" not in shown else f"{value:.0f}"


def many_sites() -> str:
    """Return the seconds of a fit by the number of sites."""
    sizes = (10, 32, 100, 320, 1000)
    fits = [_speed(f"{n} sites: a site / a site of ten")["seconds"] for n in sizes]
    rows = [
        ["seconds of a fit", *(_digits(fit["fit"], 2) for fit in fits)],
        ["milliseconds a site", *(f"{1e3 * fit['a site']:.1f}" for fit in fits)],
    ]
    return table(["sites", *map(str, sizes)], rows)


def serving() -> str:
    """Return requests per second and latency: medians over repetitions.

    What is asked of the bare framework is compared within a repetition, whose measurements follow each other.
    """
    found: dict[tuple[int, int, str], list[dict[str, Any]]] = {}
    for row in _json("serving.json"):
        found.setdefault((row["rows"], row["connections"], row["server"]), []).append(row)
    rows = []
    for (n_rows, connections, server), runs in found.items():
        if server == "bare framework" and n_rows > 1:
            continue
        bare = found[n_rows, connections, "bare framework"]
        shown = [str(n_rows), str(connections), server]
        for key in ("requests per second", "CPU us per request"):
            shown.append(f"{statistics.median(run[key] for run in runs):.0f}")
            ratios = [run[key] / other[key] for run, other in zip(runs, bare, strict=True)]
            shown.append(f"{statistics.median(ratios):.2f}" if n_rows == 1 else "")
        shown += [_digits(statistics.median(run[key] for run in runs), 3) for key in ("p50 ms", "p99 ms")]
        rows.append(shown)
    head = ["rows", "connections", "server", "requests/s", "of bare", "CPU per request, us", "of bare"]
    return table([*head, "p50 ms", "p99 ms"], rows, n_labels=3)


_TITLES = {
    "houses": "Houses, 60",
    "airquality": "Air Quality, 70",
    "energy": "Energy, 90",
    "tomshardware": "Tom's Hardware, 150",
}


def _fits(data: str, method: str, metric: str) -> list[float]:
    chosen = [fit for fit in _json("accuracy.json")["fits"] if fit["data"] == data and fit["method"] == method]
    return [fit[metric] for fit in sorted(chosen, key=lambda fit: fit["seed"])]


def baselines(metric: str) -> str:
    """Return own or union RSE of the earlier defaults and of the baselines."""
    methods = ("ours", "energy", "dkla-ddrf", "allreduce", "dkla", "local")
    rows = [[method, *(spread(_fits(data, method, metric)) for data in _TITLES)] for method in methods]
    return table([f"{metric} RSE", *_TITLES.values()], rows)


def reductions() -> str:
    """Return by how much ours is below energy (own) and DKLA-DDRF (union)."""
    lines = []
    for metric, other in (("own", "energy"), ("union", "dkla-ddrf")):
        cuts = [
            1 - statistics.fmean(_fits(data, "ours", metric)) / statistics.fmean(_fits(data, other, metric))
            for data in _TITLES
        ]
        each = ", ".join(
            f"{title.split(',')[0]} {100 * cut:.1f} %" for title, cut in zip(_TITLES.values(), cuts, strict=True)
        )
        lines.append(f"- {metric}: ours against {other}: {each} less; mean {100 * statistics.fmean(cuts):.1f} %.")
    return "\n".join(lines) + "\n"


def stations() -> str:
    """Return own and union RSE on Beijing's stations."""
    methods = ("ours", "energy", "dkla-ddrf", "dkla", "allreduce", "allreduce-plain", "central", "central:12", "local")
    names = {"central": "centralised, 100 features", "central:12": "centralised, 1,200 features"}
    rows = [[names.get(m, m), *(spread(_fits("beijing12", m, metric)) for metric in ("own", "union"))] for m in methods]
    return table(["method", "own RSE", "union RSE"], rows)


def fixed_sigma() -> str:
    """Return own RSE with sigma tuned, beside the best sigma of the paper's grid."""
    rows = []
    for data, title in _TITLES.items():
        fixed = {sigma: _fits(data, f"sigma:{sigma:g}", "own") for sigma in (0.25, 0.5, 1, 2, 4)}
        best = min(fixed, key=lambda sigma: statistics.fmean(fixed[sigma]))
        seeds = len(fixed[best])
        tuned, least = statistics.fmean(_fits(data, "ours", "own")[:seeds]), statistics.fmean(fixed[best])
        lead = f"{100 * (tuned / least - 1):+.1f} % ({seeds} seeds)"
        rows.append([title.split(",")[0], f"{tuned:.4f}", f"{least:.4f}", f"{best:g}", lead])
    return table(["", "tuned", "best fixed", "at sigma", "tuned against fixed"], rows)


_SITES = {
    "houses": "Houses, 10 sites by price",
    "airquality": "Air Quality, 10 sites",
    "energy": "Energy, 10 sites",
    "tomshardware": "Tom's Hardware, 10 sites",
    "twitter13813": "Twitter, 10 sites",
    "beijing12:0.1": "Beijing, a tenth of the rows, 12 stations",
    "beijing12": "Beijing, 190,000 rows",
}
_PARTS = {"beijing12:0.1": "a tenth of Beijing", "beijing12": "Beijing with 190,000 rows"}


def _beside_trees() -> Iterator[tuple[str, list[dict[str, Any]], list[float]]]:
    """Yield each data set with our fits, and own RSE: our mean, the best trees at each site, the best pooled trees."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for fit in _json("comparison.json"):
        found.setdefault((fit["data"], fit["method"]), []).append(fit)
    for data in _SITES:
        best = [
            min(found[data, f"{library}:{place}"][0]["own"] for library in ("hgb", "lightgbm", "xgboost"))
            for place in ("sites", "pooled")
        ]
        yield data, found[data, "ours"], [statistics.fmean(fit["own"] for fit in found[data, "ours"]), *best]


def against_trees() -> str:
    """Return in words where the default has less own error than trees; less than 2 % is no difference."""
    lines = []
    for column, trees_ in ((1, "the best trees at each site"), (2, "the best trees on pooled rows")):
        better: dict[str, list[str]] = {"less": [], "about as much": [], "more": []}
        for data, _, own in _beside_trees():
            word = (
                "about as much" if abs(own[0] / own[column] - 1) < 0.02 else "less" if own[0] < own[column] else "more"
            )
            better[word].append(_PARTS.get(data, _SITES[data].split(",")[0]))
        told = "; ".join(f"{word} on {_listed(names)}" for word, names in better.items() if names)
        lines.append(f"- Against {trees_}, the own error of dekrr is {told}.")
    return "\n".join(lines) + "\n"


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def trees() -> str:
    """Return the default beside the best of three kinds of boosted trees: means over seeds, the least own bold."""
    rows = []
    for data, ours, own in _beside_trees():
        title = _SITES[data]
        shown = [f"**{_rse(value)}**" if value == min(own) else _rse(value) for value in own]
        shown[0] += f" / {_rse(statistics.fmean(fit['union'] for fit in ours))}"
        rows.append([title, f"{ours[0]['features_own']:.0f}", *shown, str(len(ours))])
    return table(["", "D", "dekrr: own / union", "trees at each site: own", "trees on pooled rows", "seeds"], rows)


def _rse(value: float) -> str:
    return f"{value:.3f}".lstrip("0")


def archives() -> str:
    """Return the files in which the data sets are found, and where to get them."""
    from dekrr.data import CATALOGUE

    rows = [
        [f"`{name}`", f"`{entry.archive}`", ", ".join(f"`{member}`" for member in entry.members), f"<{entry.url}>"]
        for name, entry in CATALOGUE.items()
        if entry.archive
    ]
    return table(["data set", "archive", "or its files, unpacked", "from"], rows, n_labels=4)


def seeds() -> str:
    """Return how own RSE varies with the seed, and that of the mean of all seeds' predictions."""
    rows = []
    for found in _json("seeds.json"):
        low, high = min(found["errors"]), max(found["errors"])
        mean = statistics.fmean(found["errors"])
        shown = [_rse(mean), f"{_rse(low)} to {_rse(high)}", f"{100 * statistics.stdev(found['errors']) / mean:.0f} %"]
        rows.append([found["response"], str(found["rows"]), *shown, _rse(found["of_mean"])])
    head = [
        "response",
        "rows a site",
        "own RSE, mean of ten seeds",
        "from least to most",
        "spread (standard deviation)",
    ]
    return table([*head, "of the mean of the ten predictions"], rows)


def rounds() -> str:
    """Return the rounds to a relative gap of 1e-6."""
    found = _json("accuracy.json")["rounds"]
    rows = [
        [title.split(",")[0], *(found[f"{data}, consensus {c}"] for c in (1, 4, 8))] for data, title in _TITLES.items()
    ]
    return table(["", "consensus 1", "4", "8"], rows, n_labels=4)


def intervals() -> str:
    """Return coverage and width of 90 % intervals: means over seeds."""
    by_data: dict[str, list[dict[str, str]]] = {}
    with (RESULTS / "intervals.csv").open(encoding="utf-8", newline="") as file:
        for fit in csv.DictReader(file):
            by_data.setdefault(fit["data"], []).append(fit)
    rows = []
    for data, fits in by_data.items():
        sites: dict[str, list[float]] = {}
        for site, _, value in (word.rpartition(":") for fit in fits for word in fit["each site"].split()):
            sites.setdefault(site, []).append(float(value))
        mean = {key: statistics.fmean(float(fit[key]) for fit in fits) for key in ("coverage", "width")}
        peer = {key: statistics.fmean(float(fit[f"crepes {key}"]) for fit in fits) for key in ("coverage", "width")}
        least = min(statistics.fmean(values) for values in sites.values())
        shown = [f"{mean['coverage']:.3f}", f"{least:.3f}", f"{mean['width']:.2f}"]
        rows.append([data, *shown, f"{peer['coverage']:.3f}", f"{peer['width']:.2f}"])
    return table(["data", "coverage", "least", "width", "crepes coverage", "crepes width"], rows)


BLOCKS: dict[str, Callable[..., str]] = {
    **paper.BLOCKS,
    **privacy_cost.BLOCKS,
    "speed": speed,
    "many-sites": many_sites,
    "serving": serving,
    "baselines": baselines,
    "reductions": reductions,
    "stations": stations,
    "trees": trees,
    "against-trees": against_trees,
    "intervals": intervals,
    "rounds": rounds,
    "seeds": seeds,
    "archives": archives,
    "fixed-sigma": fixed_sigma,
}


def main() -> None:
    """Write all blocks and pictures, and say which pages changed."""
    paper.write_pictures()
    privacy_cost.write_picture()
    for path in pages():
        text = path.read_text(encoding="utf-8")
        new = written(text)
        if new != text:
            path.write_text(new, encoding="utf-8")
            print(f"wrote {path.relative_to(HERE.parent)}")


if __name__ == "__main__":
    sys.exit(main())
