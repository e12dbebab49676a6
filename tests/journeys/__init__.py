"""Real MCP clients of each era, through the whole gateway, to a tool."""
