"""The response of an HTTP tool as its outcome: JSON, text, an image or other bytes, or the part that is extracted."""

from __future__ import annotations

import base64
import functools
import html
import json
import re
from collections.abc import Mapping
from email.message import Message
from typing import Any

from gateway.bundles.field_types import compile_expression
from gateway.bundles.http_tool import HttpTool, ResponseSpec
from gateway.calls import Outcome, text_content, to_json
from gateway.errors import ToolFailed
from gateway.net.client import BAD_ANSWER, parse_retry_after
from gateway.secrets import KNOWN
from gateway.sources.http.request import HttpRequest
from gateway.sources.http.transport import status_text
from gateway.text import visible
from gateway.tools import Tool

# Bytes of a body, neither text nor image, that a result has in it. Larger ones belong into a file.
BLOB_LIMIT = 1024 * 1024
_ERROR_TEXT, _ERROR_DETAIL = 300, 2000
# Tags, comments, and what pages hold beside their text; `status_error` gives it a few kilobytes.
_MARKUP = re.compile(r"<(script|style)\b.*?(?:</\1\s*>|$)|<!--.*?(?:-->|$)|<[^>]*(?:>|$)", re.DOTALL | re.IGNORECASE)
_TEXT_TYPES = ("application/xml", "application/javascript", "application/x-yaml", "application/yaml", "application/sql")


class ResponseReader:
    """Reads the responses of one tool."""

    def __init__(self, tool: HttpTool) -> None:
        self.spec = tool.response
        self._extract = None if self.spec.extract is None else compile_expression(self.spec.extract)
        self._checked: Tool | None = None
        if self.spec.schema_check == "advisory" and tool.output_schema is not None:
            self._checked = Tool(id=tool.id, description="", output_schema=tool.output_schema)

    def is_success(self, status: int) -> bool:
        return status in self.spec.success_codes if self.spec.success_codes else 200 <= status < 300

    def read(self, headers: Mapping[str, str], content: bytes, url: str) -> Outcome:
        """Return the outcome for a successful response."""
        media_type, charset = parse_content_type(headers.get("content-type", ""))
        kind = _choose_kind(self.spec, media_type, content)
        if kind == "json":
            return self.finish(self.parse(content))
        if kind == "text":
            text = content.decode(charset, "replace")
            return Outcome(text, content=text_content(text)) if self._extract is None else self.finish(text)
        return _binary_outcome(kind, media_type, content, url)

    def parse(self, content: bytes) -> Any:
        """Parse a page."""
        try:
            return json.loads(content) if content.strip() else None
        except ValueError as error:
            raise ToolFailed(f"the response is not JSON: {error}", code=BAD_ANSWER) from None

    def finish(self, value: Any) -> Outcome:
        """Return the outcome for a parsed value: the part to extract, with a note if it breaks an advisory schema."""
        if self._extract is not None:
            try:
                value = self._extract.search(value)
            except ValueError as error:  # of jmespath, such as a function of the wrong type
                reason = str(error).splitlines()[0]
                raise ToolFailed(
                    f"'{self.spec.extract}' does not fit the response: {reason}", code=BAD_ANSWER
                ) from None
        if self._checked is not None:
            try:
                self._checked.check_output(value)
            except ToolFailed as breach:
                note = text_content(f"Note: {breach.message}")
                return Outcome(value, content=[*text_content(to_json(value).decode()), *note])
        return Outcome(value)


def status_error(request: HttpRequest, status: int, headers: Mapping[str, str], content: bytes) -> ToolFailed:
    """Return the error for a status that is no success, with what the server answered. Its code is `HTTP_404`."""
    _, charset = parse_content_type(headers.get("content-type", ""))
    text = KNOWN.mask(content[: 4 * _ERROR_DETAIL].decode(charset, "replace")).strip()
    shown = html.unescape(_MARKUP.sub(" ", text)) if text[:1] == "<" else text
    summary = visible(" ".join(shown.split()))[:_ERROR_TEXT]
    details: dict[str, Any] = {"status": status, "body": text[:_ERROR_DETAIL]}
    if (pause := parse_retry_after(headers.get("retry-after"))) is not None:
        details["retry_after"] = pause
    address = visible(request.origin + KNOWN.mask(request.path))  # no query: keys stand there
    message = f"{request.method} {address} answered {status_text(status)}" + (f": {summary}" if summary else "")
    return ToolFailed(message, code=f"HTTP_{status}", **details)


@functools.lru_cache(256)
def parse_content_type(header: str) -> tuple[str, str]:
    """Return the media type and the charset of a header; UTF-8 where it names none that is known."""
    message = Message()
    message["content-type"] = header
    charset = message.get_content_charset("utf-8")
    try:
        b"".decode(charset)
    except LookupError:
        charset = "utf-8"
    return (message.get_content_type() if header else ""), charset


def is_json(media_type: str) -> bool:
    return media_type == "application/json" or media_type.endswith("+json")


def _choose_kind(spec: ResponseSpec, media_type: str, content: bytes) -> str:
    if spec.output != "auto":
        return spec.output
    if is_json(media_type) or not content:
        return "json"
    if media_type.startswith("text/") or media_type in _TEXT_TYPES or media_type.endswith("+xml"):
        return "text"
    if media_type.startswith(("image/", "audio/")):
        return media_type.partition("/")[0]
    if not media_type:
        return "json" if content.lstrip()[:1] in (b"{", b"[") else "text"
    return "blob"


def _binary_outcome(kind: str, media_type: str, content: bytes, url: str) -> Outcome:
    if kind == "blob" and len(content) > BLOB_LIMIT:
        raise ToolFailed(
            f"the response is {len(content)} bytes of {media_type}, which do not fit into a result; "
            "the toolset's author can save it with response: {output: file}",
            code="RESPONSE_TOO_LARGE",
            limit=BLOB_LIMIT,
        )
    data = base64.b64encode(content).decode()
    if kind == "blob":
        block: dict[str, Any] = {"type": "resource", "resource": {"uri": url, "mimeType": media_type, "blob": data}}
    else:
        block = {"type": kind, "data": data, "mimeType": media_type}
    return Outcome({"mimeType": media_type, "bytes": len(content)}, content=[block])
