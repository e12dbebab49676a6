"""HTTP tools as data: the request as templates, what counts as an answer, and how the caller proves itself."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag, model_validator

from gateway.bundles.field_types import (
    Body,
    Header,
    Line,
    QueryName,
    Section,
    Table,
    Template,
    fault,
    references,
    texts,
)
from gateway.bundles.kinds import ToolSpec

BYTES_LIMIT = 64 * 1024 * 1024
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
_URL = re.compile(r"https?://(?P<host>[^/?#\\\s]+)(?P<rest>[/?#][^\\\s]*)?", re.IGNORECASE)
_HOST = re.compile(r"(?:[a-z0-9._-]+|\[[0-9a-f:.]+\])(?::[0-9]{1,5})?", re.IGNORECASE)
_PLACE = re.compile(r"""\$?\.?(?:\w+|\[[0-9]+\])(?:\.\w+|\[[0-9]+\]|\["[^"\]]*"\])*""")
_Bytes = Annotated[int, Field(ge=1, le=BYTES_LIMIT)]


def host_of(url: str) -> str:
    """The host and port of an http or https URL; refused when it is none, or says a user or a fragment."""
    match = _URL.fullmatch(url)
    if match is None:
        raise fault(f"{url[:80]!r} must begin with http:// or https:// and a host, and have no spaces")
    if "@" in match["host"]:
        raise fault("a user or password in a URL is not taken; use auth or headers")
    if "#" in (match["rest"] or ""):
        raise fault("a fragment (#) is never sent; leave it out")
    if not _HOST.fullmatch(re.sub(r"\$\{[^}]*\}", "x", match["host"])):
        raise fault(f"{match['host'][:80]!r} is no host")
    return match["host"]


def checked_url(url: str) -> str:
    host_of(url)
    return url


class Bearer(Section):
    """`Authorization: Bearer …`."""

    tag: ClassVar[str] = "<bearer>"

    type: Literal["bearer"]
    token: Template


class Basic(Section):
    """`Authorization: Basic …`."""

    tag: ClassVar[str] = "<basic>"

    type: Literal["basic"]
    username: Template
    password: Template


class ApiKey(Section):
    """A key in a header or a query parameter."""

    tag: ClassVar[str] = "<api_key>"

    type: Annotated[Literal["api_key"], BeforeValidator(lambda kind: "api_key" if kind == "apiKey" else kind)]
    name: Header
    value: Template
    location: Literal["header", "query"] = Field(default="header", alias="in")


class Hmac(Section):
    """A signature of the named parts of the request, joined by newlines, in a header."""

    tag: ClassVar[str] = "<hmac>"

    type: Literal["hmac"]
    secret: Template
    algorithm: Literal["sha256", "sha384", "sha512", "sha1"] = "sha256"
    header: Header = "X-Signature"
    prefix: Annotated[str, Field(max_length=64)] = ""
    encoding: Literal["hex", "base64"] = "hex"
    signed: Annotated[
        tuple[Literal["method", "path", "query", "timestamp", "body"], ...], Field(min_length=1, max_length=5)
    ] = ("body",)
    timestamp_header: Header | None = None


class OAuth2(Section):
    """A token fetched with client credentials, and fetched anew when it ends."""

    tag: ClassVar[str] = "<oauth2>"

    type: Literal["oauth2"]
    token_url: Annotated[Template, AfterValidator(checked_url)]
    client_id: Template
    client_secret: Template
    scopes: Annotated[tuple[Line, ...], Field(max_length=100)] = ()
    audience: Line | None = None
    credentials_in: Literal["header", "body"] = "header"


def _kind(value: Any) -> str | None:
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    kind = "api_key" if kind == "apiKey" else kind
    return f"<{kind}>" if kind in ("bearer", "basic", "api_key", "hmac", "oauth2") else None


Auth = Annotated[
    Annotated[Bearer, Tag(Bearer.tag)]
    | Annotated[Basic, Tag(Basic.tag)]
    | Annotated[ApiKey, Tag(ApiKey.tag)]
    | Annotated[Hmac, Tag(Hmac.tag)]
    | Annotated[OAuth2, Tag(OAuth2.tag)],
    Discriminator(
        _kind,
        custom_error_type="unknown_type",
        custom_error_message="there is no such auth; there are bearer, basic, api_key, hmac and oauth2",
    ),
]


class Response(Section):
    """What counts as success (2xx unless said), what becomes of a failure, and which part of the answer
    is the tool's value."""

    success_codes: Annotated[tuple[Annotated[int, Field(ge=100, le=599)], ...], Field(max_length=100)] = ()
    error_mode: Literal["fail", "empty"] = "fail"
    output: Literal["auto", "json", "text", "file", "image"] = "auto"
    extract: Annotated[str, Field(max_length=512)] | None = None

    @model_validator(mode="after")
    def _extracts_a_place(self) -> Response:
        if self.extract is not None and not _PLACE.fullmatch(self.extract):
            raise fault(f"{self.extract!r} is no place in a value, such as 'data.items[0].name'", "extract")
        return self


class HttpTool(ToolSpec):
    """One request. Arguments of the call fill `${name}` in the path, the query, headers and body, never the
    host, which only a declared secret may name."""

    tag: ClassVar[str] = "<http>"

    type: Literal["http"]
    url_template: Annotated[Template, AfterValidator(checked_url)]
    method: Annotated[
        Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"],
        BeforeValidator(lambda method: method.upper() if isinstance(method, str) else method),
    ] = "GET"
    query: Table[QueryName, Template] = Field(default_factory=dict)
    headers: Table[Header, Template] = Field(default_factory=dict)
    body: Body = None
    auth: Auth | None = None
    response: Response = Response()
    retries: Annotated[int, Field(ge=0, le=10)] | None = None
    max_request_bytes: _Bytes | None = None
    max_response_bytes: _Bytes | None = None

    @model_validator(mode="after")
    def _says_a_header_once(self) -> HttpTool:
        if len({name.lower() for name in self.headers}) < len(self.headers):
            raise fault("a header is there twice; upper and lower case are the same", "headers")
        return self

    def placeholders(self) -> Iterator[tuple[str, str]]:
        parts = {"url_template": self.url_template, "query": self.query, "headers": self.headers, "body": self.body}
        parts["auth"] = self.auth.model_dump(mode="json") if self.auth else None
        for key, value in parts.items():
            yield from ((key, name) for text in texts(value) for name in references(text))

    def secret_keys(self) -> frozenset[str]:
        return frozenset(["auth"])

    def check_placeholders(self, secrets: frozenset[str]) -> None:
        for name in references(host_of(self.url_template)):
            if name not in secrets:
                raise fault(f"${{{name}}} would choose the host; only a declared secret may", "url_template")
        super().check_placeholders(secrets)
