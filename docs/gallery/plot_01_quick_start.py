"""
Ten stations along a coast
==========================

Ten stations may not send their rows away. Each ends with its own model. Together they are better than alone, and the
difference is largest on rows unlike a station's own.
"""

# %%
# The package makes a small data set from one smooth function. Each station sees its own section of it.
import matplotlib.pyplot as plt
import numpy as np

from dekrr import DeKRRRegressor, LocalRegressor
from dekrr.data import make_sites

X, y, stations = make_sites(random_state=0)
X_new, y_new, new_stations = make_sites(random_state=1)

# %%
# The settings are given as numbers here, so nothing is tuned.
settings = {"n_features": 30, "sigma": 0.3, "alpha": 1e-4, "random_state": 0}
together = DeKRRRegressor(consensus=1.0, **settings).fit(X, y, sites=stations)
alone = LocalRegressor(**settings).fit(X, y, sites=stations)

# %%
# *own* scores each row by the model of its own site. *union* scores every site's model on all rows.
metrics = ("own", "union")
errors = {
    name: [model.rse(X_new, y_new, sites=new_stations, metric=metric) for metric in metrics]
    for name, model in {"together": together, "alone": alone}.items()
}
fig, ax = plt.subplots(figsize=(6, 3.2), layout="constrained")
for shift, (name, values) in zip((-0.2, 0.2), errors.items(), strict=True):
    bars = ax.bar(np.arange(2) + shift, values, width=0.4, label=name)
    ax.bar_label(bars, fmt="%.3f")
ax.set(xticks=range(2), xticklabels=metrics, ylabel="RSE on new rows")
ax.legend()
plt.show()
