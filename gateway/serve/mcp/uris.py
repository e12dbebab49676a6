"""URIs: the address of a file, of a version or of a render plan, as it is written and as it is meant."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from urllib.parse import parse_qsl, quote, unquote, unquote_to_bytes

from gateway.calls import check_chat
from gateway.errors import Invalid, NotFound
from gateway.workspace.os_errors import is_directory
from gateway.workspace.tree import decode, encode, locate

# Bytes read at once: base64 makes a third more of them, and the Python SDK's client takes no event above 1 MiB.
SPAN_LIMIT = 512 * 1024

_SEGMENTS = "/!$&'()*+,;=:@"  # what RFC 3986 lets stand in a path, beside letters, digits and -._~
_HIDDEN = re.compile("[%#?\x00-\x1f\x7f\uef80-\uefff]")
_NUMBER = re.compile(r"[0-9]{1,18}")


@dataclass(frozen=True)
class Span:
    """A range of bytes."""

    offset: int = 0
    length: int = SPAN_LIMIT


@dataclass(frozen=True)
class FileAddress:
    """A file of a chat, now or in a manifest; `path` is spelled as trees spell it."""

    chat: str
    path: str
    manifest: str | None = None
    span: Span | None = None


@dataclass(frozen=True)
class ManifestAddress:
    """A version of a chat's files."""

    id: str
    span: Span | None = None


@dataclass(frozen=True)
class RenderAddress:
    """The plan of how to show what came of a call, or the page that shows it."""

    call_id: str
    view: bool = False
    span: Span | None = None


Address = FileAddress | ManifestAddress | RenderAddress


_SCHEMES = ("workspace://", "manifest://", "render://")


def is_ours(uri: str) -> bool:
    """Whether a URI, or a template of one, is of a kind that only the gateway itself has."""
    return uri.startswith(_SCHEMES)


def file_uri(chat: str, path: str) -> str:
    """The one URI we write for a file; `parse` takes other spellings of it too."""
    return f"workspace://{quote(chat, safe='')}/{quote(os.fsencode(decode(path)), safe=_SEGMENTS)}"


def render_uri(call_id: str, *, view: bool = False) -> str:
    return f"render://{quote(call_id, safe='')}{'/view' if view else ''}"


def template_value(path: str) -> str:
    """A path to put into `{+path}`, which leaves characters alone that would end the path there."""
    return _HIDDEN.sub(lambda found: quote(os.fsencode(decode(found[0]))), path)


def path_text(written: str) -> str:
    """The path, as trees spell it, that percent-encoded text means; it may lead anywhere."""
    return encode(os.fsdecode(unquote_to_bytes(written)))


def parse(uri: str) -> Address:
    """What a URI addresses; refused when it can be no file inside a workspace."""
    scheme, _, rest = uri.partition("://")
    place, _, query = rest.partition("?")
    options = _options(query)
    if scheme == "workspace":
        chat, _, written = place.partition("/")
        return FileAddress(_chat(chat), _path(written), options.get("manifest"), _span(options))
    if scheme == "manifest" and "manifest" not in options:
        return ManifestAddress(unquote(place), _span(options))
    if scheme == "render" and "manifest" not in options:
        call_id, slash, rest = place.partition("/")
        if rest in ("", "view") and bool(slash) == bool(rest):
            return RenderAddress(unquote(call_id), rest == "view", _span(options))
    raise NotFound(f"there is no resource {_short(uri)}; resources/templates/list shows how theirs are written")


def _chat(written: str) -> str:
    return check_chat(unquote(written))


def _path(written: str) -> str:
    if not written or written.endswith("/"):
        raise is_directory(_short(written or "/"))
    try:
        path = path_text(written)
        locate(path)
    except (Invalid, UnicodeError):
        message = f"{_short(written)} is no path inside the workspace; write it relative to the root, without '..'"
        raise Invalid(message, code="INVALID_PATH") from None
    return path


def _options(query: str) -> dict[str, str]:
    pairs = parse_qsl(query, keep_blank_values=True)
    options = dict(pairs)
    if len(options) < len(pairs) or not options.keys() <= {"manifest", "offset", "length"} or (query and not pairs):
        raise Invalid(
            f"the query {_short(query)} is not understood: it may say manifest, offset and length, each once; "
            "a '?' in a name is written %3F"
        )
    return options


def _span(options: dict[str, str]) -> Span | None:
    if "offset" not in options and "length" not in options:
        return None
    offset, length = options.get("offset", "0"), options.get("length", str(SPAN_LIMIT))
    if not _NUMBER.fullmatch(offset) or not _NUMBER.fullmatch(length) or not 1 <= int(length) <= SPAN_LIMIT:
        raise Invalid(f"offset counts bytes from 0, and length is 1 to {SPAN_LIMIT}")
    return Span(int(offset), int(length))


def _short(text: str) -> str:
    return repr(text if len(text) <= 200 else f"{text[:200]}…")
