"""What a raw table costs in accuracy: own RSE of words, dates and missing values, beside a table prepared by hand.

    python benchmarks/raw_table.py [--seeds 3] [--train 1500] [--test 600] [--given] [--out FILE]

The twelve Beijing stations: wind directions as words, one column of dates, and 3 % of the cells of ten columns emptied
at random. By hand, the wind is cosine and sine, the date is hour, day of the year and year, and empty cells have the
median of the training rows. `--given` fits with given numbers and DeKRR alone; otherwise with the defaults.
"""

import argparse
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pandas as pd

from dekrr import DeKRRRegressor, data

NUMBERS = ["SO2", "NO2", "CO", "O3", "TEMP", "PRES", "DEWP", "RAIN", "WSPM"]
POINTS = ["N", "NNE", "NE", "ENE", "E", "ESE", "SE", "SSE", "S", "SSW", "SW", "WSW", "W", "WNW", "NW", "NNW"]
GIVEN = {"n_features": 100, "sigma": 1.0, "alpha": 1e-6, "consensus": 0.5}
GIVEN |= {"shared": None, "local": None, "column_scales": None}


def tables(
    seed: int, n_train: int, n_test: int, directory: Path | None = None
) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame, np.ndarray]:
    """Return the raw table, that prepared by hand, the one without empty cells, and which rows are to test."""
    found = data.load("beijing12", directory)
    table = pd.DataFrame(np.asarray(found.X), columns=found.columns).assign(y=found.y, node=np.asarray(found.sites))
    rng = np.random.default_rng(seed)
    each = n_train + n_test
    labels = sorted(set(table["node"]))
    rows = np.concatenate([rng.permutation(np.flatnonzero(table["node"] == label))[:each] for label in labels])
    table, test = table.iloc[rows].reset_index(drop=True), np.tile(np.arange(each) >= n_train, len(labels))
    place = np.round(np.arctan2(table["wd_sin"], table["wd_cos"]) * 16 / (2 * np.pi)).astype(int) % 16
    raw = table[NUMBERS].assign(wd=np.array(POINTS, dtype=object)[place], station=table["node"].astype(str))
    days = pd.to_timedelta(table["day_of_year"] - 1, unit="D") + pd.to_timedelta(table["hour"], unit="h")
    raw["when"] = pd.to_datetime(table["year"].astype(int).astype(str) + "-01-01") + days
    raw["y"] = table["y"]
    for name in [*NUMBERS, "wd"]:
        raw.loc[rng.random(len(raw)) < 0.03, name] = None
    by_hand = table.drop(columns=["y", "node"]).assign(**{name: raw[name].astype(float) for name in NUMBERS})
    by_hand.loc[raw["wd"].isna(), ["wd_cos", "wd_sin"]] = np.nan
    by_hand = by_hand.fillna(by_hand[~test].median())
    return raw, by_hand, table.drop(columns=["y", "node"]), test


def measure(seed: int, n_train: int, n_test: int, settings: dict[str, object]) -> dict[str, object]:
    raw, by_hand, full, test = tables(seed, n_train, n_test)
    start, stations = time.perf_counter(), raw["station"]
    fitted = DeKRRRegressor(random_state=seed, **settings).fit(raw[~test], "y", sites="station")
    found = {"seed": seed, "raw": fitted.rse(raw[test], "y", sites="station")}
    for name, table in {"by hand": by_hand, "full": full}.items():
        fitted = DeKRRRegressor(random_state=seed, **settings).fit(table[~test], raw["y"][~test], sites=stations[~test])
        found[name] = fitted.rse(table[test], raw["y"][test], sites=stations[test])
    found["ratio"] = found["raw"] / found["by hand"]
    rounded = {name: round(value, 5) if isinstance(value, float) else value for name, value in found.items()}
    return rounded | {"seconds": round(time.perf_counter() - start, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--train", type=int, default=1500, help="rows of a station")
    parser.add_argument("--test", type=int, default=600, help="rows of a station")
    parser.add_argument("--given", action="store_true")
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    rows = []
    for seed in range(chosen.seeds):
        rows.append(measure(seed, chosen.train, chosen.test, GIVEN if chosen.given else {}))
        print(rows[-1], file=sys.stderr, flush=True)
    print("mean ratio", round(float(np.mean([row["ratio"] for row in rows])), 4))
    if chosen.out:
        pd.DataFrame(rows).to_csv(chosen.out, index=False)


if __name__ == "__main__":
    main()
