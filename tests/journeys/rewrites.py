"""Everything the gateway changes in the answers of a server, as functions from the server's JSON to the client's.

docs/upstreams.md has the same list in words. They are written anew here: a mistake in the gateway's own functions is
not repeated.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from .wire import MODERN

Json = dict[str, Any]

CALL_ID = "dev.toolgate/call_id"
SERVER_INFO = "io.modelcontextprotocol/serverInfo"
# What 2026-07-28 added to results; the gateway answers for how long its lists and results may be kept.
NEWER = ("resultType", "ttlMs", "cacheScope")
# A view of MCP Apps inside the gateway's page, before which stands a script.
VIEW = re.compile(r'<script type="application/json" id="toolgate-view">(.*?)</script>', re.DOTALL)
VIEW_STORAGE = re.compile(r'<script>\nfor \(const name of \["localStorage.*?</script>', re.DOTALL)


def name(server: str, own: str) -> str:
    """Tools and prompts are called SERVER__NAME."""
    return f"{server}__{own}"


def uri(server: str, own: str) -> str:
    """Resources and templates are at mcp+SERVER:URI; pages of MCP Apps stay at ui://, which hosts recognise."""
    if own.startswith("ui://"):
        return f"ui://{server}/{own.removeprefix('ui://')}"
    return f"mcp+{server}:{own}"


def tool(server: str, own: Json) -> Json:
    """A tool's page is at the URI under which the gateway offers it. How to run it as a task is left out: tasks are not
    relayed. Null values are left out, too."""
    changed = {key: own[key] for key in own if key != "execution" and own[key] is not None}
    changed["name"] = name(server, own["name"])
    meta = dict(own.get("_meta") or {})
    if "ui/resourceUri" in meta:
        meta["ui/resourceUri"] = uri(server, meta["ui/resourceUri"])
    if "resourceUri" in (page := meta.get("ui") or {}):
        meta["ui"] = {**page, "resourceUri": uri(server, page["resourceUri"])}
    return {**changed, "_meta": meta} if meta else changed


def prompt(server: str, own: Json) -> Json:
    return {**own, "name": name(server, own["name"])}


def resource(server: str, own: Json) -> Json:
    return {**own, "uri": uri(server, own["uri"])}


def template(server: str, own: Json) -> Json:
    return {**own, "uriTemplate": uri(server, own["uriTemplate"])}


def block(server: str, own: Json) -> Json:
    """Content that links to a resource, or embeds one, names it as the gateway offers it."""
    match own:
        case {"type": "resource_link"}:
            return resource(server, own)
        case {"type": "resource", "resource": embedded}:
            return {**own, "resource": resource(server, embedded)}
    return own


def result(server: str, own: Json) -> Json:
    """The result of a call, without what is the gateway's own in every result (`without_own`)."""
    changed = without_own(own)
    if "content" in changed:
        changed["content"] = [block(server, each) for each in changed["content"]]
    if "contents" in changed:
        changed["contents"] = [resource(server, each) for each in changed["contents"]]
    if "messages" in changed:
        changed["messages"] = [{**each, "content": block(server, each["content"])} for each in changed["messages"]]
    return changed


def without_own(answer: Json) -> Json:
    """A result without what each server says of itself and the gateway replaces: its name in `_meta`, how long the
    answer may be kept, and the id of the call in the gateway's records; and views without the page around them."""
    meta = {key: value for key, value in (answer.get("_meta") or {}).items() if key not in (CALL_ID, SERVER_INFO)}
    rest = {key: value for key, value in answer.items() if key not in ("_meta", *NEWER)}
    if "contents" in rest:
        rest["contents"] = [_without_page(each) for each in rest["contents"]]
    return {**rest, "_meta": meta} if meta else rest


def _without_page(content: Json) -> Json:
    if content.get("mimeType") != "text/html;profile=mcp-app" or "text" not in content:
        return content
    page = VIEW.search(content["text"])
    return {**content, "text": VIEW_STORAGE.sub("", json.loads(page[1])[0], count=1)} if page else content


def own_parts(answer: Json) -> set[str]:
    """Which of the gateway's own parts a result through it has."""
    meta = answer.get("_meta") or {}
    return {key for key in (CALL_ID, SERVER_INFO) if key in meta} | {key for key in NEWER if key in answer}


def expected_parts(method: str, era: str) -> set[str]:
    parts = {CALL_ID} if method == "tools/call" else set()
    if era == MODERN:
        parts |= {SERVER_INFO, "resultType"}
        parts |= {"ttlMs", "cacheScope"} if method == "resources/read" else set()
    return parts


LISTS: dict[str, tuple[str, str, Callable[[str, Json], Json]]] = {
    "tools/list": ("tools", "name", tool),
    "prompts/list": ("prompts", "name", prompt),
    "resources/list": ("resources", "uri", resource),
    "resources/templates/list": ("resourceTemplates", "uriTemplate", template),
}
