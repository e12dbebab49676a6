"""Bytes as text: in the encoding a server or a page names, else the one that fits."""

from __future__ import annotations

import codecs
import re

_MARKS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
_NAMED = re.compile(r"""charset\s*=\s*["']?\s*([A-Za-z0-9_:.-]{1,40})""", re.IGNORECASE)
_IN_PAGE = re.compile(rb"""<meta[^>]{0,500}?charset\s*=\s*["']?\s*([A-Za-z0-9_:.-]{1,40})""", re.IGNORECASE)
_IN_XML = re.compile(rb"""^\s*<\?xml[^>]{0,200}?encoding\s*=\s*["']([A-Za-z0-9_:.-]{1,40})["']""")
_SEARCHED = 4096
_WESTERN = "cp1252"

_TAKEN_FOR = {"ascii": _WESTERN, "iso8859-1": _WESTERN, "iso8859-9": "cp1254", "tis-620": "cp874"}
_TAKEN_FOR |= {"gb2312": "gb18030", "gbk": "gb18030", "euc_kr": "cp949", "shift_jis": "cp932", "big5": "big5hkscs"}
"""What browsers read instead, because pages say the one and mean the other."""

_ALSO = {"x-sjis": "cp932", "windows-31j": "cp932", "ms_kanji": "cp932", "windows-874": "cp874", "x-gbk": "gb18030"}
_ALSO |= {"iso-8859-8-i": "iso8859-8", "x-mac-cyrillic": "mac-cyrillic", "x-cp1251": "cp1251", "x-cp1252": "cp1252"}
"""Names of the web that Python does not know."""

# Encodings of the web. Python knows others that are none, and some that take forever.
_KNOWN = frozenset(
    {"utf-8", "utf-16", "utf-16-le", "utf-16-be", "koi8-r", "koi8-u", "mac-roman", "mac-cyrillic", "cp866", "cp874"}
    | {f"cp125{number}" for number in range(9)}
    | {f"iso8859-{number}" for number in range(2, 17)}
    | {"gb18030", "big5hkscs", "euc_jp", "iso2022_jp", "cp932", "cp949"}
)


def decode(body: bytes, content_type: str | None, *, is_markup: bool) -> str:
    """The text; what does not fit its encoding shows as U+FFFD."""
    for mark, marked in _MARKS:
        if body.startswith(mark):
            return body[len(mark) :].decode(marked, "replace")
    named = _NAMED.search(content_type or "")
    encoding = _known(named[1]) if named else None
    if encoding is None and is_markup:
        found = _IN_PAGE.search(body[:_SEARCHED]) or _IN_XML.search(body[:_SEARCHED])
        encoding = _known(found[1].decode("ascii")) if found else None
        if encoding is not None and encoding.startswith("utf-16"):
            encoding = "utf-8"  # it could not have been read in that encoding
    if encoding is not None:
        return body.decode(encoding, "replace")
    text = body.decode("utf-8", "replace")
    strange = sum(not character.isascii() for character in text)
    # Hardly any of it fits by chance: a fault here and there is one of a page in UTF-8.
    return text if text.count("\ufffd") * 10 <= strange else body.decode(_WESTERN, "replace")


def is_text(start: bytes) -> bool:
    """Whether bytes that nobody has named look like text; the last character may be cut off."""
    if start.startswith(tuple(mark for mark, _ in _MARKS)):
        return True
    try:
        text = start.decode("utf-8")
    except UnicodeDecodeError as error:
        if error.reason != "unexpected end of data":
            return False
        text = start[: error.start].decode("utf-8")
    return not any(character < " " and character not in "\t\n\r\f\x1b" for character in text)


def _known(label: str) -> str | None:
    try:
        name = codecs.lookup(_ALSO.get(label.lower(), label)).name
    except (LookupError, ValueError):
        return None
    name = _TAKEN_FOR.get(name, name)
    return name if name in _KNOWN else None
