"""
Every method on the same sites
==============================

The baselines have the interface of ``DeKRRRegressor``, so all methods can be compared on the same rows, by
both metrics.
"""

import matplotlib.pyplot as plt
import numpy as np

from dekrr import (
    AllReduceRegressor,
    CentralizedKRR,
    CentralizedRFF,
    DeKRRRegressor,
    DKLARegressor,
    LocalRegressor,
)
from dekrr.data import make_sites

X, y, stations = make_sites(rows_per_site=100, random_state=0)
X_new, y_new, new_stations = make_sites(rows_per_site=100, random_state=1)
settings = {"sigma": 0.3, "alpha": 1e-4}
some = {**settings, "n_features": 30, "random_state": 0}
methods = {
    "DeKRR": DeKRRRegressor(consensus=1.0, **some),
    "DKLA": DKLARegressor(**some),
    "AllReduce": AllReduceRegressor(**some),
    "Local": LocalRegressor(**some),
    "pooled features": CentralizedRFF(**some),
    "pooled, exact": CentralizedKRR(**settings),
}
own, union = [], []
for method in methods.values():
    method.fit(X, y, sites=stations)
    own.append(method.rse(X_new, y_new, sites=new_stations))
    union.append(method.rse(X_new, y_new, sites=new_stations, metric="union"))

fig, ax = plt.subplots(figsize=(7.5, 3.4), layout="constrained")
places = np.arange(len(methods))
ax.bar(places - 0.2, own, width=0.4, label="own")
ax.bar(places + 0.2, union, width=0.4, label="union")
ax.set(xticks=places, xticklabels=methods, ylabel="RSE on new rows")
ax.legend()
plt.show()
