"""Settings of `toolgate.yaml`: their sections and defaults, and the loader of the file."""

from gateway.config.loader import (
    EffectiveSetting,
    anchor_path,
    explain,
    find,
    load,
    read,
    resolve,
    resolve_variables,
    user_directory,
)
from gateway.config.settings import (
    DEFAULT_CATEGORIES,
    ExtensionSettings,
    HttpSettings,
    LimitSettings,
    OAuthSettings,
    SandboxSettings,
    ServerSandboxSettings,
    Settings,
    ToolSettings,
    UpstreamSettings,
    refuse_unavailable,
)

__all__ = [
    "DEFAULT_CATEGORIES",
    "EffectiveSetting",
    "ExtensionSettings",
    "HttpSettings",
    "LimitSettings",
    "OAuthSettings",
    "SandboxSettings",
    "ServerSandboxSettings",
    "Settings",
    "ToolSettings",
    "UpstreamSettings",
    "anchor_path",
    "explain",
    "find",
    "load",
    "read",
    "refuse_unavailable",
    "resolve",
    "resolve_variables",
    "user_directory",
]
