"""Help pages, colours, `toolgate help` and completion, as a person at a terminal sees them."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pexpect
import pytest
from click.testing import CliRunner

from gateway.cli import COMMANDS, toolgate
from gateway.cli.help import COMMON_OPTIONS, find_examples
from gateway.cli.options import settings_options
from gateway.cli.tool import parse_arguments
from gateway.sources.builtin.source import as_declared
from gateway.tools import Tool

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "gateway" / "cli" / "examples.txt"


def walk(command: click.Command, path: str = "toolgate") -> Iterator[tuple[str, click.Command]]:
    """Yield every command and group with the words that call it."""
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command, info_name="toolgate")
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from walk(inner, f"{path} {name}")


def read_help(path: str) -> str:
    result = CliRunner().invoke(toolgate, [*path.split()[1:], "--help"], prog_name="toolgate")
    assert result.exit_code == 0, result.output
    return result.stdout


def test_every_help_page_has_examples() -> None:
    assert [path for path, _ in walk(toolgate) if "\nExamples:\n  toolgate" not in read_help(path)] == []


def test_every_example_parses_as_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    for line in EXAMPLES.read_text().splitlines():
        if line.startswith("#"):
            continue
        command: click.Command = toolgate
        context = click.Context(toolgate, info_name="toolgate")
        words = shlex.split(line, comments=True)[1:]
        while isinstance(command, click.Group):
            inner = command.get_command(context, words[0])
            assert inner is not None, line
            command, words = inner, words[1:]
        # Files of examples do not exist here; everything else is checked.
        for parameter in command.params:
            if isinstance(parameter.type, click.Path):
                monkeypatch.setattr(parameter, "type", click.Path(path_type=Path))
        given = command.make_context(command.name, words, parent=context).params
        if line.startswith("toolgate tool call "):
            tool = as_declared(Tool(given["name"], ""))
            tool.check_arguments(parse_arguments(tool.input_schema, given["arguments"], given["json_args"]))


def test_common_options_stand_in_one_section_after_the_others() -> None:
    page = read_help("toolgate tool call")
    own, _, common = page.partition("Common options:\n")
    assert "--json-args" in own and "--config" not in own
    assert "--config" in common and "--json-args" not in common
    shared = click.command(settings_options(lambda **_: None)).params
    assert {option.opts[0] for option in shared} <= COMMON_OPTIONS


def test_group_help_prints_whole_sentences() -> None:
    for path, command in walk(toolgate):
        if isinstance(command, click.Group):
            assert "..." not in read_help(path).partition("Commands:")[2].partition("Examples:")[0]


def test_help_command_prints_the_page_of_a_command() -> None:
    shown = CliRunner().invoke(toolgate, ["help", "upstream", "add"], prog_name="toolgate")
    assert shown.stdout == read_help("toolgate upstream add")
    assert CliRunner().invoke(toolgate, ["help"], prog_name="toolgate").stdout == read_help("toolgate")
    refused = CliRunner().invoke(toolgate, ["help", "upstream", "ad"], prog_name="toolgate")
    assert refused.exit_code == 2 and "did you mean 'add'" in refused.stderr


def test_group_examples_begin_with_each_of_its_commands() -> None:
    assert len({line.split()[2] for line in find_examples("toolgate workspace", group=True)}) == 5


def environment(home: Path, **more: str) -> dict[str, str]:
    """Return the environment of a person's shell in which `toolgate` is this checkout's."""
    programs = home / "bin"
    programs.mkdir(exist_ok=True)
    script = programs / "toolgate"
    script.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m gateway "$@"\n')
    script.chmod(0o755)
    path = os.pathsep.join([str(ROOT), str(ROOT / "toolsets")])
    return {"HOME": str(home), "PATH": f"{programs}:/usr/bin:/bin", "PYTHONPATH": path, "TERM": "xterm", **more}


def run_on_terminal(arguments: list[str], env: dict[str, str]) -> str:
    output = pexpect.run(shlex.join(["toolgate", *arguments]), env=env, timeout=300, encoding="utf-8")
    assert isinstance(output, str)
    return output


def test_help_has_colours_on_a_terminal_and_none_with_no_color(tmp_path: Path) -> None:
    assert "\x1b[1mUsage:" in run_on_terminal(["tool", "--help"], environment(tmp_path))
    assert "\x1b[" not in run_on_terminal(["tool", "--help"], environment(tmp_path, NO_COLOR="1"))
    assert "\x1b[31m" in run_on_terminal(["tool", "show"], environment(tmp_path))
    assert "\x1b[" not in run_on_terminal(["tool", "show"], environment(tmp_path, NO_COLOR="1"))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a home with a toolset, a server, a chat, a version and a call."""
    home = tmp_path_factory.mktemp("home")
    env = environment(home)
    for words in (
        ["upstream", "add", "clock", "--no-test", "--", "true"],
        ["tool", "call", "write_file", "path=a.txt", "content=1", "--chat", "research"],
    ):
        subprocess.run(["toolgate", *words], env=env, check=True, capture_output=True, timeout=300)
    return home


def complete(home: Path, line: str) -> list[str]:
    """Return what the shell is offered for the last word of a line."""
    words = line.split(" ")
    env = environment(home, COMP_WORDS=line, COMP_CWORD=str(len(words) - 1), _TOOLGATE_COMPLETE="bash_complete")
    done = subprocess.run(["toolgate"], env=env, check=True, capture_output=True, text=True, timeout=300)
    return [item.partition(",")[2] for item in done.stdout.splitlines() if item]


def test_completion_offers_names_that_the_gateway_knows(home: Path) -> None:
    assert complete(home, "toolgate wor") == ["workspace"]
    assert complete(home, "toolgate tool call write_") == ["write_file"]
    assert complete(home, "toolgate upstream show cl") == ["clock"]
    assert complete(home, "toolgate workspace log --chat rese") == ["research"]
    assert complete(home, "toolgate upstream add cl") == []
    [version] = complete(home, "toolgate workspace checkout --chat research ")
    assert len(version) >= 8
    assert complete(home, "toolgate category enable deve") == ["development"]
    [call] = complete(home, "toolgate call show ")
    assert len(call) == 36


def test_completion_of_commands_imports_no_command(home: Path) -> None:
    env = environment(home, COMP_WORDS="toolgate to", COMP_CWORD="1", _TOOLGATE_COMPLETE="bash_complete")
    code = "import sys; from gateway.cli import main\ntry: main()\nexcept SystemExit: print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    offered, modules = done.stdout.splitlines()[:-1], done.stdout.splitlines()[-1].split()
    assert offered == ["plain,tool", "plain,toolset"]
    assert "pydantic" not in modules and "gateway.gateway" not in modules


SHELLS = {
    "bash": (["--norc", "--noprofile", "-i"], 'eval "$(toolgate completion bash)"'),
    "zsh": (["-f", "-i"], 'autoload -U compinit && compinit -u; eval "$(toolgate completion zsh)"'),
    "fish": (["--no-config", "-i"], "toolgate completion fish | source"),
}


@pytest.mark.slow
@pytest.mark.parametrize("shell", SHELLS)
def test_completion_script_works_in_the_shell(shell: str, home: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    options, load = SHELLS[shell]
    child = pexpect.spawn(shell, options, env=environment(home), timeout=300, encoding="utf-8")
    child.sendline(load)
    child.sendline("echo rea''dy")
    child.expect("\nready|ready\r")
    child.send("toolgate upstream show cl\t")
    child.expect("clock")
    child.sendcontrol("c")
    child.sendline("exit")
    child.close(force=True)


def test_every_command_has_a_line_in_the_top_help() -> None:
    page = read_help("toolgate")
    assert [name for name in COMMANDS if f"\n  {name} " not in page] == []
