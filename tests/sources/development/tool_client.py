"""A place to call development tools at: their source alone, in one sandbox, or a whole gateway around it."""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
from runtime.sandboxes import sandbox as working_sandbox

from gateway import Gateway
from gateway.calls import Call, Outcome, Progress, no_progress
from gateway.config import Settings, load
from gateway.errors import GatewayError
from gateway.sandbox import Sandbox
from gateway.sources.builtin.code.tools import CodeTools
from gateway.sources.builtin.source import BuiltinSource
from gateway.tools import HidesFor, Tool, hide_nothing_for
from gateway.workspace import Workspaces

ON = {"categories": {"development": {"enabled": True}}}


class ToolClient:
    """Calls tools as the executor would, and checks what they are given and answer."""

    def __init__(self, code_tools: CodeTools, source: BuiltinSource, folder: Path, tools: dict[str, Tool]) -> None:
        self.code_tools = code_tools
        self.source = source
        self.folder = folder
        self.tools = tools

    async def call(self, name: str, /, progress: Progress = no_progress, **arguments: Any) -> Outcome:
        tool = self.tools[name]
        given = {key.removesuffix("_"): value for key, value in arguments.items()}
        try:
            tool.check_arguments(given)
            call = Call(name=name, tool=tool, arguments=given, chat="demo", confirmed=True, progress=progress)
            outcome = await self.source.call_tool(call)
            tool.check_output(outcome.value)
        except GatewayError as refused:
            outcome = Outcome(error=refused)
        orjson.dumps([outcome.to_dict(), outcome.content])
        return outcome

    async def value(self, name: str, /, **arguments: Any) -> Any:
        outcome = await self.call(name, **arguments)
        assert outcome.ok, outcome.error
        return outcome.value

    async def refusal(self, name: str, /, **arguments: Any) -> GatewayError:
        outcome = await self.call(name, **arguments)
        assert outcome.error is not None, outcome.value
        return outcome.error

    async def reason(self, name: str, /, **arguments: Any) -> str | None:
        """What a person is asked; None when nobody is."""
        rule = self.tools[name].requires_confirmation
        if isinstance(rule, bool):
            return "always" if rule else None
        return await rule(Call(name=name, tool=self.tools[name], arguments=arguments, chat="demo"))

    def git(self, *arguments: str) -> None:
        """git as the person runs it whose folder this is."""
        subprocess.run(["git", "-c", "safe.directory=*", "-C", self.folder, *arguments], check=True)

    async def bash(self, code: str) -> str:
        """What a script prints that must not fail."""
        value = await self.value("run_code", language="bash", code=f"set -e\n{code}")
        assert value["exitCode"] == 0, value
        out: str = value["stdout"]
        return out


def settings(place: Path, **more: Any) -> Settings:
    return load(None, {"data_dir": place / "data", **ON, **more})


@asynccontextmanager
async def open_client(
    place: Path, backend: str = "bwrap", hides: HidesFor = hide_nothing_for, **more: Any
) -> AsyncIterator[ToolClient]:
    """The source alone, in the sandbox of that name."""
    chosen = await working_sandbox(backend)

    async def choice() -> Sandbox:
        return chosen

    folder = place / "ws"
    folder.mkdir(exist_ok=True)
    workspaces = Workspaces(place / "data", {"demo": folder})
    code_tools = CodeTools(workspaces, settings(place, **more), choice)
    source = BuiltinSource([code_tools], hides)
    try:
        yield ToolClient(code_tools, source, folder, {tool.id: tool for tool in await source.list_tools()})
    finally:
        await source.close()


@asynccontextmanager
async def opened(place: Path, **more: Any) -> AsyncIterator[Gateway]:
    """A whole gateway with the category on."""
    await working_sandbox("bwrap")
    async with Gateway.open({"data_dir": place / "data", **ON, **more}) as gateway:
        yield gateway
