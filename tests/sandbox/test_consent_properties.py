"""No tool does what its level, the rules and the person's answers do not allow, in random examples."""

from __future__ import annotations

import json
import os
import secrets
import sys
from itertools import product

import pytest
from amounts import NIGHTLY, amount

from gateway.sources.builtin.source import load
from gateway.tools import Access

from .conftest import World, make, require_packages
from .consent_properties import FILE_TOOLS, Report
from .test_table import SANDBOXES, USERS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.promise("C5"),
    pytest.mark.skipif(sys.platform != "linux", reason="both sandboxes need Linux"),
]

EXAMPLES = int(os.environ.get("TOOLGATE_CONSENT_EXAMPLES", amount(3, nightly=12)))
# The first seed, a new one each night; each example has the next one.
SEED = int(os.environ.get("TOOLGATE_CONSENT_SEED", secrets.randbelow(1_000_000) if NIGHTLY else 1))


def test_random_calls_include_every_builtin_that_changes_files() -> None:
    assert set(FILE_TOOLS) == {each.tool.id for each in load("files") if each.tool.access is Access.WRITE}


@pytest.mark.parametrize(("backend", "user"), list(product(SANDBOXES, USERS)))
def test_random_tools_touch_nothing_but_what_level_rules_and_answers_allow(
    backend: str, user: str, world: World
) -> None:
    make(backend)
    require_packages(world, user)
    arguments = (backend, str(world.field), str(SEED), str(EXAMPLES))
    program = world.run(user, "-m", "tests.sandbox.consent_properties", *arguments)
    assert program.returncode == 0, program.stderr[-8000:]
    report = Report(**json.loads(program.stdout.splitlines()[-1]))
    if report.faults:
        pytest.fail("\n".join(report.faults))
    assert report.examples == EXAMPLES
    assert report.counts["questions"] and report.counts["calls that changed files"], report.counts
