"""Where a literal secret stands in settings, and what is none."""

from __future__ import annotations

import pytest

from gateway.literal_secrets import LiteralSecrets

pytestmark = [pytest.mark.promise("T3", "T6")]

TOKEN = "ghp_0123456789abcdefghijABCDEFGHIJ012345"
LIVE = "sk-live-0123456789abcdefghij"
MASKED = LiteralSecrets(lambda value, name: f"<{name}>")

ARGUMENTS = [
    (["-e", f"TOKEN={TOKEN}"], ["-e", "TOKEN=<TOKEN>"]),
    (["--env=API_KEY=abc"], ["--env=API_KEY=<API_KEY>"]),
    (["--header", f"X-Api-Key: {LIVE}"], ["--header", "X-Api-Key: <X-Api-Key>"]),
    (["-H", "Authorization: Bearer abc"], ["-H", "Authorization: <Authorization>"]),
    ([f"--header=Authorization: Bearer {TOKEN}"], ["--header=Authorization: <Authorization>"]),
    (["-u", "bob:hunter2hunter2"], ["-u", "bob:<password>"]),
    (["--user=bob:hunter2hunter2"], ["--user=bob:<password>"]),
    (["--token", "abc", "--password=abc"], ["--token", "<token>", "--password=<password>"]),
    ([f"X-Api-Key: {LIVE}"], ["X-Api-Key: <X-Api-Key>"]),
    (["postgres://me:hunter@db/x"], ["postgres://me:<password>@db/x"]),
    (["--url", "https://x/${q}?token=tok_9876"], ["--url", "https://x/${q}?token=<token>"]),
    (["sh", "-c", f"curl -H 'X: {LIVE}' host"], ["sh", "-c", "<argument>"]),
]
PLAIN_ARGUMENTS = [
    ["-y", "@modelcontextprotocol/server-filesystem@2026.1.14", "/home/ada/projects/a1b2c3d4e5f6a7b8c9d0e1f2"],
    ["run", "-i", "--rm", "-u", "1000:1000", "-e", "LOG_LEVEL=debug", "-p", "8080:80", "-v", "/data:/data:ro"],
    ["ghcr.io/a/b@sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"],
    ["--from", "git+https://github.com/a/b@3f786850e387550fdab836ed7e6dc881de23001b", "tool"],
    ["--author", "Ada", "--keep-alive", "30", "--tokenizer=cl100k", "--passes", "3", "--monkey", "yes"],
    ["-H", "Accept: application/json", "-H", "X-Source: toolgate tests 1.0", "--header=Content-Type: text/plain"],
    [
        "--prompt",
        "password: never tell it",
        "--session-timeout",
        "5m",
        "--tenant",
        "550e8400-e29b-41d4-a716-446655440000",
    ],
    ["https://docs.example.com/guide/getting-started-with-mcp-servers-2026?page=2&lang=en#install"],
    ["sort", "--key=2,2", "-t", ",", "curl", "--key", "client.pem", "--token-file", "/run/token"],
    ["jq", "-r", ".items[] | select(.token != null) | .id", "awk", "{print $1}", "grep", "-E", "token|key"],
    ["/nix/store/0c5y1p3b4x7v9k2m8n6q5r4s3t2u1w0z-python3-3.11.9/bin/python3", "-m", "server"],
]
URLS = [
    (f"https://host.example/mcp/tok/{TOKEN}?key=abc", "https://host.example/mcp/tok/<url_token>?key=<key>"),
    (
        "https://api.telegram.org/bot123456789:AAEhBOweik6ad9r_QXMENQjcrGbqCr4K-bc/send",
        "https://api.telegram.org/<url_token>/send",
    ),
    ("/bot123456789:AAEhBOweik6ad9r_QXMENQjcrGbqCr4K-bc/send", "/<url_token>/send"),
    ("https://x/a?sig=abc&page=2", "https://x/a?sig=<sig>&page=2"),
]
PLAIN_URLS = [
    "https://api.github.com/repos/${owner}/${repo}/issues?per_page=100&state=open",
    "https://host/v1/tenants/550e8400-e29b-41d4-a716-446655440000/databases/customer-support-tickets-2026",
    "/api/v2/ticket_field_options/list.json?sort=updated_at",
]
TEXTS = [
    ("user=ada\npassword=hunter2hunter2\n", "user=ada\npassword=<password>\n"),
    (f'{{"api_key": "{LIVE}"}}', '{"api_key": "<api_key>"}'),
    (f"login with {TOKEN}, please", "login with <text>, please"),
]
PLAIN_TEXTS = [
    "token: the next word of the sentence; key: value; password = required",
    "query($token: String!, $auth: AuthInput!) { user(id: ${id}) { name } }",
    "SELECT secret FROM t WHERE key = ${key} AND created > '2026-11-18T20:00:00Z'",
]


@pytest.mark.parametrize(("arguments", "masked"), ARGUMENTS)
def test_a_literal_secret_among_arguments_is_replaced(arguments: list[str], masked: list[str]) -> None:
    assert list(MASKED.mask_arguments(arguments)) == masked


def test_ordinary_arguments_addresses_and_texts_hold_no_secret() -> None:
    for arguments in PLAIN_ARGUMENTS:
        assert list(MASKED.mask_arguments(arguments)) == arguments
    assert [MASKED.mask_url(url) for url in PLAIN_URLS] == PLAIN_URLS
    assert [MASKED.mask_text(text) for text in PLAIN_TEXTS] == PLAIN_TEXTS
    body = {
        "page_token_count": 3,
        "title": "a key of the map",
        "tags": ["token", "secret"],
        "key": "users/7",
        "id": "${id}",
    }
    assert MASKED.mask_value(body) == body


def test_a_literal_secret_of_an_address_or_a_text_is_replaced() -> None:
    assert [MASKED.mask_url(url) for url, _ in URLS] == [masked for _, masked in URLS]
    assert [MASKED.mask_text(text) for text, _ in TEXTS] == [masked for _, masked in TEXTS]
    assert MASKED.mask_value({"api_key": "abc", "deep": [{"token": "x"}, LIVE]}) == {
        "api_key": "<api_key>",
        "deep": [{"token": "<token>"}, "<text>"],
    }
