"""The client id for an authorization server: configured, a metadata document, or registered dynamically."""

from __future__ import annotations

import re
from typing import Any

from mcp.client.auth.utils import should_use_client_metadata_url

from gateway.errors import Invalid, Unavailable
from gateway.oauth.callback_server import HOST, PATH
from gateway.oauth.discovery import Site
from gateway.oauth.http import Client, Reach
from gateway.oauth.store import Account

# Ways to prove who we are, best first: servers made with the MCP SDK revoke nothing for a secret in a header.
_METHODS = ("none", "client_secret_post", "client_secret_basic")


# One to name where a redirect URI must be told beforehand.
_PORT = 8421

_PLAIN = re.compile(r"[ -~]{1,4096}")


async def identify(reach: Reach, account: Account, site: Site, redirect: str, scope: str | None) -> Client:
    """The client to sign in as; refused when there is no way to be one."""
    configured = configured_client(account, site)
    if configured is not None:
        return configured
    document = account.oauth.client_metadata_url
    if document is not None and not registers(account, site):
        return Client(document)
    if site.server.registration_endpoint is None:
        raise Invalid(
            f"{site.issuer} registers nobody by itself: register Toolgate there, with the redirect URI "
            f"http://{HOST}:{_PORT}{PATH}, set oauth.client_id of {account.server!r} to what you are given, and run "
            f"`{account.command} --port {_PORT}`",
            code="CLIENT_ID_NEEDED",
        )
    return await _register(reach, site, redirect, scope)


def registers(account: Account, site: Site) -> bool:
    """Whether we are somebody new to it each time."""
    document = account.oauth.client_metadata_url
    return account.oauth.client_id is None and not should_use_client_metadata_url(site.server, document)


def configured_client(account: Account, site: Site) -> Client | None:
    """The client of the settings, proving itself as the server likes best."""
    client_id, secret = account.client_id, account.client_secret
    if client_id is None:
        return None
    if secret is None:
        return Client(client_id)
    # RFC 8414: a server that does not say what it takes, takes this.
    offered = site.server.token_endpoint_auth_methods_supported or ["client_secret_basic"]
    posted = "client_secret_basic" not in offered and "client_secret_post" in offered
    return Client(client_id, secret, "client_secret_post" if posted else "client_secret_basic")


async def _register(reach: Reach, site: Site, redirect: str, scope: str | None) -> Client:
    """RFC 7591. It is done for each login: where the browser comes back to differs each time."""
    offered = site.server.token_endpoint_auth_methods_supported or list(_METHODS)
    wanted: dict[str, Any] = {
        "client_name": "Toolgate",
        "redirect_uris": [redirect],
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "token_endpoint_auth_method": next((method for method in _METHODS if method in offered), "none"),
        "application_type": "native",
    }
    if scope:
        wanted["scope"] = scope
    reply = await reach.post_json(str(site.server.registration_endpoint), wanted)
    if reply.status not in (200, 201):
        raise Unavailable(f"we could not be registered: {reply.refusal()}", code="REGISTRATION_FAILED")
    client_id, secret = reply.said.get("client_id"), reply.said.get("client_secret")
    method = reply.said.get("token_endpoint_auth_method") or wanted["token_endpoint_auth_method"]
    if not _is_plain(client_id):
        raise Unavailable(f"{reply.origin} registered us without a client id", code="REGISTRATION_FAILED")
    secret = secret if _is_plain(secret) else None
    if method not in _METHODS or (method != "none" and secret is None):
        raise Unavailable(f"{reply.origin} registered us in a way we cannot use", code="REGISTRATION_FAILED")
    return Client(str(client_id), secret, method)


def _is_plain(value: Any) -> bool:
    """Whether it is of the characters that ids and secrets have (RFC 6749, appendix A)."""
    return isinstance(value, str) and _PLAIN.fullmatch(value) is not None
