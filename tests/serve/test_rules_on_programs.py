"""A path rule holds for git, for programs and for tools of toolsets, which come to a file by another way."""

from __future__ import annotations

import json
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from mcp import Client
from sources.toolset.writing import install, require_sandbox, write_toolset

from gateway import Gateway
from gateway.admin.chat_files import ChatFiles
from gateway.admin.workspaces import CheckoutResult
from gateway.calls import Caller
from gateway.sandbox import detect
from gateway.sandbox.landlock import Landlock
from gateway.serve.mcp.handlers import Handlers, McpServer

pytestmark = [pytest.mark.anyio, pytest.mark.promise("C5")]

ERAS = pytest.mark.parametrize("era", ["auto", "legacy"])
NO_ENV = {"tool": "*", "when": {"path": ["*.env", "secrets/*"]}, "then": "deny"}
UNREAD = {**NO_ENV, "tool": "read_file"}
ASKED = {**NO_ENV, "then": "ask"}
RULES = pytest.mark.parametrize("rule", [NO_ENV, UNREAD, ASKED], ids=["every tool", "read_file", "ask"])
LEFT_OUT = "left out by the operator's rules]"
MANIFEST = """
id: lab
name: Lab
version: 1.0.0
tools:
  - {id: look, entrypoint: "code:look", permission: read-only, access: read}
  - {id: change, entrypoint: "code:change"}
  - {id: show, type: shell, command: [cat, "${path}"], success_codes: [0, 1]}
"""
CODE = """
from covalt_toolset import get_context, tool

@tool
def look(path: str) -> dict:
    '''CallArguments.'''
    return {"result": (get_context().workspace / path).read_text()}

@tool
def change(paths: list[str]) -> dict:
    '''CallArguments, and change.'''
    said = []
    for path in paths:
        try:
            said.append((get_context().workspace / path).read_text())
            (get_context().workspace / path).write_text("changed")
        except OSError as error:
            said.append(type(error).__name__)
    return {"result": said}
"""
TEST = """
import unittest

class Test(unittest.TestCase):
    def test_it(self):
        self.assertEqual(open("a.env").read(), "")
"""


async def agree(context: Any, params: Any) -> types.ElicitResult:
    return types.ElicitResult(action="accept", content={"decision": "approve once"})


@asynccontextmanager
async def served(place: Path, era: Any, *rules: dict[str, Any], **more: Any) -> AsyncIterator[tuple[Gateway, Client]]:
    """A gateway with rules and the development tools, and a client whose person agrees to everything."""
    await require_sandbox()
    settings = {
        "data_dir": str(place / "data"),
        "categories": {"development": {"enabled": True}},
        "approval": {"rules": list(rules)},
        **more,
    }
    async with Gateway.open(settings) as gateway:
        folder(gateway).mkdir(parents=True, exist_ok=True)
        face = McpServer(Handlers(gateway.executor, gateway.versions, "c", caller=gateway.approval_flow))
        async with Client(face.sdk, mode=era, cache=None, elicitation_callback=agree) as client:
            yield gateway, client


def folder(gateway: Gateway) -> Path:
    return gateway.settings.data_dir / "chats" / "c" / "workspace"


def write(gateway: Gateway, **files: str) -> None:
    for name, content in files.items():
        path = folder(gateway) / name.replace("__", "/").replace("_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


def git(gateway: Gateway, *arguments: str) -> str:
    who = ("-c", "safe.directory=*", "-c", "user.name=N", "-c", "user.email=n@host")
    done = subprocess.run(["git", *who, "-C", folder(gateway), *arguments], check=True, capture_output=True, text=True)
    return done.stdout


async def value(client: Client, tool: str, **arguments: Any) -> Any:
    result = await client.call_tool(tool, arguments)
    assert not result.is_error and isinstance(result.content[0], types.TextContent), result.content
    return result.structured_content or json.loads(result.content[0].text)


async def refused(client: Client, tool: str, **arguments: Any) -> str:
    result = await client.call_tool(tool, arguments)
    assert result.is_error and isinstance(result.content[0], types.TextContent), result
    return result.content[0].text


@ERAS
@RULES
async def test_git_diff_and_git_show_leave_out_denied_files_and_count_them(
    tmp_path: Path, era: Any, rule: dict[str, Any]
) -> None:
    async with served(tmp_path, era, rule) as (gateway, client):
        git(gateway, "init", "-q")
        long = "".join(f"WORD={number}\n" for number in range(20))
        write(gateway, a_env="TOKEN=1\n", a_txt="one\n", secrets__key="TOKEN=1\n", old_env=long, sub__b_env="TOKEN=1\n")
        git(gateway, "add", ".")
        git(gateway, "commit", "-qm", "first")
        write(gateway, a_env="TOKEN=2\n", a_txt="two\n", secrets__key="TOKEN=2\n", sub__b_env="TOKEN=2\n")
        for where in (".", "sub"):
            diff = await client.call_tool("git_diff", {"repository": where})
            found = diff.structured_content
            assert found is not None
            assert ([each["path"] for each in found["files"]], found["filesLeftOut"]) == (["a.txt"], 3)
            assert "+two" in found["diff"] and "TOKEN" not in str(diff) and f"[3 files {LEFT_OUT}" in str(diff.content)
        assert (await value(client, "git_diff", paths=["sub", "a.txt"]))["filesLeftOut"] == 1
        git(gateway, "mv", "old.env", "new.txt")
        git(gateway, "add", ".")
        staged = await value(client, "git_diff", staged=True)
        assert ([each["path"] for each in staged["files"]], staged["filesLeftOut"]) == (["a.txt"], 4)
        assert "WORD" not in str(staged)
        git(gateway, "commit", "-qm", "second")
        shown = await value(client, "git_show")
        assert ([each["path"] for each in shown["files"]], shown["filesLeftOut"]) == (["a.txt"], 4)
        assert "TOKEN" not in str(shown) and "WORD" not in str(shown)
        if rule is UNREAD:
            assert (await refused(client, "git_show", path="a.env")).startswith("DENIED_BY_RULE")
            assert (await refused(client, "git_show", repository="sub", path="b.env")).startswith("DENIED_BY_RULE")
        if rule is ASKED:
            assert (await value(client, "git_show", path="a.env"))["content"] == "TOKEN=2\n"
        assert (await value(client, "git_show", path="a.txt"))["content"] == "two\n"


@ERAS
async def test_git_checkout_and_git_stash_change_no_denied_file(tmp_path: Path, era: Any) -> None:
    async with served(tmp_path, era, NO_ENV) as (gateway, client):
        git(gateway, "init", "-q", "-b", "main")
        write(gateway, a_env="TOKEN=1\n", a_txt="one\n")
        git(gateway, "add", ".")
        git(gateway, "commit", "-qm", "first")
        write(gateway, a_env="TOKEN=mine\n", a_txt="two\n", secrets__key="TOKEN\n", new_txt="new\n")
        put = await value(client, "git_stash", action="push", untracked=True)
        assert (put["filesLeftOut"], [each["path"] for each in put["files"]]) == (2, ["a.env"])
        stashed = git(gateway, "stash", "show", "-p", "--include-untracked")
        assert "TOKEN" not in stashed and "+two" in stashed and "+new" in stashed
        assert (await value(client, "git_stash", action="pop"))["stashes"] == []
        for restored in ({}, {"revision": "HEAD"}):
            assert (await value(client, "git_checkout", paths=["."], **restored))["filesLeftOut"] == 1
            write(gateway, a_txt="two\n")
        assert (folder(gateway) / "a.env").read_text() == "TOKEN=mine\n"
        git(gateway, "stash", "push", "-q", "--include-untracked")
        for action in ("apply", "pop"):
            assert "'a.env' and 1 more" in await refused(client, "git_stash", action=action)
        git(gateway, "checkout", "-qb", "other")
        write(gateway, a_env="TOKEN=other\n")
        git(gateway, "commit", "-qam", "second")
        git(gateway, "tag", "main")  # commands other than checkout prefer the tag to the branch
        for switch in ({"revision": "main"}, {"revision": "HEAD~1"}, {"create": "third", "revision": "HEAD~1"}):
            assert "would change 'a.env', which" in await refused(client, "git_checkout", **switch)
        assert "is not a commit" in await refused(client, "git_checkout", revision="HEAD~1...HEAD")
        assert (folder(gateway) / "a.env").read_text() == "TOKEN=other\n"


@ERAS
async def test_workspace_restore_and_branch_change_no_denied_file(tmp_path: Path, era: Any) -> None:
    async with served(tmp_path, era, NO_ENV) as (gateway, client):
        write(gateway, a_env="TOKEN=1\n", a_txt="one\n", gone__b_env="TOKEN=1\n", old_txt="old\n")
        first = (await client.call_tool("workspace_diff", {"to": "now"})).structured_content["to"]
        write(gateway, a_env="TOKEN=mine\n", a_txt="two\n", secrets__key="TOKEN\n")
        for name in ("gone/b.env", "old.txt"):
            (folder(gateway) / name).unlink()
        (folder(gateway) / "gone").rmdir()
        for tool, more, left, text in (
            ("workspace_restore", {"paths": ["*"]}, 3, "one\n"),
            ("workspace_branch", {}, 3, "one\n"),
            ("workspace_restore", {}, 3, "one\n"),
        ):
            result = await client.call_tool(tool, {"manifest": first, **more})
            assert result.structured_content is not None and not result.is_error, result.content
            assert (tool, result.structured_content["filesLeftOut"]) == (tool, left)
            assert f"[{left} files {LEFT_OUT}" in str(result.content)
            assert (folder(gateway) / "a.txt").read_text() == text and (folder(gateway) / "old.txt").exists()
            assert (folder(gateway) / "a.env").read_text() == "TOKEN=mine\n"
            assert (folder(gateway) / "secrets/key").exists() and not (folder(gateway) / "gone").exists()
            head = (await client.call_tool("workspace_diff", {"to": "now"})).structured_content
            assert head is not None and head["to"] == result.structured_content["manifest"]
            write(gateway, a_txt="two\n")
        assert "DENIED_BY_RULE" in await refused(client, "workspace_restore", manifest=first, paths=["a.env"])


@ERAS
async def test_workspace_restore_leaves_files_to_ask_about_where_nobody_is_asked(tmp_path: Path, era: Any) -> None:
    for mode, content in (("never", "mine"), ("unsafe_only", "old")):
        place = tmp_path / mode
        async with served(place, era, approval={"mode": mode, "rules": [ASKED]}) as (gateway, client):
            write(gateway, a_env="old", a_txt="one")
            first = await value(client, "workspace_diff", to="now")
            write(gateway, a_env="mine", a_txt="two")
            await value(client, "workspace_restore", manifest=first["to"])
            assert (folder(gateway) / "a.txt").read_text() == "one"
            assert (folder(gateway) / "a.env").read_text() == content


async def test_restore_undo_branch_and_a_switch_of_messages_change_no_denied_file(tmp_path: Path) -> None:
    async with served(tmp_path, "auto", NO_ENV) as (gateway, _):
        write(gateway, a_env="old", a_txt="one")
        await gateway.call("write_file", {"path": "b.txt", "content": "b"}, chat="c", message="m1")
        head = (await gateway.versions.manifests.head("c")).manifest_id
        assert head is not None
        admin = ChatFiles(gateway, "c", Caller(), admin=True)
        ways: list[Callable[[], Awaitable[CheckoutResult]]] = [
            lambda: admin.restore(head),
            admin.undo,
            lambda: admin.branch(head, "m9"),
        ]
        for number, go_back in enumerate(ways):
            write(gateway, a_env=f"mine {number}", a_txt="two")
            result = await go_back()
            assert result.to_dict()["files_left_out"] == 1
            assert (folder(gateway) / "a.env").read_text() == f"mine {number}"
            assert (folder(gateway) / "a.txt").read_text() == "one"
        await gateway.call("write_file", {"path": "c.txt", "content": "c"}, chat="c", message="m10")
        write(gateway, a_env="mine", a_txt="two")
        listed = await gateway.call("list_directory", {}, chat="c", message="m11", parent_message="m9")
        assert listed.ok and not (folder(gateway) / "c.txt").exists()
        assert (folder(gateway) / "a.txt").read_text() == "one"
        assert (folder(gateway) / "a.env").read_text() == "mine"


@ERAS
async def test_git_shows_no_denied_file_by_the_name_of_its_content_or_directory(tmp_path: Path, era: Any) -> None:
    async with served(tmp_path, era, UNREAD) as (gateway, client):
        git(gateway, "init", "-q")
        write(gateway, a_env="TOKEN=1\n", secrets__key="TOKEN=1\n", a_txt="one\n")
        git(gateway, "add", ".")
        git(gateway, "commit", "-qm", "first")
        write(gateway, secrets__key="TOKEN=2\n")
        git(gateway, "commit", "-qam", "second")
        blob, tree = git(gateway, "rev-parse", "HEAD:a.env", "HEAD:secrets").split()
        for start in (blob, tree, "HEAD:a.env", "HEAD:secrets", "HEAD~1:secrets", "HEAD^{tree}"):
            for end in ("HEAD", "HEAD:a.txt", tree):
                assert "is not a commit" in await refused(client, "git_diff", **{"from": start, "to": end})
        for start in (tree, "HEAD:secrets"):
            assert "is not a commit" in await refused(client, "git_show", revision=start, path="key")
        assert (await value(client, "git_diff", **{"from": "HEAD~1", "to": "HEAD"}))["filesLeftOut"] == 1


@ERAS
@RULES
async def test_programs_cannot_read_or_change_denied_files(tmp_path: Path, era: Any, rule: dict[str, Any]) -> None:
    code = "for name in ('a.env', 'secrets/key', 'a.txt'):\n  try: print(open(name).read())\n  except OSError: print(0)"
    async with served(tmp_path, era, rule) as (gateway, client):
        for number in (1, 2):  # the second time an interpreter may be waiting already
            write(gateway, a_env=f"TOKEN={number}\n", secrets__key="TOKEN\n", a_txt="one\n")
            ran = await value(client, "run_code", language="python", code=code)
            assert ran["stdout"].split() == ["0", "0", "one"], ran
        later = "print(open('b.env').read())"
        write(gateway, b_env="TOKEN\n")
        assert "PermissionError" in (await value(client, "run_code", language="python", code=later))["stderr"]
        shell = "cat a.*; cat secrets/*; echo x > a.env; mv secrets public; ls"
        ran = await value(client, "run_command", command=f"{shell}; true #")
        assert "TOKEN" not in str(ran) and "one" in ran["stdout"] and "public" not in ran["stdout"]
        assert (folder(gateway) / "a.env").read_text() == "TOKEN=2\n"
        (folder(gateway) / "test_x.py").write_text(TEST)
        ran = str(await value(client, "run_tests"))
        assert "PermissionError" in ran and "TOKEN" not in ran


@ERAS
async def test_format_code_leaves_out_denied_files_and_counts_them(tmp_path: Path, era: Any) -> None:
    rule = {"tool": "*", "when": {"path": "secret*.py"}, "then": "deny"}
    online = {"network": True}  # a formatter could be installed, else the tool is not offered here
    async with served(tmp_path, era, rule, sandbox=online) as (gateway, client):
        write(gateway, secret_py="x = [1,\n2]\n", a_py="y = [1,\n2]\n")
        result = await client.call_tool("format_code", {"check": True})
        assert not result.is_error and "secret" not in str(result)
        assert result.structured_content is not None and result.structured_content["filesLeftOut"] == 1
        assert f"[1 file {LEFT_OUT}" in str(result.content)


@ERAS
@RULES
async def test_tools_of_toolsets_cannot_read_or_change_denied_files(
    tmp_path: Path, era: Any, rule: dict[str, Any]
) -> None:
    async with served(tmp_path, era, rule) as (gateway, client):
        await install(gateway, write_toolset(tmp_path / "lab", MANIFEST, code=CODE))
        write(gateway, a_txt="one")
        assert (await value(client, "lab__change", paths=["a.txt", "./x"]))["result"] == ["one", "FileNotFoundError"]
        write(gateway, b_env="TOKEN", secrets__key="TOKEN")  # after its worker began
        changed = await value(client, "lab__change", paths=[".", "a.txt"])
        assert changed["result"] == ["IsADirectoryError", "changed"]
        hard = folder(gateway) / "hard"
        hard.hardlink_to(folder(gateway) / "b.env")
        assert (await value(client, "lab__change", paths=["hard"]))["result"] == ["PermissionError"]
        assert "Permission" in await refused(client, "lab__look", path="hard")
        if rule is UNREAD:
            named = ["b.env", "secrets/key"]
            assert (await value(client, "lab__change", paths=named))["result"] == ["PermissionError"] * 2
        assert "TOKEN" not in str(await value(client, "lab__show", path="hard"))
        assert (folder(gateway) / "b.env").read_text() == "TOKEN"


@ERAS
async def test_a_file_that_a_person_agreed_to_is_seen_by_that_call_alone(tmp_path: Path, era: Any) -> None:
    async with served(tmp_path, era, ASKED) as (gateway, client):
        await install(gateway, write_toolset(tmp_path / "lab", MANIFEST, code=CODE))
        write(gateway, a_env="TOKEN=1", b_env="TOKEN=2")
        assert (await value(client, "lab__look", path="a.env"))["result"] == "TOKEN=1"
        assert (await value(client, "lab__show", path="b.env"))["stdout"] == "TOKEN=2"
        (folder(gateway) / "hard").hardlink_to(folder(gateway) / "a.env")
        assert "Permission" in await refused(client, "lab__look", path="hard")


@ERAS
async def test_programs_are_refused_where_the_sandbox_cannot_hide_a_denied_file(
    tmp_path: Path, era: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await require_sandbox()
    monkeypatch.setattr(detect, "_cached_survey", [detect.Survey(Landlock())])
    async with served(tmp_path, era, UNREAD) as (gateway, client):
        await install(gateway, write_toolset(tmp_path / "lab", MANIFEST, code=CODE))
        write(gateway, a_txt="one")
        assert (await value(client, "run_command", command="cat a.txt"))["stdout"] == "one"
        assert (await value(client, "lab__look", path="a.txt"))["result"] == "one"
        write(gateway, a_env="TOKEN")
        for tool, arguments in (
            ("run_command", {"command": "cat a.txt"}),
            ("run_code", {"language": "python", "code": "1"}),
            ("lab__look", {"path": "a.txt"}),
            ("lab__show", {"path": "a.txt"}),
        ):
            refusal_text = await refused(client, tool, **arguments)
            assert refusal_text.startswith("FILES_NOT_HIDDEN: rule 1 of approval.rules keeps 'a.env' from programs"), (
                refusal_text
            )
        git(gateway, "init", "-q")
        git(gateway, "add", ".")
        assert (await value(client, "git_diff", staged=True))["filesLeftOut"] == 1


@ERAS
async def test_files_that_would_be_asked_about_are_left_out_where_nobody_is_asked(tmp_path: Path, era: Any) -> None:
    async with served(tmp_path, era, {**ASKED, "then": "queue"}) as (gateway, client):
        write(gateway, a_env="TOKEN\n", a_txt="TOKEN\n")
        found = await value(client, "search_code", pattern="TOKEN")
        assert ([each["path"] for each in found["matches"]], found["filesLeftOut"]) == (["a.txt"], 1)
        async with gateway.versions.hold("c", "local") as files:
            await files.save("edit")
        [row] = await gateway.versions.manifests.history("c", limit=1)
        assert "a.env" not in str((await client.list_resources()).resources)
        compared = await value(client, "workspace_diff", to=row.id)
        assert "a.env" not in str(compared)


@ERAS
async def test_a_rule_about_overwriting_hides_nothing(tmp_path: Path, era: Any) -> None:
    rule = {"tool": ["write_file", "lab:*"], "when": {"overwrites": True}, "then": "ask"}
    async with served(tmp_path, era, rule) as (gateway, client):
        await install(gateway, write_toolset(tmp_path / "lab", MANIFEST, code=CODE))
        write(gateway, a_txt="one")
        assert (await value(client, "lab__look", path="a.txt"))["result"] == "one"
