"""Source code as highlighted HTML: escaped text in spans with a class per kind of token."""

# Imported only where code is shown: Pygments takes 10 ms from a warm cache and 80 from a cold one, each language more.
from __future__ import annotations

import html
import json
import re
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from pygments import format as format_tokens
from pygments.formatters.html import HtmlFormatter
from pygments.lexers import get_lexer_by_name, get_lexer_for_filename
from pygments.token import Text
from pygments.util import ClassNotFound

from gateway.value import Value

# Maximum characters; longer code is shown plain.
CODE_LIMIT = 512 * 1024

CLASS_PREFIX = "hl-"
PLAIN = "text"
_SAMPLE = 4 * 1024
_SECONDS = 2.0
_LINE_END = re.compile(r"\r\n?")
_FORMATTER = HtmlFormatter(nowrap=True, classprefix=CLASS_PREFIX)

# Six colours instead of one of Pygments' styles, so that code looks the same in every page; classes of its short names.
_STYLES = {
    "color: var(--syn-key)": "k kd kn kp kr ow",
    "color: var(--syn-str)": "s sa sb sc dl sd s2 se sh si sx sr s1 ss",
    "color: var(--syn-num)": "m mb mf mh mi mo il kc l ld no",
    "color: var(--syn-fn)": "nf fm na nd",
    "color: var(--syn-type)": "kt nc nb bp nt nn ne",
    "color: var(--syn-com)": "c ch cm cp cpf c1 cs",
    "background: var(--add-bg)": "gi",
    "background: var(--del-bg)": "gd",
    "font-weight: 600": "gh gu",
}

# Pygments' own guess loads all of its five hundred lexers, which takes a second, and takes Go and English for Python
# because of the word "import". These patterns are more reliable.
_PATTERNS = tuple(
    (language, re.compile(pattern, re.MULTILINE))
    for language, pattern in (
        ("python", r"\A#!.*\bpython"),
        ("javascript", r"\A#!.*\b(?:node|deno|bun)\b"),
        ("ruby", r"\A#!.*\bruby"),
        ("perl", r"\A#!.*\bperl"),
        ("bash", r"\A#!.*sh\b"),
        ("xml", r"\A\s*<\?xml\b"),
        ("php", r"\A\s*<\?php\b"),
        ("html", r"\A\s*<(?:![Dd][Oo][Cc][Tt][Yy][Pp][Ee] )?[Hh][Tt][Mm][Ll]\b"),
        ("diff", r"^diff --git |^--- .+\n\+\+\+ "),
        ("docker", r"\AFROM [\w./:@-]+(?: AS \w+)?$"),
        ("go", r"^package \w+$"),
        ("c", r"^#include [<\"]"),
        ("rust", r"^(?:pub )?fn \w+.*\{$|^use \w+::"),
        ("java", r"^(?:public |final |abstract )+class \w+"),
        ("javascript", r"^(?:export |async )*function\b.*\{|^(?:export )?(?:const|let) \w+ =|^import .+ from ['\"]"),
        ("python", r"^(?:async )?def \w+\(.*:$|^class \w+.*:$|^import [\w.]+(?: as \w+)?$|^from [\w.]+ import "),
        ("sql", r"\A\s*(?:SELECT|INSERT INTO|CREATE TABLE|UPDATE|DELETE FROM|WITH \w+ AS)\s"),
        ("css", r"\A\s*(?:@media|@import|[.#]?[\w-]+) [^;{}\n]*\{\s*[\w-]+\s*:[^;]+;"),
        ("toml", r"\A\s*\[[\w.\"-]+\]\s*\n[\w-]+ = "),
    )
)


class Highlighted(Value):
    """Code as HTML for a `pre` element; `language` is the one that was used."""

    language: str
    html: str


def highlight(
    code: str,
    language: str = "auto",
    filename: str | None = None,
    *,
    seconds: float = _SECONDS,
    clock: Callable[[], float] = time.monotonic,
) -> Highlighted:
    """Highlight code in the given language, else by its file name, else by a guess.

    The text stays the same, with `\\n` as line ends. Too long code is plain, and so is the rest of code that takes
    longer than `seconds`: untrusted text can be slow to parse.
    """
    text = _LINE_END.sub("\n", code)
    lexer = _lexer(text, language, filename) if len(text) <= CODE_LIMIT else None
    if lexer is None:
        return Highlighted(PLAIN, html.escape(text))
    tokens = _take_until(clock() + seconds, clock, lexer.get_tokens(text), text)
    marked = format_tokens(tokens, _FORMATTER)
    return Highlighted(lexer.aliases[0], marked if text.endswith("\n") else marked.removesuffix("\n"))


def stylesheet(scope: str = "pre") -> str:
    """Return the CSS of the classes for elements inside `scope`; the colours are custom properties of the page."""
    rules = [
        f"{', '.join(f'{scope} .{CLASS_PREFIX}{name}' for name in names.split())} {{ {style} }}"
        for style, names in _STYLES.items()
    ]
    return "\n".join(rules)


def guess(code: str) -> str:
    """Guess the language by the beginning of a text; plain text if no pattern matches."""
    sample = code[:_SAMPLE]
    if _looks_like_json(sample, whole=len(sample) == len(code)):
        return "json"
    return next((language for language, pattern in _PATTERNS if pattern.search(sample)), PLAIN)


def _looks_like_json(sample: str, *, whole: bool) -> bool:
    if not sample.lstrip().startswith(("{", "[")):
        return False
    try:
        json.loads(sample)
    except json.JSONDecodeError as error:
        return not whole and error.pos > len(sample) // 2
    except RecursionError:
        return True
    return True


def _lexer(text: str, language: str, filename: str | None) -> Any:
    """Return the lexer to use, None for plain text."""
    options = {"stripnl": False, "ensurenl": False}
    attempts: list[Callable[[], Any]] = [lambda: get_lexer_by_name(guess(text), **options)]
    if filename:
        attempts.insert(0, lambda: get_lexer_for_filename(filename, text[:_SAMPLE], **options))
    if language != "auto":
        attempts.insert(0, lambda: get_lexer_by_name(language, **options))
    for attempt in attempts:
        try:
            lexer = attempt()
        except ClassNotFound:
            continue
        return None if lexer.aliases[:1] in ([], [PLAIN]) else lexer
    return None


def _take_until(
    deadline: float, clock: Callable[[], float], tokens: Iterable[tuple[Any, str]], text: str
) -> Iterator[tuple[Any, str]]:
    """Yield the tokens up to the deadline, and the rest of the text as one."""
    done = 0
    for kind, piece in tokens:
        yield kind, piece
        done += len(piece)
        if clock() > deadline:
            yield Text, text[done:]
            return
