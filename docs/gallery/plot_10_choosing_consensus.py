"""
How much to agree
=================

The consensus weight balances the fit to a site's own rows against agreement with its neighbours. If you do not set it,
the sites can choose it together, without a central server.
"""

import matplotlib.pyplot as plt

from dekrr import DeKRRRegressor
from dekrr.data import make_sites
from dekrr.settings import ALONE  # the agreed part alone, as in the paper

X, y, stations = make_sites(rows_per_site=60, noise=0.4, random_state=0)
X_new, y_new, new_stations = make_sites(rows_per_site=200, noise=0.4, random_state=1)
weights = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
own, union = [], []
for weight in weights:
    regressor = DeKRRRegressor(
        **ALONE, n_features=30, sigma=0.3, alpha=1e-4, consensus=weight, prediction="own", random_state=0
    ).fit(X, y, sites=stations)  # fmt: skip
    own.append(regressor.rse(X_new, y_new, sites=new_stations))
    union.append(regressor.rse(X_new, y_new, sites=new_stations, metric="union"))

fig, ax = plt.subplots(figsize=(6.5, 3.4), layout="constrained")
ax.loglog(weights, own, "o-", label="own")
ax.loglog(weights, union, "s-", label="union")
ax.set(xlabel="consensus", ylabel="RSE on new rows")
ax.legend()
plt.show()
