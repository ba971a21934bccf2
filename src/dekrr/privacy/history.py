"""Which rows of a data set have been in sums, run after run, on the site's own disk.

Sums of two runs about the same features differ by the sums over the rows that one run has and the other has not. Where
those are few, they are given away: a site that trains again after one new row publishes that row. A history therefore
keeps a keyed hash of every row that a run had in its sums, and refuses a run whose rows differ from those of an earlier
one by fewer rows than can hide each other. The same rows again are no difference. Under differential privacy the rows
may differ by any number, and the budgets of all runs add up (basic composition: Dwork and Roth, The Algorithmic
Foundations of Differential Privacy, 2014, theorem 3.16), up to a cap.

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
    dekrr.errors.DataError: the rows of this run differ from those of run 'june' by 1 row, fewer than 10: ...
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
        return np.sort(
            np.concatenate([_row_hashes(np.column_stack([block.X, block.y]), self._secret) for block in blocks])
        )

    def refuse_few_differences(self, rows: np.ndarray, fewest: int) -> None:
        """Refuse rows that differ from those of an earlier run that was not private, but by fewer than `fewest`.

        Parameters
        ----------
        rows : ndarray of uint64, shape (n_rows,)
            As `hashes` returns them.
        fewest : int
        """
        known: dict[str, int] = {}
        for entry in self.entries:
            if entry.epsilon is not None:
                continue
            if entry.rows not in known:
                known[entry.rows] = _n_different(rows, self._read(entry.rows))
            n_different = known[entry.rows]
            if 0 < n_different < fewest:
                raise DataError(
                    f"the rows of this run differ from those of run {entry.run!r} by {n_different} "
                    f"row{'s' * (n_different != 1)}, fewer than {fewest}: the sums of both runs would give these rows "
                    "away. Wait for more new rows, train on the rows of that run again, or run with differential "
                    "privacy"
                )

    def refuse_other_rows(self, run: str, rows: np.ndarray) -> None:
        """Refuse to repeat a run that was over other rows: its id names one set of rows."""
        name = _name_of(rows)
        if any(entry.run == run and entry.rows != name for entry in self.entries):
            raise DataError(f"run {run!r} was over other rows; give the run over these rows an id of its own")

    def refuse_budget(self, run: str, epsilon: float, most: float) -> None:
        """Refuse a private run whose budget, with those of all other runs, is above `most`."""
        spent = {entry.run: entry.epsilon for entry in self.entries if entry.epsilon is not None}
        spent.pop(run, None)  # a run that is resumed releases nothing new
        total = sum(spent.values())
        if total + epsilon > most * (1 + 1e-9):
            raise DataError(
                f"{len(spent)} private run{'s' * (len(spent) != 1)} over these rows spent epsilon {total:g} together; "
                f"{epsilon:g} more would exceed {most:g}. Use other rows, a smaller epsilon, or raise max_epsilon"
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
                    raise DataError(f"{self._folder / name} cannot be written, nothing is sent: {error}") from None
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


def _row_hashes(values: np.ndarray, secret: bytes) -> np.ndarray:
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


def _n_different(first: np.ndarray, second: np.ndarray) -> int:
    """Return how many rows are in one of two sorted collections and not in the other; rows may repeat."""
    values, counts = np.unique(np.concatenate([first, second]), return_counts=True)
    in_first = np.searchsorted(first, values, "right") - np.searchsorted(first, values, "left")
    return int(np.abs(2 * in_first - counts).sum())
