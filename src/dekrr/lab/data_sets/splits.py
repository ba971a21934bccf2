"""Splits: rows divided over sites, and at each site into training and test rows."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import DataError
from ...types import Array
from .loading import data_directory


@dataclass(frozen=True, eq=False)
class Split:
    """Training and test rows of all sites, scaled."""

    # X, y, sites: the training rows, shape (n_train, n_columns), their responses, and the site of each row: 0 to J - 1
    X: Array
    y: Array
    sites: np.ndarray
    X_test: Array  # X_test, y_test, test_sites: the same for the test rows
    y_test: Array
    test_sites: np.ndarray
    n_neighbors: int = 4
    kernel: tuple[float, float] = (1.0, 1e-6)  # the bandwidth and regularisation in the authors' files
    # the results in the authors' files: for each method, rows of (D, mean, standard deviation)
    authors: dict[str, Array] = field(default_factory=dict)

    @property
    def n_sites(self) -> int:
        """The number of sites (J)."""
        return int(self.sites.max()) + 1


AUTHORS_FILES = {"response": "by-response", "norm": "by-norm", "imbalanced": "imbalanced", "per-site": "per-site"}
"""How the authors' file of each division is called: by |y|, by |x|, of unequal sites, and with each site's error."""


def authors_split(name: str, directory: str | os.PathLike[str] | None = None, division: str = "response") -> Split:
    """Return the authors' own split of a data set, as from ``splits/NAME-by-response.npz``.

    Parameters
    ----------
    directory : path-like, optional
        The environment variable ``DEKRR_DATA`` by default.
    division : {"response", "norm", "imbalanced", "per-site"}
        How the authors divided the rows over sites.
    """
    path = _path(name, data_directory(directory, f"the authors' split of {name}"), division)
    if not path.exists():
        ending = f"-{AUTHORS_FILES[division]}.npz"
        there = ", ".join(file.name.removesuffix(ending) for file in sorted(path.parent.glob(f"*{ending}")))
        raise DataError(f"{path} does not exist; there are splits of {there or 'no data set'}")
    with np.load(path, allow_pickle=False) as file:
        n_sites = int(file["n_nodes"])
        train, test = (_joined(file, kind, n_sites) for kind in ("train", "test"))
        n_features = np.atleast_1d(file["n_features"]).astype(float)
        results = {"DeKRR-DDRF": "dekrr_rse", "DKLA": "dkla_rse"}
        return Split(
            *train,
            *test,
            n_neighbors=int(file["n_neighbors"]),
            kernel=(float(file["sigma"]), float(file["alpha"])),
            authors={m: np.column_stack([n_features, file[key]]) for m, key in results.items() if key in file},
        )


def has_authors_split(name: str, directory: str | os.PathLike[str] | None = None, division: str = "response") -> bool:
    return _path(name, data_directory(directory, f"the authors' split of {name}"), division).exists()


def _path(name: str, directory: Path, division: str) -> Path:
    return directory / "splits" / f"{name}-{AUTHORS_FILES[division]}.npz"


def _joined(file: Any, kind: str, n_sites: int) -> tuple[Array, Array, np.ndarray]:
    rows = [file[f"X_{kind}_{j}"] for j in range(n_sites)]
    responses = [file[f"y_{kind}_{j}"].ravel() for j in range(n_sites)]
    sites = np.repeat(np.arange(n_sites), [len(y) for y in responses])
    return np.vstack(rows).astype(float), np.concatenate(responses).astype(float), sites
