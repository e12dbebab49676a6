"""The encrypted request state of a question that travels through the client, so that its answer cannot be forged."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from gateway.errors import Invalid
from gateway.sealing import Sealer
from gateway.value import Value

# Prefix of our states; any other state belongs to an upstream.
PREFIX = "toolgate-approval."

VERSION = 1

# Characters of a state, including the upstream's own state inside it.
STATE_LIMIT = 1024 * 1024


class Claims(Value):
    """The content of a state. `kind` is a question that waits for its answer, or an approved call that its upstream
    asks about now. `arguments` is the digest of those the client sent; `changes` are a person's edits of them.
    `carried` is forwarded to the upstream."""

    kind: Literal["question", "continued"]
    approval: str
    nonce: str
    call_id: str
    subject: str
    arguments: str
    question: str
    reason: str
    issued: float
    expires: float
    round: int = 0
    by: str = ""
    changes: Mapping[str, Any] | None = None
    carried: Mapping[str, Any] | None = None


class RequestStateCodec:
    """Encrypts and decrypts states. The first key encrypts, every key decrypts. Without keys, one is generated and
    kept in a file that all processes of the data directory share."""

    def __init__(self, keys: Sequence[str], data_dir: Path) -> None:
        self.sealer = Sealer("approval", keys, data_dir)

    def seal(self, claims: Claims) -> str:
        payload = json.dumps({"v": VERSION, **asdict(claims)}, separators=(",", ":"))
        state = f"{PREFIX}{self.sealer.seal(payload.encode())}"
        if len(state) > STATE_LIMIT:
            raise Invalid(
                "the request state of the upstream server is too large to keep while a person is asked",
                code="STATE_TOO_LARGE",
            )
        return state

    def unseal(self, state: str) -> Claims | None:
        """Return the claims of a state; None unless this gateway made it and it is unchanged."""
        if not state.startswith(PREFIX) or len(state) > STATE_LIMIT:
            return None
        payload = self.sealer.unseal(state.removeprefix(PREFIX))
        if payload is None:
            return None
        try:
            claims = json.loads(payload)
            if claims.pop("v") != VERSION:
                return None
            return Claims(**claims)
        except (ValueError, TypeError, KeyError, AttributeError):
            return None
