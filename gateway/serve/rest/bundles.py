"""Bundles and tools by slug and version, under `/tools`: toolsets and builtins, in camelCase bodies."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field, JsonValue
from pydantic.alias_generators import to_camel

from gateway.admin import bundles
from gateway.admin.bundles import BundleInfo, BundleTool
from gateway.bundles import ToolSpec
from gateway.bundles.field_types import check_label, check_slug
from gateway.errors import Invalid
from gateway.serve.rest.endpoint import (
    PAGE_LIMIT,
    AnswerModel,
    Endpoint,
    Reply,
    RequestModel,
    RestRequest,
    decode_token,
    encode_token,
    slice_items,
)
from gateway.serve.rest.tools import CALL_ERRORS, Chat, build_call, encode_outcome
from gateway.tools import Permission

_UUID7 = r"^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$"
BundleId = Annotated[str, Field(pattern=_UUID7, description="A UUIDv7.")]
Slug = Annotated[
    str,
    Field(min_length=1, max_length=64, description="Letters and digits of any script, and dashes."),
    AfterValidator(check_slug),
]
Version = Annotated[
    str,
    Field(min_length=1, max_length=64, description="A label: letters, digits, dashes and dots. It has no order."),
    AfterValidator(check_label),
]
DisplayName = Annotated[str, Field(min_length=1, max_length=200)]
Description = Annotated[str, Field(max_length=8192)]
Tag = Annotated[str, Field(min_length=1, max_length=200)]
PageSize = Annotated[int, Field(ge=1, le=PAGE_LIMIT)]
PageToken = Annotated[str | None, Field(min_length=1, max_length=2000)]
_BASE_FIELDS = frozenset(["type", *ToolSpec.model_fields]) | frozenset(map(to_camel, ToolSpec.model_fields))


def _alias(name: str) -> str:
    return to_camel(name).replace("Id", "ID") if name in ("bundle_id", "bundle_ids") else to_camel(name)


class CamelBody(RequestModel):
    model_config = ConfigDict(alias_generator=_alias)


class CamelAnswer(AnswerModel):
    model_config = ConfigDict(alias_generator=_alias)


class BundleBody(CamelBody):
    slug: Slug
    display_name: DisplayName
    is_enabled: bool = True
    description: Description = ""


class EnabledBody(CamelBody):
    is_enabled: bool


class HttpRequestBody(CamelBody):
    """A request, as an HTTP tool of `toolset.yaml` declares it. `${name}` is an argument, or an environment variable
    where it is in capitals."""

    model_config = ConfigDict(extra="allow")

    url_template: Annotated[str, Field(pattern=r"^https?://", max_length=8192)]
    method: Annotated[str, Field(max_length=10)] = "GET"
    query: dict[str, JsonValue] = {}
    headers: dict[str, JsonValue] = {}
    body: JsonValue = None
    auth: dict[str, JsonValue] | None = None
    timeout_ms: Annotated[int | None, Field(alias="timeoutMS", ge=1, le=3_600_000)] = None


class HttpResponseBody(CamelBody):
    """The part of the response that is the value. Without `successCodes`, 2xx are success."""

    model_config = ConfigDict(extra="allow")

    success_codes: list[Annotated[int, Field(ge=100, le=599)]] = []
    error_mode: Literal["fail", "empty"] = "fail"
    body_output_mode: Literal["auto", "json", "text", "file", "image"] = "auto"


class HttpImpl(CamelBody):
    request: HttpRequestBody
    response: HttpResponseBody = HttpResponseBody()


class ToolBody(CamelBody):
    """A tool. `httpImpl`, `shellImpl` or `stepsImpl` belongs to its type; the latter two have the keys of such a tool
    in `toolset.yaml`. Python tools come with a bundle's ZIP file: POST /api/toolsets/import."""

    display_name: DisplayName
    description: Description = ""
    tags: Annotated[list[Tag], Field(max_length=32)] = []
    arg_schema: dict[str, JsonValue]
    output_schema: dict[str, JsonValue] | None = None
    type: Literal["http", "shell", "steps", "python"]
    http_impl: HttpImpl | None = None
    shell_impl: dict[str, JsonValue] | None = None
    steps_impl: dict[str, JsonValue] | None = None
    is_enabled: bool = True
    requires_confirmation: bool | None = None
    category: Annotated[str | None, Field(max_length=64)] = None
    permission: Permission | None = None


class ArgumentsBody(CamelBody):
    args: dict[str, JsonValue] = {}


class BundleAnswer(CamelAnswer):
    id: str
    slug: str
    display_name: str
    description: str
    is_enabled: bool
    is_built_in: bool
    created_at: str
    modified_at: str
    soft_deleted_at: str | None


class ToolAnswer(CamelAnswer):
    """`name` is the one MCP clients call, null while the tool is not offered."""

    id: str
    slug: str
    version: str
    bundle_id: str
    name: str | None
    display_name: str
    description: str
    tags: list[str]
    arg_schema: dict[str, Any]
    output_schema: dict[str, Any] | None
    type: str
    http_impl: dict[str, Any] | None = None
    shell_impl: dict[str, Any] | None = None
    steps_impl: dict[str, Any] | None = None
    is_enabled: bool
    is_built_in: bool
    requires_confirmation: bool
    category: str
    permission: str
    created_at: str
    modified_at: str
    last_called_at: str | None
    call_count: int


class BundlePage(CamelAnswer):
    items: list[BundleAnswer]
    next_page_token: str | None


class BundleToolPage(CamelAnswer):
    items: list[ToolAnswer]
    next_page_token: str | None


class ValueAnswer(AnswerModel):
    ok: Literal[True]
    value: Any


class BundleQuery(CamelBody):
    bundle_ids: list[str] = []
    include_disabled: bool = False
    page_size: PageSize = 25
    page_token: PageToken = None


class BundleToolQuery(CamelBody):
    tags: Annotated[list[str], Field(description="Tools with any of these.")] = []
    bundle_ids: list[str] = []
    include_disabled: bool = False
    recommended_page_size: PageSize = 25
    page_token: PageToken = None


class BundleSearchQuery(CamelBody):
    q: Annotated[str, Field(min_length=1, max_length=200)]
    include_disabled: bool = False
    page_size: PageSize = 25
    page_token: PageToken = None


class InvokeQuery(CamelBody):
    chat: Chat | None = None


async def list_bundles(request: RestRequest, query: BundleQuery) -> object:
    """List bundles: toolsets, and the builtins of each category"""
    chosen = _choose_bundles(await bundles.list_bundles(request.gateway), query.bundle_ids, query.include_disabled)
    if request.principal.access is not None:
        owners = {tool.bundle_id for tool in _visible(request, await bundles.list_tools(request.gateway, chosen))}
        chosen = [bundle for bundle in chosen if bundle.id in owners]
    return slice_items(chosen, lambda bundle: bundle.id, query.page_token, query.page_size, "bundles")


async def put_bundle(request: RestRequest, bundle_id: BundleId, body: BundleBody) -> object:
    """Create a bundle, or replace its slug, name, description and switch

    Its tools stay as they are. A soft-deleted bundle comes back.
    """
    values = body.slug, body.display_name, body.description, body.is_enabled
    bundle, created = await bundles.put_bundle(request.gateway, bundle_id, *values)
    return Reply(bundle, status=201 if created else 200)


async def patch_bundle(request: RestRequest, bundle_id: BundleId, body: EnabledBody) -> object:
    """Turn a bundle on or off"""
    return await bundles.enable_bundle(request.gateway, bundle_id, body.is_enabled)


async def delete_bundle(request: RestRequest, bundle_id: BundleId) -> object:
    """Soft-delete a bundle

    It and its tools are gone for every client. PUT brings it back; an empty one is removed for good after two days.
    """
    return await bundles.delete_bundle(request.gateway, bundle_id)


async def put_bundle_tool(
    request: RestRequest, bundle_id: BundleId, slug: Slug, version: Version, body: ToolBody
) -> object:
    """Add a tool to a bundle

    Refused with 409 when the bundle has that slug and version, and when the gateway has as many tools as `limits.tools`
    allows and the tool is not off.
    """
    tool = await bundles.put_tool(request.gateway, bundle_id, slug, version, _to_declaration(body))
    return _describe(request, tool)


async def patch_bundle_tool(
    request: RestRequest, bundle_id: BundleId, slug: Slug, version: Version, body: EnabledBody
) -> object:
    """Turn a tool on or off"""
    return _describe(request, await bundles.enable_tool(request.gateway, bundle_id, slug, version, body.is_enabled))


async def delete_bundle_tool(request: RestRequest, bundle_id: BundleId, slug: Slug, version: Version) -> object:
    """Delete a tool for good"""
    await bundles.delete_tool(request.gateway, bundle_id, slug, version)
    return None


async def get_bundle_tool(request: RestRequest, bundle_id: BundleId, slug: Slug, version: Version) -> object:
    """Get a tool"""
    access = request.principal.access
    return _describe(request, await bundles.find_tool(request.gateway, bundle_id, slug, version, access))


async def invoke_bundle_tool(
    request: RestRequest, bundle_id: BundleId, slug: Slug, version: Version, query: InvokeQuery, body: ArgumentsBody
) -> object:
    """Call a tool

    Arguments that do not fit `argSchema` are refused with 400. See also POST /api/tools/{tool_id}/invoke.
    """
    access = request.principal.access
    tool_id = await bundles.find_tool_id(request.gateway, bundle_id, slug, version, access)
    call = build_call(request, tool_id, body.args, query.chat)
    outcome = await request.gateway.approval_flow.call_tool(call)
    if outcome.error is not None:
        return encode_outcome(call, outcome)
    return Reply(encoded=b'{"ok":true,"value":%b}' % outcome.value_json)


async def list_bundle_tools(request: RestRequest, query: BundleToolQuery) -> object:
    """List the tools of all bundles"""
    chosen = _choose_bundles(await bundles.list_bundles(request.gateway), query.bundle_ids, query.include_disabled)
    tools = _choose_tools(request, await bundles.list_tools(request.gateway, chosen), query.include_disabled)
    tags = frozenset(_split(query.tags))
    tools = [tool for tool in tools if not tags or tags.intersection(tool.tool.tags)]
    page = slice_items(tools, lambda tool: tool.id, query.page_token, query.recommended_page_size, "bundle-tools")
    return page | {"items": [_describe(request, tool) for tool in page["items"]]}


async def search_bundle_tools(request: RestRequest, query: BundleSearchQuery) -> object:
    """Search the tools of all bundles

    Those whose slug or name begins with the text come first, then those with its words, then similar ones; in each
    of these the most relevant first, among equals the last modified.
    """
    chosen = _choose_bundles(await bundles.list_bundles(request.gateway), [], query.include_disabled)
    tools = _choose_tools(request, await bundles.list_tools(request.gateway, chosen), query.include_disabled)
    ranked = await bundles.rank_tools(request.gateway, tools, query.q)
    last = decode_token("search", query.page_token)
    start = 0 if last is None else _find_place(ranked, last)
    items = [_describe(request, tool) for tool in ranked[start : start + query.page_size]]
    end = start + len(items)
    token = encode_token("search", f"{end} {ranked[end - 1].id}") if end < len(ranked) else None
    return {"items": items, "next_page_token": token}


def _find_place(ranked: Sequence[BundleTool], last: str) -> int:
    """Return the place after the last tool of a page, or the one that it had if it is gone."""
    place, _, tool_id = last.partition(" ")
    if not place.isdecimal() or len(place) > 9:
        raise Invalid("the page token is not one of this list; begin without one", code="INVALID_PAGE_TOKEN")
    return next((at for at, tool in enumerate(ranked, 1) if tool.id == tool_id), max(0, int(place) - 1))


def _choose_bundles(found: Iterable[BundleInfo], ids: Iterable[str], include_disabled: bool) -> list[BundleInfo]:
    wanted = frozenset(_split(ids))
    return [
        bundle for bundle in found if (bundle.is_enabled or include_disabled) and (not wanted or bundle.id in wanted)
    ]


def _split(values: Iterable[str]) -> list[str]:
    """Return the values of a parameter that is given several times, or once with commas."""
    return [part.strip() for value in values for part in value.split(",") if part.strip()]


def _choose_tools(request: RestRequest, found: Iterable[BundleTool], include_disabled: bool) -> list[BundleTool]:
    """Return the tools that the caller may see; those that are off, and those that the gateway withholds for another
    reason, only if they are wanted. One that another process has just made is not known to the catalog yet."""
    catalog = request.gateway.catalog

    def is_offered(tool: BundleTool) -> bool:
        known = catalog.get(tool.tool_id) is not None or catalog.refusal(tool.tool_id).code == "UNKNOWN_TOOL"
        return tool.is_enabled and known

    return [tool for tool in _visible(request, found) if include_disabled or is_offered(tool)]


def _visible(request: RestRequest, tools: Iterable[BundleTool]) -> list[BundleTool]:
    return bundles.choose_visible(tools, request.principal.access)


def _to_declaration(body: ToolBody) -> dict[str, Any]:
    """Return a tool as `toolset.yaml` would declare it; refused when the implementation is not that of its type."""
    if body.type == "python":
        raise Invalid(
            "a Python tool comes with its code, in the ZIP file of a bundle; POST it to /api/toolsets/import",
            code="PYTHON_NEEDS_BUNDLE",
        )
    given = {"http": body.http_impl, "shell": body.shell_impl, "steps": body.steps_impl}
    for kind, impl in given.items():
        if (impl is not None) != (kind == body.type):
            problem = "is required for" if kind == body.type else "does not belong to"
            raise Invalid(f"'{kind}Impl' {problem} a tool of type {body.type!r}", code="INVALID_REQUEST")
    impl = body.http_impl
    values = _flatten(impl) if impl is not None else dict(given[body.type] or {})
    if wrong := sorted(_BASE_FIELDS.difference(("timeout",)).intersection(values)):
        raise Invalid(f"{wrong[0]!r} belongs beside '{body.type}Impl', not into it", code="INVALID_REQUEST")
    optional = {
        "output_schema": body.output_schema,
        "requires_confirmation": body.requires_confirmation,
        "category": body.category,
        "permission": body.permission,
    }
    return {
        **values,
        "type": body.type,
        "name": body.display_name,
        "description": body.description,
        "tags": body.tags,
        "input_schema": body.arg_schema,
        "enabled": body.is_enabled,
        **{key: value for key, value in optional.items() if value is not None},
    }


def _flatten(impl: HttpImpl) -> dict[str, Any]:
    values = impl.request.model_dump(exclude_unset=True, exclude={"timeout_ms"})
    if impl.request.timeout_ms is not None:
        values["timeout"] = impl.request.timeout_ms / 1000
    response = impl.response.model_dump(exclude_unset=True)
    if "body_output_mode" in response:
        response["output"] = response.pop("body_output_mode")
    return {**values, "response": response}


def _describe(request: RestRequest, item: BundleTool) -> dict[str, Any]:
    tool, entry = item.tool, request.gateway.catalog.get(item.tool_id)
    return {
        **{name: getattr(item, name) for name in _SHARED},
        **_describe_implementation(item.spec),
        "name": entry.name if entry is not None else None,
        "description": tool.description,
        "tags": tool.tags,
        "arg_schema": tool.input_schema,
        "output_schema": tool.output_schema,
        "type": tool.kind if item.spec is None else item.spec.type,  # type: ignore[attr-defined]  # each kind has one
        "requires_confirmation": bool(tool.requires_confirmation),
        "category": tool.category,
        "permission": tool.permission.value,
    }


_SHARED = (
    *("id", "slug", "version", "bundle_id", "display_name", "is_enabled", "is_built_in"),
    *("created_at", "modified_at", "last_called_at", "call_count"),
)


def _describe_implementation(spec: ToolSpec | None) -> dict[str, Any]:
    kind = getattr(spec, "type", None)
    if spec is None or kind not in ("http", "shell", "steps"):
        return {}
    values = spec.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    own = {key: value for key, value in values.items() if key not in _BASE_FIELDS}
    if kind != "http":
        return {f"{kind}_impl": own}
    response = own.pop("response", {})
    if "output" in response:
        response["bodyOutputMode"] = response.pop("output")
    if spec.timeout is not None:
        own["timeoutMS"] = round(spec.timeout * 1000)
    return {"http_impl": {"request": own, "response": response}}


_BUNDLE = "/tools/bundles/{bundle_id}"
_TOOL = f"{_BUNDLE}/tools/{{slug}}/version/{{version}}"
ENDPOINTS = [
    Endpoint("GET", "/tools/bundles", list_bundles, BundlePage),
    Endpoint("PUT", _BUNDLE, put_bundle, BundleAnswer, admin=True, responses={201: BundleAnswer}, errors=(409,)),
    Endpoint("PATCH", _BUNDLE, patch_bundle, BundleAnswer, admin=True),
    Endpoint("DELETE", _BUNDLE, delete_bundle, BundleAnswer, admin=True, errors=(409,)),
    Endpoint("PUT", _TOOL, put_bundle_tool, ToolAnswer, status=201, admin=True, errors=(409,)),
    Endpoint("PATCH", _TOOL, patch_bundle_tool, ToolAnswer, admin=True, errors=(409,)),
    Endpoint("DELETE", _TOOL, delete_bundle_tool, admin=True, errors=(409,)),
    Endpoint("GET", _TOOL, get_bundle_tool, ToolAnswer, errors=(403,)),
    Endpoint("POST", f"{_TOOL}/invoke", invoke_bundle_tool, ValueAnswer, errors=CALL_ERRORS),
    Endpoint("GET", "/tools/tools", list_bundle_tools, BundleToolPage),
    Endpoint("GET", "/tools/tools/search", search_bundle_tools, BundleToolPage),
]
