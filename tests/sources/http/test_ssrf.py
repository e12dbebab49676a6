"""Every way to a private address that is known to have worked somewhere, tried through HTTP tools: the tables of
`web_fetch`. Each is refused before anything is sent, and would arrive if private addresses were allowed."""

from __future__ import annotations

import pytest
from net.sites import OTHER_PUBLIC, PUBLIC, Lab, answer, redirect, serving
from net.test_addresses import NOT_PUBLIC
from net.test_ssrf import INNER, MALFORMED, SPELLINGS

from gateway.config import HttpSettings
from gateway.errors import Forbidden, GatewayError, Invalid, Unavailable
from sources.web.test_ssrf import ADDRESSES, SPELLED

from .calling import ANYWHERE, OPEN, compile_tool, lead_to, running, send

pytestmark = [pytest.mark.anyio, pytest.mark.promise("B7")]

SECRET = answer(200, b"secret", "Content-Type: text/plain")


async def test_this_machine_is_refused_under_any_spelling_in_a_url_and_in_a_secret() -> None:
    async with serving({"/": SECRET}) as site, running(ANYWHERE) as runner:
        for spelling in [*SPELLINGS, *SPELLED]:
            url = spelling.replace("{port}", str(site.port))
            with pytest.raises(GatewayError) as refused:
                await send(runner, compile_tool({"url_template": url}))
            assert refused.value.code in ("PRIVATE_ADDRESS", "NO_ADDRESS", "INVALID_TOOLSET", "INVALID_URL"), url
            host = url.partition("://")[2].partition("/")[0]
            with pytest.raises(GatewayError) as refused:
                await send(runner, compile_tool({"url_template": "http://${HOST}/"}), {"HOST": host})
            assert refused.value.code in ("PRIVATE_ADDRESS", "NO_ADDRESS", "INVALID_URL"), url
        assert site.connections == 0
    async with serving({"/": SECRET}) as site, running(OPEN) as runner:
        assert (await send(runner, compile_tool({"url_template": site["/"]}))).value == "secret"


async def test_ambiguous_url_of_a_tool_is_refused() -> None:
    async with serving({"/": SECRET}) as site, running(OPEN) as runner:
        for text in MALFORMED:
            url = text.replace("{port}", str(site.port))
            if "\ud800" in url or len(url) > 8000:
                continue  # not text of a file, or too long for one
            with pytest.raises(GatewayError) as refused:
                await send(runner, compile_tool({"url_template": url}))
            assert refused.value.code in ("INVALID_TOOLSET", "INVALID_URL", "NO_ADDRESS"), ascii(url)
        assert site.connections == 0


async def test_name_or_redirect_that_leads_to_a_private_address_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    replies = {"/": redirect("http://inner.test/secret"), "/secret": SECRET}
    async with serving(replies) as site:
        for address in NOT_PUBLIC:
            lab = Lab(site.port, {"public.test": [[PUBLIC]], "inner.test": [[address]]})
            with monkeypatch.context() as patch:
                lead_to(lab, patch)
                direct, redirected = (
                    {"url_template": f"http://{url}"} for url in ("inner.test/secret", "public.test/")
                )
                async with running(ANYWHERE, lab) as runner:
                    with pytest.raises(Forbidden) as refused:
                        await send(runner, compile_tool(direct))
                    assert (refused.value.code, lab.connected) == ("PRIVATE_ADDRESS", [])
                    with pytest.raises(Forbidden, match="redirects to a URL that is refused") as refused:
                        await send(runner, compile_tool(redirected))
                    assert (refused.value.code, lab.connected) == ("PRIVATE_ADDRESS", [PUBLIC])
                async with running(OPEN, lab) as runner:
                    assert (await send(runner, compile_tool(redirected))).value == "secret"


@pytest.mark.parametrize(
    "location",
    [
        *("http://127.0.0.1/secret", "//127.0.0.1/secret", "http://2130706433/secret", "http://[::1]/secret"),
        *("http://169.254.169.254/secret", "http://METADATA.test./secret", "http:\t//127.0.0.1/secret"),
        *("http://public.test@127.0.0.1/secret", "http://127.0.0.1\\@public.test/secret", "file:///secret"),
        *("http://[::1%25lo]/secret", "ftp://127.0.0.1/secret"),
    ],
)
async def test_redirect_in_any_spelling_is_refused(location: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving({"/": redirect(location), "/secret": SECRET}) as site:
        lab = Lab(site.port, {"public.test": [[PUBLIC]], **INNER})
        lead_to(lab, monkeypatch)
        async with running(ANYWHERE, lab) as runner:
            with pytest.raises((Forbidden, Unavailable)) as refused:
                await send(runner, compile_tool({"url_template": "http://public.test/"}))
            assert refused.value.code in ("PRIVATE_ADDRESS", "BAD_ANSWER")
            assert lab.connected == [PUBLIC]


async def test_every_form_of_a_private_address_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving({"/": SECRET}) as site:
        for url in ADDRESSES:
            host = url.removeprefix("http://").rstrip("/").strip("[]")
            lab = Lab(site.port, {host: [[host]]})
            with monkeypatch.context() as patch:
                lead_to(lab, patch)
                async with running(ANYWHERE, lab) as runner:
                    with pytest.raises(GatewayError) as refused:
                        await send(runner, compile_tool({"url_template": url}))
                    assert refused.value.code in ("PRIVATE_ADDRESS", "NO_ADDRESS"), url
                    assert lab.connected == []


async def test_name_is_resolved_once_and_one_private_address_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving({"/": SECRET}) as site:
        lab = Lab(
            site.port, {"rebind.test": [[PUBLIC], ["127.0.0.1"]], "mixed.test": [[PUBLIC, OTHER_PUBLIC, "10.0.0.1"]]}
        )
        lead_to(lab, monkeypatch)
        async with running(ANYWHERE, lab) as runner:
            assert (await send(runner, compile_tool({"url_template": "http://rebind.test/"}))).value == "secret"
            assert (lab.looked_up, lab.connected) == (["rebind.test"], [PUBLIC])
            with pytest.raises(Forbidden, match=r"10\.0\.0\.1"):
                await send(runner, compile_tool({"url_template": "http://mixed.test/"}))
            with pytest.raises(Forbidden):  # the connection was closed, so the name is resolved again
                await send(runner, compile_tool({"url_template": "http://rebind.test/"}))


async def test_host_is_checked_before_its_name_is_resolved_and_at_each_redirect(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serving({"/": redirect("http://other.test/secret"), "/secret": SECRET}) as site:
        lab = Lab(site.port, {"a.test": [[PUBLIC]], "other.test": [[PUBLIC]]})
        lead_to(lab, monkeypatch)
        async with running(HttpSettings(allowed_hosts=["a.test"]), lab) as runner:
            with pytest.raises(Forbidden, match=r"add it to http\.allowed_hosts") as refused:
                await send(runner, compile_tool({"url_template": "http://other.test/"}))
            assert (refused.value.code, lab.looked_up) == ("HOST_NOT_ALLOWED", [])
            with pytest.raises(Forbidden) as refused:
                await send(runner, compile_tool({"url_template": "http://a.test/"}))
            assert (refused.value.code, lab.looked_up) == ("HOST_NOT_ALLOWED", ["a.test"])


async def test_credentials_do_not_follow_a_redirect_to_another_origin(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving({"/": redirect("http://other.test/secret", 307), "/secret": SECRET}) as site:
        lab = Lab(site.port, {"a.test": [[PUBLIC]], "other.test": [[PUBLIC]]})
        lead_to(lab, monkeypatch)
        tool = {"url_template": "http://a.test/", "auth": {"type": "bearer", "token": "${TOKEN}"}}
        async with running(ANYWHERE, lab) as runner:
            await send(runner, compile_tool({**tool, "headers": {"X-Key": "${TOKEN}"}}), {"TOKEN": "t0ken-value"})
        first, second = site.asked
        assert (first.headers["authorization"], first.headers["x-key"]) == ("Bearer t0ken-value", "t0ken-value")
        assert not {"authorization", "x-key"} & second.headers.keys()


async def test_credentials_do_not_follow_a_redirected_page_to_another_origin(monkeypatch: pytest.MonkeyPatch) -> None:
    page = answer(200, b"[1]", "Content-Type: application/json")
    async with serving({"/": [redirect("http://other.test/page", 307), page], "/page": page}) as site:
        lab = Lab(site.port, {"a.test": [[PUBLIC]], "other.test": [[PUBLIC]]})
        lead_to(lab, monkeypatch)
        tool = {
            "url_template": "http://a.test/",
            "auth": {"type": "bearer", "token": "${TOKEN}"},
            "pagination": {"type": "page", "parameter": "n", "pages": 2},
        }
        async with running(ANYWHERE, lab) as runner:
            outcome = await send(runner, compile_tool(tool), {"TOKEN": "t0ken-value"})
        assert outcome.value["pages"] == 2
        sent = [(asked.headers["host"], "authorization" in asked.headers) for asked in site.asked]
        assert sent == [("a.test", True), ("other.test", False), ("a.test", True)]


async def test_argument_cannot_choose_the_host() -> None:
    with pytest.raises(Invalid, match="only a declared secret may"):
        compile_tool({"url_template": "http://${host}/"})
