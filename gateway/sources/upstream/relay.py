"""What upstreams have besides tools: prompts, resources and completions, found again under our names for them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

from ... import names
from ...calls import Call, Caller, Peer
from ...errors import GatewayError, NotFound, UpstreamFault
from .addresses import inner, outer, outer_blocks, prefix_of
from .link import McpFault
from .server import Upstream

READ_SECONDS = 60.0
LIST_SECONDS = 3.0
"""How long a list of resources waits for one server; what comes later is not in it."""

LIST_LIMIT = 1000
_PAGES = 20

log = logging.getLogger(__name__)

Upstreams = Callable[[], Mapping[str, Upstream]]


class Relay:
    """Each thing goes to the server it came from: a prompt by its name, a resource by its address."""

    def __init__(self, upstreams: Upstreams) -> None:
        self._upstreams = upstreams

    def prompts(self) -> list[dict[str, Any]]:
        """Every prompt under its public name, by name."""
        return [{**raw, "name": name} for name, (_, raw) in sorted(self._prompts().items())]

    def templates(self) -> list[dict[str, Any]]:
        return [
            {**raw, "uriTemplate": outer(_prefix(upstream), raw["uriTemplate"])}
            for upstream in self._upstreams().values()
            for raw in upstream.templates
        ]

    def instructions(self) -> str | None:
        """What the servers say of themselves, together."""
        said = {name: each.instructions for name, each in self._upstreams().items() if each.instructions}
        return "\n\n".join(f"{name}: {text}" for name, text in said.items()) or None

    async def resources(self, caller: Caller, chat: str) -> list[dict[str, Any]]:
        """The resources of every server that answers now."""
        lists = await asyncio.gather(
            *(self._resources(upstream, caller, chat) for upstream in self._upstreams().values())
        )
        return [resource for listed in lists for resource in listed]

    async def get_prompt(
        self, name: str, arguments: Mapping[str, Any], caller: Caller, chat: str, peer: Peer
    ) -> dict[str, Any]:
        known = self._prompts()
        if name not in known:
            raise NotFound(f"no prompt is named {name!r}{names.did_you_mean(name, known)}", code="UNKNOWN_PROMPT")
        upstream, raw = known[name]
        params = {"name": raw["name"], "arguments": dict(arguments), **peer.answers}
        result = await _ask(upstream, "prompts/get", params, caller, chat, peer)
        messages = result.get("messages")
        if isinstance(messages, list):
            result["messages"] = [_outer_message(_prefix(upstream), message) for message in messages]
        return result

    def owns(self, uri: str) -> bool:
        """Whether the URI is an upstream's."""
        return self._owner(uri) is not None

    async def read(self, uri: str, caller: Caller, chat: str, peer: Peer) -> dict[str, Any]:
        owner = self._owner(uri)
        if owner is None:
            raise NotFound(f"no upstream has the resource {uri[:200]!r}", code="RESOURCE_NOT_FOUND")
        upstream, own = owner
        result = await _ask(upstream, "resources/read", {"uri": own, **peer.answers}, caller, chat, peer)
        contents = result.get("contents")
        if isinstance(contents, list):
            result["contents"] = [
                {**each, "uri": outer(_prefix(upstream), each["uri"])}
                if isinstance(each, dict) and isinstance(each.get("uri"), str)
                else each
                for each in contents
            ]
        return result

    async def follow(self, uri: str, told: Callable[[], None]) -> Callable[[], None]:
        """Have `told` called when the resource changes, until the returned function is."""
        owner = self._owner(uri)
        if owner is None:
            raise NotFound(f"no upstream has the resource {uri[:200]!r}", code="RESOURCE_NOT_FOUND")
        upstream, own = owner
        try:
            return await upstream.subscriptions.follow(own, told)
        except McpFault as fault:
            raise UpstreamFault(fault.message, fault=fault.code, data=fault.data) from None

    async def complete(self, params: Mapping[str, Any], caller: Caller, chat: str, peer: Peer) -> dict[str, Any] | None:
        """A server's completion of an argument of its prompt or template; None when the reference is nobody's."""
        ref = params.get("ref") or {}
        if ref.get("type") == "ref/prompt":
            found = self._prompts().get(str(ref.get("name")))
            if found is None:
                raise NotFound(f"no prompt is named {ref.get('name')!r}", code="UNKNOWN_PROMPT")
            upstream, raw = found
            own: dict[str, Any] = {**ref, "name": raw["name"]}
        else:
            owner = self._owner(str(ref.get("uri")))
            if owner is None:
                return None
            upstream, uri = owner
            own = {**ref, "uri": uri}
        return await _ask(upstream, "completion/complete", {**params, "ref": own}, caller, chat, peer)

    def _prompts(self) -> dict[str, tuple[Upstream, dict[str, Any]]]:
        found = {
            f"{upstream.spec.name}:{raw['name']}": (upstream, raw)
            for upstream in self._upstreams().values()
            for raw in upstream.prompts
        }
        wishes = {each: names.wire_name(each, found[each][0].spec.settings.prefix) for each in found}
        return {name: found[each] for each, name in names.assign(wishes, {}).items()}

    def _owner(self, uri: str) -> tuple[Upstream, str] | None:
        """Whose a URI is: the prefix in it says so; one without is the first server's that has none."""
        named = inner(uri)
        for upstream in self._upstreams().values():
            if named is not None and _prefix(upstream) == named[0] and named[0]:
                return upstream, named[1]
        return next(((upstream, uri) for upstream in self._upstreams().values() if not _prefix(upstream)), None)

    async def _resources(self, upstream: Upstream, caller: Caller, chat: str) -> list[dict[str, Any]]:
        """What one server lists, if it answers soon; one that is known to be down is not waited for."""
        if upstream.error is not None:
            return []
        try:
            async with asyncio.timeout(LIST_SECONDS):
                listed = await _listed(upstream, caller, chat)
        except (GatewayError, TimeoutError) as error:
            log.debug("the resources of %s are not listed: %s", upstream.spec.name, error)
            return []
        return [{**raw, "uri": outer(_prefix(upstream), raw["uri"])} for raw in listed]


async def _listed(upstream: Upstream, caller: Caller, chat: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    cursor: Any = None
    for _ in range(_PAGES):
        params = {"cursor": cursor} if cursor else {}
        page = await _ask(upstream, "resources/list", params, caller, chat, Peer(), capability="resources")
        found += [
            raw for raw in page.get("resources") or () if isinstance(raw, dict) and isinstance(raw.get("uri"), str)
        ]
        cursor = page.get("nextCursor")
        if not cursor or len(found) >= LIST_LIMIT:
            break
    return found[:LIST_LIMIT]


async def _ask(
    upstream: Upstream,
    method: str,
    params: Mapping[str, Any],
    caller: Caller,
    chat: str,
    peer: Peer,
    capability: str | None = None,
) -> dict[str, Any]:
    """What the server answers; its own errors as it gave them. Nothing is asked of one without the capability."""
    lane = upstream.lane(_call(upstream, caller, chat, peer))
    with lane.use():
        link = await lane.link()
        if capability is not None and capability not in link.capabilities:
            return {}
        capabilities = peer.capabilities if link.modern else None
        try:
            return await link.request(method, params, timeout=READ_SECONDS, capabilities=capabilities)
        except McpFault as fault:
            raise UpstreamFault(fault.message, fault=fault.code, data=fault.data) from None


def _call(upstream: Upstream, caller: Caller, chat: str, peer: Peer) -> Call:
    return Call(name=upstream.spec.name, arguments={}, chat=chat, caller=caller, peer=peer)


def _prefix(upstream: Upstream) -> str:
    return prefix_of(upstream.spec)


def _outer_message(prefix: str, message: Any) -> Any:
    if not isinstance(message, Mapping) or "content" not in message:
        return message
    [content] = outer_blocks(prefix, [message["content"]])
    return {**message, "content": content}
