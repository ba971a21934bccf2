"""
What a neighbour sees
=====================

Every message between sites is counted, edge by edge. The size of the sums does not depend on the number of rows: ten
times the rows cost the same bytes.
"""

import matplotlib.pyplot as plt
import numpy as np

from dekrr import DeKRRRegressor
from dekrr.data import make_sites
from dekrr.settings import ALONE  # the agreed part alone, as in the paper

settings = {**ALONE, "n_features": 40, "sigma": 0.3, "alpha": 1e-4, "consensus": 1.0, "random_state": 0}
counts = (50, 100, 200, 400, 800)
sums, features = [], []
for rows_per_site in counts:
    X, y, stations = make_sites(rows_per_site=rows_per_site, random_state=0)
    for exchange, found in (("sums", sums), ("features", features)):
        regressor = DeKRRRegressor(options={"exchange": exchange}, **settings).fit(X, y, sites=stations)
        found.append(regressor.traffic_.total_bytes / len(regressor.sites_) / 1e6)

fig, ax = plt.subplots(figsize=(6.5, 3.4), layout="constrained")
ax.loglog(counts, features, "s--", label='the paper\'s exchange="features": features of every row')
ax.loglog(counts, sums, "o-", label="sums over rows")
ax.set(xlabel="mean rows of a site", ylabel="MB sent by a site", xticks=counts, xticklabels=np.array(counts))
ax.minorticks_off()
ax.legend()
plt.show()
