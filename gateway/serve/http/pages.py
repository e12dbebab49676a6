"""Small pages for a person in a browser: consent to a client, and logins to upstream servers. No scripts, no frames."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from html import escape
from typing import NamedTuple
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from gateway.errors import Forbidden, GatewayError
from gateway.identity import Principal
from gateway.identity.authentication import Identity, hash_secret
from gateway.sealing import Sealer
from gateway.serve.http.authentication import Origin
from gateway.value import Value

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
button{display:block;width:100%;height:44px;font:inherit;font-weight:500;border-radius:6px;
border:1px solid var(--line-strong);background:var(--surface);color:var(--ink);cursor:pointer;margin-top:8px}
button.primary{background:var(--fill);border-color:var(--fill);color:#fff}
button.primary:active{background:var(--press)}
button.quiet{border-color:transparent;color:var(--accent);background:none}
:focus-visible{outline:2px solid var(--accent);outline-offset:2px}
.problem,.note{border-radius:6px;padding:10px 12px;margin:0 0 16px}
.problem{background:var(--bad-tint);color:var(--bad)}
.note{background:var(--warn-tint);color:var(--warn)}
"""


def allow_style(style: str) -> str:
    """Return the part of a policy that allows this inline style and no other."""
    return f"style-src 'sha256-{base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()}'"


class Choice(NamedTuple):
    """One of several answers, with what it means."""

    value: str
    title: str
    text: str


def page(
    title: str,
    parts: Iterable[str],
    status: int = 200,
    form_targets: Sequence[str] = ("'self'",),
    extra_style: str = "",
) -> HTMLResponse:
    """Return a page of escaped parts. `form_targets` are the places that its forms may lead to, redirects included."""
    style = _STYLE + extra_style
    body = (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)} · Toolgate</title>'
        '<meta name="viewport" content="width=device-width,initial-scale=1"><meta name="robots" content="noindex">'
        f"<style>{style}</style></head><body><main><header>Toolgate</header><h1>{escape(title)}</h1>"
        f"{''.join(parts)}</main></body></html>"
    )
    response = HTMLResponse(body, status)
    protect(response, f"{allow_style(style)}; form-action {' '.join(form_targets)}")
    return response


def protect(response: Response, policy: str = "") -> None:
    """Keep a response out of frames, caches, other sites' knowledge and search engines."""
    policies = ["default-src 'none'", *([policy] if policy else []), "base-uri 'none'", "frame-ancestors 'none'"]
    response.headers.update(
        {
            "content-security-policy": "; ".join(policies),
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


SESSION_SECONDS = 12 * 3600
_COOKIE = "toolgate_person"
KEY_LIMIT = 8192


class Person(Value):
    """Somebody who has shown a key in this browser. `digest` is its SHA-256, in hexadecimal; empty for the owner of a
    gateway without keys."""

    principal: Principal
    digest: str
    nonce: str

    def form_token(self, purpose: str) -> str:
        """Return a token that only a form of this browser has for this purpose."""
        return hmac.new(self.nonce.encode(), purpose.encode(), "sha256").hexdigest()

    def check_form(self, token: object, purpose: str) -> None:
        if not isinstance(token, str) or not hmac.compare_digest(token, self.form_token(purpose)):
            raise Forbidden("this form is not from this browser's page; go back and reload it", code="FORM_FORGED")


class People:
    """Recognizes people. Only keys and tokens of the identity provider are taken, never a token of our own: a client
    could otherwise agree to its own requests."""

    def __init__(self, identity: Identity, sealer: Sealer, origin: Origin) -> None:
        self._identity = identity
        self._sealer = sealer
        self._origin = origin

    async def find(self, request: Request) -> Person | None:
        """Return the person of a browser whose key is still valid, or the owner of a gateway that asks for none."""
        claims = self._sealer.unseal_claims(request.cookies.get(self._cookie_name(request)), time.time())
        if claims is None:
            with suppress(GatewayError):
                return Person(await self._identity.authenticate({}), "", "")
            return None
        principal = await self._identity.recognize(bytes.fromhex(claims["digest"]))
        return None if principal is None else Person(principal, claims["digest"], claims["nonce"])

    async def sign_in(self, request: Request, key: object, response: Response) -> Person | None:
        """Return the person that a key belongs to, and remember them in their browser; None for a wrong key."""
        text = key.strip() if isinstance(key, str) else ""
        if not text.isascii() or not text.isprintable() or not 0 < len(text) <= KEY_LIMIT:
            return None
        try:
            principal = await self._identity.authenticate({b"authorization": f"Bearer {text}".encode()})
        except GatewayError:
            return None
        if principal.resource is not None:
            return None
        person = Person(principal, hash_secret(text).hex(), secrets.token_urlsafe(16))
        claims = {"digest": person.digest, "nonce": person.nonce, "exp": time.time() + SESSION_SECONDS}
        response.set_cookie(
            self._cookie_name(request),
            self._sealer.seal_claims(claims),
            max_age=SESSION_SECONDS,
            secure=self._origin.is_https(request),
            httponly=True,
            samesite="lax",  # not strict: the browser comes here from the client's page
        )
        return person

    def sign_out(self, request: Request, response: Response) -> None:
        is_https = self._origin.is_https(request)
        response.delete_cookie(self._cookie_name(request), secure=is_https, httponly=True, samesite="lax")

    def require_own_page(self, request: Request) -> None:
        """Refuse a form that another site sends. Browsers send `Origin` with every form."""
        if request.headers.get("origin", "").lower() != self._origin.of(request):
            raise Forbidden("this form was not sent by a page of this gateway", code="FORM_FORGED")

    def _cookie_name(self, request: Request) -> str:
        return self._origin.cookie_name(request, _COOKIE)


def host_of(uri: str) -> str:
    """Return the host of a redirect URI, as it is shown to a person; the scheme where an application has its own."""
    parts = urlsplit(uri)
    return parts.netloc if parts.scheme in ("http", "https") else f"{parts.scheme}:"
