"""Code mode: `run_tools` runs a program that calls tools, and returns only what the program returns or prints.

Each call of the program passes the executor under the tool's own name, with the whole call as its parent. A question to
a person pauses the program; it goes on with the answer.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import anyio

from gateway.calls import Call, ClientInfo, Outcome, text_content, to_json
from gateway.catalog import Catalog
from gateway.discovery import CATEGORY, RUN_NAME, SEARCH_NAME, argument_names, find_entry
from gateway.errors import GatewayError, Invalid, ToolFailed, Unavailable
from gateway.sandbox import Limits
from gateway.sandbox.monty import MODULES, FinishedCode, FunctionFailed, Monty
from gateway.sources.builtin.decorator import LONGEST_RESULT
from gateway.sources.steps import NOBODY, CallStep, InnerCalls, check_depth, make_inner_call
from gateway.tools import Permission, Tool
from gateway.value import Value

# Programs that run or wait for a person, in all and of one principal.
PROGRAMS = 32
PROGRAMS_PER_PRINCIPAL = 8

# Calls that one program makes, and those that run at once.
CALLS_LIMIT = 500
AT_ONCE = 16
# Characters of code, and bytes of what is printed or returned.
CODE_LENGTH = 100_000
OUTPUT_LIMIT = 64 * 1024
# Characters of what a program printed before it failed.
ERROR_OUTPUT = 2000
# Bytes of memory of a program.
MEMORY = 64 * 1024 * 1024

# The function that calls a tool whose name is no name of Python.
CALL_TOOL = "call_tool"

RUN_TOOLS = Tool(
    RUN_NAME,
    f"""Run a Python program that calls tools, when one answer needs several calls or only a part of what they return.
Every tool is an async function; {SEARCH_NAME} has the signatures:

    issues = await tracker__list_issues(state="open")
    notes = await asyncio.gather(*[notes__read(id=issue["note"]) for issue in issues])
    [note for note in notes if "urgent" in note]

The value of the last expression and what is printed come back, nothing else. A tool returns its structured result, else
its text, and raises RuntimeError if it fails. For names that Python does not allow:
await {CALL_TOOL}("a-b", {{"x": 1}}).
Modules: {", ".join(MODULES)}. There are no files, packages or network but through tools.""",
    {
        "type": "object",
        "properties": {"code": {"type": "string", "minLength": 1, "maxLength": CODE_LENGTH}},
        "required": ["code"],
        "additionalProperties": False,
    },
    kind="steps",
    title="Run a program of tools",
    category=CATEGORY,
    # Each call of the program needs its own level.
    permission=Permission.READ_ONLY,
    destructive=True,
    meta={LONGEST_RESULT: OUTPUT_LIMIT},
    is_tool=False,
)


class _ProgramRequest(Value):
    """A call of `run_tools`, and what its caller may call."""

    call: Call
    catalog: Catalog

    @property
    def client(self) -> ClientInfo:
        return self.call.client or NOBODY

    @property
    def identity(self) -> tuple[Any, ...]:
        return self.call.caller.principal, self.call.chat, to_json(self.call.arguments)

    def by(self, call: Call) -> _ProgramRequest:
        return replace(self, call=call)


class ProgramRunner:
    """Runs programs that call tools, each in a process of Monty without files and network. `call_tool` calls a tool
    for the person behind the program; a program has `seconds` of time of its own, without that of its calls."""

    def __init__(self, call_tool: CallStep, seconds: float) -> None:
        self._call_tool = call_tool
        self._seconds = seconds
        self._monty = Monty(PROGRAMS)
        self._calls = InnerCalls()
        self._running: Counter[str] = Counter()

    async def run(self, call: Call, catalog: Catalog) -> Outcome:
        return await self._calls.run(_ProgramRequest(call, catalog), self._run)

    async def close(self) -> None:
        """End all programs."""
        await self._calls.close()
        await self._monty.close()

    async def _run(self, request: _ProgramRequest) -> Outcome:
        check_depth(request.call)
        principal = request.call.caller.principal
        if self._running[principal] >= PROGRAMS_PER_PRINCIPAL:
            raise Unavailable("too many of your programs run or wait for a person; end those first", code="OVERLOADED")
        self._running[principal] += 1
        functions = _Functions(request, self._call_tool)
        try:
            finished = await self._monty.run_with_functions(
                request.call.arguments["code"],
                functions.call,
                limits=Limits(memory=MEMORY, cpu_seconds=math.ceil(self._seconds)),
                timeout=self._seconds,
                output_limit=OUTPUT_LIMIT,
            )
        finally:
            self._running -= Counter({principal: 1})  # forgets those that have none left
            await functions.end()
        return _make_outcome(finished, functions.count)


class _Functions:
    """The tools as functions of one program, with a limited number of calls."""

    def __init__(self, request: _ProgramRequest, call_tool: CallStep) -> None:
        self._request = request
        self._call_tool = call_tool
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._tasks: set[asyncio.Task[Any]] = set()
        self.count = 0

    async def call(self, name: str, given: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """Call the tool of a function's name; its value, or the reason why there is none."""
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - a coroutine runs in one
        self._tasks.add(task)
        try:
            return await self._call(name, given, named)
        except GatewayError as error:
            raise FunctionFailed(str(error)) from None
        finally:
            self._tasks.discard(task)

    async def end(self) -> None:
        """Cancel calls that the program did not wait for, and wait until they have ended."""
        tasks = [*self._tasks]
        for task in tasks:
            task.cancel()
        with anyio.CancelScope(shield=True):
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _call(self, name: str, given: Sequence[Any], named: Mapping[str, Any]) -> Any:
        if name == CALL_TOOL:
            name, arguments = _parse_call(given, named)
        else:
            arguments = self._bind(name, given, named)
        find_entry(self._request.catalog, name)
        self.count += 1
        if self.count > CALLS_LIMIT:
            raise Invalid(f"the program calls more than {CALLS_LIMIT} tools", code="TOO_MANY_CALLS")
        parent = self._request.call
        await parent.progress(self.count, None, name)
        async with self._slots:
            outcome = await self._call_tool(make_inner_call(parent, name, arguments))
        if outcome.error is not None:
            raise outcome.error
        return read_value(outcome)

    def _bind(self, name: str, given: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments by name. Those without one are those of the signature, in its order."""
        if not given:
            return dict(named)
        entry = self._request.catalog.get(name)
        names = [] if entry is None else argument_names(entry.tool.input_schema)
        if len(given) > len(names) and entry is not None:
            raise Invalid(f"{name} takes {len(names)} arguments, not {len(given)}; give them by name")
        return {**dict(zip(names, given, strict=False)), **named}


def _parse_call(given: Sequence[Any], named: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    name, arguments = (*given, named or {}, {})[:2] if given else (None, {})
    if not isinstance(name, str) or not isinstance(arguments, dict):
        raise Invalid(f'write: await {CALL_TOOL}("name", {{"argument": value}})')
    return name, arguments


def read_value(outcome: Outcome) -> Any:
    """Return the value of a tool; of an upstream without a structured one, its text."""
    blocks = outcome.content or ()
    if outcome.wire is None or "structuredContent" in outcome.wire:
        return outcome.value
    texts = [block["text"] for block in blocks if isinstance(block.get("text"), str)]
    return "\n".join(texts) if len(texts) == len(blocks) else outcome.value


def _make_outcome(finished: FinishedCode, calls: int) -> Outcome:
    program = finished.program
    printed, errors = (stream.decode("utf-8", "replace") for stream in (program.stdout, program.stderr))
    if program.exit.code:
        killed = program.exit.killed
        reason = (
            f"the program failed:\n{errors.strip()}" if killed is None else f"the program exceeded its {killed} limit"
        )
        output = f"; before, it printed:\n{printed[-ERROR_OUTPUT:].rstrip()}" if printed else ""
        raise ToolFailed(f"{reason}{output}", code="PROGRAM_FAILED" if killed is None else "PROGRAM_KILLED")
    if finished.not_awaited:
        raise ToolFailed("the program did not wait for all calls; write: await tool(...)", code="PROGRAM_FAILED")
    value = _to_plain(finished.value)
    shown = "" if value is None else value if isinstance(value, str) else to_json(value).decode()
    if len(shown) > OUTPUT_LIMIT:
        reason = f"the program returned {len(shown)} characters, the limit is {OUTPUT_LIMIT}; return less"
        raise ToolFailed(reason, code="RESPONSE_TOO_LARGE")
    text = "\n".join(part for part in (printed.rstrip("\n"), shown) if part) or "The program returned nothing."
    return Outcome({"value": value, "output": printed, "calls": calls}, content=text_content(text))


def _to_plain(value: Any) -> Any:
    """Return a value as JSON can hold it; what JSON cannot hold, as text."""
    try:
        to_json(value)
    except Invalid:
        return repr(value)[:OUTPUT_LIMIT]
    return value
