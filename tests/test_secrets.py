"""Masking of known secrets: every form of a value is found, a document stays JSON, plain values are left alone."""

from __future__ import annotations

import base64
import json
import logging
import re
import sys
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gateway.config import resolve_variables
from gateway.errors import Invalid, UpstreamFault
from gateway.secrets import KNOWN, REDACTED, SHORTEST, KnownSecrets, MaskingFormatter

# A secret of parts of the replacement text could be completed by it.
unbracketed = st.characters(codec="utf-8", exclude_characters="[]")
values = st.text(unbracketed, min_size=SHORTEST, max_size=40).map(str.strip).filter(lambda text: len(text) >= SHORTEST)
texts = st.text(st.characters(codec="utf-8"), max_size=60)


def known(*values: str) -> KnownSecrets:
    secrets = KnownSecrets()
    for value in values:
        secrets.add(value)
    return secrets


@given(secrets=st.lists(values, min_size=1, max_size=5), parts=st.lists(texts, min_size=1, max_size=5), data=st.data())
def test_no_masked_text_contains_a_known_secret(secrets: list[str], parts: list[str], data: st.DataObject) -> None:
    assume(not any(secret in REDACTED for secret in secrets))
    text = data.draw(st.sampled_from(secrets)).join(parts)
    masked = known(*secrets).mask(text)
    assert not any(secret in masked for secret in secrets)


@given(secret=values, before=st.binary(max_size=8), after=st.binary(max_size=8))
def test_no_masked_text_contains_an_encoded_form_of_a_secret(secret: str, before: bytes, after: bytes) -> None:
    assume(secret not in REDACTED)
    inside = base64.b64encode(before + secret.encode() + after).decode()
    forms = [
        *(quote(secret), quote(secret, safe=""), quote_plus(secret)),
        re.sub("%..", lambda code: code[0].lower(), quote(secret)),
        *(json.dumps(secret)[1:-1], json.dumps(json.dumps({"a": secret}))),
        *(inside, base64.urlsafe_b64encode(secret.encode()).decode()),
    ]
    for form in forms:
        masked = known(secret).mask(f"x {form} y")
        assert REDACTED in masked, form
        assert form not in masked


@given(
    secret=values,
    document=st.recursive(texts | st.integers(), lambda inner: st.lists(inner) | st.dictionaries(texts, inner)),
)
def test_a_masked_document_stays_json(secret: str, document: object) -> None:
    masked = known(secret).mask_json(json.dumps([document, secret, {secret: f"<{secret}>"}], ensure_ascii=False))
    opened = json.loads(masked)
    assert secret in REDACTED or opened[1:] == [REDACTED, {REDACTED: f"<{REDACTED}>"}]


def test_a_number_that_is_a_secret_is_masked_in_a_document() -> None:
    assert json.loads(known("482913").mask_json('{"pin":482913,"other":48}')) == {"pin": REDACTED, "other": 48}


def test_a_text_without_secrets_is_returned_as_it_is() -> None:
    document = json.dumps({"text": "nothing to see at https://example.org/@me", "n": 1})
    assert known("s3cr3t-value").mask_json(document) is document
    assert KnownSecrets().mask_json(document) is document


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("see https://ann:hunter2@example.org/x.", f"see https://ann:{REDACTED}@example.org/x."),
        ('{"dsn": "postgres://app:p@ss:w@db/x"}', f'{{"dsn": "postgres://app:{REDACTED}@db/x"}}'),
        ("redis://:pw@h redis://:pw@h", f"redis://:{REDACTED}@h redis://:{REDACTED}@h"),
        ("http://localhost:8080/a@b", "http://localhost:8080/a@b"),
        (
            "ssh://git@example.org and http://h:80 me@example.org",
            "ssh://git@example.org and http://h:80 me@example.org",
        ),
    ],
)
def test_the_password_of_a_url_is_masked(text: str, masked: str) -> None:
    assert KnownSecrets().mask(text) == masked


@pytest.mark.parametrize("value", ["short", "redacted", "  12345  ", ""])
def test_trivial_values_are_not_masked(value: str) -> None:
    assert known(value).mask(f"a {value} b") == f"a {value} b"


@pytest.mark.parametrize(
    ("name", "field", "value", "secret"),
    [
        ("PROJECT", "", "my-project", False),
        ("HOME", "", "/home/user", False),
        ("TZ", "TZ", "Europe/Berlin", False),
        ("SEARCH", "", "http://localhost:8888", False),
        ("PYTHON", "", "/usr/bin/python3.12", False),
        ("DB_PASSWORD", "", "correct-horse", True),
        ("X", "Authorization", "correct-horse", True),
        ("X", "", "sk-a8f3k2l9s0d7", True),
        ("X", "", "deadbeefdeadbeefdeadbeef", True),
    ],
)
def test_a_plain_value_is_a_secret_only_by_its_name(name: str, field: str, value: str, secret: bool) -> None:
    secrets = KnownSecrets()
    secrets.add_variable(name, value, field)
    assert (secrets.mask(value) == REDACTED) is secret


def test_the_password_of_a_url_in_a_variable_is_masked_alone_too() -> None:
    secrets = KnownSecrets()
    secrets.add_variable("DSN", "postgres://app:swordfish%21@db/x")
    assert secrets.mask("login failed: swordfish!") == f"login failed: {REDACTED}"


def test_a_renewed_token_replaces_the_one_before() -> None:
    secrets = known("other-secret")
    secrets.add("first-token", "login")
    secrets.add("second-token", "login")
    assert secrets.mask("first-token second-token other-secret") == f"first-token {REDACTED} {REDACTED}"


def test_resolved_variables_and_secret_literals_are_masked_in_errors_and_logs() -> None:
    resolve_variables("Bearer ${LAB_TOKEN}", {"LAB_TOKEN": "t0k3n-of-the-lab"}, "Authorization")
    resolve_variables("Bearer wr1tt3n-out", field="Authorization")
    assert KNOWN.mask("t0k3n-of-the-lab wr1tt3n-out") == f"{REDACTED} {REDACTED}"
    error = Invalid("refused: t0k3n-of-the-lab")
    assert REDACTED in error.message
    assert "t0k3n-of-the-lab" not in f"{error} {error!r}"
    assert UpstreamFault("t0k3n-of-the-lab", fault=1).message == "t0k3n-of-the-lab"
    try:
        raise ValueError("t0k3n-of-the-lab")
    except ValueError:
        record = logging.LogRecord("a", logging.ERROR, "a", 1, "failed: %s", ("wr1tt3n-out",), sys.exc_info())
    line = MaskingFormatter("%(message)s").format(record)
    assert line.startswith(f"failed: {REDACTED}\nTraceback")
    assert line.endswith(f"ValueError: {REDACTED}")
