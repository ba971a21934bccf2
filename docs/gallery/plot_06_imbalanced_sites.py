"""
Sites of different sizes
========================

A large site can use more features than a small one. ``allocation="sqrt"`` gives each site features in
proportion to the square root of its number of rows. The mean over sites stays the same.
"""

import matplotlib.pyplot as plt
import numpy as np

from dekrr import DeKRRRegressor
from dekrr.data import imbalanced, make_sites
from dekrr.settings import ALONE  # the agreed part alone, as in the paper

X, y, _ = make_sites(n_sites=10, rows_per_site=240, random_state=0)
sites = imbalanced(len(y), n_sites=8, random_state=0)
train = np.random.default_rng(0).random(len(y)) < 0.6
settings = {**ALONE, "n_features": 24, "sigma": 0.3, "alpha": 1e-4, "consensus": 1.0, "random_state": 0}

fig, axes = plt.subplots(1, 2, figsize=(8.5, 3.4), layout="constrained")
axes[0].bar(np.unique(sites), np.bincount(sites[train]))
axes[0].set(xlabel="site", ylabel="training rows")
for allocation in ("equal", "sqrt"):
    regressor = DeKRRRegressor(allocation=allocation, **settings).fit(X[train], y[train], sites=sites[train])
    counts = [model.members[0].feature_map.n_features for model in regressor.models_.values()]
    own, union = (regressor.rse(X[~train], y[~train], sites=sites[~train], metric=m) for m in ("own", "union"))
    axes[1].plot(list(regressor.models_), counts, "o-", label=f"{allocation}: own {own:.3f}, union {union:.3f}")
axes[1].set(xlabel="site", ylabel="features")
axes[1].legend(title="RSE on test rows")
plt.show()
