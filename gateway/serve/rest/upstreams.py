"""Upstream servers over REST: add, test, switch, review, secrets and logins."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, JsonValue
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData

from gateway.admin import server_registry, upstream_import, upstream_packages, upstream_review, upstreams
from gateway.bundles.mcpb import SUFFIX
from gateway.errors import GatewayError, Invalid
from gateway.secrets import KNOWN
from gateway.serve.rest.endpoint import (
    AnswerModel,
    Endpoint,
    ErrorInfo,
    ListPage,
    PageQuery,
    RequestModel,
    RestRequest,
    refuse_unreachable,
    slice_page,
)
from gateway.serve.rest.toolsets import SecretBody, Switch, save_upload

Subject = Annotated[str, Field(pattern=r"^[^:]+:.+@[0-9a-f]{8,64}$", max_length=1000)]


class UpstreamTool(AnswerModel):
    name: str
    state: str
    reason: str | None
    description: str
    category: str
    permission: str


class UpstreamSummary(AnswerModel):
    """A server as it was when it last answered. `missing` are variables without a value, `waiting` counts definitions
    that wait for review."""

    name: str
    state: str
    era: str | None
    origin: str
    transport: str
    sandbox: str
    seen_at: str | None
    error: str | None
    missing: list[str]
    tool_count: int
    offered: int
    waiting: int


class UpstreamAnswer(UpstreamSummary):
    """`settings` are as in `mcpServers`, `secrets` the names of those that are kept."""

    tools: list[UpstreamTool]
    settings: dict[str, Any]
    secrets: list[str]


class ProbeAnswer(AnswerModel):
    """`result` is what the server has, or `error` why it did not answer; both are null if it was not tested."""

    ok: bool
    result: dict[str, Any] | None
    error: ErrorInfo | None


class NewUpstream(RequestModel):
    """`settings` are as in `mcpServers`; write secrets as `${VARIABLE}` and their values into `secrets`."""

    name: Annotated[str, Field(min_length=1, max_length=64)]
    settings: Annotated[dict[str, JsonValue], Field(max_length=50)]
    secrets: Annotated[dict[str, str], Field(max_length=50)] = {}
    test: bool = True


class PastedSettings(RequestModel):
    """The text of a client's settings file, such as one with `mcpServers`. `keep` keeps the secrets in it."""

    text: Annotated[str, Field(min_length=1, max_length=1_000_000)]
    replace: bool = False
    keep: bool = True
    dry_run: bool = False


class ImportedServer(AnswerModel):
    """`outcome` is imported, replaced or skipped, after `would be` in a dry run; `missing` are variables without a
    value."""

    name: str
    outcome: str
    reason: str | None
    settings: dict[str, Any] | None
    variables: list[str]
    missing: list[str]


class RegistryQuery(RequestModel):
    search: Annotated[str, Field(max_length=200)] = ""
    limit: Annotated[int, Field(ge=1, le=server_registry.SEARCH_LIMIT)] = 20
    page_token: Annotated[str | None, Field(max_length=1000)] = None


class PackageChoice(AnswerModel):
    """A package or address of a server; `problem` is the reason why it cannot be used here."""

    kind: str
    label: str
    problem: str | None


class RegisteredServer(AnswerModel):
    name: str
    title: str | None
    description: str
    version: str
    status: str | None
    repository: str | None
    choices: list[PackageChoice]


class WantedPlan(RequestModel):
    """Either a server of the registry, or the SHA-256 of an uploaded `.mcpb` file. `values` are what it asks for; of
    secrets any text, since only the names of their variables are in the plan."""

    registered: Annotated[str, Field(min_length=1, max_length=300)] | None = None
    package: Literal["npm", "pypi", "oci", "mcpb", "remote"] | None = None
    bundle: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None
    name: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    values: Annotated[dict[str, Annotated[list[str], Field(max_length=100)]], Field(max_length=100)] = {}


class PlanInput(AnswerModel):
    """A value that the package asks for; one with a `variable` is sent with the secrets of the server."""

    name: str
    title: str
    description: str
    type: str
    required: bool
    secret: bool
    multiple: bool
    default: list[str]
    choices: list[str]
    variable: str


class PlanLine(AnswerModel):
    label: str
    text: str


class PlanAnswer(AnswerModel):
    """A plan of what a package would run. Nothing is added: send `name` and `settings` to `/api/upstreams` for that."""

    name: str
    title: str
    version: str
    description: str
    source: str
    settings: dict[str, Any]
    inputs: list[PlanInput]
    notes: list[str]
    lines: list[PlanLine]


class AddedUpstream(AnswerModel):
    upstream: UpstreamAnswer
    probe: ProbeAnswer


class ReviewInfo(AnswerModel):
    """A definition to decide on; name it `kind:name@digest`."""

    server: str
    kind: str
    name: str
    state: str
    digest: str
    accepted_digest: str | None
    held_at: str | None
    difference: str
    findings: list[dict[str, Any]]


class ReviewBody(RequestModel):
    """Definitions as `kind:name@digest`, by the digests that were shown."""

    subjects: Annotated[list[Subject], Field(min_length=1, max_length=1000)]


class LogQuery(RequestModel):
    lines: Annotated[int, Field(ge=1, le=1000)] = 100


class LogAnswer(AnswerModel):
    lines: list[str]


class LoginAnswer(AnswerModel):
    """The address to open in a browser on the gateway's machine; the server's state shows when the login is done."""

    url: str


async def list_upstreams(request: RestRequest, query: PageQuery) -> object:
    """List upstream servers"""
    infos = await upstreams.list_upstreams(request.gateway)
    return slice_page([info.to_dict() for info in infos], lambda info: info["name"], query, "upstreams")


async def get_upstream(request: RestRequest, name: str) -> object:
    """Get an upstream server with its tools and settings"""
    return (await upstreams.show_upstream(request.gateway, name)).to_dict()


async def add_upstream(request: RestRequest, body: NewUpstream) -> object:
    """Add an upstream server, and test it unless `test` is false

    A server that does not answer is not added, unless it wants a login first.
    """
    gateway = request.gateway
    with refuse_unreachable():
        result = await upstreams.add_upstream(
            gateway,
            body.name,
            body.settings,
            test=body.test,
            ask_secret=lambda variable: body.secrets.get(variable, ""),
        )
    await gateway.reload()
    shown = (await upstreams.show_upstream(gateway, body.name)).to_dict()
    return {"upstream": shown, "probe": _describe_probe(result)}


async def import_upstreams(request: RestRequest, body: PastedSettings) -> object:
    """Add the servers of a client's settings; one that cannot be added does not prevent the others"""
    found = await run_in_threadpool(upstream_import.parse_servers, body.text)
    options = {"replace": body.replace, "keep": body.keep, "dry_run": body.dry_run}
    results = await upstream_import.import_servers(request.gateway, found, **options)
    if not body.dry_run:
        await request.gateway.reload()
    return {"items": [KNOWN.mask_value(result.to_dict()) for result in results]}


async def search_registry(request: RestRequest, query: RegistryQuery) -> object:
    """Search the registry for servers by a part of their names"""
    with refuse_unreachable():
        entries, token = await server_registry.search_registry(
            request.gateway.settings, query.search, query.limit, query.page_token
        )
    return {"items": [entry.to_dict() for entry in entries], "next_page_token": token}


async def plan_upstream(request: RestRequest, body: WantedPlan) -> object:
    """Get the settings of a package, and what it would run; nothing is added"""
    gateway = request.gateway
    if (body.registered is None) == (body.bundle is None):
        raise Invalid("send either 'registered' or 'bundle'", code="INVALID_REQUEST")
    if body.bundle is not None:
        return (await upstream_packages.plan_unpacked(gateway, body.bundle, body.name, body.values)).to_dict()
    with refuse_unreachable():
        plan = await upstream_packages.plan_registered(
            gateway, body.registered or "", kind=body.package, name=body.name, values=body.values
        )
    return plan.to_dict()


async def upload_bundle(request: RestRequest, form: FormData) -> object:
    """Upload an `.mcpb` file, and get what it would run; nothing is added

    Send it as the part `file` of a multipart form. A file that is not added within an hour is removed.
    """
    async with save_upload(form, SUFFIX) as (path, name):
        return (await upstream_packages.plan_file(request.gateway, path, source=name)).to_dict()


async def remove_upstream(request: RestRequest, name: str) -> object:
    """Remove an upstream server that was added by hand, with its login, secrets and pinned definitions"""
    await upstreams.remove_upstream(request.gateway, name)
    await request.gateway.reload()
    return None


async def enable_upstream(request: RestRequest, name: str, body: Switch) -> object:
    """Turn an upstream server that was added by hand on or off"""
    await upstreams.enable_upstream(request.gateway, name, body.enabled)
    await request.gateway.reload()
    return (await upstreams.show_upstream(request.gateway, name)).to_dict()


async def test_upstream(request: RestRequest, name: str) -> object:
    """Connect to an upstream server and list what it has"""
    [(_, result)] = await upstreams.probe_upstreams(request.gateway, name)
    await request.gateway.reload()
    return _describe_probe(result)


async def restart_upstream(request: RestRequest, name: str) -> object:
    """End the connections and programs of an upstream server in every gateway, and start it again"""
    await upstreams.restart_upstream(request.gateway, name)
    await request.gateway.reload()
    return (await upstreams.show_upstream(request.gateway, name)).to_dict()


async def get_upstream_log(request: RestRequest, name: str, query: LogQuery) -> object:
    """Get the last lines that an upstream server's program wrote to its stderr"""
    log = await upstreams.find_log(request.gateway, name)
    lines = await run_in_threadpool(upstreams.read_log, log, query.lines)
    return {"lines": [KNOWN.mask(line) for line in lines]}


async def set_upstream_secret(request: RestRequest, name: str, variable: str, body: SecretBody) -> object:
    """Keep the value of a variable for an upstream server; it is used at the next connect"""
    await upstreams.keep_secret(request.gateway, name, variable, lambda _: body.value)
    return None


async def forget_upstream_secret(request: RestRequest, name: str, variable: str) -> object:
    """Forget the value of a variable"""
    await upstreams.forget_secret(request.gateway, name, variable)
    return None


async def review_upstream(request: RestRequest, name: str, query: PageQuery) -> object:
    """List definitions of an upstream server that wait for a decision"""
    items = await upstream_review.list_waiting(request.gateway, name)
    return slice_page(
        [item.to_dict() for item in items], lambda item: f"{item['kind']}:{item['name']}", query, "review"
    )


async def accept_definitions(request: RestRequest, name: str, body: ReviewBody) -> object:
    """Offer definitions of an upstream server from now on"""

    def refuse(_: object) -> None:
        raise Invalid("name each definition with its digest: kind:name@digest", code="INVALID_REQUEST")

    items = await upstream_review.accept(request.gateway, name, body.subjects, request.principal.id, refuse)
    await request.gateway.reload()
    return {"items": [item.to_dict() for item in items]}


async def reject_definitions(request: RestRequest, name: str, body: ReviewBody) -> object:
    """Withhold definitions of an upstream server until they are accepted"""
    items = await upstream_review.reject(request.gateway, name, body.subjects, request.principal.id)
    await request.gateway.reload()
    return {"items": [item.to_dict() for item in items]}


async def start_upstream_login(request: RestRequest, name: str) -> object:
    """Start to log in to an upstream server

    Open the answered address in a browser on the gateway's machine. The login waits for five minutes.
    """
    with refuse_unreachable():
        return {"url": await upstreams.start_login(request.gateway, name)}


async def log_out_of_upstream(request: RestRequest, name: str) -> object:
    """Forget the login to an upstream server, and revoke its tokens if that is possible"""
    with refuse_unreachable():
        await upstreams.log_out(request.gateway, name)
    await request.gateway.reload()
    return None


def _describe_probe(result: Any) -> dict[str, Any]:
    if isinstance(result, GatewayError):
        return {"ok": False, "result": None, "error": result.to_dict()}
    return {"ok": True, "result": result.to_dict() if result is not None else None, "error": None}


_ONE = "/api/upstreams/{name}"
ENDPOINTS = [
    Endpoint("GET", "/api/upstreams", list_upstreams, ListPage[UpstreamSummary], admin=True),
    Endpoint("POST", "/api/upstreams", add_upstream, AddedUpstream, status=201, admin=True, errors=(409, 422)),
    Endpoint("POST", "/api/upstream-imports", import_upstreams, ListPage[ImportedServer], admin=True),
    Endpoint("GET", "/api/registry", search_registry, ListPage[RegisteredServer], admin=True, errors=(404, 422)),
    Endpoint("POST", "/api/upstream-plans", plan_upstream, PlanAnswer, admin=True, errors=(404, 422)),
    Endpoint("POST", "/api/upstream-bundles", upload_bundle, PlanAnswer, admin=True),
    Endpoint("GET", _ONE, get_upstream, UpstreamAnswer, admin=True),
    Endpoint("DELETE", _ONE, remove_upstream, admin=True, errors=(409,)),
    Endpoint("POST", f"{_ONE}/enable", enable_upstream, UpstreamAnswer, admin=True, errors=(409,)),
    Endpoint("POST", f"{_ONE}/test", test_upstream, ProbeAnswer, admin=True),
    Endpoint("POST", f"{_ONE}/restart", restart_upstream, UpstreamAnswer, admin=True, errors=(409,)),
    Endpoint("GET", f"{_ONE}/logs", get_upstream_log, LogAnswer, admin=True),
    Endpoint("PUT", f"{_ONE}/secrets/{{variable}}", set_upstream_secret, admin=True, errors=(409,)),
    Endpoint("DELETE", f"{_ONE}/secrets/{{variable}}", forget_upstream_secret, admin=True, errors=(409,)),
    Endpoint("GET", f"{_ONE}/review", review_upstream, ListPage[ReviewInfo], admin=True),
    Endpoint("POST", f"{_ONE}/accept", accept_definitions, ListPage[ReviewInfo], admin=True, errors=(409,)),
    Endpoint("POST", f"{_ONE}/reject", reject_definitions, ListPage[ReviewInfo], admin=True, errors=(409,)),
    Endpoint("POST", f"{_ONE}/login", start_upstream_login, LoginAnswer, admin=True, errors=(422,)),
    Endpoint("POST", f"{_ONE}/logout", log_out_of_upstream, admin=True, errors=(422,)),
]
