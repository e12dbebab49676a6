"""Servers from packages: `.mcpb` files, and what a registry lists. A plan says what would run before anything does."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from gateway.admin.server_registry import (
    NPM_HOST,
    PYPI_HOST,
    PackageArgument,
    RegistryChoice,
    RegistryEntry,
    RegistryInput,
    RegistryPackage,
    RegistryTransport,
    VariableInput,
    find_in_registry,
)
from gateway.admin.upstreams import remove_unused_bundles
from gateway.bundles.installed import describe_server
from gateway.bundles.mcpb import LIMITS, SUFFIX, McpbBundle, UserConfig, read_unpacked, unpack_mcpb
from gateway.bundles.zip_reader import bundle_error
from gateway.config import UpstreamSettings
from gateway.errors import Invalid, Unavailable
from gateway.names import did_you_mean
from gateway.net.policy import NetworkPolicy
from gateway.secrets import VARIABLE, is_secret, variable_name
from gateway.sources.upstreams.spec import bundle_folder
from gateway.value import Value

if TYPE_CHECKING:
    from gateway.gateway import Gateway

Values = Mapping[str, Sequence[str]]

_DOWNLOAD_SECONDS = 300.0
# A file that was sent and not added is removed after this time.
_UNUSED_SECONDS = 3600.0
_REFERENCE = re.compile(r"\$\{([^}]*)\}")
_PLACES = ("__dirname", "__home")
_NAME_LIMIT = 40
_PYPI_HOSTS = (PYPI_HOST, "files.pythonhosted.org")
_FOLDERS = {"HOME": "", "DESKTOP": "Desktop", "DOCUMENTS": "Documents", "DOWNLOADS": "Downloads"}


class PackageInput(Value):
    """A value that the author of a package asks for. `variable` holds it if it is a secret or must be given."""

    name: str
    title: str
    description: str
    type: str = "string"
    required: bool = False
    secret: bool = False
    multiple: bool = False
    default: Sequence[str] = ()
    choices: Sequence[str] = ()
    variable: str = ""

    def to_dict(self) -> dict[str, Any]:
        return {**vars(self), "default": list(self.default), "choices": list(self.choices)}


class ServerPlan(Value):
    """A server that could be added: its settings, what is asked for, and every line of what it would run."""

    name: str
    title: str
    version: str
    description: str
    source: str
    settings: Mapping[str, Any]
    inputs: Sequence[PackageInput] = ()
    notes: Sequence[str] = ()

    @property
    def lines(self) -> list[tuple[str, str]]:
        return list(describe_server(UpstreamSettings.model_validate(self.settings)))

    def to_dict(self) -> dict[str, Any]:
        return {
            **{key: getattr(self, key) for key in ("name", "title", "version", "description", "source", "settings")},
            "inputs": [each.to_dict() for each in self.inputs],
            "notes": list(self.notes),
            "lines": [{"label": label, "text": text} for label, text in self.lines],
        }


async def plan_file(
    gateway: Gateway,
    path: Path,
    name: str | None = None,
    values: Values | None = None,
    source: str | None = None,
) -> ServerPlan:
    """Unpack an `.mcpb` file and plan its server; `source` names where it came from. Nothing is run, and a file that is
    not added is removed later."""
    data_dir = gateway.settings.data_dir
    await remove_unused_bundles(gateway, _UNUSED_SECONDS)
    bundle = await asyncio.to_thread(unpack_mcpb, path, lambda digest: bundle_folder(data_dir, digest))
    return plan_bundle(bundle, name, values or {}, source or path.name)


async def plan_unpacked(gateway: Gateway, digest: str, name: str | None, values: Values) -> ServerPlan:
    """Plan the server of an `.mcpb` file that was unpacked before."""
    folder = bundle_folder(gateway.settings.data_dir, digest)
    return plan_bundle(await asyncio.to_thread(read_unpacked, folder, digest), name, values, f"{digest[:12]}{SUFFIX}")


async def plan_registered(
    gateway: Gateway,
    registered: str,
    *,
    kind: str | None = None,
    name: str | None = None,
    values: Values | None = None,
) -> ServerPlan:
    """Plan a server of the registry: its first package that can be used here, or the first of a `kind`."""
    entry = await find_in_registry(gateway.settings, registered)
    choice = _choose(entry, kind)
    if choice.kind == "mcpb" and isinstance(choice.target, RegistryPackage):
        return await _plan_download(gateway, choice.target, name, values or {})
    builder = _Builder(name or _server_name(registered), values or {})
    is_remote = isinstance(choice.target, RegistryTransport)
    settings = (
        _remote(builder, choice.target)
        if isinstance(choice.target, RegistryTransport)
        else _run(builder, choice.target)
    )
    builder.check()
    server = entry.server
    if entry.status not in (None, "active"):
        builder.notes.append(f"the registry says it is {entry.status}")
    return _checked(
        ServerPlan(
            builder.server,
            server.title or server.name,
            server.version,
            server.description,
            f"{registered} ({'remote' if is_remote else choice.kind})",
            settings,
            builder.inputs,
            builder.notes,
        ),
        builder.values,
    )


async def _plan_download(gateway: Gateway, package: RegistryPackage, name: str | None, values: Values) -> ServerPlan:
    if package.sha256 is not None and bundle_folder(gateway.settings.data_dir, package.sha256).is_dir():
        return await plan_unpacked(gateway, package.sha256, name, values)
    # Importing the HTTP client takes 0.1 s; files do not need it.
    download = importlib.import_module("gateway.net.download").download
    policy = NetworkPolicy(any_host=True, allow_private=gateway.settings.http.allow_private)
    with tempfile.NamedTemporaryFile(prefix="toolgate-", suffix=SUFFIX) as file:
        await download(package.identifier, file, limit=LIMITS.zip_bytes, timeout=_DOWNLOAD_SECONDS, policy=policy)
        file.flush()
        plan = await plan_file(gateway, Path(file.name), name, values, package.identifier)
    if plan.settings["bundle"] != package.sha256:
        await remove_unused_bundles(gateway, 0, plan.settings["bundle"])
        raise Unavailable(
            f"the file at {package.identifier} is not the one that the registry names: its SHA-256 is "
            f"{plan.settings['bundle']}, expected {package.sha256}",
            code="WRONG_DIGEST",
        )
    return plan


def _choose(entry: RegistryEntry, kind: str | None) -> RegistryChoice:
    choices = [choice for choice in entry.choices if kind in (None, choice.kind)]
    for choice in choices:
        if choice.problem is None:
            return choice
    found = "; ".join(f"{choice.kind} {choice.label}: {choice.problem}" for choice in choices[:5])
    wanted = f" of the kind {kind!r}" if kind else ""
    raise Invalid(
        f"{entry.server.name} has no package{wanted} that can be used here{f': {found}' if found else ''}",
        code="NO_PACKAGE",
    )


def _server_name(text: str) -> str:
    """The name of a server after that of its package."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", text.rpartition("/")[2])[:_NAME_LIMIT].strip("-_") or "server"


def _checked(plan: ServerPlan, values: Values) -> ServerPlan:
    """The plan; refused if its settings cannot be used, or name a variable of the gateway's environment that the person
    did not. Whatever the parts were, this looks at the texts that they became."""
    try:
        UpstreamSettings.model_validate(plan.settings)
    except ValidationError as error:
        fault = error.errors()[0]
        raise Invalid(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}", code="INVALID_PACKAGE") from None
    allowed = {each.variable for each in plan.inputs} | set(_PLACES if "bundle" in plan.settings else ())
    allowed |= {name for texts in values.values() for text in texts for name in VARIABLE.findall(text)}
    for name in VARIABLE.findall(json.dumps(plan.settings)):
        if name not in allowed:
            raise Invalid(f"the package refers to ${{{name}}}, a variable of the gateway", code="INVALID_PACKAGE")
    return plan


@dataclass
class _Builder:
    """The inputs and rights of one server while its settings are made. `values` are what the person gave."""

    server: str
    values: Values
    inputs: list[PackageInput] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def take(self, each: PackageInput) -> list[str] | None:
        """Note an input and return its values; None if it is left out. A secret, or a value that is still to be given,
        is a `${VARIABLE}` of this server alone: without its prefix, one named `aws` that asks for `secret_access_key`
        would find that of the gateway's own environment."""
        variable = f"PACKAGE_{variable_name(self.server)}_{variable_name(each.name)}"
        given = [text for text in self.values.get(each.name, ()) if text]
        kept = each.secret or (each.required and not given and not each.default)
        known = PackageInput(**{**vars(each), "variable": variable if kept else ""})
        if all(known.name != other.name for other in self.inputs):
            self.inputs.append(known)
        if kept:
            return [f"${{{variable}}}"] if each.required or given else None
        values = given or list(each.default)
        if each.type in ("directory", "file"):
            writable = ":rw" if each.type == "directory" else ""
            self.paths += [f"{path}{writable}" for path in values if f"{path}{writable}" not in self.paths]
        return values or None

    def check(self) -> None:
        known = [each.name for each in self.inputs]
        for name in self.values:
            if name not in known:
                hint = did_you_mean(name, known) or (f"; it asks for {', '.join(known)}" if known else "")
                raise Invalid(f"the package does not ask for {name!r}{hint}", code="UNKNOWN_INPUT")
        for each in self.inputs:
            for value in self.values.get(each.name, ()):
                if each.choices and value not in each.choices:
                    raise Invalid(f"{each.name} is one of {', '.join(each.choices)}", code="INVALID_INPUT")

    def sandbox(self, network: Sequence[str] = ()) -> Any:
        rights = {"paths": self.paths, "network": list(network)}
        return {key: value for key, value in rights.items() if value} or True

    def require_program(self, program: str) -> None:
        if shutil.which(program) is None:
            self.notes.append(f"{program} is not installed on this machine; install it before you add the server")


# `.mcpb` files.


def plan_bundle(bundle: McpbBundle, name: str | None, values: Values, source: str) -> ServerPlan:
    """Plan the server of an unpacked file."""
    manifest = bundle.manifest
    builder = _Builder(name or _server_name(manifest.name), values)
    command, args, env = bundle.start_command()
    secret_keys = {
        key.removeprefix("user_config.")
        for variable, text in env.items()
        if is_secret(variable)
        for key in _REFERENCE.findall(text)
    }
    asked = {key: _config_input(key, each, key in secret_keys) for key, each in manifest.user_config.items()}
    resolved = {key: builder.take(each) for key, each in asked.items()}
    builder.check()
    settings: dict[str, Any] = {
        "command": _find_runtime(" ".join(_expand(command, resolved))),
        "args": [word for text in args for word in _expand(text, resolved)],
        "env": {key: ",".join(words) for key, text in env.items() if (words := _expand(text, resolved))},
        "bundle": bundle.digest,
    }
    network = _PYPI_HOSTS if command in ("uv", "uvx") else (NPM_HOST,) if command == "npx" else ()
    settings["sandbox"] = builder.sandbox(network)
    if "/" not in settings["command"]:
        builder.require_program(settings["command"])
    if bundle.signed:
        builder.notes.append("the file is signed; Toolgate does not check by whom")
    return _checked(
        ServerPlan(
            builder.server,
            manifest.title,
            manifest.version,
            manifest.description,
            f"{source} by {manifest.author.name}" if manifest.author.name else source,
            {key: value for key, value in settings.items() if value not in ({}, [])},
            builder.inputs,
            builder.notes,
        ),
        values,
    )


def _config_input(key: str, config: UserConfig, secret: bool) -> PackageInput:
    default = config.default if isinstance(config.default, list) else [config.default]
    texts = [_config_text(value) for value in default if value is not None]
    return PackageInput(
        key,
        config.title or key,
        config.description,
        config.type,
        config.required,
        config.sensitive or secret or (is_secret(key) and config.type == "string"),
        config.multiple,
        [word for text in texts for word in _expand(text, {})],
    )


def _config_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _expand(text: str, values: Mapping[str, Sequence[str] | None]) -> list[str]:
    """The words that a text of a manifest stands for: several for a value that may be given several times, none for
    one that is not given. Variables of the gateway's own environment are refused."""
    whole = _REFERENCE.fullmatch(text)
    if whole and whole[1].startswith("user_config."):
        return list(_config_values(whole[1], values) or ())
    return [_REFERENCE.sub(lambda match: _expand_reference(match[1], values), text)]


def _expand_reference(name: str, values: Mapping[str, Sequence[str] | None]) -> str:
    if name in _PLACES:
        return f"${{{name}}}"
    if name in _FOLDERS:
        return str(Path.home() / _FOLDERS[name])
    if name in ("/", "pathSeparator"):
        return os.sep
    if name.startswith("user_config."):
        return ",".join(_config_values(name, values) or ())
    raise bundle_error(f"refers to {name[:100]!r}, which is no variable of a bundle", "manifest.json")


def _config_values(name: str, values: Mapping[str, Sequence[str] | None]) -> Sequence[str] | None:
    key = name.removeprefix("user_config.")
    if key not in values:
        raise bundle_error(f"refers to {name[:100]!r}, which its user_config does not have", "manifest.json")
    return values[key]


def _find_runtime(command: str) -> str:
    """A command that exists here: many systems have no `python`, and this program runs in one."""
    if command in ("python", "python3") and shutil.which(command) is None:
        return shutil.which("python3") or sys.executable
    return command


# Packages and addresses of a registry.


def _run(builder: _Builder, package: RegistryPackage) -> dict[str, Any]:
    kind, version = package.registry_type, package.version
    before = [word for each in package.runtime_arguments or () for word in _argument(builder, each)]
    after = [word for each in package.package_arguments or () for word in _argument(builder, each)]
    env = {each.name: text for each in package.environment or () if (text := _text(builder, each, each.name))}
    if kind == "npm":
        before = [word for word in before if word not in ("-y", "--yes")]
        package_id = f"{package.identifier}@{version}" if version else package.identifier
        settings = {"command": "npx", "args": ["-y", *before, package_id, *after]}
        sandbox = builder.sandbox([NPM_HOST])
    elif kind == "pypi":
        package_id = f"{package.identifier}@{version}" if version else package.identifier
        settings = {"command": "uvx", "args": [*before, package_id, *after]}
        sandbox = builder.sandbox(_PYPI_HOSTS)
    else:
        image = package.identifier
        image += f":{version}" if version and ":" not in image.rpartition("/")[2] and "@" not in image else ""
        passed = [word for name in env for word in ("-e", name)]
        settings = {"command": "docker", "args": ["run", "-i", "--rm", *passed, *before, image, *after]}
        sandbox = False
        builder.notes.append("docker runs it in a container; Toolgate's sandbox cannot be used around docker")
    builder.require_program(str(settings["command"]))
    return {**settings, **({"env": env} if env else {}), "sandbox": sandbox}


def _remote(builder: _Builder, remote: RegistryTransport) -> dict[str, Any]:
    variables = {key: _registry_input(key, each) for key, each in (remote.variables or {}).items()}
    url = _fill(builder, remote.url or "", variables)
    headers = {each.name: text for each in remote.headers or () if (text := _text(builder, each, each.name))}
    return {
        "url": url,
        **({"headers": headers} if headers else {}),
        **({} if remote.type == "streamable-http" else {"type": remote.type}),
    }


def _argument(builder: _Builder, argument: PackageArgument) -> Iterator[str]:
    name = argument.name or argument.value_hint or "argument"
    text = _text(builder, argument, name.lstrip("-") or name)
    if text is None:
        return
    if argument.type != "named" or not argument.name:
        yield text
    elif argument.format == "boolean":
        if text == "true":
            yield argument.name
    elif argument.name.endswith("="):
        yield argument.name + text
    else:
        yield argument.name
        if text:
            yield text


def _text(builder: _Builder, each: VariableInput, name: str) -> str | None:
    """The text of an argument, a header or a variable of the environment; None if it is left out."""
    if each.value is not None:
        variables = {key: _registry_input(key, value) for key, value in (each.variables or {}).items()}
        unset = [key for key, value in variables.items() if builder.take(value) is None and f"{{{key}}}" in each.value]
        return None if unset and not each.is_required else _fill(builder, each.value, variables)
    values = builder.take(_registry_input(name, each))
    return values[0] if values else None


def _fill(builder: _Builder, text: str, variables: Mapping[str, PackageInput]) -> str:
    """Replace each `{variable}`."""

    def replace(match: re.Match[str]) -> str:
        if match[1] not in variables:
            return match[0]
        return (builder.take(variables[match[1]]) or [""])[0]

    return re.sub(r"\{([^{}]+)\}", replace, text)


def _registry_input(name: str, each: RegistryInput) -> PackageInput:
    fixed = each.value if each.value is not None else each.default
    return PackageInput(
        name,
        name,
        each.description,
        "file" if each.format == "filepath" else each.format,
        each.is_required,
        each.is_secret or is_secret(name),
        default=[] if fixed is None else [fixed],
        choices=each.choices or (),
    )
