"""The file of a standing site: its address, its neighbours, its keys, and its data sources by name."""

from pathlib import Path

import msgspec

from ..labels import NAME
from .carrier import Ways
from .checks import read_as, toml_of
from .config import KeysTable, PageTable
from .identity import Identity
from .keys import check
from .network import Keys, Link

BY_RELAY = "relay"


class StandingFile(msgspec.Struct, frozen=True, kw_only=True):
    """All of a standing site's site.toml; paths are relative to the file."""

    site: str
    neighbors: dict[str, str]  # "relay" for a neighbour that is reached by the relay, "" for one that dials this site
    sources: dict[str, str]  # files of rows, by the names that studies use
    keys: KeysTable
    listen: str = ""  # host:port; empty for a site that accepts no connection
    relay: str = ""  # the relay's host:port
    # the address of a Dask scheduler whose workers read the sources; empty where the site reads them itself
    scheduler: str = ""
    # how many models of each study are kept, with the records of their runs; the one in use and those that people chose
    # are kept in any case
    keep_versions: int = 50
    # A program of the site's own, with arguments. It is started with two more, an event and a study: "proposal" when
    # one waits for a person, "held back" when a new model is not used.
    hook: tuple[str, ...] = ()
    page: PageTable | None = None

    def identity(self, folder: Path) -> Identity:
        """Return the site's identity, after a check of its files."""
        keys = self.key_files(folder)
        check(keys.authority, keys.certificate, keys.key, self.site)
        return Identity.load(self.site, keys.authority, keys.certificate, keys.key)

    def key_files(self, folder: Path) -> Keys:
        """Return the site's key files."""
        return Keys(folder / self.keys.authority, folder / self.keys.certificate, folder / self.keys.key)

    def ways(self, folder: Path) -> Ways:
        """Return how the site reaches its neighbours."""
        direct = {p: endpoint for p, endpoint in self.neighbors.items() if endpoint != BY_RELAY}
        relayed = tuple(p for p, endpoint in self.neighbors.items() if endpoint == BY_RELAY)
        return Ways(Link(self.site, self.listen, direct, self.key_files(folder)), self.relay, relayed)


class RelayFile(msgspec.Struct, frozen=True, kw_only=True):
    """All of relay.toml: the relay's name in its certificate, its address, the sites it serves, and its keys."""

    name: str
    listen: str
    sites: tuple[str, ...]
    keys: KeysTable


def is_standing(path: Path) -> bool:
    """Return whether a file is that of a standing site, not that of a single run."""
    return "sources" in toml_of(path, path)


def read_standing(path: Path) -> StandingFile:
    """Read and check the file of a standing site."""
    return read_as(StandingFile, path, _check)


def read_relay(path: Path) -> RelayFile:
    """Read and check a relay.toml."""
    return read_as(RelayFile, path, lambda found, mistakes: None)


def _check(found: StandingFile, mistakes: list[str]) -> None:
    for name in (found.site, *found.neighbors, *found.sources):
        mistakes += [] if NAME.fullmatch(name) else [f"{name!r} is not a name: use letters, digits, dots, dashes"]
    if found.keep_versions < 1:
        mistakes.append("keep_versions: keep at least one")
    if not found.neighbors:
        mistakes.append("neighbors: give at least one")
    if BY_RELAY in found.neighbors.values() and not found.relay:
        mistakes.append("relay is missing, but some neighbours are reached through it")
    unreachable = [p for p, endpoint in found.neighbors.items() if not endpoint and not found.listen]
    mistakes += [f"neighbors.{p}: neither this site nor {p} accepts connections; use a relay" for p in unreachable]
