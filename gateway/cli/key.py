"""`toolgate key`: API keys for the gateway over HTTP."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

import click

from gateway.admin import keys
from gateway.cli.options import as_json, print_json, print_table, run_stored, settings_options
from gateway.config import Settings
from gateway.identity.roles import DEFAULT_ROLE

if TYPE_CHECKING:
    from gateway.admin.keys import ApiKey
    from gateway.gateway import Gateway


@click.group()
def key() -> None:
    """Make, list and revoke keys for the gateway over HTTP."""


@key.command()
@click.argument("name")
@click.option("--role", default=DEFAULT_ROLE, show_default=True, help="A role of the settings, or admin or user.")
@click.option("--for-profile", metavar="PROFILE", help="A profile that always applies to this key.")
@click.option("--days", type=click.FloatRange(min=0, min_open=True, max=36500), help="How long it is valid.")
@as_json
@settings_options
def create(
    settings: Settings, name: str, role: str, for_profile: str | None, days: float | None, as_json: bool
) -> None:
    """Make a key for NAME and print it. It is shown only now.

    NAME is the person or program it is for: keys of one name share chats, files and approvals. From the first key on,
    every request over HTTP needs one.
    """

    async def task(gateway: Gateway) -> tuple[bool, ApiKey, str]:
        first = not await keys.list_keys(gateway)
        return first, *await keys.create_key(gateway, name, role, profile=for_profile, days=days)

    first, made, secret = run_stored(settings, task)
    if as_json:
        print_json({**keys.describe_key(made), "key": secret})
        return
    click.echo(secret)
    profile = f", profile {made.profile}" if made.profile else ""
    until = f", valid until {made.expires_at[:10]}" if made.expires_at else ""
    click.echo(
        f"\nThe key {made.id} of {made.name}, role {made.role}{profile}{until}. Store it now: it is not shown again.\n"
        f"Clients send it as the header  Authorization: Bearer {made.hint}…\n"
        f"Revoke it with  toolgate key revoke {made.id}",
        err=True,
    )
    if first and settings.auth.required is None:
        click.echo(
            "\nFrom now on every request over HTTP needs a key, on this computer too, also after the key is revoked.\n"
            "To let this computer in without one, put this into the settings file, and restart the gateway:\n"
            "  auth: {required: false}",
            err=True,
        )


@key.command("list")
@as_json
@settings_options
def list_keys(settings: Settings, as_json: bool) -> None:
    """List the keys, with when each was last used."""
    found = run_stored(settings, keys.list_keys)
    if as_json:
        print_json([keys.describe_key(each) for each in found])
        return
    rows = [
        (
            each.id,
            each.name,
            each.role,
            each.profile or "",
            f"{each.hint}…",
            each.status,
            each.created_at[:10],
            (each.expires_at or "never")[:10],
            (each.last_used_at or "never")[:16].replace("T", " "),
        )
        for each in found
    ]
    print_table(("ID", "NAME", "ROLE", "PROFILE", "KEY", "STATUS", "CREATED", "EXPIRES", "LAST USED"), rows)


@key.command()
@click.argument("key_id", metavar="ID")
@as_json
@settings_options
def revoke(settings: Settings, key_id: str, as_json: bool) -> None:
    """Revoke a key, by its ID or its name. The next request with it is refused."""
    revoked = run_stored(settings, lambda gateway: keys.revoke_key(gateway, key_id))
    if as_json:
        print_json(keys.describe_key(revoked) | {"status": "revoked"})
    else:
        click.echo(f"revoked {revoked.id} ({revoked.name})")


@key.command()
@as_json
@settings_options
def clients(settings: Settings, as_json: bool) -> None:
    """List the clients that people let in by OAuth, such as Claude's connector."""
    found = run_stored(settings, keys.list_clients)
    if as_json:
        print_json([keys.describe_client(each) for each in found])
        return
    rows = [
        (
            each.id,
            each.client_name,
            each.principal,
            each.permission,
            f"{datetime.fromtimestamp(each.created_at):%Y-%m-%d}",
        )
        for each in found
    ]
    print_table(("ID", "CLIENT", "ACTS AS", "MAY", "SINCE"), rows)


@key.command()
@click.argument("client_id", metavar="ID")
@settings_options
def disconnect(settings: Settings, client_id: str) -> None:
    """Take back what somebody allowed a client, by the ID that `key clients` shows."""
    run_stored(settings, lambda gateway: keys.disconnect_client(gateway, client_id))
    click.echo(f"disconnected {client_id}")
