"""One run of a study at a standing site: a node in a thread of its own, and what is noted and reported of it."""

import errno
import hashlib
import logging
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ..errors import DekrrError, GoneError, one_line
from ..networks.session import Phase
from .node import CHECKPOINT, MODEL, Node
from .record import RECORD, Log, Record
from .studies.book import StudyState
from .studies.ends import WHOLE
from .studies.versions import Versions

if TYPE_CHECKING:
    from .standing import StandingSite

logger = logging.getLogger("dekrr")
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EIO)


class StudyRun(threading.Thread):
    """One run of a study, in a thread of its own.

    Parameters
    ----------
    site : StandingSite
    state : StudyState
    number : int
    versions : Versions

    Attributes
    ----------
    n_rows : int
        The site's rows; 0 before they are read.
    resumes : bool
        Whether the run had started before, and goes on from its checkpoint.
    """

    def __init__(self, site: "StandingSite", state: StudyState, number: int, versions: Versions) -> None:
        super().__init__(daemon=True, name=f"{state.label} {number}")
        self.number = number
        self.n_rows = 0
        self._site = site
        self._state = state
        self._versions = versions
        self._node: Node | None = None
        self._stop_reason: str | None = None
        self._quietly = False
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
            logger.warning("%s: run %s of %s waits: %s", self._site.config.site, self.number, self._state.label, error)

    def _run(self) -> None:
        site, versions, number = self._site, self._versions, self.number
        place = versions.place(number)
        versions.note(number, "running")
        site.trail.decide("run begun", study=self._state.digest, run=number)
        begins = "goes on with" if self.resumes else "begins"
        logger.info("%s %s run %d of %s", site.config.site, begins, number, self._state.label)
        try:
            if not (place / MODEL).exists():  # a model is written when it is final
                self._take_part(place)
        except GoneError as error:
            self._fail("missed", one_line(str(error), WHOLE))
        except OSError as error:
            if error.errno in _NO_SPACE:  # it is tried again, from its checkpoint
                raise
            self._fail("failed", one_line(str(error), WHOLE))
        except Exception as error:
            self._fail("failed", one_line(f"{error}" or type(error).__name__, WHOLE))
            if not isinstance(error, DekrrError | OSError):
                logger.exception("%s: run %s of %s failed", site.config.site, number, self._state.label)
        else:
            versions.use(number)
            versions.note(number, "done")
            digest = digest_of_file(place / MODEL)
            site.trail.decide("model", study=self._state.digest, run=number, digest=digest)
            site.report(self._state, number, "model", "")
            logger.info("%s has the model of run %d of %s: %s", site.config.site, number, self._state.label, place)

    def _take_part(self, place: Path) -> None:
        node = self._site.node_of(self._state, self.number, place)
        self._node, self.n_rows = node, node.n_rows
        if self._stop_reason is not None:
            node.stop(self._stop_reason or "the site is stopped")
        node.listeners += [Log(self._site.config.site), Record(place / RECORD)]
        node.run()

    def _fail(self, state: str, reason: str) -> None:
        if self._quietly:
            return
        name, what = self._site.config.site, "has failed" if state == "failed" else "was missed"
        logger.warning("%s: run %d of %s %s here: %s", name, self.number, self._state.label, what, reason)
        self._versions.note(self.number, state, reason)
        self._site.report(self._state, self.number, "failed", reason)


def digest_of_file(path: Path) -> str:
    """Return the SHA-256 of a file; an empty string if it is not there."""
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else ""
