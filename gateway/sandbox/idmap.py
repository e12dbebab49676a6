"""A gateway that is root starts programs as someone else, and lends them the folders they are given.

A lent folder is the same folder, mounted so that its owner appears as the program's user, and what that
user makes in it is the owner's: nothing is copied and no file changes hands. The mounts are made in a
namespace that nobody sees but the program's sandbox, under names that every user can reach.
"""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import struct
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from gateway.sandbox import Program
from gateway.sandbox.process import unavailable
from gateway.sandbox.run_user import Account, owner

T = TypeVar("T")

# Covered in the namespace of the mounts. It is everywhere, and nothing in it is ever lent.
_STAGE = "/sys"

_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442
_SETRESUID, _SETRESGID, _SETGROUPS = (147, 149, 159) if platform.machine() == "aarch64" else (117, 119, 116)
_GET_DUMPABLE, _SET_DUMPABLE, _AMBIENT, _AMBIENT_CLEAR = 3, 4, 47, 4
_CLONE_FS, _CLONE_NEWNS, _CLONE_NEWUSER = 0x200, 0x20000, 0x10000000
_AT_FDCWD, _AT_EMPTY_PATH, _AT_RECURSIVE = -100, 0x1000, 0x8000
_OPEN_TREE_CLONE, _MOVE_MOUNT_F_EMPTY_PATH, _MOUNT_ATTR_IDMAP = 1, 4, 0x00100000
_MS_NOSUID, _MS_NODEV, _MS_REC, _MS_SLAVE = 2, 4, 0x4000, 1 << 19
_PATIENCE = 20.0
_ASIDE = f"""
import ctypes, os
if ctypes.CDLL(None).unshare({_CLONE_NEWUSER}) == 0:
    os.write(1, b".")
    os.read(0, 1)
"""

# Programs die with the thread that started them, so it is one that stays.
_thread = ThreadPoolExecutor(1, "toolgate-lending")


_NOT_LENT = (
    "programs never run as root, and the file system of a folder of root's can lend it to no other user; "
    "run the gateway as a normal user, or make one the owner of the folder"
)


def place(index: int) -> str:
    """Under which name the sandbox finds what was lent as number `index`."""
    return f"{_STAGE}/{index}"


def borrower(program: Program, dedicated: Account) -> Account:
    """Whom the program is to run as; blocking, for a thread. Where a file system cannot lend, it is the owner
    of the folder, and root's folders are refused."""
    stuck = {owner(mount.source) for mount in program.mounts if mount.writable and not _lendable(mount.source)}
    if not stuck:
        user = dedicated
    elif len(stuck) == 1 and (only := next(iter(stuck))).uid != 0:
        user = Account(only.uid, only.gid or only.uid)
    else:
        raise unavailable(_NOT_LENT)
    for path in given(program):
        if _lendable(path):
            _mapping(owner(path), user)
    return user


def prepared(program: Program, dedicated: Account) -> bool:
    """Whether all is known that `borrower` needs, so that it does not block."""
    paths = given(program)
    return all(_can_lend.get(path.stat().st_dev) and (owner(path), dedicated) in _mappings for path in paths)


def given(program: Program) -> list[Path]:
    """All that is lent to a program, in the order of its numbers."""
    return [*program.readable, *(mount.source for mount in program.mounts)]


def lent(paths: Sequence[Path], user: Account, start: Callable[[], T]) -> T:
    """What `start` returns, called as the user where each path is lent to that user; `SANDBOX_UNAVAILABLE` where
    one cannot be. A process it starts is the user's for good, and has nothing of root's."""
    return _thread.submit(_lent, paths, user, start).result()


def acting_as(user: Account, action: Callable[[], None]) -> None:
    """Do something to a process of the user's, as the user would: root may not be allowed to in a container."""
    _thread.submit(_acting_as, user, action).result()


def _acting_as(user: Account, action: Callable[[], None]) -> None:
    # The library's functions would change all our threads.
    try:
        _check(_libc().syscall(_SETRESGID, user.gid, -1, -1), "another group")
        _check(_libc().syscall(_SETRESUID, user.uid, -1, -1), "another user")
        action()
    finally:
        _become_root()


def _started_as(user: Account, start: Callable[[], T]) -> T:
    """Let this thread be the user, with a way back that no program inherits. Root could only start a process for
    someone else as a copy of this whole one, and that takes longer than all the rest of a start."""
    groups, dumpable = os.getgroups(), _libc().prctl(_GET_DUMPABLE, 0, 0, 0, 0)
    try:
        _check(_libc().prctl(_AMBIENT, _AMBIENT_CLEAR, 0, 0, 0), "capabilities")
        _set_groups([])
        _check(_libc().syscall(_SETRESGID, user.gid, user.gid, 0), "another group")
        _check(_libc().syscall(_SETRESUID, user.uid, user.uid, 0), "another user")
        _libc().prctl(_SET_DUMPABLE, 1, 0, 0, 0)  # else the child cannot see which descriptors it has to close
        return start()
    finally:
        _become_root()
        _set_groups(groups)
        _libc().prctl(_SET_DUMPABLE, int(dumpable == 1), 0, 0, 0)


def _become_root() -> None:
    _check(_libc().syscall(_SETRESUID, 0, 0, 0), "root again")
    _check(_libc().syscall(_SETRESGID, 0, 0, 0), "root again")


def _set_groups(groups: Sequence[int]) -> None:
    _check(_libc().syscall(_SETGROUPS, len(groups), (ctypes.c_uint32 * len(groups))(*groups)), "groups")


def _lent(paths: Sequence[Path], user: Account, start: Callable[[], T]) -> T:
    home: int | None = None
    trees: list[int] = []
    try:
        home = _home()
        trees += (_tree(path, user) for path in paths)  # from here: nothing open is of the namespace to come
        _check(_libc().unshare(_CLONE_NEWNS), "there is no mount namespace for another user")
        _check(_libc().mount(None, b"/", None, _MS_REC | _MS_SLAVE, None), "the mounts cannot be kept apart")
        _check(_libc().mount(b"tmpfs", _STAGE.encode(), b"tmpfs", _MS_NOSUID | _MS_NODEV, b"mode=755,size=1m"), _STAGE)
        for index, (path, tree) in enumerate(zip(paths, trees, strict=True)):
            _put(tree, path, place(index))
        return _started_as(user, start)
    except OSError as error:
        raise unavailable(f"programs never run as root, and {error}") from error
    finally:
        for tree in trees:
            os.close(tree)
        if home is not None:
            _check(_libc().setns(home, _CLONE_NEWNS), "the way back")


def _tree(path: Path, user: Account) -> int:
    """The same folder or file once more, as the user's."""
    tree = _clone(path)
    try:
        if (of := owner(path)) != user and _lendable(path):
            _map(tree, _mapping(of, user))
    except BaseException:
        os.close(tree)
        raise
    return tree


def _put(tree: int, path: Path, target: str) -> None:
    if path.is_dir():
        os.mkdir(target, 0o755)  # noqa: PTH102 - a plain name
    else:
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))
    to, how = target.encode(), ctypes.c_uint(_MOVE_MOUNT_F_EMPTY_PATH)
    _check(_libc().syscall(_MOVE_MOUNT, tree, b"", _AT_FDCWD, to, how), str(path))


def _clone(path: Path) -> int:
    flags = ctypes.c_uint(_OPEN_TREE_CLONE | os.O_CLOEXEC | _AT_RECURSIVE)
    return _check(_libc().syscall(_OPEN_TREE, _AT_FDCWD, os.fsencode(path), flags), str(path))


def _map(tree: int, mapping: int) -> None:
    attributes = struct.pack("<QQQQ", _MOUNT_ATTR_IDMAP, 0, 0, mapping)
    size, where = ctypes.c_size_t(len(attributes)), ctypes.c_uint(_AT_EMPTY_PATH)
    _check(_libc().syscall(_MOUNT_SETATTR, tree, b"", where, attributes, size), "a mapping of users")


_can_lend: dict[int, bool] = {}


def _lendable(path: Path) -> bool:
    """Whether its file system knows how to show another owner: most do, since Linux 5.12 or somewhat later."""
    device = path.stat().st_dev
    if device not in _can_lend:
        tree = _clone(path)
        try:
            _map(tree, _mapping(Account(0, 0), Account(1, 1)))
            _can_lend[device] = True
        except OSError:
            _can_lend[device] = False
        finally:
            os.close(tree)
    return _can_lend[device]


_mappings: dict[tuple[Account, Account], int] = {}


def _mapping(of: Account, user: Account) -> int:
    """A user namespace that says who appears as whom; made once, and kept by its descriptor."""
    if (of, user) not in _mappings:
        _mappings[of, user] = _map_users(of, user)
    return _mappings[of, user]


def _map_users(of: Account, user: Account) -> int:
    argv = [sys.executable, "-I", "-S", "-c", _ASIDE]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={}, cwd="/") as aside:
        assert aside.stdin is not None and aside.stdout is not None  # noqa: S101 - they were asked for
        if not aside.stdout.read(1):
            raise OSError("there are no user namespaces here to lend folders by")
        process = Path("/proc", str(aside.pid))
        (process / "uid_map").write_text(f"{of.uid} {user.uid} 1")
        (process / "gid_map").write_text(f"{of.gid} {user.gid} 1")
        found = os.open(process / "ns/user", os.O_RDONLY | os.O_CLOEXEC)
        aside.stdin.close()
        aside.wait(_PATIENCE)
        return found


@functools.cache
def _home() -> int:
    """The namespace we come from. From here on the thread shares neither root nor working folder with others."""
    _check(_libc().unshare(_CLONE_FS), "no namespace can be made for another user")
    return os.open("/proc/thread-self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(f"{what}: {os.strerror(number)}")
    return result
