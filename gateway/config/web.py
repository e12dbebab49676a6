"""Settings of the web tools."""

from __future__ import annotations

from .section import Section


class SearchSettings(Section):
    provider: str
    url: str | None = None


class WebSettings(Section):
    allowed_hosts: list[str] = []
    search: SearchSettings | None = None
