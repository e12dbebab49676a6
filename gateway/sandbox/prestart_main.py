"""What waits inside a sandbox for Python code and then becomes it; `spares.py` hands it over as text.

Any Python 3 can run it. It imports next to nothing by itself, for each import delays a program that
could not be prepared, and each module its end.
"""

from __future__ import annotations

import marshal
import posix
import sys

TYPE_CHECKING = False  # what `typing` has to say costs more than all else here
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any

NAME = "<code>"
OURS = globals()


def main(channel: int, early: bool) -> None:
    if early:
        __import__("os")
    order = b"".join(iter(lambda: posix.read(channel, 1 << 20), b""))
    if not order:
        posix._exit(0)  # nobody needs us any more
    job = marshal.loads(order)  # noqa: S302 - the gateway's own word
    posix.write(channel, b".")
    posix.close(channel)
    become(**job)


def become(code: str, args: list[str], env: dict[str, str], cwd: str) -> None:
    """Run the code as `__main__`. The folder is entered now: it may be another than when we began."""
    try:
        posix.chdir(cwd)
    except OSError as error:
        sys.exit(f"{cwd}: {error.strerror}")
    surround(env)
    sys.argv = [NAME, *args]
    sys.path.insert(0, cwd)
    lines = [line + "\n" for line in code.split("\n")]
    if "linecache" in sys.modules:
        remember(lines)
    sys.excepthook = lambda kind, error, trace: show(error, trace, cwd, lines)
    sys.modules["__main__"] = module = type(sys)("__main__")
    exec(compile(code, NAME, "exec", dont_inherit=True), module.__dict__)  # noqa: S102 - what we are for


def surround(env: dict[str, str]) -> None:
    if "os" in sys.modules:
        sys.modules["os"].environ.update(env)
    else:  # which makes its `environ` of this one
        for name, value in env.items():
            posix.environ[name.encode()] = value.encode()
            posix.putenv(name.encode(), value.encode())
    if "TZ" in env:
        __import__("time").tzset()


def remember(lines: list[str]) -> None:
    """So that tracebacks show the lines, though there is no file."""
    sys.modules["linecache"].cache[NAME] = (sum(map(len, lines)), None, lines, NAME)


def show(error: BaseException, trace: TracebackType | None, cwd: str, lines: list[str]) -> None:
    """A traceback as of a program of its own: nothing of ours is in it."""
    while trace is not None and trace.tb_frame.f_globals is OURS:
        trace = trace.tb_next
    printer = imported("traceback", cwd)
    remember(lines)
    printer.print_exception(type(error), error, trace)


def imported(name: str, cwd: str) -> Any:
    """The standard library's module, and not one of that name in the program's folder."""
    path = sys.path
    sys.path = [entry for entry in path if entry not in (cwd, "")]
    try:
        return __import__(name)
    finally:
        sys.path = path


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2] == "early")
