"""Advice in messages: every command, option and setting that a message recommends exists, and following it helps."""

from __future__ import annotations

import ast
import io
import json
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import click
import pytest
from pydantic import BaseModel
from test_architecture import MODULES, ROOT, parsed

from gateway.cli import COMMANDS, main, toolgate
from gateway.config import Settings


class Message(NamedTuple):
    """A text of the program; a value that is filled in is `…`."""

    place: str
    text: str


@cache
def messages() -> list[Message]:
    return list(_read_messages())


def _read_messages() -> Iterator[Message]:
    """Every string of the package that is not documentation, with the parts of a concatenation joined."""
    for path in MODULES:
        tree = parsed(path)
        ignored = {
            id(inner)
            for node in ast.walk(tree)
            if (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)) or isinstance(node, ast.JoinedStr)
            for inner in ast.walk(node)
            if inner is not node or isinstance(node, ast.Expr)
        }
        for node in ast.walk(tree):
            place = f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}"
            if isinstance(node, ast.JoinedStr):
                parts = [str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values]
                yield Message(place, "".join(parts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in ignored:
                yield Message(place, node.value)


_COMMAND = re.compile(rf"\btoolgate ((?:{'|'.join(COMMANDS)})\b[^;,()<`'\"\n:]*)")


def recommended(text: str) -> list[list[str]]:
    """The commands that a text names, as words after `toolgate`."""
    return [match[1].replace("…", "X").split() for match in _COMMAND.finditer(text)]


def find_command(words: list[str]) -> tuple[click.Command, list[str]]:
    context = click.Context(toolgate)
    command: click.Command = toolgate
    rest = list(words)
    while isinstance(command, click.Group) and rest:
        found = command.get_command(context, rest[0])
        if found is None:
            raise LookupError(f"toolgate {' '.join(words)}")
        command = found
        rest.pop(0)
    return command, rest


def test_every_command_that_a_message_names_exists() -> None:
    wrong, checked = [], 0
    for message in messages():
        for words in recommended(message.text):
            checked += 1
            try:
                command, rest = find_command(words)
            except (LookupError, click.UsageError) as error:
                wrong.append(f"{message.place}: {error}")
                continue
            known = {option for parameter in command.params for option in parameter.opts + parameter.secondary_opts}
            wrong += [f"{message.place}: {word}" for word in rest if re.match("--[a-z]", word) and word not in known]
    assert not wrong, "\n".join(wrong)
    assert checked > 40


def test_every_command_of_the_first_hour_can_be_typed() -> None:
    lines = re.findall(r"^\$ toolgate (.+)$", (ROOT / "docs/first-hour.md").read_text(), re.MULTILINE)
    assert len(lines) > 8
    for line in lines:
        command, rest = find_command(shlex.split(line))
        command.make_context(command.name, rest)


def every_option() -> set[str]:
    context = click.Context(toolgate)
    commands = [toolgate.get_command(context, name) for name in COMMANDS]
    commands += [inner for group in commands if isinstance(group, click.Group) for inner in group.commands.values()]
    parameters = [parameter for command in commands if command for parameter in command.params]
    return {option for parameter in parameters for option in (*parameter.opts, *parameter.secondary_opts)}


def test_every_option_that_an_error_names_exists() -> None:
    """In the modules that talk to people; others start programs, whose options are their own."""
    spoken = ("gateway/admin/", "gateway/cli/", "gateway/config/", "gateway/app.py", "gateway/approval/")
    named = [
        (message.place, option)
        for message in messages()
        if message.place.startswith(spoken) and " " in message.text
        for option in re.findall(r"(?<![\w-])--[a-z][a-z-]+(?=[\s;,.)`'=]|$)", message.text)
    ]
    known = every_option() | {"--help", "--git", "--token", "--allow-http"}
    assert len(named) > 20
    assert not [f"{place}: {option}" for place, option in named if option not in known]


def setting_names(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for name, field in model.model_fields.items():
        yield f"{prefix}{field.alias or name}"
        yield f"{prefix}{name}"
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from setting_names(field.annotation, f"{prefix}{name}.")


def test_every_setting_that_a_message_names_exists() -> None:
    known = {*setting_names(Settings), "tools.allow", "tools.deny"}  # the last two of a server
    sections = {name.partition(".")[0] for name in known if "." in name}
    pattern = re.compile(rf"(?<![\w./@:-])((?:{'|'.join(sorted(sections))})\.[a-z_]+)(?![\w/:(]|\.[a-z])")
    named = [
        (message.place, name) for message in messages() if " " in message.text for name in pattern.findall(message.text)
    ]
    assert len(named) > 15
    elsewhere = ("gateway/db/", "gateway/bundles/")  # columns of tables, keys of toolset.yaml
    assert not [f"{place}: {name}" for place, name in named if name not in known and not place.startswith(elsewhere)]


# Messages in their situation: what they recommend is done, and it helps.

Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command of a person whose home and working directory is `tmp_path`; return its status and output."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "CLAUDE_CONFIG_DIR", "TOKEN_OF_TEST"):
        monkeypatch.delenv(name, raising=False)

    def invoke(*arguments: str, stdin: str = "") -> tuple[int, str]:
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
        output = capsys.readouterr()
        return int(ended.value.code or 0), output.out + output.err

    return invoke


def stub(name: str) -> list[str]:
    return [sys.executable, "-c", f"import sys; print({name!r}, file=sys.stderr); sys.exit(3)"]


class Situation(NamedTuple):
    """Commands that lead there, the one that is refused, and words that replace placeholders of its advice. `again`
    is whether the refused command works once the advice is followed."""

    before: list[list[str]]
    refused: list[str]
    replace: Mapping[str, str] = MappingProxyType({})
    stdin: str = ""
    again: bool = True
    advice: int = 0


ADDED = ["upstream", "add", "bad", "--no-test", "--", *stub("boom")]
SITUATIONS = {
    "a category is off": Situation([], ["tool", "call", "run_code", "language=python", "code=1"], again=False),
    "a tool is off": Situation([["tool", "disable", "list_directory"]], ["tool", "call", "list_directory"]),
    "no settings file": Situation([], ["config", "check", "--config", "mine.yaml"], {"FILE": "mine.yaml"}),
    "an unknown server": Situation([], ["upstream", "show", "nope"], again=False),
    "a server exists": Situation([ADDED], ADDED),
    "a server is off": Situation([ADDED, ["upstream", "disable", "bad"]], ["upstream", "restart", "bad"]),
    "a variable is missing": Situation(
        [["upstream", "add", "v", "--no-test", "--env", "A=${TOKEN_OF_TEST}", "--", *stub("boom")]],
        ["upstream", "test", "v"],
        stdin="secret\n",
        again=False,
    ),
    "no such decision": Situation([], ["approval", "revoke", "abcd"], again=False),
}


@pytest.mark.parametrize("name", SITUATIONS)
def test_following_the_advice_of_a_message_helps(run: Run, name: str) -> None:
    situation = SITUATIONS[name]
    for command in situation.before:
        assert run(*command)[0] == 0, command
    status, text = run(*situation.refused)
    assert status == 1, text
    words = [situation.replace.get(word, word) for word in recommended(text)[situation.advice]]
    followed, output = run(*words, stdin=situation.stdin)
    assert followed == 0, f"{words}: {output}"
    if situation.again:
        assert run(*situation.refused)[0] == 0
    else:
        assert recommended(run(*situation.refused)[1]) != [words] or "list" in words or "remembered" in words


def test_a_server_of_the_settings_is_not_sent_to_a_command_that_refuses_it(run: Run, tmp_path: Path) -> None:
    server = {"command": "x", "env": {"A": "${TOKEN_OF_TEST}"}}
    (tmp_path / "toolgate.yaml").write_text(json.dumps({"mcpServers": {"docs": server}}))
    status, text = run("upstream", "test", "docs")
    assert (status, "docs needs TOKEN_OF_TEST: set it in the environment\n" in text) == (1, True)
    assert recommended(text) == []


def test_what_a_changed_file_says_brings_it_back(run: Run, tmp_path: Path) -> None:
    (tmp_path / ".cursor").mkdir()
    (tmp_path / ".cursor/mcp.json").write_text('{"mcpServers": {}}')
    _, text = run("client", "install", "cursor")
    assert run(*recommended(text)[0])[0] == 0
    assert (tmp_path / ".cursor/mcp.json").read_text() == '{"mcpServers": {}}'


def test_what_undo_and_a_missing_directory_say_can_be_done(run: Run, tmp_path: Path) -> None:
    status, text = run("tool", "call", "write_file", "path=notes/a.md", "content=x")
    assert (status, "set createDirs to true" in text) == (1, True)
    assert run("tool", "call", "write_file", "path=notes/a.md", "content=x", "createDirs=true")[0] == 0
    _, text = run("workspace", "undo")
    assert run(*recommended(text)[0], "--yes")[0] == 0
    assert run("workspace", "cat", "notes/a.md")[0] == 0
    _, text = run("workspace", "checkout", "abcd")
    assert "has no version 'abcd'" in text
    assert run(*recommended(text)[0])[0] == 0


def test_a_new_toolset_in_an_awkward_folder_is_named_for_the_shell(run: Run) -> None:
    status, text = run("toolset", "new", "My Tools!")
    assert status == 0
    [line] = [line for line in text.splitlines() if line.startswith("Next: ")]
    first = line.removeprefix("Next: ").partition(", then ")[0]
    assert shlex.split(first) == ["toolgate", "toolset", "check", "My Tools!"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tool", "call", "read_file", "pth=x"], "'pth' is not an argument; did you mean 'path'?; the arguments are"),
        (["tool", "call", "list_directory", "zzz=1"], "; the arguments are path, recursive, includeHidden, limit"),
        (
            ["tool", "call", "list_directory", "recursive=3", "limit=x"],
            "'recursive' must be true or false; 'limit' must",
        ),
        (["upstream", "add", "time", "uvx", "mcp-server-time"], "the program to start stands after `--`, as in:"),
        (["upstream", "add", "c", "--", "cat"], "cat is not an MCP server: it sends back what it is sent"),
        (["upstream", "logs", "nope"], "there is no upstream 'nope'"),
        (
            ["tool", "call", "zzzzzzzzz"],
            "no tool is named 'zzzzzzzzz'; `toolgate tool list` and",
        ),
        (["call", "show", "12"], "no call has the id '12'; see: toolgate call list"),
        (["approval", "allow", "12"], "no approval has the id '12'; see: toolgate approval list"),
        (["upstream", "add", "u", "--url", "htp://x"], "the URL is not an address such as https://host/mcp"),
    ],
)
def test_a_mistake_on_the_command_line_is_explained(run: Run, arguments: list[str], message: str) -> None:
    status, text = run(*arguments)
    assert status
    assert message in text


def test_a_broken_server_is_reported_once_and_never_with_a_builtin(run: Run, tmp_path: Path) -> None:
    servers: dict[str, Any] = {name: {"command": sys.executable, "args": ["-c", "exit(3)"]} for name in ("one", "two")}
    (tmp_path / "toolgate.yaml").write_text(json.dumps({"mcpServers": servers}))
    status, text = run("tool", "call", "write_file", "path=a.txt", "content=x")
    assert (status, "upstream" in text, "problem" in text) == (0, False, False)
    _, text = run("tool", "list")
    [line] = [line for line in text.splitlines() if line.startswith("toolgate:")]
    assert line == "toolgate: 2 problems with tools (no answer from one, two); 'toolgate doctor' lists them"
