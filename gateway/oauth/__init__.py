"""Signing in to upstream servers: by a person in a browser, or by the gateway for itself; and staying signed in.

`access` and `bearer` are what a running gateway has of it. What speaks to authorization servers is loaded when one
is spoken to.
"""
