"""Consent follows what a toolset's tool would change in a person's own folder, whatever it says of itself."""

from __future__ import annotations

import os
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import dedent
from typing import Any

import anyio
import pytest
from eventually import TIMEOUT, async_eventually

from gateway import Gateway
from gateway.admin.workspaces import open_workspace
from gateway.approval.question import Answer, Question
from gateway.bundles.scaffold import write_scaffold
from gateway.calls import Outcome
from gateway.sandbox import Sandbox
from gateway.sandbox.bwrap import Bubblewrap
from gateway.sandbox.landlock import Landlock
from gateway.sources.toolsets import assembly
from gateway.workspace import snapshot
from gateway.workspace.checkout import Review
from gateway.workspace.versions import HeldChat

from .writing import install, require_sandbox, write_toolset

pytestmark = [pytest.mark.anyio, pytest.mark.promise("C5")]

CODE = dedent(
    '''
    import os, shutil, threading, time
    from pathlib import Path
    from covalt_toolset import get_context, tool

    @tool
    def act(script: str) -> str:
        """Run some code in the workspace."""
        os.chdir(get_context().workspace)
        names = {"os": os, "shutil": shutil, "threading": threading, "time": time, "Path": Path}
        try:
            exec(script, names)
        except OSError as error:
            return f"refused: {error.strerror}"
        return str(names.get("result", "done"))

    @tool
    def write(path: str, content: str) -> str:
        """Write a file, and the folders above it."""
        file = get_context().workspace / path
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(content)
        except OSError as error:
            return f"refused: {error.strerror}"
        return "written"

    @tool(destructive=True)
    def wipe(path: str) -> None:
        """Delete a file."""
        (get_context().workspace / path).unlink()

    @tool(destructive=True, requires_confirmation=False)
    def assured(path: str) -> None:
        """Delete a file, and claim that nobody need be asked."""
        (get_context().workspace / path).unlink()
    '''
)
MANIFEST = dedent(
    """
    id: garden
    name: Garden
    version: 1.0.0
    tools:
      - {id: act, entrypoint: "code:act"}
      - {id: write, entrypoint: "code:write"}
      - {id: wipe, entrypoint: "code:wipe"}
      - {id: assured, entrypoint: "code:assured", requires_confirmation: false}
      - {id: copy, type: shell, command: [cp, "${source}", "${target}"]}
    tool_overrides:
      - {tool_id: assured, requires_confirmation: false}
    """
)
HOOK = "#!/bin/sh\nexit 0\n"


@dataclass
class Person:
    """Answers what is asked, in turn, and keeps the questions; refuses what is asked beyond."""

    answers: list[Answer] = field(default_factory=list)
    questions: list[Question] = field(default_factory=list)

    async def __call__(self, question: Question) -> Answer:
        self.questions.append(question)
        return self.answers.pop(0) if self.answers else Answer("deny")

    @property
    def reasons(self) -> list[str]:
        return [question.reason for question in self.questions]


@dataclass
class Garden:
    gateway: Gateway
    folder: Path

    async def call(self, tool: str, *answers: str, **arguments: Any) -> tuple[Outcome, Person]:
        person = Person([Answer(answer) for answer in answers])  # type: ignore[arg-type]
        return await self.gateway.call(f"garden:{tool}", arguments, approver=person), person

    async def act(self, script: str, *answers: str) -> tuple[Outcome, Person]:
        # In more than one line no text is taken for a path.
        return await self.call("act", *answers, script=f"pass\n{dedent(script)}")

    async def sources(self) -> list[tuple[str, str | None]]:
        """What made each version, newest first."""
        history = await self.gateway.call("workspace_history", {})
        return [(each["source"], each.get("sourceRef")) for each in history.value["versions"]]


def code(outcome: Outcome) -> str:
    return "OK" if outcome.error is None else outcome.error.code


@asynccontextmanager
async def gardening(tmp_path: Path, **settings: Any) -> AsyncIterator[Garden]:
    await require_sandbox()
    folder = tmp_path / "project"
    for name, content in {"notes.txt": "mine\n", "src/app.py": "print()\n", ".git/hooks/pre-commit": HOOK}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    (folder / ".git/hooks/pre-commit").chmod(0o755)
    (folder / ".git/config").write_text("[core]\n")
    async with Gateway.open({"data_dir": tmp_path / "data", "workspace": folder, **settings}) as gateway:
        await install(gateway, write_toolset(tmp_path / "garden", MANIFEST, code=CODE))
        yield Garden(gateway, folder)


@pytest.fixture(params=["bwrap", pytest.param("landlock", marks=pytest.mark.slow)])
def sandbox(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The sandbox that toolsets run in, instead of the best one."""
    made: list[Sandbox] = []

    async def choose(_: object) -> Sandbox:
        if not made:
            made.append(Bubblewrap() if request.param == "bwrap" else Landlock())
        return made[0]

    monkeypatch.setattr(assembly, "choose", choose)
    return str(request.param)


def contents(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Every file and link of a folder with its mode."""
    found = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        if stat.S_ISLNK(status.st_mode):
            found[str(path.relative_to(folder))] = (0, os.readlink(path).encode())
        elif stat.S_ISREG(status.st_mode):
            found[str(path.relative_to(folder))] = (stat.S_IMODE(status.st_mode), path.read_bytes())
    return found


async def test_destructive_toolset_tool_asks_unless_the_person_who_installed_it_says_otherwise(tmp_path: Path) -> None:
    async with gardening(tmp_path) as garden:
        for tool in ("wipe", "assured"):
            refused, person = await garden.call(tool, path="notes.txt")
            assert (code(refused), person.reasons) == ("DECLINED", [f"garden:{tool} always asks first"])
        library = garden.gateway.toolsets.library
        await library.override("garden", "garden:wipe", {"requires_confirmation": False})
        await garden.gateway.refresh()
        done, person = await garden.call("wipe", "once", path="notes.txt")
        assert code(done) == "OK"
        assert "deleted" in person.reasons[0] and "always" not in person.reasons[0]  # what it did is asked about still


async def test_scaffold_replace_text_asks_first(tmp_path: Path) -> None:
    async with gardening(tmp_path) as garden:
        write_scaffold(tmp_path / "words")
        await install(garden.gateway, tmp_path / "words")
        person = Person()
        arguments = {"replacement": {"path": "notes.txt", "old": "mine", "new": "yours"}}
        refused = await garden.gateway.call("words:replace_text", arguments, approver=person)
        assert (code(refused), person.reasons) == ("DECLINED", ["words:replace_text always asks first"])


@pytest.mark.parametrize(
    "path",
    [
        "toolgate.yml",
        ".vscode/settings.json",
        ".git/hooks/pre-commit",
        "sub/.git/hooks/pre-commit",
        "/workspace/.envrc",
    ],
)
async def test_toolset_write_to_a_protected_path_asks_and_only_that_path_changes_once_agreed_to(
    tmp_path: Path, path: str, sandbox: str
) -> None:
    async with gardening(tmp_path) as garden:
        file = garden.folder / path.removeprefix("/workspace/")
        if "sub/" in path:
            file.parent.mkdir(parents=True)
            file.write_text(HOOK)
            (file.parent / "other").write_text(HOOK)
        before = contents(garden.folder)
        asked = f"garden:write touches {path!r}, which other programs on this machine run or read as settings"
        refused, person = await garden.call("write", path=path, content="planted")
        assert (code(refused), person.reasons) == ("DECLINED", [asked])
        assert person.questions[0].choices == ("once", "deny")
        assert contents(garden.folder) == before
        done, person = await garden.call("write", "once", path=path, content="agreed")
        if path.startswith("/") and sandbox == "landlock":
            return  # there the folder has another name, and this one is nowhere
        assert (code(done), done.value, person.reasons) == ("OK", "written", [asked])
        assert file.read_text() == "agreed"
        after = contents(garden.folder)
        assert {name: after[name] for name in before if name != path} == {
            name: content for name, content in before.items() if name != path
        }
        refused, _ = await garden.call("write", path=path, content="again")
        assert (code(refused), file.read_text()) == ("DECLINED", "agreed")


async def test_toolset_call_agreed_to_for_one_hook_cannot_plant_another(tmp_path: Path, sandbox: str) -> None:
    async with gardening(tmp_path) as garden:
        # The text names a hook, and the code does more.
        script = """
        hook = ".git/hooks/pre-commit"
        Path(hook).write_text("agreed")
        Path(".git/hooks/post-commit").write_text("planted")
        Path(".git/config").write_text("planted")
        """
        done = await garden.gateway.call(
            "garden:copy", {"source": "notes.txt", "target": ".git/hooks/pre-commit"}, approver=Person([Answer("once")])
        )
        assert code(done) == "OK", done.error
        assert (garden.folder / ".git/hooks/pre-commit").read_text() == "mine\n"
        outcome, person = await garden.act(script)
        assert person.reasons == []  # a script is no path
        assert (garden.folder / ".git/hooks/pre-commit").read_text() == "mine\n"
        assert not (garden.folder / ".git/hooks/post-commit").exists()
        assert (garden.folder / ".git/config").read_text() == "[core]\n"
        assert code(outcome) == "PROTECTED_FILE" if sandbox == "landlock" else outcome.value.startswith("refused")


async def test_repository_changes_only_in_a_call_that_a_person_agreed_to(tmp_path: Path) -> None:
    async with gardening(tmp_path) as garden:
        head = garden.folder / ".git/HEAD"
        head.write_text("ref: refs/heads/main")
        before = contents(garden.folder)
        for script in (
            "Path('.git/HEAD').write_text('theirs')",
            "os.rename('.git/HEAD', '.git/other')",
            "shutil.rmtree('.git')",
            "os.rename('.git', 'moved')",
        ):
            refused, person = await garden.act(script)
            assert (refused.value or "").startswith("refused"), (script, refused)
            assert (contents(garden.folder), person.reasons) == (before, []), script
        assert code((await garden.call("wipe", "once", path=".git/HEAD"))[0]) == "OK"
        assert not head.exists()


NESTED = ("sub/.git/hooks/pre-commit", "sub/deeper/.vscode/tasks.json", "node_modules/x/.git/config", "a/.envrc")


async def test_protected_files_at_any_depth_are_held_and_new_ones_are_set_aside(tmp_path: Path, sandbox: str) -> None:
    async with gardening(tmp_path) as garden:
        (garden.folder / ".gitignore").write_text("node_modules\n")
        for name in NESTED:
            (garden.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (garden.folder / name).write_text("mine")
        (garden.folder / "sub/.git/config").write_text("mine")
        before = contents(garden.folder)
        for name in NESTED:
            for script in (
                f"Path({name!r}).write_text('planted')",
                f"Path({name!r}).unlink()",
                f"os.rename({name!r}, 'moved')",
                f"Path('x').write_text('planted'); os.replace('x', {name!r})",
                f"os.remove({name!r}); os.symlink('/tmp', {name!r})",
                f"shutil.rmtree({str(Path(name).parent)!r})" if "/." in name else "",
            ):
                _, person = await garden.act(script)
                assert "touches" not in str(person.reasons)
                now = contents(garden.folder)
                assert {path: now.get(path) for path in before} == before, (name, script)
        assert [name for name in contents(garden.folder) if name.endswith("planted")] == []
        made, asked = await garden.act(
            "Path('new/.git/hooks').mkdir(parents=True); Path('new/.git/config').write_text('x')"
        )
        assert code(made) == "PROTECTED_FILE", asked.reasons
        assert made.error is not None and made.error.details["renamed"] == {"new/.git": "new/.git.toolgate-removed-1"}
        assert not (garden.folder / "new/.git").exists()


async def test_new_protected_files_are_set_aside_when_the_call_fails_or_is_cancelled(tmp_path: Path) -> None:
    async with gardening(tmp_path, limits={"timeout": 20}) as garden:
        failed, _ = await garden.act("Path('.envrc').write_text('planted'); raise ValueError('no')")
        assert code(failed) == "PROTECTED_FILE"
        with anyio.move_on_after(TIMEOUT):
            async with anyio.create_task_group() as tasks:

                async def call() -> None:
                    await garden.act("Path('.envrc').write_text('planted'); Path('ready').touch(); time.sleep(600)")

                tasks.start_soon(call)
                await async_eventually(lambda: (garden.folder / "ready").exists())
                tasks.cancel_scope.cancel()
        assert not (garden.folder / ".envrc").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system")
async def test_other_file_system_in_the_folder_is_asked_about_before_a_call_that_could_change_it(
    tmp_path: Path, sandbox: str
) -> None:
    async with gardening(tmp_path) as garden:
        disk = garden.folder / "disk"
        disk.mkdir()
        await anyio.run_process(["mount", "-t", "tmpfs", "none", disk])
        try:
            (disk / "a.txt").write_text("mine")
            refused, person = await garden.act("Path('disk/a.txt').write_text('theirs')")
            assert (disk / "a.txt").read_text() == "mine"
        finally:
            await anyio.run_process(["umount", disk])
        assert code(refused) == "DECLINED"
        assert person.reasons[0].endswith("that cannot be undone: 'disk' is on another file system, or too deep")


async def test_too_many_protected_files_refuse_the_call(tmp_path: Path) -> None:
    async with gardening(tmp_path) as garden:
        for number in range(40):
            (garden.folder / str(number)).mkdir()
            (garden.folder / str(number) / ".envrc").write_text("mine")
        # More than are mounted: the others are put back.
        done, _ = await garden.act("[Path(f'{n}/.envrc').write_text('planted') for n in range(39, -1, -1)]")
        assert code(done) in ("PROTECTED_FILE", "OK")
        assert {(garden.folder / str(number) / ".envrc").read_text() for number in range(40)} == {"mine"}
        for number in range(40, 1001):
            (garden.folder / str(number)).mkdir()
            (garden.folder / str(number) / ".envrc").write_text("mine")
        refused, _ = await garden.act("Path('ran').touch()")
        assert code(refused) == "TOO_MANY_PROTECTED_FILES"
        assert not (garden.folder / "ran").exists()


async def test_overwriting_a_persons_file_asks_and_a_no_leaves_every_byte_as_it_was(
    tmp_path: Path, sandbox: str
) -> None:
    async with gardening(tmp_path) as garden:
        before = contents(garden.folder)
        refused, person = await garden.act("Path('notes.txt').write_text('theirs'); Path('new.txt').touch()")
        assert code(refused) == "DECLINED"
        assert contents(garden.folder) == before
        [question] = person.questions
        assert question.reason == "garden:act changes files of your folder: 1 changed (notes.txt)"
        assert "-mine" in str(question.changes) and "+theirs" in str(question.changes)
        assert "new.txt" not in str(question.changes)
        done, person = await garden.act("Path('notes.txt').write_text('theirs'); Path('new.txt').touch()", "once")
        assert (code(done), len(person.questions)) == ("OK", 1)
        assert (garden.folder / "notes.txt").read_text() == "theirs"
        [source, *_] = await garden.sources()
        record = (await garden.gateway.records.list_calls(tool="garden:act"))[0]
        assert source == ("tool_run", record.id)
        assert (record.status, record.post_manifest_id is not None) == ("success", True)
        assert {each.status for each in await garden.gateway.records.list_calls(tool="garden:act")} == {
            "success",
            "error",
        }


@pytest.mark.parametrize(
    "script",
    [
        "Path('notes.txt').unlink()",
        "shutil.rmtree('src')",
        "Path('notes.txt').chmod(0o755)",
        "Path('notes.txt').chmod(0o600)",
        "Path('notes.txt').chmod(0)",
        "Path('src').chmod(0)",
        "os.remove('notes.txt'); os.symlink('/etc/passwd', 'notes.txt')",
        "os.remove('notes.txt'); os.mkdir('notes.txt'); Path('notes.txt/x').touch()",
        "os.rename('src', 'moved')",
        "Path('.gitignore').write_text('*\\n'); Path('notes.txt').write_text('theirs')",
        "Path('.toolgateignore').write_text('src\\n'); shutil.rmtree('src')",
    ],
)
async def test_deleting_and_disguising_are_asked_about_and_taken_back(
    tmp_path: Path, script: str, sandbox: str
) -> None:
    if sandbox == "landlock" and "chmod" in script:
        pytest.skip("there chmod does nothing")
    async with gardening(tmp_path) as garden:
        before = contents(garden.folder)
        refused, person = await garden.act(script)
        assert (code(refused), len(person.questions)) == ("DECLINED", 1), refused
        assert contents(garden.folder) == before
        assert (garden.folder / "src").stat().st_mode & 0o700 == 0o700


async def test_new_files_alone_do_not_ask_and_are_credited_to_the_tool(tmp_path: Path) -> None:
    async with gardening(tmp_path) as garden:
        done, person = await garden.call("write", path="new/a.txt", content="x")
        assert (code(done), person.questions) == ("OK", [])
        [record] = await garden.gateway.records.list_calls(tool="garden:write")
        assert (await garden.sources())[0] == ("tool_run", record.id)


async def test_other_changes_than_those_agreed_to_are_asked_about_anew(tmp_path: Path) -> None:
    async with gardening(tmp_path) as garden:
        other = "Path('notes.txt').write_text(str(time.time_ns()))"
        refused, person = await garden.act(other, "once")
        assert code(refused) == "DECLINED"  # asked again, since it would write something else
        assert len(person.questions) == 2
        assert (garden.folder / "notes.txt").read_text() == "mine\n"
        done, person = await garden.act(other, "chat")  # once for all, where a tool never does the same twice
        assert (code(done), len(person.questions)) == ("OK", 1)
        done, person = await garden.act(other)
        assert (code(done), person.questions) == ("OK", [])


async def test_allowing_rule_and_mode_never_let_a_toolset_overwrite(tmp_path: Path) -> None:
    for number, approval in enumerate(
        ({"mode": "never"}, {"rules": [{"tool": "garden:*", "then": "allow"}]}),
    ):
        async with gardening(tmp_path / str(number), approval=approval) as garden:
            done, person = await garden.act("Path('notes.txt').write_text('theirs')")
            assert (code(done), person.questions) == ("OK", [])
            assert (garden.folder / "notes.txt").read_text() == "theirs"
            planted, _ = await garden.call("write", path=".git/hooks/pre-commit", content="x")
            assert planted.value != "written" or code(planted) == "PROTECTED_FILE"
            assert (garden.folder / ".git/hooks/pre-commit").read_text() == HOOK


async def test_code_that_goes_on_after_its_call_changes_nothing(tmp_path: Path) -> None:
    async with gardening(tmp_path) as garden:
        script = """
        def later():
            time.sleep(1)
            Path('notes.txt').write_text('later')
            Path('.envrc').write_text('later')
        threading.Thread(target=later).start()
        """
        assert code((await garden.act(script))[0]) == "OK"
        assert garden.gateway.toolsets.runtime.workers == 0
        assert (garden.folder / "notes.txt").read_text() == "mine\n"


async def test_a_cancelled_call_leaves_a_persons_files_as_they_were(tmp_path: Path) -> None:
    async with gardening(tmp_path) as garden:
        async with anyio.create_task_group() as tasks:

            async def call() -> None:
                await garden.act("Path('notes.txt').write_text('theirs'); Path('ready').touch(); time.sleep(600)")

            tasks.start_soon(call)
            await async_eventually(lambda: (garden.folder / "ready").exists())
            tasks.cancel_scope.cancel()
        assert (garden.folder / "notes.txt").read_text() == "mine\n"
        assert not (garden.folder / "ready").exists()


async def test_a_persons_edit_during_a_call_that_is_undone_is_kept_as_a_version(tmp_path: Path) -> None:
    async with gardening(tmp_path) as garden:
        script = """
        Path('notes.txt').write_text('theirs')
        Path('ready').touch()
        while not Path('go').exists():
            time.sleep(0.01)
        """
        refused: list[Outcome] = []

        async def call() -> None:
            refused.append((await garden.act(script))[0])

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call)
            await async_eventually(lambda: (garden.folder / "ready").exists())
            (garden.folder / "src/app.py").write_text("edited by a person")
            (garden.folder / "go").touch()
        assert code(refused[0]) == "DECLINED"
        history = await garden.gateway.call("workspace_history", {})
        [undone] = [each for each in history.value["versions"] if each["source"] == "undone"]
        read = await garden.gateway.call(
            "workspace_restore", {"manifest": undone["id"], "paths": ["src/app.py"]}, confirmed=True
        )
        assert read.ok, read.error
        assert (garden.folder / "src/app.py").read_text() == "edited by a person"


OVERWRITE = "Path('.env').write_text('theirs')"
ON_IGNORED_FILES = {
    "overwritten": OVERWRITE,
    "appended to": "open('.env', 'a').write('theirs')",
    "deleted": "Path('.env').unlink()",
    "moved": "Path('.env').rename('other.txt')",
    "a directory": "Path('.env').unlink(); Path('.env').mkdir(); Path('.env/x').touch()",
    "a link": "Path('.env').unlink(); Path('.env').symlink_to('notes.txt')",
    "a pipe": "Path('.env').unlink(); os.mkfifo('.env')",
    "large": "Path('.env').write_text('x' * 2_000_000)",
    "executable": "Path('.env').chmod(0o755)",
    "unreadable": "Path('.env').chmod(0)",
    "no longer ignored": f"Path('.gitignore').unlink(); {OVERWRITE}",
    "in a directory that is gone": "shutil.rmtree('conf')",
    "in a directory that is a link": "shutil.rmtree('conf'); Path('conf').symlink_to('src')",
    "in a directory that is closed": "Path('conf/x.local').write_text('theirs'); Path('conf').chmod(0)",
    "in a directory that becomes ignored": "Path('.toolgateignore').write_text('conf/')",
    "in a hidden directory": "Path('src/.gitignore').write_text('inner/\\n.gitignore')",
    "with another file": f"Path('notes.txt').write_text('theirs'); {OVERWRITE}",
}


@pytest.mark.parametrize("script", ON_IGNORED_FILES.values(), ids=ON_IGNORED_FILES)
async def test_toolset_call_that_changes_a_small_ignored_file_is_undone_and_asked_about(
    tmp_path: Path, script: str, sandbox: str
) -> None:
    if sandbox == "landlock" and script.startswith("Path('.env').chmod"):
        pytest.skip("there chmod does nothing")
    async with gardening(tmp_path) as garden:
        mine = {".gitignore": "*.local\n.env\n/built\n", ".env": "KEY=mine\n", "conf/x.local": "mine\n"}
        mine["src/inner/y.local"] = "mine\n"
        for name, content in mine.items():
            (garden.folder / name).parent.mkdir(exist_ok=True, parents=True)
            (garden.folder / name).write_text(content)
        (garden.folder / ".env").chmod(0o600)
        before = contents(garden.folder)
        refused, person = await garden.act(script)
        assert code(refused) == "DECLINED"
        assert "garden:act changes files of your folder: " in person.reasons[0]
        after = {path: state for path, state in contents(garden.folder).items() if ".toolgate-removed-" not in path}
        assert after == before
        done, person = await garden.act(script, "once")
        assert (code(done), len(person.questions)) == ("OK", 1), done.error
        assert contents(garden.folder) != before
        assert refused.pre_manifest == refused.post_manifest


async def test_ignored_files_that_an_approved_toolset_call_changes_come_back_by_undo(tmp_path: Path) -> None:
    async with gardening(tmp_path) as garden:
        for name, content in {".gitignore": ".env\nbuilt/\n", ".env": "mine\n", "built/a": "mine"}.items():
            (garden.folder / name).parent.mkdir(exist_ok=True)
            (garden.folder / name).write_text(content)
        done, person = await garden.act(f"Path('built/a').write_text('theirs'); {OVERWRITE}", "once")
        assert "-mine\n+theirs" in (person.questions[0].changes or "") and "built" not in person.reasons[0]
        assert "'.env' is ignored by .gitignore, so no version has it; a copy is kept" in str(done.content)
        undone = await (await open_workspace(garden.gateway)).undo()
        assert undone.restored is not None and undone.restored.paths == (".env",)
        assert (garden.folder / ".env").read_text() == "mine\n"
        assert (garden.folder / "built/a").read_text() == "theirs"  # in a directory that is ignored whole


async def test_toolset_call_is_asked_about_first_where_too_many_files_are_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "WATCHED_FILES", 3)
    async with gardening(tmp_path) as garden:
        (garden.folder / ".gitignore").write_text("*.local\n")
        for number in range(3):
            (garden.folder / f"{number}.local").write_text("mine\n")
        assert code((await garden.act("Path('x.local').touch()"))[0]) == "OK"
        script = "Path('0.local').unlink()"
        refused, person = await garden.act(script)
        assert (code(refused), (garden.folder / "0.local").exists()) == ("DECLINED", True)
        assert person.reasons[0].endswith("that cannot be undone: .gitignore names too many of them")
        done, person = await garden.act(script, "once")
        assert (code(done), len(person.questions), (garden.folder / "0.local").exists()) == ("OK", 1, False)


async def test_ignored_file_that_a_person_edits_while_a_call_is_undone_stays(tmp_path: Path) -> None:
    async with gardening(tmp_path) as garden:
        (garden.folder / ".gitignore").write_text("*.local\n")
        (garden.folder / "a.local").write_text("mine\n")
        (garden.folder / "b.local").write_text("mine\n")

        script = "Path('a.local').write_text('theirs'); Path('b.local').write_text('theirs')"
        versioning = HeldChat.undo_ignored

        async def undo(held: HeldChat, review: Review, call: str) -> None:
            (garden.folder / "b.local").write_text("edited by a person")
            await versioning(held, review, call)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(HeldChat, "undo_ignored", undo)
            assert code((await garden.act(script))[0]) == "DECLINED"
        assert (garden.folder / "a.local").read_text() == "mine\n"
        assert (garden.folder / "b.local").read_text() == "edited by a person"
