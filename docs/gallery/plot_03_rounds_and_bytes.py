"""
Rounds and bytes: Jacobi against Chebyshev
==========================================

The paper's solver is Jacobi iteration. Chebyshev's semi-iteration takes about the square root of the number of rounds.
A round costs the same bytes with both.
"""

import matplotlib.pyplot as plt

from dekrr import DeKRRRegressor
from dekrr.data import make_sites
from dekrr.settings import ALONE  # the agreed part alone, as in the paper

X, y, stations = make_sites(rows_per_site=150, random_state=0)
settings = {**ALONE, "n_features": 40, "sigma": 0.3, "alpha": 1e-4, "consensus": 2.0, "tol": 1e-8, "random_state": 0}

exact = DeKRRRegressor(**{**settings, "tol": 1e-13}).fit(X, y, sites=stations).objective_
fig, ax = plt.subplots(figsize=(6.5, 3.4), layout="constrained")
for solver in ("jacobi", "chebyshev"):
    regressor = DeKRRRegressor(solver=solver, **settings).fit(X, y, sites=stations)
    sent = regressor.traffic_.total_bytes / len(regressor.sites_) / 1e3
    gap = regressor.history_["objective"] / exact - 1
    ax.semilogy(gap.clip(1e-12), label=f"{solver}: {regressor.n_rounds_} rounds, {sent:.0f} kB a site")
ax.set(xlabel="round", ylabel="objective above its minimum, relative")
ax.legend()
plt.show()
