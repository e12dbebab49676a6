"""What an outcome looks like: the renderers a toolset declares, and the plan a view is given.

Pure: nothing here opens a file or a connection. `pages`, `highlight` and `markdown` are imported by name
where something is shown; they bring in Pygments and markdown-it, which most processes never need.
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
