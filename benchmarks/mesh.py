"""What a round over the mesh costs, against a bare Zenoh exchange of the same bytes by the same processes.

    python benchmarks/mesh.py [--sites 2 10 50] [--rounds 300] [--repeats 3]

Every site is a process with mutual TLS on loopback, four neighbours in a ring and 100 features. In each repeat the
processes first exchange as many frames of the same size with nothing but Zenoh (same configuration, same access
control), then run DeKRR as `dekrr node` does, checkpoint and record included. A round's time is the median over
sites of (last round's time - first round's time) / rounds. No row of data matters here.
"""

import argparse
import multiprocessing
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from dekrr.messages import Coefficients, encode
from dekrr.networks.config import read_site
from dekrr.networks.mesh import MeshNetwork
from dekrr.networks.node import RECORD, Node, Record, link_of
from dekrr.networks.session import Data, _encoder
from meshes import Mesh

D = 100


def bare_rounds(link, rounds, barrier, n_ready):
    """Exchange frames with the neighbours, and nothing else; return the seconds of a round."""
    network = MeshNetwork(link)
    body = encode(Coefficients(np.zeros(D), (0.0, 0.0)))
    frame = _encoder.encode(Data("bare", link.name, (), 0, body))
    with network.open("bare") as (arrivals, speak):
        heard = set()
        while n_ready.value < barrier.parties:  # until every link is up
            for publisher in speak.values():
                publisher.put(b"ready")
            time.sleep(0.05)
            while len(heard) < len(link.neighbors) and (sample := arrivals.try_recv()) is not None:
                heard |= {sender_of(sample)} & set(link.neighbors)
                if len(heard) == len(link.neighbors):
                    with n_ready.get_lock():
                        n_ready.value += 1
        barrier.wait()
        time.sleep(0.5)
        while arrivals.try_recv() is not None:
            pass
        barrier.wait()
        counts = dict.fromkeys(link.neighbors, 0)
        start = time.perf_counter()
        for number in range(1, rounds + 1):
            for publisher in speak.values():
                publisher.put(frame)
            while min(counts.values()) < number:
                sample = arrivals.recv()
                sender = sender_of(sample)
                sample.payload.to_bytes()
                if sender in counts:
                    counts[sender] += 1
        seconds = (time.perf_counter() - start) / rounds
        barrier.wait()
    return seconds


def sender_of(sample):
    return str(sample.key_expr).split("/")[-2]


def mesh_rounds(path):
    """Take part in a run as `dekrr node` does; return the seconds of a round."""
    node = Node(read_site(path), path.parent, force=True)
    times = {}
    node.listeners.append(Record(path.parent / RECORD, node.session))
    node.listeners.append(lambda event, _: times.setdefault(node.session.rounds, time.perf_counter()))
    node.run()
    times.pop(0, None)
    first, last = min(times), max(times)
    return (times[last] - times[first]) / (last - first)


def site(path, rounds, barrier, n_ready, results):
    """Be one site: the bare exchange, then the run."""
    link = link_of(read_site(path), path.parent, insecure=False)
    bare = bare_rounds(link, rounds, barrier, n_ready)
    barrier.wait()
    results.put((bare, mesh_rounds(path)))


def measure(n_sites, rounds):
    """Return the milliseconds of a bare round and of a mesh round, medians over sites."""
    context = multiprocessing.get_context("forkserver")
    with tempfile.TemporaryDirectory() as folder:
        settings = {"n_features": D, "tol": 0.0, "max_rounds": rounds}
        mesh = Mesh(folder, n_sites, settings=settings, rows=60, start_patience=300.0)
        barrier, n_ready, results = context.Barrier(n_sites), context.Value("i"), context.Queue()
        paths = [mesh.home(name) / "site.toml" for name in mesh.names]
        processes = [context.Process(target=site, args=(path, rounds, barrier, n_ready, results)) for path in paths]
        for process in processes:
            process.start()
        measured = [results.get(timeout=600) for _ in processes]
        for process in processes:
            process.join()
    return tuple(1e3 * statistics.median(column) for column in zip(*measured, strict=True))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sites", type=int, nargs="+", default=[2, 10, 50])
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["dekrr.networks.node", "dekrr.cli.network", "pandas", "pyarrow.parquet"])
    print(
        f"{'sites':>5} {'bare ms':>9} {'mesh ms':>9} {'ratio':>6}   (median and range of {arguments.repeats} repeats)"
    )
    for n_sites in arguments.sites:
        pairs = [measure(n_sites, arguments.rounds) for _ in range(arguments.repeats)]
        bare, mesh = (statistics.median(column) for column in zip(*pairs, strict=True))
        ratios = sorted(mesh / bare for bare, mesh in pairs)
        spread = f"{statistics.median(ratios):6.2f}   {ratios[0]:.2f} to {ratios[-1]:.2f}"
        print(f"{n_sites:5d} {bare:9.2f} {mesh:9.2f} {spread}", flush=True)


if __name__ == "__main__":
    main()
