"""The specification's own toolsets, written out from its text as it stands."""

from __future__ import annotations

import re
from pathlib import Path

_TEXTS = Path(__file__).parent / "seed"
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

_LEFT_TO_THE_READER = """\
import json

def process(data):
    return {"rows": len(data.splitlines())}

"""


def app_builder(folder: Path) -> Path:
    """The toolset of section 10: its YAML and its two modules, unchanged."""
    manifest, files, shell = _blocks("app-builder.md")
    return _written(folder, {"toolset.yaml": manifest, "tools/files.py": files, "tools/shell.py": shell})


def my_toolset(folder: Path) -> Path:
    """The toolset of sections 3.2 and 4.2, with what they leave to the reader: what the example imports
    and calls, a page, and the name under which the manifest knows each function."""
    manifest, analyze, transform = _blocks("my-toolset.md")
    return _written(
        folder,
        {
            "toolset.yaml": manifest,
            "tools/analyze.py": f"{_LEFT_TO_THE_READER}{analyze}\nrun = analyze_data\n",
            "tools/transform.py": f"from covalt_toolset import get_context\n\n{transform}\nrun = transform_file\n",
            "artifacts/results.html": "<!doctype html><html><head><title>Results</title></head><body></body></html>",
        },
    )


def _blocks(name: str) -> list[str]:
    return [match[2] for match in _BLOCK.finditer((_TEXTS / name).read_text(encoding="utf-8"))]


def _written(folder: Path, files: dict[str, str]) -> Path:
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    return folder
