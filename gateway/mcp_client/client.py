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
from gateway.mcp_client.endpoints import ClientFace
from gateway.mcp_client.errors import BadAnswer, LinkLost, McpFault, Unreachable
from gateway.mcp_client.http_headers import HeaderMap, header_maps
from gateway.mcp_client.messages import Message, RequestEncoder, notification, request_number
from gateway.mcp_client.pending_request import Asker, Exchange, Log, Reports
from gateway.protocol import jsonrpc
from gateway.tasks import TaskSet

# So long a request that was called off may still ask, unless the server shows sooner that it knows.
ABANDONED_SECONDS = 5.0

# What a server works on while it asks; whoever sends something else with an asker counts as well.
_ASKING = ("tools/call", "prompts/get", "resources/read", "completion/complete")


class Attribution:
    """Which of the requests under way a message without an origin belongs to."""

    def __init__(self, under_way: Mapping[int, Exchange], clock: Callable[[], float]) -> None:
        self._under_way = under_way
        self._clock = clock
        self._abandoned: dict[int, float] = {}

    def abandoned(self, exchange: Exchange) -> None:
        """Nobody waits for it any more, but the server may not know yet."""
        self._forget()
        self._abandoned[exchange.number] = self._clock() + ABANDONED_SECONDS

    def settled(self, number: int) -> None:
        """The server has answered it after all, or has read that it need not."""
        self._abandoned.pop(number, None)

    def may_ask(self) -> bool:
        """Whether any request is under way for whose sake a server would ask."""
        return any(_may_ask(exchange) for exchange in self._under_way.values())

    def whose(self, method: str, origin: Exchange | None) -> Exchange:
        """The request a question belongs to, which has an asker; `McpFault` when that is not certain."""
        if origin is not None and _may_ask(origin):
            return _asked(method, origin)
        candidates = [exchange for exchange in self._under_way.values() if _may_ask(exchange)]
        if not candidates:
            raise McpFault(jsonrpc.INVALID_REQUEST, f"{method} is answered only while a call runs, and none does")
        self._forget()
        if len(candidates) > 1 or self._abandoned:
            raise McpFault(
                jsonrpc.INVALID_REQUEST,
                f"{method} cannot be answered: several calls run on this connection, and nothing says which one asks",
            )
        return _asked(method, candidates[0])

    def logger(self) -> Exchange | None:
        """The request a log message belongs to: the only one there is."""
        self._forget()
        calls = [exchange for exchange in self._under_way.values() if exchange.acknowledged is None]
        return calls[0] if len(calls) == 1 and not self._abandoned else None

    def _forget(self) -> None:
        now = self._clock()
        for number in [number for number, until in self._abandoned.items() if until <= now]:
            del self._abandoned[number]


def _may_ask(exchange: Exchange) -> bool:
    return exchange.ask is not None or exchange.method in _ASKING


def _asked(method: str, exchange: Exchange) -> Exchange:
    if exchange.ask is None:
        raise McpFault(jsonrpc.METHOD_NOT_FOUND, f"nobody answers {method} for this call")
    return exchange


class Listening:
    """A subscription that runs until the server, the link or we end it."""

    def __init__(self, honored: dict[str, Any], task: asyncio.Task[Exception | None]) -> None:
        self.honored = honored
        self._task = task

    async def ended(self) -> Exception | None:
        """Returns when it has ended: why, or None when the server or we ended it in good order."""
        await asyncio.wait([self._task])
        return None if self._task.cancelled() else self._task.result()

    def close(self) -> None:
        self._task.cancel()


class Wire(Protocol):
    """How messages travel. What it hears it gives to `Link.receive`, and its end to `Link.lose`.
    `one_each` says that each request travels apart, so that any id will do for it."""

    one_each: bool

    async def carry(self, exchange: Exchange, message: Message) -> None:
        """Send a request. Returns when it is sent, or when it is answered, whichever the wire can tell."""
        ...

    async def tell(self, message: Message) -> None:
        """Send a notification or an answer of ours; returns when what is sent next comes after it."""
        ...

    def say(self, message: Message) -> None:
        """The same, when it can be; nobody waits for it."""
        ...

    async def close(self) -> None:
        """Let go of everything, in bounded time."""
        ...


# Requests a server may have open with us at once.
ASK_LIMIT = 64

ACKNOWLEDGE_SECONDS = 30.0

_NEVER_CALLED_OFF = ("initialize", "server/discover", "ping")
_log = logging.getLogger(__name__)

OnNotification = Callable[[str, dict[str, Any]], None]


class Link:
    """Everything is raw dicts. What runs here runs in tasks of the link: a caller that is cancelled takes
    only its own request with it, and a failure of the link cancels no caller. Whoever makes one gives it
    its `wire`.

    `exclusive` is for servers whose questions name no request (`asks_mid_call` over stdio or HTTP+SSE):
    one who holds it while a request with an asker runs is asked, others at that time make questions
    ambiguous, and those are refused. `shared` says that requests of several principals run over it.
    """

    def __init__(self, label: str, face: ClientFace) -> None:
        self.label = label
        self.era = ""
        self.modern = False
        self.server_info: dict[str, Any] | None = None
        self.capabilities: dict[str, Any] = {}
        self.instructions: str | None = None
        self.on_notification: OnNotification = _unheard
        self.asks_mid_call = False
        self.shared = False
        self.exclusive = asyncio.Lock()
        self.lost: LinkLost | None = None
        self.wire: Wire
        self.header_maps: dict[str, HeaderMap] = {}
        self.face = face
        self._writing = RequestEncoder(face, "")
        self._loop = asyncio.get_running_loop()
        self._numbers = itertools.count(1)
        self._under_way: dict[int, Exchange] = {}
        self._attribution = Attribution(self._under_way, self._loop.time)
        self._asking: dict[int | str, asyncio.Task[Message]] = {}
        self._tasks = TaskSet()
        self._listening = TaskSet()
        self._ended: asyncio.Future[LinkLost] = self._loop.create_future()
        self._closing: asyncio.Task[None] | None = None

    def speak(self, version: str) -> None:
        """From now on write as `version` has it."""
        self.era = version
        self._writing = RequestEncoder(self.face, version)
        self.modern = self._writing.modern

    async def request(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        ask: Asker | None = None,
        progress: Progress | None = None,
        log: Log | None = None,
        timeout: float | None = None,
        meta: Mapping[str, Any] | None = None,
        capabilities: Mapping[str, Any] | None = None,
        reply_to: int | str | None = None,
    ) -> dict[str, Any]:
        """The server's result. `McpFault` when it answered with an error, `Timeout` when it did not answer
        in time, else what became of the way to it (`faults`).

        What the server asks meanwhile goes to `ask`. `meta` and, to a modern server, `capabilities` are
        handed on as they are; a log level rides in `meta`. With `reply_to`, over a wire that can, the request goes
        by this id, and its result comes `RawResult`: with the message it came in.
        """
        reports = Reports(progress, log) if progress is not None or log is not None else None
        exchange = self._begin(method, ask, reports)
        message = self._writing.request(exchange.number, method, params, meta, capabilities, progress is not None)
        if reply_to is not None and self.wire.one_each:
            message["id"] = exchange.reply_to = reply_to
        try:
            if timeout is None:
                return await self._run(exchange, message)
            try:
                async with asyncio.timeout(timeout):
                    return await self._run(exchange, message)
            except TimeoutError:
                raise Timeout(f"{self.label} did not answer {method} within {timeout:g} seconds") from None
        finally:
            self._finish(exchange)

    async def listen(
        self,
        notifications: Mapping[str, Any],
        *,
        capabilities: Mapping[str, Any] | None = None,
        timeout: float = ACKNOWLEDGE_SECONDS,
    ) -> Listening:
        """Hear of changes from a modern server, through `on_notification`, once it has agreed. What it
        agreed to is `honored`; what to do when the stream ends is for the caller to say."""
        if not self.modern:
            raise McpFault(
                jsonrpc.METHOD_NOT_FOUND, f"{self.label} speaks {self.era}, which has no subscriptions/listen"
            )
        exchange = self._begin("subscriptions/listen", None, None)
        exchange.acknowledged = self._loop.create_future()
        message = self._writing.request(
            exchange.number, exchange.method, {"notifications": notifications}, None, capabilities, False
        )
        task = self._listening.start(self._listen(exchange, message))
        try:
            async with asyncio.timeout(timeout):
                either: list[asyncio.Future[Any]] = [task, exchange.acknowledged]
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not exchange.acknowledged.done():
                raise task.result() or BadAnswer(f"{self.label} ended the subscription before it began")
        except TimeoutError:
            task.cancel()
            raise Timeout(f"{self.label} did not acknowledge the subscription within {timeout:g} seconds") from None
        except asyncio.CancelledError:
            task.cancel()
            raise
        return Listening(exchange.acknowledged.result(), task)

    def note_tools(self, tools: Sequence[Any]) -> None:
        """Tools as the server listed them: which of their arguments must travel as headers too is known from
        their schemas only. What `request` lists is noted already."""
        for tool in tools:
            match tool:
                case {"name": str(name)}:
                    self.header_maps.pop(name, None)
        self.header_maps |= header_maps(tools)

    @property
    def is_waiting(self) -> bool:
        """True while a request waits for its answer; a subscription does not count."""
        return len(self._under_way) > len(self._listening)

    async def closed(self) -> LinkLost:
        """Returns when the link is dead, with the reason."""
        return await asyncio.shield(self._ended)

    async def close(self) -> None:
        """End it, in bounded time, whoever is cancelled meanwhile; nothing of it is left."""
        self.lose(LinkLost(f"the link to {self.label} was closed"))
        if self._closing is not None:
            await asyncio.shield(self._closing)

    async def tell(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        """Send a notification."""
        await self.wire.tell(notification(method, params))

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """A task of the link's own, which ends with it."""
        return self._tasks.start(work)

    def receive(self, message: Message, origin: Exchange | None = None) -> None:
        """A message of the server; `origin` is the request on whose stream it came, where there is one."""
        method, params = message.get("method"), message.get("params")
        params = params if isinstance(params, dict) else {}
        if not isinstance(method, str):
            self._answered(message, origin)
        elif "id" in message:
            self._asked(message["id"], method, params, origin)
        else:
            self._told(method, params, origin)

    def lose(self, reason: LinkLost) -> None:
        """The link is dead: whoever waits is told, and what it holds is let go of."""
        if self.lost is not None:
            return
        self.lost = reason
        for exchange in list(self._under_way.values()):
            exchange.settle(reason.again())
        self._ended.set_result(reason)
        self._closing = self._loop.create_task(self._let_go())

    async def _let_go(self) -> None:
        try:
            await self.wire.close()
        except Exception:
            _log.warning("%s was not closed cleanly", self.label, exc_info=True)
        for task in (*self._tasks, *self._asking.values()):
            task.cancel()
        if left := (*self._tasks, *self._asking.values(), *self._listening):  # the last end with their exchanges
            await asyncio.wait(left, timeout=1.0)

    def _begin(self, method: str, ask: Asker | None, reports: Reports | None) -> Exchange:
        if self.lost is not None:
            raise self.lost.again()
        exchange = Exchange(next(self._numbers), method, self._loop.create_future(), ask, reports)
        self._under_way[exchange.number] = exchange
        return exchange

    async def _run(self, exchange: Exchange, message: Message) -> dict[str, Any]:
        try:
            await self.wire.carry(exchange, message)
        except Unavailable as error:
            if self.lost is not None:
                raise self.lost.again() from None
            exchange.sent = exchange.sent and not isinstance(error, Unreachable)
            raise
        answer = await exchange.answer
        if exchange.reports is not None:
            await exchange.reports.told()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _finish(self, exchange: Exchange) -> None:
        self._under_way.pop(exchange.number, None)
        if exchange.reports is not None:
            exchange.reports.close()
        for task in exchange.asked:
            task.cancel()
        if exchange.answer.done() and not exchange.answer.cancelled():
            return
        if exchange.sent and exchange.method not in _NEVER_CALLED_OFF and not (self.lost or self._loop.is_closed()):
            self._attribution.abandoned(exchange)
            self.spawn(self._call_off(exchange))

    async def _call_off(self, exchange: Exchange) -> None:
        """Tell the server; once it answers what was sent after that, the request asks nothing any more."""
        with suppress(Unavailable, McpFault):
            await self.wire.tell(
                notification("notifications/cancelled", {"requestId": exchange.number, "reason": "called off"})
            )
            if not self.modern:
                await self.request("ping", timeout=ABANDONED_SECONDS)
        self._attribution.settled(exchange.number)

    async def _listen(self, exchange: Exchange, message: Message) -> Exception | None:
        try:
            await self._run(exchange, message)
        except (GatewayError, McpFault) as error:
            return error
        finally:
            self._finish(exchange)
        return None

    def _answered(self, message: Message, origin: Exchange | None) -> None:
        number = request_number(message.get("id"))
        if origin is not None and self.wire.one_each and (said := message.get("id")) is not None:
            # Where each travels apart an answer is this request's or nobody's; some hand a number back as text.
            if str(said) != str(origin.number if origin.reply_to is None else origin.reply_to):
                return
            number = origin.number
        exchange = self._under_way.get(number) if number is not None else None
        if exchange is None and number is None and "error" in message:
            exchange = origin  # it was refused before its number was read
        if exchange is None:
            if number is not None:
                self._attribution.settled(number)
            return
        match message:
            case {"error": {"code": int(code), "message": str(text), **rest}}:
                exchange.settle(McpFault(code, text, rest.get("data")))
            case {"result": dict(result)}:
                exchange.settle(result)
            case _:
                exchange.settle(BadAnswer(f"{self.label} answered {exchange.method} with neither result nor error"))

    def _told(self, method: str, params: dict[str, Any], origin: Exchange | None) -> None:
        if method == "notifications/progress":
            exchange = self._under_way.get(request_number(params.get("progressToken")) or 0)
            if exchange is not None and exchange.reports is not None:
                exchange.reports.progress(params)
            return
        if method == "notifications/cancelled":
            request_id = params.get("requestId")
            if isinstance(request_id, int | str) and request_id in self._asking:
                self._asking[request_id].cancel()
            return
        if method == "notifications/message" and self._logged(params, origin):
            return
        if method == "notifications/subscriptions/acknowledged":
            self._acknowledged(params)
            return
        try:
            self.on_notification(method, params)
        except Exception:
            _log.exception("a notification of %s was not taken", self.label)

    def _logged(self, params: dict[str, Any], origin: Exchange | None) -> bool:
        """Whether a request heard the message: the one it belongs to, or, where nothing tells which that is, all of
        one caller's."""
        exchange = origin or self._attribution.logger()
        candidates = [exchange] if exchange is not None else [] if self.shared else list(self._under_way.values())
        reports = [each.reports for each in candidates if each.reports is not None and each.reports.wants_log]
        for each in reports:
            each.log(params)
        return bool(reports)

    def _acknowledged(self, params: dict[str, Any]) -> None:
        match params:
            case {"_meta": {protocol.SUBSCRIPTION_ID_META_KEY: number}, "notifications": dict(honored)}:
                exchange = self._under_way.get(request_number(number) or 0)
                if exchange is not None and exchange.acknowledged is not None and not exchange.acknowledged.done():
                    exchange.acknowledged.set_result(honored)

    def _asked(self, request_id: Any, method: str, params: dict[str, Any], origin: Exchange | None) -> None:
        if method == "ping":
            self.wire.say({"jsonrpc": "2.0", "id": request_id, "result": {}})
            return
        try:
            if self.modern:
                raise McpFault(
                    jsonrpc.METHOD_NOT_FOUND, f"{self.era} has no {method}: ask with an input_required result"
                )
            # One that asks on the stream of a request says whose question it is.
            self.asks_mid_call = self.asks_mid_call or (origin is None and self._attribution.may_ask())
            if not isinstance(request_id, int | str):
                raise McpFault(jsonrpc.INVALID_REQUEST, "a request's id is a number or a string")
            if len(self._asking) >= ASK_LIMIT or request_id in self._asking:
                raise McpFault(jsonrpc.INVALID_REQUEST, f"at most {ASK_LIMIT} requests, each with an id of its own")
            exchange = self._attribution.whose(method, origin)
        except McpFault as fault:
            self.wire.say({"jsonrpc": "2.0", "id": request_id, "error": fault.to_dict()})
            return
        task = self._loop.create_task(self._ask(exchange.ask, method, params))
        self._asking[request_id] = task
        exchange.asked.add(task)
        task.add_done_callback(lambda done: self._reply(exchange, request_id, done))

    async def _ask(self, ask: Asker | None, method: str, params: dict[str, Any]) -> Message:
        """The answer, without its id; an error when there is none that can be sent."""
        if ask is None:
            return {"error": {"code": jsonrpc.METHOD_NOT_FOUND, "message": f"nobody answers {method} for this call"}}
        try:
            result = await ask(method, params)
            to_json(result)
            return {"result": result}
        except McpFault as fault:
            return {"error": fault.to_dict()}
        except GatewayError as error:
            return {"error": {"code": jsonrpc.INTERNAL_ERROR, "message": str(error)}}
        except Exception:
            _log.exception("%s of %s failed", method, self.label)
            return {"error": {"code": jsonrpc.INTERNAL_ERROR, "message": "the client failed to answer"}}

    def _reply(self, exchange: Exchange, request_id: Any, done: asyncio.Task[Message]) -> None:
        self._asking.pop(request_id, None)
        exchange.asked.discard(done)
        called_off: Message = {"error": {"code": jsonrpc.INTERNAL_ERROR, "message": "the call was called off"}}
        if self.lost is None and not self._loop.is_closed():
            said = called_off if done.cancelled() else done.result()
            self.wire.say({"jsonrpc": "2.0", "id": request_id, **said})


def _unheard(method: str, params: dict[str, Any]) -> None:
    pass
