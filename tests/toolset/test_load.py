"""From an entrypoint to its function, through real files."""

import importlib.util
import py_compile
import sys
from pathlib import Path

import pytest

from covalt_toolset import BadEntrypoint, describe, invoke, load


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def refusal(entrypoint: str, root: Path) -> str:
    with pytest.raises(BadEntrypoint) as refused:
        load(entrypoint, root)
    return str(refused.value)


def test_a_module_is_found_from_the_root_and_from_tools(tmp_path: Path) -> None:
    write(tmp_path, {"tools/words.py": "def run(): return __name__"})
    assert load("tools.words:run", tmp_path) is load("words:run", tmp_path)


def test_the_root_wins_over_tools(tmp_path: Path) -> None:
    write(tmp_path, {"words.py": "def run(): return 'root'", "tools/words.py": "def run(): return 'tools'"})
    assert load("words:run", tmp_path)() == "root"
    assert load("tools.words:run", tmp_path)() == "tools"


def test_packages_and_deeper_modules_are_found(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "tools/__init__.py": "HERE = 'tools'",
            "tools/deep/__init__.py": "from .. import HERE\ndef run(): return HERE",
            "tools/deep/er.py": "from . import run as above\ndef run(): return above()",
        },
    )
    assert load("tools.deep:run", tmp_path)() == "tools"
    assert load("deep.er:run", tmp_path)() == "tools"


def test_siblings_are_imported_in_every_way_as_the_same_module(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "tools/helpers.py": "seen = []",
            "lib/nested/names.py": "NAME = 'n'",
            "tools/main.py": """
import helpers
import tools.helpers
import tools.helpers as renamed
import lib.nested.names
from . import helpers as relative
from .helpers import seen
from tools import helpers as absolute
from tools.helpers import seen as again
from lib.nested.names import NAME

def run():
    import helpers as late
    from tools import helpers as later
    modules = [tools.helpers, renamed, relative, absolute, late, later]
    return all(each is helpers for each in modules) and seen is again and lib.nested.names.NAME == NAME
""",
        },
    )
    assert load("tools.main:run", tmp_path)() is True


def test_toolsets_in_one_process_do_not_see_each_other(tmp_path: Path) -> None:
    path, meta = list(sys.path), set(sys.modules)
    for name in ("one", "two"):
        write(
            tmp_path / name,
            {
                "tools/helpers.py": f"NAME = {name!r}",
                "tools/main.py": "import helpers\nfrom tools.helpers import NAME\n"
                "def run():\n    from .helpers import NAME as late\n    return [NAME, helpers.NAME, late]",
            },
        )
    one, two = (load("tools.main:run", tmp_path / name) for name in ("one", "two"))
    assert (one(), two()) == (["one"] * 3, ["two"] * 3)
    assert sys.path == path
    new = {name.partition(".")[0] for name in set(sys.modules) - meta}
    assert {name.rpartition("_")[0] for name in new} == {"toolset_one", "toolset_two"}
    with pytest.raises(ModuleNotFoundError):
        __import__("helpers")


def test_a_toolset_that_lacks_a_module_does_not_find_its_neighbours(tmp_path: Path) -> None:
    write(tmp_path / "one", {"tools/helpers.py": "", "tools/main.py": "import helpers\ndef run(): ..."})
    write(tmp_path / "two", {"tools/main.py": "import helpers\ndef run(): ..."})
    load("tools.main:run", tmp_path / "one")
    assert refusal("tools.main:run", tmp_path / "two") == (
        "entrypoint 'tools.main:run': tools/main.py line 1: ModuleNotFoundError: No module named 'helpers'; "
        "if it is a package, add it to toolset.yaml: dependencies: [helpers]"
    )


def test_the_standard_library_is_never_hidden_and_folders_of_data_are_no_modules(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "tools/json.py": "raise RuntimeError('not this one')",
            "pydantic/template.html": "<p>",
            "tools/main.py": "import json\nimport pydantic\ndef run(): return [json.dumps(1), bool(pydantic.VERSION)]",
        },
    )
    assert load("tools.main:run", tmp_path)() == ["1", True]


def test_a_module_is_run_once(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "tools/state.py": "calls = []",
            "tools/a.py": "from .state import calls\ndef run():\n    calls.append('a')\n    return calls",
            "tools/b.py": "from tools.state import calls\ndef run():\n    calls.append('b')\n    return calls",
        },
    )
    load("tools.a:run", tmp_path)()
    assert load("tools.b:run", tmp_path)() == ["a", "b"]


def test_models_of_a_loaded_module_resolve_their_later_names(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "tools/tree.py": """
from __future__ import annotations
from dataclasses import dataclass
from pydantic import BaseModel
from covalt_toolset import tool

@tool
def grow(tree: Tree, leaf: Leaf) -> Tree:
    return Tree(children=[tree], size=leaf.size)

class Tree(BaseModel):
    children: list[Tree] = []
    size: int = 0

@dataclass
class Leaf:
    size: int
    next: Leaf | None = None
"""
        },
    )
    grow = load("tools.tree:grow", tmp_path)
    assert set(describe(grow).input_schema["$defs"]) == {"Tree", "Leaf"}
    assert invoke(grow, {"tree": {}, "leaf": {"size": 3}}) == {"children": [{"children": [], "size": 0}], "size": 3}


def test_bytecode_is_neither_left_behind_nor_believed(tmp_path: Path) -> None:
    write(
        tmp_path, {"one/tools/words.py": "def run(): return 'source'", "two/words.py": "def run(): return 'bytecode'"}
    )
    write(tmp_path, {"three/tools/words.py": "def run(): return 'source'"})
    assert load("tools.words:run", tmp_path / "one")() == "source"
    assert sorted(path.name for path in (tmp_path / "one").rglob("*")) == ["tools", "words.py"]
    py_compile.compile(
        str(tmp_path / "two/words.py"),
        cfile=importlib.util.cache_from_source(tmp_path / "three/tools/words.py"),
        invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
    )
    assert load("tools.words:run", tmp_path / "three")() == "source"


@pytest.mark.parametrize(
    "entrypoint", ["tools.words", "tools/words.py:run", ":run", "tools.words:", "a:b:c", "..x:y", "a:b.c"]
)
def test_an_entrypoint_of_another_form_is_refused(entrypoint: str, tmp_path: Path) -> None:
    assert refusal(entrypoint, tmp_path) == f"entrypoint {entrypoint!r} is not of the form 'module.path:function'"


def test_a_missing_module_is_refused_with_the_files_looked_for(tmp_path: Path) -> None:
    write(tmp_path, {"tools/analyze.py": ""})
    assert refusal("tools.analyse:run", tmp_path) == (
        "entrypoint 'tools.analyse:run': there is no tools/analyse.py nor tools/tools/analyse.py in "
        f"{tmp_path}; did you mean 'tools.analyze'?"
    )
    assert refusal("zzz:run", tmp_path) == (f"entrypoint 'zzz:run': there is no zzz.py nor tools/zzz.py in {tmp_path}")


def test_a_missing_function_is_refused_with_the_nearest_name(tmp_path: Path) -> None:
    write(tmp_path, {"tools/files.py": "LIMIT = 3\nclass Files: ...\ndef write_file(): ..."})
    assert refusal("tools.files:write_fil", tmp_path) == (
        "entrypoint 'tools.files:write_fil': tools/files.py has no 'write_fil'; did you mean 'write_file'?"
    )
    for name in ("LIMIT", "Files"):
        assert refusal(f"tools.files:{name}", tmp_path) == (
            f"entrypoint 'tools.files:{name}': '{name}' in tools/files.py is not a function"
        )


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (
            "import nothing_of_that_name",
            "line 1: ModuleNotFoundError: No module named 'nothing_of_that_name'; "
            "if it is a package, add it to toolset.yaml: dependencies: [nothing-of-that-name]",
        ),
        ("\nfrom .helper import x", "line 2: ModuleNotFoundError: No module named 'tools.helper'"),
        ("x = 1\ny = x / 0", "line 2: ZeroDivisionError: division by zero"),
        (
            "import json\njson.loads('{')",
            "line 2: JSONDecodeError: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)",
        ),
        ("def run(:\n    pass", "line 1: SyntaxError: invalid syntax"),
        ("import sys\nsys.exit(3)", "line 2: SystemExit: 3"),
    ],
)
def test_an_import_that_fails_is_told_with_its_line_in_the_toolset(source: str, expected: str, tmp_path: Path) -> None:
    write(tmp_path, {"tools/broken.py": source, "tools/main.py": "\n\nfrom .broken import x"})
    assert refusal("tools.broken:run", tmp_path) == f"entrypoint 'tools.broken:run': tools/broken.py {expected}"
    assert refusal("tools.main:run", tmp_path) == f"entrypoint 'tools.main:run': tools/broken.py {expected}"


def test_a_tool_that_cannot_be_one_is_told_with_its_line(tmp_path: Path) -> None:
    write(tmp_path, {"tools/star.py": "from covalt_toolset import tool\n\n@tool\ndef run(*args): ..."})
    file = tmp_path / "tools/star.py"
    assert refusal("tools.star:run", tmp_path) == (
        "entrypoint 'tools.star:run': tools/star.py line 3: BadDefinition: "
        f"run ({file}:3): '*args' has no JSON schema; name each parameter"
    )


def test_a_mended_module_loads_in_the_same_process(tmp_path: Path) -> None:
    write(tmp_path, {"tools/words.py": "1 / 0"})
    refusal("tools.words:run", tmp_path)
    write(tmp_path, {"tools/words.py": "def run(): return 'mended'"})
    assert load("tools.words:run", tmp_path)() == "mended"
