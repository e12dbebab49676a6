"""Tokens of an identity provider: their roles, the provider's keys and their rotation."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import anyio
import pytest
from eventually import TIMEOUT

from gateway.config import JwtSettings
from gateway.errors import Forbidden, Unauthenticated, Unavailable
from gateway.identity import jwt as verifier_module
from gateway.identity.jwt import JwtVerifier
from gateway.identity.roles import Roles

from .gateways import ERAS, ROADS, guarded
from .issuer import Issuer, serve_issuer

pytestmark = [pytest.mark.anyio, pytest.mark.promise("G7")]


def make_verifier(provider: Issuer, **settings: Any) -> JwtVerifier:
    return JwtVerifier(JwtSettings(**{**provider.settings, **settings}), Roles({}, {}))


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("road", ROADS)
async def test_token_of_the_issuer_calls_tools_as_its_subject_and_role(tmp_path: Path, road: str, era: str) -> None:
    roles = {"reader": {"tools": {"allow": ["stall__echo"]}}}
    async with serve_issuer() as issuer, guarded(tmp_path, auth={"jwt": issuer.settings}, roles=roles) as fixture:
        ann = fixture.holder(issuer.token(roles=["other", "reader"]), road, era)
        assert await ann.tools() == ["stall__echo"]
        assert await ann.value("stall__echo", {"n": 1}) == {"n": 1}
        [call] = fixture.source.calls
        assert call.caller.principal == "jwt:ann"
        assert issuer.fetched == 1, "verified once, then known"


@pytest.mark.parametrize(
    ("claim", "claims", "role"),
    [
        ("roles", {"roles": ["nobody", "admin", "user"]}, "admin"),
        ("roles", {"roles": "nobody user"}, "user"),
        ("realm_access.roles", {"realm_access": {"roles": ["admin"]}}, "admin"),
        ("https://a.example/role", {"https://a.example/role": "admin"}, "admin"),
        ("roles", {"roles": [1, None, {}]}, None),
        ("roles", {"roles": {"admin": True}}, None),
        ("roles", {}, None),
    ],
)
async def test_role_is_the_first_known_one_of_the_claim(claim: str, claims: dict[str, Any], role: str | None) -> None:
    async with serve_issuer() as issuer:
        strict = make_verifier(issuer, role_claim=claim, default_role=None)
        if role is None:
            with pytest.raises(Forbidden, match="no role that 'roles' has"):
                await strict.verify(issuer.token(**claims))
        else:
            assert (await strict.verify(issuer.token(**claims))).role == role
        lenient = make_verifier(issuer, role_claim=claim)
        assert (await lenient.verify(issuer.token(**claims))).role == (role or "user")


async def test_new_key_of_the_issuer_is_fetched_when_a_token_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serve_issuer() as issuer:
        verifier = make_verifier(issuer)
        await verifier.verify(issuer.token())
        issuer.add_key("two")
        rotated = issuer.token(kid="two", signed_by="two")
        with pytest.raises(Unauthenticated, match="does not publish"):
            await verifier.verify(rotated)
        assert issuer.fetched == 1, "tokens with made-up keys must not cause a flood of requests"
        monkeypatch.setattr(verifier_module, "FETCH_SECONDS", 0.0)
        assert (await verifier.verify(rotated)).id == "jwt:ann"
        del issuer.keys["one"]
        old = issuer.token(kid="one", signed_by="two")
        monkeypatch.setattr(verifier_module, "KEYS_SECONDS", 0.0)
        with pytest.raises(Unauthenticated, match="does not publish"):
            await verifier.verify(old)


async def test_token_with_a_known_key_does_not_wait_for_a_fetch_that_another_needs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serve_issuer() as issuer:
        verifier = make_verifier(issuer)
        known = issuer.token()
        await verifier.verify(known)
        monkeypatch.setattr(verifier_module, "FETCH_SECONDS", 0.0)
        issuer.add_key("two")
        issuer.hold = anyio.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(verifier.verify, issuer.token(kid="two", signed_by="two"))
            with anyio.fail_after(TIMEOUT):
                while issuer.fetched < 2:  # noqa: ASYNC110 - no event of ours
                    await anyio.sleep(0.01)
            assert (await verifier.verify(known)).id == "jwt:ann"  # else it would wait for ever
            issuer.hold.set()


async def test_keys_from_before_are_used_while_the_issuer_is_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verifier_module, "FETCH_SECONDS", 0.0)
    async with serve_issuer() as issuer:
        issuer.down = True
        verifier = make_verifier(issuer)
        with pytest.raises(Unavailable, match="cannot be fetched now"):
            await verifier.verify(issuer.token())
        issuer.down = False
        await verifier.verify(issuer.token())
        issuer.down = True
        monkeypatch.setattr(verifier_module, "KEYS_SECONDS", 0.0)
        assert (await verifier.verify(issuer.token())).id == "jwt:ann"
        monkeypatch.setattr(verifier_module, "STALE_SECONDS", 0.0)
        with pytest.raises(Unavailable):
            await verifier.verify(issuer.token())


async def test_token_is_refused_once_it_has_expired_though_it_was_verified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serve_issuer() as issuer, guarded(tmp_path, auth={"jwt": issuer.settings}) as fixture:
        ann = fixture.holder(issuer.token(exp=time.time() + 100))
        await ann.tools()
        later = time.time() + 200
        monkeypatch.setattr(time, "time", lambda: later)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(verifier_module, "LEEWAY", 0.0)
            assert fixture.identity.find(next(iter(fixture.identity._verified))) is None


async def test_metadata_of_another_issuer_is_not_believed() -> None:
    async with serve_issuer() as issuer:
        impostor = make_verifier(issuer, issuer=f"{issuer.url}/")
        with pytest.raises(Unavailable):
            await impostor.verify(issuer.token())
        assert issuer.fetched == 0


async def test_keys_and_tokens_work_beside_each_other(tmp_path: Path) -> None:
    async with serve_issuer() as issuer, guarded(tmp_path, auth={"jwt": issuer.settings}) as fixture:
        key = await fixture.key("ann")
        await fixture.holder(key).value("stall__echo")
        await fixture.holder(issuer.token()).value("stall__echo")
        assert [call.caller.principal for call in fixture.source.calls] == ["ann", "jwt:ann"]
        assert len({call.chat for call in fixture.source.calls}) == 2, "each has a default chat of its own"
