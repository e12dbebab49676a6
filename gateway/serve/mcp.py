"""The MCP server: tools and resources in both protocol eras, over any transport."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import mcp_types as types
from mcp.server.context import CallNext, HandlerResult
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.models import InitializationOptions
from mcp.server.session import ServerSession
from mcp.shared.exceptions import MCPError
from pydantic import ValidationError
from starlette.requests import Request

from .. import __version__
from ..calls import DEFAULT_CHAT, LOCAL, Caller, check_chat
from ..catalog import Catalog
from ..errors import GatewayError
from ..executor import Executor
from ..workspace.versions import Versions
from .changes import Changes
from .completions import Completions
from .peers import Context, Verbatim, fault_of, is_modern, peer_of
from .relays import NoRelay, Relay
from .renders import Plans, Renders
from .resources import TEMPLATES, Reader, Resources
from .sessions import Sessions
from .subscriber import SUBSCRIPTIONS
from .tools import CHAT, Asked, Calls, Tools, said_in
from .uris import is_ours

INSTRUCTIONS = (
    "Files are kept in a workspace of their own for each chat; every path is relative to its root. "
    "A failed call answers 'CODE: message', and the message says how to mend it."
)

log = logging.getLogger(__name__)


class GatewayServer(Server[Any]):
    """The SDK's server, announcing to handshake-era clients that lists change."""

    def create_initialization_options(
        self,
        notification_options: NotificationOptions | None = None,
        experimental_capabilities: dict[str, dict[str, Any]] | None = None,
        extensions: dict[str, dict[str, Any]] | None = None,
    ) -> InitializationOptions:
        # The SDK's HTTP manager passes none, and would announce listChanged=false.
        announced = notification_options or NotificationOptions(
            tools_changed=True, resources_changed=True, prompts_changed=True
        )
        return super().create_initialization_options(announced, experimental_capabilities, extensions)


class McpFace:
    """One executor, spoken to in MCP. `chat` is where requests go that name none themselves;
    `plans` is where the render plans of calls are found, None when they are kept nowhere; `relay` has what
    upstreams offer besides tools; `calls` carries the calls, where that is not the executor itself."""

    def __init__(
        self,
        executor: Executor,
        versions: Versions,
        chat: str | None = None,
        plans: Plans | None = None,
        relay: Relay | None = None,
        calls: Calls | None = None,
    ) -> None:
        self._relay = relay or NoRelay()
        self.chat = chat
        renders = Renders(plans, versions, executor)
        self._resources = Resources(executor, versions, renders)
        self._completions = Completions(executor, versions, renders)
        self._changes = Changes(versions)
        self.server = self._build()
        verbatim = Verbatim(self.server)
        self.server.middleware.extend([_contain, self._connected, verbatim])
        self.tools = Tools(executor, calls or executor, plans is not None, verbatim.signed)
        self.sessions = Sessions(self._changes.level)
        executor.watch(self._catalog_changed)

    def _build(self) -> GatewayServer:
        server = GatewayServer(
            "toolgate",
            version=__version__,
            title="Toolgate",
            instructions=self._instructions(),
            # Without a lookup the SDK runs the whole tools/list handler before every call.
            get_tool_input_schema=lambda name: self.tools.header_schema(name),
            on_subscriptions_listen=self._listen,
        )
        server.add_request_handler("tools/list", types.PaginatedRequestParams, self._list_tools)
        server.add_request_handler("tools/call", types.CallToolRequestParams, self._call_tool)
        server.add_request_handler("resources/list", types.PaginatedRequestParams, self._list_resources)
        server.add_request_handler("resources/templates/list", types.PaginatedRequestParams, self._list_templates)
        server.add_request_handler("resources/read", types.ReadResourceRequestParams, self._read_resource)
        server.add_request_handler("resources/subscribe", types.SubscribeRequestParams, self._subscribe)
        server.add_request_handler("resources/unsubscribe", types.UnsubscribeRequestParams, self._unsubscribe)
        server.add_request_handler("logging/setLevel", types.SetLevelRequestParams, self._set_level)
        server.add_request_handler("prompts/list", types.PaginatedRequestParams, self._list_prompts)
        server.add_request_handler("prompts/get", types.GetPromptRequestParams, self._get_prompt)
        server.add_request_handler("completion/complete", types.CompleteRequestParams, self._complete)
        return server

    def _catalog_changed(self, catalog: Catalog) -> None:
        self.tools.show(catalog)
        self._changes.tools_changed()

    def upstreams_changed(self) -> None:
        """What upstreams offer besides tools may be another now."""
        self.server.instructions = self._instructions()
        self._changes.others_changed()

    def _instructions(self) -> str:
        return "\n\n".join(filter(None, [INSTRUCTIONS, self._relay.instructions()]))

    def close(self) -> None:
        """End the streams on which clients wait for changes."""
        self._changes.close()

    async def _list_tools(self, _: Context, params: types.PaginatedRequestParams) -> dict[str, Any]:
        return self.tools.page(params.cursor)

    async def _call_tool(self, context: Context, params: types.CallToolRequestParams) -> dict[str, Any]:
        asked = Asked(
            params.name,
            params.arguments or {},
            context.protocol_version,
            self._connection_chat(context),
            self._caller(context),
            peer_of(context, params, self._changes.level(context.session)),
            context.session.report_progress,
        )
        with _refusing(context):
            answer = await self.tools.call(asked)
        assert answer.result is not None  # noqa: S101 - only a request that says so is answered in bytes
        return answer.result

    async def _list_resources(self, context: Context, params: types.PaginatedRequestParams) -> dict[str, Any]:
        with _refusing(context):
            reader = self._reader(context)
            if not is_modern(context):  # from here on, so that no change falls between the list and the watching
                self._changes.look_at(self._changes.connection(context.session, reader.principal), reader.chat)
            page = await self._resources.page(reader, params.cursor)
            if "nextCursor" not in page:
                page["resources"] += await self._relay.resources(self._caller(context), reader.chat)
            return page

    async def _list_templates(self, _: Context, __: types.PaginatedRequestParams) -> dict[str, Any]:
        templates = [*TEMPLATES, *self._relay.templates()]
        return {"resultType": "complete", "resourceTemplates": templates, "ttlMs": 0, "cacheScope": "private"}

    async def _read_resource(self, context: Context, params: types.ReadResourceRequestParams) -> dict[str, Any]:
        with _refusing(context, uri=params.uri):
            reader = self._reader(context)
            if not self._is_relayed(params.uri):
                return await self._resources.read(reader, params.uri)
            peer = peer_of(context, params)
            read = await self._relay.read(params.uri, self._caller(context), reader.chat, peer)
            return {"resultType": "complete", "ttlMs": 0, "cacheScope": "private", **read}

    async def _set_level(self, context: Context, params: types.SetLevelRequestParams) -> types.EmptyResult:
        """From here on the connection is told log messages of upstreams from this level on; ours are no client's."""
        self._changes.connection(context.session, _principal(context)).level = params.level
        return types.EmptyResult()

    async def _list_prompts(self, _: Context, __: types.PaginatedRequestParams) -> dict[str, Any]:
        prompts = self._relay.prompts()
        return {"resultType": "complete", "prompts": prompts, "ttlMs": 0, "cacheScope": "private"}

    async def _get_prompt(self, context: Context, params: types.GetPromptRequestParams) -> dict[str, Any]:
        with _refusing(context):
            reader, peer = self._reader(context), peer_of(context, params)
            given = params.arguments or {}
            got = await self._relay.get_prompt(params.name, given, self._caller(context), reader.chat, peer)
            return {"resultType": "complete", **got}

    async def _complete(self, context: Context, params: types.CompleteRequestParams) -> dict[str, Any]:
        template = params.ref.uri if isinstance(params.ref, types.ResourceTemplateReference) else params.ref.name
        given = (params.context and params.context.arguments) or {}
        with _refusing(context):
            reader, argument = self._reader(context), params.argument
            if not is_ours(template):
                asked = params.model_dump(mode="json", by_alias=True, exclude_none=True, exclude={"meta"})
                told = await self._relay.complete(asked, self._caller(context), reader.chat, peer_of(context, params))
                if told is not None:
                    return {"resultType": "complete", **told}
            return await self._completions.complete(reader, template, argument.name, argument.value, given)

    async def _subscribe(self, context: Context, params: types.SubscribeRequestParams) -> types.EmptyResult:
        with _refusing(context, uri=params.uri):
            reader = self._reader(context)
            connection = self._changes.connection(context.session, reader.principal)
            if self._is_relayed(params.uri):
                await self._changes.relay(connection, params.uri, self._relay, reader)
            else:
                self._changes.follow(connection, params.uri, await self._resources.followed(reader, params.uri))
        return types.EmptyResult()

    async def _unsubscribe(self, context: Context, params: types.UnsubscribeRequestParams) -> types.EmptyResult:
        self._changes.unfollow(self._changes.connection(context.session, _principal(context)), params.uri)
        return types.EmptyResult()

    async def _listen(
        self, context: Context, params: types.SubscriptionsListenRequestParams
    ) -> types.SubscriptionsListenResult:
        """What this reader may not follow is left out of what is acknowledged, as the protocol has it."""
        wanted = params.notifications
        with _refusing(context):
            reader = self._reader(context)
            uris = (wanted.resource_subscriptions or [])[:SUBSCRIPTIONS]
            relayed = [uri for uri in uris if self._is_relayed(uri)]
            files = await self._resources.followable(reader, [uri for uri in uris if uri not in relayed])
            honored = wanted.model_copy(update={"resource_subscriptions": [*files, *relayed]})
            return await self._changes.listen(context, honored, reader, files, self._relay)

    async def _connected(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        """Remember each handshake-era connection: it is told of a changed list without asking."""
        answer = await call_next(ctx)
        if ctx.method == "notifications/initialized":
            self._changes.connection(ctx.session, _principal(ctx))
            self.sessions.open(ctx, self._caller(ctx))
        return answer

    def _is_relayed(self, uri: str) -> bool:
        return not is_ours(uri) and self._relay.owns(uri)

    def _caller(self, context: Context) -> Caller:
        return Caller(principal=_principal(context), surface="mcp", client=_client(context.session))

    def _reader(self, context: Context) -> Reader:
        chat = said_in(context.meta or {}, CHAT) or self._connection_chat(context)
        return Reader(check_chat(chat), self._caller(context))

    def _connection_chat(self, context: Context) -> str:
        """The chat of a request that names none: the URL's, the command line's, the session's."""
        request = context.request
        if not isinstance(request, Request):
            return self.chat or DEFAULT_CHAT
        return (
            request.query_params.get("chat")
            or self.chat
            or request.headers.get("mcp-session-id")  # only the handshake era has sessions
            or DEFAULT_CHAT
        )


async def _contain(ctx: Context, call_next: CallNext) -> HandlerResult:
    """The one place a bug is caught on this surface: in the handshake era the SDK would put its text on the wire."""
    try:
        return await call_next(ctx)
    except (MCPError, ValidationError):
        raise
    except Exception:
        log.exception("%s failed unexpectedly", ctx.method)
        raise MCPError(types.INTERNAL_ERROR, "the gateway failed; its log has the reason") from None


@contextmanager
def _refusing(context: Context, **details: Any) -> Iterator[None]:
    """A `GatewayError` in here leaves as the error its era has for it."""
    try:
        yield
    except GatewayError as refusal:
        raise fault_of(refusal, is_modern(context), **details) from None


def _principal(_: Context) -> str:
    """On whose behalf a request comes: the one place where that is decided."""
    return LOCAL


def _client(session: ServerSession) -> str | None:
    """Who says to be calling: for the record, never for a decision."""
    parameters = session.client_params
    if parameters is None:
        return None
    return f"{parameters.client_info.name} {parameters.client_info.version}"[:200]
