"""What the web tools work with: the way out, and what belongs to the call."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway.calls import Call
from gateway.config.settings import WebSettings
from gateway.net.policy import WEB_PORTS, NetworkPolicy
from gateway.workspace import Workspaces
from gateway.workspace.versions import Versions

if TYPE_CHECKING:
    from gateway.net.client import GuardedClient
    from gateway.net.transport import Network
    from gateway.sources.builtin.web.html_reader import Reader
    from gateway.sources.builtin.web.page import Remembered

ANY = "*"


def web_policy(settings: WebSettings) -> NetworkPolicy:
    """Where `web_fetch` and `web_download` may go; refused when the settings name what is no host."""
    return NetworkPolicy(
        allowed_hosts=tuple(host for host in settings.allowed_hosts if host != ANY),
        any_host=ANY in settings.allowed_hosts,
        allow_private=settings.allow_private,
        ports=WEB_PORTS,
        hosts_setting="web.allowed_hosts",
        private_setting="web.allow_private",
    )


class Outside:
    """Opens doors, and reads what comes through them. A test brings its own network."""

    def __init__(self, network: Network | None = None, tls: ssl.SSLContext | None = None) -> None:
        self._network = network
        self._tls = tls
        self._reader: Reader | None = None

    def door(self, policy: NetworkPolicy) -> GuardedClient:
        # The HTTP client takes a tenth of a second to import, and most processes never need it.
        from gateway.net.client import GuardedClient
        from gateway.net.transport import INTERNET

        return GuardedClient(policy, self._network or INTERNET, self._tls)

    @property
    def reader(self) -> Reader:
        if self._reader is None:
            from gateway.sources.builtin.web.html_reader import Reader  # imports the sandbox

            self._reader = Reader()
        return self._reader


@dataclass(frozen=True)
class Files:
    """The chats' files and their versions, for the one tool that writes."""

    workspaces: Workspaces
    versions: Versions


@dataclass(frozen=True)
class WebContext:
    """What a web tool works with besides its arguments."""

    call: Call
    settings: WebSettings
    policy: NetworkPolicy
    outside: Outside
    pages: Remembered
    files: Files | None = None
