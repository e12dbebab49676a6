"""Installing packages into the workspace's own environment, after a person has agreed."""

from __future__ import annotations

import json
import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Literal

import anyio
from pydantic import Field

from gateway.errors import Forbidden, GatewayError, Invalid, ToolFailed, Unavailable
from gateway.net.policy import PRIVATE_ADDRESS, Address, NetworkPolicy
from gateway.runtime import uv
from gateway.sandbox import Program
from gateway.sandbox.run import FinishedProgram
from gateway.sources.builtin.code.call_context import NODE_MODULES, VENV, CodeContext, in_thread
from gateway.sources.builtin.decorator import Shape, builtin
from gateway.tools import Access, Permission
from gateway.workspace.package_dirs import MARK
from gateway.workspace.walk import TEMPORARY

_HOSTS = 10


@dataclass(frozen=True)
class Noting(NetworkPolicy):
    """A policy that notes why it refused a host, each once."""

    refused: dict[str, str] = field(default_factory=dict, compare=False)

    @classmethod
    def like(cls, policy: NetworkPolicy) -> Noting:
        return cls(**{each.name: getattr(policy, each.name) for each in fields(policy) if each.init})

    def check_host(self, scheme: str, host: str, port: int | None = None) -> None:
        try:
            super().check_host(scheme, host, port)
        except Forbidden as refusal:
            self._note(host, refusal.message)
            raise

    def check_address(self, scheme: str, host: str, address: Address) -> None:
        try:
            super().check_address(scheme, host, address)
        except Forbidden as refusal:
            private = f"{host} leads to {address}, and programs in the sandbox reach only public addresses"
            self._note(host, private if refusal.code == PRIVATE_ADDRESS else refusal.message)
            raise

    def _note(self, host: str, reason: str) -> None:
        if len(self.refused) < _HOSTS:
            self.refused.setdefault(host, reason)


Manager = Literal["pip", "npm"]

_SAID = 4000
_INDEXES = ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_INDEX", "npm_config_registry")
_UV_LINE = re.compile(r"^ \+ (\S+?)==(\S+)", re.MULTILINE)

_CACHE = f"{TEMPORARY}packages"
# What a manager makes in a workspace that has none of it yet.
_MADE = {"pip": (VENV,), "npm": (NODE_MODULES, "package.json", "package-lock.json")}

# The cache lies in the workspace while it is needed, as there is not much room in /tmp. The mark keeps what is
# installed out of the versions, and out of git.
_PIP = f"""
set -eu
uv=$1; python=$2; shift 2
cache={_CACHE}
trap 'rm -rf "$cache"' EXIT
export UV_CACHE_DIR="$PWD/$cache" UV_NO_CONFIG=1 UV_NO_PROGRESS=1 UV_PYTHON_DOWNLOADS=never UV_LINK_MODE=copy
[ -e {VENV}/pyvenv.cfg ] || "$uv" venv --quiet --no-project --relocatable --python "$python" {VENV}
"$uv" pip install --color never --python {VENV} "$@"
[ -e {VENV}/{MARK} ] || echo '*' > {VENV}/{MARK}
"""

_NPM = f"""
set -eu
npm=$1; shift
cache={_CACHE}
trap 'rm -rf "$cache"' EXIT
export npm_config_cache="$PWD/$cache" npm_config_update_notifier=false
"$npm" install --no-audit --no-fund --no-progress --ignore-scripts --loglevel=error -- "$@" >&2
[ ! -d {NODE_MODULES} ] || [ -e {NODE_MODULES}/{MARK} ] || echo '*' > {NODE_MODULES}/{MARK}
"$npm" ls --json --depth=0
"""


class Package(Shape):
    name: str
    version: str


class Packages(Shape):
    manager: Manager
    environment: str = Field(description="Where they are, relative to the workspace root")
    installed: list[Package] = Field(description="With what they need; for npm, all the project asked for")
    output: str


async def _reason(_: CodeContext, packages: list[str], manager: str = "pip") -> str:
    where = VENV if manager == "pip" else NODE_MODULES
    return f"install_package downloads {', '.join(packages)[:500]} with {manager} into {where} of the workspace"


@builtin(
    title="Install packages",
    category="development",
    permission=Permission.EXECUTE,
    access=Access.WRITE,
    requires_confirmation=_reason,
    open_world=True,
    requires=("sandbox", "network"),
    path_arguments=(),
)
async def install_package(
    context: CodeContext,
    packages: Annotated[
        list[str],
        Field(min_length=1, max_length=100, description="Names, with versions if you like: requests>=2, left-pad@1"),
    ],
    manager: Annotated[Manager, Field(description="pip for Python packages, npm for JavaScript")] = "pip",
) -> tuple[Packages, str]:
    """Install Python or JavaScript packages into the workspace, where run_code, run_tests and format_code find them.

    They go into .venv or node_modules in the workspace, after a person has agreed; downloads pass the gateway's guarded
    network, and installing runs in the sandbox. npm's install scripts are not run."""
    for each in packages:
        if not each.strip() or each.startswith("-") or any(character in each for character in "\0\n"):
            raise Invalid(f"{each!r} is no package; name it, with a version if you like", code="INVALID_PACKAGE")
    network = Noting.like(context.require_network())
    async with _undone_on_failure(context, manager):
        finished = await context.run(replace(_program(context, manager, packages), network=network))
        said = "\n".join(stream.decode("utf-8", "replace") for stream in (finished.stderr, finished.stdout)).strip()
        if finished.exit.killed is not None or finished.exit.code != 0:
            limit = [f"it went over its limit of {finished.exit.killed}"] if finished.exit.killed else []
            why = "\n".join([*limit, *network.refused.values(), *([] if limit else [said[-_SAID:]])])
            message = f"{manager} could not install {', '.join(packages)[:200]}: {why}"
            raise ToolFailed(message, code="INSTALL_FAILED", refused_hosts=list(network.refused))
    installed = _installed(manager, finished)
    environment = VENV if manager == "pip" else NODE_MODULES
    answer = Packages(manager=manager, environment=environment, installed=installed, output=said[-_SAID:])
    listed = ", ".join(f"{each.name} {each.version}" for each in installed) or "nothing new"
    return answer, f"Installed into {environment}: {listed}"


@asynccontextmanager
async def _undone_on_failure(context: CodeContext, manager: Manager) -> AsyncIterator[None]:
    """What was not there before goes again when it fails or is cancelled; a manager that is killed cannot tidy up."""
    new = [(name,) for name in _MADE[manager] if context.find((name,)) is None]
    try:
        yield
    except BaseException:
        with anyio.CancelScope(shield=True):
            await in_thread(context.discard, *new, (_CACHE,))
        raise


def _program(context: CodeContext, manager: Manager, packages: list[str]) -> Program:
    shell = context.host.programs.get("sh") or context.host.programs["bash"]
    if manager == "pip":
        program, python = _uv(), context.host.python
        if python is None:
            raise Unavailable("there is no python3 on this machine; install it", code="PROGRAM_NOT_FOUND")
        given = (str(program), python.path, *packages)
        readable = (program, *python.readable)
        return context.program(
            shell, "-c", _PIP, "install", *given, env=indexes(), readable=readable, online=True, untrusted=True
        )
    npm = context.host.programs.get("npm")
    if npm is None:
        raise Unavailable("there is no npm on this machine; install Node.js", code="PROGRAM_NOT_FOUND")
    return context.program(shell, "-c", _NPM, "install", npm, *packages, env=indexes(), online=True, untrusted=True)


def indexes() -> dict[str, str]:
    """Where the operator has packages come from, but for addresses with a secret in them: what builds a package
    would see it."""
    told = {name: os.environ[name] for name in _INDEXES if name in os.environ}
    return {name: value for name, value in told.items() if "@" not in value}


def _uv() -> Path:
    try:
        return Path(uv.find())
    except GatewayError as error:
        raise Unavailable("installing needs uv, which is not here; pip install uv", code="PROGRAM_NOT_FOUND") from error


def _installed(manager: Manager, finished: FinishedProgram) -> list[Package]:
    if manager == "pip":
        text = finished.stderr.decode("utf-8", "replace")
        return [Package(name=name, version=version) for name, version in _UV_LINE.findall(text)]
    try:
        listed = json.loads(finished.stdout)["dependencies"]
        return [Package(name=name, version=str(each["version"])) for name, each in listed.items()]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return []
