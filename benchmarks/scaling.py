"""Time fits of many sites on the ranks of an MPI program, fit a cost model to the times, and draw them.

mpiexec -n 2 python benchmarks/scaling.py run --sites 1000 --features 20 --out benchmarks/results/scaling.jsonl
python benchmarks/scaling.py model --figures benchmarks/results/scaling.jsonl
python benchmarks/scaling.py picture --figures benchmarks/results/scaling.jsonl --out docs/many-ranks.png

Every fit is of random 4-regular graphs with plain features, sigma 0.5, alpha 1e-6, consensus 1, tol 1e-6, without a
shared or a local part. The model is of CPU seconds of the rank that used most, because the ranks of a test may share
cores. Fits of half a million features and more are not in the fit of the model: they check it.
"""

import argparse
import json
import os
import resource
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
from scipy.optimize import nnls

DEGREE = 4
TERMS = ("a site", "a site, exchange", "a site, exchange, feature^2", "a site, row, feature^2", "a site of all")
DIAMETER = 12.8 / 100_000**2  # seconds of the root for each pair of sites, in a random 4-regular graph
LARGEST_EXACT = 150_000  # sites of such a graph whose diameter is not bounded but found


def run(arguments: argparse.Namespace) -> None:
    from dekrr import DeKRRRegressor
    from dekrr.networks.local import LocalNetwork
    from dekrr.networks.mpi import MPINetwork

    network = MPINetwork(gather=False)
    if arguments.local and network.n_ranks > 1:
        raise SystemExit("--local is for one process: start it without mpiexec")
    n_sites, n_rows = arguments.sites, arguments.rows
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(n_rows * n_sites, 5))
    y, sites = np.sin(3 * X.sum(axis=1)), np.repeat(np.arange(n_sites), n_rows)
    graph = nx.random_regular_graph(DEGREE, n_sites, seed=0)
    parts = {"shared": None, "local": None, "column_scales": None}
    settings: dict[str, Any] = {name: None for name in parts if name in DeKRRRegressor().get_params()}
    settings["store_sums"] = arguments.keep_sums
    regressor = DeKRRRegressor(
        n_features=arguments.features,
        features="plain",
        sigma=0.5,
        alpha=1e-6,
        consensus=1.0,
        tol=1e-6,
        scale=None,
        random_state=0,
        topology=graph,
        network=partial(LocalNetwork, n_threads=1) if arguments.local else network,
        **settings,
    )
    latency, bandwidth = link(network)
    network.share(b"")
    with Memory() as memory:
        cpu, wall = time.process_time(), time.perf_counter()
        regressor.fit(X, y, sites=sites)
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    here = set(network.sites_here({site: list(graph[site]) for site in range(n_sites)}))
    traffic = regressor.traffic_
    crossing = sum(size for (_, receiver), size in traffic.bytes.items() if receiver not in here)
    exchanges = max(traffic.messages.values())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    own = [cpu, wall, float(peak), float(crossing), float(len(here)), float(memory.most)]
    all_ranks = np.array([json.loads(data) for data in network.share(json.dumps(own).encode())])
    if network.rank:
        return
    figure = {
        "sites": n_sites,
        "features": arguments.features,
        "rows": n_rows,
        "ranks": network.n_ranks,
        "rounds": regressor.n_rounds_,
        "exchanges": exchanges,
        "cpu": all_ranks[:, 0].max(),
        "cpu of all ranks": all_ranks[:, 0].sum(),
        "wall": all_ranks[:, 1].max(),
        "peak bytes of all ranks": all_ranks[:, 2].sum(),
        "peak PSS of all ranks": all_ranks[:, 5].sum(),
        "bytes between ranks": all_ranks[:, 3].sum(),
        "most sites of a rank": all_ranks[:, 4].max(),
        "latency": latency,
        "bandwidth": bandwidth,
        "network": "local, one thread" if arguments.local else "mpi",
        "keeps sums": arguments.keep_sums,
        "niceness": os.nice(0),
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
    }
    print(json.dumps(figure))
    if arguments.out:
        with arguments.out.open("a") as file:
            file.write(json.dumps(figure) + "\n")


class Memory:
    """The largest proportional set size of this process while a block runs, looked at every few seconds."""

    def __init__(self, every: float = 3.0) -> None:
        self._every = every
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.most = 0

    def __enter__(self) -> "Memory":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        is_over = False
        while not is_over:
            is_over = self._over.wait(self._every)
            lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
            self.most = max(self.most, next(1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:")))


def link(network: Any) -> tuple[float, float]:
    """Return the seconds of a short message and the bytes per second of a long one, between ranks 0 and 1."""
    comm = network.comm
    if network.n_ranks == 1:
        return 0.0, float("inf")
    times = []
    for size, repeats in ((8, 200), (1 << 24, 4)):
        data, best = bytearray(size), np.inf
        for _ in range(5):
            comm.Barrier()
            start = time.perf_counter()
            for _ in range(repeats):
                if network.rank == 0:
                    comm.Send(data, dest=1)
                    comm.Recv(data, source=1)
                elif network.rank == 1:
                    comm.Recv(data, source=0)
                    comm.Send(data, dest=0)
            best = min(best, (time.perf_counter() - start) / (2 * repeats))
        times.append(best)
    return times[0], (1 << 24) / times[1]


def terms(figure: dict[str, Any]) -> list[float]:
    """Return what a rank does: by site, exchange, feature and row of its own, and for every site of the graph."""
    own, size = figure["most sites of a rank"], figure["features"]
    return [
        own,
        own * figure["exchanges"],
        own * figure["exchanges"] * size**2 * (1 + DEGREE),
        own * figure["rows"] * size**2 * (1 + 2 * DEGREE),
        figure["sites"],
    ]


def computing(figure: dict[str, Any], costs: np.ndarray) -> float:
    """Return the predicted CPU seconds of a rank: its part, and the diameter at one of them, which is timed alone."""
    root = DIAMETER * figure["sites"] ** 2 if figure["sites"] <= LARGEST_EXACT else 0.0
    return float(np.array(terms(figure)) @ costs) + root


def seconds(figure: dict[str, Any], costs: np.ndarray) -> float:
    """Return the predicted seconds of a fit: computing, and the messages between ranks."""
    n_peers = min(figure["ranks"] - 1, 64)
    waits = figure["exchanges"] * n_peers * figure["latency"]
    return computing(figure, costs) + waits + figure["bytes between ranks"] / figure["ranks"] / figure["bandwidth"]


def read(path: Path) -> list[dict[str, Any]]:
    """Return the figures of fits on ranks."""
    figures = [json.loads(line) for line in path.read_text().splitlines()]
    return [figure for figure in figures if figure.get("network", "mpi") == "mpi"]


def is_check(figure: dict[str, Any]) -> bool:
    """Return whether a figure checks the model, and is not in its fit."""
    return bool(figure["sites"] * figure["features"] >= 500_000)


def costs_of(figures: list[dict[str, Any]]) -> np.ndarray:
    """Return the costs of all terms in seconds, none below 0, that have the smallest relative errors."""
    known = [figure for figure in figures if not is_check(figure)]
    measured = np.array([figure["cpu"] for figure in known])
    alone = np.array([computing(figure, np.zeros(len(TERMS))) for figure in known])
    costs, _ = nnls(np.array([terms(figure) for figure in known]) / measured[:, None], 1 - alone / measured)
    return np.asarray(costs)


def model(arguments: argparse.Namespace) -> None:
    figures = read(arguments.figures)
    costs = costs_of(figures)
    for name, cost in zip(TERMS, costs, strict=True):
        print(f"{name}: {cost:.3g} s")
    print("\n| sites | D, rows a site | ranks | seconds | CPU seconds of a rank | the model | GB of all ranks |")
    print("|---|---|---|---|---|---|---|")
    for figure in sorted(figures, key=lambda each: (is_check(each), each["features"], each["sites"], each["ranks"])):
        predicted = computing(figure, costs)
        error = f"{predicted:.2f} ({predicted / figure['cpu'] - 1:+.0%}{', a check' * is_check(figure)})"
        shape = f"{figure['sites']:,} | {figure['features']}, {figure['rows']} | {figure['ranks']}"
        memory = figure["peak bytes of all ranks"] / 1e9
        print(f"| {shape} | {figure['wall']:.1f} | {figure['cpu']:.2f} | {error} | {memory:.2f} |")
    print("\npredictions, with 2 microseconds and 10 GB/s between ranks")
    for n_sites, size, n_rows, n_ranks, exchanges in ((10_000, 100, 200, 64, 67), (1_000_000, 20, 30, 1000, 110)):
        bytes_of_edge = 8 * (size * (size + 1) / 2 + size**2) + exchanges * (8 * size + 40)
        figure = {
            "sites": n_sites,
            "features": size,
            "rows": n_rows,
            "ranks": n_ranks,
            "exchanges": exchanges,
            "most sites of a rank": 1.03 * n_sites / n_ranks,
            "latency": 2e-6,
            "bandwidth": 1e10,
            "bytes between ranks": 0.9 * DEGREE * n_sites * bytes_of_edge,
        }
        whole = costs[-1] * n_sites
        print(f"{n_sites} sites, D = {size}, {n_ranks} ranks: {seconds(figure, costs):.1f} s, the graph {whole:.1f} s")


def picture(arguments: argparse.Namespace) -> None:
    """Draw the seconds of fits on two ranks against the number of sites, and what the model says."""
    from matplotlib.figure import Figure

    figures = [figure for figure in read(arguments.figures) if figure["ranks"] == 2]
    costs = costs_of(read(arguments.figures))
    drawn = Figure(figsize=(5.4, 3.6), layout="constrained")
    axes = drawn.subplots()
    for size, colour in ((20, "tab:blue"), (100, "tab:orange"), (200, "tab:green")):
        own = sorted((each for each in figures if each["features"] == size), key=lambda each: each["sites"])
        sites = [each["sites"] for each in own]
        axes.loglog(sites, [each["wall"] for each in own], "o", color=colour, label=f"D = {size}")
        axes.loglog(sites, [seconds(each, costs) for each in own], ":", color=colour)
    axes.plot([], [], ":", color="grey", label="the model")
    axes.set(xlabel="sites", ylabel="seconds", title="Fits on two ranks, random 4-regular graphs")
    axes.legend()
    axes.grid(alpha=0.3)
    drawn.savefig(arguments.out, dpi=150)
    print(f"picture: {arguments.out}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    timing = commands.add_parser("run")
    timing.add_argument("--sites", type=int, default=1000)
    timing.add_argument("--features", type=int, default=20)
    timing.add_argument("--rows", type=int, default=30)
    timing.add_argument("--local", action="store_true", help="one process without MPI, and one thread")
    timing.add_argument("--keep-sums", action="store_true", help="keep the sums, for partial_fit")
    timing.add_argument("--out", type=Path)
    timing.set_defaults(do=run)
    fitting = commands.add_parser("model")
    fitting.add_argument("--figures", type=Path, default=Path("benchmarks/results/scaling.jsonl"))
    fitting.set_defaults(do=model)
    drawing = commands.add_parser("picture")
    drawing.add_argument("--figures", type=Path, default=Path("benchmarks/results/scaling.jsonl"))
    drawing.add_argument("--out", type=Path, default=Path("docs/many-ranks.png"))
    drawing.set_defaults(do=picture)
    arguments = parser.parse_args()
    arguments.do(arguments)


if __name__ == "__main__":
    main()
