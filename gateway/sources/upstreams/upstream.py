"""One upstream server: what it said last, under which terms it is offered, and the ways to it."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from gateway.calls import LOCAL, Call
from gateway.config import Settings
from gateway.db.pins import Pins
from gateway.db.upstreams import Upstreams
from gateway.errors import Forbidden, GatewayError, Timeout, Unavailable
from gateway.mcp_client import ClientIdentity, McpClient, open_client
from gateway.oauth.store import Logins
from gateway.protocol.jsonrpc import RpcError
from gateway.sources.upstreams.connection import UpstreamConnection
from gateway.sources.upstreams.credentials import UpstreamCredentials
from gateway.sources.upstreams.definitions import LISTS, METHOD_NOT_FOUND, Kind, define, define_all, fetch_list
from gateway.sources.upstreams.pinning import Decision, PinStatus, Verdict, apply_pins
from gateway.sources.upstreams.spec import Spec
from gateway.sources.upstreams.subscriptions import Subscriptions
from gateway.sources.upstreams.tools import list_tools
from gateway.sources.upstreams.uris import prefix_of, public_tool
from gateway.tasks import TaskSet
from gateway.tools import Tool

LIST_SECONDS = 30.0
START_SECONDS = 60.0
# How long a call waits for a server that was just reached to say what it has.
VERIFY_SECONDS = 15.0

IDLE_SECONDS = 600.0
# How long a server's list must have been quiet before it is asked for: changes come in bursts.
SETTLE_SECONDS = 0.05

# When a server that did not say what it has, or ended the stream of its changes, is asked again.
AGAIN_SECONDS = 15.0

# Connections to one server, or children of it, at once.
CONNECTIONS_LIMIT = 64

_UPDATED = "notifications/resources/updated"
_RESOURCES_CHANGED = "notifications/resources/list_changed"
_CHANGED = frozenset(f"notifications/{what}/list_changed" for what in LISTS)

log = logging.getLogger(__name__)

# Whose a connection is, for which chat, and which of those beside each other.
Key = tuple[str, str, int]


@dataclass(frozen=True)
class ServerListing:
    """Everything a server defines, as it came."""

    tools: tuple[Any, ...] = ()
    prompts: tuple[Any, ...] = ()
    templates: tuple[Any, ...] = ()
    instructions: str | None = None


class Upstream:
    """Its tools are known from the last time until it is asked again; nothing here waits for it but a call.

    `changed` is told whenever what is offered may be another. `others` names the tools of other servers. `asks` is
    set once it has asked something in the middle of a call.
    """

    def __init__(
        self,
        spec: Spec,
        store: Upstreams,
        pins: Pins,
        face: ClientIdentity,
        changed: Callable[[], None],
        others: Callable[[], Collection[str]] = tuple,
        environment: Mapping[str, str] = os.environ,
        logins: Logins | None = None,
        settings: Settings | None = None,
    ) -> None:
        self.spec = spec
        self.tools: tuple[Tool, ...] = ()
        self._current: dict[str, Tool] = {}
        self.prompts: tuple[dict[str, Any], ...] = ()
        self.templates: tuple[dict[str, Any], ...] = ()
        self.instructions: str | None = None
        self.problems: tuple[GatewayError, ...] = ()
        self.asks = False
        self._store = store
        self._pins = pins
        self._face = face
        self._changed = changed
        self._others = others
        self._access = UpstreamCredentials(spec, environment, logins, settings)
        self._era: str | None = None
        self._said: ServerListing | None = None
        self._connections: dict[Key, UpstreamConnection] = {}
        self._tasks = TaskSet()
        self.subscriptions = Subscriptions(lambda: self._connection(self._main))
        self._taking = asyncio.Lock()
        self._tried = asyncio.Event()
        self._asked = asyncio.Event()
        self._keeping = False
        self._relist = False
        self._closed = False

    @property
    def error(self) -> str | None:
        """Why it is not available, as far as anyone has tried."""
        connection = self._connections.get(self._main)
        return connection.error if connection is not None else None

    @property
    def connected(self) -> bool:
        connection = self._connections.get(self._main)
        return connection is not None and connection.connected

    @property
    def known(self) -> bool:
        """Whether it ever said what it has, to whichever process."""
        return self._said is not None

    @property
    def era(self) -> str | None:
        return self._era

    @property
    def verified(self) -> bool:
        """Whether it has said what it has since it was reached last; where nothing is pinned, nobody minds."""
        return self._asked.is_set() or self.spec.settings.pinning == "off"

    async def verify(self) -> None:
        """Have it say what it has before anything is asked of it: it may be another server by now."""
        await self._connection(self._main).connect()
        try:
            async with asyncio.timeout(VERIFY_SECONDS):
                await self._asked.wait()
        except TimeoutError:
            raise Unavailable(
                f"the upstream server {self.spec.name!r} does not say what it has, so what was accepted of it cannot "
                "be told from what is new",
                code="UPSTREAM_UNAVAILABLE",
                server=self.spec.name,
            ) from None

    def refuse_changed(self, tool: Tool) -> None:
        """Refuse a tool that is not what it was, though a catalog may still have it."""
        now = self._current.get(tool.id)
        if now is not tool and (now is None or now.withheld is not None):
            reason = "the server has it no more" if now is None else now.withheld
            raise Forbidden(f"{tool.id} is not what it was: {reason}", code="TOOL_DISABLED")

    async def load_cached(self) -> None:
        """Offer what it said last time, to whichever process."""
        kept = await self._store.recall(self.spec.name)
        self._era = kept.era
        if kept.tools is not None:
            said = ServerListing(
                tuple(kept.tools), tuple(kept.prompts or ()), tuple(kept.templates or ()), kept.instructions
            )
            await self._apply(said)

    async def apply_pins(self) -> None:
        """Decide anew on what it said: a person may have accepted something."""
        await self._apply(None)

    async def discover(self) -> None:
        """Connect and ask what there is; returns when that was tried. It is tried again until it is known, and a
        server that is not lazy is kept connected."""
        if not self._keeping and not self._closed:
            self._keeping = True
            self._tasks.start(self._keep())
        await self._tried.wait()

    def connection_for(self, call: Call) -> UpstreamConnection:
        """The way this call takes: no two principals share a server that may keep state. While a call waits for an
        answer on a connection that takes one at a time, the next has another."""
        connection, number = self._connection(self._key(call.caller.principal, call.chat)), 0
        while connection.awaiting_input:
            number += 1
            connection = self._connection(self._key(call.caller.principal, call.chat, number))
        return connection

    async def close(self) -> None:
        self._closed = True
        self._tried.set()
        self.subscriptions.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(
            *tasks, *(connection.close() for connection in self._connections.values()), return_exceptions=True
        )
        await self._access.close()

    @property
    def _main(self) -> Key:
        """The way on which lists are asked for."""
        return self._key(LOCAL, "")

    def _key(self, principal: str, chat: str, number: int = 0) -> Key:
        sharing = self.spec.settings.sharing
        return ("" if sharing == "all" else principal, chat if sharing == "chat" else "", number)

    def _connection(self, key: Key) -> UpstreamConnection:
        connection = self._connections.get(key)
        if connection is not None:
            return connection
        if self._closed:
            raise Unavailable(f"the upstream server {self.spec.name!r} was removed", code="UPSTREAM_UNAVAILABLE")
        if not (main := key == self._main):
            self._make_room()
        idle = IDLE_SECONDS if self.spec.settings.lazy or not main else None
        opened = self._opened if main else _unheard
        connection = self._connections[key] = UpstreamConnection(
            self.spec.name, self._open, opened, idle, self._forget, self._access.has_changed
        )
        return connection

    def _make_room(self) -> None:
        """Close the connection that has been there longest of those nobody uses, when there are too many."""
        if len(self._connections) < CONNECTIONS_LIMIT:
            return
        for key, connection in self._connections.items():
            if key != self._main and not connection.used:
                del self._connections[key]
                self._tasks.start(connection.close())
                return
        raise Unavailable(
            f"{CONNECTIONS_LIMIT} connections to {self.spec.name!r} are in use; let its callers share them "
            "(sharing: all), or call again later",
            code="OVERLOADED",
        )

    def _forget(self, connection: UpstreamConnection) -> None:
        self._connections = {key: each for key, each in self._connections.items() if each is not connection}

    async def _keep(self) -> None:
        """Connect until it is known what there is, and for as long as it is to stay connected."""
        connection = self._connection(self._main)
        try:
            while not (self.known and self.spec.settings.lazy):
                try:
                    link = await connection.connect()
                except GatewayError:
                    self._tried.set()
                    await connection.pause()
                else:
                    await link.wait_closed()
        finally:
            self._keeping = False
            self._tried.set()

    async def _open(self) -> McpClient:
        try:
            endpoint = self._access.endpoint()
            link = await open_client(endpoint, identity=self._face, timeout=START_SECONDS, version=self._era)
        except (GatewayError, RpcError) as error:
            await self._store.failed(self.spec.name, error.message)
            raise
        self._era, link.shared = link.protocol_version, self.spec.settings.sharing == "all"
        return link

    def _opened(self, link: McpClient) -> None:
        self._asked.clear()
        stale = asyncio.Event()
        stale.set()

        def heard(method: str, params: Mapping[str, Any]) -> None:
            if method in _CHANGED:
                stale.set()
                self._relist = self._relist or method == _RESOURCES_CHANGED
            elif method == _UPDATED:
                self.subscriptions.updated(params.get("uri"))

        link.on_notification = heard
        self._tasks.start(self._ask_while_stale(link, stale))
        self.subscriptions.renew(link)
        if link.modern and _announces(link):
            self._tasks.start(self._listen(link, stale))

    async def _listen(self, link: McpClient, stale: asyncio.Event) -> None:
        """Hear of changed lists for as long as the link lives; what changed while nobody heard is asked for."""
        wanted = {"toolsListChanged": True, "promptsListChanged": True, "resourcesListChanged": True}
        while link.lost is None:
            try:
                listening = await link.listen(wanted)
                stale.set()
                await listening.wait()
            except RpcError as fault:
                if fault.code == METHOD_NOT_FOUND:
                    return
                log.debug("upstream %s cannot be listened to: %s", self.spec.name, fault)
            except GatewayError as error:
                log.debug("upstream %s cannot be listened to: %s", self.spec.name, error)
            await _for_a_while(link, AGAIN_SECONDS)

    async def _ask_while_stale(self, link: McpClient, stale: asyncio.Event) -> None:
        """Ask for all it defines: at first, and once for however many changes it announced meanwhile."""
        while link.lost is None:
            await _either(link, stale)
            stale.clear()
            try:
                await self._ask(link)
            except (GatewayError, RpcError) as error:
                if link.lost is None:
                    log.warning("upstream %s does not say what it has: %s", self.spec.name, error)
                    await _for_a_while(link, AGAIN_SECONDS)
                    stale.set()
            self._tried.set()
            await _for_a_while(link, SETTLE_SECONDS)

    async def _ask(self, link: McpClient) -> None:
        try:
            async with asyncio.timeout(LIST_SECONDS):
                tools, prompts, templates = [await fetch_list(link, what) for what in LISTS]
        except TimeoutError:
            raise Timeout(f"its lists took longer than {LIST_SECONDS:g} s") from None
        said = ServerListing(tools, prompts, templates, link.instructions)
        await self._store.remember(
            self.spec.name,
            era=link.protocol_version,
            tools=said.tools,
            prompts=said.prompts,
            templates=said.templates,
            instructions=said.instructions or "",
        )
        await self._apply(said)
        self._asked.set()

    async def _apply(self, fresh: ServerListing | None) -> None:
        """Offer what of `fresh`, or of what it said before, is accepted; one at a time, so that the newest stays."""
        async with self._taking:
            said = fresh or self._said
            if said is None:
                return
            definitions = define_all(said.tools, said.prompts, said.templates, said.instructions)
            if self.spec.settings.pinning == "off":
                verdict = Verdict({key: Decision(each, PinStatus.OFFERED) for key, each in definitions.found.items()})
            else:
                verdict = await apply_pins(
                    self._pins, self.spec.name, definitions.found, self.spec.policy, self._others()
                )
            listing = await asyncio.to_thread(list_tools, self.spec.terms, said.tools, verdict)
            self._said, self.problems = said, (*definitions.problems, *listing.problems)
            prompts = tuple(each for each in said.prompts if _is_offered(verdict, Kind.PROMPT, each))
            templates = tuple(each for each in said.templates if _is_offered(verdict, Kind.TEMPLATE, each))
            instructions = said.instructions if verdict.is_offered(Kind.INSTRUCTIONS, "instructions") else None
            tools = tuple(_with_pages(self.spec, tool) for tool in listing.tools)
            offered = (tools, prompts, templates, instructions)
            # Resources are not kept: each client that lists them asks the server itself.
            relist, self._relist = self._relist, False
            if relist or offered != (self.tools, self.prompts, self.templates, self.instructions):
                self.tools, self.prompts, self.templates, self.instructions = offered
                self._current = {tool.id: tool for tool in tools}
                self._changed()


def _with_pages(spec: Spec, tool: Tool) -> Tool:
    """The tool with the address of its page, where it has one, as clients find it."""
    if tool.wire is None or (wire := public_tool(prefix_of(spec), tool.wire)) is tool.wire:
        return tool
    return replace(tool, wire=wire)


def _is_offered(verdict: Verdict, kind: Kind, raw: Any) -> bool:
    """Whether this very definition was accepted."""
    try:
        definition = define(kind, raw)
    except GatewayError:
        return False
    decision = verdict.decisions.get(definition.key)
    return decision is not None and decision.offered and decision.definition.text == definition.text


def _announces(link: McpClient) -> bool:
    return any((link.capabilities.get(what) or {}).get("listChanged") for what in LISTS)


async def _either(link: McpClient, event: asyncio.Event) -> None:
    """Wait for the event or for the end of the link."""
    waiting = asyncio.ensure_future(event.wait())
    ending = asyncio.ensure_future(link.wait_closed())
    try:
        await asyncio.wait([waiting, ending], return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
        ending.cancel()


async def _for_a_while(link: McpClient, seconds: float) -> None:
    """Wait so long, or until the link has ended."""
    ending = asyncio.ensure_future(link.wait_closed())
    try:
        await asyncio.wait([ending], timeout=seconds)
    finally:
        ending.cancel()


def _unheard(_: McpClient) -> None:
    """Only one link of a server is asked for its lists."""
