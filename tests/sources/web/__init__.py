"""The web tools, against real servers on this machine."""
