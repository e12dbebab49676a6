"""A person decides: in both eras, over both transports, with the Python SDK's client, and with one that cannot ask."""

from __future__ import annotations

import json
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
from click.testing import CliRunner
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp_types import ElicitResult, RequestParamsMeta

from gateway.cli import toolgate

from .clients import call, refusal, text, value
from .processes import PATIENCE, Listening, environment, on_http, serve_command
from .servers import labs
from .wire import ERAS, HANDSHAKE, MODERN

pytestmark = [pytest.mark.anyio, pytest.mark.promise("C5")]

LEGS = [
    pytest.param(("stdio", MODERN), id="stdio-modern"),
    pytest.param(("http", HANDSHAKE), id="http-handshake"),
    pytest.param(("stdio", HANDSHAKE), id="stdio-handshake", marks=pytest.mark.slow),
    pytest.param(("http", MODERN), id="http-modern", marks=pytest.mark.slow),
]
SETTINGS = {
    "approval": {
        "queue_wait": 0,
        "rules": [
            {"tool": "write_file", "when": {"path": "*.env"}, "then": "queue", "why": "secrets are kept there"},
            {"tool": "write_file", "when": {"path": "never/*"}, "then": "deny"},
        ],
    }
}

Reply = Callable[[dict[str, Any]], ElicitResult]


@dataclass
class Person:
    """Whoever sits at the client: answers what is asked with the replies it was given, and keeps the questions."""

    replies: list[Reply] = field(default_factory=list)
    questions: list[Any] = field(default_factory=list)

    async def asked(self, _: Any, params: Any) -> ElicitResult:
        self.questions.append(params)
        return self.replies.pop(0)(params.model_dump(by_alias=True, mode="json", exclude_none=True))


def choose(decision: str, **edits: Any) -> Reply:
    """Accept the form as it is prefilled, but for what is edited."""

    def reply(params: dict[str, Any]) -> ElicitResult:
        fields = params["requestedSchema"]["properties"]
        content = {key: each["default"] for key, each in fields.items() if "default" in each}
        content |= {f"argument_{name}": edited for name, edited in edits.items()}
        return ElicitResult(action="accept", content={**content, "decision": decision})

    return reply


def decline(_: dict[str, Any]) -> ElicitResult:
    return ElicitResult(action="decline")


def cancel(_: dict[str, Any]) -> ElicitResult:
    return ElicitResult(action="cancel")


@dataclass
class Visit:
    """A connected client, the person at it, and the data directory of the gateway at the other end."""

    client: Client
    person: Person
    data: Path

    def will(self, *replies: Reply) -> None:
        self.person.replies[:] = replies
        self.person.questions.clear()

    async def toolgate(self, *arguments: str) -> Any:
        """What a person at a terminal says beside the gateway: the command, in another process than the gateway's."""
        command = [*arguments, "--data-dir", str(self.data), "--json"]
        done = await anyio.to_thread.run_sync(CliRunner().invoke, toolgate, command)
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    async def record(self, call_id: str) -> dict[str, Any]:
        found = await self.toolgate("call", "show", call_id)
        assert isinstance(found, dict)
        return found


def settled(directory: Path, settings: dict[str, Any]) -> Path:
    (directory / "toolgate.yaml").write_text(json.dumps(settings))  # JSON is YAML
    return directory


@asynccontextmanager
async def visiting(place: Path | Listening, era: str, person: Person | None, data: Path) -> AsyncIterator[Visit]:
    """A client at a gateway that listens, or one that starts its own in a directory."""
    mode = "auto" if era == MODERN else "legacy"
    asked = person.asked if person is not None else None
    if isinstance(place, Listening):
        transport: Any = place.url
    else:
        command, *arguments = serve_command(data)
        transport = stdio_client(
            StdioServerParameters(command=command, args=arguments, env=environment(place), cwd=place)
        )
    options: dict[str, Any] = {"read_timeout_seconds": PATIENCE, "cache": None, "elicitation_callback": asked}
    async with Client(transport, mode=mode, **options) as client:
        yield Visit(client, person or Person(), data)


@pytest.fixture(scope="module")
def asking_http(tmp_path_factory: pytest.TempPathFactory) -> Any:
    directory = settled(tmp_path_factory.mktemp("approval-http"), SETTINGS)
    with on_http(directory) as gateway:
        yield gateway, directory / "data"


@pytest.fixture(scope="module", params=LEGS)
async def visit(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Visit]:
    transport, era = request.param
    if transport == "http":
        gateway, data = request.getfixturevalue("asking_http")
    else:
        gateway = settled(tmp_path_factory.mktemp("approval-stdio"), SETTINGS)
        data = gateway / "data"
    async with visiting(gateway, era, Person(), data) as visit:
        yield visit


async def written(visit: Visit, chat: str, text: str = "old\n", path: str = "a.txt") -> None:
    await value(visit.client, "write_file", {"path": path, "content": text}, chat)


async def content(visit: Visit, chat: str, path: str = "a.txt") -> str:
    read = await value(visit.client, "read_file", {"path": path}, chat)
    return str(read["content"])


async def test_a_person_sees_what_will_change_and_the_call_runs_when_they_agree(visit: Visit, chat: str) -> None:
    await written(visit, chat)
    visit.will(choose("approve once"))
    result = await call(visit.client, "write_file", {"path": "a.txt", "content": "new\n"}, chat)
    assert not result.is_error
    assert await content(visit, chat) == "new\n"
    [question] = visit.person.questions
    assert question.message.startswith("Run write_file?\n\nWhy: write_file overwrites 'a.txt' (4 bytes)\n")
    assert "  | -old\n  | +new" in question.message
    fields = question.requested_schema["properties"]
    assert fields["decision"]["enum"] == ["approve once", "approve for this chat", "deny"]
    assert fields["argument_path"]["default"] == "a.txt"
    assert fields["argument_content"]["default"] == '"new\\n"'  # more lines than a field has
    visit.will(cancel)  # once was once
    assert (await refusal(visit.client, "write_file", {"path": "a.txt", "content": "x"}, chat))["code"] == "DISMISSED"


async def test_deny_and_decline_and_cancel_never_reach_the_tool_and_are_recorded(visit: Visit, chat: str) -> None:
    await written(visit, chat)
    answers: list[tuple[Reply, str]] = [(choose("deny"), "DECLINED"), (decline, "DECLINED"), (cancel, "DISMISSED")]
    for reply, code in answers:
        visit.will(reply)
        error = await refusal(visit.client, "delete_file", {"path": "a.txt"}, chat)
        assert error["code"] == code
        asked = await visit.toolgate("approval", "show", error["details"]["approval"])
        assert (asked["status"], asked["via"]) == ("denied" if code == "DECLINED" else "dismissed", "elicitation")
        record = await visit.record(asked["call_id"])
        assert (record["status"], record["error_code"], record["chat_id"]) == ("error", code, chat)
    assert await content(visit, chat) == "old\n"


async def test_edited_arguments_run_and_the_model_sees_the_edit(visit: Visit, chat: str) -> None:
    await written(visit, chat)
    visit.will(choose("approve once", content='"edited\\n"'))
    result = await call(visit.client, "write_file", {"path": "a.txt", "content": "new\n"}, chat)
    assert not result.is_error
    assert await content(visit, chat) == "edited\n"
    texts = [getattr(block, "text", "") for block in result.content]
    assert texts[-1] == 'A person changed these arguments before the call ran: {"content": "edited\\n"}'
    [asked] = [each for each in await visit.toolgate("approval", "list", "--all") if each["chat_id"] == chat]
    assert (asked["args"], asked["edited_args"]) == (
        {"path": "a.txt", "content": "new\n"},
        {"path": "a.txt", "content": "edited\n"},
    )
    record = await visit.record(asked["call_id"])
    assert (record["status"], record["args"]) == ("success", {"path": "a.txt", "content": "edited\n"})


async def test_edited_arguments_are_validated_and_checked_by_rules_again(visit: Visit, chat: str) -> None:
    await written(visit, chat)
    await written(visit, chat, "other\n", "b.txt")
    visit.will(choose("approve once", path="b.txt"), choose("approve once"))
    assert not (await call(visit.client, "write_file", {"path": "a.txt", "content": "new"}, chat)).is_error
    assert [each.message.split("\n")[2] for each in visit.person.questions] == [
        "Why: write_file overwrites 'a.txt' (4 bytes)",
        "Why: write_file overwrites 'b.txt' (6 bytes)",
    ]
    assert (await content(visit, chat), await content(visit, chat, "b.txt")) == ("old\n", "new")
    visit.will(choose("approve once", path="never/a.txt"))
    error = await refusal(visit.client, "write_file", {"path": "a.txt", "content": "x"}, chat)
    assert error["code"] == "DENIED_BY_RULE"
    visit.will(choose("approve once", path="../out.txt"))
    error = await refusal(visit.client, "write_file", {"path": "a.txt", "content": "x"}, chat)
    assert error["code"] == "INVALID_PATH"
    assert error["message"].startswith("a person edited the arguments, and they were refused: ")


async def test_approval_for_the_chat_holds_there_until_it_is_revoked(visit: Visit, chat: str) -> None:
    await written(visit, chat)
    visit.will(choose("approve for this chat"))
    for number in range(3):
        assert not (await call(visit.client, "write_file", {"path": "a.txt", "content": f"{number}"}, chat)).is_error
    assert len(visit.person.questions) == 1
    await written(visit, f"{chat}-other")
    visit.will(decline, decline)
    other = await refusal(visit.client, "write_file", {"path": "a.txt", "content": "x"}, f"{chat}-other")
    assert other["code"] == "DECLINED"
    [kept] = [each for each in await visit.toolgate("approval", "remembered") if each["chat_id"] == chat]
    await visit.toolgate("approval", "revoke", kept["id"])
    assert (await refusal(visit.client, "write_file", {"path": "a.txt", "content": "x"}, chat))["code"] == "DECLINED"
    assert await content(visit, chat) == "2"


async def test_question_for_the_queue_is_not_asked_of_the_client(visit: Visit, chat: str) -> None:
    visit.will()
    arguments = {"path": "app/.env", "content": "KEY=1", "createDirs": True}
    waiting = await refusal(visit.client, "write_file", arguments, chat)
    assert waiting["code"] == "CONFIRMATION_REQUIRED"
    entry = waiting["details"]["approval"]
    assert f"toolgate approval allow {entry}" in waiting["message"]
    assert (await refusal(visit.client, "write_file", arguments, chat))["details"]["approval"] == entry
    await visit.toolgate("approval", "allow", entry)
    assert not (await call(visit.client, "write_file", arguments, chat)).is_error
    assert await content(visit, chat, "app/.env") == "KEY=1"
    record = await visit.record(waiting["details"]["call_id"])
    assert record["status"] == "success"
    again = await refusal(visit.client, "write_file", arguments, chat)  # allowed once
    assert again["details"]["approval"] != entry
    await visit.toolgate("approval", "deny", again["details"]["approval"])
    assert (await refusal(visit.client, "write_file", arguments, chat))["code"] == "DECLINED"
    assert visit.person.questions == []


async def test_call_in_the_queue_runs_with_the_arguments_a_person_set_and_its_client_is_told(
    visit: Visit, chat: str
) -> None:
    arguments = {"path": ".env", "content": "KEY=1"}
    waiting = await refusal(visit.client, "write_file", arguments, chat)
    await visit.toolgate("approval", "allow", waiting["details"]["approval"], "--set", "content=KEY=2")
    done = await call(visit.client, "write_file", arguments, chat)
    assert 'A person changed these arguments before the call ran: {"content": "KEY=2"}' in text(done)
    assert await content(visit, chat, ".env") == "KEY=2"
    record = await visit.record(waiting["details"]["call_id"])
    assert (record["status"], record["args"]["content"]) == ("success", "KEY=2")


async def test_delete_of_what_is_not_there_is_refused_before_anybody_is_asked(visit: Visit, chat: str) -> None:
    visit.will()
    error = await refusal(visit.client, "delete_file", {"path": "gone.txt"}, chat)
    assert error["code"] == "FILE_NOT_FOUND" and visit.person.questions == []
    missing = await refusal(visit.client, "write_file", {"path": "new/a.txt", "content": ""}, chat)
    assert "set createDirs to true" in missing["message"]


@pytest.mark.parametrize("era", ERAS)
async def test_a_client_that_cannot_be_asked_is_refused_with_the_fix(
    asking_http: tuple[Listening, Path], era: str, chat: str
) -> None:
    gateway, data = asking_http
    async with visiting(gateway, era, None, data) as visit:
        await written(visit, chat)
        error = await refusal(visit.client, "delete_file", {"path": "a.txt"}, chat)
        assert error["code"] == "CONFIRMATION_REQUIRED"
        assert "without_elicitation: queue" in error["message"]
        assert await content(visit, chat) == "old\n"


@pytest.mark.slow
@pytest.mark.parametrize("era", ERAS)
async def test_a_call_that_waits_in_the_queue_goes_on_by_itself_when_it_is_allowed(
    tmp_path: Path, era: str, chat: str
) -> None:
    settled(tmp_path, {"approval": {"without_elicitation": "queue", "queue_wait": PATIENCE}})
    with on_http(tmp_path) as gateway:
        async with visiting(gateway, era, None, tmp_path / "data") as visit:
            await written(visit, chat)
            done: list[Any] = []

            async def delete() -> None:
                done.append(await call(visit.client, "delete_file", {"path": "a.txt"}, chat))

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(delete)
                with anyio.fail_after(PATIENCE):
                    while not (waiting := await visit.toolgate("approval", "list")):
                        await anyio.lowlevel.checkpoint()
                    await visit.toolgate("approval", "allow", waiting[0]["id"])
            assert not done[0].is_error
            assert (await visit.record(waiting[0]["call_id"]))["status"] == "success"


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["stdio", "http"])
@pytest.mark.parametrize("era", ERAS)
async def test_approval_answer_after_the_timeout_is_refused(
    tmp_path: Path, transport: str, era: str, chat: str
) -> None:
    settled(tmp_path, {"approval": {"timeout": 0.3}})

    class Slow(Person):
        async def asked(self, context: Any, params: Any) -> ElicitResult:
            await anyio.sleep(0.8)
            return await super().asked(context, params)

    with on_http(tmp_path) if transport == "http" else nullcontext(tmp_path) as gateway:
        async with visiting(gateway, era, Slow([choose("approve once")]), tmp_path / "data") as visit:
            await written(visit, chat)
            error = await refusal(visit.client, "delete_file", {"path": "a.txt"}, chat)
            assert error["code"] == ("INVALID_STATE" if era == MODERN else "APPROVAL_EXPIRED")
            assert await content(visit, chat) == "old\n"
            [asked] = await visit.toolgate("approval", "list", "--all")
            assert asked["status"] == "expired"
            assert (await visit.record(asked["call_id"]))["error_code"] == "APPROVAL_EXPIRED"


@pytest.mark.slow
@pytest.mark.parametrize("upstream", ["modern", "handshake"])
@pytest.mark.parametrize("era", ERAS)
async def test_a_server_asks_its_own_questions_after_the_person_agreed_and_nobody_is_asked_twice(
    tmp_path: Path, era: str, upstream: str, chat: str
) -> None:
    lab = {**labs.on_stdio(upstream), "requires_confirmation": True}
    settled(tmp_path, {"mcpServers": {"lab": lab}})
    arguments = {"method": "elicitation/create", "rounds": 2, "name": "unedited"}
    person = Person([choose("approve once", name="edited"), *[lambda _: ElicitResult(action="decline")] * 2])
    with on_http(tmp_path) as gateway:
        async with visiting(gateway, era, person, tmp_path / "data") as visit:
            result = await call(visit.client, "lab__ask", arguments, chat)
            assert not result.is_error, result
            ours, *theirs = [question.message for question in person.questions]
            assert ours.startswith("Run lab__ask?\n\nWhy: lab:ask always asks first\n")
            assert theirs == [labs.question("lab", f"edited {number}") for number in range(2)]
            [asked] = await visit.toolgate("approval", "list", "--all")
            record = await visit.record(asked["call_id"])
            assert (record["status"], record["args"]["name"]) == ("success", "edited")


@pytest.mark.slow
async def test_question_of_a_killed_process_is_answered_at_another(tmp_path: Path, chat: str) -> None:
    home = settled(tmp_path, SETTINGS)
    arguments = {"path": "a.txt", "content": "new"}
    meta = cast(RequestParamsMeta, {"dev.toolgate/chat": chat})
    with on_http(home) as second:
        with on_http(home) as first:
            async with visiting(first, MODERN, Person(), tmp_path / "data") as visit:
                await written(visit, chat)
                asked: Any = await visit.client.session.call_tool(
                    "write_file", arguments, meta=meta, allow_input_required=True
                )
            first.signal(9)
            first.wait()
        form = asked.input_requests["approval"].params.model_dump(by_alias=True, mode="json")
        answers: Any = {"approval": choose("approve once")(form)}
        async with visiting(second, MODERN, Person(), tmp_path / "data") as visit:
            for expected in (False, True):  # and once only
                result: Any = await visit.client.session.call_tool(
                    "write_file",
                    arguments,
                    input_responses=answers,
                    request_state=asked.request_state,
                    meta=meta,
                )
                assert result.is_error is expected
            assert await content(visit, chat) == "new"


@pytest.mark.slow
def test_a_key_that_is_too_short_is_refused_at_the_start(tmp_path: Path) -> None:
    settled(tmp_path, {"approval": {"keys": ["too short"]}})
    command = serve_command(tmp_path / "data")
    done = subprocess.run(
        command, input=b"", capture_output=True, env=environment(tmp_path), cwd=tmp_path, timeout=PATIENCE, check=False
    )
    assert done.returncode == 1
    assert b"toolgate: INVALID_CONFIG: approval.keys: key 1 has fewer than 32 bytes" in done.stderr
