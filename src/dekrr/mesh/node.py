"""A site of a mesh as a process: its rows, its session, its checkpoint, its model and its record."""

import gc
import hashlib
import hmac
import json
import math
import queue
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec

from ..disk import replacing, synchronise
from ..errors import DataError, DekrrError, ModelFileError, NetworkError, NoiseWarning, WrongRowsWarning
from ..messages import Offer
from ..model import Header, SiteClassifier, SiteModel, model_of, uncalibrated
from ..privacy.admission import AskedMaps
from ..privacy.masks import Identity, Signer, Unsigned, derived_secret
from ..protocols.run import Outcome
from ..protocols.site import Procedure, Site
from ..tables.columns import Columns
from .addresses import ways_of
from .after_loss import KeptOnDisk, guarded
from .carrier import Carrier
from .config import SiteFile, protocol_of
from .driving import MeshNetwork
from .identity import CertificateSigner, SiteIdentity
from .procedure import Warm, procedure_of
from .reading import MessageReader
from .record import Exposed, LooksWrong, ModelNotWritten, Noisy, Released, Started, Stopped, finished
from .sealing import DataSeal
from .session import Phase, Plan, Session
from .session.events import Event, Listener
from .session.journal import Ended, FileJournal, Opening
from .site_rows import SiteRows, classes_of
from .status import STATE, Status, status_of, telling_state
from .vault import FileVault

CHECKPOINT, MODEL, SECRET = "checkpoint", "model.safetensors", "secret"
_LOOK_EVERY = 2.0  # seconds
_STRANGER = "somebody at the TLS handshake"
_TITLES = {"dekrr": "DeKRRRegressor", "dkla": "DKLARegressor", "allreduce": "AllReduceRegressor"}


class Node:
    """One site's process.

    - `folder`: the folder of site.toml; the model, the record and the checkpoint go there, too
    - `insecure`: use plain TCP on loopback
    - `fresh`: ignore an existing checkpoint
    - `force`: replace an existing model
    - `keep`: the folder of what is kept from run to run: the secret, which rows were in sums, which may be. By default
      `folder`.
    - `carrier`: carries frames for several runs of this process; by default the run has links of its own
    - `identity`: the site's certificate and private key, which prove its keys for masks; by default those that `config`
      names
    - `warm`: the start from an earlier run; all sites have it, or none
    - `total_epsilon`: what this site lets runs over its rows spend together, whatever `max_epsilon` says
    - `rules`: called with the number of rows and the times of earlier runs over them; raises an error if the site
      refuses
    - `listeners`: each gets every event, from the thread that runs the node
    """

    def __init__(
        self,
        config: SiteFile,
        folder: Path,
        *,
        insecure: bool = False,
        fresh: bool = False,
        force: bool = False,
        keep: Path | None = None,
        carrier: Carrier | None = None,
        identity: SiteIdentity | None = None,
        warm: Warm | None = None,
        total_epsilon: float = math.inf,
        rules: Callable[[int, list[float]], None] | None = None,
    ) -> None:
        self.config = config
        self._warm = warm
        self.folder = folder
        self.listeners: list[Listener] = []
        self._kept_in = keep or folder
        self._stop = ""
        ways = ways_of(config, folder, insecure=insecure) if carrier is None else carrier.ways
        secret = kept_secret(self._kept_in / SECRET)
        self._own = SiteRows(config, folder, self._kept_in, secret, total_epsilon, rules)
        there = (folder / MODEL).exists()
        self.is_over = there and not fresh and _has_ended(config, folder / CHECKPOINT)
        if there and not force and not self.is_over:
            raise DataError(f"{folder / MODEL} is already there; --force replaces it")
        if not self.is_over:
            self._own.refuse_beforehand(Site(config.site, tuple(sorted(config.neighbors)), self._own.rows))
        self._ledger = AskedMaps()
        self._kept = KeptOnDisk(folder / f"{config.run}.summed")
        self._nonce = folder / f"{config.run}.nonce"  # neighbours cannot compare the rows of two runs
        if fresh:
            self._nonce.unlink(missing_ok=True)
            self._kept.forget()
        self._vault = FileVault(folder / f"{config.run}.release", secret)
        self._own.judge(repeats=there and force)
        terms = config.terms(protocol_of(version("dekrr")), config.sites) | (
            {} if warm is None else {"start": "the last model"}
        )
        digest = _digest(terms, tuple(sorted(config.neighbors)), self._own.rows.digest)
        secret += kept_secret(self._nonce)
        self._masks_secret = derived_secret(secret, "masks", digest)
        if carrier is None and not insecure:
            identity = SiteIdentity.of(config, folder)
        self._signer: Signer = Unsigned() if identity is None else CertificateSigner(identity)
        self._columns: Columns | None = None  # what raw columns have become
        self._told: set[str] = set()
        plan = Plan(
            run=config.run,
            name=config.site,
            neighbors=tuple(sorted(config.neighbors)),
            sites=frozenset(config.sites),
            terms=terms,
            digest=digest,
            origin=hmac.digest(secret, digest.encode(), "sha256").hex(),
            patience=config.patience,
            start_patience=config.start_patience,
        )
        self._journal = FileJournal(folder / CHECKPOINT, fresh=fresh or (force and self.is_over))
        self.is_over &= not force
        self._events: deque[Event] = deque()
        self.session = Session(plan, self._procedure, MessageReader(), self._journal, self._events.append)
        # Masks hide sums, and prove whose they are. Without masks, data are sealed under certificates that count.
        sealed_by = None if terms.get("masks") == "true" else identity
        own = Carrier(ways, sealed_by, refused=self.session.distrust, sealing=DataSeal)
        self._own_links = own if carrier is None else None
        self._look_at = 0.0
        self.network = MeshNetwork(carrier or own)
        self._seconds_waiting = 0.0
        self._strangers: queue.SimpleQueue[str] = queue.SimpleQueue()

    @property
    def n_rows(self) -> int:
        """The number of this site's rows."""
        return self._own.rows.n_rows

    def note_rows(self) -> None:
        """Note, on the disk, that this run's rows are in sums; the run does so, too, before anything of them leaves."""
        self._own.enter()

    def close(self) -> None:
        """Close the checkpoint of a run that does not take place."""
        self._journal.close()

    def stop(self, reason: str) -> None:
        """Let the run end soon, with an error; another thread may call this."""
        self._stop = reason

    def run(self) -> SiteModel:
        """Take part in the run to its end; the model is written as soon as it stands."""
        plan = self.session.plan
        self._tell(
            Started(
                run=plan.run,
                site=plan.name,
                rows=self._own.rows.n_rows,
                neighbors=list(plan.neighbors),
                terms=dict(plan.terms),
            )
        )
        try:
            with _nothing_old_collected(), telling_state(self.folder / STATE, self.status):
                outcome = self.network.run(self.session, self._keep, self._after)
        except BaseException as error:
            reason = str(error) or type(error).__name__
            self._tell(Stopped(reason=reason, **msgspec.structs.asdict(self.status())))
            raise
        finally:
            self._journal.close()
            if self._own_links is not None:
                self._own_links.close()
        self.forget()
        self._tell(Released(**msgspec.structs.asdict(self.status())))
        return self._model(outcome)

    def forget(self) -> None:
        """Remove the checkpoint of a run that is over."""
        self._journal.close()
        synchronise(self.folder / MODEL)
        (self.folder / CHECKPOINT).unlink(missing_ok=True)
        self._nonce.unlink(missing_ok=True)
        self._kept.forget()

    def status(self) -> Status:
        """Return the status of the site."""
        return status_of(self.session, seconds_waiting=self._seconds_waiting, wire_bytes=self.network.wire_bytes)

    def _procedure(self, neighbors: tuple[str, ...], offer: Offer | None) -> Procedure[Outcome]:
        site = Site(self.config.site, neighbors, self._own.rows, seed=self.config.features().seed)
        site = replace(site, ledger=self._ledger, vault=self._vault, identity=self._identity(), tell=self._tell_once)
        site = replace(site, kept=self._kept, doubts=True)
        lost = sorted(self.session.lost)
        self._kept.epoch = ", ".join(lost)
        self._own.enter()

        def train() -> Procedure[Outcome]:
            encoded, columns = yield from self._own.prepared(site)
            self._columns = columns
            return (yield from procedure_of(self.config, encoded, offer, len(lost), columns, self._warm))

        outcome = yield from guarded(site, train, self.config.method_settings())
        outcome.encoding = self._columns
        return outcome

    def _identity(self) -> Identity:
        """Return the site's key for masks in this epoch, the same whenever the site goes through it again."""
        lost = sorted(self.session.lost)
        private = derived_secret(self._masks_secret, *lost)
        return Identity(json.dumps([self.config.run, lost]), private, self._signer, self.session.course.present_graph)

    def _renew(self) -> None:
        """Use a new certificate; where that fails it is tried again."""
        if self._own_links is not None and time.monotonic() > self._look_at:
            self._look_at = time.monotonic() + _LOOK_EVERY
            with suppress(DekrrError):
                self._own_links.renew_if_changed(lambda: SiteIdentity.of(self.config, self.folder))

    def _tell_once(self, text: str, category: type[Warning] = UserWarning) -> None:
        if text not in self._told:
            self._told.add(text)
            kinds: dict[type[Warning], Any] = {NoiseWarning: Noisy, WrongRowsWarning: LooksWrong}
            self._events.append(kinds.get(category, Exposed)(reason=text))

    def _model(self, outcome: Outcome) -> SiteModel:
        features, columns = self.config.features(), outcome.encoding
        header = Header(
            site=self.config.site,
            method="DeKRRClassifier" if self.config.data.classes else _TITLES[self.config.method],
            kernel=features.kernel,
            sigma=outcome.tuned.sigma if outcome.tuned else outcome.sigma or features.sigma,
            n_columns=len(self.config.data.columns) if columns is None else columns.n_out,
            columns=list(self.config.data.columns),
            encoding=columns,
            targets=list(self.config.data.targets),
            version=1 if columns is None else 2,
        )
        model = model_of(outcome, header, features.prediction, self.config.response())
        if not self.config.data.classes:
            return model
        classes = classes_of(self.config)
        return SiteClassifier.of(model, classes, outcome.classes or uncalibrated(len(classes)))

    def _keep(self, outcome: Outcome) -> None:
        """Write the model, and log the end of the run."""
        path = self.folder / MODEL
        self._save(self._model(outcome), path)
        with suppress(OSError):
            synchronise(path)
            self._journal.append(Ended())
            self._journal.flush()
        self._tell(finished(self.status(), outcome, self.config.response()))
        outcome.held_out = None  # its rows are not needed any more

    def _save(self, model: SiteModel, path: Path) -> None:
        """Write the model; on a write error, for instance of a full disk, try again until the patience is over."""
        until = time.monotonic() + self.config.patience
        while True:
            try:
                model.save(path)
                return
            except (OSError, ModelFileError) as error:
                self._tell(ModelNotWritten(path=str(path), reason=str(error)))
                if time.monotonic() > until:
                    raise
                time.sleep(min(1.0, self.config.patience))

    def refuse_stranger(self, reason: str) -> None:
        """Report once, from the node's own thread, that a peer without a name was refused."""
        self._strangers.put(reason)

    def _after(self, waited: float) -> None:
        self._seconds_waiting += waited
        while not self._strangers.empty():  # no other thread takes from this queue
            self.session.refuse(_STRANGER, self._strangers.get_nowait())
        self._tell_events()
        self._renew()
        if self._stop and self.session.phase is not Phase.FINISHED:
            raise NetworkError(self._stop)

    def _tell(self, event: Event) -> None:
        """Pass an event to all listeners, after the session's events that still wait."""
        self._events.append(event)
        self._tell_events()

    def _tell_events(self) -> None:
        while self._events:
            event = self._events.popleft()
            for listener in self.listeners:
                listener(event)


@contextmanager
def _nothing_old_collected() -> Iterator[None]:
    """Exclude all existing objects from garbage collection: a pass over all modules would delay a round for long."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


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


def kept_secret(path: Path) -> bytes:
    """Return 32 random bytes that stay with the site, for its owner's eyes alone."""
    if not path.exists():
        with replacing(path, durable=True) as temporary:
            temporary.write_bytes(secrets.token_bytes(32))
    return path.read_bytes()


def _digest(terms: Mapping[str, str], neighbors: tuple[str, ...], rows: str) -> str:
    return hashlib.sha256(json.dumps([terms, neighbors, rows], sort_keys=True).encode()).hexdigest()
