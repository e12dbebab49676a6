"""Servers nobody here wrote: the suite finds the same through the gateway as directly, over HTTP and over stdio."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from .foreign import ForeignServer, foreign_servers
from .processes import gateway
from .suite import ASKING, HANDSHAKE, MODERN, VERSIONS, Result, Suite, short_of_full

pytestmark = [pytest.mark.slow, pytest.mark.promise("G2")]

# How many scenarios each version scores: a list that shrank would make a full score cheap.
SCORED = {HANDSHAKE: 30, MODERN: 37}

# Not scored, and different: the Tasks extension is not relayed. Where a server ends a stream so that its client comes
# back, the gateway comes back, and the stream of its own client goes on.
OTHER_SCENARIOS = ("tasks-", "server-sse-polling")

# Warnings of the suite for a server that says its lists change, and has no tool that changes one. FastMCP's says that
# they do not; the gateway's own do.
UNTRIGGERED = {f"sep-2575-server-sends-{what}-list-changed-on-subscription" for what in ("tools", "prompts")}

# What a client gets through the gateway and not from `server-everything` itself.
BETTER = {"dns-rebinding-protection", "server-session-lifecycle"}


# How often a scenario is run alone before it counts: the suite waits half a second for some answers, too short for a
# busy machine.
ALONE = 6

Findings = dict[str, list[str]]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", ["sdk", "fastmcp"])
def test_suite_finds_the_same_through_the_gateway_as_directly(
    suite: Suite, tmp_path: Path, name: str, version: str
) -> None:
    with _running(foreign_servers(suite.node)[name], tmp_path) as urls:
        direct, *through = _find_all(suite, urls, [version] * 3)
        fits = operator.eq if name == "sdk" else lambda here, there: here == sorted({*there} - UNTRIGGERED)
        for url, found in zip(urls[1:], through, strict=True):
            assert _unlike(suite, (urls[0], url), (version, version), direct, found, fits) == {}
        if name == "sdk":
            scored = suite.scored(version)
            assert len(scored) == SCORED[version]
            full: Findings = {each: [] for each in scored}
            assert _unlike(suite, urls[:1] * 2, (version, version), full, direct, lambda _, found: not found) == {}
        if (name, version) == ("sdk", HANDSHAKE):  # clients that know nothing of each other get their own questions
            assert short_of_full(suite.run_apart(urls[2], version, ASKING).values()) == {}


@pytest.mark.parametrize("version", VERSIONS)
def test_suite_finds_more_through_the_gateway_than_from_a_server_of_the_handshake_alone(
    suite: Suite, tmp_path: Path, version: str
) -> None:
    """It has few of the suite's tools, and a 2026-07-28 client does not reach it at all without the gateway."""
    with _running(foreign_servers(suite.node)["everything"], tmp_path) as urls:
        direct, *through = _find_all(suite, urls, [HANDSHAKE, version, version])
        for url, found in zip(urls[1:], through, strict=True):
            both, versions = (urls[0], url), (HANDSHAKE, version)
            assert sum(not direct[each] for each in direct.keys() & found.keys()) >= 6
            assert _unlike(suite, both, versions, direct, found, lambda here, there: bool(here) or not there) == {}
            if version == HANDSHAKE:
                same, better = ({name: direct[name] for name in names} for names in (direct.keys() - BETTER, BETTER))
                assert _unlike(suite, both, versions, same, found, operator.eq) == {}
                assert _unlike(suite, both, versions, better, found, lambda here, there: bool(here) > bool(there)) == {}


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


def _find_all(suite: Suite, urls: Sequence[str], versions: Sequence[str]) -> list[Findings]:
    """The checks that each scenario did not pass."""

    def find(url: str, version: str) -> Findings:
        results = suite.run(url, version)
        return {name: _checks(results[name]) for name in results if not name.startswith(OTHER_SCENARIOS)}

    with ThreadPoolExecutor(len(urls)) as pool:
        return list(pool.map(find, urls, versions))


def _unlike(
    suite: Suite,
    urls: Sequence[str],
    versions: Sequence[str],
    direct: Findings,
    found: Findings,
    fits: Callable[[list[str], list[str]], bool],
) -> dict[str, list[list[str]]]:
    """The scenarios both versions have whose findings do not fit, also when they are run alone."""
    unlike: dict[str, list[list[str]]] = {}
    for name in direct.keys() & found.keys():
        pair = [direct[name], found[name]]
        for _ in range(ALONE):
            if fits(*pair):
                break
            pair = [_checks(suite.run_one(url, version, name)) for url, version in zip(urls, versions, strict=True)]
        if not fits(*pair):
            unlike[name] = pair
    return unlike


def _checks(result: Result) -> list[str]:
    """The checks not passed, without their reasons, which name ports."""
    return sorted({each.partition(":")[0] for each in result.short_of})
