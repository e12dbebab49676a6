"""One upstream server: its listed definitions, the pins applied to them, and its connections."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from gateway.calls import LOCAL, Call, ClientInfo
from gateway.config import Settings
from gateway.db.pins import Pins
from gateway.db.upstreams import Upstreams
from gateway.errors import Forbidden, GatewayError, Invalid, Timeout, Unavailable
from gateway.mcp_client import (
    ClientIdentity,
    ConnectionLost,
    Endpoint,
    InvalidResponse,
    McpClient,
    Unauthorized,
    open_client,
)
from gateway.mcp_client.connect import Step, ignore_step
from gateway.mcp_client.http_headers import load_header_rules
from gateway.oauth.store import LoginAccount, Logins
from gateway.protocol import LATEST_HANDSHAKE_VERSION, LATEST_MODERN_VERSION, MODERN_PROTOCOL_VERSIONS, supports_apps
from gateway.protocol.jsonrpc import RpcError
from gateway.sources.upstreams.connection import UpstreamConnection
from gateway.sources.upstreams.definitions import (
    BESIDE_TOOLS,
    LISTS,
    METHOD_NOT_FOUND,
    Kind,
    define,
    define_all,
    fetch_list,
)
from gateway.sources.upstreams.pinning import Decision, PinStatus, Verdict, apply_pins
from gateway.sources.upstreams.secret_store import UpstreamCredentials
from gateway.sources.upstreams.spec import Spec
from gateway.sources.upstreams.subscriptions import Subscriptions
from gateway.sources.upstreams.tools import list_tools
from gateway.sources.upstreams.uris import has_page, prefix_of, public_meta
from gateway.tasks import TaskSet
from gateway.tools import Tool
from gateway.value import Value

LIST_SECONDS = 30.0
START_SECONDS = 60.0
# Time a call waits for the lists of a server that was just connected.
VERIFY_SECONDS = 15.0

IDLE_SECONDS = 600.0
# Pause after listing: changes come in bursts.
SETTLE_SECONDS = 0.05
# The same where the server announced a change and lists what it listed before: some announce one each time.
UNCHANGED_SECONDS = 1.0

# Pause before lists are requested again after a failure, or a stream of changes is opened again.
AGAIN_SECONDS = 15.0

# Least time for which a list is not asked for again, whatever its server says.
FRESH_SECONDS = 300.0

# Connections to one server, or processes of it, at once.
CONNECTIONS_LIMIT = 64

_UPDATED = "notifications/resources/updated"
_CHANGED = {f"notifications/{what}/list_changed": what for what in LISTS}

log = logging.getLogger(__name__)


class ConnectionKey(NamedTuple):
    """The users of a connection, and its number among theirs.

    `handshake` mirrors a handshake-era client at a server that is modern, too; otherwise the connection has the newest
    era of the server, or that of the settings. `ui` declares to a handshake-era server that the client shows pages.
    """

    principal: str
    chat: str
    handshake: bool = False
    ui: bool = True
    number: int = 0


class ServerListing(Value):
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

    A server that speaks both eras is spoken to in the era of each client, so that it can ask what it could ask without
    a gateway. Definitions are listed, and resources subscribed to, on the connection of the first client that called.
    """

    def __init__(
        self,
        spec: Spec,
        store: Upstreams,
        pins: Pins,
        identity: ClientIdentity,
        changed: Callable[[Collection[str]], None],
        others: Callable[[], Collection[str]] = tuple,
        environment: Mapping[str, str] = os.environ,
        logins: Logins | None = None,
        settings: Settings | None = None,
    ) -> None:
        self.spec = spec
        self.tools: tuple[Tool, ...] = ()
        self.current: dict[str, Tool] = {}
        self.prompts: tuple[dict[str, Any], ...] = ()
        self.templates: tuple[dict[str, Any], ...] = ()
        self.instructions: str | None = None
        self.problems: tuple[GatewayError, ...] = ()
        self.asks = False
        self.last_error: str | None = None
        self._store = store
        self._pins = pins
        self._identity = identity
        self._changed = changed
        self._others = others
        self._access = UpstreamCredentials(spec, environment, logins, settings)
        self._era: str | None = None
        self._mirrors = False
        self._modern_only = False
        self._has_pages = False
        self._main = ConnectionKey("" if spec.settings.sharing == "all" else LOCAL, "")
        self._main_called = False
        self._listing: ServerListing | None = None
        self._connections: dict[ConnectionKey, UpstreamConnection] = {}
        self._stale: WeakKeyDictionary[McpClient, asyncio.Event] = WeakKeyDictionary()
        self._tasks = TaskSet()
        self.subscriptions = Subscriptions(lambda: self._connection(self._main))
        self._applying = asyncio.Lock()
        self._attempted = asyncio.Event()
        self._listed = asyncio.Event()
        self._keeps_connected = False
        self._restarted = False
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
    def needs_listing(self) -> bool:
        """True if its definitions were never listed, or not since somebody restarted it."""
        return self._listing is None or (self._restarted and not self._listed.is_set())

    def expect_change(self) -> None:
        """Find its era and definitions anew: somebody restarted it, maybe to run another version."""
        self._restarted = True
        self._set_era(None)

    @property
    def era(self) -> str | None:
        """The newest protocol version that it speaks."""
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
        now = self.current.get(tool.id)
        if now is not tool and (now is None or now.withheld is not None):
            reason = "the server no longer lists it" if now is None else now.withheld
            raise Forbidden(f"{tool.id} has changed: {reason}", code="TOOL_DISABLED")

    async def load_cached(self) -> None:
        """Offer the definitions of its last listing, by any process."""
        kept = await self._store.load_listing(self.spec.name)
        self._set_era(kept.era)
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

    def account_for(self, principal: str) -> LoginAccount | None:
        """Return the account with which calls of a principal reach the server; None if a login would not help."""
        account = self._access.account(LOCAL if self.spec.settings.sharing == "all" else principal)
        return None if account is None or account.unattended else account

    def connection_for(self, call: Call) -> UpstreamConnection:
        """The connection of this call; `sharing` says who shares one. A connection that waits for user input is
        passed over for another."""
        sharing = self.spec.settings.sharing
        handshake, ui = self._face_for(call.client)
        principal, chat = "" if sharing == "all" else call.caller.principal, call.chat if sharing == "chat" else ""
        # Each call makes one: in this way without a function of Python.
        key = tuple.__new__(ConnectionKey, (principal, chat, handshake, ui, 0))
        if key == self._main:
            self._main_called = True
        elif key[:2] == self._main[:2]:
            self._move_main(key)
            self._main_called = self._main_called or key == self._main
        connection = self._connections.get(key) or self._connection(key)
        while connection.awaiting_input:
            key = key._replace(number=key.number + 1)
            connection = self._connection(key)
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

    def _face_for(self, client: ClientInfo | None) -> tuple[bool, bool]:
        """The `handshake` and `ui` of a client's connection: those of the main one where they make no difference."""
        _, _, handshake, ui, _ = self._main
        if client is None:
            return handshake, ui
        if self._mirrors:
            handshake = not client.modern
        if self._has_pages and (handshake or self._era not in MODERN_PROTOCOL_VERSIONS):
            ui = supports_apps(client.capabilities)
        return handshake, ui

    def _set_era(self, version: str | None) -> None:
        self._era = version
        can_mirror = self.spec.settings.protocol == "auto" and not self._modern_only
        self._mirrors = can_mirror and version in MODERN_PROTOCOL_VERSIONS

    def _move_main(self, key: ConnectionKey) -> None:
        """List definitions on this connection, unless the one they are listed on has callers: a program's state, such
        as tools that it adds or resources that change, is known only to the process that is called."""
        main = self._connections.get(self._main)
        if main is not None and (main.used or (main.connected and self._main_called)):
            return
        if main is not None:
            del self._connections[self._main]
            self._tasks.start(main.close())
        self._main, self._main_called = key, False
        if key in self._connections and (link := self._connections[key].client) is not None:
            self._start_listing(link)

    def _connection(self, key: ConnectionKey) -> UpstreamConnection:
        connection = self._connections.get(key)
        if connection is not None:
            return connection
        if self._closed:
            raise Unavailable(f"the upstream server {self.spec.name!r} was removed", code="UPSTREAM_UNAVAILABLE")
        if key != self._main:
            self._make_room()
        is_kept = not self.spec.settings.lazy and key[:2] == self._main[:2] and not key.number
        connection = self._connections[key] = UpstreamConnection(
            self.spec.name,
            partial(self._open, key),
            partial(self._on_opened, key),
            None if is_kept else IDLE_SECONDS,
            self._forget,
            partial(self._access.has_changed, key.principal or LOCAL),
        )
        return connection

    def _on_opened(self, key: ConnectionKey, link: McpClient) -> None:
        if link.transport.isolates_requests and self._listing is not None:
            link.record_headers(self._listing.tools)
        if key == self._main:
            self._start_listing(link)
        elif key[:2] == self._main[:2] and not key.number:
            self._follow_changes(link)  # clients of the other era may change what the server has

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
        """Connect until the definitions are listed, and stay connected unless the server is lazy."""
        try:
            while self.needs_listing or not self.spec.settings.lazy:
                connection = self._connection(self._main)  # another one after `_move_main`
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

    async def _open(self, key: ConnectionKey) -> McpClient:
        try:
            identity = self._identity if key.ui else _without_extensions(self._identity)
            is_mirroring = key.handshake and self._mirrors
            endpoint = self._access.endpoint(key.principal or LOCAL)
            link = await (self._open_mirroring if is_mirroring else self._open_newest)(endpoint, identity)
        except (GatewayError, RpcError) as error:
            # The login that another person lacks is no failure of the server.
            if key[:2] == self._main[:2] or not isinstance(error, Unauthorized):
                await self._store.record_failure(self.spec.name, error.message)
            raise
        link.shared = self.spec.settings.sharing == "all"
        return link

    async def _open_newest(self, endpoint: Endpoint, identity: ClientIdentity) -> McpClient:
        link = await open_newest(self.spec, endpoint, identity, self._era)
        self._set_era(link.protocol_version)
        return link

    async def _open_mirroring(self, endpoint: Endpoint, identity: ClientIdentity) -> McpClient:
        """Open a connection in the handshake era of a client. A server that turns out to be modern only is spoken to
        in the modern era by everybody from then on."""
        try:
            link = await open_client(
                endpoint, identity=identity, timeout=START_SECONDS, version=LATEST_HANDSHAKE_VERSION
            )
        except (RpcError, InvalidResponse, ConnectionLost):
            link = await self._open_newest(endpoint, identity)
        if link.modern:
            self._modern_only, self._mirrors = True, False
        return link

    def _start_listing(self, link: McpClient) -> None:
        """List definitions on the main connection, now and whenever they change."""
        self._listed.clear()
        (self._stale.get(link) or self._follow_changes(link)).set()
        self.subscriptions.resubscribe(link)

    def _follow_changes(self, link: McpClient) -> asyncio.Event:
        """List definitions whenever the returned event is set, or the server says that they have changed."""
        stale = self._stale[link] = asyncio.Event()
        announced: set[str] = set()

        def on_notification(method: str, params: Mapping[str, Any]) -> None:
            if (what := _CHANGED.get(method)) is not None:
                announced.add(what)
                stale.set()
            elif method == _UPDATED:
                self.subscriptions.notify(params.get("uri"))

        link.on_notification = on_notification
        self._tasks.start(self._list_while_stale(link, stale, announced))
        if link.modern and _announces(link):
            self._tasks.start(self._listen(link, stale))
        return stale

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

    async def _list_while_stale(self, link: McpClient, stale: asyncio.Event, announced: set[str]) -> None:
        """List all definitions: at first, once for any number of changes announced meanwhile, and when a list is older
        than its server says. What is announced is passed on, also where the definitions are the same as before:
        resources are not listed here, and a list can change and change back."""
        fresh_seconds: float | None = None
        while link.lost is None:
            await _wait_for(link, stale, fresh_seconds and max(fresh_seconds, FRESH_SECONDS))
            stale.clear()
            offered, pause = self.current, SETTLE_SECONDS
            try:
                fresh_seconds = await self._list_definitions(link)
            except (GatewayError, RpcError) as error:
                if link.lost is None:
                    log.warning("upstream %s did not list its definitions: %s", self.spec.name, error)
                    await _sleep(link, AGAIN_SECONDS)
                    stale.set()
            else:
                if announced:
                    pause = UNCHANGED_SECONDS if self.current is offered else SETTLE_SECONDS
                    self._changed(tuple(announced))
                    announced.clear()
            self._attempted.set()
            await _sleep(link, pause)

    async def _list_definitions(self, link: McpClient) -> float | None:
        """List and apply the definitions. Return the seconds after which to list them again: those that a server says
        which does not announce changes."""
        try:
            async with asyncio.timeout(LIST_SECONDS):
                lists = [await fetch_list(link, what) for what in LISTS]
        except TimeoutError:
            raise Timeout(f"listing its definitions took longer than {LIST_SECONDS:g} s") from None
        tools, prompts, templates = [fetched.entries for fetched in lists]
        for connection in self._connections.values():
            if (other := connection.client) is not None and other.transport.isolates_requests:
                other.record_headers(tools)
        received = ServerListing(tools, prompts, templates, link.instructions)
        await self._store.save_listing(
            self.spec.name,
            era=self._era,
            tools=received.tools,
            prompts=received.prompts,
            templates=received.templates,
            instructions=received.instructions or "",
        )
        await self._apply(received)
        self._listed.set()
        # Asking a process again would keep it from ending when it is idle.
        if not link.modern or _announces(link) or not link.transport.isolates_requests:
            return None
        return min((fetched.fresh_seconds for fetched in lists if fetched.fresh_seconds is not None), default=None)

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
            load_header_rules(received.tools)
            listing = await asyncio.to_thread(list_tools, self.spec.terms, received.tools, verdict)
            faults = [Invalid(f"{self.spec.name}: {each.message}", code=each.code) for each in definitions.problems]
            # Of a tool without a valid name both say the same.
            self._listing = received
            self.problems = tuple({each.message: each for each in (*faults, *listing.problems)}.values())
            # Kept: a server may list its pages only to a client that shows them.
            self._has_pages = self._has_pages or any(map(has_page, received.tools))
            prompts = tuple(each for each in received.prompts if _is_offered(verdict, Kind.PROMPT, each))
            templates = tuple(each for each in received.templates if _is_offered(verdict, Kind.TEMPLATE, each))
            instructions = received.instructions if verdict.is_offered(Kind.INSTRUCTIONS, "instructions") else None
            tools = tuple(_with_pages(self.spec, tool) for tool in listing.tools)
            offered = (tools, prompts, templates, instructions)
            if offered != (self.tools, self.prompts, self.templates, self.instructions):
                self.tools, self.prompts, self.templates, self.instructions = offered
                self.current = {tool.id: tool for tool in tools}
                self._changed(BESIDE_TOOLS)


async def open_newest(
    spec: Spec,
    endpoint: Endpoint,
    identity: ClientIdentity,
    known: str | None,
    step: Step = ignore_step,
    timeout: float = START_SECONDS,
) -> McpClient:
    """Open a connection in the newest era of a server, or in that of its settings. `known` is its version of the last
    time."""
    protocol = spec.settings.protocol
    version = {"modern": LATEST_MODERN_VERSION, "handshake": LATEST_HANDSHAKE_VERSION}.get(protocol, known)
    try:
        link = await open_client(endpoint, identity=identity, timeout=timeout, version=version, step=step)
    except RpcError as error:
        if protocol == "auto":
            raise
        reason = error.message
    else:
        if protocol == "auto" or link.modern == (protocol == "modern"):
            return link
        await link.close()
        reason = f"it speaks {link.protocol_version}"
    raise Unavailable(
        f"{reason}; its settings say 'protocol: {protocol}', set protocol to auto",
        code="UPSTREAM_UNAVAILABLE",
        server=spec.name,
    )


def _with_pages(spec: Spec, tool: Tool) -> Tool:
    """The tool with the public URI of its page, if it has one."""
    if tool.wire is None or (wire := public_meta(prefix_of(spec), tool.wire)) is tool.wire:
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


def _without_extensions(identity: ClientIdentity) -> ClientIdentity:
    return replace(
        identity, capabilities={key: each for key, each in identity.capabilities.items() if key != "extensions"}
    )


def _announces(link: McpClient) -> bool:
    return any((link.capabilities.get(what) or {}).get("listChanged") for what in LISTS)


async def _wait_for(link: McpClient, event: asyncio.Event, seconds: float | None) -> None:
    """Wait for the event, the end of the client, or some seconds."""
    waiting = asyncio.ensure_future(event.wait())
    ending = asyncio.ensure_future(link.wait_closed())
    try:
        await asyncio.wait([waiting, ending], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
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
