"""git on a repository of the workspace: what is told of it, and what is changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.sources.builtin.code.git import parse_changes, parse_status

from .tool_client import ToolClient, open_client, opened

pytestmark = [pytest.mark.anyio, pytest.mark.promise("C4")]

AUTHOR = {"name": "Ada", "email": "ada@example.org"}


async def commit(at: ToolClient, message: str = "a commit", **files: str) -> Any:
    for name, content in files.items():
        (at.folder / name.replace("_", ".")).write_text(content)
    await at.value("git_add", paths=["."])
    return (await at.value("git_commit", message=message, author=AUTHOR))["commit"]


@pytest.fixture
async def repository(client: ToolClient) -> ToolClient:
    await client.bash("git init --quiet --initial-branch main .")
    return client


async def test_a_repository_from_its_first_file_to_its_history(repository: ToolClient) -> None:
    empty = {"branch": "main", "clean": True, "files": [], "truncated": False}
    assert await repository.value("git_status") == empty
    assert await repository.value("git_log") == {"commits": [], "more": False}
    (repository.folder / "a.txt").write_text("one\ntwo\n")
    listed = await repository.value("git_status")
    assert listed["files"] == [{"path": "a.txt", "unstaged": "untracked"}]
    assert (await repository.value("git_add", paths=["a.txt"]))["staged"] == [{"path": "a.txt", "staged": "added"}]
    done = await repository.value("git_commit", message="First\n\nWith a body.\n", author=AUTHOR)
    assert done["files"] == [{"path": "a.txt", "status": "added", "added": 2, "deleted": 0}]
    made = done["commit"]
    assert (made["subject"], made["body"], made["author"], made["parents"]) == ("First", "With a body.", "Ada", [])
    (repository.folder / "a.txt").write_text("one\n2\n")
    diff = await repository.value("git_diff")
    assert diff["files"] == [{"path": "a.txt", "status": "modified", "added": 1, "deleted": 1}]
    assert diff["diff"].endswith("@@ -1,2 +1,2 @@\n one\n-two\n+2\n")
    assert (await repository.value("git_diff", staged=True))["files"] == []
    second = (await repository.value("git_commit", message="Second", all=True, author=AUTHOR))["commit"]
    log = await repository.value("git_log", limit=1)
    assert ([each["hash"] for each in log["commits"]], log["more"]) == ([second["hash"]], True)
    assert [each["subject"] for each in (await repository.value("git_log", skip=1))["commits"]] == ["First"]
    shown = await repository.value("git_show", revision=second["hash"][:12])
    assert shown["files"] == diff["files"]
    assert (await repository.value("git_show", revision="HEAD~1", path="a.txt"))["content"] == "one\ntwo\n"
    between = await repository.value("git_diff", from_="HEAD~1", to="HEAD")
    assert between["diff"] == diff["diff"]
    assert (await repository.value("git_status"))["clean"]


async def test_renames_and_odd_names_are_told_as_they_are(repository: ToolClient) -> None:
    await commit(repository, a_txt="same\n" * 20)
    await repository.bash("git mv a.txt 'new name ü.txt'; printf x > $'tab\\there'; printf y > $'bad\\xff'")
    listed = (await repository.value("git_status"))["files"]
    assert listed[0] == {"path": "new name ü.txt", "staged": "renamed", "was": "a.txt"}
    assert [each["path"] for each in listed[1:]] == ["bad\\xff", "tab\\x09here"]
    staged = await repository.value("git_diff", staged=True)
    assert staged["files"] == [
        {"path": "new name ü.txt", "status": "renamed", "was": "a.txt", "added": 0, "deleted": 0}
    ]


async def test_branches_are_made_left_merged_renamed_and_deleted(repository: ToolClient) -> None:
    await commit(repository, a_txt="1\n")
    made = await repository.value("git_branch", create="topic/x")
    assert [(each["name"], each["current"]) for each in made["branches"]] == [("main", True), ("topic/x", False)]
    gone = await repository.value("git_checkout", revision="topic/x")
    assert (gone["branch"], gone["files"]) == ("topic/x", [])
    await commit(repository, "on topic", b_txt="2\n")
    await repository.value("git_checkout", revision="main")
    assert not (repository.folder / "b.txt").exists()
    error = await repository.refusal("git_branch", delete="topic/x")
    assert (error.code, "not fully merged" in error.message) == ("GIT_FAILED", True)
    assert await repository.reason("git_branch", delete="topic/x", force=True) is not None
    assert await repository.reason("git_branch", delete="topic/x") is None
    renamed = await repository.value("git_branch", rename="topic/x", to="other")
    assert [each["name"] for each in renamed["branches"]] == ["main", "other"]
    assert len((await repository.value("git_branch", delete="other", force=True))["branches"]) == 1
    assert (await repository.value("git_checkout", create="third"))["branch"] == "third"
    detached = await repository.value("git_checkout", revision="HEAD~0")
    assert "branch" not in detached


async def test_going_elsewhere_loses_no_changes_and_files_come_back_when_asked_for(repository: ToolClient) -> None:
    await commit(repository, a_txt="1\n")
    await repository.value("git_branch", create="other")
    await commit(repository, a_txt="2\n")
    (repository.folder / "a.txt").write_text("mine\n")
    assert "overwritten" in (await repository.refusal("git_checkout", revision="other")).message
    assert (repository.folder / "a.txt").read_text() == "mine\n"
    await repository.value("git_checkout", paths=["a.txt"])
    assert (repository.folder / "a.txt").read_text() == "2\n"
    await repository.value("git_checkout", revision="other", paths=["a.txt"])
    assert (repository.folder / "a.txt").read_text() == "1\n"


async def test_changes_are_put_away_and_brought_back(repository: ToolClient) -> None:
    await commit(repository, a_txt="1\n")
    (repository.folder / "a.txt").write_text("changed\n")
    (repository.folder / "new.txt").write_text("new\n")
    put = await repository.value("git_stash", action="push", message="half done", untracked=True)
    assert ([each["message"] for each in put["stashes"]], put["files"]) == (["On main: half done"], [])
    assert not (repository.folder / "new.txt").exists()
    shown = await repository.value("git_show", revision="stash@{0}")
    assert shown["files"][0]["path"] == "a.txt"
    back = await repository.value("git_stash", action="pop")
    assert back["stashes"] == []
    assert (repository.folder / "new.txt").read_text() == "new\n"
    assert await repository.reason("git_stash", action="drop") == "git_stash deletes stash@{0}"
    assert await repository.reason("git_stash", action="pop") is None


async def test_a_conflict_is_told(repository: ToolClient) -> None:
    await commit(repository, a_txt="1\n")
    await repository.value("git_branch", create="other")
    await commit(repository, a_txt="2\n")
    await repository.value("git_checkout", revision="other")
    await commit(repository, a_txt="3\n")
    await repository.bash("git -c user.name=a -c user.email=b merge main || true")
    [file] = (await repository.value("git_status"))["files"]
    assert file == {"path": "a.txt", "staged": "conflict", "unstaged": "conflict"}


async def test_staging_is_undone_and_a_commit_replaced(repository: ToolClient) -> None:
    first = await commit(repository, a_txt="1\n")
    (repository.folder / "b.txt").write_text("2\n")
    await repository.value("git_add", paths=["b.txt"])
    assert (await repository.value("git_add", paths=["b.txt"], unstage=True))["staged"] == []
    await repository.value("git_add", paths=["b.txt"])
    amended = await repository.value("git_commit", message="Both", amend=True, author=AUTHOR)
    assert [each["path"] for each in amended["files"]] == ["a.txt", "b.txt"]
    assert [each["hash"] for each in (await repository.value("git_log"))["commits"]] != [first["hash"]]


async def test_somebody_must_say_whose_commit_it_is(repository: ToolClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GIT_AUTHOR_NAME", raising=False)
    monkeypatch.delenv("GIT_AUTHOR_EMAIL", raising=False)
    (repository.folder / "a.txt").write_text("1\n")
    await repository.value("git_add", paths=["."])
    error = await repository.refusal("git_commit", message="x")
    assert (error.code, "GIT_AUTHOR_NAME" in error.message) == ("IDENTITY_MISSING", True)
    forged = {"name": "A <x@y>\nB", "email": "e"}
    assert (await repository.refusal("git_commit", message="x", author=forged)).status == 400
    repository.git("config", "user.name", "Repo")
    repository.git("config", "user.email", "r@example.org")
    assert (await repository.value("git_commit", message="x"))["commit"]["author"] == "Repo"
    monkeypatch.setenv("GIT_AUTHOR_NAME", "Operator")
    monkeypatch.setenv("GIT_AUTHOR_EMAIL", "o@example.org")
    (repository.folder / "a.txt").write_text("2\n")
    done = await repository.value("git_commit", message="y", all=True)
    assert done["commit"]["author"] == "Operator"


async def test_what_is_no_repository_or_no_revision_is_refused(tmp_path: Path) -> None:
    async with open_client(tmp_path) as at:
        assert (await at.refusal("git_status")).code == "NOT_A_REPOSITORY"
        assert (await at.refusal("git_status", repository="nowhere")).code == "FILE_NOT_FOUND"
        await at.bash("git init -q -b main .")
        await commit(at, a_txt="1\n")
        for revision in ("--output=/workspace/x", "-p", "a b", "HEAD\n"):
            assert (await at.refusal("git_show", revision=revision)).code == "INVALID_REVISION"
            assert (await at.refusal("git_log", revision=revision)).code == "INVALID_REVISION"
            assert (await at.refusal("git_checkout", revision=revision)).code == "INVALID_REVISION"
        assert (await at.refusal("git_show", revision="nothing")).code == "GIT_FAILED"
        assert (await at.refusal("git_add", paths=["../x"])).code == "INVALID_PATH"
        assert (await at.refusal("git_add", paths=[":(top)nothing"])).code == "GIT_FAILED"
        assert (await at.refusal("git_add", paths=["*.txt"])).code == "GIT_FAILED", "a name, and no pattern"
        assert (await at.refusal("git_commit", message="nothing staged", author=AUTHOR)).code == "GIT_FAILED"
        assert sorted(path.name for path in at.folder.iterdir()) == [".git", "a.txt"]


async def test_looking_writes_nothing(repository: ToolClient) -> None:
    await commit(repository, a_txt="1\n")
    (repository.folder / "a.txt").touch()  # which makes git want to renew its index
    before = {path: path.stat().st_mtime_ns for path in repository.folder.rglob("*")}
    for tool in ("git_status", "git_diff", "git_log", "git_show"):
        await repository.value(tool)
    assert {path: path.stat().st_mtime_ns for path in repository.folder.rglob("*")} == before


async def test_a_long_diff_is_cut_and_paths_narrow_it(tmp_path: Path) -> None:
    async with open_client(tmp_path) as at:
        await at.bash("git init -q -b main .")
        await commit(at, a_txt="1\n", b_txt="1\n")
        (at.folder / "a.txt").write_text("long line\n" * 60_000)
        (at.folder / "b.txt").write_text("2\n")
        whole = await at.value("git_diff")
        assert (whole["truncated"], len(whole["diff"]), len(whole["files"])) == (True, 256 * 1024, 2)
        part = await at.value("git_diff", paths=["b.txt"])
        assert (part["truncated"], [each["path"] for each in part["files"]]) == (False, ["b.txt"])


@pytest.mark.promise("T1")
async def test_git_of_a_chat_is_versioned_with_its_files(tmp_path: Path) -> None:
    async with opened(tmp_path) as gateway:

        async def call(name: str, **arguments: Any) -> Any:
            outcome = await gateway.call(name, arguments, chat="c", confirmed=True)
            assert outcome.ok, outcome.error
            return outcome

        await call("run_code", language="bash", code="git init -q -b main .; echo 1 > a.txt")
        await call("git_add", paths=["."])
        first = await call("git_commit", message="one", author=AUTHOR)
        await call("write_file", path="a.txt", content="2\n")
        await call("git_commit", message="two", all=True, author=AUTHOR)
        assert len((await call("git_log")).value["commits"]) == 2
        await call("workspace_restore", manifest=first.post_manifest)
        assert [each["subject"] for each in (await call("git_log")).value["commits"]] == ["one"]


def test_every_kind_of_state_is_read() -> None:
    text = "\0".join(
        [
            "# branch.oid (initial)",
            "# branch.head (detached)",
            "# branch.upstream origin/main",
            "# branch.ab +2 -3",
            "1 AM N... 000000 100644 100644 0 1 a b",
            "2 R. N... 100644 100644 100644 1 1 R100 new name",
            "old name",
            "u UU N... 100644 100644 100644 100644 1 2 3 both",
            "? new",
            "",
        ]
    )
    found = parse_status(text, 3)
    assert (found.branch, found.commit, found.upstream, found.ahead, found.behind) == (None, None, "origin/main", 2, 3)
    assert [(file.path, file.staged, file.unstaged, file.was) for file in found.files] == [
        ("a b", "added", "modified", None),
        ("new name", "renamed", None, "old name"),
        ("both", "conflict", "conflict", None),
    ]
    assert found.truncated


def test_binary_files_have_no_lines() -> None:
    text = ":000000 100644 0 1 A\0pic\0:100644 100644 1 2 R090\0a\tb\0c\0-\t-\tpic\0003\t4\t\0a\tb\0c\0"
    assert [(each.path, each.status, each.added, each.deleted, each.was) for each in parse_changes(text).values()] == [
        ("pic", "added", None, None, None),
        ("c", "renamed", 3, 4, "a\\x09b"),
    ]


async def test_a_diff_is_refused_when_a_file_to_leave_out_changes_while_it_is_made(tmp_path: Path) -> None:
    looks = iter([None, None, "a rule"])

    def hides(path: str, agreed: frozenset[str] = frozenset()) -> str | None:
        return next(looks) if path == "a.env" else None

    async with open_client(tmp_path, hides=lambda _: hides) as here:
        here.git("init", "-q")
        (here.folder / "a.env").write_text("TOKEN")
        here.git("add", ".")
        refused = await here.refusal("git_diff", staged=True)
        assert refused.code == "CHANGED_MEANWHILE" and "TOKEN" not in str(refused)


async def test_files_that_a_rule_hides_are_not_staged_or_committed(tmp_path: Path) -> None:
    def hides(path: str, agreed: frozenset[str] = frozenset()) -> str | None:
        return "a rule" if path.endswith(".env") else None

    async with open_client(tmp_path, hides=lambda _: hides) as here:
        here.git("init", "-q")
        (here.folder / "old.env").write_text("old")
        here.git("add", ".")
        here.git("-c", "user.name=Ada", "-c", "user.email=ada@example.org", "commit", "-qm", "Begin")
        (here.folder / "in").mkdir()
        for name in ("a.txt", "a.env", "in/b.env", "old.env"):
            (here.folder / name).write_text("TOKEN")
        staged = await here.value("git_add", paths=["."])
        assert [file["path"] for file in staged["staged"]] == ["a.txt"]
        assert staged["filesLeftOut"] == 3
        author = {"name": "Ada", "email": "ada@example.org"}
        refused = await here.refusal("git_commit", message="All", all=True, author=author)
        assert refused.code == "DENIED_BY_RULE" and "old.env" in str(refused)
        commit = await here.value("git_commit", message="One", author=author)
        assert [file["path"] for file in commit["files"]] == ["a.txt"]
