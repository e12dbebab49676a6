"""The decorator: what it notes, what it leaves alone, what it refuses."""

import asyncio
import functools
from collections.abc import Callable
from typing import Any

import pytest

from covalt_toolset import BadDefinition, ToolMetadata, describe, get_tool_metadata, invoke, is_tool, tool


def line_of(function: Callable[..., Any]) -> str:
    code = function.__code__
    return f"{function.__name__} ({code.co_filename}:{code.co_firstlineno})"


def test_it_works_without_parentheses() -> None:
    @tool
    def greet(name: str) -> str:
        """Say hello."""
        return f"hello {name}"

    assert greet("Ann") == "hello Ann"
    assert get_tool_metadata(greet) == ToolMetadata(name="greet", description="Say hello.")


def test_it_works_with_empty_parentheses() -> None:
    @tool()
    def greet(name: str) -> str:
        return f"hello {name}"

    assert greet("Ann") == "hello Ann"
    assert get_tool_metadata(greet) == ToolMetadata(name="greet", description="")


def test_everything_an_author_says_is_noted() -> None:
    @tool(
        name="Delete File",
        description="Delete a file",
        requires_confirmation=True,
        category="editing",
        permission="read-write",
        timeout=2.5,
        access="write",
        destructive=True,
        idempotent=True,
        open_world=True,
        tags=["files"],
    )
    def delete_file(path: str) -> None:
        """Not this."""

    assert get_tool_metadata(delete_file) == ToolMetadata(
        name="Delete File",
        description="Delete a file",
        requires_confirmation=True,
        category="editing",
        permission="read-write",
        timeout=2.5,
        access="write",
        destructive=True,
        idempotent=True,
        open_world=True,
        tags=("files",),
    )


def test_the_first_four_may_be_given_by_position() -> None:
    @tool("Look", "Look around", True, "seeing")
    def look() -> None: ...

    assert get_tool_metadata(look) == ToolMetadata(
        name="Look", description="Look around", requires_confirmation=True, category="seeing"
    )


def test_an_unknown_argument_is_refused_with_the_nearest() -> None:
    with pytest.raises(BadDefinition, match=r"test_tool.py.*: @tool has no argument 'acces'; did you mean 'access'\?"):

        @tool(acces="read")  # type: ignore[call-overload, untyped-decorator]
        def look() -> None: ...


def test_the_decorated_function_is_the_function_itself() -> None:
    def plain(x: int) -> int:
        return x

    assert tool(plain) is plain
    assert tool(name="x")(plain) is plain


def test_an_async_function_stays_one() -> None:
    @tool
    async def double(number: int) -> int:
        return number * 2

    assert asyncio.run(double(4)) == 8
    assert describe(double).is_async
    assert asyncio.run(invoke(double, {"number": 4})) == 8


def test_only_a_decorated_function_is_a_tool() -> None:
    def plain() -> None: ...

    assert not is_tool(plain)
    assert get_tool_metadata(plain) is None
    assert is_tool(tool(plain))
    assert not is_tool(3)


def test_a_decorator_of_the_authors_own_may_stand_between() -> None:
    def logged(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def around(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        return around

    @tool
    @logged
    def add(a: int, b: int = 1) -> int:
        return a + b

    assert describe(add).input_schema["required"] == ["a"]
    assert invoke(add, {"a": 2}) == 3


def test_star_arguments_are_refused_with_the_file_and_line() -> None:
    def many(first: int, *args: int) -> None: ...

    def open_ended(**options: int) -> None: ...

    with pytest.raises(BadDefinition) as refused:
        tool(many)
    assert str(refused.value) == f"{line_of(many)}: '*args' has no JSON schema; name each parameter"
    with pytest.raises(BadDefinition) as refused:
        tool(name="Open")(open_ended)
    assert str(refused.value) == f"{line_of(open_ended)}: '**options' has no JSON schema; name each parameter"
    assert __file__ in str(refused.value)


def test_positional_only_parameters_are_refused() -> None:
    def divide(a: int, /, b: int) -> None: ...

    with pytest.raises(BadDefinition) as refused:
        tool(divide)
    assert str(refused.value) == (
        f"{line_of(divide)}: 'a' is positional-only, and arguments are passed by name; remove the '/'"
    )


def test_a_generator_is_refused() -> None:
    def count() -> Any:
        yield 1

    async def stream() -> Any:
        yield 1

    for function in (count, stream):
        with pytest.raises(BadDefinition) as refused:
            tool(function)
        assert str(refused.value) == (
            f"{line_of(function)}: a tool returns its answer and does not yield; report with get_context().progress"
        )


def test_a_class_is_refused() -> None:
    class Thing: ...

    with pytest.raises(BadDefinition) as refused:
        tool(Thing)
    assert str(refused.value) == f"{Thing!r} is not a function"


@pytest.mark.parametrize(
    ("declared", "complaint"),
    [
        ({"permission": "admin"}, "permission 'admin' is none of read-only, read-write, execute"),
        ({"access": "all"}, "access 'all' is none of none, read, write"),
        ({"timeout": 0}, "timeout is 0; give seconds above zero"),
    ],
)
def test_a_word_the_gateway_does_not_know_is_refused(declared: dict[str, Any], complaint: str) -> None:
    def look() -> None: ...

    with pytest.raises(BadDefinition) as refused:
        tool(**declared)(look)
    assert str(refused.value) == f"{line_of(look)}: {complaint}"
    assert not is_tool(look)
