"""The structure and the language of the code: import order, sizes, unique names, plain words."""

from __future__ import annotations

import ast
import collections
import functools
import itertools
import re
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
GATEWAY = ROOT / "gateway"
MODULE_LINES = 600
FUNCTION_LINES = 60

# The reading order: a module imports its own room and rooms above it, never below.
ROOMS = (
    "value",
    "secrets",
    "literal_secrets",
    "errors",
    "names",
    "tools",
    "access",
    "calls",
    "files",
    "tasks",
    "document",
    "yamldoc",
    "text",
    "config",
    "sealing",
    "db",
    "net",
    "sandbox",
    "workspace",
    "bundles",
    "runtime",
    "render",
    "protocol",
    "mcp_client",
    "oauth",
    "identity",
    "authorization",
    "sources",
    "catalog",
    "semantic",
    "vocabulary",
    "search",
    "discovery",
    "approval",
    "extensions",
    "executor",
    "admin",
    "serve",
    "app",
    "gateway",
    "specs",
    "cli",
    "__main__",
)

# Packages that may not be imported although they stand above.
FORBIDDEN = {"serve": {"db", "sources"}, "cli": {"db", "sources", "workspace"}}

# Imports inside functions, for the start-up time of the command; each has a comment that says so.
LAZY = {
    "gateway/__init__.py": 1,
    "gateway/admin/search.py": 1,
    "gateway/admin/upstreams.py": 3,
    "gateway/app.py": 10,
    "gateway/cli/browser.py": 2,
    "gateway/cli/call.py": 3,
    "gateway/cli/clients.py": 7,
    "gateway/cli/config.py": 1,
    "gateway/cli/options.py": 3,
    "gateway/cli/serve.py": 7,
    "gateway/config/loader.py": 1,
    "gateway/gateway.py": 3,
    "gateway/runtime/worker/__init__.py": 1,
    "gateway/serve/mcp/handlers.py": 1,
    "gateway/serve/mcp/render_resources.py": 2,
    "gateway/serve/mcp/view_tools.py": 1,
    "gateway/serve/rest/workspaces.py": 2,
    "gateway/serve/stdio.py": 1,
    "gateway/mcp_client/http_pool.py": 1,
    "gateway/mcp_client/process.py": 1,
    "gateway/oauth/bearer.py": 1,
    "gateway/sources/builtin/source.py": 2,
    "gateway/sources/builtin/web/context.py": 3,
    "gateway/sources/builtin/web/web_download.py": 1,
    "gateway/sources/builtin/web/web_search.py": 1,
}

MODULES = sorted(GATEWAY.rglob("*.py"))

# A line, and what is wrong there.
Violation = tuple[int, str]


def violations(rule: Callable[[Path], Iterator[Violation]]) -> list[str]:
    """Every violation of a rule in any module, as `path:line: what`."""
    return [f"{path.relative_to(ROOT)}:{line}: {what}" for path in MODULES for line, what in rule(path)]


def check(rule: Callable[[Path], Iterator[Violation]]) -> None:
    found = violations(rule)
    assert not found, "\n" + "\n".join(found)


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@functools.cache
def nodes(path: Path) -> list[ast.AST]:
    return list(ast.walk(parsed(path)))


def room(path: Path) -> str:
    return path.relative_to(GATEWAY).parts[0].removesuffix(".py")


def imported_rooms(path: Path) -> Iterator[tuple[str, int]]:
    package = ["gateway", *path.relative_to(GATEWAY).parent.parts]
    typing_only = {
        id(inner)
        for node in nodes(path)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for inner in ast.walk(node)
    }
    for node in nodes(path):
        if not isinstance(node, ast.ImportFrom) or id(node) in typing_only:
            continue
        if node.level:
            base = package[: len(package) - node.level + 1]
        elif (node.module or "").split(".")[0] == "gateway":
            base = []
        else:
            continue
        target = [*base, *(node.module or "").split(".")] if node.module else base
        for name in [target[1]] if len(target) > 1 else [alias.name for alias in node.names]:
            if name in ROOMS:
                yield name, node.lineno


def test_a_module_imports_only_its_own_room_and_rooms_above() -> None:
    def rule(path: Path) -> Iterator[Violation]:
        here = room(path)
        if here == "__init__":
            return
        for other, line in imported_rooms(path):
            if ROOMS.index(other) > ROOMS.index(here):
                yield line, f"imports {other}, which stands below {here}"
            if other in FORBIDDEN.get(here, ()):
                yield line, f"{here} may not import {other}"

    check(rule)


def test_every_module_stands_in_a_room_of_the_reading_order() -> None:
    assert {room(path) for path in MODULES} - {"__init__"} <= set(ROOMS)


def test_modules_and_functions_can_be_read_in_one_sitting() -> None:
    def rule(path: Path) -> Iterator[Violation]:
        lines = len(path.read_text().splitlines())
        if lines > MODULE_LINES:
            yield lines, f"the module has {lines} lines; at most {MODULE_LINES} are allowed"
        for node in nodes(path):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > FUNCTION_LINES:
                    yield node.lineno, f"{node.name} has {length} lines; at most {FUNCTION_LINES} are allowed"

    check(rule)


def test_a_module_says_what_it_is_for() -> None:
    def rule(path: Path) -> Iterator[Violation]:
        if not ast.get_docstring(parsed(path)):
            yield 1, "the module has no docstring"

    check(rule)


def test_imports_are_absolute() -> None:
    def rule(path: Path) -> Iterator[Violation]:
        if any(path.is_relative_to(GATEWAY / each) for each in ("runtime/worker", "sources/builtin/web/reader")):
            return  # run where there is no package `gateway`
        for node in nodes(path):
            if isinstance(node, ast.ImportFrom) and node.level:
                yield node.lineno, "a relative import"

    check(rule)


def test_imports_stand_at_the_top() -> None:
    def rule(path: Path) -> Iterator[Violation]:
        inner = [
            node.lineno
            for function in nodes(path)
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
            for node in ast.walk(function)
            if isinstance(node, ast.Import | ast.ImportFrom)
        ]
        allowed = LAZY.get(str(path.relative_to(ROOT)), 0)
        if len(inner) != allowed:
            yield min(inner, default=1), f"{len(inner)} imports inside functions, at lines {inner}; LAZY says {allowed}"

    check(rule)


def test_the_project_speaks_of_itself_alone() -> None:
    words = ("/" + "root/", "/" + "work/", "TO" + "DO", "FIX" + "ME")
    found = [
        f"{path.relative_to(ROOT)}:{number}: {word}"
        for path in [*MODULES, *(ROOT / "tests").rglob("*.py"), ROOT / "README.md", ROOT / "CHANGELOG.md"]
        for number, line in enumerate(path.read_text().splitlines(), 1)
        for word in words
        if word in line
    ]
    assert not found, "\n" + "\n".join(found)


DOCSTRING_OPENERS = re.compile(r"(What|Who|Whose|Whether|Where|Which|How|Why|When)\b")
BANNED_WORDS = re.compile(
    r"(^|_)(said|told|heard|mended|anew|lent|farewell|nameless|obeyed|shelf|desk|lane|vessel|doorway|workbench|workshop"
    r"|switchboard)(_|$)",
    re.IGNORECASE,
)
WIRE_FIELDS = {"said"}  # in the result of git_push
PARTICIPLE = re.compile(
    r"_*(\w*[a-z]ed|told|said|lent|made|held|kept|found|known|taken|given|seen|sent|left|lost|shown|written|chosen|done)$"
)
NOT_PARTICIPLES = {"need", "feed", "embed", "seed", "exceed", "shed", "succeed", "proceed", "red"}
PROPERTIES = {"property", "cached_property", "lazy", "contextmanager", "asynccontextmanager", "setter"}


def test_class_names_are_unique() -> None:
    places = collections.defaultdict(list)
    for path in MODULES:
        for node in nodes(path):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(str(path.relative_to(ROOT)))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_docstrings_open_with_a_noun_or_a_verb() -> None:
    def rule(path: Path) -> Iterator[Violation]:
        for node in nodes(path):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = ast.get_docstring(node) or ""
                if DOCSTRING_OPENERS.match(text):
                    yield getattr(node, "lineno", 1), f"the docstring opens with {text.split()[0]!r}"

    check(rule)


def test_names_avoid_banned_words() -> None:
    def rule(path: Path) -> Iterator[Violation]:
        for node in nodes(path):
            name = getattr(node, "name", None) or getattr(node, "id", None) or getattr(node, "arg", None)
            if isinstance(name, str) and BANNED_WORDS.search(name) and name not in WIRE_FIELDS:
                yield getattr(node, "lineno", 1), f"the name {name}"

    check(rule)


def test_functions_are_named_by_verbs() -> None:
    functions = [
        (path, node)
        for path in MODULES
        for node in nodes(path)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    participles = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {node.name}"
        for path, node in functions
        if PARTICIPLE.match(first_word(node.name))
        and first_word(node.name) not in NOT_PARTICIPLES
        and not PROPERTIES & {name_of(decorator) for decorator in node.decorator_list}
    ]
    assert len(participles) < 0.02 * len(functions), "\n" + "\n".join(participles)


def first_word(name: str) -> str:
    return name.strip("_").split("_")[0]


def name_of(decorator: ast.expr) -> str:
    while isinstance(decorator, ast.Call):
        decorator = decorator.func
    return getattr(decorator, "id", "") or getattr(decorator, "attr", "")


def test_comments_on_constants_are_comments() -> None:
    def rule(path: Path) -> Iterator[Violation]:
        for node in nodes(path):
            if isinstance(node, ast.Module | ast.ClassDef):
                for first, second in itertools.pairwise(node.body):
                    if isinstance(first, ast.Assign | ast.AnnAssign) and is_text(second):
                        yield second.lineno, "a bare string after an assignment"

    check(rule)


def is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def test_only_the_composition_root_opens_the_database() -> None:
    users = [
        str(path.relative_to(ROOT))
        for path in MODULES
        if any(isinstance(node, ast.Name) and node.id == "SqliteDatabase" for node in nodes(path))
    ]
    assert set(users) <= {"gateway/app.py", "gateway/db/sqlite.py"}


def test_package_has_few_files() -> None:
    assert len(MODULES) <= 361
