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

from .duckduckgo import found
from .markdown import to_markdown
from .tree import Tree


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
