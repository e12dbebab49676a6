"""The tools of a profile for clients that speak OpenAPI instead of MCP: a document with one operation per tool, and the
operations."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Annotated, Any

from pydantic import Field, JsonValue

from gateway import __version__
from gateway.calls import Outcome, to_json
from gateway.catalog import CatalogEntry
from gateway.serve.rest.app import make_etag
from gateway.serve.rest.endpoint import Endpoint, ErrorAnswer, Reply, RequestModel, RestRequest
from gateway.serve.rest.tools import CALL_ERRORS, Chat, build_call, encode_outcome

DEFAULT = "default"
_SCHEMAS = "#/components/schemas/"
# GPT Actions takes no longer ones.
_SUMMARY_LIMIT = 300
_NO_NAME = re.compile(r"[^A-Za-z0-9._-]+")
# Keywords that name or find schemas in a document of their own.
_OWN_DOCUMENT = frozenset(
    ["$schema", "$id", "$anchor", "$dynamicAnchor", "$dynamicRef", "$vocabulary", "$defs", "definitions"]
)
_BY_NAME = frozenset(["properties", "patternProperties", "dependentSchemas"])
_VALUES = frozenset(["const", "enum", "default", "example", "examples"])
_DEPTH_LIMIT = 100

ProfileName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
Schema = Any


class ChatQuery(RequestModel):
    chat: Chat | None = None


def build_tool_document(entries: Iterable[CatalogEntry], profile: str, url: str) -> dict[str, Any]:
    """Return an OpenAPI 3.1 document with one POST per tool. Its paths begin at `url`, as clients that ignore `servers`
    take them."""
    components: dict[str, Schema] = {"ErrorAnswer": _error_schema()}
    paths = {f"/{entry.name}": {"post": _describe_operation(entry, components)} for entry in entries}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Toolgate" if profile == DEFAULT else f"Toolgate, profile {profile}",
            "version": __version__,
            "description": "Tools of this gateway. Each answers its value as JSON.",
        },
        "servers": [{"url": url}],
        "security": [{"key": []}, {}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "key": {"type": "http", "scheme": "bearer", "description": "A key of `toolgate key create NAME`."}
            },
        },
    }


def _describe_operation(entry: CatalogEntry, components: dict[str, Schema]) -> dict[str, Any]:
    tool, name = entry.tool, entry.name
    summary = (tool.title or name)[:_SUMMARY_LIMIT]
    arguments = {"type": "object"} if tool.schema_problem is not None else tool.input_schema
    _add_component(components, f"{name}_arguments", arguments)
    answer: Schema = {}
    if tool.output_schema is not None:
        _add_component(components, f"{name}_result", tool.output_schema)
        answer = {"$ref": f"{_SCHEMAS}{name}_result"}
    body = {"application/json": {"schema": {"$ref": f"{_SCHEMAS}{name}_arguments"}}}
    error = {"application/json": {"schema": {"$ref": f"{_SCHEMAS}ErrorAnswer"}}}
    return {
        "operationId": name,
        "summary": summary,
        "description": tool.description or summary,
        "tags": [tool.category],
        "requestBody": {"required": True, "content": body},
        "responses": {
            "200": {"description": "The tool's value", "content": {"application/json": {"schema": answer}}},
            "default": {"description": "The call was refused or failed", "content": error},
        },
        # OpenAI asks the person before each call of a consequential operation.
        "x-openai-isConsequential": tool.permission.value != "read-only",
    }


def _add_component(components: dict[str, Schema], name: str, schema: Mapping[str, Any]) -> None:
    """Add a tool's schema to the components, its definitions beside it, so that every reference is within the
    document."""
    components[name] = _convert(schema, name)
    for key in ("$defs", "definitions"):
        definitions = schema.get(key)
        for own, definition in definitions.items() if isinstance(definitions, Mapping) else ():
            components[_definition_name(name, own)] = _convert(definition, name)


def _convert(schema: Schema, name: str, depth: int = 0) -> Schema:
    """Return a schema of any draft as part of the component `name`, in the draft of OpenAPI 3.1."""
    if not isinstance(schema, Mapping) or depth > _DEPTH_LIMIT:
        return schema if isinstance(schema, bool) else {}
    converted: dict[str, Any] = {}
    for key, value in schema.items():
        if key in _OWN_DOCUMENT:
            continue
        if key == "$ref":
            reference = _resolve(str(value), name)
            converted |= {"$ref": reference} if reference else {}
        elif key in _VALUES:
            converted[key] = value
        elif key in _BY_NAME and isinstance(value, Mapping):
            converted[key] = {own: _convert(item, name, depth + 1) for own, item in value.items()}
        elif isinstance(value, Mapping):
            converted[key] = _convert(value, name, depth + 1)
        elif isinstance(value, list):
            is_schemas = all(isinstance(item, Mapping | bool) for item in value)
            converted[key] = [_convert(item, name, depth + 1) for item in value] if is_schemas else value
        else:
            converted[key] = value
    return _modernize(converted)


def _modernize(schema: dict[str, Any]) -> dict[str, Any]:
    """Rewrite keywords of drafts 4 to 7 that changed their meaning since."""
    if isinstance(schema.get("items"), list):
        schema["prefixItems"] = schema.pop("items")
        if "additionalItems" in schema:
            schema["items"] = schema.pop("additionalItems")
    for limit, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if isinstance(schema.get(exclusive), bool):
            is_exclusive = schema.pop(exclusive)
            if is_exclusive and limit in schema:
                schema[exclusive] = schema.pop(limit)
    return schema


def _resolve(reference: str, name: str) -> str | None:
    """Return a reference within a tool's schema as one within the document; None for one that leads elsewhere."""
    if reference == "#":
        return f"{_SCHEMAS}{name}"
    match = re.fullmatch(r"#/(?:\$defs|definitions)/([^/]+)(/.*)?", reference)
    if match is not None:
        own = match[1].replace("~1", "/").replace("~0", "~")
        return f"{_SCHEMAS}{_definition_name(name, own)}{match[2] or ''}"
    return f"{_SCHEMAS}{name}{reference[1:]}" if reference.startswith("#/") else None


def _definition_name(name: str, own: str) -> str:
    cleaned = _NO_NAME.sub("_", own)
    if cleaned == own:
        return f"{name}.{own}"
    return f"{name}.{cleaned}_{hashlib.sha256(own.encode()).hexdigest()[:8]}"


def _error_schema() -> Schema:
    schema = ErrorAnswer.model_json_schema(ref_template=f"{_SCHEMAS}{{model}}")
    info = schema.pop("$defs")["ErrorInfo"]
    schema["properties"]["error"] = info
    return schema


async def get_profile_document(request: RestRequest, profile: ProfileName) -> object:
    """Get the tools of a profile as an OpenAPI 3.1 document, one operation per tool

    For Open WebUI, Dify, n8n, GPT Actions and others. The profile `default` has every tool that you may call.
    """
    narrowed = _narrow(request, profile)
    settings = request.gateway.settings.server
    base = (settings.public_url or f"{request.scope['scheme']}://{request.headers['host']}").rstrip("/")
    catalog = request.gateway.catalog.for_principal(narrowed.principal.access)
    body = to_json(build_tool_document(catalog.for_models, profile, f"{base}/openapi/{profile}"))
    return Reply(encoded=body, etag=make_etag(body))


async def call_profile_tool(
    request: RestRequest, profile: ProfileName, tool: str, query: ChatQuery, body: dict[str, JsonValue]
) -> object:
    """Call a tool of a profile; the body is its arguments, the answer its value"""
    narrowed = _narrow(request, profile)
    call = build_call(narrowed, tool, body, query.chat)
    outcome = await request.gateway.approval_flow.call_tool(call)
    if outcome.error is not None:
        return encode_outcome(call, outcome)
    return Reply(encoded=_encode_value(outcome))


def _encode_value(outcome: Outcome) -> bytes:
    """Return the value; of an upstream that answers with one text only, that text."""
    blocks = outcome.content or ()
    has_value = outcome.wire is None or "structuredContent" in outcome.wire
    if not has_value and len(blocks) == 1 and isinstance(text := blocks[0].get("text"), str):
        return to_json(text)
    return outcome.value_json


def _narrow(request: RestRequest, profile: str) -> RestRequest:
    """Return the request with the profile in force; `default` is the principal's own unless the settings have one."""
    roles = request.gateway.roles
    if profile == DEFAULT and DEFAULT not in roles.profiles:
        return request
    return replace(request, principal=roles.narrow(request.principal, profile))


_DOCUMENT = "/openapi/{profile}/openapi.json"
ENDPOINTS = [
    Endpoint("GET", _DOCUMENT, get_profile_document, dict[str, Any]),
    Endpoint("POST", "/openapi/{profile}/{tool}", call_profile_tool, Any, errors=CALL_ERRORS),
]
