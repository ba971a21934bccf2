"""How many rows differential privacy takes: made-up problems, with noise and without.

    python benchmarks/privacy_noise.py

Results go to benchmarks/results/privacy_noise.json: for each problem, number of sites, rows of a site, number of
features, epsilon and colluders, the own RSE with noise and without, the scale of the noise, and its share by
`dekrr.privacy.mechanism`. The rule of thumb there is from this file, whose table this program prints.
"""

import argparse
import itertools
import json
import math
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from dekrr import DeKRRRegressor, DifferentialPrivacy
from dekrr.data import make_sites
from dekrr.privacy.mechanism import noise_share

RESULTS = Path(__file__).parent / "results" / "privacy_noise.json"
ROWS, FEATURES, EPSILONS = (100, 300, 1000, 3000, 10_000, 20_000), (20, 60, 200), (0.5, 2.0, 8.0)
EDGES = (0, 0.005, 0.01, 0.02, 0.05, 0.1, 0.3, math.inf)
N_TEST = 500


def waves(n_sites: int, n_rows: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, tuple[Any, Any], float]:
    """Return five columns in [0, 1], a smooth response in [-1, 1] of three of them, and the bounds."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(size=(n_sites * n_rows, 5))
    y = 0.4 * np.sin(5 * X[:, 0]) + 0.3 * np.cos(4 * X[:, 1]) + 0.2 * X[:, 2] + 0.1 * rng.standard_normal(len(X))
    sites = np.array([f"site{j}" for j in range(n_sites)]).repeat(n_rows)
    return X, y, sites, ((0.0,) * 5 + (-1.2,), (1.0,) * 5 + (1.2,)), 0.7


def coast(n_sites: int, n_rows: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, tuple[Any, Any], float]:
    """Return `make_sites`, with bounds that are known for it."""
    X, y, sites = make_sites(n_sites=n_sites, rows_per_site=n_rows, random_state=seed)
    return X, y, sites, ((-0.5, -4.0, -4.0, -3.5), (1.5, 4.0, 4.0, 3.5)), 0.3


PROBLEMS = {"waves": waves, "coast": coast}


def own_rse(model: Any, test: tuple[np.ndarray, np.ndarray, np.ndarray]) -> float:
    """Return the mean over sites of the RSE on the site's own test rows."""
    X, y, sites = test
    errors = []
    for site in np.unique(sites):
        here = sites == site
        predicted = model.models_[str(site)].predict(X[here])
        errors.append(float(((y[here] - predicted) ** 2).mean() / y[here].var()))
    return float(np.mean(errors))


def measured(problem: str, n_sites: int, n_rows: int, seed: int, features: tuple[int, ...]) -> list[dict[str, Any]]:
    """Return the fits of one table."""
    X, y, sites, bounds, sigma = PROBLEMS[problem](n_sites, n_rows + N_TEST, seed)
    rng, is_test = np.random.default_rng(seed), np.zeros(len(y), dtype=bool)
    for site in np.unique(sites):
        here = np.flatnonzero(sites == site)
        is_test[rng.choice(here, size=min(N_TEST, len(here) // 2), replace=False)] = True
    test, found = (X[is_test], y[is_test], sites[is_test]), []
    for n_features in features:
        given = {"features": "plain", "n_features": n_features, "sigma": sigma, "alpha": 1e-4, "consensus": 1.0}
        given |= {"bounds": bounds, "random_state": seed, "shared": None, "local": None, "column_scales": None}
        exact = None
        for epsilon, colluders in [(None, None), *itertools.product(EPSILONS, (None, 1))]:
            privacy = None if epsilon is None else DifferentialPrivacy(epsilon, colluders=colluders)
            model = DeKRRRegressor(**given, privacy=privacy)
            model.fit(X[~is_test], y[~is_test], sites=sites[~is_test])
            error = own_rse(model, test)
            exact = error if exact is None else exact
            spent = next(iter(model.models_.values())).header.privacy
            about = {"problem": problem, "n_sites": n_sites, "n_rows": n_rows, "seed": seed, "n_features": n_features}
            about |= {"epsilon": epsilon, "colluders": colluders, "own": error, "exact": exact}
            found.append(about | ({} if spent is None else _noise(spent.noise_scale, about)))
    return found


def _noise(scale: float, about: dict[str, Any]) -> dict[str, float]:
    """Return the scale and the share of the noise; in a ring of four all other sites are partners."""
    n_sites, n_rows, n_features = about["n_sites"], about["n_rows"], about["n_features"]
    if about["colluders"] is None:
        return {"scale": scale, "share": noise_share(scale, n_features, n_rows)}
    assert n_sites == 4
    of_total = scale * math.sqrt(n_sites / (n_sites - about["colluders"]))
    return {"scale": scale, "share": noise_share(of_total, n_features, n_sites * n_rows)}


def table(results: list[dict[str, Any]]) -> str:
    """Return what noise multiplies the error by, a line for each range of shares."""
    lines = ["share            fits   error with noise / without (median)   twice as large, or above 0.9"]
    for least, most in itertools.pairwise(EDGES):
        fits = [fit for fit in results if least <= fit.get("share", -1.0) < most]
        ratios = [fit["own"] / fit["exact"] for fit in fits]
        bad = sum(fit["own"] > min(0.9, 2 * fit["exact"]) for fit in fits)
        name = f"below {most:g}" if not least else f"above {least:g}" if most == math.inf else f"{least:g} to {most:g}"
        lines.append(f"{name:<15}{len(fits):>6}{np.median(ratios):>38.2f}{bad:>31}")
    return "\n".join(lines)


def main() -> None:
    """Measure, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS)
    parser.add_argument("--features", type=int, nargs="+", default=FEATURES)
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    results: list[dict[str, Any]] = []
    for seed, n_sites, n_rows, problem in itertools.product(given.seeds, [4], given.rows, PROBLEMS):
        began = time.monotonic()
        results += measured(problem, n_sites, n_rows, seed, tuple(given.features))
        given.out.write_text("[\n" + ",\n".join(map(json.dumps, results)) + "\n]\n")
        print(problem, n_sites, n_rows, seed, f"{time.monotonic() - began:.1f} s", flush=True)
    print(table(results))


if __name__ == "__main__":
    main()
