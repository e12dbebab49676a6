"""OpenAPI import: an OpenAPI document becomes a toolset of HTTP tools, which is then an ordinary toolset folder.

A document imported again replaces what the earlier import wrote and keeps what a person changed since. For that the
folder has `openapi.json`, with digests of what was imported.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

from pydantic import ValidationError

from gateway.bundles import spec
from gateway.bundles.openapi.auth import SecuritySchemes
from gateway.bundles.openapi.document import INVALID_OPENAPI, Fetch, OpenApiDocument
from gateway.bundles.openapi.operations import Operation, OperationConverter, SkippedOperation
from gateway.bundles.openapi.schemas import clean_text
from gateway.bundles.secret_references import mask_url
from gateway.bundles.spec import FILE_NAME, Toolset
from gateway.calls import to_json
from gateway.errors import Conflict, Invalid
from gateway.names import did_you_mean
from gateway.secrets import VARIABLE, variable_name
from gateway.value import Value

BASELINE_NAME = "openapi.json"
UNTAGGED = "untagged"
_SERVER_VARIABLE = re.compile(r"\{([^{}]+)\}")
_SERVER_DEFAULT = re.compile(r"[A-Za-z0-9._~:/%-]+")  # some documents have a placeholder there
_ABSOLUTE = re.compile(r"https?://[^/]", re.IGNORECASE)


class ImportOptions(Value):
    """Choices of a person for one import. Without `tags` every operation is imported; `server` replaces the document's
    own servers; `headers` are sent with every request, and `${NAME}` in them is a secret."""

    toolset_id: str | None = None
    tags: Sequence[str] = ()
    server: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


class ImportChanges(Value):
    """Differences to the earlier import, by tool id; `changed` and `kept` with the fields. What a person changed is in
    `kept`, also where the document changed it too."""

    added: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    changed: dict[str, list[str]] = field(default_factory=dict)
    kept: dict[str, list[str]] = field(default_factory=dict)


class OpenApiImport(Value):
    """A toolset made of a document. `skipped` has the reason for every operation that is not in it, `notes` what was
    left out of a tool, and `remarks` what concerns all of them."""

    toolset: Toolset
    operations: int
    tags: Mapping[str, int]
    skipped: Mapping[str, str]
    notes: Mapping[str, list[str]]
    remarks: list[str]
    baseline: Mapping[str, Any]
    changes: ImportChanges | None = None

    @property
    def hosts(self) -> list[str]:
        """The hosts that the tools send requests to, as `http.allowed_hosts` takes them, but for those in variables."""
        urls = [tool.url_template for tool in self.toolset.tools if tool.type == "http"]
        urls += [self.toolset.http.base_url] if self.toolset.http and self.toolset.http.base_url else []
        hosts = {urlsplit(url).netloc for url in urls if _ABSOLUTE.match(url)}
        return sorted(host for host in hosts if "${" not in host)

    def merge(self, previous: Path) -> OpenApiImport:
        """Return the import with what a person changed in the folder of an earlier one. Refused when the toolset there
        was not imported."""
        baseline = dict(self.baseline)
        values, changes = _merge_previous(_dump(self.toolset), baseline, previous)
        return replace(self, toolset=_validate(values), changes=changes, baseline=baseline)

    def write(self, directory: Path) -> None:
        """Write the toolset's folder."""
        directory.mkdir(parents=True, exist_ok=True)
        (directory / FILE_NAME).write_text(spec.dump(self.toolset))
        (directory / BASELINE_NAME).write_text(json.dumps(self.baseline, indent=1))


def import_document(location: str, fetch: Fetch, options: ImportOptions) -> OpenApiImport:
    """Make a toolset of the document at a path or URL. Refused with `INVALID_OPENAPI`, and the line, when it is no
    OpenAPI document."""
    return _Importer(OpenApiDocument(location, fetch), options).run()


class _Importer:
    def __init__(self, document: OpenApiDocument, options: ImportOptions) -> None:
        info = document.root.get("info")
        self._document = document
        self._options = options
        self._info: dict[str, Any] = info if isinstance(info, dict) else {}
        self._id = options.toolset_id or _slug(str(self._info.get("title") or ""))
        self._remarks: list[str] = []
        self._variables: dict[str, None] = {}
        self._schemes = SecuritySchemes(document, self._id)

    def run(self) -> OpenApiImport:
        base_url = self._choose_base_url()
        converter = OperationConverter(self._document, self._id, self._schemes, base_url)
        tools: list[dict[str, Any]] = []
        skipped: dict[str, str] = {}
        notes: dict[str, list[str]] = {}
        tags: dict[str, int] = {}
        chosen = self._choose_tags(converter)
        count = 0
        for operation in converter.list_operations():
            count += 1
            if not isinstance(operation, Operation):
                skipped[operation[0]] = operation[1]
                continue
            own = operation.tags or (UNTAGGED,)
            if chosen is not None and not chosen.intersection(tag.lower() for tag in own):
                skipped[operation.place] = f"its tag is not chosen: {', '.join(own)}"
                continue
            try:
                tool, left_out = converter.convert(operation, self._operation_url(operation, base_url))
            except SkippedOperation as reason:
                skipped[operation.place] = str(reason)
                continue
            tools.append(tool)
            tags[own[0]] = tags.get(own[0], 0) + 1
            if left_out:
                notes[tool["id"]] = left_out
        order = {tag: index for index, tag in enumerate(tags)}
        tools.sort(key=lambda tool: order[(tool.get("tags") or [UNTAGGED])[0]])
        self._add_remarks(tools)
        while True:
            values = self._make_toolset(tools, base_url)
            try:
                toolset = _validate(values)
                break
            except _InvalidTool as error:
                tool = tools.pop(error.index)
                skipped[tool["description"].rpartition("\n")[2]] = str(error)
                tags[(tool.get("tags") or [UNTAGGED])[0]] -= 1
        baseline = _make_baseline(_dump(toolset))
        source = self._document.location if "://" in self._document.location else self._document.name
        baseline |= {"source": mask_url(source) if "://" in source else source, "tags": list(self._options.tags)}
        baseline |= {"server": self._options.server is not None, "headers": bool(self._options.headers)}
        return OpenApiImport(toolset, count, tags, skipped, notes, self._remarks, baseline)

    def _make_toolset(self, tools: list[dict[str, Any]], base_url: str) -> dict[str, Any]:
        headers = dict(self._options.headers)
        for value in headers.values():
            self._variables |= dict.fromkeys(VARIABLE.findall(value))
        http: dict[str, Any] = {"base_url": base_url}
        http |= {"headers": headers} if headers else {}
        http |= {"auth": self._schemes.used} if self._schemes.used else {}
        return {
            "id": self._id,
            "name": clean_text(self._info.get("title"), 200, one_line=True) or self._id,
            "version": _semantic_version(str(self._info.get("version") or "")),
            "description": clean_text(self._info.get("description"), 2000),
            "secrets": [*dict.fromkeys([*self._variables, *self._schemes.variables])],
            "http": http,
            "tools": tools,
        }

    def _choose_tags(self, converter: OperationConverter) -> frozenset[str] | None:
        if not self._options.tags:
            return None
        operations = [operation for operation in converter.list_operations() if isinstance(operation, Operation)]
        known = dict.fromkeys(tag for operation in operations for tag in operation.tags or (UNTAGGED,))
        lower = {tag.lower() for tag in known}
        for tag in self._options.tags:
            if tag.lower() not in lower:
                near = did_you_mean(tag, known) or f"; there are: {', '.join(list(known)[:30])}"
                raise Invalid(f"no operation has the tag {tag!r}{near}", code="UNKNOWN_TAG")
        return frozenset(tag.lower() for tag in self._options.tags)

    def _choose_base_url(self) -> str:
        if self._options.server is not None:
            self._variables |= dict.fromkeys(VARIABLE.findall(self._options.server))
            return self._options.server.rstrip("/")
        urls = [self._fill_server(server) for server in _server_list(self._document.root) if server.get("url")]
        if not urls or not _ABSOLUTE.match(urls[0]):
            path = urls[0] if urls else "/"
            if _ABSOLUTE.match(self._document.location):
                return urljoin(self._document.location, path).rstrip("/")
            host = f"{variable_name(self._id)}_HOST"
            self._variables[host] = None
            self._remarks.append(f"the document names no host; set {host}, or import it with --server URL")
            return f"https://${{{host}}}{path if path.startswith('/') else f'/{path}'}".rstrip("/")
        others = [url for url in dict.fromkeys(urls) if url.rstrip("/") != urls[0].rstrip("/")]
        if others:
            self._remarks.append(f"requests go to {urls[0]}; choose another with --server: {', '.join(others[:5])}")
        return urls[0].rstrip("/")

    def _operation_url(self, operation: Operation, base_url: str) -> str:
        """The base URL of an operation, which may have servers of its own."""
        servers = _server_list(operation.fields) or _server_list(operation.shared)
        if not servers or not servers[0].get("url"):
            return base_url
        url = self._fill_server(servers[0])
        if "://" in url:
            return url.rstrip("/") if _ABSOLUTE.match(url) else url
        scheme, _, rest = base_url.partition("://")
        return f"{scheme}://{rest.partition('/')[0]}/{url.strip('/')}".rstrip("/")

    def _fill_server(self, server: Mapping[str, Any]) -> str:
        """The URL of a server, its variables at their defaults; one without a default is a secret of the toolset."""
        variables = server.get("variables")

        def fill(match: re.Match[str]) -> str:
            variable = variables.get(match[1]) if isinstance(variables, dict) else None
            default = variable.get("default") if isinstance(variable, dict) else None
            if default is not None and _SERVER_DEFAULT.fullmatch(str(default)):
                return str(default)
            name = f"{variable_name(self._id)}_{variable_name(match[1])}"
            self._variables[name] = None
            return f"${{{name}}}"

        return _SERVER_VARIABLE.sub(fill, str(server["url"]).strip())

    def _add_remarks(self, tools: Collection[dict[str, Any]]) -> None:
        for name, problem in self._schemes.problems.items():
            self._remarks.append(f"security scheme {name!r}: {problem}")
        has_credentials = self._schemes.variables or self._options.headers
        if tools and not has_credentials and not any("auth" in tool for tool in tools):
            self._remarks.append("no operation has a security scheme; if the API needs a token, add --header")
        webhooks = self._document.root.get("webhooks")
        if webhooks:
            self._remarks.append(f"webhooks are requests of the server, not operations; left out: {len(webhooks)}")


def _server_list(node: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    servers = node.get("servers")
    return [server for server in servers if isinstance(server, dict)] if isinstance(servers, list) else []


def _slug(title: str) -> str:
    slug = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:24].strip("-")
    if not slug:
        raise Invalid("the document has no title to make an id of; name one with --id", code=INVALID_OPENAPI)
    return slug


def _semantic_version(text: str) -> str:
    """The version of the API as a semantic one: `v2` is 2.0.0, and a text without numbers 1.0.0."""
    numbers = [str(int(number)) for number in re.findall(r"[0-9]{1,8}", text)[:3]]
    return ".".join([*numbers, "0", "0"][:3]) if numbers else "1.0.0"


class _InvalidTool(Exception):
    """A tool that the model of toolsets refuses, by its index."""

    def __init__(self, index: int, reason: str) -> None:
        super().__init__(reason)
        self.index = index


def _validate(values: Mapping[str, Any]) -> Toolset:
    try:
        return Toolset.model_validate_json(to_json(values))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = [part for part in (*first["loc"], *first.get("ctx", {}).get("at", ())) if not str(part).startswith("<")]
        where = ".".join(map(str, place[2:]))
        if place[:1] == ["tools"] and isinstance(place[1], int):
            raise _InvalidTool(place[1], f"{where}: {first['msg']}") from None
        raise Invalid(f"the imported toolset is not valid: {first['msg']}", code=INVALID_OPENAPI) from None


def _dump(toolset: Toolset) -> dict[str, Any]:
    """The canonical form, in which the fields of two toolsets can be compared."""
    return toolset.model_dump(mode="json", exclude_defaults=True)


def _make_baseline(values: Mapping[str, Any]) -> dict[str, Any]:
    tools = {tool["id"]: {key: _digest(value) for key, value in tool.items()} for tool in values["tools"]}
    return {"toolset": {key: _digest(value) for key, value in _flatten(values)}, "tools": tools}


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]


def _flatten(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The fields of a toolset besides its tools, those under `http` one by one."""
    for key, value in values.items():
        if key == "http":
            yield from ((f"http.{name}", item) for name, item in value.items() if name != "auth")
            yield from ((f"http.auth.{name}", item) for name, item in value.get("auth", {}).items())
        elif key not in ("tools", "secrets"):
            yield key, value


def _unflatten(fields: Mapping[str, Any]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in fields.items():
        target = values
        *parents, name = key.split(".", 2)
        for parent in parents:
            target = target.setdefault(parent, {})
        target[name] = value
    return values


def _merge_previous(
    values: Mapping[str, Any], given: dict[str, Any], previous: Path
) -> tuple[dict[str, Any], ImportChanges]:
    """The imported toolset with a person's changes to the earlier one in `previous`. A server and headers that were
    given as options stay unless others are `given` now."""
    try:
        baseline = json.loads((previous / BASELINE_NAME).read_bytes())
        before, fields = baseline["tools"], baseline["toolset"]
    except (OSError, ValueError, KeyError, TypeError):
        raise Conflict(
            f"{str(previous)!r} has a toolset that was not imported from OpenAPI; choose another folder or id",
            code="NOT_IMPORTED",
        ) from None
    current = _dump(spec.load((previous / FILE_NAME).read_bytes(), FILE_NAME))
    changes = ImportChanges()
    old, new = dict(_flatten(current)), dict(_flatten(values))
    for option, key in (("server", "http.base_url"), ("headers", "http.headers")):
        if baseline.get(option) and not given[option] and key in old:
            given[option], new[key] = True, old[key]
            given["toolset"] = {**given["toolset"], key: _digest(old[key])}
    merged = _unflatten(_merge_fields(old, new, fields, current["id"], changes))
    merged["secrets"] = list(dict.fromkeys([*values.get("secrets", ()), *current.get("secrets", ())]))
    own = {tool["id"]: tool for tool in current.get("tools", ())}
    tools = []
    for tool in values["tools"]:
        if tool["id"] in own:
            known = before.get(tool["id"], {})
            tools.append(_merge_fields(own.pop(tool["id"]), tool, known, tool["id"], changes))
        elif tool["id"] in before:
            changes.kept[tool["id"]] = ["removed"]
        else:
            changes.added.append(tool["id"])
            tools.append(tool)
    for tool_id, tool in own.items():
        known = before.get(tool_id)
        if known is not None and {key: _digest(value) for key, value in tool.items()} == known:
            changes.removed.append(tool_id)
        else:
            tools.append(tool)
            if known is not None:
                changes.kept[tool_id] = ["the document no longer has it"]
    removed = set(changes.removed)
    overrides = [item for item in merged.get("tool_overrides", ()) if item["tool_id"].rpartition(":")[2] not in removed]
    return {**merged, **({"tool_overrides": overrides} if overrides else {}), "tools": tools}, changes


def _merge_fields(
    current: Mapping[str, Any], new: Mapping[str, Any], before: Mapping[str, str], name: str, changes: ImportChanges
) -> dict[str, Any]:
    """The new fields, but a person's where the current ones differ from the earlier import."""
    merged: dict[str, Any] = {}
    for key in dict.fromkeys([*new, *current]):
        is_changed = (_digest(current[key]) if key in current else None) != before.get(key)
        chosen = current if is_changed else new
        if key in chosen:
            merged[key] = chosen[key]
        if is_changed:
            changes.kept.setdefault(name, []).append(key)
        elif new.get(key) != current.get(key):
            changes.changed.setdefault(name, []).append(key)
    return merged
