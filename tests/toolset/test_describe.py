"""A function without the decorator: its schema may stand elsewhere, and its workspace is filled in."""

from pathlib import Path
from typing import Any

import pytest

from covalt_toolset import BadArguments, BadDefinition, ToolDescription, context, describe, invoke, tool

WRITE_SCHEMA = {
    "type": "object",
    "properties": {"path": {"type": "string"}, "content": {"type": "string"}},
    "required": ["path", "content"],
}


def write_file(workspace: Path, path: str, content: str = "") -> dict[str, Any]:
    """Write a file."""
    (workspace / path).write_text(content)
    return {"written": path}


WHERE = f"write_file ({__file__}:{write_file.__code__.co_firstlineno})"


def test_a_plain_function_is_described_by_its_signature() -> None:
    assert describe(write_file) == ToolDescription(
        name="write_file",
        description="Write a file.",
        input_schema={
            "type": "object",
            "properties": {"path": {"type": "string"}, "content": {"type": "string", "default": ""}},
            "required": ["path"],
            "additionalProperties": False,
        },
    )


def test_a_schema_from_elsewhere_is_taken_as_it_is() -> None:
    assert describe(write_file, WRITE_SCHEMA).input_schema == WRITE_SCHEMA


def test_a_schema_from_elsewhere_leaves_the_decorators_words_alone() -> None:
    @tool(name="Write", requires_confirmation=True)
    def write(path: str, content: str) -> None: ...

    description = describe(write, WRITE_SCHEMA)
    assert (description.name, description.requires_confirmation) == ("Write", True)
    assert description.input_schema == WRITE_SCHEMA


def test_the_workspace_is_filled_from_the_context(tmp_path: Path) -> None:
    with context(tmp_path):
        assert invoke(write_file, {"path": "a", "content": "x"}) == {"written": "a"}
    assert (tmp_path / "a").read_text() == "x"


def test_a_workspace_without_annotation_is_filled_too(tmp_path: Path) -> None:
    def where(workspace):  # type: ignore[no-untyped-def]
        return workspace

    assert describe(where).input_schema["properties"] == {}
    with context(tmp_path):
        assert invoke(where, {}) == str(tmp_path)


def test_a_workspace_that_is_a_text_or_stands_later_is_an_argument() -> None:
    def named(workspace: str) -> str:
        return workspace

    def later(path: str, workspace: Path) -> str:
        return path

    assert list(describe(named).input_schema["properties"]) == ["workspace"]
    assert list(describe(later).input_schema["properties"]) == ["path", "workspace"]
    assert invoke(named, {"workspace": "w"}) == "w"


def test_a_client_cannot_send_a_workspace(tmp_path: Path) -> None:
    with context(tmp_path), pytest.raises(BadArguments) as refused:
        invoke(write_file, {"workspace": "/etc", "path": "a"})
    assert str(refused.value) == "write_file: 'workspace' is not an argument"


def test_an_argument_the_function_does_not_take_is_refused(tmp_path: Path) -> None:
    with context(tmp_path), pytest.raises(BadArguments) as refused:
        invoke(write_file, {"path": "a", "contents": "x"})
    assert str(refused.value) == "write_file: 'contents' is not an argument; did you mean 'content'?"


@pytest.mark.parametrize(
    ("schema", "complaint"),
    [
        ({"type": "array"}, "input_schema must have 'type: object'"),
        (
            {"type": "object", "properties": {"path": {}, "contents": {}}},
            "input_schema has 'contents', which is no argument of the function; did you mean 'content'?",
        ),
        (
            {"type": "object", "properties": {"path": {}, "workspace": {}}},
            "input_schema has 'workspace', which is no argument of the function",
        ),
        (
            {"type": "object", "properties": {"content": {}}},
            "input_schema lacks 'path', which the function requires",
        ),
    ],
)
def test_a_schema_that_does_not_fit_the_function_is_refused(schema: dict[str, Any], complaint: str) -> None:
    with pytest.raises(BadDefinition) as refused:
        describe(write_file, schema)
    assert str(refused.value) == f"{WHERE}: {complaint}"


def test_a_schema_without_properties_is_not_second_guessed() -> None:
    assert describe(write_file, {"type": "object"}).input_schema == {"type": "object"}


def test_star_arguments_are_refused_without_the_decorator_too() -> None:
    def run(workspace: Path, **options: str) -> None: ...

    where = f"run ({__file__}:{run.__code__.co_firstlineno})"
    for refuse in (lambda: describe(run, {"type": "object"}), lambda: invoke(run, {})):
        with pytest.raises(BadDefinition) as refused:
            refuse()
        assert str(refused.value) == f"{where}: '**options' has no JSON schema; name each parameter"
