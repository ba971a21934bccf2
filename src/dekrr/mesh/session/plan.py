"""A site's knowledge of a run before the start."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Plan:
    """A site's knowledge of a run before the start."""

    run: str  # the run's id
    name: str  # this site's name
    neighbors: tuple[str, ...]
    sites: frozenset[str]  # all sites of the run
    terms: Mapping[str, str]  # the settings that all sites must agree on
    # The digest of the terms and of this site's rows. A checkpoint with another digest is refused. The digest stays at
    # the site: an attacker who knows all rows but one could use it to test guesses of that row.
    digest: str = ""
    # A keyed code of the digest, for the neighbours. It is the same whenever the site starts from the same rows and
    # settings, and reveals nothing else.
    origin: str = ""
    patience: float = 60.0  # seconds after which a neighbour that cannot be reached is declared gone
    start_patience: float = 600.0  # seconds to wait for all sites before the run starts
