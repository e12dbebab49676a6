"""Bundles that mean harm, all the way through install: each refused whole, by its cause, and nothing left of it.

What code does while it is imported is the inspector's to stop; a sandboxed one can stand in for the fixture.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import pytest

from gateway.bundles import BundleLimits
from gateway.bundles.library import ToolsetLibrary
from gateway.errors import GatewayError, Invalid

from .forging import MANIFEST, Forged, bundle, forge
from .libraries import HEAD, NO_ROWS, Reading, install, on_disk, opened, rows
from .test_malice import CONTAINERS, LIES, NAMES

pytestmark = [pytest.mark.anyio, pytest.mark.promise("T3")]

TOOL = HEAD + "tools:\n- {id: a, entrypoint: 'files:a'}\n"
CODE = Forged("tools/files.py", b"def a(): ...\n")


def pack(text: str, *entries: Forged) -> BytesIO:
    return bundle(CODE, *entries, manifest=text.encode())


def alias_bomb() -> str:
    levels = [f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 9)}]\n" for n in range(1, 9)]
    return HEAD + "l0: &l0 [x]\n" + "".join(levels)


MANIFESTS: dict[str, tuple[BytesIO, str]] = {
    "no YAML": (pack("id: [demo\n"), "line 2: invalid YAML"),
    "a tag": (pack(HEAD + "description: !!python/object/apply:os.system [id]\n"), "line 4: the tag"),
    "an alias bomb": (pack(alias_bomb()), "line 4: anchors (&) and aliases (*) are not supported"),
    "a merge key": (pack(HEAD + "tools:\n- <<: {id: a}\n"), "merge keys"),
    "nesting without end": (pack(HEAD + "description: " + "[" * 500 + "]" * 500), "nested deeper than 48"),
    "a huge manifest": (pack(HEAD + "# " + "x" * 8_400_000), "is larger than 8192 KiB"),
    "too many values": (pack(HEAD + "tags: [" + "1," * 500_001 + "]"), "more than 500000 values"),
    "a key twice": (pack(HEAD + "name: Other\n"), "'name' occurs twice"),
    "a second document": (pack(HEAD + "---\nid: other\n"), "second document"),
    "no UTF-8": (bundle(manifest=MANIFEST + b"# \xff\n"), "not UTF-8"),
    "an unknown key": (pack(HEAD + "tols: []\n"), "line 4: 'tols': unknown key; did you mean 'tools'?"),
    "a reserved id": (pack(HEAD.replace("demo", "toolgate")), "'toolgate' is reserved"),
    "another reserved id": (pack(HEAD.replace("demo", "builtin")), "'builtin' is reserved"),
    "a device as an id": (pack(HEAD.replace("demo", "nul")), "'nul' is reserved"),
    "an id that leaves": (pack(HEAD.replace("id: demo", "id: ../demo")), "'../demo' is no id"),
    "an id that hides": (pack(HEAD.replace("id: demo", "id: .staging")), "'.staging' is no id"),
    "two tools of one id": (pack(TOOL + "- {id: a, entrypoint: 'files:a'}\n"), "'a' occurs twice"),
    "an unknown renderer": (pack(TOOL.replace("}", ", renderer: {type: image}}")), "'tools.0.renderer.type'"),
    "a renderer that cannot be": (
        pack(TOOL.replace("}", ", renderer: {type: code, contents: x}}")),
        "line 5: 'tools.0.renderer': renderer 'code': unknown key 'contents'",
    ),
    "an override that cannot be": (
        pack(TOOL + "tool_overrides:\n- {tool_id: a, renderer: frame, renderer_config: {url: 'javascript:x()'}}\n"),
        "line 7: 'tool_overrides.0.renderer_config'",
    ),
    "an artifact outside": (
        pack(TOOL.replace("}", ", renderer: {type: html, artifact: ../../secret.html}}")),
        "'../../secret.html' has '..' in it",
    ),
    "an override of somebody else's tool": (
        pack(TOOL + "tool_overrides:\n- {tool_id: 'other:tool', enabled: false}\n"),
        "'other:tool' is no tool or server of this toolset",
    ),
    "a level that is none": (pack("permission: everything\n" + TOOL), "'permission': "),
    "a tool of a level that is none": (pack(TOOL.replace("}", ", permission: all}")), "'tools.0.permission': "),
    "an entrypoint outside": (pack(TOOL.replace("files:a", "..evil:a")), "not of the form 'module.path:function'"),
    "an entrypoint that is not there": (pack(TOOL.replace("files:a", "nothing:a")), "there is no nothing.py"),
    "a function that is not there": (pack(TOOL.replace("files:a", "files:z")), "there is no 'z'"),
    "a command in a shell": (
        pack(HEAD + "tools:\n- {id: a, type: shell, command: [sh, -c, 'ls ${path}']}\n"),
        "would become code",
    ),
    "a host chosen by the caller": (
        pack(HEAD + "tools:\n- {id: a, type: http, url_template: 'https://${host}/'}\n"),
        "would choose the host",
    ),
    "a file of secrets": (
        pack(TOOL, Forged("assets/.env", b"KEY=x")),
        "'assets/.env' usually holds secrets, and a toolset is shared; declare the variable under 'secrets'",
    ),
    "a key": (pack(TOOL, Forged("assets/server.pem", b"-----BEGIN")), "'assets/server.pem' usually holds secrets"),
    "another key": (pack(TOOL, Forged("ID_RSA", b"-----BEGIN")), "'ID_RSA' usually holds secrets"),
    "a local environment": (pack(TOOL, Forged(".env.production", b"K=x")), "declare the variable under 'secrets'"),
}


async def refused(library: ToolsetLibrary, data: Path, source: Path) -> GatewayError:
    """Why it is refused; checked to have left nothing."""
    with pytest.raises(Invalid) as no:
        await install(library, source)
    assert (on_disk(data), rows(data)) == (set(), NO_ROWS)
    return no.value


async def test_every_malicious_zip_is_refused_whole_and_by_its_cause(tmp_path: Path, inspector: Reading) -> None:
    names = {f"the name {name!r}": (bundle(Forged(name, b"x")), repr(name[:100])[:-1]) for name in NAMES}
    lies = {name: (bundle(entry), reason) for name, (entry, reason) in LIES.items()}
    data, source = tmp_path / "data", tmp_path / "given.zip"
    seen = 0
    async with opened(data, inspector) as library:
        for name, (file, reason) in (names | lies | CONTAINERS | MANIFESTS).items():
            source.write_bytes(file.getvalue())
            refusal = await refused(library, data, source)
            assert reason in refusal.message, name
            assert refusal.code in ("INVALID_BUNDLE", "INVALID_TOOLSET"), name
            seen += 1
        assert seen > 100
        source.write_bytes(pack(TOOL).getvalue())
        assert (await install(library, source)).changed
        before = (on_disk(data), rows(data), (await library.get("demo")))
        for name, (file, _) in MANIFESTS.items():
            source.write_bytes(file.getvalue().replace(b"def a()", b"def a( )"))
            with pytest.raises(Invalid):
                await install(library, source)
            assert (on_disk(data), rows(data), await library.get("demo")) == before, name


LIMITS = {
    "entries": (BundleLimits(files=3), "more than 3"),
    "bytes": (BundleLimits(bytes=3000), "larger than 3000 bytes together"),
    "a file's bytes": (BundleLimits(file_bytes=900), "larger than 900 bytes"),
    "packed bytes": (BundleLimits(zip_bytes=3000), "larger than 3000 bytes"),
}


@pytest.mark.parametrize(("limits", "reason"), LIMITS.values(), ids=LIMITS)
async def test_a_bundle_over_a_limit_leaves_nothing(tmp_path: Path, limits: BundleLimits, reason: str) -> None:
    source = tmp_path / "given.zip"
    entries = [Forged(f"assets/{number}", os.urandom(1000)) for number in range(4)]
    source.write_bytes(forge(Forged("toolset.yaml", MANIFEST), *entries).getvalue())
    async with opened(tmp_path / "data", limits=limits) as library:
        assert reason in (await refused(library, tmp_path / "data", source)).message


FOLDERS: dict[str, tuple[Callable[[Path], object], str]] = {
    "a link to a secret": (lambda place: (place / "x").symlink_to("/etc/passwd"), "'x' is a symbolic link"),
    "a link to a folder": (lambda place: (place / "x").symlink_to("/etc"), "'x' is a symbolic link"),
    "a pipe": (lambda place: os.mkfifo(place / "x"), "'x' is a pipe"),
    "a manifest that is a link": (lambda place: _linked(place), "'toolset.yaml' is a symbolic link"),
    "names that differ by case": (lambda place: _both(place), "are one path on some systems"),
    "a file of secrets": (lambda place: (place / ".env").write_text("K=v"), "'.env' usually holds secrets"),
}


def _linked(place: Path) -> None:
    (place / "toolset.yaml").rename(place.parent / "elsewhere.yaml")
    (place / "toolset.yaml").symlink_to(place.parent / "elsewhere.yaml")


def _both(place: Path) -> None:
    (place / "readme").write_text("x")
    (place / "README").write_text("y")


@pytest.mark.parametrize(("spoil", "reason"), FOLDERS.values(), ids=FOLDERS)
async def test_every_malicious_folder_is_refused_whole(
    tmp_path: Path, spoil: Callable[[Path], object], reason: str
) -> None:
    source = tmp_path / "src"
    source.mkdir()
    (source / "toolset.yaml").write_bytes(MANIFEST)
    spoil(source)
    async with opened(tmp_path / "data") as library:
        assert reason in (await refused(library, tmp_path / "data", source)).message
