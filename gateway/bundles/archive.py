"""Bundles: a toolset and its files, read from an untrusted ZIP or folder, and written as a ZIP.

The only file written is the one passed in.
"""

from __future__ import annotations

import hashlib
import stat
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field, replace
from functools import cached_property
from pathlib import Path
from typing import BinaryIO, Literal

from gateway import yamldoc
from gateway.bundles import paths, spec
from gateway.bundles.secret_references import find_open_secret, mask_secrets
from gateway.bundles.spec import FILE_NAME, FILE_NAMES, INVALID_TOOLSET, Toolset
from gateway.bundles.tool_kinds import PythonTool, artifact_path
from gateway.bundles.zip_reader import CHUNK, ZipEntry, ZipReader, ZipWriter, bundle_error
from gateway.document import Place, YamlDocument, join_place
from gateway.errors import Conflict, Invalid, NotFound
from gateway.names import did_you_mean
from gateway.value import Value
from gateway.workspace import Entry, Parts, Root

_MEBIBYTE = 1024 * 1024
_PLAIN_FILE, _PROGRAM = stat.S_IFREG | 0o644, stat.S_IFREG | 0o755

FileKind = Literal["python", "artifact", "asset", "config"]


class BundleLimits(Value):
    """Size limits of a bundle. A ZIP may be larger than its files, so that a folder of incompressible files can
    be packed and read again."""

    zip_bytes: int = 128 * _MEBIBYTE
    bytes: int = 100 * _MEBIBYTE
    file_bytes: int = 64 * _MEBIBYTE
    files: int = 5000
    ratio: int = 200
    ratio_from: int = _MEBIBYTE  # below this size any ratio is harmless

    def is_bomb(self, size: int, packed: int) -> bool:
        return size > self.ratio_from and size > self.ratio * max(packed, 1)


LIMITS = BundleLimits()


class BundleFile(Value):
    """One file; its digest is computed when the bundle is read and checked whenever the content is read again."""

    path: str
    size: int
    sha256: str
    executable: bool
    source: Callable[[], Iterator[bytes]]

    @property
    def kind(self) -> FileKind:
        return file_kind(self.path)

    def chunks(self) -> Iterator[bytes]:
        """Yield the content; `Conflict` at its end when it differs from the digest."""
        digest = hashlib.sha256()
        for chunk in self.source():
            digest.update(chunk)
            yield chunk
        if digest.hexdigest() != self.sha256:
            raise Conflict(f"{paths.quote_path(self.path)} was changed while the bundle was in use; read it again")

    def read(self) -> bytes:
        return b"".join(self.chunks())


class Bundle(Value):
    """A toolset and its files, without `toolset.yaml`, which is `dump(spec)`.

    `absent` maps tools that were known before and whose code is not in the bundle to the reason.
    """

    spec: Toolset
    files: Mapping[str, BundleFile]
    absent: Mapping[str, str] = field(default_factory=dict)
    document: YamlDocument = field(default=YamlDocument(FILE_NAME, INVALID_TOOLSET), repr=False, compare=False)

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of the manifest's values and the files; comments and compression do not count."""
        whole = hashlib.sha256()
        for line in sorted(self._lines()):
            whole.update(line.encode())
        return whole.hexdigest()

    def without_secrets(self) -> Bundle:
        """Return the bundle as it may be stored and shared: without literal secrets in its `toolset.yaml`. Refused
        where one stands that no reference can replace."""
        if (found := find_open_secret(self.spec)) is not None:
            place, name = found
            fix = f"this holds a secret; write env: {{{name}: '${{{name}}}'}} and secrets: [{name}], and read it there"
            raise Invalid(self.refusal(fix, *place).message, code="LITERAL_SECRET", key=join_place(place))
        return replace(self, spec=mask_secrets(self.spec))

    def refusal(self, reason: str, *place: str | int) -> Invalid:
        """Return an error that names the line of the place in `toolset.yaml`."""
        return self.document.refusal(reason, place)

    def _lines(self) -> Iterator[str]:
        yield f"{FILE_NAME}\0{hashlib.sha256(spec.dump(self.spec).encode()).hexdigest()}\n"
        yield from (f"{path}\0{file.sha256}{file.executable:d}\n" for path, file in self.files.items())


@contextmanager
def open_bundle(path: Path, limits: BundleLimits = LIMITS, known: Collection[str] = ()) -> Iterator[Bundle]:
    """Yield the bundle in a folder or a ZIP file. The code of a tool whose full id is in `known` may be absent; any
    other tool must have code."""
    if path.is_dir():
        yield read_folder(path, limits, known)
        return
    try:
        file = path.open("rb")
    except OSError as error:
        reason = f"there is no folder or ZIP file {str(path)!r} to read: {error.strerror}"
        raise NotFound(reason, code="BUNDLE_NOT_FOUND") from None
    with file:
        yield read_zip(file, limits, known)


def read_zip(file: BinaryIO, limits: BundleLimits = LIMITS, known: Collection[str] = ()) -> Bundle:
    """Read a bundle from a ZIP file, which must stay open while the bundle is used. The files may be in one
    top folder. Refused with `INVALID_BUNDLE` and the path, or `INVALID_TOOLSET` and the line."""
    return _build_bundle(read_zip_files(file, limits, FILE_NAMES), limits, known)


def read_zip_files(file: BinaryIO, limits: BundleLimits, manifests: Collection[str]) -> Iterator[BundleFile]:
    """Yield the files of a ZIP file, without the top folder if all are in one that holds one of `manifests`."""
    reader = ZipReader(file, limits.files, limits.zip_bytes)
    _check_names([entry.name for entry in reader.entries])
    kept = [entry for entry in reader.entries if not entry.is_directory and not paths.is_skipped(entry.name)]
    if sum(entry.size for entry in kept) > limits.bytes:
        raise bundle_error(f"the files are larger than {limits.bytes} bytes together")
    folder = _top_folder([entry.name for entry in kept], manifests)
    return (_read_zip_file(reader, entry, folder, limits) for entry in kept)


def read_folder(folder: Path, limits: BundleLimits = LIMITS, known: Collection[str] = ()) -> Bundle:
    """Read a bundle from a folder; links in it are refused, not followed."""
    if not folder.is_dir():
        raise NotFound(f"there is no folder {str(folder)!r}", code="BUNDLE_NOT_FOUND")
    with Root(folder) as root:
        found = list(_list_files(root, limits))
        _check_names(["/".join(entry.parts) for entry in found])
        return _build_bundle((_read_folder_file(folder, entry, limits) for entry in found), limits, known)


def write_zip(bundle: Bundle, file: BinaryIO) -> None:
    """Write the bundle as a ZIP file: the same content gives the same bytes. Literal secrets of its `toolset.yaml`
    are masked, since a ZIP file is made to be shared."""
    manifest = spec.dump(bundle.without_secrets().spec).encode()
    spec.load(manifest)  # refuses what could not be read again
    writer = ZipWriter(file)
    writer.add(FILE_NAME, _PLAIN_FILE, lambda: [manifest], LIMITS.is_bomb)
    for path in sorted(bundle.files):
        item = bundle.files[path]
        writer.add(path, _PROGRAM if item.executable else _PLAIN_FILE, item.chunks, LIMITS.is_bomb)
    writer.close()


def file_kind(path: str) -> FileKind:
    """Return the kind of a file, by its top folder, else by its name."""
    first = path.partition("/")[0] if "/" in path else ""
    if first in ("artifacts", "assets"):
        return "artifact" if first == "artifacts" else "asset"
    if path.endswith((".py", ".pyi")):
        return "python"
    config = (".yaml", ".yml", ".toml", ".json", ".ini", ".cfg")
    return "config" if "/" not in path and path.endswith(config) else "asset"


def _check_path(path: str) -> None:
    if reason := paths.path_problem(path):
        raise bundle_error(reason, path)


def _check_names(names: Sequence[str]) -> None:
    """Refuse invalid, repeated and clashing names. The name of a directory ends in a slash."""
    seen: set[str] = set()
    for name in names:
        _check_path(name.removesuffix("/") or name)
        if name in seen:
            raise bundle_error("occurs twice", name)
        seen.add(name)
    if pair := paths.find_clash(names):
        raise bundle_error(f"and {paths.quote_path(pair[0])} are one path on some systems; rename one", pair[1])


def _top_folder(names: Sequence[str], manifests: Collection[str]) -> str:
    """Return the folder that holds everything, with its slash, or '' when the manifest is at the top."""
    first = names[0].partition("/")[0] + "/" if names else ""
    if any(name in manifests for name in names) or not all(name.startswith(first) for name in names):
        return ""
    return first if any(first + name in names for name in manifests) else ""


def _read_zip_file(reader: ZipReader, entry: ZipEntry, folder: str, limits: BundleLimits) -> BundleFile:
    if limits.is_bomb(entry.size, entry.packed):
        raise bundle_error(f"unpacks to more than {limits.ratio} times its size", entry.name)
    executable = bool(entry.mode & stat.S_IXUSR)
    path = entry.name.removeprefix(folder)
    return _hash_file(path, entry.size, executable, lambda: reader.chunks(entry), limits)


def _list_files(root: Root, limits: BundleLimits) -> Iterator[Entry]:
    """Yield the files of a folder. Directories are walked one by one, so that an unreadable one is an error."""
    seen = 0
    pending: list[Parts] = [()]
    while pending:
        with root.walk(pending.pop(), depth=1) as walk:
            for entry in walk:
                if entry.name in paths.SKIPPED:
                    continue
                seen += 1
                if seen > limits.files:
                    raise bundle_error(f"there are more than {limits.files} files and folders in the folder")
                if entry.kind == "directory":
                    _check_path("/".join(entry.parts))
                    pending.append(entry.parts)
                    continue
                if entry.kind != "file":
                    what = "a symbolic link" if entry.kind == "symlink" else "a pipe, socket or device"
                    raise bundle_error(f"is {what}; a bundle holds files only", entry.path)
                yield entry


def _read_folder_file(folder: Path, entry: Entry, limits: BundleLimits) -> BundleFile:
    def source() -> Iterator[bytes]:
        with Root(folder) as root, root.open(entry.parts) as file:
            while chunk := file.read(CHUNK):
                yield chunk

    executable = bool(entry.stat.st_mode & stat.S_IXUSR)
    return _hash_file("/".join(entry.parts), entry.stat.st_size, executable, source, limits)


def _hash_file(
    path: str, declared: int, executable: bool, source: Callable[[], Iterator[bytes]], limits: BundleLimits
) -> BundleFile:
    """Read a file once to find its real size and digest."""
    if declared > limits.file_bytes:
        raise bundle_error(f"is larger than {limits.file_bytes} bytes", path)
    digest, size = hashlib.sha256(), 0
    for chunk in source():
        digest.update(chunk)
        size += len(chunk)
        if size > limits.file_bytes:
            raise bundle_error(f"is larger than {limits.file_bytes} bytes", path)
    return BundleFile(path, size, digest.hexdigest(), executable, source)


def _build_bundle(found: Iterable[BundleFile], limits: BundleLimits, known: Collection[str]) -> Bundle:
    files: dict[str, BundleFile] = {}
    total = 0
    for file in found:
        if reason := paths.secret_problem(file.path):
            raise bundle_error(reason, file.path)
        total += file.size
        if total > limits.bytes:
            raise bundle_error(f"the files are larger than {limits.bytes} bytes together", file.path)
        files[file.path] = file
    manifest = _find_manifest(files)
    toolset, document = spec.read(manifest.read(), manifest.path)
    kept = {path: files[path] for path in sorted(files) if path != manifest.path}
    _check_names([FILE_NAME, *kept])  # the manifest is packed under this name
    absent = _find_absent_tools(toolset, kept, document, known)
    _check_artifacts(toolset, kept, document)
    return Bundle(toolset, kept, absent, document)


def _find_manifest(files: Mapping[str, BundleFile]) -> BundleFile:
    found = [files[name] for name in FILE_NAMES if name in files]
    if len(found) > 1:
        raise bundle_error(f"exists beside {FILE_NAME}; remove one of the two", found[1].path)
    if not found:
        near = next((path for path in files if path.rpartition("/")[2].lower() in FILE_NAMES), None)
        hint = f"; there is {paths.quote_path(near)}" if near else "; `toolgate toolset new DIR` makes a toolset"
        raise bundle_error(f"there is no {FILE_NAME} at the top of the bundle{hint}")
    if found[0].size > yamldoc.BYTES_LIMIT:
        raise bundle_error(f"is larger than {yamldoc.BYTES_LIMIT // 1024} KiB", found[0].path)
    return found[0]


def _find_absent_tools(
    toolset: Toolset, files: Mapping[str, BundleFile], document: YamlDocument, known: Collection[str]
) -> dict[str, str]:
    """Return the tools whose module is not in the bundle, with the reason; refused when one is not in `known`."""
    found: dict[str, str] = {}
    for index, tool in enumerate(toolset.tools):
        if not isinstance(tool, PythonTool) or module_file(tool.entrypoint, files):
            continue
        wanted = " nor ".join(list(_module_paths(tool.entrypoint))[::2])
        near = did_you_mean(next(_module_paths(tool.entrypoint)), files)
        found[tool.id] = f"there is no {wanted} in the bundle{near}"
        if toolset.full_id(tool.id) not in known:
            raise document.refusal(found[tool.id], ("tools", index, "entrypoint"))
    return found


def _check_artifacts(toolset: Toolset, files: Mapping[str, BundleFile], document: YamlDocument) -> None:
    """Refuse an artifact that is declared but not in the bundle."""
    for index, tool in enumerate(toolset.tools):
        if tool.renderer is not None:
            _check_artifact(tool.renderer.config, files, document, ("tools", index, "renderer"))
    for index, override in enumerate(toolset.tool_overrides):
        place = ("tool_overrides", index, "renderer_config")
        _check_artifact(override.renderer_config or {}, files, document, place)


def _check_artifact(
    config: Mapping[str, object], files: Mapping[str, BundleFile], document: YamlDocument, place: Place
) -> None:
    path = artifact_path(config)
    if path is not None and path not in files:
        raise document.refusal(f"there is no {path} in the bundle{did_you_mean(path, files)}", (*place, "artifact"))


def module_file(entrypoint: str, files: Collection[str]) -> str | None:
    """Return the file of an entrypoint's module, or None when it is not in the bundle."""
    return next((path for path in _module_paths(entrypoint) if path in files), None)


def _module_paths(entrypoint: str) -> Iterator[str]:
    """Candidate paths of an entrypoint's module: at the top of the bundle, then in `tools/`."""
    module = entrypoint.partition(":")[0].replace(".", "/")
    for start in ("", "tools/"):
        yield f"{start}{module}.py"
        yield f"{start}{module}/__init__.py"
