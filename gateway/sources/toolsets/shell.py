"""Tools that are programs: one run of one program in the sandbox, its arguments never read by a shell."""

from __future__ import annotations

import json
import shutil
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from gateway.bundles import ShellTool
from gateway.bundles.field_types import REFERENCE
from gateway.bundles.tool_kinds import SEARCH_PATH
from gateway.calls import Call, to_json
from gateway.errors import Invalid, ToolFailed, Unavailable
from gateway.sandbox import Limits, Mount, Program, Sandbox
from gateway.sandbox.run import FinishedProgram, run
from gateway.sources.toolsets.listing import HOME

Values = Mapping[str, Any]

ARGUMENT_LIMIT = 128 * 1024  # Linux's limit for one element
TOTAL_LIMIT = 1024 * 1024


def build_argv(tool: ShellTool, values: Values) -> list[str]:
    """Return the program and its arguments. An element that is one reference becomes one element per item of a list,
    and none for a missing value. A value that would be read as an option is refused unless it follows an option."""
    argv = [argument for index in range(len(tool.command)) for argument in _fill_element(tool, index, values)]
    if sum(len(argument.encode()) for argument in argv) > TOTAL_LIMIT:
        raise Invalid(f"the arguments are longer than {TOTAL_LIMIT} bytes together; put large texts in a file")
    return argv


def fill_template(text: str, values: Values) -> str:
    """Replace each `${name}` and `${name.path[0]}` in `text`; a missing value becomes an empty text."""
    return REFERENCE.sub(lambda match: _to_text(_resolve(match["whole"], values)), text)


def _fill_element(tool: ShellTool, index: int, values: Values) -> Iterator[str]:
    element = tool.command[index]
    whole = REFERENCE.fullmatch(element)
    if whole is None:
        yield _check_argument(fill_template(element, values), element)
        return
    value = _resolve(whole["whole"], values)
    for item in [] if value is None else value if isinstance(value, list) else [value]:
        text = _check_argument(_to_text(item), whole["name"])
        safe = whole["name"] in tool.dash_safe or _may_start_with_dash(tool.command[:index])
        if isinstance(item, str) and text.startswith("-") and not safe:
            raise Invalid(
                f"{whole['name']!r} begins with '-', which {tool.command[0]!r} would take for an option; "
                "write a path as './-name' (the toolset's author can put '--' before it, or name it in 'dash_safe')"
            )
        yield text


def _may_start_with_dash(before: tuple[str, ...]) -> bool:
    """Return whether the next element is no option: after `--`, or right after an option, whose value it is."""
    return "--" in before or (len(before) > 1 and before[-1].startswith("-") and not REFERENCE.search(before[-1]))


def _resolve(reference: str, values: Values) -> Any:
    """Return the value of `name.path[0]`, or None when it does not exist."""
    value: Any = values
    for step in reference.replace("[", ".").replace("]", "").split("."):
        if isinstance(value, Mapping):
            value = value.get(step)
        elif isinstance(value, list) and step.isdigit() and int(step) < len(value):
            value = value[int(step)]
        else:
            return None
    return value


def _to_text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else to_json(value).decode()


def _check_argument(text: str, name: str) -> str:
    if "\0" in text:
        raise Invalid(f"{name!r} holds a NUL character, which no program takes as an argument")
    if len(text.encode("utf-8", "replace")) > ARGUMENT_LIMIT:
        raise Invalid(f"{name!r} is longer than {ARGUMENT_LIMIT} bytes; put it in a file and pass its path")
    return text


_ERROR_TEXT_LIMIT = 2000  # characters of a failed program's own words


class ShellRunner:
    """Runs shell tools; `timeout` applies to tools without a timeout of their own."""

    def __init__(self, sandbox: Callable[[], Awaitable[Sandbox]], limits: Limits, timeout: float) -> None:
        self._sandbox = sandbox
        self._limits = limits
        self._timeout = timeout

    async def can_protect_paths(self) -> bool:
        """Return whether the sandbox can make single paths of a mount read-only."""
        return (await self._sandbox()).protects_paths

    async def run(self, tool: ShellTool, call: Call, home: Path, files: Mount, env: Mapping[str, str]) -> Any:
        """Run the program; return its output parsed as JSON if the tool has an output schema, else its output texts
        and exit code. Other exit codes than the tool's success codes fail with the program's error text."""
        values = {**env, **call.arguments}
        sandbox = await self._sandbox()
        own = Mount(home, HOME)
        argv = build_argv(tool, values)
        program = Program(
            argv=(_find_program(argv[0], home, sandbox.inside(own)), *argv[1:]),
            mounts=(files, own),
            env={
                "PATH": SEARCH_PATH,
                "HOME": "/tmp",  # noqa: S108 - private to the sandbox
                "LANG": "C.UTF-8",
                **{name: fill_template(value, values) for name, value in tool.env.items()},
            },
            cwd="/".join([sandbox.inside(files), *([tool.cwd.removeprefix("./")] if tool.cwd else [])]),
            limits=self._limits,
        )
        stdin = fill_template(tool.stdin or "", values).encode()
        return _parse_output(tool, await run(sandbox, program, input=stdin, timeout=tool.timeout or self._timeout))


def _find_program(name: str, home: Path, inside: str) -> str:
    """Return the path of the program: the toolset's own (`./bin/program`) or the machine's."""
    if name.startswith("./"):
        if not (home / name).is_file():
            raise Unavailable(f"the toolset has no program {name!r}", code="PROGRAM_NOT_FOUND")
        return f"{inside}/{name.removeprefix('./')}"
    path = shutil.which(name, path=SEARCH_PATH)
    if path is None:
        raise Unavailable(f"there is no program {name!r} on this machine; install it", code="PROGRAM_NOT_FOUND")
    return path


def _parse_output(tool: ShellTool, done: FinishedProgram) -> Any:
    stdout, stderr = (stream.decode("utf-8", "replace") for stream in (done.stdout, done.stderr))
    if done.exit.killed is not None:
        raise ToolFailed(
            f"{tool.id}: {tool.command[0]!r} was ended: it went over its limit of {done.exit.killed}",
            code="LIMIT_EXCEEDED",
            limit=done.exit.killed,
            stderr=stderr[-_ERROR_TEXT_LIMIT:],
        )
    if done.exit.code not in tool.success_codes:
        text = (stderr.strip() or stdout.strip())[-_ERROR_TEXT_LIMIT:]
        raise ToolFailed(f"{tool.command[0]!r} ended with code {done.exit.code}: {text}", exit_code=done.exit.code)
    if tool.output_schema is None:
        truncated = done.stdout_truncated or done.stderr_truncated
        return {"stdout": stdout, "stderr": stderr, "exitCode": done.exit.code, "truncated": truncated}
    try:
        return json.loads(stdout)
    except ValueError as error:
        message = f"{tool.id} declares JSON output, but {tool.command[0]!r} printed something else: {error}"
        raise ToolFailed(message, code="INVALID_OUTPUT") from None
