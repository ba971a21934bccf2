"""A site's knowledge of a run before the start."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Plan:
    """A site's knowledge of a run before the start.

    Parameters
    ----------
    run : str
        The run's id.
    name : str
        This site's name.
    sites : frozenset of str
        All sites of the run.
    terms : mapping of str to str
        The settings that all sites must agree on.
    digest : str
        The digest of the terms and of this site's rows. A checkpoint with another digest is refused. The digest stays
        at the site: an attacker who knows all rows but one could use it to test guesses of that row.
    origin : str
        A keyed code of the digest, for the neighbours. It is the same whenever the site starts from the same rows and
        settings, and reveals nothing else.
    patience : float
        Seconds after which a neighbour that cannot be reached is declared gone.
    start_patience : float
        Seconds to wait for all sites before the run starts.
    """

    run: str
    name: str
    neighbors: tuple[str, ...]
    sites: frozenset[str]
    terms: Mapping[str, str]
    digest: str = ""
    origin: str = ""
    patience: float = 60.0
    start_patience: float = 600.0
