"""Idmapped mounts: a gateway that is root starts programs as another user, who sees the given folders as its own.

The same folder is mounted so that its owner appears as the program's user, and files that user creates belong to the
owner: nothing is copied and no owner changes. The mounts exist only in the mount namespace of the program's sandbox,
under paths that every user can reach.
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
from gateway.sandbox.run_user import UserAccount, owner

T = TypeVar("T")

# Hidden by the mounts in their namespace. It exists everywhere and is never shared with programs.
_MOUNT_ROOT = "/sys"

_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442
_SETRESUID, _SETRESGID, _SETGROUPS = (147, 149, 159) if platform.machine() == "aarch64" else (117, 119, 116)
_GET_DUMPABLE, _SET_DUMPABLE, _AMBIENT, _AMBIENT_CLEAR = 3, 4, 47, 4
_CLONE_FS, _CLONE_NEWNS, _CLONE_NEWUSER = 0x200, 0x20000, 0x10000000
_AT_FDCWD, _AT_EMPTY_PATH, _AT_RECURSIVE = -100, 0x1000, 0x8000
_OPEN_TREE_CLONE, _MOVE_MOUNT_F_EMPTY_PATH, _MOUNT_ATTR_IDMAP = 1, 4, 0x00100000
_MS_NOSUID, _MS_NODEV, _MS_REC, _MS_SLAVE = 2, 4, 0x4000, 1 << 19
_TIMEOUT = 20.0
_NAMESPACE_HOLDER = f"""
import ctypes, os
if ctypes.CDLL(None).unshare({_CLONE_NEWUSER}) == 0:
    os.write(1, b".")
    os.read(0, 1)
"""

# Programs die with the thread that started them (PR_SET_PDEATHSIG), so one thread stays.
_thread = ThreadPoolExecutor(1, "toolgate-idmap")


_NOT_MAPPABLE = (
    "programs never run as root, and the file system of a folder owned by root does not support idmapped mounts; "
    "run the gateway as a normal user, or make one the owner of the folder"
)


def mount_point(index: int) -> str:
    """Return the path of the mount with number `index`."""
    return f"{_MOUNT_ROOT}/{index}"


def choose_user(program: Program, dedicated: UserAccount) -> UserAccount:
    """Choose the user to run the program as; blocks, so call it in a thread. If a file system does not support idmapped
    mounts, that is the owner of the folder, and folders of root are refused."""
    unmappable_owners = {
        owner(mount.source) for mount in program.mounts if mount.writable and not _supports_idmap(mount.source)
    }
    if not unmappable_owners:
        user = dedicated
    elif len(unmappable_owners) == 1 and (only := next(iter(unmappable_owners))).uid != 0:
        user = UserAccount(only.uid, only.gid or only.uid)
    else:
        raise unavailable(_NOT_MAPPABLE)
    for path in shared_paths(program):
        if _supports_idmap(path):
            _mapping(owner(path), user)
    return user


def is_prepared(program: Program, dedicated: UserAccount) -> bool:
    """Return whether `choose_user` will not block, because everything it needs is cached."""
    paths = shared_paths(program)
    return all(_idmap_support.get(path.stat().st_dev) and (owner(path), dedicated) in _mappings for path in paths)


def shared_paths(program: Program) -> list[Path]:
    """Return all paths that are shared with a program, in the order of their mounts."""
    return [*program.readable, *(mount.source for mount in program.mounts)]


def start_with_idmapped_mounts(paths: Sequence[Path], user: UserAccount, start: Callable[[], T]) -> T:
    """Call `start` as the user, in a mount namespace where each path belongs to that user; `SANDBOX_UNAVAILABLE` if a
    mount fails. A process that it starts cannot become root again."""
    return _thread.submit(_start_with_mounts, paths, user, start).result()


def run_as(user: UserAccount, action: Callable[[], None]) -> None:
    """Call `action` as the user, for a process of that user: in a container root may lack the permission."""
    _thread.submit(_run_as, user, action).result()


def _run_as(user: UserAccount, action: Callable[[], None]) -> None:
    # The C library's functions would change all threads.
    try:
        _check(_libc().syscall(_SETRESGID, user.gid, -1, -1), "another group")
        _check(_libc().syscall(_SETRESUID, user.uid, -1, -1), "another user")
        action()
    finally:
        _become_root()


def _start_as(user: UserAccount, start: Callable[[], T]) -> T:
    """Switch this thread to the user and back; programs inherit no way back. The alternative, a fork of the whole
    process, takes longer than the rest of a start."""
    groups, dumpable = os.getgroups(), _libc().prctl(_GET_DUMPABLE, 0, 0, 0, 0)
    try:
        _check(_libc().prctl(_AMBIENT, _AMBIENT_CLEAR, 0, 0, 0), "capabilities")
        _set_groups([])
        _check(_libc().syscall(_SETRESGID, user.gid, user.gid, 0), "another group")
        _check(_libc().syscall(_SETRESUID, user.uid, user.uid, 0), "another user")
        _libc().prctl(_SET_DUMPABLE, 1, 0, 0, 0)  # otherwise the child cannot list its descriptors to close them
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


def _start_with_mounts(paths: Sequence[Path], user: UserAccount, start: Callable[[], T]) -> T:
    original: int | None = None
    trees: list[int] = []
    try:
        original = _original_namespace()
        # Cloned before unshare: no descriptor may belong to the new namespace.
        trees += (_tree(path, user) for path in paths)
        _check(_libc().unshare(_CLONE_NEWNS), "no mount namespace could be created")
        _check(_libc().mount(None, b"/", None, _MS_REC | _MS_SLAVE, None), "the mounts could not be made private")
        _check(
            _libc().mount(b"tmpfs", _MOUNT_ROOT.encode(), b"tmpfs", _MS_NOSUID | _MS_NODEV, b"mode=755,size=1m"),
            _MOUNT_ROOT,
        )
        for index, (path, tree) in enumerate(zip(paths, trees, strict=True)):
            _attach(tree, path, mount_point(index))
        return _start_as(user, start)
    except OSError as error:
        raise unavailable(f"programs never run as root, and {error}") from error
    finally:
        for tree in trees:
            os.close(tree)
        if original is not None:
            _check(_libc().setns(original, _CLONE_NEWNS), "returning to the mount namespace")


def _tree(path: Path, user: UserAccount) -> int:
    """Clone the mount of a path, mapped to the user."""
    tree = _clone(path)
    try:
        if (of := owner(path)) != user and _supports_idmap(path):
            _map(tree, _mapping(of, user))
    except BaseException:
        os.close(tree)
        raise
    return tree


def _attach(tree: int, path: Path, target: str) -> None:
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
    _check(_libc().syscall(_MOUNT_SETATTR, tree, b"", where, attributes, size), "idmapped mount")


_idmap_support: dict[int, bool] = {}


def _supports_idmap(path: Path) -> bool:
    """Return whether the file system of a path supports idmapped mounts; most do since Linux 5.12 or later."""
    device = path.stat().st_dev
    if device not in _idmap_support:
        tree = _clone(path)
        try:
            _map(tree, _mapping(UserAccount(0, 0), UserAccount(1, 1)))
            _idmap_support[device] = True
        except OSError:
            _idmap_support[device] = False
        finally:
            os.close(tree)
    return _idmap_support[device]


_mappings: dict[tuple[UserAccount, UserAccount], int] = {}


def _mapping(of: UserAccount, user: UserAccount) -> int:
    """Return the descriptor of a user namespace that maps the owner to the user; cached."""
    if (of, user) not in _mappings:
        _mappings[of, user] = _map_users(of, user)
    return _mappings[of, user]


def _map_users(of: UserAccount, user: UserAccount) -> int:
    argv = [sys.executable, "-I", "-S", "-c", _NAMESPACE_HOLDER]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={}, cwd="/") as holder:
        assert holder.stdin is not None and holder.stdout is not None  # noqa: S101 - both are pipes
        if not holder.stdout.read(1):
            raise OSError("user namespaces are not available for idmapped mounts")
        process = Path("/proc", str(holder.pid))
        (process / "uid_map").write_text(f"{of.uid} {user.uid} 1")
        (process / "gid_map").write_text(f"{of.gid} {user.gid} 1")
        found = os.open(process / "ns/user", os.O_RDONLY | os.O_CLOEXEC)
        holder.stdin.close()
        holder.wait(_TIMEOUT)
        return found


@functools.cache
def _original_namespace() -> int:
    """Return the original mount namespace. From here on the thread has its own root and working directory."""
    _check(_libc().unshare(_CLONE_FS), "the thread's file system context could not be unshared")
    return os.open("/proc/thread-self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(f"{what}: {os.strerror(number)}")
    return result
