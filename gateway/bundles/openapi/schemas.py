"""Schemas of an OpenAPI document as the JSON Schema of a tool's arguments: references inlined, cycles cut, `nullable`
and `allOf` resolved, read-only properties left out, and no more of it than a model can use."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from gateway.bundles.openapi.document import OpenApiDocument, UnresolvedReference

SCHEMAS_LIMIT = 400  # in one tool; a larger schema is cut at a smaller depth
ENUM_LIMIT = 200
_DEPTHS = (12, 8, 6, 5, 4, 3, 2, 1, 0)
_DESCRIPTION_LIMIT = 300
_EXAMPLE_LIMIT = 80
_LARGEST = 2**63  # a limit beyond what programs can count to is none
_TYPES = frozenset(["string", "number", "integer", "boolean", "array", "object", "null"])
_NUMBERS = ("multipleOf", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
_CHOICES = ("oneOf", "anyOf")
_TAG = re.compile(r"</?[A-Za-z][^<>]*>")
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_SPACE = re.compile(r"[^\S\n]+|[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")

Note = Callable[[str], None]


class _TooLarge(Exception):
    pass


def clean_text(text: Any, limit: int, *, one_line: bool = False) -> str:
    """A description without markup, links and control characters, cut at a sentence or a word."""
    plain = (
        _SPACE.sub(" ", _LINK.sub(r"\1", _TAG.sub(" ", text.replace("\r\n", "\n")))) if isinstance(text, str) else ""
    )
    if one_line:
        plain = " ".join(plain.split())
    plain = re.sub(r" +", " ", re.sub(r" ?\n ?", "\n", re.sub(r"\n{3,}", "\n\n", plain))).strip()
    if len(plain) <= limit:
        return plain
    head = plain[: limit - 1]
    end = head.rfind(". ")
    return head[: end + 1] if end > limit // 2 else f"{head.rpartition(' ')[0] or head}…"


class SchemaConverter:
    """Converts schemas of one document. `note` receives what was left out, once for each reason."""

    def __init__(self, document: OpenApiDocument, note: Note) -> None:
        self._document = document
        self._note = note
        self._depth = self._left = 0
        self._open: list[str] = []

    def convert(self, schemas: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """The schemas of one tool's arguments by name, all of them within `SCHEMAS_LIMIT`."""
        for depth in _DEPTHS:
            self._depth, self._left = depth, max(SCHEMAS_LIMIT, 2 * len(schemas))
            try:
                converted = {name: self._convert(schema, 0) for name, schema in schemas.items()}
            except _TooLarge:
                continue
            if depth != _DEPTHS[0]:
                self._note(f"its schema is cut at depth {depth}; deeper values are taken as they are")
            return converted
        self._note("its schemas are too large; their values are taken as they are")
        return {name: {} for name in schemas}

    def find_properties(self, schema: Any, depth: int = 0) -> tuple[dict[str, Any], list[str]] | None:
        """The properties of an object schema and the required ones, `allOf` merged and read-only ones left out; None
        if its form depends on the value, so that it cannot be taken apart."""
        try:
            schema = self._document.resolve(schema)
        except UnresolvedReference:
            return None
        if not isinstance(schema, dict) or depth > _DEPTHS[0] or any(key in schema for key in (*_CHOICES, "not")):
            return None
        if schema.get("type", "object") not in ("object", ["object"], ["object", "null"]):
            return None
        if schema.get("additionalProperties") not in (None, False):
            return None
        properties: dict[str, Any] = {}
        required: list[str] = []
        for part in schema.get("allOf") or ():
            found = self.find_properties(part, depth + 1)
            if found is None:
                return None
            properties |= found[0]
            required += found[1]
        own = schema.get("properties")
        properties |= own if isinstance(own, dict) else {}
        wanted = schema.get("required")
        required += wanted if isinstance(wanted, list) else []
        writable = {name: item for name, item in properties.items() if not self._is_read_only(item)}
        return writable, [name for name in dict.fromkeys(required) if name in writable]

    def find_choices(self, schema: Any) -> dict[str, Any]:
        """The properties of all alternatives of a schema together."""
        try:
            resolved = self._document.resolve(schema)
        except UnresolvedReference:
            return {}
        properties: dict[str, Any] = {}
        if isinstance(resolved, dict):
            for key in (*_CHOICES, "allOf"):
                for choice in resolved.get(key) or ():
                    properties |= (self.find_properties(choice) or ({}, ()))[0]
            own = resolved.get("properties")
            properties |= own if isinstance(own, dict) else {}
        return properties

    def _convert(self, schema: Any, depth: int) -> dict[str, Any]:
        self._left -= 1
        if self._left < 0:
            raise _TooLarge
        if not isinstance(schema, dict):  # in 3.1 a schema may be true or false
            return {"not": {}} if schema is False else {}
        reference = schema.get("$ref")
        if not isinstance(reference, str):
            return self._convert_plain(schema, depth)
        rest = {key: value for key, value in schema.items() if key in ("description", "nullable", "default")}
        name = reference.rpartition("/")[2]
        try:
            target = self._document.target(reference)
        except UnresolvedReference as error:
            self._note(f"a schema is missing: {error}")
            return self._annotate(rest, {})
        if reference in self._open:
            self._note(f"the schema {name!r} contains itself; it is cut there")
            return self._annotate({"description": f"as {name} above", **rest}, _only_kind(target))
        self._open.append(reference)
        try:
            converted = self._convert(target, depth)
        finally:
            self._open.pop()
        return self._annotate(rest, converted)

    def _convert_plain(self, schema: dict[str, Any], depth: int) -> dict[str, Any]:
        converted = self._copy_limits(schema)
        if depth >= self._depth:
            limits = {key: value for key, value in converted.items() if key in ("type", "enum", "const")}
            return self._annotate(schema, {**_only_kind(schema), **limits})
        if isinstance(properties := schema.get("properties"), dict):
            kept = {key: value for key, value in properties.items() if not self._is_read_only(value)}
            converted["properties"] = {key: self._convert(value, depth + 1) for key, value in kept.items()}
            converted.setdefault("type", "object")
            required = schema.get("required") if isinstance(schema.get("required"), list) else []
            if wanted := [name for name in dict.fromkeys(required or ()) if name in kept]:
                converted["required"] = wanted
        if "additionalProperties" in schema:
            extra = schema["additionalProperties"]
            converted["additionalProperties"] = extra if isinstance(extra, bool) else self._convert(extra, depth + 1)
        if "items" in schema:
            converted["items"] = self._convert(schema["items"], depth + 1)
        parts = [self._convert(part, depth) for part in schema.get("allOf") or ()]
        for key in _CHOICES:
            if isinstance(choices := schema.get(key), list) and choices:
                # Alternatives overlap once they are cut, and often before: a value that fits two is no mistake.
                parts.append({"anyOf": [self._convert(choice, depth + 1) for choice in choices]})
        converted = _merge([converted, *parts]) if parts else converted
        return self._annotate(schema, converted)

    def _copy_limits(self, schema: dict[str, Any]) -> dict[str, Any]:
        converted: dict[str, Any] = {}
        kinds = schema.get("type")
        known = [kind for kind in (kinds if isinstance(kinds, list) else [kinds]) if kind in _TYPES]
        if known:
            converted["type"] = known if len(known) > 1 else known[0]
        if isinstance(values := schema.get("enum"), list) and values:
            if len(values) > ENUM_LIMIT:
                self._note(f"an enum of {len(values)} values is left out")
            else:
                converted["enum"] = values
        if "const" in schema:
            converted["const"] = schema["const"]
        for key in (*_NUMBERS, *_COUNTS):
            value = schema.get(key)
            if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _LARGEST:
                if key in _COUNTS and (value < 0 or value != int(value)):
                    continue
                converted[key] = int(value) if key in _COUNTS else value
        for key, limit in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
            if schema.get(key) is True and limit in converted:  # 3.0 has a switch beside the limit
                converted[key] = converted.pop(limit)
        if isinstance(schema.get("pattern"), str):
            converted["pattern"] = schema["pattern"]
        if isinstance(schema.get("format"), str):
            converted["format"] = schema["format"]
        if isinstance(schema.get("uniqueItems"), bool):
            converted["uniqueItems"] = schema["uniqueItems"]
        return converted

    def _annotate(self, schema: Mapping[str, Any], converted: dict[str, Any]) -> dict[str, Any]:
        """Add what surrounds the limits: null, the description, a default and an example."""
        if schema.get("nullable") is True:
            converted = _allow_null(converted)
        if description := clean_text(schema.get("description"), _DESCRIPTION_LIMIT, one_line=True):
            converted = {**converted, "description": description}
        default = schema.get("default")
        if isinstance(default, str | int | float | bool):
            converted = {**converted, "default": default}
        example = schema.get("example")
        if isinstance(example, str | int | float) and len(str(example)) <= _EXAMPLE_LIMIT and "enum" not in converted:
            converted = {**converted, "examples": [example]}
        return converted

    def _is_read_only(self, schema: Any) -> bool:
        try:
            resolved = self._document.resolve(schema)
        except UnresolvedReference:
            return False
        return isinstance(resolved, dict) and resolved.get("readOnly") is True


def _only_kind(schema: Any) -> dict[str, Any]:
    """The kind of value of a schema that is cut."""
    if not isinstance(schema, dict) or any(key in schema for key in _CHOICES):
        return {}
    kind = schema.get("type", "object" if "properties" in schema or "allOf" in schema else None)
    return {"type": kind} if isinstance(kind, str) and kind in _TYPES else {}


def _allow_null(schema: dict[str, Any]) -> dict[str, Any]:
    if "enum" in schema and None not in schema["enum"]:
        schema = {**schema, "enum": [*schema["enum"], None]}
    kind = schema.get("type")
    if kind is not None:
        kinds = kind if isinstance(kind, list) else [kind]
        return {**schema, "type": kinds if "null" in kinds else [*kinds, "null"]}
    if "anyOf" in schema:
        return {**schema, "anyOf": [*schema["anyOf"], {"type": "null"}]}
    if "allOf" in schema:
        return {"anyOf": [schema, {"type": "null"}]}
    return schema


def _merge(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """The parts of an `allOf` as one schema; if they contradict each other they stay apart."""
    merged: dict[str, Any] = {}
    for part in parts:
        for key, value in part.items():
            if key == "properties":
                merged[key] = {**merged.get(key, {}), **value}
            elif key == "required":
                merged[key] = list(dict.fromkeys([*merged.get(key, ()), *value]))
            elif key in ("description", "default", "examples"):
                merged[key] = value
            elif key == "additionalProperties" and value is False:
                continue  # it would refuse the properties of the other parts
            elif merged.setdefault(key, value) != value:
                return {"allOf": [part for part in parts if part]}
    return merged
