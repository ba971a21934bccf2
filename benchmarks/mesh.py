"""What a round over the mesh costs, against a bare Zenoh exchange of the same bytes by the same processes.

    python benchmarks/mesh.py [--sites 2 10 50] [--rounds 300] [--repeats 3] [--no-masks]

Every site is a process with mutual TLS on loopback, four neighbours in a ring and 100 features. In each repeat the
same processes do three things one after another:

- bare: exchange frames of the same size with nothing but Zenoh (same configuration, same access control), before and
  after the other two, of which the mean counts: other work on the machine comes and goes;
- carried: exchange the same messages as `dekrr node` does, with sessions, checks, checkpoint and record, but
  without the solver;
- round: run DeKRR as `dekrr node` does.

A round's time is the median over sites of (last round's time - 20th round's time) / rounds between. Its CPU time is
that of all processes between those moments, user and system, divided by rounds: on a busy machine the steadier figure.
The last line has the least of each over all repeats: what it costs when nothing else takes the cores' caches.

    python benchmarks/mesh.py --fits [--sites 5 10] [--repeats 3]

compares whole fits with masks and without, with a deployment's defaults otherwise: quantiles, greedy features, rounds
to the default tolerance. A fit's time is that of the slowest site from the moment when all are ready, its CPU time that
of all sites, its bytes those that all sites put on the wire. Both kinds take turns.
"""

import argparse
import multiprocessing
import os
import queue
import statistics
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")  # as `dekrr up` does

import msgspec
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from dekrr.features import FeatureMap
from dekrr.mesh.addresses import Ways, ways_of
from dekrr.mesh.carrier import Carrier
from dekrr.mesh.files import read_site
from dekrr.mesh.node import Node
from dekrr.mesh.record import RECORD, Record
from dekrr.mesh.session.events import Exchanged
from dekrr.messages import Coefficients, encode, expect
from dekrr.protocols.roll_call import roll_call
from dekrr.protocols.run import Outcome
from dekrr.protocols.site import Site
from dekrr.scaling import UNSCALED
from dekrr.tables.rows import ArrayRows
from meshes import Mesh

D = 100
SETTLED = 20  # rounds; before, some sites may still be at their sums, and others wait for them
PROGRESS = (0.0,) * 3  # two or four numbers in a run of ten sites
ROWS = 600  # a site sends sums of 2 D features over no fewer than 3 D rows that do not stand alone


class Watch:
    """Seconds of the clock and of this process's threads since it was made, by the round."""

    def __init__(self):
        self._start = time.perf_counter(), time.process_time()

    def per_round(self, rounds):
        """Return (seconds, CPU seconds) of one of `rounds` rounds."""
        return (time.perf_counter() - self._start[0]) / rounds, (time.process_time() - self._start[1]) / rounds


def bare_rounds(link, rounds, barrier, n_ready):
    """Exchange frames with the neighbours, and nothing else; return the seconds of a round, by the clock and of CPU."""
    body = encode(Coefficients(np.zeros(D), PROGRESS))
    frame = msgspec.msgpack.encode(["data", "bare", link.name, (), 0, msgspec.Raw(body)])
    with closing(Carrier(Ways(link))) as carrier, carrier.open("bare", lambda *_: None) as channel:
        heard = set()
        while n_ready.value < barrier.parties:  # until every link is up
            for neighbor in link.neighbors:
                channel.send(neighbor, b"ready")
            time.sleep(0.05)
            while len(heard) < len(link.neighbors) and (arrival := channel.try_recv()) is not None:
                heard.add(arrival[0])
                if len(heard) == len(link.neighbors):
                    with n_ready.get_lock():
                        n_ready.value += 1
        barrier.wait()
        time.sleep(0.5)
        while channel.try_recv() is not None:
            pass
        barrier.wait()
        counts = dict.fromkeys(link.neighbors, 0)
        watch = Watch()
        for number in range(1, rounds + 1):
            for neighbor in link.neighbors:
                channel.send(neighbor, frame)
            while min(counts.values()) < number:
                if (arrival := channel.recv()) is not None:
                    counts[arrival[0]] += 1
        costs = watch.per_round(rounds)
        barrier.wait()
    return costs


def without_solver(node, neighbors):
    """Send what DeKRR's rounds send, and compute nothing."""
    site = Site(node.config.site, neighbors, ArrayRows(np.zeros((ROWS, 2)), np.zeros(ROWS)))
    roster = yield from roll_call(site)
    for _ in range(node.config.method_settings().max_rounds):
        expect((yield site.to_all(Coefficients(np.zeros(D), PROGRESS))), Coefficients)
    nothing = FeatureMap.unweighted(np.zeros((2, D)), np.zeros(D))
    return Outcome(roster, UNSCALED, nothing, np.zeros(D), objective_shares=[0.0])


def mesh_rounds(path, *, solver):
    """Take part in a run as `dekrr node` does; return the seconds of a round, by the clock and of CPU."""
    node = Node(read_site(path), path.parent, force=True)
    if not solver:
        node.session.course._make = lambda neighbors, _: without_solver(node, neighbors)
    last = node.config.method_settings().max_rounds
    costs = []

    def measure(event):
        if isinstance(event, Exchanged) and event.round == SETTLED:
            costs.append(Watch())
        elif isinstance(event, Exchanged) and event.round == last and len(costs) == 1:
            costs.append(costs[0].per_round(last - SETTLED))

    node.listeners += [Record(path.parent / RECORD), measure]
    node.run()
    return costs[1]


def site(path, rounds, barrier, n_ready, results):
    """Be one site: the bare exchange, the carried one, the run, and the bare exchange again."""
    link = ways_of(read_site(path), path.parent).direct
    before = bare_rounds(link, rounds, barrier, n_ready[0])
    barrier.wait()
    carried = mesh_rounds(path, solver=False)
    barrier.wait()
    full = mesh_rounds(path, solver=True)
    barrier.wait()
    after = bare_rounds(link, rounds, barrier, n_ready[1])
    bare = tuple(statistics.mean(both) for both in zip(before, after, strict=True))
    results.put((bare, carried, full))


def measure(n_sites, rounds, masks=True):
    """Return the milliseconds of a bare, a carried and a full round, then those of CPU.

    The clock's are medians over sites, those of CPU sums over sites.
    """
    context = multiprocessing.get_context("forkserver")
    with tempfile.TemporaryDirectory() as folder:
        settings = {"n_features": D, "tol": 0.0, "max_rounds": rounds, "masks": masks}
        mesh = Mesh(folder, n_sites, settings=settings, rows=ROWS, start_patience=300.0)
        barrier, results = context.Barrier(n_sites), context.Queue()
        n_ready = context.Value("i"), context.Value("i")
        paths = [mesh.home(name) / "site.toml" for name in mesh.names]
        processes = [context.Process(target=site, args=(path, rounds, barrier, n_ready, results)) for path in paths]
        for process in processes:
            process.start()
        measured = [collect(results, processes) for _ in processes]
        for process in processes:
            process.join()
    columns = list(zip(*measured, strict=True))
    clock = [1e3 * statistics.median(seconds for seconds, _ in column) for column in columns]
    return clock + [1e3 * sum(cpu for _, cpu in column) for column in columns]


def whole_fit(path, barrier, results):
    """Be one site of a fit; put its seconds, CPU seconds and bytes on the queue."""
    node = Node(read_site(path), path.parent, force=True)
    node.listeners += [Record(path.parent / RECORD)]
    barrier.wait()
    watch = Watch()
    node.run()
    results.put((*watch.per_round(1), node.network.wire_bytes))


def measure_fit(n_sites, masks):
    """Return the seconds, CPU seconds and megabytes of a whole fit."""
    context = multiprocessing.get_context("forkserver")
    with tempfile.TemporaryDirectory() as folder:
        mesh = Mesh(folder, n_sites, settings={"n_features": D, "masks": masks}, rows=ROWS, start_patience=300.0)
        barrier, results = context.Barrier(n_sites), context.Queue()
        paths = [mesh.home(name) / "site.toml" for name in mesh.names]
        processes = [context.Process(target=whole_fit, args=(path, barrier, results)) for path in paths]
        for process in processes:
            process.start()
        measured = [collect(results, processes) for _ in processes]
        for process in processes:
            process.join()
    seconds, cpu, n_bytes = zip(*measured, strict=True)
    return max(seconds), sum(cpu), sum(n_bytes) / 1e6


def compare_fits(sites, repeats):
    """Print what whole fits cost with masks and without."""
    print(f"medians of {repeats} fits each; ratios of masks to none within a repeat, with their range")
    print(f"{'sites':>5} {'':>12} {'no masks':>9} {'masks':>9} {'ratio':>19}")
    for n_sites in sites:
        pairs = [[measure_fit(n_sites, masks) for masks in (False, True)] for _ in range(repeats)]
        for i, name in enumerate(("seconds", "CPU seconds", "megabytes")):
            plain, masked = ([pair[kind][i] for pair in pairs] for kind in (0, 1))
            ratio = spread([one / other for one, other in zip(masked, plain, strict=True)])
            medians = statistics.median(plain), statistics.median(masked)
            print(f"{n_sites:5d} {name:>12} {medians[0]:9.2f} {medians[1]:9.2f} {ratio:>19}", flush=True)


def collect(results, processes):
    """Return the next site's result; end all when one of them fails."""
    while True:
        try:
            return results.get(timeout=1.0)
        except queue.Empty:
            if any(process.exitcode for process in processes):
                for process in processes:
                    process.kill()
                sys.exit("a site failed")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sites", type=int, nargs="+", default=[2, 10, 50])
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--masks", action=argparse.BooleanOptionalAction, default=True, help="mask sums")
    parser.add_argument("--fits", action="store_true", help="compare whole fits with masks and without")
    arguments = parser.parse_args()
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["dekrr.mesh.node", "dekrr.mesh.commands.setting_up", "pandas", "pyarrow.parquet"])
    if arguments.fits:
        compare_fits(arguments.sites, arguments.repeats)
        return
    print(f"milliseconds, medians of {arguments.repeats} repeats; ratios to bare with their range")
    print(f"{'sites':>5} {'of':>5} {'bare':>7} {'carried':>7} {'ratio':>19} {'round':>7} {'ratio':>19}")
    for n_sites in arguments.sites:
        repeats = [measure(n_sites, arguments.rounds, arguments.masks) for _ in range(arguments.repeats)]
        for of, first in (("clock", 0), ("CPU", 3)):
            columns = [[each[first + i] for each in repeats] for i in range(3)]
            ratios = [[each[first + i] / each[first] for each in repeats] for i in (1, 2)]
            show(n_sites, of, [statistics.median(column) for column in columns], [spread(each) for each in ratios])
        least = [min(each[i] for each in repeats) for i in range(3)]
        show(n_sites, "least", least, [f"{least[i] / least[0]:.2f}" for i in (1, 2)])


def show(n_sites, of, milliseconds, ratios):
    bare, carried, full = milliseconds
    print(
        f"{n_sites:5d} {of:>5} {bare:7.2f} {carried:7.2f} {ratios[0]:>19} {full:7.2f} {ratios[1]:>19}",
        flush=True,
    )


def spread(values):
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


if __name__ == "__main__":
    main()
