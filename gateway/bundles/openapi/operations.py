"""Operations of an OpenAPI document as HTTP tools: names, descriptions, arguments, and the request they fill."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, quote

import jsonschema_rs

from gateway.bundles.field_types import HEADER_NAME, QUERY_NAME
from gateway.bundles.openapi.auth import AUTH_PARAMETERS, SecuritySchemes
from gateway.bundles.openapi.document import OpenApiDocument, UnresolvedReference
from gateway.bundles.openapi.schemas import SchemaConverter, clean_text
from gateway.names import SEPARATOR, WIRE_NAME_LIMIT
from gateway.yamldoc import KEY_LIMIT

METHODS = ("get", "put", "post", "delete", "options", "head", "patch", "trace")
FIELDS_LIMIT = 100  # of one query, form or body that is taken apart
_READING = frozenset(["get", "head", "options"])
_SUMMARY_LIMIT, _DESCRIPTION_LIMIT, _ERRORS_LIMIT = 200, 1000, 5
_ARGUMENT_LIMIT = 64  # of a property's name, in the model APIs in use
_LONGEST_PATH = 4000
_PARAMETER = re.compile(r"\{([^{}]+)\}")
# Headers that OpenAPI says to ignore, and headers that the HTTP client sets.
_OWN_HEADERS = frozenset(["accept", "content-type", "authorization", "host", "content-length", "connection"]) | {
    *("accept-encoding", "expect", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade")
}
_PLAIN_ANSWERS = re.compile(
    r"(?i)\W*(?:ok|okay|success(?:ful)?(?: (?:response|operation|request))?|default|response)\W*"
)
_FILE_TYPES = re.compile(
    r"application/(?:octet-stream|pdf|zip|gzip|x-tar|x-gzip|vnd\.ms-.*|vnd\.openxml.*)|(?:audio|video)/.*"
)
_FILE = {"type": "string", "description": "Path of a file in the workspace."}


class SkippedOperation(Exception):
    """An operation that cannot be a tool; the message says why."""


@dataclass
class Operation:
    """One operation with its surroundings: the fields of its path item apply to it too."""

    method: str
    path: str
    fields: dict[str, Any]
    shared: dict[str, Any]

    @property
    def place(self) -> str:
        return f"{self.method.upper()} {self.path}"

    @property
    def tags(self) -> tuple[str, ...]:
        tags = self.fields.get("tags")
        cleaned = [clean_text(tag, _SUMMARY_LIMIT, one_line=True) for tag in tags] if isinstance(tags, list) else []
        return tuple(dict.fromkeys(tag for tag in cleaned if tag))[:32]


@dataclass
class RequestParts:
    """The parts of a tool that are filled from its arguments, while they are collected. `schemas` are the arguments'
    schemas as the document has them."""

    path: str = ""
    path_styles: dict[str, Any] = field(default_factory=dict)
    query: dict[str, Any] = field(default_factory=dict)
    headers: dict[str, Any] = field(default_factory=dict)
    cookies: dict[str, Any] = field(default_factory=dict)
    body: dict[str, Any] = field(default_factory=dict)
    schemas: dict[str, Any] = field(default_factory=dict)
    required: list[str] = field(default_factory=list)
    files: bool = False
    taken: set[str] = field(default_factory=set)

    def add(self, name: str, location: str, schema: Any, required: bool) -> str:
        """Add an argument and return its reference. A second one of the same name gets its location in front."""
        plain = (
            re.sub(r"[^A-Za-z0-9_-]+", "_", name.replace("<", "_before").replace(">", "_after")).strip("_") or location
        )
        plain = plain if plain[0].isalpha() or plain[0] == "_" else f"_{plain}"
        own = f"{location}_{plain}"
        candidates = itertools.chain((plain, own), (f"{own}_{number}" for number in itertools.count(2)))
        argument = next(
            short
            for short in (_shorten(candidate, _ARGUMENT_LIMIT) for candidate in candidates)
            if short not in self.schemas and short not in self.taken
        )
        self.schemas[argument] = schema
        if required:
            self.required.append(argument)
        return f"${{{argument}}}"


class OperationConverter:
    """Makes tools of a document's operations. Paths of tools are below `base_url`."""

    def __init__(self, document: OpenApiDocument, toolset_id: str, schemes: SecuritySchemes, base_url: str) -> None:
        self._document = document
        self._schemes = schemes
        self._base_url = base_url
        self._name_limit = max(WIRE_NAME_LIMIT - len(SEPARATOR) - len(toolset_id), 16)
        self._names: set[str] = set()
        self._notes: dict[str, None] = {}
        self._schemas = SchemaConverter(document, lambda text: self._note(text))

    def list_operations(self) -> Iterator[Operation | tuple[str, str]]:
        """Yield every operation of the paths, and for a path that cannot be read its name and the reason."""
        for path, item in (self._document.root.get("paths") or {}).items():
            if path.startswith("x-"):
                continue
            try:
                shared = self._document.resolve(item)
            except UnresolvedReference as error:
                yield path, str(error)
                continue
            for method in METHODS:
                fields = shared.get(method) if isinstance(shared, dict) else None
                if fields is None:
                    continue
                try:
                    resolved = self._document.resolve(fields)
                except UnresolvedReference as error:
                    yield f"{method.upper()} {path}", str(error)
                    continue
                if isinstance(resolved, dict):
                    yield Operation(method, path, resolved, shared)
                else:
                    yield f"{method.upper()} {path}", "it is not an object"

    def convert(self, operation: Operation, base_url: str) -> tuple[dict[str, Any], list[str]]:
        """The tool of an operation as in `toolset.yaml`, and notes on what was left out."""
        if operation.method == "trace":
            raise SkippedOperation("TRACE echoes the request with its credentials; HTTP clients refuse it")
        self._notes = {}
        request = RequestParts(taken=set(self._schemes.variables))
        self._fill_path(operation, request)
        self._add_parameters(operation, request)
        self._add_body(operation, request)
        name = self._choose_name(operation)
        url = request.path if base_url == self._base_url else f"{base_url}{request.path}"
        tool: dict[str, Any] = {"id": name, "type": "http"}
        title = clean_text(operation.fields.get("summary"), _SUMMARY_LIMIT, one_line=True)
        tool |= {"name": title} if title else {}
        tool["description"] = self._describe(operation)
        tool["input_schema"] = self._make_schema(request)
        tool |= _annotate(operation.method)
        tool["access"] = "read" if request.files else "none"
        tool |= {"tags": list(operation.tags)} if operation.tags else {}
        tool |= {"url_template": url, "method": operation.method.upper()}
        parts = {"path": request.path_styles, "query": request.query}
        parts |= {"headers": request.headers, "cookies": request.cookies}
        tool |= {key: value for key, value in parts.items() if value}
        tool |= request.body
        if auth := self._schemes.choose(operation.fields.get("security"), self._note):
            tool["auth"] = auth[0] if len(auth) == 1 else auth
        tool |= self._choose_output(operation)
        if tool.get("response", {}).get("output") == "file":
            tool["access"] = "write"
        return tool, list(self._notes)

    def _note(self, text: str) -> None:
        self._notes[text] = None

    def _choose_name(self, operation: Operation) -> str:
        """A name from the operationId, else from method and path, that is unique and fits on the wire."""
        given = operation.fields.get("operationId")
        source = given if isinstance(given, str) and given.strip() else f"{operation.method} {operation.path}"
        wanted = re.sub(r"[^A-Za-z0-9_-]+", "_", source).strip("_-") or operation.method
        name = _shorten(wanted, self._name_limit)
        if name in self._names:
            name = _shorten(f"{wanted}_{_digest(operation.place)}", self._name_limit)
        self._names.add(name)
        return name

    def _fill_path(self, operation: Operation, request: RequestParts) -> None:
        path, _, query = operation.path.partition("#")[0].partition("?")
        if len(path) > _LONGEST_PATH:
            raise SkippedOperation(f"its path is longer than {_LONGEST_PATH} characters")
        request.path = path if path.startswith("/") else f"/{path}"
        request.query |= {key: value for key, value in parse_qsl(query, keep_blank_values=True) if "{" not in value}

    def _parameters(self, operation: Operation) -> dict[tuple[str, str], dict[str, Any]]:
        """The parameters by location and name; an operation's own replaces that of its path."""
        found: dict[tuple[str, str], dict[str, Any]] = {}
        for node in (*_items(operation.shared.get("parameters")), *_items(operation.fields.get("parameters"))):
            try:
                parameter = self._document.resolve(node)
            except UnresolvedReference as error:
                self._note(f"a parameter is missing: {error}")
                continue
            if isinstance(parameter, dict):
                found[str(parameter.get("in")), str(parameter.get("name") or "")] = parameter
        return found

    def _add_parameters(self, operation: Operation, request: RequestParts) -> None:
        parameters = self._parameters(operation)
        for name in dict.fromkeys(_PARAMETER.findall(request.path)):
            parameter = parameters.pop(("path", name), None)
            if parameter is None:
                self._note(f"the path parameter {name!r} is not declared; it is taken as text")
                parameter = {"schema": {"type": "string"}}
            reference = request.add(name, "path", _parameter_schema(parameter), True)
            request.path = request.path.replace(f"{{{name}}}", f"\0{reference}\0")
            style, explode = parameter.get("style", "simple"), parameter.get("explode") is True
            if style in ("label", "matrix") or explode or "content" in parameter:
                style = "json" if "content" in parameter else style
                request.path_styles[reference[2:-1]] = {"style": style, "explode": explode}
        request.path = "".join(
            part if index % 2 else quote(part, safe="/:@!$&'()*+,;=~%")
            for index, part in enumerate(request.path.split("\0"))
        )
        for (location, name), parameter in parameters.items():
            self._add_parameter(location, name, parameter, request)

    def _add_parameter(self, location: str, name: str, parameter: dict[str, Any], request: RequestParts) -> None:
        required = parameter.get("required") is True
        lower = name.lower()
        if location == "path":
            self._note(f"the path parameter {name!r} is not in the path; it is left out")
            return
        if location == "header" and lower in _OWN_HEADERS - {"authorization"}:
            return
        pattern = QUERY_NAME if location == "query" else HEADER_NAME
        if location not in ("query", "header", "cookie") or not pattern.fullmatch(name):
            self._note(f"the {location} parameter {name!r} cannot be sent; it is left out")
            return
        target = {"query": request.query, "header": request.headers, "cookie": request.cookies}[location]
        if len(target) >= FIELDS_LIMIT:
            self._note(f"the {location} parameter {name!r} is one too many; it is left out")
            return
        if lower.replace("-", "_") in AUTH_PARAMETERS:
            if required or not self._schemes.names:
                target[name] = self._schemes.reference(name)
                self._note(f"the {location} parameter {name!r} is a credential; it comes from {target[name]}")
            return
        schema = _parameter_schema(parameter)
        target[name] = _style(
            request.add(name, location, schema, required), location, parameter, self._is_object(schema)
        )

    def _add_body(self, operation: Operation, request: RequestParts) -> None:
        if "requestBody" not in operation.fields:
            return
        try:
            body = self._document.resolve(operation.fields["requestBody"])
        except UnresolvedReference as error:
            self._note(f"the request body is missing: {error}")
            return
        content = body.get("content") if isinstance(body, dict) else None
        if not isinstance(content, dict) or not content:
            return
        required = body.get("required") is True
        if operation.method in ("get", "head"):
            if required:
                raise SkippedOperation(f"it needs a body, which a {operation.method.upper()} request cannot have")
            self._note(f"its optional body is left out: a {operation.method.upper()} request has none")
            return
        chosen = min(content, key=_rank_media_type)
        if others := [media for media in content if media != chosen]:
            self._note(f"the body is sent as {chosen}; not as {', '.join(others[:5])}")
        media = content[chosen] if isinstance(content[chosen], dict) else {}
        kind = chosen.partition(";")[0].strip().lower()
        if "*" in kind:
            kind = chosen = "application/json" if self._is_object(media.get("schema")) else "application/octet-stream"
        if kind == "application/x-www-form-urlencoded":
            self._add_form(media, required, request)
        elif kind.startswith("multipart/"):
            self._add_parts(media, required, request)
        elif _is_json(kind):
            self._add_json(media, kind, required, request)
        else:
            self._add_raw(media, chosen, kind, required, request)

    def _add_json(self, media: dict[str, Any], kind: str, required: bool, request: RequestParts) -> None:
        if kind != "application/json":
            request.body["content_type"] = kind
        fields = self._find_fields(media)
        if fields is None:
            description = {"description": "The body of the request."}
            schema = media.get("schema")
            whole = {**description, **schema} if isinstance(schema, dict) else description
            request.body["body"] = request.add("body", "body", whole, required)
            return
        properties, wanted = fields
        request.body["body"] = {
            name: request.add(name, "body", schema, required and name in wanted) for name, schema in properties.items()
        }

    def _find_fields(self, media: dict[str, Any]) -> tuple[dict[str, Any], list[str]] | None:
        """The fields of a body that become arguments of their own."""
        fields = self._schemas.find_properties(media.get("schema"))
        if fields is None or not 0 < len(fields[0]) <= FIELDS_LIMIT or any(len(name) > KEY_LIMIT for name in fields[0]):
            return None
        return fields

    def _find_form_fields(self, media: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
        """The fields of a form; where its schema is a choice, those of all choices."""
        properties, wanted = self._schemas.find_properties(media.get("schema")) or (
            self._schemas.find_choices(media.get("schema")),
            [],
        )
        names = [name for name in properties if QUERY_NAME.fullmatch(name)]
        if left := [name for name in properties if name not in names[:FIELDS_LIMIT]]:
            self._note(f"fields of the form that cannot be sent are left out: {', '.join(left[:5])}")
        return {name: properties[name] for name in names[:FIELDS_LIMIT]}, wanted

    def _add_form(self, media: dict[str, Any], required: bool, request: RequestParts) -> None:
        properties, wanted = self._find_form_fields(media)
        if not properties:
            text = {"type": "string", "description": "The body of the request, as a URL-encoded form."}
            request.body["content_type"] = "application/x-www-form-urlencoded"
            request.body["body"] = request.add("body", "body", text, required)
            return
        encoding = media.get("encoding") if isinstance(media.get("encoding"), dict) else {}
        form = request.body.setdefault("form", {})
        for name, schema in properties.items():
            if name.lower() in AUTH_PARAMETERS and not self._schemes.names:
                form[name] = self._schemes.reference(name)
                continue
            reference = request.add(name, "body", schema, required and name in wanted)
            own = (encoding or {}).get(name)
            own = own if isinstance(own, dict) else {}
            if "json" in str(own.get("contentType")):
                own = {"content": {}}
            elif "style" not in own and self._is_object(schema):
                own = {"style": "deepObject", "explode": True}
            form[name] = _style(reference, "query", own, False)

    def _add_parts(self, media: dict[str, Any], required: bool, request: RequestParts) -> None:
        properties, wanted = self._find_form_fields(media)
        if not properties:
            raise SkippedOperation("its multipart body has no named parts")
        encoding = media.get("encoding") if isinstance(media.get("encoding"), dict) else {}
        parts = request.body.setdefault("parts", {})
        for name, schema in properties.items():
            is_file = self._is_file(schema)
            if is_file:
                description = schema.get("description") if isinstance(schema, dict) else None
                schema = {**_FILE, "description": f"{_FILE['description']} {description or ''}".strip()}
                request.files = True
            reference = request.add(name, "body", schema, required and name in wanted)
            own = (encoding or {}).get(name)
            media_type = own.get("contentType") if isinstance(own, dict) else None
            part: dict[str, Any] = {"file" if is_file else "value": reference}
            if isinstance(media_type, str) and "," not in media_type and "*" not in media_type:
                part["content_type"] = media_type
            parts[name] = reference if list(part) == ["value"] else part

    def _add_raw(
        self, media: dict[str, Any], content_type: str, kind: str, required: bool, request: RequestParts
    ) -> None:
        request.body["content_type"] = content_type
        schema = media.get("schema")
        is_text = kind.startswith("text/") or "xml" in kind or self._has_text_schema(schema)
        if is_text:
            text = {"type": "string", "description": f"The body of the request, as {kind}."}
            request.body["body"] = request.add("body", "body", text, required)
        else:
            request.files = True
            file = {"type": "string", "description": f"Path of the file in the workspace to send, as {kind}."}
            request.body["body_file"] = request.add("file", "body", file, required)

    def _has_text_schema(self, schema: Any) -> bool:
        resolved = self._resolve_quietly(schema)
        return resolved.get("type") == "string" and resolved.get("format") != "binary"

    def _is_file(self, schema: Any) -> bool:
        resolved = self._resolve_quietly(schema)
        if resolved.get("type") == "array":
            resolved = self._resolve_quietly(resolved.get("items"))
        if resolved.get("format") in ("binary", "base64") or "contentMediaType" in resolved:
            return True
        choices = [*_items(resolved.get("oneOf")), *_items(resolved.get("anyOf"))]
        return bool(choices) and all(self._is_file(choice) for choice in choices)

    def _is_object(self, schema: Any, depth: int = 0) -> bool:
        resolved = self._resolve_quietly(schema)
        choices = [*_items(resolved.get("anyOf")), *_items(resolved.get("oneOf")), *_items(resolved.get("allOf"))]
        if depth < 4 and any(self._is_object(choice, depth + 1) for choice in choices):
            return True
        if resolved.get("type") == "array":
            return depth < 4 and self._is_object(resolved.get("items"), depth + 1)
        return resolved.get("type") == "object" or "properties" in resolved

    def _resolve_quietly(self, schema: Any) -> dict[str, Any]:
        try:
            resolved = self._document.resolve(schema)
        except UnresolvedReference:
            return {}
        return resolved if isinstance(resolved, dict) else {}

    def _make_schema(self, request: RequestParts) -> dict[str, Any]:
        properties = self._schemas.convert(request.schemas)
        schema: dict[str, Any] = {"type": "object", "properties": properties}
        if request.required:
            schema["required"] = request.required
        schema["additionalProperties"] = False
        for remedy in (None, "pattern", "format"):
            if remedy is not None:
                self._note(f"a {remedy!r} in its schemas is not valid here; they are left out")
                schema = _without(schema, remedy)
            try:
                jsonschema_rs.validator_for(schema)
            except ValueError:
                continue
            return schema
        raise SkippedOperation("its schemas are no JSON Schema")

    def _describe(self, operation: Operation) -> str:
        fields = operation.fields
        summary = clean_text(fields.get("summary"), _SUMMARY_LIMIT, one_line=True)
        text = clean_text(fields.get("description"), _DESCRIPTION_LIMIT)
        if not text:
            text = clean_text(operation.shared.get("description"), _DESCRIPTION_LIMIT)
        if not summary and not text and isinstance(fields.get("operationId"), str):
            summary = _to_words(fields["operationId"])
        lines = [summary] if summary and not text.startswith(summary.rstrip(".")) else []
        lines += [text] if text else []
        lines += ["Deprecated."] if fields.get("deprecated") is True else []
        responses = fields.get("responses") if isinstance(fields.get("responses"), dict) else {}
        returns: list[tuple[str, str]] = []
        errors: list[tuple[str, str]] = []
        for status, response in (responses or {}).items():
            about = clean_text(self._resolve_quietly(response).get("description"), 120, one_line=True).rstrip(".")
            if about and not _PLAIN_ANSWERS.fullmatch(about):
                (returns if str(status).startswith("2") else errors if status[:1] in "45" else []).append(
                    (status, about)
                )
        lines += [f"Returns: {returns[0][1]}."] if returns else []
        main = "; ".join(f"{status} {about}" for status, about in errors[:_ERRORS_LIMIT])
        lines += [f"Errors: {main}."] if main else []
        return "\n".join([*lines, operation.place])

    def _choose_output(self, operation: Operation) -> dict[str, Any]:
        """A file or an image, if every successful response is one."""
        responses = operation.fields.get("responses")
        kinds: set[str] = set()
        for status, response in responses.items() if isinstance(responses, dict) else ():
            content = self._resolve_quietly(response).get("content") if str(status).startswith("2") else None
            kinds |= {media.partition(";")[0].lower() for media in content} if isinstance(content, dict) else set()
        if kinds and all(kind in ("image/png", "image/jpeg", "image/gif", "image/webp") for kind in kinds):
            return {"response": {"output": "image"}}
        if kinds and all(_FILE_TYPES.fullmatch(kind) for kind in kinds):
            return {"response": {"output": "file"}}
        return {}


def _annotate(method: str) -> dict[str, Any]:
    """Hints on the effects of a call, from its method."""
    hints: dict[str, Any] = {"permission": "read-only" if method in _READING else "read-write"}
    hints |= {"destructive": True} if method == "delete" else {}
    hints |= {"idempotent": True} if method in ("put", "delete") else {}
    return {**hints, "open_world": True}


def _style(reference: str, location: str, parameter: Mapping[str, Any], is_object: bool) -> Any:
    """The parameter as in `toolset.yaml`: only its reference where the usual style of a list or text is meant."""
    if "content" in parameter:
        return {"value": reference, "style": "json"}
    usual = "simple" if location == "header" else "form"
    style = parameter.get("style", usual)
    style = style if style in ("form", "spaceDelimited", "pipeDelimited", "deepObject", "simple") else usual
    explode = parameter.get("explode", style in ("form", "deepObject"))
    if style == usual and bool(explode) == (style == "form") and not is_object:
        return reference
    written: dict[str, Any] = {"value": reference, "style": style}
    return written | ({"explode": bool(explode)} if explode != (style == "form") else {})


def _parameter_schema(parameter: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of a parameter with its description."""
    schema = parameter.get("schema")
    content = parameter.get("content")
    if schema is None and isinstance(content, dict) and content:
        first = next(iter(content.values()))
        schema = first.get("schema") if isinstance(first, dict) else None
    schema = dict(schema) if isinstance(schema, dict) else {}
    if description := parameter.get("description"):
        schema["description"] = description
    if "example" in parameter and "example" not in schema:
        schema["example"] = parameter["example"]
    return schema


def _rank_media_type(media: str) -> int:
    kind = media.partition(";")[0].strip().lower()
    if kind == "application/json":
        return 0
    order = ("application/x-www-form-urlencoded", "multipart/form-data", "multipart/", "text/")
    return 1 if _is_json(kind) else next((2 + index for index, start in enumerate(order) if kind.startswith(start)), 9)


def _is_json(kind: str) -> bool:
    return kind in ("application/json", "text/json") or kind.endswith("+json")


def _items(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _without(node: Any, key: str) -> Any:
    """A schema without a keyword, at any depth; properties of that name stay."""
    if isinstance(node, list):
        return [_without(item, key) for item in node]
    if not isinstance(node, dict):
        return node
    kept = {name: value for name, value in node.items() if name != key or not isinstance(value, str)}
    return {name: _without(value, key) for name, value in kept.items()}


def _shorten(name: str, limit: int) -> str:
    return name if len(name) <= limit else f"{name[: limit - 9]}_{_digest(name)}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:8]


def _to_words(identifier: str) -> str:
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", re.sub(r"[^A-Za-z0-9]+", " ", identifier)).lower().strip()
    return f"{words[:1].upper()}{words[1:]}."
