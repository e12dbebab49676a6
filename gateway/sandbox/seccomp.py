"""The system calls a sandboxed program may not make, as a filter for the kernel.

The filter refuses what reaches other processes or the kernel's rarely trodden ground, and leaves the
rest alone. `shared` is for a program that shares its view of files and processes with the host, as
under Landlock: what Landlock does not look at is refused there too.
"""

from __future__ import annotations

import errno
import functools
import os
import platform
import socket
import struct


def _names(text: str) -> list[str]:
    return text.split()


_NUMBERS: dict[str, tuple[int | None, int | None]] = {  # x86_64, aarch64
    "acct": (163, 89),
    "add_key": (248, 217),
    "adjtimex": (159, 171),
    "bind": (49, 200),
    "bpf": (321, 280),
    "chmod": (90, None),
    "chown": (92, None),
    "chroot": (161, 51),
    "clock_adjtime": (305, 266),
    "clock_settime": (227, 112),
    "clone": (56, 220),
    "clone3": (435, 435),
    "connect": (42, 203),
    "creat": (85, None),
    "delete_module": (176, 106),
    "execve": (59, 221),
    "execveat": (322, 281),
    "fallocate": (285, 47),
    "fanotify_init": (300, 262),
    "fanotify_mark": (301, 263),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "fchown": (93, 55),
    "fchownat": (260, 54),
    "file_setattr": (469, 469),
    "finit_module": (313, 273),
    "fork": (57, None),
    "fremovexattr": (199, 16),
    "fsconfig": (431, 431),
    "fsetxattr": (190, 7),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "futimesat": (261, None),
    "init_module": (175, 105),
    "inotify_add_watch": (254, 27),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
    "ioctl": (16, 29),
    "ioperm": (173, None),
    "iopl": (172, None),
    "ioprio_set": (251, 30),
    "kcmp": (312, 272),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "lchown": (94, None),
    "listmount": (458, 458),
    "lookup_dcookie": (212, 18),
    "lremovexattr": (198, 15),
    "lsetxattr": (189, 6),
    "mbind": (237, 235),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "migrate_pages": (256, 238),
    "mknod": (133, None),
    "mknodat": (259, 33),
    "modify_ldt": (154, None),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "move_pages": (279, 239),
    "mq_open": (240, 180),
    "mq_unlink": (241, 181),
    "msgctl": (71, 187),
    "msgget": (68, 186),
    "msgrcv": (70, 188),
    "msgsnd": (69, 189),
    "name_to_handle_at": (303, 264),
    "open": (2, None),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "open_tree_attr": (467, 467),
    "openat": (257, 56),
    "openat2": (437, 437),
    "perf_event_open": (298, 241),
    "personality": (135, 92),
    "pidfd_getfd": (438, 438),
    "pivot_root": (155, 41),
    "prctl": (157, 167),
    "prlimit64": (302, 261),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "reboot": (169, 142),
    "removexattr": (197, 14),
    "removexattrat": (466, 466),
    "request_key": (249, 218),
    "sched_setaffinity": (203, 122),
    "sched_setattr": (314, 274),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "semctl": (66, 191),
    "semget": (64, 190),
    "semop": (65, 193),
    "semtimedop": (220, 192),
    "setns": (308, 268),
    "setpgid": (109, 154),
    "setpriority": (141, 140),
    "setsid": (112, 157),
    "settimeofday": (164, 170),
    "setxattr": (188, 5),
    "setxattrat": (463, 463),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "shmdt": (67, 197),
    "shmget": (29, 194),
    "socket": (41, 198),
    "socketpair": (53, 199),
    "statmount": (457, 457),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "syslog": (103, 116),
    "truncate": (76, 45),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "uselib": (134, None),
    "userfaultfd": (323, 282),
    "utime": (132, None),
    "utimensat": (280, 88),
    "utimes": (235, None),
    "vfork": (58, None),
    "vhangup": (153, 58),
}

_FORBIDDEN = _names("""
    ptrace process_vm_readv process_vm_writev process_madvise process_mrelease pidfd_getfd kcmp
    io_uring_setup io_uring_enter io_uring_register bpf perf_event_open userfaultfd keyctl add_key request_key
    mount umount2 pivot_root chroot move_mount open_tree open_tree_attr fsopen fsconfig fsmount fspick mount_setattr
    statmount listmount open_by_handle_at name_to_handle_at setns unshare init_module finit_module delete_module
    kexec_load kexec_file_load reboot swapon swapoff syslog acct quotactl quotactl_fd settimeofday clock_settime
    adjtimex clock_adjtime personality fanotify_init fanotify_mark lookup_dcookie vhangup mbind move_pages
    migrate_pages iopl ioperm modify_ldt uselib
""")

# Programs fall back when these are missing. `openat2` and `clone3` hide their flags from a filter; memory of
# the others belongs to no process, so nobody would see it grow.
_MISSING = _names("""
    clone3 openat2 memfd_create memfd_secret shmget shmat shmctl shmdt semget semop semtimedop semctl
    msgget msgsnd msgrcv msgctl mq_open mq_unlink
""")

# The kernel counts for each process what it writes, but not what it allocates. Programs then write instead.
_UNSUPPORTED = ["fallocate"]

# Landlock says nothing about these, and they take any path, or any process of the same user.
_FORBIDDEN_SHARED = ["connect", "bind", "truncate", "ioprio_set", "inotify_add_watch"]
_UNSUPPORTED_SHARED = _names("""
    setxattr lsetxattr fsetxattr setxattrat removexattr lremovexattr fremovexattr removexattrat file_setattr
""")
_ONLY_ITSELF = ["prlimit64", "sched_setaffinity", "sched_setattr", "sched_setparam", "sched_setscheduler"]

# These succeed and do nothing: every copy of a file sets its mode and time, and a tree that cannot leave its
# process group can be killed whole.
_IDLE_SHARED = _names("""
    setpgid setsid chmod fchmod fchmodat fchmodat2 chown fchown lchown fchownat utime utimes futimesat
""")

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _AND, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16
_ALLOW, _KILL, _REFUSE = 0x7FFF0000, 0x80000000, 0x00050000
_X32 = 0x40000000
_NAMESPACES = 0x7E020000
_CLONE_THREAD = 0x10000
_CREATES = 0o20000100  # O_CREAT, and O_TMPFILE without its O_DIRECTORY
_TRUNCATES = 0o1000
_SETUID = 0o6000
_PR_SET_DUMPABLE = 4
_INTERNET = (socket.AF_INET, socket.AF_INET6)
_PAIRED = (socket.SOCK_STREAM, socket.SOCK_SEQPACKET)
_TERMINAL_INPUT = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX: typing into the operator's terminal

_Code = list[tuple[int, int, int, int]]
_MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}


def is_supported(machine: str | None = None) -> bool:
    return (machine or platform.machine()) in _MACHINES


@functools.cache
def build(*, shared: bool, machine: str | None = None) -> bytes:
    """The filter for a kind of machine, this one by default; KeyError for one we have no numbers of. A program that
    is not `shared` has a network namespace of its own, and may use its loopback."""
    answers = [(name, [(_RETURN, 0, 0, _refuse(error))]) for names, error in _simple(shared) for name in names]
    answers += (_shared_checks() if shared else _own_checks()) + _checks(shared)
    return _assemble(answers, machine)


@functools.cache
def build_without_programs() -> bytes:
    """A second filter, for an interpreter that has started: from then on it starts threads and no processes."""
    refused = [(name, [_no()]) for name in ("execve", "execveat", "fork", "vfork")]
    thread = [_argument(0), (_ANY_BIT, 1, 0, _CLONE_THREAD), _no(), _allow()]
    return _assemble([*refused, ("clone", thread)])


def _assemble(answers: list[tuple[str, _Code]], machine: str | None = None) -> bytes:
    column, architecture = _MACHINES[machine or platform.machine()]
    code: _Code = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
        (_AT_LEAST, 0, 1, _X32),
        (_RETURN, 0, 0, _refuse(errno.ENOSYS)),
    ]
    for name, answer in answers:
        number = _NUMBERS[name][column]
        if number is not None:
            code.extend([(_EQUAL, 0, len(answer), number), *answer])
    code.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("<HBBI", *instruction) for instruction in code)


def _simple(shared: bool) -> list[tuple[list[str], int]]:
    always = [(_FORBIDDEN, errno.EPERM), (_MISSING, errno.ENOSYS), (_UNSUPPORTED, errno.EOPNOTSUPP)]
    if not shared:
        return always
    return [*always, (_FORBIDDEN_SHARED, errno.EPERM), (_UNSUPPORTED_SHARED, errno.EOPNOTSUPP), (_IDLE_SHARED, 0)]


def _checks(shared: bool) -> list[tuple[str, _Code]]:
    return [
        ("clone", _refuse_bits(0, _NAMESPACES)),
        ("ioctl", [_argument(1), *_refuse_values(_TERMINAL_INPUT), _allow()]),
        ("open", _opening(1, 2, shared)),
        ("openat", _opening(2, 3, shared)),
        ("creat", _refuse_bits(1, _SETUID)),
        ("mknod", _refuse_bits(1, _SETUID)),
        ("mknodat", _refuse_bits(2, _SETUID)),
        # A socket of the host may lie in a folder that was given. A filter sees no address, so that there is no
        # socket to reach one with: a pair is connected for good, unless it is of datagrams.
        ("socket", _only(0, () if shared else _INTERNET)),
        # Succeeds and does nothing: of a process that is not dumpable, only root could read what it uses.
        ("prctl", [_argument(0), (_EQUAL, 0, 1, _PR_SET_DUMPABLE), (_RETURN, 0, 0, _refuse(0)), _allow()]),
        ("socketpair", [_argument(0), (_EQUAL, 1, 0, socket.AF_UNIX), _no(), *_only(1, _PAIRED, mask=0xF)]),
    ]


def _own_checks() -> list[tuple[str, _Code]]:
    modes = [("chmod", 1), ("fchmod", 1), ("fchmodat", 2), ("fchmodat2", 2)]
    return [(name, _refuse_bits(argument, _SETUID)) for name, argument in modes]


def _shared_checks() -> list[tuple[str, _Code]]:
    return [
        *((name, _only(0, [0])) for name in _ONLY_ITSELF),
        # which: PRIO_PROCESS, who: itself
        ("setpriority", [_argument(0), (_EQUAL, 1, 0, 0), _no(), *_only(1, [0])]),
        # Times are set on what is open; by name, nothing happens. "Now" is refused by name: Python's Path.touch creates
        # a file only where that fails.
        ("utimensat", [*_if_null(1, _allow()), *_if_null(2, _no()), (_RETURN, 0, 0, _refuse(0))]),
    ]


def _opening(flags: int, mode: int, shared: bool) -> _Code:
    """No file is made setuid; and none emptied that is opened for reading, which old Landlocks overlook."""
    code = [_argument(flags)]
    if shared:
        code += [
            (_ANY_BIT, 0, 4, _TRUNCATES),
            (_AND, 0, 0, 3),
            (_EQUAL, 2, 0, os.O_WRONLY),
            (_EQUAL, 1, 0, os.O_RDWR),
            _no(),
            _argument(flags),
        ]
    return [*code, (_ANY_BIT, 0, 3, _CREATES), _argument(mode), (_ANY_BIT, 0, 1, _SETUID), _no(), _allow()]


def _refuse_bits(argument: int, bits: int) -> _Code:
    return [_argument(argument), (_ANY_BIT, 0, 1, bits), _no(), _allow()]


def _refuse_values(values: tuple[int, ...]) -> _Code:
    return [instruction for value in values for instruction in ((_EQUAL, 0, 1, value), _no())]


def _only(argument: int, values: list[int] | tuple[int, ...], mask: int | None = None) -> _Code:
    code = [_argument(argument)]
    if mask is not None:
        code.append((_AND, 0, 0, mask))
    for value in values:
        code += [(_EQUAL, 0, 1, int(value)), _allow()]
    return [*code, _no()]


def _argument(index: int) -> tuple[int, int, int, int]:
    """Load the lower half, which is all the kernel itself looks at in the arguments compared here."""
    return _LOAD, 0, 0, _ARGUMENTS + 8 * index


def _upper(index: int) -> tuple[int, int, int, int]:
    """Load the upper half, of a pointer."""
    return _LOAD, 0, 0, _ARGUMENTS + 8 * index + 4


def _if_null(index: int, answer: tuple[int, int, int, int]) -> _Code:
    """Answer if a pointer is null, else go on."""
    return [_argument(index), (_EQUAL, 0, 3, 0), _upper(index), (_EQUAL, 0, 1, 0), answer]


def _allow() -> tuple[int, int, int, int]:
    return _RETURN, 0, 0, _ALLOW


def _no() -> tuple[int, int, int, int]:
    return _RETURN, 0, 0, _refuse(errno.EPERM)


def _refuse(error: int) -> int:
    return _REFUSE | error
