"""Accuracy against epsilon: the table and the figure of docs/privacy.md.

    DEKRR_DATA=... python benchmarks/privacy_accuracy.py --seeds 0 1 2 --out docs

Sites: the 12 stations of beijing12, and household_power cut into 10 by time. Half of every site's rows train,
the other half test (of household_power every tenth row of it); a seed changes the halves, the features and the
noise. Bounds are what one knows of such instruments beforehand, not what the rows show. sigma and consensus
were chosen once on training rows. The first line of each data set is without privacy: the library's default greedy
features, for which neighbours are asked, with the settings of the lines below but consensus 1. All lines are of DeKRR
alone, without a shared and a local part, which a private run cannot have.
"""

import argparse
import json
import os
import time
import warnings
from pathlib import Path

import numpy as np

from dekrr import DeKRRRegressor, DifferentialPrivacy
from dekrr.data import halves, read_table
from dekrr.settings import ALONE

MOST_TEST_ROWS = 100_000  # about; evenly spread over all sites
GREEDY = "greedy, not private"
EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0)
SHARED = (1.0, 4.0)  # where the sites share the noise, against one curious site
PROBLEMS = {
    "beijing12": {
        "sigma": 2.0,
        "bounds": (
            # SO2, NO2, CO, O3, temperature, pressure, dew point, rain, wind, its cos and sin, hour, day, year, PM2.5
            (0, 0, 0, 0, -25, 980, -40, 0, 0, -1, -1, 0, 1, 2013, 0),
            (500, 300, 10000, 1100, 45, 1045, 30, 75, 15, 1, 1, 23, 366, 2017, 1000),
        ),
    },
    "household_power": {
        "sigma": 1.0,
        "bounds": (
            # reactive, voltage, sub1, sub2, sub3, minute, weekday, day, year, then kW
            (0, 220, 0, 0, 0, 0, 0, 1, 2006, 0),
            (1.5, 256, 90, 90, 40, 1440, 6, 366, 2010, 12),
        ),
    },
}


def read(name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    table = read_table(Path(os.environ["DEKRR_DATA"]) / f"{name}.parquet")
    y = table["y"].to_numpy(dtype=float)
    X = table.drop(columns=["y", "node"], errors="ignore").to_numpy(dtype=float)
    sites = table["node"].to_numpy() if "node" in table else np.arange(len(y)) * 10 // len(y)
    return X, y, sites


def measure(name: str, seeds: list[int], n_features: int) -> list[dict]:
    X, y, sites = read(name)
    results = []
    for seed in seeds:
        train = halves(sites, random_state=seed)
        test = np.flatnonzero(~train)[:: max(1, len(y) // 2 // MOST_TEST_ROWS)]
        shared = {
            "n_features": n_features,
            "alpha": 1e-8,
            "random_state": seed,
            "max_rounds": 200,
            "tol": 1e-4,
            "prediction": "own",
            **PROBLEMS[name],
        }
        shared |= ALONE
        private = {"features": "plain", "mapping": "cossin", "consensus": 3.0}
        runs = [(GREEDY, {"features": "greedy", "consensus": 1.0})]
        runs += [("inf", private)]
        runs += [(str(e), {**private, "privacy": DifferentialPrivacy(e)}) for e in EPSILONS]
        runs += [(f"{e}, noise shared", {**private, "privacy": DifferentialPrivacy(e, colluders=1)}) for e in SHARED]
        for label, settings in runs:
            start = time.perf_counter()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                regressor = DeKRRRegressor(**shared, **settings).fit(X[train], y[train], sites=sites[train])
            seconds = time.perf_counter() - start
            own = regressor.rse(X[test], y[test], sites=sites[test])
            union = regressor.rse(X[test], y[test], metric="union")
            result = {"data": name, "epsilon": label, "seed": seed, "own": own, "union": union, "seconds": seconds}
            results.append(result)
            print(json.dumps(result), flush=True)
    return results


def table(results: list[dict]) -> str:
    lines = ["| data | seeds | epsilon | own RSE | union RSE | own / same, no noise | own / greedy |"]
    lines += ["|---|---|---|---|---|---|---|"]
    for name in dict.fromkeys(r["data"] for r in results):
        labels = dict.fromkeys(r["epsilon"] for r in results if r["data"] == name)
        figures = {
            label: np.array([(r["own"], r["union"]) for r in results if (r["data"], r["epsilon"]) == (name, label)])
            for label in labels
        }
        for label, values in figures.items():
            cells = [f"{m:.3f} ± {s:.3f}" for m, s in zip(values.mean(axis=0), values.std(axis=0), strict=True)]
            ratios = [values[:, 0].mean() / figures[other][:, 0].mean() for other in ("inf", GREEDY)]
            row = [name, str(len(values)), label, *cells, *(f"{ratio:.2f}" for ratio in ratios)]
            lines.append("| " + " | ".join(row) + " |")
    return "\n".join(lines)


def draw(results: list[dict], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    names = list(dict.fromkeys(r["data"] for r in results))
    figure, panels = plt.subplots(1, len(names), figsize=(4.5 * len(names), 3.4), squeeze=False)
    for panel, name in zip(panels[0], names, strict=True):
        for metric, colour in (("own", "C0"), ("union", "C1")):
            values = np.array(
                [
                    [r[metric] for r in results if (r["data"], r["epsilon"]) == (name, str(epsilon))]
                    for epsilon in EPSILONS
                ]
            )
            panel.errorbar(
                EPSILONS, values.mean(axis=1), values.std(axis=1), marker="o", color=colour, label=metric, capsize=3
            )
            limit = np.mean([r[metric] for r in results if (r["data"], r["epsilon"]) == (name, "inf")])
            panel.axhline(limit, color=colour, linestyle=":", label=f"{metric}, epsilon = inf")
        panel.set(xscale="log", xlabel="epsilon", ylabel="test RSE", title=name, ylim=(0, None))
        panel.set_xticks(EPSILONS, [f"{epsilon:g}" for epsilon in EPSILONS])
        panel.minorticks_off()
        panel.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", default=list(PROBLEMS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--n-features", type=int, default=100)
    parser.add_argument("--out", type=Path, default=Path("docs"))
    options = parser.parse_args()
    results = [r for name in options.data for r in measure(name, options.seeds, options.n_features)]
    options.out.mkdir(parents=True, exist_ok=True)
    draw(results, options.out / "privacy-accuracy.png")
    print(table(results))


if __name__ == "__main__":
    main()
