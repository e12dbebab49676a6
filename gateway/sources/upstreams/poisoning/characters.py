"""Text that a person does not see: invisible, reordering and lookalike characters, markup, gaps and encodings.

Characters are not reported where their script needs them, such as joiners in Arabic.
"""

from __future__ import annotations

import base64
import binascii
import re
import unicodedata
from collections.abc import Iterator

from gateway.sources.upstreams.poisoning.finding import HIGH, LOW, MEDIUM, Remark, Severity, excerpt
from gateway.text import INVISIBLE, visible

_MANY = 4  # zero-width characters in one text: fewer may have been pasted by accident
_STYLED_LIMIT = 6

# England, Scotland and Wales: the only tag characters an ordinary text has.
_FLAGS = re.compile("\U0001f3f4\U000e0067\U000e0062[\U000e0061-\U000e007a]{3}\U000e007f")

_RIGHT_TO_LEFT = re.compile("[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]")
# Scripts in which joiners shape letters: Arabic and its neighbours, those of India, Tibet, Burma, Mongolia.
_JOINING = re.compile(
    "[\u0600-\u07ff\u0840-\u08ff\u0900-\u0dff\u0f00-\u109f\u1780-\u18af\u1b00-\u1bff\ua840-\ua8ff\uabc0-\uabff"
    "\ufb50-\ufdff\ufe70-\ufefc]"
)
# Scripts without spaces, where a zero-width space says where a line may break.
_UNSPACED = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff]")
_IDEOGRAPHS = re.compile("[\u1800-\u18af\u2200-\u22ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")

_TAGS = "hidden text in tag characters"
_SELECTORS = "variation selectors, which can carry hidden text"
_DIRECTION = "characters that change the direction of text"
_ZERO_WIDTH = "zero-width characters"
_CONTROL = "control characters"
_BROKEN = "invalid characters (noncharacters)"
_PRIVATE = "characters of private use"
_SEPARATOR = "unusual line separators"

_PRIVATE_USE = re.compile("[\ue000-\uf8ff\U000f0000-\U0010ffff]")
_STYLED = re.compile("[\u24b6-\u24e9\U0001d400-\U0001d7ff\U0001f110-\U0001f189]")
_WORD = re.compile(r"\w+")
_LATIN = re.compile("[A-Za-z]")
# Letters of other alphabets that look like Latin ones.
_LOOKALIKES = str.maketrans(
    "аеорсухіјѕԁԛԝһӏѵАВЕКМНОРСТХУІЈЅοΑΒΕΖΗΙΚΜΝΟΡΤΥΧօսɡɑ",
    "aeopcyxijsdqwhlvABEKMHOPCTXYIJSoABEZHIKMNOPTYXouga",
)


def find_hidden_characters(text: str, identifier: bool = False, pattern: bool = False) -> Iterator[Remark]:
    """Find invisible characters. An identifier needs none of them; a regular expression may contain some in order to
    refuse them."""
    text = _FLAGS.sub("\U0001f3f4", text)
    counts: dict[str, tuple[int, int, Severity]] = {}
    right_to_left = _RIGHT_TO_LEFT.search(text) is not None
    for match in INVISIBLE.finditer(text):
        what, severity = _classify(text, match.start(), match[0], right_to_left)
        if severity is not None:
            count, first, worst = counts.get(what, (0, match.start(), severity))
            counts[what] = (count + 1, first, max(worst, severity, key=lambda each: each.rank))
    for what, (count, first, severity) in counts.items():
        if identifier or (count >= _MANY and what == _ZERO_WIDTH):
            severity = HIGH
        if pattern and count < 2 * _MANY:
            severity = LOW
        shown = _decode_tags(text) if what == _TAGS else excerpt(text, first, first + 1)
        yield Remark(what, shown, severity)
    if private := _PRIVATE_USE.search(text):
        yield Remark(_PRIVATE, excerpt(text, private.start(), private.end()), MEDIUM if identifier else LOW)


def find_lookalikes(text: str, identifier: bool = False) -> Iterator[Remark]:
    """Find words that mix alphabets to imitate other words, and letters that are symbols."""
    if text.isascii():
        return
    for match in _WORD.finditer(text):
        word = match[0]
        if not word.isascii() and _LATIN.search(word) and word.translate(_LOOKALIKES) != word:
            yield Remark(
                "letters of another alphabet that look like Latin ones",
                excerpt(text, match.start(), match.end()) + f" (in it: {_code_points(word)})",
                HIGH if identifier else MEDIUM,
            )
            break
    if identifier and (text.translate(_LOOKALIKES).isascii() or unicodedata.normalize("NFKC", text) != text):
        yield Remark("a name that looks like another", f"{excerpt(text, 0, len(text))} ({_code_points(text)})", HIGH)
    styled = _STYLED.findall(text)
    if len(styled) >= _STYLED_LIMIT:
        start = text.index(styled[0])
        yield Remark("letters that are mathematical or enclosed symbols", excerpt(text, start, start + 40), MEDIUM)


def fold(text: str) -> str:
    """The text as it reads: without invisible characters, with one kind of letters and quotes, and single spaces."""
    if not text.isascii():
        text = unicodedata.normalize("NFKC", INVISIBLE.sub("", text)).replace("’", "'").replace("‘", "'")
        text = _WORD.sub(_to_latin, text)
    else:
        text = INVISIBLE.sub("", text)
    return " ".join(text.split())


def skeleton(text: str) -> str:
    """The folded text in lower-case Latin letters without accents, lookalike letters replaced."""
    parts = unicodedata.normalize("NFKD", fold(text).translate(_LOOKALIKES))
    return "".join(each for each in parts if not unicodedata.combining(each)).casefold()


def spell_out(text: str) -> str:
    """The text with invisible and reordering characters spelled out, except where its script needs them."""
    right_to_left = _RIGHT_TO_LEFT.search(text) is not None
    return INVISIBLE.sub(
        lambda match: visible(match[0]) if _classify(text, match.start(), match[0], right_to_left)[1] else match[0],
        text,
    )


def _to_latin(match: re.Match[str]) -> str:
    word = match[0]
    return word if word.isascii() or not _LATIN.search(word) else word.translate(_LOOKALIKES)


def _classify(text: str, index: int, character: str, right_to_left: bool) -> tuple[str, Severity | None]:
    """The kind of a character and its severity there; None where its script needs it. `right_to_left` says whether the
    text has letters of a right-to-left script."""
    code = ord(character)
    if 0xE0000 <= code <= 0xE007F:
        return _TAGS, HIGH
    if 0xFE00 <= code <= 0xFE0F or 0xE0080 <= code <= 0xE0FFF or 0x180B <= code <= 0x180F:
        return _SELECTORS, _selector(text, index)
    if code in (0x202D, 0x202E):
        return _DIRECTION, HIGH
    if 0x202A <= code <= 0x202C or 0x2066 <= code <= 0x2069:
        return _DIRECTION, LOW if right_to_left else HIGH
    if code in (0x200E, 0x200F, 0x061C):
        return _DIRECTION, None if right_to_left else MEDIUM
    if code < 0xA0:
        return _CONTROL, HIGH if character in "\x08\x1b\x7f\x9b" else MEDIUM
    if code in (0x2028, 0x2029):
        return _SEPARATOR, LOW
    if 0xD800 <= code <= 0xDFFF or (0xFFF9 <= code <= 0xFFFF and code != 0xFFFC):
        return _BROKEN, MEDIUM
    return _ZERO_WIDTH, _zero_width(text, index, character)


def _zero_width(text: str, index: int, character: str) -> Severity | None:
    before, after = text[index - 1 : index], text[index + 1 : index + 2]
    if character in "\u200c\u200d" and (_JOINING.match(before) or (_is_symbol(before) and _is_symbol(after))):
        return None
    if character == "\u200b" and (_UNSPACED.match(before) or _UNSPACED.match(after)):
        return None
    if character == "\u00ad" or (character == "\ufeff" and index == 0):
        return LOW
    return MEDIUM


def _selector(text: str, index: int) -> Severity | None:
    before = text[index - 1 : index]
    if before and (INVISIBLE.match(before) and before != "\u200d"):
        return HIGH
    if not before or not (_is_symbol(before) or before in "0123456789#*" or _IDEOGRAPHS.match(before)):
        return MEDIUM
    return None


def _is_symbol(character: str) -> bool:
    """Return whether it is an emoji or another symbol, or a variation selector after one."""
    return character != "" and (character == "\ufe0f" or unicodedata.category(character) in ("So", "Sk", "Sm"))


def _decode_tags(text: str) -> str:
    """The text that tag characters encode."""
    text = "".join(chr(ord(each) - 0xE0000) for each in text if 0xE0020 <= ord(each) <= 0xE007E)
    return excerpt(text, 0, min(len(text), 140)) or "tag characters without text"


def _code_points(word: str) -> str:
    return " ".join(sorted({f"U+{ord(each):04X}" for each in word if not each.isascii()})[:6])


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


def find_hidden_text(text: str) -> Iterator[Remark]:
    """Find comments, styles and gaps that keep text out of sight."""
    yield from _find_comments(text)
    if "<" in text and (match := _STYLED_AWAY.search(text)):
        yield Remark("markup that hides text", excerpt(text, match.start(), match.end()), HIGH)
    if "]:" in text and (match := _MARKDOWN_COMMENT.search(text)):
        yield Remark("a comment in Markdown", excerpt(text, match.start(), match.end()), HIGH)
    yield from _find_gaps(text)


def find_encoded_text(text: str) -> Iterator[Remark]:
    """Find text in base64, hexadecimal or escapes, and long blobs."""
    for number, match in enumerate(_BASE64.finditer(text)):
        if number >= _RUNS:
            break
        yield from _decode_run(match[0])
    if escapes := _ESCAPES.search(text):
        yield Remark("text in escapes", excerpt(text, escapes.start(), escapes.end()), MEDIUM)


def _find_comments(text: str) -> Iterator[Remark]:
    start = text.find("<!--")
    while start >= 0:
        end = text.find("-->", start)
        stop = len(text) if end < 0 else end + 3
        long = len(text[start:stop].strip("<!- >\n\t")) >= _COMMENT_LONG
        yield Remark(
            "a comment in HTML" if long else "a short comment in HTML",
            excerpt(text, start, min(stop, start + 120)),
            HIGH if long else LOW,
        )
        if long:
            return
        start = text.find("<!--", stop)


def _find_gaps(text: str) -> Iterator[Remark]:
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


def _decode_run(run: str) -> Iterator[Remark]:
    if _HEX.fullmatch(run):
        if text := _words(bytes.fromhex(run[: len(run) // 2 * 2][:_DECODED_LIMIT])):
            yield Remark("text in hexadecimal", excerpt(text, 0, min(len(text), 140)), HIGH)
        return
    if not all(alphabet.search(run) for alphabet in _ALPHABETS):
        return
    plain = run.rstrip("=")[:_DECODED_LIMIT].translate(_URLSAFE)
    plain = plain[: len(plain) - (len(plain) % 4 == 1)]
    try:
        text = _words(base64.b64decode(plain + "=" * (-len(plain) % 4)))
    except binascii.Error:
        text = None
    if text:
        yield Remark("text in base64", excerpt(text, 0, min(len(text), 140)), HIGH)
    elif len(run) >= _BLOB and sum(character.isdigit() for character in run) * 25 > len(run):
        yield Remark("a blob that may hold anything", excerpt(run, 0, 60), MEDIUM)


def _words(content: bytes) -> str | None:
    """The bytes as text if they are words with spaces; else None."""
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        text = content[:-3].decode("ascii", "replace")  # the end of a run may be truncated
    return text if text.count(" ") >= 2 and text.replace("\n", " ").isprintable() and "\ufffd" not in text else None
