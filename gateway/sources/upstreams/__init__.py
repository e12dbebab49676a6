"""Tools of other MCP servers, offered as our own."""
