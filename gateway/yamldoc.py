"""YAML documents with the line of every key; errors name the file, the line, the key and the fix.

`read` takes all of YAML, for a file of the person who runs the gateway. `read_plain` takes untrusted files: mappings
with text keys, lists, text, numbers as JSON writes them, `true`, `false` and `null`. Everything else a plain word could
mean in YAML (`yes`, dates, octal numbers) is text there. `read_fast` takes large documents that programs write: the
same words as `read_plain`, also in JSON, with aliases and merge keys; `find_line` looks a line up when one is needed.
`parse_file` reads the settings files of other programs: JSON with comments, TOML and YAML.
"""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, NoReturn, cast

import orjson
import yaml

from gateway.calls import to_json
from gateway.document import Place, YamlDocument
from gateway.errors import Invalid

BYTES_LIMIT = 8 * 1024 * 1024  # an API of a thousand operations, imported as a toolset, has four
NODE_LIMIT = 500_000
DEPTH_LIMIT = 48
FAST_BYTES_LIMIT, FAST_DEPTH_LIMIT = 32 * 1024 * 1024, 200
KEY_LIMIT = 100  # escaped to the utmost it still is a simple key, which ends at 1,024 characters

_NUMBER_LIMIT = 400

_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?P<fraction>(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?)")
_WORDS: Mapping[str, bool | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_BLANK_LINE = re.compile(rb"^[ \t]+$", re.MULTILINE)
_LOADER = cast(type[yaml.SafeLoader], getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # libyaml is 12 times as fast


def read(content: bytes, name: str, code: str) -> YamlDocument:
    """The document in `content`; refused with the line when it is not YAML or has a key twice."""
    document = YamlDocument(name, code)
    with _refuse_malformed(content, document):
        node = yaml.compose(content.decode("utf-8-sig"), Loader=_LOADER)
        _add_lines(node, (), document)
        value = yaml.SafeLoader("").construct_document(node) if node is not None else None
    return replace(document, value=value)


def read_plain(content: bytes, name: str, code: str) -> YamlDocument:
    """The document in `content`; refused with the line when it is not plain data, has a key
    twice, or is larger or deeper than anything a person writes."""
    document = YamlDocument(name, code)
    if len(content) > BYTES_LIMIT:
        raise document.refusal(f"the file is larger than {BYTES_LIMIT // 1024} KiB")
    with _refuse_malformed(content, document):
        return replace(document, value=_PlainReader(content.decode("utf-8-sig"), document).value())


def read_fast(content: bytes, name: str, code: str) -> Any:
    """The value of a YAML or JSON document, without lines; keys are text. Refused with the line when it is neither, or
    is larger or deeper than the limits."""
    document = YamlDocument(name, code)
    if len(content) > FAST_BYTES_LIMIT:
        raise document.refusal(f"the file is larger than {FAST_BYTES_LIMIT // 1024**2} MiB")
    if content.lstrip()[:1] in (b"{", b"["):
        try:
            return orjson.loads(content)
        except orjson.JSONDecodeError as error:
            raise document.refusal(f"invalid JSON: {error.msg} (column {error.colno})", line=error.lineno) from None
    with _refuse_malformed(content, document):
        try:
            return _FastReader(content).value()
        except yaml.YAMLError:
            # YAML 1.2 allows a tab in a blank line of a block scalar; libyaml does not.
            return _FastReader(_BLANK_LINE.sub(b"", content)).value()


def find_line(content: bytes, place: Place) -> int | None:
    """The line of a place in a YAML or JSON document, or of the nearest one around it."""
    line: int | None = None
    with suppress(yaml.YAMLError):
        node = yaml.compose(_BLANK_LINE.sub(b"", content), Loader=_LOADER)
        for part in place:
            if isinstance(node, yaml.MappingNode):
                pair = next((pair for pair in node.value if pair[0].value == str(part)), None)
                if pair is None:
                    break
                line, node = pair[0].start_mark.line + 1, pair[1]
            elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
                node = node.value[part]
                line = node.start_mark.line + 1
            else:
                break
    return line


class _FastReader:
    """Builds the value from the parser's events; an alias is the same object as its anchor's."""

    def __init__(self, content: bytes) -> None:
        self._next: Callable[[], Any] = _LOADER(content).get_event
        self._anchors: dict[str, Any] = {}

    def value(self) -> Any:
        self._next()
        if not isinstance(self._next(), yaml.DocumentStartEvent):
            return None
        return self._node(self._next(), 0)

    def _node(self, event: Any, depth: int) -> Any:
        kind = type(event)
        value: Any
        if kind is yaml.ScalarEvent:
            value = _plain_value(event.value) if event.implicit[0] else event.value
        elif depth > FAST_DEPTH_LIMIT:
            raise RecursionError
        elif kind is yaml.MappingStartEvent:
            value = self._mapping(depth + 1)
        elif kind is yaml.SequenceStartEvent:
            value = []
            while type(item := self._next()) is not yaml.SequenceEndEvent:
                value.append(self._node(item, depth + 1))
        else:
            if event.anchor not in self._anchors:
                raise RecursionError
            return self._anchors[event.anchor]
        if event.anchor:
            self._anchors[event.anchor] = value
        return value

    def _mapping(self, depth: int) -> dict[str, Any]:
        mapping: dict[str, Any] = {}
        while type(event := self._next()) is not yaml.MappingEndEvent:
            key = event.value if type(event) is yaml.ScalarEvent else str(self._node(event, depth))
            value = self._node(self._next(), depth)
            if key == "<<" and isinstance(value, dict | list):
                for part in value if isinstance(value, list) else [value]:
                    mapping = {**part, **mapping}
            else:
                mapping[key] = value
        return mapping


@contextmanager
def _refuse_malformed(content: bytes, document: YamlDocument) -> Iterator[None]:
    try:
        yield
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise document.refusal("the file is not UTF-8", line=line) from None
    except yaml.MarkedYAMLError as error:
        mark = _find_mark(error)
        reason = f"invalid YAML: {_explain(error, content)}"
        raise document.refusal(reason, line=mark.line + 1 if mark else None) from None
    except yaml.YAMLError as error:
        raise document.refusal(f"invalid YAML: {' '.join(str(error).split())[:200]}") from None
    except RecursionError:
        raise document.refusal("this is nested too deeply, or an alias (*) contains itself") from None


# Parts of the parser's messages, and their likely causes.
_YAML_CAUSES = {
    "mapping values are not allowed": "a ':' where no key can be; check the indentation, or quote text that has ': '",
    "did not find expected key": "a key is expected; check the indentation, and that quotes and brackets are closed",
    "did not find expected ',' or": "a '[' or '{' is not closed, or a ',' is missing",
    "did not find expected '-' indicator": "the items of a list begin with '-' in one column; check the indentation",
    "did not find expected node content": "a value is expected here; check that '[', '{' and quotes are closed",
    "found unexpected end of stream": "the file ends inside a quoted text; close the quote",
    "could not find expected ':'": "a ':' is missing after a key; check the indentation",
    "found undefined alias": "there is no anchor (&) for this alias; quote text that begins with '*'",
    "cannot start any token": "a value cannot begin with CHARACTER; put it in quotes",
    "could not determine a constructor": "this tag is not supported; quote text that begins with '!'",
}


def _find_mark(error: yaml.MarkedYAMLError) -> Any:
    """Return where the mistake is: for a missing ':' the key, since the parser notices it lines later."""
    if "could not find expected ':'" in str(error.problem):
        return error.context_mark or error.problem_mark
    return error.problem_mark or error.context_mark


def _explain(error: yaml.MarkedYAMLError, content: bytes) -> str:
    """The likely cause of a parser's error, with its column."""
    problem = ", ".join(filter(None, (error.context, error.problem)))
    mark, character = _find_mark(error), "this"
    if mark is not None and content.splitlines()[mark.line : mark.line + 1]:
        line = content.splitlines()[mark.line]
        if line[: len(line) - len(line.lstrip())].count(b"\t"):
            return "a tab in the indentation; indent with spaces"
        character = repr(line.decode()[mark.column : mark.column + 1])
    cause = next((cause for part, cause in _YAML_CAUSES.items() if part in problem), problem)
    cause = cause.replace("CHARACTER", character)
    return f"{cause} (column {mark.column + 1})" if mark is not None else cause


def write(value: Any) -> str:
    """The plain data as YAML, in block style; the same value gives the same text."""
    return "".join(_block(value, 0)).lstrip("\n") + "\n"


def _add_lines(node: yaml.Node | None, place: Place, document: YamlDocument) -> None:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            document.add_key((*place, key.value), key.start_mark.line + 1)
            _add_lines(value, (*place, key.value), document)
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            document.lines[(*place, index)] = item.start_mark.line + 1
            _add_lines(item, (*place, index), document)


class _PlainReader:
    """Builds the value from the parser's events, so that it stops at the first thing it refuses."""

    def __init__(self, text: str, document: YamlDocument) -> None:
        self._document = document
        self._events: Iterator[yaml.Event] = iter(yaml.parse(text, Loader=_LOADER))
        self._left = NODE_LIMIT

    def value(self) -> Any:
        next(self._events)
        start = next(self._events)
        if not isinstance(start, yaml.DocumentStartEvent):
            return None
        if start.tags:
            self._refuse("%TAG is not supported", start)
        value = self._node(next(self._events), (), 0)
        next(self._events)
        if not isinstance(second := next(self._events), yaml.StreamEndEvent):
            self._refuse("there is a second document; one file is one document", second)
        return value

    def _node(self, event: yaml.Event, place: Place, depth: int) -> Any:
        self._check(event, depth)
        if isinstance(event, yaml.MappingStartEvent):
            return self._mapping(place, depth)
        if isinstance(event, yaml.SequenceStartEvent):
            return self._sequence(place, depth)
        assert isinstance(event, yaml.ScalarEvent)  # noqa: S101 - the parser gives nothing else here
        return self._scalar(event)

    def _check(self, event: yaml.Event, depth: int) -> None:
        self._left -= 1
        if self._left < 0:
            self._refuse(f"there are more than {NODE_LIMIT} values in the file", event)
        if depth > DEPTH_LIMIT:
            self._refuse(f"this is nested deeper than {DEPTH_LIMIT} levels", event)
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            self._refuse("anchors (&) and aliases (*) are not supported; write the value out", event)
        if getattr(event, "tag", None):
            self._refuse(f"the tag {event.tag[:80]!r} is not supported; put text in quotes", event)  # type: ignore[attr-defined]

    def _mapping(self, place: Place, depth: int) -> dict[str, Any]:
        mapping: dict[str, Any] = {}
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            key = self._key(event, depth)
            self._document.add_key((*place, key), _line(event))
            mapping[key] = self._node(next(self._events), (*place, key), depth + 1)
        return mapping

    def _sequence(self, place: Place, depth: int) -> list[Any]:
        items: list[Any] = []
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            item = (*place, len(items))
            self._document.lines[item] = _line(event)
            items.append(self._node(event, item, depth + 1))
        return items

    def _key(self, event: yaml.Event, depth: int) -> str:
        self._check(event, depth)
        key = self._scalar(event) if isinstance(event, yaml.ScalarEvent) else event
        if isinstance(event, yaml.ScalarEvent) and event.implicit[0] and event.value == "<<":
            self._refuse("merge keys (<<) are not supported; write the keys out", event)
        if not isinstance(key, str):
            self._refuse("a key must be text; put it in quotes", event)
        if len(key) > KEY_LIMIT:
            self._refuse(f"the key {key[:40]!r}… is longer than {KEY_LIMIT} characters", event)
        return key

    def _scalar(self, event: yaml.ScalarEvent) -> Any:
        if any("\ud800" <= character <= "\udfff" for character in event.value):
            self._refuse("this text contains an unpaired surrogate", event)
        if not event.implicit[0]:
            return event.value
        value = _plain_value(event.value)
        if (value is None and event.value not in _WORDS) or (isinstance(value, float) and not math.isfinite(value)):
            self._refuse("this number is too large; put it in quotes if it is text", event)
        return value

    def _refuse(self, reason: str, event: yaml.Event) -> NoReturn:
        raise self._document.refusal(reason, line=_line(event))


def _line(event: yaml.Event) -> int:
    return event.start_mark.line + 1 if event.start_mark else 1


def _plain_value(text: str) -> Any:
    """The value of unquoted text; None also for a number that is too long."""
    if text in _WORDS:
        return _WORDS[text]
    number = _NUMBER.fullmatch(text)
    if number is None:
        return text
    if len(text) > _NUMBER_LIMIT:
        return None
    return float(text) if number["fraction"] else int(text)


# Words that begin with a letter and hold nothing YAML gives a meaning to, colons only inside.
_SIGNS = r"[\w.,/()'+=@;!?%&-]"
_PLAIN = re.compile(rf"[^\W\d]{_SIGNS}*(?::{_SIGNS}+)*(?: {_SIGNS}+(?::{_SIGNS}+)*)*")
_OLD_WORDS = {"y", "yes", "n", "no", "on", "off", "true", "false", "null"}  # more than text to a YAML 1.1 reader


def _block(value: Any, indent: int) -> Iterator[str]:
    """A value after its key and colon or its dash; a collection begins on a new line."""
    margin = "\n" + "  " * indent
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield f"{margin}{_text(key)}:"
            yield from _block(item, indent + 1)
    elif isinstance(value, list | tuple) and value:
        for item in value:
            yield f"{margin}-"
            inner = "".join(_block(item, indent + 1))
            nested = "\n" + "  " * (indent + 1)
            yield f" {inner.removeprefix(nested)}" if inner.startswith(nested) else inner
    else:
        yield f" {_leaf(value, indent)}"


def _leaf(value: Any, indent: int) -> str:
    if isinstance(value, str):
        return _lines(value, indent) if "\n" in value and _is_tidy(value) else _text(value)
    return to_json(value).decode() if isinstance(value, Mapping | list | tuple | bool | None) else repr(value)


def _text(text: str) -> str:
    if _PLAIN.fullmatch(text) and text.isprintable() and text.lower() not in _OLD_WORDS:
        return text
    return '"' + "".join(map(_escape, text)) + '"'


def _escape(character: str) -> str:
    if character in '"\\':
        return f"\\{character}"
    if character.isprintable():
        return character
    short = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}.get(character)
    code = ord(character)
    return short or (f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}")


def _is_tidy(text: str) -> bool:
    """Return whether the text can be written as indented lines and be read back unchanged."""
    lines = text.removesuffix("\n").split("\n")
    printable = all(line.replace("\t", " ").isprintable() for line in lines)
    return printable and not lines[0][:1].isspace() and bool(lines[0]) and bool(lines[-1].strip())


def _lines(text: str, indent: int) -> str:
    margin = "  " * max(indent, 1)
    body = "".join(f"\n{margin}{line}" if line else "\n" for line in text.removesuffix("\n").split("\n"))
    return f"{'|' if text.endswith(chr(10)) else '|-'}{body}"


# Settings files of other programs

_JSON_STRING = r'"(?:[^"\\]|\\.)*+"'
_JSON_COMMENT = re.compile(rf"{_JSON_STRING}|//[^\r\n]*|/\*.*?\*/", re.DOTALL)
_TRAILING_COMMA = re.compile(rf"{_JSON_STRING}|,(?=\s*[}}\]])", re.DOTALL)
_INK = re.compile(r"[^\r\n]")
# The parser's messages, and their likely causes.
_JSON_CAUSES = {
    "Expecting property name enclosed in double quotes": "a key in double quotes is expected, or a '}'",
    "Expecting value": "a value is expected here",
    "Expecting ',' delimiter": "a ',' is missing, or a '[' or '{' is not closed",
    "Expecting ':' delimiter": "a ':' is missing after a key",
    "Unterminated string starting at": "a quoted text is not closed",
    "Extra data": "there is text after the end of the value",
}


def parse_jsonc(text: str) -> Any:
    """Parse JSON with comments and trailing commas; a syntax error is refused with line and column."""
    text = text.removeprefix("\ufeff")
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        plain = to_plain_json(text)
    try:
        return json.loads(plain, strict=False)
    except json.JSONDecodeError as error:
        message = f"line {error.lineno} column {error.colno}: {explain_json_error(error)}"
        raise Invalid(message, code="INVALID_JSON") from None
    except (ValueError, RecursionError):
        raise Invalid("it is nested too deeply, or has an invalid number", code="INVALID_JSON") from None


def explain_json_error(error: json.JSONDecodeError) -> str:
    """The likely cause of a parser's error."""
    return f"invalid JSON: {_JSON_CAUSES.get(error.msg, error.msg)}"


def to_plain_json(text: str) -> str:
    """Replace comments and trailing commas with spaces, so that every other character stays where it is."""
    return _TRAILING_COMMA.sub(_blank, blank_comments(text))


def blank_comments(text: str) -> str:
    return _JSON_COMMENT.sub(_blank, text)


def parse_file(text: str, suffix: str) -> Any:
    """Parse a settings file by the suffix of its name; a syntax error is refused with its line."""
    if suffix in (".yaml", ".yml"):
        return read(text.encode(), "it", "INVALID_YAML").value
    if suffix != ".toml":
        return parse_jsonc(text)
    try:
        return tomllib.loads(text.removeprefix("\ufeff"))
    except tomllib.TOMLDecodeError as error:
        end = f"at line {text.rstrip().count(chr(10)) + 1}, the end of the file"
        raise Invalid(str(error).replace("at end of document", end), code="INVALID_TOML") from None
    except RecursionError:
        raise Invalid("it is nested too deeply", code="INVALID_TOML") from None


def _blank(match: re.Match[str]) -> str:
    """Replace a match that is not a string with spaces, so that lines and columns stay the same."""
    return match[0] if match[0].startswith('"') else _INK.sub(" ", match[0])
