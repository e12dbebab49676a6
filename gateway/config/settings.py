"""What `toolgate.yaml` may say, and its defaults."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import platformdirs
from pydantic import Field, field_validator

from gateway.config.approval import ApprovalSettings
from gateway.config.sandbox import SandboxSettings
from gateway.config.section import Section
from gateway.config.upstreams import UpstreamSettings
from gateway.config.web import WebSettings
from gateway.errors import Invalid
from gateway.names import did_you_mean
from gateway.tools import Category, Permission

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


class CategorySettings(Section):
    enabled: bool | None = None
    permission: Permission | None = None
    calls_per_minute: int | None = Field(default=None, ge=1)


class ToolSettings(Section):
    enable: bool | None = None
    enabled_categories: list[str] = []


class HttpSettings(Section):
    allowed_hosts: list[str] = []
    allow_private: bool = False


class AuthSettings(Section):
    required: bool = False
    jwt: dict[str, Any] | None = None


class ExtensionSettings(Section):
    """A custom extension. Its priority places it: 11 stands just inside the audit record, 99 next
    to the tool; outside the record nothing of yours can stand, or a call could go unrecorded."""

    use: str = Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")
    priority: int = Field(default=50, ge=11, le=99)
    options: dict[str, Any] = {}


class ProfileSettings(Section):
    mode: Literal["full", "search"] = "full"
    permission: Permission = Permission.EXECUTE


class LimitSettings(Section):
    """Bounds on every call. `calls_per_minute` is per tool id and caller."""

    request_bytes: int = Field(default=8 * _MEBIBYTE, ge=1024)
    response_bytes: int = Field(default=32 * _MEBIBYTE, ge=1024)
    concurrency: int = Field(default=64, ge=1)
    timeout: float = Field(default=120, gt=0)
    tools: int = Field(default=5000, ge=1)
    calls_per_minute: dict[str, int] = {}


class ServerSettings(Section):
    """The HTTP face. Hosts and origins beyond loopback must be named to be let in."""

    allowed_hosts: list[str] = []
    allowed_origins: list[str] = []
    shutdown_grace: float = Field(default=5, ge=0)


class Settings(Section):
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
    def _whole(cls, path: Path | None) -> Path | None:
        """Wherever it is used later, it means what it means here and now."""
        return None if path is None else path.expanduser().absolute()

    def effective_categories(self) -> dict[str, Category]:
        """Every category with its level and whether it is on, after flags and file had their say.

        What the file says of a category by name wins over the switch for all; a category named in
        `enabled_categories` is on in any case.
        """
        known = [*self.categories, *(name for name in DEFAULT_CATEGORIES if name not in self.categories)]
        for name in self.tools.enabled_categories:
            if name not in known:
                short = [f"; did you mean {each!r}?" for each in known if each.startswith(name)]
                hint = next(iter(short), did_you_mean(name, known)) or f"; there are {', '.join(known)}"
                raise Invalid(f"there is no category {name!r}{hint}", code="INVALID_CONFIG")
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


def refuse_unavailable(settings: Settings) -> None:
    """Refuse settings this version cannot honour and that must not be ignored."""
    for asked_for, key, instead in (
        (settings.auth.required or settings.auth.jwt, "auth", "serve on loopback only, which needs none"),
        (settings.database_url, "database_url", "leave it out for SQLite in data_dir"),
        (settings.blob_store, "blob_store", "leave it out for files in data_dir"),
    ):
        if asked_for:
            raise Invalid(f"{key!r} is not available in this version; {instead}", code="NOT_AVAILABLE")
