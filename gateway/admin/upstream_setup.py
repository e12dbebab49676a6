"""Every upstream server that is set up: in the settings, by hand or by a toolset, on or off."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from gateway.bundles.field_types import RESERVED
from gateway.bundles.installed import InstalledToolset
from gateway.config import UpstreamSettings
from gateway.db.pins import Pin
from gateway.errors import Conflict, GatewayError, Invalid, NotFound, Unavailable
from gateway.mcp_client import ConnectionLost, ConnectTimeout, McpClient, Unauthorized
from gateway.mcp_client.connect import Step, ignore_step
from gateway.names import did_you_mean
from gateway.oauth.store import LoginAccount
from gateway.protocol import MODERN_PROTOCOL_VERSIONS
from gateway.protocol.jsonrpc import RpcError
from gateway.runtime.package_errors import find_package_error, quote_cause
from gateway.secrets import KNOWN
from gateway.sources.upstreams.client_configs import NAME
from gateway.sources.upstreams.definitions import Definition, Key, Kind, define_all, fetch_list
from gateway.sources.upstreams.poisoning import Finding, find_suspicions
from gateway.sources.upstreams.registry import CLIENT_IDENTITY
from gateway.sources.upstreams.secret_store import UpstreamCredentials, missing
from gateway.sources.upstreams.spec import ADDED, SETTINGS, Spec
from gateway.sources.upstreams.tools import HELD
from gateway.sources.upstreams.upstream import LIST_SECONDS, START_SECONDS, Upstream, open_newest
from gateway.text import visible
from gateway.tools import Tool
from gateway.value import Value

if TYPE_CHECKING:
    from gateway.gateway import Gateway


class UpstreamSetup(Value):
    """Every server that is set up, on or off. `held` has the servers of toolsets that wait for a person's consent,
    `given` the secrets of a server that is not stored yet."""

    gateway: Gateway
    specs: Mapping[str, Spec]
    toolsets: frozenset[str]
    held: Mapping[str, InstalledToolset]
    given: Mapping[str, str] | None = None

    def get(self, name: str) -> Spec:
        if name not in self.specs:
            if name in self.held and (problem := self.held[name].problem):
                raise problem
            hint = did_you_mean(name, self.specs) or "; see: toolgate upstream list"
            raise NotFound(f"there is no upstream {name!r}{hint}", code="UNKNOWN_UPSTREAM")
        return self.specs[name]

    def get_added(self, name: str) -> Spec:
        """Return a server that can be changed here; refused when it is set up elsewhere."""
        spec = self.get(name)
        if spec.origin != ADDED:
            raise Conflict(f"{name!r} is set up in {spec.origin}; change it there", code="SET_UP_ELSEWHERE")
        return spec

    def environment(self, spec: Spec) -> Mapping[str, str]:
        """The values of `${VARIABLE}` for a server. Secrets of an earlier server of its name are not for a new one."""
        if self.given is not None:
            return {**os.environ, **self.given}
        return self.gateway.upstreams.secrets.environment(spec.name) if spec.origin == ADDED else os.environ

    def access(self, spec: Spec) -> UpstreamCredentials:
        """The endpoint of a server and the login for it."""
        return UpstreamCredentials(spec, self.environment(spec), self.gateway.upstreams.logins, self.gateway.settings)

    def account(self, name: str) -> LoginAccount | None:
        """The account of a login; None where it cannot be determined, which must not prevent a logout."""
        try:
            return self.access(self.specs[name]).account() if name in self.specs else None
        except GatewayError:
            return None

    def require_free(self, name: str) -> None:
        """Refuse a name that a new server cannot have."""
        if not NAME.fullmatch(name):
            raise Invalid(
                f"{name[:80]!r} cannot be the name of an upstream: use at most 64 letters, digits, - and _, and begin "
                "with a letter or digit",
                code="INVALID_NAME",
            )
        if name.lower() in RESERVED:
            raise Invalid(f"{name!r} is reserved; choose another name", code="INVALID_NAME")
        if name in self.specs:
            origin = self.specs[name].origin
            fix = f"remove it first: toolgate upstream remove {name}" if origin == ADDED else "choose another name"
            place = "" if origin == ADDED else f" in {origin}"
            raise Conflict(f"upstream {name!r} already exists{place}; {fix}", code="UPSTREAM_EXISTS")
        if name in self.held:
            fix = f"choose another name, or: toolgate toolset uninstall {self.held[name].id}"
            raise Conflict(f"a toolset brings an upstream {name!r}; {fix}", code="UPSTREAM_EXISTS")
        if name in self.toolsets:
            raise Conflict(
                f"{name!r} is the id of a toolset, and their tools would share names; choose another name",
                code="NAME_TAKEN",
            )


async def load_setup(gateway: Gateway) -> UpstreamSetup:
    """Load every server that is set up, also those that are off."""
    registry = gateway.upstreams
    toolsets = await gateway.installed_toolsets()
    specs = {spec.name: spec for spec in await registry.specs()}
    for name, settings in gateway.settings.upstreams.items():
        specs.setdefault(name, Spec.configured(name, settings, SETTINGS, gateway.settings.data_dir))
    _, rows = await registry.store.load()
    for row in rows:
        if row.name not in specs:
            settings = _read_settings(row.settings, row.enabled)
            specs[row.name] = Spec.configured(row.name, settings, ADDED, gateway.settings.data_dir)
    held = {server.id: toolset for toolset in toolsets if toolset.enabled for server in toolset.pending_servers}
    return UpstreamSetup(
        gateway,
        dict(sorted(specs.items())),
        frozenset(toolset.id for toolset in toolsets),
        {name: toolset for name, toolset in held.items() if name not in specs},
    )


def _read_settings(settings: Mapping[str, object], enabled: bool) -> UpstreamSettings:
    try:
        return UpstreamSettings.model_validate({**settings, "enabled": enabled})
    except ValidationError:  # written by another version; it can still be shown and removed
        return UpstreamSettings(command="unreadable", enabled=False)


_CONCURRENT_PROBES = 8
# Remembered lists, with the capability that announces each.
_LISTS = {"tools": "tools", "prompts": "prompts", "templates": "resources"}


class ToolStatus(Value):
    """One tool: `offered`, `waits` for a person, `rejected` or `left out`; and the reason unless it is offered."""

    tool: Tool
    state: str
    reason: str | None

    @property
    def name(self) -> str:
        return self.tool.id.partition(":")[2]

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "state": self.state,
            "reason": self.reason,
            "description": self.tool.description,
            "category": self.tool.category,
            "permission": self.tool.permission.value,
        }


class ProbeResult(Value):
    """The answer of a server to a probe. `waiting` counts definitions that wait for review."""

    name: str
    era: str
    server: Mapping[str, Any]
    connect_ms: float
    list_ms: float
    tools: tuple[ToolStatus, ...]
    findings: Mapping[Key, list[Finding]]
    waiting: int
    problems: tuple[str, ...]

    @property
    def title(self) -> str:
        return visible(" ".join(str(self.server[key]) for key in ("name", "version") if self.server.get(key)))

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "era": self.era,
            "server": {key: self.server.get(key) for key in ("name", "version")},
            "connect_ms": round(self.connect_ms, 1),
            "list_ms": round(self.list_ms, 1),
            "tools": [tool.to_dict() for tool in self.tools],
            "findings": [
                {"kind": key.kind.value, "name": key.name, **asdict(finding), "severity": finding.severity.value}
                for key, findings in self.findings.items()
                for finding in findings
            ],
            "waiting": self.waiting,
            "problems": list(self.problems),
        }


async def probe_upstream(
    setup: UpstreamSetup, spec: Spec, step: Step = ignore_step, timeout: float = START_SECONDS
) -> ProbeResult:
    """Connect to a server and list what it has; refused with the reason when it does not answer in time. Its lists are
    remembered and pinned, as when the gateway itself connects. `step` is told what is done."""
    require_variables(setup, spec)
    store = setup.gateway.upstreams.store
    access = setup.access(spec)
    known = (await store.load_listing(spec.name)).era
    era = known if known in MODERN_PROTOCOL_VERSIONS else None  # an old server may have been updated
    try:
        started = time.perf_counter()
        link = await open_newest(
            spec, access.endpoint(), CLIENT_IDENTITY, era, lambda text: step(f"{spec.name}: {text}"), timeout
        )
        step(f"{spec.name}: listing its tools")
        connected = time.perf_counter()
        try:
            async with asyncio.timeout(LIST_SECONDS):
                lists = {name: (await fetch_list(link, capability)).entries for name, capability in _LISTS.items()}
            answered = time.perf_counter()
        finally:
            await link.close()
        await store.save_listing(spec.name, era=link.protocol_version, instructions=link.instructions or "", **lists)
    except (GatewayError, RpcError, TimeoutError) as error:
        await store.record_failure(spec.name, _reason(error))
        raise _no_answer(spec, error) from error
    finally:
        await access.close()
    return await _build_result(setup, spec, link, connected - started, answered - connected)


async def probe_all(
    setup: UpstreamSetup, specs: Iterable[Spec], step: Step = ignore_step, timeout: float = START_SECONDS
) -> list[tuple[str, ProbeResult | GatewayError]]:
    """Probe servers, a few at a time; each name with the result or the reason why it did not answer."""
    slots = asyncio.Semaphore(_CONCURRENT_PROBES)

    async def probe(spec: Spec) -> tuple[str, ProbeResult | GatewayError]:
        async with slots:
            try:
                return spec.name, await probe_upstream(setup, spec, step, timeout)
            except GatewayError as error:
                return spec.name, error

    return await asyncio.gather(*map(probe, specs))


def require_variables(setup: UpstreamSetup, spec: Spec) -> None:
    """Refuse to start a server whose variables are not all set."""
    if names := missing(spec.settings.model_dump(), setup.environment(spec)):
        store = f", or store a value with: toolgate upstream secret {spec.name} {names[0]}"
        raise Invalid(
            f"{spec.name} needs {', '.join(names)}: set {'it' if len(names) == 1 else 'them'} in the environment"
            f"{store if spec.origin == ADDED else ''}",
            code="MISSING_VARIABLE",
        )


def tool_statuses(gateway: Gateway, tools: tuple[Tool, ...], pins: list[Pin]) -> tuple[ToolStatus, ...]:
    states = {pin.name: pin.state for pin in pins if pin.kind == Kind.TOOL.value}
    return tuple(_tool_status(gateway, tool, states.get(tool.id.partition(":")[2])) for tool in tools)


def _tool_status(gateway: Gateway, tool: Tool, pin_state: str | None) -> ToolStatus:
    category = gateway.categories.get(tool.category) or gateway.settings.category(tool.category)
    if tool.withheld is not None:
        state = {"held": "waits", "rejected": "rejected"}.get(pin_state or "", "left out")
        return ToolStatus(tool, state, tool.withheld)
    if not category.enabled:
        remedy = f"turn it on with: toolgate category enable {tool.category}"
        return ToolStatus(tool, "left out", f"the category {tool.category!r} is off; {remedy}")
    if not category.permission.allows(tool.permission):
        needs = f"it needs {tool.permission.value}, but its category allows only {category.permission.value}"
        remedy = f"toolgate category set {tool.category} --level {tool.permission.value}"
        reason = f"{needs}; choose another category, or raise this one's level with: {remedy}"
        return ToolStatus(tool, "left out", reason)
    return ToolStatus(tool, "offered", None)


async def _build_result(
    setup: UpstreamSetup, spec: Spec, link: McpClient, connecting: float, listing: float
) -> ProbeResult:
    gateway, registry = setup.gateway, setup.gateway.upstreams

    def other_tools() -> set[str]:
        others = [upstream for name, upstream in registry.by_name.items() if name != spec.name]
        return {tool.id.partition(":")[2] for upstream in others for tool in upstream.tools}

    # An instance of its own: a server that is off has none in the registry.
    options = (other_tools, setup.environment(spec), registry.logins, gateway.settings)
    upstream = Upstream(spec, registry.store, registry.pins, CLIENT_IDENTITY, lambda _: None, *options)
    try:
        await upstream.load_cached()
    finally:
        await upstream.close()
    pins, listed = await registry.pins.load(spec.name), await registry.store.load_listing(spec.name)
    definitions = define_all(listed.tools or (), listed.prompts or (), listed.templates or (), listed.instructions)
    return ProbeResult(
        name=spec.name,
        era=link.protocol_version,
        server=link.server_info or {},
        connect_ms=connecting * 1000,
        list_ms=listing * 1000,
        tools=tool_statuses(gateway, upstream.tools, pins),
        findings=await asyncio.to_thread(_find_suspicious, definitions.found),
        waiting=sum(pin.state == "held" for pin in pins),
        problems=tuple(visible(str(problem)) for problem in upstream.problems if problem.code != HELD),
    )


def _find_suspicious(definitions: Mapping[Key, Definition]) -> dict[Key, list[Finding]]:
    names = {key.name for key in definitions}
    findings = {key: find_suspicions(definition.value, own=names) for key, definition in definitions.items()}
    return {key: found for key, found in findings.items() if found}


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"it did not list its definitions within {LIST_SECONDS:g} seconds"
    return error.message if isinstance(error, GatewayError) else str(error)


def _no_answer(spec: Spec, error: Exception) -> Unavailable:
    """Return the reason why a server did not answer, with the end of its program's stderr. That may be private: it is
    shown to whoever probes, and not stored."""
    stderr = error.stderr if isinstance(error, (ConnectionLost, ConnectTimeout)) else ""
    known = find_package_error(stderr)
    cause = known.text if known else f"stderr: {quote}" if (quote := quote_cause(stderr)) else ""
    if known and known.variable:
        cause += " of the gateway, or of the server: --env NAME=VALUE, 'env' in the settings"
    code = error.code if isinstance(error, GatewayError) else "UPSTREAM_UNAVAILABLE"
    login = {"login": spec.name} if isinstance(error, Unauthorized) and "login" in error.details else {}
    message = f"{spec.name} does not answer: {_reason(error)}" + (f"; {KNOWN.mask(cause)}" if cause else "")
    return Unavailable(visible(message), code=code, **login)
