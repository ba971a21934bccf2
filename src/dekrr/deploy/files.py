"""Reading and writing network.toml and site.toml."""

import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..errors import SettingsError
from .checks import Struct, check_network, check_site, convert
from .tables import NetworkFile, SiteFile


def read_network(path: Path) -> NetworkFile:
    """Read and check a network.toml."""
    return _checked(path, NetworkFile, check_network)


def read_site(path: Path) -> SiteFile:
    """Read and check a site.toml."""
    return _checked(path, SiteFile, check_site)


def is_site_file(path: Path) -> bool:
    """Return whether a file is the site.toml of one site, not a network.toml."""
    try:
        return isinstance(tomllib.loads(path.read_text(encoding="utf-8")).get("site"), str)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError):
        return False


def to_toml(table: Mapping[str, Any]) -> str:
    """Return a table as TOML; entries that are None are left out, because TOML has no null value.

    Examples
    --------
    >>> print(to_toml({"run": "trial", "keys": {"key": "key.pem"}}))
    run = "trial"
    <BLANKLINE>
    [keys]
    key = "key.pem"
    <BLANKLINE>
    """
    import tomli_w  # imported here because only the extra `mesh` installs it

    return tomli_w.dumps(_without_none(table))


def _without_none(table: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _without_none(value) if isinstance(value, Mapping) else value
        for key, value in table.items()
        if value is not None
    }


def _complaint(path: Path, mistakes: list[str]) -> SettingsError:
    listed = "\n".join(f"  - {mistake}" for mistake in mistakes)
    return SettingsError(f"{path} has {len(mistakes)} mistake{'s' * (len(mistakes) != 1)}:\n{listed}")


def _checked(path: Path, kind: type[Struct], check: Callable[[Struct, list[str]], None]) -> Struct:
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} is not TOML: {error}") from None
    mistakes: list[str] = []
    found = convert(table, kind, "", mistakes)
    if found is not None:
        check(found, mistakes)
    if mistakes or found is None:
        raise _complaint(path, mistakes)
    return found
