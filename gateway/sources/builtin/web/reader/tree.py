"""An HTML page as a tree of bounded size and depth, without invisible elements."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from selectolax.lexbor import LexborHTMLParser, LexborNode

# Levels of the tree, several times the depth of usual pages; deeper elements are attached at this level.
DEPTH_LIMIT = 120

# Elements of the tree; the rest of a larger page is left out.
ELEMENT_LIMIT = 400_000

_INVISIBLE = frozenset(
    {"script", "style", "noscript", "template", "iframe", "object", "embed", "canvas", "audio", "video", "svg"}
    | {"head", "select", "textarea", "input", "button", "datalist", "dialog", "map", "frameset", "noframes"}
)
_ATTRIBUTES = frozenset({"href", "src", "alt", "class", "role", "start", "alttext", "type"})


@dataclass(slots=True)
class Element:
    tag: str
    attributes: dict[str, str] = field(default_factory=dict)
    children: list[Element | str] = field(default_factory=list)

    def elements(self) -> Iterator[Element]:
        """Yield every element below this one, in document order."""
        for child in self.children:
            if isinstance(child, Element):
                yield child
                yield from child.elements()

    @property
    def text(self) -> str:
        return "".join(child if isinstance(child, str) else child.text for child in self.children)


@dataclass(frozen=True)
class HtmlPage:
    """A parsed page. `base` is the URL that its links are relative to, if not its own; `cut` means that it was too
    large."""

    body: Element
    title: str | None = None
    base: str | None = None
    cut: bool = False

    @classmethod
    def parse(cls, html: str) -> HtmlPage:
        parser = LexborHTMLParser(html)
        title, base = parser.css_first("head > title"), parser.css_first("head > base[href]")
        body, cut = _copy(parser.body)
        text = " ".join(title.text().split())[:500] if title is not None else ""
        return cls(body, text or None, base.attributes.get("href") if base is not None else None, cut)


def _copy(top: LexborNode | None) -> tuple[Element, bool]:
    """Copy a body, and return whether elements were left out. Without recursion: the page decides how deep it is."""
    body = Element("body")
    parents = [body]
    node = top.first_child if top is not None else None
    levels, count = 1, 0
    while node is not None and levels > 0:
        inner = None
        if node.is_text_node:
            parents[min(levels, DEPTH_LIMIT) - 1].children.append(node.text_content or "")
        elif node.is_element_node and not _is_invisible(node):
            count += 1
            if count > ELEMENT_LIMIT:
                return body, True
            element = Element(node.tag or "", {k: v or "" for k, v in node.attributes.items() if k in _ATTRIBUTES})
            parents[min(levels, DEPTH_LIMIT) - 1].children.append(element)
            inner = node.first_child
            if inner is not None:
                levels += 1
                del parents[levels - 1 :]
                if levels <= DEPTH_LIMIT:
                    parents.append(element)
        while inner is None and node is not None:
            inner = node.next
            if inner is None:
                node, levels = node.parent, levels - 1
                if levels == 0:
                    return body, False
        node = inner
    return body, False


def _is_invisible(node: LexborNode) -> bool:
    if node.tag in _INVISIBLE:
        return True
    attributes = node.attributes
    if "hidden" in attributes or attributes.get("aria-hidden") == "true":
        return node.tag != "body"
    style = (attributes.get("style") or "").replace(" ", "").lower()
    return "display:none" in style or "visibility:hidden" in style
