"""The REST surface: one table of endpoints, from which requests are validated and the OpenAPI document is made."""
