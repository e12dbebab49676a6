"""Health of the installation: what works on this machine, and how to repair the rest."""

from __future__ import annotations

import shutil
import sqlite3
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gateway import __version__
from gateway.admin.client_files import find_entry
from gateway.admin.clients import CLIENTS, make_snippets, serve_command
from gateway.admin.health_monitor import HealthCheck, ProblemKey
from gateway.admin.token_costs import find_long_descriptions
from gateway.admin.upstream_setup import ProbeResult, UpstreamSetup, load_setup, probe_all
from gateway.catalog import Catalog
from gateway.config import Settings
from gateway.db import DATABASE_FILE
from gateway.db.health_events import HealthEvent
from gateway.discovery import DESCRIPTION_LIMIT
from gateway.errors import GatewayError
from gateway.mcp_client.connect import Step, ignore_step
from gateway.sandbox.cgroups import find_cgroups
from gateway.sandbox.detect import FIXES, survey
from gateway.sandbox.monty import is_installed
from gateway.sandbox.run_user import account
from gateway.sources.upstreams.spec import Spec
from gateway.sources.upstreams.tools import HELD
from gateway.text import visible
from gateway.workspace import Openat2, choose_opener
from gateway.workspace.gc import sizes

if TYPE_CHECKING:
    from gateway.gateway import Gateway

# How long a server may take to start and to answer. A program that takes longer is tried with `toolgate upstream test`.
ANSWER_SECONDS = 10.0

_WAL_RESET_FIXED = (3, 51, 3)
_LOW_SPACE_MEBIBYTES = 512
# Tools named for their long descriptions.
_LONG_DESCRIPTIONS = 5
# Chats named for their size.
_LARGEST_CHATS = 3
# The gateway's entry in a client's JSON, TOML or YAML.


async def check_machine(settings: Settings, file: Path | None = None) -> list[HealthCheck]:
    """Check what needs no open gateway: versions, sandbox, the settings file they came from and data directory."""
    return [*_check_versions(), *await _check_sandbox(settings), *_check_files(settings, file)]


async def check_health(gateway: Gateway, file: Path | None = None, probe: Step | None = None) -> list[HealthCheck]:
    """Check the machine and the gateway, and name what other gateways on the data directory notice: the list that
    `doctor`, REST and the console show. With `probe`, which is told each step, connect to the upstream servers too."""
    parts = [part for part in await check_gateway(gateway) if part.subject != "sandbox"]  # the machine's says more
    checks = [*await check_machine(gateway.settings, file), *parts]
    if probe is not None:
        checks = [check for check in checks if check.subject != "upstream"] + await check_upstreams(gateway, probe)
    return checks


async def check_gateway(gateway: Gateway) -> list[HealthCheck]:
    """Check the parts of a gateway and its tools, and name what other gateways on the data directory notice."""
    parts = await gateway.health.check()
    if any(part.subject in ("gateway", "store") and part.state == "fail" for part in parts):
        return parts  # nothing more can be asked of the store
    events = [event for event in await gateway.health.list_events() if event.ended_at is None]
    began = {(event.subject, event.name): event for event in events}
    known = [replace(part, since=_began(part, began)) for part in parts]
    noticed = {part.key for part in parts if part.state != "ok"}
    elsewhere = [
        HealthCheck(event.subject, "note", f"another process reports: {event.message}", event.name, event.began_at)
        for key, event in began.items()
        if key not in noticed
    ]
    return [*known, *elsewhere, *await _check_tools(gateway)]


def _began(part: HealthCheck, events: Mapping[ProblemKey, HealthEvent]) -> str | None:
    event = events.get(part.key) if part.state != "ok" else None
    return event.began_at if event is not None else part.since


async def _check_tools(gateway: Gateway) -> list[HealthCheck]:
    # `check_upstreams` counts what waits for review.
    problems = [str(problem) for problem in gateway.catalog.problems if problem.code != HELD]
    problems += [each.message for each in await gateway.builtins.problems()]
    categories = gateway.categories.values()
    enabled = ", ".join(category.name for category in categories if category.enabled)
    return [
        HealthCheck("tools", "ok", f"{len(gateway.catalog)} on; categories: {enabled}"),
        *(HealthCheck("tools", "note", problem) for problem in problems),
        *_check_descriptions(gateway.catalog),
        *_check_code_mode(gateway.settings),
    ]


def _check_code_mode(settings: Settings) -> Iterator[HealthCheck]:
    modes = [settings.tools.mode, *(profile.mode for profile in settings.profiles.values())]
    if "code" in modes and not is_installed():
        advice = "the mode 'code' has no run_tools without Monty: pip install 'toolgate-mcp[monty]'"
        yield HealthCheck("tools", "note", advice)


def _check_descriptions(catalog: Catalog) -> Iterator[HealthCheck]:
    long = [entry.name for entry in find_long_descriptions(catalog)]
    if long:
        shown = ", ".join(long[:_LONG_DESCRIPTIONS]) + (" and others" if len(long) > _LONG_DESCRIPTIONS else "")
        tools = "1 tool has a description" if len(long) == 1 else f"{len(long)} tools have descriptions"
        advice = f"{tools} over {DESCRIPTION_LIMIT} characters, which some clients cut; shorten them with overrides"
        yield HealthCheck("tools", "note", f"{advice}: {shown}")


async def check_upstreams(
    gateway: Gateway, step: Step = ignore_step, timeout: float = ANSWER_SECONDS
) -> list[HealthCheck]:
    """Probe the servers that are on; those of toolsets are reported as they were when they last answered."""
    setup = await load_setup(gateway)
    enabled = [spec for spec in setup.specs.values() if spec.settings.enabled]
    own = gateway.upstreams.own
    results = await probe_all(setup, [spec for spec in enabled if spec.name in own], step, timeout)
    return [
        *[check for name, result in results async for check in _check_probe(setup, name, result)],
        *[await _check_unstarted(setup, spec) for spec in enabled if spec.name not in own],
        *_check_secret_files(gateway),
    ]


def check_storage(settings: Settings) -> HealthCheck:
    """Measure the chats' versions and the database, and name the largest chats."""
    directory = settings.data_dir
    chats = [path.name for path in (directory / "chats").glob("*") if path.is_dir()]
    measured, complete = sizes(directory / "chats")
    database = sum(path.stat().st_size for path in directory.glob(f"{DATABASE_FILE}*"))
    total = sum(size.bytes for size in measured.values())
    largest = sorted(measured, key=lambda chat: measured[chat].bytes, reverse=True)[:_LARGEST_CHATS]
    parts = [
        f"{len(chats)} chats",
        f"{'' if complete else 'more than '}{_mebibytes(total)} of versions",
        f"{_mebibytes(database)} of database",
    ]
    if largest:
        parts.append("largest: " + ", ".join(f"{chat} ({_mebibytes(measured[chat].bytes)})" for chat in largest))
    return HealthCheck("kept", "ok", "; ".join(parts))


def check_clients() -> Iterator[HealthCheck]:
    """Check which installed clients have an entry for this gateway."""
    for snippet in make_snippets(serve_command(sys.executable), None):
        title = CLIENTS[snippet.client].title
        if not snippet.folder.is_dir():
            continue
        try:
            there = find_entry(snippet.file, snippet) is not None
        except GatewayError as refusal:
            yield HealthCheck("client", "note", f"{title} is here, but its settings are broken: {refusal.message}")
            continue
        advice = "has toolgate" if there else f"is here; add toolgate with: toolgate client install {snippet.client}"
        yield HealthCheck("client", "ok" if there else "note", f"{title} {advice}")


def _check_versions() -> Iterator[HealthCheck]:
    yield HealthCheck("toolgate", "ok", f"{__version__} on Python {sys.version.split()[0]}, {sys.platform}")
    fixed = sqlite3.sqlite_version_info >= _WAL_RESET_FIXED
    note = "" if fixed else "; a lock around writes avoids its WAL-reset bug"
    yield HealthCheck("sqlite", "ok", f"{sqlite3.sqlite_version}{note}")
    guard = "openat2" if isinstance(choose_opener(), Openat2) else "a path walk that follows no symbolic links"
    yield HealthCheck("paths", "ok", f"workspace paths are checked with {guard}")
    if shutil.which("rg"):
        yield HealthCheck("search", "ok", "search_code uses ripgrep")
    else:
        advice = "search_code works, and is several times faster with ripgrep (package 'ripgrep')"
        yield HealthCheck("search", "note", advice)


async def _check_sandbox(settings: Settings) -> list[HealthCheck]:
    found = await survey()
    tried = [
        HealthCheck("sandbox", "note", f"{each.backend} does not work here: {each.reason}") for each in found.tried
    ]
    if found.sandbox is None:
        advice = "toolsets cannot run: this machine offers no sandbox; " + "; ".join(FIXES)
        return [*tried, HealthCheck("sandbox", "fail", advice), *_check_monty(settings)]
    name, user = found.sandbox.name, account()
    guard = "the kernel (cgroups)" if find_cgroups() else "a watchdog"
    message = f"toolsets run in {name}{f' as user {user.uid}' if user else ''}; {guard} enforces their limits"
    weak = [HealthCheck("sandbox", "note", f"{name}: {weakness}") for weakness in found.sandbox.weaknesses]
    return [*tried, HealthCheck("sandbox", "ok", message), *weak, *_check_network(settings, name)]


def _check_monty(settings: Settings) -> Iterator[HealthCheck]:
    if is_installed() and not settings.sandbox.allow_unsandboxed:
        yield HealthCheck("sandbox", "note", "run_code uses monty: a subset of Python, without packages and bash")


def _check_network(settings: Settings, sandbox: str) -> Iterator[HealthCheck]:
    if not settings.sandbox.network:
        return
    if sandbox != "bwrap":
        advice = f"sandbox.network is on, but {sandbox} cannot limit a network: programs that need it are refused"
        yield HealthCheck("sandbox", "fail", advice)
        return
    hosts = settings.sandbox.allowed_hosts
    where = (
        ", ".join(hosts) if hosts else "every public host; name some under sandbox.allowed_hosts to allow only those"
    )
    yield HealthCheck("sandbox", "ok", f"programs with a network reach {where}")


def _check_files(settings: Settings, file: Path | None) -> Iterator[HealthCheck]:
    yield HealthCheck("settings", "ok", str(file.resolve()) if file else "no toolgate.yaml; the defaults apply")
    directory = settings.data_dir
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.NamedTemporaryFile(dir=directory, prefix=".doctor-"):
            pass
    except OSError as error:
        yield HealthCheck("data", "fail", f"{directory}: {error.strerror}; choose another with --data-dir or data_dir")
        return
    free = shutil.disk_usage(directory).free // 2**20
    low = free < _LOW_SPACE_MEBIBYTES
    advice = "; free some space" if low else ""
    amount = f"{free} MiB" if free < 1024 else f"{free / 1024:.1f} GiB"
    yield HealthCheck("data", "fail" if low else "ok", f"{directory}, {amount} free{advice}")
    yield HealthCheck("logs", "ok", f"{directory / 'logs'}: stderr of servers; `serve --log-file` logs there, too")
    if directory.stat().st_mode & 0o077:
        yield HealthCheck("data", "note", f"other users can read {directory}; chmod 700 prevents that")


async def _check_unstarted(setup: UpstreamSetup, spec: Spec) -> HealthCheck:
    listing = await setup.gateway.upstreams.store.load_listing(spec.name)
    advice = f"to connect now: toolgate upstream test {spec.name}"
    if listing.error is not None:
        reason = visible(listing.error)
        message = f"{spec.name} of {spec.origin} did not answer: {reason}; {advice}"
        return HealthCheck("upstream", "fail", message, spec.name, listing.error_at)
    seen = f"{len(listing.tools or ())} tools when it last answered" if listing.seen_at else "never connected"
    message = f"{spec.name} of {spec.origin} is not started here; {seen}; {advice}"
    return HealthCheck("upstream", "ok", message, spec.name)


async def _check_probe(
    setup: UpstreamSetup, name: str, result: ProbeResult | GatewayError
) -> AsyncIterator[HealthCheck]:
    if isinstance(result, GatewayError):
        since = (await setup.gateway.upstreams.store.load_listing(name)).error_at
        advice = f"{result.message}; fix that, then run: toolgate upstream test {name}"
        yield HealthCheck("upstream", "fail", advice, name, since)
        return
    offered = sum(tool.state == "offered" for tool in result.tools)
    message = f"{name} answers ({result.title}, protocol {result.era}); {offered} of {len(result.tools)} tools on"
    yield HealthCheck("upstream", "ok", message, name)
    if result.waiting:
        advice = f"{result.waiting} of {name} waiting for review; see: toolgate upstream review {name}"
        yield HealthCheck("upstream", "note", advice, name)


def _check_secret_files(gateway: Gateway) -> Iterator[HealthCheck]:
    registry = gateway.upstreams
    for path in (registry.secrets.path, *registry.logins.directory.glob("*.json")):
        if path.exists() and path.stat().st_mode & 0o077:
            yield HealthCheck("secrets", "fail", f"others can read {path}; chmod 600 prevents that")


def _mebibytes(count: int) -> str:
    return f"{count / 2**20:.1f} MiB"
