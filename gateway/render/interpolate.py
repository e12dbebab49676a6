"""Interpolation: what `$args.path` and its kin stand for in a renderer's config."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gateway.calls import to_json

# A place inside a value: .name  .0  [0]  ["a name with-other characters"]
_STEP = r"""\.\w+|\[[0-9]+\]|\["[^"\]]*"\]|\['[^'\]]*'\]"""
_EXPRESSION = re.compile(
    rf"""\$(?:
        (?P<dollar>\$)
      | (?P<text>chat_id|workspace|toolset)(?!\w)
      | (?P<tree>args|return)(?!\w)(?P<path>(?:{_STEP})*)
    )""",
    re.VERBOSE,
)
_STEPS = re.compile(_STEP)
_INDEX = re.compile(r"[0-9]{1,9}")


@dataclass(frozen=True)
class Scope:
    """What the expressions of one call stand for; the directories are None where there is none."""

    arguments: Mapping[str, Any]
    value: Any = None
    chat: str = ""
    workspace: str | None = None
    toolset: str | None = None


def interpolate(template: Any, scope: Scope) -> Any:
    """`template` with every expression in its texts, at any depth, replaced by what it stands for.

    A text that is one expression becomes the value itself; in a longer text a value is written
    out, texts as they are and others as compact JSON. What is missing or null is null, and nothing
    in a longer text. `$$` is a dollar sign; a dollar before any other word is left alone. Keys are
    not templates, and neither are values: what a call brings in is never looked at again.
    """
    if isinstance(template, str):
        return _replaced(template, scope)
    if isinstance(template, Mapping):
        return {key: interpolate(item, scope) for key, item in template.items()}
    if isinstance(template, list | tuple):
        return [interpolate(item, scope) for item in template]
    return template


def roots(template: str) -> set[str]:
    """The first words of the expressions in a text: `{"args", "chat_id"}`; empty for plain text."""
    return {root for match in _EXPRESSION.finditer(template) if (root := match["text"] or match["tree"])}


def literal_start(template: str) -> str:
    """The text before the first expression, which no call can change."""
    end = next((match.start() for match in _EXPRESSION.finditer(template) if not match["dollar"]), len(template))
    return template[:end].replace("$$", "$")


def _replaced(template: str, scope: Scope) -> Any:
    if "$" not in template:
        return template
    whole = _EXPRESSION.fullmatch(template)
    if whole is not None and not whole["dollar"]:
        return _value(whole, scope)
    return _EXPRESSION.sub(lambda match: "$" if match["dollar"] else _written(_value(match, scope)), template)


def _value(match: re.Match[str], scope: Scope) -> Any:
    if match["text"]:
        return {"chat_id": scope.chat, "workspace": scope.workspace, "toolset": scope.toolset}[match["text"]]
    value = scope.arguments if match["tree"] == "args" else scope.value
    for step in _STEPS.findall(match["path"]):
        value = _inside(value, _key(step))
    return value


def _key(step: str) -> str:
    if step[0] == ".":
        return step[1:]
    return step[1:-1] if step[1].isdigit() else step[2:-2]


def _inside(value: Any, key: str) -> Any:
    if isinstance(value, Mapping):
        return value.get(key)
    if isinstance(value, list | tuple) and _INDEX.fullmatch(key) and int(key) < len(value):
        return value[int(key)]
    return None


def _written(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else to_json(value).decode()
