"""An artifact with its data: the page of an `html` renderer, as it is put into a sandboxed frame."""

from __future__ import annotations

import re
from typing import Any

from gateway.calls import to_json

# Inside a script these end it, open a comment in it, or end a line of it. In JSON they occur in strings
# only, where the escape means the same.
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
_BEFORE_ANY_TAG = re.compile(r"\ufeff?\s*(?:<!--.*?-->\s*)*(?:<!doctype[^>]*>)?", re.IGNORECASE | re.DOTALL)


def inject(html: str, data: Any) -> str:
    """`html` with `data` as `window.__TOOL_DATA__`: before `</head>`, else at the start of `<body>`,
    else before the first tag. Tags in comments, scripts and attributes are not taken for these.

    Whatever `data` holds, it stays inside its script and comes out as it went in. Refused when it
    is no JSON.
    """
    place = _place(html)
    return f"{html[:place]}<script>window.__TOOL_DATA__ = {script_literal(data)};</script>{html[place:]}"


def script_literal(data: Any) -> str:
    """`data` as an expression of JavaScript that can stand in an HTML script."""
    document = to_json(data).decode()
    if '"__proto__"' in document:
        # In an object literal this key would set the prototype; `JSON.parse` knows no such thing.
        return f"JSON.parse({to_json(document).decode().translate(_ESCAPES)})"
    return document.translate(_ESCAPES)


def _place(html: str) -> int:
    for match in _LANDMARK.finditer(html):
        if match["head"]:
            return match.start()
        if match["body"]:
            return match.end()
    start = _BEFORE_ANY_TAG.match(html)
    return start.end() if start else 0
