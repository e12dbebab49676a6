"""Upstream servers: list, show, add, switch, remove, keep secrets, log in and out.

Only `add_upstream`, `probe_upstreams` and `log_in` connect to servers.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pydantic import ValidationError

from gateway.admin.upstream_setup import (
    ProbeResult,
    ToolStatus,
    UpstreamSetup,
    load_setup,
    probe_all,
    probe_upstream,
    tool_statuses,
)
from gateway.config import UpstreamSettings, mask
from gateway.db.upstreams import LastListing, encode_settings
from gateway.errors import Conflict, GatewayError, Invalid, NotFound, Unavailable
from gateway.mcp_client.connect import Step, ignore_step
from gateway.oauth.store import Login, LoginAccount
from gateway.render import declare
from gateway.sandbox.supervisor_main import remove as remove_folder
from gateway.secrets import KNOWN, VARIABLE
from gateway.sources.upstreams.client_configs import is_toolgate
from gateway.sources.upstreams.secret_store import missing
from gateway.sources.upstreams.spec import ADDED, Spec, bundle_folder
from gateway.tasks import TaskSet
from gateway.value import Value

if TYPE_CHECKING:
    from gateway.gateway import Gateway

# Logins that wait for a browser.
_LOGINS = TaskSet()

# Asks a person for the value of a variable; an empty text for none.
AskSecret = Callable[[str], str]

# How often a followed log is read.
_FOLLOW_SECONDS = 0.25


class UpstreamInfo(Value):
    """One server as it was when it last answered. `missing` names variables without a value, `waiting` counts
    definitions that wait for review."""

    name: str
    state: str
    origin: str
    error: str | None = None
    era: str | None = None
    transport: str = "-"
    sandbox: str = "-"
    seen_at: str | None = None
    missing: Sequence[str] = ()
    tools: Sequence[ToolStatus] = ()
    waiting: int = 0

    @property
    def is_added(self) -> bool:
        return self.origin == ADDED

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "state": self.state,
            "era": self.era,
            "origin": self.origin,
            "transport": self.transport,
            "sandbox": self.sandbox,
            "seen_at": self.seen_at,
            "error": self.error,
            "missing": list(self.missing),
            "tools": [tool.to_dict() for tool in self.tools],
            "tool_count": len(self.tools),
            "offered": sum(tool.state == "offered" for tool in self.tools),
            "waiting": self.waiting,
        }


class UpstreamDetails(Value):
    """One server with its settings and the names of the secrets kept for it."""

    info: UpstreamInfo
    settings: Mapping[str, Any]
    secrets: Sequence[str]

    def to_dict(self) -> dict[str, Any]:
        return {**self.info.to_dict(), "settings": self.settings, "secrets": self.secrets}


class LoginResult(Value):
    """A login without its tokens, and the probe of the server with it or the reason why it did not answer."""

    login: Login = field(repr=False)
    probe: ProbeResult | GatewayError

    @property
    def scope(self) -> str | None:
        return self.login.scope

    def to_dict(self) -> dict[str, Any]:
        login = self.login
        until = datetime.fromtimestamp(login.expires_at, UTC).isoformat() if login.expires_at is not None else None
        return {
            "name": login.server,
            "issuer": login.issuer,
            "scope": login.scope,
            "expires_at": until,
            "renewable": login.refresh_token is not None,
            "answer": self.probe.to_dict(),
        }


async def list_upstreams(gateway: Gateway) -> list[UpstreamInfo]:
    """List every server, those that wait for consent last."""
    setup = await load_setup(gateway)
    known = [await _describe(setup, spec) for spec in setup.specs.values()]
    held = [
        UpstreamInfo(
            name,
            state="held back",
            origin=f"the toolset {toolset.id!r}",
            error=f"allow it with: toolgate toolset allow {toolset.id}",
        )
        for name, toolset in setup.held.items()
    ]
    return known + held


async def show_upstream(gateway: Gateway, name: str) -> UpstreamDetails:
    setup = await load_setup(gateway)
    spec = setup.get(name)
    settings = KNOWN.mask_value(mask(spec.stored.model_dump(mode="json", exclude_defaults=True)))
    settings |= {"bundle": spec.stored.bundle} if spec.stored.bundle else {}  # a digest looks like a secret
    return UpstreamDetails(await _describe(setup, spec), settings, gateway.upstreams.secrets.names(name))


async def add_upstream(
    gateway: Gateway,
    name: str,
    settings: Mapping[str, Any],
    *,
    test: bool = True,
    ask_secret: AskSecret | None = None,
    step: Step = ignore_step,
) -> ProbeResult | GatewayError | None:
    """Add a server with settings as in `mcpServers`, and probe it if `test`.

    Values of its variables that are not set are asked for with `ask_secret`. The result is what the probe found, or
    the error of a server that wants a login first; nothing is stored when the probe fails otherwise.
    """
    setup = await load_setup(gateway)
    setup.require_free(name)
    spec = Spec.configured(name, _check_settings(name, settings), ADDED, gateway.settings.data_dir)
    variables = missing(spec.settings.model_dump(), os.environ) if ask_secret is not None else ()
    given = {variable: value for variable in variables if ask_secret and (value := ask_secret(variable))}
    setup = replace(setup, given=given)
    await forget_history(gateway, name)
    try:
        result = await _probe_before_login(setup, spec, step) if test else None
        await gateway.upstreams.store.add(name, settings)
    except GatewayError as refusal:
        # Another process may have added a server of this name meanwhile, whose history that would be.
        if name not in (await load_setup(gateway)).specs:
            await forget_history(gateway, name)
        lacking = missing(spec.settings.model_dump(), setup.environment(spec))
        raise _explain_not_added(refusal, name, lacking) from None
    gateway.upstreams.secrets.replace(name, given)
    return result


async def probe_upstreams(
    gateway: Gateway, name: str | None = None, step: Step = ignore_step
) -> list[tuple[str, ProbeResult | GatewayError]]:
    """Probe one server, or every one that is on; each name with the result or the reason why it did not answer."""
    setup = await load_setup(gateway)
    specs = [setup.get(name)] if name else [spec for spec in setup.specs.values() if spec.settings.enabled]
    results = await probe_all(setup, specs, step)
    for probed, result in results:
        upstream = gateway.upstreams.by_name.get(probed)
        if upstream is not None and isinstance(result, ProbeResult):
            await upstream.load_cached()  # its own listing is older, and would release what is held since
    return results


async def forget_history(gateway: Gateway, name: str) -> None:
    """Forget lists and decisions about an earlier server of this name: they say nothing about a new one."""
    await gateway.upstreams.store.forget(name)
    await gateway.upstreams.pins.forget(name)


async def enable_upstream(gateway: Gateway, name: str, enabled: bool) -> None:
    """Turn a server that was added by hand on or off."""
    (await load_setup(gateway)).get_added(name)
    await gateway.upstreams.store.enable(name, enabled)


async def override_server_tool(gateway: Gateway, name: str, tool: str, changes: Mapping[str, Any]) -> None:
    """Change one tool of a server that was added by hand, with the keys of a toolset's `tool_overrides`; None removes a
    change. Without changes, undo earlier ones."""
    (await load_setup(gateway)).get_added(name)
    settings = dict((await gateway.upstreams.store.find(name)).settings)
    overrides = dict(settings.get("overrides") or {})
    known = overrides.pop(tool, {}) if changes else {}
    if "renderer" in changes:
        known = {key: value for key, value in known.items() if key != "renderer_config"}
    renamed = {key.removesuffix("_override"): value for key, value in changes.items()}
    merged = {key: value for key, value in {**known, **renamed}.items() if value is not None}
    if "renderer" in merged:
        declare(merged["renderer"], merged.get("renderer_config") or {})  # refuses a config that does not fit
    settings["overrides"] = {**overrides, tool: merged} if merged else overrides
    _check_settings(name, settings)
    await gateway.upstreams.store.change(name, settings)


async def restart_upstream(gateway: Gateway, name: str) -> None:
    """Have every gateway that runs end the server's connections and programs, and start it again."""
    spec = (await load_setup(gateway)).get(name)
    if not spec.settings.enabled:
        fix = f"with: toolgate upstream enable {name}" if spec.origin == ADDED else f"in {spec.origin}"
        raise Conflict(f"{name!r} is off; turn it on {fix}", code="UPSTREAM_OFF")
    await gateway.upstreams.store.request_restart(name)


async def find_log(gateway: Gateway, name: str) -> Path:
    """The file with the stderr of a server's program; refused for a server that is reached by a URL."""
    spec = (await load_setup(gateway)).get(name)
    if spec.settings.command is None:
        raise Invalid(
            f"{name!r} is reached by a URL and keeps its log where it runs; try it with: toolgate upstream test {name}",
            code="NO_LOG",
        )
    return spec.log(gateway.settings.data_dir)


def read_log(log: Path, lines: int) -> list[str]:
    """The last lines of a server's log, the older file included."""
    parts = [
        path.read_text(encoding="utf-8", errors="replace")
        for path in (log.with_suffix(".log.1"), log)
        if path.is_file()
    ]
    return "".join(parts).splitlines()[-lines:]


def follow_log(log: Path) -> Iterator[str]:
    """Yield the lines that are added to a server's log, endlessly; a full file is replaced by a new one."""
    file, rest = log.open(encoding="utf-8", errors="replace") if log.is_file() else None, ""
    if file is not None:
        file.seek(0, os.SEEK_END)
    while True:
        chunk = file.read() if file is not None else ""
        *lines, rest = (rest + chunk).split("\n")
        yield from lines
        if not chunk:
            time.sleep(_FOLLOW_SECONDS)
            with suppress(FileNotFoundError):
                if file is None or log.stat().st_ino != os.fstat(file.fileno()).st_ino:
                    file = log.open(encoding="utf-8", errors="replace")


async def remove_upstream(gateway: Gateway, name: str) -> None:
    """Remove a server that was added by hand, with its folder, pinned definitions, login and secrets."""
    setup, registry = await load_setup(gateway), gateway.upstreams
    spec = setup.get_added(name)
    home, log = spec.home(gateway.settings.data_dir), spec.log(gateway.settings.data_dir)
    account = setup.account(name)
    await registry.store.remove(name)
    await asyncio.to_thread(remove_folder, str(home))
    if spec.settings.bundle is not None:
        await remove_unused_bundles(gateway, 0, spec.settings.bundle)
    for path in (log, log.with_suffix(".log.1")):
        path.unlink(missing_ok=True)
    await registry.pins.forget(name)
    # Imported here, as in the functions below: it loads the MCP SDK, which doubles the start of a command.
    from gateway.oauth.flow import sign_out

    try:
        with suppress(NotFound):
            await sign_out(account, name, registry.logins)
    finally:  # the secrets go even if the logout fails
        registry.secrets.forget(name)


async def remove_unused_bundles(gateway: Gateway, seconds: float, digest: str | None = None) -> None:
    """Remove unpacked `.mcpb` files that no server runs from, this one or all that are older than `seconds`."""
    data_dir = gateway.settings.data_dir
    _, rows = await gateway.upstreams.store.load()
    named = [row.settings.get("bundle") for row in rows]
    named += [settings.bundle for settings in gateway.settings.upstreams.values()]
    used = {bundle_folder(data_dir, each) for each in named if each}
    folders = [bundle_folder(data_dir, digest)] if digest else list((data_dir / "mcpb").glob("*"))

    def remove() -> None:
        for folder in folders:
            if folder not in used and folder.is_dir() and time.time() - folder.stat().st_mtime >= seconds:
                remove_folder(str(folder))

    await asyncio.to_thread(remove)


async def keep_secret(gateway: Gateway, name: str, variable: str, ask_secret: AskSecret) -> None:
    """Keep the value of a `${VARIABLE}` for one server that was added by hand; it is used at the next connect."""
    await _require_variable(gateway, name, variable)
    gateway.upstreams.secrets.keep(name, {variable: ask_secret(variable)})


async def forget_secret(gateway: Gateway, name: str, variable: str) -> None:
    await _require_variable(gateway, name, variable)
    gateway.upstreams.secrets.forget(name, variable)


async def log_in(
    gateway: Gateway, name: str, show_url: Callable[[str], None], *, scopes: Sequence[str] = (), port: int = 0
) -> LoginResult:
    """Log in to a server and probe it. `show_url` gets the address to open in a browser."""
    from gateway.oauth.flow import sign_in

    setup = await load_setup(gateway)
    spec = setup.get(name)
    account = _require_account(setup, spec)
    login = await sign_in(account, gateway.upstreams.logins, show_url, scopes=scopes, port=port)
    try:
        return LoginResult(login, await probe_upstream(setup, spec))
    except GatewayError as refusal:
        return LoginResult(login, refusal)


async def start_login(gateway: Gateway, name: str) -> str:
    """Begin to log in to a server and return the address to open in a browser; the login goes on by itself for a few
    minutes, and a failure is remembered as the server's."""
    address: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def finish() -> None:
        try:
            await log_in(gateway, name, address.set_result)
            await gateway.reload()
        except GatewayError as refusal:
            if not address.done():
                address.set_exception(refusal)
                return
            await gateway.upstreams.store.record_failure(name, refusal.message)

    _LOGINS.start(finish())
    return await asyncio.shield(address)


async def log_out(gateway: Gateway, name: str) -> bool:
    """Forget the login to a server; True if its tokens were revoked as well."""
    from gateway.oauth.flow import sign_out

    account = (await load_setup(gateway)).account(name)
    revoked = await sign_out(account, name, gateway.upstreams.logins)
    if account is not None and not account.unattended:
        await gateway.upstreams.store.record_failure(name, f"you are not logged in: {account.remedy}")
    return revoked


async def _describe(setup: UpstreamSetup, spec: Spec) -> UpstreamInfo:
    registry = setup.gateway.upstreams
    listing, pins = await registry.store.load_listing(spec.name), await registry.pins.load(spec.name)
    upstream = registry.by_name.get(spec.name)
    return UpstreamInfo(
        spec.name,
        state=_state(setup, spec, listing),
        origin=spec.origin,
        error=listing.error,
        era=listing.era,
        transport="stdio" if spec.settings.command is not None else "sse" if spec.settings.type == "sse" else "http",
        sandbox=_describe_sandbox(spec),
        seen_at=listing.seen_at,
        missing=missing(spec.settings.model_dump(), setup.environment(spec)),
        tools=tool_statuses(setup.gateway, upstream.tools if upstream else (), pins),
        waiting=sum(pin.state == "held" for pin in pins),
    )


def _state(setup: UpstreamSetup, spec: Spec, listing: LastListing) -> str:
    if not spec.settings.enabled:
        return "off"
    if setup.access(spec).lacks_login(listing.error):
        return "not logged in"
    if listing.error is not None:
        return "failed"
    return "ok" if listing.seen_at is not None else "new"


def _describe_sandbox(spec: Spec) -> str:
    """`yes` with the paths and hosts it may use, `no`, or `-` for a server without a program."""
    if spec.settings.command is None:
        return "-"
    if spec.sandbox is None:
        return "no"
    return "; ".join(["yes", *spec.sandbox.paths, *spec.sandbox.network])


def _check_settings(name: str, settings: Mapping[str, Any]) -> UpstreamSettings:
    """Parse settings; refused when they cannot be used or contain a secret."""
    if is_toolgate(settings):
        raise Invalid("that is this gateway, which would call itself", code="CALLS_ITSELF")
    try:
        url = urlsplit(settings.get("url", "http:"))
        if url.scheme not in ("http", "https") and not VARIABLE.match(settings.get("url", "")):
            raise ValueError
    except ValueError:
        raise Invalid(
            "the URL must begin with https:// or http://, as in https://host/mcp", code="INVALID_URL"
        ) from None
    try:
        parsed = UpstreamSettings.model_validate(settings)
    except ValidationError as error:
        fault = error.errors()[0]
        raise Invalid(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}", code="INVALID_CONFIG") from None
    try:
        encode_settings(settings)
    except Invalid as refusal:
        if refusal.code != "LITERAL_SECRET":
            raise
        raise Invalid(
            f"{refusal.message}, in single quotes so that the shell leaves it alone; you are then asked for the value, "
            f"or store it later with: toolgate upstream secret {name} VARIABLE",
            code=refusal.code,
            **refusal.details,
        ) from None
    return parsed


async def _probe_before_login(setup: UpstreamSetup, spec: Spec, step: Step) -> ProbeResult | GatewayError:
    """Probe a server; that it wants a login first is a result, too."""
    try:
        return await probe_upstream(setup, spec, step)
    except GatewayError as refusal:
        if "login" not in refusal.details:
            raise
        return refusal


def _explain_not_added(refusal: GatewayError, name: str, lacking: Sequence[str]) -> GatewayError:
    """Return the refusal with the hint that nothing was stored and what to do. A secret is stored for a server that
    exists, so it is added first."""
    if isinstance(refusal, Conflict):
        return refusal
    kind = Unavailable if isinstance(refusal, Unavailable) else Invalid
    if refusal.code == "MISSING_VARIABLE":
        one = len(lacking) == 1
        message = (
            f"{name} needs {', '.join(lacking)}, which {'is' if one else 'are'} not set; nothing was added. Set "
            f"{'it' if one else 'them'} in the environment and repeat, or repeat with --no-test and then run: "
            f"toolgate upstream secret {name} {lacking[0]}"
        )
    else:
        message = f"{refusal.message}; nothing was added (--no-test adds it anyway)"
    return kind(message, code=refusal.code)


async def _require_variable(gateway: Gateway, name: str, variable: str) -> None:
    if not VARIABLE.fullmatch(f"${{{variable}}}"):
        raise Invalid(f"{variable!r} cannot be the name of a variable: use letters, digits and _, and no digit first")
    (await load_setup(gateway)).get_added(name)


def _require_account(setup: UpstreamSetup, spec: Spec) -> LoginAccount:
    if spec.settings.url is None:
        raise Invalid(f"{spec.name!r} is a program, which has no login", code="NOTHING_TO_SIGN_IN")
    account = setup.access(spec).account()
    if account is None:
        raise Invalid(
            f"the settings of {spec.name!r} have an Authorization header, which is used instead of a login; remove it",
            code="NOTHING_TO_SIGN_IN",
        )
    return account
