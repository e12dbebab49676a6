"""The rules that hold for every endpoint: errors, content types, limits, paging, entity tags, access."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from starlette.types import Receive

from gateway import Gateway
from gateway.identity import OWNER, Principal
from gateway.serve.rest.endpoint import RestRequest

from .conftest import SECRET, Rest, serve

pytestmark = pytest.mark.promise("T7")


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/api/nothing", 404, "UNKNOWN_ROUTE"),
        ("GET", "/api/tools/", 404, "UNKNOWN_ROUTE"),
        ("DELETE", "/api/tools", 405, "METHOD_NOT_ALLOWED"),
        ("PUT", "/api/toolsets/import", 405, "METHOD_NOT_ALLOWED"),
        ("GET", "/api/tools?limit=0", 400, "INVALID_REQUEST"),
        ("GET", "/api/tools?limit=many", 400, "INVALID_REQUEST"),
        ("GET", "/api/tools?limt=5", 400, "INVALID_REQUEST"),
        ("GET", "/api/tools?limit=5&limit=6", 400, "INVALID_REQUEST"),
        ("GET", "/api/tools?page_token=nonsense", 400, "INVALID_PAGE_TOKEN"),
        ("GET", "/api/tools/no_such_tool", 404, "UNKNOWN_TOOL"),
        ("GET", "/api/tools/%ff", 400, "INVALID_REQUEST"),
        ("GET", "/api/approvals/none-such", 404, "UNKNOWN_APPROVAL"),
        ("GET", "/api/settings?key=%zz&b=%ff", 400, "INVALID_REQUEST"),
    ],
)
def test_rest_error_names_its_code(rest: Rest, method: str, path: str, status: int, code: str) -> None:
    assert rest.refused(method, path, status)["code"] == code


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/api/tools?limt=5", "query.limt: is not known here; did you mean 'limit'?"),
        ("/tools/bundles?size=5", "query.size: is not known here; there are bundleIDs, includeDisabled, pageSize, "),
        ("/api/tools?limit=many", "query.limit: must be a whole number"),
        ("/api/usage?by=colour", "query.by.0: must be 'day', 'tool', "),
    ],
)
def test_rest_error_says_what_is_allowed_instead(rest: Rest, path: str, message: str) -> None:
    assert rest.refused("GET", path, 400)["message"].startswith(message)


def test_rest_wrong_method_names_the_allowed_ones(rest: Rest) -> None:
    answer = rest.delete("/api/tools/read_file")
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD, PATCH")


@pytest.mark.parametrize(
    ("content", "kind", "status", "code"),
    [
        (b'{"args": ', "application/json", 400, "INVALID_JSON"),
        (b"", "application/json", 400, "INVALID_JSON"),
        (b'{"args": {"path": NaN}}', "application/json", 400, "INVALID_JSON"),
        (b'{"args": {"path": "\\ud800"}}', "application/json", 400, "INVALID_JSON"),
        (b"[]", "application/json", 400, "INVALID_REQUEST"),
        (b'{"args": {}, "more": 1}', "application/json", 400, "INVALID_REQUEST"),
        (b'{"args": "text"}', "application/json", 400, "INVALID_REQUEST"),
        (b"{}", "text/plain", 415, "UNSUPPORTED_MEDIA_TYPE"),
        (b"args=1", "application/x-www-form-urlencoded", 415, "UNSUPPORTED_MEDIA_TYPE"),
        (b"[" * 5000, "application/json", 400, "INVALID_JSON"),
    ],
)
def test_rest_body_that_is_refused_says_why(rest: Rest, content: bytes, kind: str, status: int, code: str) -> None:
    headers = {"content-type": kind}
    assert rest.refused("POST", "/api/tools/read_file/invoke", status, content=content, headers=headers)["code"] == code


def test_rest_body_over_the_limit_is_refused_also_in_chunks(rest: Rest) -> None:
    headers = {"content-type": "application/json"}
    whole = b" " * (33 * 1024 * 1024)
    parts = [whole[: 1024 * 1024]] * 33
    for content in (whole, iter(parts)):
        answer = rest.post("/api/tools/read_file/invoke", content=content, headers=headers)
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "REQUEST_TOO_LARGE")


def test_rest_error_lists_every_fault_of_a_body(rest: Rest) -> None:
    error = rest.refused("POST", "/api/keys", 400, json={"name": "", "days": -1, "what": 1})
    assert [fault["path"] for fault in error["details"]["errors"]] == [["name"], ["days"], ["what"]]


def test_rest_list_pages_survive_inserts(rest: Rest, chat: str) -> None:
    def write(name: str) -> None:
        rest.ok("PUT", f"/api/chats/{chat}/files/{name}", 201, content=b"x")

    for name in ("b", "d", "f", "h"):
        write(name)
    first = rest.ok("GET", f"/api/chats/{chat}/files?limit=2")
    for name in ("a", "e"):
        write(name)
    second = rest.ok("GET", f"/api/chats/{chat}/files?limit=2&page_token={first['next_page_token']}")
    third = rest.ok("GET", f"/api/chats/{chat}/files?limit=9&page_token={second['next_page_token']}")
    names = [[file["path"] for file in page["items"]] for page in (first, second, third)]
    assert names == [["b", "d"], ["e", "f"], ["h"]]
    assert third["next_page_token"] is None
    assert rest.refused("GET", f"/api/calls?page_token={first['next_page_token']}", 400)["code"] == "INVALID_PAGE_TOKEN"


def test_rest_tools_have_an_entity_tag_that_saves_the_body(rest: Rest) -> None:
    answer = rest.get("/api/tools")
    assert answer.headers["cache-control"] == "no-store"
    again = rest.get("/api/tools", headers={"if-none-match": f'"other", {answer.headers["etag"]}'})
    assert (again.status_code, again.content) == (304, b"")
    head = rest.head("/api/tools")
    assert (head.status_code, head.content, head.headers["etag"]) == (200, b"", answer.headers["etag"])
    assert int(head.headers["content-length"]) == len(answer.content)


def test_rest_change_by_a_page_of_another_origin_is_refused(rest: Rest, chat: str) -> None:
    headers = {"sec-fetch-site": "same-site"}
    assert rest.refused("POST", f"/api/chats/{chat}/undo", 403, headers=headers)["code"] == "ORIGIN_FORBIDDEN"
    assert rest.get("/api/tools", headers=headers).status_code == 200


def test_rest_document_is_openapi_and_the_page_needs_no_network(rest: Rest) -> None:
    document = rest.ok("GET", "/api/openapi.json")
    assert document["openapi"] == "3.1.0"
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            assert operation["summary"] and operation["tags"][0], (path, method)
    names = [operation["operationId"] for methods in document["paths"].values() for operation in methods.values()]
    assert len(names) == len(set(names))
    page = rest.get("/api/docs")
    assert page.headers["content-security-policy"].startswith("default-src 'none'")
    assert "/api/toolsets/{toolset_id}/export" in page.text
    assert "http://" not in page.text and "https://" not in page.text.replace("^https?://", "")


@pytest.fixture
def keyed(tmp_path: Path) -> Iterator[tuple[Rest, dict[str, str]]]:
    """A gateway with a key of each role, which needs one since the first was made."""
    with serve(tmp_path) as rest:
        secrets = {}
        for role in ("operator", "reader", "writer"):
            secrets[role] = rest.ok("POST", "/api/keys", 201, json={"name": role, "role": role})["secret"]
            rest.headers["authorization"] = f"Bearer {secrets['operator']}"
        yield rest, secrets


@pytest.mark.slow
def test_rest_key_sees_and_does_what_its_role_allows(keyed: tuple[Rest, dict[str, str]], chat: str) -> None:
    rest, secrets = keyed
    with Rest(rest.gateway, rest.data) as nobody:
        for method, path in (("GET", "/api/tools"), ("POST", "/api/keys"), ("GET", "/api/nothing")):
            assert nobody.request(method, path).status_code == 401
    with Rest(rest.gateway, rest.data, secrets["reader"]) as reader:
        assert {tool["name"] for tool in reader.ok("GET", "/api/tools")["items"]} == {"read_file", "list_directory"}
        reader.refused("GET", "/api/tools/write_file", 404)
        for path in ("/api/settings", "/api/keys", "/api/upstreams", "/api/toolsets", "/api/health"):
            assert reader.refused("GET", path, 403)["code"] == "ADMIN_REQUIRED"
        body = {"args": {"path": "a", "content": "x"}, "chat": f"{chat}-reader"}
        reader.refused("POST", "/api/tools/write_file/invoke", 404, json=body)
        reader.refused("PUT", f"/api/chats/{chat}-reader/files/a", 403, content=b"x")
        assert {call["principal"] for call in reader.ok("GET", "/api/calls")["items"]} <= {"reader"}
    with Rest(rest.gateway, rest.data, secrets["writer"]) as writer:
        writer.ok("PUT", f"/api/chats/{chat}/files/a", 201, content=b"x")
        for kind in ("files", "preview"):
            assert rest.refused("GET", f"/api/chats/{chat}/{kind}/a", 403)["code"] == "CHAT_FORBIDDEN"
        [written, *_] = writer.ok("GET", "/api/calls")["items"]
    with Rest(rest.gateway, rest.data, secrets["reader"]) as reader:
        for path in ("", "/steps", "/view"):
            assert reader.refused("GET", f"/api/calls/{written['id']}{path}", 404)["code"] == "UNKNOWN_CALL"
    with Rest(rest.gateway, rest.data, secrets["operator"]) as operator:
        keys = operator.ok("GET", "/api/keys?limit=1000")["items"]
        assert all("digest" not in key and "secret" not in key for key in keys)
        [mine] = [key for key in keys if key["name"] == "writer"]
        assert operator.delete(f"/api/keys/{mine['id']}").status_code == 204
    with Rest(rest.gateway, rest.data, secrets["writer"]) as revoked:
        answer = revoked.get("/api/tools")
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"].startswith("Bearer")


def test_rest_settings_mask_secrets(rest: Rest) -> None:
    settings = json.dumps(rest.ok("GET", "/api/settings?limit=1000"))
    assert '"approval.keys", "value": ["[redacted]"]' in settings
    assert str(rest.data) in settings
    shown = json.dumps(rest.ok("GET", "/api/upstreams/masked"))
    assert "https://host.example/mcp" in shown
    assert SECRET not in settings + shown


@pytest.mark.parametrize(("principal", "chat"), [(OWNER, "here"), (Principal("ann"), Principal("ann").default_chat)])
def test_calls_that_name_no_chat_are_in_the_same_one_as_over_mcp(principal: Principal, chat: str) -> None:
    gateway = cast(Gateway, SimpleNamespace(chat="here"))
    assert RestRequest(gateway, principal, {}, cast(Receive, None)).default_chat == chat


def test_rest_document_allows_one_pattern_as_a_text_where_it_is_taken(rest: Rest) -> None:
    rule = rest.ok("GET", "/api/openapi.json")["components"]["schemas"]["ApprovalRule"]["properties"]["tool"]
    assert {option["type"] for option in rule["anyOf"]} == {"string", "array"}
    changes = {"rules": [{"tool": "write_file", "then": "deny"}]}
    assert rest.ok("POST", "/api/approvals/simulate", json={"changes": changes})["calls"] >= 0
