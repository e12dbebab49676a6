"""JSON as rows: a list of objects, or one object per line, read without ever holding the whole file."""

from __future__ import annotations

import codecs
import io
import json
from collections.abc import Iterator
from typing import Any, BinaryIO

ELEMENT_LIMIT = 8 * 1024 * 1024
_CHUNK = 256 * 1024
_DECODER = json.JSONDecoder()
_BLANK = " \t\r\n"

Object = dict[str, Any]


def rows(found: Iterator[Object], columns: dict[str, int], limit: int) -> Iterator[list[str]]:
    """Objects as rows of text; `columns` grows with the keys that come, up to the limit."""
    for each in found:
        for key in each:
            if key not in columns and len(columns) < limit:
                columns[key] = len(columns)
        yield [cell(each.get(key)) for key in columns]


def lines(file: BinaryIO, encoding: str, name: str) -> Iterator[Object]:
    """The objects of a file that has one on each line."""
    text = io.TextIOWrapper(file, encoding, "replace")
    try:
        number = 0
        while line := text.readline(ELEMENT_LIMIT):
            number += 1
            if line.strip():
                yield _object(line, f"{name!r} line {number}")
    finally:
        text.detach()


def objects(file: BinaryIO, encoding: str, name: str) -> Iterator[Object]:
    """The objects of a file that is one list of them."""
    text = _Text(file, encoding)
    if text.first() != "[":
        raise ValueError(
            f"{name!r} is no list of objects; give a file that begins with '[', or one object per line as .jsonl"
        )
    text.drop(1)
    number = 0
    while text.first() not in ("]", ""):
        number += 1
        where = f"{name!r} element {number}"
        yield _check_rows(_element(text, where), where)
        if text.first() == ",":
            text.drop(1)
        elif text.first() != "]":
            raise ValueError(f"{where}: after it, a ',' or ']' is missing")


class _Text:
    """The part of a file that was read and not yet taken."""

    def __init__(self, file: BinaryIO, encoding: str) -> None:
        self._file = file
        self._decoder = codecs.getincrementaldecoder(encoding)("replace")
        self._at = 0
        self.buffer = ""

    def first(self) -> str:
        """The next character that is no blank; empty at the end of the file."""
        while True:
            while self._at < len(self.buffer) and self.buffer[self._at] in _BLANK:
                self._at += 1
            if self._at < len(self.buffer):
                return self.buffer[self._at]
            if not self.more():
                return ""

    def more(self) -> bool:
        """Read on; as much again as is waiting, so that a long element is not tried too often."""
        waiting = self.buffer[self._at :]
        data = self._file.read(max(_CHUNK, len(waiting)))
        self.buffer, self._at = waiting + self._decoder.decode(data, final=not data), 0
        return bool(data)

    def drop(self, count: int) -> None:
        self._at += count

    def decode(self) -> Any:
        value, self._at = _DECODER.raw_decode(self.buffer, self._at)
        return value

    @property
    def waiting(self) -> int:
        return len(self.buffer) - self._at


def _element(text: _Text, where: str) -> Any:
    """The next element; when it does not parse it may just not have been read to its end."""
    while True:
        try:
            return text.decode()
        except RecursionError:
            raise ValueError(f"{where}: it is nested too deep") from None
        except ValueError as error:
            if text.waiting > ELEMENT_LIMIT:
                raise ValueError(
                    f"{where}: it is no JSON, or longer than {ELEMENT_LIMIT} characters: {error}"
                ) from None
            if not text.more():
                raise ValueError(f"{where}: {error}") from None


def _object(line: str, where: str) -> Object:
    try:
        return _check_rows(json.loads(line), where)
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"{where}: {error}") from None


def _check_rows(value: Any, where: str) -> Object:
    if not isinstance(value, dict):
        raise ValueError(f'{where} is no object; each row must be one, such as {{"name": "Ada", "born": 1815}}')
    return value


def cell(value: Any) -> str:
    """A value as the text of a cell; null is nothing."""
    if value is None:
        return ""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if text.isascii() else text.encode("utf-8", "replace").decode()  # an escape may be half a character
