"""Expressions such as `$args.path` in a renderer's config, and the references (paths, URIs, URLs) they may produce."""

from __future__ import annotations

import ipaddress
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from gateway.calls import to_json
from gateway.errors import Invalid

# A place inside a value: .name  .0  [0]  ["a name with-other characters"]
_STEP = r"""\.\w+|\[[0-9]+\]|\["[^"\]]*"\]|\['[^'\]]*'\]"""
_EXPRESSION = re.compile(
    rf"""\$(?:
        (?P<dollar>\$)
      | (?P<text>chat_id|workspace|toolset)(?!\w)
      | (?P<tree>args|return)(?!\w)(?P<path>(?:{_STEP})*)
    )""",
    re.VERBOSE,
)
_STEPS = re.compile(_STEP)
_INDEX = re.compile(r"[0-9]{1,9}")


@dataclass(frozen=True)
class Scope:
    """What the expressions of one call stand for; the directories are None where there is none."""

    arguments: Mapping[str, Any]
    value: Any = None
    chat: str = ""
    workspace: str | None = None
    toolset: str | None = None


def interpolate(template: Any, scope: Scope) -> Any:
    """`template` with every expression in its texts, at any depth, replaced by what it stands for.

    A text that is one expression becomes the value itself; in a longer text a value is written
    out, texts as they are and others as compact JSON. What is missing or null is null, and nothing
    in a longer text. `$$` is a dollar sign; a dollar before any other word is left alone. Keys are
    not templates, and neither are values: what a call brings in is never looked at again.
    """
    if isinstance(template, str):
        return _replaced(template, scope)
    if isinstance(template, Mapping):
        return {key: interpolate(item, scope) for key, item in template.items()}
    if isinstance(template, list | tuple):
        return [interpolate(item, scope) for item in template]
    return template


def roots(template: str) -> set[str]:
    """The first words of the expressions in a text: `{"args", "chat_id"}`; empty for plain text."""
    return {root for match in _EXPRESSION.finditer(template) if (root := match["text"] or match["tree"])}


def literal_start(template: str) -> str:
    """The text before the first expression, which no call can change."""
    end = next((match.start() for match in _EXPRESSION.finditer(template) if not match["dollar"]), len(template))
    return template[:end].replace("$$", "$")


def _replaced(template: str, scope: Scope) -> Any:
    if "$" not in template:
        return template
    whole = _EXPRESSION.fullmatch(template)
    if whole is not None and not whole["dollar"]:
        return _value(whole, scope)
    return _EXPRESSION.sub(lambda match: "$" if match["dollar"] else _written(_value(match, scope)), template)


def _value(match: re.Match[str], scope: Scope) -> Any:
    if match["text"]:
        return {"chat_id": scope.chat, "workspace": scope.workspace, "toolset": scope.toolset}[match["text"]]
    value = scope.arguments if match["tree"] == "args" else scope.value
    for step in _STEPS.findall(match["path"]):
        value = _inside(value, _key(step))
    return value


def _key(step: str) -> str:
    if step[0] == ".":
        return step[1:]
    return step[1:-1] if step[1].isdigit() else step[2:-2]


def _inside(value: Any, key: str) -> Any:
    if isinstance(value, Mapping):
        return value.get(key)
    if isinstance(value, list | tuple) and _INDEX.fullmatch(key) and int(key) < len(value):
        return value[int(key)]
    return None


def _written(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else to_json(value).decode()


PATH_LIMIT = 4096
URL_LIMIT = 8192
_SEGMENTS = "/!$&'()*+,;=:@"  # what RFC 3986 lets stand in a path, beside letters, digits and -._~

# Stricter than any browser: where Python and a browser read a URL differently (tabs, backslashes, user
# names, percent-encoded hosts), it is refused, so that the host checked is the host shown.
_URL = re.compile(
    r"(?P<scheme>https?)://(?P<host>[a-z0-9.-]+|\[[0-9a-f:.]+\])(?::(?P<port>[0-9]{1,5}))?(?P<rest>[/?#][^\s\\]*)?",
    re.IGNORECASE | re.ASCII,
)
_DECLARED_HOST = re.compile(r"https?://([a-z0-9.-]+|\[[0-9a-f:.]+\])(?=[:/?#])", re.IGNORECASE | re.ASCII)
_SCHEME = re.compile(r"\s*([^:/?#]*):")
_NAMED_LIMIT = 200
_PORT = re.compile(r"[0-9]{1,5}")


def workspace_path(path: Any, workspace: str | None = None) -> str:
    """`path` relative to the workspace; refused when it leads elsewhere or nowhere.

    An absolute path is taken when it lies in `workspace`, since tools return those. This reads the
    text alone: whoever opens the file goes through the workspace, which follows no links.
    """
    return _relative(path, workspace, "the workspace")


def artifact_path(template: Any) -> str:
    """The path of an artifact in its toolset; `./` and `$toolset/` before it mean the same.

    No other expression is taken: which page shows a tool's outcome is fixed when the tool is
    listed, and a call's data has no say in it.
    """
    if isinstance(template, str) and roots(template):
        own = template.removeprefix("$toolset/")
        if roots(own):
            raise _refused(template, "names a page by what a call brings; only $toolset/ may stand before its path")
        template = own
    path = template.replace("$$", "$") if isinstance(template, str) else template
    return _relative(path, None, "the toolset")


def workspace_uri(chat: str, path: str) -> str:
    """The URI at which the file is a resource; `?manifest=` after it asks for a version."""
    return f"workspace://{quote(chat, safe='', errors='replace')}/{quote(path, safe=_SEGMENTS)}"


def frame_url(url: Any, declared: str) -> str:
    """`url`, when it may be shown in a frame: http or https, on this machine or on a host that the
    config itself names in full. A host that came with a call's data is this machine or refused."""
    match = _URL.fullmatch(url) if isinstance(url, str) and len(url) <= URL_LIMIT and url.isprintable() else None
    if match is None:
        raise _refused(url, "is no http or https URL that a frame can show", code="INVALID_URL")
    if match["port"] is not None:
        port_number(match["port"])
    host = match["host"].lower()
    if not _is_loopback(host) and host != declared_host(declared):
        reason = "is on another machine; name that host in the renderer's config, before any expression"
        raise _refused(url, reason, code="INVALID_URL")
    return match[0]


def origin(url: str) -> str:
    """Scheme, host and port: what a view's security policy names."""
    match = _URL.fullmatch(url)
    return url[: match.start("rest")] if match and match["rest"] else url


def declared_host(template: str) -> str | None:
    """The host that a `url` template names and no call can change, if it names one."""
    start = literal_start(template)
    match = _DECLARED_HOST.match(start if roots(template) else f"{start}/")
    return match[1].lower() if match else None


def check_url_template(template: Any) -> None:
    """Refuse a `url` that no call's data can make right."""
    if not isinstance(template, str):
        raise _refused(template, "is no URL", code="INVALID_URL")
    if not roots(template):
        frame_url(literal_start(template), template)
        return
    scheme = _SCHEME.match(literal_start(template))
    if scheme and scheme[1].lower() not in ("http", "https"):
        raise _refused(template, "must begin with http:// or https://", code="INVALID_URL")


def port_number(port: Any) -> int:
    """A TCP port, given as a number or as its digits."""
    number = int(port) if isinstance(port, str) and _PORT.fullmatch(port) else port
    if isinstance(number, int) and not isinstance(number, bool) and 1 <= number <= 65535:
        return number
    raise _refused(port, "is no port from 1 to 65535", code="INVALID_URL")


def _relative(path: Any, directory: str | None, whose: str) -> str:
    if not isinstance(path, str):
        raise _refused(path, "is no path")
    inside = path.removeprefix(f"{directory.rstrip('/')}/") if directory else path
    parts = [part for part in inside.split("/") if part not in ("", ".")]
    if inside.startswith("/") or ".." in parts or not parts:
        raise _refused(path, f"is no path inside {whose}")
    if any(unicodedata.category(character) in ("Cc", "Cs") for character in inside):
        raise _refused(path, "has a control character or half a surrogate pair in it")
    if len(inside.encode()) > PATH_LIMIT:
        raise _refused(path, f"is longer than {PATH_LIMIT} bytes")
    return "/".join(parts)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _refused(value: Any, reason: str, *, code: str = "INVALID_PATH") -> Invalid:
    return Invalid(f"{named(value)} {reason}", code=code)


def named(value: Any) -> str:
    """A value as a message names it: small ones as they are, others by what they are."""
    if isinstance(value, str):
        return repr(value if len(value) <= _NAMED_LIMIT else f"{value[:_NAMED_LIMIT]}…")
    if isinstance(value, list | Mapping):
        return "a list" if isinstance(value, list) else "an object"
    if value is None:
        return "null"
    return repr(value) if not isinstance(value, int) or value.bit_length() <= 64 else "a huge number"
