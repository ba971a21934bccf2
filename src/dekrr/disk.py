"""The only owner of the system's calls for files: files that are whole or not there, locks, and power cuts.

Linux, macOS and Windows differ in what they offer. macOS has no `os.fdatasync`. Windows has neither `fcntl` nor
`os.pread`, cannot synchronise a folder, and knows no modes of files.
"""

import contextlib
import importlib
import os
import secrets
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType


def _module(name: str) -> ModuleType | None:
    """Return a module of the system's, where it has it."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


_fcntl, _msvcrt = _module("fcntl"), _module("msvcrt")
_PRIVATE, _USUAL = 0o600, 0o666
_BINARY: int = getattr(os, "O_BINARY", 0)
_FOLDER: int | None = getattr(os, "O_DIRECTORY", None)
_LOCKED_BYTE = 1 << 40  # a lock of msvcrt is one of a byte: of one behind the end, which nobody reads


@contextlib.contextmanager
def replacing(path: Path, *, private: bool = True, durable: bool = False) -> Iterator[Path]:
    """Give a file beside `path` that takes its place when the block ends well.

    Parameters
    ----------
    path : Path
    private : bool, default=True
        Whether the owner alone may read it. Otherwise it has the mode of the file that it replaces, or the one that
        any new file has there.
    durable : bool, default=False
        Whether the file, and its name, are on the disk when the block has ended.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "table.csv"
    >>> with replacing(path, private=False) as unfinished:
    ...     _ = unfinished.write_text("a,b")
    >>> path.read_text()
    'a,b'
    """
    mode = path.stat().st_mode & 0o777 if not private and path.exists() else None
    temporary = path.parent / f".unfinished-{secrets.token_hex(8)}"
    _create(temporary, (_PRIVATE if private else _USUAL) if mode is None else mode)
    try:
        yield temporary
        if mode is not None:
            temporary.chmod(mode)
        if durable:
            synchronise(temporary)
        os.replace(temporary, path)
        if durable:
            synchronise(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def filling(folder: Path) -> Iterator[Path]:
    """Give a folder whose contents are in `folder` when the block ends well; otherwise that is as it was."""
    is_new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(dir=folder, prefix=".unfinished-") as made:
            yield Path(made)
            for part in Path(made).iterdir():
                part.rename(folder / part.name)
    except BaseException:
        if is_new and not any(folder.iterdir()):
            folder.rmdir()
        raise


def create(path: Path, data: bytes, *, private: bool = False) -> None:
    """Write a file that must not exist yet (`FileExistsError`); a private one is for its owner alone."""
    _create(path, _PRIVATE if private else 0o644, data)


def _create(path: Path, mode: int, data: bytes = b"") -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _BINARY, mode), "wb") as file:
        file.write(data)


def is_private(path: Path) -> bool:
    """Return whether nobody but its owner may use a file, as far as the system has modes."""
    return os.name == "nt" or not path.stat().st_mode & 0o077


def synchronise(path: Path) -> None:
    """Have a file, and its name in its folder, on the disk when this returns."""
    _synchronise_name(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    if _FOLDER is not None:
        _synchronise_name(path.parent, os.O_RDONLY | _FOLDER)


def _synchronise_name(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def lock(descriptor: int) -> None:
    """Keep other processes that ask for the lock from an open file until it is closed, where the system can.

    Raises
    ------
    BlockingIOError
        When somebody else has the lock.
    """
    if _fcntl is not None:
        try:
            _fcntl.flock(descriptor, _fcntl.LOCK_EX | _fcntl.LOCK_NB)
        except BlockingIOError:
            raise
        except OSError:  # a file system without locks
            pass
    elif _msvcrt is not None:
        os.lseek(descriptor, _LOCKED_BYTE, os.SEEK_SET)
        try:
            _msvcrt.locking(descriptor, _msvcrt.LK_NBLCK, 1)
        except OSError as error:
            raise BlockingIOError(*error.args) from None


class LockedFile:
    """A file of its owner's that one process has at a time, read and written at given places.

    One thread reads and writes; another may synchronise meanwhile.

    Parameters
    ----------
    path : Path
        It is made if it does not exist, and so is its folder.

    Raises
    ------
    BlockingIOError
        When another process has it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | _BINARY, _PRIVATE)
        try:
            lock(self._descriptor)
        except BlockingIOError:
            self.close()
            raise

    @property
    def size(self) -> int:
        """Bytes in the file."""
        return os.fstat(self._descriptor).st_size

    def read(self, size: int, at: int) -> bytes:
        """Return `size` bytes from the place `at` on, fewer at the end of the file."""
        os.lseek(self._descriptor, at, os.SEEK_SET)
        parts = []
        while size and (part := os.read(self._descriptor, size)):
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def write(self, data: bytes | bytearray, at: int) -> None:
        """Write all of `data` from the place `at` on."""
        os.lseek(self._descriptor, at, os.SEEK_SET)
        with memoryview(data) as left:
            written = 0
            while written < len(left):
                written += os.write(self._descriptor, left[written:])

    def truncate(self, size: int) -> None:
        """Drop what is behind `size` bytes."""
        os.ftruncate(self._descriptor, size)

    def synchronise(self) -> None:
        """Have what was written on the disk when this returns; the file's name may not be there yet."""
        flush = getattr(os, "fdatasync", os.fsync)
        flush(self._descriptor)

    def close(self) -> None:
        """Close the file, and leave it to others."""
        os.close(self._descriptor)
