"""`toolgate upstream`: other MCP servers behind this one, set up, tried, and watched over."""

from __future__ import annotations

import logging

import click

from gateway.cli.upstream import adding, importing, login, reviewing, servers


@click.group()
def upstream() -> None:
    """Put other MCP servers behind this one."""
    # Each command says itself why a server does not answer, on one line.
    logging.getLogger("gateway.sources.upstreams").setLevel(logging.ERROR)


for command in (
    adding.add,
    servers.list_upstreams,
    servers.show,
    servers.test,
    servers.enable,
    servers.disable,
    servers.remove,
    servers.secret,
    login.login,
    login.logout,
    importing.import_file,
    reviewing.review,
    reviewing.accept,
    reviewing.reject,
):
    upstream.add_command(command)
