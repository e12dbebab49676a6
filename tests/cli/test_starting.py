"""How a command begins."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.cli import main

SCRIPT = """
import gc, json, sys
from gateway.cli import main
try:
    main(sys.argv[1:])
except SystemExit:
    print(json.dumps([gc.isenabled(), gc.get_freeze_count(), len(gc.get_objects())]), file=sys.stderr)
"""


@pytest.mark.parametrize("command", [pytest.param("serve", marks=pytest.mark.slow), "tool"])
def test_what_is_imported_for_a_command_is_never_searched_for_garbage(command: str) -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT, command, "--help"], capture_output=True, text=True, check=True)
    collecting, staying, searched = json.loads(done.stderr)
    assert collecting
    assert staying > 50 * searched


@pytest.mark.parametrize("command", [["tool", "list"], ["serve"], ["workspace", "ls"]])
def test_a_data_directory_that_cannot_be_made_is_a_clear_error(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit) as ended:
        main([*command, "--data-dir", str(tmp_path / "file/data")])
    assert ended.value.code == 1
    assert capsys.readouterr().err == (
        f"toolgate: DATA_DIR_UNUSABLE: the data directory {tmp_path}/file/data cannot be used: Not a directory; "
        "choose another with --data-dir or data_dir\n"
    )


def test_commands_that_look_load_no_sdk_and_no_web_server() -> None:
    names = ("upstream", "toolset", "call", "config", "workspace", "approval", "doctor")
    modules = ", ".join(f"gateway.cli.{name}" for name in names)
    script = f"import sys, {modules}; print({{'mcp', 'uvicorn'}} & {{*sys.modules}})"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


PARSERS = {"yaml", "tomllib"}
SERVERS = {"httpx2", "gateway.bundles", "gateway.mcp_client", "gateway.sandbox", "gateway.runtime"}
GATEWAY = {"gateway.gateway", "gateway.app", "sqlite3"}


@pytest.mark.parametrize(
    ("command", "unused"),
    [
        ("tool list", PARSERS | SERVERS),
        ("category list", PARSERS | SERVERS),
        ("approval list", PARSERS | SERVERS),
        ("call list", PARSERS | SERVERS),
        ("workspace ls --workspace .", PARSERS | SERVERS),
        ("key list", PARSERS | SERVERS),
        ("config show", PARSERS | SERVERS | GATEWAY),
        ("client list", SERVERS | GATEWAY),
        ("toolset list", {"httpx2"}),
        ("upstream list", {"httpx2"}),
        ("--version", PARSERS | SERVERS | GATEWAY | {"pydantic", "asyncio"}),
    ],
)
def test_command_that_looks_loads_nothing_that_it_does_not_use(command: str, unused: set[str], tmp_path: Path) -> None:
    script = (
        "import sys; from gateway.cli import main\n"
        "try: main(sys.argv[1:])\nexcept SystemExit as ended: print(*sys.modules, file=sys.stderr); raise"
    )
    folder = tmp_path / "folder"
    folder.mkdir()
    variables = {name: str(tmp_path / "home") for name in ("HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME")}
    program = [sys.executable, "-c", script, *command.split()]
    done = subprocess.run(program, env=os.environ | variables, cwd=folder, capture_output=True, text=True, check=True)
    assert unused & {*done.stderr.splitlines()[-1].split()} == set()


def test_a_data_directory_is_made_for_its_owner_only(tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        main(["tool", "list", "--data-dir", str(tmp_path / "deep/data")])
    assert [path.stat().st_mode & 0o777 for path in (tmp_path / "deep/data", tmp_path / "deep/data/run")] == [0o700] * 2


def test_the_doctor_names_the_settings_file_that_it_was_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "toolgate.yaml").write_text("chat: here\n")
    (tmp_path / "other.yaml").write_text("chat: there\n")
    for options, name in ((["--config", "other.yaml"], "other.yaml"), ([], "toolgate.yaml")):
        with pytest.raises(SystemExit):
            main(["doctor", "--json", "--data-dir", str(tmp_path / "data"), *options])
        [settings] = [each for each in json.loads(capsys.readouterr().out) if each["subject"] == "settings"]
        assert settings["message"] == str(tmp_path / name)
