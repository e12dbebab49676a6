"""Arguments of a call in a command: each arrives as data, however it is spelled."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.bundles import ShellTool
from gateway.errors import Invalid
from gateway.sources.toolsets.shell import ARGUMENT_LIMIT, TOTAL_LIMIT, build_argv, fill_template

pytestmark = pytest.mark.promise("X4")


def tool(*command: str) -> ShellTool:
    return ShellTool.model_validate({"id": "t", "type": "shell", "command": list(command)})


def argv(*command: str, **values: Any) -> list[str]:
    return build_argv(tool(*command), values)


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])).filter(lambda t: t[:1] != "-"))
def test_any_text_is_one_argument_and_itself(text: str) -> None:
    assert argv("grep", "${text}", "file", text=text) == ["grep", text, "file"]
    assert argv("grep", "--pattern=${text}", text=text) == ["grep", f"--pattern={text}"]


@pytest.mark.parametrize("text", ["; rm -rf /", "$(id)", "`id`", "a b", "\n", "'", '"', "${HOME}", "*", "&&", "|", ""])
def test_what_a_shell_would_read_is_text(text: str) -> None:
    assert argv("echo", "${text}", text=text) == ["echo", text]


@pytest.mark.parametrize("text", ["-rf", "--output=/etc/passwd", "-"])
def test_a_text_never_becomes_an_option(text: str) -> None:
    with pytest.raises(Invalid, match="would take for an option"):
        argv("ls", "${path}", path=text)
    with pytest.raises(Invalid, match="would take for an option"):
        argv("ls", "${paths}", paths=["fine", text])
    assert argv("ls", "--", "${path}", path=text) == ["ls", "--", text]
    assert argv("git", "commit", "-m", "${message}", message=text) == ["git", "commit", "-m", text]


def test_a_command_of_one_text_becomes_a_list_of_arguments() -> None:
    """The form of the seed, `rm {path}`: the argument stays one element, whatever it holds."""
    written = {"id": "t", "type": "shell", "command": "rm -f {path} '${other}/x' \"a b\" 'awk|{print $1}' \\*"}
    removing = ShellTool.model_validate(written)
    assert removing.command == ("rm", "-f", "${path}", "${other}/x", "a b", "awk|{print $1}", "*")
    assert build_argv(removing, {"path": "a; rm b", "other": "o"})[2:4] == ["a; rm b", "o/x"]
    with pytest.raises(Invalid, match="would take for an option"):
        argv("rm", "${path}", path="-rf")


def test_an_argument_that_is_declared_safe_may_begin_with_a_dash() -> None:
    command = {"id": "t", "type": "shell", "command": "expr {left} + {right}", "dash_safe": ("left",)}
    adding = ShellTool.model_validate(command)
    assert build_argv(adding, {"left": "-1", "right": "2"}) == ["expr", "-1", "+", "2"]
    with pytest.raises(Invalid, match="name it in 'dash_safe'"):
        build_argv(adding, {"left": "1", "right": "-2"})


def test_a_number_may_be_negative() -> None:
    assert argv("seq", "${from}", "${to}", **{"from": -2, "to": 1.5}) == ["seq", "-2", "1.5"]


def test_lists_become_arguments_and_nothing_becomes_none() -> None:
    assert argv("cat", "${files}", "${more}", files=["a b", "c"], more=[]) == ["cat", "a b", "c"]
    assert argv("cat", "${file}", "end", file=None) == ["cat", "end"]
    assert argv("cat", "${file}", "end") == ["cat", "end"]
    assert argv("cat", "--file=${file}") == ["cat", "--file="]


def test_values_are_found_by_their_path_and_written_as_json() -> None:
    values = {"user": {"name": "Ann", "tags": ["x", "y"]}, "on": True, "map": {"a": 1}}
    assert (
        fill_template("${user.name} ${user.tags[1]} ${on} ${map} ${user.none.at.all}", values) == 'Ann y true {"a":1} '
    )


def test_what_no_program_takes_is_refused() -> None:
    with pytest.raises(Invalid, match="NUL"):
        argv("echo", "${text}", text="a\0b")
    with pytest.raises(Invalid, match="put it in a file"):
        argv("echo", "${text}", text="x" * (ARGUMENT_LIMIT + 1))
    with pytest.raises(Invalid, match="together"):
        argv("echo", "${texts}", texts=["x" * ARGUMENT_LIMIT] * (TOTAL_LIMIT // ARGUMENT_LIMIT + 1))
