"""An OpenAPI document with the files it refers to. References are resolved when they are followed, so a document of
thousands of files is read as far as it is used."""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

from gateway import yamldoc
from gateway.document import YamlDocument
from gateway.errors import GatewayError, Invalid, NotFound

INVALID_OPENAPI = "INVALID_OPENAPI"
FILES_LIMIT = 10_000
TOTAL_BYTES_LIMIT = 128 * 1024 * 1024
_HOPS_LIMIT = 32

# Returns the content of a URL; called from a worker thread.
Fetch = Callable[[str], bytes]


class UnresolvedReference(Exception):
    """A `$ref` that leads nowhere; the message says why."""


class OpenApiDocument:
    """A document of version 3.0 or 3.1, read from a file or a URL. References to files stay in the folder of the
    document; references to URLs, and all of a document from a URL, are fetched with `fetch`."""

    def __init__(self, location: str, fetch: Fetch) -> None:
        self.location = location
        self._fetch = fetch
        self._left = TOTAL_BYTES_LIMIT
        self._targets: dict[str, Any] = {}
        self._folder = None if "://" in location else Path(location).resolve().parent
        self.name = location if self._folder is None else Path(location).name
        self._content = self._read(self.name)
        root = yamldoc.read_fast(self._content, self.name, INVALID_OPENAPI)
        self._files: dict[str, Any] = {self.name: root}
        version = root.get("openapi") if isinstance(root, dict) else None
        if not isinstance(root, dict) or not str(version).startswith(("3.0", "3.1")):
            raise self.refusal(_explain_version(root))
        if not isinstance(root.get("paths", {}), dict):
            raise self.refusal("this must be keys and values", "paths")
        self.root: dict[str, Any] = root

    def refusal(self, reason: str, *place: str | int) -> Invalid:
        """An error that names the line of a place in the document."""
        line = yamldoc.find_line(self._content, place) if place else None
        return YamlDocument(self.name, INVALID_OPENAPI).refusal(reason, place, line)

    def resolve(self, node: Any) -> Any:
        """Follow `$ref` until something else stands there; `UnresolvedReference` when nothing does."""
        for _ in range(_HOPS_LIMIT):
            reference = node.get("$ref") if isinstance(node, dict) else None
            if not isinstance(reference, str):
                return node
            node = self.target(reference)
        raise UnresolvedReference("its references form a cycle")

    def target(self, reference: str) -> Any:
        """The node that a reference names."""
        if reference not in self._targets:
            self._targets[reference] = self._find(reference)
        return self._targets[reference]

    def _find(self, reference: str) -> Any:
        file, _, pointer = reference.partition("#")
        node = self._load(self._locate(file, self.name) if file else self.name)
        for part in pointer.split("/")[1:]:
            key = unquote(part).replace("~1", "/").replace("~0", "~")
            if isinstance(node, list) and key.isdecimal() and int(key) < len(node):
                node = node[int(key)]
            elif isinstance(node, dict) and key in node:
                node = node[key]
            else:
                raise UnresolvedReference(f"{reference!r} is not in the document")
        return node

    def _load(self, location: str) -> Any:
        if location not in self._files:
            if len(self._files) >= FILES_LIMIT:
                raise UnresolvedReference(f"the document refers to more than {FILES_LIMIT} files")
            try:
                value = yamldoc.read_fast(self._read(location), location, INVALID_OPENAPI)
            except GatewayError as error:
                raise UnresolvedReference(error.message) from None
            self._make_absolute(value, location)
            self._files[location] = value
        return self._files[location]

    def _make_absolute(self, value: Any, location: str) -> None:
        """Rewrite the references of another file so that they mean the same from the main document."""
        stack, seen = [value], set()
        while stack:
            node = stack.pop()
            if isinstance(node, list):
                stack += node
            elif isinstance(node, dict) and id(node) not in seen:
                seen.add(id(node))
                reference = node.get("$ref")
                if isinstance(reference, str):
                    file, pointer = urldefrag(reference)
                    node["$ref"] = f"{self._locate(file, location) if file else location}#{pointer}"
                stack += node.values()

    def _locate(self, file: str, base: str) -> str:
        if "://" in file or "://" in base:
            return urljoin(base, file) if "://" in base else file
        return posixpath.normpath(posixpath.join(posixpath.dirname(base), unquote(file)))

    def _read(self, location: str) -> bytes:
        content = self._fetch(location) if "://" in location else self._read_file(location)
        self._left -= len(content)
        if self._left < 0:
            raise Invalid(f"the files of the document are larger than {TOTAL_BYTES_LIMIT // 1024**2} MiB together")
        return content

    def _read_file(self, location: str) -> bytes:
        if self._folder is None:
            raise UnresolvedReference(f"{location!r} is no URL")
        path = (self._folder / location).resolve()
        if not path.is_relative_to(self._folder):
            raise Invalid(f"{location!r} is outside the folder of the document; copy the file beside it")
        try:
            with path.open("rb") as file:
                return file.read(yamldoc.FAST_BYTES_LIMIT + 1)
        except OSError as error:
            reason = f"there is no file {location!r} to read: {error.strerror}"
            raise NotFound(reason, code="OPENAPI_NOT_FOUND") from None


def _explain_version(root: Any) -> str:
    if isinstance(root, dict) and "swagger" in root:
        return f"this is Swagger {root['swagger']}; convert it to OpenAPI 3, for example with swagger2openapi"
    version = root.get("openapi") if isinstance(root, dict) else None
    if version is None:
        return "this is no OpenAPI document: the key 'openapi' is missing"
    return f"OpenAPI {version} is not supported; 3.0 and 3.1 are"
