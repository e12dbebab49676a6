"""`docs/toolset-yaml.md` has every key of `toolset.yaml`, with the type and default of the models.

`TOOLGATE_WRITE_DOCS=1 pytest tests/bundles/test_reference.py` writes the tables again and keeps the descriptions.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gateway.bundles.spec import Toolset
from gateway.bundles.tool_kinds import ToolSpec

PAGE = Path(__file__).parents[2] / "docs" / "toolset-yaml.md"
SCHEMA = Toolset.model_json_schema(by_alias=False)
# Sections of the page by model, in their order.
SECTIONS = {
    "Toolset": "The file",
    "ToolSpec": "Every tool",
    "PythonTool": "`type: python`",
    "ShellTool": "`type: shell`",
    "BuiltinTool": "`type: builtin`",
    "HttpTool": "`type: http`",
    "StepsTool": "`type: steps`",
    "RendererSpec": "`renderer`",
    "ToolOverride": "`tool_overrides`",
    "Server": "`mcp_servers`",
    "ServerTools": "`tools` of a server",
    "SandboxRights": "`sandbox` of a server",
    "BearerAuth": "`auth` of type `bearer`",
    "BasicAuth": "`auth` of type `basic`",
    "ApiKeyAuth": "`auth` of type `api_key`",
    "HmacAuth": "`auth` of type `hmac`",
    "AwsAuth": "`auth` of type `aws`",
    "OAuth2Auth": "`auth` of type `oauth2`",
    "ResponseSpec": "`response`",
    "Parameter": "A parameter with a style",
    "PathStyle": "`path`",
    "Part": "`parts`",
    "Pagination": "`pagination`",
    "HttpDefaults": "`http` of a toolset",
    "RetrySpec": "`retry`",
    "Step": "`steps`",
}
_TABLE = re.compile(r"<!-- keys of (\w+) -->\n((?:\|.*\n)*)")


def describe_type(schema: dict[str, Any]) -> str:
    """Return a schema in a few words."""
    if "$ref" in schema:
        name = schema["$ref"].removeprefix("#/$defs/")
        definition = SCHEMA["$defs"][name]
        return describe_type(definition) if "enum" in definition else f"[{SECTIONS.get(name, name)}](#{anchor(name)})"
    if several := [each for each in schema.get("anyOf", schema.get("oneOf", ())) if each != {"type": "null"}]:
        return " or ".join(dict.fromkeys(map(describe_type, several)))
    if "const" in schema or "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema.get("enum", [schema.get("const")]))
    if schema.get("type") == "array":
        return f"list of {describe_type(schema['items'])}"
    if isinstance(values := schema.get("additionalProperties"), dict):
        return f"mapping to {describe_type(values)}"
    kind = str(schema.get("type", "any value"))
    return {"object": "mapping", "string": "text"}.get(kind, kind)


def anchor(model: str) -> str:
    """Return the anchor of a model's section, as GitHub makes it."""
    title = SECTIONS.get(model, model).lower()
    return re.sub(r"[^\w\- ]", "", title).replace(" ", "-")


def definitions() -> dict[str, dict[str, Any]]:
    """Return the schema of every mapping of the file, by model; a kind of tool without what all have."""
    every = {name: schema for name, schema in SCHEMA["$defs"].items() if schema.get("type") == "object"}
    every = {"Toolset": SCHEMA, "ToolSpec": ToolSpec.model_json_schema(by_alias=False), **every}
    shared = every["ToolSpec"]["properties"]
    for schema in [schema for name, schema in every.items() if name.endswith("Tool")]:
        schema["properties"] = {key: value for key, value in schema["properties"].items() if key not in shared}
    return {name: every[name] for name in sorted(every, key=[*SECTIONS, *sorted(every)].index)}


def rows(schema: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    for key, value in schema["properties"].items():
        given = value.get("default")
        shown = "" if given in (None, [], "") or isinstance(given, dict) else f"`{json.dumps(given)}`"
        yield f"`{key}`", describe_type(value), "required" if key in schema.get("required", ()) else shown


def read_page() -> dict[str, dict[str, tuple[str, str, str]]]:
    """Return the rows of each table, by model and key: type, default, description."""
    tables: dict[str, dict[str, tuple[str, str, str]]] = {}
    for match in _TABLE.finditer(PAGE.read_text()):
        cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in match[2].splitlines()[2:]]
        tables[match[1]] = {key: (kind, default, text) for key, kind, default, text in cells}
    return tables


def write_page() -> None:
    known = read_page()
    text = PAGE.read_text()
    for name in definitions():
        if f"<!-- keys of {name} -->" not in text:
            text += f"\n## {SECTIONS.get(name, name)}\n\n<!-- keys of {name} -->\n"

    def table(match: re.Match[str]) -> str:
        if match[1] not in definitions():
            return ""
        lines = ["| key | value | default | meaning |", "|---|---|---|---|"]
        for key, kind, default in rows(definitions()[match[1]]):
            lines.append(f"| {key} | {kind} | {default} | {known.get(match[1], {}).get(key, ('', '', ''))[2]} |")
        return "\n".join([f"<!-- keys of {match[1]} -->", *lines]) + "\n"

    PAGE.write_text(_TABLE.sub(table, text))


def test_reference_of_toolset_yaml_has_every_key_of_the_models() -> None:
    if os.environ.get("TOOLGATE_WRITE_DOCS"):
        write_page()
    page = read_page()
    assert page.keys() == definitions().keys()
    for name, schema in definitions().items():
        shown = {key: (kind, default) for key, (kind, default, _) in page[name].items()}
        assert shown == {key: (kind, default) for key, kind, default in rows(schema)}, name


def test_reference_of_toolset_yaml_describes_every_key() -> None:
    silent = [f"{name}.{key}" for name, table in read_page().items() for key, row in table.items() if not row[2]]
    assert silent == []


def test_reference_of_toolset_yaml_has_the_sections_it_links_to() -> None:
    titles = re.findall(r"^#+ (.+)$", PAGE.read_text(), re.MULTILINE)
    sections = {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
    assert set(re.findall(r"\]\(#([\w-]+)\)", PAGE.read_text())) <= sections
