"""Toolsets written for a test, and what it takes to install them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gateway import Gateway
from gateway.bundles.installed import InstalledToolset
from gateway.sandbox.detect import survey


async def require_sandbox() -> None:
    found = await survey()
    if found.sandbox is None:
        reasons = "; ".join(f"{each.backend}: {each.reason}" for each in found.tried)
        if os.environ.get("TOOLGATE_REQUIRE_SANDBOX"):
            pytest.fail(f"no sandbox works here: {reasons}")
        pytest.skip(f"no sandbox works here: {reasons}")


async def install(gateway: Gateway, folder: Path) -> InstalledToolset:
    installed = await gateway.toolsets.library.install(folder, source_type="local", source_ref=str(folder))
    await gateway.refresh()
    return installed


def write_toolset(folder: Path, manifest: str, **modules: str) -> Path:
    """A toolset folder: the manifest, and Python modules of `tools/` by name."""
    (folder / "tools").mkdir(parents=True, exist_ok=True)
    (folder / "toolset.yaml").write_text(manifest)
    for name, code in modules.items():
        (folder / "tools" / f"{name}.py").write_text(code)
    return folder
