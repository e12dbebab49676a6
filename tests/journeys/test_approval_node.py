"""A person decides at a client nobody here wrote: the TypeScript SDK 1.x and its 2.x client."""

from __future__ import annotations

import json
from typing import Any

import pytest

from .test_node_clients import NODE, Road, _code, _node, _run, road
from .wire import HANDSHAKE, MODERN

__all__ = ["road"]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.promise("C5", "G3")]


@pytest.mark.parametrize(
    ("sdk", "era"),
    [
        pytest.param(1, HANDSHAKE, id=f"sdk-1.32-{HANDSHAKE}"),
        pytest.param(2, HANDSHAKE, id=f"client-2.4-{HANDSHAKE}"),
        pytest.param(2, MODERN, id=f"client-2.4-{MODERN}"),
    ],
)
def test_approval_is_decided_at_a_typescript_client(sdk: int, era: str, road: Road) -> None:
    setup = json.dumps({"sdk": sdk, "era": era, **road.target})
    seen: dict[str, Any] = _run(road.home, _node(), NODE / "approving.mjs", setup)

    assert seen["approved"]["structuredContent"] == {"path": "notes.txt", "size": 8, "created": False}
    assert (_code(seen["denied"]), _code(seen["declined"]), _code(seen["cancelled"])) == (
        "DECLINED",
        "DECLINED",
        "DISMISSED",
    )
    assert seen["edited"]["content"][-1]["text"].endswith('before the call ran: {"content": "edited"}')
    assert seen["read"]["structuredContent"]["content"] == "edited"
    assert [result.get("isError", False) for result in seen["remembered"]] == [False, False]
    assert len(seen["questions"]) == 6
    assert seen["questions"][0].startswith("Run write_file?\n\nWhy: write_file overwrites 'notes.txt' (5 bytes)\n")
