"""The four renderers: what their configs may contain, and the page of an `html` renderer with its data; and the page
around an upstream's view of MCP Apps, which uses its server's own names and reaches nothing else."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

from gateway.calls import to_json
from gateway.errors import Invalid
from gateway.names import did_you_mean
from gateway.render.interpolate import artifact_path, check_url_template, describe, port_number, roots, workspace_path
from gateway.tools import Renderer
from gateway.value import Value

LANGUAGE_LIMIT = 64
_DEPTH_LIMIT = 32


class _Shape(Value):
    """The keys of a renderer's config, each with its check, and those of which exactly one is required."""

    keys: Mapping[str, Callable[[Any], None]]
    one_of: tuple[str, ...]


def declare(kind: str, config: Mapping[str, Any]) -> Renderer:
    """Return the renderer that a toolset declares; raise `Invalid`, naming the key, if it could never be shown.

    A key without a value counts as missing, except for `data`, where null is data.
    """
    shape = _SHAPES.get(kind)
    if shape is None:
        near = did_you_mean(str(kind), RENDERERS) or f"; there are {', '.join(RENDERERS)}"
        raise Invalid(f"there is no renderer {kind!r}{near}", code="INVALID_RENDERER", renderer=kind)
    given = {key: value for key, value in config.items() if value is not None or key == "data"}
    for key, value in given.items():
        _check(kind, shape, key, value)
    _check_combination(kind, shape, given)
    return Renderer(kind, given)


def _check(kind: str, shape: _Shape, key: str, value: Any) -> None:
    if key not in shape.keys:
        near = did_you_mean(str(key), shape.keys) or f"; it takes {', '.join(shape.keys)}"
        raise _invalid_config(kind, key, f"unknown key {key!r}{near}")
    try:
        shape.keys[key](value)
    except Invalid as error:
        raise _invalid_config(kind, key, f"'{key}': {error.message}") from None


def _check_combination(kind: str, shape: _Shape, given: Mapping[str, Any]) -> None:
    present = [key for key in shape.one_of if key in given]
    choice = " or ".join(repr(key) for key in shape.one_of)
    if not present:
        raise _invalid_config(kind, shape.one_of[0], f"{choice} is required")
    if len(present) > 1:
        raise _invalid_config(kind, present[1], f"it takes {choice}, not both")


def _invalid_config(kind: str, key: str, reason: str) -> Invalid:
    return Invalid(f"renderer {kind!r}: {reason}", code="INVALID_RENDERER", renderer=kind, key=key)


def _text(value: Any) -> None:
    if not isinstance(value, str):
        raise Invalid(f'{describe(value)} is not text; write text or an expression such as "$return.text"')


def _file(value: Any) -> None:
    if not (isinstance(value, str) and roots(value)):
        workspace_path(value.replace("$$", "$") if isinstance(value, str) else value)


def _language(value: Any) -> None:
    if not isinstance(value, str) or not 0 < len(value) <= LANGUAGE_LIMIT:
        raise Invalid(f"{describe(value)} is not a language; write one such as 'python', or 'auto'")


def _flag(value: Any) -> None:
    if not isinstance(value, bool) and not (isinstance(value, str) and roots(value)):
        raise Invalid(f"{describe(value)} is neither true nor false nor an expression")


def _artifact(value: Any) -> None:
    artifact_path(value)


def _port(value: Any) -> None:
    if not (isinstance(value, str) and roots(value)):
        port_number(value)


def _data(value: Any, depth: int = 0) -> None:
    if depth > _DEPTH_LIMIT:
        raise Invalid(f"it is nested deeper than {_DEPTH_LIMIT} levels")
    for item in value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ():
        _data(item, depth + 1)


_SHAPES = {
    "code": _Shape({"file": _file, "content": _text, "language": _language, "editable": _flag}, ("file", "content")),
    "document": _Shape({"file": _file, "content": _text, "editable": _flag}, ("file", "content")),
    "html": _Shape({"artifact": _artifact, "data": _data}, ("artifact",)),
    "frame": _Shape({"url": check_url_template, "port": _port}, ("url", "port")),
}

RENDERERS = tuple(_SHAPES)

# Those that show a text, their own or a file's; the others are pages.
TEXT_RENDERERS = tuple(kind for kind, shape in _SHAPES.items() if "content" in shape.keys)


# These could end a script, open a comment in it, or end a line. In JSON they occur only in strings, where the escape
# means the same.
_ESCAPES = str.maketrans({character: f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"})

_TAG_REST = r"""(?:[^<>"']|"[^"]*"|'[^']*')*+>"""
_LANDMARK = re.compile(
    rf"""
      <!--(?:>|->|.*?(?:--!?>|\Z))
    | <(?P<raw>script|style|title|textarea|xmp|iframe|noembed|noframes|noscript)(?=[\s/>]){_TAG_REST}
      .*?(?:</(?P=raw)(?=[\s/>])|\Z)
    | (?P<head></head(?=[\s/>]))
    | (?P<body><body(?=[\s/>]){_TAG_REST})
    | </?[a-z]{_TAG_REST}
    """,
    re.IGNORECASE | re.DOTALL | re.VERBOSE,
)
_CHARSET = re.compile(r"<meta charset=[^>]*>", re.IGNORECASE)
_BEFORE_ANY_TAG = re.compile(r"\ufeff?\s*(?:<!--.*?-->\s*)*(?:<!doctype[^>]*>)?", re.IGNORECASE | re.DOTALL)


def inject(html: str, data: Any) -> str:
    """Return `html` with `data` as `window.__TOOL_DATA__`: before `</head>`, else at the start of `<body>`, else before
    the first tag. Tags in comments, scripts and attributes are ignored.

    No `data` can end its script, and the page reads it unchanged. Raises `Invalid` if it is not JSON.
    """
    place = _find_place(html)
    return f"{html[:place]}<script>window.__TOOL_DATA__ = {script_literal(data)};</script>{html[place:]}"


def insert_first(html: str, markup: str) -> str:
    """Return `html` with `markup` before its first tag, which puts a script at the beginning of its head."""
    place = _start(html)
    return f"{html[:place]}{markup}{html[place:]}"


def embed(html: str, element: str, data: Any) -> str:
    """Return `html` with `data` as JSON in a script element of that id, after the declaration of its encoding, which a
    browser looks for at the beginning."""
    document = to_json(data).decode().replace("<", "\\u003c")
    markup = f'<script type="application/json" id="{element}">{document}</script>'
    charset = _CHARSET.search(html)
    return insert_first(html, markup) if charset is None else html[: charset.end()] + markup + html[charset.end() :]


def script_literal(data: Any) -> str:
    """Return `data` as a JavaScript expression that is safe in an HTML script."""
    document = to_json(data).decode()
    if '"__proto__"' in document:
        # In an object literal this key would set the prototype; not so in `JSON.parse`.
        return f"JSON.parse({to_json(document).decode().translate(_ESCAPES)})"
    return document.translate(_ESCAPES)


def _find_place(html: str) -> int:
    for match in _LANDMARK.finditer(html):
        if match["head"]:
            return match.start()
        if match["body"]:
            return match.end()
    return _start(html)


def _start(html: str) -> int:
    start = _BEFORE_ANY_TAG.match(html)
    return start.end() if start else 0


# The `id` of the script element that holds what the page's script needs.
VIEW_DATA_ID = "toolgate-view"

# In a frame without an origin, storage throws; a view that uses it unasked would not start.
_VIEW_STORAGE = """<script>
for (const name of ["localStorage", "sessionStorage"]) {
  const items = new Map();
  const storage = {
    getItem: (key) => items.get(String(key)) ?? null,
    setItem: (key, value) => void items.set(String(key), String(value)),
    removeItem: (key) => void items.delete(String(key)),
    clear: () => items.clear(),
    key: (index) => [...items.keys()][index] ?? null,
    get length() { return items.size; },
  };
  try { window[name]; } catch { Object.defineProperty(window, name, { value: storage }); }
}
</script>"""


@cache
def _view_script() -> str:
    return Path(__file__).with_name("upstream_view.js").read_text()


def wrap_view(view: str, server: str, names: Mapping[str, str], roots: Sequence[str]) -> str:
    """Return a page with a view in a frame of its own, whose requests pass the page's script. `names` are the public
    names of its server's tools, by their own names; `roots` the beginnings of the server's public URIs, of resources
    and of views; empty if they are its own."""
    page = (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f"<title>{escape(server)}</title>\n<style>html, body {{ height: 100%; margin: 0 }}\n"
        "iframe { display: block; width: 100%; height: 100%; border: 0 }</style>\n</head>\n<body>\n"
        f"<script>\n{_view_script()}</script>\n</body>\n</html>\n"
    )
    return embed(page, VIEW_DATA_ID, [insert_first(view, _VIEW_STORAGE), server, names, list(roots)])
