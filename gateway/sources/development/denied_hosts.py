"""Where a program was not let go, for whoever has to say why it failed: few programs repeat what a proxy tells them."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from gateway.errors import Forbidden
from gateway.net.addresses import Address
from gateway.net.policy import PRIVATE_ADDRESS, Policy

_HOSTS = 10


@dataclass(frozen=True)
class Noting(Policy):
    """A policy that notes why it refused a host, each once."""

    refused: dict[str, str] = field(default_factory=dict, compare=False)

    @classmethod
    def like(cls, policy: Policy) -> Noting:
        return cls(**{each.name: getattr(policy, each.name) for each in fields(policy) if each.init})

    def check_host(self, scheme: str, host: str, port: int | None = None) -> None:
        try:
            super().check_host(scheme, host, port)
        except Forbidden as refusal:
            self._note(host, refusal.message)
            raise

    def check_address(self, scheme: str, host: str, address: Address) -> None:
        try:
            super().check_address(scheme, host, address)
        except Forbidden as refusal:
            private = f"{host} leads to {address}, and programs in the sandbox reach only public addresses"
            self._note(host, private if refusal.code == PRIVATE_ADDRESS else refusal.message)
            raise

    def _note(self, host: str, reason: str) -> None:
        if len(self.refused) < _HOSTS:
            self.refused.setdefault(host, reason)
