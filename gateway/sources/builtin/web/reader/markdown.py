"""HTML to Markdown: the main content of a page with its headings, lists, tables, code and links.

The result is for reading. Markdown characters are escaped at the beginning of a line, where they would start a heading
or a list, but not within a line: `snake_case` and `[1]` read better unescaped.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import urljoin, urlsplit

from .tree import Element, HtmlPage

# Characters of the result; the rest is left out.
TEXT_LIMIT = 4_000_000

_NESTING_LIMIT = 12  # deeper quotes and lists are written at this level
_BREAK = "\n"
_SPACE = re.compile(r"[ \t\r\n\f\v\u200b\ufeff]+")
_STRUCTURE = re.compile(r"(#{1,6}\s|>|[-+*]\s|(?:-{3,}|={3,}|\*{3,}|_{3,})$|```|~~~)")
_NUMBERED = re.compile(r"(\d{1,9})([.)]\s)")


@dataclass
class _Margin:
    """The prefix of the lines of a quote or list item: of the first line, and of the rest."""

    first: str
    rest: str
    one_line: bool = False
    item: bool = False
    used: bool = False


@dataclass
class _Mark:
    """Marks around words that are not yet written, such as `**`; `start` is the index of the first word."""

    before: str
    after: str
    start: int


class MarkdownLines:
    """The lines of the result, added as words and blocks in document order. When it is `full`, it takes no more."""

    def __init__(self) -> None:
        self._written: list[str] = []
        self._size = 0
        self._words: list[str] = []
        self._margins: list[_Margin] = []
        self._marks: list[_Mark] = []
        self._in_list = False

    @property
    def full(self) -> bool:
        return self._size > TEXT_LIMIT

    def text(self) -> str:
        self.end_block()
        return "\n".join(self._written).strip("\n")

    def add(self, text: str) -> None:
        if text:
            self._words.append(_SPACE.sub(" ", text))
            self._size += 1

    def add_code(self, text: str) -> None:
        text = " ".join(text.split())
        if text:
            ticks = _fence(text, 1)
            pad = " " if text.startswith("`") or text.endswith("`") else ""
            self._words.append(f"{ticks}{pad}{text}{pad}{ticks}")

    def break_line(self) -> None:
        self._words.append(_BREAK)

    @contextmanager
    def marked(self, before: str, after: str) -> Iterator[None]:
        """Put marks around what is added inside, in each paragraph again. The same marks are not nested."""
        if any(mark.before == before for mark in self._marks):
            yield
            return
        self._marks.append(_Mark(before, after, len(self._words)))
        yield
        self._close(self._marks.pop())

    @contextmanager
    def within(self, first: str, rest: str, one_line: bool = False, item: bool = False) -> Iterator[None]:
        self.end_block()
        deep = sum(bool(margin.rest) for margin in self._margins) >= _NESTING_LIMIT
        self._margins.append(_Margin("" if deep else first, "" if deep else rest, one_line, item))
        yield
        self.end_block()
        self._margins.pop()

    def end_block(self) -> None:
        """Write the pending words as a paragraph; open marks continue in the next one."""
        if not self._words:
            return
        for mark in reversed(self._marks):
            self._close(mark)
            mark.start = 0
        lines = [" ".join(line.split()) for line in "".join(self._words).split(_BREAK)]
        self._words.clear()
        lines = [line for line in lines if line]
        if any(margin.one_line for margin in self._margins):
            lines = [" ".join(lines)] if lines else []
        else:
            lines = [_escape(line) for line in lines]
        self._write(lines)

    def begin_list(self) -> None:
        self.end_block()
        self._in_list = any(margin.item for margin in self._margins)

    def block(self, lines: Sequence[str]) -> None:
        self.end_block()
        self._write(lines)

    def code_block(self, text: str, language: str) -> None:
        text = text.replace("\r\n", "\n").strip("\n")
        if text.strip():
            fence = _fence(text, 3)
            self.block([f"{fence}{language}", *(line.rstrip() for line in text.split("\n")), fence])

    def _close(self, mark: _Mark) -> None:
        inner = "".join(self._words[mark.start :])
        del self._words[mark.start :]
        bare = inner.strip()
        if bare:
            lead, trail = " " * inner[0].isspace(), " " * inner[-1].isspace()
            self._words += [lead, mark.before, bare.replace(_BREAK, " "), mark.after, trail]
        else:
            self._words.append(inner)

    def _write(self, lines: Sequence[str]) -> None:
        if not lines or self.full:
            return
        starts_item = any(margin.item and margin.first and not margin.used for margin in self._margins)
        if self._written and not (starts_item and self._in_list):
            self._put("".join(margin.rest for margin in self._margins if margin.used).rstrip())
        for line in lines:
            before = "".join(margin.rest if margin.used else margin.first for margin in self._margins)
            for margin in self._margins:
                margin.used = True
            self._put((before + line).rstrip())
        self._in_list = any(margin.item for margin in self._margins)

    def _put(self, line: str) -> None:
        self._written.append(line)
        self._size += len(line) + 1


def _escape(line: str) -> str:
    """Escape the beginning of a line that looks like a heading, a quote or a list."""
    if _STRUCTURE.match(line):
        return f"\\{line}"
    return _NUMBERED.sub(r"\1\\\2", line, count=1) if _NUMBERED.match(line) else line


def _fence(text: str, least: int) -> str:
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    return "`" * max(least, longest + 1 if longest >= least else least)


_BOILERPLATE_ROLES = frozenset({"navigation", "search", "banner", "contentinfo", "complementary", "menu", "menubar"})
_PROSE = frozenset({"p", "pre", "li", "dd", "dt", "td", "th", "blockquote", "h1", "h2", "h3", "h4", "figcaption"})
_CELLS_OF_LAYOUT = frozenset({"td", "th"})  # pages that are laid out in a table
_MOST_OF_TEXT = 0.7
_ENOUGH_OF_TEXT = 0.4


def is_boilerplate(element: Element) -> bool:
    """Return whether an element is boilerplate around the content, such as a menu or footer."""
    return element.tag in ("nav", "footer") or element.attributes.get("role") in _BOILERPLATE_ROLES


def main_part(body: Element) -> Element:
    """Return the element with the content: the one that the page declares as main if it holds much of the text; else
    the innermost one that holds most of the text outside of links."""
    weights: dict[int, int] = {}
    _weigh(body, weights, counts=False)
    total = weights[id(body)]
    declared = [element for element in body.elements() if _is_main(element)]
    best = max(declared, key=lambda element: weights.get(id(element), 0), default=body)
    if declared and weights.get(id(best), 0) >= _ENOUGH_OF_TEXT * total:
        return best
    return _innermost(body, weights)


def _is_main(element: Element) -> bool:
    return element.tag in ("main", "article") or element.attributes.get("role") == "main"


def _innermost(element: Element, weights: Mapping[int, int]) -> Element:
    total = weights[id(element)]
    while total:
        inner = [child for child in element.children if isinstance(child, Element) and _holds(child)]
        heavy = max(inner, key=lambda child: weights.get(id(child), 0), default=None)
        if heavy is None or weights.get(id(heavy), 0) < _MOST_OF_TEXT * total:
            break
        element = heavy
    return element


def _holds(element: Element) -> bool:
    return element.tag not in _PROSE or element.tag in _CELLS_OF_LAYOUT


def _weigh(element: Element, weights: dict[int, int], counts: bool) -> int:
    """Count the characters of prose in each element, without links and boilerplate; return those of this one."""
    if element.tag == "a" or is_boilerplate(element):
        return 0
    counts = counts or element.tag in _PROSE
    weight = 0
    for child in element.children:
        if isinstance(child, Element):
            weight += _weigh(child, weights, counts)
        elif counts:
            weight += len(child.strip())
    weights[id(element)] = weight
    return weight


_BLOCKS = frozenset(
    {"address", "article", "aside", "body", "caption", "center", "details", "div", "dl", "fieldset", "figcaption"}
    | {"figure", "footer", "form", "header", "hgroup", "legend", "main", "nav", "p", "search", "section", "summary"}
    | {"table", "tbody", "td", "tfoot", "th", "thead", "tr"}
)
_HEADINGS = {f"h{level}": "#" * level for level in range(1, 7)}
_EMPHASIS = {"b": "**", "strong": "**", "i": "*", "em": "*", "del": "~~", "s": "~~", "strike": "~~"}
_CODE = frozenset({"code", "kbd", "samp", "tt"})
_LANGUAGE = re.compile(r"\b(?:language|lang|highlight-source|brush:)-?\s*([A-Za-z0-9_+#-]{1,30})")
_URL_LENGTH = 2000
_CELLS = 100


def to_markdown(page: HtmlPage, url: str, *, whole: bool) -> tuple[str, bool]:
    """Return the page, or unless `whole` only its main content, and whether it was cut for its size."""
    base = _join_url(url, page.base) or url if page.base else url
    part = page.body if whole else main_part(page.body)
    writer = _MarkdownWriter(base, whole)
    writer.write(part)
    text = writer.lines.text()
    if not text and not whole:
        return to_markdown(page, url, whole=True)
    return text, writer.lines.full


class _MarkdownWriter:
    def __init__(self, base: str, whole: bool) -> None:
        self.lines = MarkdownLines()
        self._base = base
        self._whole = whole
        self._tags: dict[str, Callable[[Element], None]] = {
            "a": self._link,
            "blockquote": lambda element: self._write_nested(element, "> ", "> "),
            "br": lambda element: self.lines.break_line(),
            "dd": lambda element: self._write_nested(element, ": ", "  "),
            "dt": self._term,
            "hr": lambda element: self.lines.block(["---"]),
            "img": self._image,
            "math": self._formula,
            "ol": self._list,
            "pre": self._code_block,
            "q": lambda element: self._write_marked(element, "“", "”"),
            "table": self._table,
            "ul": self._list,
            "menu": self._list,
        }

    def write(self, element: Element) -> None:
        for child in element.children:
            if self.lines.full:
                return
            if isinstance(child, str):
                self.lines.add(child)
            elif self._whole or not is_boilerplate(child):
                self._element(child)

    def _element(self, element: Element) -> None:
        tag = element.tag
        if tag in self._tags:
            self._tags[tag](element)
        elif tag in _HEADINGS:
            self._write_nested(element, f"{_HEADINGS[tag]} ", "", one_line=True)
        elif tag in _EMPHASIS:
            self._write_marked(element, _EMPHASIS[tag], _EMPHASIS[tag])
        elif tag in _CODE:
            self.lines.add_code(element.text)
        elif tag in _BLOCKS or tag == "li":
            self.lines.end_block()
            self.write(element)
            self.lines.end_block()
        else:
            self.write(element)

    def _write_nested(self, element: Element, first: str, rest: str, one_line: bool = False) -> None:
        with self.lines.within(first, rest, one_line):
            self.write(element)

    def _write_marked(self, element: Element, before: str, after: str) -> None:
        with self.lines.marked(before, after):
            self.write(element)

    def _link(self, element: Element) -> None:
        url = self._address(element.attributes.get("href", ""))
        if url is None:
            self.write(element)
        else:
            self._write_marked(element, "[", f"]({url})")

    def _image(self, element: Element) -> None:
        alt = " ".join(element.attributes.get("alt", "").split())[:500]
        url = self._address(element.attributes.get("src", ""))
        if alt:
            self.lines.add(f"![{alt}]({url})" if url else f"[image: {alt}]")

    def _formula(self, element: Element) -> None:
        self.lines.add(element.attributes.get("alttext") or element.text)

    def _term(self, element: Element) -> None:
        self.lines.end_block()
        self._write_marked(element, "**", "**")
        self.lines.end_block()

    def _list(self, element: Element) -> None:
        self.lines.begin_list()
        start = element.attributes.get("start", "")
        number = int(start) if element.tag == "ol" and re.fullmatch(r"[0-9]{1,6}", start) else 1
        for child in element.children:
            if isinstance(child, str):
                self.lines.add(child)
                continue
            marker = f"{number}. " if element.tag == "ol" else "- "
            if child.tag != "li":  # a nested list without the item around it
                marker = ""
            number += bool(marker)
            with self.lines.within(marker, " " * len(marker), item=True):
                self._element(child)

    def _code_block(self, element: Element) -> None:
        inner = next((child for child in element.elements() if child.tag == "code"), element)
        classes = f"{element.attributes.get('class', '')} {inner.attributes.get('class', '')}"
        language = _LANGUAGE.search(classes)
        self.lines.code_block(element.text, language[1] if language else "")

    def _table(self, element: Element) -> None:
        rows = _rows(element)
        if rows is None or max(map(len, rows), default=0) < 2:
            self.lines.end_block()
            self.write(element)
            self.lines.end_block()
            return
        for caption in element.children:
            if isinstance(caption, Element) and caption.tag == "caption":
                self._element(caption)
        lines = [[self._cell(cell) for cell in row[:_CELLS]] for row in rows]
        lines.insert(1, ["---"] * len(lines[0]))
        self.lines.block([f"| {' | '.join(row)} |" for row in lines])

    def _cell(self, element: Element) -> str:
        inner = _MarkdownWriter(self._base, self._whole)
        inner.write(element)
        return " ".join(inner.lines.text().split()).replace("|", "\\|")

    def _address(self, href: str) -> str | None:
        """Return the absolute URL of a link; None for one that cannot be followed."""
        href = href.strip()
        if not href or href.startswith("#") or len(href) > _URL_LENGTH:
            return None
        url = _join_url(self._base, href)
        if url is None or len(url) > _URL_LENGTH or not url.startswith(("http://", "https://", "mailto:")):
            return None
        return re.sub(r"[\s()<>]", lambda match: f"%{ord(match[0]):02X}", url)


def _rows(table: Element) -> list[list[Element]] | None:
    """Return the cells of a data table; None for an empty table, or one that is used for layout."""
    rows = []
    for element in table.elements():
        if element.tag == "table":
            return None
        if element.tag == "tr":
            rows.append([c for c in element.children if isinstance(c, Element) and c.tag in ("td", "th")])
    rows = [row for row in rows if row]
    return rows or None


@functools.lru_cache(maxsize=4096)
def _join_url(base: str, href: str) -> str | None:
    try:
        url = urljoin(base, href)
        urlsplit(url)
    except ValueError:
        return None
    return url
