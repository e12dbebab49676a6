"""The public conformance suite, against a server of our own and against the gateway in front of it."""
