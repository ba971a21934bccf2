"""Sites of very different sizes: the largest has nineteen times the rows of the smallest.

The same number of features over all sites can be shared out equally, or in proportion to the root of each site's
rows. Which is better depends on the data: look at both metrics before choosing.
"""

import numpy as np

from dekrr import DeKRRRegressor, rse
from dekrr.data import imbalanced, make_sites


def main(n_rows: int = 2000) -> dict[str, float]:
    X, y, _ = make_sites(rows_per_site=n_rows // 10, random_state=0)
    X_new, y_new, _ = make_sites(rows_per_site=n_rows // 10, random_state=1)
    sites, new_sites = imbalanced(len(y), random_state=0), imbalanced(len(y_new), random_state=1)
    summary = {}
    for allocation in ("equal", "sqrt"):
        regressor = DeKRRRegressor(n_features=30, sigma=0.3, alpha=1e-4, allocation=allocation, random_state=0).fit(
            X, y, sites=sites
        )
        for metric in ("own", "union"):
            summary[f"{allocation}, {metric}"] = regressor.rse(X_new, y_new, sites=new_sites, metric=metric)
        print(f"\n{allocation}: own {summary[f'{allocation}, own']:.3f}, union {summary[f'{allocation}, union']:.3f}")
        for site in regressor.sites_:
            test = new_sites == site
            error = rse(y_new[test], regressor.predict(X_new[test], sites=new_sites[test]))
            size = regressor.models_[site].feature_map.n_features
            print(f"  site {site}: {np.sum(sites == site):4} rows, {size:3} features, RSE {error:.3f}")
    return summary


if __name__ == "__main__":
    main()
