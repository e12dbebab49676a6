"""A chat's files: the only way to reach one, and the folder they are in."""

from gateway.workspace.openat import Openat2, Parts, Stepwise, Way, best_way
from gateway.workspace.os_errors import shown
from gateway.workspace.paths import Root, parse
from gateway.workspace.walk import Entry, Walk
from gateway.workspace.workspaces import Workspaces

__all__ = [
    "Entry",
    "Openat2",
    "Parts",
    "Root",
    "Stepwise",
    "Walk",
    "Way",
    "Workspaces",
    "best_way",
    "parse",
    "shown",
]
