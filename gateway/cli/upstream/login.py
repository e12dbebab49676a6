"""Signing in to a server that wants it, and out again."""

from __future__ import annotations

import threading
import webbrowser
from datetime import UTC, datetime
from typing import Any

import click

from gateway.cli.options import as_json, print_json, run, settings_options
from gateway.cli.upstream.desk import Desk, desk
from gateway.cli.upstream.probing import Answer, probe
from gateway.cli.upstream.servers import print_answer
from gateway.config import Settings
from gateway.errors import GatewayError, Invalid
from gateway.oauth.flow import sign_in, sign_out
from gateway.oauth.store import Account, Login
from gateway.sources.upstreams.spec import Spec


@click.command()
@click.argument("name")
@click.option("--scope", "scopes", multiple=True, help="Ask for this scope too, besides those you have.")
@click.option("--no-browser", is_flag=True, help="Print the address only; open it in a browser on this machine.")
@click.option("--port", type=click.IntRange(1, 65535), help="The port the browser comes back to, if it must be one.")
@as_json
@settings_options
def login(
    settings: Settings, name: str, scopes: tuple[str, ...], no_browser: bool, port: int | None, as_json: bool
) -> int:
    """Sign in to a server in your browser. The gateway, also one that runs now, then calls it in your name."""

    def show(url: str) -> None:
        click.echo(f"Sign in to {name} here, within five minutes:\n\n  {url}\n", err=True)
        if not no_browser:
            # Apart, and not waited for: a browser in this terminal would never return.
            threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()

    async def task() -> tuple[Login, Answer | GatewayError]:
        async with desk(settings) as at:
            spec = at.spec(name)
            kept = await sign_in(_account(at, spec), at.board.logins, show, scopes=scopes, port=port or 0)
            try:
                return kept, await probe(at, spec)
            except GatewayError as refusal:
                return kept, refusal

    kept, answer = run(task)
    if as_json:
        print_json(_shape(kept, answer))
    else:
        click.echo(f"you are logged in to {name}" + (f", with the scopes: {kept.scope}" if kept.scope else ""))
        if isinstance(answer, Answer):
            print_answer(answer)
        else:
            click.echo(answer.message)
    return int(isinstance(answer, GatewayError))


@click.command()
@click.argument("name")
@settings_options
def logout(settings: Settings, name: str) -> None:
    """Forget the login to a server, and have its tokens taken back where that can be asked for."""

    async def task() -> bool:
        async with desk(settings) as at:
            account = at.account(name)
            revoked = await sign_out(account, name, at.board.logins)
            if account is not None and not account.unattended:
                await at.board.store.failed(name, f"nobody is logged in: {account.remedy}")
            return revoked

    revoked = run(task)
    click.echo(f"you are logged out of {name}" + ("" if revoked else "; its tokens are forgotten here, not revoked"))


def _account(at: Desk, spec: Spec) -> Account:
    if spec.settings.url is None:
        raise Invalid(f"{spec.name!r} is a program, which nobody signs in to", code="NOTHING_TO_SIGN_IN")
    account = at.access(spec).account()
    if account is None:
        raise Invalid(
            f"the settings of {spec.name!r} have an Authorization header, which counts before any login; remove it",
            code="NOTHING_TO_SIGN_IN",
        )
    return account


def _shape(kept: Login, answer: Answer | GatewayError) -> dict[str, Any]:
    until = datetime.fromtimestamp(kept.expires_at, UTC).isoformat() if kept.expires_at is not None else None
    return {
        "name": kept.server,
        "issuer": kept.issuer,
        "scope": kept.scope,
        "expires_at": until,
        "renewable": kept.refresh_token is not None,
        "answer": answer.to_dict(),
    }
