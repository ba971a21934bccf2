"""The model that is served, and its replacement by a newer one while requests are answered.

Every request takes the model once, at its start, and keeps it to its end. A newer model takes the place of the old one
by a single assignment. So no request is lost, and none is answered by two models.
"""

import hashlib
import logging
import time
from dataclasses import dataclass
from pathlib import Path

from ..errors import DataError, DekrrError
from ..model import Outside, SiteModel, load
from .bodies import RowReader
from .one_row import OneRow

MODEL, CURRENT, VERSIONS = "model.safetensors", "current", "versions"
_SUFFIX = ".safetensors"
_LONGEST_POINTER = 4096
_ATTEMPTS = 5
logger = logging.getLogger("dekrr.serving")


@dataclass(frozen=True, eq=False)
class Version:
    """A model that was read, with what belongs to it."""

    model: SiteModel
    read_rows: RowReader
    one_row: OneRow
    outside: Outside
    name: str  # the first digits of the SHA-256 of the file
    path: Path
    since: float  # when it was read, in seconds since 1970


def find_model(place: Path) -> Path:
    """Return the model file that a path stands for: that file, or the model of a folder.

    In a folder, `current` points to the model: it is a link, or a file whose first line names a version. A version is a
    model file or a folder with model.safetensors, in the folder or in its folder `versions`. Without `current`, the
    folder must have model.safetensors, or one model alone.
    """
    if not place.is_dir():
        return place
    pointer = place / CURRENT
    if pointer.is_dir():
        return pointer.resolve() / MODEL
    if pointer.is_file():
        if pointer.is_symlink():
            return pointer.resolve()
        with pointer.open("rb") as file:
            name = file.read(_LONGEST_POINTER).decode("utf-8", errors="replace").strip().partition("\n")[0]
        candidates = [
            folder / part for folder in (place / VERSIONS, place) for part in (f"{name}/{MODEL}", name + _SUFFIX, name)
        ]
        inside = [path for path in candidates if name and path.resolve().is_relative_to(place.resolve())]
        for path in inside:
            if path.is_file():
                return path
        raise DataError(f"{pointer} names the version {name!r}, which is not in {place}")
    if (place / MODEL).is_file():
        return place / MODEL
    models = sorted(place.glob(f"*{_SUFFIX}"))
    if len(models) == 1:
        return models[0]
    if models:
        raise DataError(f"{place} has {len(models)} models, one for each site; give one of the files")
    raise DataError(f"{place} has no model: neither {CURRENT} nor {MODEL}")


class CurrentModel:
    """The model to answer requests with, read from a file or a folder; see `find_model`.

    `trouble` says why the newest model could not be read; it is empty if it could.
    """

    def __init__(self, place: Path, max_rows: int) -> None:
        self._place = place
        self._max_rows = max_rows
        self.trouble = ""
        self.n_reloads = self.n_failures = 0
        path = find_model(place)
        self._seen = _state_of(path)
        self.version = self._read(path)

    def refresh(self, *, force: bool = False) -> bool:
        """Read the model anew if its file or the pointer has changed; return whether another one is served now.

        A model that cannot be read is told of once, and the old one stays. With `force` the file is read even if it
        looks unchanged.
        """
        try:
            path = find_model(self._place)
            seen = _state_of(path)
            if seen == self._seen and not force:
                return False
            version = self._read(path)
        except (DekrrError, OSError) as error:
            if str(error) != self.trouble or force:
                self.trouble = str(error)
                self.n_failures += 1
                logger.warning("the model stays %s: %s", self.version.name, error)
            return False
        self._seen, self.trouble = seen, ""
        if version.name == self.version.name:
            return False
        old, self.version = self.version, version
        self.n_reloads += 1
        logger.warning("model %s takes the place of %s", version.name, old.name)
        return True

    def _read(self, path: Path) -> Version:
        for _ in range(_ATTEMPTS):
            before = _state_of(path)
            with path.open("rb") as file:
                name = hashlib.file_digest(file, "sha256").hexdigest()[:12]
            model = load(path)
            if _state_of(path) == before:
                reader = RowReader(model, self._max_rows)
                return Version(model, reader, OneRow(model), Outside(model), name, path, time.time())
        raise DataError(f"{path} was replaced {_ATTEMPTS} times while it was read")


def _state_of(path: Path) -> tuple[str, int, int, int]:
    """Return what changes when a file is replaced, or a pointer turned to another one."""
    found = path.stat()
    return str(path.resolve()), found.st_mtime_ns, found.st_size, found.st_ino
