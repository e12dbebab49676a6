"""Settings of the web tools."""

from __future__ import annotations

from typing import Literal

from pydantic import SecretStr, model_validator

from gateway.config.section import Section

_WITH_A_KEY = ("brave", "tavily")


class SearchSettings(Section):
    """Who answers `web_search`. `url` is where a SearXNG of yours is; the others know their own address,
    and another one stands in for it. `key` is best written as `${VAR}`: it is looked up when it is used."""

    provider: Literal["searxng", "brave", "tavily", "duckduckgo"]
    url: str | None = None
    key: SecretStr | None = None

    @model_validator(mode="after")
    def _is_complete(self) -> SearchSettings:
        if self.provider == "searxng" and self.url is None:
            raise ValueError("searxng needs 'url', the address of an instance: http://localhost:8888")
        if self.url is not None and not self.url.startswith(("http://", "https://", "${")):
            raise ValueError("'url' must start with https:// or http://")
        if self.provider in _WITH_A_KEY and self.key is None:
            raise ValueError(f"{self.provider} needs 'key': write ${{VAR}} and set that variable in the environment")
        if self.provider not in _WITH_A_KEY and self.key is not None:
            raise ValueError(f"{self.provider} takes no 'key'; leave it out")
        return self


class WebSettings(Section):
    """What may be reached. `allowed_hosts` are names, patterns like `*.example.org`, either with a `:port`
    beyond the usual two, or `*` for every public host. `allow_private` lets them lead to private addresses."""

    allowed_hosts: list[str] = []
    allow_private: bool = False
    search: SearchSettings | None = None
