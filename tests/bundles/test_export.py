"""What goes out is what came in, the person's changes included, always as the same bytes."""

from __future__ import annotations

import zipfile
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
import pytest
from amounts import amount
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.bundles import Toolset, dump, load, mask_secrets, read_zip
from gateway.errors import Unavailable

from .forging import Forged, forge
from .libraries import CODE, TWO_TOOLS, accept_any_renderer, exported, folder, install, on_disk, opened
from .test_library import FULL
from .test_round_trip import paths, toolsets


@pytest.mark.anyio
@pytest.mark.promise("T3", "T6")
async def test_an_export_says_what_was_installed_and_the_secrets_as_references(tmp_path: Path) -> None:
    source = folder(tmp_path / "src", FULL, CODE | {"artifacts/x.html": "<b>", "assets/data.bin": bytes(9000)})
    (source / "tools/files.py").chmod(0o755)
    async with opened(tmp_path / "data") as library:
        await install(library, source)
        first = await exported(library)
        assert await exported(library) == first
    with zipfile.ZipFile(BytesIO(first)) as archive:
        assert load(archive.read("toolset.yaml")) == mask_secrets(load(FULL))
        assert archive.getinfo("tools/files.py").external_attr >> 16 == 0o100755
        assert archive.read("assets/data.bin") == bytes(9000)


@pytest.mark.anyio
async def test_the_changes_of_a_person_go_with_the_export_and_come_back_as_the_toolsets_own(tmp_path: Path) -> None:
    async with opened(tmp_path / "one") as library:
        await install(library, folder(tmp_path / "src", FULL))
        await library.override("demo", "a", {"renderer": "document", "renderer_config": {"content": "x"}})
        await library.override("demo", "b", {"enabled": True, "description_override": "Mine"})
        await library.override("demo", "srv:other", {"name_override": "Other"})
        mine = await library.get("demo")
        first = await exported(library)
        (tmp_path / "demo.zip").write_bytes(first)
        assert await exported(library) == first
        assert (await install(library, tmp_path / "demo.zip")).changed
        assert await exported(library) == first
    async with opened(tmp_path / "two") as library:
        found = await install(library, tmp_path / "demo.zip")
        assert (found.spec, found.overrides) == (mine.spec, mine.overrides)
        assert [tool.enabled for tool in found.tools] == [tool.enabled for tool in mine.tools]
        assert await exported(library) == first


@pytest.mark.anyio
@pytest.mark.parametrize("how", ["changed", "gone"])
async def test_a_stored_file_that_is_not_what_it_was_is_told_by_name_and_nothing_goes_out(
    tmp_path: Path, how: str
) -> None:
    async with opened(tmp_path) as library:
        found = await install(library, folder(tmp_path / "src", TWO_TOOLS))
        (found.directory / "tools/more.py").unlink()
        if how == "changed":
            (found.directory / "tools/more.py").write_text("def b(): '!'\n")
        out = BytesIO()
        with pytest.raises(Unavailable, match=r"'tools/more.py' of toolset 'demo'.* install the toolset again") as no:
            await library.export("demo", out)
        assert (no.value.code, out.getvalue()) == ("STORED_FILE_CHANGED", b"")


contents = st.dictionaries(paths, st.tuples(st.binary(max_size=200), st.booleans()), max_size=4)


@pytest.mark.slow
@settings(deadline=None, max_examples=amount(40, 15))
@given(toolsets(), contents)
def test_import_export_import_export_is_lossless_byte_for_byte(
    toolset: Toolset, files: dict[str, tuple[bytes, bool]]
) -> None:
    code = Forged("tools/files.py", b"def run(): ...\n")
    kept = [
        Forged(f"a{number}/{path}", content, 0o100755 if run else 0o100644)
        for number, (path, (content, run)) in enumerate(files.items())
    ]

    async def main(place: Path) -> None:
        given = place / "given.zip"
        given.write_bytes(forge(Forged("toolset.yaml", dump(toolset).encode()), code, *kept).getvalue())
        async with (
            opened(place / "one", check_renderer=accept_any_renderer) as one,
            opened(place / "two", check_renderer=accept_any_renderer) as two,
        ):
            found = await install(one, given)
            assert found.spec == mask_secrets(toolset)
            first = await exported(one, toolset.id)
            (place / "first.zip").write_bytes(first)
            assert not (await install(one, place / "first.zip", source_ref=str(given))).changed
            assert (await install(two, place / "first.zip")).digest == found.digest
            assert await exported(two, toolset.id) == first == await exported(one, toolset.id)
            assert on_disk(place / "one") == on_disk(place / "two")
        bundle = read_zip(BytesIO(first))
        assert bundle.digest == found.digest
        assert {path: (file.read(), file.executable) for path, file in bundle.files.items()} == {
            str(entry.name): (entry.data, entry.mode == 0o100755) for entry in [code, *kept]
        }

    with TemporaryDirectory() as place:
        anyio.run(main, Path(place))
