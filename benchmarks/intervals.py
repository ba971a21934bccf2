"""Coverage and width of 90 % intervals, beside crepes on pooled rows with the same model.

    python benchmarks/intervals.py [--seeds 10] [--rows 6000] [--out benchmarks/results/intervals.csv] [NAMES]

Data sets: the paper's five (by response over ten sites, half of the rows to test), Beijing's twelve stations, and three
made-up ones whose noise differs by row. A site's own and all rows' coverage are of test rows. "crepes" pools the rows:
DeKRR is fitted without a fifth of them, and crepes makes intervals from the residuals of that fifth, each relative to
the mean residual of 25 near rows. It takes `pip install crepes`; without it that column stays empty.
"""

import argparse
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pandas as pd

import dekrr
from dekrr import DeKRRRegressor, data

NAMES = ["houses", "airquality", "energy", "tomshardware", "twitter", "beijing", "steps", "tails", "waves"]
FEATURES = 60
INTERVALS: dict[str, object] = {"intervals": "auto"}
FEW = 200


def problem(name: str, seed: int, n_rows: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return rows, responses, sites, and which rows are for training."""
    rng = np.random.default_rng(seed)
    if name in ("steps", "tails", "waves"):
        X = rng.random((n_rows, 5))
        sites = rng.choice(8, n_rows)
        noise = {
            "steps": np.where(X[:, 0] > 0.5, 0.6, 0.05) * rng.normal(size=n_rows),
            "tails": (0.1 + 0.3 * X[:, 1]) * rng.standard_t(3, size=n_rows),
            "waves": (0.05 + 0.4 * np.sin(3 * X[:, 2]) ** 2) * rng.exponential(size=n_rows),
        }[name]
        y = np.sin(5 * X[:, 0]) + X[:, 1] * X[:, 2] + sites * X[:, 3] / 8 + noise
    else:
        wanted = {"twitter": "twitter13813", "beijing": "beijing12"}.get(name, name)
        found = data.load(wanted)
        kept = np.sort(rng.permutation(len(found.y))[:n_rows])
        X, y = np.asarray(found.X, dtype=float)[kept], np.asarray(found.y, dtype=float)[kept]
        given = getattr(found, "sites", None)
        sites = np.asarray(given)[kept] if given is not None else data.by_response(y, random_state=seed)
    return X, y, np.asarray(sites), rng.random(len(y)) < 0.5


def covered(ends: np.ndarray, y: np.ndarray) -> np.ndarray:
    return (ends[:, 0] <= y) & (y <= ends[:, 1])


def pooled(X, y, sites, train, seed) -> tuple[float, float] | None:
    """Return coverage and mean width of crepes on pooled rows."""
    try:
        from crepes import ConformalRegressor
        from crepes.extras import DifficultyEstimator
    except ImportError:
        return None
    rng = np.random.default_rng(seed)
    held = train & (rng.random(len(y)) < 0.2)
    kept, test = train & ~held, ~train
    model = DeKRRRegressor(random_state=seed, n_features=FEATURES, intervals=False).fit(
        X[kept], y[kept], sites=sites[kept]
    )
    low, span = X[kept].min(axis=0), np.ptp(X[kept], axis=0) + 1e-12
    units = (X - low) / span
    residuals = y[kept] - model.predict(X[kept], sites=sites[kept])
    difficulty = DifficultyEstimator()
    difficulty.fit(X=units[kept], residuals=residuals, k=25, scaler=True)
    conformal = ConformalRegressor()
    conformal.fit(y[held] - model.predict(X[held], sites=sites[held]), sigmas=difficulty.apply(units[held]))
    sigmas = difficulty.apply(units[test])
    ends = conformal.predict_int(model.predict(X[test], sites=sites[test]), sigmas=sigmas, confidence=0.9)
    return float(covered(ends, y[test]).mean()), float(np.mean(ends[:, 1] - ends[:, 0]))


def measure(name: str, seed: int, n_rows: int) -> dict[str, object]:
    X, y, sites, train = problem(name, seed, n_rows)
    test, start = ~train, time.perf_counter()
    fitted = DeKRRRegressor(random_state=seed, n_features=FEATURES, **INTERVALS).fit(
        X[train], y[train], sites=sites[train]
    )
    ends = fitted.predict_interval(X[test], sites=sites[test])
    hit, spread = covered(ends, y[test]), float(y[test].std())
    large = [s for s in fitted.sites_ if (sites[train] == s).sum() >= FEW]
    each = [float(hit[sites[test] == site].mean()) for site in large]
    beside = pooled(X, y, sites, train, seed)
    return {
        "data": name,
        "seed": seed,
        "rows": int(train.sum()),
        "sites": len(fitted.sites_),
        "rse": round(dekrr.rse(y[test], fitted.predict(X[test], sites=sites[test])), 4),
        "coverage": round(float(hit.mean()), 4),
        "least at a site": round(min(each), 4) if each else "",
        "each site": " ".join(f"{site}:{value:.3f}" for site, value in zip(large, each, strict=True)),
        "width": round(float(np.mean(ends[:, 1] - ends[:, 0])) / spread, 4),
        "crepes coverage": round(beside[0], 4) if beside else "",
        "crepes width": round(beside[1] / spread, 4) if beside else "",
        "seconds": round(time.perf_counter() - start, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", default=NAMES)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--rows", type=int, default=6000)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--exact", action="store_true", help="intervals=True: the shared part is fitted anew")
    chosen = parser.parse_args()
    INTERVALS["intervals"] = True if chosen.exact else "auto"
    warnings.simplefilter("ignore")
    rows = []
    for name in chosen.names:
        for seed in range(chosen.seeds):
            rows.append(measure(name, seed, chosen.rows))
            print(rows[-1], file=sys.stderr, flush=True)
        own = [row for row in rows if row["data"] == name]
        by_site: dict[str, list[float]] = {}
        for row in own:
            for entry in str(row["each site"]).split():
                by_site.setdefault(entry.split(":")[0], []).append(float(entry.split(":")[1]))
        least = round(float(min(map(np.mean, by_site.values()))), 3) if by_site else ""
        keys = ("rse", "coverage", "least at a site", "width", "crepes coverage", "crepes width")
        means = {key: round(float(np.mean([float(r[key]) for r in own if r[key] != ""])), 3) for key in keys}
        print(name, means | {"least mean of a site": least}, flush=True)
    if chosen.out:
        pd.DataFrame(rows).to_csv(chosen.out, index=False)


if __name__ == "__main__":
    main()
