"""The models of a study, one for each run that ended well: `versions/NUMBER`, and the link `current` to one of them."""

import os
import secrets
import time
from contextlib import suppress
from pathlib import Path

import msgspec

from ...disk import replacing, synchronise
from ...errors import DataError
from ..node import MODEL

CURRENT, VERSIONS, STATE, USES = "current", "versions", "state.json", "uses.jsonl"


class RunState(msgspec.Struct, frozen=True, kw_only=True):
    """How a run stands at this site: running, done, or failed for a reason."""

    number: int
    state: str
    reason: str = ""
    time: float = 0.0


class Use(msgspec.Struct, frozen=True, kw_only=True):
    """A person's choice of the version to use."""

    id: str
    number: int
    by: str
    reason: str
    time: float


class Versions:
    """The versions of one study's model.

    Parameters
    ----------
    folder : Path
        The study's folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def place(self, number: int) -> Path:
        """Return the folder of a version."""
        return self.folder / VERSIONS / str(number)

    @property
    def states(self) -> list[RunState]:
        """All runs that this site has begun, in their order."""
        found = []
        for path in (self.folder / VERSIONS).glob(f"*/{STATE}"):
            try:
                found.append(msgspec.json.decode(path.read_bytes(), type=RunState))
            except (msgspec.MsgspecError, OSError):
                number = int(path.parent.name) if path.parent.name.isdecimal() else 0
                found.append(RunState(number=number, state="running", reason="its state cannot be read"))
        return sorted(found, key=lambda one: one.number)

    def note(self, number: int, state: str, reason: str = "") -> None:
        """Note how a run stands, on the disk."""
        place = self.place(number)
        place.mkdir(parents=True, exist_ok=True, mode=0o700)
        with replacing(place / STATE, durable=True) as temporary:
            noted = RunState(number=number, state=state, reason=reason, time=time.time())
            temporary.write_bytes(msgspec.json.encode(noted))

    @property
    def current(self) -> int | None:
        """The number of the version that is in use."""
        try:
            return int(Path(os.readlink(self.folder / CURRENT)).name)
        except (OSError, ValueError):
            return None

    @property
    def uses(self) -> list[Use]:
        """All choices of people; the audit trail has them, too."""
        path = self.folder / USES
        if not path.exists():
            return []
        with suppress(msgspec.MsgspecError, OSError):
            return msgspec.json.Decoder(Use).decode_lines(path.read_bytes())
        return []

    def choose(self, number: int, by: str, reason: str) -> None:
        """Use a version by a person's choice, which is noted first."""
        self._check(number)
        use = Use(id=secrets.token_hex(16), number=number, by=by, reason=reason, time=time.time())
        with replacing(self.folder / USES, durable=True) as temporary:
            temporary.write_bytes(msgspec.json.Encoder().encode_lines([*self.uses, use]))
        self.use(number)

    def _check(self, number: int) -> None:
        if not (self.place(number) / MODEL).exists():
            there = ", ".join(str(one.number) for one in self.states if one.state == "done") or "none"
            raise DataError(f"{self.folder} has no version {number}; there are {there}")

    def use(self, number: int) -> None:
        """Let `current` point to a version, at once and whole."""
        self._check(number)
        temporary = self.folder / f".{CURRENT}-{secrets.token_hex(4)}"
        temporary.symlink_to(Path(VERSIONS) / str(number))
        os.replace(temporary, self.folder / CURRENT)
        synchronise(self.place(number) / MODEL)
