"""The REST application: finds the endpoint of a request, checks it, and turns answers and errors into responses."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, unquote

from starlette.formparsers import MultiPartException
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from gateway.calls import to_json
from gateway.errors import Forbidden, GatewayError, Invalid, NotFound, RateLimited, Unavailable
from gateway.identity import Principal
from gateway.names import new_id
from gateway.serve.http.protocol import WHOLE_RESPONSE
from gateway.serve.rest.endpoint import Endpoint, Reply, RestRequest

if TYPE_CHECKING:
    from gateway.gateway import Gateway

JSON = "application/json"
# Paths whose endpoints are remembered: programs use the same ones again and again.
_CACHED_PATHS = 1024
# Parameters of a query.
_QUERY_FIELDS = 50
_PRIVATE = (b"cache-control", b"no-store")
_SAFE = (b"x-content-type-options", b"nosniff")

log = logging.getLogger(__name__)

Methods = Mapping[str, Endpoint]


class MethodNotAllowed(Invalid):
    default_code = "METHOD_NOT_ALLOWED"
    status = 405


class UnsupportedMediaType(Invalid):
    default_code = "UNSUPPORTED_MEDIA_TYPE"
    status = 415


class BodyTooLarge(Invalid):
    default_code = "REQUEST_TOO_LARGE"
    status = 413


class PreconditionFailed(Invalid):
    default_code = "PRECONDITION_FAILED"
    status = 412


class _RouteNode:
    """A part of paths: those that go on with a literal or a variable, and the endpoints of the path that ends here."""

    __slots__ = ("literals", "methods", "rest", "variable")

    def __init__(self) -> None:
        self.literals: dict[str, _RouteNode] = {}
        self.variable: _RouteNode | None = None
        self.methods: dict[str, Endpoint] = {}
        self.rest: dict[str, Endpoint] = {}  # of a last variable that takes slashes too

    def add(self, parts: Sequence[str], endpoint: Endpoint) -> None:
        if not parts:
            self.methods[endpoint.method] = endpoint
        elif parts[0].startswith("{+"):
            self.rest[endpoint.method] = endpoint
        elif parts[0].startswith("{"):
            self.variable = self.variable or _RouteNode()
            self.variable.add(parts[1:], endpoint)
        else:
            self.literals.setdefault(parts[0], _RouteNode()).add(parts[1:], endpoint)

    def find(self, parts: Sequence[str], values: tuple[str, ...] = ()) -> tuple[Methods, tuple[str, ...]] | None:
        """Return the endpoints of a path by method, and the values of its variables."""
        if not parts:
            return (self.methods, values) if self.methods else None
        first = parts[0]
        found = self.literals[first].find(parts[1:], values) if first in self.literals else None
        if found is None and self.variable is not None and first:
            found = self.variable.find(parts[1:], (*values, first))
        if found is None and self.rest and first:
            return self.rest, (*values, "/".join(parts))
        return found


class RestApp:
    """An ASGI application for the endpoints of one gateway. `body_limit` is the most bytes of a body."""

    def __init__(self, gateway: Gateway, endpoints: Iterable[Endpoint], body_limit: int) -> None:
        self._gateway = gateway
        self._body_limit = body_limit
        self._root = _RouteNode()
        self._find_path = lru_cache(_CACHED_PATHS)(lambda raw: self._root.find(_split_path(raw)))
        for endpoint in endpoints:
            self._root.add(endpoint.path.strip("/").split("/"), endpoint)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            result = await self._answer(scope, receive)
        except GatewayError as refusal:
            result = error_reply(refusal)
        except MultiPartException as refusal:
            result = error_reply(Invalid(f"the form cannot be read: {refusal.message}", code="INVALID_FORM"))
        except Exception:
            request_id = new_id()
            log.exception("%s %s failed unexpectedly (%s)", scope["method"], scope["path"], request_id)
            message = f"the gateway failed; its log has the reason, under {request_id}"
            result = error_reply(GatewayError(message, request_id=request_id))
        if isinstance(result, Response):
            result.headers.setdefault("cache-control", "no-store")
            result.headers.setdefault("x-content-type-options", "nosniff")
            await result(scope, receive, send)
        else:
            await _send(scope, send, result)

    async def _answer(self, scope: Scope, receive: Receive) -> Reply | Response:
        endpoint, values = self._find(scope)
        if endpoint.method != "GET":
            _refuse_other_sites(scope)
        principal: Principal = scope["state"]["principal"]
        endpoint.require_access(principal)
        taken = endpoint.parse_variables(values) if values else {}
        request = RestRequest(self._gateway, principal, scope, receive)
        pairs = _parse_query_string(scope["query_string"])
        if "query" in endpoint.parameters:
            taken["query"] = endpoint.parse_query(pairs)
        elif pairs:
            raise Invalid(f"{endpoint.path} takes no parameter {pairs[0][0]!r}", code="INVALID_REQUEST")
        if endpoint.takes_body:
            taken |= await self._read_body(endpoint, request)
        result = await endpoint.handler(request, **taken)
        if isinstance(result, Response):
            return result
        reply = result if isinstance(result, Reply) else Reply(result)
        if reply.encoded is not None:
            return reply
        encoded = endpoint.encode_answer(reply.value)
        status = reply.status or (endpoint.status if endpoint.answer is not None else 204)
        return Reply(status=status, headers=reply.headers, encoded=encoded, etag=reply.etag)

    def _find(self, scope: Scope) -> tuple[Endpoint, tuple[str, ...]]:
        found = self._find_path(scope["raw_path"])
        if found is None:
            lists = "; tools are listed at /tools/tools and /api/tools" if scope["path"] in ("/tools", "/api") else ""
            raise NotFound(f"there is no {scope['path'][:200]!r}{lists}; see /api/docs", code="UNKNOWN_ROUTE")
        methods, values = found
        endpoint = methods.get("GET" if scope["method"] == "HEAD" else scope["method"])
        if endpoint is None:
            allowed = ", ".join(sorted({*methods, "HEAD"} if "GET" in methods else methods))
            raise MethodNotAllowed(f"{scope['method']} is not possible here; use {allowed}", allow=allowed)
        return endpoint, values

    async def _read_body(self, endpoint: Endpoint, request: RestRequest) -> dict[str, object]:
        """Return the body as the parameters of the handler that take it."""
        kind = request.get_header(b"content-type").partition(";")[0].strip().lower()
        takes = endpoint.parameters
        if "content" in takes:
            return {"content": await self._read(request.receive)}
        if "form" in takes and kind == "multipart/form-data":
            limited = RestRequest(request.gateway, request.principal, request.scope, self._limit(request.receive))
            return {"form": await limited.read_form()} | ({"body": None} if "body" in takes else {})
        if "body" not in takes or kind != JSON:
            wanted = " or ".join([JSON] * ("body" in takes) + ["multipart/form-data"] * ("form" in takes))
            raise UnsupportedMediaType(f"the body must be {wanted}, not {kind[:100] or 'without a Content-Type'!r}")
        body = endpoint.parse_body(await self._read(request.receive))
        return {"body": body} | ({"form": None} if "form" in takes else {})

    def _limit(self, receive: Receive) -> Receive:
        """Return `receive` with an error once more than the limit has arrived."""
        size = 0

        async def limited() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > self._body_limit:
                raise BodyTooLarge(f"the body is larger than the limit of {self._body_limit} bytes")
            return message

        return limited

    async def _read(self, receive: Receive) -> bytes:
        parts = []
        limited, more = self._limit(receive), True
        while more:
            message = await limited()
            if message["type"] == "http.disconnect":
                raise Invalid("the body ended early", code="INVALID_REQUEST")
            parts.append(message.get("body", b""))
            more = message.get("more_body", False)
        return b"".join(parts)


def _refuse_other_sites(scope: Scope) -> None:
    """Refuse changes by a page of another origin, which a browser may send without asking us first if the body is a
    form or empty. `RequestGuard` lets pages of every loopback port read."""
    site = next((value for name, value in scope["headers"] if name == b"sec-fetch-site"), b"none")
    if site not in (b"same-origin", b"none"):
        raise Forbidden("a page of another origin may not change anything here", code="ORIGIN_FORBIDDEN")


def _split_path(raw: bytes) -> list[str]:
    """Return the parts of a path, each decoded by itself: a part may contain an escaped slash."""
    path = raw.decode("latin-1")
    parts = path[1:].split("/")
    try:
        return [unquote(part, errors="strict") for part in parts] if "%" in path else parts
    except UnicodeDecodeError:
        raise Invalid("the path is not UTF-8", code="INVALID_REQUEST") from None


def _parse_query_string(query: bytes) -> list[tuple[str, str]]:
    if not query:
        return []
    try:
        return parse_qsl(query.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=_QUERY_FIELDS)
    except ValueError as error:
        raise Invalid(f"the query cannot be read: {error}", code="INVALID_REQUEST") from None


def error_reply(refusal: GatewayError, **more: object) -> Reply:
    """Return a refusal as a reply; `more` are keys beside `error`."""
    headers = {}
    if isinstance(refusal, Unavailable | RateLimited):
        headers["Retry-After"] = str(refusal.details.get("retry_after", 1))
    if isinstance(refusal, MethodNotAllowed):
        headers["Allow"] = refusal.details["allow"]
    body = to_json({"ok": False, "error": refusal.to_dict(), **more})
    return Reply(status=refusal.status, headers=headers, encoded=body)


async def _send(scope: Scope, send: Send, reply: Reply) -> None:
    body, status = reply.encoded or b"", reply.status or 200
    headers = [_PRIVATE, _SAFE, *((name.lower().encode(), value.encode()) for name, value in reply.headers.items())]
    if scope["method"] in ("GET", "HEAD") and status == 200:
        etag = reply.etag or make_etag(body)
        headers.append((b"etag", etag.encode()))
        if is_current(scope, etag):
            status, body = 304, b""
    if status not in (204, 304):
        headers.append((b"content-type", b"application/json"))
        if WHOLE_RESPONSE in scope.get("extensions", ()):
            lines = b"".join([b"%b: %b\r\n" % header for header in headers])
            await send({"type": "http.response", "status": status, "lines": lines, "body": body})
            return
        headers.append((b"content-length", b"%d" % len(body)))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})


def make_etag(content: bytes) -> str:
    return f'"{blake2b(content, digest_size=15).hexdigest()}"'


def is_current(scope: Scope, etag: str) -> bool:
    """Return whether the client has the answer of this entity tag already."""
    for name, value in scope["headers"]:
        if name == b"if-none-match":
            listed = [tag.strip().removeprefix("W/") for tag in value.decode("latin-1").split(",")]
            return "*" in listed or etag in listed
    return False
