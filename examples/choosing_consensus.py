"""How much should neighbours agree? Cross-validate the weight c, on training rows alone.

A small c lets every site follow its own rows: good for them, bad elsewhere. A large c pulls the models together.
DeKRR is alone here, without a shared and a local part. c is chosen by each site's error on its own held-out rows; the
test errors by both metrics are beside it.
"""

import numpy as np

from dekrr import DeKRRRegressor
from dekrr.data import Split, by_column, make_sites
from dekrr.lab.experiments.fits import choose_consensus, cross_validate
from dekrr.selection import Greedy
from dekrr.settings import ALONE

WEIGHTS = (0.0625, 0.25, 1.0, 4.0, 16.0)


def main(rows_per_site: int = 60) -> tuple[float, dict[float, float]]:
    """Return the chosen weight, and the test RSE on own rows of every weight."""
    parts: list[np.ndarray] = []
    for seed in (0, 1):
        X, y, stations = make_sites(rows_per_site=rows_per_site, random_state=seed)
        parts += [X, y, by_column(stations)]
    split = Split(*parts)
    settings = {"n_features": 30, "sigma": 0.3, "alpha": 1e-4, **ALONE}
    selectors = [Greedy(30, sigma=0.3)] * split.n_sites
    errors = cross_validate(split, selectors, WEIGHTS, alpha=1e-4, prediction="own", shuffle=True, random_state=0)
    chosen = choose_consensus(errors)
    test_errors = {}
    print("     c   validation MSE   test RSE own   union   rounds")
    for c in WEIGHTS:
        regressor = DeKRRRegressor(**settings, consensus=c, scale=None, random_state=0)
        regressor.fit(split.X, split.y, sites=split.sites)
        own, union = (
            regressor.rse(split.X_test, split.y_test, sites=split.test_sites, metric=metric)
            for metric in ("own", "union")
        )
        test_errors[c] = own
        mark = "  <- chosen" if c == chosen else ""
        print(f"{c:6g} {errors[c]:16.4f} {own:14.3f} {union:7.3f} {regressor.n_rounds_:8}{mark}")
    return chosen, test_errors


if __name__ == "__main__":
    main()
