"""HTTP tools of toolsets: one request for each call, further pages where the tool has them."""

from __future__ import annotations

import mmap
import re
import ssl
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any, BinaryIO, cast
from urllib.parse import unquote

import anyio
import anyio.to_thread

from gateway.bundles.field_types import compile_expression
from gateway.bundles.http_tool import ApiKeyAuth, HttpDefaults, HttpTool, OAuth2Auth, Pagination
from gateway.calls import Call, Outcome
from gateway.config import HttpSettings
from gateway.errors import Conflict, Forbidden, GatewayError, Invalid, Unavailable
from gateway.net.client import GuardedClient, HttpResponse
from gateway.net.download import write_response
from gateway.net.policy import NetworkPolicy, RequestLimits
from gateway.net.transport import INTERNET, Network
from gateway.sources.http.auth import AnyAuth, TokenCache, TokenRequest, authorize
from gateway.sources.http.request import (
    HttpRequest,
    RequestTemplate,
    Values,
    file_paths,
    fill_text,
    parse_next,
    quote_all,
    to_text,
)
from gateway.sources.http.response import ResponseReader, parse_content_type, status_error
from gateway.sources.http.transport import GuardedSender
from gateway.tools import Hides
from gateway.value import Value
from gateway.workspace import Parts, Workspaces, parse, show_path
from gateway.workspace.protected import make_protected_check
from gateway.workspace.versions import Versions

ANY_HOST = "*"
REQUEST_BYTES = 16 * 1024 * 1024
RESPONSE_BYTES = 16 * 1024 * 1024
FILE_BYTES = 64 * 1024 * 1024
# A body above this size is decoded in a thread.
INLINE_BYTES = 128 * 1024
# The call has its own deadline, which progress extends; this only ends what nobody waits for.
_SECONDS = 3600.0
_NAMES_TRIED = 1000
_UNSAFE_NAME = re.compile(r"[^\w.()+ -]+")
_LINK = re.compile(r"<([^<>]*)>((?:\s*;\s*[\w*]+\s*=\s*(?:\"[^\"]*\"|[^\s;,\"]+))*)")
_RELATION = re.compile(r";\s*rel\s*=\s*(?:\"([^\"]*)\"|([^\s;,\"]+))", re.IGNORECASE)


class CompiledTool(Value):
    """An HTTP tool, prepared once for all its calls. `secrets` are those that it needs."""

    spec: HttpTool
    template: RequestTemplate
    reader: ResponseReader
    schemes: tuple[AnyAuth, ...]
    secrets: frozenset[str]
    next: Any = None
    items: Any = None

    @classmethod
    def of(cls, spec: HttpTool, defaults: HttpDefaults | None, declared: frozenset[str]) -> CompiledTool:
        known: Mapping[str, AnyAuth] = defaults.auth if defaults is not None else {}
        inline = cast("tuple[AnyAuth, ...]", () if spec.auth is None or spec.schemes else (spec.auth,))
        schemes = (*(known[name] for name in spec.schemes), *inline)
        shared = HttpDefaults(
            base_url=defaults.base_url if defaults is not None and spec.url_template.startswith("/") else None,
            headers=defaults.headers if defaults is not None else {},
            auth={name: known[name] for name in spec.schemes},
        )
        names = {name for section in (spec, shared) for _, name in section.placeholders()}
        page = spec.pagination
        return cls(
            spec,
            RequestTemplate(
                spec, defaults, frozenset(scheme.name for scheme in schemes if isinstance(scheme, ApiKeyAuth))
            ),
            ResponseReader(spec),
            schemes,
            declared & names,
            None if page is None or page.next is None else compile_expression(page.next),
            None if page is None or page.items is None else compile_expression(page.items),
        )


class HttpRunner:
    """Runs HTTP tools over shared connections, to the hosts that the settings allow."""

    def __init__(
        self,
        settings: HttpSettings,
        workspaces: Workspaces,
        versions: Versions,
        network: Network = INTERNET,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        policy = NetworkPolicy(
            allowed_hosts=tuple(host for host in settings.allowed_hosts if host != ANY_HOST),
            any_host=ANY_HOST in settings.allowed_hosts,
            allow_private=settings.allow_private,
        )
        self._sender = GuardedSender(policy, network, tls)
        self._client = GuardedClient(policy, network, tls)
        self._tokens = TokenCache(self._send_for_token)
        self._workspaces = workspaces
        self._versions = versions

    async def run(self, tool: CompiledTool, call: Call, environment: Mapping[str, str], hides: Hides) -> Outcome:
        """Send the request of a call. A status that is no success is a `ToolFailed` with what the server answered."""
        for name in tool.secrets - environment.keys():
            fix = f"or store it: toolgate toolset secret {call.target.owner} {name}"
            reason = f"{call.target.id} needs the secret {name}; set it in the environment of the gateway, {fix}"
            raise Unavailable(reason, code="SECRET_MISSING", secret=name)
        values = {**call.arguments, **environment}
        spec = tool.spec
        files = await self._read_files(call, file_paths(spec, values), hides) if spec.reads_files else None
        request = tool.template.build(values, files)
        limit = spec.max_request_bytes or REQUEST_BYTES
        if len(request.body) > limit:
            reason = f"{call.target.id}: the body is {len(request.body)} bytes, the limit is {limit}"
            raise Invalid(reason, code="REQUEST_TOO_LARGE", limit=limit)
        try:
            if spec.response.output == "file":
                return await self._download(tool, call, request, values, hides)
            if spec.method == "HEAD":
                return await self._read_headers(tool, request, values)
            if spec.pagination is not None:
                return await self._read_pages(tool, spec.pagination, request, values)
            final, headers, content = await self._exchange(tool, request, values, spec.max_response_bytes)
        except GatewayError as error:
            if spec.response.error_mode == "empty" and error.code.startswith("HTTP_"):
                return Outcome(None)
            raise
        read = partial(tool.reader.read, headers, content, final.origin + final.path)
        return read() if len(content) <= INLINE_BYTES else await anyio.to_thread.run_sync(read)

    async def close(self) -> None:
        await self._tokens.close()
        self._sender.close()
        await self._client.__aexit__(None, None, None)

    async def _exchange(
        self, tool: CompiledTool, request: HttpRequest, values: Values, limit: int | None
    ) -> tuple[HttpRequest, dict[str, str], bytes]:
        """Send a request with its credentials; with another token if the server refuses the first."""
        limit = limit or RESPONSE_BYTES
        sent = await authorize(request, tool.schemes, values, self._tokens)
        final, reply = await self._sender.send(sent, limit)
        if reply.status == 401 and self._forget_tokens(tool, sent, values):
            sent = await authorize(request, tool.schemes, values, self._tokens)
            final, reply = await self._sender.send(sent, limit)
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in reply.headers.items()}
        content = reply.content(final.origin)
        if not tool.reader.is_success(reply.status):
            raise status_error(final, reply.status, headers, content)
        return final, headers, content

    def _forget_tokens(self, tool: CompiledTool, sent: HttpRequest, values: Values) -> bool:
        """Forget the token that a request was refused with; True if another one can be had."""
        used = sent.headers.get("authorization", "").removeprefix("Bearer ")
        requests = [TokenRequest.fill(scheme, values) for scheme in tool.schemes if isinstance(scheme, OAuth2Auth)]
        return any(self._tokens.refuse(request, used) for request in requests)

    async def _send_for_token(self, request: HttpRequest, limit: int) -> tuple[int, bytes]:
        final, reply = await self._sender.send(request, limit)
        return reply.status, reply.content(final.origin)

    # Pages

    async def _read_pages(self, tool: CompiledTool, page: Pagination, request: HttpRequest, values: Values) -> Outcome:
        """Request one page after another, until one has no next, the last allowed one, or the limit of bytes."""
        left = tool.spec.max_response_bytes or RESPONSE_BYTES
        items: list[Any] = []
        number, seen = 0, set[str]()
        following: HttpRequest | None = _first_page(page, request)
        while following is not None and number < page.pages:
            final, headers, content = await self._exchange(tool, following, values, left)
            number, left = number + 1, left - len(content)
            value = tool.reader.parse(content)
            found = value if tool.items is None else tool.items.search(value)
            if found is not None and not isinstance(found, list):
                raise Invalid(
                    f"page {number} of {request.origin} has no list of items"
                    + ("; name its place in pagination.items" if tool.items is None else f" at '{page.items}'"),
                    code="BAD_ANSWER",
                )
            items += found or []
            seen.add(final.url)
            # A redirect to another origin is for one page: the next request gets the credentials again.
            base = final if final.origin == request.origin else following
            upcoming = _next_page(tool, page, base, headers, value, len(found or []), number)
            # A server that names the same page again would be asked for ever.
            following = upcoming if upcoming is not None and upcoming.url not in seen and left > 0 else None
        result = {"items": items, "pages": number, "complete": following is None and left > 0}
        return tool.reader.finish(result)

    # Responses that are not read into memory

    async def _read_headers(self, tool: CompiledTool, request: HttpRequest, values: Values) -> Outcome:
        async with self._stream(tool, request, values, RequestLimits.header_bytes) as response:
            headers = {name: value for name, value in response.headers.items() if name != "set-cookie"}
            return tool.reader.finish({"status": response.status, "headers": headers})

    async def _download(
        self, tool: CompiledTool, call: Call, request: HttpRequest, values: Values, hides: Hides
    ) -> Outcome:
        """Save the response as a new file of the workspace; an existing one is never overwritten."""
        limit = tool.spec.max_response_bytes or FILE_BYTES
        with tempfile.TemporaryFile(prefix="toolgate-") as file:
            async with self._stream(tool, request, values, limit) as response:
                size = await write_response(response, file, call.progress)
                media_type, _ = parse_content_type(response.content_type or "")
                path = _file_path(tool.spec, values, response)
                _refuse_hidden(path, hides, call)
            file.flush()
            # Only now: other calls do not wait for the chat's files while a slow server responds.
            async with self._versions.hold(call.chat, call.caller.principal, call) as files:
                before = await files.save("edit")
                with anyio.CancelScope(shield=True):
                    try:
                        async with files.changing(call.id):
                            parts = await anyio.to_thread.run_sync(self._write_file, call, path, file, size)
                    finally:
                        after = await files.save("tool_run", call.id)
        value = {"path": show_path(parts), "bytes": size, "mimeType": media_type}
        return tool.reader.finish(value).replace(pre_manifest=before, post_manifest=after)

    @asynccontextmanager
    async def _stream(
        self, tool: CompiledTool, request: HttpRequest, values: Values, limit: int
    ) -> AsyncIterator[HttpResponse]:
        """Give a successful response, open until the block ends."""
        limits = RequestLimits(bytes=limit, seconds=_SECONDS)
        for attempt in (1, 2):
            sent = await authorize(request, tool.schemes, values, self._tokens)
            async with self._client.request(
                sent.method, sent.url, headers=sent.headers, body=sent.body or None, limits=limits
            ) as response:
                if tool.reader.is_success(response.status):
                    yield response
                    return
                if response.status != 401 or attempt == 2 or not self._forget_tokens(tool, sent, values):
                    content = b"" if sent.method == "HEAD" else await _read_start(response)
                    raise status_error(sent, response.status, response.headers, content)

    # Files of the workspace

    async def _read_files(self, call: Call, paths: list[str], hides: Hides) -> dict[str, bytes]:
        def read() -> dict[str, bytes]:
            content, left = {}, FILE_BYTES
            with self._workspaces.root(call.chat) as root:
                for path in paths:
                    parts = parse(path)
                    _refuse_hidden(path, hides, call)
                    with root.open(parts) as file:
                        content[path] = file.read(left + 1)
                    left -= len(content[path])
                    if left < 0:
                        raise Invalid(f"the files are larger than {FILE_BYTES} bytes", code="REQUEST_TOO_LARGE")
            return content

        return await anyio.to_thread.run_sync(read)

    def _write_file(self, call: Call, path: str, file: BinaryIO, size: int) -> Parts:
        content = cast("bytes", mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)) if size else b""
        parts = parse(path)
        if parts[-1].startswith(".") or make_protected_check(self._workspaces.path(call.chat))("/".join(parts)):
            raise Forbidden(f"{path}: an HTTP tool cannot create such a file; choose another name")
        stem, dot, suffix = parts[-1].rpartition(".")
        stem, suffix = (stem, f".{suffix}") if dot and stem else (parts[-1], "")
        with self._workspaces.root(call.chat) as root:
            if len(parts) > 1:
                root.make_directories(parts[:-1])
            for number in range(1, _NAMES_TRIED):
                name = (*parts[:-1], parts[-1] if number == 1 else f"{stem}-{number}{suffix}")
                try:
                    root.create(name, content)
                except Conflict:
                    continue
                return name
        raise Conflict(f"{path} and {_NAMES_TRIED - 2} names like it exist already; choose another")


def _first_page(page: Pagination, request: HttpRequest) -> HttpRequest:
    if page.type == "page" and page.parameter is not None:
        return _set_parameter(request, page.parameter, 1 if page.start is None else page.start)
    if page.type == "offset" and page.parameter is not None:
        return _set_parameter(request, page.parameter, page.start or 0)
    return request


def _next_page(
    tool: CompiledTool,
    page: Pagination,
    request: HttpRequest,
    headers: Mapping[str, str],
    value: Any,
    count: int,
    number: int,
) -> HttpRequest | None:
    """Return the request of the next page, None after the last one."""
    if page.parameter is None:
        url = _find_link(headers.get("link", "")) if tool.next is None else tool.next.search(value)
        return parse_next(request, url) if isinstance(url, str) and url else None
    if page.type == "cursor":
        cursor = tool.next.search(value)
        return None if cursor in (None, "", False) else _set_parameter(request, page.parameter, cursor)
    if not count or (page.size is not None and count < page.size):
        return None
    step = 1 if page.type == "page" else page.size or count
    start = page.start if page.start is not None else int(page.type == "page")
    return _set_parameter(request, page.parameter, start + number * step)


def _set_parameter(request: HttpRequest, name: str, value: Any) -> HttpRequest:
    own = f"{quote_all(name)}="
    others = [pair for pair in request.query.split("&") if pair and not pair.startswith(own)]
    return replace(request, query="&".join([*others, own + quote_all(to_text(value))]))


def _find_link(header: str) -> str | None:
    """Return the URL of `rel="next"` (RFC 8288)."""
    for target, parameters in _LINK.findall(header):
        relation = _RELATION.search(parameters)
        if relation is not None and "next" in (relation[1] or relation[2] or "").lower().split():
            return str(target)
    return None


async def _read_start(response: HttpResponse) -> bytes:
    """Return the beginning of a response that says what went wrong."""
    content = bytearray()
    async for chunk in response.chunks:
        content += chunk
        if len(content) > 16 * 1024:
            break
    return bytes(content)


def _file_path(spec: HttpTool, values: Values, response: HttpResponse) -> str:
    """Return the path to save a response as: that of the tool, or one named by the response below `downloads`. A value
    cannot add a directory."""
    if spec.response.file is not None:
        safe = {name: _safe_name(to_text(value)) for name, value in values.items()}
        return fill_text(spec.response.file, safe)
    named = re.search(r'filename="?([^";]+)', response.headers.get("content-disposition", ""))
    path = response.url.partition("?")[0]
    name = _safe_name(unquote(named[1] if named else path.rstrip("/").rpartition("/")[2]))
    return f"downloads/{name or 'response'}"


def _refuse_hidden(path: str, hides: Hides, call: Call) -> None:
    if (reason := hides("/".join(parse(path)), call.agreed)) is not None:
        raise Forbidden(f"{path}: {reason}", code="DENIED_BY_RULE")


def _safe_name(text: str) -> str:
    return _UNSAFE_NAME.sub("_", text).strip(" .")[-100:]
