"""Every way a toolset is told no.

ToolsetError
├── BadDefinition   the function cannot be a tool as it is written
├── BadEntrypoint   the entrypoint leads to no function
├── BadArguments    the caller's arguments do not fit the signature
└── BadReturn       what the function returned does not fit its annotation, or JSON

An exception the tool itself raises is none of these: it passes through as it is.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class ToolsetError(Exception):
    """Any of the above; the text says what to mend, and where."""


class BadDefinition(ToolsetError):
    """The function cannot be a tool as it is written."""


class BadEntrypoint(ToolsetError):
    """The entrypoint leads to no function."""


class BadArguments(ToolsetError):
    """The caller's arguments do not fit; `problems` has one sentence for each thing to mend."""

    def __init__(self, tool: str, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        super().__init__(f"{tool}: {'; '.join(self.problems)}")


class BadReturn(ToolsetError):
    """What the function returned does not fit its annotation, or JSON."""


def did_you_mean(word: str, words: Iterable[str]) -> str:
    """`"; did you mean 'x'?"`, or nothing when no word is near."""
    near = difflib.get_close_matches(word, list(words), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""
