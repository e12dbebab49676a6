"""Other clients' files, read as their owners wrote them: every server, no secret, and a reason for each left out."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config import UpstreamSettings
from gateway.db.upstreams import encode_settings
from gateway.errors import Invalid
from gateway.secrets import VARIABLE, VariableNames
from gateway.sources.upstreams.client_configs import Candidate, ImportContext, Skipped, clean_name, is_toolgate, read

HOME = Path("/home/ada")
AROUND = ImportContext(HOME)
GITHUB = "ghp_" + "a1B2" * 9
KEY = "sk-" + "proj-" + "Zx9Qw8Er7T" * 3


def found(data: Any, around: ImportContext = AROUND) -> dict[str, Candidate]:
    """The servers of a file, none of which may be left out."""
    servers = read(data if isinstance(data, str) else json.dumps(data), around)
    assert [each for each in servers if isinstance(each, Skipped)] == []
    return {each.name: each for each in servers if isinstance(each, Candidate)}


def one(entry: Any, around: ImportContext = AROUND, name: str = "one", **beside: Any) -> Candidate:
    return found({"mcpServers": {name: entry}, **beside}, around)[clean_name(name)]


def reason(entry: Any, around: ImportContext = AROUND, name: str = "one") -> str:
    [skipped] = read(json.dumps({"mcpServers": {name: entry}}), around)
    assert isinstance(skipped, Skipped)
    return skipped.reason


def whole(candidate: Candidate) -> dict[str, Any]:
    """The settings with their secrets in place again."""

    def filled(value: Any) -> Any:
        if isinstance(value, str):
            environment = {name: f"${{{name}}}" for name in candidate.missing({})} | dict(candidate.values)
            return VARIABLE.sub(lambda match: environment[match[1]], value)
        if isinstance(value, dict):
            return {key: filled(item) for key, item in value.items()}
        return [filled(item) for item in value] if isinstance(value, list) else value

    return {key: filled(value) for key, value in candidate.settings.items()}


# Which shapes


def test_claude_desktops_file() -> None:
    text = dedent(
        """
        {
          "globalShortcut": "Cmd+Space",
          "mcpServers": {
            "filesystem": {
              "command": "npx",
              "args": ["-y", "@modelcontextprotocol/server-filesystem", "/Users/ada/Desktop", "/Users/ada/toolgate"]
            },
            "github": {
              "command": "docker",
              "args": ["run", "-i", "--rm", "-e", "GITHUB_PERSONAL_ACCESS_TOKEN", "ghcr.io/github/github-mcp-server"],
              "env": {"GITHUB_PERSONAL_ACCESS_TOKEN": "%s", "LOG_LEVEL": "debug"}
            }
          }
        }
        """
    )
    servers = found(text % GITHUB)
    assert servers["filesystem"].settings["args"][2:] == ["/Users/ada/Desktop", "/Users/ada/toolgate"]
    assert servers["github"].settings["env"] == {
        "GITHUB_PERSONAL_ACCESS_TOKEN": "${GITHUB_PERSONAL_ACCESS_TOKEN}",
        "LOG_LEVEL": "debug",
    }
    assert servers["github"].values == {"GITHUB_PERSONAL_ACCESS_TOKEN": GITHUB}


def test_claude_codes_own_file_with_its_projects() -> None:
    data = {
        "numStartups": 12,
        "mcpServers": {"sentry": {"type": "http", "url": "https://mcp.sentry.dev/mcp"}},
        "projects": {
            "/home/ada/shop": {
                "history": [{"display": "hello"}],
                "mcpServers": {"db": {"type": "stdio", "command": "./db.sh", "args": [], "env": {}}},
            },
            "/home/ada/empty": {"mcpServers": {}},
        },
    }
    servers = found(data)
    assert servers["sentry"].settings == {"url": "https://mcp.sentry.dev/mcp"}
    assert servers["db"].settings == {"command": "./db.sh", "cwd": "/home/ada/shop"}
    assert servers["db"].place == "/home/ada/shop"


def test_claude_codes_defaults_are_taken_where_the_variable_is_not_set() -> None:
    entry = {"url": "${BASE:-https://api.example.org}/mcp", "headers": {"Authorization": "Bearer ${API_KEY}"}}
    assert one(entry).settings["url"] == "https://api.example.org/mcp"
    assert one(entry, ImportContext(HOME, environment={"BASE": "x"})).settings["url"] == "${BASE}/mcp"
    assert one(entry).settings["headers"] == {"Authorization": "Bearer ${API_KEY}"}
    assert one(entry).missing({}) == ["API_KEY"]


def test_cursors_variables() -> None:
    around = ImportContext(HOME, Path("/home/ada/shop"))
    entry = {
        "command": "${userHome}/bin/server",
        "args": ["--root", "${workspaceFolder}${pathSeparator}src", "${workspaceFolderBasename}"],
        "env": {"API_KEY": "${env:SHOP_KEY}"},
    }
    assert one(entry, around).settings == {
        "command": "/home/ada/bin/server",
        "args": ["--root", "/home/ada/shop/src", "shop"],
        "env": {"API_KEY": "${SHOP_KEY}"},
        "cwd": "/home/ada/shop",
    }
    assert "--workspace DIR" in reason(entry)


def test_vs_codes_file_with_what_it_asks_for() -> None:
    text = """
    {
      // asked for once, and kept by the editor
      "inputs": [
        {"type": "promptString", "id": "perplexity-key", "description": "Perplexity API Key", "password": true},
        {"type": "promptString", "id": "region", "description": "Region", "default": "eu-west-1"},
      ],
      "servers": {
        /* the first */
        "Perplexity": {
          "type": "stdio",
          "command": "npx",
          "args": ["-y", "server-perplexity-ask", "--region", "${input:region}"],
          "env": {"PERPLEXITY_API_KEY": "${input:perplexity-key}"},
        },
        "fetch": {"type": "http", "url": "https://example.org/mcp?note=//not-a-comment"},
      },
    }
    """
    servers = found(text)
    assert servers["Perplexity"].settings["env"] == {"PERPLEXITY_API_KEY": "${PERPLEXITY_KEY}"}
    assert servers["Perplexity"].missing({}) == ["PERPLEXITY_KEY"]
    assert servers["Perplexity"].asks["PERPLEXITY_KEY"] == "Perplexity API Key"
    assert servers["Perplexity"].values == {"REGION": "eu-west-1"}
    assert servers["fetch"].settings == {"url": "https://example.org/mcp?note=//not-a-comment"}


@pytest.mark.parametrize(
    "data",
    [
        {"mcp": {"servers": {"a": {"command": "x"}}, "inputs": []}, "editor.fontSize": 12},
        {"mcp.servers": {"a": {"command": "x"}}},
        {"context_servers": {"a": {"source": "custom", "command": "x", "args": []}}},
        {"context_servers": {"a": {"command": {"path": "x", "args": [], "env": {}}, "settings": {}}}},
        {"mcp": {"a": {"type": "local", "command": ["x"], "environment": {}}}, "theme": "dark"},
        {"a": {"command": "x"}},
    ],
)
def test_other_shapes(data: Any) -> None:
    assert found(data)["a"].settings == {"command": "x"}


@pytest.mark.parametrize("key", ["url", "serverUrl", "httpUrl"])
def test_servers_that_are_reached(key: str) -> None:
    assert one({key: "https://h.example.org/sse", "type": "sse"}).settings == {
        "url": "https://h.example.org/sse",
        "type": "sse",
    }
    assert one({key: "https://h/mcp", "type": "streamableHttp"}).settings == {"url": "https://h/mcp"}
    assert one({"transport": {"type": "http", key: "https://h/mcp"}}).settings == {"url": "https://h/mcp"}


def test_one_that_is_off_stays_off() -> None:
    assert one({"command": "x", "disabled": True}).settings["enabled"] is False
    assert one({"command": "x", "enabled": False}).settings["enabled"] is False


def test_variables_of_a_file_beside_it() -> None:
    env = "# comment\nexport TOKEN='abc def'\nMODE=fast # really\nBAD LINE\nEMPTY=\n"
    around = ImportContext(HOME, Path("/p"), read=lambda path: env if path == Path("/p/.env") else None)
    entry = {"command": "x", "envFile": "${workspaceFolder}/.env", "env": {"MODE": "slow"}}
    taken = one(entry, around)
    assert taken.settings["env"] == {"TOKEN": "${TOKEN}", "MODE": "slow", "EMPTY": ""}
    assert taken.values == {"TOKEN": "abc def"}
    assert "cannot be read" in reason({"command": "x", "envFile": ".env"})


def test_numbers_and_truths_become_texts() -> None:
    entry = {"command": "x", "args": ["--port", 8080], "env": {"DEBUG": True, "RETRIES": 3, "NOTHING": None}}
    assert one(entry).settings["args"] == ["--port", "8080"]
    assert one(entry).settings["env"] == {"DEBUG": "true", "RETRIES": "3"}


# What is left out


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ({}, "neither a command nor a URL"),
        ("npx", "not a JSON object"),
        ({"command": "x", "args": "-y"}, "'args' are not a list"),
        ({"command": "x", "env": ["A=1"]}, "'env' are not an object"),
        ({"command": "x", "args": [{"a": 1}]}, "not a text"),
        ({"url": "ftp://example.org"}, "neither http nor https"),
        ({"url": "http://["}, "neither http nor https"),
        ({"url": "https://h", "type": "ws"}, "'ws'"),
        ({"url": "https://h", "headersHelper": "/bin/token"}, "headersHelper"),
        ({"command": "x", "args": ["${command:pick}"]}, "only its client knows"),
        ({"command": "x", "args": ["${A:-${B}}"]}, "inside another"),
    ],
)
def test_what_cannot_be_taken_says_why(entry: Any, expected: str) -> None:
    assert expected in reason(entry)


@pytest.mark.parametrize(
    "entry",
    [
        {"command": "/opt/venv/bin/toolgate", "args": ["serve"]},
        {"command": "C:\\Tools\\toolgate.exe", "args": ["serve"]},
        {"command": "/usr/bin/python3", "args": ["-m", "gateway", "serve"]},
        {"command": "uvx", "args": ["toolgate", "serve"]},
        {"command": "uvx", "args": ["toolgate@latest", "serve"]},
        {"command": "uv", "args": ["run", "/opt/venv/bin/toolgate", "serve"]},
        {"url": "http://127.0.0.1:8420/mcp"},
        {"command": "npx", "args": ["-y", "mcp-remote", "http://localhost:8420/mcp", "--allow-http"]},
    ],
)
def test_the_gateway_itself_is_left_out(entry: dict[str, Any]) -> None:
    assert "call itself" in reason(entry)


def test_others_are_not_taken_for_the_gateway() -> None:
    for entry in (
        {"command": "npx", "args": ["server-filesystem", "/home/ada/toolgate"]},
        {"command": "node", "args": ["gateway"]},
        {"url": "http://127.0.0.1:8421/mcp"},
        {"url": "https://toolgate.example.org:8420/mcp"},
    ):
        assert not is_toolgate(entry)


@pytest.mark.parametrize("text", ["{", "[1,]x", '{"mcpServers": {"a": {"command": "x"}}', "/* no end", '"', ""])
def test_what_is_no_json_is_refused_with_its_place(text: str) -> None:
    with pytest.raises(Invalid, match=r"line \d+ column \d+|no MCP servers"):
        read(text, AROUND)


def test_what_says_nothing_of_servers_is_refused() -> None:
    for text in ('{"editor.fontSize": 12}', "[]", "12", "{}"):
        with pytest.raises(Invalid, match="mcpServers"):
            read(text, AROUND)


def test_a_deep_file_is_refused() -> None:
    with pytest.raises(Invalid):
        read("[" * 100_000, AROUND)


def test_comments_are_none_inside_texts() -> None:
    text = (
        '\ufeff{"mcpServers": {"a": {"command": "x", "args": ["http://h//p", "/* no */", ",]", "\\"//"],}, /**/}, }//'
    )
    assert found(text)["a"].settings["args"] == ["http://h//p", "/* no */", ",]", '"//']


@pytest.mark.parametrize(
    ("name", "cleaned"),
    [
        ("GitHub", "GitHub"),
        ("Sequential Thinking", "Sequential-Thinking"),
        ("github.com/upstash/context7-mcp", "github-com-upstash-context7-mcp"),
        ("default", "default-server"),
        ("--", ""),
        ("é", ""),
    ],
)
def test_names_become_ones_we_can_carry(name: str, cleaned: str) -> None:
    assert clean_name(name) == cleaned


# Secrets


@pytest.mark.parametrize(
    ("entry", "masked", "values"),
    [
        (
            {"url": "https://h/mcp", "headers": {"Authorization": f"Bearer {KEY}", "Accept": "text/plain"}},
            {
                "url": "https://h/mcp",
                "headers": {"Authorization": "Bearer ${ONE_AUTHORIZATION}", "Accept": "text/plain"},
            },
            {"ONE_AUTHORIZATION": KEY},
        ),
        (
            {"command": "x", "args": ["--api-key", "abc", "--api-key=def", "--verbose"]},
            {"command": "x", "args": ["--api-key", "${ONE_API_KEY}", "--api-key=${ONE_API_KEY_2}", "--verbose"]},
            {"ONE_API_KEY": "abc", "ONE_API_KEY_2": "def"},
        ),
        (
            {"command": "docker", "args": ["run", "-e", "API_KEY=abc", "-e", "MODE=fast", "image:1.2"]},
            {"command": "docker", "args": ["run", "-e", "API_KEY=${ONE_API_KEY}", "-e", "MODE=fast", "image:1.2"]},
            {"ONE_API_KEY": "abc"},
        ),
        (
            {"command": "npx", "args": ["mcp-remote", "https://h/sse", "--header", "X-Api-Key: abc"]},
            {"command": "npx", "args": ["mcp-remote", "https://h/sse", "--header", "X-Api-Key: ${ONE_X_API_KEY}"]},
            {"ONE_X_API_KEY": "abc"},
        ),
        (
            {"command": "npx", "args": ["server-postgres", "postgresql://ada:hunter2@localhost/shop"]},
            {"command": "npx", "args": ["server-postgres", "postgresql://ada:${ONE_PASSWORD}@localhost/shop"]},
            {"ONE_PASSWORD": "hunter2"},
        ),
        (
            {"url": "https://h/mcp?api_key=abc&profile=home"},
            {"url": "https://h/mcp?api_key=${ONE_API_KEY}&profile=home"},
            {"ONE_API_KEY": "abc"},
        ),
        (
            {"url": "https://mcp.zapier.example/api/mcp/s/Zm9vYmFyMTIzNDU2Nzg5MGFiY2RlZg/mcp"},
            {"url": "https://mcp.zapier.example/api/mcp/s/${ONE_URL_TOKEN}/mcp"},
            {"ONE_URL_TOKEN": "Zm9vYmFyMTIzNDU2Nzg5MGFiY2RlZg"},
        ),
        (
            {"command": "x", "env": {"DATABASE_URL": "mysql://root:pw@db/x", "HOST": "https://db.example.org/a?b=c"}},
            {"command": "x", "env": {"DATABASE_URL": "${DATABASE_URL}", "HOST": "https://db.example.org/a?b=c"}},
            {"DATABASE_URL": "mysql://root:pw@db/x"},
        ),
        (
            {"command": "x", "env": {"API_KEY": "pre-${REST}"}},
            {"command": "x", "env": {"API_KEY": "${API_KEY}${REST}"}},
            {"API_KEY": "pre-"},
        ),
        (
            {"command": "x", "env": {"OTHER": "${API_KEY}", "API_KEY": "abc"}},
            {"command": "x", "env": {"OTHER": "${API_KEY}", "API_KEY": "${ONE_API_KEY}"}},
            {"ONE_API_KEY": "abc"},
        ),
    ],
)
def test_what_is_written_out_becomes_a_variable(entry: Any, masked: Any, values: Any) -> None:
    taken = one(entry)
    assert (taken.settings, taken.values) == (masked, values)
    assert whole(taken) == entry


@pytest.mark.parametrize(
    "value",
    [
        "true",
        "8080",
        "info",
        "/usr/local/share/data-2024-11-05/index",
        "eu-west-1",
        "en_US.UTF-8",
        "gpt-4o-mini",
        "*.md,*.txt",
    ],
)
def test_what_is_no_secret_stays_readable(value: str) -> None:
    entry = {"command": "x", "args": ["--mode", value, value], "env": {"SETTING": value}}
    assert one(entry).settings == entry


def test_two_secrets_never_get_one_name() -> None:
    servers = found(
        {
            "mcpServers": {
                "a": {"command": "x", "env": {"API_KEY": "one"}},
                "b": {"command": "x", "env": {"API_KEY": "two"}},
                "c": {"command": "x", "env": {"API_KEY": "one"}},
            }
        }
    )
    assert [dict(servers[name].values) for name in "abc"] == [
        {"API_KEY": "one"},
        {"B_API_KEY": "two"},
        {"API_KEY": "one"},
    ]
    names = VariableNames()
    texts = [json.dumps({"a": {"command": "x", "env": {"API_KEY": value}}}) for value in ("one", "two")]
    assert [
        dict(each.values) for text in texts for each in read(text, AROUND, names) if isinstance(each, Candidate)
    ] == [
        {"API_KEY": "one"},
        {"A_API_KEY": "two"},
    ]


def test_a_secret_is_in_no_text_about_a_server() -> None:
    taken = one({"command": "x", "env": {"API_KEY": KEY}})
    assert KEY not in repr(taken)
    assert KEY not in reason({"command": "x", "args": [f"${{bad:{'x'}}}"], "env": {"API_KEY": KEY}})


TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="$"), max_size=30)
TOLD = TEXTS | st.sampled_from(
    [GITHUB, KEY, "Bearer " + KEY, f"https://u:{KEY}@h/{GITHUB}?token=x", "postgres://a:b@c/d"]
)
NAMES = st.sampled_from(["API_KEY", "TOKEN", "x-auth", "MODE", "Cookie", "secret", "a b", ""]) | TEXTS
OPTIONS = st.sampled_from(["--token", "--api-key=abc", "-e", "--header", "A_TOKEN=1", "--password", "-p"])


@given(
    st.dictionaries(NAMES, TOLD, max_size=4),
    st.lists(OPTIONS | TOLD, max_size=6),
    st.sampled_from(["https://h/", "https://u:p@h/x?key=", "http://h/a?b=c&access_token="]) | TOLD,
)
def test_nothing_the_store_calls_a_secret_is_left(pairs: dict[str, str], arguments: list[str], url: str) -> None:
    entries = {
        "started": {"command": "x", "args": arguments, "env": pairs},
        "reached": {"url": f"https://h/{url}", "headers": pairs},
    }
    for each in read(json.dumps({"mcpServers": entries}), AROUND):
        if isinstance(each, Candidate):
            encode_settings(each.settings)
            UpstreamSettings.model_validate(each.settings)
            before = {key: value for key, value in entries[each.name].items() if value}
            assert whole(each) == before
            assert GITHUB not in json.dumps(each.settings)
        else:
            assert each.reason.count("holds a secret") == 0, each


@given(st.text(st.characters(codec="utf-8"), max_size=200))
def test_any_text_is_read_or_refused(text: str) -> None:
    with suppress(Invalid):
        read(text, AROUND)


# What else a client says of a server


@pytest.mark.parametrize(
    ("entry", "tools"),
    [
        ({"disabledTools": ["drop"]}, {"deny": ["drop"]}),
        ({"includeTools": ["get", "put(x)"], "excludeTools": ["drop"]}, {"allow": ["get", "put"], "deny": ["drop"]}),
        ({"enabled_tools": ["get"], "disabled_tools": ["drop"]}, {"allow": ["get"], "deny": ["drop"]}),
        ({"available_tools": ["get"]}, {"allow": ["get"]}),
        ({"tools": ["*"]}, None),
        ({"disabledTools": []}, None),
    ],
)
def test_tools_that_a_client_leaves_out_are_left_out_here(entry: dict[str, Any], tools: Any) -> None:
    assert one({"command": "x", **entry}).settings.get("tools") == tools


@pytest.mark.parametrize(
    ("entry", "seconds"),
    [
        ({"timeout": 30000}, 30),
        ({"timeout": 60}, 60),
        ({"timeout": 1800, "autoApprove": []}, 1800),
        ({"tool_timeout_sec": 1800}, 1800),
        ({"timeout": {"startup": 1000, "request": 5000}}, 5),
        ({"timeout": True}, None),
        ({"timeout": 0}, None),
    ],
)
def test_a_timeout_is_kept_in_seconds(entry: dict[str, Any], seconds: float | None) -> None:
    assert one({"command": "x", **entry}).settings.get("timeout") == seconds


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("$TOKEN", "${TOKEN}"),
        ("Bearer $TOKEN", "Bearer ${TOKEN}"),
        ("Bearer {env:TOKEN}", "Bearer ${TOKEN}"),
        ("${TOKEN}", "${TOKEN}"),
        ("${env:TOKEN}", "${TOKEN}"),
    ],
)
def test_every_clients_variables_are_understood(text: str, expected: str) -> None:
    assert one({"url": "https://a.example/mcp", "headers": {"X-Mode": text}}).settings["headers"] == {
        "X-Mode": expected
    }
    assert one({"command": "x", "args": [text]}).settings["args"] == [expected]


def test_a_dollar_sign_that_is_no_variable_stays() -> None:
    assert one({"command": "x", "args": ["a$B", "$5", "$$X", "$lower"]}).settings["args"] == [
        "a$B", "$5", "$$X", "$lower",
    ]  # fmt: skip
    assert one({"command": "/bin/bash", "args": ["-c", "run $HOME"]}).settings["args"] == ["-c", "run $HOME"]


def test_a_value_from_another_file_is_a_reason() -> None:
    assert "{file:" in reason({"command": "x", "env": {"A": "{file:~/.token}"}})


def test_servers_of_codex_are_read() -> None:
    servers = read(
        dedent("""
        model = "x"  # not ours
        [mcp_servers.local]
        command = "npx"
        args = ["-y", "a"]
        env_vars = ["HOME_TOKEN", {name = "OTHER", source = "local"}]
        tool_timeout_sec = 90
        disabled_tools = ["drop"]
        [mcp_servers.local.env]
        MODE = "fast"
        [mcp_servers.remote]
        url = "https://a.example/mcp"
        bearer_token_env_var = "TOKEN"
        env_http_headers = { "X-Org" = "ORG" }
        enabled = false
        """),
        AROUND,
        suffix=".toml",
    )
    assert [(each.name, each.settings) for each in servers if isinstance(each, Candidate)] == [
        (
            "local",
            {
                "command": "npx",
                "args": ["-y", "a"],
                "env": {"HOME_TOKEN": "${HOME_TOKEN}", "OTHER": "${OTHER}", "MODE": "fast"},
                "timeout": 90,
                "tools": {"deny": ["drop"]},
            },
        ),
        (
            "remote",
            {
                "url": "https://a.example/mcp",
                "headers": {"X-Org": "${ORG}", "Authorization": "Bearer ${TOKEN}"},
                "enabled": False,
            },
        ),
    ]


def test_servers_of_goose_are_read_without_its_own_extensions() -> None:
    servers = read(
        dedent("""
        GOOSE_MODEL: x
        extensions:
          developer: {type: builtin, name: developer, enabled: true, timeout: 300}
          fetch:
            type: stdio
            cmd: uvx
            args: [mcp-server-fetch]
            envs: {MODE: fast}
            env_keys: [TOKEN]
            timeout: 1800
            available_tools: [fetch]
            enabled: false
          remote: {type: streamable_http, uri: "https://a.example/mcp", headers: {X-Org: "7"}}
          events: {type: sse, uri: "https://a.example/sse"}
        """),
        AROUND,
        suffix=".yaml",
    )
    assert [(each.name, each.settings) for each in servers if isinstance(each, Candidate)] == [
        (
            "fetch",
            {
                "command": "uvx",
                "args": ["mcp-server-fetch"],
                "env": {"TOKEN": "${TOKEN}", "MODE": "fast"},
                "enabled": False,
                "timeout": 1800,
                "tools": {"allow": ["fetch"]},
            },
        ),
        ("remote", {"url": "https://a.example/mcp", "headers": {"X-Org": "7"}}),
        ("events", {"url": "https://a.example/sse", "type": "sse"}),
    ]


@pytest.mark.parametrize(("suffix", "text"), [(".toml", "a = = 1"), (".yaml", "a: [\n"), (".json", "{")])
def test_a_syntax_error_names_its_line(suffix: str, text: str) -> None:
    with pytest.raises(Invalid, match=r"line [12]"):
        read(text, AROUND, suffix=suffix)
