"""Files that are whole or not there, and that survive a power cut where that matters."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a file beside `path`, for its owner's eyes alone, that takes its place when the block ends well."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(descriptor)
    temporary = Path(name)
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def synchronise(path: Path) -> None:
    """Have a file, and its name in its folder, on the disk when this returns."""
    for each, flags in ((path, os.O_RDONLY), (path.parent, os.O_RDONLY | os.O_DIRECTORY)):
        descriptor = os.open(each, flags)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
