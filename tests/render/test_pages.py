"""Pages: whatever a plan holds, one document that shows it, runs nothing of it and loads nothing."""

from __future__ import annotations

import html
import json
import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.calls import Call, Outcome
from gateway.errors import ToolFailed
from gateway.render import declare, make_plan
from gateway.render.pages import (
    FRAME,
    HIGHLIGHT_LIMIT,
    LINKS,
    PLAN_ID,
    SCRIPTS,
    Page,
    choose_view,
    make_content,
    make_page,
)
from gateway.serve.web.inline import read_view
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
VIEWS = {name: read_view(name) for name in ("auto", "code", "document", "frame", "html")}


class Tags(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.shown: dict[str, Any] = {}
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.found[-1:] == [("script", {"type": "application/json", "id": PLAN_ID})] and not self.shown:
            self.shown = json.loads(data)


def page_of(plan: dict[str, Any], content: bytes | None = None) -> Page:
    return make_page(VIEWS[choose_view(plan)], plan, content, len(content or b""))


def planned(renderer: Renderer, outcome: Outcome, title: str = "Show", **arguments: Any) -> dict[str, Any]:
    tool = Tool("a:b", "", title=title)
    return make_plan(renderer, Call(name="a__b", arguments=arguments, tool=tool), outcome).to_dict()


def check_harmless(page: Page, plan: dict[str, Any]) -> dict[str, Any]:
    """The page is the view and nothing else, with the plan in it unchanged; returns the content."""
    parsed = Tags(page.html)
    view = Counter(tag for tag, _ in Tags(VIEWS[choose_view(plan)]).found)
    assert Counter(tag for tag, _ in parsed.found) == view + Counter(["meta", "script"])
    assert parsed.shown["plan"] == json.loads(json.dumps(plan))
    [policy] = [str(each["content"]) for tag, each in parsed.found if tag == "meta" and "http-equiv" in each]
    assert policy.startswith("default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:")
    content: dict[str, Any] = parsed.shown.get("content", {})
    tags = Tags(content.get("html", "")).found
    assert not [tag for tag, _ in tags if tag in ("script", "style", "iframe", "svg", "form", "meta", "object")]
    assert not [name for _, attributes in tags for name in attributes if name.startswith("on") or name == "srcdoc"]
    return content


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("renderer", RENDERERS, ids=lambda renderer: renderer.kind)
def test_text_cannot_escape_its_element(renderer: Renderer, text: str) -> None:
    for outcome in (Outcome(text), Outcome(error=ToolFailed(text, code=text, why=text))):
        plan = planned(renderer, outcome, title=text)
        check_harmless(page_of(plan, text.encode() if "file" in plan["config"] else None), plan)


@given(text=st.text(), kind=st.sampled_from(["code", "document"]))
def test_any_text_makes_a_harmless_page(text: str, kind: str) -> None:
    plan = planned(declare(kind, {"content": "$return"}), Outcome(text), title=text)
    assert check_harmless(page_of(plan), plan).get("text") == plan["config"].get("content")


@given(content=st.binary(max_size=200), kind=st.sampled_from(["code", "document"]))
def test_any_file_makes_a_harmless_page(content: bytes, kind: str) -> None:
    plan = planned(declare(kind, {"file": "a.md"}), Outcome(None))
    assert check_harmless(page_of(plan, content), plan)["binary"] == (b"\0" in content)


def test_page_sandbox_allows_only_what_its_renderer_needs() -> None:
    shown = {
        kind: page_of(planned(declare(kind, config), Outcome("x")), content).sandbox
        for kind, config, content in (
            ("code", {"content": "$return"}, None),
            ("document", {"content": "$return"}, None),
            ("html", {"artifact": "a.html"}, b"<p>"),
            ("frame", {"port": 3000}, None),
        )
    }
    assert shown == {"code": SCRIPTS, "document": LINKS, "html": SCRIPTS, "frame": FRAME}
    assert not [rights for rights in shown.values() if "allow-same-origin" in rights]
    failed = planned(declare("frame", {"port": 3000}), Outcome(error=ToolFailed("no")))
    assert page_of(failed).sandbox == SCRIPTS


def test_code_over_the_highlight_limit_is_plain() -> None:
    renderer = declare("code", {"content": "$return", "language": "python"})
    short, long = (
        make_content(planned(renderer, Outcome("x=1\n" * (length // 4))), None, 0)
        for length in (4000, HIGHLIGHT_LIMIT + 4000)
    )
    assert 'class="hl-n"' in short["html"] and (short["language"], short["truncated"]) == ("python", False)
    assert (long["html"], long["text"]) == ("", "x=1\n" * (HIGHLIGHT_LIMIT // 4 + 1000))


@given(st.lists(st.sampled_from(['x = """', "text", '"""', "", "# <b>", "\tif x:"]), min_size=1, max_size=30))
def test_highlighted_code_keeps_every_line_of_the_text(lines: list[str]) -> None:
    text = "\n".join([*lines, "end"])
    renderer = declare("code", {"content": "$return", "language": "python"})
    shown = make_content(planned(renderer, Outcome(text)), None, 0)["html"]
    assert html.unescape(re.sub(r"<[^>]*>", "", shown)) == text
    assert shown.count("<span") == shown.count("</span")


def test_every_page_has_the_same_colours_of_text_and_lines() -> None:
    root = Path(__file__).parents[2]
    own = (root / "gateway/serve/web/core/tokens.css").read_text()
    for page in (
        root / "toolsets/data-lab/artifacts/chart.html",
        root / "toolsets/data-lab/artifacts/profile.html",
        root / "gateway/bundles/template/artifacts/words.html.template",
    ):
        colours = dict(zip(("ink", "quiet"), ("ink", "ink-3"), strict=True))
        for theirs, ours in colours.items():
            [expected] = re.findall(rf"--{ours}: light-dark\((#\w+), (#\w+)\);", own)
            assert tuple(re.findall(rf"--{theirs}: (#\w+);", page.read_text())) == expected, (page.name, theirs)


def test_plan_of_unknown_shape_still_makes_a_page() -> None:
    for plan in ({}, {"truncated": True, "bytes": 1}, {"renderer": "hologram", "config": {}}):
        check_harmless(page_of(plan), plan)
