"""The process between the gateway and a program: confines the program, and kills everything it leaves behind.

Orphans of the program become children of this process (a subreaper). When the program ends, or the gateway does and
with it the other end of the lifeline, all of them are killed and reaped. It runs under `python -I -S` with few imports,
since each delays the start of every program. `supervisor.py` compiles it and passes it in a file descriptor.
"""

from __future__ import annotations

import _ctypes
import _signal as signal  # type: ignore[import-not-found]  # what `signal` wraps, without its enums
import posix as os  # the same of `os`
import resource
import select
import sys

TYPE_CHECKING = False  # importing `typing` takes longer than everything else here
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

    Order = dict[str, Any]

PR_SET_PDEATHSIG, PR_SET_SECCOMP, PR_CAPBSET_DROP, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 22, 24, 36, 38
PR_SET_KEEPCAPS, PR_CAP_AMBIENT, PR_CAP_AMBIENT_IS_SET, PR_CAP_AMBIENT_RAISE = 8, 47, 1, 2
PR_SET_SECUREBITS, NO_SETUID_FIXUP = 28, 1 << 2
CAP_DAC_OVERRIDE = 1
SECCOMP_FILTER = 2
LANDLOCK_CREATE, LANDLOCK_ADD, LANDLOCK_RESTRICT = 444, 445, 446
LANDLOCK_PATH_BENEATH = 1
# The Landlock rights that mean something for a file: execute, write, read, truncate, device ioctl.
FILE_RIGHTS = 0b1100_0000_0000_0111

CAPABILITY_VERSION_3 = 0x20080522
DIRECTORY = 0o040000


def scalar(letter: str) -> Any:
    """Return the C type for a format character of `struct`."""
    return type("Scalar", (_ctypes._SimpleCData,), {"_type_": letter})


Int, Long = scalar("i"), scalar("L")


class Filter(_ctypes.Structure):
    _fields_ = (("length", scalar("H")), ("code", scalar("z")))


class Function(_ctypes.CFuncPtr):
    _flags_ = _ctypes.FUNCFLAG_CDECL | _ctypes.FUNCFLAG_USE_ERRNO
    _restype_ = Int


class Library:
    """The C library, without importing `ctypes`, which takes half as long as the start of the interpreter."""

    def __init__(self) -> None:
        self.handle = _ctypes.dlopen(None, 0)  # type: ignore[arg-type]  # libraries loaded already

    def __getattr__(self, name: str) -> Function:
        self.__dict__[name] = function = Function(_ctypes.dlsym(self.handle, name))
        return function


libc = Library()


def main(order: Order) -> NoReturn:
    if sys.platform == "linux":
        check(libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "subreaper")
    wake, alarm = os.pipe()
    os.set_blocking(alarm, False)
    signal.set_wakeup_fd(alarm)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    program = os.fork()
    if program == 0:
        exec_program(order)
    close_streams(order)
    code = supervise(program, order["lifeline"], wake)
    end_all(program)
    if order["scratch"] is not None:
        remove(order["scratch"])
    os._exit(code)


def close_streams(order: Order) -> None:
    """Close what the program was given, so that others see it closed when the program closes it."""
    for fd in (order["status"], *order["pass_fds"]):
        os.close(fd)
    null = os.open("/dev/null", os.O_RDWR)
    for fd in range(3):
        os.dup2(null, fd)


def supervise(program: int, lifeline: int, wake: int) -> int:
    """Wait for the program's end and return its exit code; that of a killed one when the lifeline is closed."""
    poll = select.poll()
    poll.register(lifeline, select.POLLIN)
    poll.register(wake, select.POLLIN)
    while True:
        for fd, _ in poll.poll():
            if fd == lifeline:
                return 128 + 9
            os.read(wake, 512)
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return 128 + 9
            if pid == program:
                code = os.waitstatus_to_exitcode(status)
                return code if code >= 0 else 128 - code
            if pid == 0:
                break


def end_all(program: int) -> None:
    """Kill the process group, then every child that left it, until no child is left."""
    me = os.getpid()
    group = program
    while True:
        try:
            if group:
                os.killpg(group, 9)
        except OSError:
            group = 0
        try:
            with open(f"/proc/{me}/task/{me}/children") as children:  # noqa: PTH123 - one import less
                for child in children.read().split():
                    os.kill(int(child), 9)
        except OSError:
            pass
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                select.select((), (), (), 0.002)
        except ChildProcessError:
            return


def remove(folder: str) -> None:
    """Remove a folder that a program filled, of any depth and with any names: each folder in it is moved to the top
    before it is emptied. Folders are made accessible first, without which only root could list or move them."""
    attempt(os.chmod, folder, 0o700)
    seen: set[str] = set()
    queue = [folder]
    while queue:
        here = queue[-1]
        known = len(queue)
        for below in empty(here):
            top = below if here == folder else f"{folder}/.{os.getpid()}.{len(seen)}"
            if top not in seen and (top == below or attempt(os.rename, below, top)):
                seen.add(top)
                queue.append(top)
        if len(queue) == known:
            queue.pop()
            attempt(os.rmdir, here)


def empty(folder: str) -> list[str]:
    """Remove everything but folders; returns the folders, made accessible."""
    folders = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    attempt(os.chmod, entry.path, 0o700)
                    folders.append(entry.path)
                else:
                    attempt(os.unlink, entry.path)
    except OSError:
        pass
    return folders


def attempt(action: Callable[..., object], *arguments: object) -> bool:
    try:
        action(*arguments)
    except OSError:
        return False
    return True


def exec_program(order: Order) -> NoReturn:
    try:
        os.setsid()
        os.write(order["status"], b"%d\n" % os.getpid())
        os.close(order["lifeline"])
        os.set_inheritable(order["status"], False)
        for number, value in order["rlimits"]:
            hard = resource.getrlimit(number)[1]
            value = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(number, (value, value))
        if order["user"] is not None:
            become_user(*order["user"])
        if order["confine"] is not None:
            confine(**order["confine"])
        os.chdir(order["cwd"])
        for name in (signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT):
            signal.signal(name, signal.SIG_DFL)
        signal.set_wakeup_fd(-1)
        if order["filter"] is not None:
            install(order["filter"])
        os.execve(order["argv"][0], order["argv"], order["env"])
    except BaseException as error:
        os.write(order["status"], f"{error}\n".encode(errors="replace")[:2048])
    os._exit(127)


def become_user(uid: int, gid: int) -> None:
    """Change from root to a user that keeps root's access to files, which rules then limit: otherwise it could use
    neither a folder of root nor an interpreter in root's home."""
    drop_bounds(CAP_DAC_OVERRIDE)
    check(libc.prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0), "keeping a capability")
    libc.prctl(PR_SET_SECUREBITS, NO_SETUID_FIXUP, 0, 0, 0)  # otherwise access(2) ignores the capability
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    hold(1 << CAP_DAC_OVERRIDE)
    check(libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAP_DAC_OVERRIDE, 0, 0), "keeping a capability")


def confine(attributes: bytes, rights: int, rules: list[tuple[str, int, bool]]) -> None:
    """Give up all ways to gain a capability, and all paths but those of the rules. A rule is a path, the rights beneath
    it, and whether it must exist."""
    check(libc.prctl(PR_SET_PDEATHSIG, 9, 0, 0, 0), "parent death signal")
    if os.getuid() == 0 or not libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_IS_SET, CAP_DAC_OVERRIDE, 0, 0):
        drop_bounds()
        hold(0)
    check(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no new privileges")
    ruleset = check(libc.syscall(LANDLOCK_CREATE, attributes, Long(len(attributes)), 0), "landlock ruleset")
    for path, allowed, required in rules:
        try:
            fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            if required:
                raise
            continue
        if os.fstat(fd).st_mode & 0o170000 != DIRECTORY:
            allowed &= FILE_RIGHTS
        rule = (allowed & rights).to_bytes(8, "little") + fd.to_bytes(4, "little")
        check(libc.syscall(LANDLOCK_ADD, ruleset, LANDLOCK_PATH_BENEATH, rule, 0), f"landlock rule for {path}")
        os.close(fd)
    check(libc.syscall(LANDLOCK_RESTRICT, ruleset, 0), "landlock")
    os.close(ruleset)


def drop_bounds(kept: int = -1) -> None:
    """Drop all capabilities from the bounding set, except one, so that no program can gain them again."""
    capability = 0
    while capability == kept or libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) == 0:
        capability += 1


def hold(capabilities: int) -> None:
    """Set the effective, permitted and inheritable capabilities."""
    header, value = (number.to_bytes(4, sys.byteorder) for number in (CAPABILITY_VERSION_3, capabilities))
    check(libc.capset(header + bytes(4), 3 * value + bytes(12)), "capabilities")


def install(code: bytes) -> None:
    check(libc.prctl(PR_SET_SECCOMP, SECCOMP_FILTER, _ctypes.byref(Filter(len(code) // 8, code)), 0, 0), "seccomp")


def check(result: int, what: str) -> int:
    if result < 0:
        number = _ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result
