"""Settings of the sandbox."""

from __future__ import annotations

from pydantic import Field

from gateway.config.section import Section


class SandboxSettings(Section):
    """Where strangers' code runs. `workers` is how many toolset processes are kept at once, each for
    `worker_idle` seconds without a call. With `network` it reaches `allowed_hosts`, or every public host
    when none is named. `allow_unsandboxed` runs it with all rights of your account."""

    network: bool = False
    allowed_hosts: list[str] = []
    memory_mb: int = Field(default=1024, ge=16)
    cpu_seconds: int = Field(default=60, ge=1)
    timeout: float = Field(default=60, gt=0)
    workers: int = Field(default=24, ge=1)
    worker_idle: float = Field(default=300, gt=0)
    allow_unsandboxed: bool = False
    allow_source_packages: bool = False
