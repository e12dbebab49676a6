"""Views as single HTML documents: the modules and styles of a view inlined, since a host loads nothing else.

Modules use a subset of ES modules; others are refused: `import { a, b } from "./c.js";` on one line, `export` before
`function`, `async function`, `const` or `class`, and template literals on one line. Each becomes a function scope.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from gateway.errors import NotFound

WEB = Path(__file__).resolve().parent
VIEWS = ("auto", "call", "code", "diff", "document", "frame", "html", "image", "table")

# The editor that `hatch_build.py` makes where npm is there; views that edit load it from this URI when they need it.
_EDITOR = WEB / "editor.js"
_EDITOR_URI = "ui://toolgate/editor"

_STYLES = ("core/tokens.css", "core/base.css", "views/view.css")
_IMPORT = re.compile(r'^import \{ ?([\w$]+(?:, [\w$]+)*) ?\} from "(\.{1,2}/[\w./-]+\.js)";$')
_EXPORT = re.compile(r"^export ((?:async )?function|const|class) ([\w$]+)")
_FUNCTION = re.compile(r"^export (?:async )?function (\w+).*?^\}\n", re.DOTALL | re.MULTILINE)
# Whatever else loads or names a module. Comments and the types in them are removed before.
_FORBIDDEN = re.compile(r"^\s*(?:import|export)\b|\bimport\s*[.(]")
_COMMENT = re.compile(r"^[ \t]*/\*.*?\*/[ \t]*\n?|^[ \t]*//[^\n]*\n|[ \t]+//(?= )[^\n\"'`]*$", re.DOTALL | re.MULTILINE)
_TYPE = re.compile(r"/\*\* @type \{[^\n]*?\} \*/ ?")
_CSS_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_CSS_RULE = re.compile(r"([^{}]+)\{[^{}]*\}")
_CSS_SPACE = re.compile(r"\s*\n\s*|(?<=[:;,{}]) +| +(?=[{}])")


def read_view(name: str) -> str:
    """Return a view as one document; the same text for the same files."""
    return _view(name)[0]


def view_version(name: str) -> str:
    """Return eight digits that change with the view."""
    return _view(name)[1]


@cache
def read_editor() -> tuple[str, str] | None:
    """Return the URI and the script of the editor that highlights; None where it was not built."""
    if not _EDITOR.exists():
        return None
    script = _EDITOR.read_text()
    return f"{_EDITOR_URI}?v={hashlib.sha256(script.encode()).hexdigest()[:8]}", script


@cache
def _view(name: str) -> tuple[str, str]:
    if name not in VIEWS:
        raise NotFound(f"there is no view {name[:100]!r}; there are {', '.join(VIEWS)}", code="VIEW_NOT_FOUND")
    script = inline_modules(WEB / "views" / f"{name}.js")
    style = "".join(_inline_style(sheet, script) for sheet in _STYLES)
    # On an element of ours: some hosts drop the attributes of the body.
    editor = read_editor() if "dataset.editor" in script else None
    attributes = f' data-editor="{editor[0]}"' if editor else ""
    document = (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>Toolgate, {name}</title>\n'
        f"<style>\n{style}</style>\n</head>\n"
        f'<body data-gw-view="{name}">\n<main id="root"{attributes}></main>\n'
        f"<script>\n{script}</script>\n</body>\n</html>\n"
    )
    return document, hashlib.sha256(document.encode()).hexdigest()[:8]


def inline_modules(entry: Path) -> str:
    """Return a module with all it imports as one classic script; raise ValueError for what cannot be inlined."""
    names: dict[Path, str] = {}
    scopes: list[str] = []
    _inline_module(entry.resolve(), (), names, scopes)
    return f'"use strict";\n(() => {{\n{_drop_unused_functions("".join(scopes), names)}}})();\n'


def _drop_unused_functions(script: str, modules: Iterable[Path]) -> str:
    """Return a script without the functions that its modules export and nothing in it names."""
    for path in modules:
        for function in _FUNCTION.finditer(path.read_text()):
            if len(re.findall(rf"\b{function[1]}\b", script)) == 2:  # where it is defined, and in the exports
                script = script.replace(_strip(function[0]).removeprefix("export "), "", 1)
                script = re.sub(rf"\b{function[1]}, |, {function[1]}\b|\b{function[1]}\b", "", script)
    return script


def _inline_module(path: Path, above: tuple[Path, ...], names: dict[Path, str], scopes: list[str]) -> None:
    if path in above:
        raise ValueError(f"{path.name} imports itself, through {' and '.join(module.name for module in above)}")
    lines: list[str] = []
    exports: list[str] = []
    for number, line in enumerate(_strip(path.read_text()).split("\n"), 1):
        imported, exported = _IMPORT.match(line), _EXPORT.match(line)
        if imported:
            module = _resolve(path, imported[2])
            if module not in names:
                _inline_module(module, (*above, path), names, scopes)
            lines.append(f"const {{ {imported[1]} }} = {names[module]};")
        elif exported:
            exports.append(exported[2])
            lines.append(line.removeprefix("export "))
        elif _FORBIDDEN.search(line) or line.count("`") % 2:
            raise ValueError(f"{path.name}, line {number} without comments: cannot be inlined: {line.strip()[:80]}")
        else:
            lines.append(line)
    code = "\n".join(lines)
    if re.search(r"</script|<!--", code, re.IGNORECASE):
        raise ValueError(f"{path.name} holds a text that would end its script")
    names[path] = f"m{len(names)}"
    scopes.append(f"const {names[path]} = (() => {{\n{code}return {{ {', '.join(exports)} }};\n}})();\n")


def _resolve(path: Path, target: str) -> Path:
    module = (path.parent / target).resolve()
    if not module.is_relative_to(WEB) or not module.is_file():
        raise ValueError(f"{path.name} imports {target}, which is not a module of the web surface")
    return module


def _strip(code: str) -> str:
    """Return code without comments, indentation and empty lines."""
    code = _TYPE.sub("", _COMMENT.sub("", code))
    return "\n".join(line.strip() for line in code.split("\n") if line.strip()) + "\n"


def _inline_style(name: str, script: str) -> str:
    blocks = _CSS_COMMENT.sub("", (WEB / name).read_text()).split("\n\n")
    style = "".join(_CSS_SPACE.sub("", block) for block in blocks if _is_component_used(block.strip(), script))
    return _CSS_RULE.sub(lambda rule: rule[0] if _is_rule_used(rule[1], script) else "", style) + "\n"


def _is_component_used(block: str, script: str) -> bool:
    """Return whether a view may need a block of rules: unless it begins with a class that the view never sets."""
    component = re.match(r"\.([\w-]+)", block)
    return component is None or re.search(rf"""class: ["`]{component[1]}\b""", script) is not None


def _is_rule_used(selectors: str, script: str) -> bool:
    """Return whether a rule may apply: one of its selectors has only classes that the script names, whole or as the
    beginning of a template. The classes of highlighted code come from the server."""
    if "(" in selectors:
        return True
    return any(
        all(_is_class_used(name, script) for name in re.findall(r"\.([a-z][\w-]*)", selector))
        for selector in selectors.split(",")
    )


def _is_class_used(name: str, script: str) -> bool:
    begins = (f"{name[:end]}${{" in script for end in range(3, len(name)))
    return name in script or name.startswith("hl-") or any(begins)
