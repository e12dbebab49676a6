"""A page as Markdown: its words in their order, with what headings, lists, tables, code and links say.

It is for reading. Characters that mean something in Markdown are left as they are within a line, since
`snake_case` and `[1]` read better so; at the beginning of a line, where they would make up a heading or a list,
they are escaped.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import urljoin, urlsplit

from .tree import Element, Tree

# Characters of a page; the rest is left out.
LONGEST = 4_000_000

_NESTED = 12  # deeper quotes and lists are written as this deep
_BREAK = "\n"
_SPACE = re.compile(r"[ \t\r\n\f\v\u200b\ufeff]+")
_STRUCTURE = re.compile(r"(#{1,6}\s|>|[-+*]\s|(?:-{3,}|={3,}|\*{3,}|_{3,})$|```|~~~)")
_NUMBERED = re.compile(r"(\d{1,9})([.)]\s)")


@dataclass
class _Margin:
    """What stands before the lines of a quote or an item: the first of them, and the rest."""

    first: str
    rest: str
    one_line: bool = False
    item: bool = False
    used: bool = False


@dataclass
class _Mark:
    """What stands around words: where they begin among those not yet written."""

    before: str
    after: str
    start: int


class Lines:
    """Takes words and blocks in the order of a page; `full` says that it takes no more."""

    def __init__(self) -> None:
        self._written: list[str] = []
        self._size = 0
        self._words: list[str] = []
        self._margins: list[_Margin] = []
        self._marks: list[_Mark] = []
        self._in_list = False

    @property
    def full(self) -> bool:
        return self._size > LONGEST

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
        """Around what is written within, in each paragraph of it anew; not twice the same."""
        if any(mark.before == before for mark in self._marks):
            yield
            return
        self._marks.append(_Mark(before, after, len(self._words)))
        yield
        self._close(self._marks.pop())

    @contextmanager
    def within(self, first: str, rest: str, one_line: bool = False, item: bool = False) -> Iterator[None]:
        self.end_block()
        deep = sum(bool(margin.rest) for margin in self._margins) >= _NESTED
        self._margins.append(_Margin("" if deep else first, "" if deep else rest, one_line, item))
        yield
        self.end_block()
        self._margins.pop()

    def end_block(self) -> None:
        """Write the words there are as a paragraph; marks that are open go on in the next one."""
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
            lines = [_escaped(line) for line in lines]
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


def _escaped(line: str) -> str:
    """A line that is only words, also where it begins like a heading, a quote or a list."""
    if _STRUCTURE.match(line):
        return f"\\{line}"
    return _NUMBERED.sub(r"\1\\\2", line, count=1) if _NUMBERED.match(line) else line


def _fence(text: str, least: int) -> str:
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    return "`" * max(least, longest + 1 if longest >= least else least)


_ROLES_AROUND = frozenset({"navigation", "search", "banner", "contentinfo", "complementary", "menu", "menubar"})
_PROSE = frozenset({"p", "pre", "li", "dd", "dt", "td", "th", "blockquote", "h1", "h2", "h3", "h4", "figcaption"})
_PLACES = frozenset({"td", "th"})  # where pages are laid out in tables
_MOSTLY = 0.7
_ENOUGH = 0.4


def is_around(element: Element) -> bool:
    """Whether an element stands beside what a page is about."""
    return element.tag in ("nav", "footer") or element.attributes.get("role") in _ROLES_AROUND


def main_part(body: Element) -> Element:
    """The element with the content: what the page says is its main part, where much of its text is there,
    else the innermost one that holds most of the text that is not links."""
    weights: dict[int, int] = {}
    _weigh(body, weights, counts=False)
    total = weights[id(body)]
    said = [element for element in body.elements() if _is_main(element)]
    best = max(said, key=lambda element: weights.get(id(element), 0), default=body)
    if said and weights.get(id(best), 0) >= _ENOUGH * total:
        return best
    return _innermost(body, weights)


def _is_main(element: Element) -> bool:
    return element.tag in ("main", "article") or element.attributes.get("role") == "main"


def _innermost(element: Element, weights: Mapping[int, int]) -> Element:
    total = weights[id(element)]
    while total:
        inner = [child for child in element.children if isinstance(child, Element) and _holds(child)]
        heavy = max(inner, key=lambda child: weights.get(id(child), 0), default=None)
        if heavy is None or weights.get(id(heavy), 0) < _MOSTLY * total:
            break
        element = heavy
    return element


def _holds(element: Element) -> bool:
    return element.tag not in _PROSE or element.tag in _PLACES


def _weigh(element: Element, weights: dict[int, int], counts: bool) -> int:
    """Characters of prose in it: not those of links, nor of what stands around the content."""
    if element.tag == "a" or is_around(element):
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
_LONGEST_URL = 2000
_CELLS = 100


def to_markdown(tree: Tree, url: str, *, whole: bool) -> tuple[str, bool]:
    """The page, or unless `whole` its content alone, and whether something was left out for its size."""
    base = _joined(url, tree.base) or url if tree.base else url
    part = tree.body if whole else main_part(tree.body)
    writer = _Writer(base, whole)
    writer.write(part)
    text = writer.lines.text()
    if not text and not whole:
        return to_markdown(tree, url, whole=True)
    return text, writer.lines.full


class _Writer:
    def __init__(self, base: str, whole: bool) -> None:
        self.lines = Lines()
        self._base = base
        self._whole = whole
        self._tags: dict[str, Callable[[Element], None]] = {
            "a": self._link,
            "blockquote": lambda element: self._nested(element, "> ", "> "),
            "br": lambda element: self.lines.break_line(),
            "dd": lambda element: self._nested(element, ": ", "  "),
            "dt": self._term,
            "hr": lambda element: self.lines.block(["---"]),
            "img": self._image,
            "math": self._formula,
            "ol": self._list,
            "pre": self._code_block,
            "q": lambda element: self._marked(element, "“", "”"),
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
            elif self._whole or not is_around(child):
                self._element(child)

    def _element(self, element: Element) -> None:
        tag = element.tag
        if tag in self._tags:
            self._tags[tag](element)
        elif tag in _HEADINGS:
            self._nested(element, f"{_HEADINGS[tag]} ", "", one_line=True)
        elif tag in _EMPHASIS:
            self._marked(element, _EMPHASIS[tag], _EMPHASIS[tag])
        elif tag in _CODE:
            self.lines.add_code(element.text)
        elif tag in _BLOCKS or tag == "li":
            self.lines.end_block()
            self.write(element)
            self.lines.end_block()
        else:
            self.write(element)

    def _nested(self, element: Element, first: str, rest: str, one_line: bool = False) -> None:
        with self.lines.within(first, rest, one_line):
            self.write(element)

    def _marked(self, element: Element, before: str, after: str) -> None:
        with self.lines.marked(before, after):
            self.write(element)

    def _link(self, element: Element) -> None:
        url = self._address(element.attributes.get("href", ""))
        if url is None:
            self.write(element)
        else:
            self._marked(element, "[", f"]({url})")

    def _image(self, element: Element) -> None:
        alt = " ".join(element.attributes.get("alt", "").split())[:500]
        url = self._address(element.attributes.get("src", ""))
        if alt:
            self.lines.add(f"![{alt}]({url})" if url else f"[image: {alt}]")

    def _formula(self, element: Element) -> None:
        self.lines.add(element.attributes.get("alttext") or element.text)

    def _term(self, element: Element) -> None:
        self.lines.end_block()
        self._marked(element, "**", "**")
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
            if child.tag != "li":  # a list in a list that forgot the item around it
                marker = ""
            number += bool(marker)
            with self.lines.within(marker, " " * len(marker), item=True):
                self._element(child)

    def _code_block(self, element: Element) -> None:
        inner = next((each for each in element.elements() if each.tag == "code"), element)
        said = f"{element.attributes.get('class', '')} {inner.attributes.get('class', '')}"
        language = _LANGUAGE.search(said)
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
        shown = [[self._cell(cell) for cell in row[:_CELLS]] for row in rows]
        shown.insert(1, ["---"] * len(shown[0]))
        self.lines.block([f"| {' | '.join(row)} |" for row in shown])

    def _cell(self, element: Element) -> str:
        inner = _Writer(self._base, self._whole)
        inner.write(element)
        return " ".join(inner.lines.text().split()).replace("|", "\\|")

    def _address(self, href: str) -> str | None:
        """Where a link leads, whole; None for one that leads nowhere one could go on reading."""
        href = href.strip()
        if not href or href.startswith("#") or len(href) > _LONGEST_URL:
            return None
        url = _joined(self._base, href)
        if url is None or len(url) > _LONGEST_URL or not url.startswith(("http://", "https://", "mailto:")):
            return None
        return re.sub(r"[\s()<>]", lambda match: f"%{ord(match[0]):02X}", url)


def _rows(table: Element) -> list[list[Element]] | None:
    """The cells of a table of data; None for one that only places things, or is empty."""
    rows = []
    for element in table.elements():
        if element.tag == "table":
            return None
        if element.tag == "tr":
            rows.append([c for c in element.children if isinstance(c, Element) and c.tag in ("td", "th")])
    rows = [row for row in rows if row]
    return rows or None


@functools.lru_cache(maxsize=4096)
def _joined(base: str, href: str) -> str | None:
    try:
        url = urljoin(base, href)
        urlsplit(url)
    except ValueError:
        return None
    return url
