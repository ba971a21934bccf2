"""Requests per second and latency of `dekrr serve`, beside scikit-learn behind the same framework and the bare one.

    python benchmarks/serving.py --out benchmarks/results/serving.json

Each server is a process of its own with one worker. One client process keeps a number of connections busy, each with
one request at a time, and counts answers. All figures of one table come from one machine and one run, the servers in
turn, so that their ratios mean more than the numbers themselves. On a busy machine the CPU time per request, of the
server's process, is the steadier figure.
"""

import argparse
import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec
import numpy as np

N_FEATURES = 100
RATE, CPU = "requests per second", "CPU us per request"
COLUMNS = [f"x{i}" for i in range(8)]


def train(folder: Path) -> None:
    """Write a dekrr model of one site, and a scikit-learn pipeline with as many features as the site predicts with."""
    import joblib
    import pandas as pd
    from sklearn.kernel_approximation import RBFSampler
    from sklearn.linear_model import Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import MinMaxScaler

    from dekrr import DeKRRRegressor

    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.uniform(size=(2000, len(COLUMNS))), columns=COLUMNS)
    y = np.sin(3 * X["x0"]) + X["x1"] ** 2 + 0.1 * rng.normal(size=len(X))
    regressor = DeKRRRegressor(n_features=N_FEATURES, sigma=1.0, alpha=1e-4, consensus=1.0)
    regressor.fit(X, y, sites=np.arange(len(X)) % 5)
    model = next(iter(regressor.models_.values()))
    model.save(folder / "model.safetensors")
    size = sum(member.feature_map.n_features for member in model.members)
    pipeline = make_pipeline(MinMaxScaler(), RBFSampler(gamma=0.5, n_components=size, random_state=0), Ridge(1e-2))
    joblib.dump(pipeline.fit(X.to_numpy(), y), folder / "pipeline.joblib")
    print(f"{len(model.members)} members, {size} features in all", flush=True)


def serve(kind: str, folder: Path, port: int) -> None:
    """Run one server until it is ended."""
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    if kind == "dekrr":
        from dekrr.serving.guards import Limits
        from dekrr.serving.server import Place, server_of

        server_of(folder, Place(port=port), Limits()).run()
        return

    async def bare(request: Request) -> Response:
        await request.body()
        return Response(b'{"predictions":[0.25]}', media_type="application/json")

    endpoint = bare
    if kind == "scikit-learn":
        import joblib

        pipeline = joblib.load(folder / "pipeline.joblib")
        decoder = msgspec.json.Decoder(dict[str, list[dict[str, float]]])

        async def predicting(request: Request) -> Response:
            rows = decoder.decode(await request.body())["rows"]
            X = np.array([[row[name] for name in COLUMNS] for row in rows])
            content = msgspec.json.encode({"predictions": pipeline.predict(X).tolist()})
            return Response(content, media_type="application/json")

        endpoint = predicting
    app = Starlette(routes=[Route("/predict", endpoint, methods=["POST"])])
    uvicorn.run(app, port=port, access_log=False, log_level="warning", ws="none")


class Client(asyncio.Protocol):
    """One connection: sends the next request when the answer to the last is there, and notes how long it took."""

    def __init__(self, request: bytes, until: float, seconds: list[float], bad: list[bytes]) -> None:
        self._request, self._until, self._seconds, self._bad = request, until, seconds, bad
        self._got = b""
        self.done = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._send()

    def _send(self) -> None:
        self._began = time.perf_counter()
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._got += data
        head, ended, body = self._got.partition(b"\r\n\r\n")
        if not ended:
            return
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        if len(body) < length:
            return
        now = time.perf_counter()
        self._seconds.append(now - self._began)
        if b" 200 " not in head[:20]:
            self._bad.append(head[:60])
        self._got = b""
        if now < self._until:
            self._send()
        else:
            self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        if error is not None or self._got:
            self._bad.append(repr(error).encode())
        self.done.set_result(None)


async def load(port: int, body: bytes, n_connections: int, seconds: float) -> tuple[list[float], int, float]:
    """Keep connections busy; return how long each request took, how many failed, and the time in all."""
    head = f"POST /predict HTTP/1.1\r\nhost: localhost:{port}\r\ncontent-type: application/json\r\n"
    request = head.encode() + f"content-length: {len(body)}\r\n\r\n".encode() + body
    took: list[float] = []
    bad: list[bytes] = []
    began = time.perf_counter()
    loop = asyncio.get_running_loop()
    clients = [
        (await loop.create_connection(lambda: Client(request, began + seconds, took, bad), "127.0.0.1", port))[1]
        for _ in range(n_connections)
    ]
    await asyncio.gather(*(client.done for client in clients))
    return took, len(bad), time.perf_counter() - began


def body_of(n_rows: int) -> bytes:
    rng = np.random.default_rng(1)
    rows = [dict(zip(COLUMNS, row, strict=True)) for row in rng.uniform(size=(n_rows, len(COLUMNS))).tolist()]
    return msgspec.json.encode({"rows": rows})


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def measure(seconds: float, repeats: int) -> list[dict[str, object]]:
    results: list[dict[str, object]] = []
    kinds = ("bare framework", "scikit-learn", "dekrr")
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        train(folder)
        ports = {kind: free_port() for kind in kinds}
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        command = [sys.executable, __file__, "--folder", str(folder)]
        processes = {
            kind: subprocess.Popen([*command, "--serve", kind, "--port", str(port)], env=environment)
            for kind, port in ports.items()
        }
        try:
            for port in ports.values():
                _await(port)
            for n_rows, n_connections in ((1, 1), (1, 16), (100, 16), (1000, 4)):
                body = body_of(n_rows)
                for _ in range(repeats):
                    for kind in kinds:
                        asyncio.run(load(ports[kind], body, n_connections, 0.3))  # warm
                        before = cpu_seconds(processes[kind].pid)
                        took, failed, lasted = asyncio.run(load(ports[kind], body, n_connections, seconds))
                        cpu = cpu_seconds(processes[kind].pid) - before
                        results.append(
                            {
                                "server": kind,
                                "rows": n_rows,
                                "connections": n_connections,
                                RATE: round(len(took) / lasted, 1),
                                CPU: round(1e6 * cpu / len(took), 1),
                                "p50 ms": round(1e3 * float(np.quantile(took, 0.5)), 3),
                                "p99 ms": round(1e3 * float(np.quantile(took, 0.99)), 3),
                                "failed": failed,
                            }
                        )
        finally:
            for process in processes.values():
                process.terminate()
            for process in processes.values():
                process.wait(10)
    return results


def cpu_seconds(pid: int) -> float:
    """Return the CPU time that a process has used, of user and system, by the clock of Linux's scheduler."""
    return time.clock_gettime((~pid << 3) | 2)


def _await(port: int) -> None:
    for _ in range(300):
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.1)
    raise TimeoutError(f"no server on port {port} after 30 seconds")


def median(runs: list[dict[str, object]], name: str, beside: list[dict[str, object]] | None = None) -> float:
    """Return the median of a figure, or of its ratios to the same figure of other runs."""
    values = np.array([run[name] for run in runs], dtype=float)
    return float(np.median(values if beside is None else values / [float(str(run[name])) for run in beside]))


def show(results: list[dict[str, object]]) -> None:
    """Print medians over the repeats; ratios are those of one repeat, whose measurements follow each other."""
    print("| rows | connections | server | requests/s | of bare | CPU us | of bare | p50 ms | p99 ms | failed |")
    print("|--:|--:|---|--:|--:|--:|--:|--:|--:|--:|")
    cases = list(dict.fromkeys((r["rows"], r["connections"]) for r in results))
    for rows, connections in cases:
        group = [r for r in results if (r["rows"], r["connections"]) == (rows, connections)]
        bare = [r for r in group if r["server"] == "bare framework"]
        for server in dict.fromkeys(r["server"] for r in group):
            runs = [r for r in group if r["server"] == server]
            rate, cpu, p50, p99 = (median(runs, name) for name in (RATE, CPU, "p50 ms", "p99 ms"))
            of_rate, of_cpu = (median(runs, name, bare) for name in (RATE, CPU))
            failed = sum(int(str(r["failed"])) for r in runs)
            speed = f"{rate:.0f} | {of_rate:.2f} | {cpu:.0f} | {of_cpu:.2f}"
            print(f"| {rows} | {connections} | {server} | {speed} | {p50:.2f} | {p99:.2f} | {failed} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0, help="How long each measurement lasts.")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve(given.serve, given.folder, given.port)
        return
    results = measure(given.seconds, given.repeats)
    show(results)
    if given.out:
        given.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
