"""Options and output that several commands share."""

from __future__ import annotations

import functools
import json
import shlex
import shutil
import sys
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
import click
from click.core import ParameterSource

from gateway import config
from gateway.cli import exclude_from_gc
from gateway.config import Settings
from gateway.errors import Invalid
from gateway.names import SUFFIX_LENGTH
from gateway.text import visible_line

if TYPE_CHECKING:
    from gateway.cli.progress import ProgressLine
    from gateway.gateway import Gateway

Command = TypeVar("Command", bound=Callable[..., Any])
Result = TypeVar("Result")

# Common options that choose what a command works on.
_REPEATED = ("--config", "--data-dir", "--workspace", "--chat")

# Characters of a chat in a table.
_CHAT_CHARACTERS = 40

as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")


# The key of the context's `meta` that --quiet sets.
QUIET = "toolgate.quiet"


def _set_quiet(ctx: click.Context, _parameter: click.Parameter, value: bool) -> None:
    ctx.meta[QUIET] = value


def settings_options(command: Command) -> Command:
    """Add the options that choose settings, data directory, chat, profile and categories; the command receives the
    resulting `settings`."""
    options = (
        click.option("--config", "config_file", type=click.Path(path_type=Path), help="Settings file (toolgate.yaml)."),
        click.option("--data-dir", type=click.Path(path_type=Path, file_okay=False), help="The data directory."),
        click.option(
            "--workspace",
            type=click.Path(path_type=Path, file_okay=False, exists=True),
            help="An existing folder to work in, instead of the chat's own.",
        ),
        click.option("--chat", help="The chat for calls that do not name one."),
        click.option("--profile", help="A profile of the settings file."),
        click.option("--enable-tools/--no-enable-tools", default=None, help="All categories on, or all off."),
        click.option("--enable-tool-categories", metavar="A,B", help="Categories to turn on besides the default ones."),
        click.option(
            "--quiet", "-q", is_flag=True, expose_value=False, callback=_set_quiet, help="Do not print progress."
        ),
    )

    @functools.wraps(command)
    def with_settings(
        *arguments: Any,
        config_file: Path | None,
        data_dir: Path | None,
        workspace: Path | None,
        chat: str | None,
        profile: str | None,
        enable_tools: bool | None,
        enable_tool_categories: str | None,
        **others: Any,
    ) -> Any:
        given: dict[str, Any] = {"data_dir": data_dir, "workspace": workspace, "chat": chat, "profile": profile}
        overrides = {key: value for key, value in given.items() if value is not None}
        tools: dict[str, Any] = {}
        if enable_tools is not None:
            tools["enable"] = enable_tools
        if enable_tool_categories is not None:
            tools["enabled_categories"] = [name.strip() for name in enable_tool_categories.split(",") if name.strip()]
        overrides |= {"tools": tools} if tools else {}
        return command(*arguments, settings=_read_settings(config_file, overrides), **others)

    wrapped: Any = with_settings
    for option in reversed(options):
        wrapped = option(wrapped)
    return wrapped  # type: ignore[no-any-return]


def _read_settings(file: Path | None, overrides: dict[str, Any]) -> Settings:
    """Read the settings; on a terminal a file that came with a repository is asked about."""
    try:
        return config.read(file, overrides)
    except Invalid as refusal:
        # Imported here: `serve` over stdio asks nobody.
        from gateway.cli.prompt import can_ask

        found = refusal.details.get("file")
        if refusal.code != "UNTRUSTED_CONFIG" or found is None or not can_ask():
            raise
        click.echo(refusal.message, err=True)
        if not confirm(f"Trust {found} as it is now?"):
            raise
        config.trust(Path(found))
        return config.read(file, overrides)


def repeat_options() -> str:
    """Return the common options of the running command as they were given, for a command that it recommends."""
    context = click.get_current_context()
    words = [
        word
        for option in context.command.params
        if isinstance(option, click.Option) and option.opts[0] in _REPEATED
        if option.name and context.get_parameter_source(option.name) is ParameterSource.COMMANDLINE
        for word in (option.opts[0], str(context.params[option.name]))
    ]
    return f" {shlex.join(words)}" if words else ""


def run(task: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
    """Run an asynchronous command to its end."""
    return anyio.run(task)


def run_admin(settings: Settings, action: Callable[[Gateway], Awaitable[Result]], doing: str | None = None) -> Result:
    """Run an action on an open gateway that has started no upstream server. `doing` is shown if it takes long."""
    return run_shown(settings, lambda gateway, _: action(gateway), doing)


def run_stored(settings: Settings, action: Callable[[Gateway], Awaitable[Result]]) -> Result:
    """Run an action about what is stored. Toolsets that the settings name are not installed first either, so that
    nothing can delay it."""
    return run_admin(settings.model_copy(update={"toolsets": []}), action)


def run_shown(
    settings: Settings, action: Callable[[Gateway, ProgressLine], Awaitable[Result]], doing: str | None
) -> Result:
    """Run an action that reports its progress; without `doing` it is not shown."""
    with exclude_from_gc():
        # Imported here: `serve` needs the options, but shows no progress; `config show` opens no gateway.
        from gateway.cli.progress import show_progress
        from gateway.gateway import Gateway

    async def task() -> Result:
        async with show_progress(doing) as line, Gateway.open(settings, connect="none") as gateway:
            line.watch_files(gateway.versions.files_read)
            return await action(gateway, line)

    return run(task)


def confirm(question: str, *, default: bool = False, abort: bool = False) -> bool:
    """Ask a question of yes or no on stderr; with `abort`, a no ends the command."""
    hint = "Y/n" if default else "y/N"
    answer = bool(
        click.prompt(f"{question} [{hint}]", default=default, show_default=False, value_proc=_read_answer, err=True)
    )
    if abort and not answer:
        raise click.Abort
    return answer


def _read_answer(text: str | bool) -> bool:
    if isinstance(text, bool):  # the default
        return text
    answer = {"y": True, "yes": True, "n": False, "no": False}.get(text.strip().lower())
    if answer is None:
        raise click.UsageError("answer y or n")
    return answer


def short_id(identifier: str) -> str:
    """Return an id as a table shows it: its random end, since ids of one minute begin alike. Commands accept it."""
    return identifier[-SUFFIX_LENGTH:]


def short_time(moment: str) -> str:
    """Return a time of a record, which is in UTC, as a table shows it."""
    return moment[:19].replace("T", " ")


def name_chat(chat: str, folder: str | None) -> str:
    """Return a chat as a table shows it: by the end of the path of its folder, else by its id."""
    name = chat if folder is None else visible_line(folder)
    if len(name) <= _CHAT_CHARACTERS:
        return name
    return f"{name[: _CHAT_CHARACTERS - 1]}…" if folder is None else f"…{name[1 - _CHAT_CHARACTERS :]}"


def to_text(value: Any) -> str:
    """Return a value for a person: text as it is, anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def print_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2, ensure_ascii=False, default=str))


# Words of a state and their colours.
_COLORS = {
    **dict.fromkeys(("ok", "on", "ready", "success", "allowed", "accepted"), "green"),
    **dict.fromkeys(("warn", "waiting", "running", "pending", "held"), "yellow"),
    **dict.fromkeys(("fail", "error", "denied", "failed"), "red"),
}


def style_state(text: str) -> str:
    """Return a text in the colour of the state that its first word names, for terminals."""
    color = _COLORS.get(text.split(maxsplit=1)[0].rstrip(";,:") if text.strip() else "")
    return click.style(text, fg=color) if color else text


def summarize(description: str) -> str:
    """Return the first sentence of a description."""
    sentence, end, _ = " ".join(description.split("\n\n", 1)[0].split()).partition(". ")
    return sentence + end.strip()


def print_table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]], fit: bool = False) -> None:
    """Print columns as wide as their longest cell; the last one is not padded. States have colours on a terminal.
    With `fit`, lines that are wider than the terminal are shortened."""
    limit = shutil.get_terminal_size().columns if fit and sys.stdout.isatty() else 0
    widths = [*(max(len(row[column]) for row in [header, *rows]) for column in range(len(header) - 1)), 0]
    click.echo(click.style("  ".join(map(str.ljust, header, widths)).rstrip(), bold=True))
    states = {column for column, name in enumerate(header) if name in ("STATE", "STATUS", "OUTCOME")}
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        room = max(limit - len("  ".join(cells[:-1])) - 2, 20)
        if limit and len(cells[-1]) > room:
            cells[-1] = f"{cells[-1][: room - 1]}…"
        click.echo("  ".join(style_state(cell) if at in states else cell for at, cell in enumerate(cells)).rstrip())
    if not rows:
        click.echo("(none)", err=True)
