"""Servers nobody here wrote: the suite finds the same through the gateway as directly, over HTTP and over stdio."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest

from .foreign import ForeignServer, foreign_servers
from .processes import gateway
from .suite import ASKING, HANDSHAKE, MODERN, VERSIONS, Suite, short_of_full

pytestmark = [pytest.mark.slow, pytest.mark.promise("G2")]

# How many scenarios each version scores: a list that shrank would make a full score cheap.
SCORED = {HANDSHAKE: 30, MODERN: 37}

# Not scored, and different: the Tasks extension is not relayed. Where a server ends a stream so that its client comes
# back, the gateway comes back, and the stream of its own client goes on.
OTHER_SCENARIOS = ("tasks-", "server-sse-polling")

# Warnings of the suite: a server announces a change and lists the same as before. The gateway compares, and announces
# changes only.
OTHER_CHECKS = {f"sep-2575-server-sends-{what}-list-changed-on-subscription" for what in ("tools", "prompts")}

# What a client gets through the gateway and not from `server-everything` itself.
BETTER = {"dns-rebinding-protection", "server-session-lifecycle"}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", ["sdk", "fastmcp"])
def test_suite_finds_the_same_through_the_gateway_as_directly(
    suite: Suite, tmp_path: Path, name: str, version: str
) -> None:
    with _running(foreign_servers(suite.node)[name], tmp_path) as urls:
        direct, *through = _find_all(suite, urls, [version] * 3)
        if (name, version) == ("sdk", HANDSHAKE):  # clients that know nothing of each other get their own questions
            assert short_of_full(suite.run_apart(urls[2], version, ASKING).values()) == {}

    for transport, found in zip(("http", "stdio"), through, strict=True):
        assert {each: (direct[each], found[each]) for each in direct if direct[each] != found[each]} == {}, transport
    if name == "sdk":
        scored = suite.scored(version)
        assert len(scored) == SCORED[version]
        assert {each: direct[each] for each in scored if direct[each]} == {}


@pytest.mark.parametrize("version", VERSIONS)
def test_suite_finds_more_through_the_gateway_than_from_a_server_of_the_handshake_alone(
    suite: Suite, tmp_path: Path, version: str
) -> None:
    """It has few of the suite's tools, and a 2026-07-28 client does not reach it at all without the gateway."""
    with _running(foreign_servers(suite.node)["everything"], tmp_path) as urls:
        direct, *through = _find_all(suite, urls, [HANDSHAKE, version, version])

    for transport, found in zip(("http", "stdio"), through, strict=True):
        passed = {each for each in direct.keys() & found.keys() if not direct[each]}
        assert len(passed) >= 6
        assert {each: found[each] for each in passed if found[each]} == {}, transport
        if version == HANDSHAKE:
            assert {each for each in direct if direct[each] and not found[each]} == BETTER, transport


@contextmanager
def _running(server: ForeignServer, directory: Path) -> Iterator[list[str]]:
    """The server itself, and gateways that reach it over HTTP and over stdio."""
    homes = [directory / each for each in ("direct", "http", "stdio")]
    for home in homes:
        home.mkdir()
    with ExitStack() as running:
        url = running.enter_context(server.over_http(homes[0]))
        over_http = running.enter_context(gateway(homes[1], {"url": url}))
        yield [url, over_http, running.enter_context(gateway(homes[2], server.over_stdio))]


def _find_all(suite: Suite, urls: Sequence[str], versions: Sequence[str]) -> list[dict[str, list[str]]]:
    with ThreadPoolExecutor(len(urls)) as pool:
        return list(pool.map(partial(_find, suite), urls, versions))


def _find(suite: Suite, url: str, version: str) -> dict[str, list[str]]:
    """The checks that each scenario did not pass, without their reasons, which name ports."""
    return {
        result.scenario: sorted({each.partition(":")[0] for each in result.short_of} - OTHER_CHECKS)
        for result in suite.run(url, version).values()
        if not result.scenario.startswith(OTHER_SCENARIOS)
    }
