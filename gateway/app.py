"""The composition root: the only module that names concrete classes together."""

from __future__ import annotations

import hashlib
import importlib
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path
from typing import Any

from . import config
from .calls import DEFAULT_CHAT, Call, Caller, Outcome, Progress, check_chat, no_progress
from .catalog import Catalog, Draft, Policy
from .config import ExtensionSettings, Settings
from .db import Database
from .db.chats import Chats
from .db.instances import Instance, settle_interrupted
from .db.manifests import Manifests
from .db.records import CallRecords
from .db.sqlite import SqliteDatabase
from .db.tool_names import ToolNames
from .errors import Invalid, Unavailable
from .executor import Executor
from .extensions import Extension
from .extensions.approval import Approval
from .extensions.audit import Audit
from .extensions.ownership import Ownership
from .extensions.permissions import Permissions
from .extensions.rate_limit import RateLimit
from .extensions.running import Running
from .extensions.telemetry import Telemetry
from .extensions.validation import Validation
from .extensions.versioning import Versioning
from .sources import Source
from .sources.builtin import BuiltinSource
from .workspace import Workspaces
from .workspace.versions import Versions

log = logging.getLogger(__name__)


class Gateway:
    """The whole gateway in one process. Open it, list its catalog, call its tools.

    async with Gateway.open("toolgate.yaml") as gateway:
        outcome = await gateway.call("read_file", {"path": "notes.txt"}, chat="demo")
    """

    def __init__(self, settings: Settings, db: Database, instance: Instance, sources: Sequence[Source]) -> None:
        self.settings = settings
        self.chat = _default_chat(settings)
        self.records = CallRecords(db, instance.id)
        self.telemetry = Telemetry()
        self._db = db
        self._names = ToolNames(db)
        self._running = Running(settings.limits.concurrency, settings.limits.timeout)
        workspaces = Workspaces(settings.data_dir, _attached(settings))
        self._chats = Chats(db)
        self.versions = Versions(Manifests(db), self._chats, workspaces)
        self._sources = [BuiltinSource(workspaces, self.versions), *sources]
        self.executor = Executor(self._extensions())

    @classmethod
    @asynccontextmanager
    async def open(
        cls, settings: str | Path | Mapping[str, Any] | Settings | None = None, *, sources: Sequence[Source] = ()
    ) -> AsyncIterator[Gateway]:
        """A running gateway from a settings file, from settings, or from the defaults.

        `sources` are tools of your own, offered beside the rest. Several gateways, also of several
        processes, may share one data directory.
        """
        chosen = _settings(settings)
        refuse_unavailable(chosen)
        async with AsyncExitStack() as stack:
            chosen.data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
            db = await SqliteDatabase.open(chosen.data_dir / "toolgate.db")
            stack.push_async_callback(db.close)
            instance = stack.enter_context(closing(Instance(chosen.data_dir / "run")))
            await settle_interrupted(db, chosen.data_dir / "run")
            gateway = cls(chosen, db, instance, sources)
            await gateway.refresh(strict=True)
            stack.push_async_callback(gateway.drain)
            yield gateway

    @property
    def catalog(self) -> Catalog:
        return self.executor.catalog

    async def call(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        chat: str | None = None,
        message: str | None = None,
        parent_message: str | None = None,
        caller: Caller | None = None,
        confirmed: bool = False,
        progress: Progress = no_progress,
    ) -> Outcome:
        """Call a tool by its name or id. `confirmed` says that you agree to whatever it would ask first."""
        return await self.executor.call_tool(
            Call(
                name=name,
                arguments=arguments or {},
                chat=check_chat(chat) if chat is not None else self.chat or DEFAULT_CHAT,
                message=message,
                parent_message=parent_message,
                caller=caller or Caller(),
                confirmed=confirmed,
                progress=progress,
            )
        )

    async def refresh(self, *, strict: bool = False) -> Catalog:
        """Ask the sources again and offer what they list now. `strict` refuses a catalog with a tool
        above its category's level; otherwise that tool alone is left out."""
        categories, profile = self.settings.effective_categories(), self.settings.effective_profile()
        draft = Draft(Policy(categories, profile.permission, self.settings.limits.tools))
        for source in self._sources:
            for tool in await source.list_tools():
                draft.consider(source, tool)
        catalog = draft.finish(await self._names.assign(draft.wishes))
        for problem in catalog.problems:
            if strict and problem.code == "CATEGORY_TOO_LOW":
                raise problem
            log.warning("%s", problem)
        self.executor.swap(catalog)
        return catalog

    async def ready(self) -> None:
        """Refuses while the store does not answer or the gateway is stopping."""
        if self._running.stopping:
            raise Unavailable("the gateway is stopping", code="SHUTTING_DOWN")
        await self._db.fetch("SELECT 1")

    async def drain(self) -> None:
        """Let calls under way finish within the grace period, and cancel the rest; all are recorded."""
        await self._running.drain(self.settings.server.shutdown_grace)
        await self.executor.idle()
        await self.versions.close()

    def _extensions(self) -> list[Extension]:
        """Outermost first. The order is the policy; read it top to bottom."""
        settings, limits = self.settings, self.settings.limits
        categories = settings.effective_categories()
        ours: list[tuple[int, Extension]] = [
            (0, self.telemetry),  # timed, refusals included
            (10, Audit(self.records)),  # written down, refusals included
            (20, Validation(limits.request_bytes, limits.response_bytes)),  # is it a call the tool understands?
            (25, Ownership(self._chats.claim)),  # is it this caller's chat?
            (30, Permissions(categories, settings.effective_profile().permission)),  # may it do that?
            (40, RateLimit(categories, limits.calls_per_minute)),  # may it now?
            (60, Approval(settings.approval.mode)),  # does a person agree?
            (70, self._running),  # a slot and a deadline; a person who thinks holds neither
            (100, Versioning(self.versions)),  # innermost: the files before and after
        ]
        yours = [(custom.priority, load_extension(custom)) for custom in settings.extensions]
        return [extension for _, extension in sorted([*ours, *yours], key=lambda placed: placed[0])]


def load_extension(custom: ExtensionSettings) -> Extension:
    """The extension `module:Class` names, made with its options."""
    module_name, _, class_name = custom.use.partition(":")
    try:
        extension = getattr(importlib.import_module(module_name), class_name)(**custom.options)
    except (ImportError, AttributeError, TypeError) as error:
        raise Invalid(f"extension {custom.use!r} cannot be loaded: {error}", code="INVALID_CONFIG") from error
    if not isinstance(extension, Extension):
        raise Invalid(f"extension {custom.use!r} is no gateway.extensions.Extension", code="INVALID_CONFIG")
    return extension


def refuse_unavailable(settings: Settings) -> None:
    """Refuse settings this version cannot honour and that must not be ignored; warn of the others."""
    for asked_for, key, instead in (
        (settings.auth.required or settings.auth.jwt, "auth", "serve on loopback only, which needs none"),
        (settings.database_url, "database_url", "leave it out for SQLite in data_dir"),
        (settings.blob_store, "blob_store", "leave it out for files in data_dir"),
    ):
        if asked_for:
            raise Invalid(f"{key!r} is not available in this version; {instead}", code="NOT_AVAILABLE")
    for named, key in ((settings.upstreams, "mcpServers"), (settings.toolsets, "toolsets")):
        if named:
            log.warning("%r is not available in this version and is passed over", key)


def _settings(given: str | Path | Mapping[str, Any] | Settings | None) -> Settings:
    if isinstance(given, Settings):
        return given
    if isinstance(given, Mapping):
        return config.load(None, given)
    return config.load(config.find(Path(given) if given is not None else None))


def _default_chat(settings: Settings) -> str | None:
    """The chat of calls that name none; an attached folder has one of its own, told by its real path."""
    if settings.chat is not None:
        return check_chat(settings.chat)
    if settings.workspace is None:
        return None
    digest = hashlib.sha256(str(settings.workspace.resolve()).encode("utf-8", "surrogateescape")).hexdigest()
    return f"folder-{digest[:16]}"


def _attached(settings: Settings) -> dict[str, Path]:
    chat = _default_chat(settings)
    if settings.workspace is None or chat is None:
        return {}
    if not settings.workspace.is_dir():
        raise Invalid(f"--workspace {str(settings.workspace)!r} is no folder", code="WORKSPACE_NOT_FOUND")
    return {chat: settings.workspace}
