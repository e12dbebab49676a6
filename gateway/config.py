"""Settings: what `toolgate.yaml` may say, its defaults, and how the file is found and read."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import platformdirs
import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic_core import ErrorDetails

from .errors import Invalid, NotFound
from .names import did_you_mean
from .tools import Category, Permission

FILE_NAME = "toolgate.yaml"
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_MEBIBYTE = 1024 * 1024

DEFAULT_CATEGORIES = {
    category.name: category
    for category in (
        Category("filesystem", Permission.READ_ONLY),
        Category("editing", Permission.READ_WRITE),
        Category("web", Permission.READ_ONLY),
        Category("development", Permission.EXECUTE, enabled=False),
        Category("customer_support", Permission.READ_WRITE, enabled=False),
        Category("toolsets", Permission.READ_WRITE),
        Category("upstream", Permission.EXECUTE),
    )
}


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class ToolFilter(_Section):
    allow: list[str] = []
    deny: list[str] = []


class ToolOverrideSettings(_Section):
    """What you change about one tool of an upstream, by the server's own name for it."""

    name: str | None = None
    description: str | None = None
    requires_confirmation: bool | None = None
    category: str | None = None
    renderer: str | None = None
    renderer_config: dict[str, Any] | None = None
    enabled: bool | None = None


class UpstreamSettings(_Section):
    """One upstream server, in Claude Desktop's shape, with Toolgate's own keys beside it.

    `trusted` believes the server's annotations about what its tools do. `sharing` says who shares one
    connection to a server that may keep state. `pinning` says whether its first words are believed;
    with `off` all its later ones are too.
    """

    command: str | None = None
    args: list[str] = []
    env: dict[str, str] = {}
    cwd: str | None = None
    url: str | None = None
    headers: dict[str, str] = {}
    type: Literal["stdio", "sse", "http", "streamable-http"] | None = None
    prefix: str | None = Field(default=None, pattern=r"^[A-Za-z0-9_-]{0,32}$")
    enabled: bool = True
    requires_confirmation: bool | None = None
    category: str = "upstream"
    permission: Permission | None = None
    trusted: bool = False
    timeout: float | None = Field(default=None, gt=0)
    lazy: bool = True
    sharing: Literal["principal", "chat", "all"] = "principal"
    pinning: Literal["trust", "hold", "off"] = "trust"
    tools: ToolFilter = ToolFilter()
    overrides: dict[str, ToolOverrideSettings] = {}

    @model_validator(mode="after")
    def _is_started_or_reached(self) -> UpstreamSettings:
        if (self.command is None) == (self.url is None):
            raise ValueError("a server has either a 'command' to start or a 'url' to reach")
        return self


class CategorySettings(_Section):
    enabled: bool | None = None
    permission: Permission | None = None
    calls_per_minute: int | None = Field(default=None, ge=1)


class ToolSettings(_Section):
    enable: bool | None = None
    enabled_categories: list[str] = []


class ApprovalSettings(_Section):
    mode: Literal["never", "unsafe_only", "always"] = "unsafe_only"
    without_elicitation: Literal["deny", "queue"] = "deny"


class SandboxSettings(_Section):
    """Where strangers' code runs. `workers` is how many toolset processes are kept at once, each for
    `worker_idle` seconds without a call. `allow_unsandboxed` runs it with all rights of your account."""

    network: bool = False
    memory_mb: int = Field(default=1024, ge=16)
    cpu_seconds: int = Field(default=60, ge=1)
    timeout: float = Field(default=60, gt=0)
    workers: int = Field(default=24, ge=1)
    worker_idle: float = Field(default=300, gt=0)
    allow_unsandboxed: bool = False
    allow_source_packages: bool = False


class SearchSettings(_Section):
    provider: str
    url: str | None = None


class WebSettings(_Section):
    allowed_hosts: list[str] = []
    search: SearchSettings | None = None


class HttpSettings(_Section):
    allowed_hosts: list[str] = []
    allow_private: bool = False


class AuthSettings(_Section):
    required: bool = False
    jwt: dict[str, Any] | None = None


class ExtensionSettings(_Section):
    """A custom extension. Its priority places it: 11 stands just inside the audit record, 99 next
    to the tool; outside the record nothing of yours can stand, or a call could go unrecorded."""

    use: str = Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")
    priority: int = Field(default=50, ge=11, le=99)
    options: dict[str, Any] = {}


class ProfileSettings(_Section):
    mode: Literal["full", "search"] = "full"
    permission: Permission = Permission.EXECUTE


class LimitSettings(_Section):
    """Bounds on every call. `calls_per_minute` is per tool id and caller."""

    request_bytes: int = Field(default=8 * _MEBIBYTE, ge=1024)
    response_bytes: int = Field(default=32 * _MEBIBYTE, ge=1024)
    concurrency: int = Field(default=64, ge=1)
    timeout: float = Field(default=120, gt=0)
    tools: int = Field(default=5000, ge=1)
    calls_per_minute: dict[str, int] = {}


class ServerSettings(_Section):
    """The HTTP face. Hosts and origins beyond loopback must be named to be let in."""

    allowed_hosts: list[str] = []
    allowed_origins: list[str] = []
    shutdown_grace: float = Field(default=5, ge=0)


class Settings(_Section):
    """Everything a user can set: each field is a key of `toolgate.yaml`."""

    data_dir: Path = Field(default_factory=lambda: Path(platformdirs.user_data_dir("toolgate", appauthor=False)))
    database_url: str | None = None
    blob_store: str | None = None
    toolsets: list[str] = []
    upstreams: dict[str, UpstreamSettings] = Field(default={}, alias="mcpServers")
    categories: dict[str, CategorySettings] = {}
    tools: ToolSettings = ToolSettings()
    approval: ApprovalSettings = ApprovalSettings()
    sandbox: SandboxSettings = SandboxSettings()
    web: WebSettings = WebSettings()
    http: HttpSettings = HttpSettings()
    auth: AuthSettings = AuthSettings()
    extensions: list[ExtensionSettings] = []
    profiles: dict[str, ProfileSettings] = {}
    limits: LimitSettings = LimitSettings()
    server: ServerSettings = ServerSettings()
    chat: str | None = None
    workspace: Path | None = None
    profile: str | None = None

    @field_validator("data_dir", "workspace")
    @classmethod
    def _expand(cls, path: Path | None) -> Path | None:
        return None if path is None else path.expanduser()

    def effective_categories(self) -> dict[str, Category]:
        """Every category with its level and whether it is on, after flags and file had their say.

        What the file says of a category by name wins over the switch for all; a category named in
        `enabled_categories` is on in any case.
        """
        known = [*self.categories, *(name for name in DEFAULT_CATEGORIES if name not in self.categories)]
        for name in self.tools.enabled_categories:
            if name not in known:
                raise Invalid(f"there is no category {name!r}{did_you_mean(name, known)}", code="INVALID_CONFIG")
        return {name: self.category(name) for name in known}

    def category(self, name: str) -> Category:
        """One category; one that only a toolset names is as yours are: read-write."""
        category = DEFAULT_CATEGORIES.get(name) or Category(name, Permission.READ_WRITE)
        said = self.categories.get(name, CategorySettings())
        enabled = category.enabled if self.tools.enable is None else self.tools.enable
        if said.enabled is not None:
            enabled = said.enabled
        return Category(
            category.name,
            said.permission or category.permission,
            enabled or category.name in self.tools.enabled_categories,
            said.calls_per_minute,
        )

    def effective_profile(self) -> ProfileSettings:
        if self.profile is None:
            return ProfileSettings()
        if self.profile not in self.profiles:
            hint = did_you_mean(self.profile, self.profiles)
            raise Invalid(f"there is no profile {self.profile!r} under 'profiles'{hint}", code="INVALID_CONFIG")
        return self.profiles[self.profile]


def find(explicit: Path | None = None) -> Path | None:
    """The settings file: the one named, else `./toolgate.yaml`, else the user's, else none."""
    if explicit is not None:
        if not explicit.is_file():
            raise NotFound(f"there is no settings file {str(explicit)!r}", code="CONFIG_NOT_FOUND")
        return explicit
    user = Path(platformdirs.user_config_dir("toolgate", appauthor=False)) / FILE_NAME
    return next((path for path in (Path(FILE_NAME), user) if path.is_file()), None)


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


def resolve_variables(text: str, environment: Mapping[str, str] = os.environ) -> str:
    """`text` with each `${VAR}` replaced from the environment; a missing one is refused by name."""

    def value(match: re.Match[str]) -> str:
        name = match[1]
        if name not in environment:
            raise Invalid(f"the environment variable {name} is not set", code="MISSING_VARIABLE", variable=name)
        return environment[name]

    return _VARIABLE.sub(value, text)


def _read(path: Path) -> tuple[dict[str, Any], dict[tuple[str | int, ...], int]]:
    try:
        node = yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
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


def _merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        merged[key] = _merge(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return merged


def _complaint(error: ErrorDetails, path: Path | None, lines: Mapping[tuple[str | int, ...], int]) -> str:
    place = tuple(error["loc"])
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
