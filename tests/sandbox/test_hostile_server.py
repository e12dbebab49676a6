"""A hostile stdio server: in the sandbox it gets nothing, and it does not outlive the gateway."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from eventually import eventually

from . import attacks
from .conftest import World, make
from .siege import Verdicts, running

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.parametrize("user", ["root", "user"])
@pytest.mark.parametrize(("backend", "mode"), [("bwrap", ""), ("bwrap", "online"), ("landlock", "")])
def test_a_hostile_server_in_the_sandbox_gets_nothing(backend: str, mode: str, user: str, world: World) -> None:
    make(backend)
    done = world.run(user, "-m", "tests.sandbox.hostile_server", backend, str(world.field), mode)
    assert done.returncode == 0, done.stderr
    verdicts: Verdicts = json.loads(done.stdout)
    assert verdicts.keys() == attacks.ATTACKS.keys()
    assert {name: verdict for name, verdict in verdicts.items() if verdict[0] != "stopped"} == {}


@pytest.mark.parametrize("backend", ["bwrap", "landlock"])
def test_a_killed_gateway_leaves_no_sandboxed_server(backend: str, tmp_path: Path) -> None:
    make(backend)
    token = uuid.uuid4().hex
    argv = [sys.executable, "-B", "-m", "tests.sandbox.hostile_server", backend, str(tmp_path), "hold", token]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as gateway:
        assert gateway.stdout is not None
        assert gateway.stdout.readline() == b"ready\n"
        assert len(running(token)) > 1
        gateway.kill()
    eventually(lambda: not running(token))
