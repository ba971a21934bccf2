"""What choosing from a sample of a site's rows costs: RSE on household_power by the size of the sample.

Ten sites by time; a tenth of all rows, drawn at random, is for testing. Features, and with --tuned sigma, alpha,
consensus and the weight of the own model, are chosen from the sample; the models are solved from all training rows.

    python benchmarks/sample.py --data-dir DATA --seeds 3
"""

import argparse
import json
import os
import time
from pathlib import Path

import numpy as np

from dekrr import DeKRRRegressor
from dekrr.data import load
from dekrr.tables import rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path, default=os.environ.get("DEKRR_DATA"))
    parser.add_argument("--sizes", type=int, nargs="+", default=[5_000, 20_000, 100_000])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--sites", type=int, default=10)
    parser.add_argument("--n-features", type=int, default=100)
    parser.add_argument("--tuned", action="store_true")
    given = parser.parse_args()
    X, y = load("household_power", given.data_dir)
    sites = np.arange(len(y)) * given.sites // len(y)
    fixed = {} if given.tuned else {"sigma": 1.0, "alpha": 1e-6, "consensus": 1.0}
    for seed in range(given.seeds):
        test = np.random.default_rng(seed).random(len(y)) < 0.1
        for size in given.sizes:
            rows.SAMPLE_ROWS = size
            regressor = DeKRRRegressor(n_features=given.n_features, random_state=seed, **fixed)
            begun = time.process_time()
            regressor.fit(X[~test], y[~test], sites=sites[~test])
            seconds = time.process_time() - begun
            errors = {
                metric: regressor.rse(X[test], y[test], sites=sites[test], metric=metric) for metric in ("own", "union")
            }
            chosen = {name: getattr(regressor, f"{name}_") for name in ("sigma", "alpha", "consensus")}
            print(
                json.dumps({"sample": size, "seed": seed, "cpu seconds": round(seconds, 1), **errors, **chosen}),
                flush=True,
            )


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    main()
