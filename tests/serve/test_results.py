"""Results in the form of each protocol version."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.serve.mcp.results import SERVER_INFO, shape

pytestmark = pytest.mark.promise("G2")

KEY = "io.modelcontextprotocol/serverInfo"


def test_result_of_a_modern_upstream_names_that_server_to_nobody() -> None:
    """A modern client reads the gateway's name, and handshake versions have no such key."""
    result = {"contents": [], "ttlMs": 5, "resultType": "complete", "_meta": {KEY: {"name": "lab"}, "vendor/x": 1}}

    assert shape(result, modern=True)["_meta"] == {KEY: SERVER_INFO, "vendor/x": 1}
    assert shape(result, modern=False) == {"contents": [], "_meta": {"vendor/x": 1}}


def test_output_schema_that_need_not_be_an_object_is_left_out_for_handshake_clients() -> None:
    """Their clients refuse the whole list of tools otherwise."""
    schemas: tuple[dict[str, Any], ...] = (
        {"type": "object"},
        {"type": "array"},
        {"properties": {"a": {}}},
        {"anyOf": [{"type": "object"}]},
    )
    tools = [{"name": "plain"}, *({"name": "typed", "outputSchema": schema} for schema in schemas)]
    listed = shape({"tools": tools}, modern=False)["tools"]
    assert [tool.get("outputSchema") for tool in listed] == [None, {"type": "object"}, None, None, None]
    assert shape({"tools": tools}, modern=True)["tools"] == tools
