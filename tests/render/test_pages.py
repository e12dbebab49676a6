"""Pages: whatever a plan holds, one document that shows it, runs nothing of it and loads nothing."""

from __future__ import annotations

import html
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.calls import Call, Outcome
from gateway.errors import ToolFailed
from gateway.render import declare, make_plan
from gateway.render.pages import FRAME, HIGHLIGHT_LIMIT, LINKS, NO_RIGHTS, SCRIPTS, make_page
from gateway.tools import Renderer, Tool

HOSTILE = [
    "</script><script>alert(1)</script>",
    "</pre></code></style><img src=x onerror=alert(1)>",
    '"><svg onload=alert(1)>',
    "--><iframe srcdoc=x>",
    "&lt;&amp;\u2028]]>",
]
RENDERERS = [
    declare("code", {"content": "$return"}),
    declare("code", {"content": "$return", "language": "html"}),
    declare("code", {"file": "$return"}),
    declare("document", {"content": "$return"}),
    declare("frame", {"url": "http://localhost:1/$return"}),
]
TAGS = {
    *("a", "article", "body", "code", "div", "h1", "head", "header", "html", "iframe", "main", "meta", "p", "pre"),
    *("span", "strong", "style", "title"),
    *("blockquote", "br", "em", "h2", "h3", "h4", "h5", "h6", "hr", "img", "li", "ol", "ul"),  # of Markdown
}


class Tags(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def planned(renderer: Renderer, outcome: Outcome, title: str = "Show", **arguments: Any) -> dict[str, Any]:
    tool = Tool("a:b", "", title=title)
    return make_plan(renderer, Call(name="a__b", arguments=arguments, tool=tool), outcome).to_dict()


def check_harmless(page: str) -> None:
    tags = Tags(page).found
    assert {tag for tag, _ in tags} <= TAGS
    for tag, attributes in tags:
        assert not [name for name in attributes if name.startswith("on") or name == "srcdoc"], (tag, attributes)
    [policy] = [str(attributes["content"]) for tag, attributes in tags if tag == "meta" and "http-equiv" in attributes]
    assert policy.startswith("default-src 'none'; style-src 'unsafe-inline'; img-src data:")


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("renderer", RENDERERS, ids=lambda renderer: renderer.kind)
def test_text_cannot_escape_its_element(renderer: Renderer, text: str) -> None:
    for outcome in (Outcome(text), Outcome(error=ToolFailed(text, code=text, why=text))):
        plan = planned(renderer, outcome, title=text)
        check_harmless(make_page(plan, text.encode() if "file" in plan["config"] else None, len(text)).html)


@given(text=st.text(), kind=st.sampled_from(["code", "document"]))
def test_any_text_makes_a_harmless_page(text: str, kind: str) -> None:
    check_harmless(make_page(planned(declare(kind, {"content": "$return"}), Outcome(text), title=text)).html)


@given(content=st.binary(max_size=200), kind=st.sampled_from(["code", "document"]))
def test_any_file_makes_a_harmless_page(content: bytes, kind: str) -> None:
    plan = planned(declare(kind, {"file": "a.md"}), Outcome(None))
    check_harmless(make_page(plan, content, len(content)).html)


def test_page_sandbox_allows_only_what_its_renderer_needs() -> None:
    shown = {
        kind: make_page(planned(declare(kind, config), Outcome("x")), content).sandbox
        for kind, config, content in (
            ("code", {"content": "$return"}, None),
            ("document", {"content": "$return"}, None),
            ("html", {"artifact": "a.html"}, b"<p>"),
            ("frame", {"port": 3000}, None),
        )
    }
    assert shown == {"code": NO_RIGHTS, "document": LINKS, "html": SCRIPTS, "frame": FRAME}
    assert "allow-scripts" not in LINKS
    assert "allow-same-origin" not in FRAME
    failed = planned(declare("html", {"artifact": "a.html"}), Outcome(error=ToolFailed("no")))
    assert make_page(failed, b"<script>").sandbox == NO_RIGHTS


def test_code_over_the_highlight_limit_is_plain() -> None:
    renderer = declare("code", {"content": "$return", "language": "python"})
    wide = "x=1" + " " * 996
    short, long, many = (
        make_page(planned(renderer, Outcome(f"{line}\n" * (length // len(line))))).html
        for line, length in ((wide, 4000), (wide, HIGHLIGHT_LIMIT + 4000), ("x=1", 4 * HIGHLIGHT_LIMIT))
    )
    assert 'class="hl-n"' in short and 'class="hl-n"' not in long
    assert f'<span id="L1">{wide}</span>\n<span id="L2">{wide}</span>' in long
    assert 'id="L1"' not in many and "x=1\nx=1\n" in many  # the numbers would make the page too large


@given(st.lists(st.sampled_from(['x = """', "text", '"""', "", "# <b>", "\tif x:"]), min_size=1, max_size=30))
def test_code_has_a_numbered_line_for_each_line_of_the_text(lines: list[str]) -> None:
    text = "\n".join([*lines, "end"])
    renderer = declare("code", {"content": "$return", "language": "python"})
    page = make_page(planned(renderer, Outcome(text))).html
    rows = re.findall(r'<span id="L(\d+)">(.*?)</span>(?=\n<span id="L|</code>)', page)
    assert [number for number, _ in rows] == [str(number) for number in range(1, len(lines) + 2)]
    shown = [html.unescape(re.sub(r"<[^>]*>", "", row)) for _, row in rows]
    assert shown == text.split("\n")
    for _, row in rows:
        assert row.count("<span") == row.count("</span")


def test_every_page_has_the_same_colours_of_text_and_lines() -> None:
    own = make_page(planned(declare("code", {"content": "x"}), Outcome(""))).html
    root = Path(__file__).parents[2]
    for page in (
        root / "toolsets/data-lab/artifacts/chart.html",
        root / "toolsets/data-lab/artifacts/profile.html",
        root / "gateway/bundles/template/artifacts/words.html.template",
    ):
        colours = dict(zip(("ink", "quiet"), ("ink", "ink-3"), strict=True))
        for theirs, ours in colours.items():
            expected = re.findall(rf"--{ours}: (#\w+);", own)
            assert re.findall(rf"--{theirs}: (#\w+);", page.read_text()) == expected, (page.name, theirs)


def test_plan_of_unknown_shape_still_makes_a_page() -> None:
    for plan in ({}, {"truncated": True, "bytes": 1}, {"renderer": "hologram", "config": {}}):
        check_harmless(make_page(plan).html)
