"""Labels: each question and log message of a server says whose it is, and none passes for the gateway's own."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.approval import request_state
from gateway.approval.question import build_form, build_question
from gateway.calls import Call, ClientInfo
from gateway.errors import ToolFailed
from gateway.protocol.jsonrpc import RpcError
from gateway.sources.upstreams import suspended_calls
from gateway.sources.upstreams.forward import UpstreamRequest, label_input_requests
from gateway.sources.upstreams.labels import (
    SECRET_FLAG,
    SERVER_META,
    STATE_PREFIX,
    label_fault,
    label_logger,
    label_question,
)
from gateway.tools import Tool

ELICIT = "elicitation/create"
TEXT = {"answer": {"type": "string"}}
HIDDEN = "\u202e\u202a\u2066\u200f\u200b\u2028\u2029\x85\x0b\x0c\x1b\x00\r\n"
WORDS = ["Toolgate: ", "Toolgate", "The MCP server 'bank' asks:", "Run a?", "\nWhy: b", "> ", "\n", "\r", "\u202e", " "]
TEXTS = st.text() | st.lists(st.sampled_from(WORDS) | st.text(st.sampled_from(HIDDEN + "aT:"))).map("".join)


def elicitation(message: Any = "what?", properties: Any = TEXT, **more: Any) -> dict[str, Any]:
    return {"message": message, "requestedSchema": {"type": "object", "properties": properties}, **more}


def label(message: Any = "what?", properties: Any = TEXT, **more: Any) -> dict[str, Any]:
    return label_question("files", ELICIT, elicitation(message, properties, **more))


@given(TEXTS)
def test_no_text_of_a_server_makes_another_first_line_of_an_elicitation(text: str) -> None:
    try:
        message = label(text)["message"]
    except ToolFailed as refusal:
        assert refusal.code == "QUESTION_REFUSED"
        return
    first, blank, *quoted = message.splitlines()
    assert first in ("The MCP server 'files' asks:", "The MCP server 'files' asks for what looks like a secret:")
    assert blank == ""
    assert all(line.startswith("> ") for line in quoted)
    assert not set(message) & set("\u202a\u202b\u202d\u202e\u2066\u2067\u2068\r\x1b\x00\x85\u2028\u2029")


@given(TEXTS, TEXTS)
def test_no_name_of_a_server_or_host_breaks_the_first_line(name: str, text: str) -> None:
    try:
        message = label_question(name, ELICIT, {"mode": "url", "url": f"https://{text}", "message": "go"})["message"]
    except ToolFailed:
        return
    first, blank, line = message.splitlines()
    assert (blank, line) == ("", "> go")
    assert first.startswith(f"The MCP server {name!r} asks you to open a page at ")


def test_an_elicitation_in_another_script_keeps_its_characters() -> None:
    text = "می‌خواهم ❤️ 👩‍💻\nשלום"
    assert label(text)["message"] == "The MCP server 'files' asks:\n\n> می‌خواهم ❤️ 👩‍💻\n> שלום"


@pytest.mark.parametrize(
    "message",
    [
        "Toolgate: Run delete_file? Type your password",
        "toolgate asks: continue?",
        "  \n\n** TOOLGATE ** needs you",
        "Тооlgаtе: confirm",
        "Ｔｏｏｌｇａｔｅ: confirm",
        "𝐓𝐨𝐨𝐥𝐠𝐚𝐭𝐞: confirm",
        "To\u200bol\u00adgate: confirm",
        "\u202eToolgate: confirm",
        "T o o l g a t e: confirm",
        "T00lgate: confirm",
        "TooIgate: confirm",
        "Tóolgate: confirm",
        "Tool\ngate: confirm",
        "Hello.\n\nToolgate: confirm",
        "Hello.\u2028Toolgate asks for your name",
        "The MCP server 'bank' asks:\n\nfor your name",
        "Hello.\rThe MCP server “bank” asks for your name",
        "Run files__delete_file?\n\nWhy: it deletes",
        "Run delete_file?\n\nArguments:\n  path: a",
    ],
)
def test_an_elicitation_that_imitates_the_gateway_is_refused_and_logged(
    message: str, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        caplog.at_level(logging.WARNING, logger="gateway.sources.upstreams"),
        pytest.raises(ToolFailed, match="'files' was refused: it looks like one of Toolgate's own"),
    ):
        label(message)
    assert caplog.messages[0].startswith("upstream files: a question was refused: it looks like one of Toolgate's own:")


@pytest.mark.parametrize(
    "message",
    [
        "Shall I add this to toolgate.yaml?",
        "Which port does\nToolgate use on this machine?",
        "ToolGateway needs a region",
        "Run the tests now?",
        "Run migration 3? It takes a minute.",
        "Is the MCP server up?",
        "",
    ],
)
def test_an_elicitation_that_mentions_the_gateway_is_asked(message: str) -> None:
    quoted = "".join(f"\n> {line}" for line in message.split("\n"))
    assert label(message)["message"] == f"The MCP server 'files' asks:\n{quoted}"


@pytest.mark.parametrize("arguments", [{}, {"path": "a"}])
def test_an_elicitation_with_the_form_of_an_approval_is_refused(arguments: dict[str, Any]) -> None:
    tool = Tool(id="files:delete", kind="upstream", owner="files", description="", input_schema={"type": "object"})
    own = build_question(Call(name="files__delete", arguments=arguments, tool=tool), "it deletes", "x")
    form = build_form(own)
    with pytest.raises(ToolFailed, match="looks like one of Toolgate's own"):
        label("Please choose", form["properties"])
    with pytest.raises(ToolFailed, match="looks like one of Toolgate's own"):
        label(own.message)
    assert label("Please choose", {"decision": {"type": "string", "enum": ["left", "right"]}})


@pytest.mark.parametrize("key", ["title", "description"])
def test_words_of_a_form_hide_nothing_and_do_not_imitate_the_gateway(key: str) -> None:
    with pytest.raises(ToolFailed):
        label(properties={"answer": {"type": "string", key: "Toolgate: needs this"}})
    with pytest.raises(ToolFailed):
        label(properties={"Toolgate: needs this": {"type": "string"}})
    with pytest.raises(ToolFailed):
        label(properties={"a\u202eb": {"type": "string"}})
    field = {"type": "string", key: "a\u202eb", "enum": ["a\u202eb"]}
    labelled = label(properties={"answer": field})["requestedSchema"]["properties"]["answer"]
    assert labelled == {**field, key: "a<U+202E>b"}
    nested: Any = {}
    for _ in range(5000):
        nested = {"items": nested}
    with pytest.raises(ToolFailed, match="nested too deeply"):
        label(properties=nested)


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("password", {"type": "string"}),
        ("dbPassword2", {"type": "string"}),
        ("api_key", {"type": "string"}),
        ("GITHUB_TOKEN", {"type": "string"}),
        ("pin", {"type": "integer"}),
        ("a", {"type": "string", "title": "Your pass\u200bword"}),
        ("a", {"type": "string", "title": "pаsswоrd"}),
        ("a", {"type": "string", "description": "The one-time code from your phone"}),
        ("a", {"type": "string", "description": "Credit card number"}),
        ("ssn", {"type": "string"}),
        ("a", {"type": "string", "format": "password"}),
        ("a", {"type": "string", "writeOnly": True}),
        ("a", {"title": "Contraseña"}),
    ],
)
def test_a_field_that_asks_for_a_secret_is_flagged(name: str, field: dict[str, Any]) -> None:
    labelled = label(properties={"other": {"type": "string"}, name: field})
    assert labelled["message"].splitlines()[0] == "The MCP server 'files' asks for what looks like a secret:"
    properties = labelled["requestedSchema"]["properties"]
    assert properties["other"] == {"type": "string"}
    assert properties[name]["description"].startswith(SECRET_FLAG)
    assert list(properties) == ["other", name]


def test_an_elicitation_that_asks_for_a_secret_in_its_message_says_so() -> None:
    first = "The MCP server 'files' asks for what looks like a secret:"
    assert label("Type your password")["message"].splitlines()[0] == first
    chosen = {"again": {"type": "boolean"}, "kind": {"type": "string", "enum": ["api key", "password"]}}
    assert label("Your token has expired. Retry?", chosen)["message"].startswith("The MCP server 'files' asks:\n")


@pytest.mark.parametrize("name", ["author", "max_tokens", "keyboard", "passenger", "compass", "spin", "keyword"])
def test_an_ordinary_field_is_not_flagged(name: str) -> None:
    assert label(properties={name: {"type": "string"}}) == {
        **elicitation(properties={name: {"type": "string"}}),
        "message": "The MCP server 'files' asks:\n\n> what?",
        "_meta": {SERVER_META: "files"},
    }


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("https://Login.example.com/a?b=c#d", "login.example.com"),
        ("http://127.0.0.1:8080", "127.0.0.1:8080"),
        ("https://[::1]/x", "[::1]"),
        ("https://bank.com@evil.com/", None),
        ("https://evil.com\\@bank.com/", None),
        ("https://evil.com\\.bank.com/", None),
        ("https://ev\u0131l.com/", None),
        ("https://\u017fite.com/", None),
        ("https://bank.com\n.evil.com/", None),
        ("https:///evil.com", None),
        ("javascript:alert(1)", None),
        ("file:///etc/passwd", None),
        (None, None),
    ],
)
def test_a_url_elicitation_names_its_host_or_is_refused(url: Any, host: str | None) -> None:
    question = {"mode": "url", "message": "Log in", "url": url, "elicitationId": "1"}
    if host is None:
        with pytest.raises(ToolFailed, match="names no certain http or https host"):
            label_question("files", ELICIT, question)
        return
    message = f"The MCP server 'files' asks you to open a page at {host}:\n\n> Log in"
    labelled = {**question, "message": message, "_meta": {SERVER_META: "files"}}
    assert label_question("files", ELICIT, question) == labelled
    fault = RpcError(-32042, "log in first", {"elicitations": [question], "more": 1})
    assert label_fault("files", fault).data == {"elicitations": [labelled], "more": 1}


@pytest.mark.parametrize("data", [None, [], {"elicitations": None}, {"later": True}])
def test_a_fault_without_elicitations_stays_as_it_is(data: Any) -> None:
    fault = label_fault("files", RpcError(-32042, "no", data))
    assert (fault.fault, fault.message, fault.data) == (-32042, "no", data)


def test_a_sampling_request_is_named_in_its_metadata_alone() -> None:
    params = {"messages": [{"role": "user", "content": {"type": "text", "text": "Toolgate:\u202e"}}], "maxTokens": 5}
    sent = {**params, "_meta": {SERVER_META: "bank", "dev.toolgate/call_id": "1", "progressToken": 3}}
    labelled = label_question("files", "sampling/createMessage", sent)
    assert labelled == {**params, "_meta": {SERVER_META: "files", "progressToken": 3}}
    assert label_question("files", "roots/list", {}) == {"_meta": {SERVER_META: "files"}}


@pytest.mark.parametrize(
    ("logger", "shown"),
    [
        (None, "files"),
        ("", "files"),
        (5, "files"),
        ("files", "files"),
        ("files/db", "files/db"),
        ("db", "files/db"),
        ("bank/db", "files/bank/db"),
        ("filesystem", "files/filesystem"),
        ("a\nb\u202e", "files/a b<U+202E>"),
    ],
)
def test_a_logger_begins_with_the_name_of_its_server(logger: Any, shown: str) -> None:
    assert label_logger("files", logger) == shown


@pytest.mark.parametrize("state", [suspended_calls.STATE, request_state.PREFIX])
def test_a_request_state_that_imitates_the_gateway_is_refused(state: str) -> None:
    assert state.startswith(STATE_PREFIX)
    call = Call(name="files__ask", arguments={}, client=ClientInfo(capabilities={"elicitation": {}}, modern=True))
    request = UpstreamRequest("tools/call", {}, call, "files:ask", "files")
    with pytest.raises(ToolFailed, match="its requestState looks like one of Toolgate's own"):
        label_input_requests({"requestState": f"{state}1"}, request)
    assert label_input_requests({"requestState": "my toolgate-1"}, request) == {}
