"""Processes in the background of a chat: started, published, read, stopped, and never more or longer than allowed."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest
from eventually import async_eventually

from gateway import Gateway
from gateway.calls import Outcome
from gateway.sources.builtin.code import background
from gateway.tools import Access, Permission

from .tool_client import ToolClient, opened

pytestmark = [pytest.mark.anyio, pytest.mark.promise("T9")]

SERVE = "python3 -m http.server --bind 127.0.0.1 $PORT"


async def start(gateway: Gateway, command: str, chat: str = "c", **arguments: Any) -> dict[str, Any]:
    return await value(gateway, "start_process", {"command": command, **arguments}, chat)


async def value(gateway: Gateway, name: str, arguments: dict[str, Any], chat: str = "c") -> dict[str, Any]:
    outcome = await gateway.call(name, arguments, chat=chat, confirmed=True)
    assert outcome.ok, outcome.error
    found: dict[str, Any] = outcome.value
    return found


async def refusal(gateway: Gateway, name: str, arguments: dict[str, Any], chat: str = "c") -> str:
    outcome: Outcome = await gateway.call(name, arguments, chat=chat, confirmed=True)
    assert outcome.error is not None, outcome.value
    return outcome.error.code


async def get(url: str) -> str:
    def read() -> str:
        with urllib.request.urlopen(url, timeout=60) as response:
            text: str = response.read().decode()
            return text

    return await anyio.to_thread.run_sync(read)


async def is_gone(url: str) -> bool:
    try:
        await get(url)
    except OSError:
        return True
    return False


def other_addresses() -> list[str]:
    """Addresses of this machine that are not loopback, and a loopback address that was not published."""
    listed = subprocess.run(["hostname", "-I"], capture_output=True, text=True).stdout.split()
    return [*listed, "127.0.0.1"]


async def test_a_process_is_published_at_a_loopback_address_of_its_own_and_nowhere_else(tmp_path: Path) -> None:
    async with opened(tmp_path) as gateway:
        await value(gateway, "write_file", {"path": "index.html", "content": "<h1>hi</h1>"})
        started = await start(gateway, SERVE, port=8000)
        assert (started["running"], started["listening"], started["port"]) == (True, True, 8000)
        assert "Traceback" not in started["output"]
        found = re.fullmatch(r"http://(127\.\d+\.\d+\.\d+):(\d+)/", started["url"])
        assert found is not None and not found[1].startswith("127.0.0.")
        assert await get(started["url"]) == "<h1>hi</h1>"
        await value(gateway, "write_file", {"path": "index.html", "content": "changed"})
        assert await get(started["url"]) == "changed"
        for address in other_addresses():
            with pytest.raises(OSError):
                socket.create_connection((address, int(found[2])), 2)
        inside = f"import urllib.request; urllib.request.urlopen({started['url']!r}, timeout=3)"
        tried = await value(gateway, "run_code", {"language": "python", "code": inside})
        assert (tried["exitCode"], "refused" in tried["stderr"]) == (1, True), tried
        output = (await value(gateway, "process_output", {"process": started["process"]}))["output"]
        assert ('"GET / HTTP/1.1" 200' in output, "Traceback" in output) == (True, False), output
        stopped = await value(gateway, "stop_process", {"process": started["process"]})
        assert (stopped["running"], "url" in stopped) == (False, False)
        assert await is_gone(started["url"])


async def test_two_processes_may_use_the_same_port_each_in_its_own_network(tmp_path: Path) -> None:
    async with opened(tmp_path) as gateway:
        one = await start(gateway, "mkdir -p one && cd one && echo 1 > index.html && " + SERVE, port=8000)
        two = await start(gateway, "mkdir -p two && cd two && echo 2 > index.html && " + SERVE, port=8000)
        assert (await get(one["url"]), await get(two["url"])) == ("1\n", "2\n")


async def test_output_is_read_from_a_position_on_and_a_bounded_part_is_kept(tmp_path: Path) -> None:
    async with opened(tmp_path) as gateway:
        started = await start(gateway, "echo one; while [ ! -e go ]; do sleep 0.1; done; echo two >&2")
        name = started["process"]
        first = await value(gateway, "process_output", {"process": name, "wait": 30})
        assert (first["output"], first["next"], first["running"]) == ("one\n", 4, True)
        await value(gateway, "write_file", {"path": "go", "content": ""})
        more = await value(gateway, "process_output", {"process": name, "since": 4, "wait": 30})
        assert (more["output"], more["next"], more["leftOut"]) == ("two\n", 8, 0)
        loud = await start(gateway, f"head -c {3 * background.OUTPUT_KEPT} /dev/zero | tr '\\0' x; echo end; sleep 300")

        async def whole() -> bool:
            read = await value(gateway, "process_output", {"process": loud["process"]})
            assert len(read["output"]) + read["leftOut"] == read["next"]
            assert len(read["output"]) <= background.OUTPUT_KEPT
            return bool(read["output"].endswith("xend\n")) and read["leftOut"] > 0

        await async_eventually(whole)
        listed = await value(gateway, "list_processes", {})
        assert [each["running"] for each in listed["processes"]] == [False, True]
        assert listed["processes"][0]["exitCode"] == 0


async def test_a_process_that_fails_at_once_says_so(tmp_path: Path) -> None:
    async with opened(tmp_path) as gateway:
        failed = await start(gateway, "echo broken >&2; exit 3", port=8000)
        assert (failed["running"], failed["exitCode"], failed["output"]) == (False, 3, "broken\n")
        assert await refusal(gateway, "process_output", {"process": "p99"}) == "PROCESS_NOT_FOUND"
        assert await refusal(gateway, "process_output", {"process": failed["process"]}, "other") == "PROCESS_NOT_FOUND"
        assert await refusal(gateway, "start_process", {"command": "x", "directory": "nowhere"}) == "FILE_NOT_FOUND"


async def test_a_chat_has_a_limited_number_of_processes_for_a_limited_time(tmp_path: Path) -> None:
    async with opened(tmp_path, sandbox={"processes": 2, "process_seconds": 2}) as gateway:
        started = [await start(gateway, "sleep 300", wait=0) for _ in range(2)]
        assert await refusal(gateway, "start_process", {"command": "sleep 300"}) == "TOO_MANY_PROCESSES"
        await start(gateway, "sleep 300", "other", wait=0)

        async def over() -> bool:
            listed = (await value(gateway, "list_processes", {}))["processes"]
            return [each.get("killed") for each in listed] == ["timeout"] * len(started)

        await async_eventually(over)
        assert (await start(gateway, "echo free", wait=30))["exitCode"] == 0


async def test_output_of_few_ended_processes_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "ENDED_TOTAL", 1)
    async with opened(tmp_path) as gateway:
        for chat in ("one", "two"):
            assert not (await start(gateway, "echo done", chat, wait=30))["running"]
        assert (await value(gateway, "process_output", {"process": "p1"}, "one"))["output"] == "done\n"
        await start(gateway, "sleep 60", "three", wait=0)
        assert await refusal(gateway, "process_output", {"process": "p1"}, "one") == "PROCESS_NOT_FOUND"
        assert (await value(gateway, "process_output", {"process": "p2"}, "two"))["output"] == "done\n"


async def test_closing_gateway_waits_for_processes_of_a_chat_that_has_just_ended(tmp_path: Path) -> None:
    async with opened(tmp_path) as gateway:
        ended = await start(gateway, SERVE, "one", port=8000)
        gateway.builtins.end_chat("one")
        await gateway.builtins.close()
        assert not [task for task in asyncio.all_tasks() if "BackgroundProcess" in repr(task.get_coro())]
        assert await is_gone(ended["url"])


async def test_processes_end_with_their_chat_and_with_the_gateway(tmp_path: Path) -> None:
    async with opened(tmp_path) as gateway:
        ended, kept = await start(gateway, SERVE, "one", port=8000), await start(gateway, SERVE, "two", port=8000)
        gateway.builtins.end_chat("one")
        await async_eventually(lambda: is_gone(ended["url"]))
        assert await get(kept["url"])
        assert (await value(gateway, "list_processes", {}, "one"))["processes"] == []
    assert await is_gone(kept["url"])
    assert not [task for task in asyncio.all_tasks() if "BackgroundProcess" in repr(task.get_coro())]


async def test_a_person_is_asked_about_a_process_and_rules_hold(tmp_path: Path) -> None:
    rule = {"tool": "start_process", "when": {"command": "rm *"}, "then": "deny"}
    async with opened(tmp_path, approval={"rules": [rule]}) as gateway:
        tools = {entry.tool.id: entry.tool for entry in gateway.catalog}
        levels = {name: (tools[name].permission, tools[name].access) for name in tools if "process" in name}
        assert levels == {
            "start_process": (Permission.EXECUTE, Access.WRITE),
            "stop_process": (Permission.EXECUTE, Access.WRITE),
            "process_output": (Permission.READ_ONLY, Access.NONE),
            "list_processes": (Permission.READ_ONLY, Access.NONE),
        }
        asked = await gateway.call("start_process", {"command": "npm run dev", "port": 5173}, chat="c")
        assert asked.error is not None and asked.error.code == "CONFIRMATION_REQUIRED", asked
        assert "with its port 5173 published on this machine's loopback: npm run dev" in asked.error.message
        assert await refusal(gateway, "start_process", {"command": "rm -rf /"}) == "DENIED_BY_RULE"


async def test_a_process_may_only_read_an_attached_folder(client: ToolClient) -> None:
    (client.folder / "seen").write_text("seen")
    value = await client.value("start_process", command="cat seen; echo > made; touch $TMPDIR/own && echo own", wait=30)
    assert (value["output"].startswith("seen"), "own\n" in value["output"]) == (True, True), value
    assert not (client.folder / "made").exists()


async def test_a_sandbox_without_a_network_starts_processes_and_refuses_ports(client: ToolClient) -> None:
    started = await client.value("start_process", command="sleep 300")
    assert started["running"]
    if started["sandbox"] != "bwrap":
        error = await client.refusal("start_process", command="sleep 300", port=8000)
        assert (error.code, "leave out 'port'" in error.message) == ("NETWORK_UNAVAILABLE", True)
    stopped = await client.value("stop_process", process=started["process"])
    assert not stopped["running"]


KILLED = """
import asyncio, sys
from gateway import Gateway
async def main():
    settings = {"data_dir": sys.argv[1], "categories": {"development": {"enabled": True}}}
    async with Gateway.open(settings) as gateway:
        arguments = {"command": "python3 -m http.server --bind 127.0.0.1 $PORT", "port": int(sys.argv[2])}
        outcome = await gateway.call("start_process", arguments, chat="c", confirmed=True)
        print(outcome.value["url"], flush=True)
        await asyncio.sleep(600)
asyncio.run(main())
"""


async def test_processes_end_with_a_gateway_that_is_killed(tmp_path: Path) -> None:
    port = str(20_000 + os.getpid() % 10_000)  # by which its processes are found
    gateway = await asyncio.create_subprocess_exec(
        sys.executable, "-c", KILLED, str(tmp_path / "data"), port, stdout=subprocess.PIPE
    )
    assert gateway.stdout is not None
    url = (await asyncio.wait_for(gateway.stdout.readline(), 60)).decode().strip()
    assert await get(url)
    started = _processes("http.server", port)
    assert started
    gateway.send_signal(signal.SIGKILL)
    await gateway.wait()
    await async_eventually(lambda: not _processes("http.server", port))
    assert await is_gone(url)


def _processes(*words: str) -> list[str]:
    """The processes of this machine with all of these words in their command line."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if {*words} <= {*path.read_text().split("\0")}:
                found.append(path.parent.name)
    return found
