"""Standing sites with three studies under random faults, as processes: never a wrong model, never an unapproved run.

python tests/soak_studies.py 20          # seeds 0 to 19
python tests/soak_studies.py --first 7 1 # one seed again

A seed draws a schedule of kills, stops (SIGSTOP), partitions, full disks, clock jumps and restarts of the relay,
against three sites. Two studies are approved by all sites, the third by two of three. After the faults every run must
end, every model must be that of the local network for its membership, the third study must not have run, and every
audit trail must verify.
"""

import argparse
import errno
import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import networkx as nx
import numpy as np
import pandas as pd

from consortium import Consortium
from dekrr import load
from dekrr.disk import LockedFile
from dekrr.mesh.audit_trail import TRAIL, read
from dekrr.mesh.carrier import relay
from dekrr.mesh.files import digest_of, parse_study, read_relay, read_standing
from dekrr.mesh.identity import SiteIdentity
from dekrr.mesh.keys import Keys
from dekrr.mesh.node import MODEL
from dekrr.mesh.procedure import procedure_of
from dekrr.mesh.record import log_to
from dekrr.mesh.session.links import ends
from dekrr.mesh.standing import StandingSite
from dekrr.mesh.studies.book import Book
from dekrr.mesh.studies.items import Call, Proposal
from dekrr.mesh.studies.versions import Versions
from dekrr.networks.local import LocalNetwork
from dekrr.privacy.admission import kept
from dekrr.protocols.site import Site
from dekrr.tables.rows import ArrayRows
from lines import Line

NAMES = ["a", "b", "c"]
FAULTS = ["kill", "kill", "kill all", "stop", "cut off", "cut off", "disk", "clock", "relay", "relay"]
DEADLINE = 150.0  # seconds without progress


def stand(home):
    """Be a standing site; files in its folder make its disk full and its clock wrong."""
    home = Path(home)
    write, now = LockedFile.write, time.time

    def full(self, data, at):
        if (home / "disk is full").exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(self, data, at)

    def wrong():
        try:
            return now() + float((home / "clock").read_text())
        except (OSError, ValueError):
            return now()

    LockedFile.write, time.time = full, wrong
    with (home / "log").open("a", buffering=1) as log:
        log_to(log)
        site = StandingSite(read_standing(home / "site.toml"), home)
        signal.signal(signal.SIGTERM, lambda *_: site.stop())
        site.run()


def carry(home):
    """Be the relay."""
    config, home = read_relay(Path(home) / "relay.toml"), Path(home)
    with relay(config.listen, config.sites, Keys(*(home / f"{n}.pem" for n in ("authority", "certificate", "key")))):
        while True:
            time.sleep(1)


class Play:
    """One seed."""

    def __init__(self, folder, seed):
        self.rng = random.Random(seed)
        self.sites = Consortium(folder, NAMES, relayed=("c",))
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(["soak_studies", "pandas", "pyarrow.parquet"])
        self.lines = self._lines()
        self.processes = {}
        self.happened = Counter()
        self.digests = {}

    def _lines(self):
        """Put a line before each address that a site dials; return the lines of each site."""
        found = {name: [] for name in NAMES}
        for name in NAMES:
            path = self.sites.home(name) / "site.toml"
            config = read_standing(path)
            relay, direct = Line(config.relay), {p: Line(e) for p, e in config.neighbors.items() if e != "relay"}
            text = path.read_text().replace(config.relay, relay.endpoint)
            for neighbor, line in direct.items():
                text = text.replace(f'{neighbor} = "{config.neighbors[neighbor]}"', f'{neighbor} = "{line.endpoint}"')
                found[neighbor].append(line)
            path.write_text(text)
            found[name] += [relay, *direct.values()]
        return found

    def start(self, name):
        target = carry if name == "relay" else stand
        process = self.context.Process(target=target, args=(str(self.sites.home(name)),), daemon=True)
        process.start()
        self.processes[name] = process

    def kill(self, name):
        self.processes[name].kill()
        self.processes[name].join()

    def book(self, name):
        home = self.sites.home(name)
        return Book(home, SiteIdentity.of(read_standing(home / "site.toml"), home))

    def propose(self):
        for study in ("one", "two", "three"):
            path = self.sites.study(study, patience=8.0, start_patience=25.0)
            path.write_text(path.read_text() + f"tol = 0.0\nmax_rounds = {self.rng.choice([50, 300])}\n")
            proposer = self.rng.choice(NAMES)
            self.book(proposer).say(Proposal(text=path.read_text(), time=time.time()))
            self.digests[study] = digest_of(path.read_text())

    def approve(self):
        for study, digest in self.digests.items():
            for name in NAMES if study != "three" else NAMES[:2]:
                self.book(name).decide(digest, "approve", "", "soak")

    def fault(self):
        kind, name = self.rng.choice(FAULTS), self.rng.choice(NAMES)
        self.happened[kind] += 1
        home, process = self.sites.home(name), self.processes[name]
        if kind == "kill":
            self.kill(name)
            time.sleep(self.rng.uniform(0, 3))
            self.start(name)
        elif kind == "kill all":
            for one in NAMES:
                self.kill(one)
            for one in self.rng.sample(NAMES, 3):
                self.start(one)
                time.sleep(self.rng.uniform(0, 2))
        elif kind == "stop":
            os.kill(process.pid, signal.SIGSTOP)
            time.sleep(self.rng.uniform(0, 12))
            os.kill(process.pid, signal.SIGCONT)
        elif kind == "cut off":
            for line in self.lines[name]:
                line.break_off() if self.rng.random() < 0.3 else line.hold()
            time.sleep(self.rng.uniform(0, 12))
            for line in self.lines[name]:
                line.mend()
        elif kind == "disk":
            (home / "disk is full").touch()
            time.sleep(self.rng.uniform(0, 4))
            (home / "disk is full").unlink()
        elif kind == "clock":
            (home / "clock").write_text(str(self.rng.choice([-1e5, -4000.0, 4000.0, 1e5, 4e7])))
            time.sleep(self.rng.uniform(0, 4))
            (home / "clock").unlink()
        else:
            self.kill("relay")
            time.sleep(self.rng.uniform(0, 4))
            self.start("relay")

    def run(self):
        self.propose()
        for name in ("relay", *NAMES):
            self.start(name)
        try:
            time.sleep(self.rng.uniform(0, 2))
            self.approve()
            for _ in range(self.rng.randint(1, 4)):
                time.sleep(self.rng.uniform(0, 4))
                self.fault()
            caller = self.rng.choice(NAMES)
            self.book(caller).say(Call(study=self.digests["two"], number=2, reason="soak", time=time.time()))
            self.wait()
        finally:
            for name in NAMES:
                self.processes[name].terminate()
            for process in self.processes.values():
                process.join(20)
                process.kill()
            for line in {line for lines in self.lines.values() for line in lines}:
                line.cut()
        return self.check()

    def wait(self):
        before, until = None, 0.0
        while open_runs := self.open_runs():
            if (now := self.progress()) != before:
                before, until = now, time.monotonic() + DEADLINE
            assert time.monotonic() < until, f"stands still for {DEADLINE:g} seconds: {open_runs}"
            for name, process in self.processes.items():
                assert process.is_alive(), f"{name} has ended: {(self.sites.home(name) / 'log').read_text()[-2000:]}"
            time.sleep(0.3)

    def progress(self):
        """Return what grows as long as runs go on; a busy machine is no hang."""
        kinds = ("run.jsonl", "checkpoint", "model.safetensors")
        paths = [path for kind in kinds for path in self.sites.folder.glob(f"*/studies/*/versions/*/{kind}")]
        sizes = []
        for path in paths:
            with suppress(FileNotFoundError):  # a checkpoint whose run is over
                sizes.append(path.stat().st_size)
        return sizes

    def versions(self, name, study):
        return Versions(self.sites.home(name) / "studies" / f"{study}-{self.digests[study][:8]}")

    def open_runs(self):
        due = {("one", 1), ("two", 2)}
        found = []
        for name in NAMES:
            for study, number in due:
                ended = {s.number for s in self.versions(name, study).states if s.state != "running"}
                found += [] if number in ended else [(name, study, number)]
        return found

    def check(self):
        outcomes = Counter()
        for name in NAMES:
            assert not self.versions(name, "three").states, f"{name} ran what was not approved"
            home = self.sites.home(name)
            book = self.book(name)
            heads = [
                (said.audit_line, said.audit_hash)
                for state in book.studies.values()
                for (who, _), said in state.reports.items()
                if who == name
            ]
            entries = read(home / TRAIL, book.identity.trust, name, heads)
            runs = {entry["run"] for entry in entries if entry["kind"] == "left"}
            assert not [run for run in runs if run.startswith(self.digests["three"][:16])], "an unapproved run left"
            for study in ("one", "two"):
                for state in self.versions(name, study).states:
                    outcomes[state.state] += 1
                    if state.state == "done":
                        self.check_model(name, study, self.versions(name, study).place(state.number))
                    else:
                        outcomes[f"  {state.reason[:60]}"] += 1
        return outcomes

    def check_model(self, name, study, place):
        lines = [json.loads(line) for line in (place / "run.jsonl").read_text().splitlines()]
        finished = [line for line in lines if line["event"] == "finished"]
        if not finished:  # it was killed after its model was written, before the record of it
            return
        gone, lost = finished[-1]["gone"], finished[-1]["lost"]
        graph = nx.Graph(self.sites.edges)
        graph.remove_nodes_from(gone)
        graph.remove_edges_from(map(ends, lost))
        expected = self.expected(parse_study((self.sites.folder / f"{study}.toml").read_text()), graph, place)
        model = load(place / MODEL)
        np.testing.assert_allclose(model.coefficients, expected[name].coefficients, rtol=0, atol=1e-9)

    def expected(self, study, graph, place):
        procedures = {}
        for name in sorted(graph):
            config = study.site_file("x", name, dict.fromkeys(graph[name], ""), "")
            features = config.features()
            table = pd.read_parquet(self.sites.home(name) / "rows.parquet")
            rows = ArrayRows(table[["u", "v"]].to_numpy(), table["y"].to_numpy())
            (rule,) = (self.sites.home(name) / "kept" / "rows").glob("admission-*")
            site = Site(name, tuple(sorted(graph[name])), rows, seed=features.seed, admission=kept(rule, None, 2))
            model = self.versions(name, study.name).place(int(place.name)) / MODEL
            if len(graph) < len(NAMES) and model.exists():  # after a loss sites keep the features that they have
                site = replace(site, feature_map=load(model).feature_map)
            procedures[name] = procedure_of(config, site)
        return LocalNetwork(graph).run(procedures)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("count", nargs="?", type=int, default=20)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no seed later than this")
    parser.add_argument("--keep", type=Path, help="a folder for the files of seeds that failed")
    arguments = parser.parse_args()
    started, outcomes, faults, failed, ran = time.monotonic(), Counter(), Counter(), [], 0
    for seed in range(arguments.first, arguments.first + arguments.count):
        if time.monotonic() - started > arguments.seconds:
            break
        with tempfile.TemporaryDirectory() as folder:
            play = Play(folder, seed)
            ran += 1
            try:
                found = play.run()
                outcomes += found
                print(f"seed {seed}: {dict(play.happened)}, {dict(found)}", flush=True)
            except Exception as error:
                failed.append(seed)
                print(f"seed {seed} failed: {type(error).__name__}: {error}", flush=True)
                if arguments.keep is not None:
                    shutil.copytree(folder, arguments.keep / str(seed), symlinks=True)
            faults += play.happened
    print(f"{ran} seeds in {time.monotonic() - started:.0f} s; failed: {failed}")
    print("faults:", dict(faults))
    print("runs at a site:", json.dumps(dict(outcomes), indent=1))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
