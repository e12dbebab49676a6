"""Consent: between a surface and the executor, whoever must agree to a call is asked in the best way there is."""

from gateway.serve.approval.flow import Consulting, Way
from gateway.serve.approval.request_state import Seal

__all__ = ["Consulting", "Seal", "Way"]
