"""Asking a person before a call runs: rules, question, store and flow. It must not know the surfaces."""
