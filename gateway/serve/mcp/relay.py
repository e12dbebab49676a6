"""Prompts, resources and completions of upstream servers, as the MCP handlers need them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from gateway.calls import Caller, Peer
from gateway.errors import NotFound


class Relay(Protocol):
    """Prompts, resources and completions of upstreams under public names; each verb refuses with a `GatewayError`."""

    def prompts(self) -> list[dict[str, Any]]: ...

    def templates(self) -> list[dict[str, Any]]: ...

    def instructions(self) -> str | None: ...

    async def resources(self, caller: Caller, chat: str) -> list[dict[str, Any]]: ...

    async def get_prompt(
        self, name: str, arguments: Mapping[str, Any], caller: Caller, chat: str, peer: Peer
    ) -> dict[str, Any]: ...

    def owns(self, uri: str) -> bool: ...

    async def read(self, uri: str, caller: Caller, chat: str, peer: Peer) -> dict[str, Any]: ...

    async def follow(self, uri: str, told: Callable[[], None], caller: Caller, chat: str) -> Callable[[], None]: ...

    async def complete(
        self, params: Mapping[str, Any], caller: Caller, chat: str, peer: Peer
    ) -> dict[str, Any] | None: ...


class NoRelay:
    """For a gateway without upstreams."""

    def prompts(self) -> list[dict[str, Any]]:
        return []

    def templates(self) -> list[dict[str, Any]]:
        return []

    def instructions(self) -> str | None:
        return None

    async def resources(self, caller: Caller, chat: str) -> list[dict[str, Any]]:
        return []

    async def get_prompt(
        self, name: str, arguments: Mapping[str, Any], caller: Caller, chat: str, peer: Peer
    ) -> dict[str, Any]:
        raise NotFound(f"no prompt is named {name!r}", code="UNKNOWN_PROMPT")

    def owns(self, uri: str) -> bool:
        return False

    async def read(self, uri: str, caller: Caller, chat: str, peer: Peer) -> dict[str, Any]:
        raise NotFound(f"no upstream has the resource {uri[:200]!r}", code="RESOURCE_NOT_FOUND")

    async def follow(self, uri: str, told: Callable[[], None], caller: Caller, chat: str) -> Callable[[], None]:
        raise NotFound(f"no upstream has the resource {uri[:200]!r}", code="RESOURCE_NOT_FOUND")

    async def complete(self, params: Mapping[str, Any], caller: Caller, chat: str, peer: Peer) -> dict[str, Any] | None:
        return None
