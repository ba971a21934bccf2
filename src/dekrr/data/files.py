"""Tables in files: CSV or Parquet, and the data sets of the paper by name."""

import os
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import DataError
from ..types import Array

ENVIRONMENT_VARIABLE = "DEKRR_DATA"


def read_table(path: str | os.PathLike[str]) -> Any:
    """Return the table in a CSV (or .csv.gz, .tsv) or Parquet file as a pandas DataFrame."""
    try:
        import pandas as pd
    except ImportError:
        raise ImportError("reading tables needs pandas and pyarrow: pip install 'dekrr[cli]'") from None
    path = Path(path)
    if not path.exists():
        raise DataError(f"{path} does not exist")
    try:
        if path.suffix in (".parquet", ".pq"):
            return pd.read_parquet(path)
        return pd.read_csv(path, sep="\t" if ".tsv" in path.suffixes else ",")
    except (ValueError, OSError) as error:
        raise DataError(f"{path} cannot be read as a table: {error}") from None


def load(name: str, directory: str | os.PathLike[str] | None = None) -> tuple[Array, Array]:
    """Return the rows and responses of a data set in `directory`.

    Parameters
    ----------
    name : str
        The file's name without ``.parquet``; its last column but `node` is the response `y`.
    directory : path-like, optional
        The environment variable ``DEKRR_DATA`` by default.

    Returns
    -------
    X : ndarray of shape (n_rows, n_columns)
    y : ndarray of shape (n_rows,)
    """
    directory = directory or os.environ.get(ENVIRONMENT_VARIABLE)
    if not directory:
        raise DataError(f"where is {name}? Give a directory, or set the environment variable {ENVIRONMENT_VARIABLE}")
    path = Path(directory) / f"{name}.parquet"
    if not path.exists():
        there = ", ".join(sorted(file.stem for file in Path(directory).glob("*.parquet"))) or "no Parquet file"
        raise DataError(f"{path} does not exist; in {directory} there is {there}")
    table = read_table(path)
    rows = table.drop(columns=["y", "node"], errors="ignore")
    return rows.to_numpy(dtype=np.float64), table["y"].to_numpy(dtype=np.float64)
