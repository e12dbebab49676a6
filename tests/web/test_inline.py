"""The inliner: one document per view, made of a subset of ES modules that is refused otherwise."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gateway.errors import NotFound
from gateway.serve.web import inline
from gateway.serve.web.inline import VIEWS, WEB, inline_modules, read_editor, read_view, view_version
from web.hosts import require_editor

MODULES = sorted([*WEB.glob("core/*.js"), *WEB.glob("views/*.js")])


def write(folder: Path, monkeypatch: pytest.MonkeyPatch, **modules: str) -> Path:
    """Modules in a folder of their own, which stands for the web surface; `main` is the entry."""
    monkeypatch.setattr(inline, "WEB", folder)
    for name, code in modules.items():
        (folder / f"{name}.js").write_text(code)
    return folder / "main.js"


@pytest.mark.parametrize("name", VIEWS)
def test_inlined_view_is_one_document_that_loads_nothing(name: str) -> None:
    document = read_view(name)
    assert document.startswith("<!doctype html>") and f'data-gw-view="{name}"' in document
    assert document.count("<script") == document.count("</script>") == 1
    assert not re.search(r"<link|\ssrc=|@import|url\(|^\s*(?:import|export)\b", document, re.MULTILINE)


def test_inlined_view_has_a_version_of_its_own() -> None:
    assert len({view_version(name) for name in VIEWS}) == len(VIEWS)
    assert all(re.fullmatch(r"[0-9a-f]{8}", view_version(name)) for name in VIEWS)


def test_inlined_code_view_is_under_60_kilobytes() -> None:
    assert len(read_view("code").encode()) < 60_000


def test_code_view_with_its_editor_is_under_700_kilobytes() -> None:
    require_editor()
    uri, script = read_editor() or ("", "")
    assert len(read_view("code").encode()) + len(script.encode()) < 700_000
    holders = [name for name in VIEWS if f'<main id="root" data-editor="{uri}">' in read_view(name)]
    assert holders == ["auto", "code", "document"]


def test_rule_of_a_style_is_left_out_if_no_class_of_it_is_ever_set() -> None:
    style = read_view("frame")
    assert ".button--primary" in style and ".button--danger" not in style and ".prose{" not in style
    assert ".diff__add" in read_view("code")  # set by a template: `diff__${kind}`


def test_unknown_view_is_refused() -> None:
    with pytest.raises(NotFound, match=r"there is no view '\.\./console/main'"):
        read_view("../console/main")


def test_every_shared_module_can_be_inlined() -> None:
    for path in MODULES:
        inline_modules(path)


def test_modules_are_inlined_once_before_those_that_import_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = write(
        tmp_path,
        monkeypatch,
        main='import { twice } from "./b.js";\nimport { one } from "./a.js";\nglobalThis.sum = twice(one);\n',
        a="export const one = 1;\n",
        b='import { one } from "./a.js";\n/** Doc. */\nexport function twice(x) {\n  return x * 2 * one;\n}\n',
    )
    script = inline_modules(entry)
    assert script.count("const one = 1;") == 1
    assert script.index("const one = 1;") < script.index("function twice") < script.index("globalThis.sum")
    assert "Doc." not in script


def test_exported_functions_that_nothing_uses_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    functions = "".join(
        f"export function {name}(x) {{\n  if (x) {{\n    return 1;\n  }}\n}}\n" for name in ("one", "two", "three")
    )
    entry = write(tmp_path, monkeypatch, main='import { two } from "./a.js";\nglobalThis.made = two();\n', a=functions)
    script = inline_modules(entry)
    assert "one" not in script and "three" not in script
    assert script.count("function two(x) {\nif (x) {\nreturn 1;\n}\n}\nreturn { two };") == 1


@pytest.mark.parametrize(
    "line",
    [
        'import main from "./a.js";',
        'import * as a from "./a.js";',
        'import "./a.js";',
        'import { one as other } from "./a.js";',
        'import { one } from "https://elsewhere.example/a.js";',
        'import { one } from "package";',
        'import { one } from "../../secrets.js";',
        'import { one } from "./missing.js";',
        'import { main } from "./main.js";',
        'export { one } from "./a.js";',
        "export default 1;",
        'const a = await import("./a.js");',
        "const here = import.meta.url;",
        "const text = `two\nlines`;",
        'const end = "</script>";',
        'const comment = "<!--";',
    ],
)
def test_inliner_refuses_what_is_outside_its_subset(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = write(tmp_path, monkeypatch, main=f"{line}\n", a="export const one = 1;\n")
    with pytest.raises(ValueError, match=r"main\.js"):
        inline_modules(entry)
