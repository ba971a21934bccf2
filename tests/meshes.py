"""Networks of nodes on loopback, for the tests of the mesh."""

import contextlib
import json
import multiprocessing
import random
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path

import networkx as nx
import numpy as np
import pandas as pd
import typer

from dekrr import load
from dekrr.disk import lock
from dekrr.mesh import keys
from dekrr.mesh.commands.setting_up import site_tables
from dekrr.mesh.commands.taking_part import node
from dekrr.mesh.files import read_network, read_site, to_toml
from dekrr.mesh.node import MODEL, SECRET, Node, kept_secret
from dekrr.mesh.procedure import procedure_of
from dekrr.mesh.record import RECORD, Log, Record, log_to
from dekrr.mesh.session.links import ends
from dekrr.mesh.site_rows import row_hash
from dekrr.networks.local import LocalNetwork
from dekrr.protocols.site import Site
from dekrr.tables.rows import ArrayRows

COLUMNS = ["u", "v"]
ALONE = dict.fromkeys(("shared", "local", "column_scales"), "none")


class Mesh:
    """Files of a network in a folder, with keys, and its sites' rows."""

    def __init__(
        self,
        folder,
        n_sites,
        *,
        method="dekrr",
        settings=None,
        patience=20.0,
        rows=60,
        hosts=None,
        defaults=False,
        data=None,
        **table,
    ):
        self.folder = Path(folder)
        self.names = [f"s{i:02d}" for i in range(n_sites)]
        numbers = {"n_features": 10, "features": "energy", "sigma": 0.5, "alpha": 1e-3}
        if method == "dekrr":
            numbers |= {"consensus": 1.0, **ALONE}
        # Losses are many here, and networks of two sites: a test that is about what is refused says so.
        lone = {} if method == "dkla" else {"lone_neighbor": "warn"}
        self.settings = {**lone, **({} if defaults else numbers), **(settings or {})}
        self.method = method
        rng = np.random.default_rng(n_sites)
        self.rows = {name: (rng.uniform(size=(rows, 2)), rng.uniform(-1, 1, size=rows)) for name in self.names}
        endpoints = hosts or [f"127.0.0.1:{port}" for port in free_ports(n_sites)]
        lines = [to_toml({"run": "test", "method": method, "patience": patience, **{"start_patience": 60.0, **table}})]
        lines += [
            to_toml({"data": {"target": "y", "columns": COLUMNS, **(data or {})}}),
            to_toml({"settings": self.settings}),
        ]
        for name, endpoint in zip(self.names, endpoints, strict=True):
            X, y = self.rows[name]
            pd.DataFrame(X, columns=COLUMNS).assign(y=y).to_parquet(self.folder / f"{name}.parquet")
            entry = {"name": name, "endpoint": endpoint, "data": f"{name}.parquet"}
            lines.append("[[site]]\n" + to_toml(entry))
        (self.folder / "network.toml").write_text("\n".join(lines))
        self.network = read_network(self.folder / "network.toml")
        self.graph = nx.Graph([(a, b) for a, them in self.network.neighbors().items() for b in them])
        self.authority = keys.Authority.new("test")
        self.authority.save(self.folder)
        for name, site in site_tables(self.network, self.folder).items():
            home = self.home(name)
            home.mkdir()
            (home / "site.toml").write_text(to_toml(site))
            (home / keys.AUTHORITY_CERTIFICATE).write_bytes(self.authority.pem)
            self.give_keys(home, name, site["listen"].rpartition(":")[0])

    def give_keys(self, home, name, host="127.0.0.1", authority=None, **validity):
        key, request = keys.new_request(name, host)
        keys.write_new(home / keys.KEY, key, private=True)
        (home / keys.REQUEST).write_bytes(request)
        signed = (authority or self.authority).sign(keys.read_request(home / keys.REQUEST), **validity)
        keys.write_new(home / keys.CERTIFICATE, signed)

    def home(self, name):
        return self.folder / name

    def edit(self, name, old, new):
        path = self.home(name) / "site.toml"
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))

    def node(self, name, **options):
        node = Node(read_site(self.home(name) / "site.toml"), self.home(name), **options)
        node.listeners.append(Record(self.home(name) / RECORD))
        return node

    def run_in_threads(self, names=None, **options):
        """Run nodes in threads of this process; return what each raised, or None."""
        nodes = {name: self.node(name, **options) for name in names or self.names}
        errors = {}

        def run(name):
            try:
                nodes[name].run()
                errors[name] = None
            except Exception as error:
                errors[name] = error

        threads = [threading.Thread(target=run, args=(name,), daemon=True) for name in nodes]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
            assert not thread.is_alive(), "a node hangs"
        return nodes, errors

    def process(self, name, target=None):
        """Start a node as a process of its own."""
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(
            ["dekrr.mesh.node", "dekrr.mesh.commands.taking_part", "pandas", "pyarrow.parquet"]
        )
        process = context.Process(target=target or run_node, args=(str(self.home(name) / "site.toml"),), daemon=True)
        process.start()
        return process

    def events(self, name):
        """Return what the record has; a line without its end is being written, and is not read yet."""
        lines = (self.home(name) / RECORD).read_text().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def model(self, name):
        return load(self.home(name) / MODEL)

    def reference(self, without=(), maps=None, lost=()):
        """Run the same procedures on the local network."""
        graph = self.graph.subgraph([name for name in self.names if name not in without]).copy()
        graph.remove_edges_from(map(ends, lost))
        network = LocalNetwork(graph)
        procedures = {}
        for name in sorted(graph):
            config = read_site(self.home(name) / "site.toml")
            features = config.features()
            neighbors = tuple(sorted(graph[name]))
            rows = ArrayRows(*self.rows[name])
            hash_of = row_hash(kept_secret(self.home(name) / SECRET), config.data.columns)
            given = (maps or {}).get(name)
            site = Site(name, neighbors, rows, seed=features.seed, feature_map=given, hash_of=hash_of)
            procedures[name] = procedure_of(config, site)
        return network.run(procedures), network.traffic

    def check_models(self, names):
        """Every model equals the local network's without those that were gone, from the same features."""
        references = {}
        for name in names:
            finished = next(e for e in reversed(self.events(name)) if e["event"] == "finished")
            gone, lost = frozenset(finished["gone"]), frozenset(finished["lost"])
            if (gone, lost) not in references:
                there = [other for other in self.names if other not in gone and (self.home(other) / MODEL).exists()]
                maps = {other: self.model(other).feature_map for other in there} if lost else {}
                references[gone, lost], _ = self.reference(gone, maps if self.method == "dekrr" else {}, lost)
            expected = references[gone, lost][name].coefficients
            np.testing.assert_allclose(self.model(name).coefficients, expected, rtol=0, atol=1e-9, err_msg=name)
        return {gone for gone, _ in references}


def run_node(path):
    """Be a node, as `dekrr node` is."""
    config = read_site(Path(path))
    node = Node(config, Path(path).parent)
    with (Path(path).parent / "log").open("a") as log:
        log_to(log)
        node.listeners += [Log(config.site), Record(Path(path).parent / RECORD)]
        node.run()


def run_command(path):
    """Be `dekrr node --log-json`, with its exit code and what it says in a file."""
    with (Path(path).parent / "said").open("w") as sys.stderr:
        try:
            node(Path(path), log_json=True)
        except typer.Exit as stop:
            sys.exit(stop.exit_code)


_taken = []  # files that are locked until this process ends, one for each port


def free_ports(count):
    """Return ports that nobody listens on, and that no other process of tests gets, before this one ends.

    They are outside the range from which outgoing connections take theirs.
    """
    folder, found = Path(tempfile.gettempdir(), "dekrr-ports-of-tests"), []
    folder.mkdir(exist_ok=True)
    for port in random.SystemRandom().sample(range(20_000, 32_000), 12_000):
        with contextlib.suppress(OSError), socket.socket() as each, contextlib.ExitStack() as stack:
            taken = stack.enter_context((folder / str(port)).open("w"))
            lock(taken.fileno())
            each.bind(("127.0.0.1", port))
            _taken.append(stack.pop_all())
            found.append(port)
        if len(found) == count:
            return found
    raise AssertionError(f"there are no {count} free ports")


def wait_until(condition, seconds=60.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)
