"""The ZIP container: read without trusting it, every byte accounted for once, and written always the same way.

Other readers disagree about files with data before, between or after the entries, with two
directories, or with headers that contradict each other; such a file is not read here at all.
"""

from __future__ import annotations

import stat
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from threading import Lock
from typing import Any, BinaryIO

from gateway.bundles.paths import shown
from gateway.errors import Invalid

INVALID_BUNDLE = "INVALID_BUNDLE"
CHUNK = 64 * 1024
COMMENT_LIMIT = 1024  # `git archive` writes the commit there
STORED, DEFLATED = 0, 8

_END = struct.Struct("<4s4H2LH")
_CENTRAL = struct.Struct("<4s4B4H3L5H2L")
_LOCAL = struct.Struct("<4s2B4H3L2H")
_END_SIGN, _CENTRAL_SIGN, _LOCAL_SIGN, _DATA_SIGN = b"PK\5\6", b"PK\1\2", b"PK\3\4", b"PK\7\x08"
_ENCRYPTED, _DESCRIPTOR, _UTF8 = 0x1, 0x8, 0x800
_KNOWN_FLAGS = 0x6 | _DESCRIPTOR | _UTF8  # bits 1 and 2 say how hard deflate tried
_ENCRYPTION = _ENCRYPTED | 0x40 | 0x2000
_UNICODE_NAME = 0x7075
_ZIP64 = 0xFFFFFFFF
_FIRST_DAY = 0x21  # 1 January 1980, the first that a ZIP file can say
_UNIX = 3


@dataclass(frozen=True)
class ZipEntry:
    """One entry, as both of its headers say."""

    name: str
    raw_name: bytes
    flags: int
    method: int
    crc: int
    packed: int
    size: int
    mode: int
    # Where its local header is.
    header: int
    # Where its data is.
    start: int = 0

    @property
    def is_directory(self) -> bool:
        return self.name.endswith("/")


def refused(reason: str, path: str | None = None) -> Invalid:
    """An error to raise, naming the path in the bundle."""
    if path is None:
        return Invalid(reason, code=INVALID_BUNDLE)
    whole = path.encode("utf-8", "backslashreplace").decode()
    return Invalid(f"{shown(path)} {reason}", code=INVALID_BUNDLE, path=whole)


class ZipReader:
    """The entries of a ZIP file. The file stays the caller's, who keeps it open."""

    def __init__(self, file: BinaryIO, count_limit: int, size_limit: int) -> None:
        self._file = file
        self._lock = Lock()
        self._size = file.seek(0, 2)
        if self._size > size_limit:
            raise refused(f"the ZIP file is larger than {size_limit} bytes")
        self.entries = self._checked(*self._directory(count_limit))

    def chunks(self, entry: ZipEntry) -> Iterator[bytes]:
        """The content, never more than was declared; refused when it is not what was declared."""
        size, crc = 0, 0
        for chunk in self._inflated(entry) if entry.method == DEFLATED else self._packed(entry):
            size, crc = size + len(chunk), zlib.crc32(chunk, crc)
            if size > entry.size:
                raise refused("holds more than it declares", entry.name)
            yield chunk
        if size < entry.size:
            raise refused("holds less than it declares", entry.name)
        if crc != entry.crc:
            raise refused("is damaged: its checksum is wrong", entry.name)

    def _packed(self, entry: ZipEntry) -> Iterator[bytes]:
        for start in range(entry.start, entry.start + entry.packed, CHUNK):
            yield self._read(start, min(CHUNK, entry.start + entry.packed - start))

    def _inflated(self, entry: ZipEntry) -> Iterator[bytes]:
        inflater, packed = zlib.decompressobj(-zlib.MAX_WBITS), b""
        try:
            for packed in self._packed(entry):
                while packed and not inflater.eof:
                    yield inflater.decompress(packed, CHUNK)
                    packed = inflater.unconsumed_tail
            while not inflater.eof and (rest := inflater.decompress(b"", CHUNK)):
                yield rest
        except zlib.error:
            raise refused("is damaged: it cannot be unpacked", entry.name) from None
        if not inflater.eof or inflater.unused_data or packed:
            raise refused("is damaged: its data ends too early or goes on too long", entry.name)

    def _read(self, start: int, length: int) -> bytes:
        with self._lock:
            self._file.seek(start)
            data = self._file.read(length)
        if len(data) != length:
            raise refused("the ZIP file ends too early")
        return data

    def _directory(self, count_limit: int) -> tuple[list[ZipEntry], int]:
        """The central directory, which must stand directly before the end record; and where it begins."""
        tail_start = max(0, self._size - _END.size - COMMENT_LIMIT)
        tail = self._read(tail_start, self._size - tail_start)
        end = _end_record(tail)
        _, disk, first_disk, here, count, length, start, _ = _END.unpack_from(tail, end)
        if disk or first_disk or here != count or start == _ZIP64 or count == 0xFFFF:
            raise refused("a ZIP file of several parts or in the ZIP64 format is not taken")
        if count > count_limit:
            raise refused(f"the ZIP file has more than {count_limit} entries")
        if start + length != tail_start + end:
            raise refused("the directory of the ZIP file is not where it is said to be")
        return _central(self._read(start, length), count), start

    def _checked(self, entries: list[ZipEntry], end: int) -> list[ZipEntry]:
        """The entries with their data found: from the first byte to the directory, without gap or overlap."""
        at, found = 0, []
        for entry in sorted(entries, key=lambda entry: entry.header):
            if entry.header != at:
                raise refused("overlaps with another entry, or has hidden data before it", entry.name)
            entry, at = self._located(entry, end)
            found.append(entry)
        if at != end:
            raise refused("there is hidden data before the directory of the ZIP file")
        return found

    def _located(self, entry: ZipEntry, end: int) -> tuple[ZipEntry, int]:
        sign, _, _, flags, method, _, _, crc, packed, size, named, extra = _LOCAL.unpack(
            self._read(entry.header, _LOCAL.size)
        )
        name = self._read(entry.header + _LOCAL.size, named)
        start = entry.header + _LOCAL.size + named + extra
        after = start + entry.packed
        if sign != _LOCAL_SIGN or after > end:
            raise refused("is not where the directory says", entry.name)
        if name != entry.raw_name or flags != entry.flags or method != entry.method:
            raise refused("has two headers that contradict each other", entry.name)
        _check_extra(self._read(start - extra, extra), entry)
        if not flags & _DESCRIPTOR:
            if (crc, packed, size) != (entry.crc, entry.packed, entry.size):
                raise refused("has two headers that contradict each other", entry.name)
        else:
            after += self._descriptor(entry, after, end)
        return ZipEntry(**{**vars(entry), "start": start}), after

    def _descriptor(self, entry: ZipEntry, at: int, end: int) -> int:
        """The length of the record after data whose size was not known when its header was written."""
        found = self._read(at, min(24, end - at))
        for form in ("<LLL", "<LQQ"):
            record = struct.pack(form, entry.crc, entry.packed, entry.size)
            for candidate in (_DATA_SIGN + record, record):
                if found.startswith(candidate):
                    return len(candidate)
        raise refused("has two headers that contradict each other", entry.name)


def _end_record(tail: bytes) -> int:
    """Where the end record is: the last, and the only one that with its comment ends where the file does."""
    end = tail.rfind(_END_SIGN)
    if end < 0 or len(tail) - end < _END.size:
        raise refused("this is no ZIP file: it has no end record")
    whole = [at for at in range(end + 1) if tail.startswith(_END_SIGN, at) and _fills(tail, at)]
    if end not in whole:
        raise refused("there is data after the end of the ZIP file")
    if len(whole) > 1:
        raise refused("the ZIP file has two end records")
    return end


def _fills(tail: bytes, at: int) -> bool:
    comment: int = _END.unpack_from(tail, at)[-1]
    return at + _END.size + comment == len(tail)


class ZipWriter:
    """Entries one after the other, into a file that is only written to, the same content as the same bytes."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._at = 0
        self._directory: list[bytes] = []

    def add(
        self, name: str, mode: int, content: Callable[[], Iterable[bytes]], is_bomb: Callable[[int, int], bool]
    ) -> None:
        """Write an entry, deflated unless `is_bomb(size, packed)` says that no reader would take it."""
        size, crc, packed = _measure(content())
        method, packed = (STORED, size) if is_bomb(size, packed) else (DEFLATED, packed)
        raw, at = name.encode(), self._at
        common = (20, 0, _UTF8, method, 0, _FIRST_DAY, crc, packed, size, len(raw), 0)
        self._write(_LOCAL.pack(_LOCAL_SIGN, *common) + raw)
        for chunk in _deflated(content()) if method == DEFLATED else content():
            self._write(chunk)
        self._directory.append(_CENTRAL.pack(_CENTRAL_SIGN, 20, _UNIX, *common, 0, 0, 0, mode << 16, at) + raw)

    def close(self) -> None:
        directory, at = b"".join(self._directory), self._at
        self._write(directory)
        count = len(self._directory)
        self._write(_END.pack(_END_SIGN, 0, 0, count, count, len(directory), at, 0))

    def _write(self, data: bytes) -> None:
        self._file.write(data)
        self._at += len(data)


def _measure(content: Iterable[bytes]) -> tuple[int, int, int]:
    """The size, the checksum and the deflated size."""
    size = crc = 0

    def counted() -> Iterator[bytes]:
        nonlocal size, crc
        for chunk in content:
            size, crc = size + len(chunk), zlib.crc32(chunk, crc)
            yield chunk

    packed = sum(map(len, _deflated(counted())))
    return size, crc, packed


def _deflated(content: Iterable[bytes]) -> Iterator[bytes]:
    packer = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    for chunk in _even(content):
        yield packer.compress(chunk)
    yield packer.flush()


def _even(content: Iterable[bytes]) -> Iterator[bytes]:
    """The content in chunks of one size: some compressors answer differently to other cuts."""
    held = bytearray()
    for chunk in content:
        held += chunk
        while len(held) >= CHUNK:
            yield bytes(held[:CHUNK])
            del held[:CHUNK]
    if held:
        yield bytes(held)


def _central(data: bytes, count: int) -> list[ZipEntry]:
    at, found = 0, []
    for _ in range(count):
        if len(data) - at < _CENTRAL.size:
            raise refused("the directory of the ZIP file ends too early")
        fields = _CENTRAL.unpack_from(data, at)
        named, extra, comment = fields[12:15]
        at += _CENTRAL.size
        entry = _entry(fields, data[at : at + named])
        _check_extra(data[at + named : at + named + extra], entry)
        at += named + extra + comment
        found.append(entry)
    if at != len(data):
        raise refused("the directory of the ZIP file holds more than its entries")
    return found


def _entry(fields: tuple[Any, ...], raw_name: bytes) -> ZipEntry:
    sign, flags, method, crc, packed, size = fields[0], fields[5], fields[6], *fields[9:12]
    disk, attributes, header = fields[15], fields[17], fields[18]
    try:
        name = raw_name.decode()
    except UnicodeDecodeError:
        raise refused("has a name that is not UTF-8", raw_name.decode("latin-1")) from None
    if sign != _CENTRAL_SIGN or disk or _ZIP64 in (packed, size, header):
        raise refused("the directory of the ZIP file is damaged, or in the ZIP64 format", name)
    entry = ZipEntry(name, raw_name, flags, method, crc, packed, size, attributes >> 16, header)
    _check_kind(entry)
    return entry


def _check_kind(entry: ZipEntry) -> None:
    if entry.flags & _ENCRYPTION:
        raise refused("is encrypted", entry.name)
    if entry.flags & ~_KNOWN_FLAGS or entry.method not in (STORED, DEFLATED):
        raise refused(f"is packed in a way that is not taken (method {entry.method}); use deflate", entry.name)
    if stat.S_ISLNK(entry.mode):
        raise refused("is a symbolic link; a bundle holds files only", entry.name)
    wanted = stat.S_IFDIR if entry.is_directory else stat.S_IFREG
    if stat.S_IFMT(entry.mode) not in (0, wanted):
        raise refused("is not a regular file; a bundle holds files only", entry.name)
    if not entry.is_directory and entry.mode & 0o7000:
        raise refused("has a setuid, setgid or sticky bit", entry.name)
    if entry.is_directory and entry.size:
        raise refused("is a directory with content", entry.name)


def _check_extra(extra: bytes, entry: ZipEntry) -> None:
    """Extra fields are passed over, unless one gives the entry a second name."""
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<HH", extra, at)
        if kind == _UNICODE_NAME and extra[at + 9 : at + 4 + length] != entry.raw_name:
            raise refused("has a second name", entry.name)
        at += 4 + length
