"""The gateway itself over REST: categories, keys, search, health, problems, usage and settings."""

from __future__ import annotations

from dataclasses import asdict
from datetime import date
from typing import Annotated, Any, Literal

from pydantic import Field

from gateway.admin import health, keys, search, switches, usage
from gateway.config import describe
from gateway.mcp_client.connect import ignore_step
from gateway.secrets import KNOWN
from gateway.serve.rest.endpoint import (
    AnswerModel,
    Endpoint,
    ErrorInfo,
    ListPage,
    PageQuery,
    RequestModel,
    RestRequest,
    slice_page,
)


class CategoryInfo(AnswerModel):
    """`tools` is the number of its tools that are on; `changed` says whether it differs from the settings."""

    id: str
    name: str
    description: str
    enabled: bool
    permission: Literal["read-only", "read-write", "execute"]
    calls_per_minute: int | None
    tools: int
    changed: bool


class CategoryChanges(RequestModel):
    """Changes to a category; `calls_per_minute: 0` means no limit."""

    enabled: bool | None = None
    permission: Literal["read-only", "read-write", "execute"] | None = None
    calls_per_minute: Annotated[int | None, Field(ge=0, le=10**9)] = None
    name: Annotated[str | None, Field(min_length=1, max_length=100)] = None
    description: Annotated[str | None, Field(max_length=500)] = None


class SearchQuery(RequestModel):
    q: Annotated[str, Field(min_length=1, max_length=200)]
    limit: Annotated[int, Field(ge=1, le=100)] = 20
    include_disabled: bool = False


class SearchMatch(AnswerModel):
    """`enabled` is false for a tool that is not offered."""

    kind: Literal["tool", "toolset", "upstream", "category"]
    id: str
    name: str
    description: str
    enabled: bool


class SearchAnswer(AnswerModel):
    items: list[SearchMatch]


class CheckInfo(AnswerModel):
    """The state of one part. `name` is that of an upstream server, `since` when a problem began."""

    subject: str
    state: Literal["ok", "note", "fail"]
    message: str
    name: str | None
    since: str | None


class HealthEventInfo(AnswerModel):
    """A problem of a gateway on this data directory; `ended_at` is null while it lasts."""

    id: str
    subject: str
    name: str | None
    message: str
    began_at: str
    ended_at: str | None


class HealthAnswer(AnswerModel):
    """`ok` is false if a check failed; each message says what to do. `events` are the latest problems, those that last
    first."""

    ok: bool
    checks: list[CheckInfo]
    events: list[HealthEventInfo]


class HealthQuery(RequestModel):
    upstreams: Annotated[bool, Field(description="Connect to the upstream servers too, which takes a while.")] = False


class UsageInfo(AnswerModel):
    """Counts of calls that have ended. What they are not grouped by is null."""

    day: str | None
    tool: Annotated[str | None, Field(description="An id; `unknown` for names that no tool has.")]
    server: Annotated[str | None, Field(description="An upstream server, a toolset, or `builtin`.")]
    principal: str | None
    calls: int
    errors: int
    refused: Annotated[int, Field(description="Of the errors: calls that were refused or cancelled.")]
    mean_ms: float
    longest_ms: float
    args_bytes: int
    result_bytes: int


class UsageAnswer(AnswerModel):
    """Counts from `since` to `until`, both included, in UTC. With `more`, there are groups beyond the limit."""

    since: str
    until: str
    total: UsageInfo
    items: list[UsageInfo]
    more: bool


class UsageQuery(RequestModel):
    by: Annotated[
        list[Literal["day", "tool", "server", "principal"]],
        Field(max_length=4, description="What to group by; give it again for more."),
    ] = ["tool"]
    since: Annotated[date | None, Field(description="The first day; without it six days before the last one.")] = None
    until: Annotated[date | None, Field(description="The last day; without it today.")] = None
    tool: Annotated[str | None, Field(min_length=1, max_length=200, description="An id or a name.")] = None
    server: Annotated[str | None, Field(min_length=1, max_length=200)] = None
    principal: Annotated[str | None, Field(min_length=1, max_length=200, description="For administrators.")] = None
    limit: Annotated[int, Field(ge=1, le=usage.LIMIT)] = 100


class SettingInfo(AnswerModel):
    key: str
    value: Any


class KeyInfo(AnswerModel):
    """A key without its secret; `hint` is the beginning that people recognise it by."""

    id: str
    name: str
    role: str
    profile: str | None
    hint: str
    status: Literal["active", "expired", "revoked"]
    created_at: str
    created_by: str
    expires_at: str | None
    last_used_at: str | None
    revoked_at: str | None


class NewKey(RequestModel):
    name: Annotated[str, Field(min_length=1, max_length=100)]
    role: Annotated[str | None, Field(min_length=1, max_length=100)] = None
    profile: Annotated[str | None, Field(min_length=1, max_length=100)] = None
    days: Annotated[float | None, Field(gt=0, le=36_500, description="Until it expires.")] = None


class CreatedKey(AnswerModel):
    """`secret` is shown once."""

    key: KeyInfo
    secret: str


async def list_categories(request: RestRequest, query: PageQuery) -> object:
    """List categories of tools; all for administrators, those of the tools that you may call otherwise"""
    gateway, principal = request.gateway, request.principal
    catalog = gateway.catalog.for_principal(principal.access)
    changed = await gateway.switches.load_categories()
    described = [
        {**switches.describe_category(each, catalog), "changed": each.name in changed}
        for each in switches.list_categories(gateway)
    ]
    found = [each for each in described if principal.admin or each["tools"]]
    return slice_page(found, lambda each: str(each["id"]), query, "categories")


async def change_category(request: RestRequest, category_id: str, body: CategoryChanges) -> object:
    """Change a category; what is changed here wins over settings and flags"""
    changes = {name: value for name, value in body.model_dump().items() if value is not None}
    if not changes:
        return await _describe_category(request, category_id)
    await switches.change_category(request.gateway, category_id, changes)
    return await _describe_category(request, category_id)


async def reset_category(request: RestRequest, category_id: str) -> object:
    """Undo the changes to a category"""
    await switches.change_category(request.gateway, category_id, {})
    return await _describe_category(request, category_id)


async def _describe_category(request: RestRequest, category_id: str) -> dict[str, Any]:
    gateway = request.gateway
    described = switches.describe_category(switches.find_category(gateway, category_id), gateway.catalog)
    return {**described, "changed": category_id in await gateway.switches.load_categories()}


async def list_keys(request: RestRequest, query: PageQuery) -> object:
    """List keys, the oldest first"""
    found = await keys.list_keys(request.gateway)
    return slice_page(found, lambda key: f"{key.created_at} {key.id}", query, "keys")


async def create_key(request: RestRequest, body: NewKey) -> object:
    """Make a key"""
    given = {} if body.role is None else {"role": body.role}
    key, secret = await keys.create_key(
        request.gateway, body.name, **given, profile=body.profile, days=body.days, by=request.principal.id
    )
    return {"key": key, "secret": secret}


async def revoke_key(request: RestRequest, key_id: str) -> object:
    """Revoke a key; the next request with it is refused"""
    await keys.revoke_key(request.gateway, key_id)
    return None


async def search_everything(request: RestRequest, query: SearchQuery) -> object:
    """Search tools; administrators also find toolsets, upstream servers and categories"""
    who = request.principal
    found = await search.search(
        request.gateway, query.q, who.access, who.admin, query.limit, query.include_disabled and who.admin
    )
    return {"items": found}


async def get_health(request: RestRequest, query: HealthQuery) -> object:
    """Check the machine, each part of the gateway, its tools and, on request, the upstream servers"""
    gateway = request.gateway
    checks = await health.check_health(gateway, probe=ignore_step if query.upstreams else None)
    events = await gateway.health.list_events()
    masked = KNOWN.mask_value([asdict(check) for check in checks])
    return {"ok": all(check.state != "fail" for check in checks), "checks": masked, "events": events}


async def list_problems(request: RestRequest, query: PageQuery) -> object:
    """List problems with tools that an operator should correct"""
    problems = {str(problem): problem.to_dict() for problem in request.gateway.catalog.problems}
    page = slice_page(problems, str, query, "problems")
    return {**page, "items": [problems[key] for key in page["items"]]}


async def report_usage(request: RestRequest, query: UsageQuery) -> object:
    """Count calls, errors, durations and bytes; of all for administrators, your own otherwise"""
    return await usage.report_usage(
        request.gateway,
        query.by,
        since=query.since,
        until=query.until,
        tool=query.tool,
        server=query.server,
        principal=query.principal if request.principal.admin else request.principal.id,
        limit=query.limit,
    )


async def list_settings(request: RestRequest, query: PageQuery) -> object:
    """List the settings in effect, with secrets masked"""
    found = [{"key": setting.key, "value": setting.value} for setting in describe(request.gateway.settings)]
    return slice_page(found, lambda setting: str(setting["key"]), query, "settings")


_CATEGORY = "/api/categories/{category_id}"
CATEGORY_ENDPOINTS = [
    Endpoint("GET", "/api/categories", list_categories, ListPage[CategoryInfo]),
    Endpoint("PATCH", _CATEGORY, change_category, CategoryInfo, admin=True),
    Endpoint("DELETE", _CATEGORY, reset_category, CategoryInfo, admin=True),
]
KEY_ENDPOINTS = [
    Endpoint("GET", "/api/keys", list_keys, ListPage[KeyInfo], admin=True),
    Endpoint("POST", "/api/keys", create_key, CreatedKey, status=201, admin=True, errors=(404, 409)),
    Endpoint("DELETE", "/api/keys/{key_id}", revoke_key, admin=True, errors=(409,)),
]
SYSTEM_ENDPOINTS = [
    Endpoint("GET", "/api/search", search_everything, SearchAnswer),
    Endpoint("GET", "/api/health", get_health, HealthAnswer, admin=True),
    Endpoint("GET", "/api/usage", report_usage, UsageAnswer),
    Endpoint("GET", "/api/problems", list_problems, ListPage[ErrorInfo], admin=True),
    Endpoint("GET", "/api/settings", list_settings, ListPage[SettingInfo], admin=True),
]
