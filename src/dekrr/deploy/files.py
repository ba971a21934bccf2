"""Reading and writing network.toml and site.toml."""

import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

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


OWN = ("keys", "page")  # what a site decides for itself, beside data.scheduler


def site_file(table: Mapping[str, Any]) -> SiteFile:
    """Return the table of a site.toml that this library made as a struct."""
    return msgspec.convert(_without_none(table), SiteFile)


def differences(there: SiteFile, wanted: SiteFile) -> list[str]:
    """Return in words how a site's file differs from the one that its network's file asks for.

    What a site decides for itself is left out: its keys, its page, its scheduler.

    Examples
    --------
    >>> one = {"run": "trial", "site": "a", "method": "dekrr", "listen": "a:1", "sites": ["a"], "neighbors": {}}
    >>> one["data"] = {"target": "y", "columns": ["x"], "file": "a.csv"}
    >>> there, wanted = one | {"settings": {"n_features": 30}}, one | {"settings": {"n_features": 40}}
    >>> differences(site_file(there), site_file(wanted))
    ['settings.n_features is 30, not 40']
    """
    before, after = _flat(there), _flat(wanted)
    return [
        f"{key} is {_said(before, key)}, not {_said(after, key)}"
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key)
    ]


def _said(table: Mapping[str, Any], key: str) -> str:
    return repr(table[key]) if key in table else "left out"


def _flat(site: SiteFile) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in msgspec.to_builtins(site).items():
        if isinstance(value, dict) and key not in OWN:
            found |= {f"{key}.{name}": each for name, each in value.items()}
        elif key not in OWN:
            found[key] = value
    found.pop("data.scheduler", None)
    return found


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
