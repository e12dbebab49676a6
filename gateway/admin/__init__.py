"""Administration of a gateway, written once for every surface: CLI, REST, console and admin tools.

Functions take an open `Gateway` and return values. They do not print, prompt or read a terminal: a question to a
person is a callback, and secret values never appear in a result. `Gateway` is imported for type checking only.
"""
