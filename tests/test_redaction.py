"""Redaction of secret keys and URL parameters in recorded documents."""

from __future__ import annotations

import json
from typing import Any

import pytest
from amounts import amount
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.calls import to_json
from gateway.secrets import REDACTED, is_secret, mask_in, redact

SECRET_KEYS = [
    "password", "PASSWORD", "db_password", "userPassword", "passwd", "secret", "client-secret", "clientSecret",
    "token", "access_token", "accessToken", "GITHUB_TOKEN", "token2", "api_key", "apiKey", "APIKey", "apikey",
    "x-api-key", "OPENAI_API_KEY", "authorization", "Authorization", "Proxy-Authorization", "credential",
    "credentials", "awsCredentials", "private_key", "privateKey", "aws_secret_access_key", "passphrase",
    "cookie", "Cookie", "Set-Cookie", "cookies", "sessionCookie", "auth", "X-Auth", "basic_auth", "proxyAuth",
    "X-Auth-Key", "bearer", "jwt", "idJwt", "pwd", "DB_PWD",
]  # fmt: skip
OPEN_KEYS = [
    "path",
    "key",
    "max_tokens",
    "token_count",
    "tokenizer",
    "password_hint",
    "secretary",
    "",
    "é",
    "monkey",
    "author",
]


@pytest.mark.parametrize("key", SECRET_KEYS)
def test_a_key_whose_last_word_names_a_secret_is_secret(key: str) -> None:
    assert is_secret(key)
    assert redact(to_json({key: "s3cr3t"})) == (to_json({key: REDACTED}), ["s3cr3t"])


@pytest.mark.parametrize("key", OPEN_KEYS)
def test_other_keys_stay_as_they_are(key: str) -> None:
    assert not is_secret(key)
    assert redact(to_json({key: "value"})) == (to_json({key: "value"}), [])


def test_a_secret_of_any_shape_is_replaced_at_any_depth() -> None:
    document = {"servers": [{"env": {"API_KEY": ["one", {"two": 3}]}, "password": 12345, "name": "a"}], "big": 2**70}
    cleaned, removed = redact(to_json(document))
    shown = {"servers": [{"env": {"API_KEY": REDACTED}, "password": REDACTED, "name": "a"}], "big": 2**70}
    assert json.loads(cleaned) == shown
    assert removed == ["one", "3", "12345"]


MARK = "<<hidden>>"
plain = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(st.characters(codec="utf-8"))
keys = st.sampled_from(OPEN_KEYS) | st.text(st.characters(codec="utf-8")).filter(lambda key: not is_secret(key))
hidden = st.recursive(st.just(MARK), lambda inner: st.lists(inner) | st.dictionaries(keys, inner), max_leaves=3)


def layers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    with_secrets = st.dictionaries(st.sampled_from(SECRET_KEYS), hidden)
    return st.lists(inner) | st.builds(lambda one, two: one | two, st.dictionaries(keys, inner), with_secrets)


documents = st.recursive(plain, layers, max_leaves=12)


@pytest.mark.promise("P3")
@settings(max_examples=amount(50, 15), deadline=None)
@given(document=documents)
def test_no_value_of_a_secret_key_survives_and_nothing_else_changes(document: Any) -> None:
    cleaned, _ = redact(to_json(document))
    assert MARK.encode() not in cleaned
    assert json.loads(cleaned) == shown(json.loads(to_json(document)))


def shown(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: REDACTED if key in SECRET_KEYS else shown(item) for key, item in value.items()}
    return [shown(item) for item in value] if isinstance(value, list) else value


def test_secrets_are_blotted_out_wherever_they_stand() -> None:
    secrets = ["hunter2", "hunter2-long", 'say "ä"', "4321", "abc"]
    quoted = json.dumps({"x": 'say "ä"'})
    value = {
        "text": "hunter2-long, hunter2 and abc",
        "hunter2": [1, None, True, 4321, "4321", ("hunter2",)],
        "json": [quoted, json.dumps({"x": 'say "ä"'}, ensure_ascii=False)],
    }
    assert mask_in(value, secrets) == {
        "text": f"{REDACTED}, {REDACTED} and abc",
        REDACTED: [1, None, True, REDACTED, REDACTED, [REDACTED]],
        "json": [f'{{"x": "{REDACTED}"}}'] * 2,
    }


SECRET_URLS = [
    ("https://a.example/x?api_key=s3cr3t", "https://a.example/x?api_key=[redacted]"),
    (
        "https://a.example/x?q=tea&access_token=s3cr3t&page=2",
        "https://a.example/x?q=tea&access_token=[redacted]&page=2",
    ),
    ("https://a.example/?a#accessToken=s3cr3t&state=1", "https://a.example/?a#accessToken=[redacted]&state=1"),
    ("wss://a.example/?token=s3cr3t#top", "wss://a.example/?token=[redacted]#top"),
    ("https://a.example/ü?q=ö&X%2DAPI%2Dkey=s3cr3t", "https://a.example/ü?q=ö&X%2DAPI%2Dkey=[redacted]"),
    ("/v1/items?apikey=s3cr3t", "/v1/items?apikey=[redacted]"),
]


@pytest.mark.parametrize(("url", "expected"), SECRET_URLS)
def test_a_secret_in_the_query_of_a_url_is_replaced(url: str, expected: str) -> None:
    assert redact(to_json({"url": url})) == (to_json({"url": expected}), ["s3cr3t"])
    assert redact(to_json({"all": [{"x": url}]})) == (to_json({"all": [{"x": expected}]}), ["s3cr3t"])


def test_a_secret_of_a_url_is_known_as_it_is_spelled_there_and_as_it_reads() -> None:
    _, removed = redact(to_json({"url": "https://a.example/?password=open%20sesame"}))
    assert removed == ["open%20sesame", "open sesame"]


@pytest.mark.parametrize(
    "text",
    [
        "https://a.example/?page=2&max_tokens=5&key=f&token",
        "https://a.example/token=s3cr3t",
        "https://a.example/?token=",
        "is it ?token=s3cr3t",
        # What may be a command is for a person to agree to, who has to see all of it.
        "http://x?token=$(rm$IFS-rf$IFS.)",
        "http://x?a&token=/evil&&$token",
        "http://x?token=`evil`",
        "http://x?token=a;evil",
        "http://x?token=a|evil",
        "curl https://a.example/?token=s3cr3t",
    ],
)
def test_what_is_no_url_or_no_secret_of_it_stays_as_it_is(text: str) -> None:
    assert redact(to_json({"text": text})) == (to_json({"text": text}), [])
