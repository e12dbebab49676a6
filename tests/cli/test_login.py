"""`toolgate upstream login` and `logout`, as they are typed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click.testing
import httpx2
import pytest
from oauth.world import World

from gateway.cli.doctor import doctor
from gateway.cli.upstream import upstream
from gateway.errors import GatewayError

Run = Callable[..., Any]


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    running = World()
    yield running
    running.stop()


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """`toolgate …` of a user whose home is empty, and whose browser says yes to everything."""
    monkeypatch.chdir(tmp_path)
    pages: list[httpx2.Response] = []
    monkeypatch.setattr("webbrowser.open", lambda url: pages.append(httpx2.get(url, follow_redirects=True)))
    gone = dict.fromkeys(("XDG_CONFIG_HOME", "XDG_DATA_HOME"))

    def invoke(*arguments: str, command: Any = upstream, refused: str | None = None, code: int = 0) -> Any:
        runner = click.testing.CliRunner(env={"HOME": str(tmp_path), **gone})
        result = runner.invoke(command, arguments, standalone_mode=False)
        if refused is not None:
            assert isinstance(result.exception, GatewayError), (result.exception, result.output)
            assert result.exception.code == refused, result.exception
            return result.exception.message
        if result.exception is not None:
            raise result.exception
        assert (result.return_value or 0) == code, result.output
        return json.loads(result.stdout) if "--json" in arguments else result.output

    return invoke


def state(run: Run) -> str:
    [shape] = run("list", "--json")
    return str(shape["state"])


def test_a_server_that_wants_a_login_from_the_first_day_to_the_last(run: Run, world: World, tmp_path: Path) -> None:
    added = run("add", "lab", "--url", f"{world.base}/mcp")
    assert added.partition("\n")[2] == "lab is added; it requires a login; run: toolgate upstream login lab\n"
    assert "not logged in" in run("list")
    refused = run("test", "lab", refused="UPSTREAM_UNAUTHORIZED")
    assert "you are not logged in to 'lab': run `toolgate upstream login lab`" in refused
    findings = run("--json", command=doctor, code=1)
    assert [each["message"] for each in findings if "not logged in to 'lab'" in each["message"]]

    printed = run("login", "lab")
    assert f"{world.issuer}/authorize?" in printed
    assert "you are logged in to lab, with the scopes: read" in printed
    assert "echo" in printed
    assert state(run) == "ok"
    assert "lab answers" in run("test", "lab")

    more = run("login", "lab", "--scope", "write", "--json")
    assert (more["name"], more["scope"], more["renewable"]) == ("lab", "read write", True)
    assert more["answer"]["tools"][0]["name"] == "echo"

    shown = "".join([printed, json.dumps(more), run("list"), run("show", "lab")])
    assert [secret for secret in world.now.secrets() if secret in shown] == []

    assert run("logout", "lab") == "you are logged out of lab\n"
    assert state(run) == "not logged in"
    run("logout", "lab", refused="NOT_LOGGED_IN")

    before = set(world.now.refresh)
    run("login", "lab")
    [kept] = tmp_path.rglob("logins/*.json")
    [token] = set(world.now.refresh) - before
    assert token not in kept.read_text()  # which is encrypted
    run("remove", "lab")
    assert not kept.exists()
    assert token not in world.now.refresh


def test_what_nobody_signed_in_to_leaves_nothing_of_logins(run: Run, tmp_path: Path) -> None:
    run("add", "plain", "--no-test", "--", "cat")
    run("remove", "plain")
    assert list(tmp_path.rglob("logins")) == []


def test_only_a_server_that_can_be_signed_in_to_is(run: Run, world: World, tmp_path: Path) -> None:
    url = f"{world.base}/mcp"
    oauth = {"grant": "client_credentials", "client_id": "robot", "client_secret": "${LAB_SECRET}"}
    servers = {
        "program": {"command": "cat"},
        "own": {"url": url, "headers": {"Authorization": "Bearer ${TOKEN}"}},
        "robot": {"url": url, "oauth": oauth},
    }
    (tmp_path / "toolgate.yaml").write_text(json.dumps({"mcpServers": servers}))
    assert "is a program" in run("login", "program", refused="NOTHING_TO_SIGN_IN")
    assert "TOKEN is not set" in run("login", "own", refused="MISSING_VARIABLE")
    assert "toolgate upstream test robot" in run("login", "robot", refused="NOTHING_TO_SIGN_IN")
    assert "robot needs LAB_SECRET" in run("test", "robot", refused="MISSING_VARIABLE")
    run("login", "nobody", refused="UNKNOWN_UPSTREAM")


def test_a_login_without_a_browser_shows_the_address_alone(
    run: Run, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    monkeypatch.setattr("gateway.oauth.flow.LOGIN_SECONDS", 0.1)
    run("add", "lab", "--url", f"{world.base}/mcp")
    message = run("login", "lab", "--no-browser", refused="LOGIN_TIMED_OUT")
    assert "toolgate upstream login lab" in message
    assert opened == []


@pytest.mark.parametrize(
    ("metadata", "fault"),
    [
        ({"client_secret": "written out", "client_id": "x"}, "write ${VARIABLE}"),
        ({"client_secret": "${SECRET}"}, "belongs to a 'client_id'"),
        ({"grant": "client_credentials", "client_id": "x"}, "needs a 'client_id' and a 'client_secret'"),
        ({"client_metadata_url": "http://toolgate.example/x"}, "client_metadata_url"),
        ({"scopes": ["two words"]}, "scopes"),
        ({"clientid": "x"}, "client_id"),
    ],
    ids=["written-out", "nobodys-secret", "no-secret", "no-https", "two-scopes", "unknown"],
)
def test_settings_that_cannot_be_meant_are_refused(
    run: Run, tmp_path: Path, metadata: dict[str, Any], fault: str
) -> None:
    servers = {"lab": {"url": "https://mcp.example/mcp", "oauth": metadata}}
    (tmp_path / "toolgate.yaml").write_text(json.dumps({"mcpServers": servers}))
    assert fault in run("list", refused="INVALID_CONFIG")


def test_a_program_has_no_oauth(run: Run, tmp_path: Path) -> None:
    (tmp_path / "toolgate.yaml").write_text(json.dumps({"mcpServers": {"lab": {"command": "cat", "oauth": {}}}}))
    assert "'oauth' is for a server with a 'url'" in run("list", refused="INVALID_CONFIG")
