"""Entries written into the settings files of clients: JSON, also with comments, TOML and YAML.

An entry is spliced into the text instead of parsing and printing the file, so that the rest stays as its owner wrote
it. The result is parsed again and compared, unless it is plain JSON.
"""

from __future__ import annotations

import codecs
import contextlib
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from gateway.admin.clients import CLIENTS, JsonObject, Snippet, to_toml, to_yaml
from gateway.errors import Conflict, Forbidden, Invalid, Unavailable
from gateway.files import create_file
from gateway.yamldoc import blank_comments, explain_json_error, parse_file, to_plain_json

# Backups kept of one file; each change makes one.
_BACKUPS = 10


def merge(file: Path, before: bytes | None, snippet: Snippet) -> tuple[bytes, str | None]:
    """Return the file's content with the entry in it, and the text of another entry that was replaced, if any.

    Refused, with the position of the error and the entry to paste, when the content cannot be parsed or extended.
    """
    key, content = CLIENTS[snippet.client].key, before or b""
    mark = codecs.BOM_UTF8 if content.startswith(codecs.BOM_UTF8) else b""
    put = _PUT.get(snippet.file.suffix, _put_json)
    try:
        text, replaced = put(_decode(content.removeprefix(mark)), key, snippet.name, snippet.entry)
    except Invalid as refusal:
        if snippet.file.suffix in _PUT:  # these formats need their lines
            hint = f"the file was not changed. Add these lines by hand:\n{snippet.text}"
            raise Invalid(f"{file}: {refusal.message}; {hint}", **refusal.details, paste=snippet.text) from None
        entry = json.dumps({snippet.name: snippet.entry}, ensure_ascii=False)[1:-1]
        hint = f'the file was not changed. Add this to its "{key}" by hand: {entry}'
        raise Invalid(f"{file}: {refusal.message}; {hint}", **refusal.details) from None
    return mark + text.encode(), replaced


def remove(file: Path, before: bytes, snippet: Snippet) -> bytes:
    """Return the file's content without the entry of that name, unchanged if there is none.

    Refused, with the position of the error, when the content cannot be parsed or the entry cannot be cut out.
    """
    mark = codecs.BOM_UTF8 if before.startswith(codecs.BOM_UTF8) else b""
    cut = _CUT.get(snippet.file.suffix, _cut_json)
    key = CLIENTS[snippet.client].key
    try:
        text = _decode(before.removeprefix(mark))
        after = cut(text, key, snippet.name)
        if after != text:
            path = _path(_JsonText(text).value, key) if cut is _cut_json else [key]
            _verify(snippet.file.suffix, text, after, path, snippet.name, None)
    except Invalid as refusal:
        hint = f"the file was not changed. Remove {snippet.name!r} from its {key!r} by hand"
        raise Invalid(f"{file}: {refusal.message}; {hint}", **refusal.details) from None
    return mark + after.encode()


def find_entry(file: Path, snippet: Snippet) -> JsonObject | None:
    """Return the entry of that name in a client's file; None if it has none. Refused when the file cannot be read."""
    content = read(file)
    if content is None:
        return None
    try:
        servers = parse_file(_decode(content.removeprefix(codecs.BOM_UTF8)), snippet.file.suffix)
        if not isinstance(servers, dict | None):
            raise Invalid("the top level is not an object")
        for step in _path(servers or {}, CLIENTS[snippet.client].key):
            servers = (servers or {}).get(step)
        entry = (servers or {}).get(snippet.name)
    except (Invalid, AttributeError) as error:
        reason = error.message if isinstance(error, Invalid) else "it does not have the usual structure"
        raise Invalid(f"{file}: {reason}; correct it in an editor") from None
    return entry if isinstance(entry, dict) else None


def find_backups(file: Path) -> list[Path]:
    """The backups that were made of a client's file, newest first."""
    pattern = re.compile(re.escape(file.name) + r"\.[0-9]{8}-[0-9]{6}-[0-9]{6}\.bak")
    return sorted((path for path in file.parent.glob("*.bak") if pattern.fullmatch(path.name)), reverse=True)


def read(file: Path) -> bytes | None:
    """Read the file; None if it is missing."""
    with _convert_os_errors(file), contextlib.suppress(FileNotFoundError):
        return file.read_bytes()
    return None


def write(file: Path, before: bytes | None, after: bytes, now: datetime) -> Path | None:
    """Replace `before` by `after`, or refuse when the file has changed; return the backup. A link stays a link. Of
    earlier backups the newest ones are kept."""
    target = file.resolve()
    with _convert_os_errors(file), contextlib.ExitStack() as undo:
        target.parent.mkdir(parents=True, exist_ok=True)
        mode = target.stat().st_mode & 0o777 if target.exists() else 0o600
        backup = None
        if before is not None:
            backup = create_file(file.with_name(f"{file.name}.{now:%Y%m%d-%H%M%S-%f}.bak"), before, mode)
            undo.callback(backup.unlink)
        temporary = create_file(target.with_name(f".{target.name}.{os.urandom(6).hex()}.tmp"), after, mode)
        undo.callback(temporary.unlink)
        if read(target) != before:
            raise Conflict(f"{file} was changed by another program at the same time and was not written; try again")
        temporary.replace(target)
        undo.pop_all()
        for old in find_backups(file)[_BACKUPS:]:
            old.unlink(missing_ok=True)
        return backup


@contextlib.contextmanager
def _convert_os_errors(file: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        refusal = Forbidden if isinstance(error, PermissionError) else Unavailable
        raise refusal(f"{file}: {error.strerror}") from error


class _Member(NamedTuple):
    key: str
    value: Any
    gap: str  # the white space before the key
    start: int
    end: int
    key_start: int


_SPACE = re.compile(r"[ \t\r\n]*")
_decoder = json.JSONDecoder(parse_int=float)  # float, unlike int, takes any number of digits


class _JsonText:
    """JSON text, and its `plain` form without comments and trailing commas, in which every position is the same."""

    def __init__(self, text: str) -> None:
        self.text = self.plain = text
        try:
            self.value = self._decode()
        except Invalid:
            self.plain = to_plain_json(text)
            if self.plain == text:
                raise
            self.value = self._decode()

    def _decode(self) -> dict[str, Any]:
        start = _skip_space(self.plain, 0)
        try:
            value = _decoder.decode(self.plain)
        except json.JSONDecodeError as error:
            raise _syntax_error(self.text, error.pos, explain_json_error(error)) from None
        except RecursionError:
            raise _syntax_error(self.text, start, "nested too deeply") from None
        if not isinstance(value, dict):
            raise _syntax_error(self.text, start, "the top level is not an object")
        return value

    def members(self, opening: int) -> Iterator[_Member]:
        """The members of the object that opens there."""
        plain, position = self.plain, opening + 1
        while plain[key_start := _skip_space(plain, position)] != "}":
            key, colon = _decoder.raw_decode(plain, key_start)
            start = _skip_space(plain, _skip_space(plain, colon) + 1)
            value, end = _decoder.raw_decode(plain, start)
            gap = plain[position:key_start]
            if gap != self.text[position:key_start]:  # it has a comment
                gap = self.newline + gap.rpartition("\n")[2]
            yield _Member(key, value, gap, start, end, key_start)
            position = _skip_space(plain, end)
            position += plain[position] == ","

    def find_member(self, opening: int, key: str) -> _Member | None:
        """Find the last member of that key: JSON parsers keep the last one."""
        return next((member for member in reversed([*self.members(opening)]) if member.key == key), None)

    def insert(self, opening: int, key: str, value: JsonObject) -> str:
        """Append a member to the object that opens there, laid out like its neighbours."""
        members = [*self.members(opening)]
        if not members:
            return self._insert_first(opening, key, value)
        end, gap = members[-1].end, members[-1].gap
        closing = _skip_space(self.plain, end)
        rest = self.text[end:closing].rstrip()  # comments, and perhaps a trailing comma
        if not rest:
            return f"{self.text[:end]},{gap}{json.dumps(key)}: {self.format(value, gap)}{self.text[end:]}"
        before, after = ("", ",") if "," in blank_comments(rest) else (",", "")
        gap = self.newline if "//" in rest and "\n" not in gap else gap
        new = f"{gap}{json.dumps(key)}: {self.format(value, gap)}"
        return f"{self.text[:end]}{before}{rest}{new}{after}{self.text[end + len(rest) :]}"

    def cut(self, opening: int, key: str) -> str:
        """Return the text without the last member of that key, its line and its comma; other comments stay."""
        members = [*self.members(opening)]
        index = max(number for number, member in enumerate(members) if member.key == key)
        member, previous = members[index], members[index - 1] if index else None
        comma = self.plain.index(",", previous.end) if previous is not None else None
        begin = opening + 1 if comma is None else comma + 1
        line = self.text.rfind("\n", begin, member.key_start)
        start = begin if line < 0 else line - (self.text[line - 1] == "\r")
        after = _skip_space(self.plain, member.end)
        following = (
            after if self.plain[after] == "," else member.end + blank_comments(self.text[member.end : after]).find(",")
        )
        if following >= member.end:  # its own comma, perhaps a trailing one, goes with it
            return self.text[:start] + self.text[following + 1 :]
        if comma is None:
            return self.text[:start] + self.text[member.end :]
        return self.text[:comma] + self.text[comma + 1 : start] + self.text[member.end :]

    def _insert_first(self, opening: int, key: str, value: JsonObject) -> str:
        text, end, gap, outer = self.text, self.plain.index("}", opening), "", ""
        comments = text[opening + 1 : end].rstrip()
        if "\n" in text.strip() or opening == _skip_space(self.plain, 0):
            line = text[text.rfind("\n", 0, opening) + 1 :]
            outer = self.newline + line[: _skip_space(line, 0)]
            gap = outer + self.indentation
        return f"{text[: opening + 1]}{comments}{gap}{json.dumps(key)}: {self.format(value, gap)}{outer}{text[end:]}"

    def format(self, value: JsonObject, gap: str) -> str:
        """Format a value for a key that stands after `gap`: on one line if its neighbours are."""
        if "\n" not in gap:
            return json.dumps(value, ensure_ascii=False)
        indented = json.dumps(value, indent=self.indentation, ensure_ascii=False)
        return indented.replace("\n", self.newline + gap.rpartition("\n")[2])

    @property
    def newline(self) -> str:
        return _newline(self.text)

    @property
    def indentation(self) -> str:
        """One step of indentation."""
        first = next(self.members(_skip_space(self.plain, 0)), None)
        return first.gap.rpartition("\n")[2] if first and "\n" in first.gap else "  "


def _put_json(text: str, key: str, name: str, entry: JsonObject) -> tuple[str, str | None]:
    """Put `entry` under `name` into the object `key` of the top level; return the text and what was replaced."""
    document = _JsonText(text if text.strip() else "{}\n")
    result, replaced = _put_into(document, _path(document.value, key), name, entry)
    if document.plain != document.text:
        _verify(".json", text, result, _path(document.value, key), name, entry)
    return result, replaced


def _path(value: dict[str, Any], key: str) -> list[str]:
    """The keys of the object that holds the servers. opencode 2 has one more level, and reads the older form too."""
    inner = value.get(key)
    servers = inner.get("servers") if key == "mcp" and isinstance(inner, dict) else None
    return [key, "servers"] if isinstance(servers, dict) and not {"type", "command"} & servers.keys() else [key]


def _put_into(document: _JsonText, path: Sequence[str], name: str, entry: JsonObject) -> tuple[str, str | None]:
    text, opening = document.text, _skip_space(document.plain, 0)
    for key in path:
        servers = document.find_member(opening, key)
        if servers is None:
            return document.insert(opening, key, {name: entry}), None
        if not isinstance(servers.value, dict):
            raise _syntax_error(text, servers.start, f'"{key}" is not an object')
        opening = servers.start
    old = document.find_member(opening, name)
    if old is None:
        return document.insert(opening, name, entry), None
    if old.value == entry:
        return text, None
    return text[: old.start] + document.format(entry, old.gap) + text[old.end :], text[old.start : old.end]


def _cut_json(text: str, key: str, name: str) -> str:
    """Cut every member `name` out of the object `key`."""
    while text.strip():
        document = _JsonText(text)
        opening = _skip_space(document.plain, 0)
        for step in _path(document.value, key):
            servers = document.find_member(opening, step)
            if servers is None or not isinstance(servers.value, dict):
                return text
            opening = servers.start
        if document.find_member(opening, name) is None:
            return text
        text = document.cut(opening, name)
    return text


_TABLE = re.compile(r"^[ \t]*\[", re.MULTILINE)


def _put_toml(text: str, key: str, name: str, entry: JsonObject) -> tuple[str, str | None]:
    """Append a table, or replace the one of that name with the tables inside it."""
    servers, newline = parse_file(text, ".toml").get(key, {}), _newline(text)
    if isinstance(servers, dict) and servers.get(name) == entry:
        return text, None
    table = to_toml(key, name, entry).replace("\n", newline) + newline
    replaced = _find_tables(text, key, name)
    if replaced:
        result = text
        for start, end in reversed(replaced):
            result = result[:start] + (table if start == replaced[0][0] else "") + result[end:]
    else:
        result = text + (newline if text and not text.endswith("\n") else "") + (newline if text else "") + table
    _verify(".toml", text, result, [key], name, entry)
    return result, "".join(text[start:end] for start, end in replaced) or None


def _cut_toml(text: str, key: str, name: str) -> str:
    for start, end in reversed(_find_tables(text, key, name)):
        text = text[:start].rstrip("\r\n") + (_newline(text) if text[:start].strip() else "") + text[end:]
    return text


def _find_tables(text: str, key: str, name: str) -> list[tuple[int, int]]:
    """The places of a table and of those inside it."""
    part = r"""[ \t]*(?:{0}|"{0}"|'{0}')[ \t]*"""
    header = re.compile(
        rf"^[ \t]*\[{part.format(key)}\.{part.format(re.escape(name))}(?:\.[^\]]*)?\][ \t]*(?:#.*)?\r?$", re.MULTILINE
    )
    return [(match.start(), _end_of_table(text, match.end())) for match in header.finditer(text)]


def _end_of_table(text: str, start: int) -> int:
    """The end of a table's last line that is neither blank nor a comment, which may belong to the next table."""
    following = _TABLE.search(text, start)
    body = text[start : following.start() if following else len(text)]
    lines = body.splitlines(keepends=True)
    while len(lines) > 1 and (not lines[-1].strip() or lines[-1].lstrip().startswith("#")):
        lines.pop()
    return start + len("".join(lines))


def _put_yaml(text: str, key: str, name: str, entry: JsonObject) -> tuple[str, str | None]:
    """Put a block before the others of the mapping `key`, or in place of the one of that name."""
    before = parse_file(text, ".yaml") or {}
    if not isinstance(before, dict) or not isinstance(before.get(key) or {}, dict):
        raise Invalid(f"the top level or {key!r} is not a mapping")
    newline = _newline(text)
    if (before.get(key) or {}).get(name) == entry:
        return text, None
    start, end, indent = _yaml_place(text, key, name)
    block, replaced = to_yaml(name, entry, " " * indent), None
    if key not in before:
        block = f"{'' if not text or text.endswith(newline) else newline}{key}:\n{to_yaml(name, entry, '  ')}\n"
    elif not before[key]:
        block = f"\n{block}"
    elif start == end:
        block = f"{block}\n"
    else:
        replaced = text[start:end]
    result = text[:start] + block.replace("\r\n", "\n").replace("\n", newline) + text[end:]
    _verify(".yaml", text, result, [key], name, entry)
    return result, replaced


def _cut_yaml(text: str, key: str, name: str) -> str:
    servers = (parse_file(text, ".yaml") or {}).get(key)
    if not isinstance(servers, dict) or name not in servers:
        return text
    start, end, _ = _yaml_place(text, key, name)
    if len(servers) == 1:
        opening = _children(yaml.compose(text, Loader=yaml.SafeLoader))[key][0].end_mark.index + 1
        return f"{text[:opening]} {{}}{text[end:]}"
    following = text[end:].lstrip(" \t\r")
    return text[:start] + following.removeprefix("\n")


def _yaml_place(text: str, key: str, name: str) -> tuple[int, int, int]:
    """The part of the text that an entry replaces, empty for a new one, and its indentation."""
    top = yaml.compose(text, Loader=yaml.SafeLoader)
    found = _children(top)
    if key not in found:
        return len(text), len(text), 0
    node, servers = found[key]
    if isinstance(servers, yaml.ScalarNode) or not servers.value:  # nothing yet, or `{}`
        return node.end_mark.index + 1, servers.end_mark.index, node.start_mark.column + 2
    children = _children(servers)
    child, value = children.get(name, servers.value[0])
    column = child.start_mark.column
    if name in children:
        return child.start_mark.index - column, _end_of_node(value), column
    start = text.find("\n", node.end_mark.index) + 1
    return start, start, column


def _children(mapping: Any) -> dict[str, tuple[Any, Any]]:
    pairs = mapping.value if mapping is not None else ()
    return {key.value: (key, value) for key, value in pairs if isinstance(key, yaml.ScalarNode)}


def _end_of_node(node: Any) -> int:
    """The end of a node without the comments after it."""
    if isinstance(node, yaml.ScalarNode) or node.flow_style or not node.value:
        return int(node.end_mark.index)
    last = node.value[-1]
    return _end_of_node(last[1] if isinstance(last, tuple) else last)


def _verify(suffix: str, before: str, after: str, path: Sequence[str], name: str, entry: JsonObject | None) -> None:
    """Refuse a result that does not parse as the content before with the entry in it, or without it for None."""
    expected = parse_file(before, suffix) if before.strip() else {}
    servers = expected = expected or {}
    for key in path:
        if not isinstance(servers.get(key), dict):
            servers[key] = {}
        servers = servers[key]
    if entry is None:
        del servers[name]
    else:
        servers[name] = entry
    with contextlib.suppress(Invalid):
        parsed = parse_file(after, suffix) or {}
        if not servers and suffix == ".toml":  # the table that only held the entry is gone with it
            parsed.setdefault(path[0], {})
        if parsed == expected:
            return
    raise Invalid("its layout leaves no room for an entry" if entry else "its layout does not let the entry be cut out")


_PUT: dict[str, Callable[[str, str, str, JsonObject], tuple[str, str | None]]] = {
    ".toml": _put_toml,
    ".yaml": _put_yaml,
}

_CUT: dict[str, Callable[[str, str, str], str]] = {".toml": _cut_toml, ".yaml": _cut_yaml}


def _newline(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def _skip_space(text: str, position: int) -> int:
    match = _SPACE.match(text, position)
    return match.end() if match else position


def _decode(data: bytes) -> str:
    """Decode a file; refused with the position where it is not UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        valid = data[: error.start].decode()
        raise _syntax_error(valid, len(valid), "not UTF-8") from None


def _syntax_error(text: str, position: int, reason: str) -> Invalid:
    line, column = text.count("\n", 0, position) + 1, position - text.rfind("\n", 0, position)
    return Invalid(f"line {line} column {column}: {reason}", line=line, column=column)
