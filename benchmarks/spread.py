"""Time a site of many rows on two Dask workers against one process on one core, and kill a worker in mid-fit.

The rows of household_power are repeated on disk, in Parquet files. They are one site's; every hundredth row is a
second, small site's, which is its neighbour. The fit is made once from streamed files, by one process on one core; once
by a Dask cluster of two workers of one thread each, which read the files; and once more while a worker is killed. Both
ways make a small fit first, so that nothing is compiled or imported on the clock.

    python benchmarks/spread.py --data-dir DATA --json spread.json
"""

import argparse
import json
import os
import platform
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as parquet

NAME, RESPONSE = "household_power", "y"
LIMIT = 1.5e9  # bytes of a worker


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path, default=os.environ.get("DEKRR_DATA"))
    parser.add_argument("--repeat", type=int, default=10, help="how often the rows are on disk")
    parser.add_argument("--files", type=int, default=4, help="files for each repetition; a file is a partition")
    parser.add_argument("--n-features", type=int, default=200)
    parser.add_argument("--features", choices=("plain", "greedy"), default="plain")
    parser.add_argument("--kill-after", type=float, default=0.4, help="share of the time after which a worker dies")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    parser.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.data_dir is None:
        parser.error("--data-dir, or the environment variable DEKRR_DATA, must say where household_power.parquet is")
    return given


def write(source: Path, folder: Path, repeat: int, n_files: int) -> None:
    """Write the rows `repeat` times to a folder of files, and every hundredth row to another one."""
    table = parquet.read_table(source)
    (folder / "large").mkdir()
    (folder / "little").mkdir()
    ends = np.linspace(0, len(table), n_files + 1).astype(int)
    for j in range(n_files):
        part = table.slice(ends[j], ends[j + 1] - ends[j])
        for i in range(repeat):
            parquet.write_table(part, folder / "large" / f"{i:03}-{j:03}.parquet")
    parquet.write_table(table.take(np.arange(0, len(table), 100)), folder / "small.parquet")
    for j in range(2):
        parquet.write_table(table.slice(j * 30_000, 30_000), folder / "little" / f"{j}.parquet")


def fitted(large: Any, small: Path, given: argparse.Namespace, **settings: Any) -> Any:
    from dekrr import DeKRRRegressor

    regressor = DeKRRRegressor(
        n_features=given.n_features,
        features=given.features,
        sigma=1.0,
        alpha=1e-6,
        consensus=1.0,
        shared=None,
        local=None,
        column_scales=None,
        intervals=False,
        random_state=0,
        **settings,
    )
    return regressor.fit({"large": large, "small": small}, RESPONSE)


def measure(how: str, folder: Path, killed_after: float, given: argparse.Namespace) -> dict[str, Any]:
    """Fit once; `how` is "streamed" or "dask"."""
    if how == "streamed":
        from dekrr.networks.local import LocalNetwork

        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        one = partial(LocalNetwork, n_threads=1)
        fitted(folder / "little", folder / "small.parquet", given, network=one)
        begun = time.perf_counter(), time.process_time()
        regressor = fitted(folder / "large", folder / "small.parquet", given, network=one)
        seconds, of_cpu = time.perf_counter() - begun[0], time.process_time() - begun[1]
        return figures(regressor, seconds, of_cpu, [resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0])

    import dask.dataframe as dd
    from dask.distributed import Client, LocalCluster

    workers = LocalCluster(n_workers=2, threads_per_worker=1, memory_limit=int(LIMIT), dashboard_address=None)
    with workers as cluster, Client(cluster) as client:
        fitted(dd.read_parquet(folder / "little"), folder / "small.parquet", given)
        of_workers = sum(client.run(time.process_time).values())
        begun = time.perf_counter(), time.process_time()
        if killed_after:
            victim = min(client.run(os.getpid).values())
            threading.Timer(killed_after, os.kill, (victim, signal.SIGKILL)).start()
        regressor = fitted(dd.read_parquet(folder / "large"), folder / "small.parquet", given)
        seconds, of_cpu = time.perf_counter() - begun[0], time.process_time() - begun[1]
        peaks = client.run(lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0)
        if not killed_after:  # a new worker begins at 0
            of_cpu += sum(client.run(time.process_time).values()) - of_workers
    return figures(regressor, seconds, of_cpu, sorted(peaks.values()))


def figures(regressor: Any, seconds: float, of_cpu: float, peaks: list[float]) -> dict[str, Any]:
    return {
        "rows": sum(regressor.n_rows_.values()),
        "seconds": seconds,
        "cpu seconds": of_cpu,
        "peak bytes": peaks,
        "rounds": regressor.n_rounds_,
        "coefficients": [model.coefficients.tolist() for model in regressor.models_.values()],
    }


def run(how: str, folder: Path, killed_after: float, given: argparse.Namespace) -> dict[str, Any]:
    command = [sys.executable, __file__, "--data-dir", str(given.data_dir), "--features", given.features]
    command += ["--n-features", str(given.n_features), "--measure", how, str(folder), str(killed_after)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    shown = {name: value for name, value in found.items() if name != "coefficients"}
    print(f"{how}, a worker is killed after {killed_after:.0f} s: {shown}", file=sys.stderr)
    return found


def main() -> None:
    given = arguments()
    if given.measure:
        how, folder, killed_after = given.measure
        print(json.dumps(measure(how, Path(folder), float(killed_after), given)))
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(Path(given.data_dir) / f"{NAME}.parquet", folder, given.repeat, given.files)
        streamed = run("streamed", folder, 0.0, given)
        spread = run("dask", folder, 0.0, given)
        killed = run("dask", folder, given.kill_after * spread["seconds"], given)
    ours, theirs = (np.concatenate(found["coefficients"]) for found in (spread, streamed))
    report = {
        "data": f"{NAME} repeated {given.repeat} times in {given.repeat * given.files} files, and every 100th row",
        "settings": {"n_features": given.n_features, "features": given.features, "sigma": 1.0, "alpha": 1e-6},
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "niceness": os.nice(0),
        "load": os.getloadavg()[0],
        "versions": {name: version(name) for name in ("numpy", "pyarrow", "dask", "distributed")},
        "rows": spread["rows"],
        "seconds streamed, one core": round(streamed["seconds"], 2),
        "seconds with two workers": round(spread["seconds"], 2),
        "speed-up": round(streamed["seconds"] / spread["seconds"], 3),
        "seconds with two workers, one killed": round(killed["seconds"], 2),
        "cpu seconds streamed": round(streamed["cpu seconds"], 2),
        "cpu seconds with two workers": round(spread["cpu seconds"], 2),
        "peak MB of workers": [round(peak / 1e6) for peak in spread["peak bytes"]],
        "peak MB streamed": round(streamed["peak bytes"][0] / 1e6),
        "the same bits after a worker died": killed["coefficients"] == spread["coefficients"],
        "largest difference from streamed": float(np.abs(ours - theirs).max()),
    }
    text = json.dumps(report, indent=2)
    if given.json:
        given.json.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
