"""Prompts, resources and completions of upstreams, under public names and URIs."""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any
from urllib.parse import quote, unquote

from gateway import names
from gateway.access import AccessPolicy
from gateway.calls import Call, Caller, ClientInfo
from gateway.errors import GatewayError, NotFound, RateLimited, Timeout
from gateway.protocol import UI_SCHEME
from gateway.protocol.jsonrpc import RpcError
from gateway.render.renderers import wrap_view
from gateway.sources.upstreams.forward import UpstreamRequest
from gateway.sources.upstreams.labels import label_fault
from gateway.sources.upstreams.registry import UpstreamSource
from gateway.sources.upstreams.tools import KIND
from gateway.sources.upstreams.upstream import Upstream
from gateway.sources.upstreams.uris import prefix_of, public_blocks, public_uri, split_uri
from gateway.tools import Permission, Tool

READ_SECONDS = 60.0
# Time a list of resources waits for one server; a slower server is left out.
LIST_SECONDS = 3.0

LIST_LIMIT = 1000
_PAGES = 20

# Timeout of a request with all questions of its server; each response of the server has its own timeout.
REQUEST_SECONDS = 3600.0

_COMPLETE = "completion/complete"
# Begins the URI of a server's instructions, of which clients are given only the beginning.
_INSTRUCTIONS = "instructions://"
_LIST = "resources/list"

log = logging.getLogger(__name__)

# Runs the work if rules, permissions and limits allow it, and records it; raises the refusal otherwise.
Pass = Callable[[Call, Tool, Callable[[], Awaitable[Any]]], Awaitable[Any]]

# Returns whether a rule refuses a request.
Refuses = Callable[[Tool, Mapping[str, Any]], bool]

# Returns the public names of a server's tools, by its own names, as an access policy leaves them.
PublicNames = Callable[[str, AccessPolicy | None], Mapping[str, str]]


class UpstreamPassthrough:
    """Forwards each request to the server of its prompt or resource. `source` returns the upstreams' source, None while
    there are none; requests run through `passing`. Lists leave out what `refuses` refuses. For a caller that may not
    use a server's prompts or resources they do not exist."""

    def __init__(
        self, source: Callable[[], UpstreamSource | None], passing: Pass, refuses: Refuses, public_names: PublicNames
    ) -> None:
        self._source = source
        self._pass = passing
        self._refuses = refuses
        self._public_names = public_names

    def prompts(self, caller: Caller) -> list[dict[str, Any]]:
        """All prompts under their public names, sorted."""
        return [
            {**raw, "name": name}
            for name, (upstream, raw) in sorted(self._prompts(caller).items())
            if not self._refuses(_tool(upstream, "prompts/get"), {"name": raw["name"]})
        ]

    def templates(self, caller: Caller) -> list[dict[str, Any]]:
        return [
            {**raw, "uriTemplate": public_uri(_prefix(upstream), raw["uriTemplate"])}
            for upstream in self._upstreams(caller).values()
            for raw in upstream.templates
            if not self._refuses(_tool(upstream, "resources/read"), {"uri": raw["uriTemplate"]})
        ]

    def instructions(self, caller: Caller) -> list[tuple[str, str, str]]:
        """The name of each server that has instructions, their URI, and their text."""
        named = self._upstreams(caller).items()
        return [(name, _INSTRUCTIONS + quote(name, ""), each.instructions) for name, each in named if each.instructions]

    async def resources(self, caller: Caller, chat: str, client: ClientInfo) -> list[dict[str, Any]]:
        """The resources of all servers that answer in time. Refused when one of them may not be asked so often."""
        call = _call(caller, chat, client).replace(name=_LIST, confirmed=True)
        upstreams = self._upstreams(caller)
        lists = await asyncio.gather(*(self._resources(upstream, call) for upstream in upstreams.values()))
        texts = [
            {"uri": uri, "name": f"instructions of {name}", "mimeType": "text/plain", "size": len(text.encode())}
            for name, uri, text in self.instructions(caller)
            if not self._refuses(_tool(upstreams[name], "resources/read"), {"uri": uri})
        ]
        return [*texts, *(resource for listed in lists for resource in listed)]

    async def get_prompt(
        self, name: str, arguments: Mapping[str, Any], caller: Caller, chat: str, client: ClientInfo
    ) -> dict[str, Any]:
        known = self._prompts(caller)
        if name not in known:
            raise NotFound(f"no prompt is named {name!r}{names.did_you_mean(name, known)}", code="UNKNOWN_PROMPT")
        upstream, raw = known[name]
        params = {"name": raw["name"], "arguments": dict(arguments)}
        result = await self._answer(upstream, "prompts/get", params, raw["name"], _call(caller, chat, client))
        messages = result.get("messages")
        if isinstance(messages, list):
            result["messages"] = [_public_message(_prefix(upstream), message) for message in messages]
        return result

    def owns(self, uri: str, caller: Caller) -> bool:
        """Return whether the URI belongs to an upstream, or names its instructions."""
        return self._owner(uri, caller) is not None or self._find_instructions(uri, caller) is not None

    async def read(self, uri: str, caller: Caller, chat: str, client: ClientInfo) -> dict[str, Any]:
        if (described := self._find_instructions(uri, caller)) is not None:
            call = _call(caller, chat, client).replace(name="resources/read", arguments={"uri": uri})
            text = {"contents": [{"uri": uri, "mimeType": "text/plain", "text": described.instructions}]}
            await self._pass(call, _tool(described, call.name), partial(asyncio.sleep, 0, text))
            return text
        owner = self._owner(uri, caller)
        if owner is None:
            raise NotFound(f"no upstream has the resource {uri[:200]!r}", code="RESOURCE_NOT_FOUND")
        upstream, own = owner
        result = await self._answer(upstream, "resources/read", {"uri": own}, own, _call(caller, chat, client))
        contents = result.get("contents")
        if isinstance(contents, list):
            result["contents"] = [
                {**self._wrap_view(each, own, upstream, caller), "uri": public_uri(_prefix(upstream), each["uri"])}
                if isinstance(each, dict) and isinstance(each.get("uri"), str)
                else each
                for each in contents
            ]
        return result

    def _wrap_view(self, content: dict[str, Any], own: str, upstream: Upstream, caller: Caller) -> dict[str, Any]:
        """A view of MCP Apps inside a page of ours, which lets it reach its own server alone; else unchanged.
        Hosts read the type more or less strictly, so whatever may pass for a view is taken for one."""
        kind = str(content.get("mimeType") or "html").lower()
        has_scheme = own.lower().startswith(UI_SCHEME) or content["uri"].lower().startswith(UI_SCHEME)
        if "mcp-app" not in kind and not (has_scheme and "html" in kind):
            return content
        text, blob = content.get("text"), content.get("blob")
        if not isinstance(text, str) and isinstance(blob, str):
            with suppress(ValueError):
                text = base64.b64decode(blob, validate=True).decode()
        prefix, renamed = _prefix(upstream), self._public_names(upstream.spec.name, caller.access)
        roots = [public_uri(prefix, ""), public_uri(prefix, UI_SCHEME)] if prefix else []
        page = wrap_view(text if isinstance(text, str) else "", upstream.spec.name, renamed, roots)
        return {**{key: value for key, value in content.items() if key != "blob"}, "text": page}

    async def follow(self, uri: str, listener: Callable[[], None], caller: Caller, chat: str) -> Callable[[], None]:
        """Call `listener` when the resource changes, until the returned function is called."""
        owner = self._owner(uri, caller)
        if owner is None:
            raise NotFound(f"no upstream has the resource {uri[:200]!r}", code="RESOURCE_NOT_FOUND")
        upstream, own = owner
        call = _call(caller, chat, None).replace(name="resources/subscribe", arguments={"uri": own})
        await self._pass(
            call, _tool(upstream, call.name), partial(asyncio.sleep, 0)
        )  # permissions are checked before subscribing
        try:
            return await upstream.subscriptions.subscribe(own, listener)
        except RpcError as fault:
            raise label_fault(upstream.spec.name, fault, upstream.spec.terms.trusted) from None

    async def complete(
        self, params: Mapping[str, Any], caller: Caller, chat: str, client: ClientInfo
    ) -> dict[str, Any] | None:
        """A server's completion for an argument of its prompt or template; None if the reference is unknown."""
        ref = params.get("ref") or {}
        if ref.get("type") == "ref/prompt":
            found = self._prompts(caller).get(str(ref.get("name")))
            if found is None:
                raise NotFound(f"no prompt is named {ref.get('name')!r}", code="UNKNOWN_PROMPT")
            upstream, raw = found
            own: dict[str, Any] = {**ref, "name": raw["name"]}
        else:
            owner = self._owner(str(ref.get("uri")), caller)
            if owner is None:
                return None
            upstream, uri = owner
            own = {**ref, "uri": uri}
        about = str(own.get("name") or own.get("uri"))
        return await self._answer(upstream, _COMPLETE, {**params, "ref": own}, about, _call(caller, chat, client))

    async def _answer(
        self, upstream: Upstream, method: str, params: Mapping[str, Any], about: str, call: Call
    ) -> dict[str, Any]:
        """The server's result or questions; its own errors unchanged. A completion needs no approval."""
        source = self._source()
        assert source is not None  # noqa: S101 - the server was found there
        server = upstream.spec.name
        request = UpstreamRequest(
            method, params, call, f"{server}:{about[:200]}", server, READ_SECONDS, upstream.spec.terms.trusted
        )
        work = partial(source.forwarder.answer, upstream, request)
        passing = call.replace(name=method, arguments=params, confirmed=method == _COMPLETE)
        result: dict[str, Any] = await self._pass(passing, _tool(upstream, method), work)
        return result

    def _upstreams(self, caller: Caller, method: str = "resources/read") -> Mapping[str, Upstream]:
        """The servers of which the caller may use this method, by name."""
        source, access = self._source(), caller.access
        if source is None:
            return {}
        if access is None:
            return source.upstreams
        return {
            name: upstream
            for name, upstream in source.upstreams.items()
            if access.allows(f"{_prefix(upstream)}__{method.replace('/', '_')}", _tool(upstream, method))
        }

    def _prompts(self, caller: Caller) -> dict[str, tuple[Upstream, dict[str, Any]]]:
        visible, source = self._upstreams(caller, "prompts/get").values(), self._source()
        found = {
            f"{upstream.spec.name}:{raw['name']}": (upstream, raw)
            for upstream in (source.upstreams.values() if source is not None else ())
            for raw in upstream.prompts
        }
        wishes = {each: names.wire_name(each, found[each][0].spec.settings.prefix) for each in found}
        return {name: found[each] for each, name in names.assign(wishes, {}).items() if found[each][0] in visible}

    def _owner(self, uri: str, caller: Caller) -> tuple[Upstream, str] | None:
        """The upstream of a URI, and its own URI; one without a prefix belongs to the first server without one."""
        named, upstreams = split_uri(uri), self._upstreams(caller).values()
        for upstream in upstreams:
            if named is not None and _prefix(upstream) == named[0] and named[0]:
                return upstream, named[1]
        return next(((upstream, uri) for upstream in upstreams if not _prefix(upstream)), None)

    def _find_instructions(self, uri: str, caller: Caller) -> Upstream | None:
        """The upstream whose instructions have this URI."""
        name = unquote(uri.removeprefix(_INSTRUCTIONS)) if uri.startswith(_INSTRUCTIONS) else ""
        upstream = self._upstreams(caller).get(name)
        return upstream if upstream is not None and upstream.instructions else None

    async def _resources(self, upstream: Upstream, call: Call) -> list[dict[str, Any]]:
        """The resources of one server, if it answers in time; a server that is down or has none is not asked."""
        link = upstream.connection_for(call).client
        if upstream.error is not None or (link is not None and "resources" not in link.capabilities):
            return []
        try:
            listed = await self._pass(call, _tool(upstream, _LIST), partial(_list_in_time, upstream, call))
        except RateLimited:
            raise
        except (GatewayError, RpcError) as error:
            log.debug("the resources of %s are not listed: %s", upstream.spec.name, error)
            return []
        return [
            {**raw, "uri": public_uri(_prefix(upstream), raw["uri"])}
            for raw in listed
            if not self._refuses(_tool(upstream, "resources/read"), {"uri": raw["uri"]})
        ]


async def _list_in_time(upstream: Upstream, call: Call) -> list[dict[str, Any]]:
    try:
        async with asyncio.timeout(LIST_SECONDS):
            return await _list_resources(upstream, call)
    except TimeoutError:
        raise Timeout(f"{upstream.spec.name} did not list its resources within {LIST_SECONDS:g} s") from None


async def _list_resources(upstream: Upstream, call: Call) -> list[dict[str, Any]]:
    """All pages of a server's resources, if it has the capability. Listing asks nothing of the client, so it needs no
    exclusive connection."""
    found: list[dict[str, Any]] = []
    cursor: Any = None
    connection = upstream.connection_for(call)
    with connection.use():
        link = await connection.connect()
        for _ in range(_PAGES if "resources" in link.capabilities else 0):
            page = await link.request("resources/list", {"cursor": cursor} if cursor else None, capabilities={})
            listed = page.get("resources")
            found += [raw for raw in listed or () if isinstance(raw, dict) and isinstance(raw.get("uri"), str)]
            cursor = page.get("nextCursor")
            if not cursor or len(found) >= LIST_LIMIT:
                break
    return found[:LIST_LIMIT]


def _call(caller: Caller, chat: str, client: ClientInfo | None) -> Call:
    """A call for a request that is no tool call."""
    return Call(name="", arguments={}, chat=chat, caller=caller, client=client)


def _tool(upstream: Upstream, method: str) -> Tool:
    """A tool that represents requests of this method in rules, limits and records."""
    terms = upstream.spec.terms
    return Tool(
        f"{terms.server}:{method}",
        "",
        kind=KIND,
        owner=terms.server,
        category=terms.category,
        permission=Permission.READ_ONLY,
        timeout=REQUEST_SECONDS,
        is_tool=False,
    )


def _prefix(upstream: Upstream) -> str:
    return prefix_of(upstream.spec)


def _public_message(prefix: str, message: Any) -> Any:
    if not isinstance(message, Mapping) or "content" not in message:
        return message
    [content] = public_blocks(prefix, [message["content"]])
    return {**message, "content": content}
