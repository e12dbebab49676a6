"""Markdown as people write it, shown; and what it may link to."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.render.pages import MARKDOWN_LIMIT, to_html

from .documents import Taken


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("# Title", "<h1>Title</h1>"),
        ("a *b* **c** `d` ~~e~~", "<p>a <em>b</em> <strong>c</strong> <code>d</code> <s>e</s></p>"),
        ("1. a\n2. b", "<ol>\n<li>a</li>\n<li>b</li>\n</ol>"),
        ("3. a", '<ol start="3">\n<li>a</li>\n</ol>'),
        ("> q", "<blockquote>\n<p>q</p>\n</blockquote>"),
        ("---", "<hr>"),
        ("a & b < c", "<p>a &amp; b &lt; c</p>"),
        ("press <kbd>Ctrl</kbd>", "<p>press <kbd>Ctrl</kbd></p>"),
        ("<details><summary>more</summary>x</details>", "<details><summary>more</summary>x</details>"),
        ("half \ud800 pair", "<p>half ? pair</p>"),
        ("<!-- note -->\n\nx", "<p>x</p>"),
    ],
)
def test_markdown_is_converted_to_html(text: str, html: str) -> None:
    assert to_html(text).strip() == html


def test_a_table_is_aligned_without_inline_styles() -> None:
    html = to_html("| a | b |\n|:-:|--:|\n| 1 | 2 |")
    assert '<th align="center">a</th>' in html
    assert '<td align="right">2</td>' in html
    assert "style" not in html


def test_code_blocks_are_highlighted_by_classes() -> None:
    html = to_html("```python\nif x: pass\n```")
    assert '<pre><code class="language-python"><span class="hl-k">if</span>' in html


def test_code_of_no_language_is_left_plain() -> None:
    assert to_html("```\nif x: <b>\n```") == "<pre><code>if x: &lt;b&gt;\n</code></pre>\n"
    assert to_html("    <b>") == "<pre><code>&lt;b&gt;\n</code></pre>\n"


@pytest.mark.parametrize(
    "url", ["https://a.example/x?y=1", "http://a.example", "mailto:a@b.example", "docs/a.md", "/a", "#x"]
)
def test_links_open_in_a_new_window_without_opener(url: str) -> None:
    taken = Taken(to_html(f"[a]({url})"))
    assert sorted(taken.attributes) == [
        ("a", "href", url),
        ("a", "rel", "noopener noreferrer nofollow"),
        ("a", "target", "_blank"),
    ]


@pytest.mark.parametrize(
    "url", ["https://a.example/x.png", "http://a.example/x.png", "img/x.png", "../x.png", "data:image/png;base64,AAAA"]
)
def test_images_of_http_relative_and_data_urls_are_kept(url: str) -> None:
    assert ("img", "src", url) in Taken(to_html(f"![x]({url})")).attributes
    assert ("img", "src", url) in Taken(to_html(f'<img src="{url}">')).attributes


@pytest.mark.parametrize(
    "url",
    [
        "javascript:alert(1)",
        "file:///etc/passwd",
        "data:text/html,x",
        "data:image/svg+xml,<svg>",
        "mailto:a@b",
        "blob:x",
        "ftp://a/x",
    ],
)
def test_images_of_other_urls_are_removed(url: str) -> None:
    for text in (f"![x]({url})", f"<img src='{url}'>"):
        assert "src" not in {name for _, name, _ in Taken(to_html(text)).attributes}


def test_too_much_html_is_shown_as_text() -> None:
    assert Taken(to_html("<b>" * 10_000)).text.startswith("<b><b>")


@pytest.mark.parametrize("classes", ["btn", "hl-k btn", "language-x y", "modal", "hl-"])
def test_markdown_cannot_imitate_elements_of_the_page(classes: str) -> None:
    html = to_html(f'<span class="{classes}" id="root" name="x" style="position:fixed">a</span>')
    assert html.strip() == "<p><span>a</span></p>"


def test_too_long_markdown_is_plain() -> None:
    html = to_html("<b>*x*</b>" + " " * MARKDOWN_LIMIT)
    assert html.startswith("<pre>&lt;b&gt;*x*&lt;/b&gt;")


@given(st.text(st.sampled_from("<>&'\"/*#`$ \n\t{}[]()=;:!-_~|ax1é\\\x00"), max_size=60) | st.text(max_size=60))
def test_any_markdown_becomes_allowed_elements_only(text: str) -> None:
    assert set(Taken(to_html(text)).tags) <= {
        *("p", "em", "strong", "code", "pre", "s", "a", "img", "ul", "ol", "li", "blockquote", "hr", "br"),
        *("h1", "h2", "h3", "h4", "h5", "h6", "table", "thead", "tbody", "tr", "th", "td", "span"),
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    "piece",
    ["[", "![", "*a_", "**", "`", "> ", "<a ", "<!--", "- ", "[a](", "[a](<b", "| ", "~~", "&", "\\", "<b>", "a\n\n"],
)
def test_hostile_markdown_is_converted_in_time(piece: str) -> None:
    started = time.process_time()
    to_html(piece * (40_000 // len(piece)))
    assert time.process_time() - started < 5
