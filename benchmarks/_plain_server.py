"""A function served the way the SDK's own guide does it: the anchor for calls of toolsets."""

from __future__ import annotations

from pathlib import Path

from mcp.server import MCPServer
from pydantic import BaseModel

server = MCPServer("plain")


class Counted(BaseModel):
    words: int
    longest: str


@server.tool()
def count_words(text: str, shortest: int = 1) -> Counted:
    """Count the words of a text."""
    words = [word for word in text.split() if len(word) >= shortest]
    return Counted(words=len(words), longest=max(words, key=len, default=""))


@server.tool()
def save_words(path: str, text: str) -> Counted:
    """Count the words of a text, and keep it in a file."""
    Path(path).write_text(text)
    return count_words(text)


if __name__ == "__main__":
    server.run("stdio")
