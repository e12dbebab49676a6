"""The adapter for the MCP SDK's server: everything that is not answered by the fast path.

With `authorization/` the only one that imports `mcp.server`. It is imported when needed, as that takes longer than
the rest of a start. Requests become the same `Request` values as on the fast path, and the same handlers answer them.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from ipaddress import AddressValueError, IPv6Address, IPv6Network
from typing import Any

import anyio

# First: two threads that import submodules of a package deadlock if each holds one that the other's package needs.
import mcp  # noqa: F401
import mcp_types as types
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.models import InitializationOptions
from mcp.server.streamable_http import GET_STREAM_KEY, EventCallback, EventStore, StreamableHTTPServerTransport
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.subscriptions import (
    InMemorySubscriptionBus,
    ListenHandler,
    PromptsListChanged,
    ResourcesListChanged,
    ResourceUpdated,
    ServerEvent,
    ToolsListChanged,
)
from mcp.server.transport_security import TransportSecuritySettings
from mcp.shared._context_streams import ContextReceiveStream
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import ERROR_CODE_HTTP_STATUS, InboundModernRoute, classify_inbound_request
from mcp.shared.message import SessionMessage
from mcp.shared.subscriptions import event_to_notification
from mcp_types import methods
from pydantic import BaseModel, ValidationError
from starlette.applications import Starlette
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse
from starlette.routing import BaseRoute
from starlette.types import Receive, Scope, Send

from gateway.calls import Ask, Caller, ClientInfo, Log
from gateway.identity import CURRENT, OWNER, Principal
from gateway.protocol import CLIENT_CAPABILITIES_META_KEY, LOG_LEVEL_META_KEY, LOG_LEVELS, MODERN_PROTOCOL_VERSIONS
from gateway.protocol.jsonrpc import INTERNAL_ERROR, INVALID_REQUEST, PARSE_ERROR, RequestId, RpcError
from gateway.serve.mcp.event_streams import EventStream, ReplayStore, SessionStreams
from gateway.serve.mcp.handlers import Handlers, convert_error
from gateway.serve.mcp.notifications import (
    PROMPTS_CHANGED,
    RESOURCES_CHANGED,
    SUBSCRIPTIONS,
    TOOLS_CHANGED,
    Change,
    Subscriber,
)
from gateway.serve.mcp.request import (
    TRACEPARENT,
    Request,
    caller_of,
    client_chat,
    client_name,
    connection_chat,
    read_traceparent,
)
from gateway.serve.mcp.results import SERVER_INFO, shape
from gateway.serve.mcp.sessions import Session, Sessions

# `subscriptions/listen` requests open at a time: in all, and of one principal.
STREAMS, STREAMS_OF_ONE = 1024, 512

# Limits of HTTP sessions of the handshake versions, for all clients together and for each one.
SESSIONS, SESSIONS_PER_CLIENT = 1000, 500
_TOO_MANY = {"code": INTERNAL_ERROR, "message": "too many sessions are in use; close one or try again later"}

# Methods whose results are sent as the handlers made them.
UNVALIDATED = frozenset({"tools/list", "tools/call"})

PARAMS: Mapping[str, type[BaseModel]] = {
    "completion/complete": types.CompleteRequestParams,
    "logging/setLevel": types.SetLevelRequestParams,
    "prompts/get": types.GetPromptRequestParams,
    "prompts/list": types.PaginatedRequestParams,
    "resources/list": types.PaginatedRequestParams,
    "resources/read": types.ReadResourceRequestParams,
    "resources/subscribe": types.SubscribeRequestParams,
    "resources/templates/list": types.PaginatedRequestParams,
    "resources/unsubscribe": types.UnsubscribeRequestParams,
    "server/discover": types.RequestParams,
    "tools/call": types.CallToolRequestParams,
    "tools/list": types.PaginatedRequestParams,
}
_EVENTS: Mapping[Change, ServerEvent] = {
    TOOLS_CHANGED: ToolsListChanged(),
    PROMPTS_CHANGED: PromptsListChanged(),
    RESOURCES_CHANGED: ResourcesListChanged(),
}

# HTTP status by JSON-RPC error code.
ERROR_STATUS: Mapping[int, int] = ERROR_CODE_HTTP_STATUS

Context = ServerRequestContext[Any, Any]
SdkTransport = StreamableHTTPServerTransport


class SdkServer(Server[Any]):
    """The SDK's server, whose requests are answered by our handlers."""

    def __init__(self, handlers: Handlers) -> None:
        super().__init__(
            SERVER_INFO["name"],
            version=SERVER_INFO["version"],
            title=SERVER_INFO["title"],
            # Without a lookup the SDK runs the whole tools/list handler before every call.
            get_tool_input_schema=lambda name: handlers.tools.header_schema(name, CURRENT.get().access),
            on_subscriptions_listen=self._listen,
        )
        self._handlers = handlers
        self._streams: dict[ListenHandler, str] = {}  # with the principal of each
        for method, params in PARAMS.items():
            self.add_request_handler(method, params, self._answer)
        self.middleware.extend([_convert_errors, self._open_session, self._skip_validation])

    def create_initialization_options(
        self,
        notification_options: NotificationOptions | None = None,
        experimental_capabilities: dict[str, dict[str, Any]] | None = None,
        extensions: dict[str, dict[str, Any]] | None = None,
    ) -> InitializationOptions:
        # The SDK's HTTP manager passes no options, and would announce listChanged=false.
        announced = notification_options or NotificationOptions(
            tools_changed=True, resources_changed=True, prompts_changed=True
        )
        self.instructions = self._handlers.instructions(caller_of(CURRENT.get(), None))
        return super().create_initialization_options(announced, experimental_capabilities, extensions)

    def http_app(self, path: str, body_limit: int, routes: list[BaseRoute]) -> tuple[Starlette, HttpSessions]:
        """Return the SDK's ASGI application with more routes, and its sessions."""
        app = self.streamable_http_app(
            streamable_http_path=path,
            max_request_body_size=body_limit,
            # `RequestGuard` has checked Host and Origin, for every route and not only this one.
            transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
            custom_starlette_routes=routes,  # type: ignore[arg-type]  # Starlette takes any
        )
        return app, HttpSessions(self.session_manager, self._handlers.sessions)

    def close(self) -> None:
        """End the streams on which clients wait for changes."""
        for stream in self._streams:
            stream.close()

    async def _answer(self, context: Context, _: BaseModel) -> dict[str, Any]:
        answer = await self._handlers.answer(self._request(context))
        assert answer.result is not None  # noqa: S101 - only the fast path requests an upstream's bytes
        return answer.result

    async def _listen(
        self, context: Context, params: types.SubscriptionsListenRequestParams
    ) -> types.SubscriptionsListenResult:
        """Serve one stream until it ends. Its acknowledgement leaves out what this client may not subscribe to."""
        handlers, wanted = self._handlers, params.notifications
        reader = handlers.reader(self._request(context))
        if len(self._streams) >= STREAMS or [*self._streams.values()].count(reader.principal) >= STREAMS_OF_ONE:
            raise RpcError(INTERNAL_ERROR, "too many streams are open already; close some or try again later")
        bus = InMemorySubscriptionBus()
        stream, subscriber = ListenHandler(bus), Subscriber(reader.principal, partial(_publish, bus))
        self._streams[stream] = reader.principal
        handlers.notifications.add(subscriber)
        try:
            uris = (wanted.resource_subscriptions or [])[:SUBSCRIPTIONS]
            files, upstream = await handlers.find_subscribable(reader, uris)
            if wanted.resources_list_changed:
                handlers.notifications.subscribe_list(subscriber, reader.chat)
            subscribed = await handlers.notifications.subscribe_all(subscriber, files, upstream, handlers.relay, reader)
            honored = wanted.model_copy(update={"resource_subscriptions": subscribed})
            return await stream(context, types.SubscriptionsListenRequestParams(notifications=honored))
        finally:
            del self._streams[stream]
            handlers.notifications.remove(subscriber)

    async def _open_session(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        """Open the session after each handshake: its client is notified of changed lists without a subscription."""
        result = await call_next(ctx)
        if ctx.method == "notifications/initialized":
            self._session(ctx)
        return result

    async def _skip_validation(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        """Answer without the SDK's validation of results, which drops unknown keys of an upstream's result and refuses
        unknown kinds of content. It must be the innermost middleware. Requests are validated."""
        if ctx.method not in UNVALIDATED or ctx.request_id is None or not ctx.session._connection.initialize_accepted:
            return await call_next(ctx)
        methods.validate_client_request(ctx.method, ctx.protocol_version, ctx.params)
        params = PARAMS[ctx.method].model_validate(ctx.params or {}, by_name=False)
        return shape(await self._answer(ctx, params), _is_modern(ctx))

    def _request(self, context: Context) -> Request:
        http = context.request if isinstance(context.request, HttpRequest) else None
        session = None if _is_modern(context) else self._session(context)
        named = http.query_params.get("chat") if http is not None else None
        return Request(
            context.method,
            context.params or {},
            context.protocol_version,
            _caller(context),
            connection_chat(_principal(context), named or self._handlers.chat, session, context.method),
            _client_info(context, session),
            session,
            context.session.report_progress,
        )

    def _session(self, context: Context) -> Session:
        """Return the session of a client of a handshake version, opened by its first message after the handshake."""
        sessions, key = self._handlers.sessions, self._session_key(context)
        session = sessions.get(key)
        if session is None:
            connection = context.session
            announced = connection.client_capabilities
            capabilities = announced.model_dump(mode="json", by_alias=True, exclude_none=True) if announced else {}

            async def send(change: Change) -> None:
                await connection.send_notification(event_to_notification(_event(change), {}))

            session = Session(context.protocol_version, capabilities, _caller(context), send, *_chats(context))
            sessions.open(key, session)
            # The SDK has no public callback for the end of a connection.
            connection._connection.exit_stack.callback(sessions.close, key)
        return session

    def _session_key(self, context: Context) -> Hashable:
        if isinstance(context.request, HttpRequest):
            return context.request.headers.get("mcp-session-id")
        # Over stdio the fast path may have answered the handshake; then its session is used here.
        return None if self._handlers.sessions.get(None) is not None else context.session._connection


def _is_modern(context: Context) -> bool:
    return context.protocol_version in MODERN_PROTOCOL_VERSIONS


def _principal(context: Context) -> Principal:
    """Return the principal that the request was authenticated as; without HTTP the owner."""
    http = context.request
    return http.state.principal if isinstance(http, HttpRequest) else OWNER


def _caller(context: Context) -> Caller:
    parameters = context.session.client_params
    info = parameters and {"name": parameters.client_info.name, "version": parameters.client_info.version}
    return caller_of(_principal(context), client_name(info) if info else None)


def _chats(context: Context) -> tuple[str | None, str | None]:
    """Return the chats that a session over HTTP may have: its own, and the one of its client."""
    http, parameters = context.request, context.session.client_params
    if not isinstance(http, HttpRequest):
        return None, None
    own, name = http.headers.get("mcp-session-id"), parameters.client_info.name if parameters else ""
    return own, client_chat(_principal(context), name, http.headers, http.client.host if http.client else "")


def _client_info(context: Context, session: Session | None) -> ClientInfo:
    """Return the client as an upstream needs it: its `_meta` unchanged, and how to ask it in its version."""
    params: Mapping[str, Any] = context.params or {}
    meta: Mapping[str, Any] = params.get("_meta") or {}
    http = context.request
    header = http.headers.get(TRACEPARENT) if isinstance(http, HttpRequest) else None
    if header is not None and (trace := read_traceparent(header.encode("latin-1"))) is not None:
        meta = {TRACEPARENT: trace, **meta}
    if session is None:
        capabilities, level = meta.get(CLIENT_CAPABILITIES_META_KEY), meta.get(LOG_LEVEL_META_KEY)
    else:
        capabilities, level = session.capabilities, session.level
    return ClientInfo(
        capabilities=capabilities if isinstance(capabilities, Mapping) else {},
        meta=meta,
        answers={key: params[key] for key in ("inputResponses", "requestState") if params.get(key) is not None},
        ask=_asker(context) if capabilities and context.session.can_send_request and session is not None else None,
        log=_logger(context),
        level=level if level in LOG_LEVELS else None,
        modern=session is None,
    )


def _logger(context: Context) -> Log:
    async def log(entry: Mapping[str, Any]) -> None:
        level: Any = entry.get("level")
        if level in LOG_LEVELS:
            logger = entry.get("logger")
            name = logger if isinstance(logger, str) else None
            await context.session.send_log_message(level, entry.get("data"), name, context.request_id)

    return log


def _asker(context: Context) -> Ask:
    # On the stream of the request itself: a client may not read any other.
    channel = context.session._request_outbound

    async def ask(method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return await channel.send_raw_request(method, dict(params))
        except MCPError as error:
            raise RpcError(error.code, error.message, error.data) from None

    return ask


async def _convert_errors(ctx: Context, call_next: CallNext) -> HandlerResult:
    """Convert exceptions in the outermost middleware: the SDK would send the text of an unexpected one."""
    try:
        return await call_next(ctx)
    except (MCPError, ValidationError):
        raise
    except Exception as error:
        converted = convert_error(error, ctx.method, ctx.params or {}, _is_modern(ctx))
        if _is_modern(ctx) and isinstance(ctx.request, HttpRequest):
            ctx.request.state.retry_after = converted.retry_after
        raise MCPError(converted.code, converted.message, converted.data) from None


def _event(change: Change) -> ServerEvent:
    return _EVENTS[change] if change.uri is None else ResourceUpdated(change.uri)


async def _publish(bus: InMemorySubscriptionBus, change: Change) -> None:
    await bus.publish(_event(change))


class SdkStream:
    """One connection of the SDK's server over lines, for stdio. `begin` is called with the id of each request, `end`
    once it needs no response any more."""

    def __init__(
        self,
        server: SdkServer,
        sessions: Sessions,
        write: Callable[[bytes], Awaitable[None]],
        begin: Callable[[RequestId], None],
        end: Callable[[RequestId], None],
    ) -> None:
        self._server = server
        self._sessions = sessions
        self._write = write
        self._begin = begin
        self._end = end
        self._replayed: set[RequestId] = set()
        self._to_server, self._from_client = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        self._to_client, self._from_server = anyio.create_memory_object_stream[SessionMessage](0)

    async def run(self) -> None:
        """Serve until the input is closed."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._write_messages)
            options = self._server.create_initialization_options()
            await self._server.run(self._from_client, self._to_client, options)

    async def feed(self, line: bytes) -> RpcError | None:
        """Pass a line to the server; return the error of a line that is not a message."""
        try:
            message = types.jsonrpc_message_adapter.validate_json(line, by_name=False)
        except ValidationError as error:
            first = error.errors()[0]
            if first["type"] == "json_invalid":
                return RpcError(PARSE_ERROR, str(first["msg"]))
            return RpcError(INVALID_REQUEST, "not a JSON-RPC 2.0 message")
        if _take_reply(self._sessions.get(None), message):
            return None
        self._track(message)
        await self._to_server.send(SessionMessage(message))
        return None

    async def replay(self, message: Mapping[str, Any]) -> None:
        """Give the server a message that the fast path has answered; the server's response is dropped."""
        parsed = types.jsonrpc_message_adapter.validate_python(dict(message), by_name=False)
        if isinstance(parsed, types.JSONRPCRequest):
            self._replayed.add(parsed.id)
        await self._to_server.send(SessionMessage(parsed))

    def close(self) -> None:
        """End the input; the server cancels the requests in progress."""
        self._to_server.close()

    async def _write_messages(self) -> None:
        async with self._from_server:
            async for item in self._from_server:
                message = item.message
                response = message if isinstance(message, types.JSONRPCResponse | types.JSONRPCError) else None
                request_id = response.id if response is not None else None
                if request_id is not None and request_id in self._replayed:
                    self._replayed.discard(request_id)
                    continue
                await self._write(message.model_dump_json(by_alias=True, exclude_unset=True).encode())
                if request_id is not None:
                    self._end(request_id)

    def _track(self, message: types.JSONRPCMessage) -> None:
        if isinstance(message, types.JSONRPCRequest):
            if message.method != "subscriptions/listen":  # answered only when it ends
                self._begin(message.id)
        elif isinstance(message, types.JSONRPCNotification) and message.method == "notifications/cancelled":
            cancelled = (message.params or {}).get("requestId")
            if isinstance(cancelled, int | str):
                self._end(cancelled)


SHORT_USE = 1.0  # seconds of use after which the deadline of a session is moved


class HttpSessions:
    """The HTTP sessions of the handshake versions, and the limit on them.

    At the limit, a new session ends the one that has been idle longest: one of the same client or, at the limit for
    all clients, of the client with the most sessions, if it has more. If there is none, the new session is refused.
    A client is a principal at a remote address. A session with a request in flight or an open stream is not idle.
    """

    def __init__(self, manager: StreamableHTTPSessionManager, sessions: Sessions) -> None:
        self._manager = manager
        self._sessions = sessions
        self._clients: dict[str, tuple[str, str]] = {}  # by session id
        self._owners: dict[str, Principal] = {}  # by session id
        self._replay = ReplayStore()
        # The SDK has no public hook for the moment in which it opens a session.
        self._serve = manager._serve_opening_request
        manager._serve_opening_request = self._open  # type: ignore[method-assign]

    def find(self, session_id: str) -> SdkTransport | None:
        """Return the transport of a session that is alive."""
        transport = self._manager._server_instances.get(session_id)
        return None if transport is None or transport.is_terminated else transport

    def streams(self, transport: SdkTransport) -> SessionStreams | None:
        """Return the streams of a session that can be resumed."""
        return self._replay.get(transport.mcp_session_id or "")

    def owner(self, transport: SdkTransport) -> Principal | None:
        """Return the principal that opened a session."""
        return self._owners.get(transport.mcp_session_id or "")

    def begin_use(self, transport: SdkTransport) -> None:
        """Keep the SDK, which does not see requests of the fast path, from ending the session as idle, until `end_use`.
        Within `SHORT_USE` seconds `extend_use` must follow: to move the SDK's deadline costs more than a short call."""
        transport._requests_in_flight += 1
        scope = transport.idle_scope
        if scope is not None and scope.deadline - time.monotonic() < SHORT_USE:  # the clock of event loops
            scope.deadline = math.inf

    def extend_use(self, transport: SdkTransport) -> None:
        if (scope := transport.idle_scope) is not None:
            scope.deadline = math.inf

    def end_use(self, transport: SdkTransport) -> None:
        transport._requests_in_flight -= 1
        scope, timeout = transport.idle_scope, transport._idle_timeout
        if scope is None or timeout is None or transport._requests_in_flight:
            return
        deadline = time.monotonic() + timeout
        if not 0 <= deadline - scope.deadline < SHORT_USE:
            scope.deadline = deadline

    @contextmanager
    def in_use(self, transport: SdkTransport) -> Iterator[None]:
        """Keep a session from ending as idle while a stream is open."""
        self.begin_use(transport)
        self.extend_use(transport)
        try:
            yield
        finally:
            self.end_use(transport)

    async def _open(self, http_transport: SdkTransport, scope: Scope, receive: Receive, send: Send) -> None:
        sessions, new = self._manager._server_instances, http_transport.mcp_session_id or ""
        self._clients = {key: client for key, client in self._clients.items() if key in sessions}
        self._owners = {key: owner for key, owner in self._owners.items() if key in sessions}
        principal = self._owners[new] = scope["state"]["principal"]
        client = principal.id, _network(scope["client"][0] if scope["client"] else "")
        ended = self._find_session_to_end(client, new)
        self._clients[new] = client
        if ended is not None:
            # The manager forgets the session before it first awaits, so nobody else can choose it too.
            await self._manager._discard_session(ended, sessions[ended])
        if ended == new:
            response = JSONResponse({"jsonrpc": "2.0", "id": None, "error": _TOO_MANY}, 503, {"Retry-After": "1"})
            await response(scope, receive, send)
        else:
            # The SDK has no public hook for the messages of a session.
            connect = partial(self._connect, http_transport, http_transport.connect, new)
            http_transport.connect = connect  # type: ignore[method-assign]
            await self._serve(http_transport, scope, receive, send)

    @asynccontextmanager
    async def _connect(
        self, http_transport: SdkTransport, connect: Callable[[], Any], session_id: str
    ) -> AsyncIterator[Any]:
        http_transport._event_store = _SdkEvents(self._replay.open(session_id), http_transport)
        try:
            async with connect() as (incoming, outgoing):
                taken = _Incoming(incoming, lambda message: _take_reply(self._sessions.get(session_id), message))
                yield taken, outgoing
        finally:
            self._replay.close(session_id)

    def _find_session_to_end(self, client: tuple[str, str], new: str) -> str | None:
        """Return the id of an idle session, `new` if no session may be ended, or None if there is room."""
        held = Counter(self._clients.values())
        is_full = held[client] >= SESSIONS_PER_CLIENT
        if not is_full and len(self._clients) < SESSIONS:
            return None
        idle = (
            (-held[owner], scope.deadline, key)
            for key, owner in self._clients.items()
            if owner == client or (not is_full and held[owner] > held[client])
            # The SDK ends an idle session at this deadline.
            if (scope := (transport := self._manager._server_instances[key]).idle_scope) is not None
            and not transport._requests_in_flight
        )
        return min(idle, default=(0, 0, new))[-1]


class _SdkEvents(EventStore):
    """Keeps the events of the SDK's streams in one session with those of the fast path. The SDK does not replay them:
    `HttpApp` answers requests to resume a stream."""

    def __init__(self, streams: SessionStreams, transport: SdkTransport) -> None:
        self._streams = streams
        self._transport = transport
        self._open = {GET_STREAM_KEY: self._open_stream(GET_STREAM_KEY)}

    async def store_event(self, stream_id: str, message: types.JSONRPCMessage | None) -> str:
        last = isinstance(message, types.JSONRPCResponse | types.JSONRPCError) and stream_id != GET_STREAM_KEY
        stream = self._open.get(stream_id)
        if stream is None:
            if last:  # the client has no id of an event to resume after
                return ""
            stream = self._open[stream_id] = self._open_stream(stream_id)
        if message is None:
            stream.prime()
        else:
            stream.add(message.model_dump_json(by_alias=True, exclude_unset=True).encode(), last)
        if last:
            del self._open[stream_id]
        return stream.last_id

    async def replay_events_after(self, last_event_id: str, send_callback: EventCallback) -> str | None:
        return None

    def _open_stream(self, stream_id: str) -> EventStream:
        async def interrupt() -> None:
            self._transport.close_sse_stream(stream_id)

        return self._streams.open(interrupt)


def _network(address: str) -> str:
    """Return the address or, of an IPv6 address, its /64, all of which one machine can use."""
    try:
        parsed = IPv6Address(address.partition("%")[0])
    except AddressValueError:
        return address
    return str(parsed.ipv4_mapped or IPv6Network((parsed, 64), strict=False))


class _Incoming(ContextReceiveStream[SessionMessage | Exception]):
    """Messages of a client, without those that `take` takes."""

    def __init__(
        self, stream: ContextReceiveStream[SessionMessage | Exception], take: Callable[[types.JSONRPCMessage], bool]
    ) -> None:
        super().__init__(stream._inner)
        self._take = take

    async def receive(self) -> SessionMessage | Exception:
        while True:
            item = await super().receive()
            if isinstance(item, Exception) or not self._take(item.message):
                return item


def _take_reply(session: Session | None, message: types.JSONRPCMessage) -> bool:
    """Give a session the client's reply to a question, or the cancellation of a call, of the fast path."""
    if session is None or isinstance(message, types.JSONRPCRequest):
        return False
    return session.take_reply(message.model_dump(mode="json", by_alias=True, exclude_unset=True))


def is_modern_request(message: Mapping[str, Any], headers: Mapping[str, str]) -> bool:
    """Return whether the routing headers of a modern request fit its body."""
    return isinstance(classify_inbound_request(message, headers=headers), InboundModernRoute)
