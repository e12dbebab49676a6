"""Parses docstrings: the first paragraph, and descriptions of parameters in Google, NumPy or Sphinx style."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

_GOOGLE = re.compile(
    r"(args|arguments|parameters|params|keyword args|keyword arguments|other parameters):", re.IGNORECASE
)
_NUMPY = re.compile(r"(other )?parameters", re.IGNORECASE)
_SECTION = re.compile(r"[A-Z][A-Za-z ]*:")
_SPHINX = re.compile(r":(?:param|parameter|arg|argument|key|keyword)\s+(?:[^:]*\s)?\*{0,2}(\w+)\s*:\s*(.*)")
_GOOGLE_ITEM = re.compile(r"\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:(?:\s+(.*))?$")
_NUMPY_ITEM = re.compile(r"(\*{0,2}\w+(?:\s*,\s*\*{0,2}\w+)*)\s*(?::.*)?$")


def summary(docstring: str | None) -> str:
    """Return the first paragraph as one line; empty when the docstring starts with a section."""
    lines = inspect.cleandoc(docstring or "").splitlines()
    paragraph = []
    for index, line in enumerate(lines):
        if not line.strip() or _starts_section(lines, index):
            break
        paragraph.append(line.strip())
    return " ".join(paragraph)


def parameters(docstring: str | None) -> dict[str, str]:
    """Return the description of each parameter, by name, as one line."""
    lines = inspect.cleandoc(docstring or "").splitlines()
    descriptions: dict[str, str] = {}
    for names, text in [*_google(lines), *_numpy(lines), *_sphinx(lines)]:
        for name in names:
            if text:
                descriptions.setdefault(name, text)
    return descriptions


def _starts_section(lines: list[str], index: int) -> bool:
    line = lines[index]
    underlined = index + 1 < len(lines) and re.fullmatch(r"-{3,}", lines[index + 1].strip())
    return bool(underlined or _SPHINX.match(line) or line.startswith((":return", ":raise")) or _SECTION.fullmatch(line))


def _google(lines: list[str]) -> Iterator[tuple[list[str], str]]:
    for index, line in enumerate(lines):
        if _GOOGLE.fullmatch(line.strip()):
            for item, rest in _items(_block(lines, index + 1, _indent(line))):
                if match := _GOOGLE_ITEM.match(item):
                    yield [match[1]], _join([match[2] or "", *rest])


def _numpy(lines: list[str]) -> Iterator[tuple[list[str], str]]:
    for index, line in enumerate(lines[:-1]):
        if _NUMPY.fullmatch(line.strip()) and re.fullmatch(r"-{3,}", lines[index + 1].strip()):
            for item, rest in _items(_numpy_block(lines, index + 2)):
                if match := _NUMPY_ITEM.match(item):
                    yield [name.strip().lstrip("*") for name in match[1].split(",")], _join(rest)


def _sphinx(lines: list[str]) -> Iterator[tuple[list[str], str]]:
    for index, line in enumerate(lines):
        if match := _SPHINX.match(line.strip()):
            yield [match[1]], _join([match[2], *_block(lines, index + 1, _indent(line))])


def _block(lines: list[str], start: int, indent: int) -> list[str]:
    """The lines from `start` that are indented deeper than `indent`, including blank ones."""
    end = start
    while end < len(lines) and (not lines[end].strip() or _indent(lines[end]) > indent):
        end += 1
    return lines[start:end]


def _numpy_block(lines: list[str], start: int) -> list[str]:
    """The lines from `start` up to the next underlined heading."""
    for index in range(start, len(lines) - 1):
        if re.fullmatch(r"-{3,}", lines[index + 1].strip()):
            return lines[start:index]
    return lines[start:]


def _items(block: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Each line at the block's indent, with the deeper lines below it."""
    filled = [line for line in block if line.strip()]
    margin = min(map(_indent, filled), default=0)
    for index, line in enumerate(filled):
        if _indent(line) == margin:
            yield line.strip(), _block(filled, index + 1, margin)


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _join(lines: list[str]) -> str:
    return " ".join(line.strip() for line in lines if line.strip())
