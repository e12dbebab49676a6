"""A server made from OpenAPI documents: it takes any request, and says what is wrong with it by the document."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from email.parser import BytesParser
from email.policy import HTTP
from typing import Any
from urllib.parse import parse_qsl, unquote

from .documents import Dangling, Document, Node

_TYPES: dict[str, Any] = {"string": str, "integer": int, "number": int | float, "array": list, "object": dict}
IGNORED_HEADERS = ("accept", "content-type", "authorization")


@dataclass(frozen=True)
class Received:
    """A request as it arrived; the names of headers are in lower case."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]

    @property
    def query(self) -> list[tuple[str, str]]:
        return parse_qsl(self.target.partition("?")[2], keep_blank_values=True)


class Checker:
    """Checks requests against one document."""

    def __init__(self, document: Document) -> None:
        self._document = document

    def check(self, request: Received, method: str, path: str, operation: Node, item: Node) -> list[str]:
        """Everything about a request that the document does not allow. (The base path is not compared.)"""
        problems = [] if request.method == method.upper() else [f"the method is {request.method}"]
        parameters = self._parameters(operation, item)
        problems += self._check_path(request, path, parameters)
        problems += self._check_query(request, path, parameters)
        for (location, name), parameter in parameters.items():
            if location == "header" and name and name.lower() not in IGNORED_HEADERS:
                problems += self._check_one(request.headers.get(name.lower()), f"header {name}", parameter)
        return problems + list(self._check_body(request, operation))

    def _parameters(self, operation: Node, item: Node) -> dict[tuple[str, str], Node]:
        found = {}
        for owner in (item, operation):
            for entry in owner.get("parameters") or Node([], ""):
                try:
                    parameter = self._document.resolve(entry)
                except Dangling:
                    continue
                found[parameter.value["in"], str(parameter.value.get("name") or "")] = parameter
        return found

    def _check_path(self, request: Received, path: str, parameters: dict[tuple[str, str], Node]) -> Iterator[str]:
        literal = path.partition("#")[0].partition("?")[0]
        names = re.findall(r"\{([^{}]+)\}", literal)
        pieces = re.split(r"\{[^{}]+\}", literal)
        pattern = "([^/]+)".join(re.escape(piece) for piece in pieces)
        match = re.search(
            f"{pattern}$", re.sub(r"%(?!2F)([0-9A-F]{2})", lambda code: chr(int(code[1], 16)), request.path)
        )
        if match is None:
            yield f"the path is {request.path}"
            return
        for name, text in zip(names, match.groups(), strict=True):
            if ("path", name) in parameters:
                yield from self._check_one(unquote(text), f"path {name}", parameters["path", name])

    def _check_query(self, request: Received, path: str, parameters: dict[tuple[str, str], Node]) -> Iterator[str]:
        fixed = {name for name, _ in parse_qsl(path.partition("#")[0].partition("?")[2], keep_blank_values=True)}
        declared = {name: parameter for (location, name), parameter in parameters.items() if location == "query"}
        own = {name for name, parameter in declared.items() if not self._names_itself(parameter)}
        loose = len(own) < len(declared)
        for name, _ in request.query:
            base = name if name in declared else name.partition("[")[0]
            if base not in declared and name not in fixed and not loose and base.lower() not in self._keys():
                yield f"the query parameter {name!r} is not in the document"
        for name, parameter in declared.items():
            if name not in own:
                continue
            values = [value for key, value in request.query if key == name]
            if any(key.startswith(f"{name}[") for key, _ in request.query):
                continue  # deepObject: its keys are names
            exploded = parameter.value.get("explode", parameter.value.get("style", "form") == "form")
            schema = self._schema(parameter)
            is_list = schema is not None and self._kind(schema) == "array"
            if is_list and exploded and values:
                items = self._document.resolve(schema).get("items") if schema is not None else None
                for value in values:
                    yield from self._validate_text(value, items, f"query {name}")
            else:
                yield from self._check_one(values[0] if values else None, f"query {name}", parameter)

    def _keys(self) -> set[str]:
        """Names of API keys in the query."""
        schemes = self._document.root.get("components")
        schemes = schemes.get("securitySchemes") if schemes is not None else None
        resolved = [self._document.resolve(scheme).value for _, scheme in (schemes or Node({}, "")).items()]
        return {scheme["name"].lower() for scheme in resolved if scheme.get("in") == "query"}

    def _names_itself(self, parameter: Node) -> bool:
        """True for an object in the style `form`, whose keys become parameters."""
        schema = self._schema(parameter)
        exploded = parameter.value.get("explode", True) and parameter.value.get("style", "form") == "form"
        return exploded and "content" not in parameter.value and schema is not None and self._kind(schema) == "object"

    def _schema(self, parameter: Node) -> Node | None:
        content = parameter.get("content")
        return parameter.get("schema") if content is None else next(iter(content.items()))[1].get("schema")

    def _kind(self, schema: Node) -> str | None:
        schema = self._document.resolve(schema)
        value = schema.value
        choices = [choice for key in ("anyOf", "oneOf") for choice in schema.get(key) or Node([], "")]
        if choices and "type" not in value:
            return next((kind for kind in map(self._kind, choices) if kind), None)
        kind = value.get("type")
        kinds = [item for item in kind if item != "null"] if isinstance(kind, list) else [kind]
        return kinds[0] if kinds and isinstance(kinds[0], str) else "object" if "properties" in value else None

    def _check_one(self, text: str | None, what: str, parameter: Node) -> Iterator[str]:
        if text is None:
            if parameter.value.get("required") is True:
                yield f"{what} is missing"
            return
        schema = self._schema(parameter)
        if "content" in parameter.value:
            yield from self._validate(json.loads(text), schema, what)
        else:
            yield from self._validate_text(text, schema, what)

    def _validate_text(self, text: str, schema: Node | None, what: str) -> Iterator[str]:
        """Validate a value that travelled as text: it fits if any reading of it does."""
        if schema is None:
            return
        readings: list[Any] = [text, _parse(text)]
        items = [part for part in re.split(r"[,|\s]", text) if part]
        readings += [items, [_parse(part) for part in items]]
        if len(items) % 2 == 0:
            readings.append(dict(zip(items[::2], map(_parse, items[1::2]), strict=True)))
        problems = [list(self._validate(reading, schema, what)) for reading in readings]
        if all(problems):
            yield problems[0][0]

    def _check_body(self, request: Received, operation: Node) -> Iterator[str]:
        declared = operation.get("requestBody")
        if declared is None:
            if request.body:
                yield "a body is sent, and the document has none"
            return
        try:
            body = self._document.resolve(declared)
        except Dangling:
            return
        if not request.body and "content-type" not in request.headers:
            if body.value.get("required") is True and request.method not in ("GET", "HEAD"):
                yield "the body is missing"
            return
        content = {
            name.partition(";")[0].lower(): media for name, media in (body.get("content") or Node({}, "")).items()
        }
        kind = request.headers.get("content-type", "").partition(";")[0]
        media = content.get(kind) or (content.get("*/*") or content.get("application/*"))
        if media is None:
            yield f"the body is {kind!r}, not one of {', '.join(content)}"
            return
        schema = media.get("schema")
        if schema is None:
            return
        if "json" in kind:
            yield from self._validate(json.loads(request.body), schema, "body")
        elif kind.endswith("urlencoded"):
            pairs = parse_qsl(request.body.decode(), keep_blank_values=True)
            yield from self._check_fields({name.partition("[")[0]: value for name, value in pairs}, schema)
        elif kind.startswith("multipart/"):
            yield from self._check_fields(_parse_multipart(request), schema)

    def _check_fields(self, fields: dict[str, str], schema: Node) -> Iterator[str]:
        properties, required = self._properties(schema)
        for name in fields:
            if name not in properties and properties:
                yield f"the form has {name!r}, the document does not"
        for name in required:
            if name not in fields:
                yield f"the form lacks {name!r}"
        for name, text in fields.items():
            if name in properties and self._kind(properties[name]) in ("integer", "number", "boolean", "string"):
                yield from self._validate_text(text, properties[name], f"form {name}")

    def _properties(self, schema: Node) -> tuple[dict[str, Node], list[str]]:
        schema = self._document.resolve(schema)
        found, required = dict((schema.get("properties") or Node({}, "")).items()), []
        wanted = schema.value.get("required")
        required += wanted if isinstance(wanted, list) else []
        for key in ("allOf", "oneOf", "anyOf"):
            for part in schema.get(key) or Node([], ""):
                inner, needed = self._properties(part)
                found, required = {**inner, **found}, [*required, *(needed if key == "allOf" else [])]
        read_only = {name for name, item in found.items() if self._document.resolve(item).value.get("readOnly") is True}
        return found, [name for name in required if name in found and name not in read_only]

    def _validate(self, value: Any, schema: Node | None, what: str, depth: int = 0) -> Iterator[str]:
        """What a schema refuses, but for formats, patterns and sizes."""
        if schema is None or not isinstance(schema.value, dict) or depth > 24:
            return
        nullable = schema.value.get("nullable") is True
        try:
            schema = self._document.resolve(schema)
        except Dangling:
            return
        rules = schema.value
        if not isinstance(rules, dict) or (value is None and (nullable or rules.get("nullable") is True)):
            return
        kinds = rules["type"] if isinstance(rules.get("type"), list) else [rules.get("type")]
        if any(kind in _TYPES or kind in ("boolean", "null") for kind in kinds) and not any(
            _is_kind(value, kind) for kind in kinds
        ):
            yield f"{what}: {str(value)[:40]!r} is no {kinds}"
            return
        if rules.get("enum") and value not in rules["enum"] and str(value) not in rules["enum"]:
            yield f"{what}: {str(value)[:40]!r} is not in the enum"
        if isinstance(value, dict):
            yield from self._validate_object(value, schema, what, depth)
        if isinstance(value, list) and (items := schema.get("items")) is not None:
            for item in value:
                yield from self._validate(item, items, f"{what}[]", depth + 1)
        for part in schema.get("allOf") or Node([], ""):
            yield from self._validate(value, part, what, depth + 1)
        for key in ("oneOf", "anyOf"):
            choices = list(schema.get(key) or Node([], ""))
            if choices and all(list(self._validate(value, choice, what, depth + 1)) for choice in choices):
                yield f"{what}: no alternative fits"

    def _validate_object(self, value: dict[str, Any], schema: Node, what: str, depth: int) -> Iterator[str]:
        properties = dict((schema.get("properties") or Node({}, "")).items())
        for name, inner in properties.items():
            resolved = inner
            try:
                resolved = self._document.resolve(inner)
            except Dangling:
                continue
            if name in value:
                yield from self._validate(value[name], inner, f"{what}.{name}", depth + 1)
            elif name in (schema.value.get("required") or []) and resolved.value.get("readOnly") is not True:
                yield f"{what}.{name} is missing"
        extra = schema.value.get("additionalProperties")
        if extra is False and properties and not any(key in schema.value for key in ("oneOf", "anyOf", "allOf")):
            for name in value.keys() - properties.keys():
                yield f"{what}.{name} is not in the document"


def _is_kind(value: Any, kind: Any) -> bool:
    if kind == "null" or kind is None:
        return value is None if kind else False
    if kind == "boolean":
        return isinstance(value, bool)
    return isinstance(value, _TYPES.get(kind, object)) and not (
        isinstance(value, bool) and kind in ("integer", "number")
    )


def _parse(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _parse_multipart(request: Received) -> dict[str, str]:
    head = f"content-type: {request.headers['content-type']}\r\n\r\n".encode()
    message = BytesParser(policy=HTTP).parsebytes(head + request.body)
    parts = list(message.iter_parts()) if message.is_multipart() else []
    content = [part.get_payload(decode=True) for part in parts]
    names = [str(part.get_param("name", header="content-disposition")) for part in parts]
    return {
        name: str(text, "latin-1") if isinstance(text, bytes) else "" for name, text in zip(names, content, strict=True)
    }
