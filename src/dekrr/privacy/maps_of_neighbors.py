"""What a site refuses of the feature maps that neighbours send: too many, too long frequencies, too large amplitudes.

A neighbour that may choose its features freely can choose them so that sums give rows away: very high frequencies turn
a sum into a fingerprint of its rows. `docs/explanation/privacy-evidence.md` has the attack with its figures.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from ..errors import MessageError
from ..features import FeatureMap
from ..selection import Chooser
from ..types import Array

_LARGEST_AMPLITUDE = 1e8  # a sampled feature's is 1 / sqrt(pool size times its chance)
_ONE_IN = 1e-12  # a frequency that an honest site draws less often than this is refused


@dataclass(frozen=True, eq=False)
class Ledger:
    """The maps that each neighbour has asked sums for in this run."""

    maps: dict[str, set[bytes]] = field(default_factory=dict)

    def admit(self, asked: Mapping[str, FeatureMap], most: int) -> None:
        """Note the maps asked for now, and refuse a neighbour's map number `most` + 1.

        Every further map is another set of equations for the same rows.
        """
        for neighbor, feature_map in asked.items():
            known = self.maps.setdefault(neighbor, set())
            known.add(fingerprint(feature_map))
            if len(known) > most:
                raise MessageError(
                    f"site {neighbor!r} asks for sums of its feature map number {len(known)} in this run; the limit is "
                    f"max_maps={most}",
                    neighbor,
                )


def fingerprint(feature_map: FeatureMap) -> bytes:
    """Return a digest that two maps share only when they are equal."""
    digest = hashlib.sha256()
    for part in (feature_map.frequencies, feature_map.phases, feature_map.amplitudes):
        digest.update(np.ascontiguousarray(part).tobytes())
    return digest.digest()


def frequency_limit(selector: Chooser, n_columns: int) -> float:
    """Return the longest frequency, |w|, that the agreed chooser and kernel draw but once in 10^12 draws.

    Each kernel knows its own law; one that does not is refused. The laplacian kernel's frequencies have such heavy
    tails that its limit hardly limits; `verify_features` does.
    """
    return selector.longest_frequency(n_columns, _ONE_IN)


def check_frequencies(maps: Mapping[str, FeatureMap], limit: float) -> None:
    """Refuse maps with frequencies that no honest site draws from the agreed kernel."""
    for neighbor, feature_map in maps.items():
        longest = float(np.max(np.linalg.norm(feature_map.frequencies, axis=0), initial=0.0))
        if not longest <= limit:
            raise MessageError(
                f"site {neighbor!r} sent a frequency of length {longest:.4g}; the agreed kernel and bandwidth give "
                f"{limit:.4g} at most: it has another sigma, or is trying to single out rows",
                neighbor,
            )


def check_amplitudes(neighbor: str, amplitudes: Array) -> None:
    """Refuse amplitudes that no honest site has, and whose sums would overflow."""
    largest = float(np.max(np.abs(amplitudes), initial=0.0))
    if largest > _LARGEST_AMPLITUDE:
        raise MessageError(f"site {neighbor!r} sent an amplitude of {largest:.4g}, which no feature has", neighbor)
