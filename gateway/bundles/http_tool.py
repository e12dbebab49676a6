"""The HTTP tools of a toolset.yaml: the request with its parameters and body, auth helpers, response and paging."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal
from urllib.parse import unquote

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag, model_validator

from gateway.bundles.field_types import (
    Body,
    Content,
    Expression,
    Header,
    Line,
    ManifestSection,
    QueryName,
    Table,
    Template,
    check_header,
    error_inside,
    field_error,
    iterate_texts,
    references,
)
from gateway.bundles.tool_kinds import ToolSpec
from gateway.names import did_you_mean

BYTES_LIMIT = 64 * 1024 * 1024
_URL = re.compile(r"https?://(?P<host>[^/?#\\\s]+)(?P<rest>[/?#][^\\\s]*)?", re.IGNORECASE)
_HOST = re.compile(r"(?:[a-z0-9._-]+|\[[0-9a-f:.]+\])(?::[0-9]{1,5})?", re.IGNORECASE)
_Bytes = Annotated[int, Field(ge=1, le=BYTES_LIMIT)]


def host_of(url: str) -> str:
    """Return the host and port of an http or https URL; refused when it is none, or has a user or a fragment."""
    match = _URL.fullmatch(url)
    if match is None:
        raise field_error(f"{url[:80]!r} must begin with http:// or https:// and a host, and have no spaces")
    if "@" in match["host"]:
        raise field_error("a user or password in a URL is not allowed; use auth or headers")
    if "#" in (match["rest"] or ""):
        raise field_error("a fragment (#) is never sent; leave it out")
    if not _HOST.fullmatch(re.sub(r"\$\{[^}]*\}", "x", match["host"])):
        raise field_error(f"{match['host'][:80]!r} is no host")
    return match["host"]


def check_url(url: str) -> str:
    host_of(url)
    return url


def _check_url_template(url: str) -> str:
    """Refuse a URL that is neither absolute nor a path below the toolset's `http.base_url`."""
    host_of(f"http://host{url}" if url.startswith("/") and not url.startswith("//") else url)
    path = url.partition("?")[0]
    if any(unquote(segment) in (".", "..") for segment in path.split("/")):
        raise field_error("'.' and '..' cannot be segments of a path; write the path without them")
    return url


class BearerAuth(ManifestSection):
    """`Authorization: Bearer …`."""

    tag: ClassVar[str] = "<bearer>"

    type: Literal["bearer"]
    token: Template


class BasicAuth(ManifestSection):
    """`Authorization: Basic …`."""

    tag: ClassVar[str] = "<basic>"

    type: Literal["basic"]
    username: Template
    password: Template


class ApiKeyAuth(ManifestSection):
    """A key in a header, a query parameter or a cookie."""

    tag: ClassVar[str] = "<api_key>"

    type: Annotated[Literal["api_key"], BeforeValidator(lambda kind: "api_key" if kind == "apiKey" else kind)]
    name: QueryName
    value: Template
    location: Literal["header", "query", "cookie"] = Field(default="header", alias="in")

    @model_validator(mode="after")
    def _check_name(self) -> ApiKeyAuth:
        if self.location != "query":
            with error_inside("name"):
                check_header(self.name)
        return self


SIGNED_PARTS = (
    *("method", "host", "path", "query", "target", "timestamp", "nonce", "body", "body_sha256", "body_md5"),
    "content_type",
)
_SIGNED_PART = re.compile(r"\{(\w+)\}")


def _check_signed(text: str) -> str:
    for name in _SIGNED_PART.findall(text):
        if name not in (*SIGNED_PARTS, "signature"):
            raise field_error(f"there is no {{{name}}} to sign{did_you_mean(name, SIGNED_PARTS)}")
    return text


class HmacAuth(ManifestSection):
    """A signature in a header. What is signed is `canonical`, in which `{method}`, `{path}`, `{body_sha256}` and other
    parts of the request are filled in, or the `signed` parts joined by newlines. `format` is the header's value."""

    tag: ClassVar[str] = "<hmac>"

    type: Literal["hmac"]
    secret: Template
    secret_encoding: Literal["text", "hex", "base64"] = "text"  # noqa: S105 - no secret
    algorithm: Literal["sha256", "sha384", "sha512", "sha1"] = "sha256"
    header: Header = "X-Signature"
    prefix: Annotated[str, Field(max_length=64)] = ""
    format: Annotated[Template, AfterValidator(_check_signed)] = "{signature}"
    encoding: Literal["hex", "base64"] = "hex"
    signed: Annotated[
        tuple[Literal["method", "path", "query", "timestamp", "body"], ...], Field(min_length=1, max_length=5)
    ] = ("body",)
    canonical: Annotated[Content, AfterValidator(_check_signed)] | None = None
    timestamp_header: Header | None = None
    timestamp_format: Literal["unix", "unix_ms", "iso"] = "unix"
    nonce_header: Header | None = None


class AwsAuth(ManifestSection):
    """A signature of version 4, as the services of AWS want it. `session_token` comes with temporary keys."""

    tag: ClassVar[str] = "<aws>"

    type: Literal["aws"]
    access_key: Template
    secret_key: Template
    session_token: Template | None = None
    region: Template
    service: Annotated[str, Field(pattern=r"^[a-z0-9-]{1,64}$")]


class OAuth2Auth(ManifestSection):
    """A token fetched with client credentials, and fetched again when it expires or is refused."""

    tag: ClassVar[str] = "<oauth2>"

    type: Literal["oauth2"]
    token_url: Annotated[Template, AfterValidator(check_url)]
    client_id: Template
    client_secret: Template
    scopes: Annotated[tuple[Line, ...], Field(max_length=100)] = ()
    audience: Line | None = None
    credentials_in: Literal["header", "body"] = "header"
    parameters: Table[QueryName, Template] = Field(default_factory=dict)


def _kind(value: Any) -> str | None:
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    kind = "api_key" if kind == "apiKey" else kind
    return f"<{kind}>" if kind in ("bearer", "basic", "api_key", "hmac", "aws", "oauth2") else None


def _choice(value: Any) -> str | None:
    return "<scheme>" if isinstance(value, str) else "<schemes>" if isinstance(value, list | tuple) else _kind(value)


_UNKNOWN_AUTH = "unknown auth type; use bearer, basic, api_key, hmac, aws or oauth2"
Auth = Annotated[
    Annotated[BearerAuth, Tag(BearerAuth.tag)]
    | Annotated[BasicAuth, Tag(BasicAuth.tag)]
    | Annotated[ApiKeyAuth, Tag(ApiKeyAuth.tag)]
    | Annotated[HmacAuth, Tag(HmacAuth.tag)]
    | Annotated[AwsAuth, Tag(AwsAuth.tag)]
    | Annotated[OAuth2Auth, Tag(OAuth2Auth.tag)],
    Discriminator(_kind, custom_error_type="unknown_type", custom_error_message=_UNKNOWN_AUTH),
]

# The name of a scheme under `http.auth` of the toolset.
SchemeName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
AuthChoice = Annotated[
    Annotated[SchemeName, Tag("<scheme>")]
    | Annotated[tuple[SchemeName, ...], Field(min_length=1, max_length=5), Tag("<schemes>")]
    | Annotated[BearerAuth, Tag(BearerAuth.tag)]
    | Annotated[BasicAuth, Tag(BasicAuth.tag)]
    | Annotated[ApiKeyAuth, Tag(ApiKeyAuth.tag)]
    | Annotated[HmacAuth, Tag(HmacAuth.tag)]
    | Annotated[AwsAuth, Tag(AwsAuth.tag)]
    | Annotated[OAuth2Auth, Tag(OAuth2Auth.tag)],
    Discriminator(_choice, custom_error_type="unknown_type", custom_error_message=_UNKNOWN_AUTH),
]


class HttpDefaults(ManifestSection):
    """Settings that the HTTP tools of a toolset share: the URL that their paths are below, headers, and auth by name.
    A scheme applies to the tools that name it in `auth`."""

    base_url: Annotated[Template, AfterValidator(check_url)] | None = None
    headers: Table[Header, Template] = Field(default_factory=dict)
    auth: Table[SchemeName, Auth] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check_base_url(self) -> HttpDefaults:
        if self.base_url is not None and "?" in self.base_url:
            raise field_error("a base URL has no query; put it into the tools", "base_url")
        return self

    def placeholders(self) -> Iterator[tuple[str, str]]:
        """Yield each `${name}` with its key; only secrets fill them."""
        for key, value in self.model_dump(mode="json").items():
            yield from ((key, name) for text in iterate_texts(value) for name in references(text))


Style = Literal["form", "spaceDelimited", "pipeDelimited", "deepObject", "simple", "label", "matrix", "json"]


class Parameter(ManifestSection):
    """A value with the style, as OpenAPI names it, in which a list or an object is written. `explode` is true by
    default with the style `form`, as in OpenAPI."""

    tag: ClassVar[str] = "<parameter>"

    value: Template
    style: Style = "form"
    explode: bool | None = None

    @property
    def exploded(self) -> bool:
        return self.style == "form" if self.explode is None else self.explode


class PathStyle(ManifestSection):
    """The style of an argument in the path."""

    style: Literal["simple", "label", "matrix", "json"] = "simple"
    explode: bool = False


class Part(ManifestSection):
    """A part of a multipart body: a value, a file of the workspace, or bytes as base64."""

    tag: ClassVar[str] = "<part>"

    value: Body = None
    file: Template | None = None
    base64: Template | None = None
    filename: Template | None = None
    content_type: Line | None = None

    @model_validator(mode="after")
    def _check_content(self) -> Part:
        if sum(given is not None for given in (self.value, self.file, self.base64)) != 1:
            raise field_error("a part has one of 'value', 'file' and 'base64'")
        return self


def _template_or(section: type[Parameter] | type[Part]) -> Discriminator:
    return Discriminator(lambda value: "<template>" if isinstance(value, str) else section.tag)


AnyParameter = Annotated[
    Annotated[Template, Tag("<template>")] | Annotated[Parameter, Tag(Parameter.tag)], _template_or(Parameter)
]
AnyPart = Annotated[Annotated[Content, Tag("<template>")] | Annotated[Part, Tag(Part.tag)], _template_or(Part)]


class ResponseSpec(ManifestSection):
    """The status codes that are success (default 2xx), the result of a failure, and the part of the response that
    is the tool's value: `extract`, by JMESPath. With `output: file` the body is saved in the workspace, as `file`.
    With `schema_check: advisory` a result that breaks the output schema is returned with a note."""

    success_codes: Annotated[tuple[Annotated[int, Field(ge=100, le=599)], ...], Field(max_length=100)] = ()
    error_mode: Literal["fail", "empty"] = "fail"
    output: Literal["auto", "json", "text", "file", "image"] = "auto"
    extract: Expression | None = None
    file: Template | None = None
    schema_check: Literal["strict", "advisory"] = "strict"

    @model_validator(mode="after")
    def _check_file(self) -> ResponseSpec:
        if self.file is not None and self.output != "file":
            raise field_error("this is where 'output: file' saves the response", "file")
        return self


class Pagination(ManifestSection):
    """Requests of further pages, at most `pages`. The next one is named by a cursor in the response, by a number, or by
    a URL: that of the `Link` header or of `next`. The items of all pages are joined."""

    type: Literal["cursor", "page", "offset", "link"]
    parameter: QueryName | None = None
    next: Expression | None = None
    items: Expression | None = None
    start: Annotated[int, Field(ge=0, le=1_000_000)] | None = None
    size: Annotated[int, Field(ge=1, le=100_000)] | None = None
    pages: Annotated[int, Field(ge=1, le=1000)] = 10

    @model_validator(mode="after")
    def _check_type(self) -> Pagination:
        if (self.parameter is None) != (self.type == "link"):
            reason = "the pages of a link have no parameter" if self.type == "link" else "this key is missing"
            raise field_error(reason, "parameter")
        if self.type == "cursor" and self.next is None:
            raise field_error("name the place of the next cursor in the response, such as 'meta.next'", "next")
        if self.type == "offset" and self.size is None:
            raise field_error("an offset grows by the size of a page; name it", "size")
        return self


_BODIES = ("body", "form", "parts", "body_file")
IDEMPOTENT_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "DELETE"})


class HttpTool(ToolSpec):
    """One HTTP request. Arguments of the call fill `${name}` in the path, query, headers, cookies and body; only a
    declared secret may fill the host. A parameter whose only reference has no value is left out.

    `body` is JSON, unless `content_type` names another type: then it is text. `form` and `parts` are form bodies,
    `body_file` a file of the workspace. `auth` is a helper, or the names of schemes under the toolset's `http.auth`.
    """

    tag: ClassVar[str] = "<http>"

    type: Literal["http"]
    url_template: Annotated[Template, AfterValidator(_check_url_template)]
    method: Annotated[
        Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"],
        BeforeValidator(lambda method: method.upper() if isinstance(method, str) else method),
    ] = "GET"
    path: Table[str, PathStyle] = Field(default_factory=dict)
    query: Table[QueryName, AnyParameter] = Field(default_factory=dict)
    headers: Table[Header, AnyParameter] = Field(default_factory=dict)
    cookies: Table[Header, AnyParameter] = Field(default_factory=dict)
    body: Body = None
    form: Table[QueryName, AnyParameter] | None = None
    parts: Table[QueryName, AnyPart] | None = None
    body_file: Template | None = None
    content_type: Line | None = None
    auth: AuthChoice | None = None
    response: ResponseSpec = ResponseSpec.model_construct()
    pagination: Pagination | None = None
    retries: Annotated[int, Field(ge=0, le=10)] | None = None
    max_request_bytes: _Bytes | None = None
    max_response_bytes: _Bytes | None = None

    @model_validator(mode="after")
    def _check_request(self) -> HttpTool:
        if len({name.lower() for name in self.headers}) < len(self.headers):
            raise field_error("a header occurs twice; header names are not case-sensitive", "headers")
        bodies = [key for key in _BODIES if getattr(self, key) is not None]
        if len(bodies) > 1:
            raise field_error(f"a request has one body; {bodies[0]!r} is there already", bodies[1])
        if bodies and self.method == "HEAD":
            raise field_error("a HEAD request has no body; use 'query' or another method", bodies[0])
        filled = set(references(self.url_template.partition("?")[0]))
        for name in self.path:
            if name not in filled:
                raise field_error(f"no ${{{name}}} in the path{did_you_mean(name, filled)}", "path", name)
        return self

    @property
    def reads_files(self) -> bool:
        """True if the request sends files of the workspace."""
        parts = (self.parts or {}).values()
        return self.body_file is not None or any(isinstance(part, Part) and part.file is not None for part in parts)

    @property
    def is_idempotent(self) -> bool:
        return self.method in IDEMPOTENT_METHODS if self.idempotent is None else self.idempotent

    @property
    def has_text_body(self) -> bool:
        return self.content_type is not None and not re.search(r"[/+]json\b", self.content_type)

    @property
    def schemes(self) -> tuple[str, ...]:
        """The names of the toolset's auth schemes that it uses."""
        return (self.auth,) if isinstance(self.auth, str) else self.auth if isinstance(self.auth, tuple) else ()

    def placeholders(self) -> Iterator[tuple[str, str]]:
        keys = ("url_template", "query", "headers", "cookies", "body", "form", "parts", "body_file", "response", "auth")
        values = self.model_dump(mode="json", include=set(keys))
        values["auth"] = None if self.schemes else values["auth"]
        values["response"] = self.response.file
        for key in keys:
            yield from ((key, name) for text in iterate_texts(values[key]) for name in references(text))

    def secret_keys(self) -> frozenset[str]:
        return frozenset(["auth"])

    def check_placeholders(self, secrets: frozenset[str]) -> None:
        for name in [] if self.url_template.startswith("/") else references(host_of(self.url_template)):
            if name not in secrets:
                raise field_error(f"${{{name}}} would choose the host; only a declared secret may", "url_template")
        super().check_placeholders(secrets)

    def check_defaults(self, defaults: HttpDefaults | None) -> None:
        """Refuse a path without a base URL, and the name of an unknown scheme."""
        if self.url_template.startswith("/") and (defaults is None or defaults.base_url is None):
            raise field_error("this path needs the toolset's 'http: {base_url: https://…}'", "url_template")
        known = defaults.auth if defaults is not None else {}
        for name in self.schemes:
            if name not in known:
                raise field_error(f"{name!r} is not among the toolset's 'http.auth'{did_you_mean(name, known)}", "auth")
