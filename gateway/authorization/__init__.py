"""The built-in authorization server (OAuth 2.1): a person with a key allows a client to act as them.

It exists for clients that take no key, such as the connectors of Claude and ChatGPT. The endpoints are the SDK's, and
loaded with the first request to one.
"""
