"""Bytes and seconds by the number of features D, on the authors' split of Houses: a table of docs/accuracy.md.

    python benchmarks/cost.py --data-dir DIR

Each D is fitted with given numbers (DeKRR alone, sigma 1/4, alpha 1e-6, consensus 1/4) and with the defaults. The
shorter of two times counts.
"""

import argparse
import json
import os
import time
import warnings
from pathlib import Path

from accuracy import load
from dekrr import DeKRRRegressor
from dekrr.settings import ALONE

RESULTS = Path(__file__).parent / "results" / "cost.json"
KINDS = {"given numbers": {"sigma": 0.25, "alpha": 1e-6, "consensus": 0.25, **ALONE}, "defaults": {}}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", default=os.environ.get("DEKRR_DATA"))
    options = parser.parse_args()
    (X, y, sites), *_ = load("houses", options.data_dir)
    results = []
    for n_features in (100, 200, 400):
        for kind, settings in KINDS.items():
            seconds = []
            for _ in range(2):
                start = time.perf_counter()
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    model = DeKRRRegressor(n_features=n_features, scale=None, random_state=0, **settings)
                    model.fit(X, y, sites=sites)
                seconds.append(time.perf_counter() - start)
            megabytes = model.traffic_.total_bytes / len(model.sites_) / 1e6
            cost = {"seconds": round(min(seconds), 2), "megabytes": round(megabytes, 2)}
            results.append({"data": "houses", "n_features": n_features, "settings": kind, **cost})
            print(results[-1], flush=True)
    RESULTS.write_text(json.dumps(results, indent=0))


if __name__ == "__main__":
    main()
