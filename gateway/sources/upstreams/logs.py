"""Log messages of upstreams: asked for when a client wants them, and handed on from the level it wants."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

from gateway.calls import Log, Peer
from gateway.errors import GatewayError
from gateway.mcp_client import Link, McpFault
from gateway.sources.upstreams.labels import label_logger

LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
LOG_LEVEL = "io.modelcontextprotocol/logLevel"
SECONDS = 10.0

log = logging.getLogger(__name__)
_set: WeakKeyDictionary[Link, int] = WeakKeyDictionary()


async def tune(link: Link, level: str) -> dict[str, str]:
    """Have the server tell what is wanted: what to put into `_meta` for one of the newest era. An older one is set
    once for all who share the link, to the most that anybody wants."""
    if link.modern:
        return {LOG_LEVEL: level}
    wanted = _rank(level)
    if "logging" in link.capabilities and wanted < _set.get(link, len(LEVELS)):
        _set[link] = wanted
        try:
            await link.request("logging/setLevel", {"level": level}, timeout=SECONDS)
        except (GatewayError, McpFault) as error:
            log.debug("%s takes no log level: %s", link.label, error)
    return {}


def heard(peer: Peer, server: str) -> Log | None:
    """Hands on what the client wants to hear, under the server's name; None when it wants nothing."""
    tell = peer.log
    if tell is None or peer.level is None:
        return None
    least = _rank(peer.level)

    async def told(said: Mapping[str, Any]) -> None:
        if _rank(said.get("level")) >= least:
            await tell({**said, "logger": label_logger(server, said.get("logger"))})

    return told


def _rank(level: Any) -> int:
    return LEVELS.index(level) if level in LEVELS else 0
