"""`.mcpb` files: ZIP files with one MCP server and a `manifest.json` that says how it is started.

Only the folder that is passed in is written to, and nothing of the file is run.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import struct
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated, BinaryIO, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gateway.bundles.archive import BundleFile, BundleLimits, read_zip_files
from gateway.bundles.store import storage_errors, sync, write_files
from gateway.bundles.zip_reader import CHUNK, bundle_error
from gateway.errors import NotFound
from gateway.files import sync_directory
from gateway.names import new_id
from gateway.value import Value

SUFFIX = ".mcpb"
MANIFEST = "manifest.json"
_PROJECT = "pyproject.toml"
# A bundle has its dependencies in it: a node_modules folder is many small files.
LIMITS = BundleLimits(
    zip_bytes=512 * 1024**2, bytes=1024**3, file_bytes=256 * 1024**2, files=30_000, ratio=200, ratio_from=1024**2
)
_MANIFEST_LIMIT = 1024**2
# A signed file has a block after the ZIP file, or in its comment.
_SIGNATURE, _SIGNATURE_END = b"MCPB_SIG_V1", b"MCPB_SIG_END"
_SIGNATURE_LIMIT = 256 * 1024
_END_SIGNATURE, _COMMENT_LENGTH, _END_SIZE = b"PK\5\6", 20, 22

Text = Annotated[str, Field(max_length=8192)]
Line = Annotated[str, Field(max_length=300)]
Scalar = Text | bool | int | float


class McpbPart(BaseModel):
    """A part of the manifest; keys of later versions are ignored."""

    model_config = ConfigDict(frozen=True, defer_build=True)


class UserConfig(McpbPart):
    """A value that the person is asked for."""

    type: Literal["string", "number", "boolean", "directory", "file"]
    title: Line = ""
    description: Text = ""
    required: bool = False
    default: Scalar | Annotated[list[Scalar], Field(max_length=100)] | None = None
    multiple: bool = False
    sensitive: bool = False
    min: float | None = None
    max: float | None = None


class StartCommand(McpbPart):
    command: Text | None = None
    args: Annotated[list[Text], Field(max_length=200)] | None = None
    env: Annotated[dict[Line, Text], Field(max_length=200)] | None = None


class McpConfig(StartCommand):
    platform_overrides: dict[str, StartCommand] = {}


class BundledServer(McpbPart):
    type: Literal["node", "python", "binary", "uv"]
    entry_point: Text = ""
    mcp_config: McpConfig | None = None


class McpbCompatibility(McpbPart):
    platforms: list[str] | None = None


class McpbAuthor(McpbPart):
    name: Line = ""


class McpbManifest(McpbPart):
    """`manifest.json`, as far as it matters to whoever starts the server."""

    name: Annotated[str, Field(min_length=1, max_length=200)]
    version: Line
    server: BundledServer
    display_name: Line | None = None
    description: Text = ""
    author: McpbAuthor = McpbAuthor.model_construct()
    user_config: Annotated[dict[Line, UserConfig], Field(max_length=100)] = {}
    compatibility: McpbCompatibility | None = None

    @property
    def title(self) -> str:
        return self.display_name or self.name

    def on_platform(self) -> StartCommand:
        """Return the command of this platform, with its `${…}` as written."""
        config = self.server.mcp_config or McpConfig()
        own = config.platform_overrides.get(sys.platform, StartCommand())
        return StartCommand(
            command=own.command or config.command,
            args=own.args if own.args is not None else config.args,
            env={**(config.env or {}), **(own.env or {})},
        )


class PythonProject(McpbPart):
    """The part `project` of a `pyproject.toml`."""

    dependencies: Annotated[list[Text], Field(max_length=1000)] = []
    python: Text | None = Field(default=None, alias="requires-python")


class McpbBundle(Value):
    """An unpacked `.mcpb` file; `digest` is the SHA-256 of the file."""

    digest: str
    manifest: McpbManifest
    folder: Path
    signed: bool = False

    def start_command(self) -> tuple[str, list[str], dict[str, str]]:
        """The command, arguments and environment on this platform, with their `${…}` as written."""
        start = self.manifest.on_platform()
        if start.command is not None:
            return start.command, list(start.args or ()), dict(start.env or {})
        if self.manifest.server.type != "uv":
            raise bundle_error("has no server.mcp_config.command, which says how to start it", MANIFEST)
        # uv cannot write its lock file or environment into the folder, which is read-only.
        entry_point = f"${{__dirname}}/{self.manifest.server.entry_point}"
        env = {"PYTHONPATH": "${__dirname}:${__dirname}/src", **(start.env or {})}
        if (self.folder / "uv.lock").is_file():
            options = ["--frozen", "--no-install-project", "--project", "${__dirname}"]
            env = {"UV_PROJECT_ENVIRONMENT": "${__home}/.venv", **env}
        else:
            options = ["--no-project", *self._dependencies()]
        return "uv", ["run", *options, entry_point, *(start.args or ())], env

    def _dependencies(self) -> list[str]:
        try:
            with (self.folder / _PROJECT).open("rb") as file:
                content = tomllib.loads(file.read(_MANIFEST_LIMIT).decode())
            project = PythonProject.model_validate(content.get("project", {}))
        except (OSError, ValueError, RecursionError):
            raise bundle_error("is missing, is no TOML file, or has a [project] that is not valid", _PROJECT) from None
        python = [f"--python={project.python}"] if project.python else []
        return [*python, *(f"--with={each}" for each in project.dependencies)]


def unpack_mcpb(path: Path, folder_of: Callable[[str], Path]) -> McpbBundle:
    """Unpack a file into the folder that `folder_of` names for its digest, whole or not at all; blocking."""
    try:
        file = path.open("rb")
    except OSError as error:
        raise NotFound(f"{str(path)!r} cannot be read: {error.strerror}", code="FILE_NOT_FOUND") from None
    with file, _strip_signature(file) as (unsigned, signed):
        digest = _sha256(file)
        files = {each.path: each for each in read_zip_files(unsigned, LIMITS, [MANIFEST])}
        manifest = _parse_manifest(files)
        folder = folder_of(digest)
        if folder.is_dir():
            _renew(folder)
        else:
            _write_folder(list(_mark_executable(files, manifest)), folder)
    return McpbBundle(digest, manifest, folder, signed)


def read_unpacked(folder: Path, digest: str) -> McpbBundle:
    """Read an unpacked file again; refused if it is not there."""
    try:
        content = (folder / MANIFEST).read_bytes()
        _renew(folder)
    except OSError:
        raise NotFound("the .mcpb file is not unpacked here; send it again", code="BUNDLE_NOT_FOUND") from None
    return McpbBundle(digest, _validate(content), folder)


def _renew(folder: Path) -> None:
    """Begin the time again after which an unpacked file that was not added is removed."""
    with suppress(OSError):
        os.utime(folder)


def _mark_executable(files: Mapping[str, BundleFile], manifest: McpbManifest) -> Iterator[BundleFile]:
    """The files, with the program executable: ZIP files made on Windows have no modes."""
    server = manifest.server
    command = (manifest.on_platform().command or "").removeprefix("${__dirname}").removeprefix("/")
    programs = {server.entry_point, command} if server.type == "binary" else {command}
    yield from (replace(file, executable=True) if file.path in programs else file for file in files.values())


def _write_folder(files: list[BundleFile], folder: Path) -> None:
    made = folder.with_name(f".{new_id()}")
    with storage_errors():
        folder.parent.mkdir(0o700, parents=True, exist_ok=True)
    try:
        write_files(files, made)
        sync(made)
        with storage_errors():
            if not folder.is_dir():  # else another process was faster
                made.rename(folder)
                sync_directory(str(folder.parent))
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _parse_manifest(files: Mapping[str, BundleFile]) -> McpbManifest:
    if MANIFEST not in files:
        raise bundle_error(f"there is no {MANIFEST} at the top of the file")
    if files[MANIFEST].size > _MANIFEST_LIMIT:
        raise bundle_error(f"is larger than {_MANIFEST_LIMIT // 1024} KiB", MANIFEST)
    manifest = _validate(files[MANIFEST].read())
    platforms = manifest.compatibility and manifest.compatibility.platforms
    if platforms and sys.platform not in platforms:
        raise bundle_error(f"is for {', '.join(map(repr, platforms))}, and this is {sys.platform!r}", MANIFEST)
    server = manifest.server
    if server.type in ("node", "python", "uv") and server.entry_point and server.entry_point not in files:
        raise bundle_error(f"names {server.entry_point!r} as its entry point, which is not in the file", MANIFEST)
    return manifest


def _validate(content: bytes) -> McpbManifest:
    try:
        return McpbManifest.model_validate(json.loads(content))
    except ValidationError as error:
        fault = error.errors()[0]
        raise bundle_error(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}", MANIFEST) from None
    except (ValueError, RecursionError):
        raise bundle_error("is not valid JSON", MANIFEST) from None


@contextmanager
def _strip_signature(file: BinaryIO) -> Iterator[tuple[BinaryIO, bool]]:
    """Yield the ZIP file without the signature after it, which is not checked, and whether there was one."""
    size = file.seek(0, 2)
    if size > LIMITS.zip_bytes:
        raise bundle_error(f"the file is larger than {LIMITS.zip_bytes} bytes")
    start = file.seek(max(0, size - _SIGNATURE_LIMIT))
    tail = file.read()
    at = tail.rfind(_SIGNATURE)
    if at < 0 or not tail.endswith(_SIGNATURE_END):
        yield file, False
        return
    with tempfile.TemporaryFile() as unsigned:
        file.seek(0)
        shutil.copyfileobj(file, unsigned, CHUNK)
        unsigned.truncate(start + at)
        _remove_comment(unsigned)
        yield unsigned, True


def _remove_comment(file: BinaryIO) -> None:
    """Set the length of the comment to none, since signing may have counted the signature as one."""
    size = file.seek(0, 2)
    file.seek(max(0, size - _END_SIZE))
    if file.read(len(_END_SIGNATURE)) != _END_SIGNATURE:
        raise bundle_error("no ZIP file ends where the signature of the file begins")
    file.seek(size - _END_SIZE + _COMMENT_LENGTH)
    file.write(struct.pack("<H", 0))
    file.flush()


def _sha256(file: BinaryIO) -> str:
    digest = hashlib.sha256()
    file.seek(0)
    while chunk := file.read(CHUNK):
        digest.update(chunk)
    return digest.hexdigest()
