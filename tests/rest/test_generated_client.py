"""A client that another project's generator makes of the OpenAPI document, against a gateway that runs."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import Rest

pytestmark = [pytest.mark.promise("T7"), pytest.mark.slow]


def test_rest_document_generates_a_client_that_works(
    rest: Rest, chat: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    document, package = tmp_path / "openapi.json", tmp_path / "made" / "toolgate_client"
    document.write_text(json.dumps(rest.ok("GET", "/api/openapi.json")))
    package.parent.mkdir()
    overrides = {"application/zip": "application/octet-stream", "text/event-stream": "application/json"}
    (tmp_path / "options.yaml").write_text(json.dumps({"post_hooks": [], "content_type_overrides": overrides}))
    options = ["--path", str(document), "--meta", "none", "--output-path", str(package)]
    made = subprocess.run(
        [
            sys.executable,
            "-m",
            "openapi_python_client",
            "generate",
            "--config",
            str(tmp_path / "options.yaml"),
            *options,
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stdout + made.stderr
    assert "WARNING" not in made.stdout + made.stderr, made.stderr
    monkeypatch.syspath_prepend(str(package.parent))
    with importlib.import_module("toolgate_client").Client(base_url=str(rest.base_url)) as client:
        api = "toolgate_client.api"
        page = importlib.import_module(f"{api}.tools.list_tools").sync(client=client, category="filesystem", limit=100)
        assert "read_file" in [tool.id for tool in page.items]
        models = importlib.import_module("toolgate_client.models")
        body = models.InvokeBody.from_dict({"args": {"path": "a.txt", "content": "hi"}, "chat": chat})
        answer = importlib.import_module(f"{api}.tools.invoke_tool").sync(
            tool_id="write_file", client=client, body=body
        )
        assert answer.ok is True
        files = importlib.import_module(f"{api}.chats.get_workspace_files").sync(chat=chat, client=client)
        assert [file.path for file in files.items] == ["a.txt"]
        error = importlib.import_module(f"{api}.tools.get_tool").sync(tool_id="no_such", client=client)
        assert error.error.code == "UNKNOWN_TOOL"
