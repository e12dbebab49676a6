"""A machine worth attacking: secrets, listeners and a victim outside; the attacks run against them in a sandbox.

It uses nothing but the sandbox room, so that it also runs under another user, as a program of its own:
`python -m tests.sandbox.siege BACKEND FOLDER [attacks | bombs | NAME OF A BOMB]...`. The backend `bare` is none at
all: it shows what the attacks do to who runs programs without a thought.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway.sandbox import Killed, Limits, Mount, Program, Sandbox
from gateway.sandbox.bwrap import Bubblewrap
from gateway.sandbox.detect import Unconfined
from gateway.sandbox.landlock import Landlock
from gateway.sandbox.run import FinishedProgram, run
from gateway.sandbox.supervisor_main import remove

from .bombs import BOMBS, Bomb

ATTACKS = Path(__file__).with_name("attacks.py")
INTERPRETER = os.path.realpath(sys.executable)
BACKENDS: dict[str, Callable[[], Sandbox]] = {"bwrap": Bubblewrap, "landlock": Landlock, "unconfined": Unconfined}
WORD = "a-word-nobody-inside-may-know"
BARE = "bare"
NOT_RUN = "broken"
# Of each attack: `stopped`, `open` or `broken`, and why. A broken one says nothing about the sandbox.
Verdicts = dict[str, list[str]]

_PATIENCE = 60.0
# How much longer a bomb is given when it had no time to go off, as on a busy machine.
_SLOWER = (1, 4, 16)

_LAST_BREATH = 1.0
_OUTPUT = 2**20


def python(code: str, *arguments: str, **options: Any) -> Program:
    """A Python program; what it may read beside its interpreter and the rest of `Program` are options."""
    readable = (Path(sys.base_prefix), *options.pop("readable", ()))
    return Program((INTERPRETER, "-I", "-S", "-c", code, *arguments), readable=readable, **options)


def workspace(folder: Path, sandbox: Sandbox) -> dict[str, Any]:
    """Options of a program that works in a folder."""
    folder.mkdir(exist_ok=True)
    mount = Mount(folder, "/workspace", writable=True)
    return {"mounts": (mount,), "cwd": sandbox.inside(mount)}


_own_users = itertools.count(2_000_000 + 1000 * os.getpid())


def give_to_own_user(folder: Path, sandbox: Sandbox) -> None:
    """Under Landlock the kernel counts all tasks of a user, and programs of root run as the owner of their folder."""
    if sandbox.name == "landlock" and os.getuid() == 0:
        user = next(_own_users)
        os.chown(folder, user, user)


async def run_out_of_time(sandbox: Sandbox, program: Program, begun: bytes) -> FinishedProgram:
    """Run a program that never ends, with more time until it had enough to say that it has begun."""
    for timeout in (1, 4, 16, 64):
        finished = await run(sandbox, program, timeout=timeout)
        if finished.stdout.startswith(begun):
            break
    return finished


def running(token: str) -> list[int]:
    """The processes with a word in their command line."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and token.encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
    return found


def besiege(backend: str, folder: Path) -> Verdicts:
    """What became of each way out."""
    os.environ["TOOLGATE_SECRET"] = WORD
    with outside(folder) as target:
        if backend == "landlock" and os.getuid() == 0:
            target["capabilities"] = 1 << 1  # CAP_DAC_OVERRIDE, within its rules
        argv = (INTERPRETER, "-I", "-S", str(ATTACKS), json.dumps(target))
        place = folder / "workspace"
        if backend == BARE:
            output = subprocess.run(argv, capture_output=True, cwd=place, close_fds=False, timeout=60).stdout
        else:
            output = asyncio.run(_attack(BACKENDS[backend](), argv, place, target))
    lines = output.decode().splitlines()
    assert lines[-1:] == ["all tried"], output
    verdicts: Verdicts = json.loads(lines[-2])
    return verdicts


async def _attack(sandbox: Sandbox, argv: tuple[str, ...], folder: Path, target: dict[str, Any]) -> bytes:
    program = Program(
        argv,
        readable=(Path(sys.base_prefix), ATTACKS, Path(target["readable"]), Path(target["setuid"])),
        limits=Limits(memory=256 * 2**20, processes=32),
        **workspace(folder, sandbox),
    )
    finished = await run(sandbox, program, timeout=60)
    return finished.stdout or finished.stderr


@contextlib.contextmanager
def outside(folder: Path) -> Iterator[dict[str, Any]]:
    home = folder / "home"
    home.mkdir()
    for name in ("secret", "expendable", "victim_file"):
        (home / name).write_text(WORD)
    (folder / "readable").write_text("for all to read")
    (folder / "data").mkdir(0o700)
    (folder / "data/toolgate.db").write_text(WORD)
    plant(folder)
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


def plant(folder: Path) -> None:
    """A setuid program of whoever is here first: only root's is of use to others."""
    if not (folder / "setuid").exists():
        shutil.copy("/usr/bin/id", folder / "setuid")
        (folder / "setuid").chmod(0o4755)


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


def bombard(backend: str, folder: Path, bombs: Mapping[str, Bomb] = BOMBS) -> Verdicts:
    """What became of each program that uses more than it may."""
    return asyncio.run(_bombard(None if backend == BARE else BACKENDS[backend](), folder, bombs))


async def _bombard(sandbox: Sandbox | None, folder: Path, bombs: Mapping[str, Bomb]) -> Verdicts:
    """One after the other, so that none suffers for what another uses; those that only wait, wait together, and
    without a sandbox all others too."""
    fuses = {name: _Fuse(sandbox, folder / name, bomb) for name, bomb in bombs.items()}
    waiting = [name for name, bomb in bombs.items() if bomb.seconds]
    others = [name for name, bomb in bombs.items() if not bomb.seconds]
    verdicts: Verdicts = {}
    for together in [waiting, *([others] if sandbox is None else ([name] for name in others))]:
        found = await asyncio.gather(*(_verdict(fuses[name], bombs[name].tries) for name in together))
        verdicts |= zip(together, found, strict=True)
    return verdicts


async def _verdict(fuse: _Fuse, tries: int) -> list[str]:
    for _ in range(tries):
        for slower in _SLOWER:
            verdict = await fuse.verdict(slower)
            if verdict[0] != NOT_RUN:
                break
        if verdict[0] == "stopped":
            break
    return verdict


@dataclass(frozen=True)
class _Seen:
    """What a bomb said, what it was ended for, and the processes that are left of it."""

    stdout: bytes
    killed: Killed | None
    left: list[int]


class _Fuse:
    """Lets one bomb go off, in a sandbox or without one, and clears up after it."""

    def __init__(self, sandbox: Sandbox | None, folder: Path, bomb: Bomb) -> None:
        self._sandbox = sandbox
        self._folder = folder
        self._bomb = bomb
        self._token = f"bomb-{os.getpid()}-{folder.name}."  # no other one begins so

    async def verdict(self, slower: float) -> list[str]:
        seconds = slower * (self._bomb.seconds or _PATIENCE)
        try:
            seen = await (self._bare(seconds) if self._sandbox is None else self._held(self._sandbox, seconds))
        finally:
            await self._clear()
        if not seen.stdout.startswith(b"begun"):
            return [NOT_RUN, repr(seen)[:1000]]
        if b"survived" in seen.stdout:
            return ["open", "it got all it wanted"]
        if seen.left:
            return ["open", f"{len(seen.left)} processes are left"]
        if seen.killed not in self._bomb.ended_for:
            return [NOT_RUN, f"ended for {seen.killed}"]
        return ["stopped", str(seen.killed)]

    async def _held(self, sandbox: Sandbox, seconds: float) -> _Seen:
        bomb = self._bomb
        program = python(bomb.code, self._token, limits=bomb.limits, **workspace(self._folder, sandbox))
        if "processes" in bomb.ended_for:
            give_to_own_user(self._folder, sandbox)
        finished = await run(sandbox, program, timeout=seconds, hard_limit=_OUTPUT)
        return _Seen(finished.stdout, finished.exit.killed, running(self._token))

    async def _bare(self, seconds: float) -> _Seen:
        """As it is often done: read until there is no more, or it took too long; then end what was started."""
        self._folder.mkdir()
        process = await asyncio.create_subprocess_exec(
            *(INTERPRETER, "-I", "-S", "-c", self._bomb.code, self._token),
            stdout=subprocess.PIPE,
            cwd=self._folder,
            env={"TMPDIR": str(self._folder)},
        )
        assert process.stdout is not None
        head, tail = b"", b""
        killed: Killed | None = None
        try:
            async with asyncio.timeout(seconds):
                while b"survived" not in tail and (more := await process.stdout.read(2**16)):
                    head, tail = head or more[:100], tail[-100:] + more
        except TimeoutError:
            killed = "timeout"
            process.terminate()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), _LAST_BREATH)
        seen = _Seen(head + tail[-100:], killed, running(self._token))
        await self._clear()
        await process.stdout.read()
        await process.wait()
        return seen

    async def _clear(self) -> None:
        until = time.monotonic() + _PATIENCE
        while (left := running(self._token)) and time.monotonic() < until:
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            await asyncio.sleep(0.02)
        remove(str(self._folder))


if __name__ == "__main__":
    backend, folder, *parts = sys.argv[1:]
    acts: dict[str, Callable[[str, Path], Verdicts]] = {"attacks": besiege, "bombs": bombard}
    acts |= {name: functools.partial(bombard, bombs={name: bomb}) for name, bomb in BOMBS.items()}
    output: Verdicts = {}
    for part in parts or ("attacks", "bombs"):
        output |= acts[part](backend, Path(folder))
    print(json.dumps(output))
