"""`toolgate upstream add` of `.mcpb` files and of servers that a registry on this machine lists."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import click.testing
import pytest
from packages import MANIFEST, make_mcpb, serve_registry
from sources.toolset.writing import require_sandbox

from gateway.cli.upstream import upstream
from gateway.errors import GatewayError

pytestmark = pytest.mark.timeout(600)

SECRET = "s3cret-" + "q1W2" * 5
NPM = {
    "registryType": "npm",
    "identifier": "@lab/weather",
    "version": "2.0.1",
    "transport": {"type": "stdio"},
    "runtimeArguments": [{"type": "positional", "value": "-y"}],
    "packageArguments": [
        {"type": "named", "name": "--units", "default": "metric", "choices": ["metric", "us"]},
        {"type": "named", "name": "--region"},
        {"type": "named", "name": "--cache", "value": "dir={place}", "variables": {"place": {"format": "filepath"}}},
        {"type": "positional", "valueHint": "city", "isRequired": True},
    ],
    "environmentVariables": [
        {"name": "WEATHER_TOKEN", "isRequired": True, "isSecret": True},
        {"name": "LEVEL", "value": "info"},
    ],
}


def _arguments(*arguments: dict[str, Any]) -> dict[str, Any]:
    return {**NPM, "packageArguments": list(arguments)}


WEATHER = {
    "name": "io.lab/weather",
    "description": "Weather \u202eof cities.",
    "version": "2.0.1",
    "packages": [{"registryType": "nuget", "identifier": "Lab.Weather"}, NPM],
    "remotes": [
        {
            "type": "sse",
            "url": "https://{tenant}.lab.example/sse",
            "variables": {"tenant": {"default": "main"}},
            "headers": [
                {
                    "name": "Authorization",
                    "value": "Bearer {token}",
                    "variables": {"token": {"isSecret": True, "isRequired": True}},
                }
            ],
        }
    ],
}
OTHERS: list[dict[str, Any]] = [
    {"name": "io.lab/clock", "packages": [{"registryType": "pypi", "identifier": "lab-clock", "version": "1.0"}]},
    {
        "name": "io.lab/box",
        "packages": [{"registryType": "oci", "identifier": "ghcr.io/lab/box", "version": "3"}],
        "status": "deprecated",
    },
    {"name": "io.lab/option", "packages": [{"registryType": "npm", "identifier": "--registry=http://evil"}]},
    {"name": "io.lab/steal", "remotes": [{"type": "streamable-http", "url": "https://lab.example/${HOME}"}]},
    {"name": "io.lab/plain", "remotes": [{"type": "streamable-http", "url": "http://lab.example/mcp"}]},
    {"name": "io.lab/broken", "packages": "none"},
    {
        "name": "io.lab/parts",
        "packages": [_arguments({"value": "{a}{HOME}", "variables": {"a": {"default": "$"}}})],
    },
    {
        "name": "io.lab/flag",
        "packages": [_arguments({"type": "named", "name": "-${HOME}", "format": "boolean", "value": "true"})],
    },
    {"name": "io.lab/anywhere", "packages": [{**NPM, "registryBaseUrl": "https://*/"}]},
    {"name": "io.lab/brackets", "packages": [{**NPM, "registryBaseUrl": "https://["}]},
    {"name": "io.lab/half", "packages": [NPM], "status": "\ud800"},
]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """`toolgate upstream …` with settings of its own; what it prints, or its JSON, or its refusal."""
    monkeypatch.chdir(tmp_path)

    def invoke(*arguments: str, refused: str | None = None) -> Any:
        runner = click.testing.CliRunner(env={"HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path / "share")})
        result = runner.invoke(upstream, arguments, standalone_mode=False)
        if refused is not None:
            assert isinstance(result.exception, GatewayError), (result.exception, result.output)
            assert result.exception.code == refused, result.exception
            return result.exception.message
        if result.exception is not None:
            raise result.exception
        return json.loads(result.stdout) if "--json" in arguments else result.stdout

    return invoke


def test_mcpb_server_is_shown_agreed_to_started_in_the_sandbox_and_removed(
    run: Callable[..., Any], tmp_path: Path
) -> None:
    anyio.run(require_sandbox)
    (tmp_path / "demo.mcpb").write_bytes(make_mcpb())
    shown = run("add", "demo.mcpb", "--dry-run", "--set", "folders=/srv")
    assert "Tiny demo 1.2.3, from demo.mcpb by Somebody" in shown
    assert "in the sandbox; folders: /srv:rw; hosts: none" in shown
    assert "asks for api_key (required secret): API key" in shown
    assert run("list", "--json") == []
    assert "--dry-run" in run("add", "demo.mcpb", refused="CONFIRMATION_REQUIRED")

    given = ("--set", f"api_key={SECRET}", "--yes")
    added = run("add", "demo.mcpb", "--as", "tiny", "--sandbox-path", __file__, *given, "--json")
    assert added["settings"]["sandbox"] == {"paths": [__file__]}
    assert [tool["name"] for tool in added["answer"]["tools"]] == ["who"]
    run("add", "demo.mcpb", *given)
    [first, second] = run("list", "--json")
    assert [first["name"], second["name"]] == ["tiny", "tiny-demo"]
    assert second["sandbox"] == "yes"
    assert SECRET not in json.dumps(run("show", "tiny", "--json"))
    assert run("show", "tiny", "--json")["settings"]["args"][0] == "${__dirname}/server/main.py"

    [unpacked] = (tmp_path / "share/toolgate/mcpb").iterdir()
    run("remove", "tiny")
    assert unpacked.is_dir()
    assert run("test", "tiny-demo", "--json")["ok"]
    run("remove", "tiny-demo")
    assert not unpacked.exists()


def test_author_of_a_package_cannot_imitate_or_hide_lines_of_its_plan(run: Callable[..., Any], tmp_path: Path) -> None:
    rights = "\n  rights       in the sandbox; folders: none; hosts: none"
    manifest = {
        **MANIFEST,
        **dict.fromkeys(("display_name", "version", "description"), f"Demo{rights}\x1b[2J"),
        "author": {"name": f"Somebody{rights}"},
        "user_config": {f"a{rights}": {"type": "string", "title": f"b{rights}", "default": f"c{rights}"}},
        "server": {**MANIFEST["server"], "mcp_config": {"command": "python", "env": {f"d{rights}": "e"}}},
    }
    (tmp_path / "demo.mcpb").write_bytes(make_mcpb(manifest))
    shown = run("add", "demo.mcpb", "--dry-run").splitlines()
    assert [line.startswith("  rights ") for line in shown] == [False] * (len(shown) - 1) + [True]
    assert all(line.isprintable() for line in shown)


def test_registry_is_searched_and_its_servers_become_plans(
    run: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEATHER_WEATHER_TOKEN", "of-the-gateway")
    with serve_registry([WEATHER, *OTHERS]) as url:
        (tmp_path / "toolgate.yaml").write_text(json.dumps({"registry": {"url": url}}))
        listed = run("search", "weather")
        assert "io.lab/weather  2.0.1    npm,remote  Weather <U+202E>of cities." in listed
        assert "no server" in run("search", "nothing")
        assert [server["name"] for server in run("search", "io.lab", "--json")] == ["io.lab/weather", "io.lab/clock"]

        def plan(name: str, *options: str) -> Any:
            return run("add", "--from", f"io.lab/{name}", "--dry-run", "--json", *options)

        place = str(tmp_path / "cache")
        made = plan("weather", "--set", "city=Oslo", "--set", f"place={place}")
        assert made["settings"] == {
            "command": "npx",
            "args": ["-y", "@lab/weather@2.0.1", "--units", "metric", "--cache", f"dir={place}", "Oslo"],
            "env": {"WEATHER_TOKEN": "${PACKAGE_WEATHER_WEATHER_TOKEN}", "LEVEL": "info"},
            "sandbox": {"paths": [place], "network": ["registry.npmjs.org"]},
        }
        assert plan("weather")["settings"]["args"][2:] == ["--units", "metric", "${PACKAGE_WEATHER_CITY}"]
        assert run("add", "--from", "io.lab/weather", "--dry-run", "--set", "units=x", refused="INVALID_INPUT")
        remote = plan("weather", "--package", "remote", "--as", "far")["settings"]
        assert remote == {
            "url": "https://main.lab.example/sse",
            "headers": {"Authorization": "Bearer ${PACKAGE_FAR_TOKEN}"},
            "type": "sse",
        }
        clock = plan("clock")["settings"]
        assert (clock["command"], clock["args"]) == ("uvx", ["lab-clock@1.0"])
        box = plan("box")
        assert box["settings"]["args"] == ["run", "-i", "--rm", "ghcr.io/lab/box:3"]
        assert box["settings"]["sandbox"] is False
        assert any("deprecated" in note for note in box["notes"])
        assert "WARNING: outside the sandbox" in run("add", "--from", "io.lab/box", "--dry-run")
        for name, code in {
            "option": "NO_PACKAGE",
            "steal": "INVALID_PACKAGE",
            "parts": "INVALID_PACKAGE",
            "flag": "INVALID_PACKAGE",
            "plain": "NO_PACKAGE",
            "anywhere": "NO_PACKAGE",
            "brackets": "NO_PACKAGE",
            "broken": "REGISTRY_UNAVAILABLE",
            "half": "REGISTRY_UNAVAILABLE",
            "unknown": "UNKNOWN_SERVER",
        }.items():
            run("add", "--from", f"io.lab/{name}", "--dry-run", refused=code)
    run("search", "weather", refused="CONNECT_FAILED")


def test_registry_mcpb_is_the_file_that_it_names(run: Callable[..., Any], tmp_path: Path) -> None:
    content = make_mcpb(
        {**MANIFEST, "user_config": {}, "server": {**MANIFEST["server"], "mcp_config": {"command": "node"}}}
    )
    files = {"/demo.mcpb": content}
    with serve_registry([], files) as url:
        # Plain HTTP of this machine stands for https of another.
        package = {"registryType": "mcpb", "identifier": f"{url}/demo.mcpb", "transport": {"type": "stdio"}}
        digest = hashlib.sha256(content).hexdigest()
        servers = [
            {"name": "io.lab/good", "packages": [{**package, "fileSha256": digest}]},
            {"name": "io.lab/wrong", "packages": [{**package, "fileSha256": "0" * 64}]},
            {"name": "io.lab/none", "packages": [package]},
        ]
        with serve_registry(servers) as registry:
            settings = {"registry": {"url": registry}, "http": {"allow_private": True}}
            (tmp_path / "toolgate.yaml").write_text(json.dumps(settings))
            good = run("add", "--from", "io.lab/good", "--dry-run", "--json")
            assert good["settings"]["bundle"] == digest
            run("add", "--from", "io.lab/none", "--dry-run", refused="NO_PACKAGE")
            unpacked = tmp_path / "share/toolgate/mcpb" / digest[:32]
            assert unpacked.is_dir()
            os.utime(unpacked, (0, 0))  # long ago, and never added
            run("add", "--from", "io.lab/wrong", "--dry-run", refused="WRONG_DIGEST")
            assert not unpacked.exists()
