"""Every endpoint of the REST surface, in the order in which they are documented."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gateway.serve.rest import bundles, calls, console, profiles, system, tools, toolsets, upstreams, workspaces
from gateway.serve.rest.app import RestApp
from gateway.serve.rest.endpoint import Endpoint
from gateway.serve.rest.openapi import document_endpoints

if TYPE_CHECKING:
    from gateway.gateway import Gateway

TITLE = "Toolgate"
DESCRIPTION = (
    "Everything the gateway can do, for programs. Errors are {ok: false, error: {code, message, details}}. "
    "Lists have a next_page_token, which is null on the last page. Send a key as: Authorization: Bearer KEY."
)


def list_endpoints() -> list[Endpoint]:
    """Return every endpoint, each with its tag, and those of the documentation."""
    tables = {
        "toolsets": toolsets.ENDPOINTS,
        "tools": tools.ENDPOINTS,
        "bundles": bundles.ENDPOINTS,
        "openapi": profiles.ENDPOINTS,
        "chats": [*calls.CallStreams().endpoints, *workspaces.ENDPOINTS],
        "calls": [*calls.CALL_ENDPOINTS, *calls.CallViews().endpoints],
        "approvals": calls.APPROVAL_ENDPOINTS,
        "upstreams": upstreams.ENDPOINTS,
        "categories": system.CATEGORY_ENDPOINTS,
        "keys": system.KEY_ENDPOINTS,
        "console": [*console.CONSOLE_ENDPOINTS, console.EventStreams().endpoint],
        "system": system.SYSTEM_ENDPOINTS,
    }
    endpoints = [replace(endpoint, tag=tag) for tag, table in tables.items() for endpoint in table]
    return [*endpoints, *document_endpoints(endpoints, TITLE, DESCRIPTION)]


def build_rest_app(gateway: Gateway, body_limit: int) -> RestApp:
    return RestApp(gateway, list_endpoints(), body_limit)
