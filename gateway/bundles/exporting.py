"""An installed toolset as a bundle again."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import BinaryIO

from gateway.bundles.archive import Bundle, BundleFile, write_zip
from gateway.bundles.installed import Installed
from gateway.bundles.paths import shown
from gateway.bundles.store import held
from gateway.bundles.zip_reader import CHUNK
from gateway.db.toolsets import FileRow
from gateway.errors import Unavailable


def export(toolset: Installed, rows: Sequence[FileRow], file: BinaryIO) -> None:
    """Pack the toolset into a file; refused before the first byte when a stored file is not what it was."""
    with held(toolset.directory):
        files = {row.path: _file(toolset, row) for row in rows}
        for stored in files.values():
            for _ in stored.chunks():
                pass
        write_zip(Bundle(toolset.spec, files), file)


def _file(toolset: Installed, row: FileRow) -> BundleFile:
    def source() -> Iterator[bytes]:
        digest = hashlib.sha256()
        try:
            with (toolset.directory / row.path).open("rb") as stored:
                while chunk := stored.read(CHUNK):
                    digest.update(chunk)
                    yield chunk
        except OSError as error:
            raise _changed(toolset, row, f"cannot be read ({error.strerror})") from error
        if digest.hexdigest() != row.sha256:
            raise _changed(toolset, row, "is no longer what was installed")

    return BundleFile(row.path, row.size, row.sha256, row.executable, source)


def _changed(toolset: Installed, row: FileRow, what: str) -> Unavailable:
    reason = f"the stored file {shown(row.path)} of toolset {toolset.id!r} {what}; install the toolset again"
    return Unavailable(reason, code="STORED_FILE_CHANGED", toolset=toolset.id, path=row.path)
