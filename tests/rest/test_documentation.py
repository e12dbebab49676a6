"""The commands of docs/rest.md, run one after the other against a new gateway."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from .conftest import serve
from .test_section7 import pack

pytestmark = [pytest.mark.promise("T7"), pytest.mark.slow]

DOCUMENT = Path(__file__).parents[2] / "docs" / "rest.md"
ADDRESS = "http://127.0.0.1:8420"


def read_examples() -> list[tuple[str, list[str]]]:
    """Each command with the beginnings of what it prints."""
    examples: list[tuple[str, list[str]]] = []
    for block in re.findall(r"```sh\n(.*?)```", DOCUMENT.read_text(), re.DOTALL):
        for line in block.replace("\\\n", "").splitlines():
            if line.startswith("# "):
                examples[-1][1].append(line.removeprefix("# "))
            else:
                examples.append((line, []))
    return examples


def test_rest_examples_of_the_documentation_work(tmp_path: Path) -> None:
    (tmp_path / "greeter.zip").write_bytes(pack("greeter"))
    with serve(tmp_path) as rest:
        for command, expected in read_examples():
            line = command.replace(ADDRESS, str(rest.base_url).rstrip("/"))
            done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, cwd=tmp_path, check=False)
            assert done.returncode == 0, f"{command}: {done.stderr}"
            for text in expected:
                assert text in done.stdout, f"{command}\n{done.stdout}"
