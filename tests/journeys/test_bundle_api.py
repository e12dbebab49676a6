"""`/tools` over HTTP against its specification: each row of its tables and each rule has a test marked with it."""

from __future__ import annotations

import json
import re
import sqlite3
import zipfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import pytest
from eventually import eventually

from gateway.names import new_id

from .bundle_api import (
    HELD,
    ROWS,
    SHELL,
    BundleClient,
    error_code,
    http_tool,
    row,
    serve_bundles,
    serve_weather,
    tool_path,
)

UUID7 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


@pytest.fixture(scope="module")
def weather() -> Iterator[str]:
    with serve_weather() as url:
        yield url


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory, weather: str) -> Iterator[BundleClient]:
    settings = f"http: {{allow_private: true, allowed_hosts: ['{weather.removeprefix('http://')}']}}\n"
    with serve_bundles(tmp_path_factory.mktemp("bundles"), settings=settings) as client:
        yield client


@pytest.fixture
def bundle(api: BundleClient) -> str:
    """An empty bundle of the test's own."""
    found: str = api.put_bundle()["id"]
    return found


@row("term-bundle", "term-slug", "bundle-put", "data-ids", "data-created")
@pytest.mark.promise("B1")
@pytest.mark.promise("B3")
def test_put_creates_a_bundle_and_then_replaces_it(api: BundleClient) -> None:
    bundle_id = new_id()
    body = {"slug": "wetter", "displayName": "Wetter", "isEnabled": True, "description": "as it is"}
    created = api.put(f"/tools/bundles/{bundle_id}", json=body)
    assert created.status_code == 201, created.text
    bundle = created.json()
    assert bundle["id"] == bundle_id
    assert bundle | body == bundle
    assert bundle["isBuiltIn"] is False
    assert bundle["createdAt"] == bundle["modifiedAt"]
    replaced = api.put(f"/tools/bundles/{bundle_id}", json=body | {"displayName": "Weather", "isEnabled": False})
    assert replaced.status_code == 200, replaced.text
    assert replaced.json()["displayName"] == "Weather"
    assert replaced.json()["isEnabled"] is False
    assert replaced.json()["createdAt"] == bundle["createdAt"]
    assert replaced.json()["modifiedAt"] > bundle["modifiedAt"]
    assert error_code(api.put("/tools/bundles/6e7c4a40-0000-4000-8000-000000000000", json=body), 400)
    assert UUID7.fullmatch(api.put_tool(api.put_bundle()["id"])["id"])


@row("bundle-put")
@pytest.mark.promise("B1")
def test_bundles_of_one_slug_and_of_reserved_words_exist_beside_each_other(api: BundleClient) -> None:
    for slug in ("twin", "twin", "TWIN", "toolgate", "-", "привет"):
        bundle = api.put_bundle(slug=slug)
        assert bundle["slug"] == slug
        api.put_tool(bundle["id"])


@row("bundle-patch", "term-bundle")
@pytest.mark.promise("B1")
def test_patch_turns_a_bundle_and_all_its_tools_off_and_on(api: BundleClient, bundle: str) -> None:
    assert api.put_tool(bundle)["name"]
    assert api.patch(f"/tools/bundles/{bundle}", json={"isEnabled": False}).json()["isEnabled"] is False
    assert api.get(tool_path(bundle)).json()["name"] is None
    assert error_code(api.post(f"{tool_path(bundle)}/invoke", json={"args": {"text": "a"}}), 403) == "TOOL_DISABLED"
    assert api.patch(f"/tools/bundles/{bundle}", json={"isEnabled": True}).json()["isEnabled"] is True
    assert api.get(tool_path(bundle)).json()["name"]
    assert error_code(api.patch(f"/tools/bundles/{bundle}", json={"displayName": "no"}), 400)
    assert error_code(api.patch(f"/tools/bundles/{new_id()}", json={"isEnabled": False}), 404) == "UNKNOWN_BUNDLE"


@row("bundle-delete", "rule-soft-delete")
@pytest.mark.promise("B1")
def test_delete_of_a_bundle_is_soft_and_put_brings_it_back(api: BundleClient, bundle: str) -> None:
    api.put_tool(bundle)
    deleted = api.delete(f"/tools/bundles/{bundle}")
    assert deleted.status_code == 200, deleted.text
    assert deleted.json()["softDeletedAt"] >= deleted.json()["createdAt"]
    assert error_code(api.get(tool_path(bundle)), 404) == "UNKNOWN_BUNDLE"
    assert error_code(api.delete(f"/tools/bundles/{bundle}"), 404) == "UNKNOWN_BUNDLE"
    assert not api.every("/tools/bundles", bundleIDs=bundle, includeDisabled="true")
    assert not api.every("/tools/tools", bundleIDs=bundle, includeDisabled="true")
    assert api.put_bundle(bundle)["softDeletedAt"] is None
    assert api.get(tool_path(bundle)).json()["slug"] == "echo"


@row("bundle-get")
@pytest.mark.promise("B1")
def test_bundles_are_listed_in_pages_that_survive_inserts(api: BundleClient) -> None:
    ids = [api.put_bundle(isEnabled=number != 3)["id"] for number in range(7)]
    on = [bundle_id for number, bundle_id in enumerate(ids) if number != 3]
    first = api.get("/tools/bundles", params={"pageSize": 2, "bundleIDs": ids}).json()
    assert [bundle["id"] for bundle in first["items"]] == on[:2]
    later = api.put_bundle()["id"]
    rest = api.every("/tools/bundles", pageSize=2, bundleIDs=[*ids, later], pageToken=first["nextPageToken"])
    assert [bundle["id"] for bundle in rest] == [*on[2:], later]
    with_commas = api.every("/tools/bundles", bundleIDs=",".join(ids), includeDisabled="true")
    assert [bundle["id"] for bundle in with_commas] == ids
    assert set(ids) - {ids[3]} <= {bundle["id"] for bundle in api.every("/tools/bundles", pageSize=3)}
    assert error_code(api.get("/tools/bundles", params={"pageToken": "nonsense"}), 400) == "INVALID_PAGE_TOKEN"
    assert error_code(api.get("/tools/bundles", params={"pageSize": 0}), 400)


@row("tool-put", "rule-conflict", "data-unique", "term-version")
@pytest.mark.promise("B2")
def test_put_of_an_existing_tool_is_a_conflict_that_changes_nothing(api: BundleClient, bundle: str) -> None:
    first = api.put_tool(bundle, tags=["a"], description="first")
    assert first["slug"] == "echo"
    assert first["version"] == "1"
    assert first["bundleID"] == bundle
    assert first["tags"] == ["a"]
    assert first["argSchema"] == SHELL["argSchema"]
    assert first["shellImpl"] == SHELL["shellImpl"]
    again = api.put(tool_path(bundle), json={**SHELL, "description": "second"})
    assert error_code(again, 409) == "TOOL_EXISTS"
    assert api.get(tool_path(bundle)).json() == first
    second = api.put_tool(bundle, version="2", description="second")
    assert second["id"] != first["id"]
    assert second["name"] != first["name"]


@row("term-type", "tool-put")
@pytest.mark.promise("B2")
def test_every_type_of_tool_is_stored_as_it_was_put(api: BundleClient, bundle: str, weather: str) -> None:
    steps = {"steps": [{"tool": "read_file", "args": {"path": "$args.text"}}]}
    put = api.put_tool(bundle, "steps", body={**SHELL, "type": "steps", "shellImpl": None, "stepsImpl": steps})
    assert put["stepsImpl"] == steps
    sent = http_tool(f"{weather}/v1", request={"timeoutMS": 1500})
    sent["httpImpl"]["response"] = {"successCodes": [200, 204], "errorMode": "empty", "bodyOutputMode": "json"}
    put = api.put_tool(bundle, "http", body=sent)
    assert put["httpImpl"]["response"] == sent["httpImpl"]["response"]
    assert put["httpImpl"]["request"]["timeoutMS"] == 1500
    assert put["httpImpl"]["request"]["urlTemplate"] == f"{weather}/v1"
    python = {**SHELL, "type": "python", "shellImpl": None}
    assert error_code(api.put(tool_path(bundle, "py"), json=python), 400) == "PYTHON_NEEDS_BUNDLE"
    wrong = {**SHELL, "httpImpl": sent["httpImpl"]}
    assert error_code(api.put(tool_path(bundle, "wrong"), json=wrong), 400) == "INVALID_REQUEST"
    hidden = {**SHELL, "shellImpl": {"command": ["echo"], "enabled": False}}
    assert error_code(api.put(tool_path(bundle, "hidden"), json=hidden), 400) == "INVALID_REQUEST"
    assert error_code(api.put(tool_path(bundle, "x"), json={**SHELL, "argSchema": {"type": "string"}}), 400)


@row("tool-patch")
@pytest.mark.promise("B2")
def test_patch_changes_nothing_of_a_tool_but_its_switch(api: BundleClient, bundle: str) -> None:
    put = api.put_tool(bundle)
    off = api.patch(tool_path(bundle), json={"isEnabled": False}).json()
    assert off == put | {"isEnabled": False, "name": None}
    assert error_code(api.post(f"{tool_path(bundle)}/invoke", json={"args": {"text": "a"}}), 403) == "TOOL_DISABLED"
    assert error_code(api.patch(tool_path(bundle), json={"isEnabled": True, "description": "new"}), 400)
    assert api.patch(tool_path(bundle), json={"isEnabled": True}).json() == put
    assert error_code(api.patch(tool_path(bundle, "other"), json={"isEnabled": True}), 404) == "UNKNOWN_TOOL"


@row("tool-put", "tool-patch")
@pytest.mark.promise("B2")
def test_a_tool_above_the_number_that_the_settings_allow_is_refused_until_another_goes(
    api: BundleClient, tmp_path: Path
) -> None:
    limit = sum(tool["isBuiltIn"] for tool in api.every("/tools/tools")) + 1
    with serve_bundles(tmp_path, settings=f"limits: {{tools: {limit}}}\n") as full:
        bundle = full.put_bundle()["id"]
        assert full.put_tool(bundle, "first")["name"]
        refused = full.put(tool_path(bundle, "second"), json=SHELL)
        assert error_code(refused, 409) == "TOO_MANY_TOOLS"
        assert refused.json()["error"]["message"] == (
            f"the gateway has {limit} tools, as many as limits.tools allows; turn one off first, or raise the limit"
        )
        assert error_code(full.get(tool_path(bundle, "second")), 404) == "UNKNOWN_TOOL"
        assert full.put_tool(bundle, "second", isEnabled=False)["name"] is None
        assert error_code(full.patch(tool_path(bundle, "second"), json={"isEnabled": True}), 409) == "TOO_MANY_TOOLS"
        assert full.patch(tool_path(bundle, "first"), json={"isEnabled": True}).json()["name"], "it is on already"
        assert full.delete(tool_path(bundle, "first")).status_code == 204
        assert full.patch(tool_path(bundle, "second"), json={"isEnabled": True}).json()["name"]


@row("tool-delete")
@pytest.mark.promise("B2")
def test_a_deleted_tool_is_gone_for_good_and_can_be_put_anew(api: BundleClient, bundle: str) -> None:
    first = api.put_tool(bundle)
    api.patch(tool_path(bundle), json={"isEnabled": False})
    assert api.delete(tool_path(bundle)).status_code == 204
    assert error_code(api.get(tool_path(bundle)), 404) == "UNKNOWN_TOOL"
    assert error_code(api.delete(tool_path(bundle)), 404) == "UNKNOWN_TOOL"
    assert not api.every("/tools/tools", bundleIDs=bundle, includeDisabled="true")
    anew = api.put_tool(bundle)
    assert anew["isEnabled"] is True
    assert anew["name"] == first["name"]
    assert anew["createdAt"] > first["createdAt"]


@row("tool-get", "term-tool")
@pytest.mark.promise("B2")
def test_get_answers_one_tool_and_an_etag(api: BundleClient, bundle: str) -> None:
    put = api.put_tool(bundle)
    got = api.get(tool_path(bundle))
    assert got.json() == put
    assert put["callCount"] == 0
    assert put["lastCalledAt"] is None
    assert api.get(tool_path(bundle), headers={"if-none-match": got.headers["etag"]}).status_code == 304
    assert error_code(api.get(tool_path(bundle, version="2")), 404) == "UNKNOWN_TOOL"
    assert error_code(api.get(tool_path(new_id())), 404) == "UNKNOWN_BUNDLE"


@row("tool-invoke", "rule-answer", "rule-arguments")
@pytest.mark.promise("B6")
def test_invoke_answers_a_value_or_an_error(api: BundleClient, bundle: str) -> None:
    api.put_tool(bundle)
    answer = api.post(f"{tool_path(bundle)}/invoke", json={"args": {"text": "hello"}})
    assert answer.status_code == 200, answer.text
    assert answer.json().keys() == {"ok", "value"}
    assert answer.json()["value"]["stdout"] == "hello\n"
    for arguments in ({}, {"text": 1}):
        assert error_code(api.post(f"{tool_path(bundle)}/invoke", json={"args": arguments}), 400) == "INVALID_ARGUMENTS"
    api.put_tool(bundle, "fail", shellImpl={"command": ["false"]}, argSchema={"type": "object"})
    failed = api.post(f"{tool_path(bundle, 'fail')}/invoke", json={"args": {}})
    assert error_code(failed, 422) == "EXECUTION_ERROR"


@row("rule-output")
@pytest.mark.promise("B6")
def test_a_value_against_the_output_schema_is_an_error(api: BundleClient, bundle: str) -> None:
    body = {**SHELL, "outputSchema": {"type": "object", "required": ["a"]}}
    api.put_tool(bundle, body=body)
    good = api.post(f"{tool_path(bundle)}/invoke", json={"args": {"text": '{"a": 1}'}})
    assert good.json() == {"ok": True, "value": {"a": 1}}
    bad = api.post(f"{tool_path(bundle)}/invoke", json={"args": {"text": '{"b": 1}'}})
    assert error_code(bad, 422) == "INVALID_OUTPUT"


@row("rule-dispatch", "term-tool", "data-placeholders")
@pytest.mark.promise("B2")
def test_local_tools_are_called_and_http_tools_send_a_request_again(
    api: BundleClient, bundle: str, weather: str
) -> None:
    builtin = api.builtin("list-directory")
    path = tool_path(builtin["bundleID"], "list-directory", builtin["version"])
    assert api.post(f"{path}/invoke", json={"args": {}}).json()["ok"] is True
    api.put_tool(bundle, "weather", body=http_tool(f"{weather}/flaky"))
    value = api.post(f"{tool_path(bundle, 'weather')}/invoke", json={"args": {"city": "Rome & Oslo"}}).json()["value"]
    assert "/flaky?city=Rome" in json.dumps(value)
    secret = http_tool(f"{weather}/v1", request={"headers": {"x-key": "${WEATHER_KEY}"}})
    path, own = tool_path(bundle, "secret"), api.put_tool(bundle, "secret", body=secret)["name"].partition("__")[0]
    assert error_code(api.post(f"{path}/invoke", json={"args": {"city": "Rome"}}), 503) == "SECRET_MISSING"
    kept, value = f"/api/toolsets/{own}/secrets/WEATHER_KEY", {"value": "known-by-the-tool-alone"}
    assert error_code(api.put(kept.replace("KEY", "KEYS"), json=value), 404) == "UNKNOWN_SECRET"
    assert api.put(kept, json=value).status_code == 204
    assert api.post(f"{path}/invoke", json={"args": {"city": "Rome"}}).json()["value"]["key"] == value["value"]
    assert api.delete(kept).status_code == 204
    assert error_code(api.post(f"{path}/invoke", json={"args": {"city": "Rome"}}), 503) == "SECRET_MISSING"
    unfilled = http_tool(f"{weather}/${{town}}")
    assert error_code(api.put(tool_path(bundle, "unfilled"), json=unfilled), 400) == "INVALID_TOOL"


@row("data-url", "data-hosts")
@pytest.mark.promise("B2")
def test_a_url_must_be_http_and_its_host_allowed(api: BundleClient, bundle: str) -> None:
    for url in ("ftp://example.org/a", "example.org", "${city}", "http://"):
        assert error_code(api.put(tool_path(bundle, "bad"), json=http_tool(url)), 400)
    api.put_tool(bundle, "else", body=http_tool("https://elsewhere.example/a"))
    refused = api.post(f"{tool_path(bundle, 'else')}/invoke", json={"args": {"city": "Rome"}})
    assert error_code(refused, 403) == "HOST_NOT_ALLOWED"


@row("data-runes", "data-length", "data-unordered")
@pytest.mark.promise("B2")
def test_slugs_and_versions_have_letters_digits_and_dashes_of_at_most_64_runes(api: BundleClient, bundle: str) -> None:
    for slug in ("Ab-9", "größe", "読む", "م", "-x-", "٣", "a" * 64, "語" * 64):
        assert api.put_tool(bundle, slug)["slug"] == slug
    for version in ("1.2.3", "v-2", "Ünï.1", "latest", "..x", "9" * 64):
        assert api.put_tool(bundle, "versions", version)["version"] == version
    for slug in ("a_b", "a b", "a.b", "a%2Fb", "a%0A", "a+b", "a%00", "🙂", "a" * 65, "语" * 65, "²", "½", "%E2%80%8B"):
        assert error_code(api.put(tool_path(bundle, slug), json=SHELL), 400), slug
    for version in ("1_0", "1 0", "1%2F0", "1+b", "1" * 65):
        assert error_code(api.put(tool_path(bundle, "versions", version), json=SHELL), 400), version
    assert error_code(api.put(f"/tools/bundles/{new_id()}", json={"slug": "a_b", "displayName": "x"}), 400)


@row("data-case", "data-repeat")
@pytest.mark.promise("B2")
def test_slugs_are_case_sensitive_and_may_repeat_in_other_bundles(api: BundleClient, bundle: str) -> None:
    put = [
        api.put_tool(bundle, "echo", "a"),
        api.put_tool(bundle, "Echo", "a"),
        api.put_tool(bundle, "echo", "A"),
        api.put_tool(api.put_bundle()["id"], "echo", "a"),
    ]
    assert len({tool["id"] for tool in put}) == 4
    assert len({tool["name"] for tool in put}) == 4


@row("data-created", "data-modified")
@pytest.mark.promise("B3")
def test_only_a_structural_change_moves_the_modification_date(api: BundleClient, bundle: str) -> None:
    put = api.put_tool(bundle)
    assert put["createdAt"] == put["modifiedAt"]
    api.patch(tool_path(bundle), json={"isEnabled": False})
    api.put_tool(bundle, "another")
    assert api.get(tool_path(bundle)).json()["modifiedAt"] == put["modifiedAt"]
    before = api.every("/tools/bundles", bundleIDs=bundle)[0]
    api.patch(f"/tools/bundles/{bundle}", json={"isEnabled": False})
    after = api.every("/tools/bundles", bundleIDs=bundle, includeDisabled="true")[0]
    assert after == before | {"isEnabled": False}
    assert before["modifiedAt"] > before["createdAt"]  # of the tools put into it


@row("tool-list")
@pytest.mark.promise("B2")
def test_tools_are_listed_by_tag_bundle_and_page(api: BundleClient, bundle: str) -> None:
    for number in range(5):
        api.put_tool(bundle, f"t{number}", tags=["even" if number % 2 == 0 else "odd", "all"], isEnabled=number != 4)
    listed = api.every("/tools/tools", bundleIDs=bundle, recommendedPageSize=2)
    assert [tool["slug"] for tool in listed] == ["t0", "t1", "t2", "t3"]
    assert len(api.every("/tools/tools", bundleIDs=bundle, includeDisabled="true")) == 5
    even = api.every("/tools/tools", bundleIDs=bundle, tags="even")
    assert [tool["slug"] for tool in even] == ["t0", "t2"]
    assert len(api.every("/tools/tools", bundleIDs=bundle, tags=["odd", "even"])) == 4
    assert len(api.every("/tools/tools", bundleIDs=bundle, tags="odd,even")) == 4
    assert {"read-file", "t0"} <= {tool["slug"] for tool in api.every("/tools/tools", recommendedPageSize=7)}


@row("tool-search", "rule-ranking", "rule-index")
@pytest.mark.promise("B5")
def test_search_ranks_prefix_then_word_then_fuzzy_then_recency(api: BundleClient, bundle: str) -> None:
    names = {
        "older-quagga": ("zoo", "counts animals"),
        "newer-quagga": ("zoo", "counts animals"),
        "quagmire": ("x", "counts mud"),
        "quaggas-all": ("x", "lists"),
        "keeper": ("x", "feeds a quagga"),
        "quaga-typo": ("x", "nothing"),
        "unrelated": ("x", "nothing"),
    }
    for slug, (tag, description) in names.items():
        api.put_tool(bundle, slug, tags=[tag], description=description, displayName=slug)

    def search(query: str, **more: object) -> list[str]:
        return [tool["slug"] for tool in api.every("/tools/tools/search", q=query, **more)]

    found = search("quagga")
    assert found[0] == "quaggas-all"  # a prefix
    # whole words: the most relevant first, of equals the last modified
    assert found[1:4] == ["newer-quagga", "older-quagga", "keeper"]
    assert "quaga-typo" in found[4:]  # near
    assert "unrelated" not in found
    assert search("quagga", pageSize=1) == found  # page by page
    first = api.get("/tools/tools/search", params={"q": "quagga", "pageSize": 2}).json()
    api.put_tool(bundle, "quaggas-before-all")  # and also while tools are added and removed before the place
    assert search("quagga", pageSize=2, pageToken=first["nextPageToken"]) == found[2:]
    api.delete(tool_path(bundle, "quaggas-before-all"))
    api.delete(tool_path(bundle, found[1]))  # the last one of that page
    assert search("quagga", pageSize=2, pageToken=first["nextPageToken"]) == found[2:]
    api.put_tool(bundle, found[1], tags=["zoo"], description="counts animals", displayName=found[1])
    wrong = api.get("/tools/tools/search", params={"q": "quagga", "pageToken": "c2VhcmNoOng"})
    assert error_code(wrong, 400) == "INVALID_PAGE_TOKEN"
    assert search("QUAGGAS-A")[0] == "quaggas-all"
    assert search("zoo")[:2] == ["newer-quagga", "older-quagga"]  # by their tag
    assert search("no such thing at all") == []
    assert error_code(api.get("/tools/tools/search"), 400)


@row("rule-disabled-search")
@pytest.mark.promise("B5")
def test_search_leaves_out_disabled_tools_unless_asked(api: BundleClient, bundle: str) -> None:
    api.put_tool(bundle, "sleeping-okapi", isEnabled=False)
    off = api.put_bundle()["id"]
    api.put_tool(off, "okapi-in-a-disabled-bundle")
    api.patch(f"/tools/bundles/{off}", json={"isEnabled": False})
    api.put_tool(bundle, "okapi-in-a-category-that-is-off", category="customer_support")
    assert not api.every("/tools/tools/search", q="okapi")
    assert len(api.every("/tools/tools/search", q="okapi", includeDisabled="true")) == 3
    assert not [tool for tool in api.every("/tools/tools", bundleIDs=bundle) if "okapi" in tool["slug"]]


@row("rule-disabled-bundle")
@pytest.mark.promise("B1")
def test_nothing_changes_inside_a_disabled_bundle(api: BundleClient, bundle: str) -> None:
    put = api.put_tool(bundle)
    api.patch(f"/tools/bundles/{bundle}", json={"isEnabled": False})
    assert error_code(api.put(tool_path(bundle, "new"), json=SHELL), 409) == "BUNDLE_DISABLED"
    assert error_code(api.patch(tool_path(bundle), json={"isEnabled": False}), 409) == "BUNDLE_DISABLED"
    assert error_code(api.delete(tool_path(bundle)), 409) == "BUNDLE_DISABLED"
    api.patch(f"/tools/bundles/{bundle}", json={"isEnabled": True})
    assert api.get(tool_path(bundle)).json() == put


@row("term-builtin", "rule-immutable", "other-builtins")
@pytest.mark.promise("B4")
def test_builtins_are_served_like_all_and_only_their_switch_changes(api: BundleClient) -> None:
    tool = api.builtin("read-file")
    bundle, path = tool["bundleID"], tool_path(tool["bundleID"], "read-file", tool["version"])
    assert UUID7.fullmatch(tool["id"])
    assert UUID7.fullmatch(bundle)
    assert api.every("/tools/bundles", bundleIDs=bundle)[0]["isBuiltIn"] is True
    body = {"slug": "mine", "displayName": "Mine"}
    assert error_code(api.put(f"/tools/bundles/{bundle}", json=body), 403) == "BUILTIN_IMMUTABLE"
    assert error_code(api.delete(f"/tools/bundles/{bundle}"), 403) == "BUILTIN_IMMUTABLE"
    assert error_code(api.put(tool_path(bundle, "new"), json=SHELL), 403) == "BUILTIN_IMMUTABLE"
    assert error_code(api.put(path, json=SHELL), 403) == "BUILTIN_IMMUTABLE"
    assert error_code(api.delete(path), 403) == "BUILTIN_IMMUTABLE"
    assert error_code(api.patch(path, json={"description": "mine"}), 400)
    assert api.patch(path, json={"isEnabled": False}).json()["isEnabled"] is False
    assert error_code(api.post(f"{path}/invoke", json={"args": {"path": "a"}}), 403) == "TOOL_DISABLED"
    assert api.patch(path, json={"isEnabled": True}).json()["isEnabled"] is True
    assert api.patch(f"/tools/bundles/{bundle}", json={"isEnabled": False}).json()["isEnabled"] is False
    assert error_code(api.patch(path, json={"isEnabled": False}), 409) == "BUNDLE_DISABLED"
    assert api.patch(f"/tools/bundles/{bundle}", json={"isEnabled": True}).json()["isEnabled"] is True
    assert api.get(path).json() | {"callCount": 0, "lastCalledAt": None} == tool | {
        "callCount": 0,
        "lastCalledAt": None,
    }


@row("rule-usage")
@pytest.mark.promise("B6")
def test_usage_is_counted_after_the_answer(api: BundleClient, bundle: str) -> None:
    api.put_tool(bundle)
    for _ in range(3):
        assert api.post(f"{tool_path(bundle)}/invoke", json={"args": {"text": "a"}}).status_code == 200
    tool = eventually(lambda: (found := api.get(tool_path(bundle)).json())["callCount"] == 3 and found)
    assert tool["lastCalledAt"] > tool["createdAt"]
    api.delete(tool_path(bundle))
    assert api.put_tool(bundle)["callCount"] == 0


@row("rule-reap")
@pytest.mark.promise("B1")
def test_a_background_task_removes_empty_bundles_two_days_after_their_deletion(tmp_path: Path) -> None:
    with serve_bundles(tmp_path) as api:
        ids = {name: api.put_bundle(slug=name)["id"] for name in ("old", "full", "young", "kept")}
        api.put_tool(ids["full"])
        for name in ("old", "full", "young"):
            assert api.delete(f"/tools/bundles/{ids[name]}").status_code == 200
    with sqlite3.connect(tmp_path / "data" / "toolgate.db") as db:
        long_ago = "2020-01-01T00:00:00.000+00:00"
        db.execute("UPDATE toolsets SET deleted_at = ? WHERE id IN ('old', 'full')", (long_ago,))
    db.close()
    with serve_bundles(tmp_path) as api:

        def stored() -> set[str]:
            with sqlite3.connect(tmp_path / "data" / "toolgate.db") as db:
                return {toolset for (toolset,) in db.execute("SELECT id FROM toolsets")}

        eventually(lambda: stored() == {"full", "young", "kept"})
        assert [bundle["slug"] for bundle in api.every("/tools/bundles") if not bundle["isBuiltIn"]] == ["kept"]


@row("other-offline")
@pytest.mark.promise("B1")
def test_a_bundle_survives_a_restart_and_is_a_toolset_that_exports_and_imports(tmp_path: Path) -> None:
    (tmp_path / "first").mkdir()
    (tmp_path / "second").mkdir()
    with serve_bundles(tmp_path / "first") as api:
        bundle = api.put_bundle(slug="Größen", displayName="Sizes")
        put = api.put_tool(bundle["id"], "größe", "1.2", tags=["a"])
    with serve_bundles(tmp_path / "first") as api:
        assert api.get(tool_path(bundle["id"], "größe", "1.2")).json() == put
        (toolset,) = api.get("/api/toolsets").json()["items"]
        assert toolset["name"] == "Sizes"
        exported = api.get(f"/api/toolsets/{toolset['id']}/export").content
    assert "toolset.yaml" in zipfile.ZipFile(BytesIO(exported)).namelist()
    with serve_bundles(tmp_path / "second") as api:
        imported = api.post("/api/toolsets/import", files={"file": ("a.zip", exported, "application/zip")})
        assert imported.status_code == 200, imported.text
        found = next(item for item in api.every("/tools/bundles") if not item["isBuiltIn"])
        assert found["slug"] == "Größen"
        tool = api.get(tool_path(found["id"], "größe", "1.2")).json()
        assert {**tool, **{key: put[key] for key in ("id", "bundleID", "createdAt", "modifiedAt")}} == put


def upload(api: BundleClient, *tools: str, without: str = "") -> None:
    """Import a bundle with these Python tools; the function of `without` is not in its code."""
    declared = "".join(f"- {{id: {tool}, entrypoint: 'code:{tool}'}}\n" for tool in tools)
    code = [f"@tool\ndef {tool}(number: int) -> int:\n    return number + 1\n" for tool in tools if tool != without]
    buffer = BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr("toolset.yaml", f"id: imported\nname: Imported\nversion: 1.0.0\ntools:\n{declared}")
        file.writestr("code.py", "from covalt_toolset import tool\n" + "".join(code))
    response = api.post("/api/toolsets/import", files={"file": ("a.zip", buffer.getvalue(), "application/zip")})
    assert response.status_code == 200, response.text


@row("other-missing")
@pytest.mark.promise("B1")
def test_a_tool_whose_function_is_gone_is_disabled_until_it_is_back(api: BundleClient) -> None:
    upload(api, "plus_one", "plus_two")
    (bundle,) = (item["id"] for item in api.every("/tools/bundles") if item["slug"] == "imported")
    path = tool_path(bundle, "plus-two", "1.0.0")
    before = api.get(path).json()
    assert before["isEnabled"] is True
    upload(api, "plus_one", "plus_two", without="plus_two")
    assert api.get(path).json() == {**before, "isEnabled": False, "name": None}
    assert error_code(api.post(f"{path}/invoke", json={"args": {"number": 1}}), 403) == "TOOL_DISABLED"
    upload(api, "plus_one", "plus_two")
    assert api.get(path).json() == before


def test_tools_are_put_into_an_imported_bundle_beside_its_code(api: BundleClient) -> None:
    upload(api, "plus_one", "plus_two")
    (bundle,) = (item["id"] for item in api.every("/tools/bundles") if item["slug"] == "imported")
    plus = api.get(tool_path(bundle, "plus-one", "1.0.0")).json()
    assert plus["type"] == "python"
    assert plus["argSchema"]["required"] == ["number"]
    api.patch(tool_path(bundle, "plus-two", "1.0.0"), json={"isEnabled": False})
    api.put_tool(bundle)
    assert api.get(tool_path(bundle, "plus-one", "1.0.0")).json() == plus
    assert api.get(tool_path(bundle, "plus-two", "1.0.0")).json()["isEnabled"] is False
    answer = api.post(f"{tool_path(bundle, 'plus-one', '1.0.0')}/invoke", json={"args": {"number": 1}})
    assert answer.json() == {"ok": True, "value": 2}
    exported = zipfile.ZipFile(BytesIO(api.get("/api/toolsets/imported/export").content))
    assert {"toolset.yaml", "code.py"} <= set(exported.namelist())
    assert b"echo" in exported.read("toolset.yaml")
    upload(api, "plus_one")  # without the others, which are kept as missing until they are deleted
    gone = api.get(tool_path(bundle, "plus-two", "1.0.0")).json()
    assert gone["isEnabled"] is False
    assert api.delete(tool_path(bundle, "plus-two", "1.0.0")).status_code == 204
    assert error_code(api.get(tool_path(bundle, "plus-two", "1.0.0")), 404) == "UNKNOWN_TOOL"


def test_a_bundle_of_the_settings_is_changed_only_there(tmp_path: Path) -> None:
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "toolset.yaml").write_text(
        "id: own\nname: Own\nversion: 1.0.0+build\ntools:\n"
        "- {id: a_b, type: shell, command: [echo]}\n- {id: a-b, type: shell, command: [echo]}\n"
    )
    with serve_bundles(tmp_path, settings=f"toolsets: [{folder}]\n") as api:
        bundle = next(item for item in api.every("/tools/bundles") if not item["isBuiltIn"])
        slugs = [tool["slug"] for tool in api.every("/tools/tools", bundleIDs=bundle["id"])]
        assert "a-b" in slugs
        assert len(set(slugs)) == 2
        assert api.get(tool_path(bundle["id"], "a-b", "1.0.0-build")).status_code == 200
        assert error_code(api.put(tool_path(bundle["id"]), json=SHELL), 409) == "BUNDLE_CONFIGURED"
        assert error_code(api.delete(f"/tools/bundles/{bundle['id']}"), 409) == "BUNDLE_CONFIGURED"
        body = {"slug": "own", "displayName": "Changed"}
        assert error_code(api.put(f"/tools/bundles/{bundle['id']}", json=body), 409) == "BUNDLE_CONFIGURED"


def test_every_row_of_the_specification_is_held_by_a_test() -> None:
    from . import test_bundle_races  # noqa: F401 - it holds one of them

    assert set(ROWS) == HELD
