"""ZIP files built byte by byte, so that they can lie."""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass, field
from io import BytesIO

MANIFEST = b'id: demo\nname: Demo\nversion: "1.0.0"\n'
REGULAR = 0o100644
LINK = 0o120777


@dataclass(frozen=True)
class Forged:
    """An entry, and what its headers say of it when that is not the truth."""

    name: str | bytes
    data: bytes = b""
    mode: int = REGULAR
    flags: int = 0x800
    method: int = 0
    size: int | None = None
    crc: int | None = None
    extra: bytes = b""
    before: bytes = b""
    after: bytes = b""
    local: dict[str, int | bytes] = field(default_factory=dict)
    offset: int | None = None

    @property
    def raw(self) -> bytes:
        return self.name if isinstance(self.name, bytes) else self.name.encode("utf-8", "surrogatepass")

    @property
    def packed(self) -> bytes:
        if self.method != 8:
            return self.data
        packer = zlib.compressobj(9, zlib.DEFLATED, -15)
        return packer.compress(self.data) + packer.flush()

    def said(self) -> dict[str, int | bytes]:
        crc = zlib.crc32(self.data) if self.crc is None else self.crc
        size = len(self.data) if self.size is None else self.size
        return {"name": self.raw, "flags": self.flags, "method": self.method, "crc": crc, "size": size}


def forge(*entries: Forged, comment: bytes = b"", count: int | None = None, tail: bytes = b"") -> BytesIO:
    out, directory = b"", b""
    for entry in entries:
        out += entry.before
        at = len(out) if entry.offset is None else entry.offset
        out += _local(entry) + entry.packed + entry.after
        directory += _central(entry, at)
    number = len(entries) if count is None else count
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, number, number, len(directory), len(out), len(comment))
    return BytesIO(out + directory + end + comment + tail)


def bundle(*entries: Forged, manifest: bytes = MANIFEST) -> BytesIO:
    """A bundle that would be fine without the entries."""
    return forge(Forged("toolset.yaml", manifest), *entries)


def _local(entry: Forged) -> bytes:
    said = {**entry.said(), "packed": len(entry.packed), "extra": entry.extra, **entry.local}
    name, extra = said["name"], said["extra"]
    assert isinstance(name, bytes)
    assert isinstance(extra, bytes)
    numbers = (said["flags"], said["method"], 0, 0x21, said["crc"], said["packed"], said["size"])
    return struct.pack("<4s2B4H3L2H", b"PK\3\4", 20, 0, *numbers, len(name), len(extra)) + name + extra


def _central(entry: Forged, at: int) -> bytes:
    said = entry.said()
    numbers = (said["flags"], said["method"], 0, 0x21, said["crc"], len(entry.packed), said["size"])
    lengths = (len(entry.raw), len(entry.extra), 0, 0, 0)
    header = struct.pack("<4s4B4H3L5H2L", b"PK\1\2", 20, 3, 20, 0, *numbers, *lengths, entry.mode << 16, at)
    return header + entry.raw + entry.extra
