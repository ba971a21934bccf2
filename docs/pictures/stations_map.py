"""Draw the README's picture: a map of stations, each alone and all together.

python docs/pictures/stations_map.py docs/images/stations-map.png
"""

import sys

import matplotlib.pyplot as plt
import numpy as np
from scipy.spatial import Delaunay

from dekrr import DeKRRRegressor, LocalRegressor

rng = np.random.default_rng(4)
N_STATIONS, N_ROWS = 16, 150


def field(X):
    """Return what the stations measure: a smooth function of the place and of the weather."""
    east, north, weather = X.T
    return np.sin(5 * east) * np.cos(4 * north) + 0.6 * np.sin(4 * weather + 2 * east)


def rows(places):
    """Return rows around every station's place, and the station of each."""
    stations = np.repeat(np.arange(len(places)), N_ROWS)
    X = np.column_stack([places[stations] + rng.normal(0, 0.07, (len(stations), 2)), rng.random(len(stations))])
    return X, field(X) + rng.normal(0, 0.1, len(X)), stations


grid = np.stack(np.meshgrid(np.linspace(0.1, 0.9, 4), np.linspace(0.1, 0.9, 4)), axis=-1).reshape(-1, 2)
places = grid + rng.uniform(-0.07, 0.07, grid.shape)
edges = {tuple(sorted(pair)) for a, b, c in Delaunay(places).simplices for pair in ((a, b), (b, c), (a, c))}
edges = [edge for edge in edges if np.linalg.norm(places[edge[0]] - places[edge[1]]) < 0.4]
X, y, stations = rows(places)
X_new, y_new, _ = rows(places)

models = {
    "alone": LocalRegressor(n_features=60, sigma=0.3, alpha=1e-4, random_state=0),
    "together, rows stay at home": DeKRRRegressor(topology=edges, random_state=0),
}
fig, axes = plt.subplots(1, 2, figsize=(9.5, 4.3), layout="constrained", sharey=True)
for ax, (title, regressor) in zip(axes, models.items(), strict=True):
    regressor.fit(X, y, sites=stations)
    variance = np.sum((y_new - y_new.mean()) ** 2)
    errors = [np.sum((regressor.models_[s].predict(X_new) - y_new) ** 2) / variance for s in range(N_STATIONS)]
    if "together" in title:
        for a, b in edges:
            ax.plot(*places[[a, b]].T, color="0.75", linewidth=1, zorder=0)
    dots = ax.scatter(*places.T, c=np.log10(errors), cmap="RdYlGn_r", vmin=-2, vmax=0.3, s=260, edgecolor="0.3")
    for place, error in zip(places, errors, strict=True):
        ax.annotate(f"{error:.2f}", place, ha="center", va="center", fontsize=7)
    ax.set(title=f"{title}\nmean error on everybody's rows: {np.mean(errors):.2f}", xticks=[], yticks=[])
    ax.set_aspect("equal")
fig.colorbar(dots, ax=axes, label="RSE of a station's model on all stations' new rows, log10", shrink=0.85)
fig.savefig(sys.argv[1], dpi=110)
print({title: regressor.traffic_.total_bytes / N_STATIONS / 1e6 for title, regressor in models.items()}, "MB a station")
