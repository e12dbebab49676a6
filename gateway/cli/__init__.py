"""The `toolgate` command. Each subcommand is a module of this package, imported only when it is called."""

from __future__ import annotations

import gc
import importlib
import logging
import os
import re
import shlex
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Any, NoReturn

import click

from gateway import __version__
from gateway.cli.help import COMMON_OPTIONS, HelpContext, choose_color, list_command_paths, prepare
from gateway.errors import GatewayError
from gateway.names import did_you_mean
from gateway.secrets import KNOWN, MaskingFormatter
from gateway.text import visible_line

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


# Objects of concurrent calls reach Python's own threshold of 700 every few calls, and hardly any is garbage.
GC_THRESHOLDS = (10_000, 10, 10)


@contextmanager
def exclude_from_gc() -> Iterator[None]:
    """Exclude everything allocated inside from garbage collection: modules stay, and scanning them would delay calls
    by up to 50 ms."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLDS)
        gc.enable()


class _Commands(click.Group):
    """Subcommands by name, imported on use: a client starts this program at every launch."""

    context_class = HelpContext

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            raise click.UsageError(f"there is no command {cmd_name!r}{did_you_mean(cmd_name, COMMANDS)}", ctx)
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
        _fail("USAGE", f"{_explain_usage(error)}{hint}", 2)
    except click.ClickException as error:
        _fail("USAGE", error.format_message(), error.exit_code)
    except GatewayError as error:
        message = _repeat_options(error.message, sys.argv[1:] if arguments is None else arguments)
        _fail(error.code, message, 1, error.details.get("problems", ())[1:], error.details.get("paste", ""))
    except (KeyboardInterrupt, click.Abort) as error:
        words = " ".join((sys.argv[1:] if arguments is None else arguments)[:2])
        if isinstance(error, KeyboardInterrupt) or isinstance(error.__cause__, KeyboardInterrupt):
            click.echo(f"interrupted{_INTERRUPTED.get(words, '')}", err=True)
        if threading.active_count() > 1:  # a thread that still reads an answer from the terminal would hold up the exit
            sys.stdout.flush()
            os._exit(130)
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
    """Return whether a command other than `serve` shows a log record, without its traceback. Problems with tools and
    servers it counts or prints itself, and `doctor` lists them."""
    if record.exc_info and not os.environ.get("TOOLGATE_DEBUG"):
        error = record.exc_info[1]
        text = f"{record.getMessage()}: {type(error).__name__}: {error} (set TOOLGATE_DEBUG=1 for the traceback)"
        record.msg, record.args, record.exc_info = text, (), None
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


def _reword_usage(message: str) -> str:
    """Click's message in our words, as one sentence without parentheses."""
    message = message.replace("is not a valid integer range", "is not a whole number")
    message = message.replace("is not a valid integer", "is not a whole number")
    message = re.sub("^No such (?=command|option)", "there is no ", message)
    near = re.search(r"[.?]? \(?Did you mean (?:one of: )?(.*)\?\)?$", message)
    if near is None:
        return message.removesuffix(".")
    word = message.partition("'")[2].partition("'")[0]
    names = sorted(near[1].split(", "), key=lambda name: -SequenceMatcher(None, word, name.strip("'")).ratio())
    *others, last = names
    return f"{message[: near.start()]}; did you mean {', '.join(others)}{' or ' if others else ''}{last}?"


# Options that choose what a command works on, and recommended commands that take them.
_REPEATED = ("--config", "--data-dir", "--workspace", "--chat")
_RECOMMENDED = re.compile(r": (toolgate (?!client|config|init)[a-z]+(?: [^;,()`\n]*[^;,()`\s.])?)")


def _repeat_options(message: str, arguments: Sequence[str]) -> str:
    """Add to the commands that a message recommends the options that chose the data of the command that failed."""
    words = [*arguments, "--"][: [*arguments, "--"].index("--")]
    given = [words[at : at + 1 + ("=" not in word)] for at, word in enumerate(words) if word.split("=")[0] in _REPEATED]
    options = "".join(f" {shlex.join(option)}" for option in given)
    return _RECOMMENDED.sub(lambda match: match[0] if " --" in match[1] else f"{match[0]}{options}", message)


# The effect of an interrupt, by command.
_INTERRUPTED = {
    "tool call": "; the call was cancelled",
    "upstream add": "; nothing was added",
}

# Words that people use for the same, those of our commands first.
_SYNONYMS = (
    ("remove", "uninstall", "revoke", "rm", "delete", "del"),
    ("new", "create", "add", "make"),
    ("call", "run", "exec", "invoke"),
    ("list", "ls"),
    ("show", "info", "get", "describe", "inspect"),
    ("log", "logs", "history"),
    ("enable", "on"),
    ("disable", "off"),
    ("doctor", "status", "health"),
)
_SUGGESTIONS = 4


def _explain_usage(error: click.UsageError) -> str:
    message, context = _reword_usage(error.format_message()), error.ctx
    if context is None or not isinstance(context.command, click.Group):
        return message
    if isinstance(error, click.NoSuchOption) and context.parent is None and error.option_name in COMMON_OPTIONS:
        return f"{error.option_name} stands after the command, as in: toolgate tool list {error.option_name} …"
    word = message.removeprefix("there is no command '").partition("'")[0]
    suggested = [repr(name) for name in _suggest(word, context.command, context)]
    if not suggested:
        return message
    *others, last = suggested
    return f"there is no command {word!r}; did you mean {', '.join(others)}{' or ' if others else ''}{last}?"


def _suggest(word: str, group: click.Group, context: click.Context) -> Sequence[str]:
    """Commands that do what a word says which is none of a group; for the whole program also those of its groups."""
    same = next((words for words in _SYNONYMS if word in words), (word,))
    if context.parent is not None:
        return [name for name in same if name in group.list_commands(context)][:1]
    if word == "version":
        return ["--version"]
    paths = list_command_paths()
    named = [path for path in paths if path.split()[-1] == word]
    return (named or [path for path in paths if path.split()[-1] in same])[:_SUGGESTIONS]


def _fail(code: str, message: str, status: int, further: Sequence[str] = (), paste: str = "") -> NoReturn:
    text = message.partition(paste)[0] if paste else message
    first = f"{click.style(f'toolgate: {code}:', fg='red')} {_to_line(text)}"
    for line in (first, *(f"  also: {_to_line(problem)}" for problem in further)):
        click.echo(line, err=True, color=choose_color())
    if paste:
        click.echo(KNOWN.mask(paste), err=True)
    sys.exit(status)


def _to_line(text: str) -> str:
    return visible_line(KNOWN.mask(text))
