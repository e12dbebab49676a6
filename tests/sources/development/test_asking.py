"""What a person is asked before a program runs, and that it is what runs then."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from eventually import async_eventually

from gateway.approval.question import Answer, Question
from gateway.calls import Call, Consent, Outcome
from gateway.errors import Conflict, GatewayError

from .tool_client import ToolClient, open_client, opened

pytestmark = [pytest.mark.anyio, pytest.mark.promise("C5")]

AGREED, OTHER = "https://agreed.invalid/r", "https://other.invalid/r"
REPOSITORY = f"""
git init -q -b main . && git config user.email a@b && git config user.name x
touch f && git add f && git commit -qm x && git config remote.origin.url {AGREED}
"""


@pytest.fixture
async def online(tmp_path: Path) -> AsyncIterator[ToolClient]:
    async with open_client(tmp_path, sandbox={"network": True}) as at:
        at.git("init", "-q", "-b", "main")
        point(at, AGREED)
        yield at


def point(at: ToolClient, url: str) -> None:
    at.git("config", "remote.origin.url", url)


def push(at: ToolClient, reason: str) -> Call:
    consent = Consent("one", "subject", "arguments", "question", reason, "someone", "terminal")
    return Call(name="git_push", tool=at.tools["git_push"], arguments={}, chat="demo", confirmed=True, consent=consent)


async def refused(at: ToolClient, call: Call) -> GatewayError:
    with pytest.raises(GatewayError) as refusal:
        await at.source.call_tool(call)
    return refusal.value


async def test_what_changes_after_the_question_is_not_done(online: ToolClient) -> None:
    reason = f"git_push sends branch 'main' to {AGREED}"
    rule: Any = online.tools["git_push"].requires_confirmation
    assert await rule(push(online, reason)) == reason
    point(online, OTHER)
    error = await refused(online, push(online, reason))
    assert (type(error), error.code) == (Conflict, "CHANGED_SINCE_ASKED")
    assert f"git_push sends branch 'main' to {OTHER}" in error.message


async def test_what_is_as_it_was_is_done(online: ToolClient) -> None:
    rule: Any = online.tools["git_push"].requires_confirmation
    call = push(online, f"git_push sends branch 'main' to {AGREED}")
    await rule(call)
    assert (await refused(online, call)).code == "GIT_FAILED"  # there is no such host


async def test_a_consent_to_a_rules_own_words_is_one_to_wherever_it_goes(online: ToolClient) -> None:
    assert (await refused(online, push(online, "the operator wants to know (rule 1)"))).code == "GIT_FAILED"


@pytest.mark.slow
async def test_a_push_that_waited_for_another_call_goes_where_was_agreed_or_nowhere(tmp_path: Path) -> None:
    async with opened(tmp_path, sandbox={"network": True}) as gateway:
        assert (await gateway.call("run_command", {"command": REPOSITORY}, chat="c", confirmed=True)).ok
        held = tmp_path / "data/chats/c/workspace/held"
        code = f"touch held; sleep 4; git config remote.origin.url {OTHER}"
        others: list[asyncio.Task[Any]] = []

        async def agree(question: Question) -> Answer:
            if others:
                return Answer("deny")
            run = gateway.call("run_code", {"language": "bash", "code": code}, chat="c")
            others.append(asyncio.ensure_future(run))
            await async_eventually(held.exists)
            return Answer("once")

        outcome = await gateway.call("git_push", {}, chat="c", approver=agree)
        assert outcome.error is not None and outcome.error.code == "CHANGED_SINCE_ASKED", outcome
        assert (await others[0]).ok


RUN: tuple[tuple[str, dict[str, Any]], ...] = (
    ("run_code", {"language": "bash", "code": "rm .env"}),
    ("run_tests", {"runner": "unittest"}),
)


def _ran(outcome: Outcome) -> bool:
    return outcome.error is None or outcome.error.code == "NO_TESTS"  # which only who looked can say


@pytest.mark.parametrize(("name", "arguments"), RUN)
async def test_in_a_persons_own_folder_programs_wait_for_that_person(
    tmp_path: Path, name: str, arguments: dict[str, Any]
) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / ".env").write_text("KEY=1")
    async with opened(tmp_path, workspace=mine, approval={"out_of_band": ["run_command"]}) as gateway:
        asked = await gateway.call(name, arguments)
        assert asked.error is not None and asked.error.code == "CONFIRMATION_REQUIRED"
        assert str(mine) in asked.error.details["reason"]
        assert (mine / ".env").exists()
        assert _ran(await gateway.call(name, arguments, confirmed=True))
        assert _ran(await gateway.call(name, arguments, chat="its own"))


async def test_an_operator_can_have_nobody_asked(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    rule = {"tool": "run_code", "then": "allow"}
    for place, approval in (("one", {"mode": "never"}), ("two", {"rules": [rule]})):
        (tmp_path / place).mkdir()
        async with opened(tmp_path / place, workspace=tmp_path / "mine", approval=approval) as gateway:
            assert (await gateway.call(*RUN[0])).ok


@pytest.mark.parametrize(
    ("chat", "language", "begun"), [("own", "python", 1), ("own", "bash", 0), ("demo", "python", 0)]
)
async def test_an_interpreter_begins_once_nobody_has_to_agree(
    tmp_path: Path, chat: str, language: str, begun: int
) -> None:
    async with open_client(tmp_path) as at:
        tool = at.tools["run_code"]
        rule: Any = tool.requires_confirmation
        call = Call(name="run_code", tool=tool, arguments={"language": language, "code": "print(1)"}, chat=chat)
        assert (await rule(call) is None) is (chat == "own")
        spares = at.code_tools.python._prestarted  # type: ignore[union-attr]
        assert len(spares._starting) + spares.waiting == begun
        coming = [*spares._starting.values()]
        outcome = await at.source.call_tool(call if begun else replace(call, confirmed=True))
        assert outcome.value["stdout"] == "1\n" if language == "python" else not outcome.value["stdout"], outcome
        assert all(task.result().process.pid for task in coming)
        assert {task.result() for task in coming}.isdisjoint(spares._ready.values()), "what had begun was used"


async def test_nobody_asks_about_formatting_which_works_on_a_copy(tmp_path: Path) -> None:
    async with open_client(tmp_path) as at:
        assert await at.reason("format_code") is None


@pytest.mark.parametrize("name", ["run_code", "run_command", "python"])
async def test_a_program_leaves_nothing_for_a_persons_own_git_to_run(tmp_path: Path, name: str) -> None:
    async with open_client(tmp_path) as at:
        at.git("init", "-q")
        before = (at.folder / ".git/config").read_text()
        code = "echo x > .git/hooks/post-checkout; git config core.fsmonitor evil; mv .git aside; touch worked"
        calls: dict[str, tuple[str, dict[str, Any]]] = {
            "run_code": ("run_code", {"language": "bash", "code": code}),
            "run_command": ("run_command", {"command": code}),
            "python": ("run_code", {"language": "python", "code": f"import os; os.system({code!r})"}),
        }
        tool, arguments = calls[name]
        await at.value(tool, **arguments)
        assert (at.folder / "worked").exists()
        assert (at.folder / ".git/config").read_text() == before
        assert not (at.folder / ".git/hooks/post-checkout").exists()
        (at.folder / "new.txt").touch()
        await at.value("git_add", paths=["new.txt"])
        author = {"name": "x", "email": "x@example.org"}
        assert (await at.call("git_commit", message="one", author=author)).ok
