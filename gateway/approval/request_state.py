"""The encrypted request state of a question that travels through the client, so that its answer cannot be forged."""

from __future__ import annotations

import importlib
import json
import os
import secrets
import stat
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from gateway.config import resolve_variables
from gateway.errors import Invalid
from gateway.files import create_file

if TYPE_CHECKING:
    from mcp.server.request_state import AESGCMRequestStateCodec


# Prefix of our states; any other state belongs to an upstream.
PREFIX = "toolgate-approval."

KEY_FILE = "approval.key"
KEY_BYTES = 32
VERSION = 1

# Characters of a state, including the upstream's own state inside it.
STATE_LIMIT = 1024 * 1024


@dataclass(frozen=True)
class Claims:
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
        self._settings = keys
        self._data_dir = data_dir

    def load_keys(self) -> list[str]:
        """Return the keys of the settings; `Invalid` for one that is too short or names a missing variable."""
        keys = [resolve_variables(key, field="secret") for key in self._settings]
        for number, key in enumerate(keys, 1):
            if len(key.encode()) < KEY_BYTES:
                raise Invalid(
                    f"approval.keys: key {number} has fewer than {KEY_BYTES} bytes; make one with: "
                    'python -c "import secrets; print(secrets.token_hex(32))"',
                    code="INVALID_CONFIG",
                )
        return keys

    def seal(self, claims: Claims) -> str:
        payload = json.dumps({"v": VERSION, **asdict(claims)}, separators=(",", ":"))
        state = f"{PREFIX}{self._codec.seal(payload.encode())}"
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
        try:
            claims = json.loads(self._codec.unseal(state.removeprefix(PREFIX)))
            if claims.pop("v") != VERSION:
                return None
            return Claims(**claims)
        except (_import_codec().InvalidRequestState, ValueError, TypeError, KeyError, AttributeError):
            return None

    @cached_property
    def _codec(self) -> AESGCMRequestStateCodec:
        try:
            keys: list[str] | list[bytes] = self.load_keys() or [_load_own_key(self._data_dir)]
            codec: AESGCMRequestStateCodec = _import_codec().AESGCMRequestStateCodec(keys)
            return codec
        except ValueError as error:
            raise Invalid(f"approval.keys: {error}", code="INVALID_CONFIG") from None


def _import_codec() -> Any:
    """Import the SDK's codec for the first question only: importing the SDK takes about a second."""
    return importlib.import_module("mcp.server.request_state")


def _load_own_key(data_dir: Path) -> bytes:
    """Return the key of this data directory; the first process that needs it generates it."""
    path = data_dir / KEY_FILE
    with suppress(FileNotFoundError):
        return _read_key(path)
    temporary = create_file(path.with_name(f"{KEY_FILE}.{secrets.token_hex(8)}"), secrets.token_bytes(KEY_BYTES))
    try:
        with suppress(FileExistsError):  # another process was first; its key counts
            os.link(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return _read_key(path)


def _read_key(path: Path) -> bytes:
    with path.open("rb") as file:
        if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077:
            raise Invalid(
                f"{path} can be read by others, who could forge a person's consent; delete it, and a new one is made",
                code="KEY_EXPOSED",
            )
        key = file.read(KEY_BYTES + 1)
    if len(key) != KEY_BYTES:
        raise Invalid(f"{path} is not a key of {KEY_BYTES} bytes; delete it, and a new one is made", code="INVALID_KEY")
    return key
