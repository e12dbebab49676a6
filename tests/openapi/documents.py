"""The OpenAPI documents of real products, read without the importer's code: a second opinion on what they say."""

from __future__ import annotations

import gzip
import json
import os
import posixpath
import re
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parent.parent.parent
DATA = Path(os.environ.get("TOOLGATE_OPENAPI_DATA", ROOT.parent / "shared/data/openapi"))
METHODS = ("get", "put", "post", "delete", "options", "head", "patch", "trace")
# Operations of each document, as its README counts them.
OPERATIONS = {
    "callback-example.yaml": 1,
    "nasa-apod.yaml": 1,
    "xkcd.yaml": 2,
    "tictactoe.yaml": 3,
    "uspto.yaml": 3,
    "link-example.json": 6,
    "museum.yaml": 8,
    "notion.yaml": 13,
    "petstore.yaml": 19,
    "adyen-checkout-71.yaml": 25,
    "wiremock-admin.yaml": 33,
    "weather-gov.yaml": 58,
    "httpbin.yaml": 78,
    "spotify.yaml": 89,
    "slack.yaml": 174,
    "influxdb.yaml": 197,
    "twilio-api-v2010.json.gz": 197,
    "discord.json.gz": 242,
    "asana.yaml.gz": 247,
    "openai.yaml.gz": 288,
    "box.json.gz": 296,
    "bitbucket.yaml.gz": 305,
    "gitea.yaml": 346,
    "stripe.yaml.gz": 452,
    "jira.yaml.gz": 499,
    "digitalocean-multifile.tar.gz": 659,
    "github-ghes-3.6.yaml.gz": 808,
}
SMALL = [name for name, count in OPERATIONS.items() if count < 100 and name != "adyen-checkout-71.yaml"]

needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the documents of real products are not here")


def unpack(name: str, directory: Path) -> Path:
    """Return the document as a plain file in `directory`."""
    source = DATA / name
    if name.endswith(".tar.gz"):
        with tarfile.open(source) as archive:
            archive.extractall(directory, filter="data")
        return next(directory.rglob("DigitalOcean-public.v2.yaml"))
    path = directory / name.removesuffix(".gz")
    path.write_bytes(gzip.decompress(source.read_bytes()) if name.endswith(".gz") else source.read_bytes())
    return path


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """YAML as its authors meant it: dates and a bare `=` are text."""


for _tag in ("timestamp", "value"):
    _Loader.add_constructor(f"tag:yaml.org,2002:{_tag}", lambda loader, node: node.value)


def read(path: Path) -> Any:
    text = path.read_text(encoding="utf-8")
    return json.loads(text) if path.suffix == ".json" else yaml.load(re.sub(r"(?m)^[ \t]+$", "", text), _Loader)


class Dangling(Exception):
    """A reference to nothing."""


@dataclass(frozen=True)
class Node:
    """A value of a document and the file it is in, which its references are relative to."""

    value: Any
    file: str

    def __getitem__(self, key: Any) -> Node:
        return Node(self.value[key], self.file)

    def get(self, key: str) -> Node | None:
        return self[key] if isinstance(self.value, dict) and self.value.get(key) is not None else None

    def items(self) -> list[tuple[str, Node]]:
        return [(str(key), Node(value, self.file)) for key, value in (self.value or {}).items()]

    def __iter__(self) -> Iterator[Node]:
        return (Node(value, self.file) for value in self.value or ())


class Document:
    """A document whose references are followed one by one."""

    def __init__(self, path: Path) -> None:
        self._directory = path.parent
        self._files: dict[str, Any] = {path.name: read(path)}
        self.root = Node(self._files[path.name], path.name)

    def resolve(self, node: Node) -> Node:
        for _ in range(20):
            reference = node.value.get("$ref") if isinstance(node.value, dict) else None
            if not isinstance(reference, str):
                return node
            file, _, pointer = reference.partition("#")
            name = posixpath.normpath(posixpath.join(posixpath.dirname(node.file), file)) if file else node.file
            if name not in self._files:
                if not (self._directory / name).is_file():
                    raise Dangling(reference)
                self._files[name] = read(self._directory / name)
            value = self._files[name]
            for part in pointer.split("/")[1:]:
                key = part.replace("~1", "/").replace("~0", "~").replace("%7B", "{").replace("%7D", "}")
                try:
                    value = value[int(key)] if isinstance(value, list) else value[key]
                except (KeyError, IndexError, TypeError):
                    raise Dangling(reference) from None
            node = Node(value, name)
        raise Dangling("a cycle")

    def operations(self) -> Iterator[tuple[str, str, Node, Node]]:
        """Yield the method, the path, the operation and its path item."""
        for path, item in (self.root.get("paths") or Node({}, "")).items():
            item = self.resolve(item)
            for method in METHODS:
                if (operation := item.get(method)) is not None:
                    yield method, path, self.resolve(operation), item
