"""What an outcome looks like: the renderers a toolset declares, and the plan a view is given.

Pure: nothing here opens a file or a connection. `pages`, `highlight` and `markdown` are imported by name
where something is shown; they bring in Pygments and markdown-it, which most processes never need.
"""

from ..calls import PLAN_LIMIT
from ..tools import Renderer
from .artifact import inject
from .interpolate import Scope, interpolate
from .plan import RenderPlan, make_plan
from .renderers import RENDERERS, declare

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
