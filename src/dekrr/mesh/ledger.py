"""Which rows of a site were in sums, run after run, whatever the runs asked about them.

Sums of two runs differ by the sums over the rows that one run has and the other has not. Where those are few, they are
given away: a site that trains again after one new row publishes that row. A ledger keeps a keyed hash of every row that
a run had in its sums, and refuses a run that would part few rows from others.

**One ledger for all runs.** Columns, targets, bounds, seeds, features, other sites and warm starts are the proposer's
choice, so none of them opens a new account. A row is all cells of the table, those that no study reads too. Tables have
cells that change from export to export, such as a date of extraction; then every row would look new. So a row is also
what each set of columns has of it that a run has ever read: each of these *views* has its own hashes, and each run is
judged, and noted, in all of them.

**Groups.** Two runs at a time are not enough to compare. Of runs over A, A + B, A + C and A + B + C + r any two may
differ by many rows, but their sums, with signs, give row r away. So rows that were in the same runs are one group. A
run may have a whole group, nothing of it, or a part of it where both parts have enough rows to hide each other. Then
any combination of the sums of all runs is over whole groups.

**Weights.** A weight of 2 where all others have 1 parts a row from the others, too. The first run settles what the rows
of a ledger weigh. In a later run with other weights, rows that weigh the same, relative to that, are a part of their
group, and must be enough. What rows of unequal weights hide is counted as (sum w)^2 / sum w^2 rows.

**How many are enough.** The most that any run so far needed, not what this run needs: small sums can add up to large
ones. A run of many features must also keep to that among the runs of as many features: groups that runs of few features
have parted are too small for it.

Under differential privacy the rows may differ by any number, and the budgets of all runs add up (basic composition:
Dwork and Roth, The Algorithmic Foundations of Differential Privacy, 2014, theorem 3.16), up to a cap.
"""

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from ..disk import lock, replacing
from ..errors import DataError
from ..privacy.odometer import mixed
from ..types import Array

ALL = ""  # the view of all cells
_RUNS, _WITHHELD, _TRIES = "runs", "withheld", "tries"
_IDENTIFYING = 0.5  # share of different rows from which a view tells rows apart


class Shelf(Protocol):
    """Where a ledger keeps what it knows: bytes by name, which are safe on the disk when `put` returns."""

    def get(self, name: str) -> bytes | None:
        """Return what is kept under a name; None if there is nothing."""

    def put(self, name: str, data: bytes) -> None:
        """Keep something, whole or not at all."""

    def alone(self) -> AbstractContextManager[None]:
        """Keep all others out, of this process and of others, until the block ends."""


class Folder:
    """A shelf that is a folder of files for their owner alone; it is made when something is first put there."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def get(self, name: str) -> bytes | None:
        """Return what is kept under a name."""
        path = self.path / name
        return path.read_bytes() if path.exists() else None

    def put(self, name: str, data: bytes) -> None:
        """Keep something."""
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        with replacing(self.path / name, durable=True) as temporary:
            temporary.write_bytes(data)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep all others out."""
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        with (self.path / "lock").open("ab") as file:
            while True:
                try:
                    lock(file.fileno())
                    break
                except OSError:  # another run is being judged, which takes a moment
                    time.sleep(0.05)
            yield


class PastRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run in a ledger."""

    run: str
    time: float  # seconds since 1970
    rows: dict[str, str]  # for each view the name under which the hashes of its rows are kept
    n_rows: int
    fewest: int  # the rows that a sum of this run needs
    weight: str = ""  # the column of its weights; empty if it has none
    epsilon: float | None = None  # what the run spent, if it was private
    delta: float | None = None
    about: dict[str, str] = {}  # what the run was, in words, for people


@dataclass(frozen=True, eq=False)
class Cells:
    """The cells of all rows of a table as keyed 64-bit words.

    Examples
    --------
    >>> cells = Cells.of({"age": np.array([50.0, 51.0]), "name": np.array(["Ann", None], dtype=object)}, b"secret")
    >>> len(np.unique(cells.hashes(("age", "name"))))
    2
    >>> bool((cells.hashes(("name", "age")) == cells.hashes(("age", "name"))).all())
    True
    """

    words: Mapping[str, np.ndarray]
    secret: bytes  # the site's own

    @classmethod
    def of(cls, columns: Mapping[str, np.ndarray], secret: bytes) -> "Cells":
        """Return the cells of columns."""
        return cls({name: _words(values, secret) for name, values in columns.items()}, secret)

    @classmethod
    def joined(cls, parts: Sequence["Cells"]) -> "Cells":
        """Return the cells of several tables below each other."""
        names = parts[0].words
        return cls({name: np.concatenate([part.words[name] for part in parts]) for name in names}, parts[0].secret)

    @property
    def n_rows(self) -> int:
        """The number of rows."""
        return len(next(iter(self.words.values()))) if self.words else 0

    def hashes(self, names: Iterable[str]) -> np.ndarray:
        """Return a keyed hash of each row's cells in some columns, in any order of them, shape (n_rows,)."""
        ordered = sorted(names)
        key = hashlib.blake2b(repr(ordered).encode(), key=self.secret[:64], digest_size=32).digest()
        table = np.column_stack([self.words[name] for name in ordered])
        blake, rows = hashlib.blake2b, table.tobytes()
        width = 8 * len(ordered)
        found = b"".join(
            blake(rows[start : start + width], key=key, digest_size=8).digest() for start in range(0, len(rows), width)
        )
        return np.frombuffer(found, dtype=np.uint64)


def _words(values: np.ndarray, secret: bytes) -> np.ndarray:
    """Return cells as words: the same number is the same word, whether it is written as a number or as a text."""
    if values.dtype.kind in "fiub":
        numbers = values.astype(np.float64) + 0.0
        return np.where(np.isnan(numbers), np.float64("nan"), numbers).view(np.uint64)
    if values.dtype.kind in "Mm":
        return np.asarray(values.astype("datetime64[us]" if values.dtype.kind == "M" else "timedelta64[us]").view("u8"))
    known: dict[object, int] = {}
    found = np.empty(len(values), dtype=np.uint64)
    for row, value in enumerate(values.tolist()):
        try:
            if value not in known:
                known[value] = _word(value, secret)
            found[row] = known[value]
        except TypeError:  # it cannot be a key
            found[row] = _word(value, secret)
    return found


def _word(value: object, secret: bytes) -> int:
    try:
        number = np.float64("nan") if value is None or value != value else np.float64(value)  # type: ignore[arg-type]
        return int(np.atleast_1d(number + 0.0).view(np.uint64)[0])
    except (TypeError, ValueError):
        text = hashlib.blake2b(str(value).encode(), key=secret[:64], digest_size=8).digest()
        return int.from_bytes(text, "little")


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """What a run asks for: who it is, what it needs, and which rows would be in its sums."""

    run: str
    columns: tuple[str, ...]  # the columns that it predicts from
    targets: tuple[str, ...]
    fewest: int  # the rows that a sum of it needs
    weight: str = ""  # the column of weights
    epsilon: float | None = None
    delta: float | None = None
    about: dict[str, str] = {}


class Ledger:
    """The runs over the rows of one source.

    Examples
    --------
    >>> import tempfile
    >>> ledger = Ledger(Folder(Path(tempfile.mkdtemp())))
    >>> cells = Cells.of({"u": np.arange(40.0), "v": np.arange(40.0), "y": np.zeros(40)}, b"secret")
    >>> ask = Ask(run="june", columns=("u",), targets=("y",), fewest=10)
    >>> ledger.enter(ask, cells, np.arange(40) < 39)
    >>> ledger.judge(msgspec.structs.replace(ask, run="july", columns=("u", "v")), cells, np.ones(40, dtype=bool))
    Traceback (most recent call last):
        ...
    dekrr.errors.DataError: this run separates 1 row, fewer than 10, that no earlier run had, the last of which is ...
    """

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf

    @property
    def entries(self) -> list[PastRun]:
        """All runs that were noted, in their order."""
        data = self._shelf.get(_RUNS)
        if data is None:
            return []
        try:
            return msgspec.json.decode(data, type=list[PastRun])
        except msgspec.MsgspecError as error:
            raise DataError(f"the ledger of rows that were in sums cannot be read: {error}; restore it") from None

    def begin(self, run: str, now: float, most: int, since: float) -> None:
        """Note that a run will read these rows; refuse it where `most` others have since a time.

        How a run fails tells something about rows, for instance that one of them has none of the classes that a study
        names. So runs count that never sent a sum.
        """
        with self._shelf.alone():
            tries = msgspec.json.decode(self._shelf.get(_TRIES) or b"{}", type=dict[str, float])
            tries = {other: time for other, time in tries.items() if time >= since or other == run}
            if run not in tries and len(tries) >= most:
                raise DataError(f"{len(tries)} runs have read these rows in 30 days, models or not; at most {most}")
            self._shelf.put(_TRIES, msgspec.json.encode({run: now, **tries}))

    def enter(
        self,
        ask: Ask,
        cells: Cells,
        inside: np.ndarray,
        weights: Array | None = None,
        *,
        alone: np.ndarray | None = None,
        check: Callable[[], None] | None = None,
    ) -> None:
        """Judge a run and note it, with nobody in between; it is on the disk when this returns.

        `ask`, `cells`, `inside`, `weights`: as `judge` has them. `alone`: the rows that this run keeps out because they
        stand alone: they stay out of later runs, too. `check`: raises an error if the site refuses the run for another
        reason; it may read the entries.
        """
        with self._shelf.alone():
            if self._is_noted(ask, cells, inside):
                return  # it is resumed
            if check is not None:
                check()
            self.judge(ask, cells, inside, weights)
            if alone is not None and alone.any():
                known = np.frombuffer(self._shelf.get(_WITHHELD) or b"", dtype=np.uint64)
                self._shelf.put(_WITHHELD, np.union1d(cells.hashes(cells.words)[alone], known).tobytes())
            self._note(ask, cells, inside, weights)

    def judge(self, ask: Ask, cells: Cells, inside: np.ndarray, weights: Array | None = None) -> None:
        """Refuse a run that parts few rows from a group: rows that were in the same runs so far, and weighed the same.

        Private runs do not count, and are not judged so.

        `inside`: which rows would be in sums. `weights`: what they weigh in this run.
        """
        runs = [entry for entry in self.entries if entry.epsilon is None and entry.run != ask.run]
        if ask.epsilon is not None or not runs:
            return
        _refuse_lost_columns(runs, cells)
        fewest = max([ask.fewest, *(entry.fewest for entry in runs)])
        levels = sorted({entry.fewest for entry in runs if entry.fewest <= ask.fewest} | {ask.fewest})
        ratio = _of_base(runs[0].weight, ask.weight, cells, weights)
        is_known = self._knows(runs, cells, inside)
        for view in _views(runs):
            names = _names(view, cells)
            if names is None:
                continue
            hashes = cells.hashes(names)
            if view != ALL and is_known and len(np.unique(hashes)) < _IDENTIFYING * len(hashes):
                continue  # where most rows are known by all cells, equal values of few columns are other rows
            here = self._part(hashes, inside, weights, ratio)
            judged = set()
            for level in levels:
                among = [entry for entry in runs if entry.fewest >= level and view in entry.rows]
                kept = {entry.rows[view]: entry for entry in among}
                if kept and (key := tuple(kept)) not in judged:
                    judged.add(key)
                    self._compare(here, kept, fewest, ask)

    def refuse_budget(self, ask: Ask, most: float, most_delta: float) -> None:
        """Refuse a private run whose budget, with those of all other runs, is above `most`, or its delta."""
        if ask.epsilon is None:
            return
        private = [entry for entry in self.entries if entry.epsilon is not None and entry.run != ask.run]
        n_runs, total = len(private), sum(entry.epsilon or 0.0 for entry in private)
        spent = f"{n_runs} run{'s' * (n_runs != 1)} with differential privacy over these rows spent"
        if total + ask.epsilon > most * (1 + 1e-9):
            raise DataError(
                f"{spent} epsilon {total:g} together; {ask.epsilon:g} more would exceed {most:g}. Use other rows, a "
                "smaller epsilon, or raise max_epsilon, and total_epsilon in the site's policy"
            ).about(code="budget")
        deltas = sum(entry.delta or 0.0 for entry in private)
        if deltas + (ask.delta or 0.0) > most_delta * (1 + 1e-9):
            raise DataError(
                f"{spent} delta {deltas:g} together; {ask.delta:g} more would exceed {most_delta:g}, the chance of a "
                "tenth of one row. Use other rows, or a smaller delta"
            ).about(code="budget")

    def refuse_other_rows(self, ask: Ask, cells: Cells, inside: np.ndarray) -> None:
        """Refuse to repeat a run that was over other rows: its id names one set of rows."""
        if any(entry.run == ask.run for entry in self.entries) and not self._is_noted(ask, cells, inside):
            raise DataError(f"run {ask.run!r} used other rows; give a run with these rows another id")

    def _knows(self, runs: Sequence[PastRun], cells: Cells, inside: np.ndarray) -> bool:
        """Return whether most rows of a run were in earlier ones, with all their cells."""
        kept = {entry.rows[ALL] for entry in runs if ALL in entry.rows}
        before = np.concatenate([np.empty(0, dtype=np.uint64), *(self._read(name)["rows"] for name in kept)])
        return bool(np.isin(cells.hashes(cells.words)[inside], before).mean() >= _IDENTIFYING) if inside.any() else True

    def withheld(self, cells: Cells) -> np.ndarray:
        """Return which rows an earlier run has kept out of its sums, shape (n_rows,): they stay out."""
        data = self._shelf.get(_WITHHELD)
        if data is None:
            return np.zeros(cells.n_rows, dtype=bool)
        return np.isin(cells.hashes(cells.words), np.frombuffer(data, dtype=np.uint64))

    def _note(self, ask: Ask, cells: Cells, inside: np.ndarray, weights: Array | None) -> None:
        entries = self.entries
        own = {_view(ask.columns), _view((*ask.columns, *ask.targets))}
        views = dict.fromkeys([ALL, *_views(entries), *sorted(own)])
        base = next((entry.weight for entry in entries if entry.epsilon is None), ask.weight)
        ratio = _of_base(base, ask.weight, cells, weights)
        rows = {}
        for view in views:
            names = _names(view, cells)
            if names is not None:
                rows[view] = self._put(self._part(cells.hashes(names), inside, weights, ratio))
        entry = PastRun(
            run=ask.run,
            time=time.time(),
            rows=rows,
            n_rows=int(inside.sum()),
            fewest=ask.fewest,
            weight=ask.weight,
            epsilon=ask.epsilon,
            delta=ask.delta,
            about=ask.about,
        )
        self._shelf.put(_RUNS, msgspec.json.format(msgspec.json.encode([*entries, entry])))

    def _is_noted(self, ask: Ask, cells: Cells, inside: np.ndarray) -> bool:
        name = _name_of(np.sort(_distinct(cells.hashes(cells.words)[inside])))
        return any(entry.run == ask.run and entry.rows.get(ALL, "").startswith(name) for entry in self.entries)

    @staticmethod
    def _part(hashes: np.ndarray, inside: np.ndarray, weights: Array | None, ratio: Array) -> dict[str, np.ndarray]:
        """Return the rows of a run in a view: sorted hashes, what each weighs by the base, and relative to it."""
        distinct = _distinct(hashes[inside])
        order = np.argsort(distinct)
        weigh = np.ones(inside.sum()) if weights is None else weights[inside]
        relative = ratio[inside]
        return {"rows": distinct[order], "base": (weigh / relative)[order], "ratio": relative[order]}

    def _put(self, part: dict[str, np.ndarray]) -> str:
        of_weights = hashlib.sha256(part["base"].tobytes() + part["ratio"].tobytes()).hexdigest()[:16]
        name = f"{_name_of(part['rows'])}-{of_weights}"
        if self._shelf.get(name) is None:
            self._shelf.put(name, save(part))
        return name

    def _read(self, name: str) -> dict[str, np.ndarray]:
        data = self._shelf.get(name)
        try:
            found = load(data or b"")
            return {"rows": found["rows"].astype(np.uint64), "base": found["base"], "ratio": found["ratio"]}
        except (SafetensorError, KeyError, ValueError) as error:
            raise DataError(
                f"the ledger of rows that were in sums lacks its part {name}: {error}; restore it"
            ) from None

    def _compare(self, here: dict[str, np.ndarray], kept: Mapping[str, PastRun], fewest: int, ask: Ask) -> None:
        parts = [here, *(self._read(name) for name in kept)]
        known = np.unique(np.concatenate([part["rows"] for part in parts]))
        base, labels = np.zeros(len(known)), np.zeros((len(parts), len(known)))
        for number, part in enumerate(parts):
            places = np.searchsorted(known, part["rows"])
            base[places] = part["base"]
            labels[number, places] = part["ratio"]
        _, group = np.unique(labels[1:], axis=1, return_inverse=True)
        group = group.ravel()
        was_seen = np.zeros(group.max() + 1, dtype=bool)
        was_seen[group] = labels[1:].any(axis=0)
        _, cut = np.unique(np.vstack([group, labels[0]]), axis=1, return_inverse=True)
        cut = cut.ravel()
        sizes = np.bincount(cut, base) ** 2 / np.maximum(np.bincount(cut, base**2), np.finfo(float).tiny)
        group_of = np.zeros(len(sizes), dtype=int)
        group_of[cut] = group
        is_inside = np.zeros(len(sizes), dtype=bool)
        is_inside[cut] = labels[0] > 0
        n_cuts = np.bincount(group_of, minlength=len(was_seen))
        parted = np.where(was_seen[group_of], n_cuts[group_of] > 1, is_inside)
        few = parted & (np.floor(sizes + 1e-9) < fewest)
        if not few.any():
            return
        worst = int(np.argmax(few))
        n_rows = int(np.bincount(cut)[worst])
        entries = list(kept.values())
        where = f"that no earlier run had, the last of which is {entries[-1].run!r}"
        if was_seen[group_of[worst]]:
            column = labels[1:, np.flatnonzero(cut == worst)[0]]
            runs = [entry.run for entry, label in zip(entries, column, strict=True) if label]
            where = f"from rows that were in the same runs so far, the last of them {runs[-1]!r}"
        unlike = "by their weights " if len({float(ratio) for ratio in here["ratio"]}) > 1 else ""
        raise DataError(
            f"this run separates {unlike}{n_rows} row{'s' * (n_rows != 1)}, fewer than {fewest}, {where}: the sums of "
            "these runs would give them away, whatever their columns, weights and settings. Wait for more new rows, "
            "train on the rows of an earlier run again with the same weights, or run with differential privacy"
        ).about(code="history")


def _of_base(base: str, weight: str, cells: Cells, weights: Array | None) -> Array:
    """Return what each row weighs in a run, relative to the weights of the first run."""
    given = np.ones(cells.n_rows) if weights is None else np.asarray(weights, dtype=float)
    if base == weight:
        return np.ones(cells.n_rows)
    if not base or base not in cells.words:
        return np.where(given > 0, given, 1.0)
    first = cells.words[base].view(np.float64)
    usable = np.isfinite(first) & (first > 0) & (given > 0)
    return np.where(usable, given / np.where(usable, first, 1.0), 1.0)


def _view(names: Iterable[str]) -> str:
    return msgspec.json.encode(sorted(names)).decode()


def _views(entries: Sequence[PastRun]) -> list[str]:
    return list(dict.fromkeys(view for entry in entries for view in entry.rows))


def _names(view: str, cells: Cells) -> list[str] | None:
    """Return the columns of a view; None where the table has not all of them any more."""
    names = sorted(cells.words) if view == ALL else msgspec.json.decode(view, type=list[str])
    return names if all(name in cells.words for name in names) else None


def _refuse_lost_columns(runs: Sequence[PastRun], cells: Cells) -> None:
    """Refuse a table that has lost columns by which rows of an earlier run are told from others."""
    for entry in runs:
        views = [view for view in entry.rows if view != ALL]
        if not any(_names(view, cells) for view in views):
            names = sorted({name for view in views for name in msgspec.json.decode(view, type=list[str])})
            lost = ", ".join(repr(name) for name in names if name not in cells.words)
            raise DataError(
                f"the table lacks {lost}, which run {entry.run!r} has read: which of its rows are new cannot be told. "
                "Put the column back under its name; or, where all rows are others, give them a source of another name"
            ).about(code="history")


def _name_of(rows: np.ndarray) -> str:
    return hashlib.sha256(rows.tobytes()).hexdigest()[:32]


def _distinct(rows: np.ndarray) -> np.ndarray:
    """Return hashes of rows in which the second, third ... of equal rows has a hash of its own, in the same order."""
    order = np.argsort(rows, kind="stable")
    ordered = rows[order]
    place = np.arange(len(ordered)) - np.searchsorted(ordered, ordered)
    found = np.empty_like(rows)
    found[order] = np.where(place == 0, ordered, mixed(mixed(ordered) + place.astype(np.uint64)))
    return found
