"""Replies to tickets, drafted as files in the workspace."""

from __future__ import annotations

from covalt_toolset import get_context, tool


@tool(name="Draft Reply", permission="read-write", access="write", idempotent=True)
def draft_reply(ticket_id: int, name: str, points: list[str], closing: str = "Your support team") -> dict[str, str]:
    """Write a reply to a ticket as a Markdown file in the workspace, for a person to edit and send.

    Args:
        ticket_id: The ticket that is answered.
        name: The name of the user, for the greeting.
        points: The paragraphs of the reply, in order.
        closing: The line under the reply.
    """
    path = f"replies/ticket-{ticket_id}.md"
    target = get_context().workspace / path
    target.parent.mkdir(exist_ok=True)
    text = "\n\n".join([f"Hello {name},", *points, closing])
    target.write_text(f"{text}\n", encoding="utf-8")
    return {"path": path, "text": text}
