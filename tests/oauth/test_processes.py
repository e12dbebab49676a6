"""Several processes with one login: none takes it from another, and none loses it by being killed."""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from textwrap import dedent

import pytest
from eventually import TIMEOUT, async_eventually

from gateway.oauth.store import Logins

from .world import World, logged_in

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

SCRIPT = dedent(
    """
    import asyncio, sys
    from pathlib import Path
    from gateway.mcp_client import HttpEndpoint
    from gateway.oauth.store import LoginAccount
    from gateway.oauth.bearer import BearerToken
    from gateway.oauth.store import Logins

    async def main(directory, url, rounds):
        bearer = BearerToken(LoginAccount("lab", HttpEndpoint(url)), Logins(Path(directory)))
        print("ready", flush=True)
        sys.stdin.readline()
        for _ in range(rounds):
            print((await bearer.refresh_header()).decode().split()[-1], flush=True)
            await asyncio.sleep(0.01)

    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
    """
)


def test_nothing_that_speaks_to_authorization_servers_is_loaded_before_it_is_needed() -> None:
    script = "import sys, gateway.sources.upstreams.registry; print('\\n'.join(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    login = "gateway.oauth"
    assert {name for name in loaded if name.startswith(f"{login}.")} == {
        f"{login}.{name}" for name in ("bearer", "store")
    }
    assert "gateway.net.client" not in loaded


def started(world: World, directory: Path, rounds: int) -> subprocess.Popen[str]:
    argv = [sys.executable, "-c", SCRIPT, str(directory), world.account().url, str(rounds)]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def go(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


async def test_processes_that_renew_at_once_spend_one_refresh_token(world: World, tmp_path: Path) -> None:
    login, logins = await logged_in(world, tmp_path)
    logins.save(replace(login, expires_at=time.time() - 1))
    world.now.token_delay = 0.3
    processes = [started(world, tmp_path, 1) for _ in range(3)]
    for process in processes:
        go(process)
    tokens = {process.communicate(timeout=TIMEOUT)[0] for process in processes}
    assert len(tokens) == 1
    assert world.now.counts["refresh_token"] == 1
    kept = logins.find("lab")
    assert kept is not None
    assert kept.refresh_token in world.now.refresh


async def test_whoever_is_killed_while_renewing_locks_nobody_out(world: World, tmp_path: Path) -> None:
    """The server lets the token before go once more as long as nobody has used the next: what is lost by a kill
    between its answer and our disk. Tokens live so briefly that every look renews."""
    world.now.forgiving = True
    world.now.lifetime = 0.02
    await logged_in(world, tmp_path)
    dice = random.Random(7)
    for _ in range(4):
        process = started(world, tmp_path, 10_000)
        go(process)
        enough = world.now.counts.get("refresh_token", 0) + 3
        await async_eventually(lambda: world.now.counts.get("refresh_token", 0) >= enough)  # noqa: B023 - awaited here
        await asyncio.sleep(dice.random() * 0.05)
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=TIMEOUT)
    process = started(world, tmp_path, 1)
    go(process)
    token = process.communicate(timeout=TIMEOUT)[0].strip()
    assert token.startswith("at-")
    kept = Logins(tmp_path).find("lab")
    assert kept is not None
    assert kept.access_token == token
    assert {path.suffix for path in Logins(tmp_path).directory.iterdir()} == {".json", ".lock"}  # no half-written ones
