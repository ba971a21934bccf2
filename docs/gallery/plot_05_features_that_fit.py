"""
Features that fit each site
===========================

Sites see different parts of the data, so different random features suit them. Greedy features are chosen from each
site's own rows and its neighbours' sums. Plain features are drawn without looking at any rows.
"""

import matplotlib.pyplot as plt
from sklearn.datasets import load_diabetes

from dekrr import DeKRRRegressor
from dekrr.data import by_response, halves
from dekrr.settings import ALONE  # the agreed part alone, as in the paper

X, y = load_diabetes(return_X_y=True)
sites = by_response(y, n_sites=4, random_state=0)
train = halves(sites, random_state=0)
settings = {**ALONE, "sigma": 1.0, "alpha": 1e-3, "consensus": 0.5, "random_state": 0}

fig, ax = plt.subplots(figsize=(6.5, 3.4), layout="constrained")
counts = (5, 10, 20, 40)
for features, style in (("plain", "o--"), ("energy", "s-."), ("greedy", "D-")):
    errors = []
    for n_features in counts:
        regressor = DeKRRRegressor(n_features=n_features, features=features, **settings)
        regressor.fit(X[train], y[train], sites=sites[train])
        errors.append(regressor.rse(X[~train], y[~train], sites=sites[~train]))
    ax.plot(counts, errors, style, label=features)
ax.set(
    xlabel="features of a site (D)", ylabel="own RSE on test rows", title="scikit-learn's diabetes table, four sites"
)
ax.legend()
plt.show()
