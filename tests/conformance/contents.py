"""Everything the conformance server lists and answers without asking, as one value to compare."""

from __future__ import annotations

import json
import re
from typing import Any

from mcp import Client
from pydantic import BaseModel

ANSWERING = [
    "test_simple_text",
    "test_image_content",
    "test_audio_content",
    "test_embedded_resource",
    "test_multiple_content_types",
    "test_error_handling",
]
URIS = ["test://static-text", "test://static-binary", "test://template/123/data"]
PROMPTS: dict[str, dict[str, str]] = {
    "test_simple_prompt": {},
    "test_prompt_with_arguments": {"arg1": "hello", "arg2": "world"},
    "test_prompt_with_embedded_resource": {"resourceUri": "test://example-resource"},
    "test_prompt_with_image": {},
}


async def seen(client: Client) -> dict[str, Any]:
    """What a client sees, by where it looked; a gateway may add to the lists and to `_meta`, and change nothing."""
    tools = {f"tool {tool.name}": _plain(tool) for tool in (await client.list_tools()).tools}
    resources = {f"resource {item.uri}": _plain(item) for item in (await client.list_resources()).resources}
    listed = (await client.list_resource_templates()).resource_templates
    templates = {f"template {template.uri_template}": _plain(template) for template in listed}
    prompts = {f"prompt {prompt.name}": _plain(prompt) for prompt in (await client.list_prompts()).prompts}
    answers = {f"call {name}": _answer(await client.call_tool(name, {})) for name in ANSWERING}
    contents = {f"read {uri}": _answer(await client.read_resource(uri)) for uri in URIS}
    messages = {f"get {name}": _answer(await client.get_prompt(name, given)) for name, given in PROMPTS.items()}
    return {**tools, **resources, **templates, **prompts, **answers, **contents, **messages}


def _plain(value: BaseModel) -> Any:
    # How often a list has changed says nothing about the hop.
    return json.loads(re.sub(r"\d+ times", "many times", value.model_dump_json(by_alias=True, exclude_none=True)))


def _answer(result: BaseModel) -> dict[str, Any]:
    """Without what each hop says of itself and of how long the answer may be kept."""
    own = {"_meta", "ttlMs", "cacheScope"}
    return {name: value for name, value in _plain(result).items() if name not in own}
