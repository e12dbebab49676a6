"""Ways out of the sandbox: each works without it, and none in it."""

from __future__ import annotations

import json
import sys

import pytest

from . import attacks
from .conftest import World, make
from .siege import BARE, Verdicts, besiege

# Attacks that a normal user, a container or the kernel may be refused without our help.
DEPENDS_ON_THE_MACHINE = {
    "become_root",
    "change_an_attribute_of_a_file",
    "clone_into_a_user_namespace",
    "gain_privileges",
    "join_a_keyring",
    "keep_a_capability",
    "make_a_bpf_map",
    "make_a_disk",
    "mount_in_a_user_namespace",
    "mount_something",
    "nest_a_user_namespace",
    "open_a_disk",
    "open_perf_events",
    "open_the_sysrq_trigger",
    "read_the_passwords",
    "run_a_setuid_program",
    "set_up_io_uring",
    "trace_another",
    "watch_page_faults",
    "write_the_core_pattern",
}

_fought: dict[str, Verdicts] = {}


@pytest.fixture
def verdicts(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Verdicts:
    """All attacks in one program for each sandbox, however many tests ask."""
    name = request.param
    if name != BARE:
        make(name)
    if name not in _fought:
        _fought[name] = besiege(name, tmp_path_factory.mktemp(name))
    return _fought[name]


@pytest.mark.parametrize("verdicts", ["bwrap", "landlock"], indirect=True)
@pytest.mark.parametrize("name", attacks.ATTACKS)
def test_an_attack_is_stopped(verdicts: Verdicts, name: str) -> None:
    assert verdicts[name][0] == "stopped", verdicts[name]


@pytest.mark.skipif(sys.platform != "linux", reason="the attacks are on Linux")
@pytest.mark.parametrize("verdicts", [BARE], indirect=True)
@pytest.mark.parametrize("name", sorted(attacks.ATTACKS.keys() - DEPENDS_ON_THE_MACHINE))
def test_the_attack_works_where_nothing_stops_it(verdicts: Verdicts, name: str) -> None:
    assert verdicts[name][0] == "open", verdicts[name]


@pytest.mark.parametrize("backend", ["bwrap", "landlock"])
def test_a_normal_user_is_as_safe(backend: str, world: World) -> None:
    make(backend)
    output = world.run("user", "-m", "tests.sandbox.siege", backend, str(world.field), "attacks")
    assert output.returncode == 0, output.stderr
    verdicts: Verdicts = json.loads(output.stdout)
    assert verdicts.keys() == attacks.ATTACKS.keys()
    assert {name: verdict for name, verdict in verdicts.items() if verdict[0] != "stopped"} == {}
