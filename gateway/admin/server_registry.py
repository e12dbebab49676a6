"""A registry of MCP servers, such as the public one: search it, and read how a server of it is started or reached."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any
from urllib.parse import quote, urlencode, urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gateway.config import Settings
from gateway.errors import NotFound, Unavailable
from gateway.net.policy import NetworkPolicy, RequestLimits
from gateway.value import Value

SEARCH_LIMIT = 100
NPM_HOST, PYPI_HOST = "registry.npmjs.org", "pypi.org"
_ANSWER_BYTES = 8 * 1024**2
_SECONDS = 20.0
_OFFICIAL = "io.modelcontextprotocol.registry/official"
_NOT_FOUND, _FIRST_ERROR = 404, 400

Text = Annotated[str, Field(max_length=8192)]
Line = Annotated[str, Field(max_length=500)]


class RegistryPart(BaseModel):
    """A part of a `server.json`; keys of other versions of its schema are ignored."""

    model_config = ConfigDict(frozen=True, defer_build=True)


class RegistryInput(RegistryPart):
    """A value with a fixed text, or one that the person is asked for. `{name}` in a text stands for a variable."""

    description: Text = ""
    is_required: bool = Field(default=False, alias="isRequired")
    is_secret: bool = Field(default=False, alias="isSecret")
    format: Line = "string"
    value: Text | None = None
    default: Text | None = None
    choices: Annotated[list[Line], Field(max_length=100)] | None = None


class VariableInput(RegistryInput):
    variables: Annotated[dict[str, RegistryInput], Field(max_length=50)] | None = None


class NamedInput(VariableInput):
    """A header or a variable of the environment."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,200}$")]


class PackageArgument(VariableInput):
    type: Line = "positional"
    name: Line | None = None
    value_hint: Line | None = Field(default=None, alias="valueHint")


class RegistryTransport(RegistryPart):
    type: Line = "stdio"
    url: Text | None = None
    headers: Annotated[list[NamedInput], Field(max_length=50)] | None = None
    variables: Annotated[dict[str, RegistryInput], Field(max_length=50)] | None = None


class RegistryPackage(RegistryPart):
    registry_type: Line = Field(alias="registryType")
    identifier: Text
    version: Line | None = None
    base_url: Text | None = Field(default=None, alias="registryBaseUrl")
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = Field(default=None, alias="fileSha256")
    transport: RegistryTransport = RegistryTransport()
    runtime_arguments: Annotated[list[PackageArgument], Field(max_length=100)] | None = Field(
        default=None, alias="runtimeArguments"
    )
    package_arguments: Annotated[list[PackageArgument], Field(max_length=100)] | None = Field(
        default=None, alias="packageArguments"
    )
    environment: Annotated[list[NamedInput], Field(max_length=100)] | None = Field(
        default=None, alias="environmentVariables"
    )


class RegistryRepository(RegistryPart):
    url: Text = ""


class RegistryStatus(RegistryPart):
    """The word of the registry on an entry."""

    status: Line | None = None


class RegistryServer(RegistryPart):
    """A `server.json`."""

    name: Annotated[str, Field(min_length=1, max_length=300)]
    version: Line = ""
    title: Line | None = None
    description: Text = ""
    repository: RegistryRepository | None = None
    packages: Annotated[list[RegistryPackage], Field(max_length=50)] | None = None
    remotes: Annotated[list[RegistryTransport], Field(max_length=50)] | None = None


class RegistryChoice(Value):
    """One way to run a server. `problem` is the reason why it cannot be used here."""

    kind: str
    label: str
    target: RegistryPackage | RegistryTransport
    problem: str | None = None

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "label": self.label, "problem": self.problem}


class RegistryEntry(Value):
    """A server of a registry, with its status there, such as `active` or `deprecated`."""

    server: RegistryServer
    status: str | None

    @property
    def choices(self) -> list[RegistryChoice]:
        return [*map(_describe_package, self.server.packages or ()), *map(_describe_remote, self.server.remotes or ())]

    def to_dict(self) -> dict[str, Any]:
        server = self.server
        return {
            "name": server.name,
            "title": server.title,
            "description": server.description,
            "version": server.version,
            "status": self.status,
            "repository": server.repository.url if server.repository else None,
            "choices": [choice.to_dict() for choice in self.choices],
        }


async def search_registry(
    settings: Settings, word: str, limit: int = 20, cursor: str | None = None
) -> tuple[list[RegistryEntry], str | None]:
    """Search the registry by a part of a server's name; the newest versions, and a cursor for the next page."""
    query = {"search": word, "limit": str(min(limit, SEARCH_LIMIT)), "version": "latest"}
    query |= {"cursor": cursor} if cursor else {}
    answer = await _get(settings, f"/v0.1/servers?{urlencode(query)}")
    servers, metadata = answer.get("servers"), answer.get("metadata")
    following = metadata.get("nextCursor") if isinstance(metadata, Mapping) else None
    entries = list(_parse_entries(servers if isinstance(servers, list) else ()))
    return entries, following if isinstance(following, str) and following and following.isprintable() else None


async def find_in_registry(settings: Settings, name: str) -> RegistryEntry:
    """Get the latest version of one server of the registry by its whole name."""
    path = f"/v0.1/servers/{quote(name, safe='')}/versions/latest"
    try:
        answer = await _get(settings, path)
    except NotFound:
        hint = f"search it with: toolgate upstream search {name.rpartition('/')[2]}"
        raise NotFound(f"the registry has no server {name[:300]!r}; {hint}", code="UNKNOWN_SERVER") from None
    for entry in _parse_entries([answer]):
        return entry
    raise _unreadable(settings)


def _parse_entries(servers: Sequence[Any]) -> Iterator[RegistryEntry]:
    """The servers that can be read: a registry holds what anybody published."""
    for each in servers:
        if not isinstance(each, Mapping):
            continue
        try:
            server = RegistryServer.model_validate(each.get("server", each))
            metadata = each.get("_meta")
            official = metadata.get(_OFFICIAL) if isinstance(metadata, Mapping) else None
            status = RegistryStatus.model_validate(official or {}).status
        except ValidationError:
            continue
        yield RegistryEntry(server, status)


async def _get(settings: Settings, path: str) -> Mapping[str, Any]:
    url = settings.registry.url.rstrip("/")
    host = urlsplit(url).netloc.rpartition("@")[2]
    # The operator chose the registry, which may be on a private network; plain HTTP is for this machine only.
    policy = NetworkPolicy((host,), allow_private=True, https_only=True, hosts_setting="registry.url")
    limits = RequestLimits(bytes=_ANSWER_BYTES, seconds=_SECONDS)
    # Importing the HTTP client takes 0.1 s; other commands do not need it.
    client = importlib.import_module("gateway.net.client").GuardedClient
    async with client(policy) as http, http.request("GET", url + path, limits=limits) as response:
        if response.status == _NOT_FOUND:
            raise NotFound("the registry has nothing there", code="UNKNOWN_SERVER")
        if response.status >= _FIRST_ERROR:
            raise Unavailable(f"the registry at {url} answered with {response.status}", code="REGISTRY_UNAVAILABLE")
        content = await response.read()
    try:
        answer = json.loads(content)
    except (ValueError, RecursionError):
        raise _unreadable(settings) from None
    if not isinstance(answer, Mapping):
        raise _unreadable(settings)
    return answer


def _unreadable(settings: Settings) -> Unavailable:
    reason = f"the registry at {settings.registry.url} does not answer as one; check registry.url in the settings"
    return Unavailable(reason, code="REGISTRY_UNAVAILABLE")


# Where npx, uvx and docker look for a package: one of another place could have the name of somebody else's.
_BASES = {"npm": f"https://{NPM_HOST}", "pypi": f"https://{PYPI_HOST}", "oci": "https://docker.io"}
# Names that cannot be read as an option of npx, uvx or docker.
_IDENTIFIERS = {
    "npm": re.compile(r"(?:@[a-z0-9~][\w.~-]*/)?[a-z0-9~][\w.~-]*", re.IGNORECASE),
    "pypi": re.compile(r"[A-Za-z0-9][\w.-]*"),
    "oci": re.compile(r"[a-z0-9][\w./:@-]*", re.IGNORECASE),
    "mcpb": re.compile(r"https?://\S+"),
}
_VERSION = re.compile(r"[A-Za-z0-9][\w.+!-]{0,99}")


def _describe_package(package: RegistryPackage) -> RegistryChoice:
    kind = package.registry_type
    label = f"{package.identifier}@{package.version}" if package.version else package.identifier
    problem = None
    if kind not in _IDENTIFIERS:
        problem = f"packages of the type {kind!r} cannot be started by Toolgate"
    elif not _IDENTIFIERS[kind].fullmatch(package.identifier):
        problem = "its identifier is not a valid one"
    elif package.version and not _VERSION.fullmatch(package.version):
        problem = "its version is not a valid one"
    elif kind in _BASES and package.base_url and package.base_url.rstrip("/") != _BASES[kind]:
        problem = f"it is in another registry than {_BASES[kind]}; add it by its command"
    elif kind == "mcpb" and package.sha256 is None:
        problem = "it names no SHA-256 of the file"
    elif package.transport.type != "stdio":
        problem = f"its program serves {package.transport.type}; start it yourself and add its URL"
    return RegistryChoice(kind, label, package, problem)


def _describe_remote(remote: RegistryTransport) -> RegistryChoice:
    problem = None
    if remote.type not in ("streamable-http", "sse"):
        problem = f"the transport {remote.type!r} is unknown"
    elif not (remote.url or "").startswith("https://"):
        problem = "its address does not begin with https://"
    return RegistryChoice("remote", remote.url or "", remote, problem)
