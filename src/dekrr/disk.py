"""All file operations at the level of the operating system: atomic replacement, locks, and durable writes.

No other module makes these calls, because systems differ. macOS has no `os.fdatasync`. Windows has neither `fcntl` nor
`os.pread`, cannot synchronise a folder, and has no file modes.
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
    """Return a module of the standard library, or None where this system does not have it."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


_fcntl, _msvcrt = _module("fcntl"), _module("msvcrt")
_PRIVATE, _USUAL = 0o600, 0o666
_BINARY: int = getattr(os, "O_BINARY", 0)
_FOLDER: int | None = getattr(os, "O_DIRECTORY", None)
_LOCKED_BYTE = 1 << 40  # msvcrt locks single bytes; this byte is far behind the end of any file here, and is never read


@contextlib.contextmanager
def replacing(path: Path, *, private: bool = True, durable: bool = False) -> Iterator[Path]:
    """Replace a file atomically: give a temporary file, which takes the place of `path` if the block raises no error.

    Only its owner may read a `private` file. Another has the mode of the file that it replaces, or the default mode of
    a new one. A `durable` file and its name are on the disk when the block has ended.
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
    """Give a temporary folder. Its contents move to `folder` if the block raises no error, and are erased otherwise."""
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
    """Write a new file; only its owner may read a private one. An existing file raises `FileExistsError`."""
    _create(path, _PRIVATE if private else 0o644, data)


def _create(path: Path, mode: int, data: bytes = b"") -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _BINARY, mode), "wb") as file:
        file.write(data)


def is_private(path: Path) -> bool:
    """Return whether only its owner may access a file; always True on Windows, which has no file modes."""
    return os.name == "nt" or not path.stat().st_mode & 0o077


def synchronise(path: Path) -> None:
    """Flush a file, and its name in its folder, to the disk."""
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
    """Take the exclusive lock of an open file until it is closed, where the file system has locks.

    The lock is advisory: it stops only processes that ask for it. It raises BlockingIOError when another process has
    it.
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
    """A private file with an exclusive lock, which is read and written at explicit offsets.

    One thread may read and write. Another thread may call `synchronise` at the same time. The file and its folder are
    made where they do not exist. It raises BlockingIOError when another process has the lock.
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
        """The size of the file in bytes."""
        return os.fstat(self._descriptor).st_size

    def read(self, size: int, at: int) -> bytes:
        """Return `size` bytes from the offset `at`, or fewer at the end of the file."""
        os.lseek(self._descriptor, at, os.SEEK_SET)
        parts = []
        while size and (part := os.read(self._descriptor, size)):
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def write(self, data: bytes | bytearray, at: int) -> None:
        """Write all of `data` at the offset `at`."""
        os.lseek(self._descriptor, at, os.SEEK_SET)
        with memoryview(data) as left:
            written = 0
            while written < len(left):
                written += os.write(self._descriptor, left[written:])

    def truncate(self, size: int) -> None:
        """Cut the file to its first `size` bytes."""
        os.ftruncate(self._descriptor, size)

    def synchronise(self) -> None:
        """Flush the file's data to the disk. Its name in the folder is not flushed."""
        flush = getattr(os, "fdatasync", os.fsync)
        flush(self._descriptor)

    def close(self) -> None:
        """Close the file and release its lock; whoever writes afterwards gets an `OSError`.

        The number of the descriptor is forgotten: the system gives it to the next file that is opened.
        """
        descriptor, self._descriptor = self._descriptor, -1
        os.close(descriptor)
