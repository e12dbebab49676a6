"""Replacement for ripgrep: a script that imports only the standard library.

Arguments: the query as JSON, then paths. Writes ripgrep's `match` and `context` events; exits with status 2 and the
reason if the pattern is not a regular expression.
"""

import contextlib
import json
import re
import resource
import sys
from collections.abc import Iterator
from typing import Any

_CPU_SECONDS = 60  # in case the parent is gone and cannot stop this process
_MEMORY = 2 * 1024**3


def main() -> int:
    _limit(resource.RLIMIT_CPU, _CPU_SECONDS)
    _limit(resource.RLIMIT_AS, _MEMORY)
    query, paths = json.loads(sys.argv[1]), sys.argv[2:]
    pattern = re.escape(query["pattern"]) if query["literal"] else query["pattern"]
    try:
        expression = re.compile(pattern, 0 if query["case_sensitive"] else re.IGNORECASE)
    except (re.error, RecursionError, OverflowError) as error:
        sys.stderr.write(str(error))
        return 2
    for path in paths:
        with open(path, "rb") as file:  # noqa: PTH123 - a path of the form /dev/fd/N, and pathlib costs start-up
            text = file.read().decode("utf-8-sig", "replace")
        lines = [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")] if text else []
        for event in _events(path, lines, expression, query):
            sys.stdout.write(json.dumps(event) + "\n")
        sys.stdout.flush()
    return 0


def _limit(which: int, value: int) -> None:
    with contextlib.suppress(ValueError, OSError):  # a lower limit is set already, or the system has none
        resource.setrlimit(which, (value, value))


def _events(
    path: str, lines: list[str], expression: re.Pattern[str], query: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    matches = {}
    for index, line in enumerate(lines):
        match = expression.search(line)
        if match:
            matches[index] = match.start()
            if len(matches) == query["per_file"]:
                break
    around = query["context_lines"]
    wanted = sorted({near for index in matches for near in range(index - around, index + around + 1)})
    for index in wanted:
        if 0 <= index < len(lines):
            yield _event(path, index, lines[index], matches.get(index))


def _event(path: str, index: int, line: str, start: int | None) -> dict[str, Any]:
    data: dict[str, Any] = {"path": {"text": path}, "lines": {"text": f"{line}\n"}, "line_number": index + 1}
    if start is None:
        return {"type": "context", "data": data}
    offset = len(line[:start].encode("utf-8", "replace"))
    return {"type": "match", "data": {**data, "submatches": [{"start": offset}]}}


if __name__ == "__main__":
    sys.exit(main())
