"""Styles of the console: one page cannot change how another one looks."""

from __future__ import annotations

import re
from collections import defaultdict

from gateway.serve.web.inline import WEB

_OWN_RULE = re.compile(r"^\s*\.([a-z][\w-]*)\s*\{", re.MULTILINE)


def test_no_class_has_rules_in_two_files() -> None:
    places: dict[str, set[str]] = defaultdict(set)
    for sheet in [*WEB.glob("core/*.css"), *WEB.glob("console/**/*.css")]:
        for name in _OWN_RULE.findall(sheet.read_text()):
            places[name].add(sheet.name)
    assert len(places) > 100
    assert not {name: sheets for name, sheets in places.items() if len(sheets) > 1}
