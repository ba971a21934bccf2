"""What a site costs among many: time, bytes and memory of default fits of 50 rows a site.

    python benchmarks/many_sites.py 10 100 1000

Each number of sites has a process of its own, so that its memory is its own. The figures go to results/many_sites.json.
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
from pathlib import Path

RESULTS = Path(__file__).parent / "results" / "many_sites.json"
ROWS = 50


def measured(n_sites):
    """Fit n_sites in this process; return what it took, without imports and compiled loops."""
    from dekrr import DeKRRRegressor
    from dekrr.data import make_sites

    warnings.simplefilter("ignore")
    X, y, sites = make_sites(n_sites=5, rows_per_site=ROWS, random_state=0)
    DeKRRRegressor(random_state=0).fit(X, y, sites=sites)
    X, y, sites = make_sites(n_sites=n_sites, rows_per_site=ROWS, random_state=0)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    wall, cpu = time.perf_counter(), time.process_time()
    fitted = DeKRRRegressor(random_state=0).fit(X, y, sites=sites)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "sites": n_sites,
        "seconds": round(wall, 2),
        "CPU seconds": round(cpu, 2),
        "CPU ms per site": round(1e3 * cpu / n_sites, 1),
        "kB sent per site": round(fitted.traffic_.total_bytes / n_sites / 1e3),
        "MB, largest": round(after / 1024),
        "MB more than before the fit": round((after - before) / 1024),
        "rounds": fitted.n_rounds_,
        "own error, held out": round(fitted.validation_["RSE"].mean_own, 4),
        "MB sent by kind": {k: round(v / 1e6, 2) for k, v in fitted.traffic_.bytes_by_kind.most_common()},
    }


def main(*numbers):
    if numbers[:1] == ("one",):
        print(json.dumps(measured(int(numbers[1]))))
        return
    threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    known = json.loads(RESULTS.read_text())["fits"] if RESULTS.exists() else {}
    for number in numbers or ("10", "100", "1000"):
        told = subprocess.run(
            [sys.executable, __file__, "one", number], env=os.environ | threads, capture_output=True, check=True
        )
        known[number] = json.loads(told.stdout)
        print(known[number], flush=True)
        about = {"machine": platform.machine(), "cores": os.cpu_count(), "load at the end": os.getloadavg()[0]}
        RESULTS.write_text(json.dumps({"about": about, "rows a site": ROWS, "fits": known}, indent=1) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("numbers", nargs="*", help="numbers of sites; by default 10, 100 and 1000")
    main(*parser.parse_args().numbers)
