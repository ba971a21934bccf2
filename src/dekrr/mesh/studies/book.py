"""All statements about studies that a site knows, in its store.

The commands write statements of this site's people into the store. The standing site finds them there, checks them,
and passes them on. What neighbours pass on goes there too. A statement that does not prove itself is not kept.

Statements that later ones have made idle are dropped, so that a study may run for years: of each site and study the
last decision, the last calls and the last reports stay, of a study that has ended its last report, and of a study that
expired a year ago nothing. Which statements stay depends on the statements alone, and not on the order in which they
came. So all sites keep the same ones, and need no summary of the others in anybody's word.
"""

import bisect
import datetime
import sys
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from ...errors import DekrrError, KeysError, SettingsError
from ..clock import Clock
from ..config import StudyFile
from ..files import digest_of, parse_study
from ..identity import SiteIdentity
from ..store import Store
from .items import MAX_BYTES, Body, Call, Decision, EarlyError, Item, Proposal, Report, Revocations, sign

LAST = 20  # runs of a study that a site's calls and reports are kept of
_MOST_STUDIES = 1000  # proposed by one site, and not forgotten
_MOST_ORPHANS = 1000  # statements of one site about studies that nobody has proposed here
_MOST_DECLINED = 20_000
_MOST_FRESH = 100
_FORGOTTEN_AFTER = datetime.timedelta(days=366)
_MOST_A_DAY = 10_000
_DAY = 86400.0  # seconds
_NOTHING = {"proposal": 0, "decision": 0, "call": 0, "report": 0}
_OVER = {"call": 0, "report": 1}  # what stays of a study that has ended
_FEWEST_DIGITS = 6  # of a digest that names a study


@dataclass
class StudyState:
    """What is known about one study."""

    digest: str
    study: StudyFile
    text: str
    proposer: str
    proposed: float
    clock: Clock = field(default_factory=Clock)
    # The last of each site. These dictionaries are replaced, not changed: other threads read them.
    decisions: dict[str, Decision] = field(default_factory=dict)
    calls: dict[tuple[str, int], Call] = field(default_factory=dict)
    reports: dict[tuple[str, int], Report] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """The name of the study's folder."""
        return f"{self.study.name}-{self.digest[:8]}"

    @property
    def is_expired(self) -> bool:
        """Whether no run may start any more."""
        return _today(self.clock) > self.study.expires

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

        Numbers follow each other: a call for a run far ahead does not count, unless two sites speak of that run.
        """
        called = {number for site, number in self.calls if site in self.study.sites}
        speakers = {(n, site) for site, n in (*self.calls, *self.reports) if site in self.study.sites}
        number = max((n for n, count in Counter(n for n, _ in speakers).items() if count > 1), default=1)
        while number + 1 in called:
            number += 1
        return number

    def run_id(self, number: int) -> str:
        """Return the id of a run: so much of the study's digest that nobody writes two studies with one id.

        A site takes a run whose id it knows for one that is resumed, and does not judge it again.
        """
        return f"{self.digest[:40]}-{number}"


class Book:
    """The statements that a site knows. Threads may share it.

    `folder`: the site's folder. `store`: the site's; by default it is opened. `studies`: it is replaced, not changed.
    `declined`: the ids of statements that this site will not take: they do not prove themselves, or are idle.
    """

    def __init__(
        self, folder: Path, identity: SiteIdentity, store: Store | None = None, clock: Clock | None = None
    ) -> None:
        self.identity = identity
        self._clock = clock or Clock()
        self.store = store or Store(folder)
        self._lock = self.store.lock
        self._seen = 0
        self._early: set[int] = set()
        self._day, self._heard_today = self._clock.monotonic(), Counter[str]()
        self.declined: set[str] = set()
        self._fresh: deque[Item] = deque(maxlen=_MOST_FRESH)
        self._clear()
        self.refresh()
        self._fresh.clear()

    def _clear(self) -> None:
        self._items: dict[str, Item] = {}
        self._slots: dict[tuple[str, ...], list[tuple[Any, str]]] = {}
        self._orphans: dict[str, float] = {}  # studies that are spoken of and not proposed, and since when
        self.studies: dict[str, StudyState] = {}

    @property
    def ids(self) -> frozenset[str]:
        """The ids of all statements."""
        with self._lock:
            return frozenset(self._items)

    def get(self, ids: Iterable[str]) -> list[Item]:
        """Return statements by their ids, proposals first: what is said about a study needs it."""
        with self._lock:
            found = [self._items[one] for one in sorted(ids) if one in self._items]
            return sorted(found, key=lambda item: not isinstance(item.body, Proposal))

    def refresh(self) -> list[Item]:
        """Read the statements that were written to the store since; return those that count."""
        found = []
        with self._lock:
            seen, self._early, early = min({self._seen, *(n - 1 for n in self._early)}), set(), self._early
            for n, name, data in self.store.rows("SELECT n, id, item FROM statement WHERE n > ? ORDER BY n", seen):
                if (n <= self._seen and n not in early) or name in self._items:
                    continue
                try:
                    item = msgspec.json.decode(data, type=Item)
                    if item.id != name:
                        raise KeysError("it is not what its name says")
                    if self._take(item):
                        found.append(item)
                except EarlyError:
                    self._early.add(n)
                except (DekrrError, msgspec.MsgspecError):
                    self.decline(name)
                self._seen = max(self._seen, n)
            self._fresh += found
        return found

    def fresh(self) -> list[Item]:
        """Return the statements that have come since this was last asked."""
        with self._lock:
            found = list(self._fresh)
            self._fresh.clear()
            return found

    def say(self, body: Body) -> Item:
        """Add a statement of this site."""
        item = sign(body, self.identity)
        self.add(item)
        return item

    def add(self, item: Item) -> bool:
        """Add a statement if it proves itself, on the disk too; return whether it is new."""
        with self._lock, self.store.transaction():
            if item.id in self._items or item.id in self.declined:
                return False
            self._count(item)
            if not self._take(item):
                return False
            data = msgspec.json.encode(item)
            self.store.write("INSERT OR IGNORE INTO statement (id, item) VALUES (?, ?)", item.id, data)
            self._fresh.append(item)
            return True

    def _count(self, item: Item) -> None:
        """Take in so many statements of another site in a day: each is a line of the audit trail."""
        if self._clock.monotonic() - self._day > _DAY:
            self._day, self._heard_today = self._clock.monotonic(), Counter()
        self._heard_today[item.site] += item.site != self.identity.site
        if self._heard_today[item.site] > _MOST_A_DAY:
            raise EarlyError(f"site {item.site!r} has made more than {_MOST_A_DAY} statements in a day")

    @property
    def unheard(self) -> list[Item]:
        """The statements that are not in the audit trail yet."""
        found = self.store.rows("SELECT id FROM statement WHERE NOT audited ORDER BY n")
        return [self._items[name] for (name,) in found if name in self._items]

    def note_heard(self, item: Item) -> None:
        """Note that a statement is in the audit trail."""
        self.store.write("UPDATE statement SET audited = 1 WHERE id = ?", item.id)

    def find(self, named: str, digest: str = "") -> StudyState:
        """Return the study of a name, or whose digest begins so.

        Several studies may have one name. The beginning of a digest tells which is meant. Otherwise it is the one that
        has not ended, if there is one such study: refused, stopped and expired ones do not block a name.

        `named`: the name, the name with the beginning of the digest, or the beginning of the digest alone. `digest`:
        the beginning of the digest, where it is known too.
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
        now = self._clock.time() if before is None else max(self._clock.time(), before.time + 1e-3)
        decision = Decision(study=digest, says=says, reason=reason, by=by, time=now)  # type: ignore[arg-type]
        return self.say(decision)

    def compact(self) -> None:
        """Drop what time has made idle: calls and reports of studies that have ended, and studies of long ago."""
        with self._lock, self.store.transaction():
            self.declined.clear()  # if this site's clock was wrong, it asks again for what it should have kept
            for state in list(self.studies.values()):
                if _today(self._clock) > state.study.expires + _FORGOTTEN_AFTER:
                    self._keep_last(state.digest, _NOTHING)
                    self.studies = {digest: one for digest, one in self.studies.items() if digest != state.digest}
                elif state.is_over:
                    self._keep_last(state.digest, _OVER)
            for digest, since in list(self._orphans.items()):
                if self._clock.monotonic() - since > _DAY:
                    self._keep_last(digest, _NOTHING)
                    del self._orphans[digest]

    def _keep_last(self, digest: str, counts: dict[str, int]) -> None:
        for slot, place in self._slots_of(digest):
            for _, name in place[: max(len(place) - counts.get(slot[0], LAST), 0)]:
                self._remove(name, slot)
            if not self._slots[slot]:
                del self._slots[slot]

    def _slots_of(self, digest: str) -> list[tuple[tuple[str, ...], list[tuple[Any, str]]]]:
        return [(slot, list(place)) for slot, place in self._slots.items() if len(slot) > 1 and slot[1] == digest]

    def _take(self, item: Item) -> bool:
        """Note a statement if it proves itself and is not idle."""
        with self._lock:
            if item.id in self._items:
                return False
            if len(item.said) > MAX_BYTES:
                raise KeysError(f"a statement of {item.site!r} of more than {MAX_BYTES} bytes")
            body = item.check(self.identity.trust, self._clock.time())
            slot = _slot(item.site, body)
            place, rank = self._slots.get(slot, []), (self._rank(body), item.id)
            is_idle = len(place) >= self._most(slot) and (not place or rank < place[0])
            if is_idle or not self._note(item.site, body):
                self.decline(item.id)
                return False
            # Most of a statement's size is its site's certificate, which all of its statements share.
            self._items[item.id] = msgspec.structs.replace(item, certificate=sys.intern(item.certificate))
            bisect.insort(self._slots.setdefault(slot, []), rank)
            while len(self._slots[slot]) > self._most(slot):
                self._remove(self._slots[slot][0][1], slot)
            return True

    def _most(self, slot: tuple[str, ...]) -> int:
        """Return how many statements about one thing stay."""
        if slot[0] not in _OVER:
            return 1
        state = self.studies.get(slot[1])
        return LAST if state is None or not state.is_over else _OVER[slot[0]]

    def _rank(self, body: Body) -> tuple[float, ...]:
        """Return by which statements about one thing follow each other."""
        if isinstance(body, Revocations):
            return (self.identity.trust.number(body.pem),)
        return (body.number, body.time) if isinstance(body, Call | Report) else (body.time,)

    def _remove(self, name: str, slot: tuple[str, ...]) -> None:
        """Drop a statement that counted, and has become idle."""
        item = self._items.pop(name)
        self._slots[slot] = [one for one in self._slots[slot] if one[1] != name]
        self.decline(name)
        body = item.body
        state = None if isinstance(body, Proposal | Revocations) else self.studies.get(body.study)
        if state is not None and isinstance(body, Call | Report):
            kept = state.calls if isinstance(body, Call) else state.reports
            rest = {key: said for key, said in kept.items() if key != (item.site, body.number) or said != body}
            setattr(state, "calls" if isinstance(body, Call) else "reports", rest)

    def decline(self, name: str) -> None:
        """Remember that a statement is not wanted, and drop it from the disk."""
        if len(self.declined) >= _MOST_DECLINED:
            self.declined.clear()
        self.declined.add(name)
        self.store.write("DELETE FROM statement WHERE id = ?", name)

    def _check_again(self) -> None:
        """Forget the statements under certificates that have been revoked since."""
        items = self.get(self._items)
        self._clear()
        for item in items:
            try:
                self._take(item)
            except DekrrError:
                self.decline(item.id)

    def _note(self, site: str, body: Body) -> bool:
        """Take in what a statement says; return False for one that is idle from the beginning."""
        if isinstance(body, Revocations):
            if self.identity.trust.learn(body.pem):
                self._check_again()
            return True
        if isinstance(body, Proposal):
            return self._note_proposal(site, body)
        state = self.studies.get(body.study)
        if state is not None:
            _note_in(state, site, body)
            return True
        waiting = [len(place) for one in self._orphans for slot, place in self._slots_of(one) if slot[2] == site]
        if sum(waiting) >= _MOST_ORPHANS:
            raise KeysError(f"site {site!r} has made too many statements about studies that are not known")
        self._orphans.setdefault(body.study, self._clock.monotonic())
        return True

    def _note_proposal(self, site: str, body: Proposal) -> bool:
        digest = digest_of(body.text)
        if digest in self.studies:
            return True
        study = parse_study(body.text)
        if _today(self._clock) > study.expires + _FORGOTTEN_AFTER:
            return False
        if sum(state.proposer == site for state in self.studies.values()) >= _MOST_STUDIES:
            raise KeysError(f"site {site!r} has proposed {_MOST_STUDIES} studies that have not expired; stop proposing")
        state = StudyState(digest, study, body.text, site, body.time, self._clock)
        self._orphans.pop(digest, None)
        for slot, place in self._slots_of(digest):
            for _, name in place:
                _note_in(state, slot[2], self._items[name].body)
        self.studies = {**self.studies, digest: state}
        return True


def _note_in(state: StudyState, site: str, body: Body) -> None:
    if isinstance(body, Decision):
        state.decisions = {**state.decisions, site: body}
    elif isinstance(body, Call):
        state.calls = {**state.calls, (site, body.number): body}
    elif isinstance(body, Report):
        state.reports = {**state.reports, (site, body.number): body}


def _slot(site: str, body: Body) -> tuple[str, ...]:
    """Return what a statement is about: of those about one thing, the last stay."""
    if isinstance(body, Revocations):
        return ("revocations",)
    if isinstance(body, Proposal):
        return "proposal", digest_of(body.text), site
    return type(body).__name__.lower(), body.study, site


def _today(clock: Clock) -> datetime.date:
    return datetime.datetime.fromtimestamp(clock.time(), datetime.UTC).date()
