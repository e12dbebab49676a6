"""Approval: whoever spells a path, a host or a command otherwise is asked or refused all the same."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest

from gateway import Gateway
from gateway.approval.question import Answer, ConsentNeeded, Question
from gateway.calls import Call, Outcome
from gateway.config.settings import ApprovalRule
from gateway.extensions import stack
from gateway.extensions.approval import Approval
from gateway.tools import Tool
from gateway.workspace.protected import FILES_LIMIT

pytestmark = pytest.mark.promise("C5")

RUN = Tool("shell:run", "", owner="shell", kind="mcp", category="upstream", requires_confirmation=False)


def decide(rule: Mapping[str, Any], arguments: Mapping[str, Any], tool: Tool = RUN) -> str:
    async def run(_: Call) -> Outcome:
        return Outcome(value="runs")

    gate = Approval("unsafe_only", [ApprovalRule.model_validate(rule)])
    outcome = anyio.run(stack([gate], run), Call(name=tool.id, arguments=arguments, tool=tool, chat="c"))
    return "runs" if outcome.error is None else outcome.error.code


def is_denied(when: Mapping[str, Any], arguments: Mapping[str, Any]) -> bool:
    return decide({"when": when, "then": "deny"}, arguments) == "DENIED_BY_RULE"


HUNK = "@@ -1 +1 @@\n-A=1\n+A=2\n"
PATCHES = {
    "plain": f"--- a/.env\n+++ b/.env\n{HUNK}",
    "quoted": f'--- "a/.env"\n+++ "b/.env"\n{HUNK}',
    "octal": f'--- "a/\\056env"\n+++ "b/\\056env"\n{HUNK}',
    "blank": f"--- a/.env \n+++ b/.env \n{HUNK}",
    "dated": f"--- .env\t2020-01-01\n+++ .env\t2020-01-01\n{HUNK}",
    "crlf": f"--- a/.env\n+++ b/.env\n{HUNK}".replace("\n", "\r\n"),
    "mode": "diff --git a/.env b/.env\nold mode 100644\nnew mode 100755\n",
    "renamed": 'diff --git "a/.env" "b/x.txt"\nrename from ".env"\nrename to x.txt\n',
    "renamed to": 'diff --git a/a.txt b/.env\nrename from a.txt\nrename to "\\056env"\n',
    "second": f"--- a/a.txt\n+++ b/a.txt\n@@ -1 +1 @@\n-1\n+2\n--- a/.env\n+++ b/.env\n{HUNK}",
    "unreadable": "--- a/x\n+++ b/x\n@@ what @@\n",
}


@pytest.mark.anyio
@pytest.mark.parametrize("patch", PATCHES.values(), ids=PATCHES)
async def test_path_rule_denies_every_form_of_a_patch_of_the_file(tmp_path: Path, patch: str) -> None:
    rule = {"tool": "*", "when": {"path": "*.env"}, "then": "deny"}
    async with Gateway.open({"data_dir": str(tmp_path), "approval": {"rules": [rule]}}) as gateway:
        folder = gateway.workspaces.path("c")
        (folder / ".env").write_text("A=1\n")
        (folder / "a.txt").write_text("1\n")
        outcome = await gateway.call("apply_patch", {"patch": patch}, chat="c")
        assert outcome.error is not None and outcome.error.code == "DENIED_BY_RULE"
        assert (folder / ".env").read_text() == "A=1\n"
        other = "--- a/a.txt\n+++ b/a.txt\n@@ -1 +1 @@\n-1\n+.env\n"
        assert (await gateway.call("apply_patch", {"patch": other}, chat="c")).ok


READABLE = {name: patch for name, patch in PATCHES.items() if name != "unreadable"}


@pytest.mark.parametrize("patch", READABLE.values(), ids=READABLE)
def test_path_rule_reads_every_path_that_a_patch_of_any_tool_may_mean(patch: str) -> None:
    assert is_denied({"path": "*.env"}, {"text": patch})
    assert is_denied({"path": ".env"}, {"text": f"Please apply:\n{patch}"})
    assert not is_denied({"path": "*.key"}, {"text": patch})


@pytest.mark.parametrize(
    ("pattern", "path", "expected"),
    [
        ("secrets/*", "secrets", True),
        ("secrets/*", "a/./secrets/", True),
        ("secrets/", "secrets/key", True),
        ("a/b/*.key", "a", True),
        ("a/b/*.key", "x/a/b", True),
        ("a/b/*.key", "b", False),
        ("/etc/*", "/etc", True),
        ("/etc/*", "etc", False),
        ("*/secrets/*", "other", False),
        ("**/.env", ".env", True),
        ("**/.env", "a/b/.env", True),
        ("./.env", "./.env", True),
        ("Straße/*", "STRASSE/x", True),
        ("é.txt", "e\u0301.txt", True),
        ("*.env", "conf", False),
        ("?ecrets/*", "a/secrets/x", True),
        ("/etc/*", "FILE://localhost/%65tc/passwd", True),
        ("secrets/*", "file://secrets/key", True),
        ("secrets/*", "secrets/..\\key", True),
    ],
)
def test_path_pattern_matches_its_directories_too(pattern: str, path: str, expected: bool) -> None:
    assert is_denied({"path": pattern}, {"from": path}) is expected


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("evil.example", "http://evil。example/"),
        ("evil.example", "http://evil．example/"),
        ("evil.example", "evil｡example"),
        ("evil.example", "http://EVIL.example.:80/"),
        ("evil.example", "http://a@b@evil.example/"),
        ("evil.example", "http://evil.example\\@good.example/"),
        ("evil.example", "http:\\\\evil.example"),
        ("evil.example", "http:evil.example/x"),
        ("evil.example", "//evil.example/x"),
        ("evil.example", "http://%65vil.example/"),
        ("evil.example", '<a href="http://evil.example">here</a>'),
        ("evil.example", "http://good.example/?next=http://evil.example"),
        ("bücher.example", "http://xn--bcher-kva.example/"),
        ("xn--bcher-kva.example", "http://bücher.example/"),
        ("*.bücher.example", "http://a.XN--BCHER-KVA.example/"),
        ("BÜCHER.example", "see http://bücher.example/ there"),
        ("evil。example", "http://evil.example/"),
        ("169.254.169.254", "http://[::ffff:169.254.169.254]/"),
        ("169.254.169.254", "http://2852039166/"),
        ("169.254.*", "http://0xa9fea9fe/"),
        ("::1", "http://[0:0::1]:80/"),
        ("evil.example", "http://ｅvil.example/"),
        ("evil.example", "http://{host}/"),
        ("evil.example", "http://evil.example%2f/"),
    ],
)
def test_host_pattern_matches_every_notation_of_the_host(pattern: str, text: str) -> None:
    assert is_denied({"host": pattern}, {"url": text})


@pytest.mark.parametrize(
    "text",
    ["http://good.example/", "good.example", "hello!", "http://", "f'http://{host}/' is code", "evil", "12:30:45", "1"],
)
def test_host_pattern_does_not_match_other_texts(text: str) -> None:
    assert not is_denied({"host": ["evil.example", "*.internal"]}, {"text": text})


@pytest.mark.parametrize(
    "command",
    [
        *("(rm -rf x)", "{ rm -rf x; }", "! rm x", "if a; then rm x; fi", "for a in b; do rm x; done", "FOO=1 rm x"),
        *("exec rm x", "\\rm x", "'rm' x", "r\\m x", "diff <(rm x) y", "/bin/rm x", "sudo -n rm x"),
        *("env -i A=1 rm x", "2>/dev/null rm x", "find . | xargs -0 rm -f"),
    ],
)
def test_command_pattern_matches_a_command_behind_prefixes(command: str) -> None:
    assert is_denied({"command": "rm *"}, {"command": command})


@pytest.mark.parametrize("command", ["grep rm x", "rmdir x", "echo rm x", "FOO=rm x", ""])
def test_command_pattern_does_not_match_other_commands(command: str) -> None:
    assert not is_denied({"command": "rm *"}, {"command": command})


NESTED = {"options": {"mode": "force"}}
DECOYS = [NESTED | {"options.mode": "safe"}, {"options": {"mode": "safe"}, "options.mode": "force"}]


@pytest.mark.parametrize("arguments", [NESTED, *DECOYS], ids=str)
def test_rule_that_allows_must_match_every_argument_the_name_may_mean(arguments: dict[str, Any]) -> None:
    assert is_denied({"arguments": {"options.mode": "force"}}, arguments)
    danger = Tool("shell:run", "", owner="shell", kind="mcp", requires_confirmation=True)
    allow = {"when": {"arguments": {"options.mode": "safe"}}, "then": "allow"}
    assert decide(allow, arguments, danger) == "CONFIRMATION_REQUIRED"
    assert decide(allow, {"options": {"mode": "safe"}, "options.mode": "safe"}, danger) == "runs"


HOSTILE = {
    "deep": ["a/" * 2047 + str(number % 10) for number in range(24)],
    "deeper": ["a/" * 2047] * 2000,
    "words": ["a"] * 500_000,
    "lines": "x" + "\n" * 4_000_000 + "x",
    "names": "--- a\n" * 600_000 + "x",
    "git": "x\ndiff --git " + "a/ " * 1_000_000,
    "addresses": "://a@" * 800_000,
    "foreign": ["http://ä.example/"] * 20_000,
    "lead-ins": ["! " * 30_000] * 50,
    "options": "sudo " + "- " * 30_000,
    "commands": ["a;" * 30_000] * 50,
    "numbers": list(range(1_000_000)),
}


@pytest.mark.parametrize("hostile", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize(
    "when", [{"path": ["*secret*key*", "a*secret*key*"]}, {"host": "*a*b.internal"}, {"command": "*rm*x*"}], ids=str
)
def test_rules_block_the_event_loop_only_briefly(when: dict[str, Any], hostile: Any) -> None:
    rules = [ApprovalRule.model_validate({"when": when, "then": "deny"}) for _ in range(20)]
    gate = Approval("unsafe_only", rules)
    call = Call(name=RUN.id, arguments={"text": hostile}, tool=RUN, chat="c")

    async def run(_: Call) -> Outcome:
        return Outcome()

    async def fastest() -> float:
        best = 1.0
        for _ in range(3):  # others work on this machine too
            started = time.thread_time()
            await stack([gate], run)(call)
            best = min(best, time.thread_time() - started)
        return best

    assert anyio.run(fastest) < 0.08


def test_arguments_that_are_too_large_match_a_rule_that_denies_and_none_that_allows() -> None:
    assert is_denied({"path": "*.env"}, {"paths": ["x"] * 100_000})
    assert not is_denied({"path": "*.env"}, {"paths": [f"src/module{number}/file.py" for number in range(2000)]})
    assert not is_denied({"path": "secrets/*"}, {"content": "a line of code, as there are many\n" * 200_000})
    danger = Tool("shell:run", "", owner="shell", kind="mcp", requires_confirmation=True)
    allow = {"when": {"arguments": {"x": "*"}}, "then": "allow"}
    assert decide(allow, {"x": "y" * 8_000_000}, danger) == "CONFIRMATION_REQUIRED"


PROTECTED = [
    ".git/config",
    "sub/.GIT/hooks/pre-commit",
    ".hg/hgrc",
    "toolgate.yml",
    "a/b/.envrc",
    ".husky/_/h",
]


@pytest.mark.anyio
@pytest.mark.parametrize("path", PROTECTED)
async def test_protected_file_in_a_persons_own_folder_is_asked_about(tmp_path: Path, path: str) -> None:
    folder = tmp_path / "project"
    (folder / path).parent.mkdir(parents=True)
    (folder / path).write_text("one\n")
    (folder / "a.txt").write_text("one\n")
    hunk = "@@ -1 +1 @@\n-one\n+two\n"
    calls: list[tuple[str, dict[str, Any]]] = [
        ("write_file", {"path": path, "content": "two"}),
        ("edit_file", {"path": f"./{path}", "edits": [{"oldText": "one", "newText": "two"}]}),
        ("move_file", {"from": "a.txt", "to": f"{path}.new" if "/" in path and path[0] == "." else path}),
        ("move_file", {"from": path, "to": "b.txt"}),
        ("delete_file", {"path": path}),
        ("apply_patch", {"patch": f"--- a/{path}\n+++ b/{path}\n{hunk}"}),
        ("apply_patch", {"patch": f"--- a/a.txt\n+++ b/a.txt\n{hunk}--- a/{path}\n+++ b/{path}\n{hunk}"}),
    ]
    asked: list[Question] = []

    async def dismiss(question: Question) -> Answer:
        asked.append(question)
        return Answer("dismiss")

    settings = {"data_dir": str(tmp_path / "data"), "workspace": str(folder)}
    async with Gateway.open(settings) as gateway:
        for tool, arguments in calls:
            outcome = await gateway.call(tool, arguments, approver=dismiss)
            assert outcome.error is not None and outcome.error.code == "DISMISSED", tool
        assert all("run or read as settings" in question.reason for question in asked)
        assert not any(question.remember for question in asked)
        assert (folder / path).read_text() == "one\n"
        plain = {"path": "a.txt", "edits": [{"oldText": "one", "newText": "two"}]}
        assert (await gateway.call("edit_file", plain)).ok
        assert (await gateway.call("write_file", {"path": ".gitignore", "content": ".env\n"})).ok
        invalid = await gateway.call("apply_patch", {"patch": "nothing"})
        assert invalid.error is not None and invalid.error.code == "INVALID_PATCH"
    allow = {"tool": "edit_file", "when": {"arguments": {"path": path}}, "then": "allow"}
    edit = ("edit_file", {"path": path, "edits": [{"oldText": "one", "newText": "two"}]})
    async with Gateway.open(settings | {"approval": {"rules": [allow]}}) as gateway:
        assert (await gateway.call(*edit)).ok
    async with Gateway.open(settings | {"approval": {"mode": "never"}}) as gateway:
        assert (await gateway.call("write_file", {"path": path, "content": "one\n"})).ok


@pytest.mark.anyio
@pytest.mark.parametrize(
    "value", ["tools/hooks", '"./tools/hooks/" # ours', "{folder}/tools/hooks", "../sub/tools/hooks"]
)
@pytest.mark.parametrize("repository", ["sub/.git", "main/.git", "modules/sub"])
async def test_directory_that_a_repository_names_for_its_hooks_is_asked_about(
    tmp_path: Path, value: str, repository: str
) -> None:
    folder = tmp_path / "project"
    for name in ("sub/tools/hooks", repository):
        (folder / name).mkdir(parents=True)
    (folder / "a.txt").write_text("one\n")
    if repository == "modules/sub":
        (folder / "sub/.git").write_text("gitdir: ../modules/sub\n")
    if repository == "main/.git":  # a linked worktree
        (folder / "main/.git/worktrees/sub").mkdir(parents=True)
        (folder / "main/.git/worktrees/sub/commondir").write_text("../..\n")
        (folder / "sub/.git").write_text(f"gitdir: {folder}/main/.git/worktrees/sub\n")
    (folder / repository / "config").write_text(
        f"[user]\n\tname = N\n[core]\n\thooksPath = {value}\n".format(folder=folder / "sub")
    )
    patch = "--- /dev/null\n+++ b/sub/tools/hooks/pre-push\n@@ -0,0 +1 @@\n+x\n"
    calls: list[tuple[str, dict[str, Any]]] = [
        ("write_file", {"path": "sub/tools/hooks/pre-push", "content": "x"}),
        ("move_file", {"from": "a.txt", "to": "sub/tools/hooks/pre-push"}),
        ("move_file", {"from": "sub/tools", "to": "elsewhere"}),
        ("apply_patch", {"patch": patch}),
    ]
    async with Gateway.open({"data_dir": tmp_path / "data", "workspace": folder}) as gateway:
        for tool, arguments in calls:
            outcome = await gateway.call(tool, arguments)
            assert outcome.error is not None and outcome.error.code == "CONFIRMATION_REQUIRED", (tool, outcome)
            assert "run or read as settings" in outcome.error.message
        assert (await gateway.call("write_file", {"path": "sub/tools/a.txt", "content": "x"})).ok


@pytest.mark.anyio
async def test_directory_with_protected_files_is_moved_or_deleted_only_after_a_question_that_names_them(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "project"
    for name in ("plain/a.txt", "sub/.envrc", "sub/deep/.git/hooks/pre-commit"):
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text("one\n")
    asked: list[str] = []

    async def refuse(question: Question) -> Answer:
        asked.append(question.reason)
        return Answer("chat" if "plain" in str(question.arguments) else "deny")

    async with Gateway.open({"data_dir": tmp_path / "data", "workspace": folder}) as gateway:
        assert (await gateway.call("move_file", {"from": "plain", "to": "moved"}, approver=refuse)).ok
        assert asked == []
        (folder / "plain").mkdir()
        assert (await gateway.call("delete_file", {"path": "plain"}, approver=refuse)).ok  # agreed to for the chat
        for tool, arguments in (
            ("move_file", {"from": "sub", "to": "elsewhere"}),
            ("move_file", {"from": "./sub/deep", "to": "elsewhere"}),
            ("delete_file", {"path": "sub", "recursive": True}),
        ):
            refused = await gateway.call(tool, arguments, approver=refuse)
            assert refused.error is not None and refused.error.code == "DECLINED", tool
            assert "'sub/deep/.git'" in asked[-1] or "'sub/.envrc'" in asked[-1]
        assert (folder / "sub/.envrc").exists() and (folder / "sub/deep/.git/hooks/pre-commit").exists()
        for number in range(FILES_LIMIT + 1):
            (folder / "many" / str(number)).mkdir(parents=True)
            (folder / "many" / str(number) / ".envrc").touch()
        refused = await gateway.call("move_file", {"from": "many", "to": "elsewhere"}, approver=refuse)
        assert refused.error is not None and refused.error.code == "DECLINED"
        assert "may touch protected files" in asked[-1]


@pytest.mark.anyio
async def test_remembered_consent_does_not_cover_protected_files(tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    settings = {"data_dir": str(tmp_path / "data"), "workspace": str(tmp_path / "project")}

    async def always(question: Question) -> Answer:
        return Answer("always")

    async with Gateway.open(settings | {"approval": {"rules": [{"tool": "write_file"}]}}) as gateway:
        assert (await gateway.call("write_file", {"path": "a", "content": ""}, approver=always)).ok
        assert (await gateway.call("write_file", {"path": "b", "content": ""})).ok
        hook = ("write_file", {"path": ".git/hooks/x", "content": "", "createDirs": True})
        assert isinstance((await gateway.call(*hook)).error, ConsentNeeded)
        assert (await gateway.call(*hook, approver=always)).ok
        assert isinstance((await gateway.call(*hook)).error, ConsentNeeded)


@pytest.mark.anyio
async def test_protected_file_in_a_chats_own_folder_is_not_asked_about(tmp_path: Path) -> None:
    async with Gateway.open({"data_dir": str(tmp_path)}) as gateway:
        assert (await gateway.call("write_file", {"path": ".envrc", "content": ""}, chat="c")).ok
