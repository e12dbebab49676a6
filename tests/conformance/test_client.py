"""The suite's client scenarios: the gateway is the client of the suite's servers, for a client of its own."""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import traceback
from pathlib import Path

import pytest

from .suite import HANDSHAKE, MODERN, VERSIONS, Suite, short_of_full
from .upstream_driver import Job, drive

pytestmark = [pytest.mark.slow, pytest.mark.anyio, pytest.mark.promise("G1", "G2")]

SCORED = {HANDSHAKE: 18, MODERN: 32}

# Not scored, and for extensions we do not have: other ways to prove who a client is.
EXTENSIONS = {
    "auth/client-credentials-jwt",
    "auth/enterprise-managed-authorization",
    "auth/dpop",
    "auth/dpop-nonce",
    "auth/wif-jwt-bearer",
}


@pytest.mark.parametrize("version", VERSIONS)
async def test_gateway_as_a_client_has_the_full_score(suite: Suite, version: str) -> None:
    errors: dict[str, str] = {}
    # A path short enough for a socket.
    with tempfile.TemporaryDirectory() as directory:
        home = Path(directory)

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            job = Job(**json.loads(await reader.readline()))
            try:
                await drive(job, home / job.scenario)
            except Exception as error:
                errors[job.scenario] = "".join(traceback.format_exception(error))[-1500:]
            writer.write(b"-" if job.scenario in errors else b"+")
            await writer.drain()
            writer.close()

        async with await asyncio.start_unix_server(answer, str(home / "jobs")):
            script = Path(__file__).with_name("report_job.py")
            command = f"{sys.executable} -I -S {script} {home / 'jobs'}"
            results = await asyncio.to_thread(suite.run_client, command, version)

    scored = suite.scored(version, "client")
    assert len(scored) == SCORED[version]
    short = short_of_full(result for name, result in results.items() if name not in EXTENSIONS)
    assert short == {}, "\n".join(f"{name}: {short[name]}\n{errors.get(name)}" for name in short)
