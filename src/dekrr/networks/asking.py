"""Asking a site that runs for its status."""

import json
import socket
from typing import Any

import zenoh

from .mesh import STATUS, Link, tls_config


def ask_status(link: Link, run: str, timeout: float = 3.0) -> dict[str, Any] | None:
    """Ask a running site for its status, with the site's own keys; return None if it does not answer."""
    host, _, port = link.listen.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout).close()
    except OSError:  # no process listens; Zenoh would retry until the timeout
        return None
    protocol = "tls" if link.keys else "tcp"
    config: dict[str, Any] = {
        "mode": "client",
        "connect": {"endpoints": [f"{protocol}/{link.listen}"], "timeout_ms": int(1000 * timeout)},
        "scouting": {"multicast": {"enabled": False}, "gossip": {"enabled": False}},
    }
    if link.keys:
        config["transport"] = {"link": {"protocols": [protocol], "tls": tls_config(link.keys)}}
    zenoh.init_log_from_env_or("off")
    try:
        client = zenoh.open(zenoh.Config.from_json5(json.dumps(config)))
    except zenoh.ZError:
        return None
    try:
        for reply in client.get(f"dekrr/{run}/{STATUS}/{link.name}", timeout=timeout):
            if reply.ok is not None:
                answer: dict[str, Any] = json.loads(reply.ok.payload.to_bytes())
                return answer
        return None
    finally:
        client.close()
