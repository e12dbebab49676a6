"""Which part of a page one came to read."""

from __future__ import annotations

from collections.abc import Mapping

from .tree import Element

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
