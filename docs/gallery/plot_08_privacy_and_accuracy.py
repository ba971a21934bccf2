"""
What a guarantee costs
======================

Differential privacy adds noise to the sums. A smaller epsilon promises more, and costs more accuracy. With more
rows the cost is smaller.
"""

import matplotlib.pyplot as plt
import numpy as np

from dekrr import DeKRRRegressor, DifferentialPrivacy
from dekrr.data import make_sites
from dekrr.settings import ALONE  # the agreed part alone, as in the paper

settings = {
    **ALONE,
    "n_features": 20,
    "features": "plain",
    "sigma": 0.5,
    "alpha": 1e-2,
    "consensus": 0.5,
    "random_state": 0,
}
epsilons = (1.0, 3.0, 10.0)
fig, ax = plt.subplots(figsize=(6.5, 3.4), layout="constrained")
for rows_per_site in (500, 5000):
    X, y, stations = make_sites(n_sites=4, rows_per_site=rows_per_site, random_state=0)
    X_new, y_new, new_stations = make_sites(n_sites=4, rows_per_site=300, random_state=1)
    both = np.column_stack([np.vstack([X, X_new]), np.append(y, y_new)])
    bounds = (tuple(np.floor(both.min(axis=0))), tuple(np.ceil(both.max(axis=0))))  # known to everybody beforehand
    errors = []
    for epsilon in epsilons:
        privacy = DifferentialPrivacy(epsilon=epsilon)
        regressor = DeKRRRegressor(privacy=privacy, bounds=bounds, **settings).fit(X, y, sites=stations)
        errors.append(regressor.rse(X_new, y_new, sites=new_stations))
    exact = DeKRRRegressor(bounds=bounds, **settings).fit(X, y, sites=stations).rse(X_new, y_new, sites=new_stations)
    (line,) = ax.plot(epsilons, errors, "o-", label=f"{rows_per_site} rows a site")
    ax.axhline(exact, color=line.get_color(), linestyle=":")
ax.set(xscale="log", xlabel="epsilon", ylabel="own RSE on new rows (dotted: exact sums)", ylim=(0, 1.2))
ax.legend()
plt.show()
