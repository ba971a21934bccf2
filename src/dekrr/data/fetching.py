"""Downloads of the public data sets, and the check of their contents."""

import os
from pathlib import Path

from ..errors import DataError, one_line
from .catalogue import CATALOGUE
from .files import check, data_directory, load


def fetch(name: str, directory: str | os.PathLike[str] | None = None) -> Path:
    """Download a data set's public archive into `directory`, check its contents, and return its path.

    The folder is made where it does not exist.

    Parameters
    ----------
    name : str
        A name of `CATALOGUE`.
    directory : path-like, optional
        The environment variable ``DEKRR_DATA`` by default.
    """
    try:
        import pooch
    except ImportError:
        raise ImportError("downloads need pooch: pip install 'dekrr[fetch]'") from None
    entry = CATALOGUE.get(name)
    if entry is None or not entry.url:
        known = ", ".join(key for key, value in CATALOGUE.items() if value.url)
        raise DataError(f"{name!r} has no public source here; choose one of {known}")
    folder = data_directory(directory, name, make=True)
    known_hash = f"sha256:{entry.sha256}" if entry.sha256 else None
    try:
        path = Path(pooch.retrieve(entry.url, known_hash, fname=entry.archive, path=folder, progressbar=False))
    except ValueError as error:
        raise DataError(f"{entry.url} differs from the file that was checked: {error}") from None
    except OSError as error:
        raise DataError(
            f"{entry.url} cannot be fetched ({one_line(str(error))}): load it elsewhere, and put it there as "
            f"{folder / entry.archive}"
        ) from None
    check(load(name, folder))
    return path
