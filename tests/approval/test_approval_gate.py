"""The approval gate: rules, the question a person sees, and the form they answer."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import Gateway, config
from gateway.approval.question import (
    ARGUMENT_CHARACTERS,
    CHANGES_CHARACTERS,
    FIELD_CHARACTERS,
    Answer,
    ConsentNeeded,
    Question,
    arguments_digest,
    build_form,
    build_question,
    parse_answer,
    tool_digest,
)
from gateway.calls import Call, Consent, Outcome
from gateway.config.settings import ApprovalRule
from gateway.errors import Invalid
from gateway.extensions import stack
from gateway.extensions.approval import Approval
from gateway.tools import Tool

pytestmark = pytest.mark.promise("C5")

RUN = Tool("shell:run", "", owner="shell", kind="mcp", category="upstream")


def call(tool: Tool = RUN, **arguments: Any) -> Call:
    return Call(name=tool.id, arguments=arguments, tool=tool, chat="c")


def question(tool: Tool = RUN, **arguments: Any) -> Question:
    return build_question(call(tool, **arguments), "it is dangerous", "tool")


def answer(gate: Approval, made: Call) -> Outcome:
    async def run(call: Call) -> Outcome:
        return Outcome(value="runs confirmed" if call.confirmed else "runs")

    return anyio.run(stack([gate], run), made)


def decide(gate: Approval, made: Call) -> str:
    """Return `runs`, `runs confirmed`, the route of the question, or the code of the refusal."""
    outcome = answer(gate, made)
    if isinstance(outcome.error, ConsentNeeded):
        return outcome.error.question.route
    return outcome.value if outcome.error is None else outcome.error.code


def decide_by_rule(rule: Mapping[str, Any], made: Call, mode: Any = "unsafe_only") -> str:
    return decide(Approval(mode, [ApprovalRule.model_validate(rule)]), made)


@pytest.mark.parametrize(
    ("rule", "tool", "expected"),
    [
        ({"tool": "shell:*"}, RUN, "ask"),
        ({"tool": ["git:*", "shell:run"]}, RUN, "ask"),
        ({"tool": "run"}, RUN, "runs"),
        ({"server": "shell"}, RUN, "ask"),
        ({"toolset": "shell"}, RUN, "runs"),
        ({"toolset": "shell"}, replace(RUN, kind="python"), "ask"),
        ({"server": "shell"}, replace(RUN, kind="python"), "runs"),
        ({"toolset": "*"}, Tool("read_file", ""), "runs"),
        ({"category": "up*"}, RUN, "ask"),
        ({"category": "web", "tool": "shell:*"}, RUN, "runs"),
        ({"then": "deny"}, RUN, "DENIED_BY_RULE"),
        ({"then": "queue"}, RUN, "queue"),
        ({"then": "allow"}, replace(RUN, requires_confirmation=True), "runs confirmed"),
    ],
    ids=str,
)
def test_rule_matches_the_tools_it_names(rule: dict[str, Any], tool: Tool, expected: str) -> None:
    assert decide_by_rule(rule, call(tool)) == expected


@pytest.mark.parametrize(
    ("when", "arguments", "fits"),
    [
        ({"path": "*.env"}, {"file": ".env"}, True),
        ({"path": "*.env"}, {"deep": [{"at": "app/prod.env"}]}, True),
        ({"path": "*.env"}, {"file": "env.txt"}, False),
        ({"path": "secrets/*"}, {"file": "a/b/../secrets/key"}, True),
        ({"path": "secrets/*"}, {"file": "a\\secrets\\key"}, True),
        ({"path": "/etc/*"}, {"file": "/etc/../etc/passwd"}, True),
        ({"path": "secrets/*"}, {"files": {"a/Secrets/key": "x"}}, True),
        ({"path": ".env"}, {"file": " app/.env\n"}, True),
        ({"path": "secrets/*"}, {"file": "a/" * 500 + "secrets/" + "b/" * 500}, True),
        ({"path": "/etc/*"}, {"uri": "file:///etc/passwd"}, True),
        ({"path": "*.env"}, {"patch": "--- a/x.txt\n+++ b/.env\n@@ -1 +1 @@\n"}, True),
        ({"path": "*.env"}, {"patch": "--- a/x.txt\n+++ b/x.txt\n+ .env\n"}, False),
        ({"host": "*.internal"}, {"url": "https://me@db.INTERNAL:8080/x"}, True),
        ({"host": "*.internal"}, {"text": "see http://a.internal/ and b"}, True),
        ({"host": "*.internal"}, {"host": "db.internal:5432"}, True),
        ({"host": "169.254.*"}, {"url": "http://169.254.169.254/latest"}, True),
        ({"host": "::1"}, {"url": "http://[::1]:80/"}, True),
        ({"host": "*.internal"}, {"url": "https://internal.example.com"}, False),
        ({"command": "rm *"}, {"command": "rm   -rf /"}, True),
        ({"command": "rm *"}, {"command": "cd x && rm -rf y"}, True),
        ({"command": "rm *"}, {"command": "echo $(rm -rf y)"}, True),
        ({"command": "rm *"}, {"argv": ["rm", "-rf", "y"]}, True),
        ({"command": "rm *"}, {"command": "grep rm x"}, False),
        ({"command": "rm *"}, {"command": " " * 70_000 + "; rm -rf /"}, True),
        ({"host": "*.internal"}, {"text": "x" * 100_000 + " http://a.internal"}, True),
        ({"arguments": {"branch": "main"}}, {"branch": "main"}, True),
        ({"arguments": {"branch": ["main", "release/*"]}}, {"branch": "release/2"}, True),
        ({"arguments": {"branch": "main"}}, {"other": "main"}, False),
        ({"arguments": {"options.force": "true"}}, {"options": {"force": True}}, True),
        ({"arguments": {"n": "1?"}}, {"n": 12}, True),
        ({"path": "*.env", "arguments": {"mode": "w"}}, {"file": ".env", "mode": "r"}, False),
    ],
    ids=lambda each: str(each)[:60],
)
def test_rule_condition_is_compared_with_the_arguments(
    when: dict[str, Any], arguments: dict[str, Any], fits: bool
) -> None:
    assert decide_by_rule({"when": when}, call(**arguments)) == ("ask" if fits else "runs")


@pytest.mark.parametrize(
    ("rules", "hidden"),
    [
        ([{"when": {"path": "*.env"}, "then": "deny"}], True),
        ([{"tool": "read_file", "when": {"path": "app/*"}, "then": "deny"}], True),
        ([{"tool": "search_code", "when": {"path": "app"}, "then": "deny"}], False),
        ([{"tool": "write_file", "when": {"path": "*.env"}, "then": "deny"}], False),
        ([{"when": {"path": "*.ENV", "overwrites": True}, "then": "deny"}], True),
        ([{"when": {"path": "*.env", "overwrites": False}, "then": "deny"}], False),
        ([{"when": {"path": "*.env", "host": "*.internal"}, "then": "deny"}], False),
        ([{"when": {"path": "*.env"}, "then": "ask"}], True),
        ([{"when": {"path": "*.env"}, "then": "queue"}], True),
        ([{"when": {"overwrites": True}, "then": "ask"}], False),
        ([{"when": {"command": "*"}, "then": "deny"}], False),
        ([{"tool": "read_file", "then": "deny"}], False),
        (
            [{"when": {"arguments": {"path": "app/*"}}, "then": "allow"}, {"when": {"path": "*.env"}, "then": "deny"}],
            False,
        ),
        ([], False),
    ],
    ids=str,
)
def test_rule_by_path_that_denies_or_asks_hides_the_file_from_searches(
    rules: list[dict[str, Any]], hidden: bool
) -> None:
    gate = Approval("unsafe_only", [ApprovalRule.model_validate(rule) for rule in rules])
    hides = gate.hides(Tool("search_code", "", category="filesystem"))
    assert (hides is not None and hides("app/prod.env") is not None) is hidden
    assert hides is None or hides("notes.txt") is None


@pytest.mark.parametrize(("then", "shown"), [("deny", False), ("ask", True), ("queue", True)])
def test_rule_hides_a_path_that_a_person_agreed_to_only_if_it_denies_it(then: str, shown: bool) -> None:
    rule = ApprovalRule.model_validate({"when": {"path": "*.env"}, "then": then})
    hides = Approval("unsafe_only", [rule]).hides(Tool("lab:look", "", kind="python", owner="lab"))
    assert hides is not None and hides("a.env") == "rule 1 of approval.rules"
    assert (hides("a.env", frozenset({"a.env"})) is None) is shown
    assert hides("b.env", frozenset({"a.env"})) is not None


def test_first_matching_rule_decides_and_without_one_the_mode() -> None:
    rules = [
        ApprovalRule.model_validate(each)
        for each in (
            {"when": {"arguments": {"n": "1"}}, "then": "allow"},
            {"when": {"arguments": {"n": "?"}}, "then": "deny", "why": "single digits are reserved"},
            {"when": {"arguments": {"n": "??"}}},
        )
    ]
    for mode, expected in (("unsafe_only", "runs"), ("always", "ask"), ("never", "runs confirmed")):
        gate = Approval(mode, rules)  # type: ignore[arg-type]
        assert [decide(gate, call(n=n)) for n in (1, 2, 22, 333)] == [
            "runs confirmed",
            "DENIED_BY_RULE",
            "ask",
            expected,
        ]
        # Whoever owns the process may agree for a person, but not against the operator's no.
        assert decide(gate, replace(call(n=22), confirmed=True)) == "runs confirmed"
        assert decide(gate, replace(call(n=2), confirmed=True)) == "DENIED_BY_RULE"


@pytest.mark.parametrize(
    ("pattern", "value", "allowed"),
    [
        ("docs/*", "docs/a.md", True),
        ("docs/*", "docs/../secret", False),
        ("docs/*", "docs/..\\secret", False),
        ("git status*", "git status --short", True),
        ("git status*", "git status; rm -rf /", False),
        ("git status*", "git status $(rm -rf /)", False),
        ("git status*", "git status\nrm -rf /", False),
        ("echo * > *", "echo a > b", True),
        ("echo * > *", "echo a > b; c", False),
    ],
)
def test_rule_that_allows_matches_neither_parent_paths_nor_shell_syntax(
    pattern: str, value: str, allowed: bool
) -> None:
    rule = {"when": {"arguments": {"x": pattern}}, "then": "allow"}
    danger = replace(RUN, requires_confirmation=True)
    assert decide_by_rule(rule, call(danger, x=value)) == ("runs confirmed" if allowed else "ask")


def test_reason_of_a_tool_that_asks_says_if_a_rule_may_spare_a_call() -> None:
    allow = ApprovalRule.model_validate({"when": {"arguments": {"n": "1"}}, "then": "allow"})
    danger = replace(RUN, requires_confirmation=True)
    errors = [answer(Approval("unsafe_only", rules), call(danger, n=2)).error for rules in ([], [allow])]
    assert ["always asks first" in str(error) for error in errors] == [True, False]
    assert "shell:run asks first unless a rule allows the call" in str(errors[1])


def test_rule_that_asks_matches_arguments_that_are_too_large() -> None:
    assert decide_by_rule({"when": {"path": "*.env"}}, call(paths=["x"] * 60_000)) == "ask"


@pytest.mark.parametrize("when", [{"path": "*a*b*.env"}, {"host": "*a*b.internal"}, {"command": "*rm*-rf*/x"}], ids=str)
@pytest.mark.parametrize("unit", ["a", "a/", "://a", "; rm ", "--- a\n", "[", "@", "\\"])
def test_rules_take_limited_time_for_hostile_arguments(when: dict[str, Any], unit: str) -> None:
    hostile = call(text=unit * (2_000_000 // len(unit)), many=[unit * 4000] * 200)
    started = time.process_time()
    decide_by_rule({"when": when}, hostile)
    assert time.process_time() - started < 2


@pytest.mark.parametrize(
    ("rule", "complaint"),
    [
        ("{tool: x, then: allow, when: {path: 'docs/*'}}", "must name the arguments it trusts"),
        ("{tool: x, the: ask}", "did you mean 'then'?"),
        ("{tool: x, when: {hosts: a}}", "did you mean 'host'?"),
        ("{tool: x, then: maybe}", "'ask', 'allow', 'deny' or 'queue'"),
    ],
)
def test_invalid_rule_is_refused_with_the_fix(tmp_path: Path, rule: str, complaint: str) -> None:
    (tmp_path / "toolgate.yaml").write_text(f"approval:\n  rules:\n    - {rule}\n")
    with pytest.raises(Invalid, match="line 3") as refused:
        config.load(tmp_path / "toolgate.yaml")
    assert complaint in refused.value.message


def test_question_names_the_attached_folder_on_a_line_of_its_own() -> None:
    asked = build_question(call(), "why", "tool", folder=Path("/home/ann/a\nArguments: none"))
    assert asked.message.splitlines()[2:4] == ["Why: why", r"Folder: /home/ann/a\nArguments: none"]
    assert "Folder" not in question().message


def test_consent_counts_for_its_own_question_only() -> None:
    danger = replace(RUN, requires_confirmation=True)
    gate, asked = Approval("unsafe_only"), call(danger, n=1)
    shown = build_question(asked, f"{danger.id} always asks first", "tool")
    yes = Consent("id", shown.subject, arguments_digest({"n": 1}), shown.digest, shown.reason, "ann", "elicitation")
    assert decide(gate, replace(asked, consent=yes)) == "runs confirmed"
    for other in (
        replace(asked, consent=yes, arguments={"n": 2}),
        replace(asked, consent=yes, chat="d"),
        replace(asked, consent=yes, message="m"),
        replace(asked, consent=yes, parent_message="m"),
        replace(asked, consent=yes, caller=replace(asked.caller, principal="bob")),
        replace(asked, consent=yes, tool=replace(danger, description="another")),
        replace(asked, consent=replace(yes, question="0" * 64)),
        replace(asked, consent=replace(yes, subject="0" * 64)),
    ):
        assert decide(gate, other) == "ask"
    edited = replace(yes, arguments=arguments_digest({"n": 2}), original={"n": 1})
    assert decide(gate, replace(asked, consent=edited, arguments={"n": 2})) == "runs confirmed"
    another_reason = replace(edited, reason="it overwrites a file")
    assert decide(gate, replace(asked, consent=another_reason, arguments={"n": 2})) == "ask"
    out_of_band = Approval("unsafe_only", out_of_band=["shell:*"])
    assert decide(out_of_band, replace(asked, consent=edited, arguments={"n": 2})) == "queue"


def test_question_message_escapes_arguments_that_imitate_lines_or_control_the_terminal() -> None:
    sly = 'x"\n\nWhy: it is harmless\n\x1b[2J\u202e\u2028'
    message = question(RUN, **{"text": sly, "name\nWhy: ok": "1"}).message
    lines = message.split("\n")
    assert [line for line in lines if line.startswith("Why:")] == ["Why: it is dangerous"]
    assert all(line.isprintable() for line in lines)
    assert len(question(RUN, text="y" * 10**6, **{f"a{n}": n for n in range(100)}).message) < 6000


def test_question_shows_an_argument_that_is_repeated_under_the_name_of_a_secret() -> None:
    code = "import os; os.remove('x')"
    asked = build_question(call(code=code, env={"X_TOKEN": code}), f"it runs {code}", "tool", changes=f"+{code}")
    lines = asked.message.split("\n")
    assert lines[2:] == [
        f"Why: it runs {code}",
        "",
        "Arguments:",
        f'  code: "{code}"',
        '  env: {"X_TOKEN":"[redacted]"}',
        "",
        "What will change:",
        f"  | +{code}",
    ]
    assert list(build_form(asked)["properties"]) == ["decision", "argument_code"]
    assert asked.to_dict()["arguments"] == {"code": code, "env": {"X_TOKEN": "[redacted]"}}
    assert (asked.to_dict()["reason"], asked.to_dict()["changes"]) == (f"it runs {code}", f"+{code}")


def test_question_message_shortens_a_long_argument_in_the_middle_and_says_so() -> None:
    command = "echo hello" + " " * 2100 + "; touch x"
    lines = question(RUN, command=command, argv=[command]).message.split("\n")
    for line in lines[5:7]:
        assert "echo hello" in line and "; touch x" in line and len(line) < 800
    assert f" … {len(command) - ARGUMENT_CHARACTERS} characters are left out … " in lines[5]
    patched = build_question(call(), "why", "tool", changes="+a\n" * 5000 + "+the end")
    shown = patched.message.split("\n")
    assert shown[-1] == "  | +the end" and len(patched.message) < 12_000
    assert f"  … {15_008 - CHANGES_CHARACTERS} characters are left out … " in shown


def test_form_is_a_flat_schema_with_the_arguments_as_defaults() -> None:
    schema = {
        "type": "object",
        "properties": {
            "mode": {"enum": ["r", "w"], "description": "How"},
            "path": {"type": "string", "pattern": "^a", "x-own": 1},
        },
    }
    tool = replace(RUN, input_schema=schema)
    given: dict[str, Any] = {"mode": "r", "path": "a", "n": 1, "x": 0.5, "on": True, "list": [1], "text": "a\nb"}
    form = build_form(question(tool, **given, password="hunter22", long="x" * (FIELD_CHARACTERS + 1)))
    assert form == {
        "type": "object",
        "required": ["decision"],
        "properties": {
            "decision": {
                "type": "string",
                "title": "Decision",
                "enum": ["approve once", "approve for this chat", "deny"],
            },
            "argument_mode": {
                "type": "string",
                "title": "mode",
                "default": "r",
                "description": "How",
                "enum": ["r", "w"],
            },
            "argument_path": {"type": "string", "title": "path", "default": "a"},
            "argument_n": {"type": "integer", "title": "n", "default": 1},
            "argument_x": {"type": "number", "title": "x", "default": 0.5},
            "argument_on": {"type": "boolean", "title": "on", "default": True},
            "argument_list": {"type": "string", "title": "list (JSON)", "default": "[1]"},
            "argument_text": {"type": "string", "title": "text (JSON)", "default": '"a\\nb"'},
        },
    }


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(st.dictionaries(st.text(max_size=12), VALUES, max_size=40))
def test_form_returned_unchanged_edits_nothing(arguments: dict[str, Any]) -> None:
    try:
        asked = build_question(call().replace(arguments=arguments), "why", "tool")
        fields = build_form(asked)["properties"]
    except Invalid:  # half a surrogate pair: no call comes this far with one
        return
    content = {key: field["default"] for key, field in fields.items() if "default" in field}
    response = {"action": "accept", "content": {**content, "decision": "approve once"}}
    assert parse_answer(RUN, arguments, response) == Answer("once")
    assert len(fields) <= 31


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [("n", 2, 2), ("n", 2.0, 2), ("x", 2, 2.0), ("on", False, False), ("path", "b", "b"), ("list", "[2]", [2])],
)
def test_form_edit_is_parsed_with_the_type_of_its_default(name: str, value: Any, expected: Any) -> None:
    arguments = {"n": 1, "x": 0.5, "on": True, "path": "a", "list": [1]}
    response = {"action": "accept", "content": {"decision": "approve once", f"argument_{name}": value}}
    answer = parse_answer(RUN, arguments, response)
    assert answer.arguments == {**arguments, name: expected}
    assert type(answer.arguments[name]) is type(expected)


def test_tool_digest_covers_the_whole_definition() -> None:
    changes: list[dict[str, Any]] = [
        {"description": "x"},
        {"input_schema": {"type": "object", "properties": {}}},
        {"wire": {"annotations": {}}},
        {"owner": "other"},
        {"home": Path("elsewhere")},
        {"requires_confirmation": True},
    ]
    assert len({tool_digest(RUN), *(tool_digest(replace(RUN, **change)) for change in changes)}) == 7
    assert tool_digest(RUN) == tool_digest(replace(RUN))


@pytest.mark.anyio
async def test_approver_callback_of_a_program_may_edit_the_arguments(tmp_path: Path) -> None:
    asked: list[dict[str, Any]] = []

    def answer_with(answer: Answer) -> Any:
        async def approver(question: Question) -> Answer:
            asked.append(question.to_dict())
            return answer

        return approver

    async with Gateway.open({"data_dir": str(tmp_path)}) as gateway:
        write = ("write_file", {"path": "a.txt", "content": "one"})
        assert (await gateway.call(*write, approver=answer_with(Answer("deny")))).ok  # nothing to ask about a new file
        no = await gateway.call("write_file", {"path": "a.txt", "content": "two"}, approver=answer_with(Answer("deny")))
        assert no.error is not None and no.error.code == "DECLINED"
        edited = Answer("always", {"path": "a.txt", "content": "three"}, by="ann")
        assert (await gateway.call("write_file", {"path": "a.txt", "content": "two"}, approver=answer_with(edited))).ok
        assert (await gateway.call("read_file", {"path": "a.txt"})).value["content"] == "three"
        assert (await gateway.call("write_file", {"path": "a.txt", "content": "4"}, chat="default")).ok
        assert [each["reason"] for each in asked] == ["write_file overwrites 'a.txt' (3 bytes)"] * 2
        kept = [
            (each.status, each.via, each.decided_by) for each in await gateway.approvals.records.entries(waiting=False)
        ]
        assert kept == [("used", "callback", "ann"), ("denied", "callback", "local")]
        refused = await gateway.call("delete_file", {"path": "a.txt"})
        assert isinstance(refused.error, ConsentNeeded)
        assert "by this call of a program; pass it `approver` or `confirmed=True`" in refused.error.message
        assert (await gateway.records.list_calls())[0].status == "error"  # nobody will be asked any more
