"""Consent: between a surface and the executor, whoever must agree to a call is asked in the best way there is."""

from gateway.serve.approval.flow import ApprovalFlow, Way
from gateway.serve.approval.request_state import Seal

__all__ = ["ApprovalFlow", "Seal", "Way"]
