"""The tool install_package: installs Python or JavaScript packages into the workspace."""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import field, fields, replace
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import unquote, urlsplit

import anyio
from pydantic import Field

from gateway.config.loader import resolve_variables
from gateway.errors import Forbidden, GatewayError, Invalid, ToolFailed, Unavailable
from gateway.net.policy import PRIVATE_ADDRESS, Address, NetworkPolicy, canonical_host
from gateway.runtime import uv
from gateway.sandbox import Program
from gateway.sandbox.run import FinishedProgram
from gateway.secrets import KNOWN
from gateway.sources.builtin.code.call_context import NODE_MODULES, SEARCH_PATH, VENV, CodeContext, in_thread
from gateway.sources.builtin.decorator import Shape, builtin
from gateway.tools import Access, Permission
from gateway.value import Value
from gateway.workspace.checkout import MARK
from gateway.workspace.walk import TEMPORARY

Manager = Literal["pip", "npm"]

# Refused hosts that are recorded.
_HOSTS = 10


class PackageIndex(Value):
    """A package index that the operator named. `credentials` are `user:password`, empty if it has none."""

    url: str
    host: str
    port: int
    credentials: str

    @classmethod
    def parse(cls, url: str) -> PackageIndex:
        """Fill in the variables of a URL; refuse one without a valid host."""
        url = resolve_variables(url)
        parts = urlsplit(url)
        try:
            host, port = canonical_host(parts.hostname or ""), parts.port
        except ValueError:
            raise Invalid("the package index has no valid host; see sandbox in the settings") from None
        credentials = unquote(parts.netloc.rpartition("@")[0])
        KNOWN.add(credentials.partition(":")[2])
        return cls(url, host, port or (443 if parts.scheme == "https" else 80), credentials)

    def environment(self, manager: Manager) -> dict[str, str]:
        """Return the variables by which a package manager finds it."""
        if manager == "pip":
            return {"UV_DEFAULT_INDEX": self.url}
        place = self.url.partition("://")[2].rpartition("@")[2].rstrip("/")
        variables = {"npm_config_registry": f"{urlsplit(self.url).scheme}://{place}/"}
        if self.credentials:
            encoded = base64.b64encode(self.credentials.encode()).decode()
            KNOWN.add(encoded)
            variables["NPM_LOGIN"] = f"//{place}/:_auth={encoded}"
        return variables


class RecordingPolicy(NetworkPolicy):
    """A policy that records why it refused each host. Few programs print the reason that the proxy gives them. The
    `index` that the operator named is reached in any case, also at a private address."""

    refused: dict[str, str] = field(default_factory=dict, compare=False)
    index: PackageIndex | None = None

    @classmethod
    def copy(cls, policy: NetworkPolicy, index: PackageIndex | None) -> RecordingPolicy:
        return cls(**{item.name: getattr(policy, item.name) for item in fields(policy) if item.init}, index=index)

    def check_host(self, scheme: str, host: str, port: int | None = None) -> None:
        if self.index is not None and (host, port) == (self.index.host, self.index.port):
            return
        try:
            super().check_host(scheme, host, port)
        except Forbidden as error:
            self._record(host, error.message)
            raise

    def check_address(self, scheme: str, host: str, address: Address) -> None:
        if self.index is not None and host == self.index.host:
            return
        try:
            super().check_address(scheme, host, address)
        except Forbidden as error:
            private = f"{host} resolves to {address}, and programs in the sandbox reach only public addresses"
            self._record(host, private if error.code == PRIVATE_ADDRESS else error.message)
            raise

    def _record(self, host: str, reason: str) -> None:
        if len(self.refused) < _HOSTS:
            self.refused.setdefault(host, reason)


_OUTPUT_LENGTH = 4000
_INDEXES = ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_INDEX", "npm_config_registry")
_UV_LINE = re.compile(r"^ \+ (\S+?)==(\S+)", re.MULTILINE)

_CACHE = f"{TEMPORARY}packages"
# What each manager creates in the workspace.
_CREATED = {"pip": (VENV,), "npm": (NODE_MODULES, "package.json", "package-lock.json")}

# The cache is in the workspace during the installation, because /tmp is small. The marker file keeps installed packages
# out of the versions and out of git.
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
[ -z "${{NPM_LOGIN-}}" ] || echo "$NPM_LOGIN" > "$HOME/.npmrc"
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


class InstallResult(Shape):
    manager: Manager
    environment: str = Field(description="Directory of the packages, relative to the workspace root")
    installed: list[Package] = Field(
        description="Packages with their dependencies; for npm, all direct dependencies of the project"
    )
    output: str


async def _reason(_: CodeContext, packages: list[str], manager: str = "pip") -> str:
    environment = VENV if manager == "pip" else NODE_MODULES
    return f"install_package downloads {', '.join(packages)[:500]} with {manager} into {environment} of the workspace"


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
        Field(min_length=1, max_length=100, description="Names with optional versions: requests>=2, left-pad@1"),
    ],
    manager: Annotated[Manager, Field(description="pip for Python packages, npm for JavaScript")] = "pip",
) -> tuple[InstallResult, str]:
    """Install Python or JavaScript packages into the workspace, where run_code, run_tests and format_code find them.

    They are installed into .venv or node_modules, after a person has agreed; downloads use the gateway's guarded
    network, and the installation runs in the sandbox. npm's install scripts are not run."""
    for package in packages:
        if not package.strip() or package.startswith("-") or any(character in package for character in "\0\n"):
            raise Invalid(
                f"{package!r} is not a package; give its name and optionally a version", code="INVALID_PACKAGE"
            )
    named = context.indexes.get(manager)
    index = PackageIndex.parse(named) if named is not None else None
    network = RecordingPolicy.copy(context.require_network(), index)
    async with _undo_on_failure(context, manager):
        finished = await context.run(replace(_program(context, manager, packages, index), network=network))
        output = "\n".join(stream.decode("utf-8", "replace") for stream in (finished.stderr, finished.stdout)).strip()
        if finished.exit.killed is not None or finished.exit.code != 0:
            limit = [f"it exceeded its limit of {finished.exit.killed}"] if finished.exit.killed else []
            reason = "\n".join([*limit, *network.refused.values(), *([] if limit else [output[-_OUTPUT_LENGTH:]])])
            message = f"{manager} could not install {', '.join(packages)[:200]}: {reason}"
            raise ToolFailed(message, code="INSTALL_FAILED", refused_hosts=list(network.refused))
    installed = _parse_installed(manager, finished)
    environment = VENV if manager == "pip" else NODE_MODULES
    result = InstallResult(
        manager=manager, environment=environment, installed=installed, output=output[-_OUTPUT_LENGTH:]
    )
    listed = ", ".join(f"{package.name} {package.version}" for package in installed) or "nothing new"
    return result, f"Installed into {environment}: {listed}"


@asynccontextmanager
async def _undo_on_failure(context: CodeContext, manager: Manager) -> AsyncIterator[None]:
    """On failure or cancellation, remove what did not exist before: a manager that is killed cannot clean up."""
    new = [(name,) for name in _CREATED[manager] if context.find((name,)) is None]
    try:
        yield
    except BaseException:
        with anyio.CancelScope(shield=True):
            await in_thread(context.discard, *new, (_CACHE,))
        raise


def _program(context: CodeContext, manager: Manager, packages: list[str], index: PackageIndex | None) -> Program:
    shell = context.host.programs.get("sh") or context.host.programs["bash"]
    # Programs of the workspace could read the credentials of the index.
    env = {"PATH": SEARCH_PATH, **indexes(), **(index.environment(manager) if index else {})}
    if manager == "pip":
        program, python = _uv(), context.host.python
        if python is None:
            raise Unavailable("there is no python3 on this machine; install it", code="PROGRAM_NOT_FOUND")
        # Code that builds a package could read the credentials of the index.
        wheels = ("--only-binary", ":all:") if index is not None and index.credentials else ()
        arguments = (str(program), python.path, *wheels, *packages)
        readable = (program, *python.readable)
        return context.program(
            shell, "-c", _PIP, "install", *arguments, env=env, readable=readable, online=True, untrusted=True
        )
    npm = context.host.programs.get("npm")
    if npm is None:
        raise Unavailable("there is no npm on this machine; install Node.js", code="PROGRAM_NOT_FOUND")
    return context.program(shell, "-c", _NPM, "install", npm, *packages, env=env, online=True, untrusted=True)


def indexes() -> dict[str, str]:
    """Return the package indexes that the operator configured, without URLs that contain credentials: code that builds
    a package would see them."""
    return {name: os.environ[name] for name in _INDEXES if "@" not in os.environ.get(name, "@")}


def _uv() -> Path:
    try:
        return Path(uv.find())
    except GatewayError as error:
        raise Unavailable(
            "install_package needs uv, which is not installed; pip install uv", code="PROGRAM_NOT_FOUND"
        ) from error


def _parse_installed(manager: Manager, finished: FinishedProgram) -> list[Package]:
    if manager == "pip":
        text = finished.stderr.decode("utf-8", "replace")
        return [Package(name=name, version=version) for name, version in _UV_LINE.findall(text)]
    try:
        listed = json.loads(finished.stdout)["dependencies"]
        return [Package(name=name, version=str(package["version"])) for name, package in listed.items()]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return []
