"""Which configs a toolset may declare, and what is said of those it may not."""

from __future__ import annotations

import re
from typing import Any, get_args

import pytest

from gateway.bundles.tool_kinds import RendererKind
from gateway.errors import Invalid
from gateway.render import RENDERERS, declare
from gateway.serve.web.inline import VIEWS, WEB


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        ("code", {"file": "$args.path", "language": "auto", "editable": True}),
        ("code", {"content": "$return.code", "language": "python"}),
        ("code", {"file": "./src/main.py", "editable": "$args.editable"}),
        ("document", {"file": "$args.path", "editable": True}),
        ("document", {"content": "$return.text"}),
        ("html", {"artifact": "./artifacts/viz.html", "data": "$return"}),
        ("html", {"artifact": "$toolset/artifacts/viz.html", "data": {"rows": "$return.rows", "n": 1}}),
        ("html", {"artifact": "artifacts/viz.html"}),
        ("html", {"artifact": "artifacts/viz.html", "data": None}),
        ("frame", {"url": "http://localhost:$return.port"}),
        ("frame", {"url": "$return.url"}),
        ("frame", {"url": "https://example.com/board?id=$args.id"}),
        ("frame", {"port": "$return.port"}),
        ("frame", {"port": 3000}),
    ],
)
def test_the_configs_of_the_specification_are_taken_as_they_are(kind: str, config: dict[str, Any]) -> None:
    renderer = declare(kind, config)
    assert (renderer.kind, renderer.config) == (kind, config)


def test_every_list_of_renderers_has_all_of_them() -> None:
    views, console = (WEB / "views/auto.js").read_text(), (WEB / "console/pages/tools.js").read_text()
    drawn = re.findall(r"(\w+):", re.search(r"const RENDERERS = \{(.*)\};", views)[1])  # type: ignore[index]
    offered = re.findall(r'"(\w+)"', re.search(r"const RENDERERS = \[(.*)\];", console)[1])  # type: ignore[index]
    assert get_args(RendererKind) == tuple(drawn) == tuple(offered) == RENDERERS
    assert set(RENDERERS) <= set(VIEWS)


def test_key_without_a_value_counts_as_missing() -> None:
    assert declare("code", {"file": "a.py", "content": None, "language": None}).config == {"file": "a.py"}


@pytest.mark.parametrize(
    ("kind", "config", "message"),
    [
        ("cod", {}, "there is no renderer 'cod'; did you mean 'code'?"),
        ("terminal", {}, "there is no renderer 'terminal'; there are code, document, html, frame"),
        ("code", {"fil": "a"}, "renderer 'code': unknown key 'fil'; did you mean 'file'?"),
        ("frame", {"x": 1}, "renderer 'frame': unknown key 'x'; it takes url, port"),
        ("document", {"content": "a", "language": "md"}, "unknown key 'language'; it takes file, content, editable"),
        ("code", {}, "renderer 'code': 'file' or 'content' is required"),
        ("code", {"file": "a", "content": "b"}, "renderer 'code': it takes 'file' or 'content', not both"),
        ("document", {"editable": True}, "renderer 'document': 'file' or 'content' is required"),
        ("html", {"data": "$return"}, "renderer 'html': 'artifact' is required"),
        ("frame", {}, "renderer 'frame': 'url' or 'port' is required"),
        ("frame", {"url": "http://localhost", "port": 1}, "renderer 'frame': it takes 'url' or 'port', not both"),
        ("code", {"file": "../a"}, "renderer 'code': 'file': '../a' is not a path inside the workspace"),
        ("code", {"file": 3}, "renderer 'code': 'file': 3 is not a path"),
        ("code", {"content": 3}, "renderer 'code': 'content': 3 is not text"),
        ("code", {"content": "", "language": 3}, "renderer 'code': 'language': 3 is not a language"),
        ("code", {"content": "", "editable": "yes"}, "'editable': 'yes' is neither true nor false"),
        ("html", {"artifact": "/etc/passwd"}, "'artifact': '/etc/passwd' is not a path inside the toolset"),
        ("html", {"artifact": "$args.page"}, "only $toolset/ may stand before its path"),
        ("html", {"artifact": "$toolset/$args.page"}, "only $toolset/ may stand before its path"),
        ("frame", {"url": "javascript:alert(1)"}, "'url': 'javascript:alert(1)' is not an http or https URL"),
        ("frame", {"url": "javascript:alert($args.x)"}, "must begin with http:// or https://"),
        ("frame", {"url": "localhost:$args.port"}, "must begin with http:// or https://"),
        ("frame", {"url": 5}, "'url': 5 is not a URL"),
        ("frame", {"port": 0}, "'port': 0 is not a port from 1 to 65535"),
        ("frame", {"port": True}, "'port': True is not a port"),
        ("frame", {"port": "http"}, "'port': 'http' is not a port"),
    ],
)
def test_a_config_that_could_never_be_shown_is_refused_by_renderer_and_key(
    kind: str, config: dict[str, Any], message: str
) -> None:
    with pytest.raises(Invalid) as refused:
        declare(kind, config)
    assert message in refused.value.message
    assert refused.value.code == "INVALID_RENDERER"
    assert refused.value.details["renderer"] == kind


def test_data_nested_without_end_is_refused() -> None:
    data: Any = "$return"
    for _ in range(5000):
        data = [data]
    with pytest.raises(Invalid, match="nested deeper than 32 levels"):
        declare("html", {"artifact": "a.html", "data": data})
