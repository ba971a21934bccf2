"""Memory and start time of standing sites: many on this machine, before and after a run of a study.

python benchmarks/standing.py 50 benchmarks/results/standing.json
"""

import argparse
import json
import os
import re
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from consortium import Consortium


def megabytes(pid, kind):
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return int(re.search(rf"^{kind}:\s+(\d+)", text, re.M).group(1)) / 1024


def summary(processes):
    rss = [megabytes(process.pid, "Rss") for process in processes]
    pss = [megabytes(process.pid, "Pss") for process in processes]
    return {"rss, median MB": round(statistics.median(rss), 1), "pss, median MB": round(statistics.median(pss), 1)}


def state(sites, name):
    try:
        return json.loads((sites.home(name) / "state.json").read_text())
    except (OSError, ValueError):
        return None


def all_up(sites):
    for name in sites.names:
        found = state(sites, name)
        if found is None or set(found["neighbors"].values()) != {"up"}:
            return False
    return True


def wait(condition, seconds):
    begun = time.monotonic()
    while not condition():
        if time.monotonic() - begun > seconds:
            raise SystemExit("waited in vain")
        time.sleep(0.5)
    return round(time.monotonic() - begun, 1)


def main(n_sites, out=None):
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as without:
        # The extra `mesh` does not install numba, which would add 100 MB to each site.
        (Path(without) / "numba.py").write_text("raise ModuleNotFoundError('no numba', name='numba')\n")
        os.environ["PYTHONPATH"] = os.pathsep.join([without, os.environ.get("PYTHONPATH", "")])
        sites = Consortium(folder, [f"s{j:02d}" for j in range(n_sites)], rows=400)
        for name in sites.names:
            (sites.home(name) / "policy.toml").write_text('approval = "policy"\n')
        processes = [sites.process(name) for name in sites.names]
        try:
            linked = wait(lambda: all_up(sites), 600)
            found = {"sites": n_sites, "all linked, s": linked, "standing": summary(processes)}
            print(found, flush=True)
            sites.command("s00", "propose", sites.study(start_patience=600.0, patience=120.0))
            found |= {"models after a proposal, s": wait(sites.done(1), 900), "after a run": summary(processes)}
            print(found, flush=True)
            if out is not None:
                Path(out).write_text(json.dumps(found, indent=1) + "\n")
        finally:
            for process in processes:
                process.kill()
            for process in processes:
                process.wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("number", nargs="?", type=int, default=50)
    parser.add_argument("out", nargs="*", help="the file of the figures")
    arguments = parser.parse_args()
    main(arguments.number, *arguments.out)
