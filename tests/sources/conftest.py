"""The builtins on a real workspace: `call` runs one as the executor would, and checks what it answers."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from anyio.from_thread import start_blocking_portal

from gateway.calls import Call, Outcome
from gateway.errors import GatewayError
from gateway.sources.builtin.source import BuiltinSource, FileTools
from gateway.workspace import ComponentOpener, Openat2, PathOpener, Workspaces


@pytest.fixture(
    params=[
        pytest.param(Openat2(), id="openat2"),
        pytest.param(ComponentOpener(), id="stepwise", marks=pytest.mark.slow),
    ]
)
def opener(request: pytest.FixtureRequest) -> PathOpener:
    chosen: PathOpener = request.param
    return chosen


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "ws"
    folder.mkdir()
    return folder


@pytest.fixture
def source(workspace: Path, opener: PathOpener) -> BuiltinSource:
    return BuiltinSource([FileTools(Workspaces(workspace.parent / "data", {"demo": workspace}, opener))])


@pytest.fixture
def call(source: BuiltinSource) -> Iterator[Callable[..., Outcome]]:
    with start_blocking_portal() as portal:
        tools = {tool.id: tool for tool in portal.call(source.list_tools)}

        def run(name: str, /, confirmed: bool = False, **arguments: Any) -> Outcome:
            tool = tools[name]
            try:
                tool.check_arguments(arguments)
                request = Call(name=name, tool=tool, arguments=arguments, chat="demo", confirmed=confirmed)
                outcome = portal.call(source.call_tool, request)
                tool.check_output(outcome.value)
            except GatewayError as refused:
                outcome = Outcome(error=refused)
            orjson.dumps([outcome.to_dict(), outcome.content])
            return outcome

        yield run


@pytest.fixture
def ask(source: BuiltinSource) -> Iterator[Callable[..., str | None]]:
    """What the tool's rule says a person must agree to; None when nobody is asked."""
    with start_blocking_portal() as portal:
        tools = {tool.id: tool for tool in portal.call(source.list_tools)}

        def run(name: str, /, **arguments: Any) -> str | None:
            rule = tools[name].requires_confirmation
            if isinstance(rule, bool):
                return "always" if rule else None
            return portal.call(rule, Call(name=name, tool=tools[name], arguments=arguments, chat="demo"))

        yield run
