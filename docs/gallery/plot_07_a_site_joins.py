"""
New rows, a site that joins, a site that leaves
===============================================

A fitted network can be updated with sums over the new rows alone. Training does not start from the beginning.
"""

import matplotlib.pyplot as plt
import numpy as np

from dekrr import DeKRRRegressor
from dekrr.data import make_sites
from dekrr.settings import ALONE  # the agreed part alone, as in the paper

X, y, stations = make_sites(n_sites=6, rows_per_site=120, random_state=0)
X_new, y_new, new_stations = make_sites(n_sites=6, rows_per_site=120, random_state=1)
late = stations == "station 05"
first = ~late & (np.arange(len(y)) % 2 == 0)
second = ~late & ~first

# A site that joins may have values that no other site has: so the bounds of columns and response are given.
bounds = ([-0.5, 0, 0, -2], [1.5, 1, 1, 2])
regressor = DeKRRRegressor(
    **ALONE, n_features=30, sigma=0.3, alpha=1e-4, consensus=1.0, bounds=bounds, store_rows=True, random_state=0
).fit(X[first], y[first], sites=stations[first])  # fmt: skip
steps = ["half of the rows"]
there = new_stations != "station 05"
errors = [regressor.rse(X_new[there], y_new[there], sites=new_stations[there])]

regressor.partial_fit(X[second], y[second], sites=stations[second])
steps.append("all rows")
errors.append(regressor.rse(X_new[there], y_new[there], sites=new_stations[there]))

edges = [("station 05", "station 04"), ("station 05", "station 00")]
regressor.partial_fit(X[late], y[late], sites=stations[late], edges=edges)
steps.append("a sixth site joins")
errors.append(regressor.rse(X_new, y_new, sites=new_stations))

regressor.remove_site("station 00")
there = new_stations != "station 00"
steps.append("the first site leaves")
errors.append(regressor.rse(X_new[there], y_new[there], sites=new_stations[there]))

fig, ax = plt.subplots(figsize=(6.5, 3.2), layout="constrained")
ax.plot(steps, errors, "o-")
ax.set(ylabel="own RSE on new rows", ylim=(0, None))
plt.show()
