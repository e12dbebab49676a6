"""Help pages: examples, common options in a section of their own, colours on a terminal; and `toolgate help`."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import click

from gateway.names import did_you_mean

# One example per line, for every command; a test runs each through the parser.
_EXAMPLES = Path(__file__).with_name("examples.txt")
# Examples on the page of a group: the first ones of its commands.
_GROUP_EXAMPLES = 5

# Commands of the program that are no groups.
_WITHOUT_COMMANDS = frozenset({"init", "serve", "doctor", "completion", "help"})

# The options of nearly every command, by their first name.
COMMON_OPTIONS = frozenset(
    {
        "--config",
        "--data-dir",
        "--workspace",
        "--chat",
        "--profile",
        "--enable-tools",
        "--enable-tool-categories",
        "--quiet",
        "--help",
    }
)


def choose_color() -> bool | None:
    """Return False for no colours (https://no-color.org), None for colours on a terminal only."""
    return False if os.environ.get("NO_COLOR") else None


def prepare(command: click.Command) -> click.Command:
    """Give a command and all below it pages of this module."""
    command.context_class = HelpContext
    command.short_help = command.get_short_help_str(limit=300)  # whole, in the list of its group
    for inner in command.commands.values() if isinstance(command, click.Group) else ():
        prepare(inner)
    return command


class HelpContext(click.Context):
    """A context whose help is a page with sections: options, commands, examples, common options."""

    def get_help(self) -> str:
        page = _Page(width=self.terminal_width, max_width=self.max_content_width or 100)
        self.command.format_usage(self, page)
        self.command.format_help_text(self, page)
        options = [parameter for parameter in self.command.get_params(self) if isinstance(parameter, click.Option)]
        page.write_options(self, "Options", [option for option in options if not _is_common(option)])
        if isinstance(self.command, click.Group):
            self.command.format_commands(self, page)
        page.write_examples(find_examples(self.command_path, group=isinstance(self.command, click.Group)))
        page.write_options(self, "Common options", [option for option in options if _is_common(option)])
        return page.getvalue().rstrip("\n")


def find_examples(command_path: str, *, group: bool) -> list[str]:
    """Return the examples of a command; of a group, the first of each command in it."""
    lines = [line for line in _read_examples() if f"{line} ".startswith(f"{command_path} ")]
    if not group:
        return lines
    depth = len(command_path.split()) + 1
    first = {tuple(line.split()[:depth]): line for line in reversed(lines)}
    return list(reversed(first.values()))[:_GROUP_EXAMPLES]


def list_command_paths() -> list[str]:
    """Return every command without `toolgate`, such as `upstream add`: each has an example."""
    words = (line.split()[1:] for line in _read_examples())
    return list(dict.fromkeys(" ".join(each[: 1 if each[0] in _WITHOUT_COMMANDS else 2]) for each in words))


@functools.cache
def _read_examples() -> Sequence[str]:
    return [line for line in _EXAMPLES.read_text().splitlines() if line.startswith("toolgate ")]


def _is_common(option: click.Option) -> bool:
    return not COMMON_OPTIONS.isdisjoint(option.opts)


class _Page(click.HelpFormatter):
    """A formatter with styled headings and names. The styles are removed where output is no terminal."""

    def write_usage(self, prog: str, args: str = "", prefix: str | None = None) -> None:
        super().write_usage(prog, args, prefix or f"{click.style('Usage:', bold=True)} ")

    def write_heading(self, heading: str) -> None:
        self.write(f"{click.style(f'{heading}:', bold=True)}\n")

    def write_dl(self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        super().write_dl([(click.style(name, fg="cyan"), text) for name, text in rows], col_max, col_spacing)

    def write_options(self, context: click.Context, heading: str, options: Iterable[click.Option]) -> None:
        records = [record for option in options if (record := option.get_help_record(context)) is not None]
        if records:
            with self.section(heading):
                self.write_dl(records)

    def write_examples(self, lines: Sequence[str]) -> None:
        if lines:
            with self.section("Examples"):
                for line in lines:
                    command, mark, comment = line.partition("  # ")
                    self.write(f"  {command}{click.style(mark + comment, dim=True) if mark else ''}\n")


@click.command()
@click.argument("words", nargs=-1, metavar="[COMMAND]...")
@click.pass_context
def help(context: click.Context, words: tuple[str, ...]) -> None:  # noqa: A001 - its name on the command line
    """Show the help of a command, as `--help` after it does."""
    assert context.parent is not None  # noqa: S101 - it is a command of `toolgate`
    shown = context.parent
    for word in words:
        group = shown.command
        inner = group.get_command(shown, word) if isinstance(group, click.Group) else None
        if inner is None:
            known = group.list_commands(shown) if isinstance(group, click.Group) else ()
            raise click.UsageError(f"there is no command {word!r}{did_you_mean(word, known)}", shown)
        shown = inner.context_class(inner, info_name=word, parent=shown)
    click.echo(shown.get_help())
