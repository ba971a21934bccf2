"""A standing site: it keeps links to its neighbours, passes statements about studies on, and trains what was approved.

Nothing is computed for a study before all its sites have approved its digest, this one by a person or by its policy.
Each run is a `Node` in a thread of its own; all runs share the site's links. What leaves is in the audit trail before
it leaves.
"""

import logging
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import msgspec

from ..disk import replacing
from ..errors import DataError, DekrrError
from ..model import SiteModel
from ..model_file import load
from ..networks.session import Phase
from . import policy as policies
from .audit_trail import TRAIL, AuditTrail
from .carrier import StandingCarrier
from .keys import warn_of_end
from .node import MODEL, Node
from .procedure import Warm
from .site_rows import open_rows
from .standing_file import StandingFile
from .studies.book import Book, StudyState
from .studies.ends import ends, last_failure, why_over
from .studies.gossip import CHANNEL, Gossip, told
from .studies.items import Call, Report
from .studies.versions import Versions
from .study_run import StudyRun, digest_of_file
from .witness import Witness

logger = logging.getLogger("dekrr")
STUDIES, KEPT, STATE = "studies", "kept", "state.json"
_TELL_EVERY, _LOOK_EVERY, _STATE_EVERY, _WARN_EVERY = 5.0, 2.0, 1.0, 86400.0
_NEW_ROWS_EVERY = 10.0
_AGAIN = 2.0  # seconds until a run that could not begin is tried again


class StandingSite:
    """One site that stays.

    Parameters
    ----------
    config : StandingFile
    folder : Path
        The site's folder.

    Attributes
    ----------
    book : Book
    """

    def __init__(self, config: StandingFile, folder: Path) -> None:
        self.config = config
        self.folder = folder
        self._identity = config.identity(folder)
        self.trail = AuditTrail(folder / TRAIL, self._identity)
        self.book = Book(folder, self._identity)
        self._witness = Witness(config.site, self.trail, self.book)
        self.policy = policies.read_policy(folder / policies.POLICY)
        self._policy_seen = _changed_at(folder / policies.POLICY)
        self._certificate_seen = _changed_at(config.key_files(folder).certificate)
        self._gossip = Gossip(self.book, self._witness.refuse)
        self._carrier = StandingCarrier(config.ways(folder), self._identity, self._witness.leaves, self._witness.refuse)
        self._runs: dict[tuple[str, int], StudyRun] = {}
        self._up: dict[str, bool] = dict.fromkeys(config.neighbors, False)
        self._rows_lock = threading.Lock()
        self._stopping = threading.Event()
        self._stopped_by = ""
        self._due: dict[str, float] = {}

    def stop(self, reason: str = "") -> None:
        """Let `run` end, for a reason that is logged; runs under way keep their checkpoints."""
        self._stopped_by = reason
        self._stopping.set()

    def run(self) -> None:
        """Stay until `stop` is called."""
        with ExitStack() as stack:
            stack.callback(self.trail.close)
            stack.callback(self._carrier.close)
            stack.callback(_end, self._runs)
            opened = self._carrier.open(CHANNEL, self._see)
            arrivals, speak = stack.enter_context(opened)
            logger.info("%s is running; neighbours: %s", self.config.site, ", ".join(sorted(self.config.neighbors)))
            while not self._stopping.is_set():
                try:
                    if self._is_due("statements", _STATE_EVERY):
                        for item in self.book.get(self.book.ids):
                            self._witness.hear(item)
                    self._hear(arrivals, speak)
                    self._look(speak)
                    self._act()
                    if self._is_due("state", _STATE_EVERY):
                        _write_state(self.folder, self.status())
                except (OSError, DekrrError) as error:
                    # For instance a full disk, or a wrong clock: nothing leaves that cannot be audited or signed.
                    self._complain(str(error))
            logger.info("%s is stopped%s", self.config.site, _how(self._stopped_by, self._runs))

    def _complain(self, reason: str) -> None:
        if self._is_due(f"complain {reason}", 60.0):
            logger.warning("%s waits: %s", self.config.site, reason)
        self._stopping.wait(0.5)

    def _see(self, neighbor: str, up: bool) -> None:
        self._up[neighbor] = up
        if up:
            self._due["tell"] = 0.0

    def _hear(self, arrivals: Any, speak: Any) -> None:
        """Take in what neighbours say about studies; wait for a quarter of a second if they say nothing."""
        arrival = arrivals.recv()
        while arrival is not None:
            sender = arrival.key_expr.split("/")[-2]
            if sender in speak:
                answers, news = self._gossip.take(sender, arrival.payload.to_bytes())
                for answer in answers:
                    speak[sender].put(answer)
                for item in news:
                    self._witness.hear(item)
                if news:
                    self._due["tell"] = 0.0
            arrival = arrivals.try_recv()

    def _look(self, speak: Any) -> None:
        """Look for statements of this site's people, a new policy and a new certificate, and tell the neighbours."""
        if self._is_due("look", _LOOK_EVERY / 4):
            for item in self.book.refresh():
                self._witness.hear(item)
                self._due["tell"] = 0.0
        if self._is_due("files", _LOOK_EVERY):
            self._reload_policy()
            self._renew()
        if self._is_due("warn", _WARN_EVERY):
            days = warn_of_end(self.config.site, self.config.key_files(self.folder).certificate)
            if days is not None:
                self.trail.decide("certificate ends", days=round(days, 1))
        if self._is_due("tell", _TELL_EVERY):
            told(speak, self._gossip.tell())
        if self._is_due("seal", 1.0):
            self.trail.seal()

    def _is_due(self, what: str, every: float) -> bool:
        now = time.monotonic()
        if now < self._due.get(what, 0.0):
            return False
        self._due[what] = now + every
        return True

    def _reload_policy(self) -> None:
        path = self.folder / policies.POLICY
        if (seen := _changed_at(path)) != self._policy_seen:
            self._policy_seen = seen
            try:
                self.policy = policies.read_policy(path)
                self.trail.decide("policy", digest=digest_of_file(path))
            except DekrrError as error:
                logger.warning("%s: %s; the previous policy stays in force", self.config.site, error)

    def _renew(self) -> None:
        path = self.config.key_files(self.folder).certificate
        if (seen := _changed_at(path)) != self._certificate_seen:
            self._certificate_seen = seen
            try:
                identity = self.config.identity(self.folder)
            except (DekrrError, OSError, ValueError) as error:
                logger.warning("%s: the new certificate is not used: %s", self.config.site, error)
                return
            self._carrier.renew(identity)
            self.book.identity = self.trail.identity = identity
            self.trail.decide("certificate renewed", days=round(identity.days_left, 1))

    def _act(self) -> None:
        """Decide by policy where it can, begin runs that are due, and end those that were stopped."""
        for state in list(self.book.studies.values()):
            if self.config.site not in state.study.sites:
                continue
            if self.config.site not in state.decisions:
                self._decide(state)
            running = [run for (digest, _), run in self._runs.items() if digest == state.digest and run.is_alive()]
            for run in running:
                _end_if_stopped(state, run)
            if state.may_run and not running:
                self._begin_if_due(state)
            for use in Versions(self.folder / STUDIES / state.label).uses:
                self._witness.used(state.digest, use)

    def _decide(self, state: StudyState) -> None:
        broken = policies.refusals(self.policy, state.study, state.proposer, self.config.sources)
        if broken:
            self._witness.hear(self.book.decide(state.digest, "refuse", "; ".join(broken), "policy"))
        elif self.policy.approval == "policy":
            self._witness.hear(self.book.decide(state.digest, "approve", "no rule is broken", "policy"))
        else:
            return
        self._due["tell"] = 0.0

    def _begin_if_due(self, state: StudyState) -> None:
        versions = Versions(self.folder / STUDIES / state.label)
        known = {one.number: one for one in versions.states}
        self._report_again(state, versions)
        number = min((one.number for one in known.values() if one.state == "running"), default=state.number)
        here = known.get(number)
        if here is None and any(n == number and report.outcome == "model" for (_, n), report in state.reports.items()):
            versions.note(number, "missed", "the other sites have ended it without this one")
        elif here is None or here.state == "running":
            if not self._is_due(f"begin {state.digest}", _AGAIN):
                return
            if policies.refusals(self.policy, state.study, state.proposer, self.config.sources):
                return  # the policy has changed since
            run = StudyRun(self, state, number, versions)
            self._runs[state.digest, number] = run
            run.start()
        elif here.state in ("done", "missed", "failed"):
            self._call_if_due(state, number, here.time)

    def _call_if_due(self, state: StudyState, number: int, ended: float) -> None:
        """Call for the next run if the schedule or new rows ask for one."""
        study = state.study
        if study.every_hours and time.time() - ended > 3600 * study.every_hours:
            self._call(state, number + 1, f"{study.every_hours:g} hours after run {number}")
        elif study.new_rows and self._is_due(f"rows of {state.digest}", _NEW_ROWS_EVERY):
            before = [run.n_rows for (digest, n), run in self._runs.items() if digest == state.digest and run.n_rows]
            path = self.folder / self.config.sources[study.source]
            if before and _n_rows(study, self.config, path, self.folder) >= before[-1] + study.new_rows:
                self._call(state, number + 1, f"at least {study.new_rows} new rows")

    def _call(self, state: StudyState, number: int, reason: str) -> None:
        self._witness.hear(self.book.say(Call(study=state.digest, number=number, reason=reason, time=time.time())))
        self._due["tell"] = 0.0

    def report(self, state: StudyState, number: int, outcome: str, reason: str) -> None:
        """Tell all sites how a run has ended here."""
        self.trail.decide("run ended", study=state.digest, run=number, outcome=outcome, reason=reason)
        line, head = self.trail.n_lines, self.trail.head
        said = Report(state.digest, number, outcome, reason, line, head, time.time())  # type: ignore[arg-type]
        self.book.say(said)
        self._due["tell"] = 0.0

    def _report_again(self, state: StudyState, versions: Versions) -> None:
        """Report runs whose report could not be made when they ended, for instance because the clock was wrong."""
        for one in versions.states:
            if one.state != "running" and (self.config.site, one.number) not in state.reports:
                self.report(state, one.number, "model" if one.state == "done" else "failed", one.reason)

    def node_of(self, state: StudyState, number: int, place: Path) -> Node:
        """Return the node of a run; rows are judged and noted by one run at a time."""
        study = state.study
        file = str((self.folder / self.config.sources[study.source]).absolute())
        neighbors, scheduler = dict(self.config.neighbors), self.config.scheduler
        config = study.site_file(state.run_id(number), self.config.site, neighbors, file, scheduler)
        keep = self.folder / KEPT / study.source
        keep.mkdir(parents=True, exist_ok=True, mode=0o700)
        with self._rows_lock:
            warm = Warm(self._model_before(state, number)) if study.warm and number > 1 else None
            node = Node(config, place, keep=keep, carrier=self._carrier, identity=self._carrier.identity, warm=warm)
            times = [t for t, run in _begun(keep) if run != config.run]
            broken = policies.refusals_of_run(self.policy, study, node.n_rows, times, time.time())
            if broken:
                node.close()
                raise DataError(f"the policy of {self.config.site} refuses the run: {'; '.join(broken)}")
            node.note_rows()
            _note_begun(keep, config.run)
        return node

    def _model_before(self, state: StudyState, number: int) -> SiteModel | None:
        """Return the site's model of the last run before one, if it has any."""
        versions = Versions(self.folder / STUDIES / state.label)
        done = [one.number for one in versions.states if one.state == "done" and one.number < number]
        return load(versions.place(max(done)) / MODEL) if done else None

    def status(self) -> dict[str, Any]:
        """Return the state of the site, its studies and its runs, as `state.json` has it."""
        studies = []
        for state in self.book.studies.values():
            versions = Versions(self.folder / STUDIES / state.label)
            known = ends(state, versions, self.config.site)
            studies.append(
                {
                    "study": state.label,
                    "digest": state.digest,
                    "proposer": state.proposer,
                    "state": state.state,
                    "why": why_over(state) or last_failure(known, self.config.site),
                    "ends": [end._asdict() for end in known],
                    "here": _decision_of(state, self.config.site),
                    "sites": list(state.study.sites),
                    "versions": [msgspec.to_builtins(one) for one in versions.states],
                    "current": versions.current,
                }
            )
        runs = [run.status() for run in list(self._runs.values()) if run.is_alive()]
        return {
            "site": self.config.site,
            "time": time.time(),
            "neighbors": {name: "up" if up else "away" for name, up in self._up.items()},
            "certificate days left": round(self._carrier.identity.days_left, 2),
            "studies": studies,
            "runs": [run for run in runs if run is not None],
            "audit lines": self.trail.n_lines,
        }


def _begun(keep: Path) -> list[tuple[float, str]]:
    path = keep / "begun.json"
    if not path.exists():
        return []
    return msgspec.json.decode(path.read_bytes(), type=list[tuple[float, str]])


def _note_begun(keep: Path, run: str) -> None:
    begun = _begun(keep)
    if run not in {name for _, name in begun}:
        with replacing(keep / "begun.json", durable=True) as temporary:
            temporary.write_bytes(msgspec.json.encode([*begun, (time.time(), run)]))


def _decision_of(state: StudyState, site: str) -> str:
    decision = state.decisions.get(site)
    return "" if decision is None else f"{decision.says} ({decision.by}): {decision.reason}"


def _changed_at(path: Path) -> int:
    return path.stat().st_mtime_ns if path.exists() else 0


def _end_if_stopped(state: StudyState, run: StudyRun) -> None:
    if not state.may_run and not state.is_expired:
        run.stop(f"the study is {state.state}")
    elif not run.resumes and run.phase in (None, Phase.GREETING):
        if state.number > run.number:
            run.stop(f"run {state.number} was called for before run {run.number} had started")
        for (who, number), report in state.reports.items():
            if number == run.number and report.outcome == "failed":
                run.stop(f"run {number} has failed at {who}: {report.reason}")


def _how(stopped_by: str, runs: Mapping[tuple[str, int], StudyRun]) -> str:
    """Return by what a site is stopped, and what becomes of its runs."""
    names = ", ".join(run.name for run in runs.values() if run.is_alive())
    kept = f"; under way: {names}, which goes on from its checkpoint when the site is started again" if names else ""
    return (f" by {stopped_by}" if stopped_by else "") + kept


def _end(runs: Mapping[tuple[str, int], StudyRun]) -> None:
    for run in runs.values():
        run.stop("", quietly=True)
    for run in runs.values():
        run.join(10.0)


def _n_rows(study: Any, config: StandingFile, path: Path, folder: Path) -> int:
    """Return the rows of a study's source now; 0 where they cannot be read."""
    with suppress(DekrrError, OSError):
        file = study.site_file("count", config.site, dict(config.neighbors), str(path), config.scheduler)
        return open_rows(file, folder).n_rows
    return 0


def _write_state(folder: Path, status: dict[str, Any]) -> None:
    with suppress(OSError), replacing(folder / STATE) as temporary:
        temporary.write_bytes(msgspec.json.format(msgspec.json.encode(status)))
