"""What a site costs among many, by phase: time, bytes and memory of default fits of 50 rows a site.

    python benchmarks/many_sites.py 10 100 1000
    python benchmarks/many_sites.py --picture docs/many-sites-phases.png

Each number of sites has a process of its own, so that its memory is its own. The figures go to results/many_sites.json.
A phase begins when the first site enters it. What the second training takes, which intervals are made of, is one phase.
"""

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import time
import warnings
from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np

RESULTS = Path(__file__).parent / "results" / "many_sites.json"
ROWS = 50
AGREED = ("choosing features", "sums over rows", "rounds")


def resident():
    """Return the MB that this process has in memory."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))


class Phases:
    """CPU seconds, bytes and MB by phase of a fit that has this as a callback, and its `carried` as an observer."""

    def __init__(self):
        self.seconds, self.bytes, self.memory = Counter(), Counter(), {}
        self._phase, self._since = "looking at rows", time.process_time()

    def __call__(self, event):
        phase = "agreed part" if event.stage in AGREED else event.stage
        if phase == "roll call":
            phase = self._phase if self._phase == "looking at rows" else "scales"
        if self._phase in ("local part", "second training") and phase not in ("local part", "held-out rows"):
            phase = "second training"
        if phase != self._phase:
            self.end()
            self._phase = phase

    def carried(self, delivery):
        self.bytes[self._phase] += delivery.n_bytes

    def end(self):
        now = time.process_time()
        self.seconds[self._phase] += now - self._since
        self.memory[self._phase], self._since = resident(), now


def measured(n_sites):
    """Fit n_sites in this process; return what it took, without imports and compiled loops."""
    from dekrr import DeKRRRegressor
    from dekrr.data import make_sites
    from dekrr.networks.local import LocalNetwork

    warnings.simplefilter("ignore")
    X, y, sites = make_sites(n_sites=5, rows_per_site=ROWS, random_state=0)
    DeKRRRegressor(random_state=0).fit(X, y, sites=sites)
    X, y, sites = make_sites(n_sites=n_sites, rows_per_site=ROWS, random_state=0)
    before, phases = resident(), Phases()
    network = partial(LocalNetwork, observers=[phases.carried])
    wall, cpu = time.perf_counter(), time.process_time()
    fitted = DeKRRRegressor(random_state=0, network=network, callbacks=[phases]).fit(X, y, sites=sites)
    phases.end()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {
        "sites": n_sites,
        "seconds": round(wall, 2),
        "CPU seconds": round(cpu, 2),
        "CPU ms per site": round(1e3 * cpu / n_sites, 1),
        "kB sent per site": round(fitted.traffic_.total_bytes / n_sites / 1e3),
        "MB, largest": round(after),
        "MB more than before the fit": round(after - before),
        "rounds": fitted.n_rounds_,
        "own error, held out": round(fitted.validation_["RSE"].mean_own, 4),
        "MB sent by kind": {k: round(v / 1e6, 2) for k, v in fitted.traffic_.bytes_by_kind.most_common()},
        "CPU ms per site by phase": {k: round(1e3 * v / n_sites, 2) for k, v in phases.seconds.items()},
        "kB sent per site by phase": {k: round(v / 1e3 / n_sites, 1) for k, v in phases.bytes.items()},
        "MB at the end of a phase": {k: round(v) for k, v in phases.memory.items()},
        "load": round(os.getloadavg()[0], 1),
    }


def slope(fits, values):
    """Return the power of the number of sites that values of several fits grow with, from 100 sites on."""
    known = [(fit["sites"], value) for fit, value in zip(fits, values, strict=True) if fit["sites"] >= 100]
    return float(np.polyfit(*np.log(known).T, 1)[0])


def draw(path):
    """Draw time, bytes and memory of a site against the number of sites, by phase."""
    import matplotlib

    matplotlib.use("svg" if path.suffix == ".svg" else "agg")
    from matplotlib import pyplot

    fits = sorted(json.loads(RESULTS.read_text())["fits"].values(), key=lambda fit: fit["sites"])
    numbers = [fit["sites"] for fit in fits]
    figure, axes = pyplot.subplots(1, 3, figsize=(11, 6), layout="constrained")
    below = {"loc": "upper left", "bbox_to_anchor": (0, -0.14), "frameon": False}
    titles = {"CPU ms per site": "CPU ms per site by phase", "kB sent per site": "kB sent per site by phase"}
    for axis, (total, by_phase) in zip(axes, titles.items(), strict=False):
        names = list(fits[-1][by_phase])
        for k, name in enumerate(names):
            values = [fit[by_phase].get(name, np.nan) for fit in fits]
            axis.plot(numbers, values, color=f"C{k}", marker=".", label=f"{name}, {slope(fits, values):+.2f}")
        whole = [fit[total] for fit in fits]
        axis.plot(numbers, whole, color="black", marker="o", label=f"all, {slope(fits, whole):+.2f}")
        axis.set(title=total, xscale="log", yscale="log", xlabel="sites")
        axis.legend(fontsize="small", title="phase, slope from 100 sites", **below)
    memory = [fit["MB more than before the fit"] / fit["sites"] for fit in fits]
    axes[2].plot(numbers, memory, color="black", marker="o", label=f"largest, {slope(fits, memory):+.2f}")
    axes[2].set(title="MB per site more than before the fit", xscale="log", xlabel="sites", ylim=(0, None))
    axes[2].legend(fontsize="small", **below)
    figure.savefig(path, dpi=110)


def main(given):
    if given.picture:
        draw(given.picture)
        return
    if given.one:
        print(json.dumps(measured(given.one)))
        return
    threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    known = json.loads(RESULTS.read_text())["fits"] if RESULTS.exists() else {}
    for number in given.numbers or (10, 100, 1000):
        command = [sys.executable, __file__, "--one", str(number)]
        told = subprocess.run(command, env=os.environ | threads, capture_output=True, check=True)
        known[str(number)] = json.loads(told.stdout)
        print(known[str(number)], flush=True)
        about = {"machine": platform.machine(), "cores": os.cpu_count()}
        RESULTS.write_text(json.dumps({"about": about, "rows a site": ROWS, "fits": known}, indent=1) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("numbers", nargs="*", type=int, help="numbers of sites; by default 10, 100 and 1000")
    parser.add_argument("--picture", type=Path, help="draw the figures that there are")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    main(parser.parse_args())
