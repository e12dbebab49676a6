"""Questions that travel through a client and come back: sealed, so that only what was asked can be answered."""

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

if TYPE_CHECKING:
    from mcp.server.request_state import AESGCMRequestStateCodec

# How our states begin; any other is an upstream's, and none of our business.
PREFIX = "toolgate-approval."

KEY_FILE = "approval.key"
KEY_BYTES = 32
VERSION = 1
# Characters of a state, with what an upstream put into its own.
STATE_LIMIT = 1024 * 1024


@dataclass(frozen=True)
class Claims:
    """What a state says. `kind` is a question that waits for its answer, or a call that was agreed to and that its
    upstream asks about now. `arguments` is the digest of what the client sent; `changes` is what a person has
    changed about them since. `carried` is what goes on to the upstream."""

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


class Seal:
    """Closes and opens states with the first of the keys, or with any of them. Without keys it keeps one of its own
    in a file, for every process of that data directory."""

    def __init__(self, keys: Sequence[str], data_dir: Path) -> None:
        self._keys = [_checked(resolve_variables(key, field="secret"), number) for number, key in enumerate(keys, 1)]
        self._data_dir = data_dir

    def close(self, claims: Claims) -> str:
        payload = json.dumps({"v": VERSION, **asdict(claims)}, separators=(",", ":"))
        state = f"{PREFIX}{self._codec.seal(payload.encode())}"
        if len(state) > STATE_LIMIT:
            raise Invalid(
                "the server's own state is too large to be kept while a person is asked", code="STATE_TOO_LARGE"
            )
        return state

    def open(self, state: str) -> Claims | None:
        """What a state of ours says; None for one that is not ours as we made it."""
        if not state.startswith(PREFIX) or len(state) > STATE_LIMIT:
            return None
        try:
            said = json.loads(self._codec.unseal(state.removeprefix(PREFIX)))
            if said.pop("v") != VERSION:
                return None
            return Claims(**said)
        except (_sdk().InvalidRequestState, ValueError, TypeError, KeyError, AttributeError):
            return None

    @cached_property
    def _codec(self) -> AESGCMRequestStateCodec:
        try:
            keys: list[str] | list[bytes] = self._keys or [_own_key(self._data_dir)]
            codec: AESGCMRequestStateCodec = _sdk().AESGCMRequestStateCodec(keys)
            return codec
        except ValueError as error:
            raise Invalid(f"approval.keys: {error}", code="INVALID_CONFIG") from None


def _sdk() -> Any:
    """Import the SDK's codec when the first question is sealed: a stdio client waits for the start."""
    return importlib.import_module("mcp.server.request_state")


def _checked(key: str, number: int) -> str:
    if len(key.encode()) < KEY_BYTES:
        raise Invalid(
            f"approval.keys: key {number} has fewer than {KEY_BYTES} bytes; make one with: "
            'python -c "import secrets; print(secrets.token_hex(32))"',
            code="INVALID_CONFIG",
        )
    return key


def _own_key(data_dir: Path) -> bytes:
    """The key of this data directory, made by the first process that needs it."""
    path = data_dir / KEY_FILE
    with suppress(FileNotFoundError):
        return _read(path)
    unborn = path.with_name(f"{KEY_FILE}.{secrets.token_hex(8)}")
    descriptor = os.open(unborn, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_bytes(KEY_BYTES))
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):  # another process was first, and its key is the one
            os.link(unborn, path)
    finally:
        unborn.unlink(missing_ok=True)
    return _read(path)


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077:
            raise Invalid(
                f"{path} can be read by others, who could forge a person's consent; delete it, a new one is made",
                code="KEY_EXPOSED",
            )
        key = file.read(KEY_BYTES + 1)
    if len(key) != KEY_BYTES:
        raise Invalid(f"{path} is no key; delete it, a new one is made", code="INVALID_KEY")
    return key
