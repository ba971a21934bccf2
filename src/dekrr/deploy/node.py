"""A site of a mesh as a process: its rows, its session, its checkpoint, its model and its record."""

import gc
import hashlib
import hmac
import io
import json
import math
import queue
import secrets
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any

import msgspec
import numpy as np

from ..disk import replacing, synchronise
from ..errors import DataError, ModelFileError, SettingsError
from ..model import Header, SiteModel
from ..privacy.guards import Ledger
from ..privacy.vault import Vault
from ..protocols import dekrr
from ..protocols.outcome import Outcome, members_of
from ..protocols.site import Procedure, Site
from ..protocols.tuning import Tuned
from ..rows import Rows, StreamedRows
from ..selection import SELECTORS
from ..sources import open_source
from . import keys
from .config import METHODS, SiteFile
from .journal import Ended, FileJournal, Opening
from .mesh import Keys, Link, MeshNetwork
from .session import Offer, Plan, Session

CHECKPOINT, MODEL, RECORD, SECRET = "checkpoint", "model.safetensors", "run.jsonl", "secret"
_EXCHANGES_AT_A_TIME = 128  # lines of a record that are written together
_LONG = ("neighbors", "terms", "site")  # what a line of words leaves out
_STRANGER = "somebody at the TLS handshake"
_TITLES = {"dekrr": "DeKRRRegressor", "dkla": "DKLARegressor", "allreduce": "AllReduceRegressor"}
Listener = Callable[[str, Mapping[str, Any]], None]


def link_of(config: SiteFile, folder: Path, *, insecure: bool) -> Link:
    """Return where a site listens and whom it reaches; refuse to go without keys unless told to."""
    if insecure:
        return Link(config.site, config.listen, config.neighbors, None)
    if config.keys is None:
        raise SettingsError(
            f"site {config.site!r} has no keys. Make some with dekrr keys new and have them signed, or, for a trial "
            "on one machine alone, give --insecure"
        )
    found = Keys(folder / config.keys.authority, folder / config.keys.certificate, folder / config.keys.key)
    keys.check(found.authority, found.certificate, found.key, config.site)
    return Link(config.site, config.listen, config.neighbors, found)


def open_rows(config: SiteFile, folder: Path) -> Rows:
    """Return a site's rows, to be read in batches, after a first pass that finds mistakes in them."""
    source = open_source(folder / config.data.file)
    there = source.columns or []
    missing = [name for name in (*config.data.columns, config.data.target) if name not in there]
    if missing:
        raise DataError(f"{source.name} has no columns {', '.join(missing)}; it has {', '.join(there)}")
    rows = StreamedRows(source, config.data.columns, config.data.target, seed=config.features().seed)
    _ = rows.survey
    return rows


class Node:
    """One site's process.

    Parameters
    ----------
    config : SiteFile
    folder : Path
        Where site.toml is; the model, the record and the checkpoint go there too.
    insecure : bool, default=False
        Plain TCP on loopback.
    fresh : bool, default=False
        Ignore a checkpoint.
    force : bool, default=False
        Replace a model that is there.

    Attributes
    ----------
    listeners : list of callables
        Told every event, with details.
    """

    def __init__(
        self,
        config: SiteFile,
        folder: Path,
        *,
        insecure: bool = False,
        fresh: bool = False,
        force: bool = False,
    ) -> None:
        self.config = config
        self.folder = folder
        self.listeners: list[Listener] = []
        self._link = link_of(config, folder, insecure=insecure)
        self._rows = open_rows(config, folder)
        there = (folder / MODEL).exists()
        self.is_over = there and not fresh and _has_ended(config, folder / CHECKPOINT)
        if there and not force and not self.is_over:
            raise DataError(f"{folder / MODEL} is already there; --force replaces it")
        self._ledger = Ledger()
        self._vault = Vault(folder / f"{config.run}.release")
        terms = config.terms(version("dekrr"))
        digest = _digest(terms, tuple(sorted(config.neighbors)), folder / config.data.file)
        plan = Plan(
            run=config.run,
            name=config.site,
            neighbors=tuple(sorted(config.neighbors)),
            sites=frozenset(config.sites),
            terms=terms,
            digest=digest,
            origin=hmac.digest(_secret(folder / SECRET), digest.encode(), "sha256").hex(),
            patience=config.patience,
            start_patience=config.start_patience,
        )
        self._journal = FileJournal(folder / CHECKPOINT, fresh=fresh or (force and self.is_over))
        self.is_over &= not force
        self.session = Session(plan, self._procedure, self._journal, self._tell)
        self.network = MeshNetwork(self._link, self.status)
        self.seconds_waiting = 0.0
        self._strangers: queue.SimpleQueue[str] = queue.SimpleQueue()

    def run(self) -> SiteModel:
        """Take part in the run to its end; the model is written as soon as it stands."""
        plan = self.session.plan
        about = {"run": plan.run, "site": plan.name, "rows": self._rows.n_rows, "neighbors": list(plan.neighbors)}
        self._tell("started", {**about, "terms": dict(plan.terms)})
        try:
            with _nothing_old_collected():
                outcome = self.network.run(self.session, self._after)
        except BaseException as error:
            self._tell("stopped", {"reason": str(error) or type(error).__name__, **self.status()})
            raise
        finally:
            self._journal.close()
        self.forget()
        self._tell("ended", self.status())
        return self._model(outcome)

    def forget(self) -> None:
        """Remove the checkpoint of a run that is over."""
        self._journal.close()
        synchronise(self.folder / MODEL)
        (self.folder / CHECKPOINT).unlink(missing_ok=True)

    def status(self) -> dict[str, Any]:
        """Return how the site is doing, as JSON can hold it."""
        session = self.session
        peers, sent = {}, session.traffic.bytes
        for name, peer in session.peers.items():
            state = "gone" if name in session.gone else "up" if peer.up else "away"
            in_bytes = sent[session.plan.name, name]
            peers[name] = {"state": state, "waited for": name in session.missing, "bytes sent": in_bytes}
        residual = session.residual
        return {
            "run": session.plan.run,
            "site": session.plan.name,
            "phase": session.phase,
            "gone": sorted(session.gone),
            "exchange": session.exchange,
            "round": session.rounds,
            "residual": residual if np.isfinite(residual) else None,
            "seconds waiting": round(self.seconds_waiting, 3),
            "message bytes sent": session.traffic.total_bytes,
            "wire bytes sent": self.network.wire_bytes,
            "neighbors": peers,
        }

    def _procedure(self, neighbors: tuple[str, ...], offer: Offer | None) -> Procedure[Outcome]:
        features = self.config.features()
        selector = SELECTORS[features.features](
            features.n_features, kernel=features.kernel, sigma=features.sigma, mapping=features.mapping
        ).checked()
        tuning = self.config.tuning()
        site = Site(self.config.site, neighbors, self._rows, seed=features.seed)
        site = replace(site, ledger=self._ledger, vault=self._vault)
        settings = self.config.method_settings(len(self.session.gone))
        if self.config.method == "dekrr":
            if offer is not None and tuning is None:
                site = dekrr.with_features(site, offer, selector, settings)
            return dekrr.train(site, selector, settings, tuning)
        procedure: Procedure[Outcome] = METHODS[self.config.method].train(site, selector, settings)
        return procedure

    def _model(self, outcome: Outcome) -> SiteModel:
        features = self.config.features()
        members = members_of(outcome, features.prediction)
        header = Header(
            site=self.config.site,
            method=_TITLES[self.config.method],
            kernel=features.kernel,
            sigma=outcome.tuned.sigma if outcome.tuned else features.sigma,
            n_columns=len(self.config.data.columns),
            columns=list(self.config.data.columns),
            n_members=len(members),
            scaled=outcome.scaling is not None,
            privacy=outcome.privacy,
        )
        return SiteModel(header, members, outcome.scaling)

    def _save(self, model: SiteModel) -> None:
        """Write the model, if need be as soon as there is space for it within a patience, and that the run is over."""
        path, until = self.folder / MODEL, time.monotonic() + self.session.plan.patience
        while True:
            try:
                model.save(path)
                break
            except (OSError, ModelFileError) as error:
                self._tell("model not written", {"path": str(path), "reason": str(error)})
                if time.monotonic() > until:
                    raise
                time.sleep(min(1.0, self.session.plan.patience))
        with suppress(OSError):
            synchronise(path)
            self._journal.append(Ended())
            self._journal.flush()

    def refuse_stranger(self, reason: str) -> None:
        """Have it told once, from the node's own thread, that a peer was refused before it could say who it is."""
        self._strangers.put(reason)

    def _after(self, waited: float) -> None:
        self.seconds_waiting += waited
        while not self._strangers.empty():  # nobody else takes from it
            self.session.refuse(_STRANGER, self._strangers.get_nowait())

    def _tell(self, event: str, details: Mapping[str, Any]) -> None:
        if event == "finished":
            assert self.session.result is not None
            self._save(self._model(self.session.result))
            details = {**self.status(), **_summary(self.session.result)}
        for listener in self.listeners:
            listener(event, details)


@contextmanager
def _nothing_old_collected() -> Iterator[None]:
    """Keep the garbage collector from what was there before: going through all modules would stop rounds for long."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _summary(outcome: Outcome) -> dict[str, Any]:
    return {
        "rounds": outcome.rounds,
        "settled": outcome.settled,
        "relative residual": outcome.relative_residual,
        "objective share": outcome.objective_shares[-1],
        "sites": outcome.roster.n_sites,
        "rows of all sites": outcome.roster.n_rows,
        **(_tuned(outcome.tuned) if outcome.tuned else {}),
    }


def _tuned(tuned: Tuned) -> dict[str, Any]:
    return {
        "sigma": tuned.sigma,
        "alpha": tuned.alpha,
        "consensus": tuned.consensus,
        "own weight": tuned.own_weight,
        "held-out error": float(np.min(tuned.errors)),
    }


def _has_ended(config: SiteFile, checkpoint: Path) -> bool:
    """Return whether a checkpoint says that this run's model was written."""
    if not checkpoint.exists():
        return False
    journal = FileJournal(checkpoint)
    try:
        records = list(journal.records())
    finally:
        journal.close()
    openings = [record for record in records if isinstance(record, Opening)]
    if not openings or not isinstance(records[-1], Ended):
        return False
    return (openings[-1].run, openings[-1].site) == (config.run, config.site)


def _secret(path: Path) -> bytes:
    """Return 32 random bytes that stay with the site, for its owner's eyes alone."""
    if not path.exists():
        with replacing(path) as temporary:
            temporary.write_bytes(secrets.token_bytes(32))
            synchronise(temporary)
    return path.read_bytes()


def _digest(terms: Mapping[str, str], neighbors: tuple[str, ...], data: Path) -> str:
    digest = hashlib.sha256(json.dumps([terms, neighbors], sort_keys=True).encode())
    for path in sorted(data.rglob("*")) if data.is_dir() else [data]:
        if path.is_file():
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


class Record:
    """Appends every event to a file of JSON lines, which `dekrr report` reads.

    Parameters
    ----------
    path : Path
    session : Session
        Whose exchanges are recorded.
    """

    def __init__(self, path: Path, session: Session) -> None:
        self._path = path
        self._file: io.FileIO | None = io.FileIO(path, "ab")
        self._whole = path.read_bytes().rfind(b"\n") + 1
        self._file.truncate(self._whole)  # what a crash left of a line
        self._session = session
        self._exchanges: list[tuple[float, int, int, float]] = []

    def __call__(self, event: str, details: Mapping[str, Any]) -> None:
        """Write an event; exchanges are written many at a time."""
        if event == "exchange":
            session = self._session
            self._exchanges.append((time.time(), session.exchange, session.rounds, session.residual))
            if len(self._exchanges) < _EXCHANGES_AT_A_TIME:
                return
            lines = self._lines()
        else:
            lines = [*self._lines(), {"time": time.time(), "event": event, **details}]
        self._write(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))

    def _write(self, data: bytes) -> None:
        """Append whole lines, or give up for good: a run does not end because its record cannot be kept."""
        if self._file is None:
            return
        written = 0
        try:
            while written < len(data):
                written += self._file.write(data[written:])
            self._whole += written
        except OSError as error:
            with suppress(OSError):
                self._file.truncate(self._whole)
            with suppress(OSError):
                self._file.close()
            with suppress(OSError):
                print(f"{self._path} is kept no longer, the run goes on: {error}", file=sys.stderr, flush=True)
            self._file = None

    def _lines(self) -> list[dict[str, Any]]:
        taken, self._exchanges = self._exchanges, []
        return [
            {
                "time": when,
                "event": "exchange",
                "exchange": exchange,
                "round": rounds,
                "residual": residual if math.isfinite(residual) else None,
            }
            for when, exchange, rounds, residual in taken
        ]


class Log:
    """Tells events on a stream: as a line of words, or as JSON.

    Parameters
    ----------
    site : str
    as_json : bool
    stream : text stream, optional
        Standard error by default.
    """

    def __init__(self, site: str, *, as_json: bool, stream: IO[str] | None = None) -> None:
        self._site = site
        self._json = as_json
        self._stream = stream or sys.stderr

    def __call__(self, event: str, details: Mapping[str, Any]) -> None:
        """Tell an event; single exchanges are left out."""
        if event == "exchange":
            return
        if self._json:
            line = json.dumps({"time": time.time(), "site": self._site, "event": event, **details})
        else:
            words = " ".join(f"{key}={_plain(value)}" for key, value in details.items() if key not in _LONG)
            line = f"{time.strftime('%H:%M:%S')} {self._site} {event} {words}"
        print(line, file=self._stream, flush=True)


def _plain(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def serve_metrics(port: int, status: Callable[[], Mapping[str, Any]]) -> None:
    """Serve Prometheus metrics of a node on a port of the loopback address."""
    from prometheus_client import CollectorRegistry, start_http_server
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    class Collector:
        def collect(self) -> Any:
            now = status()
            for name, key, text in (
                ("dekrr_exchange", "exchange", "The exchange that the site waits in."),
                ("dekrr_round", "round", "Rounds of the solver."),
                ("dekrr_residual", "residual", "The largest relative residual heard of."),
                ("dekrr_waiting_seconds", "seconds waiting", "Seconds spent waiting for neighbours."),
                ("dekrr_wire_bytes", "wire bytes sent", "Bytes handed to the network, with framing and repeats."),
            ):
                yield GaugeMetricFamily(name, text, value=float("nan") if now[key] is None else now[key])
            sent = CounterMetricFamily("dekrr_message_bytes", "Bytes of messages sent.", labels=["neighbor"])
            state = GaugeMetricFamily(
                "dekrr_neighbor", "Whether a neighbour is in this state.", labels=["neighbor", "state"]
            )
            for neighbor, about in now["neighbors"].items():
                sent.add_metric([neighbor], about["bytes sent"])
                for name in ("up", "away", "gone"):
                    state.add_metric([neighbor, name], float(about["state"] == name))
            yield sent
            yield state

    registry = CollectorRegistry()
    registry.register(Collector())
    start_http_server(port, addr="127.0.0.1", registry=registry)
