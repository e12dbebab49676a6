"""`toolgate toolset from-openapi` as a person uses it: a folder, a second import, an installed toolset, a URL."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from gateway.cli import toolgate

pytestmark = pytest.mark.promise("B8")

DOCUMENT = """openapi: 3.1.0
info: {title: Pet shop, version: 1.2.0}
servers: [{url: https://pets.example/api}]
security: [{key: []}]
paths:
  /pets:
    get: {operationId: list_pets, tags: [pets], summary: List pets}
    trace: {operationId: echo, tags: [pets]}
components: {securitySchemes: {key: {type: http, scheme: bearer}}}
"""


def run(*arguments: str, fails: bool = False) -> str:
    result = CliRunner().invoke(toolgate, ["toolset", *arguments], prog_name="toolgate")
    assert bool(result.exit_code) == fails, result.output
    return result.output


@pytest.fixture
def document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TOOLGATE_CONFIG", "")
    (tmp_path / "toolgate.yaml").write_text("data_dir: ./data\nhttp: {allow_private: true}\n")
    path = tmp_path / "pets.yaml"
    path.write_text(DOCUMENT)
    return path


def test_openapi_command_writes_a_folder_and_says_what_to_do_next(document: Path) -> None:
    output = run("from-openapi", "pets.yaml")
    assert "pet-shop 1.2.0: 1 of 2 operations are tools (pets 1)" in output
    assert "not imported: TRACE /pets: TRACE echoes the request" in output
    assert "its requests carry variables of the environment: PET_SHOP_TOKEN (not set)" in output
    assert "allowed_hosts: [pets.example]" in output
    document.write_text(DOCUMENT.replace("summary: List pets", "summary: List all pets"))
    assert "~ list_pets: name, description" in run("from-openapi", "pets.yaml", "--dry-run")
    assert "~ list_pets: name, description" in run("from-openapi", "pets.yaml")
    assert "nothing changed in the document" in run("from-openapi", "pets.yaml")
    assert "list_pets" in run("check", "pet-shop")


def test_openapi_command_installs_and_installs_again(document: Path) -> None:
    first = json.loads(run("from-openapi", "pets.yaml", "--install", "--header", "X-Team: ${TEAM}", "--json"))
    assert (first["installed"], first["tools"], first["variables"]) == (True, ["list_pets"], ["PET_SHOP_TOKEN", "TEAM"])
    run("override", "pet-shop:list_pets", "--description", "Mine")
    document.write_text(DOCUMENT.replace("/pets:", "/animals:"))
    second = json.loads(run("from-openapi", "pets.yaml", "--install", "--json"))
    assert second["changes"]["changed"] == {"list_pets": ["description", "url_template"]}
    assert "TEAM" in second["variables"]
    assert "Mine" in run("show", "pet-shop")


def test_openapi_command_refuses_with_one_readable_line(document: Path) -> None:
    document.write_text("openapi: 3.0.0\npaths:\n\t- x\n")
    result = CliRunner().invoke(toolgate, ["toolset", "from-openapi", "pets.yaml"])
    assert result.exit_code != 0
    assert "line 3" in str(result.exception)


@pytest.fixture
def served(document: Path) -> Iterator[str]:
    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_openapi_command_reads_a_url_and_refuses_private_addresses_unless_allowed(document: Path, served: str) -> None:
    document.write_text(DOCUMENT.replace("https://pets.example/api", "/api"))
    url = f"{served}/pets.yaml"
    imported = json.loads(run("from-openapi", url, "--json", "-o", "out"))
    assert imported["hosts"] == [served.removeprefix("http://")]
    Path("toolgate.yaml").write_text("data_dir: ./data\n")
    refused = CliRunner().invoke(toolgate, ["toolset", "from-openapi", url])
    assert "PRIVATE_ADDRESS" in str(refused.exception) or "INSECURE" in str(refused.exception)
