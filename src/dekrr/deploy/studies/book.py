"""All statements about studies that a site knows, in a folder of its disk.

The commands write statements of this site's people into the folder. The standing site finds them there, checks them,
and passes them on. What neighbours pass on goes there too. A statement that does not prove itself is not kept.
"""

import datetime
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from ...disk import replacing
from ...errors import DekrrError, KeysError, SettingsError
from ..identity import Identity
from .items import MAX_BYTES, Body, Call, Decision, EarlyError, Item, Proposal, Report, Revocations, sign
from .study import StudyFile, digest_of, parse_study

ITEMS = "statements"
_MOST_PER_SITE = 5000
_FEWEST_DIGITS = 6  # of a digest that names a study


@dataclass
class StudyState:
    """What is known about one study.

    Parameters
    ----------
    digest : str
    study : StudyFile
    text : str
    proposer : str
    proposed : float
    decisions : dict of site to Decision
        The last of each site.
    calls : list of (site, Call)
    reports : dict of (site, number) to Report
    """

    digest: str
    study: StudyFile
    text: str
    proposer: str
    proposed: float
    decisions: dict[str, Decision] = field(default_factory=dict)
    calls: list[tuple[str, Call]] = field(default_factory=list)
    reports: dict[tuple[str, int], Report] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """The name of the study's folder."""
        return f"{self.study.name}-{self.digest[:8]}"

    @property
    def is_expired(self) -> bool:
        """Whether no run may start any more."""
        return datetime.datetime.now(datetime.UTC).date() > self.study.expires

    @property
    def state(self) -> str:
        """The state of the study, in words."""
        says = {site: decision.says for site, decision in self.decisions.items() if site in self.study.sites}
        for word, told in (("stop", "stopped"), ("refuse", "refused")):
            who = sorted(site for site, said in says.items() if said == word)
            if who:
                return f"{told} by {', '.join(who)}"
        missing = [site for site in self.study.sites if says.get(site) != "approve"]
        if missing:
            return f"waits for {', '.join(missing)}"
        return "expired" if self.is_expired else "approved"

    @property
    def may_run(self) -> bool:
        """Whether all sites have approved, none has stopped it, and it has not expired."""
        return self.state == "approved"

    @property
    def is_over(self) -> bool:
        """Whether a site has refused or stopped it, or it has expired: it will not run again."""
        says = {decision.says for site, decision in self.decisions.items() if site in self.study.sites}
        return self.is_expired or bool(says - {"approve"})

    @property
    def number(self) -> int:
        """The number of the run that is due or was the last: 1 as soon as the study is approved, or as called for.

        Numbers follow each other: a call for a run far ahead does not count.
        """
        called, number = {call.number for site, call in self.calls if site in self.study.sites}, 1
        while number + 1 in called:
            number += 1
        return number

    def run_id(self, number: int) -> str:
        """Return the id of a run: the study's digest is part of it."""
        return f"{self.digest[:16]}-{number}"


class Book:
    """The statements that a site knows.

    Parameters
    ----------
    folder : Path
        The site's folder.
    identity : Identity
    """

    def __init__(self, folder: Path, identity: Identity) -> None:
        self.identity = identity
        self._folder = folder / ITEMS
        self._items: dict[str, Item] = {}
        self.bad: set[str] = set()
        self._counts: Counter[str] = Counter()
        self._lock = threading.RLock()
        self.studies: dict[str, StudyState] = {}
        self._orphans: dict[str, list[tuple[str, Body]]] = {}
        self.refresh()

    @property
    def ids(self) -> frozenset[str]:
        """The ids of all statements."""
        with self._lock:
            return frozenset(self._items)

    def get(self, ids: frozenset[str]) -> list[Item]:
        """Return statements by their ids."""
        with self._lock:
            return [self._items[one] for one in sorted(ids) if one in self._items]

    def refresh(self) -> list[Item]:
        """Read the statements that were written to the folder since; return those that count."""
        if not self._folder.exists():
            return []
        found = []
        for path in sorted(self._folder.glob("*.json")):
            if path.stem in self._items or path.stem in self.bad:
                continue
            try:
                item = msgspec.json.decode(path.read_bytes(), type=Item)
                if item.id != path.stem:
                    raise KeysError("it is not what its name says")
                if self._take(item):
                    found.append(item)
            except (EarlyError, OSError):
                continue
            except (DekrrError, msgspec.MsgspecError):
                self.bad.add(path.stem)
        return found

    def say(self, body: Body) -> Item:
        """Add a statement of this site."""
        item = sign(body, self.identity)
        self.add(item)
        return item

    def add(self, item: Item) -> bool:
        """Add a statement if it proves itself, on the disk too; return whether it is new."""
        with self._lock:
            if item.id in self._items or not self._take(item):
                return False
            self._folder.mkdir(exist_ok=True, mode=0o700)
            with replacing(self._folder / f"{item.id}.json", durable=True) as temporary:
                temporary.write_bytes(msgspec.json.encode(item))
            return True

    def find(self, named: str, digest: str = "") -> StudyState:
        """Return the study of a name, or whose digest begins so.

        Several studies may have one name. The beginning of a digest tells which is meant. Otherwise it is the one that
        has not ended, if there is one such study: refused, stopped and expired ones do not block a name.

        Parameters
        ----------
        named : str
            The name, the name with the beginning of the digest, or the beginning of the digest alone.
        digest : str, default=""
            The beginning of the digest, where it is known too.
        """
        found = [
            state
            for known, state in self.studies.items()
            if named in (state.study.name, state.label) or (len(named) >= _FEWEST_DIGITS and known.startswith(named))
        ]
        if len(found) > 1:
            meant = [state for state in found if len(digest) >= _FEWEST_DIGITS and state.digest.startswith(digest)]
            found = meant or [state for state in found if not state.is_over] or found
        if len(found) != 1:
            listed = ", ".join(f"{one.label} ({one.state})" for one in found or self.studies.values()) or "none"
            if found:
                raise SettingsError(f"several studies are called {named!r}: name one of {listed}")
            raise SettingsError(f"no study is called {named!r}; known are {listed}")
        return found[0]

    def decide(self, digest: str, says: str, reason: str, by: str) -> Item:
        """Decide for this site; a clock that was set back does not make the decision an earlier one."""
        before = self.studies[digest].decisions.get(self.identity.site) if digest in self.studies else None
        now = time.time() if before is None else max(time.time(), before.time + 1e-3)
        decision = Decision(study=digest, says=says, reason=reason, by=by, time=now)  # type: ignore[arg-type]
        return self.say(decision)

    def _take(self, item: Item) -> bool:
        with self._lock:
            if item.id in self._items:
                return False
            if len(item.said) > MAX_BYTES or self._counts[item.site] >= _MOST_PER_SITE:
                raise KeysError(f"site {item.site!r} has made too many statements")
            body = item.check(self.identity.trust)
            self._note(item.site, body)
            self._items[item.id] = item
            self._counts[item.site] += 1
            return True

    def _check_again(self) -> None:
        """Forget the statements under certificates that have been revoked since."""
        items, self._items = list(self._items.values()), {}
        self.studies.clear()
        self._orphans.clear()
        self._counts.clear()
        for item in items:
            try:
                self._take(item)
            except DekrrError:
                self.bad.add(item.id)

    def _note(self, site: str, body: Body) -> None:
        if isinstance(body, Revocations):
            if self.identity.trust.learn(body.pem):
                self._check_again()
            return
        if isinstance(body, Proposal):
            digest = digest_of(body.text)
            if digest not in self.studies:
                study = parse_study(body.text)
                self.studies[digest] = StudyState(digest, study, body.text, site, body.time)
                for who, said in self._orphans.pop(digest, []):
                    self._note(who, said)
            return
        state = self.studies.get(body.study)
        if state is None:
            self._orphans.setdefault(body.study, []).append((site, body))
        elif isinstance(body, Decision):
            before = state.decisions.get(site)
            if before is None or before.time < body.time:
                state.decisions[site] = body
        elif isinstance(body, Call):
            state.calls.append((site, body))
        elif isinstance(body, Report):
            state.reports[site, body.number] = body
