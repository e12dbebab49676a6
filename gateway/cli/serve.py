"""`toolgate serve`: run the gateway over stdio, over HTTP, or over both in one process."""

from __future__ import annotations

import ipaddress
import json
import logging
import shlex
import shutil
import signal
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from textwrap import indent
from typing import TYPE_CHECKING

import anyio
import click
from click.core import ParameterSource

from gateway.admin.clients import CLIENTS, make_snippets, serve_command
from gateway.cli import exclude_from_gc
from gateway.cli.options import settings_options
from gateway.config import Settings
from gateway.errors import Forbidden
from gateway.gateway import Gateway
from gateway.identity.authentication import Identity
from gateway.serve.mcp.handlers import Handlers, McpServer
from gateway.serve.stdio import serve_stdio

if TYPE_CHECKING:
    from gateway.serve.http.app import HttpApp
    from gateway.serve.rest.app import RestApp

# A message may be this many times the limit on arguments, so that escaped text reaches the check that names the tool
# and the limit. A larger message is refused unread.
MESSAGE_FACTOR = 4


@click.command()
@click.option(
    "--transport",
    "transports",
    type=click.Choice(["stdio", "http"]),
    multiple=True,
    default=("stdio",),
    show_default=True,
    help="May be given twice, to serve both.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="HTTP: the address to listen on.")
@click.option(
    "--port", default=8420, show_default=True, type=click.IntRange(0, 65535), help="HTTP: 0 takes a free one."
)
@click.option("--allow-remote", is_flag=True, help="HTTP: listen beyond loopback though no key exists.")
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    help="What is logged to stderr. The default is warning; over HTTP on a terminal also clients, calls and questions.",
)
@click.option("-v", "--verbose", is_flag=True, help="The same as --log-level info.")
@click.option(
    "--log-file",
    is_flag=False,
    flag_value="",
    metavar="[FILE]",
    help="Log to this file too; without FILE to logs/toolgate.log in the data directory.",
)
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="json: one line of JSON per record on stderr and in the log file, among them one for each call.",
)
@settings_options
def serve(
    settings: Settings,
    transports: tuple[str, ...],
    host: str,
    port: int,
    allow_remote: bool,
    log_level: str | None,
    verbose: bool,
    log_file: str | None,
    log_format: str,
) -> None:
    """Run the gateway.

    Over stdio it serves the client that started it; stdout carries the protocol only. Over HTTP it
    serves MCP's streamable HTTP at /mcp, by default on loopback.
    """
    refuse_http_options(click.get_current_context())
    level = log_level or ("info" if verbose else None)
    file = None if log_file is None else Path(log_file) if log_file else settings.data_dir / "logs" / "toolgate.log"
    terminal = sys.stderr.isatty() and "stdio" not in transports
    with _set_logging(level, file, terminal=terminal, as_json=log_format == "json"):
        options = {"use_uvloop": "http" in transports}
        anyio.run(partial(_serve, settings, transports, host, port, allow_remote), backend_options=options)


def refuse_http_options(context: click.Context) -> None:
    """Refuse options of `serve` that only HTTP takes where it is not served: they would do nothing."""
    if "http" in context.params["transports"]:
        return
    for name in ("host", "port", "allow_remote"):
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            option = f"--{name.replace('_', '-')}"
            raise click.UsageError(f"{option} is for HTTP, which is not served; add --transport http", context)


def _set_logging(
    level: str | None, file: Path | None, *, terminal: bool, as_json: bool
) -> AbstractContextManager[None]:
    """Log to stderr at this level, and to the file. By default a terminal shows events, too, and so does JSON."""
    logging.getLogger().setLevel("DEBUG" if level == "debug" else "WARNING")
    logging.getLogger("gateway").setLevel((level or "warning").upper())
    if not terminal and file is None and not as_json:
        return nullcontext()
    # Imported here: a start over stdio, which a person waits for, does not need it.
    from gateway.cli.logs import EVENTS, log_in_background

    for name in EVENTS if level is None else ():
        logging.getLogger(name).setLevel(logging.INFO)
    return log_in_background(file, terminal=terminal, warnings_only=level is None, as_json=as_json)


async def _serve(settings: Settings, transports: tuple[str, ...], host: str, port: int, allow_remote: bool) -> None:
    """Serve one gateway over the transports; the first to end ends the other."""
    async with Gateway.open(settings, follow=True) as gateway, anyio.create_task_group() as tasks:
        stop = anyio.Event()
        tasks.start_soon(_stop_on_signal, gateway, stop)
        flow = gateway.approval_flow
        flow.states.sealer.load_keys()  # refuse wrong keys at the start, not at the first question
        handlers = Handlers(
            gateway.executor,
            gateway.versions,
            gateway.chat,
            gateway.records,
            gateway.passthrough,
            flow,
            gateway.first_lists,
            gateway.builtins.end_chat,
        )
        gateway.watch_upstreams(handlers.upstreams_changed)
        server = McpServer(handlers)
        async with anyio.create_task_group() as serving:
            if "http" in transports:
                serving.start_soon(_serve_http_transport, gateway, server, host, port, allow_remote, stop)
            if "stdio" in transports:
                serving.start_soon(_serve_stdio_transport, gateway, server, stop)
        tasks.cancel_scope.cancel()
    if stop.is_set() and sys.stderr.isatty():
        _print("stopped")


async def _serve_stdio_transport(gateway: Gateway, server: McpServer, stop: anyio.Event) -> None:
    if sys.stdin.isatty():
        _print(WAITING)
    limit = gateway.settings.limits.request_bytes * MESSAGE_FACTOR
    await serve_stdio(server, limit, gateway.settings.server.shutdown_grace, stop)
    stop.set()  # the client has disconnected


async def _serve_http_transport(
    gateway: Gateway, server: McpServer, host: str, port: int, allow_remote: bool, stop: anyio.Event
) -> None:
    with exclude_from_gc():
        # Imported here: a start over stdio, which a person waits for, does not need it.
        from gateway.serve.http.app import bind, check_host, serve_http

    await check_host(host)
    identity = await _open_identity(gateway, host, allow_remote)
    listening = bind(host, port)
    address = f"[{host}]" if ":" in host else host
    port = listening.getsockname()[1]
    url = f"http://{address}:{port}"
    public_url = gateway.settings.server.public_url
    if public_url is not None or _is_loopback(host):
        gateway.approval_flow.pages_url = (public_url or url).rstrip("/")
    web = build_http_app(gateway, server, identity, url)

    async def drain() -> None:
        await gateway.drain()
        web.close()

    listening.listen(1024)
    _print_address(f"{url}/mcp", gateway, needs_key=identity.find(None) is None)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(identity.run, web.end_unauthenticated)
        await serve_http(web.app, web.fast_path, listening, stop, drain)
        tasks.cancel_scope.cancel()


def build_http_app(gateway: Gateway, server: McpServer, identity: Identity, url: str) -> HttpApp:
    """Return all that is served over HTTP at `url`: MCP, REST, the console, logins, health and metrics."""
    with exclude_from_gc():
        # Imported here, for the same reason.
        from gateway.serve.http.app import HttpApp, RequestGuard, metrics_route, parse_authority
        from gateway.serve.http.authorization import make_person_routes
        from gateway.serve.web.static import make_console_routes

    settings = gateway.settings.server
    limit = gateway.settings.limits.request_bytes * MESSAGE_FACTOR
    address = url.partition("://")[2].rpartition(":")[0]
    own = [address] if parse_authority(address) else []  # no client sends the zone of an address
    origins = list(settings.allowed_origins)
    if settings.public_url is not None:
        origins.append(settings.public_url.rstrip("/"))
        own.append(settings.public_url.rstrip("/").partition("://")[2])
    guard = RequestGuard(limit, [*settings.allowed_hosts, *own], origins, settings.trusted_proxies)
    routes, public = make_person_routes(gateway, identity, url)
    console, unguarded = make_console_routes(gateway, identity)
    if gateway.settings.telemetry.prometheus:
        routes.append(metrics_route(partial(_write_metrics, gateway), identity.roles))
    return HttpApp(
        server,
        gateway.check_parts,
        guard,
        identity,
        [*routes, *console],
        public | unguarded,
        settings.public_url,
        partial(_build_rest, gateway, limit),
        gateway.settings.auth.authorization_server,
    )


async def _open_identity(gateway: Gateway, host: str, allow_remote: bool) -> Identity:
    """Load the keys; refused where a request would need one and none exists."""
    identity = gateway.make_identity(anonymous=_is_loopback(host) or allow_remote)
    await identity.refresh()
    if not identity.can_authenticate:
        reason = "auth.required is set" if gateway.settings.auth.required else f"{host} is reachable by others"
        raise Forbidden(
            f"{reason} and there is no key yet; make one with: toolgate key create NAME, or name your identity "
            "provider under auth.jwt; --allow-remote is for a proxy in front of the gateway that authenticates",
            code="REMOTE_REFUSED",
        )
    return identity


async def _write_metrics(gateway: Gateway, accept: str) -> tuple[bytes, str]:
    # Imported by the first request: most gateways are never asked.
    from gateway.admin.metrics import write_metrics

    return await write_metrics(gateway, accept)


def _build_rest(gateway: Gateway, body_limit: int) -> RestApp:
    # Imported by the first request to REST: most gateways serve MCP only.
    from gateway.serve.rest.routes import build_rest_app

    return build_rest_app(gateway, body_limit)


async def _stop_on_signal(gateway: Gateway, stop: anyio.Event) -> None:
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for _ in signals:
            if stop.is_set():  # the second signal ends it at once
                raise KeyboardInterrupt
            if sys.stderr.isatty():
                _print(_describe_stop(gateway.running_tools, gateway.settings.server.shutdown_grace))
            stop.set()


def _describe_stop(running: Sequence[str], grace: float) -> str:
    if not running:
        return "stopping"
    names = [*dict.fromkeys(running)]
    shown = f"{', '.join(names[:3])}{', …' if len(names) > 3 else ''}"
    calls = "1 call" if len(running) == 1 else f"{len(running)} calls"
    return f"stopping: waits up to {grace:g} s for {calls} ({shown}); Ctrl-C again ends it now"


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


WAITING = """toolgate is waiting for an MCP client on stdin; a client normally starts it.
  add it to one     toolgate client install claude-desktop   (others: toolgate client list)
  see its tools     toolgate tool list
  call one          toolgate tool call write_file path=hello.txt content=hi
  serve over HTTP   toolgate serve --transport http
Press Ctrl-C to stop it."""


def _print_address(url: str, gateway: Gateway, needs_key: bool) -> None:
    _print(f"toolgate serves {len(gateway.catalog)} tools at {url}  (data in {gateway.settings.data_dir})")
    if needs_key:
        _print("\nEvery client needs a key (toolgate key create NAME), as the header  Authorization: Bearer tg_…")
    context = click.get_current_context(silent=True)  # None where a test serves without the command
    if context is not None and context.params.get("log_format") == "json":
        return  # the rest is for people
    every = make_snippets(serve_command(sys.executable), url)
    shown = [snippet for snippet in every if snippet.folder.is_dir()] or every[:4]
    for snippet in shown:
        text = json.dumps(snippet.config) if snippet.file.suffix == ".json" else snippet.text
        _print(f"\n{CLIENTS[snippet.client].title}, in {snippet.file}:\n{indent(text, '  ')}")
    others = ", ".join(snippet.client for snippet in every if snippet not in shown)
    if others:
        command = "toolgate" if shutil.which("toolgate") else shlex.join(serve_command(sys.executable)[:-1])
        _print(f"\nOther clients: {command} client install NAME --url {url}  ({others})")
    _print(f"\nThe console, in a browser: {url.removesuffix('mcp')}")
    workspace = gateway.settings.workspace
    if workspace is None:
        _print(f"\nFor a workspace of your choice that stays: {url}?chat=NAME\n\nPress Ctrl-C to stop it.")
    else:  # a chat of the URL would lead away from it
        _print(f"\nWorking in {workspace.absolute()}\n\nPress Ctrl-C to stop it.")


def _print(text: str) -> None:
    """Tell a person at the terminal. With `--log-format json`, the first line is a record of the log."""
    context = click.get_current_context(silent=True)
    if context is not None and context.params.get("log_format") == "json":
        logging.getLogger("gateway.clients").info("%s", text.strip().partition("\n")[0])
    else:
        click.echo(text, err=True)
