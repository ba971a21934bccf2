"""
Watch consensus form on a graph
===============================

Every round a site sends its coefficients to its neighbours and takes a step. The animation shows the predictions of all
sites along a line through the data, round by round.
"""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.animation import FuncAnimation

from dekrr import DeKRRRegressor
from dekrr.data import make_sites
from dekrr.settings import ALONE  # the agreed part alone, as in the paper

X, y, stations = make_sites(n_sites=8, rows_per_site=80, n_columns=1, random_state=0)
line = np.linspace(X.min(), X.max(), 200)[:, None]

# %%
# Fits that end after 1, 2, 3, ... rounds show what the models are at that point. The paper's solver, Jacobi, moves
# slowly enough to watch.
rounds = [1, 2, 3, 5, 8, 12, 20, 40, 80, 160]
predictions = []
for n_rounds in rounds:
    regressor = DeKRRRegressor(
        **ALONE, n_features=12, features="energy", sigma=0.3, alpha=1e-4, consensus=4.0, solver="jacobi", tol=0.0,
        max_rounds=n_rounds, prediction="own", n_neighbors=2, random_state=0,
    ).fit(X, y, sites=stations)  # fmt: skip
    predictions.append(np.array([model.predict(line) for model in regressor.models_.values()]))

fig, ax = plt.subplots(figsize=(7, 3.6), layout="constrained")
ax.plot(X[:, 0], y, ".", color="0.8", markersize=3)
curves = [ax.plot(line[:, 0], values)[0] for values in predictions[0]]
ax.set(xlabel="place on the coast", ylabel="response", ylim=(y.min() - 0.5, y.max() + 0.5))


def draw(frame):
    for curve, values in zip(curves, predictions[frame], strict=True):
        curve.set_ydata(values)
    ax.set_title(f"{rounds[frame]} rounds: eight sites, eight models")
    return curves


animation = FuncAnimation(fig, draw, frames=len(rounds), interval=700)
plt.show()
