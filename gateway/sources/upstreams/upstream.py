"""One upstream server: its listed definitions, the pins applied to them, and its connections."""

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
from gateway.errors import Forbidden, GatewayError, Invalid, Timeout, Unavailable
from gateway.mcp_client import ClientIdentity, McpClient, open_client
from gateway.oauth.store import Logins
from gateway.protocol.jsonrpc import RpcError
from gateway.sources.upstreams.connection import UpstreamConnection
from gateway.sources.upstreams.definitions import LISTS, METHOD_NOT_FOUND, Kind, define, define_all, fetch_list
from gateway.sources.upstreams.pinning import Decision, PinStatus, Verdict, apply_pins
from gateway.sources.upstreams.secret_store import UpstreamCredentials
from gateway.sources.upstreams.spec import Spec
from gateway.sources.upstreams.subscriptions import Subscriptions
from gateway.sources.upstreams.tools import list_tools
from gateway.sources.upstreams.uris import prefix_of, public_tool
from gateway.tasks import TaskSet
from gateway.tools import Tool

LIST_SECONDS = 30.0
START_SECONDS = 60.0
# Time a call waits for the lists of a server that was just connected.
VERIFY_SECONDS = 15.0

IDLE_SECONDS = 600.0
# Pause after listing: changes come in bursts.
SETTLE_SECONDS = 0.05

# Pause before lists are requested again after a failure, or a stream of changes is opened again.
AGAIN_SECONDS = 15.0

# Connections to one server, or processes of it, at once.
CONNECTIONS_LIMIT = 64

_UPDATED = "notifications/resources/updated"
_RESOURCES_CHANGED = "notifications/resources/list_changed"
_CHANGED = frozenset(f"notifications/{what}/list_changed" for what in LISTS)

log = logging.getLogger(__name__)

# The principal, chat and number of a connection.
Key = tuple[str, str, int]


@dataclass(frozen=True)
class ServerListing:
    """The definitions of a server, as received."""

    tools: tuple[Any, ...] = ()
    prompts: tuple[Any, ...] = ()
    templates: tuple[Any, ...] = ()
    instructions: str | None = None


class Upstream:
    """A server whose tools are known from its last listing; only a call waits for it.

    `changed` is called whenever the offered definitions may have changed. `others` names the tools of other servers.
    `asks` is set once the server has asked something in the middle of a call; `last_error` is why it did not answer
    before this start.
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
        self.last_error: str | None = None
        self._store = store
        self._pins = pins
        self._face = face
        self._changed = changed
        self._others = others
        self._access = UpstreamCredentials(spec, environment, logins, settings)
        self._era: str | None = None
        self._listing: ServerListing | None = None
        self._connections: dict[Key, UpstreamConnection] = {}
        self._tasks = TaskSet()
        self.subscriptions = Subscriptions(lambda: self._connection(self._main))
        self._applying = asyncio.Lock()
        self._attempted = asyncio.Event()
        self._listed = asyncio.Event()
        self._keeps_connected = False
        self._relist = False
        self._closed = False

    @property
    def error(self) -> str | None:
        """The reason why the server is not available, if connecting failed."""
        connection = self._connections.get(self._main)
        return connection.error if connection is not None else None

    @property
    def connected(self) -> bool:
        connection = self._connections.get(self._main)
        return connection is not None and connection.connected

    @property
    def known(self) -> bool:
        """True if its definitions were ever listed, by any process."""
        return self._listing is not None

    @property
    def era(self) -> str | None:
        return self._era

    @property
    def verified(self) -> bool:
        """True if its definitions were listed since the last connection, or pinning is off."""
        return self._listed.is_set() or self.spec.settings.pinning == "off"

    async def verify(self) -> None:
        """Wait until its definitions are listed and compared with their pins: it may be another server by now."""
        await self._connection(self._main).connect()
        try:
            async with asyncio.timeout(VERIFY_SECONDS):
                await self._listed.wait()
        except TimeoutError:
            raise Unavailable(
                f"upstream {self.spec.name!r} did not list its definitions within {VERIFY_SECONDS:g} s, so its pinned "
                f"definitions could not be verified; check it with: toolgate upstream test {self.spec.name}",
                code="UPSTREAM_UNAVAILABLE",
                server=self.spec.name,
            ) from None

    def refuse_changed(self, tool: Tool) -> None:
        """Refuse a tool that changed since the catalog was made."""
        now = self._current.get(tool.id)
        if now is not tool and (now is None or now.withheld is not None):
            reason = "the server no longer lists it" if now is None else now.withheld
            raise Forbidden(f"{tool.id} has changed: {reason}", code="TOOL_DISABLED")

    async def load_cached(self) -> None:
        """Offer the definitions of its last listing, by any process."""
        kept = await self._store.recall(self.spec.name)
        self._era = kept.era
        self.last_error = kept.error
        if kept.tools is not None:
            received = ServerListing(
                tuple(kept.tools), tuple(kept.prompts or ()), tuple(kept.templates or ()), kept.instructions
            )
            await self._apply(received)

    async def apply_pins(self) -> None:
        """Apply the pins again: a person may have accepted something."""
        await self._apply(None)

    async def discover(self) -> None:
        """Connect and list definitions; returns after the first attempt. Attempts continue until one succeeds, and a
        server that is not lazy is kept connected."""
        if not self._keeps_connected and not self._closed:
            self._keeps_connected = True
            self._tasks.start(self._keep_connected())
        await self._attempted.wait()

    def connection_for(self, call: Call) -> UpstreamConnection:
        """The connection of this call; `sharing` says who shares one. A connection that waits for user input is
        passed over for another."""
        connection, number = self._connection(self._key(call.caller.principal, call.chat)), 0
        while connection.awaiting_input:
            number += 1
            connection = self._connection(self._key(call.caller.principal, call.chat, number))
        return connection

    async def close(self) -> None:
        self._closed = True
        self._attempted.set()
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
        """The connection on which definitions are listed."""
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
        opened = self._start_listing if main else _ignore
        connection = self._connections[key] = UpstreamConnection(
            self.spec.name, self._open, opened, idle, self._forget, self._access.has_changed
        )
        return connection

    def _make_room(self) -> None:
        """At the limit, close the oldest unused connection."""
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

    async def _keep_connected(self) -> None:
        """Connect until the definitions are known, and stay connected unless the server is lazy."""
        connection = self._connection(self._main)
        try:
            while not (self.known and self.spec.settings.lazy):
                try:
                    link = await connection.connect()
                except GatewayError:
                    self._attempted.set()
                    await connection.pause()
                else:
                    await link.wait_closed()
        finally:
            self._keeps_connected = False
            self._attempted.set()

    async def _open(self) -> McpClient:
        try:
            endpoint = self._access.endpoint()
            link = await open_client(endpoint, identity=self._face, timeout=START_SECONDS, version=self._era)
        except (GatewayError, RpcError) as error:
            await self._store.record_failure(self.spec.name, error.message)
            raise
        self._era, link.shared = link.protocol_version, self.spec.settings.sharing == "all"
        return link

    def _start_listing(self, link: McpClient) -> None:
        self._listed.clear()
        stale = asyncio.Event()
        stale.set()

        def on_notification(method: str, params: Mapping[str, Any]) -> None:
            if method in _CHANGED:
                stale.set()
                self._relist = self._relist or method == _RESOURCES_CHANGED
            elif method == _UPDATED:
                self.subscriptions.notify(params.get("uri"))

        link.on_notification = on_notification
        self._tasks.start(self._list_while_stale(link, stale))
        self.subscriptions.resubscribe(link)
        if link.modern and _announces(link):
            self._tasks.start(self._listen(link, stale))

    async def _listen(self, link: McpClient, stale: asyncio.Event) -> None:
        """Listen for changed lists as long as the client lives; after each interruption, list again."""
        wanted = {"toolsListChanged": True, "promptsListChanged": True, "resourcesListChanged": True}
        while link.lost is None:
            try:
                listening = await link.listen(wanted)
                stale.set()
                await listening.wait()
            except RpcError as fault:
                if fault.code == METHOD_NOT_FOUND:
                    return
                log.debug("upstream %s refused to announce changes: %s", self.spec.name, fault)
            except GatewayError as error:
                log.debug("upstream %s refused to announce changes: %s", self.spec.name, error)
            await _sleep(link, AGAIN_SECONDS)

    async def _list_while_stale(self, link: McpClient, stale: asyncio.Event) -> None:
        """List all definitions: at first, and once for any number of changes announced meanwhile."""
        while link.lost is None:
            await _wait_for(link, stale)
            stale.clear()
            try:
                await self._list_definitions(link)
            except (GatewayError, RpcError) as error:
                if link.lost is None:
                    log.warning("upstream %s did not list its definitions: %s", self.spec.name, error)
                    await _sleep(link, AGAIN_SECONDS)
                    stale.set()
            self._attempted.set()
            await _sleep(link, SETTLE_SECONDS)

    async def _list_definitions(self, link: McpClient) -> None:
        try:
            async with asyncio.timeout(LIST_SECONDS):
                tools, prompts, templates = [await fetch_list(link, what) for what in LISTS]
        except TimeoutError:
            raise Timeout(f"listing its definitions took longer than {LIST_SECONDS:g} s") from None
        received = ServerListing(tools, prompts, templates, link.instructions)
        await self._store.remember(
            self.spec.name,
            era=link.protocol_version,
            tools=received.tools,
            prompts=received.prompts,
            templates=received.templates,
            instructions=received.instructions or "",
        )
        await self._apply(received)
        self._listed.set()

    async def _apply(self, fresh: ServerListing | None) -> None:
        """Offer the accepted definitions of `fresh`, or of the last listing; one at a time, so that the newest wins."""
        async with self._applying:
            received = fresh or self._listing
            if received is None:
                return
            definitions = define_all(received.tools, received.prompts, received.templates, received.instructions)
            if self.spec.settings.pinning == "off":
                verdict = Verdict({key: Decision(each, PinStatus.OFFERED) for key, each in definitions.found.items()})
            else:
                verdict = await apply_pins(
                    self._pins, self.spec.name, definitions.found, self.spec.policy, self._others()
                )
            listing = await asyncio.to_thread(list_tools, self.spec.terms, received.tools, verdict)
            faults = [Invalid(f"{self.spec.name}: {each.message}", code=each.code) for each in definitions.problems]
            # Of a tool without a valid name both say the same.
            self._listing = received
            self.problems = tuple({each.message: each for each in (*faults, *listing.problems)}.values())
            prompts = tuple(each for each in received.prompts if _is_offered(verdict, Kind.PROMPT, each))
            templates = tuple(each for each in received.templates if _is_offered(verdict, Kind.TEMPLATE, each))
            instructions = received.instructions if verdict.is_offered(Kind.INSTRUCTIONS, "instructions") else None
            tools = tuple(_with_pages(self.spec, tool) for tool in listing.tools)
            offered = (tools, prompts, templates, instructions)
            # Resources are not stored: each client that lists them asks the server.
            relist, self._relist = self._relist, False
            if relist or offered != (self.tools, self.prompts, self.templates, self.instructions):
                self.tools, self.prompts, self.templates, self.instructions = offered
                self._current = {tool.id: tool for tool in tools}
                self._changed()


def _with_pages(spec: Spec, tool: Tool) -> Tool:
    """The tool with the public URI of its page, if it has one."""
    if tool.wire is None or (wire := public_tool(prefix_of(spec), tool.wire)) is tool.wire:
        return tool
    return replace(tool, wire=wire)


def _is_offered(verdict: Verdict, kind: Kind, raw: Any) -> bool:
    """Return whether exactly this definition was accepted."""
    try:
        definition = define(kind, raw)
    except GatewayError:
        return False
    decision = verdict.decisions.get(definition.key)
    return decision is not None and decision.offered and decision.definition.text == definition.text


def _announces(link: McpClient) -> bool:
    return any((link.capabilities.get(what) or {}).get("listChanged") for what in LISTS)


async def _wait_for(link: McpClient, event: asyncio.Event) -> None:
    """Wait for the event or the end of the client."""
    waiting = asyncio.ensure_future(event.wait())
    ending = asyncio.ensure_future(link.wait_closed())
    try:
        await asyncio.wait([waiting, ending], return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
        ending.cancel()


async def _sleep(link: McpClient, seconds: float) -> None:
    """Wait for some seconds, or until the client has ended."""
    ending = asyncio.ensure_future(link.wait_closed())
    try:
        await asyncio.wait([ending], timeout=seconds)
    finally:
        ending.cancel()


def _ignore(_: McpClient) -> None:
    """Only the main connection lists definitions."""
