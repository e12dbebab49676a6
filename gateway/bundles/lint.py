"""Mistakes of toolset authors that are no errors: the toolset can be installed, but does not do what they expect."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gateway.bundles.field_types import iterate_texts
from gateway.bundles.installed import InstalledTool, InstalledToolset
from gateway.bundles.tool_kinds import SEARCH_PATH, BuiltinTool, PythonTool, ShellTool, StepsTool, ToolSpec
from gateway.tools import Access, Permission, Tool

# Keys of a schema that say which values are allowed.
_TYPED = frozenset({"type", "anyOf", "oneOf", "allOf", "$ref", "enum", "const", "not"})
# `{name}`, `$name` and `$args.name`, which some other programs fill; here only `${name}` is filled.
_LOOKS_FILLED = re.compile(r"(?<!\$)\{\s*(\w+)\s*\}|\$(?:args\.)?(\w+)")
# In the config of a renderer, where `$args.name` is filled.
_NOT_FILLED = re.compile(r"\$\{[^}]*\}|(?<!\$)\$(?!\$|(?:chat_id|workspace|toolset|args|return)\b)\w+|\{\{.*?\}\}")


def lint(toolset: InstalledToolset, tools: Sequence[Tool]) -> Iterator[str]:
    """Yield a sentence for each mistake; `tools` are the toolset's tools as they are offered."""
    if not toolset.spec.tools and not toolset.spec.mcp_servers:
        yield "it has no tools yet; name each under 'tools'"
    offered = {tool.id: tool for tool in tools}
    for item in toolset.tools:
        tool = offered.get(item.id)
        if tool is not None and not isinstance(item.spec, BuiltinTool):
            checks = (
                _check_texts(item.spec, tool),
                _check_use(item.spec, tool),
                _check_levels(toolset.spec.permission, item, tool),
                _check_renderer(tool),
                _check_program(item.spec, toolset.directory),
            )
            yield from (f"{item.spec.id}: {text}" for found in checks for text in found)


def _check_texts(spec: ToolSpec, tool: Tool) -> Iterator[str]:
    code = isinstance(spec, PythonTool)
    if not tool.description.strip():
        place = "write a docstring" if code else "write a 'description'"
        yield f"it has no description, so the model does not know what it is for; {place}"
    properties = _properties(tool)
    untyped = [name for name, schema in properties.items() if not _TYPED.intersection(schema)]
    if untyped:
        place = f"write a type hint, such as '{untyped[0]}: str'" if code else "write its 'type' in input_schema"
        yield f"{_arguments(untyped)} may have any value; {place}"
    silent = [name for name, schema in properties.items() if not schema.get("description")]
    if silent and tool.description.strip():
        place = "describe each under 'Args:' in the docstring" if code else "write its 'description' in input_schema"
        yield f"the model is told nothing about {_arguments(silent)}; {place}"


def _check_use(spec: ToolSpec, tool: Tool) -> Iterator[str]:
    """Find arguments that a tool without code never uses, and texts that look like an argument and are none."""
    if isinstance(spec, PythonTool):
        return
    properties = _properties(tool)
    used = {name for _, name in spec.placeholders()}
    texts: list[str] = []
    if isinstance(spec, ShellTool):
        texts = [*spec.command, *spec.env.values(), *([spec.stdin] if spec.stdin else [])]
    elif isinstance(spec, StepsTool):
        calls = [call for step in spec.steps for call in step.calls()]
        written = " ".join(iterate_texts([[[call.args, call.for_each] for call in calls], spec.result]))
        conditions = " ".join(step.when or "" for each in spec.steps for step in (each, *(each.parallel or ())))
        whole = re.search(r"\$args(?![.\w])", written) or re.search(r"\bargs(?!\.?\w)", conditions)
        names = [*re.findall(r"\$args\.(\w+)", written), *re.findall(r"\bargs\.(\w+)", conditions)]
        used = set(properties) if whole else set(names)
    for text in texts:
        for match in _LOOKS_FILLED.finditer(text):
            name = match[1] or match[2]
            # A whole element `{name}` without a schema is a mistake too, but it may also be a program for awk or jq.
            if name in properties or (match[0] == text and match[1] and spec.input_schema is None and not used):
                used.add(name)
                yield f"{match[0]!r} is passed on as it is; write ${{{name}}} for the argument"
    unused = [name for name in properties if name not in used]
    if unused and (texts or used):
        value = f"$args.{unused[0]}" if isinstance(spec, StepsTool) else f"${{{unused[0]}}}"
        yield f"nothing uses {_arguments(unused)}; write {value} where the value belongs, or remove it"


def _check_levels(level: Permission | None, item: InstalledTool, tool: Tool) -> Iterator[str]:
    if level is not None and item.spec.permission is None and not level.allows(tool.permission):
        yield (
            f"its code needs {tool.permission.value}, and the toolset's 'permission' is {level.value}; "
            "the code's level applies: change one of them"
        )
    if tool.permission is Permission.READ_ONLY and item.get_field("access") == Access.WRITE:
        yield "its level is read-only, so it cannot write files; declare access: read, or the level read-write"
    if tool.permission is Permission.READ_ONLY and tool.destructive:
        yield "its level is read-only, and it is declared destructive; change one of them"


def _check_renderer(tool: Tool) -> Iterator[str]:
    for text in iterate_texts(tool.renderer.config if tool.renderer is not None else None):
        if match := _NOT_FILLED.search(text):
            yield f"{match[0]!r} in its renderer is shown as it is; write $args.NAME for an argument, or $return"


def _check_program(spec: ToolSpec, home: Path) -> Iterator[str]:
    if not isinstance(spec, ShellTool):
        return
    program = spec.command[0]
    if program.startswith("./"):
        if not (home / program).is_file():
            yield f"the toolset has no program {program!r}; add the file, or correct 'command'"
    elif "${" not in program and shutil.which(program, path=SEARCH_PATH) is None:
        yield f"there is no program {program!r} on this machine; install it, or correct 'command'"


def _properties(tool: Tool) -> Mapping[str, Mapping[str, Any]]:
    properties = tool.input_schema.get("properties", {})
    return {name: schema for name, schema in properties.items() if isinstance(schema, Mapping)}


def _arguments(names: Sequence[str]) -> str:
    return f"the argument{'s' * (len(names) > 1)} {', '.join(map(repr, names))}"
