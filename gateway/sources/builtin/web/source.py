"""The web tools that can do something here, listed and run."""

from __future__ import annotations

import functools
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from gateway.calls import Call, Outcome
from gateway.config.settings import WebSettings
from gateway.sources.builtin.decorator import Builtin
from gateway.sources.builtin.web.context import Files, Outside, WebContext, web_policy
from gateway.sources.builtin.web.page import Remembered
from gateway.sources.builtin.web.web_download import web_download
from gateway.sources.builtin.web.web_fetch import web_fetch
from gateway.sources.builtin.web.web_search import web_search
from gateway.tools import Tool

if TYPE_CHECKING:
    from gateway.net.transport import Network

WEB: Sequence[Builtin] = (web_fetch, web_search, web_download)


class WebSource:
    """Lists the web tools that can do something here, and runs them. Without `files`, none that writes."""

    name = "web"

    def __init__(
        self,
        settings: WebSettings,
        files: Files | None = None,
        *,
        network: Network | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._settings = settings
        self._files = files
        self._policy = web_policy(settings)
        self._outside = Outside(network, tls)
        self._pages = Remembered()
        self._builtins: Mapping[str, Builtin] = {each.tool.id: each for each in WEB if self._offers(each)}

    async def list_tools(self) -> Sequence[Tool]:
        return [self._listed(each) for each in self._builtins.values()]

    async def call_tool(self, call: Call) -> Outcome:
        return await self._builtins[call.target.id].run_async(self._context(call), call.arguments)

    def _offers(self, builtin: Builtin) -> bool:
        if builtin is web_search:
            return self._settings.search is not None
        return bool(self._settings.allowed_hosts) and (builtin is web_fetch or self._files is not None)

    def _listed(self, builtin: Builtin) -> Tool:
        if builtin.asks is None:
            return replace(builtin.tool, open_world=True)
        return replace(builtin.tool, open_world=True, requires_confirmation=functools.partial(self._ask, builtin))

    async def _ask(self, builtin: Builtin, call: Call) -> str | None:
        reason: str | None = await builtin.ask(self._context(call), call.arguments)
        return reason

    def _context(self, call: Call) -> WebContext:
        return WebContext(call, self._settings, self._policy, self._outside, self._pages, self._files)
