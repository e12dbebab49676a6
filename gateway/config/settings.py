"""Settings of `toolgate.yaml`: one class per section, with its defaults and checks."""

import enum
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import platformdirs
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    SecretStr,
    Tag,
    field_validator,
    model_validator,
)

from gateway.access import ListMode, ListPolicy
from gateway.errors import Invalid
from gateway.names import did_you_mean
from gateway.secrets import VARIABLE
from gateway.tools import ADMIN_CATEGORY, DEFAULT_CATEGORIES, Category, Permission, RetryPolicy


class Section(BaseModel):
    # Each validator is built when it is first used: most starts use that of `Settings` only. Defaults use none.
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, defer_build=True)


class SandboxSettings(Section):
    """Sandbox of untrusted code. `workers` is the number of toolset processes kept at once, each for
    `worker_idle` seconds without a call. A chat may have `processes` in the background at once, each for at most
    `process_seconds`. With `network` the code reaches `allowed_hosts`, or every public host
    when none is named. `package_index` and `npm_registry` are where install_package finds packages, also at a private
    address; write credentials in them as `${VAR}`. `allow_unsandboxed` runs it with all rights of your account."""

    network: bool = False
    allowed_hosts: list[str] = []
    memory_mb: int = Field(default=1024, ge=16)
    cpu_seconds: int = Field(default=60, ge=1)
    timeout: float = Field(default=60, gt=0)
    workers: int = Field(default=24, ge=1)
    worker_idle: float = Field(default=300, gt=0)
    processes: int = Field(default=8, ge=0, le=64)
    process_seconds: float = Field(default=3600, gt=0)
    allow_unsandboxed: bool = False
    allow_source_packages: bool = False
    package_index: str | None = Field(default=None, pattern=r"^https?://[^\s/]+")
    npm_registry: str | None = Field(default=None, pattern=r"^https?://[^\s/]+")


_WITH_A_KEY = ("brave", "tavily")


class SearchSettings(Section):
    """Provider of `web_search`. `url` is the address of your SearXNG; for the other providers it replaces the usual
    address. `key` is best written as `${VAR}`: it is looked up when it is used."""

    provider: Literal["searxng", "brave", "tavily", "duckduckgo"]
    url: str | None = None
    key: SecretStr | None = None

    @model_validator(mode="after")
    def _is_complete(self) -> Self:
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
    """Hosts the web tools may reach. `allowed_hosts` are names or patterns like `*.example.org`, with a `:port` beyond
    the usual two, or `*` for every public host. `allow_private` lets them resolve to private addresses."""

    allowed_hosts: list[str] = []
    allow_private: bool = False
    search: SearchSettings | None = None


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


# One pattern or several, `*` and `?` as in a shell; one of them must match.
Patterns = Annotated[list[str], BeforeValidator(_as_list, json_schema_input_type=str | list[str])]


class ApprovalCondition(Section):
    """Condition on the arguments of a call; every part that is given must match.

    `path`, `host` and `command` match every text among the arguments, at any depth: a path or its ending (`*.env`), the
    hosts of URLs, each command of a line. A `path` matches what a call names, and the directories it names itself
    (`secrets/*` matches `secrets`); what it denies to `read_file` is left out of searches and diffs, and cannot be read
    as a resource. A `command` is a reminder, no confinement: a shell has more spellings than patterns can cover.
    `arguments` matches named arguments (`{branch: main, "options.force": "true"}`), numbers also by comparison
    (`{amount: ">100"}`). `overwrites` matches when one of the paths is an existing file of the chat. Arguments too
    large to inspect match.
    """

    path: Patterns = []
    host: Patterns = []
    command: Patterns = []
    arguments: dict[str, Patterns] = {}
    overwrites: bool | None = None


class ApprovalRule(Section):
    """`tool` is a pattern of ids (`read_file`, `git:*`), `toolset` and `server` of owners; every part that is given
    must match. `then` asks a person, allows the call, denies it, or asks in the queue only, where no client can answer
    for the person. `why` is shown with the question or the refusal. Without `remember` the
    answer counts for one call only.
    """

    tool: Patterns = []
    toolset: Patterns = []
    server: Patterns = []
    category: Patterns = []
    when: ApprovalCondition = ApprovalCondition.model_construct()
    then: Literal["ask", "allow", "deny", "queue"] = "ask"
    why: str | None = Field(default=None, max_length=500)
    remember: bool = True

    @model_validator(mode="after")
    def _require_named_arguments(self) -> Self:
        condition = self.when
        if self.then == "allow" and (condition.path or condition.host or condition.command):
            raise ValueError(
                "a rule that allows must name the arguments it trusts: instead of 'path', 'host' or 'command' "
                "write 'when: {arguments: {path: ...}}'"
            )
        return self


class ApprovalSettings(Section):
    """Rules about asking a person before a call.

    The first of `rules` that matches decides, else `mode`: with `unsafe_only` the tool's own declaration. A client that
    cannot be asked is refused (`deny`), or its call waits in the queue for `toolgate approval allow` (`queue`), the
    caller for `queue_wait` seconds of that. `elicitation` is how a client is asked that can show forms and open pages:
    by a `form`, or by the address of the question's page (`url`). Tools named in `out_of_band` are asked about in the
    queue only: a client without a person could answer its own question. `timeout` is the number of seconds in which a
    question may be answered, `pending` the number of open questions per principal. `keys` seal questions that travel
    through clients (32 characters or more each; the first one seals, all unseal); without any, a key is kept in
    data_dir.
    """

    mode: Literal["never", "unsafe_only", "always"] = "unsafe_only"
    without_elicitation: Literal["deny", "queue"] = "deny"
    elicitation: Literal["form", "url"] = "form"
    rules: list[ApprovalRule] = []
    out_of_band: Patterns = []
    timeout: float = Field(default=600, gt=0, le=7 * 86400)
    queue_wait: float = Field(default=15, ge=0, le=600)
    pending: int = Field(default=500, ge=1, le=10_000)
    keys: list[str] = []


# YAML reads `off` as False when nobody quotes it.
_UNQUOTED = BeforeValidator(lambda value: "off" if value is False else value)

_OR_OFF = BeforeValidator(lambda value: {"over": None} if value in (False, "off") else value)


class ToolFilterSettings(Section):
    allow: list[str] = []
    deny: list[str] = []


class ToolOverrideSettings(Section):
    """Changes to one tool of an upstream, by the server's own name for it."""

    name: str | None = None
    description: str | None = None
    requires_confirmation: bool | None = None
    category: str | None = None
    renderer: str | None = None
    renderer_config: dict[str, Any] | None = None
    enabled: bool | None = None


SMALLEST_LARGE_RESULT = 32 * 1024


class LargeResultSettings(Section):
    """Results of more than `over` bytes are kept as files; None for never. The default is just below 1 MiB, at which
    clients begin to refuse a result."""

    over: int | None = Field(default=1023 * 1024, ge=SMALLEST_LARGE_RESULT)


class OAuthSettings(Section):
    """Login to a server, where its own metadata does not suffice. `client_id` identifies us to its authorization
    server, if we were registered by hand; `client_metadata_url` is a client metadata document. `issuer` is the only
    authorization server accepted: without it the server names one, which then gets the secret. With the grant
    `client_credentials` the gateway logs in by itself."""

    grant: Literal["authorization_code", "client_credentials"] = "authorization_code"
    client_id: str | None = Field(default=None, min_length=1)
    client_secret: str | None = None
    issuer: str | None = Field(default=None, pattern=r"^https?://[^\s?#]+$")
    scopes: list[Annotated[str, Field(pattern=r"^[!#-\[\]-~]+$")]] | None = None
    client_metadata_url: str | None = Field(default=None, pattern=r"^https://[^/\s]+/[^\s#]+$")

    @model_validator(mode="after")
    def _require_client_secret_reference(self) -> Self:
        if self.client_secret is not None and not VARIABLE.fullmatch(self.client_secret):
            raise ValueError("'client_secret' is a secret; put it into the environment and write ${VARIABLE} here")
        if self.client_secret is not None and self.client_id is None:
            raise ValueError("a 'client_secret' belongs to a 'client_id'")
        if self.grant == "client_credentials" and self.client_secret is None:
            raise ValueError("the grant 'client_credentials' needs a 'client_id' and a 'client_secret'")
        return self


class ServerSandboxSettings(Section):
    """Access of a server in the sandbox besides its own program: `paths`, read-only unless one ends in `:rw`, and the
    hosts of `network`, which it reaches by HTTP through a proxy."""

    paths: list[Annotated[str, Field(min_length=1, max_length=4096)]] = Field(default=[], max_length=100)
    network: list[Annotated[str, Field(min_length=1, max_length=300)]] = Field(default=[], max_length=100)


# Without a discriminator, a fault in one of the two would be reported as a fault of both.
SwitchOrRights = Annotated[
    Annotated[bool, Tag("<switch>")] | Annotated[ServerSandboxSettings, Tag("<rights>")],
    Discriminator(lambda value: "<switch>" if isinstance(value, bool) else "<rights>"),
]


class UpstreamSettings(Section):
    """One upstream server, in Claude Desktop's shape, with Toolgate's own keys beside it.

    `trusted` believes the server's annotations about what its tools do. `sharing` says who shares one
    connection to a server that may keep state. `protocol` is the protocol era spoken to it; with `auto` that of
    each client where the server speaks both, else its newest. `pinning` says whether the definitions it lists first
    are accepted without review; with `off`, later changes are too. `large_results` says which results are kept as
    files in the chat's workspace; with `off` none is. `sandbox` says whether a command runs in the sandbox and what
    it is given there; None leaves that to where the server was set up. `bundle` is the SHA-256 of the `.mcpb` file
    whose unpacked folder `${__dirname}` stands for.
    """

    command: str | None = None
    args: list[str] = []
    env: dict[str, str] = {}
    cwd: str | None = None
    bundle: str | None = Field(default=None, pattern=r"^[0-9a-f]{64}$")
    url: str | None = None
    headers: dict[str, str] = {}
    oauth: OAuthSettings | None = None
    type: Literal["stdio", "sse", "http", "streamable-http"] | None = None
    prefix: str | None = Field(default=None, pattern=r"^[A-Za-z0-9_-]{0,32}$")
    enabled: bool = True
    requires_confirmation: bool | None = None
    category: str = "upstream"
    permission: Permission | None = None
    trusted: bool = False
    timeout: float | None = Field(default=None, gt=0)
    lazy: bool = True
    sharing: Literal["principal", "chat", "all"] = "principal"
    protocol: Literal["auto", "modern", "handshake"] = "auto"
    pinning: Annotated[Literal["trust", "hold", "off"], _UNQUOTED] = "trust"
    large_results: Annotated[LargeResultSettings, _OR_OFF] = LargeResultSettings.model_construct()
    sandbox: SwitchOrRights | None = None
    tools: ToolFilterSettings = ToolFilterSettings.model_construct()
    overrides: dict[str, ToolOverrideSettings] = {}

    @model_validator(mode="after")
    def _is_started_or_reached(self) -> Self:
        if (self.command is None) == (self.url is None):
            raise ValueError("a server has either a 'command' to start or a 'url' to reach")
        if self.url is not None and not self.url.lower().startswith(("http://", "https://", "${")):
            raise ValueError("'url' must start with https:// or http://")
        if self.oauth is not None and self.url is None:
            raise ValueError("'oauth' is for a server with a 'url'")
        if self.bundle is not None and self.command is None:
            raise ValueError("'bundle' is for a server with a 'command'")
        if self.sandbox is not None and self.command is None:
            raise ValueError("'sandbox' is for a server with a 'command'; remove it: a 'url' starts no program here")
        return self


_MEBIBYTE = 1024 * 1024


class CategorySettings(Section):
    """A category: `name` and `description` for people, its switch, level and limit."""

    name: str | None = Field(default=None, min_length=1, max_length=100)
    description: str | None = Field(default=None, max_length=500)
    enabled: bool | None = None
    permission: Permission | None = None
    calls_per_minute: int | None = Field(default=None, ge=1)


class RetrySettings(Section):
    """Calls that failed for a passing reason are made again: up to `attempts` in all, with growing pauses. `codes` are
    the error codes that count; without them those of a server or network that does not answer. Only an idempotent or
    read-only tool is called again, unless `repeatable` says that a second call is harmless."""

    attempts: Annotated[int, Field(ge=1, le=10)] = 3
    codes: Annotated[tuple[Annotated[str, Field(pattern=r"^[A-Z][A-Z0-9_]{0,63}$")], ...], Field(max_length=32)] = ()
    first_seconds: Annotated[float, Field(ge=0, le=60)] = 0.5
    longest_seconds: Annotated[float, Field(ge=0, le=300)] = 10.0
    repeatable: bool = False

    def policy(self, is_harmless: bool) -> RetryPolicy | None:
        """Return the policy for a tool; None if a second call of it may do something twice."""
        if not (is_harmless or self.repeatable):
            return None
        return RetryPolicy(self.attempts, frozenset(self.codes), self.first_seconds, self.longest_seconds)


class ToolSettings(Section):
    """`retry` is by patterns over ids, the first that matches; it replaces what the tool declares. `semantic` may also
    be the directory of the model."""

    enable: bool | None = None
    enabled_categories: list[str] = []
    first: list[str] = []
    mode: ListMode = "full"
    pinned: list[str] = []
    retry: dict[str, RetrySettings] = {}
    semantic: bool | Path = False
    list_seconds: Annotated[int, Field(ge=0, le=86_400)] = 0

    @property
    def list_policy(self) -> ListPolicy:
        return ListPolicy(self.mode, tuple(self.pinned), fresh_seconds=self.list_seconds)


class HttpSettings(Section):
    allowed_hosts: list[str] = []
    allow_private: bool = False


# Signatures by a key pair only: one by a shared secret could be made by whoever knows the issuer's public key.
_Algorithm = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]


class JwtSettings(Section):
    """Tokens of your identity provider. `audience` is what it puts into them for this gateway. Without `jwks_url` the
    issuer's metadata names its keys. `role_claim` is the claim, dotted if it is inside another, that names the role;
    a token without a known role has `default_role`, or is refused."""

    issuer: str = Field(pattern=r"^https?://[^\s?#]+$")
    audience: Annotated[list[str], BeforeValidator(_as_list), Field(min_length=1)]
    jwks_url: str | None = Field(default=None, pattern=r"^https?://[^\s#]+$")
    role_claim: str = "roles"
    default_role: str | None = None
    algorithms: list[_Algorithm] = ["RS256", "ES256", "EdDSA"]


class AuthClientSettings(Section):
    """A client that the operator registered with the built-in authorization server. Only such a client may present
    identity assertions."""

    secret: str = Field(min_length=1)
    name: str | None = Field(default=None, max_length=80)
    redirect_uris: list[str] = []
    auth_method: Literal["client_secret_post", "client_secret_basic"] = "client_secret_post"

    @model_validator(mode="after")
    def _require_secret_reference(self) -> Self:
        if not VARIABLE.fullmatch(self.secret):
            raise ValueError("'secret' is a secret; put it into the environment and write ${VARIABLE} here")
        return self


class AuthSettings(Section):
    """Authentication over HTTP. With `required` unset, loopback needs no key until one exists; beyond it a key or a
    token is always required. `authorization_server` is the built-in one, for clients that log in by OAuth; `clients`
    are those registered with it by hand."""

    required: bool | None = None
    jwt: JwtSettings | None = None
    authorization_server: bool = True
    clients: dict[str, AuthClientSettings] = {}


class RoleLimitSettings(Section):
    """Limits of each principal of a role. Bytes are those of arguments and results."""

    calls_per_minute: int | None = Field(default=None, ge=1)
    concurrent_calls: int | None = Field(default=None, ge=1)
    bytes_per_minute: int | None = Field(default=None, ge=1024)


class RoleSettings(Section):
    """Rights of the principals of a role. `categories` unset are all; `tools` are patterns over names and ids, where an
    empty `allow` allows all; `servers` are patterns over upstreams. `admin` lets them change the gateway itself,
    `metrics` read /metrics."""

    permission: Permission = Permission.EXECUTE
    categories: list[str] | None = None
    tools: ToolFilterSettings = ToolFilterSettings.model_construct()
    servers: list[str] = ["*"]
    admin: bool = False
    metrics: bool = False
    limits: RoleLimitSettings | None = None


class ExtensionPriority(enum.IntEnum):
    """Places of custom extensions among the gateway's own: lower is further out."""

    HIGHEST = 11  # just inside the audit record
    HIGH = 35  # after permissions, before rate limits
    NORMAL = 50  # before approval
    LOW = 75  # inside the call's slot and deadline
    LOWEST = 99  # next to the tool and its version of the files


def _priority_number(value: object) -> object:
    names = ExtensionPriority.__members__
    return names[value.upper()] if isinstance(value, str) and value.upper() in names else value


class ExtensionSettings(Section):
    """A custom extension: `use` is `module:Class`, or the name of an installed package's entry point in the group
    `toolgate.extensions`. Its priority, a number or one of the names of `ExtensionPriority`, places it; without one,
    its class does. Outside the record nothing of yours can stand, or a call could go unrecorded."""

    use: str = Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$|^[A-Za-z_][\w-]*$")
    priority: Annotated[int, BeforeValidator(_priority_number), Field(ge=11, le=99)] | None = None
    options: dict[str, Any] = {}


class ProfileSettings(Section):
    """A view for a kind of client: the highest level, and patterns over the names and ids of tools. `mode` is how they
    are listed, `pinned` are patterns of tools that the short list of a mode has, too. Without `output_schemas`, lists
    leave out what tools return, and of descriptions what is beyond `description_limit` characters."""

    mode: ListMode | None = None
    pinned: list[str] = []
    description_limit: int | None = Field(default=None, ge=40)
    permission: Permission = Permission.EXECUTE
    tools: ToolFilterSettings = ToolFilterSettings.model_construct()
    output_schemas: bool = True


class LimitSettings(Section):
    """Bounds on every call. `timeout` is the time for an answer or a progress report, each of which puts the deadline
    off until the call has run for `total_timeout`. `calls_per_minute` is per tool id and caller."""

    request_bytes: int = Field(default=8 * _MEBIBYTE, ge=1024)
    response_bytes: int = Field(default=32 * _MEBIBYTE, ge=1024)
    concurrency: int = Field(default=64, ge=1)
    timeout: float = Field(default=120, gt=0)
    total_timeout: float = Field(default=3600, gt=0)
    tools: int = Field(default=5000, ge=1)
    calls_per_minute: dict[str, int] = {}


class RegistrySettings(Section):
    """The registry in which servers are searched: the public one, or another that speaks its API."""

    url: str = Field(default="https://registry.modelcontextprotocol.io", pattern=r"^https?://[^\s?#]+$")


class ServerSettings(Section):
    """HTTP server. Hosts and origins beyond loopback must be named to be let in. `public_url` is the address by which
    clients reach the gateway, if a proxy stands in front of it; its host and origin are let in. What a request says
    about the client it was forwarded for is believed only of `trusted_proxies`, addresses or networks."""

    allowed_hosts: list[str] = []
    allowed_origins: list[str] = []
    public_url: str | None = Field(default=None, pattern=r"^https?://[^\s/?#]+/?$")
    trusted_proxies: list[str] = []
    shutdown_grace: float = Field(default=5, ge=0)


class OtelSettings(Section):
    """`endpoint` is the address of an OTLP receiver over HTTP; `traces` and `metrics` say what is sent there."""

    endpoint: str = Field(pattern=r"^https?://[^\s/]+")
    traces: bool = True
    metrics: bool = True


class TelemetrySettings(Section):
    """Measurements for others: `prometheus` serves /metrics over HTTP, `otel` sends traces and metrics. Without it,
    the standard variable OTEL_EXPORTER_OTLP_ENDPOINT turns these on."""

    prometheus: bool = True
    otel: OtelSettings | None = None


class RetentionSettings(Section):
    """Records that are kept: the newest `calls`, and of them those of the last `days`; None for all. Counts of usage
    are kept for `usage_days`. What is removed is logged, and signed in the call log."""

    calls: int | None = Field(default=1_000_000, ge=1000)
    days: int | None = Field(default=365, ge=1)
    usage_days: int | None = Field(default=800, ge=1)


class Settings(Section):
    """Everything a user can set: each field is a key of `toolgate.yaml`."""

    # Options of the command line, which have no key in the file.
    elsewhere: ClassVar = {
        "host": "the host is given to the command: toolgate serve --transport http --host 0.0.0.0",
        "port": "the port is given to the command: toolgate serve --transport http --port 9000",
        "server.host": "the host is given to the command: toolgate serve --transport http --host 0.0.0.0",
        "server.port": "the port is given to the command: toolgate serve --transport http --port 9000",
    }

    data_dir: Path = Field(default_factory=lambda: Path(platformdirs.user_data_dir("toolgate", appauthor=False)))
    database_url: str | None = None
    blob_store: str | None = None
    toolsets: list[str] = []
    upstreams: dict[str, UpstreamSettings] = Field(default={}, alias="mcpServers")
    registry: RegistrySettings = RegistrySettings.model_construct()
    categories: dict[str, CategorySettings] = {}
    tools: ToolSettings = ToolSettings.model_construct()
    approval: ApprovalSettings = ApprovalSettings.model_construct()
    sandbox: SandboxSettings = SandboxSettings.model_construct()
    web: WebSettings = WebSettings.model_construct()
    http: HttpSettings = HttpSettings.model_construct()
    auth: AuthSettings = AuthSettings.model_construct()
    roles: dict[str, RoleSettings] = {}
    extensions: list[ExtensionSettings] = []
    profiles: dict[Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")], ProfileSettings] = {}
    limits: LimitSettings = LimitSettings.model_construct()
    server: ServerSettings = ServerSettings.model_construct()
    telemetry: TelemetrySettings = TelemetrySettings.model_construct()
    retention: RetentionSettings = RetentionSettings.model_construct()
    chat: str | None = None
    workspace: Path | None = None
    profile: str | None = None

    @field_validator("data_dir", "workspace")
    @classmethod
    def _make_absolute(cls, path: Path | None) -> Path | None:
        """Make the path absolute, so that it means the same wherever it is used later."""
        return None if path is None else path.expanduser().absolute()

    def effective_categories(self) -> dict[str, Category]:
        """Every category with its level and whether it is on, after flags and file had their say.

        What the file says of a category by name wins over the switch for all; a category named in
        `enabled_categories` is on in any case.
        """
        known = [*self.categories, *(name for name in DEFAULT_CATEGORIES if name not in self.categories)]
        for name in self.tools.enabled_categories:
            if name not in known:
                short = [f"; did you mean {other!r}?" for other in known if other.startswith(name)]
                hint = next(iter(short), did_you_mean(name, known)) or f"; there are {', '.join(known)}"
                raise Invalid(f"there is no category {name!r}{hint}", code="INVALID_CONFIG")
        return {name: self.category(name) for name in known}

    def category(self, name: str) -> Category:
        """One category; one that only a toolset names is read-write."""
        category = DEFAULT_CATEGORIES.get(name) or Category(name, Permission.READ_WRITE)
        settings = self.categories.get(name, CategorySettings.model_construct())
        switch = self.tools.enable and name != ADMIN_CATEGORY  # which only its own name turns on
        enabled = category.enabled if self.tools.enable is None else bool(switch)
        if settings.enabled is not None:
            enabled = settings.enabled
        return Category(
            category.name,
            settings.permission or category.permission,
            enabled or category.name in self.tools.enabled_categories,
            settings.calls_per_minute,
            settings.name or category.title or name.replace("_", " ").capitalize(),
            settings.description if settings.description is not None else category.description,
        )

    @property
    def has_short_lists(self) -> bool:
        """True if the tools of some list are found by searching."""
        modes = [self.tools.mode, *(profile.mode for profile in self.profiles.values())]
        return any(mode not in (None, "full") for mode in modes)

    def effective_profile(self) -> ProfileSettings:
        if self.profile is None:
            return ProfileSettings.model_construct()
        if self.profile not in self.profiles:
            hint = did_you_mean(self.profile, self.profiles)
            raise Invalid(f"there is no profile {self.profile!r} under 'profiles'{hint}", code="INVALID_CONFIG")
        return self.profiles[self.profile]


def refuse_unavailable(settings: Settings) -> None:
    """Refuse settings this version cannot honour and that must not be ignored."""
    for is_set, key, instead in (
        (settings.database_url, "database_url", "leave it out for SQLite in data_dir"),
        (settings.blob_store, "blob_store", "leave it out for files in data_dir"),
    ):
        if is_set:
            raise Invalid(f"{key!r} is not available in this version; {instead}", code="NOT_AVAILABLE")
