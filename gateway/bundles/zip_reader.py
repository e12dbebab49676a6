"""ZIP files: a strict reader for untrusted input, in which every byte is accounted for, and a deterministic writer.

ZIP readers disagree about files with data before, between or after the entries, with two directories, or
with contradicting headers; the reader refuses such files.
"""

from __future__ import annotations

import stat
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator
from threading import Lock
from typing import Any, BinaryIO

from gateway.bundles.paths import quote_path
from gateway.errors import Invalid
from gateway.value import Value

INVALID_BUNDLE = "INVALID_BUNDLE"
CHUNK = 64 * 1024
COMMENT_LIMIT = 1024  # `git archive` writes the commit there
STORED, DEFLATED = 0, 8

_END = struct.Struct("<4s4H2LH")
_CENTRAL = struct.Struct("<4s4B4H3L5H2L")
_LOCAL = struct.Struct("<4s2B4H3L2H")
_END_SIGNATURE, _CENTRAL_SIGNATURE, _LOCAL_SIGNATURE, _DATA_SIGNATURE = b"PK\5\6", b"PK\1\2", b"PK\3\4", b"PK\7\x08"
_ENCRYPTED, _DESCRIPTOR, _UTF8 = 0x1, 0x8, 0x800
_KNOWN_FLAGS = 0x6 | _DESCRIPTOR | _UTF8  # bits 1 and 2 are the compression level
_ENCRYPTION = _ENCRYPTED | 0x40 | 0x2000
_UNICODE_NAME = 0x7075
_ZIP64 = 0xFFFFFFFF
_FIRST_DAY = 0x21  # 1 January 1980, the first date a ZIP file can hold
_UNIX = 3


class ZipEntry(Value):
    """One entry, as in both of its headers."""

    name: str
    raw_name: bytes
    flags: int
    method: int
    crc: int
    packed: int
    size: int
    mode: int
    header: int  # offset of its local header
    start: int = 0  # offset of its data

    @property
    def is_directory(self) -> bool:
        return self.name.endswith("/")


def bundle_error(reason: str, path: str | None = None) -> Invalid:
    """Return an error that names the path in the bundle."""
    if path is None:
        return Invalid(reason, code=INVALID_BUNDLE)
    whole = path.encode("utf-8", "backslashreplace").decode()
    return Invalid(f"{quote_path(path)} {reason}", code=INVALID_BUNDLE, path=whole)


class ZipReader:
    """The entries of a ZIP file. The caller owns the file and keeps it open."""

    def __init__(self, file: BinaryIO, count_limit: int, size_limit: int) -> None:
        self._file = file
        self._lock = Lock()
        self._size = file.seek(0, 2)
        if self._size > size_limit:
            raise bundle_error(f"the ZIP file is larger than {size_limit} bytes")
        self.entries = self._locate_entries(*self._read_directory(count_limit))

    def chunks(self, entry: ZipEntry) -> Iterator[bytes]:
        """Yield the content of an entry; refused when its size or checksum is not as declared."""
        size, crc = 0, 0
        for chunk in self._inflate(entry) if entry.method == DEFLATED else self._read_packed(entry):
            size, crc = size + len(chunk), zlib.crc32(chunk, crc)
            if size > entry.size:
                raise bundle_error("holds more than it declares", entry.name)
            yield chunk
        if size < entry.size:
            raise bundle_error("holds less than it declares", entry.name)
        if crc != entry.crc:
            raise bundle_error("is damaged: its checksum is wrong", entry.name)

    def _read_packed(self, entry: ZipEntry) -> Iterator[bytes]:
        for start in range(entry.start, entry.start + entry.packed, CHUNK):
            yield self._read(start, min(CHUNK, entry.start + entry.packed - start))

    def _inflate(self, entry: ZipEntry) -> Iterator[bytes]:
        inflater, packed = zlib.decompressobj(-zlib.MAX_WBITS), b""
        try:
            for packed in self._read_packed(entry):
                while packed and not inflater.eof:
                    yield inflater.decompress(packed, CHUNK)
                    packed = inflater.unconsumed_tail
            while not inflater.eof and (rest := inflater.decompress(b"", CHUNK)):
                yield rest
        except zlib.error:
            raise bundle_error("is damaged: it cannot be unpacked", entry.name) from None
        if not inflater.eof or inflater.unused_data or packed:
            raise bundle_error("is damaged: its data is too short or too long", entry.name)

    def _read(self, start: int, length: int) -> bytes:
        with self._lock:
            self._file.seek(start)
            data = self._file.read(length)
        if len(data) != length:
            raise bundle_error("the ZIP file ends too early")
        return data

    def _read_directory(self, count_limit: int) -> tuple[list[ZipEntry], int]:
        """Return the entries of the central directory, which must end at the end record, and its offset."""
        tail_start = max(0, self._size - _END.size - COMMENT_LIMIT)
        tail = self._read(tail_start, self._size - tail_start)
        end = _end_record(tail)
        _, disk, first_disk, here, count, length, start, _ = _END.unpack_from(tail, end)
        if disk or first_disk or here != count or start == _ZIP64 or count == 0xFFFF:
            raise bundle_error("a ZIP file of several parts or in the ZIP64 format is not supported")
        if count > count_limit:
            raise bundle_error(f"the ZIP file has more than {count_limit} entries")
        if start + length != tail_start + end:
            raise bundle_error("the directory of the ZIP file is not at its declared offset")
        return _parse_directory(self._read(start, length), count), start

    def _locate_entries(self, entries: list[ZipEntry], end: int) -> list[ZipEntry]:
        """Find the data of each entry: from the first byte to the directory, without gap or overlap."""
        offset, located = 0, []
        for entry in sorted(entries, key=lambda entry: entry.header):
            if entry.header != offset:
                raise bundle_error("overlaps with another entry, or has hidden data before it", entry.name)
            entry, offset = self._locate(entry, end)
            located.append(entry)
        if offset != end:
            raise bundle_error("there is hidden data before the directory of the ZIP file")
        return located

    def _locate(self, entry: ZipEntry, end: int) -> tuple[ZipEntry, int]:
        signature, _, _, flags, method, _, _, crc, packed, size, named, extra = _LOCAL.unpack(
            self._read(entry.header, _LOCAL.size)
        )
        name = self._read(entry.header + _LOCAL.size, named)
        start = entry.header + _LOCAL.size + named + extra
        after = start + entry.packed
        if signature != _LOCAL_SIGNATURE or after > end:
            raise bundle_error("is not where the directory says", entry.name)
        if name != entry.raw_name or flags != entry.flags or method != entry.method:
            raise bundle_error("has two headers that contradict each other", entry.name)
        _check_extra(self._read(start - extra, extra), entry)
        if not flags & _DESCRIPTOR:
            if (crc, packed, size) != (entry.crc, entry.packed, entry.size):
                raise bundle_error("has two headers that contradict each other", entry.name)
        else:
            after += self._descriptor_length(entry, after, end)
        return ZipEntry(**{**vars(entry), "start": start}), after

    def _descriptor_length(self, entry: ZipEntry, offset: int, end: int) -> int:
        """Return the length of the data descriptor, which follows data of unknown size in its header."""
        data = self._read(offset, min(24, end - offset))
        for form in ("<LLL", "<LQQ"):
            record = struct.pack(form, entry.crc, entry.packed, entry.size)
            for candidate in (_DATA_SIGNATURE + record, record):
                if data.startswith(candidate):
                    return len(candidate)
        raise bundle_error("has two headers that contradict each other", entry.name)


def _end_record(tail: bytes) -> int:
    """Return the offset of the end record: the last one, and the only one whose comment ends with the file."""
    end = tail.rfind(_END_SIGNATURE)
    if end < 0 or len(tail) - end < _END.size:
        raise bundle_error("this is neither a folder nor a ZIP file (it has no end record)")
    whole = [
        offset for offset in range(end + 1) if tail.startswith(_END_SIGNATURE, offset) and _reaches_end(tail, offset)
    ]
    if end not in whole:
        raise bundle_error("there is data after the end of the ZIP file")
    if len(whole) > 1:
        raise bundle_error("the ZIP file has two end records")
    return end


def _reaches_end(tail: bytes, offset: int) -> bool:
    comment: int = _END.unpack_from(tail, offset)[-1]
    return offset + _END.size + comment == len(tail)


class ZipWriter:
    """Writes entries in sequence without seeking; the same content gives the same bytes."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._offset = 0
        self._directory: list[bytes] = []

    def add(
        self, name: str, mode: int, content: Callable[[], Iterable[bytes]], is_bomb: Callable[[int, int], bool]
    ) -> None:
        """Write an entry, deflated unless `is_bomb(size, packed)`, since no reader would accept it then."""
        size, crc, packed = _measure(content())
        method, packed = (STORED, size) if is_bomb(size, packed) else (DEFLATED, packed)
        raw, offset = name.encode(), self._offset
        common = (20, 0, _UTF8, method, 0, _FIRST_DAY, crc, packed, size, len(raw), 0)
        self._write(_LOCAL.pack(_LOCAL_SIGNATURE, *common) + raw)
        for chunk in _deflate(content()) if method == DEFLATED else content():
            self._write(chunk)
        self._directory.append(_CENTRAL.pack(_CENTRAL_SIGNATURE, 20, _UNIX, *common, 0, 0, 0, mode << 16, offset) + raw)

    def close(self) -> None:
        directory, offset = b"".join(self._directory), self._offset
        self._write(directory)
        count = len(self._directory)
        self._write(_END.pack(_END_SIGNATURE, 0, 0, count, count, len(directory), offset, 0))

    def _write(self, data: bytes) -> None:
        self._file.write(data)
        self._offset += len(data)


def _measure(content: Iterable[bytes]) -> tuple[int, int, int]:
    """Return the size, the checksum and the deflated size."""
    size = crc = 0

    def count_bytes() -> Iterator[bytes]:
        nonlocal size, crc
        for chunk in content:
            size, crc = size + len(chunk), zlib.crc32(chunk, crc)
            yield chunk

    packed = sum(map(len, _deflate(count_bytes())))
    return size, crc, packed


def _deflate(content: Iterable[bytes]) -> Iterator[bytes]:
    packer = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    for chunk in _rechunk(content):
        yield packer.compress(chunk)
    yield packer.flush()


def _rechunk(content: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the content in chunks of one size: the output of some compressors depends on the chunks."""
    held = bytearray()
    for chunk in content:
        held += chunk
        while len(held) >= CHUNK:
            yield bytes(held[:CHUNK])
            del held[:CHUNK]
    if held:
        yield bytes(held)


def _parse_directory(data: bytes, count: int) -> list[ZipEntry]:
    offset, entries = 0, []
    for _ in range(count):
        if len(data) - offset < _CENTRAL.size:
            raise bundle_error("the directory of the ZIP file ends too early")
        fields = _CENTRAL.unpack_from(data, offset)
        named, extra, comment = fields[12:15]
        offset += _CENTRAL.size
        entry = _parse_entry(fields, data[offset : offset + named])
        _check_extra(data[offset + named : offset + named + extra], entry)
        offset += named + extra + comment
        entries.append(entry)
    if offset != len(data):
        raise bundle_error("the directory of the ZIP file holds more than its entries")
    return entries


def _parse_entry(fields: tuple[Any, ...], raw_name: bytes) -> ZipEntry:
    signature, flags, method, crc, packed, size = fields[0], fields[5], fields[6], *fields[9:12]
    disk, attributes, header = fields[15], fields[17], fields[18]
    try:
        name = raw_name.decode()
    except UnicodeDecodeError:
        raise bundle_error("has a name that is not UTF-8", raw_name.decode("latin-1")) from None
    if signature != _CENTRAL_SIGNATURE or disk or _ZIP64 in (packed, size, header):
        raise bundle_error("the directory of the ZIP file is damaged, or in the ZIP64 format", name)
    entry = ZipEntry(name, raw_name, flags, method, crc, packed, size, attributes >> 16, header)
    _check_kind(entry)
    return entry


def _check_kind(entry: ZipEntry) -> None:
    if entry.flags & _ENCRYPTION:
        raise bundle_error("is encrypted", entry.name)
    if entry.flags & ~_KNOWN_FLAGS or entry.method not in (STORED, DEFLATED):
        raise bundle_error(f"has unsupported flags or compression (method {entry.method}); use deflate", entry.name)
    if stat.S_ISLNK(entry.mode):
        raise bundle_error("is a symbolic link; a bundle holds files only", entry.name)
    wanted = stat.S_IFDIR if entry.is_directory else stat.S_IFREG
    if stat.S_IFMT(entry.mode) not in (0, wanted):
        raise bundle_error("is not a regular file; a bundle holds files only", entry.name)
    if not entry.is_directory and entry.mode & 0o7000:
        raise bundle_error("has a setuid, setgid or sticky bit", entry.name)
    if entry.is_directory and entry.size:
        raise bundle_error("is a directory with content", entry.name)


def _check_extra(extra: bytes, entry: ZipEntry) -> None:
    """Refuse an extra field that gives the entry a second name; others are ignored."""
    offset = 0
    while offset + 4 <= len(extra):
        kind, length = struct.unpack_from("<HH", extra, offset)
        if kind == _UNICODE_NAME and extra[offset + 9 : offset + 4 + length] != entry.raw_name:
            raise bundle_error("has a second name", entry.name)
        offset += 4 + length
