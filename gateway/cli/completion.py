"""`toolgate completion`: completion of commands, options and known names in bash, zsh and fish."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem, get_completion_class

from gateway import config
from gateway.admin.completions import Kind, find_known
from gateway.errors import GatewayError

_SHELLS = ("bash", "zsh", "fish")

# Parameters by name, and `name` by the group of its command.
_KINDS: dict[str, Kind] = {
    "toolset_id": "toolset",
    "tool_id": "toolset tool",
    "tool": "tool",
    "server": "server",
    "category": "category",
    "category_id": "category",
    "profile": "profile",
    "chat": "chat",
    "of_chat": "chat",
    "manifest": "version",
    "from_": "version",
    "to": "version",
    "call_id": "call",
    "approval_id": "approval",
    "remembered_id": "decision",
}
_NAMES: dict[str, Kind] = {"tool": "tool", "upstream": "server"}
# Commands whose `name` is a new one.
_NEW = ("add",)


@click.command()
@click.argument("shell", type=click.Choice(_SHELLS))
def completion(shell: str) -> None:
    """Print the completion script of a shell. It completes commands, options, and the names of tools, toolsets,
    servers, chats, versions and calls.

    \b
    bash: eval "$(toolgate completion bash)" in ~/.bashrc
    zsh:  eval "$(toolgate completion zsh)" in ~/.zshrc, after compinit
    fish: toolgate completion fish > ~/.config/fish/completions/toolgate.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None  # noqa: S101 - click has the three
    script = kind.source_template % kind(click.Group(), {}, "toolgate", "_TOOLGATE_COMPLETE").source_vars()
    click.echo(script.strip())


def attach(command: click.Command, group: str = "") -> None:
    """Make the parameters of a command, and of all below it, complete known names."""
    for parameter in command.params:
        name = parameter.name or ""
        kind = _NAMES.get(group) if name == "name" and command.name not in _NEW else _KINDS.get(name)
        if kind is not None and isinstance(parameter.type, type(click.STRING)):
            parameter.type = KnownName(kind)
    for inner in command.commands.values() if isinstance(command, click.Group) else ():
        attach(inner, command.name or "")


class KnownName(click.ParamType[str]):
    """The name or id of something that the gateway knows; any other text is accepted too."""

    name = "text"

    def __init__(self, kind: Kind) -> None:
        self._kind = kind

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        given = {key: ctx.params[key] for key in ("data_dir", "workspace", "chat") if ctx.params.get(key) is not None}
        try:
            settings = config.read(ctx.params.get("config_file"), given)
        except GatewayError:  # reported by the command itself
            return []
        known = find_known(settings, self._kind)
        return [CompletionItem(name, help=text) for name, text in known if name.startswith(incomplete)]
