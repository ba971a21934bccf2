"""Pictures of a fit. Every function draws into matplotlib axes and returns them; matplotlib is in `dekrr[plot]`.

Examples
--------
>>> from dekrr import DeKRRRegressor, plot
>>> from dekrr.data import make_sites
>>> X, y, sites = make_sites(n_sites=4, random_state=0)
>>> regressor = DeKRRRegressor(n_features=10, sigma=0.3, alpha=1e-4, consensus=1.0, random_state=0)
>>> axes = plot.convergence(regressor.fit(X, y, sites=sites))
>>> axes.get_xlabel()
'round'
"""

import sys
from typing import Any

import numpy as np

from .errors import DataError
from .labels import factorise, places_of
from .metrics import rse

__all__ = ["comparison", "convergence", "predicted", "scales", "sites", "traffic"]


_MOST_NAMES = 30  # of sites on an axis


def _axes(axes: Any) -> Any:
    if axes is not None:
        return axes
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError("pictures need matplotlib: pip install 'dekrr[plot]'") from None
    if "matplotlib.pyplot" in sys.modules:
        import matplotlib.pyplot as plt

        return plt.subplots(layout="constrained")[1]
    return Figure(layout="constrained").subplots()


def sites(regressor: Any, X: Any, y: Any, sites: Any, *, ax: Any = None) -> Any:
    """Draw the graph of sites, each in the colour of its own model's error on its rows.

    Parameters
    ----------
    regressor : fitted estimator
    X, y, sites
        Rows to score, as `regressor.predict` and `regressor.rse` take them in arrays or frames.
    ax : matplotlib axes, optional
    """
    import networkx as nx

    axes = _axes(ax)
    errors = _errors(regressor, X, y, sites)
    graph = regressor.graph_
    places = nx.circular_layout(graph)
    colours = [errors.get(site, np.nan) for site in graph]
    nx.draw_networkx_edges(graph, places, ax=axes, edge_color="0.8")
    nodes = nx.draw_networkx_nodes(graph, places, ax=axes, node_color=colours, cmap="viridis_r", node_size=500)
    for site, (x, height) in places.items():
        axes.annotate(  # below the node, whose colour is to be seen
            str(site), (x, height), xytext=(0, -14), textcoords="offset points", ha="center", va="top", fontsize=8
        )
    axes.figure.colorbar(nodes, ax=axes, label="RSE of the site's own model on its rows", shrink=0.8)
    axes.set(title="Sites and their errors")
    axes.margins(0.15)
    axes.set_axis_off()
    return axes


def _named(regressor: Any, X: Any, y: Any, sites: Any) -> tuple[np.ndarray, np.ndarray, Any]:
    """Return the responses, the predictions and the sites of rows."""
    truth = y if not isinstance(y, str) else X[y]
    labels = sites if not isinstance(sites, str) else X[sites]
    return np.asarray(truth, dtype=float), np.asarray(regressor.predict(X, sites=sites)), labels


def _errors(regressor: Any, X: Any, y: Any, sites: Any) -> dict[Any, float]:
    truth, predicted, given = _named(regressor, X, y, sites)
    labels, index = factorise(given, len(truth))
    places = places_of(index, len(labels))
    return {label: rse(truth[own], predicted[own]) for label, own in zip(labels, places, strict=True)}


def comparison(frame: Any, *, ax: Any = None) -> Any:
    """Draw errors alone, together and pooled: by site, or where sites are many, together against alone.

    Parameters
    ----------
    frame : frame
        What `dekrr.compare` returns.
    """
    axes, errors, measure = _axes(ax), frame.to_dict(), frame.attrs.get("measure", "error")
    shown = [site for site in errors["alone"] if site != "all" and np.isfinite(errors["alone"][site])]
    shown.sort(key=lambda site: errors["together"][site] - errors["alone"][site], reverse=True)
    alone, together, pooled = (
        np.array([errors[name][site] for site in shown]) for name in ("alone", "together", "pooled")
    )
    if len(shown) <= _MOST_NAMES:
        places = np.arange(len(shown))
        axes.hlines(places, np.minimum(alone, together), np.maximum(alone, together), color="0.8")
        axes.scatter(pooled, places, marker="|", color="0.5", label="pooled")
        axes.scatter(alone, places, facecolor="none", edgecolor="C1", label="alone")
        axes.scatter(together, places, color="C0", label="together")
        axes.set_yticks(places, [str(site) for site in shown])
        axes.set(xlabel=f"{measure} of the site's own rows, held out")
    else:
        axes.scatter(alone, pooled, s=14, marker="s", facecolor="none", edgecolor="0.5", label="pooled")
        axes.scatter(alone, together, s=16, color="C0", label="together")
        ends = [min(alone.min(), together.min()), max(alone.max(), together.max())]
        axes.plot(ends, ends, color="C1", linewidth=1, label="alone: sites below the line gain")
        axes.set(xlabel=f"{measure} alone", ylabel=f"{measure} together, and pooled", xscale="log", yscale="log")
    axes.legend()
    axes.set(title=frame.attrs.get("verdict", "").split(".")[0])
    return axes


def convergence(regressor: Any, *, ax: Any = None) -> Any:
    """Draw how the objective falls, above its last value."""
    axes = _axes(ax)
    objective = np.asarray(regressor.history_["objective"])
    gap = objective - objective.min()
    shown = gap > 0
    axes.semilogy(np.asarray(regressor.history_["round"])[shown], gap[shown] / max(gap[0], 1e-300))
    axes.set(xlabel="round", ylabel="objective above its least, relative", title="Convergence")
    axes.grid(alpha=0.3)
    return axes


def predicted(regressor: Any, X: Any, y: Any, sites: Any, *, ax: Any = None) -> Any:
    """Draw predictions by each row's own site against the truth."""
    axes = _axes(ax)
    truth, prediction, _ = _named(regressor, X, y, sites)
    axes.scatter(truth, prediction, s=4, alpha=0.4, linewidths=0)
    ends = [min(truth.min(), prediction.min()), max(truth.max(), prediction.max())]
    axes.plot(ends, ends, color="0.5", linewidth=1)
    axes.set(xlabel="true", ylabel="predicted", title=f"Own RSE {rse(truth, prediction):.3f}")
    return axes


def scales(regressor: Any, *, ax: Any = None) -> Any:
    """Draw the column scales that all sites agreed on: how fast the response changes along each column.

    They are not importances. A column of words becomes several columns of 0 and 1, and the largest of their scales is
    drawn. For importances, see `sklearn.inspection.permutation_importance`, which takes any site's model.
    """
    values = getattr(regressor, "column_scales_", None)
    if values is None:
        raise DataError('the fit has no column scales; fit with column_scales="auto"')
    names = list(getattr(regressor, "feature_names_in_", [f"column {j}" for j in range(len(values))]))
    axes = _axes(ax)
    order = np.argsort(values)
    axes.barh([str(names[j]) for j in order], np.asarray(values)[order])
    axes.set(xlabel="scale", title="How fast the response changes along a column")
    return axes


def traffic(regressor: Any, *, ax: Any = None) -> Any:
    """Draw the bytes over each directed edge, as a matrix of senders and receivers."""
    axes = _axes(ax)
    names = list(regressor.sites_)
    sent = regressor.traffic_.bytes
    matrix = np.array([[sent.get((a, b), np.nan) for b in names] for a in names], dtype=float) / 1e3
    image = axes.imshow(matrix)
    words = [str(name) for name in names]
    axes.set_xticks(range(len(names)), words, rotation=90)
    axes.set_yticks(range(len(names)), words)
    axes.set(xlabel="receiver", ylabel="sender", title="Traffic")
    axes.figure.colorbar(image, ax=axes, label="kB", shrink=0.8)
    return axes
