"""Small pages for a person in a browser: consent to a client, and logins to upstream servers. No scripts, no frames."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from html import escape
from typing import NamedTuple

from starlette.responses import HTMLResponse, Response

# The tokens and sizes of the console.
_STYLE = """
:root{color-scheme:light dark;--canvas:#f6f7f9;--surface:#fff;--line:#e3e7ed;--line-strong:#ccd3dc;--control:#828d9e;
--ink:#1b2230;--ink-2:#465164;--ink-3:#5d6879;--accent:#2a5bc4;--fill:#2f62cf;--press:#234fa9;--bad:#b3261e;
--bad-tint:#fdebe9;--warn:#8a5200;--warn-tint:#fdf1da;--sunken:#f3f5f8}
@media(prefers-color-scheme:dark){:root{--canvas:#0d1117;--surface:#12161d;--line:#262d38;--line-strong:#3a4453;
--control:#68758a;--ink:#e8ebf1;--ink-2:#b9c1ce;--ink-3:#98a2b3;--accent:#7ba6f5;--fill:#3a6fdc;--press:#2f60c6;
--bad:#ff948b;--bad-tint:#331715;--warn:#e3b04b;--warn-tint:#2d2310;--sunken:#0e1218}}
*{box-sizing:border-box}
body{margin:0;background:var(--canvas);color:var(--ink);font:15px/21px system-ui,-apple-system,"Segoe UI",Roboto,
"Helvetica Neue","Liberation Sans",sans-serif;overflow-wrap:anywhere}
main{max-width:440px;margin:24px auto;padding:20px 24px;background:var(--surface);border:1px solid var(--line);
border-radius:8px}
@media(max-width:480px){main{margin:0;min-height:100vh;border:0;border-radius:0;padding:20px}}
header{color:var(--ink-3);font-size:13px;margin-bottom:8px}
h1{font-size:20px;line-height:28px;font-weight:600;margin:0 0 12px}
p{margin:0 0 12px;color:var(--ink-2)}
dl{margin:0 0 16px;border-top:1px solid var(--line)}
dl div{padding:6px 0;border-bottom:1px solid var(--line)}
dt{color:var(--ink-3);font-size:13px}
dd{margin:0}
code{font:13px/20px ui-monospace,SFMono-Regular,Menlo,Consolas,"Liberation Mono",monospace;background:var(--sunken);
border-radius:4px;padding:1px 4px}
label{display:block;font-weight:550;margin:0 0 4px}
input[type=password]{width:100%;height:44px;font-size:16px;padding:0 12px;margin:0 0 12px;color:var(--ink);
background:var(--surface);border:1px solid var(--control);border-radius:6px}
fieldset{border:0;margin:0 0 16px;padding:0}
legend{padding:0;font-weight:550;margin-bottom:4px}
label.choice{display:flex;align-items:flex-start;gap:10px;font-weight:400;padding:6px 0;margin:0;min-height:44px;
border-top:1px solid var(--line)}
label.choice input{margin:4px 0 0;flex:none;accent-color:var(--fill)}
label.choice small{display:block;color:var(--ink-3);font-size:13px}
button{display:block;width:100%;height:44px;font:500 15px/21px inherit;font-family:inherit;border-radius:6px;
border:1px solid var(--line-strong);background:var(--surface);color:var(--ink);cursor:pointer;margin-top:8px}
button.primary{background:var(--fill);border-color:var(--fill);color:#fff}
button.primary:active{background:var(--press)}
button.quiet{border-color:transparent;color:var(--accent);background:none}
:focus-visible{outline:2px solid var(--accent);outline-offset:2px}
.problem,.note{border-radius:6px;padding:10px 12px;margin:0 0 16px}
.problem{background:var(--bad-tint);color:var(--bad)}
.note{background:var(--warn-tint);color:var(--warn)}
"""
_STYLE_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()


class Choice(NamedTuple):
    """One of several answers, with what it means."""

    value: str
    title: str
    text: str


def page(
    title: str, parts: Iterable[str], status: int = 200, form_targets: Sequence[str] = ("'self'",)
) -> HTMLResponse:
    """Return a page of escaped parts. `form_targets` are the places that its forms may lead to, redirects included."""
    body = (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)} · Toolgate</title>'
        '<meta name="viewport" content="width=device-width,initial-scale=1"><meta name="robots" content="noindex">'
        f"<style>{_STYLE}</style></head><body><main><header>Toolgate</header><h1>{escape(title)}</h1>"
        f"{''.join(parts)}</main></body></html>"
    )
    response = HTMLResponse(body, status)
    protect(response, f"style-src 'sha256-{_STYLE_HASH}'; form-action {' '.join(form_targets)}")
    return response


def protect(response: Response, policy: str = "") -> None:
    """Keep a response out of frames, caches, other sites' knowledge and search engines."""
    policies = "default-src 'none'; base-uri 'none'; frame-ancestors 'none'"
    response.headers.update(
        {
            "content-security-policy": f"{policies}; {policy}" if policy else policies,
            "x-frame-options": "DENY",
            "x-content-type-options": "nosniff",
            # Not `no-referrer`: with it browsers send `Origin: null` with a form.
            "referrer-policy": "same-origin",
            "cache-control": "no-store",
            "cross-origin-opener-policy": "same-origin",
        }
    )


def paragraph(text: str, kind: str = "") -> str:
    return f"<p{f' class={kind}' if kind else ''}>{escape(text)}</p>"


def facts(rows: Iterable[tuple[str, str]]) -> str:
    """Return a list of named facts."""
    return f"<dl>{''.join(f'<div><dt>{escape(name)}</dt><dd>{escape(text)}</dd></div>' for name, text in rows)}</dl>"


def key_field(hint: str) -> str:
    return (
        '<label for="key">Your Toolgate key</label><input id="key" name="key" type="password" required autofocus '
        f'autocomplete="current-password" spellcheck="false" data-testid="consent.key">{paragraph(hint)}'
    )


def choices(name: str, legend: str, options: Sequence[Choice], chosen: str) -> str:
    rows = "".join(
        f'<label class="choice"><input type="radio" name="{escape(name)}" value="{escape(option.value)}"'
        f"{' checked' if option.value == chosen else ''}><span>{escape(option.title)}<small>{escape(option.text)}"
        "</small></span></label>"
        for option in options
    )
    return f"<fieldset><legend>{escape(legend)}</legend>{rows}</fieldset>"


def button(text: str, name: str, value: str, kind: str = "") -> str:
    novalidate = "" if kind == "primary" else " formnovalidate"
    return (
        f'<button name="{escape(name)}" value="{escape(value)}" class="{kind}" data-testid="consent.{escape(value)}"'
        f"{novalidate}>{escape(text)}</button>"
    )


def form(action: str, parts: Iterable[str], **hidden: str) -> str:
    fields = "".join(
        f'<input type="hidden" name="{escape(key)}" value="{escape(each)}">' for key, each in hidden.items()
    )
    return f'<form method="post" action="{escape(action)}">{fields}{"".join(parts)}</form>'
