"""How what the suite leaves behind is read: a scenario that found nothing, or never got that far, has not passed."""

from __future__ import annotations

import json
from pathlib import Path

from .suite import Result, read_result, short_of_full


def test_checks_are_sorted_by_how_they_ended(tmp_path: Path) -> None:
    _leave(
        tmp_path,
        "tools-list",
        {"id": "listed", "status": "SUCCESS", "description": "Lists"},
        {"id": "named", "status": "FAILURE", "description": "Names", "errorMessage": "no name"},
        {"id": "ordered", "status": "WARNING", "description": "Same order"},
        {"id": "seen", "status": "INFO", "description": "Says something"},
    )

    result = read_result(tmp_path, "tools-list", "")

    assert result == Result("tools-list", ("listed",), ("named: no name",), ("ordered: Same order",))
    assert short_of_full([result]) == {"tools-list": ["named: no name", "ordered: Same order"]}


def test_scenario_is_not_mistaken_for_one_with_the_same_prefix(tmp_path: Path) -> None:
    _leave(tmp_path, "server-sse", {"id": "a", "status": "FAILURE", "description": "A"})
    _leave(tmp_path, "server-sse-polling", {"id": "b", "status": "SUCCESS", "description": "B"})

    assert read_result(tmp_path, "server-sse-polling", "") == Result("server-sse-polling", ("b",))


def test_scenario_that_raised_is_reported_as_failed_with_its_error(tmp_path: Path) -> None:
    log = "=== Running scenario: ping ===\nFailed to run scenario ping: Error: no answer\n" + "later\n" * 2000

    result = read_result(tmp_path, "ping", log)

    assert result.failed[0].startswith("left no checks: Failed to run scenario ping: Error: no answer\n")
    assert len(result.failed[0]) < 5000


def test_run_without_checks_is_not_a_full_score(tmp_path: Path) -> None:
    _leave(tmp_path, "ping", {"id": "skipped", "status": "SKIPPED", "description": "Not here"})

    assert short_of_full([read_result(tmp_path, "ping", "")]) == {"ping": ["checked nothing"]}


def _leave(directory: Path, scenario: str, *checks: dict[str, str]) -> None:
    folder = directory / f"server-{scenario}-2026-07-28T10-42-56-875Z"
    folder.mkdir()
    (folder / "checks.json").write_text(json.dumps(checks))
