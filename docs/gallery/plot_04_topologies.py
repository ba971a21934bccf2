"""
Who talks to whom
=================

The graph decides how fast agreement spreads. With more neighbours a round costs more bytes, but fewer rounds
are needed.
"""

import matplotlib.pyplot as plt
import networkx as nx
import numpy as np

from dekrr import DeKRRRegressor
from dekrr.data import make_sites
from dekrr.settings import ALONE  # the agreed part alone, as in the paper
from dekrr.topology import build

X, y, stations = make_sites(n_sites=12, rows_per_site=80, random_state=0)
X_new, y_new, new_stations = make_sites(n_sites=12, rows_per_site=80, random_state=1)
names = list(np.unique(stations))
fig, axes = plt.subplots(1, 3, figsize=(9, 3.4), layout="constrained")
for ax, (topology, n_neighbors) in zip(axes, [("ring", 2), ("ring", 4), ("complete", 11)], strict=True):
    regressor = DeKRRRegressor(
        **ALONE,
        n_features=30,
        sigma=0.3,
        alpha=1e-4,
        consensus=1.0,
        topology=topology,
        n_neighbors=n_neighbors,
        random_state=0,
    ).fit(X, y, sites=stations)
    union = regressor.rse(X_new, y_new, sites=new_stations, metric="union")
    graph = nx.Graph(build(topology, names, n_neighbors, seed=0))
    nx.draw_circular(graph, ax=ax, node_size=60, width=0.7)
    sent = regressor.traffic_.total_bytes / len(names) / 1e3
    ax.set_title(f"{topology}, {n_neighbors} neighbours\n{regressor.n_rounds_} rounds, {sent:.0f} kB a site\n"
                 f"union RSE {union:.3f}", fontsize=9)  # fmt: skip
plt.show()
