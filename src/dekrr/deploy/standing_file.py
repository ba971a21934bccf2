"""The file of a standing site: its address, its neighbours, its keys, and its data sources by name."""

import tomllib
from pathlib import Path
from typing import TypeVar

import msgspec

from ..errors import SettingsError
from ..networks.mesh import Keys, Link
from .carrier import Ways
from .checks import convert
from .identity import Identity
from .keys import check
from .tables import NAME, KeysTable, PageTable

BY_RELAY = "relay"
Found = TypeVar("Found")


class StandingFile(msgspec.Struct, frozen=True, kw_only=True):
    """All of a standing site's site.toml; paths are relative to the file.

    Parameters
    ----------
    site : str
    neighbors : dict of site to host:port
        "relay" for a neighbour that is reached by the relay, "" for one that dials this site.
    sources : dict of str to str
        Files of rows, by the names that studies use.
    keys : KeysTable
    listen : str
        host:port; empty for a site that accepts no connection.
    relay : str
        The relay's host:port.
    scheduler : str
        The address of a Dask scheduler whose workers read the sources; empty where the site reads them itself.
    page : PageTable or None
    """

    site: str
    neighbors: dict[str, str]
    sources: dict[str, str]
    keys: KeysTable
    listen: str = ""
    relay: str = ""
    scheduler: str = ""
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
        keys = self.key_files(folder)
        direct = {p: endpoint for p, endpoint in self.neighbors.items() if endpoint != BY_RELAY}
        relayed = tuple(p for p, endpoint in self.neighbors.items() if endpoint == BY_RELAY)
        return Ways(Link(self.site, self.listen, direct, keys), self.relay, relayed, keys)


class RelayFile(msgspec.Struct, frozen=True, kw_only=True):
    """All of relay.toml: the relay's name in its certificate, its address, the sites it serves, and its keys."""

    name: str
    listen: str
    sites: tuple[str, ...]
    keys: KeysTable


def is_standing(path: Path) -> bool:
    """Return whether a file is that of a standing site, not that of a single run."""
    try:
        return "sources" in tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError):
        return False


def read_standing(path: Path) -> StandingFile:
    """Read and check the file of a standing site."""
    mistakes: list[str] = []
    found = convert(_table(path), StandingFile, "", mistakes)
    if found is not None:
        for name in (found.site, *found.neighbors, *found.sources):
            mistakes += [] if NAME.fullmatch(name) else [f"{name!r} is not a name: use letters, digits, dots, dashes"]
        if not found.neighbors:
            mistakes.append("neighbors: give at least one")
        if BY_RELAY in found.neighbors.values() and not found.relay:
            mistakes.append("relay is missing, but some neighbours are reached through it")
        unreachable = [p for p, endpoint in found.neighbors.items() if not endpoint and not found.listen]
        mistakes += [f"neighbors.{p}: neither this site nor {p} accepts connections; use a relay" for p in unreachable]
    return _checked(found, path, mistakes)


def read_relay(path: Path) -> RelayFile:
    """Read and check a relay.toml."""
    mistakes: list[str] = []
    return _checked(convert(_table(path), RelayFile, "", mistakes), path, mistakes)


def _table(path: Path) -> dict[str, object]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} is not TOML: {error}") from None


def _checked(found: Found | None, path: Path, mistakes: list[str]) -> Found:
    if mistakes or found is None:
        listed = "\n".join(f"  - {mistake}" for mistake in mistakes)
        raise SettingsError(f"{path} has {len(mistakes)} mistake{'s' * (len(mistakes) != 1)}:\n{listed}")
    return found
