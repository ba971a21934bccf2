"""Rows from disk against rows in memory: rows per second and peak memory of `DeKRRRegressor.fit`.

household_power, in its order of time, is divided over sites, and each site's part is written to a Parquet file,
`--repeat` times over. Every fit runs in a process of its own, so that its peak resident memory is its own: once with
the rows as they are in memory, once with the repeated rows from disk.

    python benchmarks/large.py --data-dir DATA --json large.json
"""

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet

NAME, RESPONSE = "household_power", "y"
KINDS = ("plain", "greedy")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path, default=os.environ.get("DEKRR_DATA"))
    parser.add_argument("--repeat", type=int, default=10, help="how often the rows are on disk")
    parser.add_argument("--sites", type=int, default=10)
    parser.add_argument("--n-features", type=int, default=200)
    parser.add_argument("--features", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--json", type=Path, help="where to write the figures")
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.data_dir is None:
        parser.error("--data-dir, or the environment variable DEKRR_DATA, must say where household_power.parquet is")
    return given


def write(source: Path, folder: Path, n_sites: int, repeat: int) -> None:
    """Write every site's part of a table, `repeat` times over, to a file of its own."""
    table = parquet.read_table(source)
    ends = np.linspace(0, len(table), n_sites + 1).astype(int)
    for j in range(n_sites):
        part = table.slice(ends[j], ends[j + 1] - ends[j])
        with parquet.ParquetWriter(folder / f"{j}.parquet", table.schema) as file:
            for _ in range(repeat):
                file.write_table(part)


def measure(where: str, features: str, given: argparse.Namespace) -> None:
    """Fit once and print rows, seconds and peak memory; `where` is "memory" or a folder of files."""
    from dekrr import DeKRRRegressor

    regressor = DeKRRRegressor(
        n_features=given.n_features, features=features, sigma=1.0, alpha=1e-6, consensus=1.0, random_state=0
    )
    if where == "memory":
        from dekrr.data import load

        X, y = load(NAME, given.data_dir)
        sites = np.repeat(np.arange(given.sites), np.diff(np.linspace(0, len(y), given.sites + 1).astype(int)))
        begun = time.perf_counter(), time.process_time()
        regressor.fit(X, y, sites=sites)
    else:
        paths = {path.stem: path for path in sorted(Path(where).glob("*.parquet"))}
        begun = time.perf_counter(), time.process_time()
        regressor.fit(paths, RESPONSE)
    seconds, of_cpu = time.perf_counter() - begun[0], time.process_time() - begun[1]
    n_rows = sum(regressor.n_rows_.values())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    figures = {"rows": n_rows, "seconds": seconds, "cpu seconds": of_cpu, "peak bytes": peak}
    print(json.dumps(figures | {"rounds": regressor.n_rounds_}))


def run(where: str, features: str, given: argparse.Namespace) -> dict[str, float]:
    command = [sys.executable, __file__, "--data-dir", str(given.data_dir), "--sites", str(given.sites)]
    command += ["--n-features", str(given.n_features), "--measure", where, features]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    figures: dict[str, float] = json.loads(done.stdout)
    print(f"{features}, {Path(where).name}: {figures}", file=sys.stderr)
    return figures


def main() -> None:
    given = arguments()
    if given.measure:
        measure(*given.measure, given)
        return
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        write(Path(given.data_dir) / f"{NAME}.parquet", Path(folder), given.sites, given.repeat)
        on_disk = sum(path.stat().st_size for path in Path(folder).iterdir())
        for features in given.features:
            memory, disk = run("memory", features, given), run(folder, features, given)
            rates, cpu_rates = ([f["rows"] / f[s] for f in (memory, disk)] for s in ("seconds", "cpu seconds"))
            results[features] = {
                "rows in memory": memory["rows"],
                "rows on disk": disk["rows"],
                "rows per second in memory": round(rates[0]),
                "rows per second from disk": round(rates[1]),
                "ratio": round(rates[0] / rates[1], 3),
                "rows per CPU second in memory": round(cpu_rates[0]),
                "rows per CPU second from disk": round(cpu_rates[1]),
                "ratio of CPU seconds": round(cpu_rates[0] / cpu_rates[1], 3),
                "peak RSS in memory, MB": round(memory["peak bytes"] / 1e6),
                "peak RSS from disk, MB": round(disk["peak bytes"] / 1e6),
            }
    settings = {"sites": given.sites, "n_features": given.n_features, "sigma": 1.0, "alpha": 1e-6, "consensus": 1.0}
    about = {
        "data": f"{NAME} repeated {given.repeat} times, {on_disk / 1e6:.0f} MB of Parquet",
        "settings": settings,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "threads": os.environ.get("OPENBLAS_NUM_THREADS", "as many as there are"),
        "versions": {"python": platform.python_version(), "numpy": np.__version__, "pyarrow": pa.__version__},
    }
    report = json.dumps({**about, "results": results}, indent=2)
    if given.json:
        given.json.write_text(report + "\n")
    print(report)


if __name__ == "__main__":
    main()
