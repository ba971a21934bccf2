"""Accuracy against epsilon: the fits behind the table of docs/privacy.md and the picture of its evidence.

    DEKRR_DATA=... python benchmarks/privacy_accuracy.py --seeds 0 1 2

Results go to benchmarks/results/privacy_accuracy.json, where a fit takes the place of an earlier one of the same data,
settings and seed. `make figures` writes the tables and draws the picture.

Sites: the 12 stations of beijing12, and household_power cut into 10 by time. Half of every site's rows train,
the other half test (of household_power every tenth row of it); a seed changes the halves and the features. Noise comes
from the operating system's secure source, and is another one in every fit. Bounds are what one knows of such
instruments beforehand, not what the rows show. sigma and consensus were chosen once on training rows. The first fit of
each data set and seed is without privacy: the library's default greedy features, for which neighbours are asked, with
the settings of the other fits but consensus 1. All fits are of DeKRR alone, without a shared part, which a private run
cannot have, and without a local part, which sites do not pass on.
"""

import argparse
import json
import os
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from dekrr import DeKRRRegressor, DifferentialPrivacy
from dekrr.data import halves, read_table
from dekrr.settings import ALONE

RESULTS = Path(__file__).parent / "results" / "privacy_accuracy.json"
N_FEATURES = 100
MOST_TEST_ROWS = 100_000  # about; evenly spread over all sites
KEY = ("data", "features", "epsilon", "colluders", "seed")  # what a fit is known by
RUNS = (
    {"features": "greedy", "epsilon": None, "colluders": None},
    {"features": "plain", "epsilon": None, "colluders": None},
    *({"features": "plain", "epsilon": epsilon, "colluders": None} for epsilon in (0.5, 1.0, 2.0, 4.0, 8.0)),
    *({"features": "plain", "epsilon": epsilon, "colluders": 1} for epsilon in (1.0, 4.0)),
)
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


def settings_of(run: dict) -> dict:
    """Return the estimator's parameters that differ between runs."""
    if run["features"] == "greedy":
        return {"features": "greedy", "consensus": 1.0}
    settings = {"features": "plain", "mapping": "cossin", "consensus": 3.0}
    if run["epsilon"] is not None:
        settings["privacy"] = DifferentialPrivacy(run["epsilon"], colluders=run["colluders"])
    return settings


def measure(name: str, seeds: list[int]) -> Iterator[dict]:
    X, y, sites = read(name)
    for seed in seeds:
        train = halves(sites, random_state=seed)
        test = np.flatnonzero(~train)[:: max(1, len(y) // 2 // MOST_TEST_ROWS)]
        shared = {
            "n_features": N_FEATURES,
            "alpha": 1e-8,
            "random_state": seed,
            "max_rounds": 200,
            "tol": 1e-4,
            "prediction": "own",
            **PROBLEMS[name],
            **ALONE,
        }
        for run in RUNS:
            start = time.perf_counter()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                regressor = DeKRRRegressor(**shared, **settings_of(run)).fit(X[train], y[train], sites=sites[train])
            seconds = time.perf_counter() - start
            own = regressor.rse(X[test], y[test], sites=sites[test])
            union = regressor.rse(X[test], y[test], metric="union")
            yield {"data": name, **run, "seed": seed, "own": own, "union": union, "seconds": round(seconds, 1)}


def merged(earlier: list[dict], later: list[dict]) -> list[dict]:
    """Return all fits, of two of the same data, settings and seed the later one."""
    return list({tuple(fit[part] for part in KEY): fit for fit in [*earlier, *later]}.values())


def written(fits: list[dict]) -> str:
    """Return fits as JSON, one a line."""
    return "[\n" + ",\n".join(json.dumps(fit) for fit in fits) + "\n]\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", default=list(PROBLEMS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    fits = json.loads(options.out.read_text()) if options.out.exists() else []
    for name in options.data:
        for fit in measure(name, options.seeds):
            print(json.dumps(fit), flush=True)
            fits = merged(fits, [fit])
            options.out.write_text(written(fits))  # after every fit, so that none is lost


if __name__ == "__main__":
    main()
