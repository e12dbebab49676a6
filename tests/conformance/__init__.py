"""The public conformance suite: foreign servers, the gateway in front of them, and the gateway as a client."""
