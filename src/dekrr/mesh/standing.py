"""A standing site: it keeps links to its neighbours, passes statements about studies on, and trains what was approved.

Nothing is computed for a study before all its sites have approved its digest, this one by a person or by its policy.
Each run is a `Node` in a thread of its own; all runs share the site's links. What leaves is in the audit trail before
it leaves.
"""

import logging
import subprocess
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from ..errors import DataError, DekrrError
from ..model import SiteModel, load
from . import policy as policies
from .addresses import ways_of
from .audit_trail import TRAIL, AuditTrail
from .carrier import Carrier, Channel
from .clock import Clock
from .config import SiteFile, StandingFile
from .identity import SiteIdentity
from .keys import changed_at, warn_of_end
from .ledger import Folder, Ledger
from .monitoring import tell_systemd
from .new_rows import RowCounts
from .node import MODEL, Node
from .procedure import Warm
from .session import Phase
from .site_rows import LEDGER
from .status import STATE, write_state
from .store import Store
from .studies.book import LAST, Book, StudyState
from .studies.gossip import CHANNEL, Gossip
from .studies.items import Call, Report
from .studies.run_endings import ends, last_failure, why_over
from .studies.versions import HELD_BACK, STUDIES, Versions
from .study_run import StudyRun, digest_of_file
from .witness import Witness

logger = logging.getLogger("dekrr")
KEPT = "kept"
_TELL_EVERY, _LOOK_EVERY, _STATE_EVERY, _DAILY = 5.0, 2.0, 1.0, 86400.0
_COMPLAIN_EVERY = 60.0
_STUCK = 60.0  # seconds without a turn
_HOOK_FOR = 60.0  # seconds that the site's own program may take
_MOST_COMPLAINTS = 1000
_AGAIN = 2.0  # seconds until a run that could not begin is tried again


class StandingSite:
    """One site that stays."""

    def __init__(self, config: StandingFile, folder: Path, clock: Clock | None = None) -> None:
        self.config = config
        self.folder = folder
        self.clock = clock or Clock()
        self._identity = SiteIdentity.of(config, folder)
        self.trail = AuditTrail(folder / TRAIL, self._identity, self.clock)
        self._store = Store(folder)
        self.book = Book(folder, self._identity, self._store, self.clock)
        self._witness = Witness(config.site, self.trail, self.book)
        self.policy = policies.read_policy(folder / policies.POLICY)
        self._policy_seen = changed_at(folder / policies.POLICY)
        self._gossip = Gossip(self.book, self._witness.refuse)
        self._carrier = Carrier(ways_of(config, folder), self._identity, self._witness.leaves, self._witness.refuse)
        self._runs: dict[tuple[str, int], StudyRun] = {}
        self._up: dict[str, bool] = dict.fromkeys(config.neighbors, False)
        self._revoked: frozenset[str] = frozenset()
        self._rows_lock = threading.Lock()
        self._stopping = threading.Event()
        self._stopped_by = ""
        self._due: dict[str, float] = {}
        self._complaints: dict[str, float] = {}
        self._trouble = ""
        self._turned = self.clock.monotonic()
        self._judged: dict[str, int] = {}
        self._waiting: dict[str, str] = {}  # labels of studies that a person here must decide about
        self._called_with: dict[str, int] = {}
        self._row_counts = RowCounts(config, folder, self.clock)

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
            channel = stack.enter_context(self._carrier.open(CHANNEL, self._see))
            logger.info("%s is running; neighbours: %s", self.config.site, ", ".join(sorted(self.config.neighbors)))
            while not self._stopping.is_set():
                self._turn(channel)
            logger.info("%s is stopped%s", self.config.site, _how(self._stopped_by, self._runs))

    def _turn(self, channel: Channel) -> None:
        """Hear, look and act once. Whatever fails is told, and tried again in the next turn."""
        steps = (lambda: self._hear(channel), lambda: self._look(channel), self._act, self._tell_state)
        went_well = [self._goes_well(step) for step in steps]
        self._turned = self.clock.monotonic()
        if all(went_well):
            self._trouble = ""
        else:
            self._stopping.wait(0.5)
        if self._is_due("systemd", _TELL_EVERY):
            tell_systemd("READY=1\nWATCHDOG=1")

    def _goes_well(self, step: Callable[[], None], about: str = "") -> bool:
        """Do something; tell what failed, at most once a minute. A site outlives all its mistakes."""
        try:
            step()
        except Exception as error:
            # For instance a full disk, or a wrong clock: nothing leaves that cannot be audited or signed.
            expected = isinstance(error, OSError | DekrrError)
            what = f"{about}{'' if expected else f'{type(error).__name__}: '}{error}"
            now, self._trouble = self.clock.monotonic(), what
            if now >= self._complaints.get(what, now):
                if len(self._complaints) >= _MOST_COMPLAINTS:
                    self._complaints.clear()
                self._complaints[what] = now + _COMPLAIN_EVERY
                logger.warning("%s waits: %s", self.config.site, what, exc_info=None if expected else error)
            return False
        return True

    def _tell_state(self) -> None:
        if self._is_due("state", _STATE_EVERY):
            write_state(self.folder / STATE, self.status())

    def _see(self, neighbor: str, up: bool) -> None:
        self._up[neighbor] = up
        if up:
            self._due["tell"] = 0.0

    def _hear(self, channel: Channel) -> None:
        """Take in what neighbours say about studies; wait for a quarter of a second if they say nothing."""
        arrival = channel.recv()
        while arrival is not None:
            sender, frame = arrival
            answers, news = self._gossip.take(sender, frame)
            for answer in answers:
                channel.send(sender, answer)
            if news:
                self._due["tell"] = self._due["statements"] = 0.0
            arrival = channel.try_recv()

    def _look(self, channel: Channel) -> None:
        """Look for statements of this site's people, a new policy and a new certificate, and tell the neighbours."""
        if self._is_due("look", _LOOK_EVERY / 4) and self.book.refresh():
            self._due["tell"] = self._due["statements"] = 0.0
        if self._is_due("statements", _STATE_EVERY):
            self._witness.catch_up(self._store)
        if self._is_due("files", _LOOK_EVERY):
            self._revoked = channel.revoked
            self._reload_policy()
            self._renew()
        if self._is_due("warn", _DAILY):
            self.book.compact()
            days = warn_of_end(self.config.site, self.folder / self.config.keys.certificate)
            if days is not None:
                self.trail.decide("certificate ends", days=round(days, 1))
        if self._is_due("tell", _TELL_EVERY):
            for frame in (*self._gossip.news(), self._gossip.tell()):
                for neighbor in self.config.neighbors:
                    channel.send(neighbor, frame)
        if self._is_due("seal", 1.0):
            self.trail.seal()

    def _is_due(self, what: str, every: float) -> bool:
        now = self.clock.monotonic()
        if now < self._due.get(what, 0.0):
            return False
        self._due[what] = now + every
        return True

    def _reload_policy(self) -> None:
        path = self.folder / policies.POLICY
        if (seen := changed_at(path)) != self._policy_seen:
            self._policy_seen = seen
            try:
                self.policy = policies.read_policy(path)
                self.trail.decide("policy", digest=digest_of_file(path))
            except DekrrError as error:
                logger.warning("%s: %s; the previous policy stays in force", self.config.site, error)

    def _renew(self) -> None:
        """Use a new certificate; where that fails it is tried again, since the links may be cut until it succeeds."""
        identity = self._carrier.renew_if_changed(lambda: SiteIdentity.of(self.config, self.folder))
        if identity is not None:
            self.book.identity = self.trail.identity = identity
            self.trail.decide("certificate renewed", days=round(identity.days_left, 1))

    def _act(self) -> None:
        """Decide by policy where it can, begin runs that are due, and end those that were stopped."""
        for key in [key for key, run in self._runs.items() if run.ident is not None and not run.is_alive()]:
            del self._runs[key]
        for state in self.book.studies.values():
            if self.config.site in state.study.sites:
                self._goes_well(partial(self._act_on, state), f"{state.label}: ")

    def _act_on(self, state: StudyState) -> None:
        if self.config.site not in state.decisions:
            self._decide(state)
        else:
            self._waiting.pop(state.digest, None)
            self._withdraw_if_broken(state)
        running = [run for (digest, _), run in self._runs.items() if digest == state.digest]
        for run in running:
            _end_if_stopped(state, run)
        if state.may_run and not running:
            self._begin_if_due(state)

    def versions(self, state: StudyState) -> Versions:
        """Return the versions of a study's model at this site."""
        return Versions(self.folder / STUDIES / state.label, self._store, self.clock)

    def _decide(self, state: StudyState) -> None:
        broken = policies.refusals(self.policy, state.study, state.proposer, self.config.sources)
        if broken:
            self.book.decide(state.digest, "refuse", "; ".join(broken), "policy")
        elif self.policy.approval == "policy":
            self.book.decide(state.digest, "approve", "no rule is broken", "policy")
        else:
            if state.digest not in self._waiting and not state.is_over:
                self._waiting[state.digest] = state.label
                about = self.config.site, state.label, state.proposer, state.label, state.label, state.digest[:8]
                logger.warning(
                    "%s: study %s, proposed by %s, waits for a person here: dekrr study show %s, and then "
                    "dekrr study approve %s --digest %s, or refuse",
                    *about,
                )
                self.call_hook("proposal", state.label)
            return
        self._due["tell"] = self._due["statements"] = 0.0

    def _withdraw_if_broken(self, state: StudyState) -> None:
        """Refuse a study that was approved, and breaks a rule of the policy that the site has now."""
        if self._judged.get(state.digest) == self._policy_seen or state.is_over:
            return
        broken = policies.refusals(self.policy, state.study, state.proposer, self.config.sources)
        if broken and state.decisions[self.config.site].says == "approve":
            self.book.decide(state.digest, "refuse", f"the policy has changed: {'; '.join(broken)}", "policy")
            self._due["tell"] = self._due["statements"] = 0.0
        self._judged[state.digest] = self._policy_seen

    def call_hook(self, event: str, label: str) -> None:
        """Start the site's own program for an event of a study, for instance to send a mail."""
        if self.config.hook:
            command = [*self.config.hook, event, label]

            def call() -> None:
                try:
                    subprocess.run(command, cwd=self.folder, stdin=subprocess.DEVNULL, timeout=_HOOK_FOR, check=True)
                except (OSError, subprocess.SubprocessError) as error:
                    logger.warning("%s: the hook failed: %s", self.config.site, error)

            threading.Thread(target=call, daemon=True, name="hook").start()

    def _begin_if_due(self, state: StudyState) -> None:
        versions = self.versions(state)
        for one in versions.unreported:  # for instance because the clock was wrong
            self.report(state, one.number, "model" if one.state in ("done", HELD_BACK) else "failed", one.told)
        number = state.number
        here = versions.running or versions.get(number)
        number = number if here is None else here.number
        if here is None and any(n == number and report.outcome == "model" for (_, n), report in state.reports.items()):
            reason = "the other sites have ended it without this one"
            versions.note(number, "missed", reason, told=reason)
        elif here is None or here.state == "running":
            if not self._is_due(f"begin {state.digest}", _AGAIN):
                return
            run = StudyRun(self, state, number, versions)
            self._runs[state.digest, number] = run
            run.start()
        elif here.state != "running":
            self._call_if_due(state, number, here.time, versions)

    def _call_if_due(self, state: StudyState, number: int, ended: float, versions: Versions) -> None:
        """Call for the next run if the schedule or new rows ask for one."""
        study = state.study
        if study.every_hours and self.clock.time() - ended > 3600 * study.every_hours:
            self._call(state, number + 1, f"{study.every_hours:g} hours after run {number}")
        elif study.new_rows and (before := versions.last_n_rows):
            # When a single row came is told to nobody.
            now, least = self._row_counts.latest(study), max(study.new_rows, self.policy.least_min_rows)
            if now >= max(before, self._called_with.get(state.digest, 0)) + least:
                self._called_with[state.digest] = now  # a run that is refused does not call for the next one
                self._call(state, number + 1, f"at least {least} new rows")

    def _call(self, state: StudyState, number: int, reason: str) -> None:
        self.book.say(Call(study=state.digest, number=number, reason=reason, time=self.clock.time()))
        self._due["tell"] = self._due["statements"] = 0.0

    def report(self, state: StudyState, number: int, outcome: str, reason: str) -> None:
        """Tell all sites how a run has ended here."""
        self.trail.decide("run ended", study=state.digest, run=number, outcome=outcome, reason=reason)
        line, head = self.trail.n_lines, self.trail.head
        said = Report(state.digest, number, outcome, reason, line, head, self.clock.time())  # type: ignore[arg-type]
        self.book.say(said)
        self.versions(state).note_reported(number)
        self.versions(state).forget(self.config.keep_versions)
        self._due["tell"] = self._due["statements"] = 0.0

    def file_of_run(self, state: StudyState, number: int) -> SiteFile:
        """Return what one run of a study is at this site."""
        return self.config.run_of(state.study, state.run_id(number), self.folder)

    def node_of(self, state: StudyState, number: int, place: Path) -> Node:
        """Return the node of a run; rows are judged here, and noted when the run has all its sites."""
        study, config = state.study, self.file_of_run(state, number)
        keep, name = self.folder / KEPT / study.source, self.config.site
        source = policies.source_rules(self.policy, study)
        keep.mkdir(parents=True, exist_ok=True, mode=0o700)

        def rules(n_rows: int, times: list[float]) -> None:
            if broken := policies.refusals_of_run(self.policy, study, n_rows, times, self.clock.time()):
                raise policies.PolicyError(name, broken)

        month = source.runs_per_month
        if month:
            now = self.clock.time()
            try:
                Ledger(Folder(keep / LEDGER)).begin(
                    config.run, now, policies.READS_PER_RUN * month, now - policies.MONTH
                )
            except DataError as error:
                raise policies.PolicyError(name, [f"sources.{study.source}.runs_per_month: {error}; wait"]) from None
        with self._rows_lock:
            warm = Warm(self._model_before(state, number)) if study.warm and number > 1 else None
            return Node(
                config,
                place,
                keep=keep,
                carrier=self._carrier,
                identity=self.book.identity,
                warm=warm,
                total_epsilon=source.total_epsilon,
                rules=rules,
            )

    def _model_before(self, state: StudyState, number: int) -> SiteModel | None:
        """Return the site's model of the last run before one, if it has any."""
        versions = self.versions(state)
        done = versions.last_done(number)
        return load(versions.place(done.number) / MODEL) if done else None

    def status(self) -> dict[str, Any]:
        """Return the state of the site, its studies and its runs, as `state.json` has it."""
        studies = []
        for state in self.book.studies.values():
            versions = self.versions(state)
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
                    "versions": [msgspec.to_builtins(one) for one in versions.last(LAST)],
                    "current": versions.current,
                }
            )
        runs = [run.status() for run in list(self._runs.values()) if run.is_alive()]
        return {
            "site": self.config.site,
            "run": "",
            "time": self.clock.time(),
            "neighbors": {name: self._state_of(name) for name in self._up},
            "certificate days left": round(self.book.identity.days_left, 2),
            "studies": studies,
            "runs": [run for run in runs if run is not None],
            "audit lines": self.trail.n_lines,
            "waits for a person": sorted(self._waiting.values()),
            "health": self.health(),
        }

    def _state_of(self, neighbor: str) -> str:
        return "revoked" if neighbor in self._revoked else "up" if self._up[neighbor] else "away"

    def health(self) -> dict[str, Any]:
        """Return whether the main loop goes round, and why the site could not take part in a run now."""
        standing = self.clock.monotonic() - self._turned
        states = {name: self._state_of(name) for name in sorted(self._up)}
        why = [f"{name} is {state}" for name, state in states.items() if state != "up"]
        why += [self._trouble] if self._trouble else []
        why += ["the certificate has expired"] if self.book.identity.days_left <= 0 else []
        why += [f"the main loop stands still for {standing:.0f} seconds"] if standing > _STUCK else []
        return {"lives": standing <= _STUCK, "why not ready": why}


def _decision_of(state: StudyState, site: str) -> str:
    decision = state.decisions.get(site)
    return "" if decision is None else f"{decision.says} ({decision.by}): {decision.reason}"


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
