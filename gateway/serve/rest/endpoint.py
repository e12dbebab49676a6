"""An endpoint of the REST surface: method, path, handler and models, and the parts handlers share (paging, replies).

A handler is `async def handler(request: RestRequest, …) -> object`. Its docstring is the endpoint's documentation. Its
other parameters say what the endpoint takes: `query` and `body` are pydantic models, `content` the raw body, `form` a
multipart body, and every other name is a variable of the path.
"""

from __future__ import annotations

import base64
import binascii
import inspect
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Generic, Literal, TypeVar, get_type_hints

import orjson
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import Receive, Scope

from gateway.calls import LOCAL, Caller
from gateway.document import reword_message
from gateway.errors import Forbidden, Invalid, Unavailable
from gateway.identity import Principal
from gateway.names import did_you_mean
from gateway.tools import Permission
from gateway.value import Value

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails
    from starlette.datastructures import FormData

    from gateway.gateway import Gateway

Item = TypeVar("Item")

PAGE_LIMIT = 1000
# Streams of events at once: in all, and of one principal who is no administrator.
STREAMS, STREAMS_OF_ONE = 100, 20
# Faults of one request that its error lists.
_FAULTS = 20
_SPECIAL = ("query", "body", "content", "form")
_VARIABLE = re.compile(r"\{(\+?)(\w+)\}")
_INTEGER = re.compile(r"-?[0-9]{1,18}")


class RequestModel(BaseModel):
    """A body or a query. Unknown names are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class AnswerModel(BaseModel):
    """An answer, made of a dictionary or of an object with these attributes."""

    model_config = ConfigDict(from_attributes=True, populate_by_name=True)


class ErrorInfo(AnswerModel):
    """`code` is stable, `message` says what to do, `details` are for programs."""

    code: str
    message: str
    details: dict[str, Any]


class ErrorAnswer(AnswerModel):
    ok: Literal[False]
    error: ErrorInfo


class PageQuery(RequestModel):
    limit: Annotated[int, Field(ge=1, le=PAGE_LIMIT, description="Items on a page.")] = 100
    page_token: Annotated[
        str | None, Field(min_length=1, max_length=2000, description="`next_page_token` of the page before.")
    ] = None

    @property
    def room(self) -> int:
        """Items on a page of a list that is read with one more, and at most `PAGE_LIMIT` at once."""
        return min(self.limit, PAGE_LIMIT - 1)


class ListPage(AnswerModel, Generic[Item]):
    """A page of a list; `next_page_token` is null on the last one."""

    items: list[Item]
    next_page_token: str | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer with another status than the endpoint's, or with headers. `encoded` is JSON that fits the endpoint's
    answer already, in place of `value`; `etag` its entity tag, computed from the answer if it is None."""

    value: object = None
    _: KW_ONLY
    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    encoded: bytes | None = None
    etag: str | None = None


@dataclass(frozen=True, slots=True)
class RestRequest:
    """A request whose principal is authenticated and may use the endpoint."""

    gateway: Gateway
    principal: Principal
    scope: Scope
    receive: Receive

    @property
    def headers(self) -> Headers:
        return Headers(scope=self.scope)

    def get_header(self, name: bytes) -> str:
        """A header, empty if it is not there: without decoding the others."""
        return next((value.decode("latin-1") for key, value in self.scope["headers"] if key == name), "")

    @property
    def caller(self) -> Caller:
        return self.principal.caller("rest")

    @property
    def default_chat(self) -> str:
        """The chat of calls that name none: the gateway's for its owner, and for anybody else the same as over MCP."""
        own = self.gateway.chat if self.principal.id == LOCAL else None
        return own or self.principal.default_chat

    async def read_form(self) -> FormData:
        return await Request(self.scope, self.receive).form(max_files=1, max_fields=20, max_part_size=64 * 1024)


class Endpoint(Value):
    """One row of the table. `answer` is the model of the answer, None for 204. `errors` are statuses besides those that
    follow from the rest. `media` is the type of an answer that is no JSON; its handler returns a Starlette response."""

    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
    path: str
    handler: Callable[..., Awaitable[object]]
    answer: Any = None
    _: KW_ONLY
    status: int = 200
    errors: tuple[int, ...] = ()
    admin: bool = False
    permission: Permission = Permission.READ_ONLY
    media: str | None = None
    tag: str = ""
    responses: Mapping[int, Any] = field(default_factory=dict)

    @property
    def operation_id(self) -> str:
        return getattr(self.handler, "__name__", self.path)

    @cached_property
    def variables(self) -> tuple[str, ...]:
        """The names in the path, in order."""
        return tuple(match[2] for match in _VARIABLE.finditer(self.path))

    @cached_property
    def parameters(self) -> Mapping[str, Any]:
        """Everything the handler takes besides the request, with its type."""
        hints = get_type_hints(self.handler, include_extras=True)
        names = list(inspect.signature(self.handler).parameters)[1:]
        taken = {name: hints[name] for name in names}
        if {*taken} - {*_SPECIAL} != {*self.variables}:
            raise TypeError(f"{self.operation_id} does not take the variables of {self.path}")
        return taken

    @cached_property
    def adapters(self) -> Mapping[str, TypeAdapter[Any]]:
        """For each parameter that needs to be checked; plain texts of the path do not."""
        plain = {"content", "form"}
        return {
            name: TypeAdapter(kind) for name, kind in self.parameters.items() if name not in plain and kind is not str
        }

    @cached_property
    def answer_adapter(self) -> TypeAdapter[Any] | None:
        return None if self.answer is None else TypeAdapter(self.answer)

    @cached_property
    def takes_body(self) -> bool:
        return not {"body", "content", "form"}.isdisjoint(self.parameters)

    @cached_property
    def _query_types(self) -> Mapping[str, str]:
        """The JSON type of each parameter of the query, by its name there."""
        properties = self.adapters["query"].json_schema().get("properties", {})
        return {name: _type_of(schema) for name, schema in properties.items()}

    def require_access(self, principal: Principal) -> None:
        if self.admin and not principal.admin:
            raise Forbidden(
                f"{self.method} {self.path} is for administrators; use a key of a role with 'admin: true'",
                code="ADMIN_REQUIRED",
            )
        if not principal.permission.allows(self.permission):
            raise Forbidden(
                f"{self.method} {self.path} needs {self.permission.value}; you have {principal.permission.value}",
                needed=self.permission.value,
                allowed=principal.permission.value,
            )

    def parse_variables(self, values: Sequence[str]) -> dict[str, Any]:
        variables: dict[str, Any] = dict(zip(self.variables, values, strict=True))
        for name in variables.keys() & self.adapters.keys():
            variables[name] = _validate(self.adapters[name], orjson.dumps(variables[name]), name)
        return variables

    def parse_query(self, pairs: Iterable[tuple[str, str]]) -> Any:
        """Return the query as its model; refused are unknown and repeated names."""
        values: dict[str, Any] = {}
        for name, text in pairs:
            kind = self._query_types.get(name, "")
            if kind == "array":
                values.setdefault(name, []).append(text)
            elif name in values:
                raise Invalid(f"the parameter {name!r} is there twice; send it once", code="INVALID_REQUEST")
            else:
                values[name] = _convert(text, kind)
        return _validate(self.adapters["query"], orjson.dumps(values), "query")

    def parse_body(self, document: bytes) -> Any:
        """Return a JSON body as its model."""
        if b"NaN" in document or b"Infinity" in document:  # pydantic takes them, and the standard does not
            try:
                orjson.loads(document)
            except orjson.JSONDecodeError as error:
                raise _no_json(str(error)) from None
        return _validate(self.adapters["body"], document, "body")

    def encode_answer(self, value: object) -> bytes:
        """Return an answer in the shape that is documented."""
        adapter = self.answer_adapter
        if adapter is None:
            return b""
        return adapter.dump_json(adapter.validate_python(value, from_attributes=True), by_alias=True)


def _type_of(schema: Mapping[str, Any]) -> str:
    options = [*schema.get("anyOf", ()), schema]
    return next((option["type"] for option in options if option.get("type", "null") != "null"), "string")


def _convert(text: str, kind: str) -> object:
    """Return a text of a URL as the JSON type it stands for; one that does not fit stays a text, and is refused."""
    if kind == "integer" and _INTEGER.fullmatch(text):
        return int(text)
    if kind == "boolean" and text in ("true", "false"):
        return text == "true"
    return text


def _validate(adapter: TypeAdapter[Any], document: bytes, where: str) -> Any:
    """Validate JSON strictly: what the documented schema forbids is not converted."""
    try:
        return adapter.validate_json(document, strict=True, by_alias=True, by_name=False)
    except ValidationError as error:
        faults = error.errors(include_url=False, include_context=False, include_input=False)[:_FAULTS]
    if faults[0]["type"] == "json_invalid":
        raise _no_json(faults[0]["msg"])
    messages = [_describe_fault(adapter, fault) for fault in faults]
    paths = [list(map(str, fault["loc"])) for fault in faults]
    listed = [{"in": where, "path": path, "message": text} for path, text in zip(paths, messages, strict=True)]
    place = ".".join([where, *paths[0]])
    raise Invalid(f"{place}: {messages[0]}", code="INVALID_REQUEST", errors=listed)


def _describe_fault(adapter: TypeAdapter[Any], fault: ErrorDetails) -> str:
    if fault["type"] == "missing":
        return "is missing"
    if fault["type"] != "extra_forbidden":
        return reword_message(fault["msg"])
    known = list(adapter.json_schema().get("properties", ())) if len(fault["loc"]) == 1 else []
    key = str(fault["loc"][-1])
    others = f"; there are {', '.join(known)}" if known else ""
    return f"is not known here{did_you_mean(key, known) or others}"


def _no_json(reason: str) -> Invalid:
    return Invalid(f"the body is not JSON: {reason}", code="INVALID_JSON")


class StreamSlots:
    """Places for streams on which browsers wait for events. Nobody but administrators can take them all."""

    def __init__(self) -> None:
        self._open: Counter[str] = Counter()

    def require(self, principal: Principal) -> None:
        """Refuse a stream beyond the limits."""
        limit = STREAMS if principal.admin else STREAMS_OF_ONE
        if self._open.total() >= STREAMS or self._open[principal.id] >= limit:
            raise Unavailable("too many browsers follow events already; close some", code="TOO_MANY_STREAMS")

    async def hold(self, principal: Principal, events: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """The same events; meanwhile a place is taken."""
        self._open[principal.id] += 1
        try:
            async for event in events:
                yield event
        finally:
            self._open -= Counter({principal.id: 1})  # forgets those that have none left


class Unprocessable(Invalid):
    """Something that the request names, such as a URL or a server, did not work."""

    status = 422


@contextmanager
def refuse_unreachable() -> Iterator[None]:
    """Take it for a fault of the request that a server it names does not answer."""
    try:
        yield
    except Unavailable as error:
        raise Unprocessable(error.message, code=error.code, **error.details) from None


def encode_token(listing: str, key: str) -> str:
    """Return a page token: the place in a listing after the item of that key, whatever is inserted or removed."""
    return base64.urlsafe_b64encode(f"{listing}:{key}".encode()).decode().rstrip("=")


def decode_token(listing: str, token: str | None) -> str | None:
    """Return the key of a page token; refused for a token of another listing."""
    if token is None:
        return None
    try:
        text = base64.b64decode(token + "=" * (-len(token) % 4), b"-_", validate=True).decode()
    except (binascii.Error, ValueError):
        text = ""
    name, _, key = text.partition(":")
    if name != listing or not key:
        raise Invalid("the page token is not one of this list; begin without one", code="INVALID_PAGE_TOKEN")
    return key


def slice_page(items: Iterable[Item], key: Callable[[Item], str], query: PageQuery, listing: str) -> dict[str, Any]:
    """Return a page of items, by their unique keys in ascending order."""
    return slice_items(items, key, query.page_token, query.limit, listing)


def slice_items(
    items: Iterable[Item], key: Callable[[Item], str], token: str | None, limit: int, listing: str
) -> dict[str, Any]:
    """Return a page like `slice_page`, for a query with other names."""
    after = decode_token(listing, token) or ""
    rest = sorted((item for item in items if key(item) > after), key=key)
    return make_page(rest[: limit + 1], key, limit, listing)


def make_page(items: Sequence[Item], key: Callable[[Item], str], limit: int, listing: str) -> dict[str, Any]:
    """Return a page of items that are read up to one more than `limit`."""
    page = list(items[:limit])
    token = encode_token(listing, key(page[-1])) if len(items) > limit else None
    return {"items": page, "next_page_token": token}
