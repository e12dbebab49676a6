"""Run inside the sandbox: tries to get out in every way it knows and prints how far it came.

An attack returns when it succeeded and raises `OSError` when it was stopped; anything else it raises
is a fault of the attack itself, and no verdict on the sandbox.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import resource
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Any

ATTACKS: dict[str, Callable[[dict[str, Any]], object]] = {}
Target = dict[str, Any]
libc = ctypes.CDLL(None, use_errno=True)
ARM = os.uname().machine == "aarch64"


def attack(function: Callable[[Target], object]) -> Callable[[Target], object]:
    ATTACKS[function.__name__] = function
    return function


def stopped(why: str) -> OSError:
    return OSError(errno.EACCES, why)


def call(x86_64: int, aarch64: int, *arguments: Any) -> int:
    """A system call that must succeed."""
    result: int = libc.syscall(ctypes.c_long(aarch64 if ARM else x86_64), *arguments)
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read(100)


# Files


@attack
def read_a_file_of_the_home(target: Target) -> object:
    return read(target["secret"])


@attack
def read_the_passwords(target: Target) -> object:
    return read("/etc/shadow")


@attack
def read_the_data_of_the_gateway(target: Target) -> object:
    return read(target["data"])


@attack
def list_the_home(target: Target) -> object:
    return os.listdir(target["home"])


@attack
def read_through_dots(target: Target) -> object:
    return read(os.path.relpath(target["secret"]))


@attack
def read_through_a_link(target: Target) -> object:
    os.symlink(target["secret"], "link")
    return read("link")


@attack
def read_through_a_link_to_the_root(target: Target) -> object:
    os.symlink("/proc/self/root", "root")
    return read("root" + target["secret"])


@attack
def read_through_a_hard_link(target: Target) -> object:
    os.link(target["secret"], "hard")
    return read("hard")


@attack
def write_into_the_home(target: Target) -> object:
    with open(target["home"] + "/planted", "w") as file:
        return file.write("x")


@attack
def write_to_what_is_readable(target: Target) -> object:
    with open(target["readable"], "a") as file:
        return file.write("")


@attack
def empty_what_is_readable(target: Target) -> object:
    os.close(os.open(target["readable"], os.O_RDONLY | os.O_TRUNC))
    return "done"


@attack
def truncate_a_file_of_the_home(target: Target) -> object:
    os.truncate(target["expendable"], 0)
    return "done"


@attack
def move_a_file_of_the_home_here(target: Target) -> object:
    os.rename(target["expendable"], "taken")
    return "done"


@attack
def change_the_mode_of_a_file(target: Target) -> object:
    before = os.stat(target["victim_file"]).st_mode
    os.chmod(target["victim_file"], 0o777)
    if os.stat(target["victim_file"]).st_mode == before:
        raise stopped("nothing happened")
    return "changed"


@attack
def change_the_mode_of_an_open_file(target: Target) -> object:
    fd = os.open(target["readable"], os.O_RDONLY)
    before = os.fstat(fd).st_mode
    os.fchmod(fd, 0o700 if before & 0o777 != 0o700 else 0o755)
    if os.fstat(fd).st_mode == before:
        raise stopped("nothing happened")
    return "changed"


@attack
def change_the_times_of_a_file(target: Target) -> object:
    os.utime(target["victim_file"], (1, 1))
    if os.stat(target["victim_file"]).st_mtime != 1:
        raise stopped("nothing happened")
    return "changed"


@attack
def change_an_attribute_of_a_file(target: Target) -> object:
    os.setxattr(target["victim_file"], "user.planted", b"x")
    return "done"


@attack
def watch_the_home(target: Target) -> object:
    fd = call(294, 26, 0)
    return call(254, 27, fd, target["home"].encode(), ctypes.c_uint32(0x100))


@attack
def make_a_setuid_file(target: Target) -> object:
    with open("tool", "w"):
        os.chmod("tool", 0o4755)
    if not os.stat("tool").st_mode & 0o4000:
        raise stopped("nothing happened")
    return "made"


@attack
def create_a_setuid_file(target: Target) -> object:
    os.close(os.open("born", os.O_CREAT | os.O_WRONLY, 0o4755))
    if not os.stat("born").st_mode & 0o4000:
        raise stopped("nothing happened")
    return "made"


@attack
def make_a_setuid_node(target: Target) -> object:
    os.mknod("node", 0o104755)
    return "done"


# Other processes


@attack
def find_a_secret_in_its_own_environment(target: Target) -> object:
    found = [name for name, value in os.environ.items() if target["word"] in value]
    if not found:
        raise stopped("nothing of the gateway's")
    return found


@attack
def read_the_environment_of_others(target: Target) -> object:
    for pid in [target["victim"], *(int(name) for name in os.listdir("/proc") if name.isdigit())]:
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                if target["word"].encode() in file.read():
                    return pid
        except OSError:
            continue
    raise stopped("no environment with the word in it")


@attack
def walk_through_the_root_of_another(target: Target) -> object:
    return read(f"/proc/{target['victim']}/root{target['secret']}")


@attack
def walk_through_the_folder_of_another(target: Target) -> object:
    return read(f"/proc/{target['victim']}/cwd/{os.path.basename(target['secret'])}")


@attack
def walk_through_the_descriptors_of_another(target: Target) -> object:
    return read(f"/proc/{target['victim']}/fd/{target['held_open']}")


@attack
def read_the_memory_of_another(target: Target) -> object:
    os.close(os.open(f"/proc/{target['victim']}/mem", os.O_RDONLY))
    return "done"


@attack
def signal_another(target: Target) -> object:
    os.kill(target["victim"], 0)
    return "done"


@attack
def trace_another(target: Target) -> object:
    return call(101, 117, ctypes.c_long(0x4206), ctypes.c_long(target["victim"]), None, None)


@attack
def limit_another(target: Target) -> object:
    return resource.prlimit(target["victim"], resource.RLIMIT_NOFILE, (64, 64))


@attack
def slow_another_down(target: Target) -> object:
    os.setpriority(os.PRIO_PROCESS, target["victim"], 19)
    return "done"


@attack
def pin_another(target: Target) -> object:
    os.sched_setaffinity(target["victim"], {0})
    return "done"


@attack
def use_a_descriptor_that_was_left_open(target: Target) -> object:
    return os.read(target["left_open"], 10)


# The network


def ask(address: object, family: int, kind: int = socket.SOCK_STREAM) -> bytes:
    with socket.socket(family, kind) as peer:
        peer.settimeout(2)
        peer.connect(address)  # type: ignore[arg-type]
        peer.send(b"?")
        return peer.recv(10)


@attack
def connect_by_tcp(target: Target) -> object:
    return ask(("127.0.0.1", target["tcp"]), socket.AF_INET)


@attack
def send_by_udp(target: Target) -> object:
    return ask(("127.0.0.1", target["udp"]), socket.AF_INET, socket.SOCK_DGRAM)


@attack
def connect_to_an_abstract_socket(target: Target) -> object:
    return ask("\0" + target["abstract"], socket.AF_UNIX)


@attack
def connect_to_a_socket_by_path(target: Target) -> object:
    return ask(target["unix"], socket.AF_UNIX)


@attack
def connect_to_a_socket_in_the_workspace(target: Target) -> object:
    return ask(target["given_unix"], socket.AF_UNIX)


@attack
def send_to_a_socket_in_the_workspace(target: Target) -> object:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as peer:
        return peer.sendto(b"?", target["given_datagrams"])


@attack
def send_from_a_pair_to_a_socket_in_the_workspace(target: Target) -> object:
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with one, other:
        return one.sendto(b"?", target["given_datagrams"])


@attack
def turn_a_pair_to_a_socket_by_path(target: Target) -> object:
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with one, other:
        one.connect(target["datagrams"])
        return one.send(b"?")


@attack
def send_from_a_pair_to_a_socket_by_path(target: Target) -> object:
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with one, other:
        return one.sendto(b"?", target["datagrams"])


@attack
def open_a_netlink_socket(target: Target) -> object:
    socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0).close()
    return "done"


# The kernel


@attack
def open_a_disk(target: Target) -> object:
    if target["disk"] is None:
        raise stopped("this machine has none")
    os.close(os.open(target["disk"], os.O_RDONLY))
    return "done"


@attack
def make_a_disk(target: Target) -> object:
    os.mknod("disk", 0o060600, os.makedev(*target["disk_number"]))
    os.close(os.open("disk", os.O_RDONLY))
    return "done"


@attack
def run_a_setuid_program(target: Target) -> object:
    output = subprocess.run([target["setuid"]], capture_output=True, text=True).stdout
    if "uid=" not in output:
        raise RuntimeError(f"it did not run: {output}")
    if "euid=" not in output:
        raise stopped("nothing gained")
    return output


@attack
def watch_page_faults(target: Target) -> object:
    return call(323, 282, 0)


@attack
def become_root(target: Target) -> object:
    os.setuid(0)
    return "done"


@attack
def write_the_core_pattern(target: Target) -> object:
    pattern = "/proc/sys/kernel/core_pattern"
    same = read(pattern) if os.access(pattern, os.R_OK) else target["core_pattern"].encode()
    with open(pattern, "wb", buffering=0) as file:
        return file.write(same)


@attack
def open_the_sysrq_trigger(target: Target) -> object:
    os.close(os.open("/proc/sysrq-trigger", os.O_WRONLY))
    return "done"


@attack
def nest_a_user_namespace(target: Target) -> object:
    return call(272, 97, ctypes.c_long(0x10000000))


@attack
def clone_into_a_user_namespace(target: Target) -> object:
    child = call(56, 220, ctypes.c_long(0x10000000 | 17), None, None, None, None)
    if child == 0:
        os._exit(0)
    return os.waitpid(child, 0)


@attack
def mount_something(target: Target) -> object:
    os.makedirs("here", exist_ok=True)
    call(165, 40, b"none", b"here", b"tmpfs", ctypes.c_ulong(0), None)
    return call(166, 39, b"here", 0)


@attack
def mount_in_a_user_namespace(target: Target) -> object:
    os.makedirs("below", exist_ok=True)
    call(272, 97, ctypes.c_long(0x10020000))
    return call(165, 40, b"none", b"below", b"tmpfs", ctypes.c_ulong(0), None)


@attack
def set_up_io_uring(target: Target) -> object:
    return call(425, 425, 1, ctypes.create_string_buffer(256))


@attack
def make_a_bpf_map(target: Target) -> object:
    return call(321, 280, 0, (ctypes.c_uint32 * 16)(2, 4, 4, 1), 64)


@attack
def join_a_keyring(target: Target) -> object:
    return call(250, 219, 1, b"planted")


@attack
def open_perf_events(target: Target) -> object:
    return call(298, 241, (ctypes.c_uint32 * 32)(1, 128), 0, -1, -1, 0)


@attack
def hide_memory_in_a_file(target: Target) -> object:
    return os.memfd_create("hidden")


@attack
def hide_memory_in_a_segment(target: Target) -> object:
    return call(29, 194, 0, ctypes.c_size_t(4096), 0o1600)


@attack
def keep_a_capability(target: Target) -> object:
    held = (ctypes.c_uint32 * 6)()
    call(125, 90, (ctypes.c_uint32 * 2)(0x20080522, 0), held)
    bounds = [number for number in range(64) if libc.prctl(23, number, 0, 0, 0) == 1]  # PR_CAPBSET_READ
    if not any(set(held) - {target["capabilities"], 0}) and (not bounds or os.getuid() != 0):
        raise stopped("none left")  # only root gains those of the bounds by running a program
    return list(held), bounds


@attack
def gain_privileges(target: Target) -> object:
    if libc.prctl(39, 0, 0, 0, 0) == 1:  # PR_GET_NO_NEW_PRIVS
        raise stopped("no new privileges")
    return "could"


def verdict(function: Callable[[Target], object], target: Target) -> list[str]:
    """Each in a process of its own: what one leaves open or changes must not help the next."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(ours)
        os.write(theirs, json.dumps(attempt(function, target)).encode())
        os._exit(0)
    os.close(theirs)
    with open(ours, "rb") as file:
        output = file.read()
    os.waitpid(child, 0)
    found: list[str] = json.loads(output) if output else ["broken", "died"]
    return found


def attempt(function: Callable[[Target], object], target: Target) -> list[str]:
    try:
        found = function(target)
    except OSError as error:
        return ["stopped", f"{error.strerror}"]
    except Exception as error:
        return ["broken", repr(error)]
    return ["open", repr(found)]


if __name__ == "__main__":
    aim = json.loads(sys.argv[1])
    print(json.dumps({name: verdict(function, aim) for name, function in ATTACKS.items()}))
    print("all tried")
