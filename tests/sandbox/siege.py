"""A machine worth attacking: secrets, listeners and a victim outside; the attacks run against them in a sandbox.

It uses nothing but the sandbox room, so that it also runs under another user, as a program of its own:
`siege.py BACKEND FOLDER [bombs]`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from gateway.sandbox import Limits, Mount, Program, Sandbox
from gateway.sandbox.bwrap import Bubblewrap
from gateway.sandbox.landlock import Landlock
from gateway.sandbox.launcher import remove
from gateway.sandbox.run import Finished, run
from gateway.sandbox.unconfined import Unconfined

if __package__:
    from .bombs import BOMBS
else:
    from bombs import BOMBS  # type: ignore[import-not-found,no-redef]

ATTACKS = Path(__file__).with_name("attacks.py")
INTERPRETER = os.path.realpath(sys.executable)
BACKENDS: dict[str, Callable[[], Sandbox]] = {"bwrap": Bubblewrap, "landlock": Landlock, "unconfined": Unconfined}
WORD = "a-word-nobody-inside-may-know"
Verdicts = dict[str, list[str]]


def python(code: str, *arguments: str, **options: Any) -> Program:
    """A Python program; what it may read beside its interpreter and the rest of `Program` are options."""
    readable = (Path(sys.base_prefix), *options.pop("readable", ()))
    return Program((INTERPRETER, "-I", "-S", "-c", code, *arguments), readable=readable, **options)


def workspace(folder: Path, sandbox: Sandbox) -> dict[str, Any]:
    """Options of a program that works in a folder."""
    folder.mkdir(exist_ok=True)
    mount = Mount(folder, "/workspace", writable=True)
    return {"mounts": (mount,), "cwd": sandbox.inside(mount)}


def running(token: str) -> list[int]:
    """The processes with a word in their command line."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and token.encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
    return found


def besiege(backend: str, folder: Path) -> Verdicts:
    os.environ["TOOLGATE_SECRET"] = WORD
    with _outside(folder) as target:
        if backend == "landlock" and os.getuid() == 0:
            target["capabilities"] = 1 << 1  # CAP_DAC_OVERRIDE, within its rules
        finished = asyncio.run(_attack(BACKENDS[backend](), folder / "workspace", target))
    lines = finished.stdout.decode().splitlines()
    assert lines[-1:] == ["all tried"], finished
    verdicts: Verdicts = json.loads(lines[-2])
    return verdicts


async def _attack(sandbox: Sandbox, folder: Path, target: dict[str, Any]) -> Finished:
    program = Program(
        (INTERPRETER, "-I", "-S", str(ATTACKS), json.dumps(target)),
        readable=(Path(sys.base_prefix), ATTACKS, Path(target["readable"]), Path(target["setuid"])),
        limits=Limits(memory=256 * 2**20, processes=16),
        **workspace(folder, sandbox),
    )
    return await run(sandbox, program, timeout=60)


@contextlib.contextmanager
def _outside(folder: Path) -> Iterator[dict[str, Any]]:
    home = folder / "home"
    home.mkdir()
    for name in ("secret", "expendable", "victim_file"):
        (home / name).write_text(WORD)
    (folder / "readable").write_text("for all to read")
    (folder / "data").mkdir(0o700)
    (folder / "data/toolgate.db").write_text(WORD)
    shutil.copy("/usr/bin/id", folder / "setuid")
    (folder / "setuid").chmod(0o4755)
    disk = _disk()
    with contextlib.ExitStack() as stack:
        left_open = stack.enter_context((home / "secret").open())
        os.set_inheritable(left_open.fileno(), True)
        victim = stack.enter_context(_victim(home, left_open.fileno()))
        abstract = f"toolgate-{os.getpid()}-{victim}"
        stack.enter_context(_listening(socket.AF_UNIX, socket.SOCK_STREAM, "\0" + abstract))
        # A path of a socket is short; the folder's may not be.
        listeners = stack.enter_context(_short(folder))
        (folder / "workspace").mkdir(exist_ok=True)
        for name, kind in (("s", socket.SOCK_STREAM), ("d", socket.SOCK_DGRAM)):
            stack.enter_context(_listening(socket.AF_UNIX, kind, f"{listeners}/workspace/{name}"))
            (folder / "workspace" / name).chmod(0o777)
        yield {
            **{name: str(home / name) for name in ("secret", "expendable", "victim_file")},
            "home": str(home),
            "readable": str(folder / "readable"),
            "left_open": left_open.fileno(),
            "data": str(folder / "data/toolgate.db"),
            "setuid": str(folder / "setuid"),
            "held_open": left_open.fileno(),
            "disk": None if disk is None else str(disk),
            "disk_number": (1, 0) if disk is None else (os.major(disk.stat().st_rdev), os.minor(disk.stat().st_rdev)),
            "victim": victim,
            "word": WORD,
            "capabilities": 0,
            "tcp": stack.enter_context(_listening(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0)))[1],
            "udp": stack.enter_context(_listening(socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", 0)))[1],
            "abstract": abstract,
            "unix": stack.enter_context(_listening(socket.AF_UNIX, socket.SOCK_STREAM, f"{listeners}/s")),
            "datagrams": stack.enter_context(_listening(socket.AF_UNIX, socket.SOCK_DGRAM, f"{listeners}/d")),
            "given_unix": "s",
            "given_datagrams": "d",
            "core_pattern": Path("/proc/sys/kernel/core_pattern").read_text().strip(),
        }


@contextlib.contextmanager
def _victim(home: Path, held: int) -> Iterator[int]:
    with subprocess.Popen(["/bin/sleep", "120"], env={"SECRET": WORD}, cwd=home, pass_fds=(held,)) as process:
        try:
            yield process.pid
        finally:
            process.kill()


def _disk() -> Path | None:
    return next((path for path in sorted(Path("/dev").iterdir()) if path.is_block_device()), None)


@contextlib.contextmanager
def _short(folder: Path) -> Iterator[str]:
    fd = os.open(folder, os.O_DIRECTORY)
    try:
        link = f"/tmp/tg-{os.getpid()}-{fd}"
        os.symlink(folder, link)
        yield link
    finally:
        os.unlink(link)
        os.close(fd)


@contextlib.contextmanager
def _listening(family: int, kind: int, address: Any) -> Iterator[Any]:
    """Someone who answers everyone with one byte."""
    with socket.socket(family, kind) as server:
        server.bind(address)
        if kind == socket.SOCK_STREAM:
            server.listen()
        threading.Thread(target=_answer, args=(server, kind), daemon=True).start()
        try:
            yield server.getsockname() if family == socket.AF_INET else address
        finally:
            with contextlib.suppress(OSError):
                server.shutdown(socket.SHUT_RDWR)


def _answer(server: socket.socket, kind: int) -> None:
    with contextlib.suppress(OSError):
        while True:
            if kind == socket.SOCK_STREAM:
                connection, _ = server.accept()
                with connection:
                    connection.recv(10)
                    connection.send(b"!")
            else:
                _, peer = server.recvfrom(10)
                if peer:
                    server.sendto(b"!", peer)


def bombard(backend: str, folder: Path) -> dict[str, list[Any]]:
    """What each bomb was ended for, whether it had begun, and the processes that are left of it."""
    return asyncio.run(_bombard(BACKENDS[backend](), folder))


async def _bombard(sandbox: Sandbox, folder: Path) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for number, (name, (code, limits, _)) in enumerate(BOMBS.items()):
        token = f"bomb-{os.getpid()}-{number}"
        program = python(code, token, limits=limits, **workspace(folder / f"bomb{number}", sandbox))
        finished = await run(sandbox, program, timeout=4)
        found[name] = [finished.exit.killed, finished.stdout == b"begun\n", running(token)]
        remove(str(folder / f"bomb{number}"))
    return found


if __name__ == "__main__":
    act = bombard if sys.argv[3:] == ["bombs"] else besiege
    print(json.dumps(act(sys.argv[1], Path(sys.argv[2]))))
