"""Our own conformance server, alone: what the suite finds missing behind a gateway is then the gateway's doing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .processes import conformance_server
from .suite import ASKING, HANDSHAKE, MODERN, VERSIONS, Suite, short_of_full

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

# How many scenarios each version's list has: a list that shrank would make a full score cheap.
SCORED = {HANDSHAKE: 30, MODERN: 37}

# Scenarios the SDK keeps any server from passing.
EXPECTED: dict[str, set[str]] = {HANDSHAKE: set(), MODERN: set()}

# Scenarios that are run and not scored, and passed all the same. The others are of the Tasks extension, which this
# server does not have.
BEYOND = {
    HANDSHAKE: {"json-schema-2020-12", "server-session-lifecycle", "server-sse-polling"},
    MODERN: {"json-schema-2020-12", "http-header-validation", "http-custom-header-server-validation"},
}


@pytest.fixture(scope="module")
def url(suite: Suite, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with conformance_server(tmp_path_factory.mktemp("direct")) as url:
        yield url


@pytest.mark.parametrize("version", VERSIONS)
def test_the_conformance_server_has_the_full_score(suite: Suite, url: str, version: str) -> None:
    scored = suite.scored(version)
    assert len(scored) == SCORED[version]

    results = suite.run(url, version)

    short = short_of_full(results[name] for name in [*scored, *BEYOND[version]])
    assert short.keys() == EXPECTED[version], short


def test_independent_clients_each_get_their_own_questions(suite: Suite, url: str) -> None:
    assert short_of_full(suite.run_apart(url, HANDSHAKE, ASKING).values()) == {}


@pytest.mark.parametrize(
    ("era", "version", "scenario"), [("handshake", MODERN, "tools-list"), ("modern", HANDSHAKE, "ping")]
)
def test_server_of_one_version_fails_the_scenarios_of_the_other(
    suite: Suite, tmp_path: Path, era: str, version: str, scenario: str
) -> None:
    with conformance_server(tmp_path, era) as url:
        assert suite.run_one(url, version, scenario).failed
