"""Small fits whose messages, models and predictions are recorded in transcripts.json, so that no change is unseen.

    python tests/transcripts.py compare [NAME ...]    which configurations differ from the record, and where first
    python tests/transcripts.py record [NAME ...]     record these anew, or all: in a commit that says which and why

The kinds, edges, sizes and bytes of all messages, in order, models and predictions have to be the same where they are
computed by the same `machine` as in the record. Processors and libraries differ in the last bits, and a last bit may
decide between choices that are nearly equal: on another machine the numbers of messages of each kind are compared, and
predictions to 1e-2 of their spread.
"""

import base64
import contextlib
import hashlib
import json
import platform
import sys
import tempfile
import warnings
from collections import Counter
from functools import partial
from importlib import metadata
from pathlib import Path
from unittest import mock

import numpy as np
import pandas as pd
import threadpoolctl

import dekrr
from dekrr import DeKRRRegressor, DifferentialPrivacy
from dekrr.data import make_sites
from dekrr.messages import encode
from dekrr.networks.local import LocalNetwork
from dekrr.protocols.site import passed

RECORD = Path(__file__).with_name("transcripts.json")
TOLERANCE, ELSEWHERE = 1e-5, 1e-2  # of the spread of predictions, on the machine of the record and on another
WIDTH = 2  # of a message's digest: the record of many messages is to be a small file

X, Y, SITES = make_sites(n_sites=5, rows_per_site=40, random_state=0)
COUNT = np.arange(len(Y))
NEW = slice(None, None, 25)  # the rows that are predicted
FRAME = pd.DataFrame(X, columns=["u", "v", "w"]).assign(
    u=np.where(COUNT % 7, X[:, 0], np.nan),
    kind=np.array(["calm", "storm", None], dtype=object)[COUNT % 3],
    day=pd.Timestamp("2024-01-01") + pd.to_timedelta(COUNT * 5, unit="h"),
    is_dry=X[:, 2] > 0.5,
    y=Y,
    site=SITES,
)
OUTPUTS = np.column_stack([Y, 10 * X[:, 1] ** 2])
CLASSES = np.array(["low", "middle", "high"])[np.digitize(Y, np.quantile(Y, [0.3, 0.6]))]
ALONE = {**dict.fromkeys(("shared", "local", "column_scales")), "sigma": 0.5, "alpha": 1e-4, "consensus": 1.0}
GRIDS = {"sigma": [0.25, 1.0], "alpha": [1e-6, 1e-3], "consensus": [0.5, 2.0], "folds": 2}
PRIVATE = {**ALONE, "bounds": ([-1.0, -1.0, -1.0, -3.0], [2.0, 2.0, 2.0, 3.0])}


def made(network, kind=DeKRRRegressor, **settings):
    """Return an estimator of small models on a ring."""
    given = {"n_features": 16, "random_state": 0, "topology": "ring", "n_neighbors": 2, "network": network}
    given["exclude"] = None  # "default" has a look before the fit
    return kind(**{name: value for name, value in given.items() if name in kind.__dataclass_fields__} | settings)


def fit(network, kind=DeKRRRegressor, rows=(X, Y, SITES), weight=None, new=X, ask="predict", **settings):
    """Return the models of a fit, and what it predicts: by default for numbers with a response and a site each."""
    fitted = made(network, kind, **settings).fit(*rows, sample_weight=weight)
    return fitted.models_, getattr(fitted, ask)(new[NEW], sites=SITES[NEW])


def fit_streams(network):
    places = {site: np.flatnonzero(SITES == site) for site in np.unique(SITES).tolist()}  # noqa: SIM300
    return fit(network, rows=({site: [(X[own], Y[own]) for own in np.split(at, [15])] for site, at in places.items()},))


def fit_file(network):
    with tempfile.TemporaryDirectory() as folder:
        FRAME.to_csv(Path(folder) / "table.csv", index=False)
        return fit(network, rows=(Path(folder) / "table.csv", "y", "site"), new=FRAME)


def update(network):
    fitted = made(network).fit(X, Y, sites=SITES).partial_fit(X + 0.01, Y, sites=SITES)
    return fitted.models_, fitted.predict(X[NEW], sites=SITES[NEW])


def join_and_leave(network):
    n = np.searchsorted(SITES, SITES[-1])
    fitted = made(network, **ALONE, store_rows=True).fit(X[:n], Y[:n], sites=SITES[:n])
    fitted.partial_fit(X[n:], Y[n:], sites=SITES[n:], edges=[(SITES[0], SITES[-1])]).remove_site("station 02")
    return fitted.models_, fitted.models_[SITES[0]].predict(X[NEW])


def run_nodes(network):
    """Run three nodes on loopback, with the defaults of a deployment but for TLS, whose keys are random."""
    from dekrr.mesh.files import read_site
    from dekrr.mesh.node import Node
    from meshes import Mesh

    class Tapped(Node):
        def _procedure(self, *given):
            self._masks_secret = bytes(32)
            return (yield from network.follow(self.config.site, 0, super()._procedure(*given)))

    with tempfile.TemporaryDirectory() as folder:
        mesh = Mesh(folder, 3, defaults=True, settings={"n_features": 8}, rows=120)
        mesh.node = lambda name: Tapped(read_site(mesh.home(name) / "site.toml"), mesh.home(name), insecure=True)
        _, errors = mesh.run_in_threads()
        assert not any(errors.values()), errors
        models = {name: mesh.model(name) for name in mesh.names}
    return models, np.concatenate([model.predict(X[NEW, :2]) for model in models.values()])


CONFIGURATIONS = {
    "paper": partial(fit, **ALONE, features="energy", exchange="features", solver="jacobi", prediction="own"),
    "alone": partial(fit, **ALONE),
    "default": partial(fit, exclude="harmful"),
    "own": partial(fit, prediction="own"),
    "jacobi": partial(fit, solver="jacobi", max_rounds=40),
    "masks": partial(fit, masks=True),
    "masks alone": partial(fit, **ALONE, masks=True),
    "private": partial(fit, **PRIVATE, privacy=DifferentialPrivacy(4.0)),
    "colluders": partial(fit, **PRIVATE, privacy=DifferentialPrivacy(4.0, colluders=1)),
    "deployment": partial(fit, deployment=True, n_features=8),
    "quantiles": partial(fit, scale="quantiles"),
    "tuned": partial(fit, **ALONE | GRIDS),
    "tuned with parts": partial(fit, **GRIDS, intervals=False),
    "intervals": partial(fit, intervals=True, ask="predict_interval"),
    "weights": partial(fit, weight=1.0 + COUNT % 3),
    "outputs": partial(fit, rows=(X, OUTPUTS, SITES)),
    "classes": partial(fit, kind=dekrr.DeKRRClassifier, rows=(X, CLASSES, SITES), ask="predict_proba"),
    "frame": partial(fit, rows=(FRAME, "y", "site"), new=FRAME),
    "file": fit_file,
    "streams": fit_streams,
    "many rows": partial(fit, rows=make_sites(n_sites=5, rows_per_site=900, random_state=1), shared=40),
    "partial_fit": update,
    "remove_site": join_and_leave,
    "dkla": partial(fit, kind=dekrr.DKLARegressor, max_rounds=30),
    "coke": partial(fit, kind=dekrr.COKERegressor, max_rounds=30, censor_start=1.0),
    "allreduce": partial(fit, kind=dekrr.AllReduceRegressor),
    "local": partial(fit, kind=dekrr.LocalRegressor, sigma=1.0, alpha=1e-6),
    "centralized features": partial(fit, kind=dekrr.CentralizedRFF),
    "centralized": partial(fit, kind=dekrr.CentralizedKRR),
    "mpi": lambda network: fit(network.on_a_rank()),
    "mesh": run_nodes,
}


class Tap:
    """Makes networks, and notes every message that their sites send: run, exchange, ends, kind, size and digest."""

    def __init__(self):
        self.make, self.messages, self._n_runs = partial(LocalNetwork, n_threads=1), [], 0

    def on_a_rank(self):
        """Have one rank of MPI drive all sites; test_mpi has several ranks."""
        from dekrr.networks.mpi import MPINetwork

        self.make = MPINetwork(n_threads=1)
        return self

    def __call__(self, neighbors):
        network, number = self.make(neighbors), self._n_runs
        run, self._n_runs = network.run, number + 1
        network.run = lambda given: run({name: self.follow(name, number, each) for name, each in given.items()})
        return network

    def follow(self, sender, number, procedure):
        inbox, exchange = None, 0
        while True:
            try:
                outbox = procedure.send(inbox)
            except StopIteration as stop:
                return stop.value
            for receiver, message in outbox.items():
                data = encode(message)
                where = number, exchange, sender, receiver, type(message).__name__, len(data)
                self.messages.append((*where, _digest(data)))
            inbox = yield outbox
            exchange += passed(inbox)


def transcript(name):
    """Fit a configuration; return what the record has of it, and its messages in order."""
    network = Tap()
    with warnings.catch_warnings(), threadpoolctl.threadpool_limits(1), _without_chance():
        warnings.simplefilter("ignore")
        models, predictions = CONFIGURATIONS[name](network)
    messages = sorted(network.messages)
    return {
        "machine": machine(),
        "kinds": dict(sorted(Counter(message[4] for message in messages).items())),
        "shapes": "".join(_short(message[:-1]) for message in messages),
        "contents": "".join(_short(message) for message in messages),
        "models": {  # an exact kernel model cannot be saved
            str(site): _digest(model.to_bytes()) for site, model in models.items() if hasattr(model, "to_bytes")
        },
        "predictions": [float(f"{value:.7g}") for value in np.ravel(predictions)],
        "predicted": _digest(np.ascontiguousarray(predictions, dtype="<f8").tobytes()),
    }, messages


def _digest(data):
    return hashlib.sha256(data).hexdigest()[:16]


def _short(message):
    return base64.b64encode(hashlib.sha256(repr(message).encode()).digest()).decode()[:WIDTH]


@contextlib.contextmanager
def _without_chance():
    """Have the same keys and the same noise at all sites, instead of those that the operating system draws."""

    def perturb(_, values):
        noise = np.random.default_rng(len(values)).normal(size=len(values))
        if isinstance(values[0], int):  # they count steps of a grid
            return [value + int(step) for value, step in zip(values, noise * 2**30, strict=True)]
        return (np.array(values) + noise).tolist()

    keys = mock.patch("secrets.token_bytes", lambda size: bytes(range(size)))
    with keys, mock.patch("opendp.mod.Measurement.__call__", perturb):
        yield


def machine():
    """Return what the last bits of a result depend on."""
    names = ("numpy", "scipy", "scikit-learn", "lightgbm", "numba", "opendp")
    versions = [f"{name} {metadata.version(name)}" for name in names]
    pools = [pool for pool in threadpoolctl.threadpool_info() if pool["user_api"] == "blas"]
    blas = sorted({f"{pool['internal_api']} {pool['version']} {pool.get('architecture')}" for pool in pools})
    features = np.show_config(mode="dicts")["SIMD Extensions"].get("found", [])
    sums = ["sums of Python 3.12"] if sys.version_info >= (3, 12) else []  # from there on `sum` keeps lost digits
    return ", ".join([platform.machine(), " ".join(platform.libc_ver()), *versions, *blas, *features, *sums])


def differences(name, known):
    """Return how a configuration differs from `known`, its part of the record, and whether bytes were compared."""
    found, messages = transcript(name)
    exact = found["machine"] == known["machine"]
    said = []
    if found["shapes"] != known["shapes"] and exact:
        said.append(_first("is another", found["shapes"], known["shapes"], messages))
    elif exact and found["contents"] != known["contents"]:
        said.append(_first("has other bytes", found["contents"], known["contents"], messages))
    for kind in sorted({*found["kinds"], *known["kinds"]}):
        now, before = (each["kinds"].get(kind, 0) for each in (found, known))
        said += [f"{now} messages {kind}, in the record {before}"] if now != before else []
    now, before = np.array(found["predictions"]), np.array(known["predictions"])
    change = np.abs(now - before).max() / np.ptp(before) if now.shape == before.shape else np.inf
    if change > (TOLERANCE if exact else ELSEWHERE):
        said.append(f"predictions moved by {change:.1e} of their spread")
    elif exact and found["predicted"] != known["predicted"]:
        said.append(f"predictions have other bytes, but moved by no more than {change:.1e} of their spread")
    other = sorted({site for site, _ in found["models"].items() ^ known["models"].items()})
    if exact and other:
        said.append(f"the models of {', '.join(other)} have other bytes")
    return said, exact


def _first(text, found, known, messages):
    """Return which message is the first whose digest is not that of the record."""
    same = [found[i : i + WIDTH] == known[i : i + WIDTH] for i in range(0, max(len(found), len(known)), WIDTH)]
    place = same.index(False)
    if place == len(messages):
        return f"the messages end after {place}, those of the record after {len(same)}"
    run, exchange, sender, receiver, kind, size, _ = messages[place]
    where = f"in exchange {exchange} of run {run}, {kind} of {size} bytes from {sender!r} to {receiver!r}"
    return f"message {place + 1} of {len(messages)} {text}: {where}"


def main(command="compare", *names):
    known = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    if command not in ("record", "compare") or not CONFIGURATIONS.keys() >= set(names):
        sys.exit(f"{__doc__}\nThe names are: {', '.join(CONFIGURATIONS)}")
    if command == "record":
        known |= {name: transcript(name)[0] for name in names or CONFIGURATIONS}
        RECORD.write_text(json.dumps({name: known[name] for name in CONFIGURATIONS if name in known}, indent=1) + "\n")
        return 0
    differ = 0
    for name in names or CONFIGURATIONS:
        said, exact = differences(name, known[name])
        differ += bool(said)
        same = "the same bytes" if exact else "the same messages and predictions; the bytes are of another machine"
        print(f"{name}: {'; '.join(said) or same}", flush=True)
    return min(differ, 1)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
