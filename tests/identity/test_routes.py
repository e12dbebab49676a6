"""Nothing answers without a credential: every route and every MCP method, on both roads and in both eras."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from serve.servers import HANDSHAKE, INITIALIZED, Client, initialize, request
from starlette.routing import Route

from gateway.admin import keys
from gateway.serve.mcp.sdk import PARAMS
from gateway.serve.rest.routes import list_endpoints

from .gateways import ERAS, ROADS, Guarded, guarded
from .issuer import Issuer, serve_issuer

pytestmark = [pytest.mark.anyio, pytest.mark.promise("G7")]

METHODS = ["DELETE", "GET", "OPTIONS", "PATCH", "POST", "PUT"]

MESSAGES: list[dict[str, Any]] = [
    *({"jsonrpc": "2.0", "id": 1, "method": method} for method in (*PARAMS, "ping", "subscriptions/listen", "x/y")),
    INITIALIZED,
    {"jsonrpc": "2.0", "id": 1, "result": {}},
    {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}},
]


async def make_invalid(fixture: Guarded, issuer: Issuer) -> dict[str, str | None]:
    """Return the `Authorization` headers that nobody is let in with, by what is wrong with each."""
    expired, revoked = await fixture.key("old", days=1e-9), await fixture.key("gone")
    await keys.revoke_key(fixture.gateway, "gone")
    foreign = ec.generate_private_key(ec.SECP256R1())
    none = jwt.encode(issuer.claims(), "", algorithm="none", headers={"kid": "one"})
    return {
        "missing": None,
        "empty": "",
        "no token": "Bearer ",
        "basic": "Basic bG9jYWw6bG9jYWw=",
        "unknown key": f"Bearer tg_{'A' * 43}",
        "key without prefix": f"Bearer {(await fixture.key('right'))[3:]}",
        "two tokens": f"Bearer {await fixture.key('first')} x",
        "expired key": f"Bearer {expired}",
        "revoked key": f"Bearer {revoked}",
        "no jwt": "Bearer eyJ.eyJ.x",
        "audience": f"Bearer {issuer.token(aud='other')}",
        "issuer": f"Bearer {issuer.token(iss='https://evil.example')}",
        "expired token": f"Bearer {issuer.token(exp=time.time() - 3600)}",
        "not valid yet": f"Bearer {issuer.token(nbf=time.time() + 3600)}",
        "no subject": f"Bearer {issuer.token(sub=None)}",
        "no expiry": f"Bearer {issuer.token(exp=None)}",
        "alg none": f"Bearer {none}",
        "alg hmac": "Bearer " + jwt.encode(issuer.claims(), "x" * 32, algorithm="HS256", headers={"kid": "one"}),
        "unknown kid": f"Bearer {issuer.token(kid='two')}",
        "foreign key": "Bearer " + jwt.encode(issuer.claims(), foreign, algorithm="ES256", headers={"kid": "one"}),
    }


# Every path that takes no credential, with what it answers to nobody: a new one must be thought about here.
PUBLIC_PATHS = {
    "/healthz": {200, 405},
    "/.well-known/oauth-protected-resource": {200},
    "/.well-known/oauth-protected-resource/mcp": {200},
    "/.well-known/oauth-protected-resource/mcp/{profile}": {200},
    "/.well-known/oauth-authorization-server": {200},
    # Logging in: forms that take a key or a code, and refuse everything else.
    "/authorize": {400},
    "/token": {401},
    "/register": {400},
    "/revoke": {401},
    "/consent": {400, 403, 405},
    "/connect/{ticket}": {400, 403, 405},
    "/connect/callback": {403, 405},
    "/connect/callback/{issuer}": {403, 405},
    "/sign-in": {200, 403, 405},
    # Scripts and styles, without data.
    "/static/{version}/{path:path}": {404, 405},
}


async def test_no_route_answers_without_a_valid_credential(tmp_path: Path) -> None:
    async with serve_issuer() as issuer, guarded(tmp_path, auth={"jwt": issuer.settings}) as fixture:
        assert all(isinstance(route, Route) for route in fixture.web.routes), "a mounted application hides its routes"
        paths = {route.path for route in fixture.web.routes if isinstance(route, Route)}
        assert paths >= {"/mcp", "/readyz", "/metrics", "/", "/console/{path:path}", "/approve/{approval_id}"}
        assert paths >= PUBLIC_PATHS.keys(), PUBLIC_PATHS.keys() - paths
        paths |= {endpoint.path for endpoint in list_endpoints()}
        assert paths >= {"/api/openapi.json", "/api/docs", "/openapi/{profile}/openapi.json", "/tools/tools/search"}
        paths |= {"/mcp/small", "/mcp/", "/api", "/nothing", "/openapi", "/static", "/connect"}
        for path in sorted(paths - PUBLIC_PATHS.keys()):  # a browser is led to the form
            answer = await Client(fixture.apps["fast"]).ask(None, {"accept": "text/html"}, url=path, method="GET")
            assert answer.status in (303, 401), (path, answer)
        for what, header in (await make_invalid(fixture, issuer)).items():
            headers = {} if header is None else {"authorization": header}
            for path in sorted(paths):
                for method in METHODS:
                    client = Client(fixture.apps["fast"])
                    answer = await client.ask(None, headers, url=path, method=method)
                    if path in PUBLIC_PATHS:
                        assert answer.status in PUBLIC_PATHS[path], (what, method, path, answer)
                    else:
                        assert answer.status == 401, (what, method, path, answer)
                        assert answer.headers["www-authenticate"].startswith("Bearer "), what
        right = fixture.holder(issuer.token(), "fast")
        assert await right.value("stall__echo", {"n": 1}) == {"n": 1}
        assert len(fixture.source.calls) == 1


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("road", ROADS)
async def test_no_mcp_method_answers_without_a_valid_credential(tmp_path: Path, road: str, era: str) -> None:
    async with serve_issuer() as issuer, guarded(tmp_path, auth={"jwt": issuer.settings}) as fixture:
        owner = await fixture.person("owner", "admin", road, era)
        await owner.result("tools/list")
        for what, header in (await make_invalid(fixture, issuer)).items():
            headers: dict[str, str | None] = {} if header is None else {"authorization": header}
            for message in MESSAGES:
                client = Client(fixture.apps[road])
                if era == HANDSHAKE:  # also with the id of somebody's session
                    client.session = dict(owner.session)
                else:
                    message = request(message["method"]) if "method" in message else message
                answer = await client.ask(message, headers)
                assert answer.status == 401, (what, message, answer)
                assert answer.message["error"]["code"] in ("UNAUTHENTICATED", "CREDENTIAL_EXPIRED", "INVALID_TOKEN")
            if era == HANDSHAKE:
                for method in ("GET", "DELETE"):
                    client = Client(fixture.apps[road])
                    client.session = {**owner.session, "last-event-id": "0-0"}
                    assert (await client.ask(None, headers, method=method)).status == 401, (what, method)
                plain = {"mcp-protocol-version": None, "mcp-method": None, **headers}
                assert (await Client(fixture.apps[road]).ask(initialize(), plain)).status == 401, what
        assert fixture.source.calls == []
        assert await owner.value("stall__echo") == {}


@pytest.mark.parametrize("road", ROADS)
async def test_challenge_names_the_metadata_and_metadata_the_issuer(tmp_path: Path, road: str) -> None:
    profiles = {"small": {"permission": "read-only"}}
    server = {"public_url": "https://tools.example/"}
    async with (
        serve_issuer() as issuer,
        guarded(tmp_path, auth={"jwt": issuer.settings}, server=server, profiles=profiles) as fixture,
    ):
        client = Client(fixture.apps[road])
        for path in ("/mcp", "/mcp/small"):
            challenge = (await client.ask(request("tools/list"), url=path)).headers["www-authenticate"]
            well_known = f"/.well-known/oauth-protected-resource{path}"
            assert challenge == f'Bearer realm="toolgate", resource_metadata="https://tools.example{well_known}"'
            metadata = (await client.ask(None, url=well_known, method="GET")).message
            assert metadata["resource"] == f"https://tools.example{path}"
            assert metadata["authorization_servers"] == [issuer.url, "https://tools.example"]
        wrong = await client.ask(request("tools/list"), {"authorization": "Bearer tg_x"})
        assert 'error="invalid_token"' in wrong.headers["www-authenticate"]


async def test_gateway_without_an_issuer_has_no_metadata(tmp_path: Path) -> None:
    async with guarded(tmp_path, auth={"authorization_server": False}) as fixture:
        await fixture.key("ann")
        client = Client(fixture.apps["fast"])
        answer = await client.ask(request("tools/list"))
        assert answer.headers["www-authenticate"] == 'Bearer realm="toolgate"'
        assert "toolgate key create" in answer.message["error"]["message"]
        known = await client.ask(None, url="/.well-known/oauth-protected-resource/mcp", method="GET")
        assert known.status == 404


async def test_two_authorization_headers_are_refused(tmp_path: Path) -> None:
    async with guarded(tmp_path) as fixture:
        key = await fixture.key("ann")
        for road in ROADS:
            twice = [("authorization", f"Bearer {key}"), ("authorization", f"Bearer {key}")]
            assert (await Client(fixture.apps[road]).ask(request("tools/list"), twice)).status == 400
