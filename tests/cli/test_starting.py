"""How a command begins."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

SCRIPT = """
import gc, json, sys
from gateway.cli import main
try:
    main(sys.argv[1:])
except SystemExit:
    print(json.dumps([gc.isenabled(), gc.get_freeze_count(), len(gc.get_objects())]), file=sys.stderr)
"""


@pytest.mark.parametrize("command", [pytest.param("serve", marks=pytest.mark.slow), "tool"])
def test_what_is_imported_for_a_command_is_never_searched_for_garbage(command: str) -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT, command, "--help"], capture_output=True, text=True, check=True)
    collecting, staying, searched = json.loads(done.stderr)
    assert collecting
    assert staying > 50 * searched
