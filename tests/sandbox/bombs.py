"""Programs that use more than they may, or stay longer. Each is bounded in itself: where nothing holds it, the
machine lives. Each says `begun` once its harm is under way, and `survived` when it got all it wanted.
"""

from __future__ import annotations

from dataclasses import dataclass

from gateway.sandbox import Killed, Limits

MIB = 2**20

FORK_BOMB = """
import os, sys, time
print("begun", flush=True)
for _ in range(150):
    try:
        if os.fork() == 0:
            time.sleep(600)
            os._exit(0)
    except OSError:
        break
else:
    print("survived", flush=True)
time.sleep(600)
"""

FORKS = """
import os, time
print("begun", flush=True)
for _ in range(100):
    try:
        if os.fork() == 0:
            time.sleep(200)
            os._exit(0)
    except OSError:
        break
time.sleep(200)
"""

THREAD_BOMB = """
import threading, time
print("begun", flush=True)
for _ in range(150):
    try:
        threading.Thread(target=time.sleep, args=(20,), daemon=True).start()
    except RuntimeError:
        print("refused", flush=True)
        break
else:
    time.sleep(600)
"""

MEMORY_BOMB = """
import time
print("begun", flush=True)
kept = []
for _ in range(60):
    kept.append(bytearray(b"x") * (8 << 20))
    time.sleep(0.03)
print("survived", flush=True)
"""

MEMORY_BOMB_OF_MANY = """
import os, time
print("begun", flush=True)
ours, theirs = os.pipe()
for _ in range(8):
    if os.fork() == 0:
        kept = bytearray(b"x") * (20 << 20)
        os.write(theirs, b"x")
        time.sleep(600)
        os._exit(0)
for _ in range(8):
    os.read(ours, 1)
time.sleep(1.5)
print("survived", flush=True)
time.sleep(600)
"""

LEADERLESS_MEMORY_BOMB = """
import ctypes, os, threading, time
print("begun", flush=True)
def fill():
    while "State:\\tZ" not in open(f"/proc/self/task/{os.getpid()}/status").read():
        time.sleep(0.01)
    kept = []
    for _ in range(60):
        kept.append(bytearray(b"x") * (8 << 20))
        time.sleep(0.03)
    print("survived", flush=True)
    os._exit(0)
threading.Thread(target=fill).start()
ctypes.CDLL(None).syscall(93 if os.uname().machine == "aarch64" else 60, 0)
"""

SHARED_MEMORY = """
import mmap, os, time
print("begun", flush=True)
kept = mmap.mmap(-1, 200 << 20)
for _ in range(200):
    kept.write(b"x" * (1 << 20))
    time.sleep(0.005)
print("survived", flush=True)
"""

UNSEEN_SHARED_MEMORY = """
import mmap, time
print("begun", flush=True)
kept = mmap.mmap(-1, 300 << 20)
for at in range(0, 300 << 20, 1 << 20):
    kept[at : at + (1 << 20)] = b"x" * (1 << 20)
    kept.madvise(mmap.MADV_DONTNEED, at, 1 << 20)
    time.sleep(0.005)
print("survived", flush=True)
"""

LOCKED_MEMORY = "import ctypes; ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)"

PAGE_TABLES = """
import mmap, time
print("begun", flush=True)
kept = mmap.mmap(-1, 200 << 30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000, prot=mmap.PROT_READ)
kept.madvise(mmap.MADV_NOHUGEPAGE)
for at in range(0, 200 << 30, 2 << 20):
    kept[at]
    if at % (64 << 20) == 0:
        time.sleep(0.0005)
print("survived", flush=True)
"""

MEMORY_IN_FILES = """
import os, tempfile, time
print("begun", flush=True)
def fill(place, pause):
    name = f"{place}/filled-{os.getpid()}"
    try:
        with open(name, "wb", buffering=0) as file:
            for _ in range(40):
                file.write(os.urandom(1 << 20))
                time.sleep(pause)
        print("survived", place, flush=True)
    except OSError as error:
        print(error.strerror, flush=True)
    finally:
        if os.path.exists(name):
            os.unlink(name)
fill("/dev/shm", 0)
fill(tempfile.gettempdir(), 0.05)
"""

ONE_FILE = """
print("begun", flush=True)
with open("big", "wb") as file:
    file.write(bytes(4 << 20))
print("survived", flush=True)
"""

SPARSE_FILE = """
print("begun", flush=True)
with open("sparse", "wb") as file:
    file.truncate(1 << 40)
print("survived", flush=True)
"""

DISK_BOMB = """
import os, time
print("begun", flush=True)
for number in range(40):
    with open(str(number), "wb") as file:
        file.write(os.urandom(1 << 20) * 2)
    time.sleep(0.05)
print("survived", flush=True)
"""

FILE_BOMB = """
import os, time
print("begun", flush=True)
for number in range(2000):
    open(str(number), "wb").close()
time.sleep(3)
print("survived", flush=True)
time.sleep(10)
"""

ALLOCATION_BOMB = """
import os, time
print("begun", flush=True)
for number in range(40):
    fd = os.open(str(number), os.O_CREAT | os.O_WRONLY)
    os.posix_fallocate(fd, 0, 2 << 20)
    os.close(fd)
    time.sleep(0.05)
print("survived", flush=True)
"""

UNCOUNTED_CHILDREN_BOMB = """
import os, signal, time
print("begun", flush=True)
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for number in range(40):
    if os.fork() == 0:
        with open(str(number), "wb") as file:
            file.write(os.urandom(1 << 20) * 2)
        os._exit(0)
    time.sleep(0.05)
print("survived", flush=True)
"""

UNREADABLE_PROGRAM_BOMB = """
import os, subprocess, time
print("begun", flush=True)
with open("/usr/bin/dd", "rb") as file, open(os.open("dd", os.O_CREAT | os.O_WRONLY, 0o111), "wb") as copy:
    copy.write(file.read())
with open("gone", "wb") as file:
    os.unlink("gone")
    child = subprocess.Popen(["./dd", "bs=1M", "status=none"], stdin=subprocess.PIPE, stdout=file)
for number in range(40):
    child.stdin.write(bytes(2 << 20))
    time.sleep(0.05)
print("survived", flush=True)
child.kill()
"""

HIDDEN_BOMB = """
import os, time
print("begun", flush=True)
os.mkdir("dark", 0o300)
for number in range(40):
    with open(f"dark/{number}", "wb") as file:
        file.write(os.urandom(1 << 20) * 2)
    time.sleep(0.05)
print("survived", flush=True)
"""

_NAMELESS_BOMB = """
import ctypes, mmap, os, socket, time
print("begun", flush=True)
libc = ctypes.CDLL(None)
libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_long)
ours, theirs = socket.socketpair()
kept = []
for _ in range(40):
    file = open("gone", "w+b", buffering=0)
    os.unlink("gone")
    file.write(os.urandom(1 << 20) * 2)
    KEEP
    time.sleep(0.05)
print("survived", flush=True)
"""
NAMELESS_BOMB = _NAMELESS_BOMB.replace("KEEP", "kept.append(file)")
MAPPED_BOMB = _NAMELESS_BOMB.replace(
    "KEEP", "libc.mmap(None, 4096, mmap.PROT_READ, mmap.MAP_SHARED, file.fileno(), 0); file.close()"
)
IN_FLIGHT_BOMB = _NAMELESS_BOMB.replace("KEEP", "socket.send_fds(ours, [b'x'], [file.fileno()]); file.close()")
LOCKED_BOMB = _NAMELESS_BOMB.replace("KEEP", "kept.append(file); libc.prctl(4, 0, 0, 0, 0)")

DEEP_BOMB = """
import os, time
print("begun", flush=True)
for _ in range(400):
    os.mkdir("d")
    os.chdir("d")
with open("hidden", "wb") as file:
    file.write(b"x")
time.sleep(3)
print("survived", flush=True)
time.sleep(10)
"""

SPINNERS = """
import os
print("begun", flush=True)
for _ in range(8):
    if os.fork() == 0:
        for _ in range(10**10):
            pass
for _ in range(10**10):
    pass
"""

ENDLESS_OUTPUT = """
import sys
print("begun", flush=True)
for _ in range(256):
    sys.stdout.write("x" * 65536)
print("survived", flush=True)
"""

ORPHAN = """
import os, time
if os.fork() == 0:
    os.setsid()
    null = os.open("/dev/null", os.O_RDWR)
    for fd in range(3):
        os.dup2(null, fd)
    open("beat", "w").close()
    time.sleep(600)
    os._exit(0)
while not os.path.exists("beat"):
    time.sleep(0.01)
print("begun", flush=True)
"""

DAEMON_WITH_OUR_OUTPUT = """
import os, signal, time
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    open("beat", "w").close()
    time.sleep(600)
    os._exit(0)
while not os.path.exists("beat"):
    time.sleep(0.01)
print("begun", flush=True)
"""

CLOSED_OUTPUT = """
import os, time
print("begun", flush=True)
os.close(1)
os.close(2)
time.sleep(600)
"""

DEAF = """
import signal, time
for number in range(1, 65):
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
print("begun", flush=True)
time.sleep(600)
"""

_ANY = Limits()


@dataclass(frozen=True)
class Bomb:
    """A program, what it may use, and what it may be ended for. One that does nothing but stay is given `seconds`. One
    whose writes nobody can count has several `tries`: what others free at the same moment can hide what it takes."""

    code: str
    limits: Limits = _ANY
    ended_for: tuple[Killed | None, ...] = (None,)
    seconds: float | None = None
    tries: int = 1


_MEMORY = Limits(memory=96 * MIB)
_DISK = Limits(disk=8 * MIB, files=500)
_FEW = Limits(processes=64)

BOMBS = {
    "start_too_many": Bomb(FORK_BOMB, _FEW, ("processes",)),
    "leave_many_behind": Bomb(FORKS, _FEW, ("processes",)),
    "use_the_memory": Bomb(MEMORY_BOMB, _MEMORY, ("memory",)),
    "use_the_memory_in_many": Bomb(MEMORY_BOMB_OF_MANY, _MEMORY, ("memory",)),
    "use_the_memory_when_the_first_thread_has_ended": Bomb(LEADERLESS_MEMORY_BOMB, _MEMORY, ("memory",)),
    "use_the_memory_together": Bomb(SHARED_MEMORY, _MEMORY, ("memory",)),
    "use_the_memory_unseen": Bomb(UNSEEN_SHARED_MEMORY, _MEMORY, ("memory",)),
    "use_the_memory_behind_a_locked_door": Bomb(LOCKED_MEMORY + MEMORY_BOMB, _MEMORY, ("memory",)),
    "use_the_memory_unseen_behind_a_locked_door": Bomb(LOCKED_MEMORY + UNSEEN_SHARED_MEMORY, _MEMORY, ("memory",)),
    "use_the_memory_in_files": Bomb(MEMORY_IN_FILES, Limits(tmp_bytes=8 * MIB), (None, "disk")),
    "write_a_large_file": Bomb(ONE_FILE, Limits(file_bytes=MIB)),
    "write_many_files": Bomb(DISK_BOMB, _DISK, ("disk",)),
    "allocate_without_writing": Bomb(ALLOCATION_BOMB, _DISK, ("disk",)),
    "write_by_children_that_nobody_waits_for": Bomb(UNCOUNTED_CHILDREN_BOMB, _DISK, ("disk",)),
    "write_by_a_program_that_nobody_may_read": Bomb(UNREADABLE_PROGRAM_BOMB, _DISK, ("disk",), tries=3),
    "write_where_nobody_looks": Bomb(HIDDEN_BOMB, _DISK, ("disk",)),
    "write_to_files_without_a_name": Bomb(NAMELESS_BOMB, _DISK, ("disk",)),
    "write_to_files_that_are_only_mapped": Bomb(MAPPED_BOMB, _DISK, ("disk",)),
    "write_to_files_that_are_on_their_way": Bomb(IN_FLIGHT_BOMB, _DISK, ("disk",)),
    "write_behind_a_locked_door": Bomb(LOCKED_BOMB, _DISK, ("disk",)),
    "make_a_sparse_file": Bomb(SPARSE_FILE, Limits(file_bytes=MIB)),
    "make_too_many_files": Bomb(FILE_BOMB, _DISK, ("disk",)),
    "dig_too_deep": Bomb(DEEP_BOMB, _DISK, ("disk",)),
    "say_too_much": Bomb(ENDLESS_OUTPUT, ended_for=("output",)),
    "leave_an_orphan": Bomb(ORPHAN),
    "leave_a_daemon_with_our_output": Bomb(DAEMON_WITH_OUR_OUTPUT, seconds=4),
    "spin": Bomb(SPINNERS, ended_for=("timeout",), seconds=4),
    "close_the_output_and_stay": Bomb(CLOSED_OUTPUT, ended_for=("timeout",), seconds=4),
    "ignore_all_signals": Bomb(DEAF, ended_for=("timeout",), seconds=4),
}
