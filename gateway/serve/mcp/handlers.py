"""The handlers of all MCP methods, shared by every adapter, and the conversion of exceptions to JSON-RPC errors."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gateway.calls import Caller, check_chat
from gateway.catalog import Catalog
from gateway.errors import GatewayError
from gateway.executor import Executor
from gateway.protocol import (
    HANDSHAKE_PROTOCOL_VERSIONS,
    LATEST_HANDSHAKE_VERSION,
    MODERN_PROTOCOL_VERSIONS,
    UI_EXTENSION,
    supports_apps,
)
from gateway.protocol.jsonrpc import INTERNAL_ERROR, METHOD_NOT_FOUND, RpcError
from gateway.serve.mcp.notifications import Notifications, Subscriber
from gateway.serve.mcp.render_resources import PlanStore, RenderResources, ResourceReader
from gateway.serve.mcp.request import CHAT, Request, Response, meta_text
from gateway.serve.mcp.resources import Completions, NoRelay, Relay, Resources
from gateway.serve.mcp.results import SERVER_INFO, rpc_error, unknown_cursor
from gateway.serve.mcp.sessions import Session, Sessions
from gateway.serve.mcp.tools import ToolCaller, Tools
from gateway.serve.mcp.uris import Address, is_ours
from gateway.serve.mcp.view_tools import ViewTools
from gateway.text import visible
from gateway.workspace.versions import Versions

if TYPE_CHECKING:
    from gateway.serve.mcp.sdk import SdkServer


INSTRUCTIONS = (
    "Files are kept in a workspace of their own for each chat; every path is relative to its root. "
    "A failed call answers 'CODE: message', and the message says how to fix it."
)
# Characters of the instructions of all servers together: Claude Code cuts at 2,048.
INSTRUCTIONS_LIMIT = 2000
_MORE = "More servers have instructions: see resources/list."
# A word that may be the name of a tool; a plain English one only in quotes.
_WORD = re.compile(r"(?<![\w./-])([`'\"]?)([A-Za-z0-9_][\w-]*)")
_NO_RELAY = NoRelay()
_PAGE = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}

# Modern clients whose names are remembered, so that each is logged once.
_MODERN_CLIENTS = 1000

log = logging.getLogger(__name__)

# Clients that come and go, at INFO.
CLIENTS = logging.getLogger("gateway.clients")


class Handlers:
    """MCP for one executor. `chat` is the chat of requests that name none; `plans` holds the render plans of calls,
    None if they are not kept; `relay` returns the access to upstreams' prompts and resources, None while there are no
    upstreams; `caller` calls tools in place of the executor; `first_lists` returns what lists wait for after the first
    start, None for nothing; `end_chat` is called when the chat of a session ends."""

    def __init__(
        self,
        executor: Executor,
        versions: Versions,
        chat: str | None = None,
        plans: PlanStore | None = None,
        relay: Callable[[], Relay | None] = lambda: None,
        caller: ToolCaller | None = None,
        first_lists: Callable[[], asyncio.Task[None] | None] = lambda: None,
        end_chat: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.chat = chat
        self._executor = executor
        self.first_lists = first_lists
        self._relay = relay
        renders = RenderResources(plans, versions, executor)
        view_tools = ViewTools(executor, versions, renders, self.reader, (caller or executor).call_tool)
        self.tools = Tools(executor, caller or executor, plans is not None, view_tools)
        self.notifications = Notifications(versions)
        self.sessions = Sessions(self._session_opened, self._session_closed, end_chat)
        self._modern_clients: set[str] = set()
        self._resources = Resources(executor, versions, renders)
        self._completions = Completions(executor, versions, renders)
        self._methods: Mapping[str, Callable[[Request], Awaitable[dict[str, Any]]]] = {
            "completion/complete": self._complete,
            "logging/setLevel": self._set_level,
            "prompts/get": self._get_prompt,
            "prompts/list": self._list_prompts,
            "resources/list": self._list_resources,
            "resources/read": self._read_resource,
            "resources/subscribe": self._subscribe,
            "resources/templates/list": self._list_templates,
            "resources/unsubscribe": self._unsubscribe,
            "server/discover": self._discover,
            "tools/list": self._list_tools,
        }
        executor.watch(self._catalog_changed)

    def answer(self, request: Request) -> Awaitable[Response]:
        """Answer a request. What it raises, `convert_error` makes the error of its protocol version."""
        return self.tools.call(request) if request.method == "tools/call" else self._answer(request)

    async def _answer(self, request: Request) -> Response:
        method = self._methods.get(request.method)
        if method is None:
            raise RpcError(METHOD_NOT_FOUND, "Method not found", request.method)
        return Response(await method(request))

    def initialize(self, params: Mapping[str, Any], caller: Caller) -> dict[str, Any]:
        """Return the result of a handshake: the version both sides support, and what this server offers."""
        wanted = params["protocolVersion"]
        return {
            "protocolVersion": wanted if wanted in HANDSHAKE_PROTOCOL_VERSIONS else LATEST_HANDSHAKE_VERSION,
            "capabilities": self.capabilities(),
            "serverInfo": SERVER_INFO,
            "instructions": self.instructions(caller),
        }

    def capabilities(self) -> dict[str, Any]:
        return {
            "completions": {},
            "logging": {},
            "prompts": {"listChanged": True},
            "resources": {"subscribe": True, "listChanged": True},
            "tools": {"listChanged": True},
        }

    @property
    def relay(self) -> Relay:
        return self._relay() or _NO_RELAY

    def instructions(self, caller: Caller) -> str:
        """Ours, then a line for each server, with the names of its tools as they are offered."""
        servers = self.relay.instructions(caller)
        offered: dict[str, dict[str, str]] = {name: {} for name, _, _ in servers}
        for entry in self._executor.catalog.for_principal(caller.access) if servers else ():
            if entry.tool.owner in offered:
                offered[entry.tool.owner][entry.tool.id.partition(":")[2]] = entry.name
        lines = [(f"{name}: {_rename(text, offered[name])}", uri) for name, uri, text in servers]
        return "\n".join([INSTRUCTIONS, *_fit(lines, INSTRUCTIONS_LIMIT - len(INSTRUCTIONS))])

    def upstreams_changed(self, lists: Collection[str]) -> None:
        """Notify clients that these lists of upstreams may have changed; their instructions are resources."""
        self.notifications.notify_lists(lists)

    def reader(self, request: Request) -> ResourceReader:
        chat = meta_text(request.client.meta, CHAT) or request.chat
        return ResourceReader(check_chat(chat), request.caller)

    async def find_subscribable(self, reader: ResourceReader, uris: list[str]) -> tuple[dict[str, Address], list[str]]:
        """Return the URIs that the reader may subscribe to: files with their addresses, and resources of upstreams."""
        upstream = [uri for uri in uris if self._is_upstream(uri, reader.caller)]
        return await self._resources.find_subscribable(reader, [uri for uri in uris if uri not in upstream]), upstream

    def _catalog_changed(self, catalog: Catalog) -> None:
        self.tools.set_catalog(catalog)
        self.notifications.notify_lists(["tools"])

    def _session_opened(self, session: Session) -> None:
        CLIENTS.info("client connected: %s (protocol %s)", visible(session.caller.client or "unnamed"), session.version)
        self.notifications.add(session.subscriber)

    def _session_closed(self, session: Session) -> None:
        CLIENTS.info("client left: %s", visible(session.caller.client or "unnamed"))
        self.notifications.remove(session.subscriber)

    def _log_modern_client(self, request: Request) -> None:
        """Log the first discovery by a client: in the modern version it neither connects nor leaves."""
        name = request.caller.client or "unnamed"
        if name not in self._modern_clients and len(self._modern_clients) < _MODERN_CLIENTS:
            self._modern_clients.add(name)
            CLIENTS.info("client seen: %s (protocol %s)", visible(name), request.version)

    def _is_upstream(self, uri: str, caller: Caller) -> bool:
        return not is_ours(uri) and self.relay.owns(uri, caller)

    async def _discover(self, request: Request) -> dict[str, Any]:
        self._log_modern_client(request)
        return {
            **_PAGE,
            "supportedVersions": list(MODERN_PROTOCOL_VERSIONS),
            # The handshake versions have no extensions of a server.
            "capabilities": {**self.capabilities(), "extensions": {UI_EXTENSION: {}}},
            "instructions": self.instructions(request.caller),
        }

    async def _wait_for_lists(self, request: Request) -> None:
        """Wait for servers that are connected for the first time. Refuse a cursor of a list that has one page."""
        if (pending := self.first_lists()) is not None:
            await asyncio.wait([pending])
        if request.method != "tools/list" and request.params.get("cursor"):
            raise unknown_cursor()

    async def _list_tools(self, request: Request) -> dict[str, Any]:
        await self._wait_for_lists(request)
        apps = supports_apps(request.client.capabilities)
        return self.tools.page(request.params.get("cursor"), request.caller, apps)

    async def _list_resources(self, request: Request) -> dict[str, Any]:
        reader = self.reader(request)
        if request.session is not None:  # first, so that no change falls between the list and the subscription
            self.notifications.subscribe_list(request.session.subscriber, reader.chat)
        page = await self._resources.page(reader, request.params.get("cursor"))
        if "nextCursor" not in page:
            if supports_apps(request.client.capabilities):
                page["resources"] += self._resources.views.list(reader)
            page["resources"] += await self.relay.resources(request.caller, reader.chat, request.client)
        return page

    async def _list_templates(self, request: Request) -> dict[str, Any]:
        await self._wait_for_lists(request)
        own = self._resources.templates(self.reader(request))
        return {**_PAGE, "resourceTemplates": [*own, *self.relay.templates(request.caller)]}

    async def _read_resource(self, request: Request) -> dict[str, Any]:
        reader, uri = self.reader(request), request.params["uri"]
        if not self._is_upstream(uri, request.caller):
            return await self._resources.read(reader, uri)
        return {**_PAGE, **await self.relay.read(uri, request.caller, reader.chat, request.client)}

    async def _set_level(self, request: Request) -> dict[str, Any]:
        """Send the client log messages of upstreams from this level on; it never gets the gateway's own log."""
        _subscriber(request)
        assert request.session is not None  # noqa: S101 - checked by the line before
        request.session.level = request.params["level"]
        return {}

    async def _list_prompts(self, request: Request) -> dict[str, Any]:
        await self._wait_for_lists(request)
        return {**_PAGE, "prompts": self.relay.prompts(request.caller)}

    async def _get_prompt(self, request: Request) -> dict[str, Any]:
        reader, params = self.reader(request), request.params
        arguments = params.get("arguments") or {}
        prompt = await self.relay.get_prompt(params["name"], arguments, request.caller, reader.chat, request.client)
        return {"resultType": "complete", **prompt}

    async def _complete(self, request: Request) -> dict[str, Any]:
        reader, params = self.reader(request), request.params
        ref, argument = params["ref"], params["argument"]
        template = ref["uri"] if ref.get("type") == "ref/resource" else ref["name"]
        if not is_ours(template):
            wanted = {key: value for key, value in params.items() if key != "_meta" and value is not None}
            completed = await self.relay.complete(wanted, request.caller, reader.chat, request.client)
            if completed is not None:
                return {"resultType": "complete", **completed}
        given = (params.get("context") or {}).get("arguments") or {}
        return await self._completions.complete(reader, template, argument["name"], argument["value"], given)

    async def _subscribe(self, request: Request) -> dict[str, Any]:
        reader, uri, subscriber = self.reader(request), request.params["uri"], _subscriber(request)
        if self._is_upstream(uri, request.caller):
            await self.notifications.subscribe_upstream(subscriber, uri, self.relay, reader)
        else:
            self.notifications.subscribe_file(subscriber, uri, await self._resources.resolve_subscription(reader, uri))
        return {}

    async def _unsubscribe(self, request: Request) -> dict[str, Any]:
        self.notifications.unsubscribe(_subscriber(request), request.params["uri"])
        return {}


def _rename(text: str, names: Mapping[str, str]) -> str:
    """Return the beginning of a text on one line, with the names of tools replaced."""

    def replace(match: re.Match[str]) -> str:
        quote, word = match.groups()
        plain = word.isalpha() and (word.islower() or word.istitle())
        return quote + (names.get(word, word) if quote or not plain else word)

    return _WORD.sub(replace, " ".join(text[: 4 * INSTRUCTIONS_LIMIT].split()))


def _fit(servers: Sequence[tuple[str, str]], room: int) -> list[str]:
    """Return the lines of servers, each with the URI of its whole text, cut so that all fit. They share the room
    equally; what short lines leave goes to longer ones. Those of too many servers are left out."""
    least = [min(len(line), len(_cut(line, uri, 0))) + 1 for line, uri in servers]
    count = len(servers)
    while sum(least[:count]) > room - (len(_MORE) + 1) * (count < len(servers)):
        count -= 1
    spare = room - sum(least[:count]) - (len(_MORE) + 1) * (count < len(servers))
    lines = [""] * count + [_MORE] * (count < len(servers))
    for done, index in enumerate(sorted(range(count), key=lambda index: len(servers[index][0]))):
        line, uri = servers[index]
        extra = min(len(line) + 1 - least[index], spare // (count - done))
        spare -= extra
        lines[index] = line if len(line) < least[index] + extra else _cut(line, uri, extra)
    return lines


def _cut(line: str, uri: str, length: int) -> str:
    name, _, text = line.partition(": ")
    return f"{name}: {text[:length]}… ({uri})"


def convert_error(error: Exception, method: str, params: Mapping[str, Any], modern: bool) -> RpcError:
    """Return an exception as the error of a protocol version. A bug is logged here, and its text is never sent."""
    if isinstance(error, RpcError):
        return error
    if isinstance(error, GatewayError):
        details = {"uri": params["uri"]} if "uri" in params else {}
        return rpc_error(error, modern, **details)
    log.error("%s failed unexpectedly", method, exc_info=error)
    return RpcError(INTERNAL_ERROR, "the gateway failed; its log has the reason")


def _subscriber(request: Request) -> Subscriber:
    if request.session is None:  # a modern client sends subscriptions/listen instead
        raise RpcError(METHOD_NOT_FOUND, "Method not found", request.method)
    return request.session.subscriber


class McpServer:
    """One gateway over MCP, for any number of connections."""

    def __init__(self, handlers: Handlers) -> None:
        self.handlers = handlers
        self._sdk: SdkServer | None = None

    @property
    def sdk(self) -> SdkServer:
        """The SDK's server, imported and made by the first request that needs it."""
        if self._sdk is None:
            # Imported here: a stdio client waits for the start, and most of what it asks for first needs none of it.
            from gateway.serve.mcp.sdk import SdkServer

            self._sdk = SdkServer(self.handlers)
        return self._sdk

    def close(self) -> None:
        """End the streams on which clients wait for changes."""
        if self._sdk is not None:
            self._sdk.close()
