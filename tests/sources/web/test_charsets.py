"""Bytes become the text that was meant."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.sources.builtin.web.page import decode, is_text

MEANT = [
    ("é".encode(), "text/html; charset=utf-8", "é"),
    ("é".encode("latin-1"), 'text/html;charset="ISO-8859-1"', "é"),
    ("“é€".encode("cp1252"), "text/html; charset=iso-8859-1", "“é€"),
    ("привет".encode("cp1251"), "text/html; charset=windows-1251", "привет"),
    ("日本".encode("cp932"), "text/html; charset=x-sjis", "日本"),
    ("中文".encode("gb18030"), "text/html; charset=gb2312", "中文"),
    ("한국".encode("cp949"), "text/html; charset=EUC-KR", "한국"),
    ("é".encode("utf-16-le"), "text/plain; charset=utf-16le", "é"),
    (b"\xef\xbb\xbf" + "é".encode(), "text/plain; charset=latin1", "é"),
    (b"\xff\xfe" + "é".encode("utf-16-le"), None, "é"),
    (b'<html><meta charset="windows-1251"><p>' + "да".encode("cp1251"), "text/html", "да"),
    (b'<meta http-equiv=content-type content="text/html; charset=koi8-r">' + "да".encode("koi8-r"), None, "да"),
    (b'<?xml version="1.0" encoding="iso-8859-2"?>' + "č".encode("iso8859-2"), "application/xml", "č"),
    ('<meta charset="utf-16"><p>é'.encode(), "text/html", "é"),
    ("é".encode(), None, "é"),
    ("“é”".encode("cp1252"), None, "“é”"),
    ("é".encode(), "text/html; charset=utf-7", "é"),
    ("é".encode(), "text/html; charset=no-such", "é"),
]


@pytest.mark.parametrize(("body", "content_type", "text"), MEANT)
def test_the_encoding_is_the_one_that_was_meant(body: bytes, content_type: str | None, text: str) -> None:
    assert decode(body, content_type, is_markup=body.startswith(b"<")).endswith(text)


@pytest.mark.parametrize(
    "name", ["utf-7", "punycode", "idna", "unicode_escape", "rot13", "zip", "hex", "base64", "raw_unicode_escape"]
)
def test_what_is_no_encoding_of_the_web_is_not_used(name: str) -> None:
    assert decode(b"+AGE- \\u0061", f"text/plain; charset={name}", is_markup=False) == "+AGE- \\u0061"


@given(st.binary(max_size=200), st.sampled_from(["utf-8", "utf-16", "shift_jis", "gbk", "iso-2022-jp", "x", ""]))
def test_anything_becomes_text_that_can_be_sent(body: bytes, name: str) -> None:
    decode(body, f"text/html; charset={name}", is_markup=True).encode("utf-8")


def test_text_is_told_from_what_is_none() -> None:
    assert all(map(is_text, [b"", b"a\tb\r\n", "é".encode(), "é".encode()[:1], b"\x1b[1mx"]))
    assert not any(map(is_text, [b"\0", b"\x89PNG\r\n", b"\x7fELF\1", b"\xff\xd8\xff\xe0", b"a\x00b"]))
