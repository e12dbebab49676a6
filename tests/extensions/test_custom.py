"""Extensions of one's own: from a program, by entry point, by priority, and on the log."""

from __future__ import annotations

import asyncio
import itertools
import logging
import sys
from pathlib import Path
from typing import Literal

import pytest
from eventually import TIMEOUT

from gateway import Gateway
from gateway.calls import Call, Outcome, Proceed
from gateway.errors import Forbidden, Invalid
from gateway.extensions import Extension, ExtensionPriority
from gateway.extensions.guard import ExtensionGuard

pytestmark = [pytest.mark.anyio, pytest.mark.promise("X3")]

LISTING = ("list_directory", {"path": "."})
PACKAGE = """
from gateway.extensions import Extension
from gateway.errors import Forbidden

class Closed(Extension):
    def __init__(self, why="closed"):
        self.why = why
    async def before_execute(self, call):
        raise Forbidden(self.why)
"""


class Named(Extension):
    def __init__(self, seen: list[str], name: str, priority: int) -> None:
        self.seen, self.name, self.priority = seen, name, priority

    async def before_execute(self, call: Call) -> None:
        self.seen.append(self.name)


async def test_a_program_registers_extensions_at_priorities_by_name(tmp_path: Path) -> None:
    seen: list[str] = []
    names = ["LOWEST", "NORMAL", "HIGHEST", "LOW", "HIGH"]
    extensions = [Named(seen, name, ExtensionPriority[name]) for name in names]
    async with Gateway.open({"data_dir": tmp_path}, extensions=extensions) as gateway:
        assert (await gateway.call(*LISTING)).ok
        await gateway.call("unknown_tool")
        assert seen == ["HIGHEST", "HIGH", "NORMAL", "LOW", "LOWEST", "HIGHEST"]
        assert len(await gateway.records.list_calls()) == 2
    with pytest.raises(Invalid, match="priority 5; use 11 to 99"):
        async with Gateway.open({"data_dir": tmp_path}, extensions=[Named(seen, "out", 5)]):
            pass


async def test_an_extension_is_named_by_its_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packages = tmp_path / "packages"
    (packages / "closing-1.0.dist-info").mkdir(parents=True)
    (packages / "closing.py").write_text(PACKAGE)
    (packages / "closing-1.0.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: closing\nVersion: 1.0\n")
    entry_points = "[toolgate.extensions]\nclosed-shop = closing:Closed\n"
    (packages / "closing-1.0.dist-info/entry_points.txt").write_text(entry_points)
    monkeypatch.syspath_prepend(str(packages))
    use = {"use": "closed-shop", "priority": "highest", "options": {"why": "on holiday"}}
    async with Gateway.open({"data_dir": tmp_path / "data", "extensions": [use]}) as gateway:
        assert str((await gateway.call(*LISTING)).error) == "PERMISSION_DENIED: on holiday"
    with pytest.raises(Invalid, match=r"no installed package has the entry point 'closed-shp'.*did you mean"):
        async with Gateway.open({"data_dir": tmp_path / "data", "extensions": [{"use": "closed-shp"}]}):
            pass
    with pytest.raises(Invalid, match="priority"):
        async with Gateway.open({"data_dir": tmp_path, "extensions": [{**use, "priority": "first"}]}):
            pass
    sys.modules.pop("closing", None)


class Faulty(Extension):
    priority = ExtensionPriority.HIGH

    async def before_execute(self, call: Call) -> None:
        raise KeyError("tenant")


async def test_a_gate_of_a_program_that_raises_denies_and_is_named_in_log_and_record(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with Gateway.open({"data_dir": tmp_path}, extensions=[Faulty()]) as gateway:
        outcome = await gateway.call(*LISTING)
        assert outcome.error is not None and outcome.error.code == "EXTENSION_FAILED"
        [record] = await gateway.records.list_calls()
        assert (record.status, record.error_code) == ("error", "EXTENSION_FAILED")
        assert f"call {record.id}: denied, because the extension {__name__}:Faulty failed" in caplog.text
        assert "tenant" in caplog.text and "tenant" not in str(outcome.error)


class Refusing(Extension):
    async def before_execute(self, call: Call) -> None:
        if "no" in call.arguments:
            raise Forbidden("no")


async def test_every_call_is_one_line_of_the_log_at_info_without_secrets(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with Gateway.open({"data_dir": tmp_path / "quiet"}) as gateway:
        await gateway.call(*LISTING)
    assert not [record for record in caplog.records if record.name == "gateway.calls"]
    with caplog.at_level(logging.INFO, logger="gateway"):
        async with Gateway.open({"data_dir": tmp_path / "data"}) as gateway:
            await gateway.call(*LISTING, chat="c")
            await gateway.call("read_file", {"path": "a\nb", "password": "hunter2-hunter2"})
            await gateway.call("no\nsuch tool", {"x": "y" * 1000})
    lines = [record.getMessage() for record in caplog.records if record.name == "gateway.calls"]
    assert len(lines) == 3 and all("\n" not in line for line in lines)
    assert ' list_directory {"path":"."}: ok in ' in lines[0] and lines[0].endswith("chat c, local by library")
    assert "INVALID_ARGUMENTS" in lines[1] and "hunter2" not in lines[1]
    assert "UNKNOWN_TOOL" in lines[2] and len(lines[2]) < 600


class Raising(Extension):
    """Raises, or waits for ever, in one of its functions."""

    def __init__(self, mode: Literal["gate", "observer"], where: str, failure: BaseException | None) -> None:
        self.mode, self.where, self.failure = mode, where, failure  # type: ignore[misc]

    async def fail(self, where: str) -> None:
        if where == self.where:
            await asyncio.sleep(0)
            if self.failure is None:
                await asyncio.Event().wait()
            else:
                raise self.failure

    async def before_execute(self, call: Call) -> None:
        await self.fail("before")

    async def after_execute(self, call: Call, outcome: Outcome) -> None:
        await self.fail("after")


class RaisingAtOnce(Raising):
    def before_execute(self, call: Call) -> None:  # type: ignore[override]
        if self.where == "before" and self.failure is not None:
            raise self.failure

    def after_execute(self, call: Call, outcome: Outcome) -> None:  # type: ignore[override]
        if self.where == "after" and self.failure is not None:
            raise self.failure


class RaisingAround(Raising):
    async def call_tool(self, call: Call, proceed: Proceed) -> Outcome:
        await self.fail("before")
        outcome = await proceed(call)
        await self.fail("after")
        return outcome


@pytest.mark.parametrize("kind", [Raising, RaisingAtOnce, RaisingAround])
@pytest.mark.promise("X2", "X3")
async def test_whatever_an_extension_raises_is_contained_by_its_mode_and_recorded(
    kind: type[Raising], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    failures: list[BaseException | None] = [
        SystemExit(3),
        asyncio.CancelledError(),
        BaseExceptionGroup("two", [SystemExit(3)]),
    ]
    if kind is not RaisingAtOnce:
        failures.append(None)
    modes: list[tuple[Literal["gate", "observer"], str | None]] = [("gate", "EXTENSION_FAILED"), ("observer", None)]
    for mode, expected in modes:
        extension = kind(mode, "nowhere", None)
        extension.wait_timeout = 0.01
        async with Gateway.open({"data_dir": tmp_path}, extensions=[extension]) as gateway:
            for extension.where, extension.failure in itertools.product(("before", "after"), failures):
                caplog.clear()
                async with asyncio.timeout(TIMEOUT):
                    outcome = await gateway.call(*LISTING)
                error = None if outcome.error is None else outcome.error.code
                record = (await gateway.records.list_calls(limit=1))[0]
                assert (error, record.error_code) == (expected, expected), (extension.where, extension.failure)
                assert kind.__name__ in caplog.text and f"call {record.id}" in caplog.text
            assert len(await gateway.records.list_calls()) == 2 * len(failures) * (1 if mode == "gate" else 2)


async def test_the_time_of_an_extension_leaves_out_the_tool_and_is_that_of_the_settings(tmp_path: Path) -> None:
    class Slow(RaisingAround):
        async def call_tool(self, call: Call, proceed: Proceed) -> Outcome:
            async def proceed_slowly(call: Call) -> Outcome:
                await asyncio.sleep(0.05)
                return await proceed(call)

            guard = ExtensionGuard("Inner", 0.01).guard_around(super().call_tool)
            return await guard(call, proceed_slowly)

    extension = Slow("gate", "nowhere", None)
    async with Gateway.open({"data_dir": tmp_path, "limits": {"timeout": 7}}, extensions=[extension]) as gateway:
        assert extension.wait_timeout == 7
        assert (await gateway.call(*LISTING)).ok


async def test_an_extension_neither_keeps_a_cancelled_call_nor_an_interrupt(tmp_path: Path) -> None:
    entered = asyncio.Event()

    class Waiting(Extension):
        mode = "observer"

        async def before_execute(self, call: Call) -> None:
            entered.set()
            await asyncio.Event().wait()

    async with Gateway.open({"data_dir": tmp_path}, extensions=[Waiting()]) as gateway:
        task = asyncio.ensure_future(gateway.call(*LISTING))
        async with asyncio.timeout(TIMEOUT):
            await entered.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert (await gateway.records.list_calls())[0].error_code == "CANCELLED"
    with pytest.raises(KeyboardInterrupt):
        ExtensionGuard("Stopped", None).guard(RaisingAtOnce("observer", "before", KeyboardInterrupt()).before_execute)(
            None
        )
