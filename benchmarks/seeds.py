"""How much errors vary with the seed on small tables and on heavy tails: a table of docs/model-selection.md.

    python benchmarks/seeds.py     # then `make figures`

The rows are made up (`make_sites`, six sites; 2,400 test rows). The seed changes the random features, and nothing else.
"""

import argparse
import json
import statistics
from pathlib import Path

import numpy as np

from dekrr import DeKRRRegressor
from dekrr.data import make_sites
from dekrr.metrics import rse

RESULTS = Path(__file__).parent / "results" / "seeds.json"
SEEDS = range(10)
ROWS = (60, 400)
RESPONSES = {
    "as it is": (lambda y: y, None, None),
    "with a heavy tail": (lambda y: np.exp(2 * y), None, None),
    "with a heavy tail, logarithms": (lambda y: np.exp(2 * y), np.log, np.exp),
}


def main():
    results = []
    for rows_per_site in ROWS:
        X, y, sites = make_sites(n_sites=6, rows_per_site=rows_per_site, random_state=0)
        X_new, y_new, new_sites = make_sites(n_sites=6, rows_per_site=400, random_state=1)
        for name, (response, forth, back) in RESPONSES.items():
            known, wanted = response(y), response(y_new)
            predictions = []
            for seed in SEEDS:
                regressor = DeKRRRegressor(random_state=seed, intervals=False)
                regressor.fit(X, forth(known) if forth else known, sites=sites)
                found = regressor.predict(X_new, sites=new_sites)
                predictions.append(back(found) if back else found)
            errors = [float(rse(wanted, found)) for found in predictions]
            result = {
                "response": name,
                "rows": rows_per_site,
                "errors": errors,
                "of_mean": float(rse(wanted, np.mean(predictions, axis=0))),
            }
            print(name, rows_per_site, min(errors), statistics.fmean(errors), max(errors), result["of_mean"])
            results.append(result)
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    main()
