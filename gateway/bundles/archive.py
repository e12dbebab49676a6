"""A bundle: a toolset and its files, read from a ZIP or a folder without trusting either, and packed again.

Nothing here writes anywhere but into the file it is given.
"""

from __future__ import annotations

import hashlib
import stat
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO, Literal

from gateway import yamldoc
from gateway.bundles import paths, spec
from gateway.bundles.secret_references import mask_secrets
from gateway.bundles.spec import FILE_NAME, FILE_NAMES, INVALID_TOOLSET, Toolset
from gateway.bundles.tool_kinds import PythonTool, artifact_path
from gateway.bundles.zip_reader import CHUNK, ZipEntry, ZipReader, ZipWriter, refused
from gateway.errors import Conflict, Invalid, NotFound
from gateway.names import did_you_mean
from gateway.workspace import Entry, Parts, Root
from gateway.yamldoc import YamlDocument

_MEBIBYTE = 1024 * 1024
_PLAIN_FILE, _PROGRAM = stat.S_IFREG | 0o644, stat.S_IFREG | 0o755

FileKind = Literal["python", "artifact", "asset", "config"]


@dataclass(frozen=True)
class BundleLimits:
    """What a bundle may weigh. A ZIP may be larger than its files, so that what came from a folder
    and does not shrink can be packed and read again."""

    zip_bytes: int = 128 * _MEBIBYTE
    bytes: int = 100 * _MEBIBYTE
    file_bytes: int = 64 * _MEBIBYTE
    files: int = 5000
    ratio: int = 200
    ratio_from: int = _MEBIBYTE  # small text may shrink as far as it likes

    def is_bomb(self, size: int, packed: int) -> bool:
        return size > self.ratio_from and size > self.ratio * max(packed, 1)


LIMITS = BundleLimits()


@dataclass(frozen=True)
class BundleFile:
    """One file, checked once when the bundle was read and again whenever its content is."""

    path: str
    size: int
    sha256: str
    executable: bool
    source: Callable[[], Iterator[bytes]]

    @property
    def kind(self) -> FileKind:
        return kind_of(self.path)

    def chunks(self) -> Iterator[bytes]:
        """The content; `Conflict` at its end when it is no longer what was checked."""
        digest = hashlib.sha256()
        for chunk in self.source():
            digest.update(chunk)
            yield chunk
        if digest.hexdigest() != self.sha256:
            raise Conflict(f"{paths.shown(self.path)} was changed while the bundle was in use; read it again")

    def read(self) -> bytes:
        return b"".join(self.chunks())


@dataclass(frozen=True)
class Bundle:
    """A toolset and the files around its `toolset.yaml`, which itself is not among them: it is `dump(spec)`.

    `absent` has the tools whose code is not there, with the reason: only such as were known before.
    """

    spec: Toolset
    files: Mapping[str, BundleFile]
    absent: Mapping[str, str] = field(default_factory=dict)
    document: YamlDocument = field(default=YamlDocument(FILE_NAME, INVALID_TOOLSET), repr=False, compare=False)

    @property
    def digest(self) -> str:
        """The SHA-256 of what the bundle says and holds; comments and packing have no part in it."""
        whole = hashlib.sha256()
        for line in sorted(self._lines()):
            whole.update(line.encode())
        return whole.hexdigest()

    def masked(self) -> Bundle:
        """The bundle as it may be stored and handed over: without literal secrets in its `toolset.yaml`."""
        return replace(self, spec=mask_secrets(self.spec))

    def refusal(self, reason: str, *place: str | int) -> Invalid:
        """An error to raise, naming the line of the place in `toolset.yaml`."""
        return self.document.refusal(reason, place)

    def _lines(self) -> Iterator[str]:
        yield f"{FILE_NAME}\0{hashlib.sha256(spec.dump(self.spec).encode()).hexdigest()}\n"
        yield from (f"{path}\0{file.sha256}{file.executable:d}\n" for path, file in self.files.items())


@contextmanager
def open_bundle(path: Path, limits: BundleLimits = LIMITS, known: Collection[str] = ()) -> Iterator[Bundle]:
    """The bundle in a folder or a ZIP file, for as long as it is used. The code of a tool whose full id
    is `known` may have gone; any other tool must have some."""
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
    """The bundle in a ZIP file, which must stay open while the bundle is used. The files may lie in
    one folder. Refused whole with `INVALID_BUNDLE` and the path, or `INVALID_TOOLSET` and the line."""
    reader = ZipReader(file, limits.files, limits.zip_bytes)
    _check_names([entry.name for entry in reader.entries])
    kept = [entry for entry in reader.entries if not entry.is_directory and not paths.is_skipped(entry.name)]
    if sum(entry.size for entry in kept) > limits.bytes:
        raise refused(f"the files are larger than {limits.bytes} bytes together")
    folder = _folder([entry.name for entry in kept])
    return _bundle((_zip_file(reader, entry, folder, limits) for entry in kept), limits, known)


def read_folder(folder: Path, limits: BundleLimits = LIMITS, known: Collection[str] = ()) -> Bundle:
    """The bundle in a folder; links in it are refused, not followed."""
    if not folder.is_dir():
        raise NotFound(f"there is no folder {str(folder)!r}", code="BUNDLE_NOT_FOUND")
    with Root(folder) as root:
        found = list(_entries(root, limits))
        _check_names(["/".join(entry.parts) for entry in found])
        return _bundle((_folder_file(folder, entry, limits) for entry in found), limits, known)


def write_zip(bundle: Bundle, file: BinaryIO) -> None:
    """Pack the bundle into a file, the same content always as the same bytes. Whoever packs
    a bundle hands it over, so no literal secret of its `toolset.yaml` goes in."""
    manifest = spec.dump(bundle.masked().spec).encode()
    spec.load(manifest)  # what could not be read again is not packed
    writer = ZipWriter(file)
    writer.add(FILE_NAME, _PLAIN_FILE, lambda: [manifest], LIMITS.is_bomb)
    for path in sorted(bundle.files):
        item = bundle.files[path]
        writer.add(path, _PROGRAM if item.executable else _PLAIN_FILE, item.chunks, LIMITS.is_bomb)
    writer.close()


def kind_of(path: str) -> FileKind:
    """What a file is for, by the folder it is in, else by its name."""
    first = path.partition("/")[0] if "/" in path else ""
    if first in ("artifacts", "assets"):
        return "artifact" if first == "artifacts" else "asset"
    if path.endswith((".py", ".pyi")):
        return "python"
    config = (".yaml", ".yml", ".toml", ".json", ".ini", ".cfg")
    return "config" if "/" not in path and path.endswith(config) else "asset"


def _check_path(path: str) -> None:
    if reason := paths.fault(path):
        raise refused(reason, path)


def _check_names(names: Sequence[str]) -> None:
    """Refuse names that are none, or that are not one file each. A directory's ends in a slash."""
    seen: set[str] = set()
    for name in names:
        _check_path(name.removesuffix("/") or name)
        if name in seen:
            raise refused("is there twice", name)
        seen.add(name)
    if pair := paths.clash(names):
        raise refused(f"and {paths.shown(pair[0])} are one path on some systems; rename one", pair[1])


def _folder(names: Sequence[str]) -> str:
    """The one folder that everything lies in, with its slash, when `toolset.yaml` is there and not outside."""
    first = names[0].partition("/")[0] + "/" if names else ""
    if any(name in FILE_NAMES for name in names) or not all(name.startswith(first) for name in names):
        return ""
    return first if any(first + name in names for name in FILE_NAMES) else ""


def _zip_file(reader: ZipReader, entry: ZipEntry, folder: str, limits: BundleLimits) -> BundleFile:
    if limits.is_bomb(entry.size, entry.packed):
        raise refused(f"unpacks to more than {limits.ratio} times its size", entry.name)
    executable = bool(entry.mode & stat.S_IXUSR)
    path = entry.name.removeprefix(folder)
    return _measured(path, entry.size, executable, lambda: reader.chunks(entry), limits)


def _entries(root: Root, limits: BundleLimits) -> Iterator[Entry]:
    """The files of a folder. Each directory is asked by itself: one that cannot be read is an error."""
    seen = 0
    pending: list[Parts] = [()]
    while pending:
        with root.walk(pending.pop(), depth=1) as walk:
            for entry in walk:
                if entry.name in paths.SKIPPED:
                    continue
                seen += 1
                if seen > limits.files:
                    raise refused(f"there are more than {limits.files} files and folders in the folder")
                if entry.kind == "directory":
                    _check_path("/".join(entry.parts))
                    pending.append(entry.parts)
                    continue
                if entry.kind != "file":
                    what = "a symbolic link" if entry.kind == "symlink" else "a pipe, socket or device"
                    raise refused(f"is {what}; a bundle holds files only", entry.path)
                yield entry


def _folder_file(folder: Path, entry: Entry, limits: BundleLimits) -> BundleFile:
    def source() -> Iterator[bytes]:
        with Root(folder) as root, root.open(entry.parts) as file:
            while chunk := file.read(CHUNK):
                yield chunk

    executable = bool(entry.stat.st_mode & stat.S_IXUSR)
    return _measured("/".join(entry.parts), entry.stat.st_size, executable, source, limits)


def _measured(
    path: str, declared: int, executable: bool, source: Callable[[], Iterator[bytes]], limits: BundleLimits
) -> BundleFile:
    """The file, read through once: what was declared is now known."""
    if declared > limits.file_bytes:
        raise refused(f"is larger than {limits.file_bytes} bytes", path)
    digest, size = hashlib.sha256(), 0
    for chunk in source():
        digest.update(chunk)
        size += len(chunk)
        if size > limits.file_bytes:
            raise refused(f"is larger than {limits.file_bytes} bytes", path)
    return BundleFile(path, size, digest.hexdigest(), executable, source)


def _bundle(found: Iterable[BundleFile], limits: BundleLimits, known: Collection[str]) -> Bundle:
    files: dict[str, BundleFile] = {}
    total = 0
    for file in found:
        if reason := paths.secret_fault(file.path):
            raise refused(reason, file.path)
        total += file.size
        if total > limits.bytes:
            raise refused(f"the files are larger than {limits.bytes} bytes together", file.path)
        files[file.path] = file
    manifest = _manifest(files)
    toolset, document = spec.read(manifest.read(), manifest.path)
    kept = {path: files[path] for path in sorted(files) if path != manifest.path}
    _check_names([FILE_NAME, *kept])  # the name under which the manifest will be packed
    absent = _absent(toolset, kept, document, known)
    _check_artifacts(toolset, kept, document)
    return Bundle(toolset, kept, absent, document)


def _manifest(files: Mapping[str, BundleFile]) -> BundleFile:
    found = [files[name] for name in FILE_NAMES if name in files]
    if len(found) > 1:
        raise refused(f"stands beside {FILE_NAME}; keep one of the two", found[1].path)
    if not found:
        near = next((path for path in files if path.rpartition("/")[2].lower() in FILE_NAMES), None)
        hint = f"; there is {paths.shown(near)}" if near else ""
        raise refused(f"there is no {FILE_NAME} at the top of the bundle{hint}")
    if found[0].size > yamldoc.BYTES_LIMIT:
        raise refused(f"is larger than {yamldoc.BYTES_LIMIT // 1024} KiB", found[0].path)
    return found[0]


def _absent(
    toolset: Toolset, files: Mapping[str, BundleFile], document: YamlDocument, known: Collection[str]
) -> dict[str, str]:
    """The tools whose module is not in the bundle, and why; refused when one of them is not known."""
    found: dict[str, str] = {}
    for index, tool in enumerate(toolset.tools):
        if not isinstance(tool, PythonTool) or module_file(tool.entrypoint, files):
            continue
        wanted = " nor ".join(list(_modules(tool.entrypoint))[::2])
        near = did_you_mean(next(_modules(tool.entrypoint)), files)
        found[tool.id] = f"there is no {wanted} in the bundle{near}"
        if toolset.full_id(tool.id) not in known:
            raise document.refusal(found[tool.id], ("tools", index, "entrypoint"))
    return found


def _check_artifacts(toolset: Toolset, files: Mapping[str, BundleFile], document: YamlDocument) -> None:
    """Refuse an artifact that is declared and not in the bundle."""
    for index, tool in enumerate(toolset.tools):
        if tool.renderer is not None:
            _check_artifact(tool.renderer.config, files, document, ("tools", index, "renderer"))
    for index, override in enumerate(toolset.tool_overrides):
        place = ("tool_overrides", index, "renderer_config")
        _check_artifact(override.renderer_config or {}, files, document, place)


def _check_artifact(
    config: Mapping[str, object], files: Mapping[str, BundleFile], document: YamlDocument, place: yamldoc.Place
) -> None:
    path = artifact_path(config)
    if path is not None and path not in files:
        raise document.refusal(f"there is no {path} in the bundle{did_you_mean(path, files)}", (*place, "artifact"))


def module_file(entrypoint: str, files: Collection[str]) -> str | None:
    """The file an entrypoint leads to, if it is there."""
    return next((path for path in _modules(entrypoint) if path in files), None)


def _modules(entrypoint: str) -> Iterator[str]:
    """Where the module of an entrypoint may be: at the top of the bundle, or in `tools/`."""
    module = entrypoint.partition(":")[0].replace(".", "/")
    for start in ("", "tools/"):
        yield f"{start}{module}.py"
        yield f"{start}{module}/__init__.py"
