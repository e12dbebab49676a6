"""Expressions such as `$args.path` in a renderer's config, and the references (paths, URIs, URLs) they may produce."""

from __future__ import annotations

import ipaddress
import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from gateway.calls import to_json
from gateway.errors import Invalid
from gateway.value import Value

# A place inside a value: .name  .0  [0]  ["a name with-other characters"]
_STEP = r"""\.\w+|\[[0-9]+\]|\["[^"\]]*"\]|\['[^'\]]*'\]"""


def _expression(trees: str) -> re.Pattern[str]:
    return re.compile(
        rf"""\$(?:
            (?P<dollar>\$)
          | (?P<text>chat_id|workspace|toolset)(?!\w)
          | (?P<tree>{trees})(?!\w)(?P<path>(?:{_STEP})*)
        )""",
        re.VERBOSE,
    )


_EXPRESSION = _expression("args|return")
# In the steps of a tool.
_STEPS_EXPRESSION = _expression("args|steps|item|index")
_STEPS = re.compile(_STEP)
_INDEX = re.compile(r"[0-9]{1,9}")


class Scope(Value):
    """The values of expressions for one call; a directory is None if there is none. `trees` are the values of `$steps`,
    `$item` and `$index` in the steps of a tool, and None for a renderer, where these are plain text."""

    arguments: Mapping[str, Any]
    value: Any = None
    chat: str = ""
    workspace: str | None = None
    toolset: str | None = None
    trees: Mapping[str, Any] | None = None

    @property
    def expression(self) -> re.Pattern[str]:
        return _EXPRESSION if self.trees is None else _STEPS_EXPRESSION


def interpolate(template: Any, scope: Scope) -> Any:
    """Return `template` with every expression in its strings, at any depth, replaced by its value.

    A string that is one expression becomes the value itself. In a longer string a value is inserted: strings
    unchanged, others as compact JSON, missing and null values as nothing. `$$` is a dollar sign; a dollar before any
    other word is kept. Keys are not templates, and inserted values are not interpolated again.
    """
    if isinstance(template, str):
        return _interpolate_text(template, scope)
    if isinstance(template, Mapping):
        return {key: interpolate(item, scope) for key, item in template.items()}
    if isinstance(template, list | tuple):
        return [interpolate(item, scope) for item in template]
    return template


def roots(template: str) -> set[str]:
    """Return the first words of the expressions in a string: `{"args", "chat_id"}`; empty for plain text."""
    return {root for match in _EXPRESSION.finditer(template) if (root := match["text"] or match["tree"])}


def literal_start(template: str) -> str:
    """Return the text before the first expression, which no call can change."""
    end = next((match.start() for match in _EXPRESSION.finditer(template) if not match["dollar"]), len(template))
    return template[:end].replace("$$", "$")


def _interpolate_text(template: str, scope: Scope) -> Any:
    if "$" not in template:
        return template
    whole = scope.expression.fullmatch(template)
    if whole is not None and not whole["dollar"]:
        return _value(whole, scope)
    return scope.expression.sub(lambda match: "$" if match["dollar"] else _format(_value(match, scope)), template)


def _value(match: re.Match[str], scope: Scope) -> Any:
    if match["text"]:
        return {"chat_id": scope.chat, "workspace": scope.workspace, "toolset": scope.toolset}[match["text"]]
    keys = [_parse_key(step) for step in _STEPS.findall(match["path"])]
    if match["tree"] == "args":
        value: Any = _arguments(scope.arguments, keys)
    else:
        value = scope.value if scope.trees is None else scope.trees.get(match["tree"])
    for key in keys:
        value = _get(value, key)
    return value


def _arguments(arguments: Mapping[str, Any], keys: Sequence[str]) -> Any:
    """Return the object in which `$args.name` is looked up: that of a tool with a single argument that is an object, if
    only this has the name. Such a tool takes a model, and authors name the model's fields."""
    if keys and keys[0] not in arguments and len(arguments) == 1:
        (model,) = arguments.values()
        if isinstance(model, Mapping) and keys[0] in model:
            return model
    return arguments


def _parse_key(step: str) -> str:
    if step[0] == ".":
        return step[1:]
    return step[1:-1] if step[1].isdigit() else step[2:-2]


def _get(value: Any, key: str) -> Any:
    if isinstance(value, Mapping):
        return value.get(key)
    if isinstance(value, list | tuple) and _INDEX.fullmatch(key) and int(key) < len(value):
        return value[int(key)]
    return None


def _format(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else to_json(value).decode()


PATH_LIMIT = 4096
URL_LIMIT = 8192
_SEGMENTS = "/!$&'()*+,;=:@"  # allowed in a path by RFC 3986, besides letters, digits and -._~

# Stricter than any browser: a URL that Python and a browser parse differently (tabs, backslashes, user names,
# percent-encoded hosts) is refused, so that the checked host is the one that is shown.
_URL = re.compile(
    r"(?P<scheme>https?)://(?P<host>[a-z0-9.-]+|\[[0-9a-f:.]+\])(?::(?P<port>[0-9]{1,5}))?(?P<rest>[/?#][^\s\\]*)?",
    re.IGNORECASE | re.ASCII,
)
_DECLARED_HOST = re.compile(r"https?://([a-z0-9.-]+|\[[0-9a-f:.]+\])(?=[:/?#])", re.IGNORECASE | re.ASCII)
_ORIGIN = re.compile(r"https?://[a-z0-9.-]+(?::[0-9]+)?(?=[/?#])", re.IGNORECASE | re.ASCII)
_SCHEME = re.compile(r"\s*([^:/?#]*):")
_DESCRIBED_LIMIT = 200
_PORT = re.compile(r"[0-9]{1,5}")


def workspace_path(path: Any, workspace: str | None = None) -> str:
    """Return `path` relative to the workspace; raise `Invalid` if it is not inside.

    An absolute path inside `workspace` is accepted, since tools return those. Only the text is checked: the file is
    opened through the workspace, which follows no links.
    """
    return _relative(path, workspace, "the workspace")


def artifact_path(template: Any) -> str:
    """Return the path of an artifact in its toolset; `./` and `$toolset/` before it mean the same.

    No other expression is allowed: a call's data must not choose the page that shows it.
    """
    if isinstance(template, str) and roots(template):
        own = template.removeprefix("$toolset/")
        if roots(own):
            raise _invalid(template, "names a page by the data of a call; only $toolset/ may stand before its path")
        template = own
    path = template.replace("$$", "$") if isinstance(template, str) else template
    return _relative(path, None, "the toolset")


def workspace_uri(chat: str, path: str) -> str:
    """Return the URI of the file as a resource; with `?manifest=` it names a version."""
    return f"workspace://{quote(chat, safe='', errors='replace')}/{quote(path, safe=_SEGMENTS)}"


def frame_url(url: Any, declared: str) -> str:
    """Return `url` if it may be shown in a frame: http or https, on this machine or on a host that the config itself
    names in full. Any other host is refused."""
    match = _URL.fullmatch(url) if isinstance(url, str) and len(url) <= URL_LIMIT and url.isprintable() else None
    if match is None:
        raise _invalid(url, "is not an http or https URL that a frame can show", code="INVALID_URL")
    if match["port"] is not None:
        port_number(match["port"])
    host = match["host"].lower()
    if not _is_loopback(host) and host != find_host(declared):
        reason = "is on another machine; name that host in the renderer's config, before any expression"
        raise _invalid(url, reason, code="INVALID_URL")
    return match[0]


def origin(url: str) -> str:
    """Return scheme, host and port of a URL, for a security policy."""
    match = _URL.fullmatch(url)
    return url[: match.start("rest")] if match and match["rest"] else url


def frame_origins(config: Mapping[str, Any]) -> list[str]:
    """Return the origins of which a `frame` renderer may show pages, for a security policy; an expression that chooses
    a port stands for any port."""
    if "port" in config:
        port = config["port"]
        return [f"http://localhost:{'*' if isinstance(port, str) and roots(port) else port_number(port)}"]
    template = config.get("url")
    if not isinstance(template, str):
        return []
    start, host = literal_start(template), find_host(template)
    if host is None:  # chosen by the call, and then on this machine
        return ["http://localhost:*", "http://127.0.0.1:*"]
    match = _ORIGIN.match(start if roots(template) else f"{start}/")
    if match is None:  # an IPv6 address, which a policy cannot name, or a port that the call chooses
        return [] if "[" in host else [f"{start.partition(':')[0].lower()}://{host}:*"]
    return [match[0].lower()]


def find_host(template: str) -> str | None:
    """Return the host that a `url` template names before any expression, None if it names none."""
    start = literal_start(template)
    match = _DECLARED_HOST.match(start if roots(template) else f"{start}/")
    return match[1].lower() if match else None


def check_url_template(template: Any) -> None:
    """Raise `Invalid` for a `url` template that is invalid with any data."""
    if not isinstance(template, str):
        raise _invalid(template, "is not a URL", code="INVALID_URL")
    if not roots(template):
        frame_url(literal_start(template), template)
        return
    scheme = _SCHEME.match(literal_start(template))
    if scheme and scheme[1].lower() not in ("http", "https"):
        raise _invalid(template, "must begin with http:// or https://", code="INVALID_URL")


def port_number(port: Any) -> int:
    """Return a TCP port, given as a number or as a string of digits."""
    number = int(port) if isinstance(port, str) and _PORT.fullmatch(port) else port
    if isinstance(number, int) and not isinstance(number, bool) and 1 <= number <= 65535:
        return number
    raise _invalid(port, "is not a port from 1 to 65535", code="INVALID_URL")


def _relative(path: Any, directory: str | None, whose: str) -> str:
    if not isinstance(path, str):
        raise _invalid(path, "is not a path")
    inside = path.removeprefix(f"{directory.rstrip('/')}/") if directory else path
    parts = [part for part in inside.split("/") if part not in ("", ".")]
    if inside.startswith("/") or ".." in parts or not parts:
        raise _invalid(path, f"is not a path inside {whose}")
    if any(unicodedata.category(character) in ("Cc", "Cs") for character in inside):
        raise _invalid(path, "has a control character or a lone surrogate in it")
    if len(inside.encode()) > PATH_LIMIT:
        raise _invalid(path, f"is longer than {PATH_LIMIT} bytes")
    return "/".join(parts)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _invalid(value: Any, reason: str, *, code: str = "INVALID_PATH") -> Invalid:
    return Invalid(f"{describe(value)} {reason}", code=code)


def describe(value: Any) -> str:
    """Return a value for a message: small ones literally, others by their type."""
    if isinstance(value, str):
        return repr(value if len(value) <= _DESCRIBED_LIMIT else f"{value[:_DESCRIBED_LIMIT]}…")
    if isinstance(value, list | Mapping):
        return "a list" if isinstance(value, list) else "an object"
    if value is None:
        return "null"
    return repr(value) if not isinstance(value, int) or value.bit_length() <= 64 else "a huge number"
