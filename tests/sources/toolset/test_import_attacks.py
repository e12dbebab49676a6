"""Code that does harm while it is imported: refused whole, with the cause, and the gateway goes on."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway import Gateway
from gateway.errors import Invalid
from gateway.runtime import start

from .writing import install, write_toolset

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(600), pytest.mark.promise("T3")]

MANIFEST = "id: bad\nname: Bad\nversion: 1.0.0\ntools:\n  - {id: run, entrypoint: 'code:run'}\n"
TOOL = "\ndef run(workspace, text: str = '') -> dict:\n    return {}\n"

ATTACKS = {
    "exits": ("raise SystemExit(3)", "SystemExit"),
    "exits at once": ("import os; os._exit(7)", "7"),
    "raises": ("1 / 0", "ZeroDivisionError"),
    "does not parse": ("def (", "code.py line 1"),
    "crashes": ("import ctypes; ctypes.string_at(0)", "SIGSEGV"),
    "kills itself": ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "SIGKILL"),
    "prints without end": ("while True: print('x' * 100_000)", "printed"),
    "takes all memory": ("hog = [bytearray(1 << 20) for _ in range(1600)]", "memory"),
    "imports what is not there": ("import there_is_no_such_module", "there_is_no_such_module"),
    "imports the gateway": ("import gateway.gateway", "gateway"),
    "names no function": ("run = 3\ndel run", "run"),
    "takes what no client can give": ("def run(text: type(open)) -> dict: return {}\nraise_ = 1", "run"),
}


QUICK = ("exits at once", "crashes")


@pytest.mark.parametrize(
    "attack", [attack if attack in QUICK else pytest.param(attack, marks=pytest.mark.slow) for attack in ATTACKS]
)
async def test_it_is_refused_whole(gateway: Gateway, tmp_path: Path, attack: str) -> None:
    code, cause = ATTACKS[attack]
    tail = "" if "run" in code else TOOL
    with pytest.raises(Invalid) as refused:
        await install(gateway, write_toolset(tmp_path / "bad", MANIFEST, code=f"{code}\n{tail}"))
    assert refused.value.code == "INVALID_TOOLSET"
    assert cause in refused.value.message + str(refused.value.details)
    await nothing_is_left(gateway)
    await a_good_one_still_works(gateway, tmp_path)


async def test_code_that_never_ends_is_given_up(
    gateway: Gateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start, "DESCRIBE_SECONDS", 1.0)
    with pytest.raises(Invalid, match="not loaded within 1 s"):
        await install(gateway, write_toolset(tmp_path / "bad", MANIFEST, code=f"while True: pass\n{TOOL}"))
    await nothing_is_left(gateway)


@pytest.mark.slow
async def test_a_fork_bomb_is_held(gateway: Gateway, tmp_path: Path) -> None:
    code = """
    import os, time
    for _ in range(400):
        try:
            if os.fork() == 0:
                time.sleep(30)
                os._exit(0)
        except OSError:
            raise SystemExit("no more processes")
    """
    with pytest.raises(Invalid) as refused:
        await install(gateway, write_toolset(tmp_path / "bad", MANIFEST, code=f"{_dedented(code)}\n{TOOL}"))
    assert "process" in refused.value.message
    await nothing_is_left(gateway)
    await a_good_one_still_works(gateway, tmp_path)


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        yield server


async def test_nothing_is_reached_or_read_or_written(
    gateway: Gateway, tmp_path: Path, listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_SECRET", "s3cret-value")
    (tmp_path / "outside.txt").write_text("outside")
    code = f"""
    import os, socket
    found = []
    try:
        socket.create_connection(("127.0.0.1", {listener.getsockname()[1]}), timeout=2)
        found.append("connected")
    except OSError:
        found.append("no connection")
    try:
        found.append(open({str(tmp_path / "outside.txt")!r}).read())
    except OSError:
        found.append("no file")
    try:
        open("/toolset/toolset.yaml", "a").write("x")
        found.append("wrote")
    except OSError:
        found.append("no write")
    found.append(os.environ.get("A_SECRET", "no secret"))
    raise RuntimeError(" | ".join(found))
    """
    with pytest.raises(Invalid) as refused:
        await install(gateway, write_toolset(tmp_path / "bad", MANIFEST, code=f"{_dedented(code)}\n{TOOL}"))
    assert "no connection | no file | no write | no secret" in refused.value.message
    with pytest.raises(BlockingIOError):
        listener.accept()
    await nothing_is_left(gateway)


async def nothing_is_left(gateway: Gateway) -> None:
    assert await gateway.toolsets.library.list() == ()
    stored = gateway.settings.data_dir / "toolsets"
    assert not [path for path in stored.rglob("*") if path.is_file()]


async def a_good_one_still_works(gateway: Gateway, tmp_path: Path) -> None:
    good = MANIFEST.replace("id: bad", "id: good")
    await install(gateway, write_toolset(tmp_path / "good", good, code=TOOL))
    assert (await gateway.call("good:run")).value == {}


def _dedented(code: str) -> str:
    return "\n".join(line.removeprefix("    ") for line in code.splitlines())
