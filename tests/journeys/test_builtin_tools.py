"""Builtin tools with the Python SDK's client, in both eras: a POST request that a person allows, ranked words."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from .clients import refusal, value
from .test_approval import Person, choose, decline, settled, visiting
from .wire import HANDSHAKE, MODERN

pytestmark = [pytest.mark.anyio]


@contextmanager
def echo() -> Iterator[tuple[int, list[str]]]:
    """A server that answers each POST with its body; its port, and what it was sent."""
    sent: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            sent.append(f"{self.headers['Content-Type']} {body.decode()}")
            self.send_response(200)
            self.send_header("Content-Type", "text/plain")
            self.end_headers()
            self.wfile.write(b"got " + body)

        def log_message(self, *_: object) -> None:
            return

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_port, sent
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.promise("C3")
@pytest.mark.parametrize("era", [MODERN, HANDSHAKE])
async def test_a_post_request_is_sent_once_a_person_agrees(tmp_path: Path, era: str) -> None:
    with echo() as (port, sent):
        web: dict[str, Any] = {"allowed_hosts": [f"127.0.0.1:{port}"], "allow_private": True}
        directory, person = settled(tmp_path, {"web": web}), Person([choose("approve once"), decline])
        async with visiting(directory, era, person, directory / "data") as visit:
            arguments = {"url": f"http://127.0.0.1:{port}/", "method": "POST", "body": '{"a": 1}'}
            page = await value(visit.client, "web_fetch", arguments)
            assert (page["status"], page["body"]) == (200, 'got {"a": 1}')
            assert f"web_fetch sends a POST request to http://127.0.0.1:{port}/" in person.questions[0].message
            await refusal(visit.client, "web_fetch", arguments)
    assert sent == ['application/json {"a": 1}']


@pytest.mark.promise("C3")
@pytest.mark.parametrize("era", [MODERN, HANDSHAKE])
async def test_a_post_request_that_a_rule_allows_is_sent_without_a_question(tmp_path: Path, era: str) -> None:
    with echo() as (port, sent):
        web: dict[str, Any] = {"allowed_hosts": [f"127.0.0.1:{port}"], "allow_private": True}
        rule = {"tool": "web_fetch", "when": {"arguments": {"url": f"http://127.0.0.1:{port}/*"}}, "then": "allow"}
        directory, person = settled(tmp_path, {"web": web, "approval": {"rules": [rule]}}), Person([])
        async with visiting(directory, era, person, directory / "data") as visit:
            arguments = {"url": f"http://127.0.0.1:{port}/", "method": "POST", "body": "a"}
            assert (await value(visit.client, "web_fetch", arguments))["body"] == "got a"
        assert not person.questions
    assert [each.rpartition(" ")[2] for each in sent] == ["a"]


@pytest.mark.promise("C1")
@pytest.mark.parametrize("era", [MODERN, HANDSHAKE])
async def test_plain_words_find_the_best_files_and_follow_restored_versions(tmp_path: Path, era: str) -> None:
    directory = settled(tmp_path, {})
    async with visiting(directory, era, Person([choose("approve once")]), directory / "data") as visit:
        client = visit.client

        async def find(words: str) -> list[str]:
            found = await value(client, "search_code", {"pattern": words, "words": True})
            return list(dict.fromkeys(match["path"] for match in found["matches"]))

        await value(client, "write_file", {"path": "notes.txt", "content": "some words about parsing a date\n"})
        await value(client, "write_file", {"path": "dates.py", "content": "def parseDate(text):\n    return text\n"})
        assert await find("parse dates") == ["dates.py", "notes.txt"]
        history = await value(client, "workspace_history", {})
        await value(client, "workspace_restore", {"manifest": history["versions"][1]["id"]})
        assert await find("parse dates") == ["notes.txt"]
