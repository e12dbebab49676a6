"""What a client takes from the SDK is as it was when it was written: one test per item, to be read after an upgrade."""

from __future__ import annotations

import pytest
from mcp.shared.inbound import InboundModernRoute, classify_inbound_request, decode_header_value

from gateway import protocol
from gateway.mcp_client import ClientIdentity
from gateway.mcp_client.http_headers import header_lines, header_maps, routing_headers
from gateway.mcp_client.messages import RequestEncoder
from gateway.protocol import jsonrpc

SCHEMA = {
    "type": "object",
    "properties": {
        "region": {"type": "string", "x-mcp-header": "Region"},
        "deep": {"type": "object", "properties": {"level": {"type": "integer", "x-mcp-header": "Level"}}},
    },
}


def test_the_versions_are_those_we_know() -> None:
    assert protocol.MODERN_PROTOCOL_VERSIONS == ("2026-07-28",)
    assert protocol.HANDSHAKE_PROTOCOL_VERSIONS == ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
    assert (protocol.LATEST_MODERN_VERSION, protocol.LATEST_HANDSHAKE_VERSION) == (
        "2026-07-28",
        "2025-11-25",
    )


def test_the_error_codes_are_those_of_the_specification() -> None:
    assert (jsonrpc.INVALID_REQUEST, jsonrpc.METHOD_NOT_FOUND, jsonrpc.INTERNAL_ERROR) == (
        -32600,
        -32601,
        -32603,
    )
    assert jsonrpc.UNSUPPORTED_PROTOCOL_VERSION == -32022


def test_the_keys_of_the_envelope_are_those_of_the_specification() -> None:
    prefix = "io.modelcontextprotocol/"
    assert prefix + "protocolVersion" == protocol.PROTOCOL_VERSION_META_KEY
    assert prefix + "clientInfo" == protocol.CLIENT_INFO_META_KEY
    assert prefix + "clientCapabilities" == protocol.CLIENT_CAPABILITIES_META_KEY
    assert prefix + "logLevel" == protocol.LOG_LEVEL_META_KEY
    assert prefix + "serverInfo" == protocol.SERVER_INFO_META_KEY
    assert prefix + "subscriptionId" == protocol.SUBSCRIPTION_ID_META_KEY


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("tools/call", {"name": "naïve", "arguments": {}}),
        ("tools/call", {"name": " edge ", "arguments": {}}),
        ("prompts/get", {"name": "p"}),
        ("resources/read", {"uri": "file:///ü\r\nx: y"}),
        ("tools/list", None),
        ("server/discover", {}),
    ],
)
def test_our_requests_pass_the_sdks_own_checks(method: str, params: dict[str, object] | None) -> None:
    message = RequestEncoder(ClientIdentity("n", "1"), "2026-07-28").request(1, method, params, None, {}, True)
    headers = routing_headers("2026-07-28", method, message["params"], {})
    lines = header_lines(headers).decode("ascii").strip().split("\r\n")
    sent = {name.lower(): text for name, _, text in (line.partition(": ") for line in lines)}
    assert len(sent) == len(headers)
    assert isinstance(classify_inbound_request(message, headers=sent), InboundModernRoute)


def test_arguments_that_travel_as_headers_are_found_and_written() -> None:
    maps = header_maps([{"name": "t", "inputSchema": SCHEMA}, {"name": "u", "inputSchema": {"type": "object"}}])
    assert maps == {"t": {("region",): "Region", ("deep", "level"): "Level"}}
    params = {"name": "t", "arguments": {"region": "Zürich", "deep": {"level": 3}}}
    headers = dict(routing_headers("2026-07-28", "tools/call", params, maps))
    assert decode_header_value(headers["Mcp-Param-Region"]) == "Zürich"
    assert headers["Mcp-Param-Level"] == "3"


def test_a_tool_with_invalid_annotations_sends_no_headers() -> None:
    bad = {"type": "object", "properties": {"a": {"type": "array", "x-mcp-header": "A"}}}
    assert header_maps([{"name": "t", "inputSchema": bad}, {"name": 3}, None, "x"]) == {}
