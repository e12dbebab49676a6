"""The settings file: found, read and validated. Every error names the file, the line, the key and the fix."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import platformdirs
from pydantic import ValidationError

from gateway import yamldoc
from gateway.config.settings import Settings
from gateway.errors import Invalid, NotFound
from gateway.secrets import KNOWN, VARIABLE
from gateway.yamldoc import YamlDocument, validation_error

FILE_NAME = "toolgate.yaml"


def find(explicit: Path | None = None) -> Path | None:
    """The settings file: the one named, else `./toolgate.yaml`, else the user's, else none."""
    if explicit is not None:
        if not explicit.is_file():
            raise NotFound(f"there is no settings file {str(explicit)!r}", code="CONFIG_NOT_FOUND")
        return explicit
    user = Path(platformdirs.user_config_dir("toolgate", appauthor=False)) / FILE_NAME
    return next((path for path in (Path(FILE_NAME), user) if path.is_file()), None)


def read(explicit: Path | None = None, overrides: Mapping[str, Any] | None = None) -> Settings:
    """The settings of the file named, else of the one found. They start programs and say what is asked about, so one
    that was only found must not be in the hands of others, nor of the tools it governs."""
    path = find(explicit)
    settings = load(path, overrides)
    if path is not None and explicit is None:
        _refuse_untrusted(path, settings)
    return settings


def resolve(given: str | Path | Mapping[str, Any] | Settings | None) -> Settings:
    """The settings given: themselves, their keys and values, or the file that has them."""
    if isinstance(given, Settings):
        return given
    if isinstance(given, Mapping):
        return load(None, given)
    return read(Path(given) if given is not None else None)


def load(path: Path | None = None, overrides: Mapping[str, Any] | None = None) -> Settings:
    """The settings of a file, with `overrides` (the command line's) on top, section by section.

    Relative paths in the file are relative to the file. Every complaint names the file, the line,
    the key and the fix.
    """
    document = YamlDocument("", "INVALID_CONFIG", {})
    if path is not None:
        document = _read(path)
        _anchor(document.value, path.resolve().parent)
    try:
        return Settings.model_validate(_merge(document.value, overrides or {}))
    except ValidationError as error:
        raise validation_error(document, Settings, error) from None


def _refuse_untrusted(path: Path, settings: Settings) -> None:
    known = path.stat()
    reason = None
    if settings.workspace is not None and path.resolve().is_relative_to(settings.workspace.resolve()):
        reason = "is in the workspace, where tools can change it"
    elif hasattr(os, "geteuid") and known.st_uid not in (0, os.geteuid()):
        reason = "belongs to another user"
    elif os.name == "posix" and known.st_mode & stat.S_IWOTH:
        reason = "can be changed by every user"
    if reason is not None:
        raise Invalid(
            f"{path} {reason}; move your settings elsewhere, or use --config {path} if you trust its content",
            code="UNTRUSTED_CONFIG",
        )


def resolve_variables(text: str, environment: Mapping[str, str] = os.environ, field: str = "") -> str:
    """`text` with each `${VAR}` replaced from the environment; a missing one is refused by name. Secret values become
    known and are masked from then on; `field` is the name under which the text is set."""

    def value(match: re.Match[str]) -> str:
        name = match[1]
        if name not in environment:
            raise Invalid(f"the environment variable {name} is not set", code="MISSING_VARIABLE", variable=name)
        KNOWN.add_variable(name, environment[name], field)
        return environment[name]

    if VARIABLE.search(text) is None:
        KNOWN.add_literal(text, field)
    return VARIABLE.sub(value, text)


def _read(path: Path) -> YamlDocument:
    document = yamldoc.read(path.read_bytes(), str(path), "INVALID_CONFIG")
    if document.value is None:
        return replace(document, value={})
    if not isinstance(document.value, dict):
        raise document.refusal("the file must hold keys and values at its top level")
    return document


def _anchor(data: dict[str, Any], directory: Path) -> None:
    for key in ("data_dir", "workspace"):
        if isinstance(data.get(key), str):
            data[key] = str(directory / Path(data[key]).expanduser())
    if isinstance(data.get("toolsets"), list):
        data["toolsets"] = [
            str(directory / Path(entry).expanduser()) if isinstance(entry, str) and "://" not in entry else entry
            for entry in data["toolsets"]
        ]
    for key in ("mcpServers", "upstreams"):
        for server in data[key].values() if isinstance(data.get(key), dict) else ():
            match server:
                case {"sandbox": {"paths": list(paths)} as sandbox}:
                    sandbox["paths"] = [anchor_path(path, directory) for path in paths]


def anchor_path(path: Any, directory: Path) -> Any:
    """A path relative to a directory; one that begins with `~` or `${VAR}` is resolved when it is used."""
    return str(directory / path) if isinstance(path, str) and not path.startswith(("~", "${")) else path


def _merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        merged[key] = _merge(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return merged
