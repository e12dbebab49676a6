"""Settings: defaults, the file, the command line on top, and complaints that name the fix."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from gateway import config
from gateway.errors import GatewayError, Invalid, NotFound
from gateway.tools import Permission


def load(tmp_path: Path, text: str, overrides: dict[str, Any] | None = None) -> config.Settings:
    path = tmp_path / "toolgate.yaml"
    path.write_text(text)
    return config.load(path, overrides)


def test_every_key_of_the_contract_is_taken(tmp_path: Path) -> None:
    settings = load(
        tmp_path,
        """
data_dir: ./data
database_url: null
blob_store: null
toolsets: [./toolsets/app-builder, "https://host/x.zip"]
mcpServers:
  time: {command: python, args: [-m, mcp_server_time]}
  docs: {url: "https://host/mcp", headers: {Authorization: "Bearer ${DOCS_TOKEN}"}, prefix: "", enabled: false,
         requires_confirmation: true, category: upstream, timeout: 3, lazy: false, tools: {allow: [a], deny: []}}
categories:
  development: {enabled: true, permission: execute, calls_per_minute: 120}
tools: {enable: null, enabled_categories: []}
approval: {mode: unsafe_only, without_elicitation: deny}
sandbox: {network: false, memory_mb: 1024, cpu_seconds: 60, timeout: 60}
web: {allowed_hosts: ["*.python.org"], search: {provider: searxng, url: "http://localhost:8888"}}
http: {allowed_hosts: [], allow_private: false}
auth: {required: false, jwt: null}
extensions: [{use: "mypkg.audit:SyslogAudit", priority: 50}]
profiles: {small: {mode: search}, reader: {permission: read-only}}
""",
    )
    assert settings.data_dir == tmp_path / "data"
    assert settings.toolsets == [str(tmp_path / "toolsets/app-builder"), "https://host/x.zip"]
    assert settings.upstreams["docs"].headers == {"Authorization": "Bearer ${DOCS_TOKEN}"}
    assert settings.effective_categories()["development"].calls_per_minute == 120
    assert settings.profiles["reader"].permission is Permission.READ_ONLY


def test_an_empty_file_means_the_defaults(tmp_path: Path) -> None:
    assert load(tmp_path, "") == config.load()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("dat_dir: x", "line 1: 'dat_dir': unknown key; did you mean 'data_dir'?"),
        (
            "\nmcpServers:\n  t: {command: x, sandbox: {path: [a]}}",
            "line 3: 'mcpServers.t.sandbox.path': unknown key; did you mean 'paths'?",
        ),
        (
            "\nmcpServers:\n  t: {url: 'http://h', sandbox: true}",
            "'sandbox' is for a server with a 'command'",
        ),
        ("\nmcpServers:\n  t: {comand: x}", "line 3: 'mcpServers.t.comand': unknown key; did you mean 'command'?"),
        ("extensions:\n- use: a:B\n- use: a:C\n  prio: 1", "line 4: 'extensions.1.prio': unknown key"),
        ("web: {search: {providr: x}}", "line 1: 'web.search.providr': unknown key; did you mean 'provider'?"),
        ("approval: {mode: nevr}", "line 1: 'approval.mode': must be 'never', 'unsafe_only' or 'always'"),
        ("data_dir: a\ndata_dir: b", "line 2: 'data_dir' occurs twice (first in line 1)"),
        ("extensions: [{use: os.system}]", "line 1: 'extensions.0.use'"),
        ("extensions: [{use: 'a:B', priority: 10}]", "line 1: 'extensions.0.priority'"),
        ("a: [", "line 2: invalid YAML: a value is expected here"),
        ("- a", "keys and values"),
        ("limits: {timeout: abc}", "line 1: 'limits.timeout': must be a number, not 'abc'"),
        (
            "limits: {timeout: 60s}",
            "line 1: 'limits.timeout': must be a number of seconds, such as 60, not '60s'",
        ),
        ("approval: {timeout: 2 min}", "'approval.timeout': must be a number of seconds, such as 120"),
        ("sandbox: {cpu_seconds: 1h}", "'sandbox.cpu_seconds': must be a whole number of seconds, such as 3600, not"),
        ("sandbox: {memory_mb: 2m}", "'sandbox.memory_mb': must be a whole number, not '2m'"),
        ("chat: x\nlimits\n  timeout: 5\n", "line 2: invalid YAML: a ':' is missing after a key"),
        ("chat: x\nprofile\n\n# words\ndata_dir: y", "line 2: invalid YAML: a ':' is missing after a key"),
        ("limits: {concurrency: 0}", "'limits.concurrency': must be greater than or equal to 1, not 0"),
        (
            "\napproval: {mode: alway}",
            "line 2: 'approval.mode': must be 'never', 'unsafe_only' or 'always', not 'alway'; did",
        ),
        ("profiles: {a: {permission: readonly}}", "not 'readonly'; did you mean 'read-only'?"),
        ("mcpServers: {t: {command: x, args: server}}", "'mcpServers.t.args': must be a list: write [server]"),
        (
            "mcpServers:\n  t: uvx x",
            "line 2: 'mcpServers.t': must be keys and values: {command: PROGRAM, args: [ARGUMENT]}",
        ),
        ("chat: 1.5", "'chat': must be text, not 1.5; write it in quotes: \"1.5\""),
        ("chat: @x", "line 1: invalid YAML: a value cannot begin with '@'; put it in quotes (column 7)"),
        ("port: 9000", "line 1: 'port': the port is given to the command: toolgate serve --transport http --port"),
        ("\nprofile: dev", "line 2: 'profile': there is no profile 'dev' under 'profiles'"),
        ("tools:\n  enabled_categories: [wbe]", "line 2: 'tools.enabled_categories': there is no category 'wbe'; did"),
        ("chat: x\nworkspace: nowhere", "line 2: 'workspace': the workspace"),
    ],
)
def test_a_mistake_is_named_with_file_line_key_and_the_nearest_right_one(
    tmp_path: Path, text: str, complaint: str
) -> None:
    with pytest.raises(Invalid) as refused:
        load(tmp_path, text)
    assert refused.value.code == "INVALID_CONFIG"
    assert str(tmp_path / "toolgate.yaml") in refused.value.message
    assert complaint in refused.value.message


@pytest.mark.parametrize(
    "text",
    [
        "mcpServers: {t: {command: x, env: {PLAIN: [hunter2]}, headers: hunter2}}",
        "mcpServers: {t: {command: x, env: hunter2}}",
        "mcpServers: {t: {command: x, args: --token hunter2}}",
        "web: {search: {provider: searxng, url: 'http://h', key: [hunter2]}}",
        "approval: {keys: hunter2}",
        "limits: {timeout: ghp_hunter2hunter2}",
    ],
)
def test_a_mistake_never_shows_a_value_that_may_be_secret(tmp_path: Path, text: str) -> None:
    with pytest.raises(Invalid) as refused:
        load(tmp_path, text)
    assert "hunter2" not in str(refused.value.to_dict())


def test_a_mistake_shows_the_variable_and_never_its_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAIN_OF_TEST", "hunter2")
    with pytest.raises(Invalid, match=r"must be a number, not '\$\{PLAIN_OF_TEST\}'"):
        load(tmp_path, "limits: {timeout: '${PLAIN_OF_TEST}'}")


def test_the_command_line_stands_above_the_file_section_by_section(tmp_path: Path) -> None:
    settings = load(tmp_path, "tools: {enabled_categories: [web]}\nchat: a", {"tools": {"enable": False}, "chat": "b"})
    assert settings.tools == config.ToolSettings(enable=False, enabled_categories=["web"])
    assert settings.chat == "b"


def on(**tools: Any) -> set[str]:
    categories = tools.pop("categories", {})
    settings = config.Settings.model_validate({"tools": tools, "categories": categories})
    return {category.name for category in settings.effective_categories().values() if category.enabled}


DEFAULTS = {"filesystem", "editing", "web", "toolsets", "upstream"}


@pytest.mark.promise("P1")
def test_flags_and_settings_turn_categories_on_and_off() -> None:
    everything = DEFAULTS | {"development", "customer_support"}
    assert on() == DEFAULTS
    assert on(enable=True) == everything
    assert on(enabled_categories=["development"]) == DEFAULTS | {"development"}
    assert on(enable=False) == set()
    assert on(enable=False, categories={"web": {"enabled": True}}) == {"web"}
    assert on(enable=False, enabled_categories=["web"]) == {"web"}
    assert on(enable=True, categories={"web": {"enabled": False}}) == everything - {"web"}
    assert on(categories={"mine": {}}) == DEFAULTS | {"mine"}


@pytest.mark.promise("P1")
def test_an_unknown_category_or_profile_is_refused_with_the_nearest() -> None:
    with pytest.raises(Invalid, match="there is no category 'develpment'; did you mean 'development'"):
        on(enabled_categories=["develpment"])
    with pytest.raises(Invalid, match="there is no profile 'x'"):
        config.Settings(profile="x").effective_profile()


def test_variables_are_resolved_at_use_and_a_missing_one_is_named() -> None:
    assert config.resolve_variables("Bearer ${TOKEN}", {"TOKEN": "s"}) == "Bearer s"
    with pytest.raises(GatewayError, match="TOKEN is not set"):
        config.resolve_variables("Bearer ${TOKEN}", {})


def test_a_named_settings_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="there is no settings file"):
        config.find(tmp_path / "nope.yaml")


def in_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "nothing"))
    path = tmp_path / "toolgate.yaml"
    path.write_text("chat: found\n")
    return path


def test_a_file_that_is_only_found_is_not_in_the_hands_of_the_tools_it_governs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = in_the_current_folder(tmp_path, monkeypatch)
    (tmp_path / "deeper").mkdir()
    assert config.read(None, {"workspace": tmp_path / "deeper"}).chat == "found"
    (tmp_path / "link").symlink_to(tmp_path)
    for workspace in (tmp_path, tmp_path / "link", Path()):
        with pytest.raises(Invalid, match="is in the workspace") as refused:
            config.read(None, {"workspace": workspace})
        assert refused.value.code == "UNTRUSTED_CONFIG"
    path.write_text("chat: found\nworkspace: .\n")
    with pytest.raises(Invalid, match="use --config"):
        config.read()
    assert config.read(path).chat == "found"  # who names it means it


def test_a_file_in_the_workspace_is_used_once_all_of_it_is_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = in_the_current_folder(tmp_path, monkeypatch)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path.parent / "data"))
    path.write_text("workspace: .\nchat: found\n")
    with pytest.raises(Invalid, match="trust it as it is with: toolgate config trust"):
        config.read()
    config.trust(path)
    assert config.read().chat == "found"
    for content in ("chat: other\n", "", "chat: found\nlimits: {timeout: 1}\n"):
        path.write_text(f"workspace: .\n{content}")  # as a tool could
        with pytest.raises(Invalid, match="is in the workspace"):
            config.read()
    config.trust(path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    config.trust(path)
    with pytest.raises(Invalid, match="is in the workspace"):
        config.read()  # tools could change what is trusted, too
    path.write_text("# nothing is set\n")
    assert config.read(None, {"workspace": tmp_path}).workspace == tmp_path
    path.chmod(0o666)
    with pytest.raises(Invalid, match="can be changed by every user"):
        config.trust(path)


def test_a_file_of_a_repository_is_used_only_as_it_was_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = in_the_current_folder(tmp_path, monkeypatch)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    (tmp_path / ".git").mkdir()
    assert config.read().chat == "found"  # it starts and allows nothing
    path.write_text("chat: found\nmcpServers: {a: {command: cat}}\napproval: {mode: never}\n")
    with pytest.raises(
        Invalid, match=r"sets mcpServers, approval, so it can start .* with: toolgate config trust"
    ) as no:
        config.read()
    assert no.value.code == "UNTRUSTED_CONFIG"
    assert config.read(path).chat == "found"  # who names it means it
    (tmp_path / "deeper").mkdir()
    monkeypatch.chdir(tmp_path / "deeper")
    for section in ("extensions: []", "tools: {enabled_categories: [development]}", "retention: {days: 1}"):
        (tmp_path / "deeper/toolgate.yaml").write_text(section + "\n")
        with pytest.raises(Invalid, match=f"sets {section.split(':')[0]}, so"):
            config.read()
    monkeypatch.chdir(tmp_path)
    config.trust(Path("toolgate.yaml"))
    assert "a" in config.read().upstreams
    path.write_text(path.read_text().replace("found", "other"))
    assert config.read().chat == "other"  # what it starts and allows is the same
    path.write_text(path.read_text().replace("cat", "sh"))
    with pytest.raises(Invalid, match="belongs to a Git repository"):
        config.read()
    (tmp_path / "data/toolgate/trusted.json").write_text("[1]")
    with pytest.raises(Invalid, match="belongs to a Git repository"):
        config.read()


def test_a_file_that_is_only_found_is_not_in_the_hands_of_other_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = in_the_current_folder(tmp_path, monkeypatch)
    path.chmod(0o666)
    with pytest.raises(Invalid, match="can be changed by every user"):
        config.read()
    path.chmod(0o644)
    assert config.read().chat == "found"
    if os.geteuid() == 0:
        os.chown(path, 65534, 65534)
        with pytest.raises(Invalid, match="belongs to another user"):
            config.read()


def test_folders_mean_what_they_mean_where_they_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = config.load(None, {"workspace": Path(), "data_dir": Path("data")})
    monkeypatch.chdir("/")
    assert (settings.workspace, settings.data_dir) == (tmp_path, tmp_path / "data")


def test_directory_of_the_model_is_relative_to_the_file(tmp_path: Path) -> None:
    (tmp_path / "toolgate.yaml").write_text("tools: {semantic: models/minilm}")
    assert config.load(tmp_path / "toolgate.yaml", {}).tools.semantic == tmp_path / "models/minilm"
    (tmp_path / "toolgate.yaml").write_text("tools: {semantic: true}")
    assert config.load(tmp_path / "toolgate.yaml", {}).tools.semantic is True


def test_oversights_of_a_valid_file_are_found_with_their_lines(tmp_path: Path) -> None:
    text = """
mcpServers:
  docs:
    command: x
    args: [--token, "${NOPE_OF_TEST}"]
  idle: {command: x, enabled: false, env: {A: "${NOPE_OF_TEST}"}}
toolsets: [app-builder, "https://host/x.zip", ./nope]
approval:
  rules:
  - tool: read_file
  - {tool: write_file, then: deny}
"""
    settings = load(tmp_path, text)
    path = tmp_path / "toolgate.yaml"
    assert list(config.find_oversights(settings, path)) == [
        f"{path} line 5: 'mcpServers.docs.args.1': the environment variable NOPE_OF_TEST is not set, "
        "so the server cannot start",
        f"{path} line 7: 'toolsets.2': there is no file or folder {str(tmp_path / 'nope')!r}",
        f"{path} line 10: 'approval.rules.0': it has no 'then', so it asks; write then: ask, allow or deny",
    ]
    assert list(config.find_oversights(load(tmp_path, "upstreams: {a: {url: 'http://h'}}"), path)) == []
