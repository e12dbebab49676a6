"""The request of an HTTP tool: its templates, compiled once, filled with the values of a call.

Every value is encoded for its position. For any values, the scheme, host, port, number of path segments, names of
headers, query parameters and cookies, and the structure of a JSON body are those of the template; what has no value is
left out. An object in the style `form` or `deepObject` is the exception: its keys become names, as the author declared.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any
from urllib.parse import quote, quote_plus, unquote_plus, urlsplit
from xml.sax.saxutils import escape as escape_xml

from gateway.bundles.field_types import REFERENCE
from gateway.bundles.http_tool import HttpDefaults, HttpTool, Parameter, Part, PathStyle
from gateway.calls import to_json
from gateway.errors import Invalid
from gateway.value import Value

Values = Mapping[str, Any]

_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_HOST = re.compile(r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?")
_JSON_TOKEN = re.compile(rf'"(?:[^"\\]|\\.)*"|(?P<bare>{REFERENCE.pattern})', re.DOTALL)
# Characters that the literal parts of a URL keep: all that RFC 3986 knows.
_LITERAL = "%/:=&?~+!$,;'@()*[]"
_COOKIE = "!#$&'()*+-./:<=>?@[]^_`{|}~"
# The gateway frames the message itself.
_RESERVED_HEADERS = frozenset(
    {"accept-encoding", "connection", "content-length", "expect", "host", "keep-alive", "te", "trailer"}
    | {"transfer-encoding", "upgrade"}
)


class _Missing:
    """A reference that nothing fills."""


MISSING = _Missing()


class HttpRequest(Value):
    """A request, encoded. `authority` is the host with its port, `path` begins with `/`, `query` has no `?`."""

    method: str
    scheme: str
    authority: str
    path: str
    query: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""

    @property
    def target(self) -> str:
        return f"{self.path}?{self.query}" if self.query else self.path

    @property
    def origin(self) -> str:
        return f"{self.scheme}://{self.authority}"

    @property
    def url(self) -> str:
        return self.origin + self.target


class TextTemplate:
    """A text with references, split once."""

    __slots__ = ("literals", "paths", "source", "whole")

    def __init__(self, source: str) -> None:
        self.source = source
        self.literals: list[str] = []
        self.paths: list[tuple[str, ...]] = []
        end = 0
        for match in REFERENCE.finditer(source):
            self.literals.append(source[end : match.start()])
            self.paths.append(tuple(match["whole"].replace("[", ".").replace("]", "").split(".")))
            end = match.end()
        self.literals.append(source[end:])
        self.whole = self.paths[0] if len(self.paths) == 1 and self.literals == ["", ""] else None

    def value(self, values: Values) -> Any:
        """Return the value of a text that is one reference, any other text filled in; `MISSING` if nothing fills it."""
        if self.whole is not None:
            return resolve(self.whole, values)
        return self.fill(values) if self.paths else self.source

    def fill(self, values: Values, encode: Callable[[str], str] = str) -> str:
        if not self.paths:
            return self.source
        parts = [self.literals[0]]
        for path, literal in zip(self.paths, self.literals[1:], strict=True):
            parts += encode(to_text(resolve(path, values))), literal
        return "".join(parts)


def resolve(path: Sequence[str], values: Values) -> Any:
    """Return the value at a path such as `("user", "0", "name")`, or `MISSING`."""
    value: Any = values
    for key in path:
        if isinstance(value, Mapping) and key in value:
            value = value[key]
        elif isinstance(value, list) and key.isdigit() and int(key) < len(value):
            value = value[int(key)]
        else:
            return MISSING
    return value


def to_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return "" if value is None or value is MISSING else to_json(value).decode()


def fill_text(template: str, values: Values) -> str:
    """Fill a text in which no position has a meaning, such as a file name."""
    return TextTemplate(template).fill(values)


def quote_all(text: str) -> str:
    return quote(text, safe="")


class RequestTemplate:
    """The request of one tool; `build` fills it. `reserved` are names of parameters and cookies that auth helpers set:
    the keys of an object cannot have them, nor those of other parameters."""

    def __init__(
        self, tool: HttpTool, defaults: HttpDefaults | None = None, reserved: frozenset[str] = frozenset()
    ) -> None:
        url = tool.url_template
        if url.startswith("/") and defaults is not None and defaults.base_url is not None:
            url = defaults.base_url.rstrip("/") + url
        scheme, _, rest = url.partition("://")
        self.method = tool.method
        self._scheme = scheme.lower()
        authority, path, query = _split_url(rest)
        self._authority = TextTemplate(authority)
        self._segments = [TextTemplate(segment) for segment in path.split("/")[1:]]
        self._path_styles = tool.path
        self._query = [_Parameter(name, value) for name, value in (*query, *tool.query.items())]
        shared = defaults.headers if defaults is not None else {}
        headers = {name.lower(): value for name, value in (*shared.items(), *tool.headers.items())}
        self._headers = [_Parameter(name, value) for name, value in headers.items() if name not in _RESERVED_HEADERS]
        self._cookies = [_Parameter(name, value) for name, value in tool.cookies.items()]
        self._taken = reserved.union(parameter.name for parameter in (*self._query, *self._cookies))
        self._body = _make_body(tool)
        self._content_type = tool.content_type
        # Filled in without a look at the parts where nothing is variable.
        self._fixed_path = None if any(part.paths for part in self._segments) else self._join_path({})

    def build(self, values: Values, files: Mapping[str, bytes] | None = None) -> HttpRequest:
        """Return the request for these values. `files` has the content of each file that `file_paths` names. `Invalid`
        names the value that does not fit its position."""
        authority = self._authority.fill(values)
        if not _HOST.fullmatch(authority):
            raise Invalid("the secret in the URL of this tool is no host", code="INVALID_URL")
        headers = {}
        for parameter in self._headers:
            if (text := parameter.header(values)) is not None:
                headers[parameter.name] = text
        if cookies := [pair for parameter in self._cookies for pair in parameter.encoded(values, self._taken, ",")]:
            headers["cookie"] = "; ".join(f"{quote_all(name)}={quote(text, safe=_COOKIE)}" for name, text, _ in cookies)
        body = b""
        if self._body is not None:
            body, content_type = self._body(values, files or {})
            if content_type.startswith("multipart/"):  # it names the boundary
                headers["content-type"] = content_type
            elif content_type:
                headers.setdefault("content-type", self._content_type or content_type)
        path = self._fixed_path or self._join_path(values)
        return HttpRequest(self.method, self._scheme, authority, path, self._join_query(values), headers, body)

    def _join_path(self, values: Values) -> str:
        return "/" + "/".join(self._fill_segment(segment, values) for segment in self._segments)

    def _fill_segment(self, segment: TextTemplate, values: Values) -> str:
        if not segment.paths:
            return quote(segment.source, safe=_LITERAL)
        parts = [quote(segment.literals[0], safe=_LITERAL)]
        for path, literal in zip(segment.paths, segment.literals[1:], strict=True):
            value = resolve(path, values)
            if value is MISSING or value is None or value in ("", []):
                raise Invalid(f"'{path[0]}' is required: it is part of the URL's path")
            style = self._path_styles.get(path[0], _SIMPLE)
            parts += _path_value(path[0], value, style), quote(literal, safe=_LITERAL)
        text = "".join(parts)
        if text in ("", ".", ".."):
            raise _path_error(segment.paths[0][0])
        return text

    def _join_query(self, values: Values) -> str:
        pairs = [
            f"{quote_all(name)}={text if is_encoded else quote_all(text)}"
            for parameter in self._query
            for name, text, is_encoded in parameter.encoded(values, self._taken)
        ]
        return "&".join(pairs)


def _split_url(rest: str) -> tuple[str, str, list[tuple[str, str]]]:
    """Split what follows `https://` into host, path and the pairs of the query."""
    before, _, query = rest.partition("?")
    authority, slash, path = before.partition("/")
    pairs = [pair.partition("=") for pair in query.split("&") if pair]
    return authority, slash + path or "/", [(unquote_plus(name), unquote_plus(value)) for name, _, value in pairs]


_SIMPLE = PathStyle()


def _path_value(name: str, value: Any, style: PathStyle) -> str:
    """Return a value for a path, in its style (RFC 6570). Separators are literal, the values are encoded."""
    if style.style == "json" or not isinstance(value, list | dict):
        items = [_path_item(name, to_json(value).decode() if style.style == "json" else to_text(value))]
    elif isinstance(value, list):
        items = [_path_item(name, to_text(item)) for item in value]
    else:
        pairs = [(quote_all(key), _path_item(name, to_text(item))) for key, item in value.items()]
        items = [f"{key}={item}" for key, item in pairs] if style.explode else [part for pair in pairs for part in pair]
    if style.style == "label":
        return "." + ("." if style.explode else ",").join(items)
    if style.style == "matrix":
        if style.explode and isinstance(value, list | dict):
            return "".join(f";{item}" if isinstance(value, dict) else f";{name}={item}" for item in items)
        return f";{name}={','.join(items)}"
    return ",".join(items)


def _path_item(name: str, text: str) -> str:
    """Return a text as part of a path segment. A server may decode it before it resolves `..`, so that is refused."""
    if any(piece in (".", "..") for piece in re.split(r"[/\\]", text)):
        raise _path_error(name)
    return quote_all(text)


def _path_error(name: str) -> Invalid:
    return Invalid(f"'{name}' is part of the URL's path and cannot be empty, or have a segment '.' or '..' in it")


_DELIMITERS = {"spaceDelimited": "%20", "pipeDelimited": "%7C"}


class _Parameter:
    """A parameter of the query, a header, a cookie or a form. One whose only reference has no value is left out."""

    __slots__ = ("_declared", "_text", "name")

    def __init__(self, name: str, value: str | Parameter) -> None:
        self.name = name
        self._declared = value if isinstance(value, Parameter) else None
        self._text = TextTemplate(value.value if isinstance(value, Parameter) else value)

    def encoded(
        self, values: Values, taken: frozenset[str], joined: str | None = None
    ) -> Iterator[tuple[str, str, bool]]:
        """Yield names and texts, with whether the text is percent-encoded already. Lists that are not repeated are
        joined, by `joined` as plain text. `taken` are names that the keys of an object cannot have."""
        value = self._text.value(values)
        if value is MISSING or value is None:
            return
        declared = self._declared
        if not isinstance(value, list | dict) or (declared is not None and declared.style == "json"):
            is_json = declared is not None and declared.style == "json"
            yield self.name, to_json(value).decode() if is_json else to_text(value), False
        elif declared is None and isinstance(value, dict):
            yield self.name, to_text(value), False
        elif declared is not None and declared.style == "deepObject":
            yield from ((name, text, False) for name, text in _deep_pairs(self.name, value))
        elif (declared is None and joined is None) or (declared is not None and declared.exploded):
            yield from ((name, text, False) for name, text in self._explode(value, taken))
        elif items := list(_flatten(value)):
            if joined is not None:
                yield self.name, joined.join(items), False
            else:
                delimiter = _DELIMITERS.get(declared.style if declared is not None else "", ",")
                yield self.name, delimiter.join(map(quote_all, items)), True

    def header(self, values: Values) -> str | None:
        """Return the value of a header line; None if there is none."""
        value = self._text.value(values)
        if value is MISSING or value is None:
            return None
        if isinstance(value, list) or (isinstance(value, dict) and self._declared is not None):
            declared = self._declared
            if declared is not None and declared.style == "json":
                text = to_json(value).decode()
            elif declared is not None and declared.explode and isinstance(value, dict):
                text = ",".join(f"{key}={to_text(item)}" for key, item in value.items())
            else:
                text = ",".join(_flatten(value))
        else:
            text = to_text(value)
        return check_header(self.name, text)

    def _explode(self, value: Any, taken: frozenset[str]) -> Iterator[tuple[str, str]]:
        if isinstance(value, list):
            yield from ((self.name, to_text(item)) for item in value)
            return
        for key, item in value.items():
            if key in taken:
                raise Invalid(f"'{key}' is a parameter of its own; leave it out of {self.name!r}")
            yield key, to_text(item)


def check_header(name: str, text: str) -> str:
    """Return the text without blanks around it; refused when it would end the header's line."""
    if _CONTROL.search(text):
        raise Invalid(f"the value of the header {name!r} must be one line without control characters")
    return text.strip()


def _flatten(value: Any) -> Iterator[str]:
    items: Iterable[Any] = value if isinstance(value, list) else [part for pair in value.items() for part in pair]
    return map(to_text, items)


def _deep_pairs(name: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _deep_pairs(f"{name}[{key}]", item)
    elif isinstance(value, list):
        yield from ((name, to_text(item)) for item in value)
    elif value is not None:
        yield name, to_text(value)


# Makes a body and its content type from the values and the content of files.
_MakeBody = Callable[[Values, Mapping[str, bytes]], tuple[bytes, str]]
_NOTHING = b"", ""


def _make_body(tool: HttpTool) -> _MakeBody | None:
    if tool.form is not None:
        return _form_body([_Parameter(name, value) for name, value in tool.form.items()])
    if tool.parts is not None:
        return _multipart_body([_MultipartPart(name, part) for name, part in tool.parts.items()])
    if tool.body_file is not None:
        path = TextTemplate(tool.body_file)
        return lambda values, files: _file_body(path.value(values), files)
    if tool.body is None:
        return None
    if tool.has_text_body:
        encode = escape_xml if "xml" in (tool.content_type or "") else str
        return _text_body(TextTemplate(to_text(tool.body)), encode, tool.content_type or "text/plain; charset=utf-8")
    return _json_body(_compile_json(_parse_json_template(tool.body)))


def file_paths(tool: HttpTool, values: Values) -> list[str]:
    """Return the paths of the workspace's files that the request sends."""
    templates = [part.file for part in (tool.parts or {}).values() if isinstance(part, Part) and part.file is not None]
    given = [
        TextTemplate(template).value(values) for template in (*templates, *([tool.body_file] if tool.body_file else []))
    ]
    return [to_text(path) for path in given if path is not MISSING and path is not None]


def _file_body(path: Any, files: Mapping[str, bytes]) -> tuple[bytes, str]:
    return _NOTHING if path is MISSING or path is None else (files[to_text(path)], "application/octet-stream")


def _text_body(text: TextTemplate, encode: Callable[[str], str], content_type: str) -> _MakeBody:
    def make(values: Values, _: Mapping[str, bytes]) -> tuple[bytes, str]:
        if text.whole is None:
            return text.fill(values, encode).encode(), content_type
        value = text.value(values)
        return _NOTHING if value is MISSING or value is None else (to_text(value).encode(), content_type)

    return make


def _json_body(template: Any) -> _MakeBody:
    def make(values: Values, _: Mapping[str, bytes]) -> tuple[bytes, str]:
        value = _fill_json(template, values)
        return _NOTHING if value is MISSING else (to_json(value), "application/json")

    return make


def _parse_json_template(body: Any) -> Any:
    """Return a JSON body that is written as text in its structure, so that no value can change that."""
    if not isinstance(body, str) or REFERENCE.fullmatch(body) or body.lstrip()[:1] not in ("{", "["):
        return body
    try:
        return json.loads(_JSON_TOKEN.sub(lambda match: json.dumps(match[0]) if match["bare"] else match[0], body))
    except ValueError:
        return body


def _compile_json(template: Any) -> Any:
    if isinstance(template, str):
        text = TextTemplate(template)
        return text if text.paths else template
    if isinstance(template, Mapping):
        return {key: _compile_json(item) for key, item in template.items()}
    if isinstance(template, list | tuple):
        return [_compile_json(item) for item in template]
    return template


def _fill_json(template: Any, values: Values) -> Any:
    if isinstance(template, TextTemplate):
        return template.value(values)
    if isinstance(template, dict):
        filled = ((key, _fill_json(item, values)) for key, item in template.items())
        return {key: item for key, item in filled if item is not MISSING}
    if isinstance(template, list):
        return [item for part in template if (item := _fill_json(part, values)) is not MISSING]
    return template


def _form_body(parameters: Sequence[_Parameter]) -> _MakeBody:
    names = frozenset(parameter.name for parameter in parameters)

    def make(values: Values, _: Mapping[str, bytes]) -> tuple[bytes, str]:
        pairs = [
            f"{quote_plus(name)}={text if is_encoded else quote_plus(text)}"
            for parameter in parameters
            for name, text, is_encoded in parameter.encoded(values, names)
        ]
        return "&".join(pairs).encode("ascii"), "application/x-www-form-urlencoded"

    return make


class _MultipartPart:
    """A part of a multipart body; a list is sent as one part for each item."""

    def __init__(self, name: str, part: str | Part) -> None:
        self.name = name
        self._part = part if isinstance(part, Part) else Part(value=part)
        self._value = _compile_json(self._part.value)
        self._filename = TextTemplate(self._part.filename) if self._part.filename is not None else None

    def encode(self, values: Values, files: Mapping[str, bytes]) -> Iterator[tuple[str, bytes]]:
        """Yield the header lines and the content of each."""
        part = self._part
        filename = None if self._filename is None else self._filename.fill(values)
        if part.file is not None:
            path = TextTemplate(part.file).value(values)
            if path is not MISSING and path is not None:
                name = filename or to_text(path).rpartition("/")[2]
                yield self._headers(name, part.content_type or "application/octet-stream"), files[to_text(path)]
            return
        if part.base64 is not None:
            content = TextTemplate(part.base64).value(values)
            if content is not MISSING and content is not None:
                yield (
                    self._headers(filename or self.name, part.content_type or "application/octet-stream"),
                    _decode_base64(self.name, to_text(content)),
                )
            return
        value = _fill_json(self._value, values)
        for item in value if isinstance(value, list) and part.content_type is None else [value]:
            if item is not MISSING and item is not None:
                kind = part.content_type or ("application/json" if isinstance(item, list | dict) else None)
                yield self._headers(filename, kind), to_text(item).encode()

    def _headers(self, filename: str | None, content_type: str | None) -> str:
        lines = f'content-disposition: form-data; name="{_quote_part(self.name)}"'
        if filename is not None:
            lines += f'; filename="{_quote_part(filename)}"'
        return lines + (f"\r\ncontent-type: {content_type}" if content_type else "")


def _multipart_body(parts: Sequence[_MultipartPart]) -> _MakeBody:
    def make(values: Values, files: Mapping[str, bytes]) -> tuple[bytes, str]:
        encoded = [item for part in parts for item in part.encode(values, files)]
        boundary = secrets.token_hex(16)
        lines = [f"--{boundary}\r\n{headers}\r\n\r\n".encode() + content + b"\r\n" for headers, content in encoded]
        return b"".join(lines) + f"--{boundary}--\r\n".encode(), f"multipart/form-data; boundary={boundary}"

    return make


def _quote_part(name: str) -> str:
    """Return a name for a `content-disposition`, as browsers encode it."""
    return name.replace('"', "%22").replace("\r", "%0D").replace("\n", "%0A")


def _decode_base64(name: str, text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise Invalid(f"{name!r} must be base64") from None


def parse_next(request: HttpRequest, url: str) -> HttpRequest | None:
    """Return the request of a next page; None if its URL is of another origin."""
    parts = urlsplit(url)
    if (parts.scheme, parts.netloc.lower()) != (request.scheme, request.authority.lower()):
        return None
    path, query = quote(parts.path or "/", safe=_LITERAL), quote(parts.query, safe=_LITERAL)
    return HttpRequest(request.method, request.scheme, request.authority, path, query, request.headers, request.body)
