"""Surfaces: they translate between a wire and the executor, and never decide."""
