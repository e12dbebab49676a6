"""The context of the web tools: the guarded HTTP client, the HTML reader and a page cache."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import TYPE_CHECKING

from gateway.calls import Call
from gateway.config.settings import WebSettings
from gateway.net.policy import WEB_PORTS, NetworkPolicy
from gateway.sources.builtin.source import NO_HOSTS, NO_SEARCH, ToolKind
from gateway.sources.builtin.web.page import PageCache
from gateway.tools import Hides, Permission
from gateway.value import Value
from gateway.workspace import Workspaces
from gateway.workspace.versions import Versions

if TYPE_CHECKING:
    from gateway.net.client import GuardedClient
    from gateway.net.transport import Network
    from gateway.sources.builtin.web.page import HtmlReader

# Every public host, in web.allowed_hosts.
ANY_HOST = "*"


class WebAccess:
    """The way to the web: HTTP clients and the HTML reader, made at first use. Tests pass their own network."""

    def __init__(self, network: Network | None = None, tls: ssl.SSLContext | None = None) -> None:
        self._network = network
        self._tls = tls
        self._reader: HtmlReader | None = None

    def client(self, policy: NetworkPolicy) -> GuardedClient:
        # The HTTP client takes a tenth of a second to import, and most processes never need it.
        from gateway.net.client import GuardedClient
        from gateway.net.transport import INTERNET

        return GuardedClient(policy, self._network or INTERNET, self._tls)

    @property
    def reader(self) -> HtmlReader:
        if self._reader is None:
            from gateway.sources.builtin.web.page import HtmlReader  # imports the sandbox

            self._reader = HtmlReader()
        return self._reader


class WebContext(Value):
    """The call of a web tool, with everything the tool uses besides its arguments."""

    call: Call
    settings: WebSettings
    policy: NetworkPolicy
    access: WebAccess
    pages: PageCache
    workspaces: Workspaces
    versions: Versions
    profile: Permission = Permission.EXECUTE

    @property
    def may_send(self) -> bool:
        """True if the profile and the caller allow a request that may change something."""
        return all(level.allows(Permission.READ_WRITE) for level in (self.profile, self.call.caller.permission))


class WebTools(ToolKind):
    """Tools that fetch, search and download. They reach only what the settings allow."""

    kind = "web"

    def __init__(
        self,
        settings: WebSettings,
        workspaces: Workspaces,
        versions: Versions,
        profile: Permission = Permission.EXECUTE,
        *,
        network: Network | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._settings = settings
        self._workspaces = workspaces
        self._versions = versions
        self._profile = profile
        self._policy = web_policy(settings)
        self._access = WebAccess(network, tls)
        self._pages = PageCache()

    async def missing(self) -> Mapping[str, str]:
        met = {"hosts": bool(self._settings.allowed_hosts), "search": self._settings.search is not None}
        return {name: reason for name, reason in (("hosts", NO_HOSTS), ("search", NO_SEARCH)) if not met[name]}

    def context(self, call: Call, hides: Hides) -> WebContext:
        files = self._workspaces, self._versions
        return WebContext(call, self._settings, self._policy, self._access, self._pages, *files, self._profile)


def web_policy(settings: WebSettings) -> NetworkPolicy:
    """Return the hosts that `web_fetch` and `web_download` may reach; refuse settings that name an invalid host."""
    return NetworkPolicy(
        allowed_hosts=tuple(host for host in settings.allowed_hosts if host != ANY_HOST),
        any_host=ANY_HOST in settings.allowed_hosts,
        allow_private=settings.allow_private,
        ports=WEB_PORTS,
        hosts_setting="web.allowed_hosts",
        private_setting="web.allow_private",
    )
