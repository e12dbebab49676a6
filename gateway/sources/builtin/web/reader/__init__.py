"""Converts untrusted HTML, in a child process that imports nothing else of the gateway.

A few bytes of HTML can keep a parser busy for hours, so the parent kills the process after a timeout. The process reads
a line of JSON with the options, then the HTML, and writes JSON.
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
from .tree import HtmlPage

_RESULTS = 50


def main() -> None:
    gc.disable()  # the process ends before a collection would pay
    line, _, html = sys.stdin.buffer.read().partition(b"\n")
    result = read(html.decode("utf-8", "replace"), json.loads(line))
    sys.stdout.write(json.dumps(result))
    sys.stdout.flush()


def read(html: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a page. `{"want": "results"}` extracts search results of DuckDuckGo; `{"url": …, "whole": …}` converts
    the page to Markdown."""
    if options.get("want") == "results":
        return {"results": parse_results(html)}
    page = HtmlPage.parse(html)
    text, cut = to_markdown(page, options["url"], whole=options["whole"])
    return {"title": page.title, "markdown": text, "cut": cut or page.cut}


def parse_results(html: str) -> list[dict[str, str]] | None:
    """Return title, URL and snippet of each result, without advertisements; None for another page, such as a robot
    check."""
    page = LexborHTMLParser(html)
    results = [result for entry in page.css(".result")[:_RESULTS] if (result := _result(entry))]
    return results if results or page.css_first(".no-results, .result--no-result") else None


def _result(entry: LexborNode) -> dict[str, str] | None:
    link, snippet = entry.css_first("a.result__a"), entry.css_first(".result__snippet")
    if link is None or "result--ad" in (entry.attributes.get("class") or ""):
        return None
    url = _target(link.attributes.get("href") or "")
    return {"title": _text(link), "url": url, "snippet": _text(snippet)} if url else None


def _target(href: str) -> str:
    """Return the target of a result's link, which passes through a tracking page."""
    try:
        parts = urlsplit(href)
        target = parse_qs(parts.query).get("uddg", [href])[0] if parts.path == "/l/" else href
        return target if urlsplit(target).scheme in ("http", "https") else ""
    except ValueError:
        return ""


def _text(node: LexborNode | None) -> str:
    return "" if node is None else " ".join(node.text().split())
