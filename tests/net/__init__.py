"""The door out, tried against real servers on this machine."""
