"""Tables in files: CSV or Parquet, and the data sets of the catalogue by name, loaded or downloaded."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import DataError, one_line
from ...types import Array
from .catalogue import CATALOGUE, DataSource

ENVIRONMENT_VARIABLE = "DEKRR_DATA"
RESPONSE, SITE = "y", "node"


@dataclass(frozen=True, eq=False)
class Dataset:
    """Rows and responses of a data set, with names; ``X, y = dataset`` unpacks the arrays.

    Parameters
    ----------
    X : ndarray of shape (n_rows, n_columns)
    y : ndarray of shape (n_rows,)
    columns : tuple of str
    sites : ndarray of shape (n_rows,) or None
        The site of each row, if the data has its own sites.
    """

    name: str
    X: Array
    y: Array
    columns: tuple[str, ...]
    sites: np.ndarray | None = None

    def __iter__(self) -> Iterator[Array]:
        return iter((self.X, self.y))


def read_table(path: str | os.PathLike[str]) -> Any:
    """Return the table in a CSV (or .csv.gz, .tsv) or Parquet file as a pandas DataFrame."""
    pd = import_pandas()
    path = Path(path)
    if not path.exists():
        raise DataError(f"{path} does not exist")
    try:
        if path.suffix in (".parquet", ".pq"):
            return pd.read_parquet(path)
        return pd.read_csv(path, sep="\t" if ".tsv" in path.suffixes else ",")
    except (ValueError, OSError) as error:
        raise DataError(f"{path} cannot be read as a table: {error}") from None


def import_pandas() -> Any:
    """Return the module pandas, or raise an ImportError that says how to install it."""
    try:
        import pandas as pd
    except ImportError:
        raise ImportError("reading tables needs pandas and pyarrow: pip install 'dekrr[cli]'") from None
    return pd


def data_directory(directory: str | os.PathLike[str] | None, wanted: str, *, make: bool = False) -> Path:
    """Return `directory`, or the value of ``DEKRR_DATA``; raise `DataError` if there is neither.

    A folder that does not exist is made where that is wanted.
    """
    folder = directory or os.environ.get(ENVIRONMENT_VARIABLE)
    entry = CATALOGUE.get(wanted)
    advice = f". {_remedy(wanted, entry)}" if entry is not None and entry.url else ""
    if not folder:
        raise DataError(
            f"where is {wanted}? Give a directory, or set the environment variable {ENVIRONMENT_VARIABLE}{advice}"
        )
    if make:
        Path(folder).mkdir(parents=True, exist_ok=True)
    if not Path(folder).is_dir():
        raise DataError(f"the data directory {folder} does not exist, so {wanted} cannot be read from it{advice}")
    return Path(folder)


def load(name: str, directory: str | os.PathLike[str] | None = None) -> Dataset:
    """Return a data set in `directory`.

    Parameters
    ----------
    name : str
        The name of a file without ``.parquet``. Its column `y` has the response and, if the data has its own sites,
        its column `node` has the site. Or a name of `CATALOGUE`, if its original archive or the unpacked files are in
        the directory.
    directory : path-like, optional
        The environment variable ``DEKRR_DATA`` by default.

    Examples
    --------
    >>> import tempfile, pandas as pd
    >>> from dekrr.data import load
    >>> folder = tempfile.mkdtemp()
    >>> pd.DataFrame({"depth": [1.0, 2.0], "y": [0.5, 0.7]}).to_parquet(f"{folder}/wells.parquet")
    >>> X, y = load("wells", folder)
    >>> X.shape, load("wells", folder).columns
    ((2, 1), ('depth',))
    """
    folder = data_directory(directory, name)
    path = folder / f"{name}.parquet"
    if path.exists():
        return _from_parquet(name, path)
    entry = CATALOGUE.get(name)
    if entry is not None and entry.members:
        from .originals import read_original

        dataset = read_original(name, entry, folder)
        if dataset is not None:
            return dataset
    raise DataError(_missing(name, entry, folder))


def require(name: str, directory: str | os.PathLike[str] | None = None) -> None:
    """Raise the `DataError` that `load` raises for a missing file, but read no file."""
    folder = data_directory(directory, name)
    entry = CATALOGUE.get(name)
    originals = (entry.archive, *entry.members) if entry is not None and entry.members else ()
    names = [f"{name}.parquet", *originals]
    if not any(next(folder.rglob(pattern), None) for pattern in names if pattern):
        raise DataError(_missing(name, entry, folder))


def _from_parquet(name: str, path: Path) -> Dataset:
    table = read_table(path)
    if RESPONSE not in table.columns:
        raise DataError(f"{path} has no column {RESPONSE!r} for the response; it has {', '.join(table.columns)}")
    rows = table.drop(columns=[RESPONSE, SITE], errors="ignore")
    sites = table[SITE].to_numpy() if SITE in table.columns else None
    if sites is not None and name in CATALOGUE and CATALOGUE[name].sites and sites.dtype.kind in "iu":
        sites = np.array(CATALOGUE[name].sites)[sites]
    return Dataset(
        name,
        rows.to_numpy(dtype=np.float64),
        table[RESPONSE].to_numpy(dtype=np.float64),
        tuple(map(str, rows.columns)),
        sites,
    )


def _missing(name: str, entry: DataSource | None, folder: Path) -> str:
    there = ", ".join(sorted(file.stem for file in folder.glob("*.parquet"))) or "no Parquet file"
    if entry is None:
        return f"{folder} has no {name}.parquet (it has {there}), and {name!r} is not in the catalogue"
    if not entry.url:
        return f"{folder} has no {name}.parquet (it has {there}); {entry.note}"
    return (
        f"{folder} has neither {name}.parquet (it has {there}) nor the original, {originals_of(entry)}. "
        f"{_remedy(name, entry)}"
    )


def originals_of(entry: DataSource) -> str:
    """Return the names of the files that a data set is read from, in words: the archive, or what is in it.

    Examples
    --------
    >>> originals_of(CATALOGUE["wave"])
    'large-scale+wave+energy+farm.zip, or unpacked: WEC_Perth_49.csv, WEC_Sydney_49.csv'
    """
    return f"{entry.archive}, or unpacked: {', '.join(entry.members)}"


def _remedy(name: str, entry: DataSource) -> str:
    return (
        f"With internet access: dekrr data fetch {name}, which makes the folder. Without: put {entry.url} there, as "
        f"{originals_of(entry)}"
    )


def check(dataset: Dataset) -> None:
    """Raise `DataError` if a data set does not have the size and the means that the catalogue has for its name."""
    entry = CATALOGUE[dataset.name]
    shape, wanted = dataset.X.shape, (entry.n_rows, entry.n_columns)
    known_exactly = entry.means is not None
    if shape[1] != wanted[1] or abs(shape[0] - wanted[0]) > (0 if known_exactly else 0.01 * wanted[0]):
        raise DataError(f"{dataset.name} has {shape[0]} rows and {shape[1]} columns; expected {wanted}")
    if not (np.isfinite(dataset.X).all() and np.isfinite(dataset.y).all()):
        raise DataError(f"{dataset.name} has missing or infinite values")
    if entry.means is not None:
        means = float(dataset.y.mean()), float(np.abs(dataset.X).mean())
        if not np.allclose(means, entry.means, rtol=1e-3):
            raise DataError(f"{dataset.name} has means {means} of y and |X|; expected {entry.means}")


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
