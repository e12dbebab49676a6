"""Text a person does not see: comments and styles of markup, text pushed out of sight, text in code."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator

from gateway.sources.upstreams.poisoning.finding import HIGH, LOW, MEDIUM, Remark, excerpt

_COMMENT_LONG = 40
_BLANK_LINES = 15
_DECODED_LIMIT = 4096
_RUNS = 50
_BLOB = 120

_STYLED_AWAY = re.compile(
    r"<[a-z][^<>]{0,200}?(?:display\s?:\s?none|visibility\s?:\s?hidden|font-size\s?:\s?0|opacity\s?:\s?0(?![.\d])"
    r"|\shidden\b|aria-hidden)",
    re.IGNORECASE,
)
_MARKDOWN_COMMENT = re.compile(r"^\[(?://|comment|hidden)\]:.{20,}", re.IGNORECASE | re.MULTILINE)
_GAP = re.compile("[ \t\u00a0\u2000-\u200a\u3000]{100,}")
_BASE64 = re.compile(r"[A-Za-z0-9+/_-]{24,}={0,2}")
_HEX = re.compile(r"[0-9A-Fa-f]{32,}")
_ESCAPES = re.compile(
    r"(?:\\x[0-9A-Fa-f]{2}){8}|(?:\\u[0-9A-Fa-f]{4}){8}|(?:&#x?[0-9A-Fa-f]{2,6};){8}|(?:%[0-9A-Fa-f]{2}){16}"
)
_ALPHABETS = (re.compile("[A-Z]"), re.compile("[a-z]"), re.compile("[0-9+/_-]"))
_URLSAFE = str.maketrans("-_", "+/")


def hidden_text(text: str) -> Iterator[Remark]:
    """Comments, styles and gaps that keep text from being seen where it is shown."""
    yield from _comments(text)
    if "<" in text and (match := _STYLED_AWAY.search(text)):
        yield Remark("markup that hides text", excerpt(text, match.start(), match.end()), HIGH)
    if "]:" in text and (match := _MARKDOWN_COMMENT.search(text)):
        yield Remark("a comment in Markdown", excerpt(text, match.start(), match.end()), HIGH)
    yield from _pushed_away(text)


def encoded_text(text: str) -> Iterator[Remark]:
    """Text in base64, hexadecimal or escapes, and blobs that might be anything."""
    for number, match in enumerate(_BASE64.finditer(text)):
        if number >= _RUNS:
            break
        yield from _decoded(match[0])
    if escapes := _ESCAPES.search(text):
        yield Remark("text in escapes", excerpt(text, escapes.start(), escapes.end()), MEDIUM)


def _comments(text: str) -> Iterator[Remark]:
    start = text.find("<!--")
    while start >= 0:
        end = text.find("-->", start)
        stop = len(text) if end < 0 else end + 3
        grave = len(text[start:stop].strip("<!- >\n\t")) >= _COMMENT_LONG
        yield Remark(
            "a comment in HTML" if grave else "a short comment in HTML",
            excerpt(text, start, min(stop, start + 120)),
            HIGH if grave else LOW,
        )
        if grave:
            return
        start = text.find("<!--", stop)


def _pushed_away(text: str) -> Iterator[Remark]:
    for match in _GAP.finditer(text):
        if text[match.end() : match.end() + 1].strip():
            yield Remark("text after a wide gap", excerpt(text, match.end(), match.end() + 80), HIGH)
            break
    blank = 0
    for line in text.split("\n") if text.count("\n") > _BLANK_LINES else ():
        if line.strip() and blank >= _BLANK_LINES:
            yield Remark(f"text after {blank} empty lines", excerpt(line, 0, min(len(line), 120)), HIGH)
            break
        blank = 0 if line.strip() else blank + 1


def _decoded(run: str) -> Iterator[Remark]:
    if _HEX.fullmatch(run):
        if said := _words(bytes.fromhex(run[: len(run) // 2 * 2][:_DECODED_LIMIT])):
            yield Remark("text in hexadecimal", excerpt(said, 0, min(len(said), 140)), HIGH)
        return
    if not all(alphabet.search(run) for alphabet in _ALPHABETS):
        return
    plain = run.rstrip("=")[:_DECODED_LIMIT].translate(_URLSAFE)
    plain = plain[: len(plain) - (len(plain) % 4 == 1)]
    try:
        said = _words(base64.b64decode(plain + "=" * (-len(plain) % 4)))
    except binascii.Error:
        said = None
    if said:
        yield Remark("text in base64", excerpt(said, 0, min(len(said), 140)), HIGH)
    elif len(run) >= _BLOB and sum(character.isdigit() for character in run) * 25 > len(run):
        yield Remark("a blob that may hold anything", excerpt(run, 0, 60), MEDIUM)


def _words(content: bytes) -> str | None:
    """The bytes as text, when they are words with spaces between them."""
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        text = content[:-3].decode("ascii", "replace")  # the end of a run may be cut
    return text if text.count(" ") >= 2 and text.replace("\n", " ").isprintable() and "\ufffd" not in text else None
