"""The built-in authorization server: a person with a key lets a client in, and can end that."""

from __future__ import annotations

import time
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import pytest

from gateway.admin.keys import disconnect_client, list_clients, list_keys, revoke_key
from gateway.errors import NotFound

from .served import OAuthProbe, Person, serve

pytestmark = [pytest.mark.anyio, pytest.mark.promise("G7")]


async def test_client_finds_everything_from_the_refusal_of_its_first_request(tmp_path: Path) -> None:
    async with serve(tmp_path) as served:
        await served.make_key()
        refused = await served.list_tools("")
        assert refused.status_code == 401
        challenge = refused.headers["www-authenticate"]
        assert f'resource_metadata="{served.base}/.well-known/oauth-protected-resource/mcp"' in challenge

        resource = (await served.http.get(challenge.partition('resource_metadata="')[2].partition('"')[0])).json()
        assert resource["resource"] == served.url
        assert resource["authorization_servers"] == [served.base]
        metadata = (await served.http.get(f"{served.base}/.well-known/oauth-authorization-server")).json()
        assert metadata["issuer"] == served.base
        assert metadata["code_challenge_methods_supported"] == ["S256"]
        assert metadata["client_id_metadata_document_supported"] is True
        assert metadata["authorization_response_iss_parameter_supported"] is True
        assert "none" in metadata["token_endpoint_auth_methods_supported"]
        for name in ("authorization", "token", "registration", "revocation"):
            assert metadata[f"{name}_endpoint"].startswith(f"{served.base}/")
        profile = await served.http.get(f"{served.base}/.well-known/oauth-protected-resource/mcp/small")
        assert profile.json()["resource"] == f"{served.url}/small"


async def test_consent_page_names_client_redirect_principal_role_and_permission(tmp_path: Path) -> None:
    roles = {"reader": {"permission": "read-write"}}
    async with serve(tmp_path, roles=roles) as served:
        probe, person = OAuthProbe(served), Person(await served.make_key("ann", "reader", days=10))
        await probe.register()
        page = await person.open(probe.authorize_url())
        assert "Probe" in page.text and "127.0.0.1:7777" in page.text and "a name it chose itself" in page.text
        page = await person.submit(page, "key", key=person.key)
        for text in (
            "ann, role reader",
            "Read only",
            "Read and write",
            "127.0.0.1:7777",
            "Anybody can choose this name",
        ):
            assert text in page.text
        assert "Everything you may do" not in page.text
        policy = page.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy
        assert "form-action 'self' http://127.0.0.1:7777;" in f"{policy};"
        assert page.headers["cache-control"] == "no-store"
        assert person.key not in "".join(person.pages)


async def test_key_is_asked_for_once_and_each_client_is_asked_about(tmp_path: Path) -> None:
    async with serve(tmp_path) as served:
        person = Person(await served.make_key())
        first, second = OAuthProbe(served), OAuthProbe(served)
        await first.register()
        await second.register(client_name="Second")
        await first.get_tokens(person)
        page = await person.open(second.authorize_url())
        assert 'name="key"' not in page.text and "Allow Second" in page.text


async def test_token_acts_as_the_person_within_the_chosen_permission(tmp_path: Path) -> None:
    async with serve(tmp_path) as served:
        key = await served.make_key()
        probe = OAuthProbe(served)
        await probe.register()
        tokens = await probe.get_tokens(Person(key, permission="read-only"))
        assert tokens["scope"] == "read-only"
        assert tokens["expires_in"] == 3600
        names = [tool["name"] for tool in (await served.list_tools(tokens["access_token"])).json()["result"]["tools"]]
        own = [tool["name"] for tool in (await served.list_tools(key)).json()["result"]["tools"]]
        assert "read_file" in names and "write_file" not in names and "write_file" in own


async def test_denied_client_is_told_so_and_gets_nothing(tmp_path: Path) -> None:
    async with serve(tmp_path) as served:
        probe = OAuthProbe(served)
        await probe.register()
        location = await Person(await served.make_key()).agree(probe.authorize_url(), "deny")
        params = dict(parse_qsl(urlsplit(location).query))
        assert params["error"] == "access_denied" and params["iss"] == served.base and "code" not in params


async def test_refresh_rotates_and_a_stolen_refresh_token_ends_the_grant(
    tmp_path: Path,
) -> None:
    async with serve(tmp_path) as served:
        probe = OAuthProbe(served)
        await probe.register()
        first = await probe.get_tokens(Person(await served.make_key()))
        second = (await probe.refresh(first["refresh_token"])).json()
        assert second["refresh_token"] != first["refresh_token"]
        # The same request again, as after a lost answer.
        assert (await probe.refresh(first["refresh_token"])).status_code == 200
        served.gateway._parts.grants.clock = lambda: time.time() + 60
        stolen = await probe.refresh(first["refresh_token"])
        assert (stolen.status_code, stolen.json()["error"]) == (400, "invalid_grant")
        assert (await probe.refresh(second["refresh_token"])).status_code == 400
        assert (await served.list_tools(second["access_token"])).status_code == 401


async def test_revoking_the_key_ends_its_tokens_at_once(tmp_path: Path) -> None:
    async with serve(tmp_path) as served:
        probe = OAuthProbe(served)
        await served.make_key("other")
        await probe.register()
        person = Person(await served.make_key())
        tokens = await probe.get_tokens(person)
        assert (await served.list_tools(tokens["access_token"])).status_code == 200
        await revoke_key(served.gateway, "ann")
        assert (await served.list_tools(tokens["access_token"])).status_code == 401
        assert (await probe.refresh(tokens["refresh_token"])).json()["error"] == "invalid_grant"
        assert 'name="key"' in (await person.open(probe.authorize_url())).text


@pytest.mark.parametrize("kind", ["access_token", "refresh_token"])
async def test_client_revokes_its_tokens(kind: str, tmp_path: Path) -> None:
    async with serve(tmp_path) as served:
        probe = OAuthProbe(served)
        await probe.register()
        tokens = await probe.get_tokens(Person(await served.make_key()))
        form = {"token": tokens[kind], "client_id": probe.client_id}
        assert (await served.http.post(f"{served.base}/revoke", data=form)).status_code == 200
        assert (await served.list_tools(tokens["access_token"])).status_code == 401
        assert (await probe.refresh(tokens["refresh_token"])).status_code == 400


async def test_operator_lists_and_disconnects_a_client(tmp_path: Path) -> None:
    async with serve(tmp_path) as served:
        probe = OAuthProbe(served)
        await probe.register()
        tokens = await probe.get_tokens(Person(await served.make_key(), permission="read-only"))
        [client] = await list_clients(served.gateway)
        assert (client.client_name, client.principal, client.permission) == ("Probe", "ann", "read-only")
        await disconnect_client(served.gateway, client.id)
        assert (await served.list_tools(tokens["access_token"])).status_code == 401
        assert await list_clients(served.gateway) == []
        with pytest.raises(NotFound):
            await disconnect_client(served.gateway, client.id)


async def test_token_of_a_profile_has_that_profile_everywhere(tmp_path: Path) -> None:
    profiles = {"files": {"tools": {"allow": ["read_*"]}}, "wide": {}}
    async with serve(tmp_path, profiles=profiles) as served:
        probe = OAuthProbe(served)
        await probe.register()
        person = Person(await served.make_key())
        tokens = await probe.get_tokens(person, resource=f"{served.url}/files")
        assert "profile files" in person.pages[-2] + person.pages[-3]
        for path in ("/mcp/files", "/mcp", "/mcp/wide"):
            answer = (await served.list_tools(tokens["access_token"], path)).json()
            assert [tool["name"] for tool in answer["result"]["tools"]] == ["read_file"], path


async def test_secrets_are_stored_as_digests_only(tmp_path: Path) -> None:
    async with serve(tmp_path) as served:
        probe = OAuthProbe(served)
        await probe.register()
        code = await probe.get_code(Person(await served.make_key()))
        tokens = (await probe.exchange(code)).json()
        assert await list_keys(served.gateway)
    stored = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    for secret in (code, tokens["access_token"], tokens["refresh_token"]):
        assert secret.encode() not in stored


async def test_without_the_setting_there_is_no_authorization_server(tmp_path: Path) -> None:
    async with serve(tmp_path, auth={"authorization_server": False}) as served:
        key = await served.make_key()
        assert "resource_metadata" not in (await served.list_tools("")).headers["www-authenticate"]
        found = await served.http.get(
            f"{served.base}/.well-known/oauth-authorization-server", headers={"authorization": f"Bearer {key}"}
        )
        assert found.status_code == 404
        assert (await served.http.get(f"{served.base}/authorize")).status_code == 401
