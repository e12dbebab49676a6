"""The conformance server behind the gateway: what a client gets through it is what it would get directly."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from mcp import Client

from .contents import seen
from .processes import conformance_server, gateway, server_command, server_environment
from .suite import ASKING, HANDSHAKE, MODERN, VERSIONS, Suite, short_of_full

pytestmark = [
    pytest.mark.slow,
    pytest.mark.anyio,
    pytest.mark.timeout(600),
    pytest.mark.promise("G2"),
]

# Scenarios a client of the version does not pass over an upstream of the transport, which it passes directly.
EXPECTED: dict[tuple[str, str], set[str]] = {
    (HANDSHAKE, "http"): set(),
    (HANDSHAKE, "stdio"): set(),
    (MODERN, "http"): set(),
    (MODERN, "stdio"): set(),
}

# Scenarios that are run and not scored, and are to pass all the same.
BEYOND = {
    HANDSHAKE: {"json-schema-2020-12", "server-session-lifecycle"},
    MODERN: {"json-schema-2020-12", "http-header-validation", "http-custom-header-server-validation"},
}


@pytest.fixture(scope="module", params=["http", "stdio"])
def transport(request: pytest.FixtureRequest) -> str:
    """How the gateway reaches the conformance server."""
    return str(request.param)


@pytest.fixture(scope="module")
def url(suite: Suite, transport: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with ExitStack() as running:
        yield running.enter_context(
            gateway(tmp_path_factory.mktemp("gateway"), _upstream(transport, running, tmp_path_factory))
        )


@pytest.mark.parametrize("version", VERSIONS)
def test_the_score_through_the_gateway_is_the_full_score(suite: Suite, url: str, transport: str, version: str) -> None:
    results = suite.run(url, version)

    short = short_of_full(results[name] for name in [*suite.scored(version), *BEYOND[version]])
    assert short.keys() == EXPECTED[version, transport], short


def test_clients_of_one_gateway_each_get_their_own_questions(suite: Suite, url: str) -> None:
    assert short_of_full(suite.run_apart(url, HANDSHAKE, ASKING).values()) == {}


async def test_lists_resources_and_results_are_the_same_through_the_gateway(url: str, tmp_path: Path) -> None:
    """Beside the suite, which is content with any text from a tool and never looks at most of a list."""
    with conformance_server(tmp_path) as direct:
        async with Client(direct) as straight, Client(url) as through:
            assert (await seen(straight)).items() <= (await seen(through)).items()


def _upstream(transport: str, running: ExitStack, directories: pytest.TempPathFactory) -> dict[str, object]:
    if transport == "http":
        return {"url": running.enter_context(conformance_server(directories.mktemp("upstream")))}
    command, *arguments = server_command("--transport", "stdio")
    return {"command": command, "args": arguments, "env": server_environment()}
