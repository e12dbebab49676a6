"""`toolgate config` and `toolgate init`: what applies and why, every mistake at once, and a first set-up."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from gateway import config
from gateway.cli import main
from gateway.cli.init import _TEMPLATE
from gateway.config import Settings
from gateway.errors import Invalid


def toolgate(home: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command in `home`, which is also the person's home."""
    return subprocess.run(
        [sys.executable, "-m", "gateway", *arguments],
        cwd=home,
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
            "HOME": str(home),
            "XDG_CONFIG_HOME": str(home / ".config"),
            **environment,
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_config_show_names_the_line_of_each_setting_and_masks_secrets(tmp_path: Path) -> None:
    (tmp_path / "toolgate.yaml").write_text(
        "data_dir: ${PLACE}/data\n"
        "limits: {timeout: 3}\n"
        "mcpServers:\n"
        "  a: {command: x, env: {API_KEY: sk-1234567890abcdef, OTHER: '${OTHER}'}}\n"
    )
    shown = toolgate(tmp_path, "config", "show", "--json", PLACE=str(tmp_path / "there"))
    settings = {item["key"]: (item["value"], item["line"]) for item in json.loads(shown.stdout)}
    assert settings["data_dir"] == (str(tmp_path / "there/data"), 1)
    assert settings["limits.timeout"] == (3, 2)
    assert settings["limits.concurrency"] == (64, None)
    assert settings["mcpServers.a.env.API_KEY"] == ("[redacted]", 4)
    assert settings["mcpServers.a.env.OTHER"] == ("${OTHER}", 4)
    assert "sk-1234567890abcdef" not in shown.stdout
    changed = toolgate(tmp_path, "config", "show", "limits", "--changed", PLACE="/p")
    assert changed.stdout.splitlines()[2:] == ["limits.timeout  3.0    toolgate.yaml line 2"]
    unknown = toolgate(tmp_path, "config", "show", "limit", PLACE="/p")
    assert unknown.stderr == "toolgate: NOT_FOUND: there is no setting 'limit'; did you mean 'limits'?\n"


def test_config_check_reports_every_mistake_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "toolgate.yaml").write_text("aproval: {}\nlimits: {timeout: x}\nmcpServers: {a: {}}\n")
    told = toolgate(tmp_path, "config", "check")
    assert told.returncode == 1
    assert told.stderr.splitlines() == [
        "toolgate: INVALID_CONFIG: toolgate.yaml line 1: 'aproval': unknown key; did you mean 'approval'?",
        "  also: toolgate.yaml line 2: 'limits.timeout': must be a number, not 'x'",
        "  also: toolgate.yaml line 3: 'mcpServers.a': a server has either a 'command' to start or a 'url' to reach",
    ]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("toolgate.yaml", "data_dir: ${NOPE}/x", "line 1: 'data_dir': the environment variable NOPE is not set"),
        ("toolgate.yaml", "approval:\n  keys: ['${NOPE}']", "'approval.keys.0': the environment variable NOPE is not"),
        ("toolgate.yml", "limits: {timout: 3}", "toolgate.yml line 1: 'limits.timout': unknown key"),
        ("toolgate.yaml", "approval:\n  mode: off", "put such a word in quotes"),
        (
            "toolgate.yaml",
            "limits:\n\ttimeout: 3",
            "line 2: invalid YAML: a tab in the indentation;",
        ),
        ("toolgate.yaml", "a: [1\nb: 2", "line 2: invalid YAML: a '[' or '{' is not closed"),
        ("toolgate.yaml", "a: 'b\nc: 1", "the file ends inside a quoted text; close the quote"),
        ("toolgate.yaml", "a: b: c", "line 1: invalid YAML: a ':' where no key can be"),
        ("toolgate.yaml", "a: &a [*a]", "an alias (*) contains itself"),
        ("toolgate.yaml", "upstreams: {a: {comand: x}}", "'upstreams.a.comand': unknown key; did you mean 'command'?"),
        ("toolgate.yaml", "server: {port: 9000}", "line 1: 'server.port': the port is given to the command: toolgate"),
        ("toolgate.yaml", "rules: []", "'rules': unknown key; did you mean 'approval.rules'?"),
        ("toolgate.yaml", "allowed_hosts: []", "did you mean 'sandbox.allowed_hosts' or 'web.allowed_hosts' or"),
        ("toolgate.yaml", "permission: execute", "'permission': unknown key; the keys here are"),
        ("toolgate.yaml", "web: {zzz: 1}", "'web.zzz': unknown key; the keys here are allow_private,"),
    ],
)
def test_a_mistake_in_the_file_is_explained(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    told = toolgate(tmp_path, "config", "check")
    assert told.returncode == 1
    assert message in told.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == [name]


def test_config_check_warns_of_rules_and_categories_that_nothing_has(tmp_path: Path) -> None:
    rules = [{"tool": "writefile", "then": "deny"}, {"tool": "later:*", "then": "deny"}]
    role = {"categories": ["web", "filesystm"], "servers": ["docs", "crm-*"]}
    jwt = {"issuer": "https://idp.example", "audience": "toolgate", "default_role": "agnet"}
    settings = {"approval": {"rules": rules}, "categories": {"filesytem": {"enabled": True}}}
    text = json.dumps(settings | {"roles": {"agent": role}, "auth": {"jwt": jwt}})
    (tmp_path / "toolgate.yaml").write_text(text)
    told = toolgate(tmp_path, "config", "check")
    assert told.returncode == 0
    assert told.stderr.splitlines() == [
        f"warning: toolgate.yaml line 1: {text}"
        for text in (
            "categories.filesytem: no builtin tool is in this category; did you mean 'filesystem'?",
            "rule 1 of approval.rules: no tool has the id 'writefile'; did you mean 'write_file'?",
            "rule 2 of approval.rules: no tool has the id 'later:*'",
            "roles.agent.categories: there is no category 'filesystm'; did you mean 'filesystem'?",
            "roles.agent.servers: there is no server 'docs'",
            "auth.jwt.default_role: there is no role 'agnet'; did you mean 'agent'?",
        )
    ]
    assert told.stdout.startswith("toolgate.yaml: valid, with warnings;")
    (tmp_path / "toolgate.yaml").write_text("workspace: nowhere")
    assert "is not a folder; make it, or name another one" in toolgate(tmp_path, "config", "check").stderr


def test_two_settings_files_in_one_folder_are_refused(tmp_path: Path) -> None:
    (tmp_path / "toolgate.yaml").touch()
    (tmp_path / "toolgate.yml").touch()
    assert "both toolgate.yaml and toolgate.yml exist; remove one of them" in toolgate(tmp_path, "doctor").stderr


def test_an_unreadable_settings_file_is_no_internal_error(tmp_path: Path) -> None:
    (tmp_path / "toolgate.yaml").mkdir()
    with pytest.raises(Invalid, match="cannot be read: Is a directory"):
        config.load(tmp_path / "toolgate.yaml")


def test_an_unknown_command_is_answered_with_the_nearest(tmp_path: Path) -> None:
    told = toolgate(tmp_path, "conifg", "show")
    assert (told.returncode, "there is no command 'conifg'; did you mean 'config'?" in told.stderr) == (2, True)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (["logs"], "'upstream logs'"),
        (["list"], "'tool list', 'toolset list', 'upstream list' or 'category list'"),
        (["version"], "'--version'"),
        (["status"], "'doctor'"),
        (["run", "read_file"], "'tool call'"),
        (["toolset", "create", "mine"], "'new'"),
        (["key", "delete", "ann"], "'revoke'"),
    ],
)
def test_another_word_for_a_command_is_answered_with_the_command(
    typed: list[str], meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(typed)
    assert f"; did you mean {meant}?" in capsys.readouterr().err


def test_the_settings_template_is_valid_with_every_line_of_it_in_force() -> None:
    text = _TEMPLATE.read_text()
    assert yaml.safe_load(text) is None
    settings = Settings.model_validate(yaml.safe_load(re.sub(r"^#(?! )|^#(?=  )", "", text, flags=re.MULTILINE)))
    assert settings.upstreams["docs"].prefix == "docs"
    assert settings.approval.rules


TIME = {"command": "uvx", "args": ["mcp-server-time"], "env": {"API_KEY": "sk-abcdefgh12345678"}}


def test_init_writes_settings_imports_servers_and_adds_itself_to_clients(tmp_path: Path) -> None:
    folder = tmp_path / ".cursor"
    folder.mkdir()
    (folder / "mcp.json").write_text(json.dumps({"mcpServers": {"time": TIME}}))
    done = toolgate(tmp_path, "init", "--yes")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / ".config/toolgate/toolgate.yaml").read_bytes() == _TEMPLATE.read_bytes()
    assert "time: imported" in done.stdout
    servers = json.loads((folder / "mcp.json").read_text())["mcpServers"]
    assert servers["time"] == TIME
    assert servers["toolgate"]["args"][-1] == "serve"
    assert "sk-abcdefgh12345678" not in done.stdout + done.stderr
    listed = toolgate(tmp_path, "upstream", "list", "--json")
    assert [server["name"] for server in json.loads(listed.stdout)] == ["time"]
    again = toolgate(tmp_path, "init", "--yes")
    assert again.returncode == 0, again.stderr
    assert "exists and is kept" in again.stdout
    assert "the servers of your clients are here already" in again.stdout
    assert "Cursor has it already" in again.stdout


def test_init_without_a_person_writes_the_settings_only(tmp_path: Path) -> None:
    (tmp_path / ".cursor").mkdir()
    done = toolgate(tmp_path, "init", "--here")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "toolgate.yaml").is_file()
    assert not (tmp_path / ".cursor/mcp.json").exists()
