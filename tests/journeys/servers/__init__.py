"""Servers to put behind a gateway."""
