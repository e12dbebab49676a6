"""Tools that only views may call: a call's render plan for hosts that do not pass it on, and the file that it shows,
and what a call changed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from gateway.calls import Call, Proceed, text_content, to_json
from gateway.catalog import mcp_tool
from gateway.errors import Conflict, Forbidden, GatewayError, Invalid
from gateway.executor import Executor
from gateway.serve.mcp.render_resources import RenderResources, ResourceReader
from gateway.serve.mcp.request import Request
from gateway.serve.mcp.results import ERROR
from gateway.serve.mcp.uris import RenderAddress, parse, render_uri
from gateway.tools import READ_RESOURCE, Permission, Tool
from gateway.workspace.globs import Selection
from gateway.workspace.history import history
from gateway.workspace.paths import parse as parse_path
from gateway.workspace.versions import Versions

# In the `_meta` of a result: the URI of its render plan, and the plan itself unless it is large.
RENDER = "dev.toolgate/render"

# Bytes of a plan above which a result only links to it: some hosts replace a long result by a pointer to a file.
PLAN_META_LIMIT = 64 * 1024

# Bytes of a text that a view saves.
SAVED_LIMIT = 1024 * 1024

# Versions among which the one of a call is looked for, the latest ones.
CHANGES_LIMIT = 100

_URI = {"type": "string", "description": "The render://… URI of a call's plan"}
_TOOLS = {
    tool.id: tool
    for tool in (
        Tool(
            "render_plan",
            "Return how to show the outcome of a call: of the plan with this URI, or of the latest call of a tool.",
            {
                "type": "object",
                "properties": {"uri": _URI, "tool": {"type": "string", "description": "Name of the tool"}},
                "additionalProperties": False,
            },
            title="Get render plan",
            permission=Permission.READ_ONLY,
            meta={"ui": {"visibility": ["app"]}},
        ),
        Tool(
            "view_read_file",
            "Return the file that a plan shows, as it is now, with the revision that a change is based on.",
            {"type": "object", "properties": {"uri": _URI}, "required": ["uri"], "additionalProperties": False},
            title="Read the shown file",
            permission=Permission.READ_ONLY,
            meta={"ui": {"visibility": ["app"]}},
        ),
        Tool(
            "view_write_file",
            "Save the file that a plan shows as editable, unless it has changed since the given revision.",
            {
                "type": "object",
                "properties": {
                    "uri": _URI,
                    "text": {"type": "string", "description": "The whole content"},
                    "base_revision": {"type": "string", "description": "The revision that the change is based on"},
                },
                "required": ["uri", "text", "base_revision"],
                "additionalProperties": False,
            },
            title="Save the shown file",
            permission=Permission.READ_WRITE,
            destructive=True,
            meta={"ui": {"visibility": ["app"]}},
        ),
        Tool(
            "view_changes",
            "Return what a call changed in the files of its chat, as a diff in git's format.",
            {
                "type": "object",
                "properties": {
                    "call": {"type": "string", "description": "Id of the call; default the latest that changed files"},
                },
                "additionalProperties": False,
            },
            title="Get changed files",
            permission=Permission.READ_ONLY,
            meta={"ui": {"visibility": ["app"]}},
        ),
    )
}
VIEW_TOOL_NAMES = frozenset(_TOOLS)
# As they are listed.
VIEW_TOOLS = {name: mcp_tool(name, tool) for name, tool in _TOOLS.items()}


def plan_meta(call_id: str, plan: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `_meta` of a result by which a view gets its plan at once."""
    document = {"uri": render_uri(call_id), "plan": plan}
    return {RENDER: document if len(to_json(document)) <= PLAN_META_LIMIT else {"uri": document["uri"]}}


class ViewTools:
    """Calls of views. A view names the plan it shows, which must be one that the caller may read; it changes no other
    file than that plan's, and only one that its tool declares as editable."""

    def __init__(
        self,
        executor: Executor,
        versions: Versions,
        renders: RenderResources,
        reader: Callable[[Request], ResourceReader],
        call_tool: Proceed,
    ) -> None:
        self.executor = executor
        self.versions = versions
        self._renders = renders
        self._reader = reader
        self._call_tool = call_tool
        self._calls: Mapping[str, Callable[[Request, Mapping[str, Any]], Awaitable[dict[str, Any]]]] = {
            "render_plan": self._render_plan,
            "view_read_file": self._read_file,
            "view_write_file": self._write_file,
            "view_changes": self._compare,
        }

    async def call(self, request: Request) -> dict[str, Any]:
        """Return the result of a view's call. As JSON text too: some hosts pass on nothing else."""
        name, arguments = request.params["name"], request.params.get("arguments") or {}
        try:
            _TOOLS[name].check_arguments(arguments)
            value = await self._calls[name](request, arguments)
        except GatewayError as error:
            meta = {ERROR: error.to_dict()}
            return {"resultType": "complete", "isError": True, "content": text_content(str(error)), "_meta": meta}
        if value.get("resultType") == "input_required":
            return value
        text = text_content(to_json(value).decode())
        return {"resultType": "complete", "isError": False, "content": text, "structuredContent": value}

    async def _render_plan(self, request: Request, arguments: Mapping[str, Any]) -> dict[str, Any]:
        reader = self._reader(request)
        if ("uri" in arguments) == ("tool" in arguments):
            raise Invalid("render_plan: it takes 'uri' or 'tool', one of them")
        if "uri" in arguments:
            return await self._renders.describe(reader, _call_id(arguments))
        return await self._renders.describe(reader, await self._renders.find_latest(reader, arguments["tool"]))

    async def _read_file(self, request: Request, arguments: Mapping[str, Any]) -> dict[str, Any]:
        described = await self._renders.describe(self._reader(request), _call_id(arguments))
        path, _ = _shown_file(described)
        return {"path": path, "content": described["content"]}

    async def _write_file(self, request: Request, arguments: Mapping[str, Any]) -> dict[str, Any]:
        # Imported here: few processes ever save a file of a view.
        from gateway.admin.chat_files import ChatFiles

        reader = self._reader(request)
        described = await self._renders.describe(reader, _call_id(arguments))
        path, chat = _shown_file(described)
        if described["plan"]["config"].get("editable") is not True:
            raise Forbidden(f"view_write_file: the tool does not declare {path!r} as editable", code="NOT_EDITABLE")
        content = arguments["text"].encode()
        if len(content) > SAVED_LIMIT:
            raise Invalid(f"view_write_file: a view saves at most {SAVED_LIMIT} bytes, not {len(content)}")

        def check(etag: str | None) -> None:
            current = None if etag is None else etag.strip('"')
            if current != arguments["base_revision"]:
                message = f"{path!r} has changed since it was read; look at it again before you save"
                raise Conflict(message, revision=current)

        if self.versions.attached_folder(chat) is not None:
            check(await self._read_revision(chat, path))
            return await self._write_attached(request, path, chat)
        written = await ChatFiles(self, chat, reader.caller, admin=False).write_file(path, content, check)
        saved = {"path": path, "revision": written.etag.strip('"'), "manifest": written.manifest_id}
        return {**saved, "size": written.size}

    async def _write_attached(self, request: Request, path: str, chat: str) -> dict[str, Any]:
        """Save a file of an attached folder by the tool that writes files, so that a person is asked in the client's
        way. The answer counts for the difference that is shown: if the file changes meanwhile, it is asked again."""
        entry = self.executor.catalog.for_principal(request.caller.access).get("write_file")
        if entry is None or entry.tool.kind != "builtin":
            raise Forbidden("view_write_file: write_file is not offered here, and so no view saves files")
        arguments = {"path": path, "content": request.params["arguments"]["text"]}
        call = Call(name=entry.name, arguments=arguments, chat=chat, caller=request.caller, client=request.client)
        outcome = await self._call_tool(call)
        if outcome.wire is not None and outcome.wire.get("resultType") == "input_required":
            return dict(outcome.wire)
        if outcome.error is not None:
            raise outcome.error
        revision = await self._read_revision(chat, path)
        saved = {"path": path, "revision": (revision or "").strip('"'), "manifest": outcome.post_manifest}
        return {**saved, "size": outcome.value["size"]}

    async def _read_revision(self, chat: str, path: str) -> str | None:
        def read() -> str | None:
            with self.versions.root(chat) as root:
                return root.revision(parse_path(path))

        return await self.versions.in_thread(read)

    async def _compare(self, request: Request, arguments: Mapping[str, Any]) -> dict[str, Any]:
        reader = self._reader(request)
        call = reader.call("resources/read", reader.chat, arguments, confirmed=True)

        async def compare() -> dict[str, Any]:
            return await self._compare_call(reader, arguments.get("call"))

        return await self.executor.request(call, READ_RESOURCE, compare)

    async def _compare_call(self, reader: ResourceReader, call_id: str | None) -> dict[str, Any]:
        versions, chat = self.versions, reader.chat
        is_readable = reader.allows(READ_RESOURCE) and await versions.may_read(chat, reader.principal)
        latest = await history(versions, chat, limit=CHANGES_LIMIT) if is_readable else []
        version = next((each for each in latest if call_id in (None, each.source_ref)), None)
        if version is None:
            return {"diff": "", "truncated": False}
        old, new = [await versions.tree(chat, manifest) for manifest in (version.parent, version.id)]
        selection = Selection((), self.executor.hides(READ_RESOURCE))
        found = await versions.compare(chat, old, new, selection)
        return {"from": version.parent, "to": version.id, "diff": found.text, "truncated": found.truncated}


def _call_id(arguments: Mapping[str, Any]) -> str:
    address = parse(arguments["uri"])
    if not isinstance(address, RenderAddress):
        raise Invalid(f"{arguments['uri'][:200]!r} is not the URI of a render plan")
    return address.call_id


def _shown_file(described: Mapping[str, Any]) -> tuple[str, str]:
    """Return the path and the chat of the file that a plan shows."""
    plan = described["plan"]
    if "file" not in plan.get("config", {}) or "content" not in described:
        raise Invalid("this plan shows no file", code="FILE_NOT_FOUND")
    return plan["config"]["file"], plan["call"]["chat"]
