"""Standing sites without a network and without waiting: frames pass at once, and the clock goes as a test says."""

import random
import threading
import time
from collections import Counter, deque
from contextlib import contextmanager

import msgspec

from dekrr.errors import NetworkError
from dekrr.mesh import carrier, standing
from dekrr.mesh.clock import Clock
from dekrr.mesh.files import read_standing
from dekrr.mesh.standing import StandingSite
from dekrr.mesh.studies.gossip import CHANNEL
from dekrr.mesh.study_run import StudyRun


class JumpingClock(Clock):
    """A clock that stands still until it is told to jump."""

    def __init__(self):
        self.now = super().time()

    def time(self):
        return self.now

    def monotonic(self):
        return self.now

    def jump(self, seconds):
        self.now += seconds


class Carrier(carrier.Carrier):
    """A carrier in one process."""

    def __init__(self, wires, ways, identity, leaves, refused):
        super().__init__(ways, identity, leaves, refused)
        self.wires = wires

    @property
    def revoked(self):
        """The neighbours whose certificates the site knows to be revoked."""
        files = self.wires.get("certificates", {})
        return frozenset(name for name, known in files.items() if self.identity.trust.has_revoked(known))

    def renew(self, identity):
        self.identity = identity

    def close(self):
        pass

    @contextmanager
    def open(self, run, seen):
        yield self

    def recv(self):
        return self.try_recv()

    def try_recv(self):
        arrived = self.wires.setdefault(self.identity.site, deque())
        return arrived.popleft() if arrived else None

    def send(self, neighbor, frame):
        """Put a frame into the queue of a neighbour."""
        self.leaves(CHANNEL, neighbor, frame)
        self.wires.setdefault(neighbor, deque()).append((self.identity.site, frame))


class Meetings:
    """Runs that take no time: each ends when all sites have begun it, and gives a file instead of a model."""

    def __init__(self, n_sites):
        self.n_sites, self.n_rows, self.n_frames = n_sites, 80, 0
        self.met, self.lock = Counter(), threading.Lock()

    def take_part(self, run, place):
        run._versions.note(run.number, "running", n_rows=self.n_rows)
        for number in range(self.n_frames):
            said = ["data", run._state.run_id(run.number), "x", [], number, ["degree", random.getrandbits(60)]]
            for neighbor in run._site.config.neighbors:
                run._site._witness.leaves(said[1], neighbor, msgspec.msgpack.encode(said))
        with self.lock:
            self.met[run.name] += 1
        while not self.are_over(run):
            if run._stop_reason is not None:
                raise NetworkError(run._stop_reason)
            time.sleep(0.002)
        (place / "model.safetensors").write_bytes(b"a model")

    def are_over(self, run):
        return self.met[run.name] >= self.n_sites


class Town:
    """Standing sites of a consortium that take their turns when a test says so."""

    def __init__(self, consortium, monkeypatch, clock=None):
        self.consortium, self.clock, self.wires = consortium, clock or JumpingClock(), {}
        self.sites, self.meetings = {}, Meetings(len(consortium.names))
        monkeypatch.setattr(StudyRun, "_why_held_back", lambda run: "")
        monkeypatch.setattr(StudyRun, "_take_part", lambda run, place: self.meetings.take_part(run, place))
        monkeypatch.setattr(standing, "Carrier", lambda *given: Carrier(self.wires, *given))
        for name in consortium.names:
            self.start(name)

    def start(self, name):
        home = self.consortium.home(name)
        self.sites[name] = StandingSite(read_standing(home / "site.toml"), home, self.clock)

    def restart(self, name):
        self.sites[name].trail.close()
        self.sites[name]._store.close()
        self.start(name)

    def turn(self, count=1, seconds=1.0):
        """Let every site take its turn so many times, and runs that all have begun come to their end."""
        for _ in range(count):
            self.clock.jump(seconds)
            for site in self.sites.values():
                site._turn(site._carrier)
            for site in self.sites.values():
                for run in list(site._runs.values()):
                    if self.meetings.are_over(run):
                        run.join(30)
