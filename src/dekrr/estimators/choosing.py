"""Which features the sites of an estimator choose: its parameters, and those that a chooser object brings."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any

import numpy as np

from ..errors import SettingsError
from ..kernels import name_of
from ..labels import listed
from ..selection import CHOOSERS, Chooser
from ..selection.transformers import Selector
from ..settings import FeatureSettings, grid_of, is_auto

_ROWS_PER_FEATURE = 2
_FEWEST_FEATURES = 10
_MOST_BYTES = 700_000  # that a site's sums for its neighbours have


def n_features_for(n_rows: int, n_neighbors: int) -> int:
    """Return how many features a site takes where nobody says: by its rows, within a budget of bytes.

    A neighbour is sent sums of D (D + 1) / 2 + D D numbers.

    Examples
    --------
    >>> n_features_for(100, 4), n_features_for(1000, 4), n_features_for(1000, 2), n_features_for(1000, 0)
    (50, 120, 170, 500)
    """
    affordable = _MOST_BYTES / (12 * n_neighbors) if n_neighbors else np.inf
    return int(max(_FEWEST_FEATURES, min(n_rows // _ROWS_PER_FEATURE, np.sqrt(affordable))))


@dataclass(frozen=True)
class Choosing:
    """How sites choose features.

    Parameters
    ----------
    owner : str
        The estimator's name, for messages.
    features : str or Chooser or Selector
    given : mapping of str to object
        The estimator's n_features, kernel, sigma and mapping.
    defaults : mapping of str to object
        The same of an estimator that is given none.
    leaves_sigma : bool, default=False
        Whether the sites agree on a bandwidth, where it is "auto".
    """

    owner: str
    features: Any
    given: Mapping[str, Any]
    defaults: Mapping[str, Any]
    leaves_sigma: bool = False

    @classmethod
    def of(cls, regressor: Any, features: Any = None) -> "Choosing":
        """Return how an estimator's sites choose: by its parameters, or by other `features`."""
        names = ("n_features", "kernel", "sigma", "mapping")
        return cls(
            type(regressor).__name__,
            regressor.features if features is None else features,
            {name: getattr(regressor, name) for name in names},
            {name: type(regressor).__dataclass_fields__[name].default for name in names},
        )

    def brought(self) -> Chooser | None:
        """Return the chooser that `features` is, or makes; None where it is a name."""
        if isinstance(self.features, Selector):
            return self.features.chooser()
        return None if isinstance(self.features, str) else self.features

    def setting(self, name: str) -> Any:
        """Return a setting that a chooser object may bring too: from where it is given.

        A default counts as not given.
        """
        own, brought = self.given[name], self.brought()
        if brought is None or _is_same(getattr(brought, name), Chooser.__dataclass_fields__[name].default):
            return own
        if _is_same(own, self.defaults[name]) or _is_same(own, getattr(brought, name)):
            return getattr(brought, name)
        raise SettingsError(
            f"{name} is {own!r} in {self.owner} and {getattr(brought, name)!r} in {type(brought).__name__}, "
            "which chooses its features: give it once"
        )

    def sigmas(self) -> tuple[float, ...]:
        """Return the bandwidths to choose from; one that is given is the only one, and 1 stands for one to agree on."""
        return (1.0,) if self.leaves_sigma else grid_of("sigma", self.setting("sigma"))

    def kernel_name(self) -> str:
        """Return what model files call the kernel."""
        return name_of(self.setting("kernel"))

    def sizes(self, labels: Sequence[Hashable]) -> dict[Hashable, int]:
        """Return how many features each site gets (its mean, where an allocation shares them out)."""
        given = self.setting("n_features")
        if is_auto(given):
            given = FeatureSettings().n_features
        if isinstance(given, Integral):
            return dict.fromkeys(labels, int(given))
        sizes = dict(given) if isinstance(given, Mapping) else dict(zip(labels, given, strict=False))
        if set(sizes) != set(labels) or (not isinstance(given, Mapping) and len(given) != len(labels)):
            raise SettingsError(f"n_features has {len(given)} entries for {len(labels)} sites: {listed(labels)}")
        return {label: int(size) for label, size in sizes.items()}

    def sized(self, n_rows: Mapping[Hashable, int], graph: Any) -> "Choosing":
        """Return how sites choose where each takes features by its rows, if their number is "auto".

        Parameters
        ----------
        n_rows : mapping of site to int
        graph : networkx.Graph
        """
        if not is_auto(self.setting("n_features")):
            return self
        sizes = {label: n_features_for(number, graph.degree[label]) for label, number in n_rows.items()}
        return replace(self, given={**self.given, "n_features": sizes})

    def chooser(self, n_features: int, sigma: float | None = None) -> Chooser:
        """Return the chooser of a site with so many features; by default with the first bandwidth."""
        chooser = self.brought() or CHOOSERS[self.features]()
        if sigma is None and not self.leaves_sigma:
            sigma = self.sigmas()[0]
        return chooser.replace(
            n_features=n_features,
            kernel=self.setting("kernel"),
            sigma=sigma,
            mapping=self.setting("mapping"),
        )

    def choosers(self, labels: Sequence[Hashable], sigma: float | None = None) -> dict[Hashable, Chooser]:
        """Return each site's chooser; sites of one size share it."""
        sizes = self.sizes(labels)
        of_size = {size: self.chooser(size, sigma) for size in set(sizes.values())}
        return {label: of_size[size] for label, size in sizes.items()}


def _is_same(value: Any, other: Any) -> bool:
    return np.ndim(value) == 0 and bool(value == other)
