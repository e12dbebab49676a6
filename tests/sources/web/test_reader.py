"""Pages as Markdown, and pages that are made to keep a parser busy."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from eventually import TIMEOUT, async_eventually
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import ToolFailed, Unavailable
from gateway.sandbox import Sandbox, detect
from gateway.sandbox.bwrap import Bubblewrap
from gateway.sandbox.detect import Unconfined
from gateway.sandbox.landlock import Landlock
from gateway.sources.builtin.web.page import HtmlReader
from gateway.sources.builtin.web.reader import read

URL = "https://a.test/docs/page"


def markdown(html: str, *, whole: bool = True) -> str:
    text: str = read(html, {"url": URL, "whole": whole})["markdown"]
    return text


PAGES = {
    "headings": ("<h1>One</h1><h3>Three <i>x</i></h3>", "# One\n\n### Three *x*"),
    "paragraphs": ("<p>a\n  b<p>c<div>d</div>e", "a b\n\nc\n\nd\n\ne"),
    "breaks": ("<p>a<br>b<br/>c", "a\nb\nc"),
    "marks": ("<b> bold </b>x<em>it<b>al</b>ic</em> <s>gone</s><b></b>", "**bold** x*it**al**ic* ~~gone~~"),
    "same mark twice": ("<b>a<strong>b</strong>c</b>", "**abc**"),
    "mark over paragraphs": ("<b><p>a</p><p>b</p></b>", "**a**\n\n**b**"),
    "links": ('<a href="x?a=b&amp;c">t</a> <a href="#top">up</a>', "[t](https://a.test/docs/x?a=b&c) up"),
    "odd links": ('<a href="/a (b)">t</a><a href="javascript:x()">j</a><a href="http://[">z</a><a>n</a>',
                  "[t](https://a.test/a%20%28b%29)jzn"),
    "base": ("<base href=//b.test/c/><a href=d>t</a>", "[t](https://b.test/c/d)"),
    "link over blocks": ("<a href=/c><h2>T</h2><p>x</p></a>", "## [T](https://a.test/c)\n\n[x](https://a.test/c)"),
    "images": ('<img src=i.png alt="A  cat"><img src=j.png alt=""><img src="data:x" alt=D>',
               "![A cat](https://a.test/docs/i.png)[image: D]"),
    "lists": ("<ul><li>a<li>b<ol start=3><li>c<li>d</ol></ul>", "- a\n- b\n  3. c\n  4. d"),
    "two lists": ("<ul><li>a</ul><ol><li>b</ol>", "- a\n\n1. b"),
    "paragraphs in items": ("<ul><li><p>a</p><p>b</p></li><li>c</ul>", "- a\n\n  b\n- c"),
    "quote": ("<blockquote><p>a<p>b<ul><li>c</ul></blockquote>d", "> a\n>\n> b\n>\n> - c\n\nd"),
    "code": ("<p>use <code>a_b * `c`</code> and <kbd>q</kbd>", "use `` a_b * `c` `` and `q`"),
    "code block": ('<pre><code class="hl language-py">\nif x:\n    y\n\n</code></pre>', "```py\nif x:\n    y\n```"),
    "code with fences": ("<pre>```\na\n```</pre>", "````\n```\na\n```\n````"),
    "code in items": ("<ol><li>do<pre>a\n b</pre></ol>", "1. do\n\n   ```\n   a\n    b\n   ```"),
    "table": ("<table><caption>C</caption><tr><th>A<th>B|<tr><td>1<td><p>x</p><p><b>y</b></p></table>",
              "C\n\n| A | B\\| |\n| --- | --- |\n| 1 | x **y** |"),
    "layout table": ("<table><tr><td>a<table><tr><td>b<td>c</table></table>", "a\n\n| b | c |\n| --- | --- |"),
    "one column": ("<table><tr><td>a<tr><td>b</table>", "a\n\nb"),
    "definitions": ("<dl><dt>T<dd>d</dl>", "**T**\n\n: d"),
    "rule": ("a<hr>b", "a\n\n---\n\nb"),
    "words that look like structure": ("<p># a<p>- b<p>1. c<p>> d<p>a # b<p>---",
                                       "\\# a\n\n\\- b\n\n1\\. c\n\n\\> d\n\na # b\n\n\\---"),
    "unseen": ("<p>a<script>s()</script><style>x</style><p hidden>h<p style='display: NONE'>n<p aria-hidden=true>r"
               "<template>t</template><noscript>j</noscript><!-- c -->", "a"),
    "formula": ('<math alttext="x^2"><mi>x</mi></math>', "x^2"),
    "nothing": ("", ""),
    "entities": ("<p>&lt;b&gt; &amp;amp; &nbsp;x &#128512;", "<b> &amp; x 😀"),
}  # fmt: skip


@pytest.mark.parametrize(("html", "text"), PAGES.values(), ids=PAGES)
def test_a_page_says_the_same_as_markdown(html: str, text: str) -> None:
    assert markdown(html) == text


PROSE = "<p>" + "Some words about the matter at hand. " * 10 + "</p>"
AROUND = "<ul>" + "".join(f'<li><a href="/{n}">Another page of ours, number {n}</a>' for n in range(30)) + "</ul>"


@pytest.mark.parametrize(
    "html",
    [
        f"<nav>{AROUND}</nav><main><h1>T</h1>{PROSE}</main><footer>imprint{PROSE}</footer>",
        f"<div id=side>{AROUND}</div><div><div><h1>T</h1>{PROSE}{PROSE}{PROSE}</div></div>{AROUND}",
        f"<div role=navigation>{AROUND}</div><article><header><h1>T</h1></header>{PROSE}</article><article>x</article>",
        f"<main>x</main><div>{AROUND}</div><div><h1>T</h1>{PROSE}{PROSE}</div>",
        f"<table><tr><td>{AROUND}<td><h1>T</h1>{PROSE}{PROSE}{PROSE}</table>",
    ],
)
def test_the_main_part_is_found_and_the_rest_is_left_out(html: str) -> None:
    text = markdown(html, whole=False)
    assert "# T" in text and "Some words about the matter" in text
    assert "Another page of ours" not in text and "imprint" not in text
    assert "Another page of ours" in markdown(html)


def test_a_page_of_links_alone_is_shown_whole() -> None:
    assert markdown(f"<nav>{AROUND}</nav>", whole=False).count("Another page") == 30


@given(st.text(alphabet=st.sampled_from("<>/abdiplu =\"'&;!-\n#*_`|"), max_size=300), st.booleans())
def test_whatever_it_is_something_is_made_of_it(html: str, whole: bool) -> None:
    markdown(html, whole=whole).encode("utf-8")


@given(st.lists(st.text(alphabet="abc äß", min_size=1, max_size=20), min_size=1, max_size=8))
def test_no_word_is_lost_or_added(words: list[str]) -> None:
    html = "".join(f"<section><p>{word}</p></section>" for word in words)
    assert markdown(html).split() == " ".join(words).split()


@pytest.mark.parametrize(
    "tag", ["div", "b", "ul><li", "blockquote", "table><tr><td", "span", "a href=x", "h1", "dl><dd"]
)
def test_any_depth_is_read(tag: str) -> None:
    assert "deep" in markdown(f"<{tag}>" * 3000 + "deep")


@pytest.mark.slow
def test_a_page_without_end_is_cut() -> None:
    page = read("<p>" + "<br>".join(["x" * 1000] * 5000) + "<p>" + "<p>y" * 500_000, {"url": URL, "whole": True})
    assert page["cut"] and len(page["markdown"]) < 6_000_000


async def reading(html: str, **more: Any) -> dict[str, Any]:
    return await HtmlReader().read(html, {"url": URL, "whole": False}, **more)


@pytest.mark.anyio
@pytest.mark.parametrize("sandbox", [None, Bubblewrap, Landlock, Unconfined])
async def test_a_page_is_read_in_a_process_of_its_own(sandbox: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    if sandbox is not None:
        try:
            made: Sandbox = await detect._try_sandbox(sandbox)
        except Unavailable:
            pytest.skip("not on this machine")
        monkeypatch.setitem(vars(detect), "_known", [detect.Survey(None if sandbox is Unconfined else made)])
    assert await reading("<title>T</title><p>é \ud800") == {"title": "T", "markdown": "é ?", "cut": False}


BUSY: dict[str, Callable[[], str]] = {
    "deep": lambda: "<div>" * 1_600_000,
    "formatting": lambda: "".join(f"<b id={n}>" for n in range(60_000)) + "<p>" * 60_000,
    "attributes": lambda: "<a " + " ".join(f"a{n:x}" for n in range(1_000_000)) + ">x",
}


@pytest.mark.anyio
@pytest.mark.slow
@pytest.mark.parametrize("html", BUSY.values(), ids=BUSY)
async def test_a_page_that_keeps_a_parser_busy_is_given_up_and_nobody_waits_for_it(html: Callable[[], str]) -> None:
    turns = 0

    async def watch() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0.01)
            turns += 1

    busy = html()
    watching = asyncio.create_task(watch())
    with pytest.raises(ToolFailed, match="fetch it with format='raw'") as refused:
        await reading(busy, seconds=2)
    watching.cancel()
    assert refused.value.code == "UNREADABLE_PAGE"
    assert turns > 5  # one or two if parsing blocked the loop


@pytest.mark.anyio
async def test_a_call_that_is_given_up_leaves_no_reader_behind() -> None:
    task = asyncio.create_task(reading(BUSY["deep"](), seconds=2 * TIMEOUT))
    await async_eventually(readers)
    task.cancel()
    with pytest.raises(asyncio.CancelledError), anyio.fail_after(TIMEOUT):
        await task
    assert not readers()


def readers() -> list[Path]:
    """The reading processes that this one has started."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            is_reader = b"from reader import main" in (path / "cmdline").read_bytes()
            if is_reader and f"PPid:\t{os.getpid()}\n" in (path / "status").read_text():
                found.append(path)
    return found
