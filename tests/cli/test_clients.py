"""The entry each client needs, and a file that is never worse for having received it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime, timedelta
from itertools import takewhile
from pathlib import Path
from typing import Any

import click.testing
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.admin.client_files import merge, read, remove, write
from gateway.admin.clients import CLIENTS, Snippet, UserEnvironment, locate, make_snippets, serve_command
from gateway.cli.clients import client
from gateway.errors import Conflict, Forbidden, GatewayError, Invalid, NotFound, Unavailable
from gateway.sources.upstreams.client_configs import ImportContext, Skipped
from gateway.sources.upstreams.client_configs import read as read_servers
from gateway.yamldoc import parse_file

Run = Callable[..., click.testing.Result]
NOON = datetime(2026, 11, 16, 12, 0, 0)
COMMAND = ["/opt/toolgate", "serve"]
URL = "http://127.0.0.1:8420/mcp"


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """`toolgate client …` of a user whose home is `tmp_path`."""
    environ = {"HOME": str(tmp_path), "XDG_CONFIG_HOME": None, "CLAUDE_CONFIG_DIR": None}

    def invoke(*arguments: str) -> click.testing.Result:
        return click.testing.CliRunner(env=environ).invoke(client, arguments)

    return invoke


def entry_for(name: str, url: str | None = None) -> Snippet:
    user = UserEnvironment(Path("/home/ada"), "linux", {})
    return next(snippet for snippet in make_snippets(COMMAND, url, environment=user) if snippet.client == name)


def merged(text: str, name: str = "cursor") -> str:
    return merge(Path("mcp.json"), text.encode(), entry_for(name))[0].decode()


def refused(result: click.testing.Result) -> GatewayError:
    assert result.exit_code == 1
    assert isinstance(result.exception, GatewayError)
    return result.exception


# Which file, which entry


@pytest.mark.parametrize(
    ("name", "platform", "file"),
    [
        ("claude-desktop", "linux", "/h/.config/Claude/claude_desktop_config.json"),
        ("claude-desktop", "darwin", "/h/Library/Application Support/Claude/claude_desktop_config.json"),
        ("claude-desktop", "win32", "/roaming/Claude/claude_desktop_config.json"),
        ("claude-code", "linux", "/h/.claude.json"),
        ("claude-code", "darwin", "/h/.claude.json"),
        ("cursor", "linux", "/h/.cursor/mcp.json"),
        ("cursor", "win32", "/h/.cursor/mcp.json"),
        ("vscode", "linux", "/h/.config/Code/User/mcp.json"),
        ("vscode", "darwin", "/h/Library/Application Support/Code/User/mcp.json"),
        ("vscode", "win32", "/roaming/Code/User/mcp.json"),
        ("windsurf", "win32", "/h/.codeium/windsurf/mcp_config.json"),
        ("zed", "linux", "/h/.config/zed/settings.json"),
        ("zed", "darwin", "/h/.config/zed/settings.json"),
        ("zed", "win32", "/roaming/Zed/settings.json"),
        ("codex", "linux", "/h/.codex/config.toml"),
        ("gemini-cli", "darwin", "/h/.gemini/settings.json"),
        ("cline", "linux", "/h/.cline/data/settings/cline_mcp_settings.json"),
        ("goose", "darwin", "/h/.config/goose/config.yaml"),
        ("goose", "win32", "/roaming/Block/goose/config/config.yaml"),
        ("opencode", "win32", "/h/.config/opencode/opencode.json"),
        ("lm-studio", "linux", "/h/.lmstudio/mcp.json"),
    ],
)
def test_each_client_keeps_its_file_where_its_makers_say(name: str, platform: str, file: str) -> None:
    assert locate(name, UserEnvironment(Path("/h"), platform, {"APPDATA": "/roaming"}))[0] == Path(file)


def test_folders_moved_by_the_environment_are_followed() -> None:
    environ = {
        "XDG_CONFIG_HOME": "/x",
        "CLAUDE_CONFIG_DIR": "/c",
        "CODEX_HOME": "/o",
        "CLINE_MCP_SETTINGS_PATH": "/l/m",
    }
    moved = UserEnvironment(Path("/h"), "linux", environ)
    assert locate("vscode", moved) == (Path("/x/Code/User/mcp.json"), Path("/x/Code"))
    assert locate("claude-code", moved) == (Path("/c/.claude.json"), Path("/c"))
    assert locate("codex", moved) == (Path("/o/config.toml"), Path("/o"))
    assert locate("cline", moved) == (Path("/l/m"), Path("/l"))
    assert locate("goose", moved) == (Path("/x/goose/config.yaml"), Path("/x/goose"))


def test_files_of_older_versions_are_used_while_only_they_exist(tmp_path: Path) -> None:
    user = UserEnvironment(tmp_path, "linux", {})
    extension = tmp_path / ".config/Code/User/globalStorage/saoudrizwan.claude-dev"
    for folder in (extension, tmp_path / ".cache/lm-studio", tmp_path / ".config/opencode"):
        folder.mkdir(parents=True)
    (tmp_path / ".config/opencode/opencode.jsonc").touch()
    assert locate("cline", user) == (extension / "settings/cline_mcp_settings.json", extension)
    assert locate("lm-studio", user)[0] == tmp_path / ".cache/lm-studio/mcp.json"
    assert locate("opencode", user)[0] == tmp_path / ".config/opencode/opencode.jsonc"
    for folder in (tmp_path / ".cline", tmp_path / ".lmstudio"):
        folder.mkdir()
    assert locate("cline", user)[1] == tmp_path / ".cline"
    assert locate("lm-studio", user)[1] == tmp_path / ".lmstudio"


def test_a_relative_xdg_folder_is_ignored_as_its_specification_asks() -> None:
    assert locate("vscode", UserEnvironment(Path("/h"), "linux", {"XDG_CONFIG_HOME": "x"}))[1] == Path(
        "/h/.config/Code"
    )


def test_windows_without_appdata_falls_back_to_the_home_folder() -> None:
    assert locate("vscode", UserEnvironment(Path("/h"), "win32", {}))[1] == Path("/h/AppData/Roaming/Code")


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("claude-desktop", {"mcpServers": {"toolgate": {"command": "/opt/toolgate", "args": ["serve"]}}}),
        ("claude-code", {"mcpServers": {"toolgate": {"type": "stdio", "command": "/opt/toolgate", "args": ["serve"]}}}),
        ("cursor", {"mcpServers": {"toolgate": {"command": "/opt/toolgate", "args": ["serve"]}}}),
        ("vscode", {"servers": {"toolgate": {"type": "stdio", "command": "/opt/toolgate", "args": ["serve"]}}}),
        ("codex", {"mcp_servers": {"toolgate": {"command": "/opt/toolgate", "args": ["serve"]}}}),
        ("opencode", {"mcp": {"toolgate": {"type": "local", "command": ["/opt/toolgate", "serve"]}}}),
    ],
)
def test_each_client_is_told_how_to_start_the_gateway(name: str, config: dict[str, Any]) -> None:
    assert entry_for(name).config == config


@pytest.mark.parametrize(
    ("name", "entry"),
    [
        ("claude-desktop", {"command": "npx", "args": ["-y", "mcp-remote", URL, "--allow-http"]}),
        ("claude-code", {"type": "http", "url": URL}),
        ("cursor", {"url": URL}),
        ("vscode", {"type": "http", "url": URL}),
        ("windsurf", {"serverUrl": URL}),
        ("zed", {"url": URL}),
        ("codex", {"url": URL}),
        ("gemini-cli", {"httpUrl": URL}),
        ("cline", {"type": "streamableHttp", "url": URL}),
        ("opencode", {"type": "remote", "url": URL}),
        ("lm-studio", {"url": URL}),
    ],
)
def test_each_client_is_told_how_to_reach_a_running_gateway(name: str, entry: dict[str, Any]) -> None:
    assert entry_for(name, URL).entry == entry


def test_only_claude_desktop_needs_a_bridge_and_says_so() -> None:
    notes = {snippet.client: snippet.note for snippet in make_snippets(COMMAND, "https://gate.example/mcp")}
    assert [name for name, note in notes.items() if "mcp-remote" in note] == ["claude-desktop"]
    assert entry_for("claude-desktop", "https://gate.example/mcp").entry["args"][-1] == "https://gate.example/mcp"
    assert entry_for("claude-desktop").note == ""


def test_the_command_is_the_script_beside_the_interpreter_by_absolute_path(tmp_path: Path) -> None:
    (tmp_path / "toolgate").touch()
    assert serve_command(str(tmp_path / "python"), ["--chat", "a"]) == [
        str(tmp_path / "toolgate"), "serve", "--chat", "a",
    ]  # fmt: skip


def test_without_a_script_the_interpreter_itself_runs_the_gateway(tmp_path: Path) -> None:
    assert serve_command(str(tmp_path / "python")) == [str(tmp_path / "python"), "-m", "gateway", "serve"]


def test_an_argument_that_is_not_text_is_refused() -> None:
    with pytest.raises(Invalid, match="not UTF-8"):
        serve_command(sys.executable, ["--workspace", os.fsdecode(b"/caf\xe9")])


# The text

patiently = settings(deadline=None)  # a busy machine is no failure
_value = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
_names = st.text() | st.sampled_from(["mcpServers", "toolgate", "servers"])
_document = st.dictionaries(_names, _value, max_size=4).filter(lambda d: isinstance(d.get("mcpServers", {}), dict)) | (
    st.builds(
        lambda rest, servers: {**rest, "mcpServers": servers},
        st.dictionaries(_names, _value, max_size=3),
        st.dictionaries(_names, _value, max_size=3),
    )
)


@st.composite
def _texts(draw: st.DrawFn) -> str:
    """A JSON object as any editor or program may have laid it out."""
    indent = draw(st.sampled_from([None, 0, 1, 2, 3, 4, "\t"]))
    separators = draw(st.sampled_from([None, (",", ":")] if indent is None else [None]))
    text = json.dumps(draw(_document), indent=indent, separators=separators, ensure_ascii=draw(st.booleans()))
    newline = draw(st.sampled_from(["\n", "\r\n"]))
    return (text + draw(st.sampled_from(["", "\n"]))).replace("\n", newline)


def _apart(text: str) -> tuple[Any, list[str], dict[str, Any]]:
    """Our entry, the order of the servers, and everything else, of which an absent object is an empty one."""
    document = json.loads(text)
    servers = document.setdefault("mcpServers", {})
    return servers.pop("toolgate", None), list(servers), document


@patiently
@given(_texts())
def test_whatever_the_file_everything_but_our_entry_stays_equal(text: str) -> None:
    ours, order, rest = _apart(merged(text))
    assert ours == entry_for("cursor").entry
    assert (order, rest) == _apart(text)[1:]
    assert [key for key in rest if key != "mcpServers"] == [key for key in json.loads(text) if key != "mcpServers"]


@patiently
@given(_texts())
def test_a_second_time_changes_nothing(text: str) -> None:
    once = merged(text)
    assert merged(once) == once


@patiently
@given(_texts())
def test_the_bytes_around_our_entry_are_the_bytes_that_were_there(text: str) -> None:
    result, (_, replaced) = merged(text), merge(Path("mcp.json"), text.encode(), entry_for("cursor"))
    kept = _same(text, result) + _same(text[::-1], result[::-1])
    assert kept >= len(text) - len(replaced or "")


def _same(one: str, other: str) -> int:
    """How many characters both begin with."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


@patiently
@given(_texts())
def test_line_endings_are_never_mixed(text: str) -> None:
    if "\r\n" in text:
        assert merged(text).count("\n") == merged(text).count("\r\n")


@patiently
@given(st.binary() | st.text(alphabet='{}[]",:\\ \n1a').map(str.encode))
def test_any_other_bytes_are_merged_or_refused_but_never_mangled(data: bytes) -> None:
    try:
        result, _ = merge(Path("mcp.json"), data, entry_for("cursor"))
    except Invalid as refusal:
        assert refusal.details["line"] >= 1
    else:
        assert parse_file(result.decode(), ".json")["mcpServers"]["toolgate"] == entry_for("cursor").entry


def test_a_hand_written_file_keeps_its_layout() -> None:
    text = (
        '{\n    "theme": "größe",   "ratio": 1.50e2,\n    "mcpServers": {\n'
        '        "time": {"command": "python", "args": ["-m", "time"]}\n    }\n}\n'
    )
    assert merged(text) == text.replace(
        '"time"]}\n',
        '"time"]},\n        "toolgate": {\n            "command": "/opt/toolgate",\n            "args": [\n'
        '                "serve"\n            ]\n        }\n',
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"a":1}', '{"a":1,"mcpServers": {"toolgate": {"command": "/opt/toolgate", "args": ["serve"]}}}'),
        ('{"mcpServers": {}}\n', '{"mcpServers": {"toolgate": {"command": "/opt/toolgate", "args": ["serve"]}}}\n'),
    ],
)
def test_a_file_of_one_line_stays_of_one_line(text: str, expected: str) -> None:
    assert merged(text) == expected


@pytest.mark.parametrize("text", ["", " \n", "{}", "{\n}"])
def test_an_empty_file_becomes_a_readable_one(text: str) -> None:
    assert merged(text).rstrip("\n") == entry_for("cursor").text


def test_an_empty_object_inside_a_laid_out_file_opens_up() -> None:
    assert merged('{\n\t"mcpServers": {}\n}').startswith('{\n\t"mcpServers": {\n\t\t"toolgate": {\n\t\t\t"command"')


def test_our_entry_in_another_layout_is_ours_all_the_same() -> None:
    text = '{\n  "mcpServers": {"toolgate": {"args":["serve"],"command":"\\/opt/toolgate"}}\n}'
    assert merged(text) == text


def test_a_number_longer_than_python_reads_is_no_obstacle() -> None:
    text = f'{{"a": {"9" * 5000}}}'
    assert merged(text).startswith(text[:-1])


def test_of_two_objects_with_the_same_name_the_one_that_is_read_receives_the_entry() -> None:
    result = merged('{"mcpServers": {"old": 1}, "mcpServers": {"new": 2}}')
    assert list(json.loads(result)["mcpServers"]) == ["new", "toolgate"]
    assert '{"old": 1}' in result


@pytest.mark.parametrize(
    ("data", "place", "reason"),
    [
        (b'{\n  // mine\n  "a": 1 2\n}', (3, 10), "a ',' is missing"),
        (b'{"a": ', (1, 7), "a value is expected"),
        (b'{"mcpServers": {}} {}', (1, 20), "text after the end"),
        (b"\n[]", (2, 1), "top level is not an object"),
        (b'{\n "mcpServers": []}', (2, 16), '"mcpServers" is not an object'),
        (b'{"mcpServers": null}', (1, 16), '"mcpServers" is not an object'),
        (b'{\n "caf\xe9": 1}', (2, 6), "not UTF-8"),
        (b"[" * 200_000, (1, 1), "nested too deeply"),
    ],
)
def test_what_is_not_a_json_object_is_refused_with_its_place(data: bytes, place: tuple[int, int], reason: str) -> None:
    with pytest.raises(Invalid) as refusal:
        merge(Path("mcp.json"), data, entry_for("cursor"))
    line, column = refusal.value.details["line"], refusal.value.details["column"]
    assert (line, column) == place
    assert f"line {line} column {column}" in refusal.value.message
    assert reason in refusal.value.message
    assert '"toolgate": {"command": "/opt/toolgate", "args": ["serve"]}' in refusal.value.message


_COMMENTED = """// Zed settings
{
  "theme": "One", // mine
  "context_servers": {
    /* another */
    "time": {"command": "uvx"}, // last
  },
}
"""
_TOML = """# mine
model = "x"

[mcp_servers.time] # another
command = "uvx"
"""
_YAML = """GOOSE_MODEL: x # mine
extensions:
  # part of Goose
  developer: {type: builtin, enabled: true}
  time:
    type: stdio
    cmd: uvx
# the end
"""


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize(("name", "text"), [("zed", _COMMENTED), ("codex", _TOML), ("goose", _YAML)])
def test_comments_and_everything_else_in_the_file_stay(name: str, text: str, mark: str, newline: str) -> None:
    text, entry = mark + text.replace("\n", newline), entry_for(name)
    result = merge(entry.file, text.encode(), entry)[0].decode()
    assert _same(text, result) + _same(text[::-1], result[::-1]) >= len(text)
    assert result.count("\n") == result.count(newline)
    before, after = (parse_file(each.removeprefix("\ufeff"), entry.file.suffix) for each in (text, result))
    assert after[CLIENTS[name].key].pop("toolgate") == entry.entry
    assert after == before
    assert merge(entry.file, result.encode(), entry) == (result.encode(), None)

    other = entry_for(name, URL)
    replaced, earlier = merge(entry.file, result.encode(), other)
    assert earlier is not None
    assert merge(entry.file, replaced, entry)[0].decode() == result


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("goose", ""),
        ("goose", "extensions: {}\nz: 1\n"),
        ("goose", "extensions:\nz: 1\n"),
        ("goose", "z: 1"),
        ("codex", ""),
        ("codex", "a = 1"),
        ("codex", '[mcp_servers."toolgate"]\ncommand = "x"\n[mcp_servers.toolgate.env]\nA = "1"\n# end'),
        ("opencode", '{"mcp": {"servers": {"a": {"type": "local", "command": ["a"]}}}}'),
        ("zed", "{ // nothing yet\n}"),
        ("zed", '{"a": 1 // one\n}'),
        ("zed", '{"a": 1,}'),
    ],
)
def test_an_entry_fits_into_every_layout(name: str, text: str) -> None:
    entry = entry_for(name)
    result, _ = merge(entry.file, text.encode(), entry)
    after = parse_file(result.decode(), entry.file.suffix)[CLIENTS[name].key]
    assert after.get("servers", after)["toolgate"] == entry.entry
    assert merge(entry.file, result, entry) == (result, None)


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("codex", 'mcp_servers = {a = {command = "b"}}\n', "no room"),
        ("codex", "a = = 1", "line 1"),
        ("goose", "extensions: {a: {type: builtin}}\n", "no room"),
        ("goose", "extensions: [a]\n", "not a mapping"),
        ("goose", "a: [\n", "line 2"),
    ],
)
def test_a_layout_without_room_is_refused_with_the_entry_to_paste(name: str, text: str, reason: str) -> None:
    with pytest.raises(Invalid, match=reason) as refusal:
        merge(entry_for(name).file, text.encode(), entry_for(name))
    assert entry_for(name).text in refusal.value.message


@pytest.mark.parametrize("url", [None, URL])
@pytest.mark.parametrize("name", CLIENTS)
def test_an_installed_entry_is_recognised_when_servers_are_imported(name: str, url: str | None) -> None:
    entry = entry_for(name, url)
    content, _ = merge(entry.file, None, entry)
    [found] = read_servers(content.decode(), ImportContext(Path("/h")), suffix=entry.file.suffix)
    assert isinstance(found, Skipped)
    assert "this gateway" in found.reason


# The file


def test_a_change_between_reading_and_writing_is_a_conflict_and_stays(tmp_path: Path) -> None:
    file = tmp_path / "mcp.json"
    file.write_bytes(b"theirs")
    for before in (b"what we read", None):
        with pytest.raises(Conflict):
            write(file, before, b"ours", NOON)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"mcp.json": b"theirs"}


def test_a_file_that_vanished_meanwhile_is_a_conflict(tmp_path: Path) -> None:
    with pytest.raises(Conflict):
        write(tmp_path / "mcp.json", b"what we read", b"ours", NOON)
    assert list(tmp_path.iterdir()) == []


def test_every_backup_is_kept(tmp_path: Path) -> None:
    file = tmp_path / "mcp.json"
    file.write_bytes(b"1")
    first = write(file, b"1", b"2", NOON)
    second = write(file, b"2", b"3", NOON + timedelta(microseconds=1))
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == {first: b"1", second: b"2", file: b"3"}
    assert first == tmp_path / "mcp.json.20261116-120000-000000.bak"


def test_an_earlier_backup_is_never_overwritten(tmp_path: Path) -> None:
    file = tmp_path / "mcp.json"
    file.write_bytes(b"1")
    backup = write(file, b"1", b"2", NOON)
    with pytest.raises(Unavailable):
        write(file, b"2", b"3", NOON)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == {backup: b"1", file: b"2"}


def test_the_mode_is_kept_by_the_file_and_by_its_backup(tmp_path: Path) -> None:
    for mode in (0o600, 0o640):
        file = tmp_path / f"{mode}.json"
        file.write_bytes(b"1")
        file.chmod(mode)
        backup = write(file, b"1", b"2", NOON)
        assert backup is not None
        assert [path.stat().st_mode & 0o777 for path in (file, backup)] == [mode, mode]


def test_a_new_file_is_for_its_owner_only(tmp_path: Path) -> None:
    assert write(tmp_path / "deep" / "mcp.json", None, b"1", NOON) is None
    assert (tmp_path / "deep" / "mcp.json").stat().st_mode & 0o777 == 0o600


def test_a_link_stays_a_link_and_its_target_receives_the_text(tmp_path: Path) -> None:
    (tmp_path / "dotfiles").mkdir()
    target, link = tmp_path / "dotfiles" / "real.json", tmp_path / "mcp.json"
    target.write_bytes(b"1")
    link.symlink_to(Path("dotfiles") / "real.json")
    backup = write(link, b"1", b"2", NOON)
    assert link.is_symlink()
    assert target.read_bytes() == b"2"
    assert backup == tmp_path / "mcp.json.20261116-120000-000000.bak"
    assert [path.name for path in target.parent.iterdir()] == ["real.json"]


def test_links_that_lead_nowhere_are_reported(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(Unavailable):
        read(tmp_path / "a")


def test_a_disk_that_is_full_leaves_everything_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "mcp.json"
    file.write_bytes(b"1")
    script = (
        "import datetime, pathlib, resource, sys\n"
        "from gateway.admin.client_files import write\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "write(pathlib.Path(sys.argv[1]), b'1', b'2' * 2000, datetime.datetime.now())\n"
    )
    result = subprocess.run([sys.executable, "-c", script, str(file)], capture_output=True, text=True, check=False)
    assert "UNAVAILABLE" in result.stderr
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"mcp.json": b"1"}


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="nothing is forbidden to root")
def test_a_folder_that_may_not_be_written_is_reported(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(Forbidden):
        write(tmp_path / "mcp.json", None, b"1", NOON)


# The commands


def test_config_without_a_name_shows_all_and_where_each_belongs(run: Run, tmp_path: Path) -> None:
    output = run("config").output
    for name, known in CLIENTS.items():
        file, _ = locate(name, UserEnvironment(tmp_path, sys.platform, {}))
        assert f"{known.title}: {file}" in output


def test_config_with_json_is_the_same_for_programs(run: Run) -> None:
    every = json.loads(run("config", "--json", "--name", "gate").output)
    assert [shown["client"] for shown in every] == list(CLIENTS)
    assert json.loads(run("config", "vscode", "--json", "--name", "gate").output) == every[3]
    assert list(every[3]["config"]["servers"]) == ["gate"]


def test_what_follows_the_dashes_belongs_to_serve_with_or_without_a_name(run: Run) -> None:
    for arguments in (["config", "cursor"], ["config"]):
        shown = json.loads(run(*arguments, "--json", "--", "--workspace", "/p", "--", "x").output)
        one = shown if isinstance(shown, dict) else shown[2]
        assert one["config"]["mcpServers"]["toolgate"]["args"][-5:] == ["serve", "--workspace", "/p", "--", "x"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["config", "emacs"],
        ["install"],
        ["install", "cursor", "--name", "two words"],
        ["install", "cursor", "--url", "gate.example/mcp"],
        ["install", "cursor", "--url", "http://"],
        ["install", "cursor", "--url", URL, "--", "--workspace", "/p"],
        ["install", "cursor", "--file", "/"],
    ],
)
def test_wrong_usage_is_exit_two(run: Run, arguments: list[str]) -> None:
    assert run(*arguments).exit_code == 2


def test_install_adds_the_entry_and_tells_what_it_did(run: Run, tmp_path: Path) -> None:
    file = tmp_path / ".claude.json"
    file.write_text('{"numStartups": 41}')
    result = run("install", "claude-code", "--", "--chat", "demo")
    backup = next(tmp_path.glob(".claude.json.*.bak"))
    written = json.loads(file.read_text())
    assert backup.read_text() == '{"numStartups": 41}'
    assert written["numStartups"] == 41
    assert written["mcpServers"]["toolgate"]["args"][-2:] == ["--chat", "demo"]
    assert f"added toolgate to {file}" in result.output
    assert f"the previous file is saved as {backup}" in result.output
    assert CLIENTS["claude-code"].restart in result.output


def test_install_of_what_is_there_writes_nothing(run: Run, tmp_path: Path) -> None:
    (tmp_path / ".cursor").mkdir()
    run("install", "cursor")
    stamp = (tmp_path / ".cursor" / "mcp.json").stat().st_mtime_ns
    assert "already there" in run("install", "cursor").output
    assert [path.name for path in (tmp_path / ".cursor").iterdir()] == ["mcp.json"]
    assert (tmp_path / ".cursor" / "mcp.json").stat().st_mtime_ns == stamp


def test_install_over_a_different_entry_shows_the_old_one(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "mcp.json"
    file.write_text('{"servers": {"toolgate": {"command": "old"}, "time": {}}}')
    output = run("install", "vscode", "--file", str(file), "--url", URL).output
    assert "the previous file is saved as" in output
    assert json.loads(file.read_text()) == {"servers": {"toolgate": {"type": "http", "url": URL}, "time": {}}}


def test_a_dry_run_touches_nothing(run: Run, tmp_path: Path) -> None:
    result = run("install", "cursor", "--dry-run", "--file", str(tmp_path / "deep" / "mcp.json"))
    assert result.output.startswith("would add toolgate to")
    assert list(tmp_path.iterdir()) == []


def test_a_client_that_is_not_installed_is_not_given_a_file(run: Run, tmp_path: Path) -> None:
    for name in CLIENTS:
        error = refused(run("install", name))
        assert isinstance(error, NotFound)
        assert "--file" in error.message
    assert list(tmp_path.iterdir()) == []


def test_the_folder_of_an_installed_client_is_completed(run: Run, tmp_path: Path) -> None:
    file, folder = locate("vscode", UserEnvironment(tmp_path, sys.platform, {}))
    folder.mkdir(parents=True)
    assert run("install", "vscode").exit_code == 0
    assert file.is_file()


def test_a_broken_file_is_left_untouched_and_the_entry_is_shown(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "mcp.json"
    file.write_bytes(b'{\n  // mine\n  "servers": {}}}\n')
    error = refused(run("install", "vscode", "--file", str(file)))
    assert isinstance(error, Invalid)
    assert f"{file}: line 3 column 17" in error.message
    assert '"toolgate": {"type": "stdio"' in error.message
    assert "\n" not in error.message
    assert [(path, path.read_bytes()) for path in tmp_path.iterdir()] == [(file, b'{\n  // mine\n  "servers": {}}}\n')]


def test_the_module_needs_nothing_but_click_and_the_standard_library() -> None:
    script = "import sys, gateway.cli.clients; print(*{name.split('.')[0] for name in sys.modules})"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert not {"mcp", "pydantic", "anyio", "starlette", "yaml", "orjson"} & set(loaded)


def test_paths_for_serve_are_made_absolute_since_a_client_starts_us_elsewhere(tmp_path: Path) -> None:
    command = serve_command(sys.executable, ["--workspace", "project", f"--config={tmp_path}/t.yaml", "--chat", "x"])
    assert command[-5:] == [
        "--workspace",
        str(Path("project").absolute()),
        f"--config={tmp_path}/t.yaml",
        "--chat",
        "x",
    ]


# Taking it out again, and the way back


@pytest.mark.parametrize("name", list(CLIENTS))
@pytest.mark.parametrize("place", ["first", "middle", "last", "alone"])
def test_an_uninstalled_entry_leaves_the_rest_of_the_file_as_it_was(name: str, place: str) -> None:
    snippet = entry_for(name)
    others = {"first": ["zz"], "middle": ["a", "zz"], "last": ["a"], "alone": []}[place]
    names = [*others[: 1 if place == "middle" else 0 if place == "first" else None], "toolgate"]
    names += [other for other in others if other not in names]
    content = b""
    for each in names:
        content, _ = merge(snippet.file, content, snippet._replace(name=each, entry={**snippet.entry}))
    without = remove(snippet.file, content, snippet)
    key = CLIENTS[name].key
    servers = (parse_file(without.decode(), snippet.file.suffix) or {}).get(key) or {}
    assert sorted(servers) == sorted(others)
    again, _ = merge(snippet.file, without, snippet)
    assert parse_file(again.decode(), snippet.file.suffix) == parse_file(content.decode(), snippet.file.suffix)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            '{"mcpServers": {\n  // mine\n  "a": {}, // the first\n  "toolgate": {"command": "x"},\n  "b": {}\n}}\n',
            '{"mcpServers": {\n  // mine\n  "a": {}, // the first\n  "b": {}\n}}\n',
        ),
        ('{"mcpServers": {"a": {}, "toolgate": {}}}', '{"mcpServers": {"a": {}}}'),
        ('{"mcpServers": {"toolgate": {}, "a": {}}}', '{"mcpServers": { "a": {}}}'),
        ('{"mcpServers": {"a": {},\n  "toolgate": {},\n}}', '{"mcpServers": {"a": {},\n}}'),
        ('{"mcpServers": {"toolgate": 1, "toolgate": {}}}', '{"mcpServers": {}}'),
        ('{"mcpServers": {"a": {}}}', '{"mcpServers": {"a": {}}}'),
    ],
)
def test_uninstall_cuts_the_entry_out_of_json_with_comments(before: str, after: str) -> None:
    assert remove(Path("mcp.json"), before.encode(), entry_for("cursor")).decode() == after


def test_clients_are_listed_uninstalled_and_restored(run: Run, tmp_path: Path) -> None:
    (tmp_path / ".cursor").mkdir()
    (tmp_path / ".codex").mkdir()
    (tmp_path / ".codex/config.toml").write_text("broken = [")
    file = tmp_path / ".cursor/mcp.json"
    file.write_text('{"mcpServers": {"mine": {"command": "x"}}}')

    def states() -> dict[str, str]:
        return {row["client"]: row["state"] for row in json.loads(run("list", "--json").output)}

    assert (states()["cursor"], states()["zed"], states()["codex"]) == ("not added", "not installed", "unreadable")
    before = file.read_bytes()
    file.write_text("[]")
    assert states()["cursor"] == "unreadable"
    file.write_bytes(before)
    installed = run("install", "cursor")
    assert "to go back: toolgate client restore cursor" in installed.output
    assert states()["cursor"] == "added"
    after = file.read_bytes()
    removed = run("uninstall", "cursor")
    assert removed.exit_code == 0, removed.output
    assert json.loads(file.read_bytes()) == json.loads(before)
    assert refused(run("uninstall", "cursor")).code == "NOT_FOUND"
    assert run("restore", "cursor").exit_code == 0
    assert file.read_bytes() == after
    assert run("restore", "cursor").exit_code == 0
    assert json.loads(file.read_bytes()) == json.loads(before)
    assert "no backup" in refused(run("restore", "zed")).message


def test_only_the_newest_backups_of_a_file_are_kept(run: Run, tmp_path: Path) -> None:
    (tmp_path / ".cursor").mkdir()
    for number in range(15):
        assert run("install", "cursor", "--url", f"http://127.0.0.1:{8000 + number}/mcp").exit_code == 0
    assert len(list((tmp_path / ".cursor").glob("*.bak"))) == 10


def test_an_entry_names_the_settings_file_that_is_used_here(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".cursor").mkdir()
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.chdir(project)
    (project / "toolgate.yaml").write_text("chat: here\n")

    def arguments() -> list[str]:
        assert run("install", "cursor").exit_code == 0
        entry = json.loads((tmp_path / ".cursor/mcp.json").read_text())["mcpServers"]["toolgate"]
        return [*entry["args"][entry["args"].index("serve") :]]

    assert arguments() == ["serve", "--config", str(project / "toolgate.yaml")]
    (project / "toolgate.yaml").unlink()
    assert arguments() == ["serve"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--workspace", "nowhere"], "Directory 'nowhere' does not exist"),
        (["--wrkspace", "x"], "No such option"),
        (["--config", "nowhere.yaml"], "there is no settings file 'nowhere.yaml'"),
    ],
)
def test_an_entry_that_serve_would_refuse_is_not_written(
    run: Run, tmp_path: Path, arguments: list[str], message: str
) -> None:
    (tmp_path / ".cursor").mkdir()
    result = run("install", "cursor", "--", *arguments)
    assert result.exit_code
    assert message in f"{result.output}{result.exception}"
    assert not (tmp_path / ".cursor/mcp.json").exists()


def test_settings_inside_the_workspace_are_not_written_into_an_entry(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".cursor").mkdir()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "toolgate.yaml").write_text("chat: mine")
    assert refused(run("install", "cursor", "--", "--workspace", ".")).code == "UNTRUSTED_CONFIG"
