"""Which folder a chat's files are in."""

import stat
from pathlib import Path

import pytest

from gateway.config import Settings
from gateway.errors import Invalid, NotFound
from gateway.workspace import Workspaces
from gateway.workspace.workspaces import attached_folders


def test_a_chat_gets_a_private_folder_at_first_use(tmp_path: Path) -> None:
    workspaces = Workspaces(tmp_path / "data")
    with workspaces.root("demo") as root:
        root.create(("a.txt",), b"hi")
    folder = tmp_path / "data/chats/demo/workspace"
    assert (folder / "a.txt").read_text() == "hi"
    assert stat.S_IMODE(folder.stat().st_mode) == stat.S_IMODE(folder.parent.stat().st_mode) == 0o700


def test_two_chats_do_not_meet(tmp_path: Path) -> None:
    workspaces = Workspaces(tmp_path)
    with workspaces.root("Demo") as one, workspaces.root("demo") as other, workspaces.root("../demo") as third:
        one.create(("a",), b"")
        assert other.find(("a",)) is None
        assert third.find(("a",)) is None
    assert all(path.parent == tmp_path / "chats" for path in (tmp_path / "chats").iterdir())


def test_an_attached_folder_is_used_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    workspaces = Workspaces(tmp_path / "data", {"demo": tmp_path / "mine"})
    with workspaces.root("demo") as root:
        root.create(("a",), b"")
    assert (tmp_path / "mine/a").exists()
    assert not (tmp_path / "data").exists()


def test_other_processes_know_the_folder_of_a_chat_that_has_one(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    settings = Settings(workspace=tmp_path / "mine", data_dir=tmp_path / "data")
    [chat] = attached = attached_folders(settings)
    assert Workspaces(tmp_path / "data").folder(chat) is None
    Workspaces(tmp_path / "data", attached).path(chat)
    assert Workspaces(tmp_path / "data").folder(chat) == (tmp_path / "mine").resolve()
    Workspaces(tmp_path / "data", {"demo": tmp_path / "mine"}).path("demo")
    assert Workspaces(tmp_path / "data").folder("demo") is None


def test_an_attached_folder_that_is_missing_is_told(tmp_path: Path) -> None:
    with pytest.raises(NotFound) as refused:
        Workspaces(tmp_path, {"demo": tmp_path / "gone"}).root("demo")
    assert refused.value.code == "WORKSPACE_NOT_FOUND"
    assert not (tmp_path / "gone").exists()


@pytest.mark.parametrize(("workspace", "data"), [("w", "w/data"), ("w", "w"), ("d/w", "d"), ("link", "w/data")])
def test_a_folder_that_holds_what_tools_are_held_to_is_not_attached(tmp_path: Path, workspace: str, data: str) -> None:
    (tmp_path / "w").mkdir()
    (tmp_path / "d/w").mkdir(parents=True)
    (tmp_path / "link").symlink_to("w")
    with pytest.raises(Invalid) as refused:
        attached_folders(Settings(workspace=tmp_path / workspace, data_dir=tmp_path / data))
    assert refused.value.code == "WORKSPACE_HOLDS_DATA"
    assert attached_folders(Settings(workspace=tmp_path / "w", data_dir=tmp_path / "w-data"))
