"""`toolgate doctor`: what works on this machine, and how to repair the rest."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from gateway import config
from gateway.admin import health
from gateway.admin.health_monitor import HealthCheck
from gateway.cli.options import as_json, print_json, run, settings_options, style_state
from gateway.cli.progress import ProgressLine, show_progress
from gateway.config import Settings
from gateway.errors import GatewayError
from gateway.gateway import Gateway
from gateway.secrets import KNOWN


@click.command()
@click.option(
    "--wait",
    type=click.FloatRange(0, min_open=True),
    default=health.ANSWER_SECONDS,
    show_default=True,
    help="Seconds to wait for the answer of a server.",
)
@as_json
@settings_options
def doctor(settings: Settings, wait: float, as_json: bool) -> int:
    """Check everything the gateway needs. Exit 1 when something must be repaired."""
    file = config.find(click.get_current_context().params["config_file"])
    checks = run(lambda: _check(settings, file, wait))
    if as_json:
        print_json(KNOWN.mask_value([asdict(check) for check in checks]))
    else:
        for check in checks:
            since = f" (since {check.since})" if check.since else ""
            line = KNOWN.mask(f"{check.subject:10} {check.message}{since}")
            click.echo(f"{style_state(f'{check.state:5}')} {line}")
    return int(any(check.state == "fail" for check in checks))


async def _check(settings: Settings, file: Path | None, wait: float) -> list[HealthCheck]:
    async with show_progress("checking this machine") as line:
        return await _run_checks(settings, file, line, wait)


async def _run_checks(settings: Settings, file: Path | None, line: ProgressLine, wait: float) -> list[HealthCheck]:
    try:
        async with Gateway.open(settings, connect="none") as gateway:
            servers = await health.check_upstreams(gateway, line.step, wait)
        async with Gateway.open(settings, connect="none") as gateway:  # with the tools that they have listed now
            found = await health.check_health(gateway, file)
            checks = [*(check for check in found if check.subject != "upstream"), *servers]
    except GatewayError as error:
        checks = [*await health.check_machine(settings, file), HealthCheck("gateway", "fail", str(error))]
    return [*checks, health.check_storage(settings), *health.check_clients()]
