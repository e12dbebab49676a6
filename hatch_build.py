"""The build hook that makes the editor of views where npm is there; without it they edit in a plain text area.

`python hatch_build.py` does the same in this tree. TOOLGATE_EDITOR=skip makes none; `require` fails the build
without one.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).resolve().parent
BUILT = ROOT / "gateway/serve/web/editor.js"
LICENSES = BUILT.with_name("editor.LICENSES.txt")
SECONDS = 300
_SOURCES = ("package.json", "package-lock.json", "editor.js")
_OPTIONS = ("--bundle", "--minify", "--target=es2022", "--format=iife", "--legal-comments=none", "--log-level=warning")


class EditorBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """Makes the editor before the files of a wheel or sdist are collected."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        wish = os.environ.get("TOOLGATE_EDITOR", "")
        if wish == "skip" or is_current():
            return
        try:
            build()
        except (OSError, subprocess.SubprocessError) as error:
            if wish == "require":
                raise
            self.app.display_warning(f"views will edit without highlighting: the editor was not made: {error}")


def is_current() -> bool:
    """Return whether the built file is made of the sources as they are. An sdist has it without them."""
    if not BUILT.exists():
        return False
    return not (ROOT / "editor").is_dir() or BUILT.read_text().startswith(_stamp())


def build() -> None:
    """Make the editor and the notices of the packages in it; raise OSError or SubprocessError if that fails."""
    npm = shutil.which("npm")
    if npm is None:
        raise FileNotFoundError("npm is not installed")
    folder = ROOT / "editor"
    install = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--no-progress", "--loglevel=error"]
    _run([*install, "--fetch-retries=1", "--fetch-timeout=30000"], folder)
    made, parts = BUILT.with_suffix(".new"), BUILT.with_suffix(".parts")
    try:
        options = [*_OPTIONS, f"--banner:js={_stamp()}", f"--metafile={parts}", f"--outfile={made}"]
        _run([str(folder / "node_modules/.bin/esbuild"), "editor.js", *options], folder)
        packages = {
            "/".join(name.split("/")[:3]).removesuffix("/dist") for name in json.loads(parts.read_text())["inputs"]
        }
        notices = {(folder / name / "LICENSE").read_text() for name in packages if (folder / name / "LICENSE").exists()}
        LICENSES.write_text("\n\n".join(sorted(notices)))
        made.replace(BUILT)
    finally:
        made.unlink(missing_ok=True)
        parts.unlink(missing_ok=True)


def _stamp() -> str:
    digest = hashlib.sha256(b"".join((ROOT / "editor" / name).read_bytes() for name in _SOURCES))
    return f"/* CodeMirror 6 and Lezer, MIT License, see {LICENSES.name}; made of {digest.hexdigest()[:16]} */"


def _run(command: list[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=SECONDS, check=False)
    if done.returncode:
        raise subprocess.SubprocessError(f"{Path(command[0]).name} failed: {done.stderr.strip()[-500:]}")


if __name__ == "__main__":
    if not is_current():
        build()
    sys.exit(0)
