"""Bundles that mean harm: each refused whole, with the path or the line, and nothing written anywhere."""

from __future__ import annotations

import os
import struct
from io import BytesIO
from pathlib import Path

import pytest

from gateway.bundles import BundleLimits, read_folder, read_zip
from gateway.errors import Invalid

from .forging import LINK, MANIFEST, Forged, bundle, forge

MEBIBYTE = 1024 * 1024
ZEROS = b"\0" * (2 * MEBIBYTE)


def unicode_name(name: bytes) -> bytes:
    return struct.pack("<HHBL", 0x7075, 5 + len(name), 1, 0) + name


def descriptor(crc: int, packed: int, size: int) -> bytes:
    return struct.pack("<4s3L", b"PK\7\x08", crc, packed, size)


NAMES = [
    "/etc/passwd",
    "../evil.py",
    "tools/../../evil.py",
    "tools/..",
    "tools\\evil.py",
    "..\\evil.py",
    "C:evil.py",
    "C:/evil.py",
    "tools/a.py:stream",
    "//host/share",
    "./toolset.py",
    "tools//a.py",
    "",
    "/",
    "tools/a\0.py",
    "tools/a\n.py",
    "tools/a\x1b[31m.py",
    "tools/a\x85.py",
    "tools/\u202eyp.exe",
    "tools/\u200ba.py",
    "nul",
    "tools/CON.py",
    "tools/com1.tar.gz",
    "tools/aux ",
    "tools/a.",
    "tools/a?.py",
    "tools/" + "x" * 200,
    "/".join(["d"] * 40),
    "/".join(["x" * 100] * 8),
    ".toolgate-half",
]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_leaves_or_confuses_is_refused_by_name(name: str) -> None:
    with pytest.raises(Invalid) as refused:
        read_zip(bundle(Forged(name, b"x")))
    assert refused.value.code == "INVALID_BUNDLE"
    assert repr(name[:100])[:-1] in refused.value.message


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("tools/a.py", "tools/a.py"),
        ("tools/a.py", "tools/A.py"),
        ("tools/a.py", "Tools/b.py"),
        ("assets/é", "assets/e\u0301"),
        ("assets/ﬁ", "assets/fi"),
        ("assets/straße", "assets/STRASSE"),
        ("assets", "assets/a"),
        ("assets/", "assets"),
    ],
)
def test_two_names_that_are_one_file_somewhere_are_refused(first: str, second: str) -> None:
    with pytest.raises(Invalid) as refused:
        read_zip(bundle(Forged(first, mode=0), Forged(second, mode=0)))
    assert refused.value.code == "INVALID_BUNDLE"
    assert repr(second) in refused.value.message


TRUTH = b"print('hello')\n"
LIES = {
    "a symbolic link": (Forged("tools/a.py", b"/etc/passwd", mode=LINK), "is a symbolic link"),
    "a link that calls itself a directory": (Forged("tools/", mode=LINK), "is a symbolic link"),
    "a pipe": (Forged("tools/a.py", mode=0o010644), "is not a regular file"),
    "a device": (Forged("tools/a.py", mode=0o060644), "is not a regular file"),
    "a directory without its slash": (Forged("tools/a.py", mode=0o040755), "is not a regular file"),
    "a setuid program": (Forged("tools/a.py", b"x", mode=0o104755), "setuid"),
    "a directory with content": (Forged("tools/", b"x", mode=0), "directory with content"),
    "an encrypted entry": (Forged("tools/a.py", TRUTH, flags=0x801), "is encrypted"),
    "strong encryption": (Forged("tools/a.py", TRUTH, flags=0x841), "is encrypted"),
    "a masked header": (Forged("tools/a.py", TRUTH, flags=0x2800), "is encrypted"),
    "an unknown flag": (Forged("tools/a.py", TRUTH, flags=0x820), "unsupported flags or compression"),
    "lzma": (Forged("tools/a.py", TRUTH, method=14), "(method 14); use deflate"),
    "another name in the local header": (Forged("tools/a.py", TRUTH, local={"name": b"tools/b.py"}), "contradict"),
    "another size in the local header": (Forged("tools/a.py", TRUTH, local={"size": 3}), "contradict"),
    "another packed size in the local header": (Forged("tools/a.py", TRUTH, local={"packed": 3}), "contradict"),
    "another checksum in the local header": (Forged("tools/a.py", TRUTH, local={"crc": 3}), "contradict"),
    "another method in the local header": (Forged("tools/a.py", TRUTH, local={"method": 8}), "contradict"),
    "encrypted in the local header only": (Forged("tools/a.py", TRUTH, local={"flags": 0x801}), "contradict"),
    "a second name": (Forged("tools/a.py", TRUTH, extra=unicode_name(b"../a.py")), "has a second name"),
    "a second name in one header": (
        Forged("tools/a.py", TRUTH, local={"extra": unicode_name(b"../a.py")}),
        "has a second name",
    ),
    "a lying record after the data": (
        Forged("tools/a.py", TRUTH, flags=0x808, after=descriptor(1, 2, 3)),
        "contradict",
    ),
    "a missing record after the data": (Forged("tools/a.py", TRUTH, flags=0x808), "contradict"),
    "a wrong checksum": (Forged("tools/a.py", TRUTH, crc=1), "its checksum is wrong"),
    "more than declared": (Forged("tools/a.py", TRUTH, size=3), "holds more than it declares"),
    "less than declared": (Forged("tools/a.py", TRUTH, size=99), "holds less than it declares"),
    "more unpacked than declared": (Forged("tools/a.py", ZEROS, method=8, size=3), "holds more than it declares"),
    "a bomb": (Forged("tools/a.py", ZEROS, method=8), "unpacks to more than 200 times its size"),
    "hidden data before an entry": (Forged("tools/a.py", TRUTH, before=b"hidden"), "hidden data before it"),
    "an entry over another": (Forged("tools/a.py", TRUTH, offset=0), "overlaps"),
    "an entry beyond the end": (Forged("tools/a.py", TRUTH, offset=99_999), "overlaps"),
    "a name that is no UTF-8": (Forged(b"tools/\xff.py", TRUTH), "not UTF-8"),
    "half a surrogate pair": (Forged("tools/\ud800.py", TRUTH), "not UTF-8"),
}


@pytest.mark.parametrize(("entry", "reason"), LIES.values(), ids=LIES)
def test_an_entry_that_lies_is_refused_by_name(entry: Forged, reason: str) -> None:
    with pytest.raises(Invalid) as refused:
        read_zip(bundle(entry))
    assert refused.value.code == "INVALID_BUNDLE"
    assert reason in refused.value.message
    assert refused.value.message.startswith("'tools/")


GOOD = Forged("toolset.yaml", MANIFEST)
LONE = bundle().getvalue()
CONTAINERS = {
    "nothing": (BytesIO(), "nor a ZIP file"),
    "no ZIP at all": (BytesIO(MANIFEST), "nor a ZIP file"),
    "half an end record": (BytesIO(LONE[:-9]), "nor a ZIP file"),
    "cut in the middle": (BytesIO(LONE[30:]), "not at its declared offset"),
    "data in front": (BytesIO(b"#!/bin/sh\n" + LONE), "not at its declared offset"),
    "data behind": (BytesIO(LONE + b"x"), "data after the end"),
    "two archives in a row": (BytesIO(LONE + LONE), "not at its declared offset"),
    "an end record in the comment": (forge(GOOD, comment=LONE[-22:]), "two end records"),
    "half an end record in the comment": (forge(GOOD, comment=LONE[-22:-9]), "no end record"),
    "a lying end record in the comment": (forge(GOOD, comment=LONE[-22:] + b"x"), "data after the end"),
    "fewer entries counted than there are": (forge(GOOD, Forged("b", b"x"), count=1), "more than its entries"),
    "more entries counted than there are": (forge(GOOD, count=2), "ends too early"),
    "as many entries as ZIP64 needs": (forge(GOOD, count=0xFFFF), "ZIP64"),
    "hidden data before the directory": (forge(Forged("toolset.yaml", MANIFEST, after=b"hidden")), "hidden data"),
    "no manifest": (forge(Forged("tools/a.py", b"x")), "there is no toolset.yaml"),
    "a manifest too deep": (forge(Forged("a/b/toolset.yaml", MANIFEST)), "there is 'a/b/toolset.yaml'"),
    "a manifest in one of two folders": (forge(Forged("a/toolset.yaml", MANIFEST), Forged("b/x")), "no toolset.yaml"),
    "two manifests": (bundle(Forged("toolset.yml", MANIFEST)), "remove one of the two"),
    "a manifest that would be packed over a file": (
        forge(Forged("toolset.yml", MANIFEST), Forged("Toolset.YAML", b"x")),
        "are one path on some systems",
    ),
    "a manifest that would be packed over a folder": (
        forge(Forged("toolset.yml", MANIFEST), Forged("toolset.yaml/x", b"x")),
        "are one path on some systems",
    ),
    "a huge manifest": (bundle(manifest=MANIFEST + b"#" * 8 * MEBIBYTE), "is larger than 8192 KiB"),
}


@pytest.mark.parametrize(("file", "reason"), CONTAINERS.values(), ids=CONTAINERS)
def test_a_container_that_others_would_read_differently_is_refused(file: BytesIO, reason: str) -> None:
    with pytest.raises(Invalid) as refused:
        read_zip(file)
    assert refused.value.code == "INVALID_BUNDLE"
    assert reason in refused.value.message


@pytest.mark.parametrize(
    "limits",
    [BundleLimits(files=3), BundleLimits(bytes=3000), BundleLimits(file_bytes=900), BundleLimits(zip_bytes=3000)],
)
def test_a_bundle_over_a_limit_is_refused_with_the_limit(limits: BundleLimits, tmp_path: Path) -> None:
    names = [f"assets/{number}" for number in range(4)]
    limit = next(value for value in (3, 3000, 900) if value in vars(limits).values())
    with pytest.raises(Invalid, match=rf"\b{limit}\b"):
        read_zip(bundle(*(Forged(name, os.urandom(1000)) for name in names)), limits)


@pytest.mark.parametrize("limits", [BundleLimits(files=3), BundleLimits(bytes=3000), BundleLimits(file_bytes=900)])
def test_a_folder_over_a_limit_is_refused_with_the_limit(limits: BundleLimits, tmp_path: Path) -> None:
    (tmp_path / "toolset.yaml").write_bytes(MANIFEST)
    (tmp_path / "assets").mkdir()
    for number in range(4):
        (tmp_path / "assets" / str(number)).write_bytes(bytes(1000))
    limit = next(value for value in (3, 3000, 900) if value in vars(limits).values())
    with pytest.raises(Invalid, match=rf"\b{limit}\b"):
        read_folder(tmp_path, limits)


@pytest.mark.parametrize("method", [0, 8])
def test_every_cut_and_every_flipped_byte_is_refused_or_changes_nothing(method: int) -> None:
    whole = bundle(Forged("tools/a.py", TRUTH, method=method), Forged("assets/b", b"b" * 50, method=method))
    intact = read_zip(whole).digest
    for at in range(len(whole.getvalue())):
        for broken in (whole.getvalue()[:at], _flipped(whole.getvalue(), at)):
            try:
                assert read_zip(BytesIO(broken)).digest == intact or at in _unprotected(whole.getvalue())
            except Invalid as refused:
                assert refused.code in ("INVALID_BUNDLE", "INVALID_TOOLSET")


def _flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :]


def _unprotected(data: bytes) -> set[int]:
    """The permissions of entries: said once, and covered by no checksum."""
    starts = [at for at in range(len(data)) if data[at : at + 4] == b"PK\1\2"]
    return {start + offset for start in starts for offset in (40, 41)}


def test_a_zip_in_a_zip_stays_a_sealed_file() -> None:
    inner = bundle(Forged("assets/bomb", ZEROS, method=8)).getvalue()
    assert read_zip(bundle(Forged("assets/inner.zip", inner))).files["assets/inner.zip"].read() == inner


@pytest.mark.parametrize("kind", ["link", "dangling", "directory", "pipe"])
def test_a_link_or_a_pipe_in_a_folder_is_refused_by_name(tmp_path: Path, kind: str) -> None:
    secret = tmp_path / "secret"
    secret.write_text("s")
    folder = tmp_path / "bundle"
    (folder / "assets").mkdir(parents=True)
    (folder / "toolset.yaml").write_bytes(MANIFEST)
    place = folder / "assets" / "x"
    if kind == "pipe":
        os.mkfifo(place)
    else:
        place.symlink_to({"link": secret, "dangling": tmp_path / "nowhere", "directory": tmp_path}[kind])
    with pytest.raises(Invalid, match=r"'assets/x' is a (symbolic link|pipe)") as refused:
        read_folder(folder)
    assert refused.value.code == "INVALID_BUNDLE"


def test_a_name_in_a_folder_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "toolset.yaml").write_bytes(MANIFEST)
    (tmp_path / os.fsdecode(b"\xff")).write_text("x")
    with pytest.raises(Invalid, match="udcff") as refused:
        read_folder(tmp_path)
    refused.value.message.encode()
    str(refused.value.details).encode()


def test_nothing_is_written_while_a_bundle_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    for entry, _ in LIES.values():
        with pytest.raises(Invalid):
            read_zip(bundle(Forged("assets/first", b"x"), entry))
    assert list(tmp_path.iterdir()) == []
