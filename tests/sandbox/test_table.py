"""Every way out that was ever measured, and where it is held to be closed."""

from __future__ import annotations

import pytest

from . import attacks, test_limits, test_run

TABLE = {
    "read /etc/shadow": "read_the_passwords",
    "read host HOME file": "read_a_file_of_the_home",
    "read gateway data dir": "read_the_data_of_the_gateway",
    "read via ../": "read_through_dots",
    "read via symlink in ws": "read_through_a_link",
    "read via hardlink": "read_through_a_hard_link",
    "write outside workspace": "write_into_the_home",
    "env secrets": "find_a_secret_in_its_own_environment",
    "/proc/*/environ secrets": "read_the_environment_of_others",
    "/proc/*/root to host": "walk_through_the_root_of_another",
    "/proc/*/cwd to host": "walk_through_the_folder_of_another",
    "/proc/*/fd to host": "walk_through_the_descriptors_of_another",
    "TCP to 127.0.0.1 host port": "connect_by_tcp",
    "UDP to 127.0.0.1 host port": "send_by_udp",
    "abstract unix socket": "connect_to_an_abstract_socket",
    "pathname unix socket outside ws": "connect_to_a_socket_by_path",
    "signal host process": "signal_another",
    "ptrace host process": "trace_another",
    "read /proc/PID/mem of host": "read_the_memory_of_another",
    "open block device": "open_a_disk",
    "mknod block device": "make_a_disk",
    "write /proc/sys (core_pattern)": "write_the_core_pattern",
    "gain caps via setuid binary": "run_a_setuid_program",
    "keep capabilities": "keep_a_capability",
    "create setuid file in ws": "create_a_setuid_file",
    "nested userns": "nest_a_user_namespace",
    "mount": "mount_something",
    "bpf": "make_a_bpf_map",
    "io_uring": "set_up_io_uring",
    "keyctl": "join_a_keyring",
    "perf": "open_perf_events",
    "userfaultfd": "watch_page_faults",
    "inherited fds": "use_a_descriptor_that_was_left_open",
    "fork bomb (total procs), and what is left of it": test_limits.test_a_fork_bomb_is_bounded,
    "memory bomb, 1 process and many": test_limits.test_a_memory_bomb_is_ended,
    "memory via tmpfs (/dev/shm)": test_limits.test_memory_in_files_of_no_disk_is_bounded,
    "memory via tmpfs (/tmp)": test_limits.test_its_own_tmp_is_bounded_and_gone_afterwards,
    "disk fill, one file; 1 TiB sparse file": test_limits.test_one_file_has_a_size,
    "disk fill, many files": test_limits.test_a_disk_bomb_is_ended,
    "infinite output": test_run.test_endless_output_ends_the_program,
    "CPU spin x8 -> wall timeout": test_limits.test_eight_that_spin_end_on_time,
    "orphan daemon; double-fork daemon holding stdout": test_run.test_a_daemon_does_not_outlive_its_program,
    "closes stdout, keeps running": test_limits.test_one_that_closes_its_output_is_still_waited_for_and_ended,
    "ignores all signals -> timeout": test_run.test_a_program_that_ignores_signals_ends_on_time,
}


@pytest.mark.parametrize("row", TABLE)
def test_a_row_of_the_table_is_tried(row: str) -> None:
    where = TABLE[row]
    assert callable(where) or where in attacks.ATTACKS
