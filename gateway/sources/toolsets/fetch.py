"""Where a bundle comes from: a folder, a ZIP file, or a URL that is fetched first."""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from gateway.bundles.archive import LIMITS
from gateway.bundles.rows import SourceType
from gateway.calls import Progress, no_progress
from gateway.config import HttpSettings
from gateway.net import Policy

DOWNLOAD_SECONDS = 300.0


@dataclass(frozen=True)
class Sourced:
    """A bundle on disk, and where it came from."""

    path: Path
    type: SourceType
    ref: str

    @property
    def is_folder(self) -> bool:
        return self.type == "local"


@asynccontextmanager
async def sourced(source: str, http: HttpSettings, progress: Progress = no_progress) -> AsyncIterator[Sourced]:
    """The bundle a person named, for as long as it is used."""
    if "://" not in source:
        path = Path(source).expanduser().resolve()
        yield Sourced(path, "local" if path.is_dir() else "zip", str(path))
        return
    # The HTTP client takes a tenth of a second to load, and folders and files need none.
    download = importlib.import_module("gateway.net.download").download
    with tempfile.NamedTemporaryFile(prefix="toolgate-", suffix=".zip") as file:
        policy = Policy(any_host=True, allow_private=http.allow_private)
        await download(source, file, limit=LIMITS.zip_bytes, timeout=DOWNLOAD_SECONDS, policy=policy, progress=progress)
        file.flush()
        yield Sourced(Path(file.name), "url", source)
