"""Identity assertions: an enterprise's identity provider vouches for a person, and a client needs no consent page."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import httpx2
import jwt
import pytest
from identity.issuer import Issuer, serve_issuer

from .served import OAuthProbe, Served, serve

pytestmark = [pytest.mark.anyio, pytest.mark.promise("G7")]

GRANT = "urn:ietf:params:oauth:grant-type:jwt-bearer"
SECRET = "secret-of-the-portal"


def strict(issuer: Issuer) -> dict[str, Any]:
    """The settings of an issuer whose tokens must name a role."""
    return {**issuer.settings, "default_role": None}


def assertion(issuer: Issuer, served: Served, kind: str = "oauth-id-jag+jwt", **changes: Any) -> str:
    now = time.time()
    claims = {
        "iss": issuer.url,
        "sub": "eve",
        "aud": served.base,
        "client_id": "portal",
        "jti": f"{now}",
        "iat": now,
        "exp": now + 300,
        "roles": ["user"],
        "resource": served.url,
        "scope": "read-only",
        **changes,
    }
    given = {name: value for name, value in claims.items() if value is not None}
    return jwt.encode(given, issuer.keys["one"], "ES256", headers={"kid": "one", "typ": kind})


async def exchange(served: Served, token: str, **changes: str) -> httpx2.Response:
    form = {"grant_type": GRANT, "assertion": token, "client_id": "portal", "client_secret": SECRET, **changes}
    return await served.http.post(f"{served.base}/token", data=form)


async def test_assertion_of_the_identity_provider_yields_a_token_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PORTAL_SECRET", SECRET)
    clients = {"portal": {"secret": "${PORTAL_SECRET}", "name": "Portal"}}
    async with serve_issuer() as issuer, serve(tmp_path, auth={"jwt": strict(issuer), "clients": clients}) as served:
        metadata = (await served.http.get(f"{served.base}/.well-known/oauth-authorization-server")).json()
        assert "urn:ietf:params:oauth:grant-profile:id-jag" in metadata["authorization_grant_profiles_supported"]
        token = assertion(issuer, served)
        granted = (await exchange(served, token)).json()
        assert granted["scope"] == "read-only" and "refresh_token" not in granted
        tools = (await served.list_tools(granted["access_token"])).json()["result"]["tools"]
        names = {tool["name"] for tool in tools}
        assert "read_file" in names and "write_file" not in names
        assert (await exchange(served, token)).json()["error"] == "invalid_grant"

        cases: list[tuple[dict[str, Any], str]] = [
            ({"aud": served.url}, "invalid_grant"),
            ({"aud": "https://other.example"}, "invalid_grant"),
            ({"iss": "https://other.example"}, "invalid_grant"),
            ({"client_id": "another"}, "invalid_grant"),
            ({"client_id": None}, "invalid_grant"),
            ({"jti": None}, "invalid_grant"),
            ({"sub": None}, "invalid_grant"),
            ({"exp": time.time() - 100}, "invalid_grant"),
            ({"roles": ["unknown"]}, "invalid_grant"),
            ({"kind": "JWT"}, "invalid_grant"),
            ({"resource": "https://other.example/mcp"}, "invalid_target"),
        ]
        for changes, error in cases:
            refused = await exchange(served, assertion(issuer, served, **changes))
            assert (refused.status_code, refused.json()["error"]) == (400, error), changes
        assert (await exchange(served, assertion(issuer, served), client_secret="wrong")).status_code == 401


async def test_client_that_registered_itself_may_present_no_assertion(tmp_path: Path) -> None:
    async with serve_issuer() as issuer, serve(tmp_path, auth={"jwt": strict(issuer)}) as served:
        probe = OAuthProbe(served)
        assert (await probe.register(grant_types=["authorization_code", GRANT])).status_code == 400
        registered = (await probe.register(token_endpoint_auth_method="client_secret_post")).json()
        token = assertion(issuer, served, client_id=probe.client_id)
        refused = await probe.token(grant_type=GRANT, assertion=token, client_secret=registered["client_secret"])
        assert refused.json()["error"] == "unsupported_grant_type"
