"""Results in the form of each protocol version."""

from __future__ import annotations

import pytest

from gateway.serve.mcp.results import SERVER_INFO, shape

pytestmark = pytest.mark.promise("G2")

KEY = "io.modelcontextprotocol/serverInfo"


def test_result_of_a_modern_upstream_names_that_server_to_nobody() -> None:
    """A modern client reads the gateway's name, and handshake versions have no such key."""
    result = {"contents": [], "ttlMs": 5, "resultType": "complete", "_meta": {KEY: {"name": "lab"}, "vendor/x": 1}}

    assert shape(result, modern=True)["_meta"] == {KEY: SERVER_INFO, "vendor/x": 1}
    assert shape(result, modern=False) == {"contents": [], "_meta": {"vendor/x": 1}}
