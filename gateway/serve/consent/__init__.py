"""Consent: between a surface and the executor, whoever must agree to a call is asked in the best way there is."""

from .consulting import Consulting, Way
from .seal import Seal

__all__ = ["Consulting", "Seal", "Way"]
