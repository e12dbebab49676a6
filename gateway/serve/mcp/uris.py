"""URIs of files, versions and render plans: parsing and writing."""

from __future__ import annotations

import os
import re
from urllib.parse import parse_qsl, quote, unquote, unquote_to_bytes

from gateway.calls import check_chat
from gateway.errors import Invalid, NotFound
from gateway.value import Value
from gateway.workspace.os_errors import is_directory
from gateway.workspace.tree import decode, encode, locate

# Maximum bytes read at once: base64 adds a third, and the Python SDK's client accepts no event above 1 MiB.
SPAN_LIMIT = 512 * 1024

_SEGMENTS = "/!$&'()*+,;=:@"  # allowed in a path by RFC 3986, besides letters, digits and -._~
_HIDDEN = re.compile("[%#?\x00-\x1f\x7f\uef80-\uefff]")
_NUMBER = re.compile(r"[0-9]{1,18}")


class Span(Value):
    """A range of bytes."""

    offset: int = 0
    length: int = SPAN_LIMIT


class FileAddress(Value):
    """A file of a chat, now or in a manifest; `path` is encoded as in trees."""

    chat: str
    path: str
    manifest: str | None = None
    span: Span | None = None


class ManifestAddress(Value):
    """A version of a chat's files."""

    id: str
    span: Span | None = None


class RenderAddress(Value):
    """The render plan of a call, or the page made of it."""

    call_id: str
    view: bool = False
    span: Span | None = None


Address = FileAddress | ManifestAddress | RenderAddress


# The beginning of the URIs of the gateway's own views. Those of an upstream begin with its prefix instead.
VIEW_ROOT = "ui://toolgate/"

_OWN = ("workspace://", "manifest://", "render://", VIEW_ROOT)


def is_ours(uri: str) -> bool:
    """Return whether a URI or URI template is one of the gateway's own."""
    return uri.startswith(_OWN)


def file_uri(chat: str, path: str) -> str:
    """Return the canonical URI of a file; `parse` accepts other spellings too."""
    return f"workspace://{quote(chat, safe='')}/{quote(os.fsencode(decode(path)), safe=_SEGMENTS)}"


def render_uri(call_id: str, *, view: bool = False) -> str:
    return f"render://{quote(call_id, safe='')}{'/view' if view else ''}"


def template_value(path: str) -> str:
    """Return a path as a value of `{+path}`, with characters encoded that would end the path of the URI."""
    return _HIDDEN.sub(lambda match: quote(os.fsencode(decode(match[0]))), path)


def path_text(written: str) -> str:
    """Return the path, encoded as in trees, of percent-encoded text. It may lead out of the workspace."""
    return encode(os.fsdecode(unquote_to_bytes(written)))


def parse(uri: str) -> Address:
    """Return the address of a URI; one that cannot be inside a workspace is refused."""
    scheme, _, rest = uri.partition("://")
    location, _, query = rest.partition("?")
    options = _parse_options(query)
    if scheme == "workspace":
        chat, _, written = location.partition("/")
        return FileAddress(_parse_chat(chat), _parse_path(written), options.get("manifest"), _parse_span(options))
    if scheme == "manifest" and "manifest" not in options:
        return ManifestAddress(unquote(location), _parse_span(options))
    if scheme == "render" and "manifest" not in options:
        call_id, slash, rest = location.partition("/")
        if rest in ("", "view") and bool(slash) == bool(rest):
            return RenderAddress(unquote(call_id), rest == "view", _parse_span(options))
    raise NotFound(f"there is no resource {_short(uri)}; see resources/templates/list for the URIs there are")


def _parse_chat(written: str) -> str:
    return check_chat(unquote(written))


def _parse_path(written: str) -> str:
    if not written or written.endswith("/"):
        raise is_directory(_short(written or "/"))
    try:
        path = path_text(written)
        locate(path)
    except (Invalid, UnicodeError):
        message = f"{_short(written)} is not a path inside the workspace; write it relative to the root, without '..'"
        raise Invalid(message, code="INVALID_PATH") from None
    return path


def _parse_options(query: str) -> dict[str, str]:
    pairs = parse_qsl(query, keep_blank_values=True)
    options = dict(pairs)
    if len(options) < len(pairs) or not options.keys() <= {"manifest", "offset", "length"} or (query and not pairs):
        raise Invalid(
            f"the query {_short(query)} is invalid: it may have manifest, offset and length, each once; "
            "write a '?' in a name as %3F"
        )
    return options


def _parse_span(options: dict[str, str]) -> Span | None:
    if "offset" not in options and "length" not in options:
        return None
    offset, length = options.get("offset", "0"), options.get("length", str(SPAN_LIMIT))
    if not _NUMBER.fullmatch(offset) or not _NUMBER.fullmatch(length) or not 1 <= int(length) <= SPAN_LIMIT:
        raise Invalid(f"offset must be a number of bytes from 0, and length 1 to {SPAN_LIMIT}")
    return Span(int(offset), int(length))


def _short(text: str) -> str:
    return repr(text if len(text) <= 200 else f"{text[:200]}…")
