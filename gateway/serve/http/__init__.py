"""The HTTP server: the application, the protocol on each connection, and the fast path."""
