"""What a site knows of a run before it starts."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Plan:
    """What a site knows of a run before it starts.

    Parameters
    ----------
    run : str
        The run's id.
    name : str
        This site's name.
    neighbors : tuple of str
    sites : frozenset of str
        All sites of the run.
    terms : mapping of str to str
        What all sites must agree on.
    digest : str
        Of the terms and of this site's rows. A checkpoint with another digest is refused. The digest stays at the
        site: whoever knows all rows but one could try values for that one.
    origin : str
        The code that neighbours know the digest by. It is the same whenever the site starts from the same rows and
        settings, and tells nothing else.
    patience : float
        Seconds after which a neighbour that cannot be reached is declared gone.
    start_patience : float
        Seconds to wait for all sites before the start.
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
