"""`toolgate approval`, and the question on the terminal."""

from __future__ import annotations

import json
import os
import pty
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pexpect
import pytest
from click.testing import CliRunner

from gateway import Gateway
from gateway.calls import Call, Outcome
from gateway.cli import toolgate
from gateway.db import DATABASE_FILE
from gateway.tools import Permission, Tool

pytestmark = pytest.mark.promise("C5")

PATIENCE = 120.0


def run(data: Path, *arguments: str, status: int = 0) -> str:
    done = CliRunner().invoke(toolgate, ["approval", *arguments, "--data-dir", str(data)])
    assert done.exit_code == status, done.output
    return done.stdout if status == 0 else str(done.exception)


@pytest.fixture
def waiting(tmp_path: Path) -> dict[str, Any]:
    """A call that waits in the queue, and its entry."""

    async def queue() -> None:
        settings = {"data_dir": str(tmp_path), "approval": {"without_elicitation": "queue", "queue_wait": 0}}
        async with Gateway.open(settings) as gateway:
            flow = gateway.approval_flow
            for path in ("a.txt", "b.txt"):
                await gateway.call("write_file", {"path": path, "content": path})
            await flow.call_tool(Call(name="write_file", arguments={"path": "b.txt", "content": "\x1b[2Jx"}))
            await flow.call_tool(Call(name="delete_file", arguments={"path": "a.txt"}))

    anyio.run(queue)
    listed = json.loads(run(tmp_path, "list", "--json"))
    assert [entry["tool_id"] for entry in listed] == ["delete_file", "write_file"]
    return listed[0]  # type: ignore[no-any-return]


def test_pending_approvals_are_listed_and_shown_as_they_are_asked(tmp_path: Path, waiting: dict[str, Any]) -> None:
    listed = run(tmp_path, "list").splitlines()
    assert listed[0].split() == ["ID", "ASKED", "(UTC)", "TOOL", "STATUS", "CHAT", "WHY"]
    assert listed[1].startswith(f"{waiting['id'][-8:]}  ") and listed[1].endswith("default  delete_file deletes files")
    shown = run(tmp_path, "show", waiting["id"][:-1])
    assert shown.startswith('Run delete_file?\n\nWhy: delete_file deletes files\n\nArguments:\n  path: "a.txt"\n')
    assert "\x1b" not in run(tmp_path, "show", json.loads(run(tmp_path, "list", "--json"))[1]["id"])
    assert "nonce" not in waiting


def test_a_call_is_allowed_or_denied_once(tmp_path: Path, waiting: dict[str, Any]) -> None:
    assert "several calls wait; name one by its ID: " in run(tmp_path, "allow", status=1)
    first, second = run(tmp_path, "allow", waiting["id"][-8:]).splitlines()
    assert first == f"allowed delete_file ({waiting['id']})"
    assert second.startswith("not used yet: a caller that no longer waits has to call again")
    assert "is no longer pending: it is allowed by " in run(tmp_path, "deny", waiting["id"], status=1)
    [other] = json.loads(run(tmp_path, "list", "--json"))
    assert json.loads(run(tmp_path, "deny", other["id"], "--json"))["status"] == "denied"
    assert run(tmp_path, "list").count("\n") == 1
    statuses = [entry["status"] for entry in json.loads(run(tmp_path, "list", "--all", "--json"))]
    assert statuses == ["allowed", "denied"]


def test_an_allowance_that_nobody_used_is_not_shown_as_unanswered(tmp_path: Path, waiting: dict[str, Any]) -> None:
    run(tmp_path, "deny", json.loads(run(tmp_path, "list", "--json"))[1]["id"])
    assert "there is no terminal to ask on; allow this call with --yes, or: " in run(tmp_path, "allow", status=1)
    run(tmp_path, "allow", "--yes")
    with closing(sqlite3.connect(tmp_path / DATABASE_FILE)) as db, db:
        db.execute("UPDATE approvals SET expires_at = '2020' WHERE status = 'allowed'")
    assert "status       allowed, not used in time\n" in run(tmp_path, "show", waiting["id"])
    assert "allowed, not used in time" in run(tmp_path, "list", "--all")


def test_remembered_approvals_are_listed_and_revoked(tmp_path: Path, waiting: dict[str, Any]) -> None:
    run(tmp_path, "allow", waiting["id"], "--always")
    [kept] = json.loads(run(tmp_path, "remembered", "--json"))
    assert (kept["tool_id"], kept["chat_id"]) == ("delete_file", None)
    assert "every chat" in run(tmp_path, "remembered")
    assert run(tmp_path, "revoke", kept["id"]).startswith("delete_file asks for approval again")
    assert json.loads(run(tmp_path, "remembered", "--json")) == []


def test_wrong_usage_is_refused_with_the_fix(tmp_path: Path, waiting: dict[str, Any]) -> None:
    assert "UNKNOWN_APPROVAL" in run(tmp_path, "allow", "nothing", status=1)
    assert "AMBIGUOUS_ID" in run(tmp_path, "allow", waiting["id"][:4], status=1)
    assert "see: toolgate approval remembered" in run(tmp_path, "revoke", "nothing", status=1)
    run(tmp_path, "allow", waiting["id"], "--always", "--for-chat", status=2)


def test_arguments_are_changed_in_the_queue(tmp_path: Path, waiting: dict[str, Any]) -> None:
    """The caller continues with the changed arguments, and is told."""
    assert "INVALID_ARGUMENTS" in run(tmp_path, "allow", waiting["id"], "--set", "pth=b.txt", status=1)
    run(tmp_path, "allow", waiting["id"], "--always", "--set", "path=b.txt", status=2)
    run(tmp_path, "allow", waiting["id"], "--set", "path=b.txt")
    assert 'changed to   {"path":"b.txt"}' in run(tmp_path, "show", waiting["id"])
    outcomes = []

    async def call_again() -> None:
        settings = {"data_dir": str(tmp_path), "approval": {"without_elicitation": "queue", "queue_wait": 0}}
        async with Gateway.open(settings) as gateway:
            outcomes.append(
                await gateway.approval_flow.call_tool(Call(name="delete_file", arguments={"path": "a.txt"}))
            )

    anyio.run(call_again)
    [outcome] = outcomes
    assert outcome.value == {"deleted": ["b.txt"], "count": 1}
    assert outcome.content is not None
    assert outcome.content[-1]["text"] == 'A person changed these arguments before the call ran: {"path": "b.txt"}'
    assert [path.name for path in (tmp_path / "chats/default/workspace").iterdir()] == ["a.txt"]


def test_a_secret_argument_cannot_be_changed_in_the_queue(tmp_path: Path) -> None:
    outcomes = []

    async def call() -> None:
        settings = {"data_dir": str(tmp_path), "approval": {"without_elicitation": "queue", "queue_wait": 0}}
        async with Gateway.open(settings, sources=[Vault()]) as gateway:
            arguments = {"password": "old-secret", "n": 1}
            outcomes.append(await gateway.approval_flow.call_tool(Call(name="vault", arguments=arguments)))

    anyio.run(call)
    [waiting] = json.loads(run(tmp_path, "list", "--json"))
    assert "old-secret" not in json.dumps(waiting)
    assert "NOT_EDITABLE" in run(tmp_path, "allow", waiting["id"], "--set", "password=new-secret", status=1)
    assert run(tmp_path, "allow", waiting["id"], "--json-args", '{"n": 2}').startswith("allowed")
    anyio.run(call)
    assert outcomes[-1].value == {"password": "old-secret", "n": 2}


class Vault:
    """A source with a tool that takes a password and asks first."""

    name = "vault"

    async def list_tools(self) -> list[Tool]:
        schema = {"type": "object", "properties": {"password": {"type": "string"}, "n": {"type": "integer"}}}
        return [
            Tool("vault", "", schema, category="editing", permission=Permission.READ_ONLY, requires_confirmation=True)
        ]

    async def call_tool(self, call: Call) -> Outcome:
        return Outcome(value=dict(call.arguments))


def test_the_call_that_waits_is_shown_and_asked_about_where_none_is_named(
    tmp_path: Path, waiting: dict[str, Any]
) -> None:
    run(tmp_path, "deny", json.loads(run(tmp_path, "list", "--json"))[1]["id"])
    for reply, status, end in (("n", 1, "nothing was decided; the call waits on"), ("y", 0, "allowed")):
        command = [sys.executable, "-m", "gateway", "approval", "allow", "--data-dir", str(tmp_path)]
        child = pexpect.spawn(command[0], command[1:], timeout=PATIENCE, encoding="utf-8")
        child.expect(r'Run delete_file\?\s+Why: delete_file deletes files\s+Arguments:\s+path: "a.txt"')
        child.expect(r"Allow this call\? \[y/N\]: ")
        child.sendline(reply)
        child.expect(end)
        child.expect(pexpect.EOF)
        child.close()
        assert child.exitstatus == status


def converse(data: Path, replies: str, *arguments: str) -> tuple[int, str, str]:
    """`toolgate tool call` at a terminal where a person types `replies`: exit code, output, and what they saw."""
    terminal, theirs = pty.openpty()
    command = [sys.executable, "-m", "gateway", "tool", "call", *arguments, "--data-dir", str(data)]
    try:
        os.write(terminal, replies.encode())
        done = subprocess.run(command, stdin=theirs, capture_output=True, timeout=PATIENCE, text=True, check=False)
        return done.returncode, done.stdout, done.stderr
    finally:
        os.close(theirs)
        os.close(terminal)


@pytest.mark.slow
def test_a_person_at_the_terminal_is_asked_the_same(tmp_path: Path) -> None:
    write = ("write_file", "path=a.txt")
    assert converse(tmp_path, "", *write, "content=one")[0] == 0
    status, output, seen = converse(tmp_path, "y\n", *write, "content=two")
    assert (status, output) == (0, "Overwrote a.txt (3 bytes).\n")
    assert "Run write_file?\n\nWhy: write_file overwrites 'a.txt' (3 bytes)" in seen
    status, _, seen = converse(tmp_path, "n\n", *write, "content=three")
    assert status == 1 and "toolgate: DECLINED: " in seen
    status, _, seen = converse(tmp_path, "\x04", *write, "content=three")
    assert status == 1 and "toolgate: DISMISSED: " in seen
    status, output, _ = converse(tmp_path, "e\nb.txt\n\n", *write, "content=three")
    assert status == 0 and output.startswith("Created b.txt (5 bytes).\nA person changed these arguments")
    assert converse(tmp_path, "c\n", *write, "content=four")[0] == 0
    assert converse(tmp_path, "", *write, "content=five")[0] == 0
    vias = {entry["via"] for entry in json.loads(run(tmp_path, "list", "--all", "--json"))}
    assert vias == {"terminal"}


@pytest.mark.slow
def test_a_call_edited_at_the_terminal_is_shown_and_asked_about_again(tmp_path: Path) -> None:
    write = ("write_file", "path=a.txt")
    assert converse(tmp_path, "", *write, "content=one")[0] == 0
    status, _, seen = converse(tmp_path, "e\n\nthree\nn\n", *write, "content=two")
    first, again = seen.split("Run write_file?")[1:]
    assert status == 1 and "toolgate: DECLINED: " in again
    assert ("+two" in first, "+three" in first, "+two" in again, "+three" in again) == (True, False, False, True)
    assert "[e]dit the arguments" in first and "[e]dit again" in again
    status, _, seen = converse(tmp_path, "e\n\n\nn\n", *write, "content=two")
    assert status == 1 and seen.count("Run write_file?") == 2, "an edit that changes nothing is no yes"
    status, output, seen = converse(tmp_path, "e\n\nthree\ne\n\nfour\ny\n", *write, "content=two")
    assert status == 0 and seen.count("Run write_file?") == 3
    assert output.startswith("Overwrote a.txt (4 bytes).\nA person changed these arguments before the call ran: ")


def test_without_a_terminal_the_fix_is_named(tmp_path: Path) -> None:
    CliRunner().invoke(toolgate, ["tool", "call", "write_file", "path=a", "content=b", "--data-dir", str(tmp_path)])
    refused = CliRunner().invoke(toolgate, ["tool", "call", "delete_file", "path=a", "--data-dir", str(tmp_path)])
    assert str(refused.exception) == (
        "CONFIRMATION_REQUIRED: delete_file deletes files; there is no terminal to ask on; use --yes to agree"
    )
