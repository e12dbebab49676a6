"""A page as Markdown: its words in their order, with what headings, lists, tables, code and links say.

It is for reading. Characters that mean something in Markdown are left as they are within a line, since
`snake_case` and `[1]` read better so; at the beginning of a line, where they would make up a heading or a list,
they are escaped.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from urllib.parse import urljoin, urlsplit

from .lines import Lines
from .main_content import is_around, main_part
from .tree import Element, Tree

_BLOCKS = frozenset(
    {"address", "article", "aside", "body", "caption", "center", "details", "div", "dl", "fieldset", "figcaption"}
    | {"figure", "footer", "form", "header", "hgroup", "legend", "main", "nav", "p", "search", "section", "summary"}
    | {"table", "tbody", "td", "tfoot", "th", "thead", "tr"}
)
_HEADINGS = {f"h{level}": "#" * level for level in range(1, 7)}
_MARKS = {"b": "**", "strong": "**", "i": "*", "em": "*", "del": "~~", "s": "~~", "strike": "~~"}
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
        elif tag in _MARKS:
            self._marked(element, _MARKS[tag], _MARKS[tag])
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
