"""Tests of the guarded HTTP client against real servers on this machine."""
