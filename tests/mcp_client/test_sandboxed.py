"""Servers in the sandbox: they keep every promise of a child, and reach only what they are given."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from eventually import TIMEOUT, async_eventually
from sandbox.conftest import make

from gateway.config import SandboxSettings, Settings, UpstreamSettings
from gateway.errors import Unavailable
from gateway.mcp_client import Confinement, ConnectionLost, McpClient, StdioEndpoint, Unreachable, open_client
from gateway.mcp_client.sandboxed_process import plan_program
from gateway.sandbox import detect
from gateway.sandbox.detect import Survey
from gateway.sources.upstreams.spec import ADDED, Spec

from .conftest import CLIENT_IDENTITY, HANDSHAKE, SERVERS
from .test_stdio import children, impatient

__all__ = ["impatient"]
pytestmark = [pytest.mark.anyio, pytest.mark.slow]


@pytest.fixture(params=["bwrap", "landlock"])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The sandbox that this machine offers in the test."""
    monkeypatch.setattr(detect, "_cached_survey", [Survey(make(request.param))])
    return str(request.param)


@pytest.fixture
def only_bwrap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detect, "_cached_survey", [Survey(make("bwrap"))])


def confinement(folder: Path, *paths: str, **options: Any) -> Confinement:
    data = folder / "data"
    return Confinement(data / "servers/demo", data, options.pop("settings", SandboxSettings()), paths, **options)


def server(folder: Path, *paths: str, script: str = "reaching.py", habits: tuple[str, ...] = (), **options: Any) -> Any:
    own = confinement(folder, *paths, **options)
    return StdioEndpoint(sys.executable, ("-S", str(SERVERS / script), *habits), cwd=str(folder), sandbox=own)


async def opened(endpoint: StdioEndpoint) -> McpClient:
    return await open_client(endpoint, identity=CLIENT_IDENTITY, version=HANDSHAKE, timeout=TIMEOUT)


async def call(client: McpClient, tool: str, **arguments: Any) -> Any:
    result = await client.request("tools/call", {"name": tool, "arguments": arguments}, timeout=TIMEOUT)
    text = result["content"][0]["text"]
    return text if result.get("isError") else json.loads(text)


async def test_a_sandboxed_server_reaches_the_paths_it_is_given_and_no_others(backend: str, tmp_path: Path) -> None:
    for name in ("given", "written", "kept"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.txt").write_text(name)
    client = await opened(server(tmp_path, str(tmp_path / "given"), f"{tmp_path}/written:rw"))
    try:
        assert await call(client, "read", path=str(tmp_path / "given/a.txt")) == "given"
        assert "refused" in await call(client, "write", path=str(tmp_path / "given/b.txt"), text="x")
        assert await call(client, "write", path=str(tmp_path / "written/b.txt"), text="new") == 3
        for path in (tmp_path / "kept/a.txt", Path("/etc/shadow"), tmp_path / "data/toolgate.db"):
            assert "refused" in await call(client, "read", path=str(path))
        assert "refused" in await call(client, "list", path=str(tmp_path / "kept"))
    finally:
        await client.close()
    assert (tmp_path / "written/b.txt").read_text() == "new"


async def test_a_sandboxed_server_gets_its_own_environment_and_a_home_that_stays(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOOLGATE_SECRET", "ours")
    endpoint = replace(server(tmp_path), env={"TOKEN": "theirs"})
    home = str(tmp_path / "data/servers/demo")
    for text in ("first", "second"):
        client = await opened(endpoint)
        seen = await call(client, "see")
        assert (seen["env"]["TOKEN"], seen["env"]["HOME"], seen["cwd"]) == ("theirs", home, home)
        own = {"PATH", "HOME", "LANG", "USER", "LOGNAME", "TOKEN"}
        assert set(seen["env"]) <= {*own, "LC_CTYPE", "TMPDIR", "PWD"}
        if text == "second":
            assert await call(client, "read", path=f"{home}/kept") == "first"
        assert await call(client, "write", path=f"{home}/kept", text=text) == len(text)
        await client.close()


async def test_a_sandboxed_server_starts_in_its_folder_if_it_sees_that(backend: str, tmp_path: Path) -> None:
    (tmp_path / "given").mkdir()
    endpoint = replace(server(tmp_path, str(tmp_path / "given")), cwd=str(tmp_path / "given"))
    client = await opened(endpoint)
    assert (await call(client, "see"))["cwd"] == str(tmp_path / "given")
    await client.close()


async def test_a_sandboxed_server_answers_with_more_than_a_pipe_holds(backend: str, tmp_path: Path) -> None:
    client = await opened(server(tmp_path))
    texts = [letter * 3_000_000 for letter in "abc"]
    assert await asyncio.gather(*(call(client, "echo", text=text) for text in texts)) == texts
    await client.close()


async def test_a_sandboxed_server_that_crashes_tells_how_it_ended(backend: str, tmp_path: Path) -> None:
    before = children()
    client = await opened(server(tmp_path, script="old.py"))
    await client.request("tools/call", {"name": "child"}, timeout=TIMEOUT)
    with pytest.raises(ConnectionLost, match="ended with exit code 7") as lost:
        await client.request("tools/call", {"name": "crash"}, timeout=TIMEOUT)
    assert (lost.value.exit_code, lost.value.stderr) == (7, "last words")
    await client.close()
    await async_eventually(lambda: set(children()) <= {*before, *helpers()})


async def test_a_sandboxed_server_that_closes_its_output_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, impatient: None
) -> None:
    """Not in bubblewrap, whose own processes keep the output open: there, a call runs into its timeout."""
    monkeypatch.setattr(detect, "_cached_survey", [Survey(make("landlock"))])
    before = children()
    client = await opened(server(tmp_path, script="old.py"))
    with pytest.raises(ConnectionLost, match="closed its output"):
        await client.request("tools/call", {"name": "hush"}, timeout=TIMEOUT)
    await client.close()
    await async_eventually(lambda: set(children()) <= {*before, *helpers()})


@pytest.mark.parametrize(("habit", "script"), [("terminates", "reaching.py"), ("stubborn", "old.py")])
async def test_a_sandboxed_server_that_stays_is_asked_and_then_ended(
    backend: str, tmp_path: Path, habit: str, script: str
) -> None:
    before = children()
    client = await opened(server(tmp_path, script=script, habits=(habit,)))
    child = client.transport._process  # type: ignore[attr-defined]
    async with asyncio.timeout(TIMEOUT):
        await client.close()
    assert child.stderr.tail == ("bye" if habit == "terminates" else "")
    await async_eventually(lambda: set(children()) <= {*before, *helpers()})


@pytest.mark.parametrize("delays", [(), (0,), (0, 0, 0), (0.01,), (0.05,), (0.2,)], ids=str)
async def test_a_cancelled_start_leaves_no_sandboxed_server(
    backend: str, tmp_path: Path, impatient: None, delays: tuple[float, ...]
) -> None:
    before = children()
    endpoint = server(tmp_path, script="old.py", habits=("ignores",))
    opening = asyncio.ensure_future(open_client(endpoint, identity=CLIENT_IDENTITY))
    for delay in delays:
        await asyncio.sleep(delay)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    await async_eventually(lambda: set(children()) <= {*before, *helpers()})


async def test_a_sandboxed_server_that_uses_too_much_is_ended_and_says_why(backend: str, tmp_path: Path) -> None:
    client = await opened(server(tmp_path, settings=SandboxSettings(memory_mb=64)))
    with pytest.raises(ConnectionLost, match="over the sandbox's limit of memory"):
        await call(client, "use_memory", mebibytes=128)
    await client.close()


async def test_a_sandboxed_server_is_looked_at_often_only_while_it_has_requests(backend: str, tmp_path: Path) -> None:
    client = await opened(server(tmp_path))
    child = client.transport._process  # type: ignore[attr-defined]
    await async_eventually(lambda: not child.busy)
    waiting = asyncio.ensure_future(client.request("tools/call", {"name": "wait"}))
    await async_eventually(lambda: child.busy)
    await asyncio.sleep(1.2)  # longer than it takes to calm down
    assert child.busy
    waiting.cancel()
    await client.close()


async def test_a_sandboxed_server_cannot_start_without_a_sandbox(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(detect, "_cached_survey", [Survey(None)])
    with pytest.raises(
        Unavailable, match=r"runs only in a sandbox: .*apt install bubblewrap.*`sandbox` to false"
    ) as no:
        await opened(server(tmp_path))
    assert no.value.code == "SANDBOX_UNAVAILABLE"
    client = await opened(server(tmp_path, settings=SandboxSettings(allow_unsandboxed=True)))
    assert await call(client, "echo", text="here") == "here"
    await client.close()


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("nowhere", "does not exist: create it"),
        ("/", "name the folders that it needs"),
        ("/proc/self", "name the folders that it needs"),
        ("data", "the gateway's data directory"),
        ("data/servers:rw", "the gateway's data directory"),
        (".", "the gateway's data directory"),
        ("link", "the gateway's data directory"),
        ("~nobody-of-that-name/x", "no such user"),
    ],
)
async def test_a_sandboxed_server_is_not_given_what_holds_more_than_it_says(
    only_bwrap: None, tmp_path: Path, path: str, reason: str
) -> None:
    (tmp_path / "data/servers").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "data")
    named = path if path.startswith(("/", "~")) else f"{tmp_path}/{path}"
    with pytest.raises(Unreachable, match=reason):
        await opened(server(tmp_path, named))


def test_a_path_inside_a_writable_one_is_refused(tmp_path: Path) -> None:
    (tmp_path / "work/inner").mkdir(parents=True)
    (tmp_path / "elsewhere").symlink_to(tmp_path / "work/inner")
    for inner in ("work/inner", "elsewhere", "elsewhere:rw"):
        with pytest.raises(Unreachable, match=r"is inside .*work:rw"):
            seen(tmp_path, "sh", paths=(f"{tmp_path}/work:rw", f"{tmp_path}/{inner}"))


async def test_protected_files_of_a_writable_path_stay_as_they_are(only_bwrap: None, tmp_path: Path) -> None:
    hook = tmp_path / "work/.git/hooks/pre-commit"
    hook.parent.mkdir(parents=True)
    hook.write_text("true")
    if not make("bwrap")._binds_descriptors() and os.getuid() != 0:  # type: ignore[attr-defined]
        pytest.skip("this bubblewrap cannot hold them for a normal user")
    client = await opened(server(tmp_path, f"{tmp_path}/work:rw"))
    assert "refused" in await call(client, "write", path=str(hook), text="evil")
    assert await call(client, "write", path=str(tmp_path / "work/.git/HEAD"), text="x") == 1
    await client.close()
    assert hook.read_text() == "true"


async def test_a_home_that_is_too_large_is_refused_by_name(
    only_bwrap: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "data/servers/demo"
    home.mkdir(parents=True)
    with (home / "large").open("wb") as file:
        for _ in range(1100):
            file.write(bytes(1024 * 1024))
    with pytest.raises(Unreachable, match=r"1100 MiB in 1 files, more than allowed \(1024 MiB"):
        await opened(server(tmp_path))


# The network


class _Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"from a page")

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""


@pytest.fixture
def port() -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Page) as page:
        thread = threading.Thread(target=page.serve_forever)
        thread.start()
        yield page.server_port
        page.shutdown()
        thread.join()


async def test_a_sandboxed_server_reaches_only_the_hosts_it_is_given(
    only_bwrap: None, tmp_path: Path, port: int
) -> None:
    for host, allow_private, expected in (
        (f"127.0.0.1:{port}", True, "from a page"),
        (f"127.0.0.1:{port}", False, "public addresses"),
        ("example.org", True, f"add 127.0.0.1:{port} to its sandbox.network"),
    ):
        client = await opened(server(tmp_path, network=(host,), allow_private=allow_private))
        assert expected in await call(client, "fetch", url=f"http://127.0.0.1:{port}/")
        assert "refused" in await call(client, "connect", port=port)
        await client.close()


async def test_a_sandboxed_server_without_hosts_reaches_nobody(backend: str, tmp_path: Path, port: int) -> None:
    client = await opened(server(tmp_path))
    assert "refused" in await call(client, "fetch", url=f"http://127.0.0.1:{port}/")
    assert "refused" in await call(client, "connect", port=port)
    await client.close()


async def test_a_server_with_hosts_is_refused_where_they_cannot_be_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(detect, "_cached_survey", [Survey(make("landlock"))])
    reason = r"landlock sandbox has no network of its own.*bubblewrap works.*`sandbox` to false"
    with pytest.raises(Unavailable, match=reason) as refused:
        await opened(server(tmp_path, network=("example.org",)))
    assert refused.value.code == "NETWORK_UNAVAILABLE"


# What a server sees of the machine because of its command


def seen(tmp_path: Path, command: str, *args: str, paths: tuple[str, ...] = (), **options: Any) -> set[Path]:
    own = confinement(tmp_path, *paths, **options)
    return set(plan_program(StdioEndpoint(command, args, cwd=str(tmp_path), sandbox=own), own).readable)


def program(path: Path, text: str = "#!/bin/sh\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def test_a_program_of_the_system_brings_nothing_with_it(tmp_path: Path) -> None:
    assert seen(tmp_path, "sh", "-c", "true", "/etc") == set()


def test_a_virtual_environment_brings_itself_and_its_python(tmp_path: Path) -> None:
    base = program(tmp_path / "versions/3.12/bin/python3.12")
    (tmp_path / "versions/3.12/lib").mkdir()
    (tmp_path / "versions/3.12/share").mkdir()
    own = program(tmp_path / "venv/bin/server", f"#!{tmp_path}/venv/bin/python\n")
    (tmp_path / "venv/bin/python").symlink_to(base)
    (tmp_path / "venv/pyvenv.cfg").write_text(f"home = {base.parent}\nversion = 3.12\n")
    prefix = tmp_path / "versions/3.12"
    assert seen(tmp_path, str(own)) == {tmp_path / "venv", prefix / "bin", prefix / "lib"}


def test_a_node_script_brings_its_packages(tmp_path: Path) -> None:
    node = program(tmp_path / "nvm/v22/bin/node")
    script = program(tmp_path / "tools/node_modules/@scope/server/dist/index.js", "#!/usr/bin/env node\n")
    assert seen(tmp_path, str(node), str(script)) == {tmp_path / "nvm/v22/bin", tmp_path / "tools/node_modules"}
    own = program(tmp_path / "project/dist/index.js")
    (tmp_path / "project/package.json").write_text("{}")
    assert seen(tmp_path, "sh", str(own)) == {tmp_path / "project"}


async def test_a_shim_brings_the_version_manager_that_it_asks(backend: str, tmp_path: Path) -> None:
    root = tmp_path / ".pyenv"
    shim = program(root / "shims/serve", f'#!/bin/sh\nPYENV_ROOT={root} exec {root}/libexec/pyenv "${{0##*/}}"\n')
    program(root / "libexec/pyenv", '#!/bin/sh\nexec "$PYENV_ROOT/versions/3.12/bin/$1"\n')
    program(root / "versions/3.12/bin/serve", "#!/bin/sh\nexit 42\n")
    assert seen(tmp_path, str(shim)) == {root}
    own = confinement(tmp_path)
    with pytest.raises(ConnectionLost, match="exit code 42"):
        await opened(StdioEndpoint(str(shim), cwd=str(tmp_path), sandbox=own))
    other = program(tmp_path / "project/shims/serve")
    assert seen(tmp_path, str(other)) == {other}


def test_a_script_without_a_project_brings_only_itself(tmp_path: Path) -> None:
    script = program(tmp_path / "server.py")
    (tmp_path / "other.txt").write_text("")
    assert seen(tmp_path, "sh", str(script), str(tmp_path)) == {script}


def test_nothing_is_derived_from_what_a_server_can_write(tmp_path: Path) -> None:
    secret = program(tmp_path / "secret/id")
    (tmp_path / "work").mkdir()
    (tmp_path / "work/server.py").symlink_to(secret)
    (tmp_path / "alias").symlink_to(tmp_path / "work")
    for name in ("work/server.py", "alias/server.py"):
        assert seen(tmp_path, "sh", str(tmp_path / name), paths=(f"{tmp_path}/work:rw",)) == set()
        assert seen(tmp_path, str(tmp_path / name), paths=(f"{tmp_path}/work:rw",)) == set()


def test_a_toolset_gets_its_directory_and_nothing_that_its_files_or_arguments_name(tmp_path: Path) -> None:
    toolset = tmp_path / "data/toolsets/demo"
    secret = program(tmp_path / "secret.txt")
    own = program(toolset / "bin/server", f"#!{secret}\n")
    (toolset / "pyvenv.cfg").write_text(f"home = {tmp_path}/private/bin\n")
    (tmp_path / "private/lib").mkdir(parents=True)
    project = program(tmp_path / "project/run")
    (tmp_path / "project/package.json").write_text("{}")
    assert seen(tmp_path, str(own), str(secret), toolset=toolset) == {toolset}
    assert seen(tmp_path, str(project), toolset=toolset) == {toolset, project}
    (toolset / "state").mkdir()
    with pytest.raises(Unreachable, match="the gateway's data directory"):
        seen(tmp_path, "sh", paths=("state:rw",), toolset=toolset)


def test_a_home_with_an_environment_in_it_is_not_given_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    own = program(tmp_path / "home/bin/server")
    (tmp_path / "home/pyvenv.cfg").write_text("")
    (tmp_path / "home/package.json").write_text("{}")
    script = program(tmp_path / "home/server.js")
    assert seen(tmp_path, str(own)) == set()
    assert seen(tmp_path, "sh", str(script)) == {script}


# Which servers run in the sandbox


def test_the_sandbox_is_the_default_for_servers_that_nobody_here_set_up() -> None:
    command = {"command": "server"}
    for said, origin, expected in (
        ({}, "the settings", None),
        ({}, ADDED, None),
        ({}, "the toolset 'demo'", ([], [])),
        ({}, "some later origin", ([], [])),
        ({"sandbox": True}, ADDED, ([], [])),
        ({"sandbox": False}, "the toolset 'demo'", None),
        ({"sandbox": {"paths": ["/a:rw"], "network": ["b.org"]}}, ADDED, (["/a:rw"], ["b.org"])),
    ):
        found = Spec.of("x", UpstreamSettings.model_validate({**command, **said}), origin).sandbox
        assert (found and (found.paths, found.network)) == expected
    assert Spec.of("x", UpstreamSettings(url="https://host/mcp"), "the toolset 'demo'").sandbox is None


def test_servers_of_one_name_and_two_origins_have_two_homes(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    homes = set()
    for name, origin in (("x", ADDED), ("x", "the toolset 'demo'"), ("../x", ADDED), ("__x", ADDED)):
        spec = Spec.of(name, UpstreamSettings(command="server", sandbox=True), origin)
        found = spec.confinement({}, settings)
        assert found is not None
        assert found.home.parent == tmp_path / "servers"
        homes.add(found.home)
    assert len(homes) == 4


def helpers() -> list[int]:
    """The processes that guard all sandboxes of a gateway, whichever server is there."""
    return [pid for pid in children() if Path(f"/proc/{pid}/cmdline").read_bytes().find(b"socket.recv_fds") >= 0]
