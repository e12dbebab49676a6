"""search_code, with ripgrep and without."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest
from eventually import TIMEOUT

from gateway.calls import Call, Outcome
from gateway.errors import GatewayError
from gateway.sources.builtin import word_index
from gateway.sources.builtin.ripgrep import SearchEngine
from gateway.sources.builtin.source import BuiltinSource, FileTools
from gateway.workspace import Openat2, PathOpener, Workspaces

pytestmark = pytest.mark.promise("C1")
Calling = Callable[..., Outcome]

ENGINES = [
    pytest.param("rg", id="ripgrep", marks=pytest.mark.skipif(shutil.which("rg") is None, reason="no ripgrep here")),
    pytest.param(None, id="python"),
]
EVIL = "(a+)+$"


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> SearchEngine:
    return SearchEngine.detect() if request.param else SearchEngine(ripgrep=None)


@pytest.fixture
def opener() -> PathOpener:
    return Openat2()


@pytest.fixture
def source(workspace: Path, engine: SearchEngine, opener: PathOpener) -> BuiltinSource:
    return BuiltinSource([FileTools(Workspaces(workspace.parent / "data", {"demo": workspace}, opener), engine=engine)])


def lines(outcome: Outcome) -> list[tuple[str, int, str]]:
    assert outcome.error is None, outcome.error
    return [(match["path"], match["line"], match["text"]) for match in outcome.value["matches"]]


def refused(outcome: Outcome) -> str:
    assert outcome.error is not None, outcome.value
    return outcome.error.code


@pytest.fixture
def tree(workspace: Path) -> Path:
    for path, text in {
        "a.py": "import os\n\ndef main():\n    return os\n",
        "sub/b.py": "x = 1  # grün os\r\nOS = 2\r\n",
        "c.txt": "os",
        "bin": "os\0",
        ".hidden": "os",
        "node_modules/d.js": "os",
    }.items():
        (workspace / path).parent.mkdir(exist_ok=True)
        (workspace / path).write_text(text, newline="")
    return workspace


def test_matches_come_in_order_with_line_and_column(call: Calling, tree: Path, engine: SearchEngine) -> None:
    outcome = call("search_code", pattern=r"\bos\b")
    assert lines(outcome) == [
        ("a.py", 1, "import os"),
        ("a.py", 4, "    return os"),
        ("c.txt", 1, "os"),
        ("sub/b.py", 1, "x = 1  # grün os"),
    ]
    assert [match["column"] for match in outcome.value["matches"]] == [8, 12, 1, 15]
    assert (outcome.value["filesSearched"], outcome.value["filesSkipped"]) == (3, 1)
    assert (outcome.value["engine"], outcome.value["truncated"]) == (engine.name, False)
    assert outcome.content is not None
    assert outcome.content[0]["text"].startswith("a.py\n1:import os\n4:    return os\nc.txt\n1:os\n")


def test_the_search_is_narrowed_by_path_globs_and_case(call: Calling, tree: Path) -> None:
    assert lines(call("search_code", pattern="os", path="sub")) == [("sub/b.py", 1, "x = 1  # grün os")]
    assert lines(call("search_code", pattern="os", path="c.txt")) == [("c.txt", 1, "os")]
    assert len(lines(call("search_code", pattern="os", globs=["*.py"]))) == 3
    assert lines(call("search_code", pattern="os", globs=["!*.py"])) == [("c.txt", 1, "os")]
    assert lines(call("search_code", pattern="os", globs=["*.py", "!a.py"])) == [("sub/b.py", 1, "x = 1  # grün os")]
    assert lines(call("search_code", pattern="os", globs=["!sub", "!a.*"])) == [("c.txt", 1, "os")]
    assert lines(call("search_code", pattern="^os$", globs=[".hidden"])) == [(".hidden", 1, "os")]
    assert lines(call("search_code", pattern="os", path="node_modules")) == [("node_modules/d.js", 1, "os")]
    assert lines(call("search_code", pattern="^OS =", caseSensitive=False)) == [("sub/b.py", 2, "OS = 2")]
    assert lines(call("search_code", pattern="2$")) == [("sub/b.py", 2, "OS = 2")]


def test_a_literal_pattern_is_taken_as_text(call: Calling, workspace: Path) -> None:
    (workspace / "a").write_text("f(x)\nfx\n-e\n")
    assert lines(call("search_code", pattern="f(x)", literal=True)) == [("a", 1, "f(x)")]
    assert lines(call("search_code", pattern="f(x)")) == [("a", 2, "fx")]
    assert lines(call("search_code", pattern="-e", literal=True)) == [("a", 3, "-e")]


def test_lines_around_a_match_are_shown(call: Calling, workspace: Path) -> None:
    (workspace / "a").write_text("1\n2\nx\n4\nx\n6\n")
    matches = call("search_code", pattern="x", contextLines=2).value["matches"]
    assert [(match["line"], match["before"], match["after"]) for match in matches] == [
        (3, ["1", "2"], ["4", "x"]),
        (5, ["x", "4"], ["6"]),
    ]


def test_matches_are_limited_and_long_lines_cut_at_the_match(call: Calling, workspace: Path) -> None:
    for name in "abc":
        (workspace / name).write_text("x\n" * 5)
    outcome = call("search_code", pattern="x", limit=7)
    assert [path for path, _, _ in lines(outcome)] == ["a"] * 5 + ["b"] * 2
    assert outcome.value["truncated"] is True
    assert call("search_code", pattern="x", limit=15).value["truncated"] is False
    assert call("search_code", pattern="x", path="a", limit=4).value["truncated"] is True
    (workspace / "long").write_text("y" * 5000 + "needle" + "y" * 5000)
    (match,) = call("search_code", pattern="needle").value["matches"]
    assert match["column"] == 5001
    assert len(match["text"]) == 502
    assert "needle" in match["text"]


def test_an_enormous_matching_line_is_left_out_and_the_search_goes_on(call: Calling, workspace: Path) -> None:
    (workspace / "a").write_text("needle" + "x" * (7 * 2**20))
    (workspace / "b").write_text("needle\n")
    outcome = call("search_code", pattern="needle")
    assert lines(outcome) == [("b", 1, "needle")]
    assert outcome.value["truncated"] is True


def test_more_files_than_descriptors_are_searched_in_batches(call: Calling, workspace: Path) -> None:
    for number in range(700):
        (workspace / f"{number:03}").write_text(f"line {number}")
    outcome = call("search_code", pattern="line [0-9]*7$", limit=1000)
    assert [path for path, _, _ in lines(outcome)] == [f"{number:03}" for number in range(7, 700, 10)]
    assert outcome.value["filesSearched"] == 700


@pytest.mark.promise("C6")
def test_what_is_no_regular_expression_is_refused_with_the_reason(call: Calling, workspace: Path) -> None:
    for pattern in ("(", "a{2,1}", "[z-a]", "two\nlines"):
        outcome = call("search_code", pattern=pattern)
        assert refused(outcome) == "INVALID_PATTERN"
    assert outcome.error is not None
    assert re.search("line", outcome.error.message)
    assert refused(call("search_code", pattern="x", path="gone")) == "FILE_NOT_FOUND"


def test_bytes_that_are_no_text_are_shown_as_text(call: Calling, workspace: Path) -> None:
    (workspace / "a").write_bytes(b"caf\xe9 needle\n")
    assert lines(call("search_code", pattern="needle")) == [("a", 1, "caf\ufffd needle")]


def test_files_that_are_too_large_are_skipped(call: Calling, workspace: Path) -> None:
    with (workspace / "huge").open("wb") as file:
        file.write(b"needle\n")
        file.truncate(1 << 40)
    value = call("search_code", pattern="needle").value
    assert (value["matches"], value["filesSkipped"]) == ([], 1)


def test_a_catastrophic_pattern_ends_and_the_event_loop_keeps_turning(workspace: Path, engine: SearchEngine) -> None:
    (workspace / "a").write_text("a" * 60 + "!")
    limited = SearchEngine(engine.ripgrep, seconds=TIMEOUT if engine.ripgrep else 1.0)
    source = BuiltinSource([FileTools(Workspaces(workspace.parent / "data", {"demo": workspace}), engine=limited)])
    turns = 0
    answers: list[str] = []

    async def search(done: anyio.Event) -> None:
        tools = {tool.id: tool for tool in await source.list_tools()}
        try:
            call = Call(name="s", tool=tools["search_code"], arguments={"pattern": EVIL}, chat="demo")
            answers.append(str((await source.call_tool(call)).value["matches"]))
        except GatewayError as refusal:
            answers.append(refusal.code)
        done.set()

    async def turn() -> None:
        nonlocal turns
        done = anyio.Event()
        with anyio.fail_after(TIMEOUT):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(search, done)
                while not done.is_set():
                    with anyio.move_on_after(0.01):
                        await done.wait()
                    turns += 1

    anyio.run(turn)
    assert answers == (["[]"] if engine.ripgrep else ["TIMEOUT"])
    assert engine.ripgrep or turns > 3  # one or two if the search blocked the loop


def test_a_cancelled_search_ends_its_child_at_once(workspace: Path) -> None:
    (workspace / "a").write_text("a" * 60 + "!")
    engine = SearchEngine(None, seconds=2 * TIMEOUT)
    source = BuiltinSource([FileTools(Workspaces(workspace.parent / "data", {"demo": workspace}), engine=engine)])

    async def search() -> float:
        tools = {tool.id: tool for tool in await source.list_tools()}
        call = Call(name="s", tool=tools["search_code"], arguments={"pattern": EVIL}, chat="demo")
        with anyio.move_on_after(0.5) as scope:
            await source.call_tool(call)
        assert scope.cancelled_caught
        return anyio.current_time() - scope.deadline

    assert anyio.run(search) < TIMEOUT


CODE = {
    "net/retry.py": "class RetryPolicy:\n    def wait_after_timeout(self):\n        return backoff(3)\n",
    "net/client.py": "from net.retry import RetryPolicy\n\ndef send():\n    RetryPolicy().wait_after_timeout()\n",
    "web/retryButton.ts": "export function showButton() {\n  // press it again\n}\n",
    "notes.md": "We retry requests when the timeout is over.\n" + "Unrelated words. " * 200,
    "other.py": "x = 1\n",
    "node_modules/retry/index.js": "function retryPolicy() {}\n",
}


@pytest.fixture
def code(workspace: Path) -> Path:
    for path, content in CODE.items():
        (workspace / path).parent.mkdir(parents=True, exist_ok=True)
        (workspace / path).write_text(content)
    return workspace


def ranked(outcome: Outcome) -> list[str]:
    assert outcome.error is None, outcome.error
    scores = [match["score"] for match in outcome.value["matches"]]
    assert scores == sorted(scores, reverse=True)
    return list(dict.fromkeys(match["path"] for match in outcome.value["matches"]))


def test_words_rank_definitions_and_names_of_files_before_text(call: Calling, code: Path) -> None:
    found = call("search_code", pattern="retry policy timeout", words=True)
    assert ranked(found)[0] == "net/retry.py"
    assert set(ranked(found)) == {"net/retry.py", "net/client.py", "web/retryButton.ts", "notes.md"}
    first = found.value["matches"][0]
    assert (first["line"], first["text"]) == (1, "class RetryPolicy:")
    assert (found.value["engine"], found.value["truncated"], found.value["filesSearched"]) == ("words", False, 5)
    assert ranked(call("search_code", pattern="waitAfterTimeout", words=True))[0] == "net/retry.py"
    assert ranked(call("search_code", pattern="buttons shown", words=True)) == ["web/retryButton.ts"]
    assert ranked(call("search_code", pattern="retry", words=True, path="net"))[0] == "net/retry.py"
    assert ranked(call("search_code", pattern="retry", words=True, globs=["*.ts"])) == ["web/retryButton.ts"]
    assert "notes.md" not in ranked(call("search_code", pattern="retry", words=True, globs=["!*.md"]))
    assert ranked(call("search_code", pattern="no such thing", words=True)) == []
    assert refused(call("search_code", pattern="--- !!", words=True)) == "INVALID_PATTERN"


def test_words_follow_every_change_of_the_files(call: Calling, code: Path) -> None:
    assert ranked(call("search_code", pattern="giraffe", words=True)) == []
    (code / "other.py").write_text("giraffe = 1\n")
    (code / "zoo_giraffe.txt").write_text("")
    assert ranked(call("search_code", pattern="giraffe", words=True)) == ["zoo_giraffe.txt", "other.py"]
    (code / "zoo_giraffe.txt").unlink()
    (code / "other.py").rename(code / "moved.py")
    assert ranked(call("search_code", pattern="giraffe", words=True)) == ["moved.py"]
    for number in range(40):  # rows without a file do not pile up
        (code / "moved.py").write_text(f"giraffe = {number}\n")
        assert ranked(call("search_code", pattern="giraffe", words=True)) == ["moved.py"]


def test_words_are_indexed_in_the_time_there_is_and_the_next_search_goes_on(
    call: Calling, code: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(word_index, "_BATCH", 2)
    monkeypatch.setattr(word_index, "TOTAL_BYTES", 10)
    assert call("search_code", pattern="retry", words=True).value["truncated"] is True
    monkeypatch.setattr(word_index, "TOTAL_BYTES", 10**9)
    found = call("search_code", pattern="retry", words=True)
    assert (found.value["truncated"], found.value["filesSearched"]) == (False, 5)


def test_a_damaged_word_index_is_built_again(call: Calling, code: Path) -> None:
    assert ranked(call("search_code", pattern="retry", words=True))
    [path] = code.parent.rglob("words.db")
    path.write_bytes(b"no database" * 1000)
    refused(call("search_code", pattern="retry", words=True))
    assert ranked(call("search_code", pattern="retry", words=True))


def test_words_of_binary_files_are_not_found_but_their_names_are(call: Calling, code: Path) -> None:
    (code / "giraffe.bin").write_bytes(b"\0retry elephant")
    assert ranked(call("search_code", pattern="elephant", words=True)) == []
    assert ranked(call("search_code", pattern="giraffe", words=True)) == ["giraffe.bin"]
