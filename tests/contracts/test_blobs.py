"""What every blob store promises; adding a store is one line in STORES."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable
from pathlib import Path

import pytest
from amounts import amount
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.errors import Invalid, Unavailable
from gateway.workspace.blobs import CHUNK, BlobStore, FileBlobs

pytestmark = pytest.mark.promise("T2")

STORES: dict[str, Callable[[Path], BlobStore]] = {"files": lambda place: FileBlobs(place / "blobs")}

SIZES = [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 7]


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> BlobStore:
    return STORES[request.param](tmp_path)


def put(store: BlobStore, content: bytes) -> str:
    return store.put(io.BytesIO(content))


def get(store: BlobStore, digest: str) -> bytes:
    with store.open(digest) as blob:
        return blob.read()


@pytest.mark.parametrize("size", SIZES)
def test_what_was_put_comes_back_under_its_sha_256(store: BlobStore, size: int) -> None:
    content = bytes(index % 251 for index in range(size))
    digest = put(store, content)
    store.sync()
    assert digest == hashlib.sha256(content).hexdigest()
    assert get(store, digest) == content


@pytest.mark.parametrize("size", SIZES)
def test_a_content_can_be_read_piece_by_piece(store: BlobStore, size: int) -> None:
    content = bytes(index % 251 for index in range(size))
    with store.open(put(store, content)) as blob:
        assert b"".join(iter(lambda: blob.read(1000), b"")) == content


def test_a_file_is_put_from_where_it_stands(store: BlobStore, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * (2 * CHUNK))
    with (tmp_path / "file").open("rb", buffering=0) as file:
        assert store.put(file) == hashlib.sha256(b"x" * (2 * CHUNK)).hexdigest()


def test_a_content_put_twice_is_one(store: BlobStore) -> None:
    assert put(store, b"same") == put(store, b"same")
    assert get(store, put(store, b"same")) == b"same"


def test_only_what_is_not_there_is_missing(store: BlobStore) -> None:
    here, gone = put(store, b"here"), hashlib.sha256(b"gone").hexdigest()
    assert store.missing([here, gone]) == {gone}
    assert store.missing([]) == set()


def test_opening_what_is_missing_is_refused_by_name(store: BlobStore) -> None:
    digest = hashlib.sha256(b"gone").hexdigest()
    with pytest.raises(Unavailable) as refused:
        store.open(digest)
    assert refused.value.code == "BLOB_MISSING"
    assert digest in refused.value.message


@pytest.mark.parametrize("digest", ["", "../../etc/passwd", "a" * 63, "A" * 64, "a" * 64 + "\n"])
def test_a_name_that_is_no_digest_is_refused(store: BlobStore, digest: str) -> None:
    with pytest.raises(Invalid):
        store.open(digest)
    with pytest.raises(Invalid):
        store.missing([digest])


def test_an_epoch_lasts_while_contents_are_only_added(store: BlobStore) -> None:
    before = store.epoch()
    put(store, b"one more")
    store.sync()
    assert store.epoch() == before != ""


@settings(max_examples=amount(30, 10), deadline=None)
@given(st.lists(st.binary(max_size=40), max_size=20))
def test_any_contents_live_side_by_side(tmp_path_factory: pytest.TempPathFactory, contents: list[bytes]) -> None:
    for make in STORES.values():
        store = make(tmp_path_factory.mktemp("store"))
        digests = [put(store, content) for content in contents]
        store.sync()
        assert [get(store, digest) for digest in digests] == contents
