"""Policy rehearsal: recorded calls are decided about under changed settings as the executor decides about new ones."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from amounts import NIGHTLY, amount

from gateway.admin import keys, policy
from gateway.calls import Call, Caller, Outcome
from gateway.errors import InputRequired, Invalid
from gateway.gateway import Gateway
from gateway.identity.roles import Roles
from gateway.tools import Permission, Tool

pytestmark = pytest.mark.anyio
CALLS = amount(120, 60, nightly=10_000)
RULES: dict[str, Any] = {
    "rules": [
        {"tool": "delete_file", "then": "deny"},
        {"when": {"path": ["secrets/*"]}, "then": "ask"},
        {"tool": "write_file", "when": {"arguments": {"path": "notes/*"}}, "then": "allow"},
        {"tool": "write_file", "when": {"overwrites": True}, "then": "deny"},
        {"category": "filesystem", "when": {"arguments": {"content": "*password*"}}, "then": "queue"},
    ],
    "mode": "always",
    "roles": {"reader": {"permission": "read-only"}, "writer": {"tools": {"deny": ["list_directory"]}}},
    "categories": {},
}


class Lab:
    """A tool in a category that the new settings turn off."""

    name = "lab"

    async def list_tools(self) -> Sequence[Tool]:
        return [Tool("lab:measure", "", owner="lab", category="development", permission=Permission.READ_ONLY)]

    async def call_tool(self, call: Call) -> Outcome:
        return Outcome(value=1)


def make_call(chance: random.Random, caller: Caller) -> Call:
    path = chance.choice(["notes/a.md", "secrets/key.txt", "b.md", "other/c.md"])
    choices: list[tuple[str, dict[str, Any]]] = [
        ("read_file", {"path": path}),
        ("write_file", {"path": path, "content": chance.choice(["x", "my password"]), "createDirs": True}),
        ("delete_file", {"path": path}),
        ("list_directory", {"path": "."}),
        ("lab__measure", {}),
    ]
    name, arguments = chance.choice(choices)
    return Call(name=name, arguments=arguments, chat=f"chat of {caller.principal}", caller=caller)


def make_callers(gateway: Gateway) -> list[Caller]:
    roles = Roles(gateway.settings.roles, gateway.settings.profiles)
    principals = [roles.make_principal("ann", "reader"), roles.make_principal("bob", "writer")]
    callers = [Caller(each.id, "rest", None, each.permission, each.access) for each in principals]
    return [*callers, Caller(surface="rest")]


@pytest.mark.timeout(3600 if NIGHTLY else 600)
@pytest.mark.promise("P3")
async def test_policy_rehearsal_agrees_with_the_executor_under_the_new_rules(tmp_path: Path) -> None:
    """The calls are made, rehearsed under new rules, and made again under them."""
    before = {"data_dir": tmp_path, "roles": {"reader": {}, "writer": {}}, "approval": {"mode": "never"}}
    before["categories"] = {"development": {"enabled": True}}
    chance = random.Random(11)
    made: list[Call] = []
    async with Gateway.open(before, sources=[Lab()], connect="none") as gateway:
        for name, role in (("ann", "reader"), ("bob", "writer")):
            await keys.create_key(gateway, name, role)
        callers = make_callers(gateway)
        for _ in range(CALLS):
            made.append(call := make_call(chance, chance.choice(callers)))
            await gateway.executor.call_tool(call)
        changes = policy.PolicyChanges.model_validate(RULES)
        result = await policy.simulate(gateway, changes, limit=2 * CALLS)
        executor = await gateway.make_policy_executor(changes.apply(gateway.settings))
        rehearsed = {}
        decider = policy._Decider(
            executor, Roles(changes.roles or {}, {}), {"ann": ("reader", None), "bob": ("writer", None)}
        )
        recorded = {record.id: record async for record in policy._read_calls(gateway, 1, 2 * CALLS)}
        for call in made:
            verdict = await decider.decide(recorded[call.id], dict(call.arguments))
            rehearsed[call.id] = verdict.decision if verdict else None

    after = before | {
        "roles": RULES["roles"],
        "categories": RULES["categories"],
        "approval": {"mode": "always", "rules": RULES["rules"]},
    }
    counts = {"allow": 0, "ask": 0, "deny": 0}
    denials = ("DENIED_BY_RULE", "PERMISSION_DENIED", "FORBIDDEN", "TOOL_DISABLED", "UNKNOWN_TOOL")
    async with Gateway.open(after, sources=[Lab()], connect="none") as gateway:
        by_name = {each.principal: each for each in make_callers(gateway)}
        for call in made:
            # A call that is allowed would change files, which later decisions depend on.
            caller = by_name[call.caller.principal]
            again = Call(name=call.name, arguments=call.arguments, chat=call.chat, caller=caller)
            decided = await decide_in_full_executor(gateway, again, denials)
            counts[decided] += 1
            assert rehearsed[call.id] == decided, (call.name, call.arguments, call.caller.principal)
    assert result["then"] == counts
    assert result["calls"] == CALLS
    assert min(counts.values()) > 0
    assert sum(change["calls"] for change in result["changes"]) > 0
    assert all(change["before"] != change["after"] for change in result["changes"])


async def decide_in_full_executor(gateway: Gateway, call: Call, denials: tuple[str, ...]) -> str:
    """Call the tool through the whole pipeline, with files put back as they were."""
    root = gateway.workspaces.path(call.chat)
    files = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} if root.exists() else {}
    error = (await gateway.executor.call_tool(call)).error
    for path, content in files.items():
        if not path.is_file() or path.read_bytes() != content:
            path.write_bytes(content)
    for path in root.rglob("*") if root.exists() else ():
        if path.is_file() and path not in files:
            path.unlink()
    if isinstance(error, InputRequired):
        return "ask"
    return "deny" if error is not None and error.code in denials else "allow"


async def test_policy_rehearsal_names_newly_asked_denied_and_allowed_calls(tmp_path: Path) -> None:
    before = {"data_dir": tmp_path, "approval": {"rules": [{"tool": "list_directory", "then": "deny"}]}}
    async with Gateway.open(before, connect="none") as gateway:
        for name, arguments in (("list_directory", {"path": "."}), ("read_file", {"path": "a"}), ("no_tool", {})):
            await gateway.executor.call_tool(Call(name=name, arguments=arguments))
        changes = policy.PolicyChanges.model_validate({"rules": [{"tool": "read_file", "then": "ask", "why": "new"}]})
        result = await policy.simulate(gateway, changes)
    found = {(change["tool"], change["before"], change["after"]) for change in result["changes"]}
    assert found == {("list_directory", "deny", "allow"), ("read_file", "allow", "ask")}
    [asked] = [change["reason"] for change in result["changes"] if change["after"] == "ask"]
    assert asked == "new (rule 1 of approval.rules)"
    assert result["now"] == {"allow": 1, "ask": 0, "deny": 1}
    assert result["then"] == {"allow": 1, "ask": 1, "deny": 0}


def test_policy_changes_name_the_line_of_a_mistake(tmp_path: Path) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text("rules:\n  - tool: read_file\n    them: deny\n")
    with pytest.raises(Invalid, match=r"line 3|:3"):
        policy.read_changes(path)
