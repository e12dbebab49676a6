"""The errors of this library.

ToolsetError
├── BadDefinition   the function cannot be a tool as it is written
├── BadEntrypoint   the entrypoint leads to no function
├── BadArguments    the caller's arguments do not fit the signature
└── BadReturn       the returned value does not fit its annotation, or JSON

An exception that the tool itself raises is none of these; it passes through unchanged.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class ToolsetError(Exception):
    """Base of the above; the message names what to correct, and where."""


class BadDefinition(ToolsetError):
    """The function cannot be a tool as it is written."""


class BadEntrypoint(ToolsetError):
    """The entrypoint leads to no function."""


class BadArguments(ToolsetError):
    """The caller's arguments do not fit; `problems` has one sentence per thing to correct."""

    def __init__(self, tool: str, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        super().__init__(f"{tool}: {'; '.join(self.problems)}")


class BadReturn(ToolsetError):
    """The value that the function returned does not fit its annotation, or JSON."""


def did_you_mean(word: str, words: Iterable[str]) -> str:
    """Return `"; did you mean 'x'?"`, or an empty text when no word is similar."""
    near = difflib.get_close_matches(word, list(words), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""
