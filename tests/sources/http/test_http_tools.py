"""HTTP tools through the gateway: responses of every kind, files, pages, retries, limits and errors."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from net.sites import Asked, Reply, Site, answer, redirect, serving

from gateway import Gateway
from gateway.admin import toolsets
from gateway.calls import Outcome
from gateway.errors import NotFound
from gateway.tools import Permission

pytestmark = [pytest.mark.anyio, pytest.mark.promise("B7")]

JSON = "Content-Type: application/json"
PNG = bytes.fromhex("89504e470d0a1a0a0000")


@asynccontextmanager
async def gateway_for(
    tmp_path: Path, site: Site, tools: Sequence[Mapping[str, Any]], **settings: Any
) -> AsyncIterator[Gateway]:
    """A gateway with one toolset, whose tools are below the site."""
    folder = tmp_path / "toolset"
    folder.mkdir()
    manifest = {"id": "demo", "name": "Demo", "version": "1.0.0", "http": {"base_url": site[""]}}
    tools = [{"type": "http", **tool} for tool in tools]
    (folder / "toolset.yaml").write_text(json.dumps({**manifest, "tools": tools}))
    http = {"allowed_hosts": [f"127.0.0.1:{site.port}"], "allow_private": True}
    base = {"data_dir": str(tmp_path / "data"), "toolsets": [str(folder)], "http": http}
    async with Gateway.open({**base, **settings}) as gateway:
        yield gateway


def ok(body: Any, *headers: str) -> bytes:
    return answer(200, json.dumps(body).encode(), JSON, *headers, close=False)


def error_of(outcome: Outcome) -> tuple[str, str]:
    assert outcome.error is not None
    return outcome.error.code, outcome.error.message


async def test_responses_become_json_text_image_bytes_or_a_part(tmp_path: Path) -> None:
    replies: dict[str, Reply | list[Reply]] = {
        "/json": ok({"items": [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}], "big": 2**70}),
        "/text": answer(200, "süß".encode("latin-1"), "Content-Type: text/plain; charset=latin-1", close=False),
        "/image": answer(200, PNG, "Content-Type: image/png", close=False),
        "/blob": answer(200, b"\0\1", "Content-Type: application/zip", close=False),
        "/gzip": answer(200, gzip.compress(b'{"a": 1}'), JSON, "Content-Encoding: gzip", close=False),
        "/empty": answer(204, close=False),
        "/broken": answer(200, b"{", JSON, close=False),
    }
    shapes = {"parts": "items[].{key: id}", "count": "length(items)", "wrong": "sum(items)", "old": "$.items[0].name"}
    tools: list[dict[str, Any]] = [{"id": path[1:], "url_template": path} for path in replies]
    tools += [
        {"id": name, "url_template": "/json", "response": {"extract": expression}}
        for name, expression in shapes.items()
    ]
    async with serving(replies) as site, gateway_for(tmp_path, site, tools) as gateway:

        async def value(name: str) -> Any:
            outcome = await gateway.call(f"demo:{name}")
            assert outcome.ok, outcome.error
            return outcome.value

        assert (await value("json"))["big"] == 2**70
        assert await value("text") == "süß"
        assert await value("gzip") == {"a": 1}
        assert await value("empty") is None
        assert await value("parts") == [{"key": 1}, {"key": 2}]
        assert (await value("count"), await value("old")) == (2, "a")
        image, blob = await gateway.call("demo:image"), await gateway.call("demo:blob")
        assert image.content == [{"type": "image", "data": "iVBORw0KGgoAAA==", "mimeType": "image/png"}]
        assert blob.content is not None
        assert blob.content[0]["resource"]["blob"] == "AAE="
        assert error_of(await gateway.call("demo:broken"))[0] == "BAD_ANSWER"
        assert "does not fit the response" in error_of(await gateway.call("demo:wrong"))[1]


async def test_failure_says_what_the_server_answered(tmp_path: Path) -> None:
    problem = answer(404, b'{"message": "no user 7"}', JSON, close=False)
    tools: list[dict[str, Any]] = [
        {"id": "get", "url_template": "/x"},
        {"id": "empty", "url_template": "/x", "response": {"error_mode": "empty"}},
        {"id": "fine", "url_template": "/x", "response": {"success_codes": [404]}},
    ]
    async with serving({"/x": problem}) as site, gateway_for(tmp_path, site, tools) as gateway:
        outcome = await gateway.call("demo:get")
        code, message = error_of(outcome)
        assert (code, message) == ("HTTP_404", f'GET {site["/x"]} answered 404 Not Found: {{"message": "no user 7"}}')
        assert outcome.error is not None
        assert outcome.error.details == {"status": 404, "body": '{"message": "no user 7"}'}
        assert (await gateway.call("demo:empty")).value is None
        assert (await gateway.call("demo:fine")).value == {"message": "no user 7"}
        (record,) = await gateway.records.list_calls(tool="demo:get")
        assert (record.error_code, record.attempts) == ("HTTP_404", 1)


async def test_failure_shows_the_text_of_a_page_and_no_query(tmp_path: Path) -> None:
    page = b"<!DOCTYPE HTML><html><head><style>p {}</style></head><p>No &lt;such&gt; page.</p><script>1 < 2</script>"
    tool = {"id": "get", "url_template": "/x?page=2"}
    async with serving({"/x": answer(404, page, close=False)}) as site, gateway_for(tmp_path, site, [tool]) as gateway:
        code, message = error_of(await gateway.call("demo:get"))
    assert (code, message) == ("HTTP_404", f"GET {site['/x']} answered 404 Not Found: No <such> page.")


async def test_secrets_are_in_no_record_error_or_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("DEMO_KEY", "k3y-that-nobody-may-see")
    folder = tmp_path / "toolset"
    folder.mkdir()

    async def echo(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer(500, json.dumps({"you sent": site.asked[-1].target}).encode(), JSON))
        await writer.drain()

    async with serving({"/x": echo}) as site:
        scheme = {"type": "api_key", "name": "key", "value": "${DEMO_KEY}", "in": "query"}
        tool = {"id": "get", "type": "http", "url_template": site["/x"], "auth": scheme, "retries": 0}
        manifest = {"id": "demo", "name": "Demo", "version": "1.0.0", "secrets": ["DEMO_KEY"], "tools": [tool]}
        (folder / "toolset.yaml").write_text(json.dumps(manifest))
        http = {"allowed_hosts": ["*"], "allow_private": True}
        settings = {"data_dir": str(tmp_path / "data"), "toolsets": [str(folder)], "http": http}
        async with Gateway.open(settings) as gateway:
            outcome = await gateway.call("demo:get")
            (record,) = await gateway.records.list_calls()
    assert site.asked[0].target == "/x?key=k3y-that-nobody-may-see"
    assert outcome.error is not None
    shown = f"{outcome.error} {outcome.error.details} {record} {caplog.text}"
    assert "[redacted]" in shown
    assert "k3y" not in shown


async def test_stored_secret_is_used_by_its_toolset_only_and_goes_with_it(tmp_path: Path) -> None:
    def echo(name: str) -> dict[str, Any]:
        tool = {"id": "get", "type": "http", "url_template": site["/echo"], "headers": {"X-Key": "${STORED_KEY}"}}
        return {"id": name, "name": name, "version": "1.0.0", "secrets": ["STORED_KEY"], "tools": [tool]}

    async with serving({"/echo": ok({"done": True})}) as site, gateway_for(tmp_path, site, []) as gateway:
        for name in ("own", "other"):
            (tmp_path / name).mkdir()
            (tmp_path / name / "toolset.yaml").write_text(json.dumps(echo(name)))
            await toolsets.install_toolset(gateway, str(tmp_path / name))
        code, message = error_of(await gateway.call("own:get"))
        assert (code, message.partition("store it: ")[2]) == (
            "SECRET_MISSING",
            "toolgate toolset secret own STORED_KEY",
        )
        await toolsets.keep_secret(gateway, "own", "STORED_KEY", lambda name: "first-st0red-value")
        await gateway.call("own:get")
        await toolsets.keep_secret(gateway, "own", "STORED_KEY", lambda name: "second-st0red-value")
        await gateway.call("own:get")
        assert [asked.headers["x-key"] for asked in site.asked] == ["first-st0red-value", "second-st0red-value"]
        assert error_of(await gateway.call("other:get"))[0] == "SECRET_MISSING"
        hints = [list((await toolsets.show_toolset(gateway, name)).hints) for name in ("own", "other")]
        assert (hints[0], len(hints[1])) == ([], 2)
        with pytest.raises(NotFound, match="declares no secret 'STORED'; did you mean 'STORED_KEY'"):
            await toolsets.keep_secret(gateway, "own", "STORED", str)
        await toolsets.uninstall_toolset(gateway, "own")
        assert "st0red" not in (tmp_path / "data/secrets.json").read_text()


async def test_download_is_a_new_file_and_version_of_the_chat(tmp_path: Path) -> None:
    content = bytes(range(256)) * 5000
    replies: dict[str, Reply | list[Reply]] = {
        "/report": answer(
            200, content, "Content-Type: application/pdf", 'Content-Disposition: attachment; filename="r.pdf"'
        ),
        "/missing": answer(404, b"gone"),
    }
    tools: list[dict[str, Any]] = [
        {"id": "get", "url_template": "/report", "response": {"output": "file"}},
        {"id": "named", "url_template": "/report", "response": {"output": "file", "file": "reports/${m}/x.pdf"}},
        {"id": "missing", "url_template": "/missing", "response": {"output": "file"}},
        {"id": "small", "url_template": "/report", "response": {"output": "file"}, "max_response_bytes": 1000},
        {"id": "hook", "url_template": "/report", "response": {"output": "file", "file": ".git/${m}"}},
    ]
    reports: list[tuple[float, float | None]] = []

    async def progress(done: float, total: float | None = None, message: str | None = None) -> None:
        reports.append((done, total))

    async with serving(replies) as site, gateway_for(tmp_path, site, tools) as gateway:
        outcome = await gateway.call("demo:get", progress=progress)
        assert outcome.value == {"path": "downloads/r.pdf", "bytes": len(content), "mimeType": "application/pdf"}
        assert list(reports[-1]) == [len(content)] * 2
        assert outcome.post_manifest not in (None, outcome.pre_manifest)
        assert (gateway.workspaces.path("default") / "downloads/r.pdf").read_bytes() == content
        assert (await gateway.call("demo:get")).value["path"] == "downloads/r-2.pdf"
        hostile = await gateway.call("demo:named", {"m": "../../etc"})
        assert hostile.value["path"] == "reports/_.._etc/x.pdf"
        assert error_of(await gateway.call("demo:missing"))[0] == "HTTP_404"
        assert error_of(await gateway.call("demo:small"))[0] == "RESPONSE_TOO_LARGE"
        assert error_of(await gateway.call("demo:hook", {"m": "hooks"}))[0] == "PERMISSION_DENIED"
        assert gateway.catalog.find("demo:get").tool.permission is Permission.READ_WRITE
        names = sorted(path.name for path in gateway.workspaces.path("default").rglob("*") if path.is_file())
        assert names == ["r-2.pdf", "r.pdf", "x.pdf"]


async def test_download_makes_no_file_that_a_rule_withholds_or_that_is_protected(tmp_path: Path) -> None:
    tools: list[dict[str, Any]] = [
        {"id": "fixed", "url_template": "/x", "response": {"output": "file", "file": "secrets/key.txt"}},
        {"id": "named", "url_template": "/x", "response": {"output": "file"}},
        {"id": "task", "url_template": "/x", "response": {"output": "file", "file": ".VSCode/tasks.json"}},
        {"id": "hook", "url_template": "/x", "response": {"output": "file", "file": "tools/hooks/pre-push"}},
    ]
    named = ok({}, 'Content-Disposition: attachment; filename="a.env"')
    rules = [{"tool": "*", "when": {"path": ["*.env", "secrets/*"]}, "then": "deny"}]
    codes = dict.fromkeys(("fixed", "named"), "DENIED_BY_RULE")
    codes |= dict.fromkeys(("task", "hook"), "PERMISSION_DENIED")
    folder = tmp_path / "project"
    (folder / ".git").mkdir(parents=True)
    (folder / ".git/config").write_text("[core]\n\thooksPath = tools/hooks\n")
    settings = {"approval": {"rules": rules}, "workspace": str(folder)}
    async with serving({"/x": named}) as site, gateway_for(tmp_path, site, tools, **settings) as gateway:
        for name, code in codes.items():
            assert error_of(await gateway.call(f"demo:{name}"))[0] == code
        assert [path.name for path in folder.rglob("*") if path.is_file()] == ["config"]


async def test_cancelled_download_leaves_no_file(tmp_path: Path) -> None:
    begun = asyncio.Event()

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nhalf")
        await writer.drain()
        begun.set()
        await reader.read()  # until the client closes the connection

    tools: list[dict[str, Any]] = [
        {"id": "file", "url_template": "/x", "response": {"output": "file"}},
        {"id": "get", "url_template": "/x"},
    ]
    async with serving({"/x": slow}) as site, gateway_for(tmp_path, site, tools) as gateway:
        for name in ("file", "get"):
            begun.clear()
            call = asyncio.create_task(gateway.call(f"demo:{name}"))
            await asyncio.wait_for(begun.wait(), 60)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
        records = await gateway.records.list_calls()
        assert [record.error_code for record in records] == ["CANCELLED", "CANCELLED"]
        assert not list(gateway.workspaces.path("default").rglob("*.*"))


async def test_upload_sends_files_of_the_workspace_unless_a_rule_hides_them(tmp_path: Path) -> None:
    tools: list[dict[str, Any]] = [
        {"id": "form", "method": "POST", "url_template": "/x", "parts": {"doc": {"file": "${path}"}}},
        {"id": "raw", "method": "PUT", "url_template": "/x", "body_file": "${path}", "content_type": "text/csv"},
    ]
    rules = [{"tool": "read_file", "when": {"path": "*.env"}, "then": "deny"}]
    approval = {"rules": rules, "mode": "never"}
    async with serving({"/x": ok({})}) as site, gateway_for(tmp_path, site, tools, approval=approval) as gateway:
        await gateway.call("write_file", {"path": "a.csv", "content": "1,2"})
        await gateway.call("write_file", {"path": "b.env", "content": "s3cret"})
        assert (await gateway.call("demo:raw", {"path": "a.csv"})).ok
        assert (await gateway.call("demo:form", {"path": "a.csv"})).ok
        raw, form = site.asked
        assert (raw.method, raw.body, raw.headers["content-type"]) == ("PUT", b"1,2", "text/csv")
        assert b'filename="a.csv"' in form.body
        assert error_of(await gateway.call("demo:raw", {"path": "b.env"}))[0] == "DENIED_BY_RULE"
        for path in ("../data/toolgate.db", "/etc/passwd"):
            assert not (await gateway.call("demo:raw", {"path": path})).ok
        assert len(site.asked) == 2


async def test_pages_are_joined_until_the_last_or_the_bound(tmp_path: Path) -> None:
    def cursor(asked: Asked) -> bytes:
        number = int(asked.target.partition("cursor=")[2] or "0")
        return ok({"data": [number, number + 1], "meta": {"next": number + 2 if number < 4 else None}})

    def page(asked: Asked) -> bytes:
        number = int(asked.target.partition("n=")[2])
        return ok([number] if number < 3 else [])

    def offset(asked: Asked) -> bytes:
        start = int(asked.target.partition("start=")[2])
        return ok({"rows": list(range(start, min(start + 2, 5)))})

    def link(asked: Asked) -> bytes:
        number = int(asked.target.partition("p=")[2] or "1")
        following = f'<http://127.0.0.1:{site.port}/link?p={number + 1}>; rel="next", </>; rel="first"'
        return ok([number], *([f"Link: {following}"] if number < 3 else []))

    def evil(_: Asked) -> bytes:
        return ok([1], 'Link: <http://evil.test/x>; rel="next"')

    def endless(_: Asked) -> bytes:
        return ok({"data": [0], "next": "same"})

    pagers = {"cursor": cursor, "page": page, "offset": offset, "link": link, "evil": evil, "endless": endless}

    async def talk(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = site.asked[-1]
        writer.write(pagers[asked.target[1:].partition("?")[0]](asked))
        await writer.drain()

    tools: list[dict[str, Any]] = [
        {"id": "cursor", "pagination": {"type": "cursor", "parameter": "cursor", "next": "meta.next", "items": "data"}},
        {"id": "page", "pagination": {"type": "page", "parameter": "n"}, "response": {"extract": "items"}},
        {"id": "offset", "pagination": {"type": "offset", "parameter": "start", "size": 2, "items": "rows"}},
        {"id": "link", "pagination": {"type": "link"}},
        {"id": "evil", "pagination": {"type": "link"}},
        {"id": "endless", "pagination": {"type": "cursor", "parameter": "c", "next": "next", "items": "data"}},
        {"id": "bound", "pagination": {"type": "link", "pages": 2}, "url_template": "/link"},
    ]
    tools = [{"url_template": f"/{tool['id']}", **tool} for tool in tools]
    async with serving({f"/{name}": talk for name in pagers}) as site, gateway_for(tmp_path, site, tools) as gateway:

        async def value(name: str) -> Any:
            outcome = await gateway.call(f"demo:{name}")
            assert outcome.ok, outcome.error
            return outcome.value

        assert await value("cursor") == {"items": [0, 1, 2, 3, 4, 5], "pages": 3, "complete": True}
        assert await value("page") == [1, 2]
        assert await value("offset") == {"items": [0, 1, 2, 3, 4], "pages": 3, "complete": True}
        assert await value("link") == {"items": [1, 2, 3], "pages": 3, "complete": True}
        assert await value("bound") == {"items": [1, 2], "pages": 2, "complete": False}
        assert await value("evil") == {"items": [1], "pages": 1, "complete": True}
        assert (await value("endless"))["pages"] == 2


@pytest.mark.promise("X2")
async def test_transient_failures_are_retried_and_recorded(tmp_path: Path) -> None:
    busy, fine = answer(503, b"busy", "Retry-After: 0"), ok({"done": True})
    replies: dict[str, Reply | list[Reply]] = {
        "/get": [busy, busy, fine],
        "/post": busy,
        "/said": [busy, fine],
        "/teapot": [answer(418), fine],
        "/later": [answer(429, b"", "Retry-After: 3600"), fine],
        "/none": [busy, fine],
        "/head": answer(200, b"", "X-Total: 3"),
    }
    tools: list[dict[str, Any]] = [
        {"id": "get", "url_template": "/get"},
        {"id": "post", "method": "POST", "url_template": "/post"},
        {"id": "said", "method": "POST", "url_template": "/said", "retry": {"attempts": 2, "repeatable": True}},
        {"id": "teapot", "url_template": "/teapot", "retry": {"codes": ["HTTP_418"], "first_seconds": 0}},
        {"id": "later", "url_template": "/later"},
        {"id": "none", "url_template": "/none", "retries": 0},
        {"id": "head", "method": "HEAD", "url_template": "/head", "response": {"extract": 'headers."x-total"'}},
    ]
    async with serving(replies) as site, gateway_for(tmp_path, site, tools) as gateway:
        outcomes = {str(tool["id"]): await gateway.call(f"demo:{tool['id']}") for tool in tools}
        ended = {
            name: (outcome.error.code if outcome.error else "ok", outcome.attempts)
            for name, outcome in outcomes.items()
        }
        assert ended == {
            "get": ("ok", 3),
            "post": ("HTTP_503", 1),
            "said": ("ok", 2),
            "teapot": ("ok", 2),
            "later": ("HTTP_429", 1),
            "none": ("HTTP_503", 1),
            "head": ("ok", 1),
        }
        assert outcomes["head"].value == "3"
        records = {record.tool_id: record for record in await gateway.records.list_calls()}
        assert (records["demo:get"].attempts, records["demo:get"].status) == (3, "success")


async def test_lost_connection_is_retried_for_an_idempotent_request_only(tmp_path: Path) -> None:
    async def hang_up(_: asyncio.StreamReader, __: asyncio.StreamWriter) -> None:
        return None

    tools = [{"id": "get", "url_template": "/x"}, {"id": "post", "method": "POST", "url_template": "/y"}]
    replies: dict[str, Reply | list[Reply]] = {"/x": [hang_up, ok(1)], "/y": [hang_up, ok(1)]}
    async with serving(replies) as site, gateway_for(tmp_path, site, tools) as gateway:
        assert (await gateway.call("demo:get")).value == 1
        assert error_of(await gateway.call("demo:post"))[0] == "CONNECTION_LOST"
        assert [asked.method for asked in site.asked] == ["GET", "GET", "POST"]


async def test_sizes_times_and_schemas_are_limited(tmp_path: Path) -> None:
    async def silent(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.read()

    bomb = gzip.compress(b"x" * 5_000_000)
    schema = {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}
    replies: dict[str, Reply | list[Reply]] = {
        "/large": answer(200, b"x" * 5000),
        "/bomb": answer(200, bomb, "Content-Encoding: gzip", "Content-Type: text/plain"),
        "/br": answer(200, b"x", "Content-Encoding: br"),
        "/silent": silent,
        "/wrong": ok({"id": "seven"}),
    }
    limit = {"max_response_bytes": 1000, "retries": 0}
    tools: list[dict[str, Any]] = [
        {"id": "large", "url_template": "/large", **limit},
        {"id": "bomb", "url_template": "/bomb", **limit, "max_response_bytes": 100_000},
        {"id": "br", "url_template": "/br", **limit},
        {"id": "silent", "url_template": "/silent", "timeout": 0.2, "retries": 0},
        {"id": "strict", "url_template": "/wrong", "output_schema": schema},
        {"id": "lax", "url_template": "/wrong", "output_schema": schema, "response": {"schema_check": "advisory"}},
        {"id": "body", "method": "POST", "url_template": "/wrong", "body": "${b}", "max_request_bytes": 100},
    ]
    async with serving(replies) as site, gateway_for(tmp_path, site, tools) as gateway:

        async def code(name: str, **arguments: Any) -> str:
            return error_of(await gateway.call(f"demo:{name}", arguments))[0]

        assert await code("large") == await code("bomb") == "RESPONSE_TOO_LARGE"
        assert await code("br") == "CONNECTION_LOST"
        assert await code("silent") == "TIMEOUT"
        assert await code("strict") == "INVALID_OUTPUT"
        assert await code("body", b="x" * 200) == "REQUEST_TOO_LARGE"
        lax = await gateway.call("demo:lax")
        assert lax.value == {"id": "seven"}
        assert lax.content is not None
        assert lax.content[-1]["text"].startswith("Note: lax answered against its output schema")


async def test_hosts_that_are_not_allowed_are_refused_with_the_setting_to_change(tmp_path: Path) -> None:
    replies = {"/x": ok(1), "/away": redirect("http://other.test/")}
    tools = [{"id": "get", "url_template": "/x"}, {"id": "away", "url_template": "/away"}]
    async with serving(replies) as site:
        http = {"allowed_hosts": [], "allow_private": True}
        async with gateway_for(tmp_path, site, tools, http=http) as gateway:
            code, message = error_of(await gateway.call("demo:get"))
            assert (code, "http.allowed_hosts" in message) == ("HOST_NOT_ALLOWED", True)
            assert site.connections == 0


async def test_body_and_parameters_arrive_together_with_all_fields(tmp_path: Path) -> None:
    tool = {
        "id": "update",
        "method": "PATCH",
        "url_template": "/users/${id}?notify=${notify}",
        "headers": {"X-Trace": "${trace}"},
        "body": {"name": "${name}", "age": "${age}", "tags": "${tags}", "id": "${id}"},
    }
    async with serving({"/users/7": ok({})}) as site, gateway_for(tmp_path, site, [tool]) as gateway:
        arguments = {"id": 7, "notify": True, "trace": "t", "name": "Ada", "age": 36, "tags": ["x"]}
        assert (await gateway.call("demo:update", arguments)).ok
        (asked,) = site.asked
        assert (asked.method, asked.target, asked.headers["x-trace"]) == ("PATCH", "/users/7?notify=true", "t")
        assert json.loads(asked.body) == {"name": "Ada", "age": 36, "tags": ["x"], "id": 7}
        schema = gateway.catalog.find("demo:update").tool.input_schema
        assert (sorted(schema["properties"]), schema["required"]) == (sorted(arguments), ["id"])
