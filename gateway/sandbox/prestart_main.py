"""The program that waits inside a sandbox for Python code and then runs it; `prestart.py` passes it as text.

Any Python 3 can run it. It imports almost nothing, because each import delays code whose sandbox was not prestarted.
"""

from __future__ import annotations

import marshal
import posix
import sys

TYPE_CHECKING = False  # importing `typing` takes longer than everything else here
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any

NAME = "<code>"
OURS = globals()


def main(channel: int, early: bool) -> None:
    if early:
        __import__("os")
    message = b"".join(iter(lambda: posix.read(channel, 1 << 20), b""))
    if not message:
        posix._exit(0)  # no longer needed
    job = marshal.loads(message)  # noqa: S302 - written by the gateway
    posix.write(channel, b".")
    posix.close(channel)
    run_code(**job)


def run_code(code: str, args: list[str], env: dict[str, str], cwd: str) -> None:
    """Run the code as `__main__`. Enter the folder only now: it may have been replaced since the start."""
    try:
        posix.chdir(cwd)
    except OSError as error:
        sys.exit(f"{cwd}: {error.strerror}")
    set_environment(env)
    sys.argv = [NAME, *args]
    sys.path.insert(0, cwd)
    lines = [line + "\n" for line in code.split("\n")]
    if "linecache" in sys.modules:
        register_source(lines)
    sys.excepthook = lambda kind, error, trace: show(error, trace, cwd, lines)
    sys.modules["__main__"] = module = type(sys)("__main__")
    exec(compile(code, NAME, "exec", dont_inherit=True), module.__dict__)  # noqa: S102 - the purpose of this program


def set_environment(env: dict[str, str]) -> None:
    if "os" in sys.modules:
        sys.modules["os"].environ.update(env)
    else:  # `os` builds its `environ` from this one
        for name, value in env.items():
            posix.environ[name.encode()] = value.encode()
            posix.putenv(name.encode(), value.encode())
    if "TZ" in env:
        __import__("time").tzset()


def register_source(lines: list[str]) -> None:
    """Register the source so that tracebacks show its lines."""
    sys.modules["linecache"].cache[NAME] = (sum(map(len, lines)), None, lines, NAME)


def show(error: BaseException, trace: TracebackType | None, cwd: str, lines: list[str]) -> None:
    """Print a traceback without frames of this program."""
    while trace is not None and trace.tb_frame.f_globals is OURS:
        trace = trace.tb_next
    printer = import_library("traceback", cwd)
    register_source(lines)
    printer.print_exception(type(error), error, trace)


def import_library(name: str, cwd: str) -> Any:
    """Import a module of the standard library, not one of that name in the program's folder."""
    path = sys.path
    sys.path = [entry for entry in path if entry not in (cwd, "")]
    try:
        return __import__(name)
    finally:
        sys.path = path


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2] == "early")
