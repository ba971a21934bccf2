"""What a graph of sites costs: exchanges and rounds of fits; sums and maxima over all sites, by a tree or by gossip.

python benchmarks/graphs.py --out benchmarks/results/graphs.json

The fits are of the settings of benchmarks/scaling.py, with 20 features and 30 rows a site. Gossip is simulated: a site
that gossips talks to one neighbour in an exchange, picked at random, and both then know what either knew. Averages
are taken with Metropolis weights over all edges at once, plainly and by Chebyshev's iteration with the exact interval
of eigenvalues, which sites would not know. A tree gives sums that are exact.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
from scipy.sparse import csr_array, diags_array
from scipy.sparse.linalg import eigsh

ACCURACY = 1e-6
MOST = 100_000  # exchanges


def graphs(side: int) -> dict[str, Any]:
    """Return graphs of side^2 sites."""
    n_sites = side**2
    margulis = nx.Graph(nx.convert_node_labels_to_integers(nx.margulis_gabber_galil_graph(side)))
    margulis.remove_edges_from(list(nx.selfloop_edges(margulis)))
    return {
        "ring, 4 neighbours": nx.circulant_graph(n_sites, [1, 2]),
        "torus": nx.convert_node_labels_to_integers(nx.grid_2d_graph(side, side, periodic=True)),
        "small world, 4 neighbours": nx.connected_watts_strogatz_graph(n_sites, 4, 0.1, seed=0),
        "random regular, 4 neighbours": nx.random_regular_graph(4, n_sites, seed=0),
        "random regular, 8 neighbours": nx.random_regular_graph(8, n_sites, seed=0),
        "Margulis, at most 8 neighbours": margulis,
    }


def fitted(graph: Any) -> dict[str, float]:
    """Fit sites on a graph; return rounds, exchanges, CPU seconds and the held-out error."""
    from dekrr import DeKRRRegressor

    n_sites, n_rows = len(graph), 30
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(n_rows * n_sites, 5))
    y, sites = np.sin(3 * X.sum(axis=1)) + 0.3 * rng.normal(size=len(X)), np.repeat(np.arange(n_sites), n_rows)
    regressor = DeKRRRegressor(
        n_features=20,
        features="plain",
        sigma=1.0,
        alpha=1e-6,
        consensus=1.0,
        tol=1e-6,
        max_rounds=5000,
        scale=None,
        random_state=0,
        topology=graph,
        shared=None,
        local=None,
        column_scales=None,
        store_sums=False,
    )
    start = time.process_time()
    regressor.fit(X, y, sites=sites)
    seconds = time.process_time() - start
    fresh = rng.uniform(size=(2000, 5))
    truth = np.sin(3 * fresh.sum(axis=1))
    errors = [regressor.models_[site].predict(fresh) - truth for site in range(0, n_sites, 10)]
    traffic = regressor.traffic_
    return {
        "rounds": regressor.n_rounds_,
        "exchanges": max(traffic.messages.values()),
        "cpu seconds": seconds,
        "kB a site": traffic.total_bytes / n_sites / 1e3,
        "error of a site on all rows": float(np.sqrt(np.mean(np.square(errors)))),
    }


def spread_by_gossip(graph: Any, rng: np.random.Generator) -> int:
    """Return the exchanges until every site knows the maximum, where each talks to one neighbour at a time."""
    around = [list(graph[site]) for site in range(len(graph))]
    knows = np.zeros(len(graph), dtype=bool)
    knows[0] = True
    exchanges = 0
    while not knows.all():
        partner = np.array([own[rng.integers(len(own))] for own in around])
        told = knows.copy()
        np.logical_or.at(told, partner, knows)
        knows = told | knows[partner]
        exchanges += 1
    return exchanges


def averaged(graph: Any, rng: np.random.Generator) -> tuple[int, int]:
    """Return the exchanges until all know an average to the accuracy: plainly, and by Chebyshev's iteration."""
    degrees = np.array([graph.degree[site] for site in range(len(graph))])
    one, other = np.array(graph.edges).T
    weights = 1 / (1 + np.maximum(degrees[one], degrees[other]))
    half = csr_array((weights, (one, other)), shape=(len(graph), len(graph)))
    mixing = half + half.T
    mixing = csr_array(mixing + diags_array(1 - np.asarray(mixing.sum(axis=1)).ravel()))
    values = rng.normal(size=len(graph))
    largest = eigsh(mixing, k=2, which="LA", return_eigenvectors=False)
    smallest = eigsh(mixing, k=1, which="SA", return_eigenvectors=False)
    radius = float(max(largest.min(), -smallest.min()))
    wanted = ACCURACY * np.abs(values - values.mean()).max()

    plain, now = 0, values
    while np.abs(now - values.mean()).max() > wanted and plain < MOST:
        now, plain = mixing @ now, plain + 1
    before, now, relaxation, fast = values, mixing @ values, 1.0, 1
    while np.abs(now - values.mean()).max() > wanted and fast < MOST:
        relaxation = 1 / (1 - radius**2 / 2) if fast == 1 else 1 / (1 - radius**2 * relaxation / 4)
        before, now, fast = now, relaxation * (mixing @ now - before) + before, fast + 1
    return plain, fast


def over_all_sites(graph: Any) -> dict[str, float]:
    """Return the exchanges of a maximum and of a sum over all sites."""
    rng = np.random.default_rng(0)
    height = max(nx.single_source_shortest_path_length(graph, 0).values())
    plain, fast = averaged(graph, rng)
    return {
        "diameter: a maximum by flooding": nx.diameter(graph),
        "a maximum or a sum by a tree": 2 * height,
        "a maximum by gossip": float(np.median([spread_by_gossip(graph, rng) for _ in range(5)])),
        f"an average to {ACCURACY:g}": plain,
        f"an average to {ACCURACY:g}, Chebyshev": fast,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--side", type=int, default=20, help="there are side^2 sites")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    figures = {}
    for name, graph in graphs(arguments.side).items():
        figures[name] = {"sites": len(graph), "edges": graph.number_of_edges()}
        figures[name] |= over_all_sites(graph) | fitted(graph)
        print(f"{name}: {json.dumps(figures[name])}", flush=True)
    if arguments.out:
        arguments.out.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
