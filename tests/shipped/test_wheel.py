"""The package as it is installed: shipped toolsets are in it, and are found by their names from any directory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import anyio
import pytest
from sources.toolset.writing import require_sandbox

from gateway.sources.toolsets.assembly import find_shipped

ROOT = Path(__file__).parent.parent.parent

# A module of the environment that runs this test, whose packages the fresh one borrows.
PACKAGES = Path(pytest.__file__).parent.parent


def run(*command: str | Path, cwd: Path) -> str:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VIRTUAL_ENV"))}
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("wheel")
    script = "import sys; from hatchling.build import build_wheel; print(build_wheel(sys.argv[1]))"
    return directory / run(sys.executable, "-c", script, directory, cwd=ROOT).split()[-1]


@pytest.mark.promise("T9")
def test_wheel_holds_the_shipped_toolsets_and_no_leftovers(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    shipped = {f"gateway/shipped/{name}/toolset.yaml" for name in ("app-builder", "customer-support", "data-lab")}
    assert shipped <= set(names)
    assert not [name for name in names if name.endswith(".pyc")]
    assert not [name for name in names if name.startswith("gateway/") and len(name.split("/")) > 8]


def test_wheel_holds_the_web_surface(wheel: Path) -> None:
    packaged = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("gateway/serve/web/")}
    web = ROOT / "gateway/serve/web"
    sources = [path for path in web.rglob("*") if path.suffix in (".js", ".css", ".html", ".py")]
    assert len(sources) > 20
    assert {str(path.relative_to(ROOT)) for path in sources} <= packaged


@pytest.mark.slow
@pytest.mark.promise("T9")
def test_shipped_toolset_is_installed_by_its_name_after_pip_install(wheel: Path, tmp_path: Path) -> None:
    anyio.run(require_sandbox)
    venv.create(tmp_path / "venv", with_pip=False)
    python = tmp_path / "venv/bin/python"
    [packages] = (tmp_path / "venv/lib").glob("python*/site-packages")
    (packages / "borrowed.pth").write_text(f"{PACKAGES}\n")  # its .pth files, such as ours, are not read
    run(sys.executable, "-m", "uv", "pip", "install", "--python", python, "--no-deps", "--offline", wheel, cwd=tmp_path)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    where = run(python, "-c", "import gateway, covalt_toolset; print(gateway.__file__)", cwd=elsewhere)
    assert where.startswith(str(packages))
    listing = "from gateway.serve.web.static import load_files; print(*load_files().contents)"
    console = run(python, "-c", listing, cwd=elsewhere).split()
    assert {"console/main.js", "console/shell.css", "console/pages/approvals.js", "core/dom.js"} <= {*console}
    toolgate = tmp_path / "venv/bin/toolgate"
    installed = json.loads(
        run(toolgate, "toolset", "install", "app-builder", "--json", "--data-dir", "data", cwd=elsewhere)
    )
    assert installed["id"] == "app-builder" and not installed["live"]
    wrote = run(
        toolgate,
        *("tool", "call", "app-builder:write_file", "path=a.txt", "content=hi", "--yes", "--data-dir", "data"),
        cwd=elsewhere,
    )
    assert "a.txt" in wrote


def test_name_of_a_shipped_toolset_is_no_path(tmp_path: Path) -> None:
    assert find_shipped("app-builder") is not None
    for name in ("", ".", "..", "covalt_toolset", "../toolsets/app-builder", "app-builder/", "/etc", "nothing"):
        assert find_shipped(name) is None
