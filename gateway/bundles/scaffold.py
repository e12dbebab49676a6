"""A new toolset to begin with: small, complete, tested, and ready to install."""

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

_SUFFIX = ".template"  # so that neither Python nor its tools take them for our own modules
_FALLBACK = "my-toolset"
_ID_LIMIT = 64


def create(directory: Path, toolset_id: str | None = None) -> list[Path]:
    """Write a new toolset into a folder that is empty or not there yet; the files, in their order.

    Its id is `toolset_id`, else made from the folder's name. Refused with the fix when the id is none or
    the folder holds anything; what cannot be written whole is not written at all.
    """
    directory = directory.absolute()
    chosen = _checked(toolset_id) if toolset_id is not None else id_from(directory.resolve().name)
    _refuse_full(directory)
    contents = {path: _filled(text, chosen) for path, text in _templates(resources.files(__package__) / "template")}
    made = next(each for each in (directory, *directory.parents) if each.parent.exists())  # the first that is new
    is_new = not made.exists()
    try:
        for path, text in contents.items():
            (directory / path).parent.mkdir(parents=True, exist_ok=True)
            (directory / path).write_text(text, encoding="utf-8")
    except OSError as error:
        _remove(made if is_new else directory, contents, is_new)
        reason = f"cannot write the toolset into {str(directory)!r}: {error.strerror}; choose another folder"
        raise Invalid(reason, code="CANNOT_WRITE") from None
    return [directory / path for path in contents]


def id_from(name: str) -> str:
    """An id that is as near to a folder's name as the rules for ids allow."""
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().lower()
    slug = re.sub(r"[^a-z0-9_]+", "-", plain).strip("-_")[:_ID_LIMIT].rstrip("-_")
    return f"my-{slug}" if slug in RESERVED - {"toolset"} else _FALLBACK if slug in ("", "toolset") else slug


def _checked(toolset_id: str) -> str:
    try:
        return TypeAdapter[str](Id).validate_python(toolset_id)
    except ValidationError as error:
        raise Invalid(error.errors()[0]["msg"], code=INVALID_TOOLSET) from None


def _refuse_full(directory: Path) -> None:
    if directory.is_dir():
        found = sorted(each.name for each in directory.iterdir() if each.name not in SKIPPED)
        if found:
            reason = f"{str(directory)!r} is not empty: it holds {found[0]!r}; name a new folder"
            raise Conflict(reason, code="FOLDER_NOT_EMPTY")
    elif directory.exists() or directory.is_symlink():
        raise Conflict(f"{str(directory)!r} is a file; name a new folder", code="FOLDER_NOT_EMPTY")


def _templates(folder: Traversable, above: str = "") -> list[tuple[str, str]]:
    """The path and text of each template, the files of a folder before its folders."""
    entries = sorted(folder.iterdir(), key=lambda each: (each.is_dir(), each.name))
    found: list[tuple[str, str]] = []
    for each in entries:
        if each.is_dir():
            found += _templates(each, f"{above}{each.name}/")
        elif each.name.endswith(_SUFFIX):
            found.append((above + each.name.removesuffix(_SUFFIX), each.read_text(encoding="utf-8")))
    return found


def _filled(text: str, toolset_id: str) -> str:
    name = re.sub(r"[-_]+", " ", toolset_id).strip().title() or toolset_id
    return text.replace("{{id}}", toolset_id).replace("{{name}}", name)


def _remove(directory: Path, contents: dict[str, str], is_new: bool) -> None:
    """Take back what was written: a new folder whole, from an old one only our own."""
    if is_new:
        shutil.rmtree(directory, ignore_errors=True)
        return
    for name in {path.partition("/")[0] for path in contents}:
        shutil.rmtree(directory / name, ignore_errors=True)
        with suppress(OSError):
            (directory / name).unlink(missing_ok=True)
