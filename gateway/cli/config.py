"""`toolgate config`: the settings that apply, where each comes from, and whether the file is right."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gateway import config as settings_file
from gateway.cli.help import choose_color
from gateway.cli.options import as_json, print_json, print_table, run_stored
from gateway.config import Settings, refuse_unavailable
from gateway.errors import Invalid, NotFound
from gateway.names import did_you_mean
from gateway.tools import DEFAULT_CATEGORIES

if TYPE_CHECKING:
    from gateway.gateway import Gateway

_WILDCARD = re.compile(r"[*?\[]")
_file_option = click.option("--config", "file", type=click.Path(path_type=Path), help="Settings file (toolgate.yaml).")


@click.group()
def config() -> None:
    """Show and check the settings."""


@config.command()
@click.argument("key", required=False)
@click.option("--changed", is_flag=True, help="Only what the file sets.")
@as_json
@_file_option
def show(key: str | None, changed: bool, as_json: bool, file: Path | None) -> None:
    """Show every setting with its value and where that comes from: a line of the file, or the default.

    KEY is a section or one setting, such as `limits` or `limits.timeout`. Secrets are masked.
    """
    path = settings_file.find(file)
    every = settings_file.explain(path)
    shown = [item for item in every if key is None or f"{item.key}.".startswith(f"{key}.")]
    if not shown:
        sections = list(dict.fromkeys(item.key.partition(".")[0] for item in every))
        raise NotFound(f"there is no setting {key!r}{did_you_mean(str(key), [*sections, *(i.key for i in every)])}")
    shown = [item for item in shown if item.line is not None or not changed]
    if as_json:
        print_json([item._asdict() for item in shown])
        return
    sources = [f"{path} line {item.line}" if item.line else "default" for item in shown]
    rows = [
        (item.key, json.dumps(item.value, ensure_ascii=False), source)
        for item, source in zip(shown, sources, strict=True)
    ]
    click.echo(f"settings file: {path or _no_file()}")
    print_table(("SETTING", "VALUE", "FROM"), rows)


@config.command()
@_file_option
def check(file: Path | None) -> None:
    """Check the settings file; every mistake in it is reported with its line and a fix."""
    path = settings_file.find(file)
    settings = settings_file.read(file)
    settings.effective_categories()
    settings.effective_profile()
    refuse_unavailable(settings)
    warnings = [*_check_categories(settings, path), *settings_file.find_oversights(settings, path)]
    try:
        problems = run_stored(settings, _find_problems)
    except Invalid as error:
        names = [extension.use for extension in settings.extensions]
        if (name := error.details.get("extension")) in names:
            line = settings_file.find_line(path, ("extensions", names.index(name)))
            raise Invalid(f"{line}{error.message}", code=error.code) from None
        raise
    for place, problem in problems:
        warnings.append(f"{settings_file.find_line(path, place)}{problem}")
    for warning in warnings:
        click.echo(f"{click.style('warning:', fg='yellow')} {warning}", err=True, color=choose_color())
    outcome = "no mistakes" if not warnings else "valid, with warnings"
    click.echo(f"{path or _no_file()}: {outcome}; `toolgate doctor` also tries what the settings name")


@config.command()
def trust() -> None:
    """Trust the settings file of this folder as it is now.

    A file in a Git repository or in the workspace is refused until you trust it or name it with --config. Trust ends
    when the file changes: in a workspace at any change, in a repository when it changes what is started or allowed.
    """
    path = settings_file.find()
    if path is None:
        raise NotFound("there is no toolgate.yaml in this folder", code="CONFIG_NOT_FOUND")
    settings_file.load(path)
    settings_file.trust(path)
    click.echo(f"{path.absolute()} is trusted as it is now; after a change of it, run this again")


def _check_categories(settings: Settings, path: Path | None) -> Iterator[str]:
    for name in settings.categories:
        if name not in DEFAULT_CATEGORIES and (hint := did_you_mean(name, DEFAULT_CATEGORIES)):
            line = settings_file.find_line(path, ("categories", name))
            yield f"{line}categories.{name}: no builtin tool is in this category{hint}"


async def _find_problems(gateway: Gateway) -> list[tuple[tuple[str | int, ...], str]]:
    """The patterns that match no tool, and names in roles that nothing has, with their places. Other problems are not
    the file's."""
    problems = [problem for problem in gateway.catalog.problems if problem.code == "NO_SUCH_TOOL"]
    found = [(problem.details.get("place", ()), problem.message) for problem in problems]
    # Imported here: showing the settings needs nothing of upstreams.
    from gateway.admin.upstreams import list_upstreams

    servers = {server.name for server in await list_upstreams(gateway)}
    for role, settings in gateway.settings.roles.items():
        exact = [name for name in settings.servers if not _WILDCARD.search(name)]
        named = [("categories", "category", name, {*gateway.categories}) for name in settings.categories or ()]
        for key, kind, name, known in [*named, *(("servers", "server", name, servers) for name in exact)]:
            if name not in known:
                text = f"roles.{role}.{key}: there is no {kind} {name!r}{did_you_mean(name, known)}"
                found.append((("roles", role, key), text))
    jwt, roles = gateway.settings.auth.jwt, gateway.roles.roles
    name = "" if jwt is None else jwt.default_role or ""
    if name and name not in roles:
        text = f"auth.jwt.default_role: there is no role {name!r}{did_you_mean(name, roles)}"
        found.append((("auth", "jwt", "default_role"), text))
    return found


def _no_file() -> str:
    return f"none ({settings_file.user_directory() / 'toolgate.yaml'} does not exist; the defaults apply)"
