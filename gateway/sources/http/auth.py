"""Auth helpers of HTTP tools: bearer, basic, API key, signatures (HMAC, AWS), and OAuth2 client credentials."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import json
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import field, replace
from datetime import UTC, datetime
from typing import Any, NoReturn
from urllib.parse import quote, unquote, urlencode

from gateway.bundles.http_tool import ApiKeyAuth, AwsAuth, BasicAuth, BearerAuth, HmacAuth, OAuth2Auth
from gateway.errors import Forbidden, Unavailable
from gateway.secrets import KNOWN
from gateway.sources.http.request import HttpRequest, Values, check_header, fill_text, quote_all
from gateway.text import visible
from gateway.value import Value

AnyAuth = BearerAuth | BasicAuth | ApiKeyAuth | HmacAuth | AwsAuth | OAuth2Auth

# Seconds before its end in which a token is fetched again, at most a tenth of its time.
EARLY_SECONDS = 30.0
# Seconds a token is used whose end the server does not tell.
UNKNOWN_LIFETIME = 3600.0
TOKEN_BYTES = 64 * 1024
TOKENS_LIMIT = 1000
TOKEN_FAILED = "TOKEN_FAILED"  # noqa: S105 - an error code

_TOKEN = re.compile(r"[\x21-\x7e]{1,32768}")
_PART = re.compile(rb"\{(\w+)\}")

# Sends a request and returns its status and body, of at most so many bytes.
Send = Callable[[HttpRequest, int], Awaitable[tuple[int, bytes]]]


async def authorize(
    request: HttpRequest, schemes: tuple[AnyAuth, ...], values: Values, tokens: TokenCache
) -> HttpRequest:
    """Return the request with the credentials of every scheme; signatures last, since they cover the rest."""
    for scheme in sorted(schemes, key=lambda scheme: isinstance(scheme, HmacAuth | AwsAuth)):
        if isinstance(scheme, BearerAuth):
            request = _add_header(request, "authorization", f"Bearer {fill_text(scheme.token, values)}")
        elif isinstance(scheme, BasicAuth):
            pair = f"{fill_text(scheme.username, values)}:{fill_text(scheme.password, values)}"
            encoded = base64.b64encode(pair.encode()).decode()
            KNOWN.add(encoded)
            request = _add_header(request, "authorization", f"Basic {encoded}")
        elif isinstance(scheme, ApiKeyAuth):
            request = _add_key(request, scheme, fill_text(scheme.value, values))
        elif isinstance(scheme, OAuth2Auth):
            token = await tokens.get(TokenRequest.fill(scheme, values))
            request = _add_header(request, "authorization", f"Bearer {token}")
        elif isinstance(scheme, AwsAuth):
            request = sign_for_aws(request, scheme, values, time.time())
        else:
            request = _sign(request, scheme, values)
    return request


def _add_header(request: HttpRequest, name: str, value: str) -> HttpRequest:
    return replace(request, headers={**request.headers, name: check_header(name, value)})


def _add_key(request: HttpRequest, scheme: ApiKeyAuth, value: str) -> HttpRequest:
    if scheme.location == "query":
        pair = f"{quote_all(scheme.name)}={quote_all(value)}"
        return replace(request, query=f"{request.query}&{pair}" if request.query else pair)
    if scheme.location == "cookie":
        cookies = [request.headers["cookie"]] if "cookie" in request.headers else []
        return _add_header(request, "cookie", "; ".join([*cookies, f"{scheme.name}={quote_all(value)}"]))
    return _add_header(request, scheme.name.lower(), value)


_TIMES: Mapping[str, Callable[[float], str]] = {
    "unix": lambda now: str(int(now)),
    "unix_ms": lambda now: str(int(now * 1000)),
    "iso": lambda now: datetime.fromtimestamp(int(now), UTC).isoformat().replace("+00:00", "Z"),
}


def _sign(request: HttpRequest, scheme: HmacAuth, values: Values) -> HttpRequest:
    parts: dict[str, str | bytes] = {
        "method": request.method,
        "host": request.authority,
        "path": request.path,
        "query": request.query,
        "target": request.target,
        "timestamp": _TIMES[scheme.timestamp_format](time.time()),
        "nonce": secrets.token_hex(16),
        "content_type": request.headers.get("content-type", ""),
        "body": request.body,
        "body_sha256": hashlib.sha256(request.body).hexdigest(),
        "body_md5": base64.b64encode(hashlib.md5(request.body, usedforsecurity=False).digest()).decode(),
    }
    canonical = scheme.canonical or "\n".join(f"{{{name}}}" for name in scheme.signed)
    text = _fill_parts(fill_text(canonical, values), parts)
    digest = hmac.new(_secret_bytes(scheme, values), text, scheme.algorithm).digest()
    parts["signature"] = digest.hex() if scheme.encoding == "hex" else base64.b64encode(digest).decode()
    headers = {scheme.header.lower(): scheme.prefix + _fill_parts(fill_text(scheme.format, values), parts).decode()}
    for name, part in ((scheme.timestamp_header, "timestamp"), (scheme.nonce_header, "nonce")):
        if name is not None:
            headers[name.lower()] = str(parts[part])
    checked = {name: check_header(name, text) for name, text in headers.items()}
    return replace(request, headers={**request.headers, **checked})


def _fill_parts(text: str, parts: Mapping[str, str | bytes]) -> bytes:
    def find(match: re.Match[bytes]) -> bytes:
        part = parts[match[1].decode()]
        return part if isinstance(part, bytes) else part.encode()

    return _PART.sub(find, text.encode())


_DECODERS: Mapping[str, Callable[[str], bytes]] = {
    "text": str.encode,
    "hex": bytes.fromhex,
    "base64": lambda text: base64.b64decode(text, validate=True),
}


def _secret_bytes(scheme: HmacAuth, values: Values) -> bytes:
    secret = fill_text(scheme.secret, values)
    try:
        return _DECODERS[scheme.secret_encoding](secret)
    except (ValueError, binascii.Error):
        reason = f"the secret of this tool's signature is not {scheme.secret_encoding}; set it again"
        raise Unavailable(reason, code="INVALID_SECRET") from None


_AWS = "AWS4-HMAC-SHA256"


def sign_for_aws(request: HttpRequest, scheme: AwsAuth, values: Values, now: float) -> HttpRequest:
    """Return the request with a signature of version 4 over its method, host, path, query, content type and body."""
    stamp = datetime.fromtimestamp(now, UTC).strftime("%Y%m%dT%H%M%SZ")
    body = hashlib.sha256(request.body).hexdigest()
    added = {"x-amz-date": stamp}
    if scheme.session_token is not None:
        added["x-amz-security-token"] = check_header("x-amz-security-token", fill_text(scheme.session_token, values))
    # Other services encode a path that is encoded already once more.
    path = request.path
    if scheme.service == "s3":
        path, added["x-amz-content-sha256"] = unquote(path), body
    signed = {"host": request.authority, **added}
    if "content-type" in request.headers:
        signed["content-type"] = " ".join(request.headers["content-type"].split())
    pairs = [pair.partition("=") for pair in request.query.split("&") if pair]
    sorted_pairs = sorted((quote_all(unquote(name)), quote_all(unquote(value))) for name, _, value in pairs)
    query = "&".join(f"{name}={value}" for name, value in sorted_pairs)
    names = ";".join(sorted(signed))
    headers = "".join(f"{name}:{signed[name]}\n" for name in sorted(signed))
    canonical = "\n".join([request.method, quote(path, safe="/~"), query, headers, names, body])
    scope = f"{stamp[:8]}/{fill_text(scheme.region, values)}/{scheme.service}/aws4_request"
    text = "\n".join([_AWS, stamp, scope, hashlib.sha256(canonical.encode()).hexdigest()])
    key = f"AWS4{fill_text(scheme.secret_key, values)}".encode()
    for part in (*scope.split("/"), text):
        key = hmac.digest(key, part.encode(), "sha256")
    credential = f"{fill_text(scheme.access_key, values)}/{scope}"
    authorization = f"{_AWS} Credential={credential}, SignedHeaders={names}, Signature={key.hex()}"
    added["authorization"] = check_header("authorization", authorization)
    return replace(request, headers={**request.headers, **added})


class TokenRequest(Value):
    """The request of a token. Tools with the same one share the token."""

    url: str
    client_id: str
    client_secret: str = field(repr=False)
    in_header: bool
    form: tuple[tuple[str, str], ...]

    @classmethod
    def fill(cls, scheme: OAuth2Auth, values: Values) -> TokenRequest:
        form = {"grant_type": "client_credentials"}
        if scheme.scopes:
            form["scope"] = " ".join(scheme.scopes)
        if scheme.audience is not None:
            form["audience"] = scheme.audience
        form |= {name: fill_text(value, values) for name, value in scheme.parameters.items()}
        return cls(
            fill_text(scheme.token_url, values),
            fill_text(scheme.client_id, values),
            fill_text(scheme.client_secret, values),
            scheme.credentials_in == "header",
            tuple(form.items()),
        )

    def build(self) -> HttpRequest:
        form, headers = dict(self.form), {"accept": "application/json"}
        headers["content-type"] = "application/x-www-form-urlencoded"
        if self.in_header:
            pair = f"{quote(self.client_id, safe='')}:{quote(self.client_secret, safe='')}"
            headers["authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        else:
            form |= {"client_id": self.client_id, "client_secret": self.client_secret}
        scheme, _, rest = self.url.partition("://")
        authority, _, target = rest.partition("/")
        path, _, query = f"/{target}".partition("?")
        return HttpRequest("POST", scheme.lower(), authority, path, query, headers, urlencode(form).encode())


class _Token(Value):
    text: str = field(repr=False)
    until: float


class TokenCache:
    """Tokens by their requests. One that is about to expire, or was refused, is fetched once for all that wait."""

    def __init__(self, send: Send, clock: Callable[[], float] = time.monotonic) -> None:
        self._send = send
        self._clock = clock
        self._tokens: dict[TokenRequest, _Token] = {}
        self._fetching: dict[TokenRequest, asyncio.Task[_Token]] = {}

    async def get(self, request: TokenRequest) -> str:
        token = self._tokens.get(request)
        if token is not None and self._clock() < token.until:
            return token.text
        task = self._fetching.get(request)
        if task is None:
            task = self._fetching[request] = asyncio.create_task(self._fetch(request))
            task.add_done_callback(lambda _: self._fetching.pop(request, None))
        # Shielded: a call that is cancelled must not take the token from the others.
        return (await asyncio.shield(task)).text

    def refuse(self, request: TokenRequest, text: str) -> bool:
        """Forget a token that the server refused; False if it was replaced already or there was none."""
        token = self._tokens.get(request)
        if token is not None and token.text == text:
            del self._tokens[request]
            return True
        return token is not None or request in self._fetching

    async def close(self) -> None:
        for task in list(self._fetching.values()):
            task.cancel()

    async def _fetch(self, request: TokenRequest) -> _Token:
        KNOWN.add(request.client_secret)
        started = self._clock()
        sent = request.build()
        status, body = await self._send(sent, TOKEN_BYTES)
        content = _parse_object(body)
        text = content.get("access_token")
        if status != 200 or not isinstance(text, str) or not _TOKEN.fullmatch(text):
            _raise_refusal(sent.origin, status, content)
        KNOWN.add(text, owner=request)
        lifetime = _parse_lifetime(content.get("expires_in"))
        token = _Token(text, started + lifetime - min(EARLY_SECONDS, lifetime / 10))
        if len(self._tokens) >= TOKENS_LIMIT:
            self._tokens.clear()
        self._tokens[request] = token
        return token


def _parse_object(body: bytes) -> dict[str, Any]:
    try:
        content = json.loads(body)
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


def _parse_lifetime(value: Any) -> float:
    try:
        seconds = float(value)
    except (TypeError, ValueError, OverflowError):
        return UNKNOWN_LIFETIME
    return seconds if 0 < seconds < 10 * 365 * 86400 else UNKNOWN_LIFETIME


def _raise_refusal(origin: str, status: int, content: Mapping[str, Any]) -> NoReturn:
    words = " ".join(str(content[key]) for key in ("error", "error_description") if content.get(key))
    reason = f"{origin} granted no token: HTTP {status} {visible(' '.join(words.split()))[:200]}".rstrip()
    if status >= 500 or status == 429:
        raise Unavailable(reason, code=TOKEN_FAILED, status=status)
    raise Forbidden(f"{reason}; check the client id and secret of the tool", code=TOKEN_FAILED, status=status)
