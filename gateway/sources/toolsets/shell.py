"""Tools that are programs: one run of one program in the sandbox, its arguments never read by a shell."""

from __future__ import annotations

import json
import shutil
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from gateway.bundles import ShellTool
from gateway.calls import Call
from gateway.errors import ToolFailed, Unavailable
from gateway.sandbox import Limits, Mount, Program, Sandbox
from gateway.sandbox.run import Finished, run
from gateway.sources.toolsets.argv import arguments_of, filled
from gateway.sources.toolsets.listing import HOME

SEARCH_PATH = "/usr/local/bin:/usr/bin:/bin"
_TOLD = 2000  # characters of a failed program's own words


class Programs:
    """Runs shell tools; `timeout` is the longest a program may take when its tool names no limit of its own."""

    def __init__(self, sandbox: Callable[[], Awaitable[Sandbox]], limits: Limits, timeout: float) -> None:
        self._sandbox = sandbox
        self._limits = limits
        self._timeout = timeout

    async def can_keep_paths(self) -> bool:
        """Return whether the sandbox holds the paths of a mount that are to stay as they are."""
        return (await self._sandbox()).keeps_paths

    async def run(self, tool: ShellTool, call: Call, home: Path, files: Mount, env: Mapping[str, str]) -> Any:
        """What the program printed: its output as JSON where the tool has an output schema, else its texts and
        exit code. A code the tool does not count as success fails with what the program said."""
        values = {**env, **call.arguments}
        sandbox = await self._sandbox()
        own = Mount(home, HOME)
        argv = arguments_of(tool, values)
        program = Program(
            argv=(_program(argv[0], home, sandbox.inside(own)), *argv[1:]),
            mounts=(files, own),
            env={
                "PATH": SEARCH_PATH,
                "HOME": "/tmp",  # noqa: S108 - the sandbox's own
                "LANG": "C.UTF-8",
                **{name: filled(value, values) for name, value in tool.env.items()},
            },
            cwd="/".join([sandbox.inside(files), *([tool.cwd.removeprefix("./")] if tool.cwd else [])]),
            limits=self._limits,
        )
        stdin = filled(tool.stdin or "", values).encode()
        return _value(tool, await run(sandbox, program, input=stdin, timeout=tool.timeout or self._timeout))


def _program(name: str, home: Path, inside: str) -> str:
    """Where the program is: one of the toolset's own, `./bin/program`, or one of the machine's."""
    if name.startswith("./"):
        if not (home / name).is_file():
            raise Unavailable(f"the toolset has no program {name!r}", code="PROGRAM_NOT_FOUND")
        return f"{inside}/{name.removeprefix('./')}"
    found = shutil.which(name, path=SEARCH_PATH)
    if found is None:
        raise Unavailable(f"there is no program {name!r} on this machine; install it", code="PROGRAM_NOT_FOUND")
    return found


def _value(tool: ShellTool, done: Finished) -> Any:
    stdout, stderr = (stream.decode("utf-8", "replace") for stream in (done.stdout, done.stderr))
    if done.exit.killed is not None:
        raise ToolFailed(
            f"{tool.id}: {tool.command[0]!r} was ended: it went over its limit of {done.exit.killed}",
            code="LIMIT_EXCEEDED",
            limit=done.exit.killed,
            stderr=stderr[-_TOLD:],
        )
    if done.exit.code not in tool.success_codes:
        said = (stderr.strip() or stdout.strip())[-_TOLD:]
        raise ToolFailed(f"{tool.command[0]!r} ended with code {done.exit.code}: {said}", exit_code=done.exit.code)
    if tool.output_schema is None:
        truncated = done.stdout_truncated or done.stderr_truncated
        return {"stdout": stdout, "stderr": stderr, "exitCode": done.exit.code, "truncated": truncated}
    try:
        return json.loads(stdout)
    except ValueError as error:
        message = f"{tool.id} promises JSON, but {tool.command[0]!r} printed something else: {error}"
        raise ToolFailed(message, code="INVALID_OUTPUT") from None
