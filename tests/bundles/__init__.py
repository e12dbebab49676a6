"""Toolsets as one hands them over: what they say, what they hold, and what is refused."""
