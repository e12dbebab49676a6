"""Auth helpers of HTTP tools, against a server that checks every credential and grants tokens that expire."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import jwt
import pytest
import uvicorn
from eventually import TIMEOUT
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gateway.bundles.http_tool import AwsAuth, OAuth2Auth
from gateway.errors import Forbidden, GatewayError, Invalid, ToolFailed, Unavailable
from gateway.sources.http.auth import TokenCache, TokenRequest, sign_for_aws
from gateway.sources.http.request import HttpRequest

from .calling import compile_tool, running, send

pytestmark = [pytest.mark.anyio, pytest.mark.promise("B7")]

KEY = "signing-key-of-the-authorization-server-0123456789"
CLIENT = "toolgate"
ENVIRONMENT = {"CLIENT_SECRET": "cl1ent/s3cret+value", "TOKEN": "t0ken-value-1", "SECRET": "hm4c-s3cret-value"}


@dataclass
class Server:
    """An authorization server, and an API that takes its tokens. `epoch` refuses all tokens issued before it."""

    url: str = ""
    lifetime: int = 3600
    epoch: int = 0
    granted: int = 0
    refused: int = 0
    failures: int = 0
    asked: list[dict[str, Any]] = field(default_factory=list)

    async def token(self, request: Request) -> Response:
        form = dict(await request.form())
        header = request.headers.get("authorization", "")
        given = base64.b64decode(header.removeprefix("Basic ")).decode() if header else None
        expected = f"{CLIENT}:cl1ent%2Fs3cret%2Bvalue"  # form-encoded before base64 (RFC 6749, 2.3.1)
        in_body = (form.get("client_id"), form.get("client_secret")) == (CLIENT, ENVIRONMENT["CLIENT_SECRET"])
        self.asked.append(form)
        await asyncio.sleep(0.05)  # long enough for the other calls to want one too
        if self.failures:
            self.failures -= 1
            return JSONResponse({"error": "server_error"}, 503)
        if form.get("grant_type") != "client_credentials" or not (given == expected or in_body):
            return JSONResponse({"error": "invalid_client", "error_description": "who is that?"}, 401)
        self.granted += 1
        claims = {
            "scope": form.get("scope"),
            "epoch": self.epoch,
            "number": self.granted,
            "exp": time.time() + self.lifetime,
        }
        token = jwt.encode(claims, KEY, "HS256")
        return JSONResponse({"access_token": token, "token_type": "Bearer", "expires_in": self.lifetime})

    async def api(self, request: Request) -> Response:
        try:
            claims = jwt.decode(request.headers.get("authorization", "").removeprefix("Bearer "), KEY, ["HS256"])
        except jwt.InvalidTokenError:
            claims = {"epoch": -1}
        if claims["epoch"] < self.epoch:
            self.refused += 1
            return JSONResponse({"error": "invalid_token"}, 401, {"www-authenticate": "Bearer"})
        return JSONResponse({"scope": claims["scope"], "number": claims["number"]})

    async def echo(self, request: Request) -> Response:
        body = (await request.body()).decode()
        return JSONResponse({"headers": dict(request.headers), "query": str(request.url.query), "body": body})

    async def signed(self, request: Request) -> Response:
        """Take a request only if its signature covers method, path, query, time and body."""
        body = await request.body()
        fields = dict(part.split("=", 1) for part in request.headers.get("x-signature", "").split(",") if "=" in part)
        text = "\n".join(
            [
                request.method,
                request.scope["raw_path"].decode(),
                request.url.query,
                fields.get("t", ""),
                hashlib.sha256(body).hexdigest(),
            ]
        )
        expected = hmac.new(ENVIRONMENT["SECRET"].encode(), text.encode(), "sha512").digest()
        fresh = abs(time.time() - float(fields.get("t") or 0)) < 300
        same = hmac.compare_digest(base64.b64encode(expected).decode(), fields.get("v1", ""))
        return JSONResponse({"ok": True}) if fresh and same else JSONResponse({"error": "bad signature"}, 403)


@asynccontextmanager
async def serving() -> AsyncIterator[Server]:
    server = Server()
    routes = [
        Route("/token", server.token, methods=["POST"]),
        Route("/api", server.api),
        Route("/echo", server.echo, methods=["GET", "POST"]),
        Route("/signed/{rest:path}", server.signed, methods=["GET", "POST"]),
    ]
    listener = socket.create_server(("127.0.0.1", 0))
    server.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    uvicorn_server = uvicorn.Server(uvicorn.Config(Starlette(routes=routes), log_level="critical", lifespan="off"))
    task = asyncio.create_task(uvicorn_server.serve([listener]))
    try:
        yield server
    finally:
        uvicorn_server.should_exit = True
        await asyncio.wait_for(task, TIMEOUT)


def oauth(server: Server, **more: Any) -> dict[str, Any]:
    scheme = {"type": "oauth2", "token_url": f"{server.url}/token", "client_id": CLIENT, "scopes": ["read", "write"]}
    return {"url_template": f"{server.url}/api", "auth": {**scheme, "client_secret": "${CLIENT_SECRET}", **more}}


async def test_bearer_basic_and_keys_are_sent_where_they_belong() -> None:
    async with serving() as server, running() as runner:

        async def echoed(auth: dict[str, Any], **request: Any) -> dict[str, Any]:
            tool = compile_tool({"url_template": f"{server.url}/echo?q=1", "auth": auth, **request})
            outcome = await send(runner, tool, ENVIRONMENT)
            assert isinstance(outcome.value, dict)
            return outcome.value

        bearer = await echoed({"type": "bearer", "token": "${TOKEN}"})
        assert bearer["headers"]["authorization"] == "Bearer t0ken-value-1"
        basic = await echoed({"type": "basic", "username": "ada", "password": "${SECRET}"})
        assert base64.b64decode(basic["headers"]["authorization"][6:]) == b"ada:hm4c-s3cret-value"
        header = await echoed({"type": "api_key", "name": "X-Key", "value": "${TOKEN}"})
        assert header["headers"]["x-key"] == "t0ken-value-1"
        query = await echoed({"type": "api_key", "name": "api key[x]".replace(" ", "_"), "value": "a&b", "in": "query"})
        assert query["query"] == "q=1&api_key%5Bx%5D=a%26b"
        exploded = {"style": "form", "value": "${o}"}
        tool = {"url_template": f"{server.url}/echo", "query": {"o": exploded}}
        keyed = compile_tool({**tool, "auth": {"type": "api_key", "name": "key", "value": "${TOKEN}", "in": "query"}})
        with pytest.raises(Invalid, match="'key' is a parameter of its own"):
            await send(runner, keyed, ENVIRONMENT, o={"key": "mine"})
        cookie = await echoed(
            {"type": "api_key", "name": "session", "value": "${TOKEN}", "in": "cookie"}, cookies={"lang": "en"}
        )
        assert cookie["headers"]["cookie"] == "lang=en; session=t0ken-value-1"


async def test_several_schemes_of_the_toolset_apply_together() -> None:
    async with serving() as server, running() as runner:
        schemes = {
            "key": {"type": "api_key", "name": "X-Key", "value": "${TOKEN}"},
            "user": {"type": "basic", "username": "ada", "password": "${SECRET}"},
            "other": {"type": "bearer", "token": "${HOST}"},
        }
        tool = compile_tool(
            {"url_template": "/echo", "auth": ["key", "user"]}, {"base_url": server.url, "auth": schemes}
        )
        assert tool.secrets == {"TOKEN", "SECRET"}  # not that of the scheme it does not use
        headers = (await send(runner, tool, ENVIRONMENT)).value["headers"]
        assert headers["x-key"] == "t0ken-value-1"
        assert headers["authorization"].startswith("Basic ")


async def test_missing_secret_is_named_before_anything_is_sent() -> None:
    async with serving() as server, running() as runner:
        with pytest.raises(Unavailable, match="needs the secret CLIENT_SECRET; set it in the environment") as refused:
            await send(runner, compile_tool(oauth(server)))
        assert refused.value.code == "SECRET_MISSING"
        assert server.asked == []


SIGNATURE = {
    "type": "hmac",
    "secret": "${SECRET}",
    "algorithm": "sha512",
    "encoding": "base64",
    "format": "t={timestamp},v1={signature}",
    "canonical": "{method}\n{path}\n{query}\n{timestamp}\n{body_sha256}",
}


async def test_hmac_signature_covers_the_request_as_it_is_sent() -> None:
    async with serving() as server, running() as runner:
        url = f"{server.url}/signed/" + "${path}"
        post = compile_tool(
            {"method": "POST", "url_template": url, "query": {"q": "${q}"}, "body": "${b}", "auth": SIGNATURE}
        )
        assert (await send(runner, post, ENVIRONMENT, path="aü", q="1 & 2", b={"x": "ü\n"})).value == {"ok": True}
        get = compile_tool({"url_template": url, "auth": SIGNATURE})
        assert (await send(runner, get, ENVIRONMENT, path="x")).value == {"ok": True}
        with pytest.raises(ToolFailed, match=r"403 Forbidden: .*bad signature") as refused:
            await send(runner, get, {**ENVIRONMENT, "SECRET": "another-s3cret"}, path="x")
        assert refused.value.code == "HTTP_403"


AWS = {"type": "aws", "access_key": "AKIDEXAMPLE", "secret_key": "${SECRET}", "region": "us-east-1"}
AWS_SECRET = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"


@pytest.mark.parametrize(
    ("request_", "service", "signature"),
    [
        # The first of AWS's test suite, and the example of its documentation.
        (
            HttpRequest("GET", "https", "example.amazonaws.com", "/"),
            "service",
            "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31",
        ),
        (
            HttpRequest(
                "GET",
                "https",
                "iam.amazonaws.com",
                "/",
                "Version=2010-05-08&Action=ListUsers",
                {"content-type": "application/x-www-form-urlencoded; charset=utf-8"},
            ),
            "iam",
            "5d672d79c15b13162d9279b0855cfba6789a8edb4c82c400e06b5924a6f2b5d7",
        ),
    ],
)
async def test_aws_signatures_are_those_of_its_documentation(
    request_: HttpRequest, service: str, signature: str
) -> None:
    scheme = AwsAuth.model_validate({**AWS, "service": service})
    now = datetime(2015, 8, 30, 12, 36, tzinfo=UTC).timestamp()
    signed = sign_for_aws(request_, scheme, {"SECRET": AWS_SECRET}, now)
    assert signed.headers["authorization"].endswith(f"Signature={signature}")
    assert signed.headers["x-amz-date"] == "20150830T123600Z"


async def test_aws_signature_covers_path_query_body_and_token() -> None:
    async with serving() as server, running() as runner:
        tool = {"url_template": f"{server.url}/echo", "method": "POST", "body": {"a": "${a}"}, "query": {"q": "${q}"}}
        auth = {**AWS, "service": "s3", "session_token": "${TOKEN}"}
        outcome = await send(runner, compile_tool({**tool, "auth": auth}), ENVIRONMENT, a="b", q="c d")
        headers = outcome.value["headers"]
        assert headers["x-amz-security-token"] == ENVIRONMENT["TOKEN"]
        assert headers["x-amz-content-sha256"] == hashlib.sha256(outcome.value["body"].encode()).hexdigest()
        names = "content-type;host;x-amz-content-sha256;x-amz-date;x-amz-security-token"
        assert f"SignedHeaders={names}, " in headers["authorization"]
    scheme, secrets = AwsAuth.model_validate({**AWS, "service": "s3"}), {"SECRET": AWS_SECRET}
    whole = HttpRequest("POST", "https", "a.example", "/x", "q=1")
    changes: list[dict[str, Any]] = [{"method": "PUT"}, {"authority": "b.example"}, {"path": "/y"}, {"query": "q=2"}]
    requests = [whole, *(replace(whole, **change) for change in [*changes, {"body": b"1"}])]
    assert len({sign_for_aws(each, scheme, secrets, 0).headers["authorization"] for each in requests}) == len(requests)
    same = HttpRequest("GET", "https", "a.example", "/%7Ex%20y", "b=%7e&a-b=1&a=2")
    other = HttpRequest("GET", "https", "a.example", "/~x%20y", "a=2&a-b=1&b=~")
    assert sign_for_aws(same, scheme, secrets, 0).headers == sign_for_aws(other, scheme, secrets, 0).headers


async def test_hmac_of_named_parts_with_encoded_secret_and_nonce() -> None:
    async with serving() as server, running() as runner:
        scheme = {
            "type": "hmac",
            "secret": "${SECRET}",
            "secret_encoding": "hex",
            "signed": ["method", "timestamp", "body"],
        }
        scheme |= {"timestamp_header": "X-Time", "timestamp_format": "iso", "nonce_header": "X-Nonce", "prefix": "v0="}
        tool = compile_tool({"method": "POST", "url_template": f"{server.url}/echo", "body": {"a": 1}, "auth": scheme})
        headers = (await send(runner, tool, {"SECRET": "00ff10"})).value["headers"]
        text = f'POST\n{headers["x-time"]}\n{{"a":1}}'
        assert headers["x-signature"] == "v0=" + hmac.new(b"\0\xff\x10", text.encode(), "sha256").hexdigest()
        assert len(headers["x-nonce"]) == 32
        assert headers["x-time"].endswith("Z")
        with pytest.raises(Unavailable, match="is not hex"):
            await send(runner, tool, {"SECRET": "no hex"})


@pytest.mark.parametrize("place", ["header", "body"])
async def test_client_credentials_fetch_one_token_for_many_calls(place: str) -> None:
    async with serving() as server, running() as runner:
        tool = compile_tool(oauth(server, credentials_in=place, audience="api", parameters={"resource": "x ${TOKEN}"}))
        outcomes = await asyncio.gather(*(send(runner, tool, ENVIRONMENT) for _ in range(50)))
        assert {outcome.value["number"] for outcome in outcomes} == {1}
        assert outcomes[0].value["scope"] == "read write"
        (form,) = server.asked
        assert (form["audience"], form["resource"]) == ("api", "x t0ken-value-1")
        assert ("client_secret" in form) == (place == "body")


async def test_token_that_is_refused_mid_run_is_fetched_again_once_for_50_calls() -> None:
    async with serving() as server, running() as runner:
        tool = compile_tool(oauth(server))
        await send(runner, tool, ENVIRONMENT)
        server.epoch = 1  # every token so far has ended
        outcomes = await asyncio.gather(*(send(runner, tool, ENVIRONMENT) for _ in range(50)))
        assert {outcome.value["number"] for outcome in outcomes} == {2}
        assert (server.granted, server.refused) == (2, 50)


async def test_token_is_fetched_again_before_it_expires() -> None:
    now = 0.0
    fetched = 0

    async def grant(*_: Any) -> tuple[int, bytes]:
        nonlocal fetched
        fetched += 1
        return 200, b'{"access_token": "token-%d", "expires_in": 100}' % fetched

    cache = TokenCache(grant, lambda: now)
    async with serving() as server:
        request = _token_request(server)
    assert await cache.get(request) == await cache.get(request) == "token-1"
    now = 89.0
    assert await cache.get(request) == "token-1"
    now = 91.0  # a tenth of its time before the end
    assert await asyncio.gather(*(cache.get(request) for _ in range(50))) == ["token-2"] * 50
    assert fetched == 2


def _token_request(server: Server) -> TokenRequest:
    (scheme,) = compile_tool(oauth(server)).schemes
    assert isinstance(scheme, OAuth2Auth)
    return TokenRequest.fill(scheme, ENVIRONMENT)


async def test_cancelled_call_does_not_take_the_token_from_others() -> None:
    async with serving() as server, running() as runner:
        tool = compile_tool(oauth(server))
        first = asyncio.create_task(send(runner, tool, ENVIRONMENT))
        second = asyncio.create_task(send(runner, tool, ENVIRONMENT))
        await asyncio.sleep(0.01)
        first.cancel()
        assert (await second).value["number"] == 1
        assert server.granted == 1


async def test_refused_and_failing_authorization_servers_say_what_to_do_without_secrets() -> None:
    async with serving() as server, running() as runner:
        tool = compile_tool(oauth(server, client_id="nobody"))
        with pytest.raises(Forbidden, match="granted no token: HTTP 401 invalid_client who is that") as refused:
            await send(runner, tool, ENVIRONMENT)
        assert refused.value.code == "TOKEN_FAILED"
        assert "cl1ent" not in str(refused.value)
        server.failures = 1
        with pytest.raises(Unavailable, match="HTTP 503 server_error"):
            await send(runner, compile_tool(oauth(server)), ENVIRONMENT)
        assert (await send(runner, compile_tool(oauth(server)), ENVIRONMENT)).value["scope"] == "read write"


async def test_token_and_secret_are_masked_where_something_is_shown() -> None:
    async with serving() as server, running() as runner:
        await send(runner, compile_tool(oauth(server)), ENVIRONMENT)
        asked = compile_tool(
            {"url_template": f"{server.url}/echo", "response": {"success_codes": [500]}, **_only_auth(server)}
        )
        with pytest.raises(GatewayError) as failed:
            await send(runner, asked, ENVIRONMENT)
        assert '"authorization":"Bearer [redacted]"' in failed.value.details["body"]
        assert "eyJ" not in failed.value.message


def _only_auth(server: Server) -> dict[str, Any]:
    return {"auth": oauth(server)["auth"]}
