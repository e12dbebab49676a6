"""Rendering of outcomes: the renderers a toolset declares, the render plan of a call, and the page made of it.

Nothing here opens a file or a connection. `pages` and `highlight` are not imported here: they import
Pygments and markdown-it, which most processes never need.
"""

from gateway.calls import PLAN_LIMIT
from gateway.render.interpolate import Scope, interpolate
from gateway.render.plan import RenderPlan, make_plan
from gateway.render.renderers import RENDERERS, declare, inject
from gateway.tools import Renderer

__all__ = [
    "PLAN_LIMIT",
    "RENDERERS",
    "RenderPlan",
    "Renderer",
    "Scope",
    "declare",
    "inject",
    "interpolate",
    "make_plan",
]
