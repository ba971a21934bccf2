"""Files that are whole or not there, and that survive a power cut where that matters."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def replacing(path: Path, *, private: bool = True) -> Iterator[Path]:
    """Give a file beside `path` that takes its place when the block ends well.

    It is for its owner's eyes alone if `private`; otherwise who may read it is as for any file that is written there.
    """
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".unfinished-")
    os.close(descriptor)
    temporary = Path(name)
    try:
        yield temporary
        if not private:
            temporary.chmod(path.stat().st_mode & 0o777 if path.exists() else _usual_mode())
        os.replace(temporary, path)
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


def _usual_mode() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


def synchronise(path: Path) -> None:
    """Have a file, and its name in its folder, on the disk when this returns."""
    for each, flags in ((path, os.O_RDONLY), (path.parent, os.O_RDONLY | os.O_DIRECTORY)):
        descriptor = os.open(each, flags)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
