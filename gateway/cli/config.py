"""`toolgate config`: the settings that apply, where each comes from, and whether the file is right."""

from __future__ import annotations

import json
from pathlib import Path

import click

from gateway import config as settings_file
from gateway.cli.options import as_json, print_json, print_table
from gateway.config import refuse_unavailable
from gateway.errors import NotFound
from gateway.names import did_you_mean

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
    click.echo(f"{path or _no_file()}: no mistakes; `toolgate doctor` also tries what the settings name")


def _no_file() -> str:
    return f"none ({settings_file.user_directory() / 'toolgate.yaml'} does not exist; the defaults apply)"
