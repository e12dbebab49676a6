"""MCP as the gateway serves it: adapters parse and print, one set of handlers answers."""
