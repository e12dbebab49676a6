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
