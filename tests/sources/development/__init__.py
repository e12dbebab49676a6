"""The development tools, in real sandboxes."""
