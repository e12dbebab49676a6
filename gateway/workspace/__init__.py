"""A chat's files. Every path in a workspace is opened through this package."""

from gateway.workspace.openat import ComponentOpener, Openat2, Parts, PathOpener, choose_opener
from gateway.workspace.os_errors import show_path
from gateway.workspace.paths import Root, parse
from gateway.workspace.walk import Entry, Walk
from gateway.workspace.workspaces import Workspaces

__all__ = [
    "ComponentOpener",
    "Entry",
    "Openat2",
    "Parts",
    "PathOpener",
    "Root",
    "Walk",
    "Workspaces",
    "choose_opener",
    "parse",
    "show_path",
]
