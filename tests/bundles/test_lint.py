"""Warnings about toolsets that can be installed and do not do what their authors expect."""

from __future__ import annotations

import re
from pathlib import Path
from textwrap import dedent

import pytest
from sources.toolset.writing import install, require_sandbox, write_toolset

from gateway import Gateway
from gateway.admin import toolsets
from gateway.admin.toolsets import check_toolset, create_toolset
from gateway.config import load
from gateway.errors import GatewayError, NotFound

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(600), pytest.mark.promise("T3")]

HEAD = 'id: lab\nname: Lab\nversion: "1.0.0"\n'
CODE = """
from covalt_toolset import tool

@tool(permission="read-write")
def writer() -> None:
    '''Write.'''

def untyped(path, top=3):
    return path

@tool(permission="read-only", destructive=True, access="write")
def contradict(path: str) -> str:
    '''Do it.'''
    return path

def documented(path: str) -> str:
    '''Do it.

    Args:
        path: A path
    '''
    return path
"""


async def check(folder: Path) -> list[str]:
    await require_sandbox()
    info = await check_toolset(load(), str(folder), lambda settings: Gateway.open(settings, connect="none"))
    return info.warnings


async def test_lint_warns_about_functions_without_hints_texts_and_sense(tmp_path: Path) -> None:
    manifest = HEAD + dedent(
        """
        permission: read-only
        tools:
          - {id: writer, entrypoint: "code:writer"}
          - {id: untyped, entrypoint: "code:untyped"}
          - id: contradict
            entrypoint: code:contradict
            renderer: {type: document, content: "${path} was changed"}
          - {id: documented, entrypoint: "code:documented"}
        """
    )
    assert await check(write_toolset(tmp_path / "lab", manifest, code=CODE)) == [
        "writer: its code needs read-write, and the toolset's 'permission' is read-only; the code's level applies: "
        "change one of them",
        "untyped: it has no description, so the model does not know what it is for; write a docstring",
        "untyped: the arguments 'path', 'top' may have any value; write a type hint, such as 'path: str'",
        "contradict: the model is told nothing about the argument 'path'; describe each under 'Args:' in the docstring",
        "contradict: its level is read-only, so it cannot write files; declare access: read, or the level read-write",
        "contradict: its level is read-only, and it is declared destructive; change one of them",
        "contradict: '${path}' in its renderer is shown as it is; write $args.NAME for an argument, or $return",
    ]


async def test_lint_warns_about_programs_that_ignore_their_arguments(tmp_path: Path) -> None:
    manifest = HEAD + dedent(
        """
        permission: read-only
        tools:
          - id: upper
            type: shell
            description: Upper case.
            permission: read-only
            command: [tr, a-z, "{text}"]
            input_schema:
              type: object
              properties:
                text: {type: string, description: A text}
                more: {type: string, description: Another}
          - {id: echo, type: shell, description: Echo., command: [echo, "{text}"], permission: execute}
          - {id: gone, type: shell, description: Go., command: [nosuchprog]}
          - {id: own, type: shell, description: Go., command: [./nosuchfile]}
          - {id: sums, type: shell, description: Sum., command: [awk, "{ s += $1 } END { print s }"], stdin: "${text}"}
        """
    )
    assert await check(write_toolset(tmp_path / "lab", manifest)) == [
        "upper: '{text}' is passed on as it is; write ${text} for the argument",
        "upper: nothing uses the argument 'more'; write ${more} where the value belongs, or remove it",
        "echo: '{text}' is passed on as it is; write ${text} for the argument",
        "gone: there is no program 'nosuchprog' on this machine; install it, or correct 'command'",
        "own: the toolset has no program './nosuchfile'; add the file, or correct 'command'",
        "sums: the model is told nothing about the argument 'text'; write its 'description' in input_schema",
    ]


async def test_lint_finds_arguments_in_every_part_of_steps(tmp_path: Path) -> None:
    manifest = HEAD + dedent(
        """
        tools:
          - id: collect
            type: steps
            description: Read files, and list their folder.
            input_schema:
              type: object
              properties: {ids: {type: array}, deep: {type: boolean}, folder: {type: string}, more: {type: string}}
              additionalProperties: false
            steps:
              - {tool: read_file, for_each: "$args.ids", args: {path: "$item"}}
              - parallel:
                  - {tool: list_directory, args: {path: "$args.folder"}, when: "args.deep"}
        """
    )
    unused = [text for text in await check(write_toolset(tmp_path / "lab", manifest)) if "uses" in text]
    assert unused == [
        "collect: nothing uses the argument 'more'; write $args.more where the value belongs, or remove it"
    ]


async def test_lint_warns_about_a_toolset_without_tools(tmp_path: Path) -> None:
    assert await check(write_toolset(tmp_path / "lab", HEAD)) == ["it has no tools yet; name each under 'tools'"]


@pytest.mark.slow
@pytest.mark.parametrize("toolset", ["app-builder", "data-lab"])
async def test_lint_finds_nothing_in_shipped_toolsets(toolset: str) -> None:
    assert await check(Path(toolset)) == []


async def test_missing_dependency_names_the_line_to_add(tmp_path: Path) -> None:
    manifest = HEAD + "tools:\n  - {id: f, entrypoint: 'code:f'}\n"
    folder = write_toolset(
        tmp_path / "lab", manifest, code="import yaml\ndef f() -> str:\n    '''F.'''\n    return ''\n"
    )
    with pytest.raises(GatewayError, match=re.escape("add it to toolset.yaml: dependencies: [pyyaml]")):
        await check(folder)


async def test_documented_programs_work(tmp_path: Path) -> None:
    """The example of docs/toolsets.md, installed and called."""
    await require_sandbox()
    page = (Path(__file__).parents[2] / "docs" / "toolsets.md").read_text()
    example = re.search(r"## Programs.*?```yaml\n(.*?)```", page, re.DOTALL)
    assert example is not None
    folder = write_toolset(tmp_path / "lab", HEAD + example[1])
    async with Gateway.open({"data_dir": tmp_path / "data"}) as gateway:
        await install(gateway, folder)

        async def call(tool: str, **arguments: str) -> str:
            outcome = await gateway.call(f"lab:{tool}", arguments, confirmed=True)
            assert outcome.error is None, outcome.error
            return str(outcome.value["stdout"])

        assert await call("upper_case", text="abc") == "ABC"
        await call("write_greeting", text="one\ntwo", path="greeting.txt")
        assert (await call("count_lines", path="greeting.txt")).split() == ["2", "greeting.txt"]
        assert await call("print_variable", name="Ada") == "Ada\n"


async def test_toolset_without_tests_is_refused_with_advice(tmp_path: Path) -> None:
    async with Gateway.open({"data_dir": tmp_path / "data"}) as gateway:
        folder = write_toolset(tmp_path / "lab", HEAD)
        with pytest.raises(NotFound, match="there is no folder 'tests'"):
            await toolsets.test_toolset(gateway, str(folder))
        with pytest.raises(NotFound, match="neither an installed toolset nor a folder"):
            await toolsets.test_toolset(gateway, "nothing")


@pytest.mark.slow
async def test_scaffold_passes_its_own_tests_in_the_sandbox(tmp_path: Path) -> None:
    await require_sandbox()
    create_toolset(tmp_path / "lab")
    (tmp_path / "lab" / "tests" / "test_reach.py").write_text(
        "import os, pytest\n"
        "def test_it_sees_no_other_files():\n"
        f"    assert not os.path.exists({str(tmp_path / 'secret.txt')!r})\n"
        "    with pytest.raises(OSError):\n"
        "        open('new.txt', 'w')\n"
    )
    (tmp_path / "secret.txt").touch()
    output: list[bytes] = []
    async with Gateway.open({"data_dir": tmp_path / "data"}) as gateway:
        try:
            finished = await toolsets.test_toolset(
                gateway, str(tmp_path / "lab"), ["-q"], on_output=lambda _, text: output.append(text)
            )
        except GatewayError as error:
            if error.code == "DEPENDENCY_FAILED":
                pytest.skip(f"pytest cannot be installed here: {error}")
            raise
    assert finished.exit.code == 0, b"".join(output)
    assert b"4 passed" in b"".join(output)
