"""The composition root: the only module that opens the database for writing and names concrete classes together."""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, closing
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, TypeVar

from gateway.access import AccessPolicy
from gateway.approval.flow import ApprovalFlow
from gateway.approval.preview import WorkspacePreview
from gateway.approval.request_state import RequestStateCodec
from gateway.approval.store import ApprovalStore
from gateway.authorization import GrantStore
from gateway.calls import Call
from gateway.catalog import Catalog
from gateway.config import Settings
from gateway.config.settings import ApprovalSettings
from gateway.db import DATABASE_FILE, Database
from gateway.db.api_keys import ApiKeys
from gateway.db.approvals import Approvals
from gateway.db.call_records import CallRecords
from gateway.db.chats import Chats, Instance, settle_interrupted
from gateway.db.grants import Grants
from gateway.db.health_events import HealthEvents
from gateway.db.manifests import Manifests
from gateway.db.pins import Pins
from gateway.db.sessions import BrowserSessions
from gateway.db.sqlite import SqliteDatabase
from gateway.db.switches import CategoryRow, Switches
from gateway.db.tool_names import ToolNames
from gateway.db.toolsets import Toolsets
from gateway.db.upstreams import Upstreams
from gateway.db.usage import CallUsage
from gateway.errors import NotFound, Unavailable
from gateway.executor import Executor
from gateway.extensions import Extension, load_extension, place_extension
from gateway.extensions.approval import Approval
from gateway.extensions.audit import Audit
from gateway.extensions.concurrency import Concurrency
from gateway.extensions.large_results import LargeResults
from gateway.extensions.permissions import ChatClaim, Ownership, Permissions
from gateway.extensions.quotas import Quotas
from gateway.extensions.rate_limit import RateLimit, RateTable
from gateway.extensions.rendering import RELATIVE, Directories, Rendering
from gateway.extensions.retry import CallRetry
from gateway.extensions.telemetry import Telemetry
from gateway.extensions.validation import Validation
from gateway.extensions.versioning import Versioning
from gateway.files import SharedCounter
from gateway.identity import ChatNames
from gateway.identity.api_keys import ApiKeyStore
from gateway.identity.authentication import CredentialStore, Identity
from gateway.identity.roles import Roles
from gateway.identity.sessions import SessionStore
from gateway.protocol import HTTP_PATH
from gateway.sealing import Sealer, load_key_file
from gateway.search import CatalogSearch, Searches, ToolSearch
from gateway.semantic import SemanticRanker, find_model
from gateway.serve.mcp.uris import file_uri
from gateway.sources import Source
from gateway.sources.builtin.source import builtin_source
from gateway.tools import WRITE_RESOURCE, Category, HidesFor, Permission, Tool, denied_only
from gateway.workspace import Workspaces
from gateway.workspace.versions import Versions
from gateway.workspace.workspaces import attached_folders

if TYPE_CHECKING:
    from gateway.authorization.provider import AuthorizationServers
    from gateway.bundles.installed import InstalledToolset
    from gateway.discovery.source import DiscoverySource
    from gateway.extensions.tracing import Tracer
    from gateway.identity.jwt import JwtVerifier
    from gateway.oauth.callback_server import WebLogins
    from gateway.oauth.store import LoginAccount
    from gateway.sources.toolsets.assembly import ToolsetRuntime
    from gateway.sources.upstreams.passthrough import UpstreamPassthrough
    from gateway.sources.upstreams.registry import UpstreamRegistry

log = logging.getLogger(__name__)

Part = TypeVar("Part")

# The key that makes the names of principals' chats unguessable.
CHATS_KEY_FILE = "chats.key"


class Lazy(Generic[Part]):
    """A part that is built, and whose modules are imported, at the first use."""

    def __init__(self, build: Callable[[], Part]) -> None:
        self._build = build
        self._part: Part | None = None

    def get(self) -> Part:
        """Return the part, built now if need be."""
        if self._part is None:
            self._part = self._build()
        return self._part

    def peek(self) -> Part | None:
        """Return the part if it is built already."""
        return self._part


class Storage(NamedTuple):
    """The open database, and the id of this process in it."""

    db: Database
    instance: str


@asynccontextmanager
async def open_storage(settings: Settings) -> AsyncIterator[Storage]:
    """Open the database in the data directory, and end calls that killed processes left running in it."""
    run_directory = settings.data_dir / "run"
    try:
        settings.data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)  # its parents get the usual mode
        run_directory.mkdir(exist_ok=True, mode=0o700)
    except OSError as error:
        raise Unavailable(
            f"the data directory {settings.data_dir} cannot be used: {error.strerror}; choose another with --data-dir "
            "or data_dir",
            code="DATA_DIR_UNUSABLE",
        ) from None
    db = await SqliteDatabase.open(settings.data_dir / DATABASE_FILE)
    try:
        with closing(Instance(run_directory)) as instance:
            await settle_interrupted(db, run_directory)
            yield Storage(db, instance.id)
    finally:
        await db.close()


class GatewayParts:
    """The parts of one gateway. `sources` are all sources of tools; those of toolsets and upstreams join the list when
    they are built. `categories` grows with categories that toolsets and upstreams name."""

    def __init__(
        self,
        settings: Settings,
        storage: Storage,
        sources: Sequence[Source],
        extensions: Sequence[Extension],
        upstreams_changed: Callable[[Collection[str]], None],
    ) -> None:
        self.settings = settings
        self._make_tables(storage)
        self.chat_names = ChatNames(lambda: load_key_file(settings.data_dir / CHATS_KEY_FILE))
        self.roles = Roles(settings.roles, settings.profiles, self.chat_names)
        self.telemetry = Telemetry()
        self.tracer: Tracer | None = None
        limits = settings.limits
        self.concurrency = Concurrency(limits.concurrency, limits.timeout, limits.total_timeout)
        self.categories = settings.effective_categories()
        self._category_changes: Mapping[str, CategoryRow] = {}
        self._permission = settings.effective_profile().permission
        self.rate_limit = RateLimit(self.categories, settings.limits.calls_per_minute, table=self._open_rate_table)
        self.workspaces = Workspaces(settings.data_dir, attached_folders(settings))
        wait = self.concurrency.wait_for_files
        self.versions = Versions(self.manifests, self.chats, self.workspaces, self._permission, wait)
        hides: HidesFor = lambda tool: self.executor.hides(tool)  # noqa: E731 - the executor is built below
        self.builtins = builtin_source(
            settings, self.workspaces, self.versions, hides, lambda name: self.categories[name]
        )
        self.sources: list[Source] = [self.builtins, *sources]
        self.approvals = ApprovalStore(self.approval_rows, settings.approval)
        self.executor = Executor(self._extensions(extensions))
        self.versions.denied = denied_only(self.executor.hides(WRITE_RESOURCE))
        self.approval_flow = ApprovalFlow(
            self.executor.call_tool,
            self._find_called_tool,
            self.approvals,
            self.records.record_finished,
            RequestStateCodec(settings.approval.keys, settings.data_dir),
        )
        self.searches = self._build_searches()
        self.discovery = self._build_discovery() if settings.has_short_lists else None
        self.toolsets = Lazy(self._build_toolsets)
        self.upstreams = Lazy(self._build_upstreams)
        self.passthrough = Lazy(self._build_passthrough)
        self._upstreams_changed = upstreams_changed
        self._web_logins: WebLogins | None = None
        self._jwt_verifier: JwtVerifier | None = None

    def _make_tables(self, storage: Storage) -> None:
        """Make what reads and writes the tables of the database, one for each subject."""
        db = self.db = storage.db
        self.instance = storage.instance
        self.records = CallRecords(db, storage.instance)
        self.usage = CallUsage(db)
        self.health_events = HealthEvents(db)
        self.tool_names = ToolNames(db)
        self.toolset_rows = Toolsets(db)
        self.upstream_rows = Upstreams(db)
        self.pins = Pins(db)
        self.switches = Switches(db)
        self.chats = Chats(db)
        self.manifests = Manifests(db)
        self.approval_rows = Approvals(db)
        # Counts changes of credentials, for all processes on the data directory.
        self.credential_changes = Lazy(lambda: SharedCounter(self.settings.data_dir / "run" / "credentials"))
        self.api_keys = ApiKeys(db, lambda: self.credential_changes.get().increment())
        self.grants = Grants(db, lambda: self.credential_changes.get().increment())
        self.sessions = BrowserSessions(db, lambda: self.credential_changes.get().increment())

    def make_identity(self, anonymous: bool) -> Identity:
        """Return what authenticates requests over HTTP. With `anonymous`, they need no key until one exists."""
        auth, verifier = self.settings.auth, None
        if auth.jwt is not None:
            # Imported here: it imports a cryptographic library and an HTTP client.
            from gateway.identity.jwt import JwtVerifier

            verifier = self._jwt_verifier = JwtVerifier(auth.jwt, self.roles)
        stores: list[CredentialStore] = [ApiKeyStore(self.api_keys), SessionStore(self.sessions)]
        if auth.authorization_server:
            stores.append(GrantStore(self.grants, HTTP_PATH))
        changes = self.credential_changes.get()
        return Identity(self.roles, stores, changes, verifier, required=auth.required, anonymous=anonymous)

    def make_sealer(self, purpose: str) -> Sealer:
        return Sealer(purpose, self.settings.approval.keys, self.settings.data_dir)

    def make_authorization(self, identity: Identity) -> AuthorizationServers:
        """Return the built-in authorization server."""
        # Imported at the first request of a client that logs in by OAuth: it imports the SDK.
        from gateway.authorization.provider import AuthorizationServers

        clients = self.settings.auth.clients
        return AuthorizationServers(HTTP_PATH, self.grants, clients, self.make_sealer, identity, self._jwt_verifier)

    def make_web_logins(self, base_url: str) -> WebLogins:
        """Return the logins of people to upstream servers in their browsers; from now on calls ask for them."""
        # Imported here: over stdio nobody logs in by a page.
        from gateway.oauth.callback_server import WebLogins
        from gateway.oauth.store import Logins

        logins = Logins(self.settings.data_dir, self.settings.approval.keys)
        self._web_logins = WebLogins(base_url, self._find_account, logins, self.make_sealer("upstream login"))
        if (upstreams := self.upstreams.peek()) is not None:
            upstreams.source.forwarder.login_page = self._web_logins.ask
        return self._web_logins

    def _find_account(self, server: str, principal: str) -> LoginAccount:
        upstream = self.upstreams.get().by_name.get(server)
        account = upstream.account_for(principal) if upstream is not None else None
        if account is None:
            raise NotFound(f"there is no login to {server!r} any more", code="UNKNOWN_SERVER")
        return account

    def find_tool(self, name: str) -> Tool | None:
        entry = self.executor.catalog.get(name)
        return entry.tool if entry is not None else None

    def _find_called_tool(self, call: Call) -> Tool | None:
        entry = self.executor.catalog.for_principal(call.caller.access).get(call.name)
        return entry.tool if entry is not None else None

    def set_categories(self, changes: Mapping[str, CategoryRow]) -> None:
        """Make the categories those of the settings with a person's changes on top."""
        self._category_changes = changes
        for name in {*self.categories, *changes}:
            self.categories[name] = self.make_category(name)

    def add_category(self, name: str) -> None:
        """Add a category that a toolset or an upstream names."""
        if name not in self.categories:
            self.categories[name] = self.make_category(name)

    def make_category(self, name: str, settings: Settings | None = None) -> Category:
        """Return a category of the settings with a person's changes on top."""
        category, row = (settings or self.settings).category(name), self._category_changes.get(name)
        if row is None:
            return category
        limit = category.calls_per_minute if row.calls_per_minute is None else row.calls_per_minute or None
        return Category(
            name,
            Permission(row.permission or category.permission),
            category.enabled if row.enabled is None else row.enabled,
            limit,
            row.name or category.title,
            category.description if row.description is None else row.description,
        )

    async def installed_toolsets(self) -> Sequence[InstalledToolset]:
        return await self.toolsets.get().library.list() if await self.toolset_rows.revision() else ()

    def _build_searches(self) -> Searches:
        cache = self.settings.data_dir / "meaning.db"
        semantic = self.settings.tools.semantic
        meaning = SemanticRanker(find_model(semantic), cache) if semantic else None
        return Searches(CatalogSearch(self.toolset_rows.recency, meaning), ToolSearch(meaning), ToolSearch(meaning))

    def _build_discovery(self) -> DiscoverySource:
        # Imported here: most gateways list all their tools.
        from gateway.discovery import CATEGORY
        from gateway.discovery.source import make_discovery

        self.add_category(CATEGORY)
        catalog, call_step = (lambda: self.executor.catalog), self.approval_flow.call_step
        return make_discovery(catalog, self.searches.catalog, call_step, self.settings.sandbox.timeout)

    def _build_toolsets(self) -> ToolsetRuntime:
        # Imported at the first use: a process without toolsets starts in half the time.
        from gateway.sources.toolsets.assembly import ToolsetRuntime

        toolsets = ToolsetRuntime(
            self.db,
            self.settings,
            self.workspaces,
            self.executor.hides,
            self.builtins,
            self.versions,
            self.approval_flow.call_step,
        )
        self.sources.append(toolsets.source)
        return toolsets

    def _build_upstreams(self) -> UpstreamRegistry:
        # Imported at the first use, for the same reason.
        from gateway.sources.upstreams.registry import UpstreamRegistry

        upstreams = UpstreamRegistry(self.db, self.settings, self._upstreams_changed, self.installed_toolsets)
        if self._web_logins is not None:
            upstreams.source.forwarder.login_page = self._web_logins.ask
        self.sources.append(upstreams.source)
        return upstreams

    def _build_passthrough(self) -> UpstreamPassthrough:
        # Imported at the first use: a command that only lists tools does not serve prompts and resources.
        from gateway.sources.upstreams.passthrough import UpstreamPassthrough

        source = lambda: self.upstreams.get().source  # noqa: E731
        return UpstreamPassthrough(source, self._request, self.executor.refuses, self._list_public_names)

    def _list_public_names(self, server: str, access: AccessPolicy | None) -> dict[str, str]:
        """Return the names of a server's tools as somebody may call them, by the server's own names."""
        entries = self.executor.catalog.for_principal(access)
        return {entry.tool.id.partition(":")[2]: entry.name for entry in entries if entry.tool.owner == server}

    async def _request(self, call: Call, tool: Tool, work: Callable[[], Awaitable[Any]]) -> Any:
        self.add_category(tool.category)
        return await self.executor.request(call, tool, work)

    def _extensions(self, extensions: Sequence[Extension]) -> list[Extension]:
        """All extensions, outermost first. Their order is the policy: read it from top to bottom."""
        settings, limits = self.settings, self.settings.limits
        approval = self._approval(settings.approval)
        custom = [load_extension(each, limits.timeout) for each in settings.extensions]
        custom += [place_extension(each, type(each).__name__, wait_timeout=limits.timeout) for each in extensions]
        policies = [approval, *custom]
        validation = Validation(
            limits.request_bytes,
            limits.response_bytes,
            lambda tool: any(policy.reads_arguments(tool) for policy in policies),
        )
        large_results = LargeResults(self.versions, self._large_result_bytes, limits.response_bytes, file_uri)
        has_limits = any(role.limits is not None for role in settings.roles.values())
        versioning = Versioning(self.versions, approval.require_consent, limits.timeout)
        self.audit = Audit(self.records, take_versions=versioning.take_versions)
        ownership = Ownership(self.chats)
        own: list[tuple[int, Extension]] = [
            (0, self.telemetry),  # measures, refusals included
            (10, self.audit),  # records and logs, refusals included
            (15, Quotas(has_limits, self.rate_limit.table)),  # more than the caller's role may use? unknown names count
            (20, validation),  # do the arguments fit the schema?
            (30, Permissions(self.categories, self._permission)),  # is the caller allowed to?
            (40, self.rate_limit),  # too many calls?
            (45, ownership),  # is it this caller's chat, or nobody's?
            (60, approval),  # does a person agree?
            (62, ChatClaim(ownership)),  # from here on the chat is this caller's: those above claim nothing
            (63, large_results),  # too large to return?
            (65, Rendering(self._directories)),  # shows every outcome, a timeout included
            (68, CallRetry(settings.tools.retry, self.concurrency.pause)),  # another attempt, after a pause?
            (70, self.concurrency),  # a slot and a deadline, held by no call that waits for a person
            (100, versioning),  # innermost: the files before and after, and consent to changes of existing ones
        ]
        placed = [*self._tracing(), *own, *((extension.priority, extension) for extension in custom)]
        return [extension for _, extension in sorted(placed, key=lambda pair: pair[0])]

    def _tracing(self) -> list[tuple[int, Extension]]:
        """The extensions that make spans, where an exporter is set."""
        if not self.sends_otlp("traces"):
            return []
        # Imported only here: without an exporter nobody pays for traces.
        from gateway.extensions.tracing import Tracer, Tracing, UpstreamTracing

        self.tracer = Tracer(self.otlp_endpoint)
        tracing = Tracing(self.tracer)
        return [(-1, tracing), (110, UpstreamTracing(self.tracer, tracing.spans))]  # around all, and next to the source

    @property
    def otlp_endpoint(self) -> str | None:
        """The address of the OTLP receiver in the settings; OTEL_* variables may name one instead."""
        return None if self.settings.telemetry.otel is None else self.settings.telemetry.otel.endpoint

    def sends_otlp(self, signal: Literal["traces", "metrics"]) -> bool:
        """Return whether a signal goes to an OTLP receiver. Refused if settings say so and the extra is missing."""
        otel, variables = self.settings.telemetry.otel, os.environ
        names = [f"OTEL_EXPORTER_OTLP_{signal.upper()}_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"]
        if otel is not None:
            wanted = getattr(otel, signal)
        else:
            wanted = any(map(variables.get, names)) and (
                variables.get(f"OTEL_{signal.upper()}_EXPORTER", "otlp") == "otlp"
                and variables.get("OTEL_SDK_DISABLED", "").lower() != "true"
            )
        if not wanted or (find_spec("opentelemetry") and find_spec("opentelemetry.exporter.otlp.proto.http")):
            return bool(wanted)
        fix = f"{signal} need the extra 'otel'; install it with: pip install 'toolgate-mcp[otel]'"
        if otel is not None:
            raise Unavailable(fix, code="OTEL_MISSING")
        log.warning("%s, or unset %s", fix, " and ".join(filter(variables.get, names)))
        return False

    def _open_rate_table(self) -> RateTable:
        directory = self.settings.data_dir / "run"
        return RateTable(directory, lambda: sum(1 for _ in directory.glob("*.lock")))

    def make_policy_executor(
        self, settings: Settings, catalog: Catalog, categories: Mapping[str, Category]
    ) -> Executor:
        """Return an executor with the gates that decide by rules and levels, under other settings."""
        permission = settings.effective_profile().permission
        return Executor([Permissions(categories, permission), self._approval(settings.approval)], catalog)

    def _approval(self, settings: ApprovalSettings) -> Approval:
        return Approval(
            settings.mode,
            settings.rules,
            out_of_band=settings.out_of_band,
            is_remembered=self.approvals.is_remembered,
            preview=WorkspacePreview(self.workspaces),
            is_attached=self.workspaces.is_attached if attached_folders(self.settings) else None,
            find_folder=self.workspaces.folder,
        )

    def _directories(self, call: Call) -> Directories:
        """The paths under which the tool of a call sees the chat's workspace and its own toolset."""
        return RELATIVE if call.target.home is None else Directories(*self.toolsets.get().sandbox_paths(call))

    def _large_result_bytes(self, call: Call) -> int | None:
        """The size from which a result is stored in the workspace; None for callers that may only read."""
        tool = call.target
        if tool.kind != "mcp" or Permission.READ_ONLY in (self._permission, call.caller.permission):
            return None
        upstream = self.upstreams.get().source.upstreams.get(tool.owner or "")
        return upstream.spec.settings.large_results.over if upstream is not None else None
