"""An MCP client: requests over one connection to one server, and the requests that the server makes in between."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

from gateway import protocol
from gateway.calls import Progress, to_json
from gateway.errors import GatewayError, Timeout, Unavailable
from gateway.mcp_client.endpoints import ClientIdentity
from gateway.mcp_client.http_headers import HeaderMap, header_maps
from gateway.mcp_client.messages import (
    ConnectionLost,
    InvalidResponse,
    Message,
    RequestEncoder,
    Unreachable,
    notification,
    request_number,
)
from gateway.mcp_client.pending_request import CallReports, LogCallback, PendingRequest, RequestHandler
from gateway.protocol import jsonrpc
from gateway.protocol.jsonrpc import RpcError
from gateway.tasks import TaskSet

# The time in which a cancelled request may still send requests, unless the server shows earlier that it knows.
CANCELLED_SECONDS = 5.0

# Requests of a server that may be open at once.
SERVER_REQUEST_LIMIT = 64

ACKNOWLEDGE_SECONDS = 30.0

# Seconds between pings while a request waits for its response that long.
PING_SECONDS = 30.0

# Methods during which servers send requests of their own. Others do so only if the caller has a handler for them.
_INTERACTIVE_METHODS = ("tools/call", "prompts/get", "resources/read", "completion/complete")

_NEVER_CANCELLED = ("initialize", "server/discover", "ping")
_log = logging.getLogger(__name__)

OnNotification = Callable[[str, dict[str, Any]], None]


class Transport(Protocol):
    """Sends messages. It passes those it receives to `McpClient.receive`, and its end to `McpClient.lose`.

    `isolates_requests` says that each request has an exchange of its own, so that any id can be used for it.
    `needs_pings` says that pings keep the session alive during a long request.
    """

    isolates_requests: bool
    needs_pings: bool

    async def send_request(self, pending: PendingRequest, message: Message) -> None:
        """Send a request. Returns when it is sent, or answered where the transport waits for that."""
        ...

    async def send(self, message: Message) -> None:
        """Send a notification or an answer. Returns when a message sent next arrives after it."""
        ...

    def send_nowait(self, message: Message) -> None:
        """Send a notification or an answer without waiting; failures are ignored."""
        ...

    async def close(self) -> None:
        """Release everything, in bounded time."""
        ...


class Subscription:
    """A subscription to changes at a modern server, until the server, the client or `close` ends it. `honored` is what
    the server agreed to."""

    def __init__(self, honored: dict[str, Any], task: asyncio.Task[Exception | None]) -> None:
        self.honored = honored
        self._task = task

    async def wait(self) -> Exception | None:
        """Wait for its end; returns the error, or None when it ended regularly."""
        await asyncio.wait([self._task])
        return None if self._task.cancelled() else self._task.result()

    def close(self) -> None:
        self._task.cancel()


class Attribution:
    """Finds the pending request to which a message without an origin belongs. In doubt there is none."""

    def __init__(self, pending: Mapping[int, PendingRequest], clock: Callable[[], float]) -> None:
        self._pending = pending
        self._clock = clock
        self._cancelled: dict[int, float] = {}

    def add_cancelled(self, pending: PendingRequest) -> None:
        """Remember a request that was cancelled, of which the server may not know yet."""
        self._remove_expired()
        self._cancelled[pending.number] = self._clock() + CANCELLED_SECONDS

    def remove_cancelled(self, number: int) -> None:
        """Forget a cancelled request: the server has answered it, or has read the cancellation."""
        self._cancelled.pop(number, None)

    def expects_requests(self) -> bool:
        """Return whether the server may send a request for any pending one."""
        return any(_is_interactive(pending) for pending in self._pending.values())

    def find_requester(self, method: str, origin: PendingRequest | None) -> PendingRequest:
        """Return the pending request on whose behalf the server sends one; `RpcError` when that is not certain, or
        when it has no handler."""
        if origin is not None and _is_interactive(origin):
            return _require_handler(method, origin)
        candidates = [pending for pending in self._pending.values() if _is_interactive(pending)]
        if not candidates:
            raise RpcError(jsonrpc.INVALID_REQUEST, f"{method} is answered only while a call runs, and none does")
        self._remove_expired()
        if len(candidates) > 1 or self._cancelled:
            raise RpcError(
                jsonrpc.INVALID_REQUEST,
                f"{method} cannot be answered: several calls run on this connection, "
                "and the request does not identify its call",
            )
        return _require_handler(method, candidates[0])

    def find_logger(self) -> PendingRequest | None:
        """Return the pending request to which a log message belongs, if there is only one."""
        self._remove_expired()
        calls = [pending for pending in self._pending.values() if pending.acknowledged is None]
        return calls[0] if len(calls) == 1 and not self._cancelled else None

    def _remove_expired(self) -> None:
        now = self._clock()
        for number in [number for number, until in self._cancelled.items() if until <= now]:
            del self._cancelled[number]


class McpClient:
    """A connection to a server that was negotiated by `connect`, which also sets its `transport`.

    Tasks belong to the client: a caller that is cancelled ends only its own request, and a failure of the connection
    cancels no caller. `lost` is why the connection has ended.

    `exclusive` is for servers whose requests do not name one of ours (`asks_mid_call`, over stdio or HTTP+SSE). The
    caller that holds it while its request runs gets them; those that are ambiguous are refused. `shared` says that
    several principals use the connection.
    """

    def __init__(self, label: str, identity: ClientIdentity) -> None:
        self.label = label
        self.protocol_version = ""
        self.modern = False
        self.server_info: dict[str, Any] | None = None
        self.capabilities: dict[str, Any] = {}
        self.instructions: str | None = None
        self.on_notification: OnNotification = _ignore_notification
        self.asks_mid_call = False
        self.shared = False
        self.exclusive = asyncio.Lock()
        self.lost: ConnectionLost | None = None
        self.transport: Transport
        self.header_maps: dict[str, HeaderMap] = {}
        self.identity = identity
        self._encoder = RequestEncoder(identity, "")
        self._loop = asyncio.get_running_loop()
        self._numbers = itertools.count(1)
        self._pending: dict[int, PendingRequest] = {}
        self._attribution = Attribution(self._pending, self._loop.time)
        self._server_requests: dict[int | str, asyncio.Task[Message]] = {}
        self._tasks = TaskSet()
        self._subscriptions = TaskSet()
        self._ended: asyncio.Future[ConnectionLost] = self._loop.create_future()
        self._closing: asyncio.Task[None] | None = None
        self._ping_timer: asyncio.TimerHandle | None = None

    def set_version(self, version: str) -> None:
        """Encode messages for this protocol version from now on."""
        self.protocol_version = version
        self._encoder = RequestEncoder(self.identity, version)
        self.modern = self._encoder.modern

    async def request(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        on_request: RequestHandler | None = None,
        on_progress: Progress | None = None,
        on_log: LogCallback | None = None,
        timeout: float | None = None,
        meta: Mapping[str, Any] | None = None,
        capabilities: Mapping[str, Any] | None = None,
        reply_to: int | str | None = None,
    ) -> dict[str, Any]:
        """Return the server's result. Raises `RpcError` for an error of the server, `Timeout`, or an error of
        `mcp_client.messages` when the connection failed.

        Requests of the server meanwhile go to `on_request`. `meta` and, to a modern server, `capabilities` are sent as
        they are; a log level is part of `meta`. With `reply_to`, over a transport that isolates requests, the request
        has this id, and its result is a `RawResult` with the bytes of the message.
        """
        reports = CallReports(on_progress, on_log) if on_progress is not None or on_log is not None else None
        pending = self._begin(method, on_request, reports)
        message = self._encoder.request(pending.number, method, params, meta, capabilities, on_progress is not None)
        if reply_to is not None and self.transport.isolates_requests:
            message["id"] = pending.reply_to = reply_to
        try:
            if timeout is None:
                return await self._run(pending, message)
            try:
                async with asyncio.timeout(timeout):
                    return await self._run(pending, message)
            except TimeoutError:
                raise Timeout(f"{self.label} did not answer {method} within {timeout:g} seconds") from None
        finally:
            self._finish(pending)

    async def listen(
        self,
        notifications: Mapping[str, Any],
        *,
        capabilities: Mapping[str, Any] | None = None,
        timeout: float = ACKNOWLEDGE_SECONDS,
    ) -> Subscription:
        """Subscribe to changes at a modern server, which are passed to `on_notification`. Returns once the server has
        acknowledged it."""
        if not self.modern:
            reason = f"{self.label} speaks {self.protocol_version}, which has no subscriptions/listen"
            raise RpcError(jsonrpc.METHOD_NOT_FOUND, reason)
        pending = self._begin("subscriptions/listen", None, None)
        pending.acknowledged = self._loop.create_future()
        params = {"notifications": notifications}
        message = self._encoder.request(pending.number, pending.method, params, None, capabilities, False)
        task = self._subscriptions.start(self._run_subscription(pending, message))
        try:
            async with asyncio.timeout(timeout):
                either: list[asyncio.Future[Any]] = [task, pending.acknowledged]
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not pending.acknowledged.done():
                raise task.result() or InvalidResponse(f"{self.label} ended the subscription before it began")
        except TimeoutError:
            task.cancel()
            raise Timeout(f"{self.label} did not acknowledge the subscription within {timeout:g} seconds") from None
        except asyncio.CancelledError:
            task.cancel()
            raise
        return Subscription(pending.acknowledged.result(), task)

    def record_headers(self, tools: Sequence[Any]) -> None:
        """Record which arguments of listed tools are sent as headers too, which only their schemas tell. The tools that
        `request` lists are recorded already."""
        for tool in tools:
            match tool:
                case {"name": str(name)}:
                    self.header_maps.pop(name, None)
        self.header_maps |= header_maps(tools)

    @property
    def is_waiting(self) -> bool:
        """True while a request waits for its response; a subscription does not count."""
        return len(self._pending) > len(self._subscriptions)

    async def wait_closed(self) -> ConnectionLost:
        """Wait for the end of the connection, and return the reason."""
        return await asyncio.shield(self._ended)

    async def close(self) -> None:
        """Close the connection and everything that belongs to it, in bounded time, even if the caller is cancelled."""
        self.lose(ConnectionLost(f"the connection to {self.label} was closed"))
        if self._closing is not None:
            await asyncio.shield(self._closing)

    async def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        """Send a notification."""
        await self.transport.send(notification(method, params))

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start a task that ends with the client."""
        return self._tasks.start(work)

    def receive(self, message: Message, origin: PendingRequest | None = None) -> None:
        """Handle a message of the server; `origin` is the request on whose stream it came, if it has one."""
        method, params = message.get("method"), message.get("params")
        params = params if isinstance(params, dict) else {}
        if not isinstance(method, str):
            self._receive_response(message, origin)
        elif "id" in message and self._is_echo(message["id"], method):
            self.lose(ConnectionLost(f"{self.label} is not an MCP server: it sends back what it is sent"))
        elif "id" in message:
            self._receive_request(message["id"], method, params, origin)
        else:
            self._receive_notification(method, params, origin)

    def _is_echo(self, request_id: Any, method: str) -> bool:
        """Return whether a request is our own, sent back. Servers send no such requests."""
        pending = self._pending.get(request_id) if type(request_id) is int else None
        return pending is not None and pending.method == method and method in ("initialize", "server/discover")

    def lose(self, reason: ConnectionLost) -> None:
        """End the connection: every pending request fails with the reason, and resources are released."""
        if self.lost is not None:
            return
        self.lost = reason
        for pending in list(self._pending.values()):
            pending.complete(reason.copy())
        self._ended.set_result(reason)
        self._closing = self._loop.create_task(self._release())

    async def _release(self) -> None:
        try:
            await self.transport.close()
        except Exception:
            _log.warning("the transport to %s was not closed cleanly", self.label, exc_info=True)
        for task in (*self._tasks, *self._server_requests.values()):
            task.cancel()
        # Subscriptions end with their pending requests.
        if left := (*self._tasks, *self._server_requests.values(), *self._subscriptions):
            await asyncio.wait(left, timeout=1.0)

    def _begin(self, method: str, on_request: RequestHandler | None, reports: CallReports | None) -> PendingRequest:
        if self.lost is not None:
            raise self.lost.copy()
        pending = PendingRequest(next(self._numbers), method, self._loop.create_future(), on_request, reports)
        self._pending[pending.number] = pending
        if self._ping_timer is None and self.transport.needs_pings:
            self._ping_timer = self._loop.call_later(PING_SECONDS, self._ping_if_silent, pending.number)
        return pending

    def _ping_if_silent(self, latest: int) -> None:
        """Ping the server if a request waits that was there at the last check, when `latest` was the newest. Whatever
        it answers, the request goes on."""
        self._ping_timer = None
        if self.lost is not None or not self._pending:
            return
        if min(self._pending) <= latest:
            self.transport.send_nowait({"jsonrpc": "2.0", "id": next(self._numbers), "method": "ping"})
        self._ping_timer = self._loop.call_later(PING_SECONDS, self._ping_if_silent, max(self._pending))

    async def _run(self, pending: PendingRequest, message: Message) -> dict[str, Any]:
        try:
            await self.transport.send_request(pending, message)
        except Unavailable as error:
            if self.lost is not None:
                raise self.lost.copy() from None
            pending.sent = pending.sent and not isinstance(error, Unreachable)
            raise
        response = await pending.response
        if pending.reports is not None:
            await pending.reports.flush()
        if isinstance(response, Exception):
            raise response
        return response

    def _finish(self, pending: PendingRequest) -> None:
        self._pending.pop(pending.number, None)
        if pending.reports is not None:
            pending.reports.close()
        for task in pending.server_requests:
            task.cancel()
        if pending.response.done() and not pending.response.cancelled():
            return
        if pending.sent and pending.method not in _NEVER_CANCELLED and not (self.lost or self._loop.is_closed()):
            self._attribution.add_cancelled(pending)
            self.spawn(self._cancel(pending))

    async def _cancel(self, pending: PendingRequest) -> None:
        """Tell the server that a request is cancelled. Once it answers a ping sent after that, it sends no more
        requests for it."""
        with suppress(Unavailable, RpcError):
            params = {"requestId": pending.number, "reason": "cancelled"}
            await self.transport.send(notification("notifications/cancelled", params))
            if not self.modern:
                await self.request("ping", timeout=CANCELLED_SECONDS)
        self._attribution.remove_cancelled(pending.number)

    async def _run_subscription(self, pending: PendingRequest, message: Message) -> Exception | None:
        try:
            await self._run(pending, message)
        except (GatewayError, RpcError) as error:
            return error
        finally:
            self._finish(pending)
        return None

    def _receive_response(self, message: Message, origin: PendingRequest | None) -> None:
        number = request_number(message.get("id"))
        if origin is not None and self.transport.isolates_requests and (sent_id := message.get("id")) is not None:
            # Only a response to this request counts here; some servers send a number back as text.
            if str(sent_id) != str(origin.number if origin.reply_to is None else origin.reply_to):
                return
            number = origin.number
        pending = self._pending.get(number) if number is not None else None
        if pending is None and number is None and "error" in message:
            pending = origin  # it was refused before its id was read
        if pending is None:
            if number is not None:
                self._attribution.remove_cancelled(number)
            return
        match message:
            case {"error": {"code": int(code), "message": str(text), **rest}}:
                pending.complete(RpcError(code, text, rest.get("data")))
            case {"result": dict(result)}:
                pending.complete(result)
            case _:
                reason = f"{self.label} answered {pending.method} with neither result nor error"
                pending.complete(InvalidResponse(reason))

    def _receive_notification(self, method: str, params: dict[str, Any], origin: PendingRequest | None) -> None:
        if method == "notifications/progress":
            pending = self._pending.get(request_number(params.get("progressToken")) or 0)
            if pending is not None and pending.reports is not None:
                pending.reports.add_progress(params)
            return
        if method == "notifications/cancelled":
            request_id = params.get("requestId")
            if isinstance(request_id, int | str) and request_id in self._server_requests:
                self._server_requests[request_id].cancel()
            return
        if method == "notifications/message" and self._pass_log(params, origin):
            return
        if method == "notifications/subscriptions/acknowledged":
            self._acknowledge(params)
            return
        try:
            self.on_notification(method, params)
        except Exception:
            _log.exception("the callback for a notification of %s failed", self.label)

    def _pass_log(self, params: dict[str, Any], origin: PendingRequest | None) -> bool:
        """Pass a log message to the request it belongs to, or, where that is unknown, to all of one caller. Return
        whether any takes it."""
        pending = origin or self._attribution.find_logger()
        candidates = [pending] if pending is not None else [] if self.shared else list(self._pending.values())
        queues = [candidate.reports for candidate in candidates if candidate.reports and candidate.reports.wants_log]
        for queue in queues:
            queue.add_log(params)
        return bool(queues)

    def _acknowledge(self, params: dict[str, Any]) -> None:
        match params:
            case {"_meta": {protocol.SUBSCRIPTION_ID_META_KEY: number}, "notifications": dict(honored)}:
                pending = self._pending.get(request_number(number) or 0)
                if pending is not None and pending.acknowledged is not None and not pending.acknowledged.done():
                    pending.acknowledged.set_result(honored)

    def _receive_request(
        self, request_id: Any, method: str, params: dict[str, Any], origin: PendingRequest | None
    ) -> None:
        if method == "ping":
            self.transport.send_nowait({"jsonrpc": "2.0", "id": request_id, "result": {}})
            return
        try:
            pending = self._accept_request(request_id, method, origin)
        except RpcError as error:
            self.transport.send_nowait({"jsonrpc": "2.0", "id": request_id, "error": error.to_dict()})
            return
        task = self._loop.create_task(self._handle_request(pending.on_request, method, params))
        self._server_requests[request_id] = task
        pending.server_requests |= {task}
        task.add_done_callback(lambda done: self._answer(pending, request_id, done))

    def _accept_request(self, request_id: Any, method: str, origin: PendingRequest | None) -> PendingRequest:
        """Return the pending request that a request of the server belongs to; `RpcError` refuses it."""
        if self.modern:
            reason = f"{self.protocol_version} has no {method}: ask with an input_required result"
            raise RpcError(jsonrpc.METHOD_NOT_FOUND, reason)
        # On the stream of a request it is clear to which one it belongs.
        self.asks_mid_call = self.asks_mid_call or (origin is None and self._attribution.expects_requests())
        if not isinstance(request_id, int | str):
            raise RpcError(jsonrpc.INVALID_REQUEST, "a request's id is a number or a string")
        if len(self._server_requests) >= SERVER_REQUEST_LIMIT or request_id in self._server_requests:
            reason = f"at most {SERVER_REQUEST_LIMIT} requests at once are allowed, each with an id of its own"
            raise RpcError(jsonrpc.INVALID_REQUEST, reason)
        return self._attribution.find_requester(method, origin)

    async def _handle_request(self, handler: RequestHandler | None, method: str, params: dict[str, Any]) -> Message:
        """Return the answer without its id: a result, or an error."""
        if handler is None:
            message = f"the client does not support {method} for this call"
            return {"error": {"code": jsonrpc.METHOD_NOT_FOUND, "message": message}}
        try:
            result = await handler(method, params)
            to_json(result)
            return {"result": result}
        except RpcError as error:
            return {"error": error.to_dict()}
        except GatewayError as error:
            return {"error": {"code": jsonrpc.INTERNAL_ERROR, "message": str(error)}}
        except Exception:
            _log.exception("%s of %s failed", method, self.label)
            return {"error": {"code": jsonrpc.INTERNAL_ERROR, "message": "the client failed to answer"}}

    def _answer(self, pending: PendingRequest, request_id: Any, done: asyncio.Task[Message]) -> None:
        self._server_requests.pop(request_id, None)
        pending.server_requests -= {done}
        cancelled: Message = {"error": {"code": jsonrpc.INTERNAL_ERROR, "message": "the call was cancelled"}}
        if self.lost is None and not self._loop.is_closed():
            answer = cancelled if done.cancelled() else done.result()
            self.transport.send_nowait({"jsonrpc": "2.0", "id": request_id, **answer})


def _ignore_notification(method: str, params: dict[str, Any]) -> None:
    pass


def _is_interactive(pending: PendingRequest) -> bool:
    return pending.on_request is not None or pending.method in _INTERACTIVE_METHODS


def _require_handler(method: str, pending: PendingRequest) -> PendingRequest:
    if pending.on_request is None:
        raise RpcError(jsonrpc.METHOD_NOT_FOUND, f"the client does not support {method} for this call")
    return pending
