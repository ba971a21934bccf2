"""One run of a study at a standing site: a node in a thread of its own, and what is noted and reported of it."""

import errno
import hashlib
import logging
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ..errors import DekrrError, GoneError, one_line
from .node import CHECKPOINT, MODEL, Node
from .record import RECORD, Log, LooksWrong, Record
from .session import Phase
from .session.events import Event
from .studies.book import StudyState
from .studies.failure_reports import outward
from .studies.model_gate import figures, why_held_back
from .studies.run_endings import WHOLE
from .studies.versions import HELD_BACK, Versions

if TYPE_CHECKING:
    from .standing import StandingSite

logger = logging.getLogger("dekrr")
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EIO)


class StudyRun(threading.Thread):
    """One run of a study, in a thread of its own.

    `resumes`: whether the run had started before, and goes on from its checkpoint.
    """

    def __init__(self, site: "StandingSite", state: StudyState, number: int, versions: Versions) -> None:
        super().__init__(daemon=True, name=f"{state.label} {number}")
        self.number = number
        self._site = site
        self._about: dict[str, Any] = {"site": site.config.site, "study": state.label, "number": number}
        self._log = logging.LoggerAdapter(logger, self._about)
        self._state = state
        self._versions = versions
        self._node: Node | None = None
        self._stop_reason: str | None = None
        self._quietly = False
        self._remarks: list[str] = []
        self._looked_wrong = False
        checkpoint = versions.place(number) / CHECKPOINT
        self.resumes = checkpoint.exists() and checkpoint.stat().st_size > 0

    @property
    def phase(self) -> Phase | None:
        """The phase of the run; None before it has read its rows."""
        return None if self._node is None else self._node.session.phase

    def status(self) -> dict[str, Any] | None:
        """Return the status of the run."""
        return None if self._node is None else msgspec.to_builtins(self._node.status())

    def stop(self, reason: str, *, quietly: bool = False) -> None:
        """Let the run end soon; quietly: it will be resumed."""
        self._quietly |= quietly
        if self._stop_reason is None:
            self._stop_reason = reason
        if self._node is not None:
            self._node.stop(reason or "the site is stopped")

    def run(self) -> None:
        """Take part in the run to its end, and report it; without space on the disk it is tried again later."""
        try:
            self._run()
        except (OSError, DekrrError) as error:
            self._log.warning(
                "%s: run %s of %s waits: %s", self._site.config.site, self.number, self._state.label, error
            )

    def _run(self) -> None:
        site, versions, number = self._site, self._versions, self.number
        place = versions.place(number)
        versions.note(number, "running")
        site.trail.decide("run begun", study=self._state.digest, run=number)
        begins = "goes on with" if self.resumes else "begins"
        self._log.info("%s %s run %d of %s", site.config.site, begins, number, self._state.label)
        self._tell_of_other_rows()
        try:
            if not (place / MODEL).exists():  # a model is written when it is final
                self._take_part(place)
        except Exception as error:
            if isinstance(error, OSError) and error.errno in _NO_SPACE:  # it is tried again, from its checkpoint
                raise
            self._fail("missed" if isinstance(error, GoneError) else "failed", error)
            if not isinstance(error, DekrrError | OSError):
                self._log.exception("%s: run %s of %s failed", site.config.site, number, self._state.label)
        else:
            why = "" if number == versions.current else self._why_held_back()
            if not why and number > (versions.current or 0):  # one that is taken up late does not replace a newer one
                versions.use(number)
            versions.note(number, HELD_BACK if why else "done", "; ".join([*([why] if why else []), *self._remarks]))
            digest = digest_of_file(place / MODEL)
            site.trail.decide("model", study=self._state.digest, run=number, digest=digest)
            about = site.config.site, number, self._state.label
            if why:
                site.trail.decide(HELD_BACK, study=self._state.digest, run=number, reason=why)
                self._log.warning("%s: the model of run %d of %s is held back: %s", *about, why)
                site.call_hook(HELD_BACK, self._state.label)
            site.report(self._state, number, "model", "")
            self._log.info("%s has the model of run %d of %s: %s", *about, place)

    def _tell_of_other_rows(self) -> None:
        """Tell, and write down, that the rows of a first run are newer than what the site said to the study."""
        site, study = self._site, self._state.study
        decision = self._state.decisions.get(site.config.site)
        path = site.folder / site.config.sources[study.source]
        if decision is None or self.number > 1 or self.resumes or not path.exists():
            return
        stat = path.stat()
        if max(stat.st_mtime, stat.st_ctime) > decision.time:
            reason = f"the rows of {study.source} were written after the study was approved here"
            self._remarks.append(reason)
            site.trail.decide("rows changed", study=self._state.digest, run=self.number, reason=reason)
            self._log.warning("%s: run %d of %s: %s", site.config.site, self.number, self._state.label, reason)

    def _why_held_back(self) -> str:
        site = self._site
        config = site.file_of_run(self._state, self.number)
        found = figures(config, site.folder, self._versions, self.number)
        return why_held_back(site.policy, found, looked_wrong=self._looked_wrong)

    def _take_part(self, place: Path) -> None:
        node = self._site.node_of(self._state, self.number, place)
        self._node = node
        self._versions.note(self.number, "running", n_rows=node.n_rows)
        if self._stop_reason is not None:
            node.stop(self._stop_reason or "the site is stopped")
        node.listeners += [Log(**self._about), Record(place / RECORD), self._hear]
        node.run()

    def _hear(self, event: Event) -> None:
        if isinstance(event, LooksWrong):
            self._looked_wrong = True
            self._remarks.append(event.reason)
            self._site.trail.decide("looks wrong", study=self._state.digest, run=self.number, reason=event.reason)
            self._site.call_hook("looks wrong", self._state.label)

    def _fail(self, state: str, error: Exception) -> None:
        """Note the whole reason here, and tell the other sites a code; see `studies.failure_reports`."""
        if self._quietly:
            return
        reason = one_line(f"{error}" or type(error).__name__, WHOLE)
        told = self._stop_reason or outward(error, self._state.study, self._site.config.site)
        name, what = self._site.config.site, "has failed" if state == "failed" else "was missed"
        self._log.warning("%s: run %d of %s %s here: %s", name, self.number, self._state.label, what, reason)
        self._versions.note(self.number, state, reason, told=told)
        self._site.report(self._state, self.number, "failed", told)


def digest_of_file(path: Path) -> str:
    """Return the SHA-256 of a file; an empty string if it is not there."""
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else ""
