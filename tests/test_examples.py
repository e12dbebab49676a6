"""Every example runs as its reader would run it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
SHOWN = {
    "library": ["offered to the model: ", "written: ", "refused: CONFIRMATION_REQUIRED", "['notes.txt']"],
    "extension": ["'code': 'NIGHT'", "list:  {'ok': True"],
}


@pytest.mark.promise("X1", "X3")
@pytest.mark.parametrize("folder", sorted(path.parent.name for path in EXAMPLES.glob("*/main.py")))
def test_an_example_runs_and_shows_what_it_says(folder: str) -> None:
    run = subprocess.run(
        [sys.executable, str(EXAMPLES / folder / "main.py")], capture_output=True, text=True, timeout=300, check=False
    )
    assert (run.returncode, run.stderr) == (0, "")
    for words in SHOWN[folder]:
        assert words in run.stdout
