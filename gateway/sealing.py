"""Encryption with the gateway's key: logins at rest, and state that travels through clients and browsers."""

from __future__ import annotations

import base64
import hashlib
import hmac
import importlib
import json
import os
import secrets
import stat
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

from gateway.config import resolve_variables
from gateway.errors import Invalid
from gateway.files import create_file

KEY_FILE = "approval.key"
KEY_BYTES = 32
_NONCE_BYTES = 12
_VERSION = b"\x01"


class Sealer:
    """Encrypts and authenticates for one purpose (AES-256-GCM): nothing sealed for another is unsealed.

    The first key seals, every key unseals. Without keys, one is generated and kept in a file that all processes of the
    data directory share.
    """

    def __init__(self, purpose: str, keys: Sequence[str], data_dir: Path) -> None:
        self._purpose = purpose.encode()
        self._settings = keys
        self._data_dir = data_dir

    def load_keys(self) -> list[bytes]:
        """Return the keys of the settings; `Invalid` for one that is too short or names a missing variable."""
        keys = [resolve_variables(key, field="secret").encode() for key in self._settings]
        for number, key in enumerate(keys, 1):
            if len(key) < KEY_BYTES:
                raise Invalid(
                    f"approval.keys: key {number} has fewer than {KEY_BYTES} bytes; make one with: "
                    'python -c "import secrets; print(secrets.token_hex(32))"',
                    code="INVALID_CONFIG",
                )
        return keys

    def seal(self, content: bytes) -> str:
        nonce = secrets.token_bytes(_NONCE_BYTES)
        sealed = self._ciphers[0].encrypt(nonce, content, self._purpose)
        return _encode(_VERSION + nonce + sealed)

    def unseal(self, text: str) -> bytes | None:
        """Return the content; None unless it was sealed with one of the keys for this purpose, and is unchanged."""
        try:
            data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        except ValueError:
            return None
        if _encode(data) != text:  # the last character has bits that mean nothing
            return None
        nonce, sealed = data[1 : 1 + _NONCE_BYTES], data[1 + _NONCE_BYTES :]
        for cipher in self._ciphers if data[:1] == _VERSION and sealed else ():
            with suppress(import_cryptography("cryptography.exceptions").InvalidTag):
                content: bytes = cipher.decrypt(nonce, sealed, self._purpose)
                return content
        return None

    def seal_claims(self, claims: Mapping[str, Any]) -> str:
        return self.seal(json.dumps(claims, separators=(",", ":")).encode())

    def unseal_claims(self, text: str | None, now: float | None = None) -> dict[str, Any] | None:
        """Return sealed claims; None also for those that end (`exp`) before `now`."""
        content = self.unseal(text) if text else None
        if content is None:
            return None
        claims: dict[str, Any] = json.loads(content)
        return claims if now is None or now < claims["exp"] else None

    @cached_property
    def _ciphers(self) -> list[Any]:
        keys = self.load_keys() or [load_key_file(self._data_dir / KEY_FILE)]
        cipher = import_cryptography("cryptography.hazmat.primitives.ciphers.aead").AESGCM
        return [cipher(hmac.digest(key, b"toolgate " + self._purpose, hashlib.sha256)) for key in keys]


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def import_cryptography(module: str) -> Any:
    """Import a part of the library on first use: many processes need none."""
    return importlib.import_module(module)


def load_key_file(path: Path, prepare: Callable[[bytes], None] | None = None, mode: int = 0o600) -> bytes:
    """Return the key in a file of the data directory; the first process that needs it generates it, and gives it to
    `prepare` before it is stored with that mode."""
    with suppress(FileNotFoundError):
        return _read_key(path)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    key = secrets.token_bytes(KEY_BYTES)
    if prepare is not None:
        prepare(key)
    temporary = create_file(path.with_name(f"{path.name}.{secrets.token_hex(8)}"), key, mode)
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
                f"{path} can be read by others, who could forge what it protects (consent, logins, the call log); "
                "delete it, and a new one is made",
                code="KEY_EXPOSED",
            )
        key = file.read(KEY_BYTES + 1)
    if len(key) != KEY_BYTES:
        raise Invalid(f"{path} is not a key of {KEY_BYTES} bytes; delete it, and a new one is made", code="INVALID_KEY")
    return key
