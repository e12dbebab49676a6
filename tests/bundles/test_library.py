"""Toolsets are taken in whole, stay as the person set them, and leave nothing when they go."""

from __future__ import annotations

import sqlite3
import stat
from pathlib import Path
from typing import Any

import anyio
import pytest

from gateway.bundles.library import ToolsetLibrary
from gateway.bundles.store import hold_version
from gateway.errors import Conflict, GatewayError, Invalid, NotFound, Unavailable

from .libraries import CODE, HEAD, NO_ROWS, TWO_TOOLS, Reading, exported, folder, install, on_disk, opened, rows

pytestmark = [pytest.mark.anyio, pytest.mark.promise("T3", "B9")]

FULL = (
    HEAD
    + """
description: All of it
permission: read-only
secrets: [TOKEN]
tools:
- {id: a, entrypoint: 'files:a', renderer: {type: code, content: $return}, tags: [x]}
- {id: b, entrypoint: 'more:b', enabled: false}
- {id: c, type: shell, command: [ls, '${path}'], env: {MODE: fast, API: 's3cret-value'}}
- {id: d, type: http, url_template: 'https://host/x', headers: {X-Key: s3cret-other}}
tool_overrides:
- {tool_id: a, name_override: Alpha}
- {tool_id: 'srv:search', requires_confirmation: true}
mcp_servers:
- {id: srv, command: npx, args: [-y, pkg], env: {KEY: s3cret-third, LOG_LEVEL: debug}, cwd: assets, lazy: true}
- {id: far, url: 'https://host/mcp', headers: {Authorization: 'Bearer ${TOKEN}'}, transport: sse}
"""
)


async def test_an_installed_toolset_says_everything_its_sources_need(tmp_path: Path) -> None:
    source = folder(tmp_path / "src", FULL)
    (source / "tools/files.py").chmod(0o755)
    async with opened(tmp_path / "data") as library:
        found = await install(library, source, live=True)
        assert (found.id, found.enabled, found.live, found.changed) == ("demo", True, True, True)
        assert (found.source_type, found.source_ref) == ("local", str(source))
        assert found.masked == ("API", "DEMO_X_KEY", "KEY")
        assert [(tool.id, tool.name, tool.enabled, tool.missing) for tool in found.tools] == [
            ("demo:a", "Alpha", True, None),
            ("demo:b", "b", False, None),
            ("demo:c", "c", True, None),
            ("demo:d", "d", True, None),
        ]
        first = found.tools[0]
        assert first.described == {
            "name": "a", "description": "The a.", "input_schema": {"type": "object"}, "tags": [],
        }  # fmt: skip
        assert (first.description, first.get_field("tags")) == ("The a.", ("x",))
        assert first.get_field("output_schema") is None
        assert (first.override.renderer, first.override.renderer_config) == ("code", {"content": "$return"})
        assert found.overrides["srv:search"].requires_confirmation is True
        assert [server.id for server in found.servers] == ["srv", "far"]
        assert found.servers[0].env == {"KEY": "${KEY}", "LOG_LEVEL": "debug"}
        assert (found.directory / "tools/files.py").read_text() == CODE["tools/files.py"]
        assert stat.S_IMODE((found.directory / "tools/files.py").stat().st_mode) & 0o300 == 0o100
        assert stat.S_IMODE((found.directory / "tools/more.py").stat().st_mode) & 0o300 == 0
        assert (await library.get("demo"), await library.list()) == (
            found.__class__(**{**vars(found), "changed": False, "masked": ()}),
            (await library.get("demo"),),
        )


async def test_the_tables_have_what_the_specification_says(tmp_path: Path) -> None:
    async with opened(tmp_path) as library:
        found = await install(library, folder(tmp_path / "src", FULL))
    db = sqlite3.connect(tmp_path / "toolgate.db")

    def fetch(sql: str) -> list[Any]:
        return db.execute(sql).fetchall()

    assert fetch("SELECT id, name, version, description, enabled, source_type, manifest_version FROM toolsets") == [
        ("demo", "Demo", "1.0.0", "All of it", 1, "local", "1")
    ]
    assert fetch("SELECT path, kind, size, stored_path FROM toolset_files ORDER BY path") == [
        (name, "python", len(CODE[name]), str(found.directory / name)) for name in sorted(CODE)
    ]
    assert fetch("SELECT tool_id, name, description, enabled, entrypoint, kind FROM tools ORDER BY position") == [
        ("demo:a", "a", "The a.", 1, "files:a", "python"),
        ("demo:b", "b", "The b.", 0, "more:b", "python"),
        ("demo:c", "c", None, 1, None, "shell"),
        ("demo:d", "d", None, 1, None, "http"),
    ]
    assert fetch("SELECT tool_id, renderer, renderer_config, name_override FROM tool_overrides ORDER BY position") == [
        ("demo:a", "code", '{"content":"$return"}', "Alpha"),
        ("srv:search", None, None, None),
    ]
    assert fetch("SELECT id, server_type, command, args, cwd, url, env FROM toolset_mcp_servers ORDER BY position") == [
        ("srv", "stdio", "npx", '["-y","pkg"]', "assets", None, '{"KEY":"${KEY}","LOG_LEVEL":"debug"}'),
        ("far", "sse", None, "[]", None, "https://host/mcp", "{}"),
    ]
    db.close()


async def test_no_secret_is_stored_anywhere(tmp_path: Path) -> None:
    async with opened(tmp_path / "data") as library:
        address = "https://me:s3cret-user@host/demo.zip?v=2&X-Amz-Signature=s3cret-sig#s3cret-fragment"
        found = await install(library, folder(tmp_path / "src", FULL), source_type="url", source_ref=address)
        assert found.source_ref == "https://host/demo.zip?v=2&X-Amz-Signature=${X_AMZ_SIGNATURE}"
        assert b"s3cret" not in await exported(library)
    kept = [path for path in (tmp_path / "data").rglob("*") if path.is_file()]
    assert len(kept) > 4
    assert not [path for path in kept if b"s3cret" in path.read_bytes()]


async def test_the_same_content_again_changes_nothing_and_runs_nothing(tmp_path: Path, inspector: Reading) -> None:
    source = folder(tmp_path / "src", FULL)
    async with opened(tmp_path, inspector) as library:
        await install(library, source)
        before, disk = await library.revision(), on_disk(tmp_path)
        again = await install(library, source)
        assert (again.changed, again.masked) == (False, ("API", "DEMO_X_KEY", "KEY"))
        assert (await library.revision(), on_disk(tmp_path), len(inspector.asked)) == (before, disk, 1)
        moved = await install(library, source, source_ref="elsewhere", live=True)
        assert (moved.changed, moved.source_ref, moved.live, len(inspector.asked)) == (True, "elsewhere", True, 1)


async def test_a_new_version_switches_and_keeps_what_the_person_set(tmp_path: Path) -> None:
    async with opened(tmp_path) as library:
        first = await install(library, folder(tmp_path / "src", TWO_TOOLS))
        await library.enable("demo", False)
        await library.override("demo", "a", {"enabled": False, "name_override": "Mine"})
        revision = await library.revision()
        second = await install(library, folder(tmp_path / "src", TWO_TOOLS.replace("1.0.0", "2.0.0")))
        assert (second.spec.version, second.enabled, second.installed_at) == ("2.0.0", False, first.installed_at)
        assert [(tool.name, tool.enabled) for tool in second.tools] == [("Mine", False), ("b", True)]
        assert await library.revision() > revision
        assert second.directory.is_dir() and first.directory.is_dir()
        third = await install(library, folder(tmp_path / "src", TWO_TOOLS.replace("1.0.0", "3.0.0")))
        assert not first.directory.exists()
        assert await library.clean() == 1
        assert not second.directory.exists()
        assert on_disk(tmp_path) == {
            "demo", f"demo/{third.directory.name}",
            *(f"demo/{third.directory.name}/{name}" for name in ["toolset.yaml", "tools", *CODE]),
        }  # fmt: skip


@pytest.mark.parametrize("how", ["file", "function", "unnamed"])
async def test_a_tool_that_disappears_is_kept_aside_and_comes_back_as_it_was(tmp_path: Path, how: str) -> None:
    without_b = {
        "file": (TWO_TOOLS, {"tools/files.py": CODE["tools/files.py"]}),
        "function": (TWO_TOOLS, CODE | {"tools/more.py": "def other(): ...\n"}),
        "unnamed": (TWO_TOOLS[: TWO_TOOLS.index("- {id: b")], CODE),
    }
    async with opened(tmp_path) as library:
        await install(library, folder(tmp_path / "src", TWO_TOOLS))
        await library.override("demo", "b", {"enabled": False, "description_override": "Mine"})
        gone = await install(library, folder(tmp_path / "src", *without_b[how]))
        a, b = gone.tools
        assert (a.missing, [tool.id for tool in gone.spec.tools]) == (None, ["a"])
        assert b.missing is not None
        assert {"file": "no more.py", "function": "no 'b'", "unnamed": "no longer declares it"}[how] in b.missing
        assert (b.enabled, b.description, b.described and b.described["description"]) == (False, "Mine", "The b.")
        assert b"more:b" not in (await exported(library))[:400]
        again = await install(library, folder(tmp_path / "src", *without_b[how]))
        assert (again.changed, again.tools[1].missing) == (False, b.missing)
        back = await install(library, folder(tmp_path / "src", TWO_TOOLS))
        assert [(tool.id, tool.missing, tool.enabled) for tool in back.tools] == [
            ("demo:a", None, True),
            ("demo:b", None, False),
        ]
        assert back.tools[1].description == "Mine"


async def test_what_a_toolset_never_had_cannot_be_missing(tmp_path: Path) -> None:
    async with opened(tmp_path) as library:
        await install(library, folder(tmp_path / "src", TWO_TOOLS[: TWO_TOOLS.index("- {id: b")]))
        before = await library.get("demo")
        only_a = {"tools/files.py": CODE["tools/files.py"]}
        with pytest.raises(Invalid, match=r"line 6: 'tools.1.entrypoint': there is no more.py"):
            await install(library, folder(tmp_path / "src", TWO_TOOLS, only_a))
        with pytest.raises(Invalid, match=r"line 6: 'tools.1.entrypoint': .*there is no 'b'"):
            await install(library, folder(tmp_path / "src", TWO_TOOLS, only_a | {"tools/more.py": ""}))
        assert await library.get("demo") == before


async def test_broken_code_refuses_the_new_version_and_the_old_one_stays(tmp_path: Path, inspector: Reading) -> None:
    async with opened(tmp_path, inspector) as library:
        before = await install(library, folder(tmp_path / "src", TWO_TOOLS))
        disk = on_disk(tmp_path)
        inspector.answers["b"] = "tools/more.py line 1: SyntaxError: invalid syntax"
        with pytest.raises(Invalid, match=r"toolset.yaml line 6: 'tools.1.entrypoint': .*SyntaxError"):
            await install(library, folder(tmp_path / "src", TWO_TOOLS, CODE | {"tools/more.py": "def b( !"}))
        assert (await library.get("demo")).digest == before.digest
        assert on_disk(tmp_path) == disk


@pytest.mark.parametrize(
    ("declared", "complaint"),
    [
        ({"input_schema": {"type": "nonsense"}}, "schema"),
        ({"input_schema": {"type": "string"}}, "type: object"),
        ({"input_schema": {"type": "object", "$ref": "https://host/schema"}}, "outside the schema"),
        ({"input_schema": {"type": "object", "x": "x" * 300_000}}, "longer than 262144 bytes"),
        ({"input_schema": {"type": "object"}, "name": "a\nb"}, "name"),
        ({"input_schema": {"type": "object"}, "timeout": -1}, "timeout"),
        ({"input_schema": {"type": "object"}, "category": "Nonsense!"}, "category"),
        ({"input_schema": {"type": "object"}, "permission": "everything"}, "permission"),
        ({"input_schema": {"type": "object"}, "tags": ["x"] * 99}, "tags"),
        ({"input_schema": {"type": "object", "x": object()}}, "not JSON"),
        ({}, "input_schema"),
        ("its code ends the process", "ends the process"),
    ],
)
async def test_what_code_says_of_itself_is_not_believed_blindly(
    tmp_path: Path, inspector: Reading, declared: Any, complaint: str
) -> None:
    inspector.answers["b"] = declared
    async with opened(tmp_path / "data", inspector) as library:
        with pytest.raises(Invalid, match=r"toolset.yaml line 6: 'tools.1") as refused:
            await install(library, folder(tmp_path / "src", TWO_TOOLS))
        assert complaint in refused.value.message
    assert (on_disk(tmp_path / "data"), rows(tmp_path / "data")) == (set(), NO_ROWS)


async def test_code_that_changes_the_files_around_it_is_refused(tmp_path: Path) -> None:
    class Meddling(Reading):
        async def describe(self, spec: Any, directory: Path, progress: Any) -> Any:
            (directory / "tools/more.py").unlink()
            (directory / "tools/more.py").write_text("def b(): 'another'\n")
            return await super().describe(spec, directory, progress)

    async with opened(tmp_path / "data", Meddling()) as library:
        with pytest.raises(Conflict, match=r"tools/more.py.*was changed"):
            await install(library, folder(tmp_path / "src", TWO_TOOLS))
    assert (on_disk(tmp_path / "data"), rows(tmp_path / "data")) == (set(), NO_ROWS)


async def test_a_folder_that_changes_while_it_is_read_is_refused(tmp_path: Path) -> None:
    async def edit(done: float, total: float | None, message: str | None) -> None:
        if message == "unpacking":
            (tmp_path / "src/tools/more.py").write_text("def b(): 'edited'\n")

    async with opened(tmp_path / "data") as library:
        with pytest.raises(Conflict, match=r"'tools/more.py' was changed"):
            await install(library, folder(tmp_path / "src", TWO_TOOLS), progress=edit)
        assert (on_disk(tmp_path / "data"), rows(tmp_path / "data")) == (set(), NO_ROWS)
        assert (await install(library, tmp_path / "src")).changed


async def test_an_inspector_that_fails_or_is_cancelled_leaves_nothing(tmp_path: Path) -> None:
    class Failing(Reading):
        async def describe(self, spec: Any, directory: Path, progress: Any) -> Any:
            raise Unavailable("there is no sandbox")

    class Hanging(Reading):
        async def describe(self, spec: Any, directory: Path, progress: Any) -> Any:
            hanging.set()
            await anyio.sleep_forever()

    hanging = anyio.Event()
    data, source = tmp_path / "data", folder(tmp_path / "src", TWO_TOOLS)
    async with opened(data, Failing()) as library:
        with pytest.raises(Unavailable, match="no sandbox"):
            await install(library, source)
    assert (on_disk(data), rows(data)) == (set(), NO_ROWS)
    async with opened(data, Hanging()) as library, anyio.create_task_group() as group:
        group.start_soon(install, library, source)
        await hanging.wait()
        assert await library.clean() == 0
        assert any(path.startswith(".staging/") for path in on_disk(data))
        group.cancel_scope.cancel()
    assert (on_disk(data), rows(data)) == (set(), NO_ROWS)


async def test_two_that_install_one_toolset_at_once_do_so_one_after_the_other(tmp_path: Path) -> None:
    versions = [folder(tmp_path / f"src{n}", TWO_TOOLS.replace("1.0.0", f"{n}.0.0")) for n in range(1, 7)]
    data = tmp_path / "data"
    async with opened(data) as one, opened(data) as other, anyio.create_task_group() as group:
        for number, source in enumerate(versions):
            group.start_soon(install, (one, other)[number % 2], source)
    async with opened(data) as library:
        found = await library.get("demo")
        assert (found.directory / "toolset.yaml").read_text().count(f'"{found.spec.version}"') == 1
        await library.clean()
        assert {path.name for path in (data / "toolsets/demo").iterdir()} == {found.directory.name}
        assert len(await exported(library)) > 0


async def test_a_change_by_another_process_is_seen_in_the_list(tmp_path: Path) -> None:
    async with opened(tmp_path) as one, opened(tmp_path) as other:
        assert await one.list() == ()
        await install(other, folder(tmp_path / "src", TWO_TOOLS))
        assert [toolset.id for toolset in await one.list()] == ["demo"]
        assert await one.list() is await one.list()
        await other.enable("demo", False)
        assert [toolset.enabled for toolset in await one.list()] == [False]
        await other.uninstall("demo")
        assert await one.list() == ()


async def test_uninstalling_leaves_nothing(tmp_path: Path) -> None:
    async with opened(tmp_path) as library:
        await install(library, folder(tmp_path / "src", FULL))
        await library.override("demo", "a", {"enabled": False})
        before = await library.revision()
        await library.uninstall("demo")
        assert await library.revision() > before
        assert (on_disk(tmp_path), rows(tmp_path)) == (set(), NO_ROWS)
        with pytest.raises(NotFound):
            await library.get("demo")
        found = await install(library, folder(tmp_path / "src", FULL))
        assert found.tools[0].enabled


@pytest.mark.parametrize("verb", ["get", "uninstall", "enable", "export", "override", "clear_override"])
async def test_an_unknown_toolset_is_told_with_the_nearest_one(tmp_path: Path, verb: str) -> None:
    more = {"enable": (True,), "export": (open,), "override": ("a", {}), "clear_override": ("a",)}.get(verb, ())
    async with opened(tmp_path) as library:
        await install(library, folder(tmp_path / "src", TWO_TOOLS))
        with pytest.raises(NotFound, match=r"no toolset 'demmo' is installed; did you mean 'demo'\?") as refused:
            await getattr(library, verb)("demmo", *more)
    assert refused.value.code == "UNKNOWN_TOOLSET"


async def changed(library: ToolsetLibrary, **changes: Any) -> Any:
    return (await library.override("demo", "a", changes)).tools[0].override


async def test_a_person_changes_a_tool_and_takes_it_back(tmp_path: Path) -> None:
    async with opened(tmp_path) as library:
        before = await install(library, folder(tmp_path / "src", FULL))
        first = await changed(library, renderer="document", renderer_config={"content": "$return"}, enabled=False)
        assert (first.renderer, first.name_override, first.enabled) == ("document", "Alpha", False)
        second = await changed(library, renderer="frame", renderer_config={"port": "$return.port"}, name_override="B")
        assert (second.renderer_config, second.name_override) == ({"port": "$return.port"}, "B")
        third = await changed(library, renderer=None, name_override=None)
        assert (third.renderer, third.name_override, third.enabled) == ("code", "Alpha", False)
        assert (await library.override("demo", "b", {"enabled": None})).spec.tool_overrides[2:] == ()
        assert rows(tmp_path)["user_overrides"] == 1
        assert (await library.clear_override("demo", "demo:a")).tools == before.tools
        assert (await library.clear_override("demo", "a")).spec == before.spec
        server = await library.override("demo", "srv:search", {"requires_confirmation": False})
        assert server.overrides["srv:search"].requires_confirmation is False


@pytest.mark.parametrize(
    ("tool_id", "changes", "complaint"),
    [
        ("a", {"colour": 1}, "'colour': unknown key"),
        ("a", {"enabled": "yes"}, "'enabled'"),
        ("a", {"renderer": "image"}, "'renderer'"),
        ("a", {"renderer_config": {"content": "x"}}, "needs its 'renderer' beside it"),
        ("a", {"renderer": "code", "renderer_config": {"artefact": "x"}}, "unknown key 'artefact'"),
        ("a", {"renderer": "code"}, "'file' or 'content' is required"),
        ("a", {"renderer": "html", "renderer_config": {"artifact": "../x"}}, "'..'"),
        ("a", {"renderer": "html", "renderer_config": {"artifact": "x.html"}}, "there is no x.html"),
        ("a", {"description_override": "x" * 9000}, "longer than"),
        ("z", {"enabled": False}, "'z' is no tool"),
        ("other:a", {"enabled": False}, "'other:a' is no tool"),
    ],
)
async def test_a_change_that_makes_no_sense_is_refused(
    tmp_path: Path, tool_id: str, changes: dict[str, Any], complaint: str
) -> None:
    async with opened(tmp_path) as library:
        before = await install(library, folder(tmp_path / "src", FULL))
        with pytest.raises(GatewayError) as refused:
            await library.override("demo", tool_id, changes)
        assert complaint in refused.value.message
        assert isinstance(refused.value, Invalid | NotFound)
        assert (await library.get("demo")).spec == before.spec


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("id: one\nmcp_servers: [{id: srv, command: x}]\n", "id: two\nmcp_servers: [{id: srv, command: x}]\n"),
        ("id: one\nmcp_servers: [{id: two, command: x}]\n", "id: two\n"),
        ("id: two\n", "id: one\nmcp_servers: [{id: two, command: x}]\n"),
    ],
)
async def test_two_toolsets_whose_tools_would_meet_are_refused(tmp_path: Path, first: str, second: str) -> None:
    head = "name: N\nversion: '1.0.0'\n"
    async with opened(tmp_path) as library:
        await install(library, folder(tmp_path / "a", head + first, {}))
        disk = on_disk(tmp_path)
        with pytest.raises(Conflict, match="uninstall that toolset, or rename one of the two"):
            await install(library, folder(tmp_path / "b", head + second, {}))
        assert (on_disk(tmp_path), len(await library.list())) == (disk, 1)
        assert (await install(library, folder(tmp_path / "a", head + first + "description: new\n", {}))).changed


async def test_a_version_in_use_outlasts_every_clean_up(tmp_path: Path) -> None:
    async with opened(tmp_path) as library:
        first = await install(library, folder(tmp_path / "src", TWO_TOOLS))
        with hold_version(first.directory):
            for number in (2, 3):
                await install(library, folder(tmp_path / "src", TWO_TOOLS.replace("1.0.0", f"{number}.0.0")))
            await library.clean()
            assert (first.directory / "tools/files.py").is_file()
        assert await library.clean() == 1
        with pytest.raises(Unavailable, match="are gone"), hold_version(first.directory):
            pass


async def test_a_stored_version_that_was_damaged_is_mended_by_installing_again(tmp_path: Path) -> None:
    source = folder(tmp_path / "src", TWO_TOOLS)
    async with opened(tmp_path) as library:
        found = await install(library, source)
        (found.directory / "tools/more.py").unlink()
        assert (await install(library, source)).changed
        assert (found.directory / "tools/more.py").read_text() == CODE["tools/more.py"]


async def test_a_clean_up_touches_nothing_of_yours(tmp_path: Path) -> None:
    mine = folder(tmp_path / "toolsets" / "demo", TWO_TOOLS)
    async with opened(tmp_path) as library:
        await install(library, mine)
        await library.clean()
        await library.uninstall("demo")
        await library.clean()
    assert on_disk(tmp_path) == {"demo", *(f"demo/{name}" for name in ["toolset.yaml", "tools", *CODE])}


async def test_rows_that_cannot_be_read_spoil_no_other_toolset(tmp_path: Path) -> None:
    async with opened(tmp_path) as library:
        await install(library, folder(tmp_path / "src", TWO_TOOLS))
        await install(library, folder(tmp_path / "src", TWO_TOOLS.replace("id: demo", "id: other")))
        db = sqlite3.connect(tmp_path / "toolgate.db")
        db.execute("UPDATE toolsets SET spec = '{}' WHERE id = 'other'")
        db.execute("UPDATE revisions SET revision = revision + 1")
        db.commit()
        db.close()
        assert [toolset.id for toolset in await library.list()] == ["demo"]
        with pytest.raises(Unavailable, match="install it again"):
            await library.get("other")
        assert (await install(library, folder(tmp_path / "src", TWO_TOOLS.replace("id: demo", "id: other")))).id
