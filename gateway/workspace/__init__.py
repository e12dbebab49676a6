"""A chat's files: the only way to reach one, and the folder they are in."""

from .beneath import Openat2, Parts, Stepwise, Way, best_way
from .entries import Entry, Walk
from .paths import Root, parse
from .refusals import shown
from .workspaces import Workspaces

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
