"""Settings: what `toolgate.yaml` may say, its defaults, and how the file is found and read."""

from gateway.config.loader import anchored, find, load, read, resolve, resolve_variables
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
    "ExtensionSettings",
    "HttpSettings",
    "LimitSettings",
    "OAuthSettings",
    "SandboxSettings",
    "ServerSandboxSettings",
    "Settings",
    "ToolSettings",
    "UpstreamSettings",
    "anchored",
    "find",
    "load",
    "read",
    "refuse_unavailable",
    "resolve",
    "resolve_variables",
]
