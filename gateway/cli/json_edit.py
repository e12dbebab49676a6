"""One entry put into a JSON text, spliced in rather than parsed and printed again, so that what is not ours stays as
its owner wrote it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from gateway.errors import Invalid

Entry = dict[str, Any]


class _Member(NamedTuple):
    key: str
    value: Any
    gap: str  # the white space before the key
    start: int
    end: int


_SPACE = re.compile(r"[ \t\r\n]*")
_decoder = json.JSONDecoder(parse_int=float)  # which, unlike int, takes any number of digits


def put(text: str, key: str, name: str, entry: Entry) -> tuple[str, str | None]:
    """`text` with `entry` under `name` in the object `key` of its top level; and what stood there, if another did."""
    top = _opening(text)
    servers = _member(text, top, key)
    if servers is None:
        return _inserted(text, top, key, {name: entry}), None
    if not isinstance(servers.value, dict):
        raise _fault(text, servers.start, f'"{key}" is not an object')
    old = _member(text, servers.start, name)
    if old is None:
        return _inserted(text, servers.start, name, entry), None
    if old.value == entry:
        return text, None
    ours = _rendered(text, entry, old.gap)
    return text[: old.start] + ours + text[old.end :], text[old.start : old.end]


def _opening(text: str) -> int:
    """Where the object opens that is the whole of `text`."""
    start = _skipped(text, 0)
    try:
        value = _decoder.decode(text)
    except json.JSONDecodeError as error:
        raise _fault(text, error.pos, f"{error.msg} (comments and trailing commas are not plain JSON)") from None
    except RecursionError:
        raise _fault(text, start, "nested too deeply") from None
    if not isinstance(value, dict):
        raise _fault(text, start, "the top level is not an object")
    return start


def _members(text: str, opening: int) -> Iterator[_Member]:
    """The members of the object that opens there, in a text known to be JSON."""
    at = opening + 1
    while text[key_at := _skipped(text, at)] != "}":
        key, colon = _decoder.raw_decode(text, key_at)
        start = _skipped(text, _skipped(text, colon) + 1)
        value, end = _decoder.raw_decode(text, start)
        yield _Member(key, value, text[at:key_at], start, end)
        at = _skipped(text, end)
        at += text[at] == ","


def _member(text: str, opening: int, key: str) -> _Member | None:
    """The last one of that key, which is the one that readers of JSON keep."""
    return next((member for member in reversed([*_members(text, opening)]) if member.key == key), None)


def _inserted(text: str, opening: int, key: str, value: Entry) -> str:
    """`text` with one more member at the end of the object that opens there, laid out like its neighbours."""
    members = [*_members(text, opening)]
    if members:
        end, gap = members[-1].end, members[-1].gap
        return f"{text[:end]},{gap}{json.dumps(key)}: {_rendered(text, value, gap)}{text[end:]}"
    end, gap, outer = text.index("}", opening), "", ""
    if "\n" in text.strip() or opening == _skipped(text, 0):
        newline, unit = _layout(text)
        line = text[text.rfind("\n", 0, opening) + 1 :]
        outer = newline + line[: _skipped(line, 0)]
        gap = outer + unit
    return f"{text[: opening + 1]}{gap}{json.dumps(key)}: {_rendered(text, value, gap)}{outer}{text[end:]}"


def _rendered(text: str, value: Entry, gap: str) -> str:
    """`value` as it looks behind a key that stands after `gap`: on one line where its neighbours are."""
    if "\n" not in gap:
        return json.dumps(value, ensure_ascii=False)
    newline, unit = _layout(text)
    return json.dumps(value, indent=unit, ensure_ascii=False).replace("\n", newline + gap.rpartition("\n")[2])


def _layout(text: str) -> tuple[str, str]:
    """The line ending in use, and one step of indentation."""
    first = next(_members(text, _skipped(text, 0)), None)
    unit = first.gap.rpartition("\n")[2] if first and "\n" in first.gap else "  "
    return "\r\n" if "\r\n" in text else "\n", unit


def _skipped(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at


def decode(data: bytes) -> str:
    """The text of a file; refused with the place where it is not UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        good = data[: error.start].decode()
        raise _fault(good, len(good), "not UTF-8") from None


def _fault(text: str, at: int, reason: str) -> Invalid:
    line, column = text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)
    return Invalid(f"line {line} column {column}: {reason}", line=line, column=column)
