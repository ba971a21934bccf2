"""
Your own kernel
===============

A kernel is a function and a way to draw frequencies. Sites prove to each other that their features come from it.
"""

import matplotlib.pyplot as plt
import numpy as np
from scipy.spatial.distance import cdist

from dekrr import DeKRRRegressor, Kernel
from dekrr.data import make_sites
from dekrr.settings import ALONE  # the agreed part alone, as in the paper


class Matern(Kernel):
    """The Matern kernel of smoothness 3/2: its frequencies follow Student's law with 3 degrees of freedom."""

    def __call__(self, X, Y):
        distances = np.sqrt(3) * cdist(X, Y) / self.sigma
        return (1 + distances) * np.exp(-distances)

    def draw_frequencies(self, n_columns, n_frequencies, rng):
        normal = rng.standard_normal((n_columns, n_frequencies))
        return normal / np.sqrt(rng.chisquare(3, n_frequencies) / 3) / self.sigma


# %%
# The random features of a kernel approximate it: compare the function with its estimate.
points = np.linspace(0, 3, 100)[:, None]
frequencies = Matern(sigma=1.0).draw_frequencies(1, 3000, np.random.default_rng(0))
estimate = np.cos((points - 0.0) @ frequencies).mean(axis=1)

X, y, stations = make_sites(random_state=0)
X_new, y_new, new_stations = make_sites(random_state=1)
errors = {}
for kernel in (Matern, "gaussian", "laplacian", "cauchy"):
    regressor = DeKRRRegressor(
        **ALONE,
        n_features=40,
        features="energy",
        kernel=kernel,
        sigma=0.5,
        alpha=1e-4,
        consensus=1.0,
        random_state=0,
        options={"verify_features": True},
    ).fit(X, y, sites=stations)
    errors[getattr(kernel, "__name__", kernel)] = regressor.rse(X_new, y_new, sites=new_stations)

fig, axes = plt.subplots(1, 2, figsize=(8.5, 3.2), layout="constrained")
axes[0].plot(points, Matern(sigma=1.0)(points, np.zeros((1, 1))), label="Matern 3/2")
axes[0].plot(points, estimate, "--", label="3,000 random features")
axes[0].set(xlabel="distance", ylabel="kernel")
axes[0].legend()
axes[1].bar(list(errors), list(errors.values()))
axes[1].set(ylabel="own RSE on new rows")
plt.show()
