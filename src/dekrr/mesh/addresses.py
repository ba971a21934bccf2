"""The addresses of a site and of its neighbours, and what Zenoh is told about links: to neighbours, and by a relay.

Links exist along the graph's edges only: endpoints are explicit, and discovery by multicast or gossip is off. Every
link uses mutual TLS. Zenoh's access control binds a key expression to the common name of the certificate at the other
end of the link: only the owner of p's certificate can send in p's name.
"""

import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import SettingsError
from .config import BY_RELAY, SiteFile, StandingFile
from .keys import Keys
from .session.frames import MAX_FRAME, RESERVED

_HANDSHAKE_MS, _MOST_HANDSHAKES = 3000, 1000
_FULL_LINK_US = 600_000_000
(ALIVE,) = RESERVED
_ANY = "dekrr/*"
_LISTENS = ["declare_liveliness_subscriber", "liveliness_query"]
Allowed = tuple[str, str, list[str]]  # a direction, a key expression and kinds of Zenoh's messages


@dataclass(frozen=True)
class Link:
    """The address of a site and the addresses of its neighbours."""

    name: str
    listen: str  # host:port; empty for a site that accepts no connection and dials all its neighbours
    neighbors: Mapping[str, str]  # empty for a neighbour that accepts no connection
    keys: Keys | None  # none means plain TCP, which is allowed on loopback only

    def __post_init__(self) -> None:
        if self.keys is None:
            remote = sorted({e for e in (self.listen, *self.neighbors.values()) if e and not is_loopback(e)})
            if remote:
                raise SettingsError(f"without keys a site may only talk over loopback, not with {', '.join(remote)}")


def is_loopback(endpoint: str) -> bool:
    """Return whether an endpoint is on this machine.

    Examples
    --------
    >>> is_loopback("127.0.0.1:7447"), is_loopback("[::1]:7447"), is_loopback("10.0.0.1:7447")
    (True, True, False)
    """
    host = endpoint.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@dataclass(frozen=True)
class Ways:
    """How a site reaches its neighbours."""

    direct: Link  # its neighbours with links of their own
    relay: str = ""  # the relay's host:port; empty if there is none
    relayed: tuple[str, ...] = ()  # the neighbours that are reached by the relay

    @property
    def neighbors(self) -> tuple[str, ...]:
        """All neighbours."""
        return (*self.direct.neighbors, *self.relayed)


def ways_of(config: SiteFile | StandingFile, folder: Path, *, insecure: bool = False) -> Ways:
    """Return how a site reaches its neighbours, after a check of its keys; `insecure`: by plain TCP on loopback."""
    relayed = tuple(name for name, endpoint in config.neighbors.items() if endpoint == BY_RELAY)
    direct = {name: endpoint for name, endpoint in config.neighbors.items() if name not in relayed}
    link = Link(config.site, config.listen, direct, None if insecure else Keys.of(config, folder))
    return Ways(link, config.relay if isinstance(config, StandingFile) else "", relayed)


def zenoh_config(link: Link) -> dict[str, Any]:
    """Return Zenoh's configuration of one site and its links to neighbours.

    Of the two ends of an edge, the site whose name sorts last connects to the other, unless only one end can be
    connected to.
    """
    dialled = [endpoint for p, endpoint in link.neighbors.items() if endpoint and (p < link.name or not link.listen)]
    listen = [link.listen] if link.listen else []
    config = _config("peer", link.keys, dialled, listen, 2 * len(link.neighbors) + 4)
    config["open"] = {"return_conditions": {"connect_scouted": False, "declares": False}}
    return config | ({"access_control": _access_of_neighbors(link)} if link.keys else {})


def client_config(ways: Ways) -> dict[str, Any]:
    """Return Zenoh's configuration of a site that dials a relay. Frames prove themselves, so no rule is needed."""
    return _config("client", ways.direct.keys, [ways.relay], [], 4)


def relay_config(listen: str, sites: tuple[str, ...], keys: Keys) -> dict[str, Any]:
    """Return Zenoh's configuration of a relay: each site may speak in its own name, and hears what is for it alone."""
    config = _config("router", keys, [], [listen], 4 * len(sites) + 4)
    allowed: dict[str, dict[str, Allowed]] = {
        site: {
            "speaks": ("ingress", f"{_ANY}/{site}/*", ["put"]),
            "hears": ("egress", f"{_ANY}/*/{site}", ["put"]),
            "listens": ("ingress", f"{_ANY}/*/{site}", ["declare_subscriber"]),
            "lives": ("ingress", f"{_ANY}/{ALIVE}/{site}", ["liveliness_token"]),
            "watches": ("ingress", f"{_ANY}/{ALIVE}/*", _LISTENS),
            "sees": ("egress", f"{_ANY}/{ALIVE}/*", ["liveliness_token"]),
            "told who listens": ("egress", f"{_ANY}/*/*", ["declare_subscriber"]),
        }
        for site in sites
    }
    return config | {"access_control": _access(allowed)}


def _config(
    mode: str, keys: Keys | None, dialled: Iterable[str], listen: Iterable[str], n_links: int
) -> dict[str, Any]:
    protocol = "tls" if keys else "tcp"
    return {
        "mode": mode,
        "listen": {"endpoints": [f"{protocol}/{endpoint}" for endpoint in listen], "exit_on_failure": True},
        "connect": {
            "endpoints": [f"{protocol}/{endpoint}" for endpoint in dialled],
            "timeout_ms": -1,
            "exit_on_failure": False,
            "retry": {"period_init_ms": 100, "period_max_ms": 1000, "period_increase_factor": 1.5},
        },
        "scouting": {"multicast": {"enabled": False}, "gossip": {"enabled": False}},
        "transport": {
            "shared_memory": {"enabled": False},  # its pages, with sums in them, would outlive the run
            "unicast": {
                "max_sessions": n_links,
                "accept_timeout": _HANDSHAKE_MS,  # of whoever connects, as long as it has not proved who it is
                "accept_pending": _MOST_HANDSHAKES,
            },
            "link": {
                "protocols": [protocol],
                "tx": {
                    "lease": 8000,
                    "keep_alive": 4,
                    # A slow link is not a broken one: it is closed when no keep-alive comes, not when it is full.
                    "queue": {"congestion_control": {"block": {"wait_before_close": _FULL_LINK_US}}},
                },
                "rx": {"max_message_size": MAX_FRAME},
                **({"tls": _tls(keys)} if keys else {}),
            },
        },
    }


def _tls(keys: Keys) -> dict[str, Any]:
    return {
        "root_ca_certificate": str(keys.authority),
        "enable_mtls": True,
        "listen_private_key": str(keys.key),
        "listen_certificate": str(keys.certificate),
        "connect_private_key": str(keys.key),
        "connect_certificate": str(keys.certificate),
        "verify_name_on_connect": True,
        "close_link_on_expiration": True,
    }


def _access_of_neighbors(link: Link) -> dict[str, Any]:
    """Return the access rules of a site: a neighbour may act in its own name."""
    me = link.name
    allowed: dict[str, dict[str, Allowed]] = {
        p: {
            "hear": ("ingress", f"{_ANY}/{p}/{me}", ["put"]),
            "speak": ("egress", f"{_ANY}/{me}/{p}", ["put"]),
            "they_listen": ("ingress", f"{_ANY}/*/{p}", ["declare_subscriber"]),
            "i_listen": ("egress", f"{_ANY}/*/{me}", ["declare_subscriber"]),
            "they_live": ("ingress", f"{_ANY}/{ALIVE}/{p}", ["liveliness_token"]),
            "i_live": ("egress", f"{_ANY}/{ALIVE}/{me}", ["liveliness_token"]),
            "they_watch": ("ingress", f"{_ANY}/{ALIVE}/{me}", _LISTENS),
            "i_watch": ("egress", f"{_ANY}/{ALIVE}/{p}", _LISTENS),
        }
        for p in link.neighbors
    }
    return _access(allowed)


def _access(allowed: Mapping[str, Mapping[str, Allowed]]) -> dict[str, Any]:
    """Return Zenoh's access rules: what each owner of a certificate may do; everything else is denied."""
    rules = [
        {"id": f"{label} {who}", "flows": [flow], "key_exprs": [key], "messages": messages, "permission": "allow"}
        for who, kinds in allowed.items()
        for label, (flow, key, messages) in kinds.items()
    ]
    return {
        "enabled": True,
        "default_permission": "deny",
        "rules": rules,
        "subjects": [{"id": who, "cert_common_names": [who]} for who in allowed],
        "policies": [
            {"rules": [f"{label} {who}" for label in kinds], "subjects": [who]} for who, kinds in allowed.items()
        ],
    }
