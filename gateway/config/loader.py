"""How the settings file is found and read; every complaint names the file, the line, the key and the fix."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import platformdirs
import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from gateway.config.settings import Settings
from gateway.errors import Invalid, NotFound
from gateway.names import did_you_mean
from gateway.secrets import KNOWN, VARIABLE

FILE_NAME = "toolgate.yaml"
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml's reader takes a twentieth of the time


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
    data: dict[str, Any] = {}
    lines: dict[tuple[str | int, ...], int] = {}
    if path is not None:
        data, lines = _read(path)
        _anchor(data, path.resolve().parent)
    try:
        return Settings.model_validate(_merge(data, overrides or {}))
    except ValidationError as error:
        raise Invalid(_complaint(error.errors()[0], path, lines), code="INVALID_CONFIG") from None


def _refuse_untrusted(path: Path, settings: Settings) -> None:
    known = path.stat()
    reason = None
    if settings.workspace is not None and path.resolve().is_relative_to(settings.workspace.resolve()):
        reason = "lies in the workspace, where tools can rewrite it"
    elif hasattr(os, "geteuid") and known.st_uid not in (0, os.geteuid()):
        reason = "belongs to another user"
    elif os.name == "posix" and known.st_mode & stat.S_IWOTH:
        reason = "can be changed by every user"
    if reason is not None:
        raise Invalid(
            f"{path} {reason}; keep your settings elsewhere, or say --config {path} if you trust what it says",
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


def _read(path: Path) -> tuple[dict[str, Any], dict[tuple[str | int, ...], int]]:
    try:
        node = yaml.compose(path.read_text(encoding="utf-8"), Loader=_LOADER)
        lines: dict[tuple[str | int, ...], int] = {}
        _locate(node, (), lines, path)
        data = yaml.SafeLoader("").construct_document(node) if node is not None else {}
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise Invalid(f"{path} is no YAML: {' '.join(str(error).split())}", code="INVALID_CONFIG") from None
    if not isinstance(data, dict):
        raise Invalid(f"{path}: the file must hold keys and values at its top level", code="INVALID_CONFIG")
    return data, lines


def _locate(
    node: yaml.Node | None, at: tuple[str | int, ...], lines: dict[tuple[str | int, ...], int], path: Path
) -> None:
    """Note the line of every key; a key said twice is refused, since one of the two would be lost."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            place = (*at, key.value)
            if place in lines:
                raise Invalid(
                    f"{path} line {key.start_mark.line + 1}: {_dotted(place)!r} is there twice "
                    f"(first in line {lines[place]})",
                    code="INVALID_CONFIG",
                )
            lines[place] = key.start_mark.line + 1
            _locate(value, place, lines, path)
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            lines[(*at, index)] = item.start_mark.line + 1
            _locate(item, (*at, index), lines, path)


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
                    sandbox["paths"] = [anchored(path, directory) for path in paths]


def anchored(path: Any, directory: Path) -> Any:
    """A path relative to a directory; one that begins with `~` or `${VAR}` is resolved when it is used."""
    return str(directory / path) if isinstance(path, str) and not path.startswith(("~", "${")) else path


def _merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        merged[key] = _merge(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return merged


def _complaint(error: ErrorDetails, path: Path | None, lines: Mapping[tuple[str | int, ...], int]) -> str:
    place = tuple(part for part in error["loc"] if not str(part).startswith("<"))  # tags of a union are no keys
    line = next((lines[place[:end]] for end in range(len(place), 0, -1) if place[:end] in lines), None)
    where = f"{path}{f' line {line}' if line else ''}: " if path else ""
    if error["type"] == "extra_forbidden":
        hint = did_you_mean(str(place[-1]), _keys(place[:-1]))
        return f"{where}unknown key {_dotted(place)!r}{hint}"
    return f"{where}{_dotted(place)!r}: {error['msg']}"


def _keys(place: tuple[str | int, ...]) -> list[str]:
    """The keys valid at a place, found by walking the models along it."""
    model: Any = Settings
    for part in place:
        if not (isinstance(model, type) and issubclass(model, BaseModel)):
            break
        fields = {field.alias or name: field for name, field in model.model_fields.items()}
        if part not in fields:
            continue  # an item of a list, or a name the user chose
        model = _section(fields[str(part)].annotation)
    if not (isinstance(model, type) and issubclass(model, BaseModel)):
        return []
    return [field.alias or name for name, field in model.model_fields.items()]


def _section(annotation: Any) -> Any:
    """The model inside `Model`, `Model | None`, `list[Model]` or `dict[str, Model]`."""
    arguments = getattr(annotation, "__args__", ())
    return next((_section(part) for part in arguments if _is_section(_section(part))), annotation)


def _is_section(candidate: Any) -> bool:
    return isinstance(candidate, type) and issubclass(candidate, BaseModel)


def _dotted(place: tuple[str | int, ...]) -> str:
    return ".".join(str(part) for part in place)
