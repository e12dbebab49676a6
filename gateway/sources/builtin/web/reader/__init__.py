"""Makes something readable of a stranger's HTML, in a process of its own that imports nothing else of ours.

A few bytes of HTML can keep any parser busy for hours; whoever waits for this process ends it. It reads a
line of JSON, what is wanted, then the HTML, and writes JSON.
"""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs, urlsplit

from selectolax.lexbor import LexborHTMLParser, LexborNode

from .markdown import to_markdown
from .tree import Tree

_MOST = 50


def main() -> None:
    gc.disable()  # it ends before that would pay
    line, _, html = sys.stdin.buffer.read().partition(b"\n")
    answer = read(html.decode("utf-8", "replace"), json.loads(line))
    sys.stdout.write(json.dumps(answer))
    sys.stdout.flush()


def read(html: str, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """`{"want": "results"}` for a page of search results, else `{"url": …, "whole": …}` for one to read."""
    if wanted.get("want") == "results":
        return {"results": found(html)}
    tree = Tree.of(html)
    text, cut = to_markdown(tree, wanted["url"], whole=wanted["whole"])
    return {"title": tree.title, "markdown": text, "cut": cut or tree.cut}


def found(html: str) -> list[dict[str, str]] | None:
    """Title, URL and snippet of each; advertisements are left out. None when this is no page of results,
    as when it asks who we are instead."""
    page = LexborHTMLParser(html)
    shown = [result for entry in page.css(".result")[:_MOST] if (result := _result(entry))]
    return shown if shown or page.css_first(".no-results, .result--no-result") else None


def _result(entry: LexborNode) -> dict[str, str] | None:
    link, snippet = entry.css_first("a.result__a"), entry.css_first(".result__snippet")
    if link is None or "result--ad" in (entry.attributes.get("class") or ""):
        return None
    url = _target(link.attributes.get("href") or "")
    return {"title": _text(link), "url": url, "snippet": _text(snippet)} if url else None


def _target(href: str) -> str:
    """Where a link leads in the end: it goes by way of a page that counts it."""
    try:
        parts = urlsplit(href)
        target = parse_qs(parts.query).get("uddg", [href])[0] if parts.path == "/l/" else href
        return target if urlsplit(target).scheme in ("http", "https") else ""
    except ValueError:
        return ""


def _text(node: LexborNode | None) -> str:
    return "" if node is None else " ".join(node.text().split())
