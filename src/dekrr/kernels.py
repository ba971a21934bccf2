"""Shift-invariant kernels and the densities that their frequencies are drawn from.

By Bochner's theorem a shift-invariant kernel k(x - x') is the mean of cos(w'(x - x')) over frequencies w
(the paper's omega) that are drawn from the kernel's spectral density p(w); see Rahimi and Recht, NIPS 2007. Each of
the three kernels here is a product over columns, so that the entries of a frequency are independent. `Kernel` is the
base class for kernels that a user writes.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self

import numpy as np

from .errors import SettingsError
from .types import Array

__all__ = ["Cauchy", "Gaussian", "Kernel", "Laplacian"]


@dataclass(frozen=True)
class Kernel(ABC):
    """A shift-invariant kernel with one bandwidth.

    A user's kernel is a subclass with two methods, `__call__` and `draw_frequencies`. Wherever dekrr takes the name of
    a kernel, it also takes the class or an object of the class. The bandwidth is a separate setting, `sigma`, because
    it is often tuned: dekrr calls `with_bandwidth` to get the same kernel with another bandwidth. An object with one
    bandwidth cannot be combined with another `sigma`. Make the object without a bandwidth (`Matern()`), and give
    `sigma`.

    A site judges the features of its neighbours by `longest_frequency`. A network refuses a kernel without this method,
    unless sites prove the origin of their features (``verify_features=True``).

    Parameters
    ----------
    sigma : float, default=1.0
        The bandwidth, in the units of the (scaled) columns.

    Attributes
    ----------
    name : str
        The kernel's name in messages and model files. By default it is the name of the class in lower case.

    Examples
    --------
    The Matern kernel of smoothness 3/2. Its frequencies have a Student distribution: each is a normal vector divided
    by the square root of a gamma variable.

    >>> import numpy as np
    >>> from scipy.spatial.distance import cdist
    >>> from dekrr import DeKRRRegressor, Kernel
    >>> from dekrr.data import make_sites
    >>> class Matern(Kernel):
    ...     def __call__(self, X, Y):
    ...         distance = np.sqrt(3) * cdist(X, Y) / self.sigma
    ...         return (1 + distance) * np.exp(-distance)
    ...     def draw_frequencies(self, n_columns, n_frequencies, rng):
    ...         normal = rng.standard_normal((n_columns, n_frequencies))
    ...         return normal / np.sqrt(rng.gamma(1.5, 1 / 1.5, n_frequencies)) / self.sigma
    >>> X, y, sites = make_sites(n_sites=3, random_state=0)
    >>> settings = {"kernel": Matern, "sigma": 0.5, "alpha": 1e-4, "consensus": 1.0, "verify_features": True}
    >>> regressor = DeKRRRegressor(n_features=30, random_state=0, **settings).fit(X, y, sites=sites)
    >>> regressor.score(X, y, sites=sites) > 0.8
    True
    """

    sigma: float = 1.0
    name: ClassVar[str]

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        cls.name = cls.__dict__.get("name", cls.__name__.lower())

    def __post_init__(self) -> None:
        if not (np.isfinite(self.sigma) and self.sigma > 0):
            raise SettingsError(f"sigma must be a positive number, got {self.sigma!r}")

    def with_bandwidth(self, sigma: float) -> Self:
        """Return this kernel with another bandwidth."""
        return replace(self, sigma=sigma)

    @abstractmethod
    def __call__(self, X: Array, Y: Array) -> Array:
        """Return the kernel matrix of two sets of rows, shape (n_X, n_Y)."""

    @abstractmethod
    def draw_frequencies(self, n_columns: int, n_frequencies: int, rng: np.random.Generator) -> Array:
        """Draw from the spectral density; shape (n_columns, n_frequencies)."""

    def longest_frequency(self, n_columns: int, chance: float) -> float:
        """Return a length that a random frequency exceeds with probability at most `chance`.

        Its entries may be any of those of a longer frequency.
        """
        kind = type(self).__name__
        raise SettingsError(
            f"the kernel {kind} does not say how long its frequencies are, so that features of neighbours cannot be "
            f"judged: write {kind}.longest_frequency(n_columns, chance), or set verify_features=True"
        )


class Gaussian(Kernel):
    """The Gaussian kernel exp(-|x - x'|^2 / (2 sigma^2)); frequencies are normal, N(0, 1/sigma^2).

    Examples
    --------
    >>> from dekrr.kernels import Gaussian
    >>> import numpy as np
    >>> Gaussian(sigma=0.5)(np.zeros((1, 2)), np.array([[0.5, 0.0]])).round(4)
    array([[0.6065]])
    """

    def __call__(self, X: Array, Y: Array) -> Array:  # noqa: D102
        return np.exp(_distances(X, Y, "sqeuclidean") / (-2 * self.sigma**2))

    def draw_frequencies(self, n_columns: int, n_frequencies: int, rng: np.random.Generator) -> Array:  # noqa: D102
        return rng.standard_normal((n_columns, n_frequencies)) / self.sigma

    def longest_frequency(self, n_columns: int, chance: float) -> float:
        """Return the length that a normal vector exceeds with probability `chance`; its length is chi-distributed."""
        from scipy.special import gammainccinv  # imported here, as a site that stands needs it in a run alone

        return float(np.sqrt(2 * gammainccinv(n_columns / 2, chance)) / self.sigma)


class Laplacian(Kernel):
    """The Laplacian kernel exp(-|x - x'|_1 / sigma); frequencies are Cauchy with scale 1/sigma."""

    def __call__(self, X: Array, Y: Array) -> Array:  # noqa: D102
        return np.exp(_distances(X, Y, "cityblock") / -self.sigma)

    def draw_frequencies(self, n_columns: int, n_frequencies: int, rng: np.random.Generator) -> Array:  # noqa: D102
        return rng.standard_cauchy((n_columns, n_frequencies)) / self.sigma

    def longest_frequency(self, n_columns: int, chance: float) -> float:
        """Return sqrt(n) times the size that a single entry exceeds with probability chance / n.

        The bound is weak, because the Cauchy distribution has heavy tails.
        """
        return float(np.sqrt(n_columns) / np.tan(np.pi * chance / n_columns / 2) / self.sigma)


class Cauchy(Kernel):
    """The Cauchy kernel prod_k 1 / (1 + (x_k - x'_k)^2 / sigma^2); frequencies are Laplace(0, 1/sigma)."""

    def __call__(self, X: Array, Y: Array) -> Array:  # noqa: D102
        product = np.ones((len(X), len(Y)))
        for column_of_X, column_of_Y in zip(X.T, Y.T, strict=True):
            product /= 1 + (np.subtract.outer(column_of_X, column_of_Y) / self.sigma) ** 2
        return product

    def draw_frequencies(self, n_columns: int, n_frequencies: int, rng: np.random.Generator) -> Array:  # noqa: D102
        return rng.laplace(scale=1 / self.sigma, size=(n_columns, n_frequencies))

    def longest_frequency(self, n_columns: int, chance: float) -> float:
        """Return sqrt(n) times the size that a single entry exceeds with probability chance / n."""
        return float(-np.sqrt(n_columns) * np.log(chance / n_columns) / self.sigma)


KERNELS: dict[str, type[Kernel]] = {kernel.name: kernel for kernel in (Gaussian, Laplacian, Cauchy)}


def is_kernel(kernel: Any) -> bool:
    """Return whether `kernel` is the name of a kernel, a subclass of `Kernel`, or an object of one."""
    if isinstance(kernel, str):
        return kernel in KERNELS
    return isinstance(kernel, Kernel) or (isinstance(kernel, type) and issubclass(kernel, Kernel))


def make_kernel(kernel: str | type[Kernel] | Kernel, sigma: float) -> Kernel:
    """Return the kernel with bandwidth `sigma`; `kernel` is its name, its class, or an object of the class."""
    if not is_kernel(kernel):
        names = ", ".join(sorted(KERNELS))
        raise SettingsError(f"unknown kernel {kernel!r}; choose one of {names}, or give a subclass of dekrr.Kernel")
    if isinstance(kernel, str):
        return KERNELS[kernel](sigma)
    if isinstance(kernel, type):
        return kernel(sigma)
    if kernel.sigma not in (1.0, sigma):
        raise SettingsError(
            f"the bandwidth is {kernel.sigma} in kernel={kernel!r} and {sigma} in sigma: give it as sigma alone, "
            f"and the kernel as {type(kernel).__name__}()"
        )
    return kernel.with_bandwidth(sigma)


def name_of(kernel: str | type[Kernel] | Kernel) -> str:
    """Return the kernel's name in messages and model files."""
    return kernel if isinstance(kernel, str) else kernel.name


def _distances(X: Array, Y: Array, metric: Literal["sqeuclidean", "cityblock"]) -> Array:
    from scipy.spatial.distance import cdist  # imported here, as sites never compute distances between rows

    return cdist(X, Y, metric)
