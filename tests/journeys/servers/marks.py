"""A toolset whose MCP server leaves a mark each time it is started, and the command line beside it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from sources.toolset.writing import write_toolset

from .labs import TINY

MANIFEST = """
id: marks
name: Marks
version: 1.0.0
mcp_servers:
  - id: marker
    command: {python}
    args: [-S, -E, server.py, {argument}]
    env: {{WHERE: "${{HOME}}"}}
    sandbox: false
"""
TOOLS = 'tools:\n  - {id: say, entrypoint: "code:say"}\n'
CODE = "def say(workspace, text: str = '') -> dict:\n    '''Say it.'''\n    return {'said': text}\n"
MARK = 'with open({!r}, "a") as file:\n    file.write("started\\n")\n'


class Marks:
    """The toolset in the folder `marks` of a home directory."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.environment = {"HOME": str(home), "PATH": os.environ["PATH"]}
        self._marker = home / "marker"
        self.write()

    def write(self, argument: str = "first", code: str = "", tools: bool = True) -> None:
        manifest = MANIFEST.format(python=sys.executable, argument=argument) + (TOOLS if tools else "")
        folder = write_toolset(self.home / "marks", manifest, code=CODE)
        mark = MARK.format(str(self._marker))
        (folder / "server.py").write_text(TINY.read_text().replace("\nSAID", f"\n{mark}\nSAID", 1) + code)

    @property
    def starts(self) -> int:
        """How often the server was started."""
        return len(self._marker.read_text().splitlines()) if self._marker.exists() else 0

    def toolgate(self, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "gateway", *arguments]
        done = subprocess.run(command, cwd=self.home, env=self.environment, capture_output=True, text=True)
        assert done.returncode == code, done.stderr or done.stdout
        return done
