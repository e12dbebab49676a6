"""The resources and prompts the suite reads, by the names it gives them."""

from __future__ import annotations

import json

import mcp_types as types
from mcp.server.subscriptions import PromptsListChanged
from mcp.shared.exceptions import MCPError
from mcp.shared.uri_template import UriTemplate

from .asking import Call, Context, form, is_modern
from .changes import CHANGES
from .media import IMAGE, PNG, embedded

# The handshake era's code for it; 2026-07-28 has -32602.
RESOURCE_NOT_FOUND = -32002

TEMPLATE = "test://template/{id}/data"
WORDS = ["paris", "park", "party", "test", "testing"]

CONTENTS: dict[str, types.TextResourceContents | types.BlobResourceContents] = {
    "test://static-text": types.TextResourceContents(
        uri="test://static-text", mime_type="text/plain", text="This is the content of the static text resource."
    ),
    "test://static-binary": types.BlobResourceContents(uri="test://static-binary", mime_type="image/png", blob=PNG),
    "test://watched-resource": types.TextResourceContents(
        uri="test://watched-resource", mime_type="text/plain", text="Watched resource content"
    ),
}


def _argument(name: str, description: str) -> types.PromptArgument:
    return types.PromptArgument(name=name, description=description, required=True)


PROMPTS = [
    types.Prompt(name="test_simple_prompt", description="A prompt without arguments."),
    types.Prompt(
        name="test_prompt_with_arguments",
        description="A prompt that names its arguments.",
        arguments=[_argument("arg1", "First test argument"), _argument("arg2", "Second test argument")],
    ),
    types.Prompt(
        name="test_prompt_with_embedded_resource",
        description="A prompt with a resource in it.",
        arguments=[_argument("resourceUri", "URI of the resource to embed")],
    ),
    types.Prompt(name="test_prompt_with_image", description="A prompt with an image in it."),
    types.Prompt(name="test_input_required_result_prompt", description="A prompt that asks for its context first."),
]


async def list_resources(_: Context, __: types.PaginatedRequestParams | None) -> types.ListResourcesResult:
    return types.ListResourcesResult(
        resources=[
            types.Resource(uri=uri, name=uri.removeprefix("test://"), description=f"{uri}.", mime_type=item.mime_type)
            for uri, item in CONTENTS.items()
        ]
    )


async def list_templates(_: Context, __: types.PaginatedRequestParams | None) -> types.ListResourceTemplatesResult:
    template = types.ResourceTemplate(
        uri_template=TEMPLATE, name="template", description="Data by its id.", mime_type="application/json"
    )
    return types.ListResourceTemplatesResult(resource_templates=[template])


async def read_resource(ctx: Context, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
    if (found := CONTENTS.get(params.uri)) is not None:
        return types.ReadResourceResult(contents=[found])
    if (matched := UriTemplate.parse(TEMPLATE).match(params.uri)) is not None:
        text = json.dumps({"id": matched["id"], "templateTest": True, "data": f"Data for ID: {matched['id']}"})
        contents = types.TextResourceContents(uri=params.uri, mime_type="application/json", text=text)
        return types.ReadResourceResult(contents=[contents])
    code = types.INVALID_PARAMS if is_modern(ctx) else RESOURCE_NOT_FOUND
    raise MCPError(code, "Resource not found", {"uri": params.uri})


async def subscribe(_: Context, __: types.SubscribeRequestParams) -> types.EmptyResult:
    return types.EmptyResult()


async def unsubscribe(_: Context, __: types.UnsubscribeRequestParams) -> types.EmptyResult:
    return types.EmptyResult()


async def list_prompts(_: Context, __: types.PaginatedRequestParams | None) -> types.ListPromptsResult:
    """Every prompt; the first says how often the list has changed, so that it did change."""
    first, *others = PROMPTS
    changes = f" The list has changed {CHANGES.count(PromptsListChanged)} times."
    changed = first.model_copy(update={"description": f"{first.description}{changes}"})
    return types.ListPromptsResult(prompts=[changed, *others])


async def get_prompt(call: Call, name: str) -> types.GetPromptResult:
    match name:
        case "test_simple_prompt":
            return _prompt("This is a simple prompt for testing.")
        case "test_prompt_with_arguments":
            given = {argument: call.arguments.get(argument, "") for argument in ("arg1", "arg2")}
            return _prompt(f"Prompt with arguments: arg1='{given['arg1']}', arg2='{given['arg2']}'")
        case "test_prompt_with_embedded_resource":
            uri = str(call.arguments.get("resourceUri", "test://embedded-resource"))
            resource = embedded(uri, "Embedded resource content for testing.")
            return _prompt(resource, "Please process the embedded resource above.")
        case "test_prompt_with_image":
            return _prompt(IMAGE, "Please analyze the image above.")
        case "test_input_required_result_prompt":
            question = form("What context should the prompt use?", {"context": {"type": "string"}})
            answer = (await call.ask({"user_context": question}))["user_context"]
            return _prompt(f"Use this context: {json.dumps(answer.get('content'))}")
    raise MCPError(types.INVALID_PARAMS, f"Unknown prompt: {name}")


async def complete(_: Context, params: types.CompleteRequestParams) -> types.CompleteResult:
    values = [word for word in WORDS if word.startswith(params.argument.value)]
    return types.CompleteResult(completion=types.Completion(values=values, total=len(values), has_more=False))


def _prompt(*parts: str | types.ContentBlock) -> types.GetPromptResult:
    contents = [types.TextContent(text=part) if isinstance(part, str) else part for part in parts]
    return types.GetPromptResult(messages=[types.PromptMessage(role="user", content=item) for item in contents])
