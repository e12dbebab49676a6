"""Scripts in disguise, through Markdown and through highlighting: none survives."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.render.highlight import highlight
from gateway.render.pages import to_html

from .documents import Taken

PAYLOADS = [
    "<script>alert(1)</script>",
    "<SCRIPT SRC=//evil.example/x.js></SCRIPT>",
    "<script\x20type='text/javascript'>alert(1)</script>",
    "<script/x>alert(1)</script>",
    "<scr<script>ipt>alert(1)</scr</script>ipt>",
    "<<script>alert(1);//<</script>",
    "<script>alert(1)//",
    "<img src=x onerror=alert(1)>",
    "<img src=x:x onerror=alert(1)//",
    '<img src="x` `<script>alert(1)</script>"` `>',
    "<IMG SRC=javascript:alert(1)>",
    "<IMG SRC=`javascript:alert(1)`>",
    '<img """><script>alert(1)</script>">',
    "<img src=x:alert(alt) onerror=eval(src) alt=0>",
    "<img/src=`%00` onerror=this.onerror=confirm(1)",
    "<svg onload=alert(1)>",
    "<svg/onload=alert(1)//",
    "<svg><script>alert(1)</script></svg>",
    "<svg><a xlink:href='javascript:alert(1)'><text y=20>x</text></a></svg>",
    "<svg><animate onbegin=alert(1) attributeName=x dur=1s>",
    "<svg><style><img src=x onerror=alert(1)></style></svg>",
    "<math><mtext><table><mglyph><style><img src=x onerror=alert(1)>",
    "<math href='javascript:alert(1)'>x</math>",
    "<form><math><mtext></form><form><mglyph><style></math><img src onerror=alert(1)>",
    "<noscript><p title='</noscript><img src=x onerror=alert(1)>'>",
    "<textarea><img title='</textarea><img src=x onerror=alert(1)>'>",
    "<title><a title='</title><script>alert(1)</script>'>",
    "<!--><script>alert(1)</script>-->",
    "<!--<img src='--><img src=x onerror=alert(1)//'>",
    "<![CDATA[<script>alert(1)</script>]]>",
    "<?xml-stylesheet href='javascript:alert(1)'?>",
    "<iframe src='javascript:alert(1)'></iframe>",
    "<iframe srcdoc='<script>alert(1)</script>'></iframe>",
    "<object data='javascript:alert(1)'></object>",
    "<embed src='javascript:alert(1)'>",
    "<base href='javascript:alert(1)//'>",
    "<link rel=stylesheet href='javascript:alert(1)'>",
    "<meta http-equiv=refresh content='0;url=javascript:alert(1)'>",
    "<style>@import 'javascript:alert(1)';</style>",
    "<div style='background:url(javascript:alert(1))'>x</div>",
    "<p style='x:expression(alert(1))'>x</p>",
    "<body onload=alert(1)>",
    "<details open ontoggle=alert(1)>x</details>",
    "<video><source onerror=alert(1)></video>",
    "<audio src=x onerror=alert(1)>",
    "<input autofocus onfocus=alert(1)>",
    "<button formaction='javascript:alert(1)'>x</button>",
    "<form action='javascript:alert(1)'><input type=submit></form>",
    "<a href='javascript:alert(1)'>x</a>",
    "<a href='JaVaScRiPt:alert(1)'>x</a>",
    "<a href=' javascript:alert(1)'>x</a>",
    "<a href='\x01javascript:alert(1)'>x</a>",
    "<a href='java\tscript:alert(1)'>x</a>",
    "<a href='java&#10;script:alert(1)'>x</a>",
    "<a href='&#106;&#97;&#118;&#97;&#115;&#99;&#114;&#105;&#112;&#116;&#58;alert(1)'>x</a>",
    "<a href='&#x6A&#x61&#x76&#x61&#x73&#x63&#x72&#x69&#x70&#x74&#x3A;alert(1)'>x</a>",
    "<a href='javascript&colon;alert(1)'>x</a>",
    "<a href='javascript&Tab;:alert(1)'>x</a>",
    "<a href='vbscript:msgbox(1)'>x</a>",
    "<a href='data:text/html;base64,PHNjcmlwdD5hbGVydCgxKTwvc2NyaXB0Pg=='>x</a>",
    "<a href='DATA:text/html,<script>alert(1)</script>'>x</a>",
    "<a href='x' onclick=alert(1) onmouseover=alert(1)>x</a>",
    "<a href=x target=_self rel=opener>x</a>",
    "<b onclick='alert(1)' id=location name=location>x</b>",
    "<span class=hl-k onclick=alert(1)>x</span>",
    "<x onclick=alert(1) contenteditable autofocus>x</x>",
    "[x](javascript:alert(1))",
    "[x](JaVaScRiPt:alert(1))",
    "[x]( javascript:alert(1))",
    "[x](javascript&#58;alert(1))",
    "[x](java&Tab;script:alert(1))",
    "[x](&#x6A;avascript:alert(1))",
    "[x](\x01javascript:alert(1))",
    "[x](<javascript:alert(1)>)",
    "[x](vbscript:msgbox(1))",
    "[x](data:text/html,<script>alert(1)</script>)",
    "[x](data:text/html;base64,PHNjcmlwdD4=)",
    "[x]: javascript:alert(1)\n\n[x]",
    "[x][y]\n\n[y]: <data:text/html,x> 'onclick=alert(1)'",
    "[x](https://a.example 'a\" onmouseover=\"alert(1)')",
    '[x](https://a.example/"onmouseover="alert(1))',
    "![x](javascript:alert(1))",
    '![x" onerror="alert(1)](https://a.example/x.png)',
    "![x](x 'y\" onerror=\"alert(1)')",
    "![x](data:image/svg+xml,<svg onload=alert(1)>)",
    "<javascript:alert(1)>",
    "<javascript:alert(1)//@a.example>",
    "`<script>alert(1)</script>`",
    "```html\n<script>alert(1)</script>\n```",
    '```"><script>alert(1)</script>\nx\n```',
    '```x" onclick="alert(1)\nx\n```',
    "~~~ <img/src=x/onerror=alert(1)>\nx\n~~~",
    "| <script>alert(1)</script> | b |\n|---|---|\n| [x](javascript:alert(1)) | <img src=x onerror=alert(1)> |",
    "# <img src=x onerror=alert(1)>",
    "&lt;script&gt;alert(1)&lt;/script&gt;",
    "\\<script>alert(1)\\</script>",
    "<scr\x00ipt>alert(1)</scr\x00ipt>",
    "<a\x00href='javascript:alert(1)'>x</a>",
    "\ufeff<script>alert(1)</script>",
    "＜script＞alert(1)＜/script＞",
]

HARMLESS = re.compile(r"https?://|mailto:|data:image/(?!svg)", re.IGNORECASE)
SCHEME = re.compile(r"[\x00-\x20]*[a-z][a-z0-9+.-]*[\x00-\x20]*:", re.IGNORECASE)
FORBIDDEN = {
    "script",
    "style",
    "iframe",
    "object",
    "embed",
    "svg",
    "math",
    "form",
    "input",
    "button",
    "base",
    "link",
    "meta",
}


def assert_harmless(html: str) -> None:
    taken = Taken(html)
    assert not FORBIDDEN & set(taken.tags)
    assert not taken.comments
    for tag, name, value in taken.attributes:
        assert not name.startswith("on")
        assert name not in ("style", "id", "name", "srcdoc", "srcset", "formaction", "action", "xlink:href")
        if name in ("href", "src"):
            squeezed = re.sub(r"[\x00-\x20]", "", value)
            assert HARMLESS.match(squeezed) or not SCHEME.match(squeezed), f"{tag} {name}={value!r}"
        if name == "target":
            assert value == "_blank"
        if name == "rel":
            assert value == "noopener noreferrer nofollow"


def test_corpus_of_attacks_is_large_enough() -> None:
    assert len(PAYLOADS) == len(set(PAYLOADS)) >= 90


@pytest.mark.parametrize("payload", PAYLOADS)
def test_no_script_survives_markdown(payload: str) -> None:
    for text in (payload, f"text {payload} text", f"> {payload}", f"- {payload}", f"<div>\n\n{payload}\n\n</div>"):
        assert_harmless(to_html(text))


@pytest.mark.parametrize("payload", PAYLOADS)
def test_no_element_but_spans_survives_highlighting(payload: str) -> None:
    for language in ("auto", "html", "javascript", "markdown", "php", "text", payload):
        html = highlight(payload, language, filename=payload).html
        assert set(Taken(html).tags) <= {"span"}
        assert_harmless(html)


@given(st.lists(st.sampled_from(PAYLOADS) | st.text(st.sampled_from("<>'\"`[]()!\n /=&;:-"), max_size=6), max_size=5))
def test_no_script_survives_in_combined_attacks(pieces: list[str]) -> None:
    assert_harmless(to_html("".join(pieces)))
    assert_harmless(highlight("".join(pieces), "html").html)


@pytest.mark.parametrize(
    "html",
    [
        "<script></script>",
        "<a href='javascript:x'>",
        "<a href=' java\nscript:x'>",
        "<b onclick=x>",
        "<img src='data:text/html,x'>",
    ],
)
def test_checker_detects_scripts(html: str) -> None:
    with pytest.raises(AssertionError):
        assert_harmless(html)
