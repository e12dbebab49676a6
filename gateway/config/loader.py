"""The settings file: found, read and validated. Every error names the file, the line, the key and the fix."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import platformdirs
from pydantic import ValidationError

from gateway.config.settings import Settings
from gateway.document import Place, YamlDocument, join_place, validation_error
from gateway.errors import Invalid, NotFound
from gateway.files import replace_private
from gateway.secrets import KNOWN, REDACTED, VARIABLE, hides_secret, is_literal, is_secret

FILE_NAME = "toolgate.yaml"
_SHORT_NAME = "toolgate.yml"
# References that are resolved when they are used: a server whose variable is missing must not stop the others, and
# secrets are kept out of the settings.
_RESOLVED_LATER = (("mcpServers",), ("upstreams",), ("approval", "keys"), ("web", "search"))

# Sections that start, reach, allow and remove nothing. A file of a repository with no others needs no trust. `tools`
# enables tools, and `retention` removes records.
_HARMLESS = frozenset({"chat", "limits", "profile"})


def find(explicit: Path | None = None) -> Path | None:
    """The settings file: the one named, else `./toolgate.yaml`, else the user's, else none."""
    if explicit is not None:
        if not explicit.is_file():
            advice = f"make one with: toolgate init --config {shlex.quote(str(explicit))}"
            raise NotFound(f"there is no settings file {str(explicit)!r}; {advice}", code="CONFIG_NOT_FOUND")
        return explicit
    for folder in (Path(), user_directory()):
        found = [folder / name for name in (FILE_NAME, _SHORT_NAME) if (folder / name).is_file()]
        if len(found) > 1:
            raise Invalid(f"both {found[0]} and {found[1]} exist; remove one of them", code="INVALID_CONFIG")
        if found:
            return found[0]
    return None


def user_directory() -> Path:
    """The directory of the user's own settings file."""
    return Path(platformdirs.user_config_dir("toolgate", appauthor=False))


def read(explicit: Path | None = None, overrides: Mapping[str, Any] | None = None) -> Settings:
    """The settings of the file named, else of the one found. They start programs and say what is asked about, so one
    that was only found must not be in the hands of others, nor as the tools it governs have left it, nor come unread
    with a repository."""
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
    document, values = YamlDocument("", "INVALID_CONFIG", {}), {}
    if path is not None:
        document = read_document(path)
        values = _resolve_references(document.value, (), document)
        _anchor(values, path.resolve().parent)
    try:
        settings = Settings.model_validate(_merge(values, overrides or {}))
    except ValidationError as error:
        raise validation_error(document, Settings, error) from None
    _check_names(settings, document, overrides or {})
    return settings


def _check_names(settings: Settings, document: YamlDocument, overrides: Mapping[str, Any]) -> None:
    """Refuse the names in the file that nothing has; those of the command line are checked where they are used."""
    values = document.value
    if "profile" in values and "profile" not in overrides:
        with _refuse_at(document, ("profile",)):
            settings.effective_profile()
    if "tools" in values and "enabled_categories" not in overrides.get("tools", {}):
        with _refuse_at(document, ("tools", "enabled_categories")):
            settings.effective_categories()
    workspace = settings.workspace
    if "workspace" in values and "workspace" not in overrides and workspace is not None and not workspace.is_dir():
        message = f"the workspace {str(workspace)!r} is not a folder; make it, or name another one"
        raise document.refusal(message, ("workspace",))


@contextmanager
def _refuse_at(document: YamlDocument, place: Place) -> Iterator[None]:
    try:
        yield
    except Invalid as error:
        raise document.refusal(error.message, place) from None


class EffectiveSetting(NamedTuple):
    """One setting with the value that applies; `line` is that of the file, None for a default. Secrets are masked."""

    key: str
    value: Any
    line: int | None


def explain(path: Path | None) -> list[EffectiveSetting]:
    """Every setting as it applies, and of servers, rules and the like those that the file has."""
    return describe(load(path), path)


def describe(settings: Settings, path: Path | None = None) -> list[EffectiveSetting]:
    """The same for settings that apply already; `path` is the file they came from."""
    values = settings.model_dump(mode="json", by_alias=True)
    given = settings.model_dump(mode="json", by_alias=True, exclude_unset=True)
    for key in ("mcpServers", "categories", "profiles", "extensions"):
        values[key] = given.get(key, values[key])
    values["approval"]["rules"] = given.get("approval", {}).get("rules", [])
    document = read_document(path) if path is not None else YamlDocument("", "INVALID_CONFIG", {})
    return [
        EffectiveSetting(join_place(place), KNOWN.mask_value(value), _line_of(document, place))
        for place, value in _leaves(values, ())
    ]


def find_oversights(settings: Settings, path: Path | None) -> Iterator[str]:
    """Yield what is valid in the file and probably not meant, by line."""
    document = read_document(path) if path is not None else YamlDocument("", "INVALID_CONFIG", {})
    found: list[tuple[Place, str]] = []
    for section in ("mcpServers", "upstreams"):
        for name, server in (document.value.get(section) or {}).items():
            if not settings.upstreams[name].enabled or "bundle" in server:
                continue
            found += [
                ((section, name, *place), f"the environment variable {variable} is not set, so the server cannot start")
                for place, text in _texts(server, ())
                for variable in VARIABLE.findall(text)
                if variable not in os.environ
            ]
    for index, source in enumerate(settings.toolsets):
        if Path(source).is_absolute() and not Path(source).exists():
            found.append((("toolsets", index), f"there is no file or folder {source!r}"))
    for index, rule in enumerate(settings.approval.rules):
        if "then" not in rule.model_fields_set:
            found.append((("approval", "rules", index), "it has no 'then', so it asks; write then: ask, allow or deny"))
    for place, text in sorted(found, key=lambda pair: document.line(pair[0]) or 0):
        yield document.refusal(text, place).message


def _texts(value: Any, place: Place) -> Iterator[tuple[Place, str]]:
    """Every text in a value, with its place."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from _texts(item, (*place, key))
    if isinstance(value, str):
        yield place, value


def find_line(path: Path | None, place: Place) -> str:
    """The file and line of a place, as a message begins with it."""
    line = read_document(path).line(place) if path is not None else None
    return f"{path} line {line}: " if line else ""


def _leaves(value: Any, place: Place) -> Iterator[tuple[Place, Any]]:
    """Every value that is no mapping, with its place; secrets are masked."""
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from _leaves(item, (*place, key))
    else:
        yield place, mask(value, str(place[-1]) if place else "")


def mask(value: Any, name: str = "") -> Any:
    """Return a setting of that name with its literal secrets masked."""
    if isinstance(value, dict):
        return {key: mask(item, key) for key, item in value.items()}
    if isinstance(value, list):
        return [mask(item, name) for item in value]
    return REDACTED if isinstance(value, str) and is_literal(value) and hides_secret(name, value) else value


def _line_of(document: YamlDocument, place: Place) -> int | None:
    spelled = ("upstreams", *place[1:]) if place[:1] == ("mcpServers",) else place
    return document.lines.get(place) or document.lines.get(spelled)


def _refuse_untrusted(path: Path, settings: Settings) -> None:
    _refuse_others(path)
    content = read_document(path).value
    workspace = None if settings.workspace is None else settings.workspace.resolve()
    if workspace is None or not path.resolve().is_relative_to(workspace):
        is_ours = True
    else:
        is_ours = _is_trusted(path, "all", content) and not _trust_file().resolve().is_relative_to(workspace)
    if content and not is_ours:
        raise Invalid(
            f"{path} is in the workspace, where tools can change it; read it, then trust it as it is with: toolgate "
            f"config trust (again after each change), or use --config {shlex.quote(str(path))}",
            code="UNTRUSTED_CONFIG",
            file=str(path),
        )
    _refuse_foreign(path, content)


def _refuse_others(path: Path) -> None:
    """Refuse a file that other users can change: trust in its content would end at once."""
    known = path.stat()
    if hasattr(os, "geteuid") and known.st_uid not in (0, os.geteuid()):
        reason = "belongs to another user"
    elif os.name == "posix" and known.st_mode & stat.S_IWOTH:
        reason = "can be changed by every user"
    else:
        return
    raise Invalid(
        f"{path} {reason}; move your settings elsewhere, or use --config {path} if you trust its content",
        code="UNTRUSTED_CONFIG",
    )


def trust(path: Path) -> None:
    """Record that the person trusts a settings file as it is now; refused where other users can change it. In a
    repository only what it starts and allows has to stay the same, in a workspace all of it."""
    _refuse_others(path)
    content = read_document(path).value
    known = _read_trusted()
    known[str(path.resolve())] = {"privileged": _digest(_select_privileged(content)), "all": _digest(content)}
    _trust_file().parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    replace_private(_trust_file(), json.dumps(known, indent=2).encode())


def _is_trusted(path: Path, part: str, content: Mapping[str, Any]) -> bool:
    return _read_trusted().get(str(path.resolve()), {}).get(part) == _digest(content)


def _refuse_foreign(path: Path, content: Mapping[str, Any]) -> None:
    """Refuse a file of a repository until it is trusted: whoever cloned it may not have written it, nor read it."""
    folder = path.resolve().parent
    if folder == user_directory().resolve() or not any(
        (above / ".git").exists() for above in (folder, *folder.parents)
    ):
        return
    privileged = _select_privileged(content)
    if privileged and not _is_trusted(path, "privileged", privileged):
        raise Invalid(
            f"{path} belongs to a Git repository and sets {', '.join(privileged)}, so it can start programs and change "
            "what is asked; read it, then trust it as it is with: toolgate config trust",
            code="UNTRUSTED_CONFIG",
            file=str(path),
        )


def _select_privileged(content: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that can start, reach or allow something."""
    return {key: value for key, value in content.items() if key not in _HARMLESS}


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()


def _trust_file() -> Path:
    """In the default data directory, which is part of a workspace that tools can change only if another is set."""
    return Path(platformdirs.user_data_dir("toolgate", appauthor=False)) / "trusted.json"


def _read_trusted() -> dict[str, dict[str, str]]:
    try:
        known = dict(json.loads(_trust_file().read_bytes()))
    except (OSError, ValueError, TypeError):
        return {}
    return {path: digests for path, digests in known.items() if isinstance(digests, dict)}


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


def read_document(path: Path) -> YamlDocument:
    """The file as it is written."""
    # Imported here: many gateways have no settings file, and parsers take a twentieth of a start.
    from gateway import yamldoc

    try:
        content = path.read_bytes()
    except OSError as error:
        message = f"{path} cannot be read: {error.strerror}; correct its permissions, or name another with --config"
        raise Invalid(message, code="INVALID_CONFIG") from None
    document = yamldoc.read(content, str(path), "INVALID_CONFIG")
    if document.value is None:
        return replace(document, value={})
    if not isinstance(document.value, dict):
        raise document.refusal("the file must hold keys and values at its top level")
    return document


def _resolve_references(value: Any, place: Place, document: YamlDocument) -> Any:
    """The value with each `${VAR}` replaced, except those that are resolved later, which must only be set."""
    if place in _RESOLVED_LATER[:2]:
        return value
    if isinstance(value, dict):
        return {key: _resolve_references(item, (*place, key), document) for key, item in value.items()}
    if isinstance(value, list):
        return [_resolve_references(item, (*place, index), document) for index, item in enumerate(value)]
    if not isinstance(value, str):
        return value
    for name in VARIABLE.findall(value):
        if name not in os.environ:
            raise document.refusal(
                f"the environment variable {name} is not set; set it, or write the value here", place
            )
        if is_secret(name):
            KNOWN.add(os.environ[name])
    return value if place[:2] in _RESOLVED_LATER else VARIABLE.sub(lambda match: os.environ[match[1]], value)


def _anchor(data: dict[str, Any], directory: Path) -> None:
    for key in ("data_dir", "workspace"):
        if isinstance(data.get(key), str):
            data[key] = str(directory / Path(data[key]).expanduser())
    if isinstance(data.get("toolsets"), list):
        data["toolsets"] = [_anchor_toolset(entry, directory) for entry in data["toolsets"]]
    tools = data.get("tools")
    if isinstance(tools, dict) and isinstance(tools.get("semantic"), str):
        tools["semantic"] = str(directory / Path(tools["semantic"]).expanduser())
    for key in ("mcpServers", "upstreams"):
        for server in data[key].values() if isinstance(data.get(key), dict) else ():
            match server:
                case {"sandbox": {"paths": list(paths)} as sandbox}:
                    sandbox["paths"] = [anchor_path(path, directory) for path in paths]


def _anchor_toolset(entry: Any, directory: Path) -> Any:
    """The path of a toolset; a URL, and the id of one that comes with the gateway, stay as they are."""
    if not isinstance(entry, str) or "://" in entry:
        return entry
    path = directory / Path(entry).expanduser()
    return str(path) if path.exists() or path.name != entry or path.suffix else entry


def anchor_path(path: Any, directory: Path) -> Any:
    """A path relative to a directory; one that begins with `~` or `${VAR}` is resolved when it is used."""
    return str(directory / path) if isinstance(path, str) and not path.startswith(("~", "${")) else path


def _merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        merged[key] = _merge(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return merged
