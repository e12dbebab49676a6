"""Detects the encoding of a text file."""

from __future__ import annotations

import codecs

from charset_normalizer import from_bytes

_BOMS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF32_LE: "utf-32",  # before UTF-16, whose mark it begins with
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
_FALLBACK = "cp1252"


def detect(sample: bytes) -> str:
    """The encoding of a file that begins with `sample`; bytes that fit none are read as Windows' Western one."""
    marked = next((name for mark, name in _BOMS.items() if sample.startswith(mark)), None)
    if marked is not None:
        return marked
    try:
        codecs.getincrementaldecoder("utf-8")().decode(sample)  # the last character may be cut, and is no error
    except UnicodeDecodeError:
        best = from_bytes(sample).best()
        return best.encoding if best is not None else _FALLBACK
    return "utf-8"
