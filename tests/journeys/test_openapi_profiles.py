"""`/openapi/{profile}`, for clients that speak OpenAPI: the document, a generated client, and many requests."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.catalog import CatalogEntry
from gateway.serve.rest.profiles import build_tool_document
from gateway.tools import Tool

from .bundle_api import SHELL, BundleClient, error_code, serve_bundles

NIGHTLY = os.environ.get("TOOLGATE_NIGHTLY") == "1"
SETTINGS = """
profiles:
  reader: {permission: read-only, tools: {allow: [read_file, list_directory]}}
"""


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BundleClient]:
    with serve_bundles(tmp_path_factory.mktemp("openapi"), settings=SETTINGS) as client:
        client.put_tool(client.put_bundle(slug="greetings")["id"], "echo")
        yield client


def get_document(api: BundleClient, profile: str) -> dict[str, Any]:
    response = api.get(f"/openapi/{profile}/openapi.json")
    assert response.status_code == 200, response.text
    document: dict[str, Any] = response.json()
    return document


def test_document_has_one_operation_per_tool_under_the_address_of_the_gateway(api: BundleClient) -> None:
    document = get_document(api, "default")
    assert document["openapi"].startswith("3.1")
    assert document["servers"] == [{"url": f"{str(api.base_url).rstrip('/')}/openapi/default"}]
    assert {"/read_file", "/write_file", "/greetings__echo"} <= document["paths"].keys()
    operation = document["paths"]["/greetings__echo"]["post"]
    assert operation["operationId"] == "greetings__echo"
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    assert document["components"]["schemas"][schema["$ref"].rpartition("/")[2]] == SHELL["argSchema"]


def test_profile_limits_what_is_listed_and_called(api: BundleClient) -> None:
    assert get_document(api, "reader")["paths"].keys() == {"/read_file", "/list_directory"}
    assert api.post("/openapi/reader/list_directory", json={}).status_code == 200
    refused = api.post("/openapi/reader/write_file", json={"path": "a.txt", "content": "a"})
    assert error_code(refused, refused.status_code)
    assert refused.status_code in (403, 404)
    assert error_code(api.get("/openapi/nobody/openapi.json"), 404) == "UNKNOWN_PROFILE"
    assert error_code(api.post("/openapi/nobody/read_file", json={}), 404) == "UNKNOWN_PROFILE"


def test_call_answers_the_value_itself_and_errors_as_everywhere(api: BundleClient) -> None:
    assert api.post("/openapi/default/write_file", json={"path": "a.txt", "content": "hi"}).status_code == 200
    read = api.post("/openapi/default/read_file", json={"path": "a.txt"})
    assert "hi" in json.dumps(read.json())
    assert api.post("/openapi/default/greetings__echo", json={"text": "hello"}).json()["stdout"] == "hello\n"
    assert error_code(api.post("/openapi/default/read_file", json={}), 400) == "INVALID_ARGUMENTS"
    assert error_code(api.post("/openapi/default/no_such_tool", json={}), 404) == "UNKNOWN_TOOL"
    assert error_code(api.post("/openapi/default/read_file", json=["a"]), 400)
    elsewhere = api.post("/openapi/default/read_file", json={"path": "a.txt"}, params={"chat": "another"})
    assert elsewhere.status_code != 200


def test_references_of_any_schema_stay_within_the_document() -> None:
    node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/a~1b"}, "whole": {"$ref": "#"}}}
    schema = {
        "$schema": "http://json-schema.org/draft-04/schema#",
        "$id": "https://example.org/a",
        "type": "object",
        "properties": {
            "$defs": {"type": "string"},
            "list": {"$ref": "#/$defs/a~1b"},
            "same": {"$ref": "#/properties/count"},
            "count": {"type": "integer", "minimum": 0, "exclusiveMinimum": True},
            "pair": {"items": [{"type": "string"}, {"type": "integer"}], "additionalItems": False},
            "like": {"const": {"$ref": "#/$defs/kept"}},
        },
        "$defs": {"a/b": node},
    }
    entry = CatalogEntry("t", Tool("t", "", input_schema=schema, wire={}), source=None)  # type: ignore[arg-type]
    document = build_tool_document([entry], "default", "http://localhost")
    schemas = document["components"]["schemas"]
    converted = schemas["t_arguments"]
    (own,) = (name for name in schemas if name.startswith("t_arguments."))
    assert converted["properties"]["list"] == {"$ref": f"#/components/schemas/{own}"}
    assert converted["properties"]["same"] == {"$ref": "#/components/schemas/t_arguments/properties/count"}
    assert converted["properties"]["count"] == {"type": "integer", "exclusiveMinimum": 0}
    pair = {"prefixItems": [{"type": "string"}, {"type": "integer"}], "items": False}
    assert converted["properties"]["pair"] == pair
    assert converted["properties"]["like"] == {"const": {"$ref": "#/$defs/kept"}}
    assert converted["properties"]["$defs"] == {"type": "string"}
    assert schemas[own]["properties"]["whole"] == {"$ref": "#/components/schemas/t_arguments"}
    assert "$id" not in converted
    elsewhere = Tool("t", "", input_schema={"type": "object", "$ref": "https://example.org/b"}, wire={})
    entry = CatalogEntry("t", elsewhere, source=None)  # type: ignore[arg-type]
    document = build_tool_document([entry], "default", "http://localhost")
    assert document["components"]["schemas"]["t_arguments"] == {"type": "object"}


def test_generated_python_client_calls_tools(
    api: BundleClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client as `openapi-python-client` writes it, of a document that has builtins and a tool put over REST."""
    (tmp_path / "openapi.json").write_text(json.dumps(get_document(api, "default")))
    (tmp_path / "config.yml").write_text("post_hooks: []\npackage_name_override: generated_tools\n")
    command = [sys.executable, "-m", "openapi_python_client", "generate", "--meta", "none", "--fail-on-warning"]
    command += ["--path", "openapi.json", "--config", "config.yml", "--output-path", "generated_tools"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    monkeypatch.syspath_prepend(str(tmp_path))
    package = importlib.import_module("generated_tools")
    models = importlib.import_module("generated_tools.models")

    def call(tag: str, name: str, body: Any) -> Any:
        return importlib.import_module(f"generated_tools.api.{tag}.{name}").sync(client=client, body=body)

    with package.Client(base_url=f"{str(api.base_url).rstrip('/')}/openapi/default") as client:
        written = call("editing", "write_file", models.WriteFileArguments(path="b.txt", content="generated"))
        assert written.path == "b.txt"
        read = call("filesystem", "read_file", models.ReadFileArguments(path="b.txt"))
        assert read.content == "generated"
        missing = call("filesystem", "read_file", models.ReadFileArguments(path="none.txt"))
        assert missing.error.code == "FILE_NOT_FOUND"


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("document", "paths"),
    [
        ("/openapi/default/openapi.json", "."),
        pytest.param(
            "/api/openapi.json", "^/tools/", marks=pytest.mark.skipif(not NIGHTLY, reason="tests/rest has it")
        ),
    ],
)
def test_thousands_of_requests_find_no_answer_that_breaks_the_document(
    api: BundleClient, tmp_path: Path, document: str, paths: str
) -> None:
    base = str(api.base_url).rstrip("/")
    command = [sys.executable, "-m", "schemathesis.cli", "run", f"{base}{document}", "--include-path-regex", paths]
    command += ["--max-examples", "250" if NIGHTLY else "4", "--seed", "1", "--workers", "2"]
    command += ["--exclude-checks", "positive_data_acceptance"]  # no schema says which file exists
    command += ["--phases", "examples,coverage,fuzzing" if NIGHTLY else "fuzzing", "--no-color"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    print(done.stdout[-3000:])
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
