"""Nothing that is secret leaves with a toolset."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from gateway import Gateway
from gateway.admin.toolsets import export_toolset, install_toolset, list_toolsets
from gateway.bundles import HttpTool, ShellTool, dump, load, mask_secrets
from gateway.bundles.http_tool import BearerAuth
from gateway.bundles.secret_references import find_open_secret, mask_url
from gateway.errors import Invalid
from gateway.secrets import is_shareable

TOKEN = "ghp_0123456789abcdefghijABCDEFGHIJ012345"

HEAD = 'id: demo\nname: Demo\nversion: "1.0.0"\n'


def test_literal_values_of_servers_leave_as_references() -> None:
    first, second, third = mask_secrets(
        load(
            HEAD
            + """
mcp_servers:
- id: one
  command: npx
  args: [-y, pkg, --api-key=s3cret1, --token, s3cret2, --verbose, plain, -p, "8080"]
  env: {API_KEY: s3cret3, MODE: "", OTHER: "${OTHER}", DSN: "postgres://u:s3cret4@${HOST}/db"}
- id: two-b
  url: https://host/mcp?access_token=s3cret5&page=2&key=${KEY}
  headers: {Authorization: Bearer s3cret6, X-Key: "Token ${KEY}", Accept: text/plain}
- id: three
  command: x
  env: {API_KEY: s3cret7}
"""
        )
    ).mcp_servers
    assert first.args == (*("-y", "pkg", "--api-key=${ONE_API_KEY}", "--token", "${ONE_TOKEN}"), *first.args[5:])
    assert first.args[5:] == ("--verbose", "plain", "-p", "8080")
    assert first.env == {"API_KEY": "${API_KEY}", "MODE": "", "OTHER": "${OTHER}", "DSN": "${DSN}"}
    assert second.url == "https://host/mcp?access_token=${TWO_B_ACCESS_TOKEN}&page=2&key=${KEY}"
    assert second.headers == {
        "Authorization": "${TWO_B_AUTHORIZATION}",
        "X-Key": "Token ${KEY}",
        "Accept": "text/plain",
    }
    assert third.env == {"API_KEY": "${THREE_API_KEY}"}


def test_literal_values_of_tools_become_declared_secrets() -> None:
    masked = mask_secrets(
        load(
            HEAD
            + """
secrets: [KNOWN]
tools:
- {id: a, type: shell, command: [ls], env: {LANG: s3cret1, PATH: "${KNOWN}", ARG: "${arg}"}}
- id: b
  type: http
  url_template: https://host/x?api_key=s3cret2&q=${q}
  query: {token: s3cret3, page: "2"}
  headers: {X-Key: s3cret4, Content-Type: text/plain}
  auth: {type: basic, username: s3cret5, password: "${KNOWN}"}
- {id: c, type: http, url_template: "https://host/", headers: {X-Key: s3cret4}, auth: {type: bearer, token: s3cret6}}
- {id: d, type: http, url_template: "https://host/", headers: {X-Key: s3cret7}}
"""
        )
    )
    a, b, c, d = masked.tools
    assert isinstance(a, ShellTool)
    assert isinstance(b, HttpTool)
    assert isinstance(c, HttpTool)
    assert isinstance(d, HttpTool)
    assert a.env == {"LANG": "${LANG}", "PATH": "${KNOWN}", "ARG": "${arg}"}
    assert b.url_template == "https://host/x?api_key=${DEMO_API_KEY}&q=${q}"
    assert b.query == {"token": "${DEMO_TOKEN}", "page": "2"}
    assert b.headers == {"X-Key": "${DEMO_X_KEY}", "Content-Type": "text/plain"}
    assert (c.headers, d.headers) == ({"X-Key": "${DEMO_X_KEY}"}, {"X-Key": "${DEMO_X_KEY_2}"})
    assert isinstance(c.auth, BearerAuth)
    assert c.auth.model_dump() == {"type": "bearer", "token": "${DEMO_TOKEN_2}"}
    expected = ["DEMO_API_KEY", "DEMO_TOKEN", "DEMO_TOKEN_2", "DEMO_USERNAME", "DEMO_X_KEY", "DEMO_X_KEY_2", "LANG"]
    assert masked.secrets == ("KNOWN", *expected)
    assert "s3cret" not in dump(masked)
    assert load(dump(masked)) == masked
    assert mask_secrets(masked) == masked


def test_a_name_that_means_something_already_is_not_given_to_a_literal() -> None:
    masked = mask_secrets(
        load(
            HEAD
            + """
tools:
- {id: a, type: shell, command: [ls, "${KEY}"], env: {KEY: s3cret}, input_schema: {type: object, properties: {KEY: {}}}}
mcp_servers:
- {id: s, command: x, env: {A: "${B}", B: s3cret}}
"""
        )
    )
    tool = masked.tools[0]
    assert isinstance(tool, ShellTool)
    assert (tool.env, masked.secrets) == ({"KEY": "${DEMO_KEY}"}, ("DEMO_KEY",))
    assert masked.mcp_servers[0].env == {"A": "${B}", "B": "${S_B}"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("LOG_LEVEL", "debug"),
        ("LOG_LEVEL", "DEBUG"),
        ("DEBUG", "true"),
        ("PORT", "8080"),
        ("LANG", "de"),
        ("NODE_ENV", "production"),
        ("ENCODING", "utf"),
        ("X-Mode", "Fast"),
    ],
)
def test_a_short_plain_word_under_a_plain_name_is_no_secret(name: str, value: str) -> None:
    assert is_shareable(name, value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("DB_PASSWORD", "hunter"),
        ("DB_PASS", "letmein"),
        ("API_KEY", "abc"),
        ("GITHUB_TOKEN", "x"),
        ("CARD_PIN", "1234"),
        ("PIN", "1234"),
        ("CLIENT_ID", "acme"),
        ("PGUSER", "admin"),
        ("Authorization", "secret"),
        ("Cookie", "abc"),
        ("LOG_LEVEL", "s3cret"),
        ("LOG_LEVEL", "correcthorsebattery"),
        ("LOG_LEVEL", "aBcDeF"),
        ("LOG_LEVEL", "123456"),
        ("LOG_LEVEL", "two words"),
        ("HOME_URL", "http://me:pw@host"),
    ],
)
def test_what_may_be_a_secret_by_its_name_or_by_its_look_is_not_kept(name: str, value: str) -> None:
    assert not is_shareable(name, value)


def test_harmless_values_stay_where_they_are_written() -> None:
    text = HEAD + (
        "tools:\n- {id: a, type: shell, command: [ls], env: {LANG: de, KEY: abc}}\n"
        "mcp_servers:\n- {id: s, command: x, env: {LOG_LEVEL: debug, TOKEN: abc, DEPTH: '3'}}\n"
        "- {id: r, url: 'https://host/', headers: {X-Mode: fast, X-Auth: fast}}\n"
    )
    masked = mask_secrets(load(text))
    tool = masked.tools[0]
    assert isinstance(tool, ShellTool)
    assert tool.env == {"LANG": "de", "KEY": "${KEY}"}
    assert masked.mcp_servers[0].env == {"LOG_LEVEL": "debug", "TOKEN": "${TOKEN}", "DEPTH": "3"}
    assert masked.mcp_servers[1].headers == {"X-Mode": "fast", "X-Auth": "${R_X_AUTH}"}


@pytest.mark.parametrize(
    ("url", "kept"),
    [
        ("https://host/a.zip", "https://host/a.zip"),
        ("https://me:pw@host:8443/a.zip", "https://host:8443/a.zip"),
        ("https://host/a.zip?v=1&token=abc&x=2#frag", "https://host/a.zip?v=1&token=${TOKEN}&x=2"),
        ("https://host?mail=a@b", "https://host?mail=a@b"),
    ],
)
def test_an_address_is_remembered_without_its_secrets(url: str, kept: str) -> None:
    assert mask_url(url) == kept


SERVERS = f"""
mcp_servers:
- {{id: s, command: uvx, args: [x, -e, "TOKEN={TOKEN}", --header, "X-Api-Key: sk-live-0123456789abcdefghij"]}}
- {{id: w, url: "https://host.example/mcp/tok/{TOKEN}?key=abcdef1"}}
tools:
- {{id: a, type: shell, command: [cat], stdin: "password=hunter2hunter2"}}
- id: b
  type: http
  method: POST
  url_template: https://api.telegram.org/bot123456789:AAEhBOweik6ad9r_QXMENQjcrGbqCr4K-bc/send
  body: {{api_key: abcdef1, text: "${{text}}"}}
"""


@pytest.mark.anyio
@pytest.mark.promise("T3", "T6")
async def test_no_secret_of_arguments_addresses_bodies_or_stdin_is_stored_or_exported(tmp_path: Path) -> None:
    secrets = [TOKEN, "sk-live", "abcdef1", "hunter2", "AAEhBO"]
    (source := tmp_path / "demo").mkdir()
    (source / "toolset.yaml").write_text(HEAD + SERVERS)
    async with Gateway.open({"data_dir": tmp_path / "data"}) as gateway:
        info = await install_toolset(gateway, str(source))
        assert {"S_TOKEN", "S_X_API_KEY", "W_URL_TOKEN", "W_KEY", "DEMO_PASSWORD"} <= set(info.installed.masked)
        await export_toolset(gateway, "demo", tmp_path / "x.zip")
    with zipfile.ZipFile(tmp_path / "x.zip") as archive:
        text = archive.read("toolset.yaml").decode()
    stored = b"".join(path.read_bytes() for path in (tmp_path / "data").rglob("*") if path.is_file())
    assert not [secret for secret in secrets if secret in text or secret.encode() in stored]
    assert "/${DEMO_URL_TOKEN}/send" in text and mask_secrets(load(text)) == load(text)


@pytest.mark.anyio
@pytest.mark.promise("T3", "T6")
async def test_a_secret_word_of_a_command_is_refused_with_its_line_and_the_variable(tmp_path: Path) -> None:
    commands = ['[curl, -H, "X-Api-Key: sk-live-0123456789abcdefghij"]', "curl -u bob:hunter2hunter2 https://host/"]
    (source := tmp_path / "demo").mkdir()
    async with Gateway.open({"data_dir": tmp_path / "data"}) as gateway:
        for command, variable in zip(commands, ["X_API_KEY", "PASSWORD"], strict=True):
            (source / "toolset.yaml").write_text(f"{HEAD}tools:\n- id: a\n  type: shell\n  command: {command}\n")
            with pytest.raises(Invalid) as refused:
                await install_toolset(gateway, str(source))
            assert refused.value.code == "LITERAL_SECRET"
            assert "toolset.yaml line 7: 'tools.0.command" in refused.value.message
            assert f"${{{variable}}}" in refused.value.message and "hunter2" not in refused.value.message
        assert not await list_toolsets(gateway)
    steps = "type: steps, steps: [{tool: call_api, args: {token: $args.token, key: users}}]"
    assert find_open_secret(load(f"{HEAD}tools:\n- {{id: a, {steps}}}\n")) is None
    literal = steps.replace("$args.token", TOKEN)
    assert find_open_secret(load(f"{HEAD}tools:\n- {{id: a, {literal}}}\n")) == (("tools", 0, "steps", 0), "TOKEN")
