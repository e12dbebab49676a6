"""What a toolset author meets."""
