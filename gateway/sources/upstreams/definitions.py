"""Definitions of an upstream as values with a digest: tools, prompts, resource templates and instructions."""

from __future__ import annotations

import enum
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any, NamedTuple

from gateway.errors import GatewayError, Invalid
from gateway.mcp_client import McpClient
from gateway.protocol.jsonrpc import RpcError
from gateway.value import Value

# Characters of a name or of a template's URI. MCP recommends 128 for a name; longer ones are offered under a short one.
NAME_LIMIT = 2048
DEFINITION_LIMIT = 256 * 1024
DEPTH_LIMIT = 64
# Definitions of one server; further ones are ignored.
COUNT_LIMIT = 2000

# Keys that are not pinned: metadata and icons, which may change with every response, and how one protocol version runs
# the tool. Everything else is pinned, unknown keys included: they reach the client too.
UNPINNED = frozenset(["_meta", "icons", "execution"])

_SAFE_INTEGER = 2**53
_INSTRUCTIONS = "instructions"


class Kind(str, enum.Enum):
    """Kinds of definitions. Resources are not among them: they are content."""

    TOOL = "tool"
    PROMPT = "prompt"
    TEMPLATE = "template"
    INSTRUCTIONS = "instructions"


class Key(NamedTuple):
    """The identity of a definition of a server; the name of a template is its URI template."""

    kind: Kind
    name: str


_NAMED_BY = {Kind.TOOL: "name", Kind.PROMPT: "name", Kind.TEMPLATE: "uriTemplate"}


class Definition(Value):
    """The pinned part of a definition. `text` is canonical JSON: equal definitions have equal texts."""

    key: Key
    text: str

    @cached_property
    def digest(self) -> str:
        return hashlib.sha256(f"{self.key.kind.value}\n{self.text}".encode()).hexdigest()

    @cached_property
    def value(self) -> dict[str, Any]:
        value: dict[str, Any] = json.loads(self.text)
        return value


class Definitions(Value):
    """The definitions of a server, and the problems of invalid ones; the first of two with the same name is used."""

    found: Mapping[Key, Definition]
    problems: tuple[GatewayError, ...] = ()


def define(kind: Kind, raw: Any) -> Definition:
    """Parse a definition. Refused when it has no valid name, is too large, nested too deep, or not JSON."""
    name = name_of(kind, raw)
    try:
        text = canonical(pinned_part(raw))
    except Invalid as problem:
        raise Invalid(f"the {kind.value} {name!r} {problem.message}", code=problem.code) from None
    return Definition(Key(kind, name), text)


def define_all(
    tools: Iterable[Any] = (),
    prompts: Iterable[Any] = (),
    templates: Iterable[Any] = (),
    instructions: str | None = None,
) -> Definitions:
    """All definitions of a server by key; an invalid one does not affect the others."""
    found: dict[Key, Definition] = {}
    problems: list[GatewayError] = []
    for kind, raw in _iterate(tools, prompts, templates, instructions):
        try:
            definition = define(kind, raw)
            if definition.key in found:
                name = definition.key.name
                raise Invalid(f"two {kind.value}s are named {name!r}; the first is used", code="DUPLICATE")
            if len(found) >= COUNT_LIMIT:
                raise Invalid(f"it has more than {COUNT_LIMIT} definitions; the rest is ignored", code="TOO_MANY")
        except Invalid as problem:
            problems.append(problem)
            if problem.code == "TOO_MANY":
                break
        else:
            found[definition.key] = definition
    return Definitions(found, tuple(problems))


def name_of(kind: Kind, raw: Any) -> str:
    """The name of a definition; refused when it is missing, too long or unprintable."""
    if not isinstance(raw, Mapping):
        raise Invalid(f"this {kind.value} is not a JSON object", code="INVALID_DEFINITION")
    if kind is Kind.INSTRUCTIONS:
        return _INSTRUCTIONS
    key = _NAMED_BY[kind]
    name = raw.get(key)
    if not isinstance(name, str) or not name:
        raise Invalid(f"this {kind.value} has no {key!r}", code="INVALID_DEFINITION")
    if len(name) > NAME_LIMIT:
        raise Invalid(
            f"the {kind.value} {name[:40]!r}… has a name of over {NAME_LIMIT} characters", code="NAME_TOO_LONG"
        )
    if any(ord(character) < 32 or "\ud800" <= character <= "\udfff" for character in name):
        raise Invalid(f"the {kind.value} {name!r} has control characters in its name", code="INVALID_DEFINITION")
    return name


def pinned_part(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a definition that a model or a policy reads.

    Of `_meta` only that models do not see a tool of MCP Apps is pinned. The rest is about its view, and servers leave
    it out for clients that show none. A null value counts as absent.
    """
    pinned = {key: value for key, value in raw.items() if key not in UNPINNED and value is not None}
    if isinstance(annotations := pinned.get("annotations"), Mapping):
        pinned["annotations"] = {key: value for key, value in annotations.items() if value is not None}
    meta = raw.get("_meta")
    view = meta.get("ui") if isinstance(meta, Mapping) else None
    visibility = view.get("visibility") if isinstance(view, Mapping) else None
    if isinstance(visibility, list) and "model" not in visibility:
        pinned["_meta"] = {"ui": {"visibility": visibility}}
    return pinned


def canonical(value: Any) -> str:
    """Canonical JSON: keys sorted, numbers in one spelling, ASCII only, so that any database stores it and nothing in
    it is invisible."""
    try:
        text = json.dumps(_normalize(value, 0), sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError):
        raise Invalid("is not valid JSON", code="INVALID_DEFINITION") from None
    if len(text) > DEFINITION_LIMIT:
        raise Invalid(f"is larger than {DEFINITION_LIMIT // 1024} KiB", code="DEFINITION_TOO_LARGE")
    return text


def _iterate(
    tools: Iterable[Any], prompts: Iterable[Any], templates: Iterable[Any], instructions: str | None
) -> Iterator[tuple[Kind, Any]]:
    if instructions:
        yield Kind.INSTRUCTIONS, {_INSTRUCTIONS: instructions}
    for kind, listed in ((Kind.TOOL, tools), (Kind.PROMPT, prompts), (Kind.TEMPLATE, templates)):
        for raw in listed:
            yield kind, raw


def _normalize(value: Any, depth: int) -> Any:
    if depth > DEPTH_LIMIT:
        raise Invalid(f"is nested deeper than {DEPTH_LIMIT} levels", code="DEFINITION_TOO_DEEP")
    if isinstance(value, Mapping):
        return {str(key): _sort_required(key, _normalize(item, depth + 1)) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_normalize(item, depth + 1) for item in value]
    if isinstance(value, float) and value.is_integer() and abs(value) < _SAFE_INTEGER:
        return int(value)
    return value


def _sort_required(key: str, value: Any) -> Any:
    """JSON Schema's `required` is a set, and some servers send it in another order each time."""
    if key == "required" and isinstance(value, list) and all(isinstance(item, str) for item in value):
        return sorted(value)
    return value


# By capability: the method of a list, and the key of its items.
LISTS = {
    "tools": ("tools/list", "tools"),
    "prompts": ("prompts/list", "prompts"),
    "resources": ("resources/templates/list", "resourceTemplates"),
}

METHOD_NOT_FOUND = -32601
# Lists that may change with any definition of a server; whether the tools did, the catalog shows.
BESIDE_TOOLS = frozenset(LISTS) - {"tools"}

PAGES = 200


class FetchedList(NamedTuple):
    """All pages of a list, and for how many seconds the server says that they are current; None if it does not."""

    entries: tuple[Any, ...] = ()
    fresh_seconds: float | None = None


async def fetch_list(link: McpClient, what: str) -> FetchedList:
    """Fetch a list if the server has the capability. Not every server with resources has templates."""
    if what not in link.capabilities:
        return FetchedList()
    method, key = LISTS[what]
    found: list[Any] = []
    cursor: str | None = None
    fresh_seconds: list[float] = []
    for _ in range(PAGES):
        try:
            page = await link.request(method, {"cursor": cursor} if cursor else None)
        except RpcError as fault:
            if fault.code == METHOD_NOT_FOUND and what != "tools":
                break
            raise
        items = page.get(key)
        found += items if isinstance(items, list) else []
        if type(milliseconds := page.get("ttlMs")) is int and milliseconds > 0:
            fresh_seconds.append(milliseconds / 1000)
        cursor = page.get("nextCursor")
        if not isinstance(cursor, str) or len(found) > COUNT_LIMIT:
            break
    return FetchedList(tuple(found), min(fresh_seconds, default=None))
