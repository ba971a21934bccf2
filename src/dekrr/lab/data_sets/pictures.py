"""A picture of the rows of every site."""

from typing import Any

import numpy as np

from ...labels import factorise, names_of
from ...types import Array


def draw_sites(sites: Any, X: Array, y: Array, axes: Any = None) -> Any:
    """Draw, for every site, the distributions of y and |x| over its rows, and the number of rows.

    Parameters
    ----------
    sites : array-like of shape (n_rows,)
    X : ndarray of shape (n_rows, n_columns)
    y : ndarray of shape (n_rows,)
    axes : sequence of three matplotlib Axes, optional
        By default new axes in a new figure.

    Returns
    -------
    matplotlib Figure
    """
    labels, index = factorise(sites, len(y))
    names = names_of(labels)
    if axes is None:
        import matplotlib.pyplot as plt

        _, axes = plt.subplots(1, 3, figsize=(12, 3.4), layout="constrained")
    norms = np.linalg.norm(X, axis=1)
    for ax, values, title in ((axes[0], y, "y"), (axes[1], norms, "|x|")):
        ax.boxplot([values[index == j] for j in range(len(labels))], showfliers=False, whis=(5, 95))
        ax.set(title=f"{title} at each site", xlabel="site")
        ax.set_xticks(range(1, len(names) + 1), names, rotation=90 if max(map(len, names)) > 3 else 0)
    axes[2].bar(range(1, len(names) + 1), np.bincount(index), color="0.5")
    axes[2].set(title="rows", xlabel="site")
    axes[2].set_xticks(range(1, len(names) + 1), names, rotation=90 if max(map(len, names)) > 3 else 0)
    return axes[0].figure
