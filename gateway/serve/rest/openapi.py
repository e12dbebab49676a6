"""The OpenAPI 3.1 document of a table of endpoints, and a page that shows it without scripts or network."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from html import escape
from http import HTTPStatus
from inspect import getdoc
from typing import Any

import orjson
from pydantic import TypeAdapter
from pydantic.json_schema import JsonSchemaMode
from starlette.responses import HTMLResponse

from gateway import __version__
from gateway.serve.http.pages import allow_style, protect
from gateway.serve.rest.endpoint import Endpoint, ErrorAnswer, RestRequest

_REFERENCE = "#/components/schemas/{model}"
_ERROR = {"application/json": {"schema": {"$ref": "#/components/schemas/ErrorAnswer"}}}
_BINARY: dict[str, Any] = {"type": "string", "format": "binary"}
_EVENT = {"type": "object", "properties": {name: {"type": "string"} for name in ("id", "event", "data")}}
_MEDIA_SCHEMAS: dict[str, dict[str, Any]] = {"text/event-stream": _EVENT, "text/html": {"type": "string"}}
_STYLE = """body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#1a1a1a;
background:#fff;overflow-wrap:anywhere}code,pre{font:13px/1.45 ui-monospace,monospace}pre{background:#f4f4f4;
padding:.6rem;overflow:auto}summary{cursor:pointer;padding:.25rem 0}b{display:inline-block;min-width:4.5rem}
details details{margin-left:1rem}
@media(prefers-color-scheme:dark){body{background:#161616;color:#e8e8e8}pre{background:#242424}a{color:#8ab4f8}}"""

SchemaKey = tuple[str, str]


def build_document(endpoints: Sequence[Endpoint], title: str, description: str) -> dict[str, Any]:
    """Return the document of the endpoints."""
    schemas, definitions = _build_schemas(endpoints)
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        path = endpoint.path.replace("{+", "{")
        paths.setdefault(path, {})[endpoint.method.lower()] = _describe(endpoint, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "version": __version__, "description": description},
        "security": [{"key": []}, {}],
        "paths": paths,
        "components": {
            "schemas": definitions,
            "securitySchemes": {
                "key": {"type": "http", "scheme": "bearer", "description": "A key of `toolgate key create NAME`."}
            },
        },
    }


def _build_schemas(endpoints: Iterable[Endpoint]) -> tuple[Mapping[SchemaKey, Any], dict[str, Any]]:
    """Return the schemas of every parameter and answer, by operation and name, and those they refer to."""
    inputs: list[tuple[SchemaKey, JsonSchemaMode, TypeAdapter[Any]]] = [
        (("", "error"), "serialization", TypeAdapter(ErrorAnswer))
    ]
    for endpoint in endpoints:
        operation = endpoint.operation_id
        inputs += [((operation, name), "validation", adapter) for name, adapter in endpoint.adapters.items()]
        for status, answer in _answers(endpoint).items():
            inputs.append(((operation, str(status)), "serialization", TypeAdapter(answer)))
    found, definitions = TypeAdapter.json_schemas(inputs, ref_template=_REFERENCE)
    return {key: schema for (key, _), schema in found.items()}, definitions["$defs"]


def _answers(endpoint: Endpoint) -> dict[int, Any]:
    return ({} if endpoint.answer is None else {endpoint.status: endpoint.answer}) | dict(endpoint.responses)


def _describe(endpoint: Endpoint, schemas: Mapping[SchemaKey, Any]) -> dict[str, Any]:
    summary, _, description = (getdoc(endpoint.handler) or endpoint.operation_id).partition("\n\n")
    operation: dict[str, Any] = {
        "operationId": endpoint.operation_id,
        "summary": " ".join(summary.split()).rstrip("."),
        "tags": [endpoint.tag],
        "parameters": list(_describe_parameters(endpoint, schemas)),
        "responses": _describe_responses(endpoint, schemas),
    }
    notes = [" ".join(description.split())] if description else []
    if endpoint.admin:
        notes.append("Needs a role with `admin: true`.")
    if notes:
        operation["description"] = " ".join(notes)
    if endpoint.takes_body:
        operation["requestBody"] = {"required": True, "content": dict(_describe_body(endpoint, schemas))}
    return operation


def _describe_parameters(endpoint: Endpoint, schemas: Mapping[SchemaKey, Any]) -> Iterable[dict[str, Any]]:
    for name in endpoint.variables:
        schema = schemas.get((endpoint.operation_id, name), {"type": "string", "minLength": 1})
        yield {"name": name, "in": "path", "required": True, "schema": schema}
    if "query" in endpoint.parameters:
        model = endpoint.adapters["query"].json_schema(ref_template=_REFERENCE)
        for name, schema in model.get("properties", {}).items():
            plain = {key: value for key, value in schema.items() if key not in ("title", "description")}
            required = name in model.get("required", ())
            parameter = {"name": name, "in": "query", "required": required, "schema": _without_null(plain)}
            yield parameter | ({"description": schema["description"]} if "description" in schema else {})


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of an optional parameter: a URL has no null, the parameter is left out instead."""
    options = [option for option in schema.get("anyOf", ()) if option.get("type") != "null"]
    if len(options) != 1:
        return schema
    return {key: value for key, value in schema.items() if key not in ("anyOf", "default")} | dict(options[0])


def _describe_body(endpoint: Endpoint, schemas: Mapping[SchemaKey, Any]) -> Iterable[tuple[str, Any]]:
    if "content" in endpoint.parameters:
        yield "application/octet-stream", {"schema": {}}
    if "body" in endpoint.parameters:
        yield "application/json", {"schema": schemas[endpoint.operation_id, "body"]}
    if "form" in endpoint.parameters:
        schema = {"type": "object", "properties": {"file": _BINARY}, "required": ["file"]}
        yield "multipart/form-data", {"schema": schema}


def _describe_responses(endpoint: Endpoint, schemas: Mapping[SchemaKey, Any]) -> dict[str, Any]:
    responses: dict[str, Any] = {}
    for status in _answers(endpoint):
        content = {"application/json": {"schema": schemas[endpoint.operation_id, str(status)]}}
        responses[str(status)] = {"description": HTTPStatus(status).phrase, "content": content}
    if endpoint.media is not None:
        schema = _MEDIA_SCHEMAS.get(endpoint.media, _BINARY)
        responses[str(endpoint.status)] = {"description": "OK", "content": {endpoint.media: {"schema": schema}}}
    elif not responses:
        responses["204"] = {"description": "No Content"}
    if endpoint.method == "GET":
        responses["304"] = {"description": "Not Modified"}
    for status in sorted(_error_statuses(endpoint)):
        responses[str(status)] = {"description": _phrase(status), "content": _ERROR}
    return responses


def _error_statuses(endpoint: Endpoint) -> set[int]:
    """Return the statuses of errors that an endpoint can have: its own, and those that follow from what it takes."""
    statuses = {400, 401, *endpoint.errors}
    if endpoint.admin or endpoint.permission.value != "read-only":
        statuses.add(403)
    if endpoint.variables:
        statuses.add(404)
    if endpoint.takes_body:
        statuses |= {413} if "content" in endpoint.parameters else {413, 415}
    return statuses


def _phrase(status: int) -> str:
    return "Client Closed Request" if status == 499 else HTTPStatus(status).phrase


def document_endpoints(endpoints: Sequence[Endpoint], title: str, description: str) -> list[Endpoint]:
    """Return two endpoints that answer the document of the others as JSON and as a page."""

    @cache  # made by the first request
    def document() -> dict[str, Any]:
        return build_document([*endpoints, *own], title, description)

    async def get_openapi_document(_: RestRequest) -> object:
        """Get this description of the API as an OpenAPI 3.1 document"""
        return document()

    async def get_documentation_page(_: RestRequest) -> object:
        """Get this description of the API as a page"""
        response = HTMLResponse(render_page(document()))
        protect(response, allow_style(_STYLE))
        return response

    own = [
        Endpoint("GET", "/api/openapi.json", get_openapi_document, dict[str, Any], tag="documentation"),
        Endpoint("GET", "/api/docs", get_documentation_page, media="text/html", tag="documentation"),
    ]
    return own


def render_page(document: Mapping[str, Any]) -> str:
    """Return a document as HTML, grouped by tags."""
    groups: dict[str, list[str]] = {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            groups.setdefault(operation["tags"][0], []).append(_render_operation(method, path, operation))
    info = document["info"]
    body = "".join(f"<h2>{escape(tag)}</h2>{''.join(operations)}" for tag, operations in groups.items())
    schemas = "".join(
        f'<details id="{escape(name)}"><summary><code>{escape(name)}</code></summary>{_render_json(schema)}</details>'
        for name, schema in sorted(document["components"]["schemas"].items())
    )
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(info["title"])}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style>'
        f"<main><h1>{escape(info['title'])} {escape(info['version'])}</h1><p>{escape(info['description'])}</p>"
        f'<p><a href="/api/openapi.json">openapi.json</a></p>{body}<h2>Schemas</h2>{schemas}</main></html>'
    )


def _render_operation(method: str, path: str, operation: Mapping[str, Any]) -> str:
    head = f"<b>{method.upper()}</b><code>{escape(path)}</code> {escape(operation['summary'])}"
    parts = [f"<p>{escape(operation['description'])}</p>"] if "description" in operation else []
    for title, key in (("Parameters", "parameters"), ("Body", "requestBody"), ("Responses", "responses")):
        if operation.get(key):
            parts.append(f"<details><summary>{title}</summary>{_render_json(operation[key])}</details>")
    return f"<details><summary>{head}</summary>{''.join(parts)}</details>"


def _render_json(value: object) -> str:
    text = escape(orjson.dumps(value, option=orjson.OPT_INDENT_2).decode(), quote=False)
    linked = re.sub(r'"#/components/schemas/([\w-]+)"', r'"<a href="#\1">\1</a>"', text)
    return f"<pre>{linked}</pre>"
