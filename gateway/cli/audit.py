"""`toolgate audit`: the tamper-evident call log."""

from __future__ import annotations

from pathlib import Path

import click

from gateway.admin import audit as call_log
from gateway.cli.options import as_json, print_json, settings_options
from gateway.config import Settings

SHOWN_PROBLEMS = 20


@click.group()
def audit() -> None:
    """Verify and export the tamper-evident log of calls."""


@audit.command()
@click.option("--key", "keys", multiple=True, metavar="HEX", help="A public key to trust, instead of this gateway's.")
@click.option("--checkpoint", metavar="POSITION:HASH", help="One noted earlier; the log must still continue it.")
@as_json
@settings_options
def verify(settings: Settings, keys: tuple[str, ...], checkpoint: str | None, as_json: bool) -> int:
    """Check that no record of a call was edited, deleted, inserted or moved. Exit 1 if one was.

    Keep the printed checkpoint on another machine. With --checkpoint, the command also notices if somebody put back an
    older copy of the data directory.
    """
    found = call_log.verify(settings.data_dir, keys, checkpoint)
    if as_json:
        print_json({**found.to_dict(), "public_keys": list(keys) or call_log.own_public_keys(settings.data_dir)})
        return 1 if found.problems else 0
    for problem in found.problems[:SHOWN_PROBLEMS]:
        place = "" if problem["position"] is None else f"entry {problem['position']}: "
        call = "" if problem["call_id"] is None else f" (call {problem['call_id']})"
        click.echo(f"{place}{problem['problem']}{call}")
    if (hidden := len(found.problems) + found.more_problems - SHOWN_PROBLEMS) > 0:
        click.echo(f"and {hidden} more; --json shows up to {len(found.problems)}")
    click.echo(
        f"{'TAMPERED WITH' if found.problems else 'ok'}: {found.records} records, {found.entries} entries, "
        f"{found.checkpoints} checkpoints"
        + (f"; entries up to {found.removed} were removed by retention" if found.removed else "")
    )
    if found.unsigned:
        click.echo(f"not signed yet: the last {found.unsigned} entries; the gateway signs when idle, and when it stops")
    if found.signed:
        click.echo(f"checkpoint {found.signed} of {found.signed_at}")
    for key in keys or call_log.own_public_keys(settings.data_dir):
        click.echo(f"public key {key}")
    return 1 if found.problems else 0


@audit.command()
@settings_options
def accept(settings: Settings) -> None:
    """Take the log as it is for the right one, after you restored a backup.

    The next start of the gateway also records the calls of journal files that were set aside.

    Until then, `audit verify` reports that entries are missing, and names journal files that failed their check.
    """
    click.echo(f"the log ends with entry {call_log.accept(settings.data_dir)}")


@audit.command()
@click.option("--output", "-o", type=click.Path(path_type=Path, dir_okay=False), help="A file instead of the output.")
@settings_options
def export(settings: Settings, output: Path | None) -> None:
    """Write the log as JSON Lines, which anybody with the public key can verify."""
    with click.open_file(str(output or "-"), "w", encoding="utf-8") as file:
        for line in call_log.export(settings.data_dir):
            file.write(f"{line}\n")
