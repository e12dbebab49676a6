"""list_directory and find_files."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.calls import Outcome

pytestmark = pytest.mark.promise("C1")
Calling = Callable[..., Outcome]


@pytest.fixture
def tree(workspace: Path) -> Path:
    for path in ("README.md", "src/app.py", "src/lib/util.py", ".env", ".git/config", "node_modules/x/index.js"):
        (workspace / path).parent.mkdir(parents=True, exist_ok=True)
        (workspace / path).write_text(path)
    os.symlink("src", workspace / "link")
    return workspace


def names(outcome: Outcome) -> list[str]:
    return [entry["name"] for entry in outcome.value["entries"]]


def paths(outcome: Outcome) -> list[str]:
    return [match["path"] for match in outcome.value["matches"]]


def text(outcome: Outcome) -> str:
    assert outcome.content is not None
    return str(outcome.content[0]["text"])


def test_a_directory_is_listed_by_name_with_type_size_and_time(call: Calling, tree: Path) -> None:
    os.utime(tree / "README.md", (0, 1_700_000_000))
    outcome = call("list_directory", path=".")
    assert names(outcome) == ["README.md", "link", "node_modules", "src"]
    assert outcome.value["entries"][0] == {
        "name": "README.md",
        "type": "file",
        "size": 9,
        "modified": "2023-11-14T22:13:20.000Z",
    }
    assert [entry["type"] for entry in outcome.value["entries"][1:]] == ["symlink", "directory", "directory"]
    assert text(outcome) == "README.md 9\nlink@\nnode_modules/\nsrc/"


def test_a_recursive_listing_names_paths_from_the_listed_directory(call: Calling, tree: Path) -> None:
    assert names(call("list_directory", path="src", recursive=True)) == ["app.py", "lib", "lib/util.py"]


def test_hidden_names_are_listed_when_asked(call: Calling, tree: Path) -> None:
    listed = names(call("list_directory", path=".", recursive=True, includeHidden=True))
    assert {".env", ".git", ".git/config"} <= set(listed)
    assert not {".env", ".git/config"} & set(names(call("list_directory", path=".", recursive=True)))


def test_a_long_listing_is_cut_and_says_so(call: Calling, tree: Path) -> None:
    outcome = call("list_directory", path=".", recursive=True, limit=3)
    assert len(names(outcome)) == 3
    assert outcome.value["truncated"] is True
    assert "raise limit" in text(outcome)
    assert call("list_directory", path="src", limit=2).value["truncated"] is False


def test_an_empty_directory_and_one_that_is_none(call: Calling, workspace: Path) -> None:
    (workspace / "file").touch()
    (workspace / "empty").mkdir()
    assert names(call("list_directory", path="empty")) == []
    for path, code in (("file", "NOT_A_DIRECTORY"), ("gone", "FILE_NOT_FOUND"), ("..", "INVALID_PATH")):
        refused = call("list_directory", path=path).error
        assert refused is not None
        assert refused.code == code


def test_files_are_found_by_name_at_any_depth(call: Calling, tree: Path) -> None:
    assert paths(call("find_files", pattern="*.py")) == ["src/app.py", "src/lib/util.py"]
    assert paths(call("find_files", pattern="*.py", path="src/lib")) == ["src/lib/util.py"]
    assert paths(call("find_files", pattern="src/*.py")) == ["src/app.py"]
    assert paths(call("find_files", pattern="lib", type="directory")) == ["src/lib"]
    assert paths(call("find_files", pattern="*i*", type="any")) == ["link", "src/lib", "src/lib/util.py"]


def test_what_nobody_means_is_passed_over_unless_spelled_out(call: Calling, tree: Path) -> None:
    assert paths(call("find_files", pattern="index.js")) == []
    assert paths(call("find_files", pattern="config")) == []
    assert paths(call("find_files", pattern=".env")) == [".env"]
    assert paths(call("find_files", pattern=".e*")) == [".env"]
    assert paths(call("find_files", pattern=".git/config")) == [".git/config"]
    assert paths(call("find_files", pattern="node_modules/**/*.js")) == ["node_modules/x/index.js"]
    assert paths(call("find_files", pattern="*.js", path="node_modules")) == ["node_modules/x/index.js"]
    assert paths(call("find_files", pattern="config", includeHidden=True)) == [".git/config"]


def test_a_search_for_too_many_names_is_cut(call: Calling, tree: Path) -> None:
    outcome = call("find_files", pattern="*", limit=2)
    assert len(paths(outcome)) == 2
    assert outcome.value["truncated"] is True
    assert "narrow pattern" in text(outcome)


def test_a_glob_that_is_none_is_refused(call: Calling) -> None:
    refused = call("find_files", pattern="{a,b}" * 9).error
    assert refused is not None
    assert refused.code == "INVALID_PATTERN"
