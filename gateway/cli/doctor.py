"""`toolgate doctor`: what works on this machine, and how to mend the rest."""

from __future__ import annotations

import logging
import shutil
import sqlite3
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Literal

import click

from gateway import __version__, config
from gateway.app import Gateway
from gateway.cli import clients
from gateway.cli.options import as_json, print_json, run, settings_options
from gateway.cli.upstream.desk import Desk, desk
from gateway.cli.upstream.probing import Answer, probe_all
from gateway.config import Settings
from gateway.errors import GatewayError
from gateway.sandbox.cgroups import delegated
from gateway.sandbox.detect import FIXES, survey
from gateway.sandbox.monty import installed
from gateway.sandbox.run_user import account
from gateway.secrets import KNOWN
from gateway.sources.upstreams.spec import Spec
from gateway.text import visible
from gateway.workspace import Openat2, choose_opener
from gateway.workspace.gc import sizes

WAL_RESET_FIXED = (3, 51, 3)
# Chats named for their size.
LARGEST = 3


@dataclass(frozen=True)
class Finding:
    """One thing looked at: how it is, and what to do about it."""

    subject: str
    state: Literal["ok", "note", "fail"]
    message: str


@click.command()
@as_json
@settings_options
def doctor(settings: Settings, as_json: bool) -> int:
    """Look at everything the gateway needs. Exit 1 when something must be mended."""
    logging.getLogger("gateway.sources.upstreams").setLevel(logging.ERROR)  # what it would warn of is found here
    opened = run(lambda: _gateway(settings))
    upstreams = run(lambda: _upstreams(settings))
    findings = [
        *_machine(),
        *run(lambda: _sandbox(settings)),
        *_files(settings),
        *opened,
        *upstreams,
        *_kept(settings),
        *_clients(),
    ]
    if as_json:
        print_json(KNOWN.mask_value([asdict(finding) for finding in findings]))
    else:
        for finding in findings:
            click.echo(KNOWN.mask(f"{finding.state:5} {finding.subject:10} {finding.message}"))
    return int(any(finding.state == "fail" for finding in findings))


def _machine() -> Iterator[Finding]:
    yield Finding("toolgate", "ok", f"{__version__} on Python {sys.version.split()[0]}, {sys.platform}")
    fixed = sqlite3.sqlite_version_info >= WAL_RESET_FIXED
    yield Finding(
        "sqlite",
        "ok",
        f"{sqlite3.sqlite_version}"
        + ("" if fixed else ", kept safe from its WAL-reset fault by one lock around writes"),
    )
    way = "openat2" if isinstance(choose_opener(), Openat2) else "a walk that follows no link"
    yield Finding("paths", "ok", f"workspaces are guarded by {way}")
    if shutil.which("rg"):
        yield Finding("search", "ok", "search_code uses ripgrep")
    else:
        yield Finding(
            "search", "note", "search_code works, and is several times faster with ripgrep (package 'ripgrep')"
        )


async def _sandbox(settings: Settings) -> list[Finding]:
    found = await survey()
    tried = [Finding("sandbox", "note", f"{each.backend} does not work here: {each.reason}") for each in found.tried]
    if found.sandbox is None:
        advice = "toolsets cannot run: this machine offers no sandbox; " + "; ".join(FIXES)
        return [*tried, Finding("sandbox", "fail", advice), *_stand_in(settings)]
    name, user = found.sandbox.name, account()
    held = "the kernel (cgroups)" if delegated() else "a watchdog"
    told = f"toolsets run in {name}{f' as user {user.uid}' if user else ''}; {held} holds their limits"
    weak = [Finding("sandbox", "note", f"{name}: {weakness}") for weakness in found.sandbox.weaknesses]
    return [*tried, Finding("sandbox", "ok", told), *weak, *_network(settings, name)]


def _stand_in(settings: Settings) -> Iterator[Finding]:
    if installed() and not settings.sandbox.allow_unsandboxed:
        yield Finding("sandbox", "note", "monty stands in for run_code: a part of Python, no packages and no bash")


def _network(settings: Settings, sandbox: str) -> Iterator[Finding]:
    if not settings.sandbox.network:
        return
    if sandbox != "bwrap":
        advice = (
            f"sandbox.network is on, and {sandbox} has none that could be limited: programs that need it are refused"
        )
        yield Finding("sandbox", "fail", advice)
        return
    hosts = settings.sandbox.allowed_hosts
    where = ", ".join(hosts) if hosts else "every public host; name some under sandbox.allowed_hosts to have only those"
    yield Finding("sandbox", "ok", f"programs with a network reach {where}")


def _files(settings: Settings) -> Iterator[Finding]:
    found = config.find()
    yield Finding("settings", "ok", str(found.resolve()) if found else "no toolgate.yaml; the defaults hold")
    directory = settings.data_dir
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.NamedTemporaryFile(dir=directory, prefix=".doctor-"):
            pass
    except OSError as error:
        yield Finding("data", "fail", f"{directory}: {error.strerror}; choose another with --data-dir or data_dir")
        return
    free = shutil.disk_usage(directory).free // 2**20
    low = free < 512
    yield Finding("data", "fail" if low else "ok", f"{directory}, {free} MiB free" + ("; make room" if low else ""))
    if directory.stat().st_mode & 0o077:
        yield Finding("data", "note", f"others can look into {directory}; chmod 700 shuts them out")


async def _gateway(settings: Settings) -> list[Finding]:
    try:
        async with Gateway.open(settings, connect="own") as gateway:
            await gateway.ready()
            found = [
                *map(str, gateway.catalog.problems),
                *(each.message for each in await gateway.builtins.problems()),
            ]
            problems = [Finding("tools", "note", problem) for problem in found]
            on = [category.name for category in settings.effective_categories().values() if category.enabled]
            return [
                Finding("database", "ok", str(settings.data_dir / "toolgate.db")),
                Finding("tools", "ok", f"{len(gateway.catalog)} on; categories: {', '.join(on)}"),
                *problems,
            ]
    except GatewayError as error:
        return [Finding("gateway", "fail", str(error))]


async def _upstreams(settings: Settings) -> list[Finding]:
    """Every upstream that is on: yours asked now, those of toolsets as they were when last asked."""
    try:
        async with desk(settings) as at:
            wanted = [spec for spec in at.specs.values() if spec.settings.enabled]
            tried = await probe_all(at, [spec for spec in wanted if spec.name in at.board.own])
            brought = [await _remembered(at, spec) for spec in wanted if spec.name not in at.board.own]
            found = [finding for spec, answer in tried for finding in _upstream(spec.name, answer)]
            return [*found, *brought, *_vault(at)]
    except GatewayError:  # as the gateway itself has said
        return []


async def _remembered(at: Desk, spec: Spec) -> Finding:
    memory = await at.board.store.recall(spec.name)
    asks = f"to ask it now: toolgate upstream test {spec.name}"
    if memory.error is not None:
        reason = visible(memory.error)
        return Finding("upstream", "fail", f"{spec.name} of {spec.origin} did not answer: {reason}; {asks}")
    seen = f"{len(memory.tools or ())} tools when it last answered" if memory.seen_at else "never asked"
    return Finding("upstream", "ok", f"{spec.name} of {spec.origin} is not started here; {seen}; {asks}")


def _upstream(name: str, answer: Answer | GatewayError) -> Iterator[Finding]:
    if isinstance(answer, GatewayError):
        yield Finding("upstream", "fail", f"{answer.message}; once that is mended: toolgate upstream test {name}")
        return
    offered = sum(tool.state == "offered" for tool in answer.tools)
    told = f"{name} answers ({answer.title}, protocol {answer.era}); {offered} of {len(answer.tools)} tools on"
    yield Finding("upstream", "ok", told)
    if answer.waiting:
        yield Finding(
            "upstream", "note", f"{answer.waiting} of {name} waiting for you: toolgate upstream review {name}"
        )


def _vault(at: Desk) -> Iterator[Finding]:
    for path in (at.vault.path, *at.board.logins.directory.glob("*.json")):
        if path.exists() and path.stat().st_mode & 0o077:
            yield Finding("secrets", "fail", f"others can read {path}; chmod 600 shuts them out")


def _kept(settings: Settings) -> Iterator[Finding]:
    """What the chats' versions and the database weigh, and which chats most of all."""
    directory = settings.data_dir
    chats = [path.name for path in (directory / "chats").glob("*") if path.is_dir()]
    found, complete = sizes(directory / "chats")
    database = sum(path.stat().st_size for path in directory.glob("toolgate.db*"))
    total = sum(size.bytes for size in found.values())
    largest = sorted(found, key=lambda chat: found[chat].bytes, reverse=True)[:LARGEST]
    told = [f"{len(chats)} chats", f"{'' if complete else 'more than '}{_mebibytes(total)} of versions"]
    told.append(f"{_mebibytes(database)} of database")
    if largest:
        told.append("largest: " + ", ".join(f"{chat} ({_mebibytes(found[chat].bytes)})" for chat in largest))
    yield Finding("kept", "ok", "; ".join(told))


def _mebibytes(count: int) -> str:
    return f"{count / 2**20:.1f} MiB"


def _clients() -> Iterator[Finding]:
    for snippet in clients.snippets(clients.serve_command(sys.executable), None):
        title = clients.CLIENTS[snippet.client].title
        if not snippet.folder.is_dir():
            continue
        there = snippet.file.is_file() and '"toolgate"' in snippet.file.read_text(encoding="utf-8", errors="replace")
        advice = "has toolgate" if there else f"is here; add toolgate with: toolgate client install {snippet.client}"
        yield Finding("client", "ok" if there else "note", f"{title} {advice}")
