"""`toolgate key`: API keys for the gateway over HTTP."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import click

from gateway.admin import keys
from gateway.cli.options import as_json, print_json, print_table, run_stored, settings_options
from gateway.config import Settings
from gateway.identity.roles import DEFAULT_ROLE


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
    made, secret = run_stored(
        settings, lambda gateway: keys.create_key(gateway, name, role, profile=for_profile, days=days)
    )
    if as_json:
        print_json({**_describe(made), "key": secret})
        return
    click.echo(secret)
    until = f", valid until {made.expires_at}" if made.expires_at else ""
    click.echo(
        f"\nThe key {made.id} of {made.name}, role {made.role}{until}. Store it now: it is not shown again.\n"
        f"Clients send it as the header  Authorization: Bearer {made.hint}…\n"
        f"Revoke it with  toolgate key revoke {made.id}",
        err=True,
    )


@key.command("list")
@as_json
@settings_options
def list_keys(settings: Settings, as_json: bool) -> None:
    """List the keys, with when each was last used."""
    found = run_stored(settings, keys.list_keys)
    if as_json:
        print_json([_describe(each) for each in found])
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
        print_json(_describe(revoked) | {"status": "revoked"})
    else:
        click.echo(f"revoked {revoked.id} ({revoked.name})")


@key.command()
@as_json
@settings_options
def clients(settings: Settings, as_json: bool) -> None:
    """List the clients that people let in by OAuth, such as Claude's connector."""
    found = run_stored(settings, keys.list_clients)
    if as_json:
        names = ("id", "principal", "client_name", "permission", "resource", "created_at")
        print_json([{name: getattr(each, name) for name in names} for each in found])
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


def _describe(each: keys.ApiKey) -> dict[str, Any]:
    names = ("id", "name", "role", "profile", "hint", "status", "created_at", "created_by", "expires_at")
    return {name: getattr(each, name) for name in (*names, "last_used_at", "revoked_at")}
