"""Shift-invariant kernels and the densities that their frequencies are drawn from.

By Bochner's theorem a shift-invariant kernel k(x - x') is the mean of cos(w'(x - x')) over frequencies w
(the paper's omega) drawn from its spectral density p(w); Rahimi and Recht, NIPS 2007. All three kernels
here are products over columns, so their frequencies are independent over columns.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.spatial.distance import cdist

from .errors import SettingsError
from .types import Array


@dataclass(frozen=True)
class Kernel(ABC):
    """A shift-invariant product kernel with one bandwidth.

    Parameters
    ----------
    sigma : float
        The bandwidth, in the units of the (scaled) columns.
    """

    sigma: float
    name: ClassVar[str]

    def __post_init__(self) -> None:
        if not (np.isfinite(self.sigma) and self.sigma > 0):
            raise SettingsError(f"sigma must be a positive number, got {self.sigma!r}")

    @abstractmethod
    def __call__(self, X: Array, Y: Array) -> Array:
        """Return the kernel matrix of two sets of rows, shape (n_X, n_Y)."""

    @abstractmethod
    def draw_frequencies(self, n_columns: int, n_frequencies: int, rng: np.random.Generator) -> Array:
        """Draw from the spectral density; shape (n_columns, n_frequencies)."""

    @abstractmethod
    def log_density(self, frequencies: Array) -> Array:
        """Return log p(w) of each column w of `frequencies`, shape (n_frequencies,)."""


class Gaussian(Kernel):
    """The Gaussian kernel exp(-|x - x'|^2 / (2 sigma^2)); frequencies are normal, N(0, 1/sigma^2).

    Examples
    --------
    >>> import numpy as np
    >>> Gaussian(sigma=0.5)(np.zeros((1, 2)), np.array([[0.5, 0.0]])).round(4)
    array([[0.6065]])
    """

    name = "gaussian"

    def __call__(self, X: Array, Y: Array) -> Array:  # noqa: D102
        return np.exp(cdist(X, Y, "sqeuclidean") / (-2 * self.sigma**2))

    def draw_frequencies(self, n_columns: int, n_frequencies: int, rng: np.random.Generator) -> Array:  # noqa: D102
        return rng.standard_normal((n_columns, n_frequencies)) / self.sigma

    def log_density(self, frequencies: Array) -> Array:  # noqa: D102
        scaled = frequencies * self.sigma
        per_column = np.log(self.sigma / np.sqrt(2 * np.pi)) - scaled**2 / 2
        return np.asarray(per_column.sum(axis=0))


class Laplacian(Kernel):
    """The Laplacian kernel exp(-|x - x'|_1 / sigma); frequencies are Cauchy with scale 1/sigma."""

    name = "laplacian"

    def __call__(self, X: Array, Y: Array) -> Array:  # noqa: D102
        return np.exp(cdist(X, Y, "cityblock") / -self.sigma)

    def draw_frequencies(self, n_columns: int, n_frequencies: int, rng: np.random.Generator) -> Array:  # noqa: D102
        return rng.standard_cauchy((n_columns, n_frequencies)) / self.sigma

    def log_density(self, frequencies: Array) -> Array:  # noqa: D102
        per_column = np.log(self.sigma / np.pi) - np.log1p((frequencies * self.sigma) ** 2)
        return np.asarray(per_column.sum(axis=0))


class Cauchy(Kernel):
    """The Cauchy kernel prod_k 1 / (1 + (x_k - x'_k)^2 / sigma^2); frequencies are Laplace(0, 1/sigma)."""

    name = "cauchy"

    def __call__(self, X: Array, Y: Array) -> Array:  # noqa: D102
        product = np.ones((len(X), len(Y)))
        for column_of_X, column_of_Y in zip(X.T, Y.T, strict=True):
            product /= 1 + (np.subtract.outer(column_of_X, column_of_Y) / self.sigma) ** 2
        return product

    def draw_frequencies(self, n_columns: int, n_frequencies: int, rng: np.random.Generator) -> Array:  # noqa: D102
        return rng.laplace(scale=1 / self.sigma, size=(n_columns, n_frequencies))

    def log_density(self, frequencies: Array) -> Array:  # noqa: D102
        per_column = np.log(self.sigma / 2) - np.abs(frequencies) * self.sigma
        return np.asarray(per_column.sum(axis=0))


KERNELS: dict[str, type[Kernel]] = {kernel.name: kernel for kernel in (Gaussian, Laplacian, Cauchy)}


def make_kernel(name: str, sigma: float) -> Kernel:
    """Return the kernel called `name` with bandwidth `sigma`.

    Examples
    --------
    >>> make_kernel("cauchy", 2.0)
    Cauchy(sigma=2.0)
    """
    if name not in KERNELS:
        raise SettingsError(f"unknown kernel {name!r}; choose one of {', '.join(sorted(KERNELS))}")
    return KERNELS[name](sigma)
