"""Texts that become code where a page takes them for HTML, a script, a style or an address. Each that ran would set
`window.hacked` in the page, open a dialog or load something."""

from __future__ import annotations

from playwright.async_api import Page

RUN = "window.hacked=1"
_EVENTS = ["onerror", "onload", "onfocus", "onmouseover", "onclick", "onanimationstart", "ontoggle", "onbegin", "oncut"]
_TAGS = ["img", "svg", "iframe", "video", "audio", "body", "details", "input", "object"]

PAYLOADS = [
    # Elements.
    f"<script>{RUN}</script>",
    f"<SCRIPT>{RUN}</SCRIPT>",
    f"<scr<script>ipt>{RUN}</scr</script>ipt>",
    f"<script src=data:text/javascript,{RUN}></script>",
    f"<script type=module>{RUN}</script>",
    f"<script\x20type='text/javascript'>{RUN}</script\x20>",
    f"<script/x>{RUN}</script>",
    f"<img src=x onerror={RUN}>",
    f"<img src=x onerror='{RUN}'//",
    f'<img src="x" onerror="{RUN}">',
    f"<img/src/onerror={RUN}>",
    f"<img src=x:x onerror\n=\n{RUN}>",
    f"<svg onload={RUN}>",
    f"<svg/onload={RUN}>",
    f"<svg><script>{RUN}</script></svg>",
    f"<svg><script xlink:href=data:,{RUN}></script></svg>",
    f"<svg><animate onbegin={RUN} attributeName=x dur=1s>",
    f"<svg><a xlink:href=javascript:{RUN}><text y=20>x</text></a></svg>",
    f"<svg><use href='data:image/svg+xml,<svg id=x onload={RUN}/>#x'>",
    f"<svg><foreignObject><iframe srcdoc='<script>parent.{RUN[7:]}</script>'></foreignObject></svg>",
    f"<math><mtext></form><form><mglyph><style></math><img src onerror={RUN}>",
    f"<math href=javascript:{RUN}>x</math>",
    "<iframe srcdoc='<script>parent.hacked=1</script>'></iframe>",
    f"<iframe src=javascript:parent.{RUN[7:]}></iframe>",
    "<iframe src=//evil.example></iframe>",
    f"<object data=javascript:{RUN}></object>",
    "<object data=//evil.example/x.swf></object>",
    f"<embed src=javascript:{RUN}>",
    f"<video><source onerror={RUN}></video>",
    f"<audio src=x onerror={RUN}>",
    f"<details open ontoggle={RUN}>",
    f"<input autofocus onfocus={RUN}>",
    f"<select autofocus onfocus={RUN}>",
    f"<textarea autofocus onfocus={RUN}>",
    f"<body onload={RUN}>",
    f"<marquee onstart={RUN}>",
    f"<dialog open onclose={RUN}><form method=dialog><button autofocus>",
    f"<template shadowrootmode=open><script>{RUN}</script></template>",
    f"<noscript><p title='</noscript><img src=x onerror={RUN}>'>",
    f"<table background=javascript:{RUN}>",
    f"<link rel=stylesheet href=data:text/css,*{{x:expression({RUN})}}>",
    "<link rel=import href=//evil.example>",
    "<link rel=preload as=image href=//evil.example/pixel>",
    f"<meta http-equiv=refresh content='0;url=javascript:{RUN}'>",
    "<meta http-equiv=refresh content='0;url=//evil.example'>",
    f"<base href=javascript:{RUN}//>",
    "<base href=//evil.example/>",
    f"<form action=javascript:{RUN}><button>go</button></form>",
    f"<button formaction=javascript:{RUN}>go</button>",
    f"<isindex action=javascript:{RUN} type=image>",
    f"<a href=javascript:{RUN}>click</a>",
    f"<a href='java\tscript:{RUN}'>click</a>",
    f"<a href='\x01javascript:{RUN}'>click</a>",
    f"<a href=data:text/html,<script>{RUN}</script>>click</a>",
    f"<style>@import 'javascript:{RUN}';</style>",
    "<style>*{background:url(//evil.example/pixel)}</style>",
    "<style>@font-face{font-family:x;src:url(//evil.example/f)}*{font-family:x}</style>",
    # Leaving an attribute, an element or a script.
    f'"><script>{RUN}</script>',
    f"'><script>{RUN}</script>",
    f'" onmouseover="{RUN}" x="',
    f"' onfocus='{RUN}' autofocus x='",
    f"` onmouseover={RUN} x=`",
    f'"/autofocus/onfocus={RUN}//',
    f"</title><script>{RUN}</script>",
    f"</textarea><script>{RUN}</script>",
    f"</style><script>{RUN}</script>",
    f"</script><script>{RUN}</script>",
    f"</noscript><script>{RUN}</script>",
    f"--><script>{RUN}</script><!--",
    f"--!><img src=x onerror={RUN}>",
    f"]]><script>{RUN}</script><![CDATA[",
    f"<![CDATA[<script>{RUN}</script>]]>",
    f"<?xml version='1.0'?><x:script xmlns:x='http://www.w3.org/1999/xhtml'>{RUN}</x:script>",
    f"';{RUN};'",
    f'";{RUN};"',
    f"\\';{RUN};//",
    f"</script>{RUN}",
    f"${{{RUN}}}",
    f"`${{{RUN}}}`",
    f"\u2028{RUN}\u2029",
    # Templates.
    f"{{{{{RUN}}}}}",
    f"{{{{constructor.constructor('{RUN}')()}}}}",
    f"<%= {RUN} %>",
    f"#{{{RUN}}}",
    f"[[${{{RUN}}}]]",
    # Addresses.
    f"javascript:{RUN}",
    f"JaVaScRiPt:{RUN}",
    f"javascript://%0a{RUN}",
    f"data:text/html,<script>{RUN}</script>",
    f"data:text/html;base64,PHNjcmlwdD57{RUN}</script>",
    f"vbscript:{RUN}",
    "//evil.example/x",
    "https://evil.example/x",
    "/\\evil.example",
    "../../../../etc/passwd",
    # Encodings and hidden characters.
    f"&lt;script&gt;{RUN}&lt;/script&gt;",
    f"&#60;script&#62;{RUN}&#60;/script&#62;",
    f"%3Cscript%3E{RUN}%3C/script%3E",
    f"\\u003cscript\\u003e{RUN}\\u003c/script\\u003e",
    f"+ADw-script+AD4-{RUN}+ADw-/script+AD4-",
    f"\ufeff<script>{RUN}</script>",
    f"<\u200bscript>{RUN}</script>",
    f"\u202e<script>{RUN}</script>\u202c",
    f"＜script＞{RUN}＜/script＞",
    f"<scr\u0131pt>{RUN}</script>",
    # Prototypes and names of members.
    "__proto__",
    "constructor",
    "toString",
    "hasOwnProperty",
    # Markdown.
    f"[click](javascript:{RUN})",
    f"![x](x\"onerror=\"{RUN})",
    f"<javascript:{RUN}>",
    f"```html\n<script>{RUN}</script>\n```",
    *(f"<{tag} {event}={RUN} src=x autofocus open>" for tag, event in zip(_TAGS, _EVENTS, strict=True)),
]  # fmt: skip


async def assert_inert(page: Page, where: str) -> None:
    """Nothing of a payload ran, and none became an element of the page."""
    found = await page.evaluate(
        """() => ({
            hacked: window.hacked,
            elements: [...document.querySelectorAll("iframe, object, embed, base, body script, img, video, math")]
                .map((element) => element.outerHTML.slice(0, 100)),
            handlers: [...document.querySelectorAll("*")]
                .filter((element) => [...element.attributes].some((attribute) => attribute.name.startsWith("on")))
                .map((element) => element.outerHTML.slice(0, 100)),
            links: [...document.querySelectorAll("[href]")]
                .map((element) => element.href.baseVal ?? element.href)
                .filter((href) => /^(javascript|data:text|vbscript)/i.test(href.trim())),
        })"""
    )
    assert found.pop("hacked") is None, (where, found)
    assert found == {"elements": [], "handlers": [], "links": []}, (where, found)
