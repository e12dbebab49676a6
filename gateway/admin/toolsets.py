"""Toolsets: install, check, list, export, switch, change, uninstall, and consent to the MCP servers they bring."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from gateway.admin.switches import find_toolset
from gateway.admin.upstream_setup import load_setup
from gateway.admin.upstreams import AskSecret, override_server_tool
from gateway.bundles.installed import InstalledToolset, describe_server
from gateway.bundles.library import BundleDifference
from gateway.bundles.lint import lint
from gateway.bundles.openapi import BASELINE_NAME
from gateway.bundles.scaffold import write_scaffold
from gateway.bundles.spec import FILE_NAME, Server, dump, load
from gateway.calls import Progress, no_progress
from gateway.catalog import Catalog
from gateway.config import Settings
from gateway.errors import Conflict, Forbidden, Invalid, NotFound
from gateway.names import did_you_mean
from gateway.sources.toolsets import secrets_owner
from gateway.sources.toolsets.assembly import fetch_bundle
from gateway.sources.upstreams.spec import ADDED
from gateway.tools import Permission, Tool
from gateway.value import Value
from gateway.yamldoc import find_line

if TYPE_CHECKING:
    from gateway.gateway import Gateway
    from gateway.sandbox.run import FinishedProgram, OutputListener

TESTS = "tests"


class ServerInfo(Value):
    """One MCP server of a toolset: `allowed`, `held back` until a person agrees, or `off`."""

    server: Server
    state: str
    digest: str
    agreed_by: str | None = None
    agreed_at: str | None = None

    @property
    def id(self) -> str:
        return self.server.id

    @property
    def description(self) -> Iterator[tuple[str, str]]:
        """Everything that is declared about it, as names and printable texts."""
        return describe_server(self.server)

    def to_dict(self) -> dict[str, Any]:
        return {
            **self.server.model_dump(mode="json", exclude_defaults=True),
            "digest": self.digest,
            "state": self.state,
            "agreed": None if self.agreed_by is None else {"by": self.agreed_by, "at": self.agreed_at},
        }


class ToolsetInfo(Value):
    """An installed toolset with its tools; a tool that is not offered has the reason in `withheld`."""

    installed: InstalledToolset
    tools: tuple[Tool, ...]
    stored_secrets: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        return self.installed.id

    @property
    def servers(self) -> list[ServerInfo]:
        return [_server_info(self.installed, server) for server in self.installed.servers]

    @property
    def pending_servers(self) -> list[ServerInfo]:
        return [_server_info(self.installed, server) for server in self.installed.pending_servers]

    @property
    def hints(self) -> Iterator[str]:
        """Things a person must still do before the toolset works."""
        installed = self.installed
        if installed.masked:
            names = ", ".join(installed.masked)
            yield f"secret values in toolset.yaml were not stored; set in the environment: {names}"
        variables = installed.spec.variables() - {*installed.masked, *self.stored_secrets}
        if missing := sorted(name for name in variables if name not in os.environ):
            yield f"not set in the environment: {', '.join(missing)}"
        if secrets := [name for name in installed.spec.secrets if name in missing]:
            yield f"a secret can also be stored: toolgate toolset secret {installed.id} {secrets[0]}"

    @property
    def warnings(self) -> list[str]:
        """Mistakes of its author that do not keep it from being installed."""
        return list(lint(self.installed, self.tools))

    @property
    def problems(self) -> list[dict[str, Any]]:
        """Everything that somebody should correct: a message each, with the line of `manifest` it is about."""
        installed, manifest = self.installed, self.manifest.encode()
        places = {tool.id: find_line(manifest, ("tools", index)) for index, tool in enumerate(installed.spec.tools)}
        missing = [f"{tool.spec.id}: {tool.missing}" for tool in installed.tools if tool.missing is not None]
        found = [(text, places.get(text.partition(":")[0])) for text in (*self.warnings, *missing)]
        held = [] if installed.problem is None else [(installed.problem.message, find_line(manifest, ("mcp_servers",)))]
        hints = [(text, None) for text in self.hints]
        return [{"message": text, "file": FILE_NAME, "line": line} for text, line in (*found, *held, *hints)]

    @property
    def manifest(self) -> str:
        """Its `toolset.yaml`, as an export would write it."""
        return dump(self.installed.spec)

    def to_dict(self) -> dict[str, Any]:
        installed = self.installed
        return {
            "id": installed.id,
            "name": installed.spec.name,
            "version": installed.spec.version,
            "description": installed.spec.description,
            "enabled": installed.enabled,
            "live": installed.live,
            "source_type": installed.source_type,
            "source_ref": installed.source_ref,
            "installed_at": installed.installed_at,
            "digest": installed.digest,
            "dependencies": installed.spec.dependencies,
            "variables": sorted(installed.spec.variables()),
            "tools": [_tool_dict(tool) for tool in self.tools],
            "tool_count": len(self.tools),
            "offered": sum(tool.withheld is None for tool in self.tools),
            "permission": next(
                (level for level in reversed(Permission) if any(tool.permission is level for tool in self.tools)), None
            ),
            "mcp_servers": [server.id for server in installed.servers],
            "servers": [server.to_dict() for server in self.servers],
        }


async def install_toolset(
    gateway: Gateway, source: str, *, copy: bool = False, name: str | None = None, progress: Progress = no_progress
) -> ToolsetInfo:
    """Install a folder, a ZIP file or a URL; a folder is followed unless `copy`. Its MCP servers are held back. `name`
    is recorded as the source of an uploaded file."""
    async with fetch_bundle(source, gateway.settings.http, progress) as bundle:
        installed = await gateway.toolsets.library.install(
            bundle.path,
            source_type=bundle.type,
            source_ref=name or bundle.ref,
            live=bundle.is_folder and not copy,
            progress=progress,
        )
        return await add_installed(gateway, installed)


async def update_toolset(gateway: Gateway, toolset_id: str, dry_run: bool) -> BundleDifference:
    """Install a toolset again from the folder or URL it came from, unless `dry_run`; return what changes."""
    installed = await gateway.toolsets.library.get(toolset_id)
    source = installed.source_ref
    if source is None or installed.source_type not in ("url", "local"):
        raise Conflict(f"{toolset_id!r} was uploaded; upload its new version", code="NO_SOURCE")
    if (installed.directory / BASELINE_NAME).exists():
        raise Conflict(f"{toolset_id!r} was made of the document {source}; import that again", code="OPENAPI_SOURCE")
    difference = await compare_toolset(gateway, source)
    if difference.id != toolset_id:
        raise Conflict(f"{source} has the toolset {difference.id!r} now", code="OTHER_TOOLSET")
    if not dry_run:
        await install_toolset(gateway, source, copy=not installed.live)
    return difference


async def compare_toolset(gateway: Gateway, source: str, progress: Progress = no_progress) -> BundleDifference:
    """Return what installing a folder, a ZIP file or a URL would change; nothing is installed and no code runs."""
    async with fetch_bundle(source, gateway.settings.http, progress) as bundle:
        return await gateway.toolsets.library.compare(bundle.path)


async def check_toolset(
    settings: Settings,
    source: str,
    open_gateway: Callable[[Settings], AbstractAsyncContextManager[Gateway]],
    progress: Progress = no_progress,
) -> ToolsetInfo:
    """Install a bundle into a gateway with a temporary data directory, opened with `open_gateway`."""
    with tempfile.TemporaryDirectory(prefix="toolgate-check-") as scratch:
        temporary = settings.model_copy(update={"data_dir": Path(scratch), "toolsets": []})
        async with open_gateway(temporary) as gateway:
            return await install_toolset(gateway, source, copy=True, progress=progress)


async def test_toolset(
    gateway: Gateway,
    source: str,
    arguments: Sequence[str] = (),
    *,
    on_output: OutputListener | None = None,
    progress: Progress = no_progress,
) -> FinishedProgram:
    """Run the tests of an installed toolset or of a folder with pytest in the sandbox, where they see the toolset and
    its packages and nothing else."""
    installed = [each for each in await gateway.toolsets.library.list() if each.id == source]
    if installed:
        spec, directory = installed[0].spec, installed[0].directory
    else:
        async with fetch_bundle(source, gateway.settings.http, progress) as bundle:
            directory = bundle.path
            if not (directory / FILE_NAME).is_file():
                raise NotFound(f"{source!r} is neither an installed toolset nor a folder with a {FILE_NAME}")
            spec = load((directory / FILE_NAME).read_bytes())
    if not (directory / TESTS).is_dir():
        raise NotFound(
            f"{spec.id} has no tests: there is no folder {TESTS!r} in it; 'toolgate toolset new DIR' makes some"
        )
    return await gateway.toolsets.runtime.run_tests(spec, directory, arguments, on_output, progress)


async def list_toolsets(gateway: Gateway) -> list[ToolsetInfo]:
    return [await _describe(gateway, installed) for installed in await gateway.toolsets.library.list()]


async def show_toolset(gateway: Gateway, toolset_id: str) -> ToolsetInfo:
    return await _describe(gateway, await gateway.toolsets.library.get(toolset_id))


async def export_toolset(gateway: Gateway, toolset_id: str, output: BinaryIO | Path | None = None) -> Path | None:
    """Write a toolset as a ZIP, without secret values: to a stream, or to a file, whose path is returned. The default
    is `ID-VERSION.zip` in the current folder."""
    library = gateway.toolsets.library
    installed = await library.get(toolset_id)
    if output is not None and not isinstance(output, Path):
        await library.export(toolset_id, output)
        return None
    target = output or Path(f"{installed.id}-{installed.spec.version}.zip")
    with _replace_file(target) as temporary, temporary.open("wb") as file:
        await library.export(toolset_id, file)
    return target


async def enable_toolset(gateway: Gateway, toolset_id: str, enabled: bool) -> None:
    await gateway.toolsets.library.enable(toolset_id, enabled)


async def uninstall_toolset(gateway: Gateway, toolset_id: str) -> None:
    """Remove a toolset, its files, its secrets and the changes to its tools."""
    await gateway.toolsets.library.uninstall(toolset_id)
    gateway.toolsets.secrets.forget(secrets_owner(toolset_id))


async def keep_secret(gateway: Gateway, toolset_id: str, variable: str, ask_secret: AskSecret) -> None:
    """Store the value of a secret that a toolset declares; its next call uses it."""
    await _require_secret(gateway, toolset_id, variable)
    gateway.toolsets.secrets.keep(secrets_owner(toolset_id), {variable: ask_secret(variable)})


async def forget_secret(gateway: Gateway, toolset_id: str, variable: str) -> None:
    await _require_secret(gateway, toolset_id, variable)
    gateway.toolsets.secrets.forget(secrets_owner(toolset_id), variable)


async def _require_secret(gateway: Gateway, toolset_id: str, variable: str) -> None:
    declared = (await gateway.toolsets.library.get(toolset_id)).spec.secrets
    if variable not in declared:
        listed = did_you_mean(variable, declared) or f"; it declares {', '.join(declared) or 'none'}"
        raise NotFound(f"{toolset_id} declares no secret {variable!r}{listed}", code="UNKNOWN_SECRET")


async def override_tool(gateway: Gateway, tool_id: str, changes: Mapping[str, Any]) -> None:
    """Change one tool for this gateway; without changes, undo earlier ones. Of a builtin only the switch can change."""
    if tool_id in {tool.id for tool in await gateway.builtins.list_tools()}:
        raise Forbidden(
            f"{tool_id} is builtin: it can only be turned off and on, with: toolgate tool disable {tool_id}",
            code="BUILTIN_IMMUTABLE",
        )
    owner, _, own = tool_id.partition(":")
    toolset_id, library = await find_toolset(gateway, tool_id), gateway.toolsets.library
    if toolset_id is None and owner in (await load_setup(gateway)).specs:
        await override_server_tool(gateway, owner, own, changes)
    elif changes:
        await library.override(toolset_id or owner, tool_id, changes)
    else:
        await library.clear_override(toolset_id or owner, tool_id)


async def describe_original(gateway: Gateway, tool: Tool) -> dict[str, Any] | None:
    """Return the name, description, consent and renderer of a tool before anybody changed them; None if they cannot be
    changed: of a builtin, and of a server that is set up elsewhere."""
    owner, _, own = tool.id.partition(":")
    toolset_id = await find_toolset(gateway, tool.id)
    if owner == toolset_id:
        item = next(item for item in (await gateway.toolsets.library.get(owner)).tools if item.id == tool.id)
        declared, field = item.spec.renderer, item.get_field
        return {
            "name": field("name", item.spec.id),
            "description": field("description", ""),
            "requires_confirmation": bool(field("requires_confirmation", False) or field("destructive", False)),
            "renderer": None if declared is None else declared.type,
        }
    setup = await load_setup(gateway)
    if owner not in setup.specs or (toolset_id is None and setup.specs[owner].origin != ADDED):
        return None
    listed = (await gateway.upstreams.store.load_listing(owner)).tools or ()
    raw = next((each for each in listed if isinstance(each, dict) and each.get("name") == own), {})
    hints = raw.get("annotations") or {}
    asks = setup.specs[owner].settings.requires_confirmation
    return {
        "name": str(raw.get("title") or hints.get("title") or own),
        "description": str(raw.get("description") or ""),
        "requires_confirmation": hints.get("destructiveHint") is True if asks is None else asks,
        "renderer": None,
    }


async def allow_servers(
    gateway: Gateway, toolset_id: str, digests: Mapping[str, str], by: str
) -> tuple[ToolsetInfo, dict[str, str]]:
    """Record consent to servers, by the digests that were shown, and connect to each once. Returns the toolset, and
    for each server how many tools it has or why it did not answer."""
    upstreams = await gateway.allow_servers(toolset_id, digests, by)
    results = {}
    for name in digests:
        upstream = upstreams.get(name)
        if upstream is None:
            results[name] = "it is off"
        elif upstream.known:
            results[name] = f"{len(upstream.tools)} tools"
        else:
            results[name] = f"it does not answer: {upstream.error or 'not yet'}"
    return await show_toolset(gateway, toolset_id), results


async def disallow_servers(gateway: Gateway, toolset_id: str) -> list[str]:
    """Withdraw consent to the servers of a toolset; their names."""
    installed = await gateway.toolsets.library.disallow_servers(toolset_id)
    return [server.id for server in installed.servers]


def create_toolset(directory: Path, toolset_id: str | None = None) -> list[Path]:
    """Write the files of a new toolset."""
    return list(write_scaffold(directory, toolset_id))


async def add_installed(gateway: Gateway, installed: InstalledToolset) -> ToolsetInfo:
    """Offer the tools of an installed toolset, and describe it."""
    await gateway.refresh()
    return await _describe(gateway, installed)


async def _describe(gateway: Gateway, installed: InstalledToolset) -> ToolsetInfo:
    """Describe a toolset. Tools that categories or the profile withhold have the reason and the remedy."""
    tools = tuple(
        [_with_reason(gateway.catalog, tool) for tool in await gateway.toolsets.source.describe_tools(installed)]
    )
    return ToolsetInfo(installed, tools, tuple(gateway.toolsets.secrets.names(secrets_owner(installed.id))))


def _with_reason(catalog: Catalog, tool: Tool) -> Tool:
    if tool.withheld is not None or catalog.get(tool.id) is not None:
        return tool
    refusal = catalog.refusal(tool.id)
    return tool if refusal.code == "UNKNOWN_TOOL" else replace(tool, withheld=refusal.message)


def _server_info(installed: InstalledToolset, server: Server) -> ServerInfo:
    consent = installed.consents.get(server.id)
    state = "off" if not server.enabled else "held back" if consent is None else "allowed"
    digest = installed.server_digest(server)
    if consent is None:
        return ServerInfo(server, state, digest)
    return ServerInfo(server, state, digest, consent.agreed_by, consent.agreed_at)


def _tool_dict(tool: Tool) -> dict[str, Any]:
    return {
        "id": tool.id,
        "title": tool.title,
        "description": tool.description,
        "category": tool.category,
        "permission": tool.permission.value,
        "requires_confirmation": bool(tool.requires_confirmation),
        "renderer": tool.renderer.kind if tool.renderer else None,
        "withheld": tool.withheld,
    }


@contextmanager
def _replace_file(target: Path) -> Iterator[Path]:
    """A file beside the target that replaces it once it is complete."""
    if target.is_dir():
        raise Invalid(f"{str(target)!r} is a folder; name a file to write")
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        yield temporary
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
