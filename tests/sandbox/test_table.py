"""Every way out that was ever measured: closed in each sandbox, for root and for a normal user, and open without."""

from __future__ import annotations

import json
import os
import sys
from itertools import product

import pytest
from amounts import NIGHTLY

from .attacks import ATTACKS
from .bombs import BOMBS
from .conftest import NORMAL_USER, World, _interpreter, make, missing
from .siege import BARE, NOT_RUN, Verdicts

TABLE: dict[tuple[int, str], tuple[str, ...]] = {
    (1, "read /etc/shadow"): ("read_the_passwords",),
    (2, "read host HOME file"): ("read_a_file_of_the_home", "list_the_home"),
    (3, "read gateway data dir"): ("read_the_data_of_the_gateway",),
    (4, "read via ../"): ("read_through_dots",),
    (5, "read via symlink in ws"): ("read_through_a_link", "read_through_a_link_to_the_root"),
    (6, "read via hardlink"): ("read_through_a_hard_link",),
    (7, "write outside workspace"): ("write_into_the_home", "write_to_what_is_readable"),
    (8, "env secrets"): ("find_a_secret_in_its_own_environment",),
    (9, "/proc/*/environ secrets"): ("read_the_environment_of_others",),
    (10, "/proc/*/root,cwd,fd to host"): (
        "walk_through_the_root_of_another",
        "walk_through_the_folder_of_another",
        "walk_through_the_descriptors_of_another",
    ),
    (11, "TCP to 127.0.0.1 host port"): ("connect_by_tcp",),
    (12, "UDP to 127.0.0.1 host port"): ("send_by_udp",),
    (13, "abstract unix socket"): ("connect_to_an_abstract_socket",),
    (14, "pathname unix socket outside ws"): ("connect_to_a_socket_by_path",),
    (15, "signal host process"): ("signal_another",),
    (16, "ptrace host process"): ("trace_another",),
    (17, "read /proc/PID/mem of host"): ("read_the_memory_of_another",),
    (18, "open block device"): ("open_a_disk",),
    (19, "mknod block device"): ("make_a_disk",),
    (20, "write /proc/sys (core_pattern)"): ("write_the_core_pattern",),
    (21, "gain caps via setuid binary"): ("run_a_setuid_program",),
    (22, "keep capabilities"): ("keep_a_capability",),
    (23, "create setuid file in ws"): ("make_a_setuid_file", "create_a_setuid_file", "make_a_setuid_node"),
    (24, "nested userns + mount"): ("nest_a_user_namespace", "mount_in_a_user_namespace", "mount_something"),
    (25, "bpf/io_uring/keyctl/perf/userfaultfd"): (
        "make_a_bpf_map",
        "set_up_io_uring",
        "join_a_keyring",
        "open_perf_events",
        "watch_page_faults",
    ),
    (26, "inherited fds"): ("use_a_descriptor_that_was_left_open",),
    (27, "fork bomb (total procs)"): ("start_too_many",),
    (28, "processes left after fork bomb"): ("leave_many_behind",),
    (29, "memory bomb, 1 process"): (
        "use_the_memory",
        "use_the_memory_when_the_first_thread_has_ended",
        "use_the_memory_behind_a_locked_door",
        "use_the_memory_unseen",
        "use_the_memory_unseen_behind_a_locked_door",
    ),
    (30, "memory bomb, 8 processes"): ("use_the_memory_in_many", "use_the_memory_together"),
    (31, "memory via tmpfs (/dev/shm,/tmp)"): ("use_the_memory_in_files",),
    (32, "disk fill, one file"): ("write_a_large_file",),
    (33, "disk fill, many files"): (
        "write_many_files",
        "make_too_many_files",
        "allocate_without_writing",
        "write_by_children_that_nobody_waits_for",
        "write_by_a_program_that_nobody_may_read",
        "write_where_nobody_looks",
        "write_to_files_without_a_name",
        "write_to_files_that_are_only_mapped",
        "write_to_files_that_are_on_their_way",
        "write_behind_a_locked_door",
    ),
    (34, "1 TiB sparse file"): ("make_a_sparse_file",),
    (35, "infinite output"): ("say_too_much",),
    (36, "CPU spin x8 -> wall timeout"): ("spin",),
    (37, "orphan daemon outlives call"): ("leave_an_orphan",),
    (38, "double-fork daemon holding stdout"): ("leave_a_daemon_with_our_output",),
    (39, "closes stdout, keeps running"): ("close_the_output_and_stay",),
    (40, "ignores all signals -> timeout"): ("ignore_all_signals",),
}

SANDBOXES = ("bwrap", "landlock")
NOT_MOUNTED = 77
USERS = ("root", "user")

# What is closed to one of the two on any machine, sandbox or not, and with which answer.
KERNEL_SAYS: dict[str, dict[str, set[str]]] = {
    "user": {
        "read_the_passwords": {"Permission denied"},
        "open_a_disk": {"Permission denied", "this machine has none"},
        "make_a_disk": {"Operation not permitted"},
        "write_the_core_pattern": {"Permission denied", "Read-only file system"},
        "keep_a_capability": {"none left"},
        "become_root": {"Operation not permitted"},
        "mount_something": {"Operation not permitted"},
    },
    "root": {"run_a_setuid_program": {"nothing gained"}},  # there is nobody above
}

# So these rows say nothing about a sandbox to one of them: the other shows that the attack works.
CLOSED_ROWS = {"user": {1, 18, 19, 20, 22}, "root": {21}}

# What the settings of a machine may refuse besides: `kernel.unprivileged_bpf_disabled` and its kind.
SETTINGS = {
    "user": {
        "change_an_attribute_of_a_file",
        "clone_into_a_user_namespace",
        "make_a_bpf_map",
        "mount_in_a_user_namespace",
        "nest_a_user_namespace",
        "open_perf_events",
        "open_the_sysrq_trigger",
        "read_the_memory_of_another",
        "set_up_io_uring",
        "trace_another",
        "watch_page_faults",
    },
    "root": {"change_an_attribute_of_a_file", "make_a_disk", "open_a_disk", "open_the_sysrq_trigger"},
}

# What the root of a container may be refused.
OF_A_WHOLE_ROOT = {
    "clone_into_a_user_namespace",
    "join_a_keyring",
    "keep_a_capability",
    "make_a_bpf_map",
    "mount_in_a_user_namespace",
    "mount_something",
    "nest_a_user_namespace",
    "open_perf_events",
    "read_the_memory_of_another",
    "set_up_io_uring",
    "trace_another",
    "watch_page_faults",
    "write_the_core_pattern",
}

REFUSALS = {
    "Function not implemented",
    "No such file or directory",
    "Operation not permitted",
    "Operation not supported",
    "Permission denied",
    "Read-only file system",
    "none left",
    "nothing gained",
    "this machine has none",
}


def test_the_table_is_whole() -> None:
    assert [number for number, _ in TABLE] == list(range(1, 41))
    assert {name for row in TABLE.values() for name in row} <= ATTACKS.keys() | BOMBS.keys()
    assert all(TABLE.values())
    for user, closed in KERNEL_SAYS.items():
        assert {number for (number, _), row in TABLE.items() if closed.keys() >= set(row)} == CLOSED_ROWS[user]
    assert not CLOSED_ROWS["user"] & CLOSED_ROWS["root"]


@pytest.mark.slow
@pytest.mark.parametrize(("backend", "user"), list(product(SANDBOXES, USERS)))
def test_every_row_is_stopped(backend: str, user: str, world: World) -> None:
    make(backend)
    verdicts = besiege_as(world, backend, user)
    assert _rows_that_are_not_stopped(verdicts) == {}
    assert verdicts.keys() == ATTACKS.keys() | BOMBS.keys()
    assert {name: verdict for name, verdict in verdicts.items() if verdict[0] != "stopped"} == {}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the attacks are on Linux")
@pytest.mark.parametrize("user", USERS if NIGHTLY else ["root"])
def test_without_a_sandbox_every_row_is_open(user: str, world: World) -> None:
    """So that what is stopped in a sandbox was stopped by it. What the kernel stops in any case, it says so."""
    verdicts = besiege_as(world, BARE, user)
    assert verdicts.keys() == ATTACKS.keys() | BOMBS.keys()
    closed = {name: verdict for name, verdict in verdicts.items() if verdict[0] != "open"}
    for name, answers in KERNEL_SAYS[user].items():
        kind, why = closed.pop(name, ["open", ""])
        assert (kind, why in answers) == ("stopped", True), (name, kind, why)
    may_be_closed = SETTINGS[user] | _of_this_machine(world)
    unexplained = {name for name, (kind, why) in closed.items() if kind != "stopped" or why not in REFUSALS}
    assert {name: closed[name] for name in unexplained | (closed.keys() - may_be_closed)} == {}


# Becomes a normal user, where /proc shows nobody's processes but one's own, and not even those that are locked.
HIDE = f"""
import ctypes, os, sys
libc = ctypes.CDLL(None)
if libc.unshare(0x20000) or libc.mount(None, b"/", None, 0x44000, None) or libc.mount(
    b"proc", b"/proc", b"proc", 0, b"hidepid=" + sys.argv[1].encode()
):
    sys.exit({NOT_MOUNTED})
os.setgroups([])
os.setresgid(*[{NORMAL_USER}] * 3)
os.setresuid(*[{NORMAL_USER}] * 3)
os.execv(sys.argv[2], sys.argv[2:])
"""


@pytest.mark.slow
@pytest.mark.skipif(os.getuid() != 0, reason="only root can mount a /proc that hides processes")
@pytest.mark.parametrize("hidepid", ["1", "2", "4"])
@pytest.mark.parametrize("backend", SANDBOXES)
def test_nobody_hides_in_a_proc_that_hides_processes(backend: str, hidepid: str, world: World) -> None:
    make(backend)
    os.chown(world.field, NORMAL_USER, NORMAL_USER)
    bombs = [name for name in BOMBS if name.startswith("use_the_memory") and name.endswith("locked_door")]
    bombs += ["use_the_memory", "start_too_many", "write_to_files_without_a_name"]
    siege = (_interpreter(), "-B", "-m", "tests.sandbox.siege", backend, str(world.field), *bombs)
    output = world.run("root", "-c", HIDE, hidepid, *siege)
    if output.returncode == NOT_MOUNTED:
        missing("the root of a container may not mount /proc")
    assert output.returncode == 0, output.stderr
    verdicts: Verdicts = json.loads(output.stdout)
    assert verdicts.keys() == set(bombs)
    assert {name: verdict for name, verdict in verdicts.items() if verdict[0] != "stopped"} == {}


def besiege_as(world: World, backend: str, user: str) -> Verdicts:
    output = world.run(user, "-m", "tests.sandbox.siege", backend, str(world.field))
    assert output.returncode == 0, output.stderr
    verdicts: Verdicts = json.loads(output.stdout)
    return verdicts


def _rows_that_are_not_stopped(verdicts: Verdicts) -> dict[tuple[int, str], Verdicts]:
    """What was never tried is not stopped either."""
    tried = {
        row: {name: verdicts.get(name, [NOT_RUN, "never tried"]) for name in names} for row, names in TABLE.items()
    }
    return {row: found for row, found in tried.items() if any(kind != "stopped" for kind, _ in found.values())}


def _of_this_machine(world: World) -> set[str]:
    """What is refused here to any user: as in a container, whose root lacks the right to administer the system."""
    refused: set[str] = set()
    with open("/proc/self/status") as file:
        held = next(line.split()[1] for line in file if line.startswith("CapEff:"))
    if not int(held, 16) >> 21 & 1:
        refused |= OF_A_WHOLE_ROOT
    if os.getuid() != 0 or os.statvfs(world.field).f_flag & os.ST_NOSUID:
        refused.add("run_a_setuid_program")
    return refused


@pytest.mark.slow
@pytest.mark.skipif(os.getuid() != 0, reason="who is a normal user runs these anyway")
@pytest.mark.parametrize("files", ["limits", "spares", "run disk_usage planted keeping hidden network cgroups choose"])
def test_what_root_is_promised_holds_for_a_normal_user(files: str, world: World) -> None:
    """The tests of programs, of what they plant and of their network once more; the bombs were tried above."""
    for name in SANDBOXES:
        make(name)
    if world.run("user", "-c", "import pydantic_core, uvloop").returncode != 0:
        pytest.skip("the system's own Python is of another version than ours")
    paths = [f"tests/sandbox/test_{name}.py" for name in files.split()]
    left_out = "not unconfined and not bomb and not gateway_that_is_killed and not whoever_runs"
    chosen = ("-k", left_out, "-m", "not slow" if files == "spares" else "")
    output = world.run("user", "-m", "pytest", "-q", "-rs", "--tb=short", "-p", "no:xdist", *chosen, *paths)
    assert output.returncode == 0, output.stdout[-8000:]
    assert "skipped" not in output.stdout.splitlines()[-1], output.stdout[-2000:]
