"""PackageDirectories of packages: no version of a chat's own workspace has them, and none takes them away."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway import Gateway
from gateway.workspace.blobs import FileBlobs
from gateway.workspace.checkout import Checkout, PackageDirectories

from .folders import let_it_age, new_checkout, write

pytestmark = pytest.mark.promise("T2")


def own(place: Path) -> Checkout:
    (place / "files").mkdir(exist_ok=True)
    return Checkout(place / "files", FileBlobs(place / "blobs"), place / "index", PackageDirectories())


def environment(folder: Path, name: str = ".venv", mark: str = "*\n") -> None:
    write(folder / name / ".gitignore", mark)
    write(folder / name / "lib/thing.py", f"of {name}")


@pytest.mark.parametrize("mark", ["*", "*\n", "*\r\n"])
def test_what_was_installed_is_in_no_version(tmp_path: Path, mark: str) -> None:
    checkout, files = own(tmp_path), tmp_path / "files"
    environment(files, ".venv", mark)
    environment(files, "node_modules", mark)
    write(files / "src/main.py")
    assert set(checkout.snapshot().files) == {"src/main.py"}
    assert not checkout.snapshot().meta
    let_it_age(files)
    write(files / ".venv/lib/more.py")
    assert set(checkout.snapshot().files) == {"src/main.py"}
    checkout.save()
    assert set(own(tmp_path).snapshot().files) == {"src/main.py"}


def test_all_else_is_versioned_whatever_its_ignore_files_say(tmp_path: Path) -> None:
    checkout, files = own(tmp_path), tmp_path / "files"
    write(files / ".gitignore", "*")
    write(files / "src/.gitignore", "*")
    write(files / "src/main.py")
    environment(files / "deep")
    environment(files, ".venv", "*\n!lib\n")
    write(files / "node_modules/x.js")
    seen = {".gitignore", "src/.gitignore", "src/main.py", "deep/.venv/.gitignore", "deep/.venv/lib/thing.py"}
    seen |= {".venv/.gitignore", ".venv/lib/thing.py", "node_modules/x.js"}
    assert set(checkout.snapshot().files) == seen


def test_a_directory_that_is_no_longer_left_out_is_versioned_again(tmp_path: Path) -> None:
    checkout, files = own(tmp_path), tmp_path / "files"
    environment(files)
    checkout.snapshot()
    let_it_age(files)
    checkout.snapshot()
    (files / ".venv/.gitignore").unlink()
    assert set(checkout.snapshot().files) == {".venv/lib/thing.py"}


def test_an_earlier_version_comes_back_and_the_environment_stays(tmp_path: Path) -> None:
    checkout, files = own(tmp_path), tmp_path / "files"
    write(files / "a.txt", "1")
    first = checkout.snapshot()
    write(files / "a.txt", "2")
    environment(files)
    checkout.snapshot()
    checkout.materialize(first)
    assert (files / "a.txt").read_text() == "1"
    assert (files / ".venv/lib/thing.py").exists()


def test_a_version_from_when_environments_were_in_it_comes_back_around_the_one_that_is_there(tmp_path: Path) -> None:
    files = tmp_path / "files"
    before = new_checkout(tmp_path)
    environment(files)
    write(files / "a.txt", "1")
    first = before.snapshot()
    assert ".venv/lib/thing.py" in first.files
    checkout = own(tmp_path)
    write(files / ".venv/lib/thing.py", "newer")
    write(files / "a.txt", "2")
    assert set(checkout.snapshot().files) == {"a.txt"}
    assert checkout.materialize(first).changed == ("a.txt",)
    assert (files / "a.txt").read_text() == "1"
    assert (files / ".venv/lib/thing.py").read_text() == "newer"
    assert set(checkout.snapshot().files) == {"a.txt"}


@pytest.mark.anyio
async def test_a_chats_own_workspace_leaves_them_out(tmp_path: Path) -> None:
    async def writes(content: str) -> Any:
        return await gateway.call("write_file", {"path": "a.txt", "content": content}, chat="c", confirmed=True)

    async with Gateway.open({"data_dir": tmp_path}) as gateway:
        await writes("1")
        environment(tmp_path / "chats/c/workspace")
        outcome = await writes("2")
        tree = await gateway.versions.tree("c", outcome.post_manifest)
        assert set(tree.files) == {"a.txt"}
