"""Splits: rows divided over sites, and at each site into training and test rows."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import DataError
from ..types import Array
from .files import data_directory


@dataclass(frozen=True, eq=False)
class Split:
    """Training and test rows of all sites, scaled.

    Parameters
    ----------
    X, y, sites : ndarray
        The training rows, shape (n_train, n_columns), their responses, and the site of each row: 0 to J - 1.
    X_test, y_test, test_sites : ndarray
        The same for the test rows.
    n_neighbors : int
    kernel : (float, float)
        The bandwidth and regularisation in the authors' files.
    authors : mapping of str to ndarray
        The results in the authors' files: for each method, rows of (D, mean, standard deviation).
    """

    X: Array
    y: Array
    sites: np.ndarray
    X_test: Array
    y_test: Array
    test_sites: np.ndarray
    n_neighbors: int = 4
    kernel: tuple[float, float] = (1.0, 1e-6)
    authors: dict[str, Array] = field(default_factory=dict)

    @property
    def n_sites(self) -> int:
        """The number of sites (J)."""
        return int(self.sites.max()) + 1


def authors_split(name: str, directory: str | os.PathLike[str] | None = None) -> Split:
    """Return the authors' own split of a data set, from ``splits/NAME-by-response.npz``.

    Parameters
    ----------
    name : str
    directory : path-like, optional
        The environment variable ``DEKRR_DATA`` by default.
    """
    path = _path(name, data_directory(directory, f"the authors' split of {name}"))
    if not path.exists():
        there = ", ".join(file.name.split("-by-")[0] for file in sorted(path.parent.glob("*-by-response.npz")))
        raise DataError(f"{path} does not exist; there are splits of {there or 'no data set'}")
    with np.load(path, allow_pickle=False) as file:
        n_sites = int(file["n_nodes"])
        train, test = (_joined(file, kind, n_sites) for kind in ("train", "test"))
        n_features = file["n_features"].astype(float)
        results = {"DeKRR-DDRF": "dekrr_rse", "DKLA": "dkla_rse"}
        return Split(
            *train,
            *test,
            n_neighbors=int(file["n_neighbors"]),
            kernel=(float(file["sigma"]), float(file["alpha"])),
            authors={method: np.column_stack([n_features, file[key]]) for method, key in results.items()},
        )


def has_authors_split(name: str, directory: str | os.PathLike[str] | None = None) -> bool:
    """Return whether the authors' split of a data set is in the data directory."""
    return _path(name, data_directory(directory, f"the authors' split of {name}")).exists()


def _path(name: str, directory: Path) -> Path:
    return directory / "splits" / f"{name}-by-response.npz"


def _joined(file: Any, kind: str, n_sites: int) -> tuple[Array, Array, np.ndarray]:
    rows = [file[f"X_{kind}_{j}"] for j in range(n_sites)]
    responses = [file[f"y_{kind}_{j}"].ravel() for j in range(n_sites)]
    sites = np.repeat(np.arange(n_sites), [len(y) for y in responses])
    return np.vstack(rows).astype(float), np.concatenate(responses).astype(float), sites
