"""Logins to upstream servers: by a person in a browser or with client credentials, and their renewal.

A running gateway loads `store` and `bearer`. The modules that speak to authorization servers import the SDK, and are
loaded with the first request to one.
"""
