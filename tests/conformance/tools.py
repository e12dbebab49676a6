"""The tools the suite calls, by the names it gives them."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import anyio
import mcp_types as types
from mcp.server.subscriptions import PromptsListChanged, ToolsListChanged

from .asking import NEEDS, Call, ToolFailed, form, sample
from .changes import CHANGES
from .media import IMAGE, SOUND, embedded

# Seconds between two messages of one call, as the suite describes them.
STEP = 0.05

Content = str | list[types.ContentBlock]
Run = Callable[[Call], Awaitable[Content]]


@dataclass(frozen=True)
class Entry:
    tool: types.Tool
    run: Run


TOOLS: dict[str, Entry] = {}


def tool(name: str, description: str, schema: dict[str, Any] | None = None) -> Callable[[Run], Run]:
    def register(run: Run) -> Run:
        shape = schema or {"type": "object", "properties": {}}
        TOOLS[name] = Entry(types.Tool(name=name, description=description, input_schema=shape), run)
        return run

    return register


def required(name: str, **details: str) -> dict[str, Any]:
    """The schema of a tool with one text that must be given."""
    return {"type": "object", "properties": {name: {"type": "string", **details}}, "required": [name]}


NAME = form("What is your name?", {"name": {"type": "string"}})
CONFIRM = form("Please confirm", {"ok": {"type": "boolean"}})


@tool("test_simple_text", "Answers with text.")
async def simple_text(_: Call) -> Content:
    return "This is a simple text response for testing."


@tool("test_image_content", "Answers with an image.")
async def image_content(_: Call) -> Content:
    return [IMAGE]


@tool("test_audio_content", "Answers with a sound.")
async def audio_content(_: Call) -> Content:
    return [SOUND]


@tool("test_embedded_resource", "Answers with a resource.")
async def embedded_resource(_: Call) -> Content:
    return [embedded("test://embedded-resource", "This is an embedded resource content.")]


@tool("test_multiple_content_types", "Answers with text, an image and a resource.")
async def multiple_content_types(_: Call) -> Content:
    data = json.dumps({"test": "data", "value": 123})
    mixed = embedded("test://mixed-content-resource", data, "application/json")
    return [types.TextContent(text="Multiple content types test:"), IMAGE, mixed]


@tool("test_tool_with_logging", "Says three things to the log on its way.")
async def with_logging(call: Call) -> Content:
    await call.log("Tool execution started")
    await anyio.sleep(STEP)
    await call.log("Tool processing data")
    await anyio.sleep(STEP)
    await call.log("Tool execution completed")
    return "Tool with logging executed successfully"


@tool("test_logging_tool", "Says one thing to the log, which is heard only where the log was asked for.")
async def logging_tool(call: Call) -> Content:
    await call.log("Tool called")
    return "Logged"


@tool("test_tool_with_progress", "Reports its progress.")
async def with_progress(call: Call) -> Content:
    for done in (0, 50, 100):
        await call.ctx.session.report_progress(done, 100)
        await anyio.sleep(STEP)
    return "Tool with progress executed successfully"


@tool("test_error_handling", "Always fails.")
async def error_handling(_: Call) -> Content:
    raise ToolFailed("This tool intentionally returns an error for testing")


@tool("test_sampling", "Has the client's model answer.", required("prompt", description="The prompt for the model"))
async def sampling(call: Call) -> Content:
    answers = await call.ask({"sample": sample(str(call.arguments.get("prompt")))})
    return f"LLM response: {answers['sample']['content']['text']}"


@tool("test_elicitation", "Asks the user.", required("message", description="The message for the user"))
async def elicitation(call: Call) -> Content:
    fields = {
        "username": {"type": "string", "description": "User's response"},
        "email": {"type": "string", "description": "User's email address"},
    }
    answers = await call.ask({"user": form(str(call.arguments.get("message")), fields)})
    return f"User response: {_told(answers['user'])}"


@tool("test_elicitation_sep1034_defaults", "Asks the user, with a default for every kind of field.")
async def elicitation_defaults(call: Call) -> Content:
    fields = {
        "name": {"type": "string", "default": "John Doe"},
        "age": {"type": "integer", "default": 30},
        "score": {"type": "number", "default": 95.5},
        "status": {"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
        "verified": {"type": "boolean", "default": True},
    }
    answers = await call.ask({"user": form("Please review the defaults", fields, required=[])})
    return f"Elicitation completed: {_told(answers['user'])}"


@tool("test_elicitation_sep1330_enums", "Asks the user, with every kind of choice.")
async def elicitation_enums(call: Call) -> Content:
    options = ["option1", "option2", "option3"]
    titled = [{"const": f"value{n}", "title": f"{nth} Option"} for n, nth in enumerate(("First", "Second", "Third"), 1)]
    fields = {
        "untitledSingle": {"type": "string", "enum": options},
        "titledSingle": {"type": "string", "oneOf": titled},
        "legacyEnum": {"type": "string", "enum": ["opt1", "opt2"], "enumNames": ["Option One", "Option Two"]},
        "untitledMulti": {"type": "array", "items": {"type": "string", "enum": options}},
        "titledMulti": {"type": "array", "items": {"anyOf": titled}},
    }
    answers = await call.ask({"user": form("Please choose", fields, required=[])})
    return f"Elicitation completed: {_told(answers['user'])}"


@tool("test_reconnection", "Closes its stream mid-call; the client comes back for the answer.")
async def reconnection(call: Call) -> Content:
    if call.ctx.close_sse_stream is not None:
        await call.ctx.close_sse_stream()
    await anyio.sleep(2 * STEP)
    return "Reconnection test completed successfully"


@tool("test_missing_capability", "Runs only for a client that offers sampling.")
async def missing_capability(call: Call) -> Content:
    call.require("sampling")
    return "The client offers sampling"


@tool("test_streaming_elicitation", "Asks the user, on the call's own stream.")
async def streaming_elicitation(call: Call) -> Content:
    answers = await call.ask({"user_name": NAME})
    return f"Elicitation completed: {_told(answers['user_name'])}"


@tool("test_input_required_result_elicitation", "Greets the user after asking for a name.")
async def input_elicitation(call: Call) -> Content:
    answers = await call.ask({"user_name": NAME})
    return f"Hello, {answers['user_name'].get('content', {}).get('name', 'stranger')}!"


@tool("test_input_required_result_sampling", "Has the client's model name a capital.")
async def input_sampling(call: Call) -> Content:
    answers = await call.ask({"capital_question": sample("What is the capital of France?")})
    return str(answers["capital_question"]["content"]["text"])


@tool("test_input_required_result_list_roots", "Lists the client's roots.")
async def input_roots(call: Call) -> Content:
    answers = await call.ask({"client_roots": types.ListRootsRequest()})
    return ", ".join(root["uri"] for root in answers["client_roots"]["roots"])


@tool("test_input_required_result_request_state", "Asks, and answers only when its state comes back.")
async def input_request_state(call: Call) -> Content:
    await call.ask({"confirm": CONFIRM}, remember=True)
    return "state-ok"


@tool("test_input_required_result_tampered_state", "Asks, and refuses a state it did not seal.")
async def input_tampered_state(call: Call) -> Content:
    await call.ask({"confirm": CONFIRM}, remember=True)
    return "state-ok"


@tool("test_input_required_result_multiple_inputs", "Asks the user, the model and for the roots at once.")
async def input_multiple(call: Call) -> Content:
    greeting = sample("Generate a greeting", 50)
    roots = types.ListRootsRequest()
    answers = await call.ask({"user_name": NAME, "greeting": greeting, "client_roots": roots}, remember=True)
    return ", ".join(answers)


@tool("test_input_required_result_multi_round", "Asks twice, one after the other.")
async def input_multi_round(call: Call) -> Content:
    name = form("Step 1: What is your name?", {"name": {"type": "string"}})
    first = await call.ask({"step1": name}, remember=True)
    color = form("Step 2: What is your favorite color?", {"color": {"type": "string"}})
    second = await call.ask({"step2": color}, remember=True)
    return f"{_told(first['step1'])}; {_told(second['step2'])}"


@tool("test_input_required_result_capabilities", "Asks only what the client can answer.")
async def input_capabilities(call: Call) -> Content:
    questions: dict[str, types.InputRequest] = {"user_name": NAME, "greeting": sample("Generate a greeting", 50)}
    offered = {name: question for name, question in questions.items() if call.offers(NEEDS[question.method])}
    return ", ".join(await call.ask(offered)) if offered else "The client can answer nothing"


@tool("test_trigger_tool_change", "Changes the list of tools.")
async def trigger_tool_change(_: Call) -> Content:
    await CHANGES.publish(ToolsListChanged())
    return "The list of tools has changed"


@tool("test_trigger_prompt_change", "Changes the list of prompts.")
async def trigger_prompt_change(_: Call) -> Content:
    await CHANGES.publish(PromptsListChanged())
    return "The list of prompts has changed"


@tool(
    "test_x_mcp_header",
    "Takes an argument that travels in a header too.",
    required("region", **{"x-mcp-header": "Region"}),
)
async def x_mcp_header(call: Call) -> Content:
    return f"Region: {call.arguments.get('region')}"


JSON_SCHEMA = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {
        "address": {
            "$anchor": "addressDef",
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
        }
    },
    "properties": {
        "name": {"type": "string"},
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": {"type": "string"},
        "email": {"type": "string"},
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}


@tool("json_schema_2020_12_tool", "Takes arguments whose schema uses what JSON Schema 2020-12 has.", JSON_SCHEMA)
async def json_schema_tool(call: Call) -> Content:
    return json.dumps(dict(call.arguments))


def listed() -> list[types.Tool]:
    """Every tool; the one that changes the list says how often it did, so that the list did change."""
    changes = f" It did so {CHANGES.count(ToolsListChanged)} times."
    return [
        entry.tool.model_copy(update={"description": f"{entry.tool.description}{changes}"})
        if name == "test_trigger_tool_change"
        else entry.tool
        for name, entry in TOOLS.items()
    ]


def _told(answer: dict[str, Any]) -> str:
    return f"action={answer['action']}, content={json.dumps(answer.get('content'))}"
