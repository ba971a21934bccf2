"""Standing sites on loopback, for the tests of studies."""

import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pandas as pd

from dekrr import load
from dekrr.mesh import keys
from dekrr.mesh.files import read_standing, to_toml
from dekrr.mesh.standing import StandingSite
from dekrr.mesh.studies.versions import Versions
from meshes import free_ports, wait_until

COLUMNS = ["u", "v"]
STUDY = """name = "{name}"
sites = {sites}
source = "rows"
expires = 2099-01-01
patience = {patience}
start_patience = {start_patience}
{more}
[data]
target = "y"
columns = ["u", "v"]
[settings]
n_features = 10
features = "energy"
sigma = 0.5
alpha = 1e-3
consensus = 1.0
{parts}"""
ALONE = "".join(f'{name} = "none"\n' for name in ("shared", "local", "column_scales"))
WARN = 'lone_neighbor = "warn"\n'  # for two sites, of which masks hide nothing, and for any number of rounds


class Consortium:
    """Files of standing sites, each with its keys and rows; neighbours along a ring unless edges are given."""

    def __init__(self, folder, names, *, edges=None, rows=80, relayed=(), hosts=None):
        self.folder, self.names = Path(folder), list(names)
        count = len(self.names)
        ring = [(self.names[i], self.names[(i + 1) % count]) for i in range(count if count > 2 else 1)]
        self.edges = edges or ring
        ports = free_ports(count + 1)
        self.hosts = hosts or {name: f"127.0.0.1:{port}" for name, port in zip(self.names, ports, strict=False)}
        self.relay_host = self.hosts.get("relay", f"127.0.0.1:{ports[-1]}")
        self.authority = keys.Authority.new("test")
        self.authority.save(self.folder)
        rng = np.random.default_rng(0)
        for name in self.names:
            home = self.home(name)
            home.mkdir()
            table = pd.DataFrame(rng.uniform(size=(rows, 2)), columns=COLUMNS)
            table.assign(y=np.sin(5 * table["u"]) + table["v"], secret=1.0).to_parquet(home / "rows.parquet")
            self.give_keys(name, self.hosts[name])
            them = [b if a == name else a for a, b in self.edges if name in (a, b)]
            site = {
                "site": name,
                "listen": "" if name in relayed else self.hosts[name],
                "neighbors": {p: "relay" if {p, name} & set(relayed) else self.hosts[p] for p in them},
                "relay": self.relay_host,
                "sources": {"rows": "rows.parquet"},
                "keys": {"authority": "authority.pem", "certificate": "certificate.pem", "key": "key.pem"},
            }
            (home / "site.toml").write_text(to_toml(site))
            if count == 2:
                (home / "policy.toml").write_text(WARN)
        if relayed:
            self.home("relay").mkdir()
            self.give_keys("relay", self.relay_host)
            about = {"name": "relay", "listen": self.relay_host, "sites": self.names, "keys": site["keys"]}
            (self.home("relay") / "relay.toml").write_text(to_toml(about))

    def copied_to(self, folder):
        """Return the same sites in a fresh copy of their files."""
        copy = object.__new__(Consortium)
        copy.__dict__.update(self.__dict__)
        copy.folder = folder
        shutil.copytree(self.folder, folder)
        return copy

    def give_keys(self, name, endpoint, **validity):
        home = self.home(name)
        if not (home / keys.KEY).exists():
            key, request = keys.new_request(name, endpoint.rpartition(":")[0])
            keys.write_new(home / keys.KEY, key, private=True)
            (home / keys.REQUEST).write_bytes(request)
            (home / keys.AUTHORITY_CERTIFICATE).write_bytes(self.authority.pem)
        signed = self.authority.sign(keys.read_request(home / keys.REQUEST), **validity)
        (home / "new").write_bytes(signed)
        (home / "new").rename(home / keys.CERTIFICATE)

    def home(self, name):
        return self.folder / name

    def study(self, name="air", sites=None, patience=20.0, start_patience=60.0, more="", parts=ALONE):
        path = self.folder / f"{name}.toml"
        listed = json.dumps(list(sites or self.names))
        parts += WARN if len(sites or self.names) == 2 else ""
        given = {"patience": patience, "start_patience": start_patience, "more": more, "parts": parts}
        path.write_text(STUDY.format(name=name, sites=listed, **given))
        return path

    def allow_any_rounds(self):
        """Let all sites take part in runs that warn of what masks do not hide: their rounds have no end from masks."""
        for name in self.names:
            (self.home(name) / "policy.toml").write_text(WARN)

    def command(self, name, *words, code=0, place=None):
        """Run a command of one site's people."""
        group = words[0] if words[0] in ("audit", "node", "relay") else "study"
        rest = words[1:] if group == words[0] else words
        program = [sys.executable, "-c", "from dekrr.cli import main; main()", group, *map(str, rest)]
        program += ["--site", str(self.home(name) / "site.toml")]
        done = subprocess.run([*(place or []), *program], capture_output=True, text=True, timeout=100)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def process(self, name, *, place=None, file="site.toml", command="node"):
        """Start a standing site, or the relay, as a process."""
        program = [sys.executable, "-c", "from dekrr.cli import main; main()", command, str(self.home(name) / file)]
        log = (self.home(name) / "log").open("a")
        return subprocess.Popen(
            [*(place or []), *program], stderr=log, stdout=log, env={**os.environ, "OMP_NUM_THREADS": "1"}
        )

    def open(self, name):
        return StandingSite(read_standing(self.home(name) / "site.toml"), self.home(name))

    def versions(self, name, study="air"):
        (found,) = (self.home(name) / "studies").glob(f"{study}-*")
        return Versions(found)

    def done(self, number, study="air", names=None):
        def is_done():
            for name in names or self.names:
                if not list((self.home(name) / "studies").glob(f"{study}-*")):
                    return False
                if not [s for s in self.versions(name, study).states if s.number == number and s.state == "done"]:
                    return False
            return True

        return is_done

    def model(self, name, study="air"):
        return load(self.versions(name, study).folder / "current" / "model.safetensors")


class Standing:
    """Standing sites in threads of this process."""

    def __init__(self, consortium, names=None):
        self.sites = {name: consortium.open(name) for name in names or consortium.names}
        self._threads = [threading.Thread(target=site.run, daemon=True) for site in self.sites.values()]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self.sites

    def __exit__(self, *_):
        for site in self.sites.values():
            site.stop()
        for thread in self._threads:
            thread.join(30)


__all__ = ["COLUMNS", "Consortium", "Standing", "wait_until"]
