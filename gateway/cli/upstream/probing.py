"""One server asked, for a person to see: how long it took, what it has, and what of it is offered."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from gateway.cli.upstream.desk import Desk
from gateway.config import Settings
from gateway.db.pins import Pin
from gateway.errors import GatewayError, Invalid, Unavailable
from gateway.mcp_client import Link, LinkLost, McpFault, Unauthorized, open_link
from gateway.secrets import KNOWN
from gateway.sources.upstreams.definitions import Definition, Key, Kind, define_all, fetch_list
from gateway.sources.upstreams.poisoning import Finding, find_suspicions
from gateway.sources.upstreams.registry import FACE
from gateway.sources.upstreams.secret_references import missing
from gateway.sources.upstreams.spec import Spec
from gateway.sources.upstreams.upstream import LIST_SECONDS, START_SECONDS
from gateway.text import visible
from gateway.tools import Tool

_LAST_WORDS = 300
_LINES = 3
_AT_ONCE = 8
# What is remembered, by the capability that promises it.
_REMEMBERED = {"tools": "tools", "prompts": "prompts", "templates": "resources"}


@dataclass(frozen=True)
class Standing:
    """One tool: whether it is `offered`, `waits` for a person, was `rejected`, or is `left out`; and why."""

    tool: Tool
    state: str
    reason: str | None

    @property
    def name(self) -> str:
        return self.tool.id.partition(":")[2]


@dataclass(frozen=True)
class Answer:
    """What a server said when it was asked."""

    name: str
    era: str
    server: Mapping[str, Any]
    connect_ms: float
    list_ms: float
    tools: tuple[Standing, ...]
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
            "tools": [standing_dict(each) for each in self.tools],
            "findings": [
                {"kind": key.kind.value, "name": key.name, **asdict(finding), "severity": finding.severity.value}
                for key, findings in self.findings.items()
                for finding in findings
            ],
            "waiting": self.waiting,
            "problems": list(self.problems),
        }


def standing_dict(standing: Standing) -> dict[str, Any]:
    tool = standing.tool
    return {
        "name": standing.name,
        "state": standing.state,
        "reason": standing.reason,
        "description": tool.description,
        "category": tool.category,
        "permission": tool.permission.value,
    }


async def probe(desk: Desk, spec: Spec) -> Answer:
    """Connect to a server and ask what it has; refused with the reason when it does not answer. What it said is
    remembered, and pinned, as when the gateway itself asks."""
    require_variables(desk, spec)
    memory = desk.board.store
    access = desk.access(spec)
    era = (await memory.recall(spec.name)).era
    try:
        started = time.perf_counter()
        link = await open_link(access.endpoint(), client=FACE, timeout=START_SECONDS, era=era)
        connected = time.perf_counter()
        try:
            async with asyncio.timeout(LIST_SECONDS):
                lists = {what: await fetch_list(link, capability) for what, capability in _REMEMBERED.items()}
            answered = time.perf_counter()
        finally:
            await link.close()
        await memory.remember(spec.name, era=link.era, instructions=link.instructions or "", **lists)
    except (GatewayError, McpFault, TimeoutError) as error:
        await memory.failed(spec.name, _reason(error))
        raise _refusal(spec, error) from error
    finally:
        await access.close()
    return await _answer(desk, spec, link, connected - started, answered - connected)


async def probe_all(desk: Desk, specs: Iterable[Spec]) -> list[tuple[Spec, Answer | GatewayError]]:
    """Each server asked, a few at a time; what one answered, or why it did not."""
    slots = asyncio.Semaphore(_AT_ONCE)

    async def tried(spec: Spec) -> tuple[Spec, Answer | GatewayError]:
        async with slots:
            try:
                return spec, await probe(desk, spec)
            except GatewayError as error:
                return spec, error

    return await asyncio.gather(*map(tried, specs))


def require_variables(desk: Desk, spec: Spec) -> None:
    """Refuse to start a server whose variables are not all set."""
    if names := missing(spec.settings.model_dump(), desk.environment(spec)):
        raise Invalid(
            f"{spec.name} needs {', '.join(names)}: set it in the environment, or keep a value with: "
            f"toolgate upstream secret {spec.name} {names[0]}",
            code="MISSING_VARIABLE",
        )


def standings(settings: Settings, tools: tuple[Tool, ...], pins: list[Pin]) -> tuple[Standing, ...]:
    states = {pin.name: pin.state for pin in pins if pin.kind == Kind.TOOL.value}
    return tuple(_standing(settings, tool, states.get(tool.id.partition(":")[2])) for tool in tools)


def _standing(settings: Settings, tool: Tool, pinned: str | None) -> Standing:
    category = settings.category(tool.category)
    if tool.withheld is not None:
        state = {"held": "waits", "rejected": "rejected"}.get(pinned or "", "left out")
        return Standing(tool, state, tool.withheld)
    if not category.enabled:
        return Standing(tool, "left out", f"the category {tool.category!r} is off")
    if not category.permission.allows(tool.permission):
        needs = f"it needs {tool.permission.value}, but its category allows only {category.permission.value}"
        reason = f"{needs}; raise categories.{tool.category}.permission, or choose another category"
        return Standing(tool, "left out", reason)
    return Standing(tool, "offered", None)


async def _answer(desk: Desk, spec: Spec, link: Link, connecting: float, listing: float) -> Answer:
    upstream = desk.upstream(spec)
    try:
        await upstream.load_cached()
    finally:
        await upstream.close()
    pins, said = await desk.board.pins.load(spec.name), await desk.board.store.recall(spec.name)
    defined = define_all(said.tools or (), said.prompts or (), said.templates or (), said.instructions)
    return Answer(
        name=spec.name,
        era=link.era,
        server=link.server_info or {},
        connect_ms=connecting * 1000,
        list_ms=listing * 1000,
        tools=standings(desk.settings, upstream.tools, pins),
        findings=await asyncio.to_thread(_findings, defined.found),
        waiting=sum(pin.state == "held" for pin in pins),
        problems=tuple(visible(str(problem)) for problem in upstream.problems),
    )


def _findings(found: Mapping[Key, Definition]) -> dict[Key, list[Finding]]:
    own = {key.name for key in found}
    looked = {key: find_suspicions(definition.value, own=own) for key, definition in found.items()}
    return {key: findings for key, findings in looked.items() if findings}


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"it did not list what it has within {LIST_SECONDS:g} seconds"
    return error.message if isinstance(error, GatewayError) else str(error)


def _refusal(spec: Spec, error: Exception) -> Unavailable:
    """Why it did not answer, with the last lines its program wrote: they may be private, and are shown to who
    sits here, but not stored."""
    words = error.stderr.strip().splitlines()[-_LINES:] if isinstance(error, LinkLost) else []
    said = f"; it said: {KNOWN.mask(' / '.join(line.strip() for line in words))[-_LAST_WORDS:]}" if words else ""
    code = error.code if isinstance(error, GatewayError) else "UPSTREAM_UNAVAILABLE"
    login = {"login": spec.name} if isinstance(error, Unauthorized) and "login" in error.details else {}
    return Unavailable(visible(f"{spec.name} does not answer: {_reason(error)}{said}"), code=code, **login)
