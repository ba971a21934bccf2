"""Reading and writing network.toml, site.toml, relay.toml and study.toml."""

import hashlib
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from .checks import check_network, check_site, check_standing, check_study, read_as, toml_of
from .config import NetworkFile, RelayFile, SiteFile, StandingFile, StudyFile


def read_network(path: Path) -> NetworkFile:
    """Read and check a network.toml."""
    return read_as(NetworkFile, path, check_network)


def read_site(path: Path) -> SiteFile:
    """Read and check a site.toml."""
    return read_as(SiteFile, path, check_site)


def is_standing(path: Path) -> bool:
    """Return whether a file is that of a standing site, not that of a single run."""
    return "sources" in toml_of(path, path)


def read_standing(path: Path) -> StandingFile:
    """Read and check the file of a standing site."""
    return read_as(StandingFile, path, partial(check_standing, folder=path.parent))


def read_relay(path: Path) -> RelayFile:
    """Read and check a relay.toml."""
    return read_as(RelayFile, path, lambda found, mistakes: None)


def digest_of(text: str) -> str:
    """Return the digest by which a study is approved: the SHA-256 of its text.

    Examples
    --------
    >>> digest_of("name = 'air'")[:8]
    'c1445e91'
    """
    return hashlib.sha256(text.encode()).hexdigest()


def parse_study(text: str, where: str = "the study") -> StudyFile:
    """Return a study from its text; all mistakes are reported together."""
    return read_as(StudyFile, text, check_study, where)


def is_site_file(path: Path) -> bool:
    """Return whether a file is the site.toml of one site, not a network.toml."""
    return isinstance(toml_of(path, path).get("site"), str)


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
