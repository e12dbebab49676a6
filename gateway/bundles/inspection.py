"""What a toolset's code says of its tools: who finds out, and how much of it is believed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Protocol

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gateway.bundles.archive import Bundle, module_file
from gateway.bundles.field_types import Category, Line, Prose, Seconds
from gateway.bundles.kinds import ObjectSchema, PythonTool, Schema
from gateway.bundles.spec import Toolset
from gateway.calls import Progress, to_json
from gateway.errors import Invalid
from gateway.tools import Access, Permission

DESCRIPTION_LIMIT = 256 * 1024
DESCRIPTIONS_LIMIT = 4 * 1024 * 1024
_PROBLEM_LIMIT = 500


class Inspector(Protocol):
    """Loads a toolset's code where it can do no harm, and asks it what its tools are."""

    async def describe(
        self, spec: Toolset, directory: Path, progress: Progress
    ) -> Mapping[str, Mapping[str, Any] | str]:
        """For each Python tool by its id: what its code says of it (`Description`), or in words why its
        entrypoint cannot be loaded. The directory is only read. `Invalid` refuses the whole toolset."""
        ...


class Description(BaseModel):
    """What code may say of a tool; data from strangers, and whatever else they say is passed over."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    name: Line | None = None
    description: Prose | None = None
    input_schema: ObjectSchema
    output_schema: Schema | None = None
    requires_confirmation: bool | None = None
    category: Category | None = None
    permission: Permission | None = None
    access: Access | None = None
    timeout: Seconds | None = None
    destructive: bool | None = None
    idempotent: bool | None = None
    open_world: bool | None = None
    tags: Annotated[tuple[Line, ...], Field(max_length=32)] = ()


async def inspect(
    inspector: Inspector, bundle: Bundle, directory: Path, progress: Progress
) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """What the code of each Python tool says, and the problem of each that says nothing; the tools whose
    code is not there are among the latter. Refused when a tool is described as none could be."""
    present = [tool for tool in bundle.spec.tools if tool.id not in bundle.absent]
    wanted = {tool.id for tool in present if isinstance(tool, PythonTool)}
    toolset = bundle.spec.model_copy(update={"tools": tuple(present)})
    answers = await inspector.describe(toolset, directory, progress) if wanted else {}
    described: dict[str, dict[str, Any]] = {}
    problems: dict[str, str] = dict(bundle.absent)
    size = 0
    for index, tool in enumerate(bundle.spec.tools):
        answer = answers.get(tool.id, "its code was not found") if tool.id in wanted else None
        if isinstance(answer, str):
            problems[tool.id] = " ".join(answer.split())[:_PROBLEM_LIMIT] or "its code cannot be loaded"
        elif answer is not None:
            described[tool.id] = _checked(answer, bundle, index)
            size += len(to_json(described[tool.id]))
    if size > DESCRIPTIONS_LIMIT:
        raise bundle.refusal(f"its tools describe themselves in more than {DESCRIPTIONS_LIMIT} bytes", "tools")
    return described, problems


def has_vanished(tool: PythonTool, bundle: Bundle) -> bool:
    """Whether the function of a tool is gone, rather than there and broken: its module is not in the
    bundle, or does not so much as mention it."""
    path = module_file(tool.entrypoint, bundle.files)
    if path is None:
        return True
    function = tool.entrypoint.rpartition(":")[2]
    return not re.search(rf"\b{re.escape(function)}\b", bundle.files[path].read().decode(errors="replace"))


def _checked(said: Mapping[str, Any], bundle: Bundle, index: int) -> dict[str, Any]:
    try:
        content = to_json(dict(said))
        if len(content) > DESCRIPTION_LIMIT:
            raise Invalid(f"it is longer than {DESCRIPTION_LIMIT} bytes")
        return Description.model_validate_json(content).model_dump(mode="json", exclude_none=True)
    except Invalid as error:
        reason = error.message
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        reason = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    raise bundle.refusal(f"what its code says of it is refused: {reason}", "tools", index)
