"""Tokens as an authorization server hands them out, and takes them back."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gateway.errors import Unavailable
from gateway.sources.upstreams.oauth.challenge import scopes
from gateway.sources.upstreams.oauth.http import Client, Reach, Reply

_TOKEN = re.compile(r"[\x21-\x7e]{1,65536}")
_LONGEST = 10 * 365 * 24 * 3600.0


class Refused(Exception):
    """The authorization server said no. `error` is OAuth's own word for it, `told` the same for people."""

    def __init__(self, error: str | None, told: str) -> None:
        super().__init__(error, told)
        self.error = error
        self.told = told


@dataclass(frozen=True)
class Granted:
    """What it gave. Times are this machine's."""

    access_token: str = field(repr=False)
    refresh_token: str | None = field(repr=False)
    scope: str | None
    obtained_at: float
    expires_at: float | None


async def obtain(reach: Reach, endpoint: str, form: Mapping[str, str | None], client: Client) -> Granted:
    """Tokens for what the form says; `Refused` when the server does not give any."""
    asked_at = time.time()
    reply = await reach.post_form(endpoint, form, client)
    secrets = (client.secret, *(form.get(name) for name in ("refresh_token", "code", "code_verifier")))
    if reply.status >= 500 or reply.status == 429:
        raise Unavailable(reply.refusal(*secrets), code="LOGIN_UNAVAILABLE")
    if reply.status not in (200, 201) or reply.error is not None:  # some say no with a 200
        raise Refused(reply.error, reply.refusal(*secrets))
    return _granted(reply, asked_at)


async def revoke(reach: Reach, endpoint: str, token: str, hint: str, client: Client) -> bool:
    """Whether it took a token back (RFC 7009)."""
    reply = await reach.post_form(endpoint, {"token": token, "token_type_hint": hint}, client)
    return reply.status == 200


def _granted(reply: Reply, asked_at: float) -> Granted:
    said = reply.said
    token, kind = said.get("access_token"), said.get("token_type", "Bearer")
    if not _is_token(token) or str(kind).lower() != "bearer":
        raise Unavailable(f"{reply.origin} gave no bearer token", code="LOGIN_UNAVAILABLE")
    lifetime = _seconds(said.get("expires_in"))
    refresh = said.get("refresh_token")
    return Granted(
        access_token=str(token),
        refresh_token=refresh if _is_token(refresh) else None,
        scope=scopes(said.get("scope")),
        obtained_at=asked_at,
        expires_at=None if lifetime is None else asked_at + lifetime,
    )


def _is_token(value: Any) -> bool:
    """Whether it is one that stays in its header's line."""
    return isinstance(value, str) and _TOKEN.fullmatch(value) is not None


def _seconds(said: Any) -> float | None:
    """How long a token lasts; some servers write the number as a text."""
    try:
        seconds = float(said)
    except (TypeError, ValueError, OverflowError):
        return None
    return seconds if 0 < seconds < _LONGEST else None
