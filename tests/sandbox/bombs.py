"""Programs that use more than they may. Each is bounded in itself: where a limit does not hold, the machine lives."""

from __future__ import annotations

from gateway.sandbox import Killed, Limits

MIB = 2**20

FORK_BOMB = """
import os, sys, time
print("begun", flush=True)
for _ in range(150):
    try:
        if os.fork() == 0:
            time.sleep(20)
            os._exit(0)
    except OSError:
        break
time.sleep(20)
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
    time.sleep(20)
"""

MEMORY_BOMB = """
import time
print("begun", flush=True)
kept = []
for _ in range(60):
    kept.append(bytearray(b"x") * (8 << 20))
    time.sleep(0.01)
print("survived", flush=True)
"""

MEMORY_BOMB_OF_MANY = """
import os, time
print("begun", flush=True)
for _ in range(4):
    if os.fork() == 0:
        kept = bytearray(b"x") * (40 << 20)
        time.sleep(20)
        os._exit(0)
time.sleep(20)
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

DISK_BOMB = """
import os, time
print("begun", flush=True)
for number in range(40):
    with open(str(number), "wb") as file:
        file.write(os.urandom(1 << 20) * 2)
    time.sleep(0.02)
print("survived", flush=True)
"""

FILE_BOMB = """
import os, time
print("begun", flush=True)
for number in range(2000):
    open(str(number), "wb").close()
time.sleep(10)
print("survived", flush=True)
"""

DEEP_BOMB = """
import os, time
print("begun", flush=True)
for _ in range(400):
    os.mkdir("d")
    os.chdir("d")
with open("hidden", "wb") as file:
    file.write(b"x")
time.sleep(10)
print("survived", flush=True)
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

BOMBS: dict[str, tuple[str, Limits, Killed]] = {
    "forks": (FORK_BOMB, Limits(processes=16), "processes"),
    "memory of one": (MEMORY_BOMB, Limits(memory=96 * MIB), "memory"),
    "memory of many": (MEMORY_BOMB_OF_MANY, Limits(memory=96 * MIB), "memory"),
    "shared memory": (SHARED_MEMORY, Limits(memory=96 * MIB), "memory"),
    "bytes on disk": (DISK_BOMB, Limits(disk=8 * MIB, files=500), "disk"),
    "files": (FILE_BOMB, Limits(disk=8 * MIB, files=500), "disk"),
    "depth": (DEEP_BOMB, Limits(disk=8 * MIB, files=500), "disk"),
    "spinning": (SPINNERS, Limits(), "timeout"),
}
"""What each is ended for; the last one within the time it is given."""
