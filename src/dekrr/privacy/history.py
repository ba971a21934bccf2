"""Which rows of a data set have been in sums, run after run, on the site's own disk.

Sums of two runs about the same features differ by the sums over the rows that one run has and the other has not. Where
those are few, they are given away: a site that trains again after one new row publishes that row. A history therefore
keeps a keyed hash of every row that a run had in its sums, and refuses a run that would part few rows from others.

Two runs at a time are not enough to compare. Of runs over A, A + B, A + C and A + B + C + r any two may differ by many
rows, but their sums, with signs, give row r away. So rows that were in the same earlier runs are one group. A run may
have a whole group, nothing of it, or a part of it where both parts have enough rows to hide each other. Then any
combination of the sums of all runs is over whole groups. The same rows again part no group.

A row is its columns and its response. Sums over columns alone do not depend on the response, so that a later run with
another target could give away a new row just as well. A second history of the columns alone is kept for that.

Under differential privacy the rows may differ by any number, and the budgets of all runs add up (basic composition:
Dwork and Roth, The Algorithmic Foundations of Differential Privacy, 2014, theorem 3.16), up to a cap.

A row's hash is multilinear over its 64-bit words, with odd keys from the site's secret, and then mixed. Two different
rows share it with a chance of about 2^-32 (Lemire and Kaser, Strongly universal string hashing is fast, 2014).
"""

import hashlib
import time
from collections.abc import Iterable
from pathlib import Path

import msgspec
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from ..disk import replacing
from ..errors import DataError
from ..types import Block

RUNS = "runs.json"


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One run in a history.

    Parameters
    ----------
    run : str
    rows : str
        The name of the file that has the hashes of its rows.
    n_rows : int
    time : float
        Seconds since 1970.
    epsilon : float or None
        The budget that the run spent, if it was private.
    """

    run: str
    rows: str
    n_rows: int
    time: float
    epsilon: float | None = None


class History:
    """The runs over one data set.

    Parameters
    ----------
    folder : Path
        Made when the first run is noted.
    secret : bytes
        The site's own.

    Examples
    --------
    >>> import tempfile
    >>> history = History(Path(tempfile.mkdtemp()) / "history", b"secret")
    >>> rows = history.hashes([Block(np.arange(40.0).reshape(20, 2), np.zeros(20))])
    >>> history.note("june", rows)
    >>> history.refuse_few_differences(rows, fewest=10)
    >>> history.refuse_few_differences(rows[1:], fewest=10)
    Traceback (most recent call last):
        ...
    dekrr.errors.DataError: this run separates 1 row, fewer than 10, from rows that were in the same runs so far, ...
    """

    def __init__(self, folder: Path, secret: bytes) -> None:
        self._folder = folder
        self._secret = secret

    @property
    def entries(self) -> list[Entry]:
        """All runs that were noted, in their order."""
        path = self._folder / RUNS
        if not path.exists():
            return []
        try:
            return msgspec.json.decode(path.read_bytes(), type=list[Entry])
        except msgspec.MsgspecError as error:
            raise DataError(f"{path} says which rows were in sums, and cannot be read: {error}; restore it") from None

    def hashes(self, blocks: Iterable[Block]) -> np.ndarray:
        """Return the sorted hashes of all rows that are in sums, shape (n_rows,)."""
        return self.hashes_of_both(blocks)[0]

    def hashes_of_both(self, blocks: Iterable[Block]) -> tuple[np.ndarray, np.ndarray]:
        """Return the sorted hashes of all rows that are in sums, and those of their columns alone, in one pass."""
        rows, columns = [], []
        for block in blocks:
            rows.append(row_hashes(np.column_stack([block.X, block.y]), self._secret))
            columns.append(row_hashes(block.X, self._secret))
        return np.sort(np.concatenate(rows)), np.sort(np.concatenate(columns))

    def refuse_few_differences(self, rows: np.ndarray, fewest: int) -> None:
        """Refuse rows that part fewer than `fewest` from a group: rows that were in the same runs so far.

        Private runs do not count.

        Parameters
        ----------
        rows : ndarray of uint64, shape (n_rows,)
            As `hashes` returns them.
        fewest : int
        """
        last = {entry.rows: entry for entry in self.entries if entry.epsilon is None}
        if not last:
            return
        sets = [_distinct(part) for part in (rows, *(self._read(name) for name in last))]
        known = np.unique(np.concatenate(sets))
        here, *before = (np.isin(known, part, assume_unique=True) for part in sets)
        _, group, sizes = np.unique(np.packbits(before, axis=0), axis=1, return_inverse=True, return_counts=True)
        inside = np.bincount(group[here], minlength=len(sizes))
        was_seen = np.zeros(len(sizes), dtype=bool)
        was_seen[group] = np.any(before, axis=0)
        parted = np.where(was_seen & (inside < sizes), np.minimum(inside, sizes - inside), 0)
        parted = np.where(was_seen, parted, inside)
        few = (parted > 0) & (parted < fewest)
        if not few.any():
            return
        worst = int(np.argmax(few))
        n_rows = int(parted[worst])
        words = f"{n_rows} row{'s' * (n_rows != 1)}, fewer than {fewest},"
        if was_seen[worst]:
            runs = [entry.run for entry, there in zip(last.values(), before, strict=True) if there[group == worst][0]]
            where = f"from rows that were in the same runs so far, the last of them {runs[-1]!r}"
        else:
            where = f"that no earlier run had, the last of which is {[*last.values()][-1].run!r}"
        raise DataError(
            f"this run separates {words} {where}: the sums of these runs would give them away. Wait for more new rows, "
            "train on the rows of an earlier run again, or run with differential privacy"
        )

    def refuse_other_rows(self, run: str, rows: np.ndarray) -> None:
        """Refuse to repeat a run that was over other rows: its id names one set of rows."""
        name = _name_of(rows)
        if any(entry.run == run and entry.rows != name for entry in self.entries):
            raise DataError(f"run {run!r} used other rows; give a run with these rows another id")

    def refuse_budget(self, run: str, epsilon: float, most: float, also: Iterable["History"] = ()) -> None:
        """Refuse a private run whose budget, with those of all other runs, is above `most`.

        Parameters
        ----------
        run : str
        epsilon, most : float
        also : iterable of History
            Of the same rows with other columns: these runs spent on the same rows.
        """
        private = [entry for entry in self.entries if entry.epsilon is not None and entry.run != run]
        # (A run that is resumed releases nothing new.)
        private += [entry for other in also for entry in other.entries if entry.epsilon is not None]
        n_runs, total = len(private), sum(entry.epsilon or 0.0 for entry in private)
        if total + epsilon > most * (1 + 1e-9):
            raise DataError(
                f"{n_runs} run{'s' * (n_runs != 1)} with differential privacy over these rows spent epsilon {total:g} "
                f"together; {epsilon:g} more would exceed {most:g}. Use other rows, a smaller epsilon, or raise "
                "max_epsilon"
            )

    def note(self, run: str, rows: np.ndarray, epsilon: float | None = None) -> None:
        """Note a run, on the disk when this returns; the same run with the same rows is noted once."""
        name = _name_of(rows)
        entry = Entry(run=run, rows=name, n_rows=len(rows), time=time.time(), epsilon=epsilon)
        entries = self.entries
        if any((known.run, known.rows, known.epsilon) == (run, name, epsilon) for known in entries):
            return
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not (self._folder / name).exists():
            with replacing(self._folder / name, durable=True) as temporary:
                try:
                    save_file({"rows": rows}, temporary)
                except SafetensorError as error:
                    raise DataError(f"{self._folder / name} cannot be written, so nothing is sent: {error}") from None
        with replacing(self._folder / RUNS, durable=True) as temporary:
            temporary.write_bytes(msgspec.json.format(msgspec.json.encode([*entries, entry])))

    def _read(self, name: str) -> np.ndarray:
        path = self._folder / name
        try:
            with safe_open(path, framework="numpy") as file:
                return np.asarray(file.get_tensor("rows"), dtype=np.uint64)
        except (SafetensorError, OSError, TypeError, ValueError) as error:
            raise DataError(f"{path} says which rows were in sums, and cannot be read: {error}; restore it") from None


def _name_of(rows: np.ndarray) -> str:
    return hashlib.sha256(rows.tobytes()).hexdigest()[:32]


def row_hashes(values: np.ndarray, secret: bytes) -> np.ndarray:
    """Return a keyed 64-bit hash of each row of numbers, shape (n_rows,); -0.0 and 0.0 are the same number."""
    words = np.ascontiguousarray(values + 0.0, dtype=np.float64).view(np.uint64)
    stream = hashlib.shake_256(secret).digest(8 * (words.shape[1] + 1))
    keys = np.frombuffer(stream, dtype="<u8").astype(np.uint64) | np.uint64(1)
    mixed = keys[-1] + (_mixed(words) * keys[:-1]).sum(axis=1, dtype=np.uint64)
    return _mixed(mixed)


def _mixed(words: np.ndarray) -> np.ndarray:
    """Return words with their bits spread (the finaliser of SplitMix64; Steele, Lea and Flood, OOPSLA 2014)."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        words = (words ^ (words >> np.uint64(shift))) * np.uint64(factor)
    return np.asarray(words ^ (words >> np.uint64(31)))


def _distinct(rows: np.ndarray) -> np.ndarray:
    """Return hashes of rows in which the second, third ... of equal rows has a hash of its own, sorted."""
    ordered = np.sort(rows)
    place = np.arange(len(ordered)) - np.searchsorted(ordered, ordered)
    return np.sort(np.where(place == 0, ordered, _mixed(_mixed(ordered) + place.astype(np.uint64))))
