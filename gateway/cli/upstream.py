"""`toolgate upstream`: other MCP servers behind this one, added, tested and reviewed."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click

from gateway.admin import upstream_review, upstreams
from gateway.admin.upstream_import import ImportResult, find_servers, import_servers, list_secrets, secrets_file
from gateway.admin.upstream_review import ReviewItem
from gateway.admin.upstream_setup import ProbeResult, ToolStatus
from gateway.admin.upstreams import UpstreamInfo
from gateway.cli.browser import open_url
from gateway.cli.options import (
    as_json,
    confirm,
    print_json,
    print_table,
    repeat_options,
    run_shown,
    run_stored,
    settings_options,
    summarize,
)
from gateway.cli.prompt import read_secret
from gateway.cli.upstream_package import (
    is_package,
    package_options,
    plan_package,
    prefer_given,
    print_plan,
    sandbox_settings,
    search,
    server_settings,
)
from gateway.config import Settings
from gateway.errors import GatewayError, InputRequired
from gateway.text import visible

# The name of the decider in the record of a decision.
_BY = "cli"
_MOST_FINDINGS = 10


class _TrailingCommand(click.Command):
    """A command that keeps everything after `--` as the program to start, and its arguments."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        cut = args.index("--") if "--" in args else len(args)
        try:
            rest = super().parse_args(ctx, args[:cut])
        except click.UsageError as error:
            words = [text for text in args[:2] if not text.startswith("-")]
            is_option = isinstance(error, click.NoSuchOption) and len(words) == 2  # of the program
            if cut < len(args) or not (is_option or "unexpected extra argument" in error.format_message()):
                raise
            url = next((text for text in args if text.startswith(("http://", "https://"))), None)
            if url is not None and "--url" not in args:
                advice = f"a URL stands after --url, as in: toolgate upstream add docs --url {url}"
                raise click.UsageError(advice, ctx) from None
            raise click.UsageError(
                "the program to start stands after `--`, as in: toolgate upstream add time -- uvx mcp-server-time", ctx
            ) from None
        ctx.params["command"] = tuple(args[cut + 1 :])
        return rest

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "[-- COMMAND ARGUMENTS...]"]


@click.group()
def upstream() -> None:
    """Add other MCP servers, and review what they offer."""


@upstream.command(cls=_TrailingCommand)
@click.argument("name", required=False, metavar="[NAME|FILE.mcpb]")
@package_options
@click.option("--url", help="The URL of a server that already runs.")
@click.option("--header", "headers", multiple=True, metavar="NAME=VALUE", help="A header of every request to it.")
@click.option("--env", multiple=True, metavar="NAME=VALUE", help="A variable of the program's environment.")
@click.option("--cwd", help="The folder the program starts in.")
@click.option("--transport", type=click.Choice(["stdio", "http", "sse"]), help="Only needed for 'sse'.")
@click.option("--prefix", help="Prefix of its tools' names instead of the server's name; '' for none.")
@click.option("--category", help="The category its tools belong to; by default 'upstream'.")
@click.option("--trusted", is_flag=True, help="Trust its annotations, such as that a tool only reads.")
@click.option("--lazy/--eager", default=None, help="Connect when a tool is called, or when the gateway starts.")
@click.option(
    "--sharing", type=click.Choice(["principal", "chat", "all"]), help="Who shares one connection to the server."
)
@click.option(
    "--protocol",
    type=click.Choice(["auto", "modern", "handshake"]),
    help="Speak to it as each client does, by 2026-07-28, or by 2025-11-25 and older.",
)
@click.option(
    "--pinning",
    type=click.Choice(["trust", "hold", "off"]),
    help="Trust its first definitions, hold them for review, or do not pin any.",
)
@click.option(
    "--sandbox/--no-sandbox",
    default=None,
    help="Start the program in the sandbox, without access to your files or the network; packages by default.",
)
@click.option(
    "--sandbox-path",
    "paths",
    multiple=True,
    metavar="PATH[:rw]",
    help="A path that it may read in the sandbox, or write with ':rw'.",
)
@click.option(
    "--sandbox-host", "hosts", multiple=True, metavar="HOST", help="A host that it may reach from the sandbox by HTTP."
)
@click.option("--no-test", is_flag=True, help="Do not connect to it now.")
@as_json
@settings_options
def add(settings: Settings, name: str | None, no_test: bool, as_json: bool, **options: Any) -> None:
    """Add a server: a program to start, after `--`, a URL to connect to, an .mcpb file, or with --from a server of the
    registry."""
    secrets: Mapping[str, str] = {}
    if is_package(name, options):
        plan, secrets = plan_package(settings, name, options, sandbox_settings(options))
        if options["dry_run"]:
            print_plan(plan, as_json=as_json)
            return
        name, server = plan.name, dict(plan.settings)
    elif name is None:
        raise click.UsageError("name the server, as in: toolgate upstream add time -- uvx mcp-server-time")
    else:
        server = server_settings(options)
    added = name
    ask_secret = partial(read_secret, owner=added) if sys.stdin.isatty() else None
    result = run_shown(
        settings.model_copy(update={"toolsets": []}),
        lambda gateway, line: upstreams.add_upstream(
            gateway, added, server, test=not no_test, ask_secret=prefer_given(secrets, ask_secret), step=line.step
        ),
        f"adding {name}",
    )
    if as_json:
        print_json({"name": name, "settings": server, "answer": result and result.to_dict()})
        return
    if isinstance(result, GatewayError):
        click.echo(f"{name} is added; it requires a login; run: toolgate upstream login {name}")
        return
    starts = f"; it starts in {server['cwd']}" if "cwd" in server and options["cwd"] is None else ""
    click.echo(f"{name} is added{starts}" + ("" if result else f"; try it with: toolgate upstream test {name}"))
    if result:
        _print_probe(result)


upstream.add_command(search)


@upstream.command("list")
@as_json
@settings_options
def list_upstreams(settings: Settings, as_json: bool) -> None:
    """Every server, as it was when it last answered; `test` connects now."""
    servers = run_stored(settings, upstreams.list_upstreams)
    if as_json:
        print_json([server.to_dict() for server in servers])
        return
    rows = [
        (
            server.name,
            server.state,
            server.era or "-",
            _count_offered(server.tools),
            server.sandbox,
            _describe_origin(server),
            "" if server.state == "off" else visible(server.error or ""),
        )
        for server in servers
    ]
    print_table(("NAME", "STATE", "PROTOCOL", "TOOLS", "SANDBOX", "ORIGIN", "ERROR"), rows)
    if not servers:
        hint = "add one with: toolgate upstream add NAME -- COMMAND; or your clients' with: toolgate upstream import"
        click.echo(f"{hint}{repeat_options()}", err=True)


@upstream.command()
@click.argument("name")
@as_json
@settings_options
def show(settings: Settings, name: str, as_json: bool) -> None:
    """One server: its settings, and its tools when it last answered."""
    details = run_stored(settings, lambda gateway: upstreams.show_upstream(gateway, name))
    if as_json:
        print_json(details.to_dict())
        return
    info = details.info
    answered = (info.seen_at or "")[:19].replace("T", " ")
    known: dict[str, Any] = {"name": info.name, "state": info.state, "origin": _describe_origin(info)}
    known |= {"sandbox": info.sandbox, "speaks": info.era, "answered": answered}
    known |= {"error": info.error if info.state != "off" else None}
    for key, value in (known | _describe_settings(details.settings)).items():
        if value:
            click.echo(f"{key:10} {visible(str(value))}")
    for key, names, note in (
        ("secrets", details.secrets, "stored, never shown"),
        ("missing", info.missing, "not set"),
    ):
        if names:
            click.echo(f"{key:10} {', '.join(names)} ({note})")
    if info.tools:
        click.echo("")
        _print_tools(info.tools)


@upstream.command()
@click.argument("name", required=False)
@as_json
@settings_options
def test(settings: Settings, name: str | None, as_json: bool) -> int:
    """Connect to a server now and list what it has, or to every one that is on. Exit 1 when one does not answer."""
    results = run_shown(
        settings.model_copy(update={"toolsets": []}),
        lambda gateway, line: upstreams.probe_upstreams(gateway, name, line.step),
        "connecting",
    )
    failed = [result for _, result in results if isinstance(result, GatewayError)]
    if as_json:
        shapes = [_probe_dict(server, result) for server, result in results]
        print_json(shapes[0] if name else shapes)
        return int(bool(failed))
    if name and failed:
        raise failed[0]
    for server, result in results:
        if isinstance(result, GatewayError):
            click.echo(result.message)
        else:
            click.echo(f"{server} answers")
            _print_probe(result)
    return int(bool(failed))


@upstream.command()
@click.argument("name")
@settings_options
def enable(settings: Settings, name: str) -> None:
    """Offer a server's tools again."""
    _switch(settings, name, True)


@upstream.command()
@click.argument("name")
@settings_options
def disable(settings: Settings, name: str) -> None:
    """Turn a server off. It stays configured, but is not connected."""
    _switch(settings, name, False)


@upstream.command()
@click.argument("name")
@settings_options
def restart(settings: Settings, name: str) -> None:
    """End a server's program or connections and start it again, in every gateway that runs."""
    run_stored(settings, lambda gateway: upstreams.restart_upstream(gateway, name))
    click.echo(f"every running gateway restarts {name} within a second; see: toolgate upstream logs {name}")


@upstream.command()
@click.argument("name")
@click.option("-f", "--follow", is_flag=True, help="Go on printing what is added, until Ctrl-C.")
@click.option("-n", "--lines", type=click.IntRange(0), default=50, show_default=True, help="Lines to begin with.")
@settings_options
def logs(settings: Settings, name: str, follow: bool, lines: int) -> None:
    """Print what a server's program wrote to stderr, and when it was started and ended."""
    path = run_stored(settings, lambda gateway: upstreams.find_log(gateway, name))
    kept = upstreams.read_log(path, lines) if lines else []
    if not kept and not follow:
        click.echo(f"{name} was not started yet; start it with: toolgate upstream test {name}", err=True)
    for line in kept:
        click.echo(line)
    for line in upstreams.follow_log(path) if follow else ():
        click.echo(line)


@upstream.command()
@click.argument("name")
@settings_options
def remove(settings: Settings, name: str) -> None:
    """Remove a server that was added by hand, with its secrets, its folder and its accepted definitions."""
    run_stored(settings, lambda gateway: upstreams.remove_upstream(gateway, name))
    click.echo(f"{name} is removed")


@upstream.command()
@click.argument("name")
@click.argument("variable")
@click.option("--forget", is_flag=True, help="Delete the stored value instead.")
@settings_options
def secret(settings: Settings, name: str, variable: str, forget: bool) -> None:
    """Store the value of a ${VARIABLE} for one server that was added by hand. The value is asked for here, or read from
    the standard input, and used from the next connection on."""
    if forget:
        run_stored(settings, lambda gateway: upstreams.forget_secret(gateway, name, variable))
    else:
        run_stored(
            settings, lambda gateway: upstreams.keep_secret(gateway, name, variable, partial(read_secret, owner=name))
        )
    click.echo(f"{variable} is {'deleted' if forget else 'stored'} for {name}")


@upstream.command()
@click.argument("name")
@click.option("--scope", "scopes", multiple=True, help="Request this scope too, besides those you have.")
@click.option("--no-browser", is_flag=True, help="Print the address only; open it in a browser on this machine.")
@click.option("--port", type=click.IntRange(1, 65535), help="The port of the redirect URI; by default a free one.")
@as_json
@settings_options
def login(
    settings: Settings, name: str, scopes: tuple[str, ...], no_browser: bool, port: int | None, as_json: bool
) -> int:
    """Log in to a server in your browser. Gateways, running ones too, then use this login."""

    def show_url(url: str) -> None:
        click.echo(f"Sign in to {name} here, within five minutes:\n\n  {url}\n", err=True)
        if not no_browser:
            open_url(url)

    result = run_stored(
        settings, lambda gateway: upstreams.log_in(gateway, name, show_url, scopes=scopes, port=port or 0)
    )
    if as_json:
        print_json(result.to_dict())
    else:
        click.echo(f"you are logged in to {name}" + (f", with the scopes: {result.scope}" if result.scope else ""))
        if isinstance(result.probe, GatewayError):
            click.echo(result.probe.message)
        else:
            _print_probe(result.probe)
    return int(isinstance(result.probe, GatewayError))


@upstream.command()
@click.argument("name")
@settings_options
def logout(settings: Settings, name: str) -> None:
    """Delete the login to a server, and revoke its tokens if the server supports that."""
    revoked = run_stored(settings, lambda gateway: upstreams.log_out(gateway, name))
    click.echo(f"you are logged out of {name}" + ("" if revoked else "; its tokens were deleted here, but not revoked"))


@upstream.command("import")
@click.argument("file", required=False, type=click.Path(path_type=Path, dir_okay=False))
@click.option("--name", "names", multiple=True, help="Only the server of this name; may be given several times.")
@click.option("--replace", is_flag=True, help="Replace servers of the same names that were added by hand.")
@click.option(
    "--keep/--no-keep",
    default=None,
    help="Store the file's secrets for these servers, or none. The default is to ask on a terminal, else none.",
)
@click.option("--dry-run", is_flag=True, help="Print what would be done, and do nothing.")
@as_json
@settings_options
def import_file(
    settings: Settings,
    file: Path | None,
    names: tuple[str, ...],
    replace: bool,
    keep: bool | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Import the servers of another client's settings FILE, or of every client found on this machine.

    Secrets written out there are not stored with the servers: each becomes a ${VARIABLE} to set in the environment.
    With --keep its value is stored in a file that only you can read, for that server only.
    """
    found = find_servers(file, settings.workspace, names)
    run_import = partial(import_servers, found=found, replace=replace)
    keeps = bool(keep)
    if keep is None and not dry_run and sys.stdin.isatty():
        planned = run_stored(settings, partial(run_import, keep=False, dry_run=True))
        keeps = _ask_keep(list_secrets(planned), settings)
    results = run_stored(settings, partial(run_import, keep=keeps, dry_run=dry_run))
    if as_json:
        print_json([result.to_dict() for result in results])
        return
    rows = [
        # A file that cannot be read has no names.
        (
            "-" if result.name == Path(result.file).name else visible(result.name),
            result.outcome,
            result.file,
            visible(result.reason),
        )
        for result in results
    ]
    print_table(("NAME", "OUTCOME", "FROM", "WHY"), rows)
    for line in _import_hints(results, settings, keep=keeps, dry_run=dry_run):
        click.echo(line)


@upstream.command()
@click.argument("name", required=False)
@as_json
@settings_options
def review(settings: Settings, name: str | None, as_json: bool) -> None:
    """Show the definitions that wait for review, of one server or of all, with changes and findings."""
    items = run_stored(settings, lambda gateway: upstream_review.list_waiting(gateway, name))
    if as_json:
        print_json([item.to_dict() for item in items])
        return
    for item in items:
        _print_item(item)
    if not items:
        click.echo("nothing to review")
    for server in dict.fromkeys(item.server for item in items):
        subjects = [shlex.quote(visible(item.exact_subject)) for item in items if item.server == server]
        click.echo(f"toolgate upstream accept {server} {' '.join(subjects)}")


def _decision_options(command: Callable[..., None]) -> Callable[..., None]:
    """Options of the two commands that decide."""
    for option in (
        settings_options,
        as_json,
        click.option("--yes", is_flag=True, help="Do not ask."),
        click.option("--all", "everything", is_flag=True, help="All definitions of this server that wait."),
        click.argument("subjects", nargs=-1, metavar="[KIND:NAME[@DIGEST]]..."),
        click.argument("server"),
    ):
        command = option(command)
    return command


@upstream.command()
@_decision_options
def accept(settings: Settings, **options: Any) -> None:
    """Offer definitions as they are now. With the @DIGEST that `review` prints, exactly what was shown there;
    without, what is shown here, once you agree."""
    _decide(settings, "accept", **options)


@upstream.command()
@_decision_options
def reject(settings: Settings, **options: Any) -> None:
    """Withhold definitions until someone accepts them, also ones that were accepted before."""
    _decide(settings, "reject", **options)


def _decide(
    settings: Settings,
    verb: str,
    server: str,
    subjects: tuple[str, ...],
    everything: bool,
    yes: bool,
    as_json: bool,
) -> None:
    if everything == bool(subjects):
        raise click.UsageError("name what to decide on as KIND:NAME, or use --all")
    if verb == "reject":
        items = run_stored(settings, lambda gateway: upstream_review.reject(gateway, server, subjects, _BY))
    else:
        confirm = partial(_confirm, yes=yes)
        items = run_stored(settings, lambda gateway: upstream_review.accept(gateway, server, subjects, _BY, confirm))
    if as_json:
        pins = [(item.texts.pin, item.digest) for item in items]
        print_json([{"kind": pin.kind, "name": pin.name, "digest": digest} for pin, digest in pins])
        return
    for item in items:
        click.echo(f"{server}: {visible(item.subject)} is {verb}ed")
    if not items:
        click.echo("nothing to review")


def _confirm(items: Sequence[ReviewItem], yes: bool) -> None:
    """Show what is about to be accepted and ask; aborts unless the person agrees."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise InputRequired(
            "nobody has reviewed it: add the @DIGEST that `toolgate upstream review` prints, or use --yes"
        )
    for item in items:
        _print_item(item)
    confirm(f"Accept {'this' if len(items) == 1 else f'these {len(items)}'}?", abort=True)


def _switch(settings: Settings, name: str, enabled: bool) -> None:
    run_stored(settings, lambda gateway: upstreams.enable_upstream(gateway, name, enabled))
    click.echo(f"{name} is {'on' if enabled else 'off'}")


def _print_probe(result: ProbeResult) -> None:
    click.echo(
        f"{result.title or 'a server without a name'}, protocol {result.era}; connected in {result.connect_ms:.0f} ms, "
        f"listed in {result.list_ms:.0f} ms\n"
    )
    _print_tools(result.tools)
    findings = [(key, finding) for key, findings in result.findings.items() for finding in findings]
    for key, finding in findings[:_MOST_FINDINGS]:
        place = f"{key.kind.value} {visible(key.name)}{finding.where}"
        click.echo(f"suspicious ({finding.severity.value}): {place}: {finding.what}: {finding.excerpt}")
    if len(findings) > _MOST_FINDINGS:
        click.echo(f"… and {len(findings) - _MOST_FINDINGS} more that are suspicious (--json shows all)")
    for problem in result.problems:
        click.echo(f"note: {problem}")
    if result.waiting:
        click.echo(f"{result.waiting} waiting for review; see: toolgate upstream review {result.name}")


def _print_tools(tools: Sequence[ToolStatus]) -> None:
    rows = [(visible(tool.name), tool.state, tool.tool.permission.value, _first_line(tool)) for tool in tools]
    print_table(("TOOL", "STATE", "LEVEL", "DESCRIPTION"), rows, fit=not any(tool.reason for tool in tools))


def _describe_origin(server: UpstreamInfo) -> str:
    return "added" if server.is_added else server.origin  # by `add` or `import`


def _describe_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a server as somebody would type them; the sandbox is described elsewhere."""
    shown = {key: value for key, value in settings.items() if key not in ("sandbox", "args")}
    if "command" in shown:
        shown["command"] = [shown["command"], *settings.get("args", ())]
    for key, value in shown.items():
        if isinstance(value, dict) and not any(isinstance(inner, dict | list) for inner in value.values()):
            value = [f"{name}={inner}" for name, inner in value.items()]
        if isinstance(value, list):
            shown[key] = shlex.join(map(str, value))
        elif isinstance(value, bool):
            shown[key] = "yes" if value else "no"
    return shown


def _first_line(status: ToolStatus) -> str:
    return visible(str(status.reason or summarize(status.tool.description)).split("\n")[0])


def _count_offered(tools: Sequence[ToolStatus]) -> str:
    offered = sum(tool.state == "offered" for tool in tools)
    return str(offered) if offered == len(tools) else f"{offered} of {len(tools)}"


def _probe_dict(name: str, result: ProbeResult | GatewayError) -> dict[str, Any]:
    if isinstance(result, GatewayError):
        return {"ok": False, "name": name, "error": result.to_dict()}
    return {"ok": True, **result.to_dict()}


def _ask_keep(secrets: Sequence[str], settings: Settings) -> bool:
    """Ask whether to keep secrets, if there are any."""
    return bool(secrets) and confirm(
        f"The client's file holds {', '.join(secrets)}. Store it in {secrets_file(settings)}, which only you can read?"
    )


def _import_hints(results: Sequence[ImportResult], settings: Settings, keep: bool, dry_run: bool) -> Iterator[str]:
    """Lines about kept secrets and what is still to be done; names of variables, never values."""
    imported = [result for result in results if result.settings is not None]
    kept = [f"{result.name}: {', '.join(result.variables)}" for result in imported if result.variables]
    if keep and kept:
        file = secrets_file(settings)
        yield f"\n{'would be stored' if dry_run else 'stored'} in {file}, which only you can read:"
        yield from (f"  {line}" for line in kept)
    missing = [(result, variable) for result in imported for variable in result.missing]
    if missing:
        yield "\nnot set yet; set them in the gateway's environment, import with --keep, or store each for its server:"
    for result, variable in missing:
        question = (result.questions or {}).get(variable)
        comment = f"   # {visible(' '.join(question.split()))}" if question else ""
        yield f"  toolgate upstream secret {result.name} {variable}{comment}"
    if imported and not dry_run:
        yield "\ntest them with: toolgate upstream test; then remove them from the client, or their tools appear twice"


def _print_item(item: ReviewItem) -> None:
    change = "is new" if item.is_new else "differs from the accepted definition"
    click.echo(f"{item.server}: {visible(item.exact_subject)} {change}")
    for finding in item.findings:
        place = finding.where or "/"
        click.echo(f"  suspicious ({finding.severity.value}) at {place}: {finding.what}: {finding.excerpt}")
    click.echo(item.difference)
