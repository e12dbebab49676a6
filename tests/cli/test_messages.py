"""Advice in messages: every command, option and setting that a message recommends exists, and following it helps."""

from __future__ import annotations

import ast
import asyncio
import io
import json
import os
import re
import shlex
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import click
import pytest
from pydantic import BaseModel
from test_architecture import MODULES, ROOT, parsed

from gateway import Gateway
from gateway.cli import COMMANDS, _fail, main, toolgate
from gateway.cli.serve import _print_address
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


# Commands that a message names as a cause, and one whose last words are the rest of another message.
NAMED_ONLY = {("client",), ("category", "disable"), ("tool", "list", "…", "…")}


def every_recommendation() -> list[tuple[str, list[str]]]:
    """Each place in the code with a command that its message recommends; a value that is filled in is `…`."""
    return [
        (message.place, [re.sub("^[X…]*$", "…", word) for word in words])
        for message in messages()
        for words in recommended(message.text)
    ]


def parse_filled(words: list[str]) -> str | None:
    """Parse a command with values in the place of each `…`; return why none fits."""
    problem = None
    for value in ("x", "cursor", "read-only"):
        command, rest = find_command([value if word == "…" else word for word in words])
        try:
            command.make_context(command.name, rest)
            return None
        except click.UsageError as error:
            problem = problem or error.format_message()
    return problem


def test_every_recommended_command_is_complete() -> None:
    """It has all its arguments, and no words of the sentence around it."""
    every = [pair for pair in every_recommendation() if tuple(pair[1]) not in NAMED_ONLY]
    assert len(every) > 100
    assert [f"{place}: {words}: {why}" for place, words in every if (why := parse_filled(words))] == []


def test_every_recommended_command_without_arguments_runs_after_a_first_call(run: Run) -> None:
    """Those that serve, start servers or need something that is not there, such as a file, are run by other tests."""
    elsewhere = {
        "approval allow",
        "audit accept",
        "config trust",
        "doctor",
        "serve",
        "upstream import",
        "workspace undo",
    }
    plain = {" ".join(words) for _, words in every_recommendation() if "…" not in words and not find_command(words)[1]}
    plain |= {" ".join(words) for _, words in every_recommendation() if words[-1] == "--all"}
    assert len(plain) > 12
    assert run(*WRITTEN)[0] == 0
    for line in sorted(plain - elsewhere - {" ".join(words) for words in NAMED_ONLY}):
        assert run(*line.split())[0] == 0, line


def test_every_command_of_the_first_hour_can_be_typed() -> None:
    lines = re.findall(r"^\$ toolgate (.+)$", (ROOT / "docs/first-hour.md").read_text(), re.MULTILINE)
    assert len(lines) > 8
    for line in lines:
        command, rest = find_command(shlex.split(line))
        command.make_context(command.name, rest)


def test_recordings_of_the_first_hour_are_what_is_printed(run: Run, tmp_path: Path) -> None:
    (tmp_path / ".cursor").mkdir()
    (tmp_path / ".cursor/mcp.json").write_text(json.dumps({"mcpServers": {"weather": {"command": "weather"}}}))
    blocks = re.findall("```console\n(.*?)```", (ROOT / "docs/first-hour.md").read_text(), re.DOTALL)
    recorded = dict(
        part.split("\n", 1) for block in blocks for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]
    )

    def compare(command: str, *further: str) -> None:
        _, text = run(*shlex.split(command)[1:], *further)
        printed = {line for line in text.splitlines() if line and not line.startswith("… ")}
        expected = [line for line in recorded[command].splitlines() if line and not line.endswith("? [Y/n]: y")]
        if "…" in expected:  # the rest of a long list is left out
            expected.remove("…")
            assert {*map(without_chance, expected)} < {*map(without_chance, printed)}
        else:
            assert {*map(without_chance, expected)} == {*map(without_chance, printed)}

    def without_chance(line: str) -> str:
        line = line.replace(str(tmp_path), "/home/ada")
        return re.sub(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]*…?|[0-9]{8}-[0-9]{6}-[0-9]+", "ID", line)

    compare("toolgate init --here", "--yes")
    compare("toolgate client list")
    compare("toolgate tool call write_file path=notes/a.md content=hello")
    compare("toolgate tool call write_file path=notes/a.md content=hello createDirs=true")
    compare("toolgate workspace undo")
    compare("toolgate upstream add cats -- cat")


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
    """Commands that lead there, and the one that ends with `status` and recommends the command `follows`. `again` is
    whether it succeeds once the advice is followed; None where the advice only tells more."""

    before: list[list[str]]
    refused: list[str]
    follows: str
    stdin: str = ""
    again: bool | None = None
    advice: int = 0
    status: int = 1
    files: Mapping[str, str] = MappingProxyType({})


ADDED = ["upstream", "add", "bad", "--no-test", "--", *stub("boom")]
WRITTEN = ["tool", "call", "write_file", "path=a.txt", "content=x"]
ENTRY = ["client", "install", "cursor", "--file", "c.json"]
SERVERS = json.dumps({"mcpServers": {"one": {"command": "true"}}})
TOOL = {"id": "t", "type": "shell", "command": ["true"], "description": "Nothing."}
TOOLSET = json.dumps({"id": "own", "name": "Own", "version": "1.0.0", "secrets": ["TOKEN_OF_TEST"], "tools": [TOOL]})
SITUATIONS = {
    "a category is off": Situation(
        [], ["tool", "call", "run_code", "language=python", "code=1"], "category enable", again=False
    ),
    "a level is too low": Situation(
        [["category", "set", "editing", "--level", "read-only"]],
        ["tool", "call", "write_file", "path=a", "content=b"],
        "category set",
        again=True,
    ),
    "a tool is off": Situation(
        [["tool", "disable", "list_directory"]], ["tool", "call", "list_directory"], "tool enable", again=True
    ),
    "a builtin cannot be changed": Situation([], ["toolset", "override", "read_file", "--disable"], "tool disable"),
    "an unknown tool": Situation([], ["tool", "call", "zzzzzz"], "tool list"),
    "no settings file": Situation([], ["config", "check", "--config", "mine.yaml"], "init", again=True),
    "an unknown server": Situation([], ["upstream", "show", "nope"], "upstream list"),
    "no servers yet": Situation(
        [], ["upstream", "list"], "upstream import", advice=1, status=0, files={".cursor/mcp.json": SERVERS}
    ),
    "a server exists": Situation([ADDED], ADDED, "upstream remove", again=True),
    "a server is off": Situation(
        [ADDED, ["upstream", "disable", "bad"]], ["upstream", "restart", "bad"], "upstream enable", again=True
    ),
    "a variable is missing": Situation(
        [["upstream", "add", "v", "--no-test", "--env", "A=${TOKEN_OF_TEST}", "--", *stub("boom")]],
        ["upstream", "test", "v"],
        "upstream secret",
        stdin="secret\n",
        again=False,
    ),
    "no such decision": Situation([], ["approval", "revoke", "abcd"], "approval remembered"),
    "no such approval": Situation([], ["approval", "show", "abcd"], "approval list"),
    "nothing waits": Situation([], ["approval", "allow"], "approval list"),
    "no such call": Situation([], ["call", "show", "abcd"], "call list"),
    "no such version": Situation([WRITTEN], ["workspace", "checkout", "abcd1234"], "workspace log"),
    "no such file": Situation([WRITTEN], ["workspace", "cat", "b.txt"], "workspace ls"),
    "no such key": Situation([], ["key", "revoke", "ann"], "key list"),
    "no such client of a key": Situation([], ["key", "disconnect", "abcd"], "key clients"),
    "a key was made": Situation([], ["key", "create", "ann"], "key revoke", status=0),
    "no toolset": Situation([], ["toolset", "check", "empty"], "toolset new", files={"empty/a.txt": ""}),
    "a toolset's secret is missing": Situation(
        [], ["toolset", "install", "own"], "toolset secret", "x\n", status=0, files={"own/toolset.yaml": TOOLSET}
    ),
    "a client lacks the entry": Situation(
        [], ["client", "list"], "client install", status=0, files={".cursor/other.json": "{}"}
    ),
    "an entry was added": Situation([], ENTRY, "client restore", status=0, files={"c.json": "{}"}),
    "an entry made the file": Situation([ENTRY], ["client", "restore", *ENTRY[2:]], "client uninstall"),
    "no entry": Situation([], ["client", "uninstall", *ENTRY[2:]], "client list"),
}

# Recommended commands that other tests run after a message has named them.
FOLLOWED_BY = {
    "approval allow": "test_a_serving_terminal_shows_clients_calls_questions_and_servers",
    "approval deny": "test_a_serving_terminal_shows_clients_calls_questions_and_servers",
    "audit accept": "test_call_log_with_a_journal_file_set_aside_is_a_problem_until_it_is_accepted",
    "audit verify": "test_call_log_with_a_journal_file_set_aside_is_a_problem_until_it_is_accepted",
    "call show": "test_a_call_whose_result_is_a_page_names_the_command_that_shows_it",
    "config trust": "test_settings_of_a_repository_are_used_once_they_are_trusted",
    "doctor": "test_the_doctor_names_the_settings_file_that_it_was_given",
    "key create": "test_the_first_key_says_once_who_is_locked_out_and_the_way_back",
    "serve": "test_a_serving_terminal_shows_clients_calls_questions_and_servers",
    "tool call": "test_installed_toolset_says_how_to_call_its_first_tool",
    "toolset allow": "test_the_question_is_asked_at_a_terminal_and_again_after_each_change",
    "toolset check": "test_a_new_toolset_in_an_awkward_folder_is_named_for_the_shell",
    "toolset enable": "test_installed_toolset_says_how_to_call_its_first_tool",
    "toolset install": "test_a_new_toolset_in_an_awkward_folder_is_named_for_the_shell",
    "toolset override": "test_installed_toolset_says_how_to_call_its_first_tool",
    "toolset uninstall": "test_a_toolsets_server_is_started_by_no_command_before_consent",
    "upstream accept": "test_what_changed_waits_until_exactly_that_is_accepted",
    "upstream add": "test_registry_is_searched_and_its_servers_become_plans",
    "upstream login": "test_a_server_that_wants_a_login_from_the_first_day_to_the_last",
    "upstream logout": "test_a_server_that_wants_a_login_from_the_first_day_to_the_last",
    "upstream logs": "test_a_log_is_followed_until_ctrl_c",
    "upstream review": "test_what_changed_waits_until_exactly_that_is_accepted",
    "upstream search": "test_registry_is_searched_and_its_servers_become_plans",
    "upstream test": "test_a_log_is_followed_until_ctrl_c",
    "workspace cat": "test_what_a_changed_file_says_brings_it_back",
    "workspace checkout": "test_what_undo_and_a_missing_directory_say_can_be_done",
    "workspace undo": "test_a_deleted_file_that_git_ignores_is_said_and_comes_back",
}


def test_a_tool_that_is_turned_on_and_still_not_offered_says_why(run: Run) -> None:
    status, text = run("tool", "enable", "run_code")
    assert (status, text.splitlines()[0]) == (0, "run_code is on")
    assert "It is not offered yet. run_code is in category 'development', which is off" in text
    assert run(*recommended(text)[0])[0] == 0
    assert "not offered" not in run("tool", "enable", "run_code")[1]


def command_path(words: list[str]) -> str:
    """The command without its arguments, such as `upstream add`."""
    _, rest = find_command(words)
    return " ".join(words[: len(words) - len(rest)])


def test_every_recommended_command_is_run_by_a_test_after_a_message_named_it() -> None:
    named = {command_path(words) for message in messages() for words in recommended(message.text)}
    mentioned = {"client", "category disable"}  # as the cause of something, not as advice
    followed = {situation.follows for situation in SITUATIONS.values()} | set(FOLLOWED_BY)
    assert named - mentioned - followed == set()
    tests = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name in FOLLOWED_BY.values() if f"def {name}(" not in tests] == []


@pytest.mark.parametrize("name", SITUATIONS)
def test_following_the_advice_of_a_message_helps(run: Run, tmp_path: Path, name: str) -> None:
    situation = SITUATIONS[name]
    for path, content in situation.files.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(content)
    for command in situation.before:
        assert run(*command)[0] == 0, command
    status, text = run(*situation.refused)
    assert status == situation.status, text
    words = recommended(text)[situation.advice]
    assert command_path(words) == situation.follows
    followed, output = run(*words, stdin=situation.stdin)
    assert followed == 0, f"{words}: {output}"
    if situation.again:
        assert run(*situation.refused)[0] == 0
    elif situation.again is False:
        assert recommended(run(*situation.refused)[1]) != [words]


def test_the_advice_for_a_server_that_was_not_added_works_as_printed(run: Run) -> None:
    add = ["upstream", "add", "v", "--env", "A=${TOKEN_OF_TEST}", "--", *stub("boom")]
    status, text = run(*add)
    assert (status, "v needs TOKEN_OF_TEST, which is not set; nothing was added." in text) == (1, True)
    assert "repeat with --no-test" in text
    assert run(*add[:3], "--no-test", *add[3:])[0] == 0
    [words] = recommended(text)
    assert run(*words, stdin="secret\n")[0] == 0
    assert "TOKEN_OF_TEST" not in run("upstream", "test", "v")[1]


def test_the_first_key_says_once_who_is_locked_out_and_the_way_back(run: Run, tmp_path: Path) -> None:
    locked = "From now on every request over HTTP needs a key, on this computer too, also after the key is revoked."
    status, text = run("key", "create", "ann")
    assert (status, locked in text) == (0, True)
    [setting] = [line.strip() for line in text.splitlines() if "required" in line]
    assert locked not in run("key", "create", "bob")[1]
    (tmp_path / "toolgate.yaml").write_text(f"data_dir: other\n{setting}\n")
    assert run("config", "check")[0] == 0
    status, text = run("key", "create", "ann")
    assert (status, locked in text) == (0, False)  # nobody is locked out then


def test_a_server_with_a_relative_script_starts_from_elsewhere_too(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "srv.py").write_text("import sys; print('the script ran', file=sys.stderr); sys.exit(3)")
    status, text = run("upstream", "add", "little", "--no-test", "--", sys.executable, "srv.py")
    assert (status, f"little is added; it starts in {tmp_path};" in text) == (0, True)
    status, text = run("upstream", "add", "named", "--no-test", "--", sys.executable, "-c", "1")
    assert (status, "starts in" in text) == (0, False)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert "the script ran" in run("upstream", "test", "little")[1]


def test_a_program_of_a_virtual_environment_is_found_where_none_is_active(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "venv/bin/weather"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\necho the program ran >&2; exit 3\n")
    program.chmod(0o755)
    before = os.environ["PATH"]
    monkeypatch.setenv("PATH", f"{program.parent}:{before}")
    assert run("upstream", "add", "everywhere", "--no-test", "--", "weather")[0] == 0
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path / "venv"))
    assert run("upstream", "add", "inside", "--no-test", "--", "weather")[0] == 0
    assert run("upstream", "add", "system", "--no-test", "--", "sh", "-c", "exit 4")[0] == 0
    monkeypatch.setenv("PATH", before)
    monkeypatch.delenv("VIRTUAL_ENV")
    assert "the program ran" in run("upstream", "test", "inside")[1]
    assert "'weather' was not found" in run("upstream", "test", "everywhere")[1]
    assert "sh ended with exit code 4" in run("upstream", "test", "system")[1]


def test_a_server_of_the_settings_is_not_sent_to_a_command_that_refuses_it(run: Run, tmp_path: Path) -> None:
    server = {"command": "x", "env": {"A": "${TOKEN_OF_TEST}"}}
    (tmp_path / "toolgate.yaml").write_text(json.dumps({"mcpServers": {"docs": server}}))
    status, text = run("upstream", "test", "docs")
    assert (status, "docs needs TOKEN_OF_TEST: set it in the environment\n" in text) == (1, True)
    assert recommended(text) == []


def test_a_command_with_arguments_in_the_settings_is_answered_with_their_keys(run: Run, tmp_path: Path) -> None:
    (tmp_path / "toolgate.yaml").write_text("mcpServers: {docs: {command: sh -c, args: [exit 3]}}")
    status, text = run("upstream", "test", "docs")
    advice = """'sh -c' is not one program: write its arguments apart: command: sh, args: ["-c", "exit 3"]"""
    assert (status, advice in text, "--" in text) == (1, True, False), text
    keys = advice.partition("apart: ")[2]
    (tmp_path / "toolgate.yaml").write_text(f"mcpServers: {{docs: {{{keys}}}}}")
    assert "sh ended with exit code 3" in run("upstream", "test", "docs")[1]


def test_extension_that_cannot_be_loaded_is_named_with_its_line(run: Run, tmp_path: Path) -> None:
    (tmp_path / "toolgate.yaml").write_text("chat: a\nextensions:\n- use: nosuchmodule:X\n")
    status, text = run("config", "check")
    assert (status, "toolgate.yaml line 3: extension 'nosuchmodule:X' cannot be loaded" in text) == (1, True), text


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
    _, text = run("workspace", "cat", "nope")
    assert text.endswith("nope does not exist in the workspace; see: toolgate workspace ls\n")
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
        (["upstream", "add", "time", "npx", "-y", "time"], "the program to start stands after `--`, as in:"),
        (["upstream", "add", "c", "--", "cat"], "cat is not an MCP server: it sends back what it is sent"),
        (["toolset", "check", "a.txt"], "this is neither a folder nor a ZIP file"),
        (
            ["toolset", "install", "nosuch"],
            "'nosuch' here; toolgate comes with app-builder, customer-support, data-lab",
        ),
        (["toolset", "install", "data-lap"], "'data-lap' here; did you mean 'data-lab'?"),
        (
            ["tool", "call", "edit_file", "path=a", "oldText=x"],
            """; 'edits' is a list of {oldText, newText, replaceAll?}: --json-args '{"edits": [{"oldText": "…", """,
        ),
        (
            ["tool", "call", "edit_file", "path=a", "edits={oldText: a}"],
            """'edits' is a list, written as JSON in single quotes, such as edits='[{"oldText": "…", "newText""",
        ),
        (["upstream", "logs", "nope"], "there is no upstream 'nope'"),
        (
            ["tool", "call", "zzzzzzzzz"],
            "no tool is named 'zzzzzzzzz'; `toolgate tool list` and",
        ),
        (["call", "show", "12"], "no call has the id '12'; see: toolgate call list"),
        (["approval", "allow", "12"], "no approval has the id '12'; see: toolgate approval list"),
        (
            ["upstream", "add", "u", "--url", "htp://x"],
            "the URL must begin with https:// or http://, as in https://host/mcp",
        ),
        (
            ["upstream", "add", "u", "--url", "http://127.0.0.1:9/mcp"],
            "cannot be reached: nothing listens there; start it, or",
        ),
        (["client", "install", "vsode"], "there is no client 'vsode'; did you mean 'vscode'?"),
        (["client", "install", "cursor", "--url", "http://127.0.0.1:1"], "did you mean http://127.0.0.1:1/mcp?"),
        (
            ["client", "install", "cursor", "--", "--transport", "http", "--port", "9"],
            "give its address instead: --url http://127.0.0.1:9/mcp",
        ),
        (
            ["client", "install", "zed", "--workspace", "x"],
            "as in: toolgate client install zed -- --workspace …",
        ),
        (["client", "remove", "cursor"], "there is no command 'remove'; did you mean 'uninstall'?"),
        (["upstream", "rm", "x"], "there is no command 'rm'; did you mean 'remove'?"),
        (["--config", "x.yaml", "tool", "list"], "--config stands after the command, as in: toolgate tool list"),
        (["upstream", "add", "t", "--", "ls -l"], "write it without quotes, as separate words: -- ls -l"),
        (["upstream", "add", "t", "--", "echo", "hello"], "it wrote 'hello' to stdout, which is no MCP message"),
        (["approval", "allow"], "no call waits for a person; see: toolgate approval list --all"),
        (["serve", "--prt", "3"], "there is no option '--prt'; did you mean '--port' or '--transport'? (see"),
        (["serve", "--prot", "3"], "there is no option '--prot'; did you mean '--port', '--host' or '--profile'? (see"),
        (["upstream", "lst"], "there is no command 'lst'; did you mean 'list'? (see 'toolgate upstream --help')"),
        (["nope"], "there is no command 'nope' (see 'toolgate --help')"),
        (["help", "nope"], "there is no command 'nope' (see 'toolgate --help')"),
        (["help", "upstream", "lst"], "there is no command 'lst'; did you mean 'list'? (see 'toolgate upstream --help"),
        (["serve", "--port", "9000"], "--port is for HTTP, which is not served; add --transport http (see"),
        (["serve", "--allow-remote"], "--allow-remote is for HTTP, which is not served; add --transport http (see"),
        (
            ["client", "install", "cursor", "--", "--host", "::1"],
            "--host is for HTTP, which is not served; add --transport http (see 'toolgate serve --help')",
        ),
        (["serve", "--port", "abc"], "Invalid value for '--port': 'abc' is not a whole number (see"),
        (
            ["serve", "--transport", "http", "--host", "nosuch.invalid"],
            "'nosuch.invalid' is no name or address of this machine; name one, such as 127.0.0.1",
        ),
        (["client", "install", "claude"], "'claude'; did you mean 'claude-desktop' or 'claude-code'?"),
        (["tool", "call", "read_file", "a b.md"], "'a b.md': write KEY=VALUE, such as path=VALUE"),
        (["client", "install"], "Missing argument 'CLIENT'. Choose from: claude-desktop, claude-code, cursor,"),
    ],
)
def test_a_mistake_on_the_command_line_is_explained(
    run: Run, tmp_path: Path, arguments: list[str], message: str
) -> None:
    (tmp_path / "a.txt").write_text("no ZIP file")
    status, text = run(*arguments)
    assert status
    assert message in text


def test_recommended_command_repeats_the_options_that_chose_the_data(run: Run, tmp_path: Path) -> None:
    """Without them it would look at another chat, or at another person's data."""
    (tmp_path / "my files").mkdir()
    options = ["--data-dir", "data", "--workspace", "my files"]
    assert run("tool", "call", "write_file", "path=a", "content=x", *options)[0] == 0
    _, text = run("workspace", "checkout", "abcd", *options)
    assert text.endswith("; see: toolgate workspace log --data-dir data --workspace 'my files'\n")
    words = shlex.split(text.rpartition("see: toolgate ")[2])
    assert "write_file" in run(*words)[1]
    _, text = run("upstream", "test", "x", "--data-dir=data")
    assert text.endswith("; see: toolgate upstream list --data-dir=data\n")
    assert "\n(none)\nadd one with: toolgate upstream add NAME -- " in run("upstream", "list", "--data-dir=data")[1]


def test_broken_client_file_is_named_and_never_recommended_for_install(run: Run, tmp_path: Path) -> None:
    (tmp_path / ".cursor").mkdir()
    (tmp_path / ".cursor/mcp.json").write_text('{"mcpServers": {\n')
    reason = "mcp.json: line 2 column 1: invalid JSON: a key in double quotes is expected, or a '}'"
    assert reason in run("client", "install", "cursor")[1]
    text = run("doctor")[1]
    assert reason in text
    assert "client install" not in text


def test_settings_of_a_repository_are_used_once_they_are_trusted(run: Run, tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "toolgate.yaml").write_text(json.dumps({"mcpServers": {"docs": {"command": "touch", "args": ["ran"]}}}))
    for command in (["upstream", "test"], ["client", "install", "cursor"], ["init", "--here", "--yes"]):
        status, text = run(*command)
        assert (status, recommended(text)) == (1, [["config", "trust"]]), text
    assert not (tmp_path / "ran").exists()
    assert run("config", "trust")[0] == 0
    assert run("upstream", "list")[0] == 0


def test_settings_in_the_workspace_are_used_once_they_are_trusted(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "site").mkdir()
    monkeypatch.chdir(tmp_path / "site")
    status, text = run("init", "--here")
    assert (status, recommended(text)) == (0, [["config", "trust"]])
    Path("toolgate.yaml").write_text("chat: mine\nworkspace: .\n")
    for _ in range(2):
        status, text = run("tool", "list")
        assert (status, [words[:2] for words in recommended(text)]) == (1, [["config", "trust"]]), text
        assert run("config", "trust")[0] == 0
        assert run("tool", "list")[0] == 0
        Path("toolgate.yaml").write_text("chat: other\nworkspace: .\n")


def test_a_tool_is_named_as_it_is_typed(run: Run) -> None:
    assert run("toolset", "new", "words")[0] == 0
    status, text = run("toolset", "install", "words")
    assert (status, "\nwords__count_words " in text, "words:" in text) == (0, True, False)
    status, text = run("tool", "call", "words__count_words")
    assert (status, "INVALID_ARGUMENTS: words__count_words: 'path' is required" in text) == (1, True)
    assert run("tool", "disable", "words__count_words") == (0, "words__count_words is off\n")
    assert run("toolset", "override", "words__count_words", "--enable") == (0, "words__count_words is changed\n")


def test_servers_are_shown_as_somebody_would_type_them(run: Run, tmp_path: Path) -> None:
    assert run("upstream", "add", "a", "--no-test", "--env", "A=${B C}", "--", *stub("a b"))[0] == 0
    status, text = run("upstream", "show", "a")
    assert status == 0
    assert f"command    {shlex.join(stub('a b'))}\n" in text
    assert "env        'A=${B C}'\n" in text and "origin     added\n" in text
    assert run("upstream", "test", "a")[0] == 1
    assert "boom" not in run("upstream", "list")[1] and "failed" in run("upstream", "list")[1]
    assert run("upstream", "disable", "a")[0] == 0
    header, line = run("upstream", "list")[1].splitlines()
    assert header.split() == ["NAME", "STATE", "PROTOCOL", "TOOLS", "SANDBOX", "ORIGIN", "ERROR"]
    assert line.split() == ["a", "off", "-", "0", "no", "added"]


def test_a_file_that_cannot_be_imported_is_no_server(run: Run, tmp_path: Path) -> None:
    (tmp_path / ".cursor").mkdir()
    (tmp_path / ".cursor/mcp.json").write_text("{")
    _, line = run("upstream", "import")[1].splitlines()[:2]
    assert line.split()[:3] == ["-", "skipped", str(tmp_path / ".cursor/mcp.json")]


def test_installed_toolset_says_how_to_call_its_first_tool(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("one two")
    assert run("toolset", "new", "words")[0] == 0
    _, text = run("toolset", "install", "words")
    [line] = [line for line in text.splitlines() if line.startswith("Next: toolgate ")]
    assert line == "Next: toolgate tool call words__count_words path=PATH"
    assert run("workspace", "upload", "a.md")[0] == 0
    call = shlex.split(line.replace("PATH", "a.md"))[2:]
    status, text = run(*call)
    assert (status, '"total": 2' in text) == (0, True)
    for off in (["toolset", "disable", "words"], ["toolset", "override", "words__count_words", "--disable"]):
        assert run(*off)[0] == 0
        [words] = recommended(run(*call)[1])
        assert run(*words)[0] == 0
        assert run(*call)[0] == 0, words


def test_refusal_is_one_line_of_visible_characters(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        _fail("NO_PACKAGE", "what somebody\n\npublished\x1b[2J\u202e", 1)
    assert capsys.readouterr().err == "toolgate: NO_PACKAGE: what somebody published<U+001B>[2J<U+202E>\n"


def test_recommended_call_of_a_hostile_toolset_holds_no_command_for_the_shell(run: Run, tmp_path: Path) -> None:
    name = "a;touch ran\x1b[2J"
    schema = {"type": "object", "properties": {name: {"type": "string"}}, "required": [name]}
    tool = {"id": "t", "type": "shell", "command": ["true"], "description": "Nothing.", "input_schema": schema}
    (tmp_path / "bad").mkdir()
    manifest = {"id": "bad", "name": "Bad", "version": "1.0.0", "tools": [tool]}
    (tmp_path / "bad/toolset.yaml").write_text(json.dumps(manifest))
    status, text = run("toolset", "install", "bad")
    assert status == 0, text
    [line] = [line for line in text.splitlines() if line.startswith("Next: toolgate ")]
    assert line.startswith("Next: toolgate tool call bad__t $'a;touch ran")
    assert line.isprintable()


def test_a_broken_server_is_reported_once_and_never_with_a_builtin(run: Run, tmp_path: Path) -> None:
    servers: dict[str, Any] = {name: {"command": sys.executable, "args": ["-c", "exit(3)"]} for name in ("one", "two")}
    (tmp_path / "toolgate.yaml").write_text(json.dumps({"mcpServers": servers}))
    status, text = run("tool", "call", "write_file", "path=a.txt", "content=x")
    assert (status, "upstream" in text, "problem" in text) == (0, False, False)
    _, text = run("tool", "list")
    [line] = [line for line in text.splitlines() if line.startswith("toolgate:")]
    assert line == "toolgate: 2 problems with tools (no answer from one, two); 'toolgate doctor' lists them"


def test_a_server_that_hangs_is_named_and_not_waited_for_as_long_again(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.cli.tool.DISCOVERY_SECONDS", 0.2)
    monkeypatch.setattr("gateway.cli.tool._RETRY_SECONDS", 0.1)
    run("upstream", "add", "mute", "--no-test", "--", sys.executable, "-c", "import sys; sys.stdin.read()")
    _, text = run("tool", "list")
    assert "connecting to mute" in text
    assert "toolgate: 1 problem with tools (no answer from mute); 'toolgate doctor' lists them" in text
    assert "it did not answer within 0.2 seconds" in run("upstream", "list")[1]
    monkeypatch.setattr("gateway.cli.tool.DISCOVERY_SECONDS", 1000.0)
    assert "no answer from mute" in run("tool", "list")[1]
    # Its tools are named `mute__…`: a call of another tool does not wait for it.
    assert "did you mean 'find_files'" in run("tool", "call", "find_file")[1]


def test_the_doctor_waits_for_a_server_that_hangs_as_long_as_it_is_told(run: Run, tmp_path: Path) -> None:
    program = "import sys; open('starts', 'a').write('x'); sys.stdin.read()"
    run("upstream", "add", "mute", "--no-test", "--", sys.executable, "-c", program)
    status, text = run("doctor", "--wait", "0.5")
    assert (status, "did not answer within 0.5 seconds" in text) == (1, True)
    assert ["upstream", "test", "mute"] in recommended(text)
    assert (tmp_path / "starts").read_text() == "x"  # it was started once


def test_a_deleted_file_that_git_ignores_is_said_and_comes_back(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "web"
    (folder / "build").mkdir(parents=True)
    for name, content in ((".gitignore", ".env\nbuild/\n"), (".env", "KEY=1\n"), ("build/out", "1"), ("a.md", "a")):
        (folder / name).write_text(content)
    here = ("--workspace", str(folder))
    assert run("tool", "call", "write_file", "path=a.md", "content=b", "--yes", *here)[0] == 0

    status, text = run("tool", "call", "delete_file", "path=.env", *here)
    assert (status, "'.env' is ignored by .gitignore, so no version has it; a copy is kept" in text) == (1, True)
    _, text = run("tool", "call", "delete_file", "path=.env", "--yes", *here)
    assert "Deleted .env." in text and "no version has it; a copy is kept" in text
    assert run("tool", "call", "delete_file", "path=build", "recursive=true", "--yes", *here)[0] == 0
    status, text = run("workspace", "undo", *here)
    assert status == 0 and "undone: delete_file of call " in text and "build/out" in text
    status, text = run("workspace", "undo", *here)
    assert status == 0 and "undone: delete_file of call " in text and ".env" in text
    assert ((folder / ".env").read_text(), (folder / "build/out").read_text()) == ("KEY=1\n", "1")
    assert (folder / ".env").stat().st_mode & 0o077 == 0
    assert (folder / "a.md").read_text() == "b"
    _, text = run("workspace", "undo", *here)
    assert "undone: write_file of call " in text
    assert (folder / "a.md").read_text() == "a"

    assert run("tool", "call", "write_file", "path=.env", "content=KEY=2", "--yes", *here)[0] == 0
    (folder / ".env").write_text("KEY=3")
    _, text = run("workspace", "undo", *here)
    assert (folder / ".env").read_text() == "KEY=1\n"
    [*_, command] = recommended(text)
    command[command.index("PATH")] = ".env"
    assert run(*command)[1].endswith("KEY=3")


def test_an_address_where_nothing_listens_and_a_created_file_are_said(run: Run, tmp_path: Path) -> None:
    (tmp_path / ".config/zed").mkdir(parents=True)
    status, text = run("client", "install", "zed", "--url", "http://127.0.0.1:1/mcp")
    assert (status, "note: nothing answers at http://127.0.0.1:1/mcp now" in text) == (0, True)
    status, text = run("client", "restore", "zed")
    assert status == 1
    assert run(*recommended(text)[0])[0] == 0
    assert "toolgate" not in (tmp_path / ".config/zed/settings.json").read_text()


def test_the_entry_of_a_broken_toml_file_can_be_pasted(run: Run, tmp_path: Path) -> None:
    (tmp_path / ".codex").mkdir()
    (tmp_path / ".codex/config.toml").write_text("a = 1\nb =")
    status, text = run("client", "install", "codex")
    assert (status, "line 2, the end of the file" in text) == (1, True)
    pasted = tomllib.loads(text[text.index("[mcp_servers.toolgate]") :])
    assert pasted["mcp_servers"]["toolgate"]["args"] == ["serve"]


def test_serving_a_folder_names_it_and_no_chat_that_leaves_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def start() -> None:
        async with Gateway.open({"data_dir": tmp_path / "data", "workspace": tmp_path / "web"}) as gateway:
            _print_address("http://127.0.0.1:8420/mcp", gateway, needs_key=False)

    (tmp_path / "web").mkdir()
    asyncio.run(start())
    text = capsys.readouterr().err
    assert f"Working in {tmp_path / 'web'}\n" in text
    assert "chat=" not in text


def test_an_import_says_what_it_changed_and_what_it_cannot_choose(run: Run, tmp_path: Path) -> None:
    servers = {"bad name!": {"command": "x"}, "both": {"command": "x", "url": "https://h/mcp"}, "five": {"command": 5}}
    (tmp_path / "other.json").write_text(json.dumps({"mcpServers": servers}))
    _, text = run("upstream", "import", "other.json", "--dry-run")
    assert "'bad name!' cannot be a name here, so it is 'bad-name'" in text
    assert "it names both a command and a URL; keep one of them" in text
    assert "its command is not text" in text
