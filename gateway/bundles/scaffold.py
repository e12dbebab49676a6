"""Scaffold of a new toolset: small, complete, tested and ready to install."""

from __future__ import annotations

import re
import shutil
import unicodedata
from contextlib import suppress
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from gateway.bundles.field_types import RESERVED, Id
from gateway.bundles.paths import SKIPPED
from gateway.bundles.spec import INVALID_TOOLSET
from gateway.errors import Conflict, Invalid

_SUFFIX = ".template"  # keeps Python and linters from treating them as our modules
_FALLBACK = "my-toolset"
_ID_LIMIT = 64


def write_scaffold(directory: Path, toolset_id: str | None = None) -> list[Path]:
    """Write a new toolset into an empty or new folder; return its files in order.

    Its id is `toolset_id`, else derived from the folder's name. Refused when the id is invalid or the folder is
    not empty; after a failed write nothing is left.
    """
    directory = directory.absolute()
    chosen_id = _check_id(toolset_id) if toolset_id is not None else make_id(directory.resolve().name)
    _check_empty(directory)
    contents = {
        path: _fill(text, chosen_id) for path, text in _load_templates(resources.files(__package__) / "template")
    }
    first = next(path for path in (directory, *directory.parents) if path.parent.exists())  # topmost new folder
    is_new = not first.exists()
    try:
        for path, text in contents.items():
            (directory / path).parent.mkdir(parents=True, exist_ok=True)
            (directory / path).write_text(text, encoding="utf-8")
    except OSError as error:
        _remove(first if is_new else directory, contents, is_new)
        reason = f"cannot write the toolset into {str(directory)!r}: {error.strerror}; choose another folder"
        raise Invalid(reason, code="CANNOT_WRITE") from None
    return [directory / path for path in contents]


def make_id(name: str) -> str:
    """Derive a valid id from a folder's name."""
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().lower()
    slug = re.sub(r"[^a-z0-9_]+", "-", plain).strip("-_")[:_ID_LIMIT].rstrip("-_")
    return f"my-{slug}" if slug in RESERVED - {"toolset"} else _FALLBACK if slug in ("", "toolset") else slug


def _check_id(toolset_id: str) -> str:
    try:
        return TypeAdapter[str](Id).validate_python(toolset_id)
    except ValidationError as error:
        raise Invalid(error.errors()[0]["msg"], code=INVALID_TOOLSET) from None


def _check_empty(directory: Path) -> None:
    if directory.is_dir():
        names = sorted(path.name for path in directory.iterdir() if path.name not in SKIPPED)
        if names:
            reason = f"{str(directory)!r} is not empty: it holds {names[0]!r}; name a new folder"
            raise Conflict(reason, code="FOLDER_NOT_EMPTY")
    elif directory.exists() or directory.is_symlink():
        raise Conflict(f"{str(directory)!r} is a file; name a new folder", code="FOLDER_NOT_EMPTY")


def _load_templates(folder: Traversable, above: str = "") -> list[tuple[str, str]]:
    """Return the path and text of each template, files before folders."""
    entries = sorted(folder.iterdir(), key=lambda entry: (entry.is_dir(), entry.name))
    templates: list[tuple[str, str]] = []
    for entry in entries:
        if entry.is_dir():
            templates += _load_templates(entry, f"{above}{entry.name}/")
        elif entry.name.endswith(_SUFFIX):
            templates.append((above + entry.name.removesuffix(_SUFFIX), entry.read_text(encoding="utf-8")))
    return templates


def _fill(text: str, toolset_id: str) -> str:
    name = re.sub(r"[-_]+", " ", toolset_id).strip().title() or toolset_id
    return text.replace("{{id}}", toolset_id).replace("{{name}}", name)


def _remove(directory: Path, contents: dict[str, str], is_new: bool) -> None:
    """Remove what was written: a new folder as a whole, in an existing one only our files."""
    if is_new:
        shutil.rmtree(directory, ignore_errors=True)
        return
    for name in {path.partition("/")[0] for path in contents}:
        shutil.rmtree(directory / name, ignore_errors=True)
        with suppress(OSError):
            (directory / name).unlink(missing_ok=True)
