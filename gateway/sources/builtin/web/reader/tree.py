"""A page as a tree of bounded size and depth, with what a reader would not see left out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from selectolax.lexbor import LexborHTMLParser, LexborNode

# Levels of a page, several times what people write; what lies deeper is lifted up to there.
DEEPEST = 120

# Elements of a page; the rest of a larger one is left out.
MOST = 400_000

_UNSEEN = frozenset(
    {"script", "style", "noscript", "template", "iframe", "object", "embed", "canvas", "audio", "video", "svg"}
    | {"head", "select", "textarea", "input", "button", "datalist", "dialog", "map", "frameset", "noframes"}
)
_KEPT = frozenset({"href", "src", "alt", "class", "role", "start", "alttext", "type"})


@dataclass(slots=True)
class Element:
    tag: str
    attributes: dict[str, str] = field(default_factory=dict)
    children: list[Element | str] = field(default_factory=list)

    def elements(self) -> Iterator[Element]:
        """Every element below it, in the order of the page."""
        for child in self.children:
            if isinstance(child, Element):
                yield child
                yield from child.elements()

    @property
    def text(self) -> str:
        return "".join(child if isinstance(child, str) else child.text for child in self.children)


@dataclass(frozen=True)
class Tree:
    """A page: what its body holds, its title, and where its links start from if not where it was found."""

    body: Element
    title: str | None = None
    base: str | None = None
    cut: bool = False

    @classmethod
    def of(cls, html: str) -> Tree:
        parser = LexborHTMLParser(html)
        title, base = parser.css_first("head > title"), parser.css_first("head > base[href]")
        body, cut = _copied(parser.body)
        named = " ".join(title.text().split())[:500] if title is not None else ""
        return cls(body, named or None, base.attributes.get("href") if base is not None else None, cut)


def _copied(top: LexborNode | None) -> tuple[Element, bool]:
    """The tree without recursion: a stranger decides how deep it is."""
    body = Element("body")
    places = [body]
    node = top.first_child if top is not None else None
    levels, count = 1, 0
    while node is not None and levels > 0:
        inner = None
        if node.is_text_node:
            places[min(levels, DEEPEST) - 1].children.append(node.text_content or "")
        elif node.is_element_node and not _is_unseen(node):
            count += 1
            if count > MOST:
                return body, True
            element = Element(node.tag or "", {k: v or "" for k, v in node.attributes.items() if k in _KEPT})
            places[min(levels, DEEPEST) - 1].children.append(element)
            inner = node.first_child
            if inner is not None:
                levels += 1
                del places[levels - 1 :]
                if levels <= DEEPEST:
                    places.append(element)
        while inner is None and node is not None:
            inner = node.next
            if inner is None:
                node, levels = node.parent, levels - 1
                if levels == 0:
                    return body, False
        node = inner
    return body, False


def _is_unseen(node: LexborNode) -> bool:
    if node.tag in _UNSEEN:
        return True
    attributes = node.attributes
    if "hidden" in attributes or attributes.get("aria-hidden") == "true":
        return node.tag != "body"
    style = (attributes.get("style") or "").replace(" ", "").lower()
    return "display:none" in style or "visibility:hidden" in style
