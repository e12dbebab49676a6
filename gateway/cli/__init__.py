"""The `toolgate` command. Each subcommand is a module of this package, imported only when it is called."""

from __future__ import annotations

import gc
import importlib
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

import click

from gateway import __version__
from gateway.cli.help import HelpContext, choose_color, prepare
from gateway.errors import GatewayError
from gateway.names import did_you_mean
from gateway.secrets import KNOWN, MaskingFormatter

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

# Each command with its module in this package and its line in `--help`.
COMMANDS = {
    "init": ("init", "Set up: a settings file, your servers, your MCP clients."),
    "serve": ("serve", "Run the gateway, over stdio or HTTP."),
    "tool": ("tool", "List, show, call and switch tools."),
    "category": ("tool", "Turn categories of tools on and off, and change their level and limit."),
    "toolset": ("toolset", "Install, show, change and export toolsets."),
    "upstream": ("upstream", "Add other MCP servers, and review what they offer."),
    "workspace": ("workspace", "Show a chat's files and versions, and restore any version."),
    "approval": ("approval", "Decide on calls that wait for a person, and revoke earlier decisions."),
    "call": ("call", "Look at the record of tool calls."),
    "audit": ("audit", "Verify and export the tamper-evident log of calls."),
    "key": ("key", "Make, list and revoke keys for the gateway over HTTP."),
    "client": ("clients", "Add the gateway to the settings of an MCP client."),
    "config": ("config", "Show and check the settings."),
    "doctor": ("doctor", "Check what works on this machine and how to fix the rest."),
    "completion": ("completion", "Print the completion script of your shell."),
    "help": ("help", "Show the help of a command."),
}


@contextmanager
def exclude_from_gc() -> Iterator[None]:
    """Exclude everything allocated inside from garbage collection: modules stay, and scanning them would delay calls
    by up to 50 ms."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


class _Commands(click.Group):
    """Subcommands by name, imported on use: a client starts this program at every launch."""

    context_class = HelpContext

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            hint = did_you_mean(cmd_name, COMMANDS) or f"; there are {', '.join(COMMANDS)}"
            raise click.UsageError(f"there is no command {cmd_name!r}{hint}", ctx)
        with exclude_from_gc():
            module = importlib.import_module(f".{COMMANDS[cmd_name][0]}", __package__)
        command = getattr(module, cmd_name)
        assert isinstance(command, click.Command)  # noqa: S101 - the table above is ours
        if "_TOOLGATE_COMPLETE" in os.environ:
            importlib.import_module(".completion", __package__).attach(command)
        return prepare(command)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        item = importlib.import_module("click.shell_completion").CompletionItem
        names = [item(name, help=text) for name, (_, text) in COMMANDS.items() if name.startswith(incomplete)]
        return names or click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "color": choose_color()})
@click.version_option(__version__, "-V", "--version", prog_name="toolgate")
def toolgate() -> None:
    """One MCP server in front of every tool you have."""


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command. Exit 0 on success, 1 on a refusal, 2 on wrong usage. An error is a line on stderr, and one more
    for each further problem of the same file."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(MaskingFormatter("toolgate: %(levelname)s: %(message)s"))
    if (sys.argv[1:] if arguments is None else arguments)[:1] != ["serve"]:
        handler.addFilter(_is_shown)
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    try:
        status = _run(arguments)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        sys.exit(2)
    except click.UsageError as error:
        hint = f" (see '{error.ctx.command_path} --help')" if error.ctx else ""
        _fail("USAGE", f"{error.format_message()}{hint}", 2)
    except click.ClickException as error:
        _fail("USAGE", error.format_message(), error.exit_code)
    except GatewayError as error:
        _fail(error.code, error.message, 1, error.details.get("problems", ())[1:])
    except (KeyboardInterrupt, click.Abort):
        sys.exit(130)
    except BrokenPipeError:  # the reader has closed our output
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(0)
    except Exception as error:
        if os.environ.get("TOOLGATE_DEBUG"):
            raise
        _fail("INTERNAL", f"{type(error).__name__}: {error} (set TOOLGATE_DEBUG=1 for the traceback)", 1)
    sys.exit(status if isinstance(status, int) else 0)


def _is_shown(record: logging.LogRecord) -> bool:
    """Return whether a command other than `serve` shows a log record. Problems with tools and servers it counts or
    prints itself, and `doctor` lists them."""
    is_upstream = record.name.startswith("gateway.sources.upstreams") and record.levelno < logging.ERROR
    return record.name != "gateway.problems" and not is_upstream


def _run(arguments: list[str] | None) -> Any:
    """Run the command and return its value; of a group of errors, raise the first."""
    try:
        return toolgate.main(args=arguments, prog_name="toolgate", standalone_mode=False)
    except BaseExceptionGroup as group:
        first: BaseException = group
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        raise first from None


def _fail(code: str, message: str, status: int, further: Sequence[str] = ()) -> NoReturn:
    first = f"{click.style(f'toolgate: {code}:', fg='red')} {_to_line(message)}"
    for line in (first, *(f"  also: {_to_line(problem)}" for problem in further)):
        click.echo(line, err=True, color=choose_color())
    sys.exit(status)


def _to_line(text: str) -> str:
    return " ".join(KNOWN.mask(text).split())
