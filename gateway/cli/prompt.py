"""Questions on the terminal: the same text and the same answers as in a client; and values of secrets."""

from __future__ import annotations

import getpass
import sys
from collections.abc import Mapping
from typing import Any

import anyio.to_thread
import click

from gateway.approval.question import APPROVE_ONCE, DECISION, Answer, Question, build_form, parse_answer
from gateway.cli.progress import clear_progress
from gateway.errors import Invalid

_ANSWERS = {"y": "once", "c": "chat", "a": "always", "n": "deny", "e": "edit"}


class TerminalApprover:
    """Asks the person at the terminal. A call that they edited is shown anew before it runs."""

    def __init__(self) -> None:
        self._edited: Mapping[str, Any] | None = None

    async def ask(self, question: Question) -> Answer:
        """Ask one question; Ctrl-C and the end of input dismiss it."""
        again = self._edited is not None and self._edited == question.arguments
        answer = await anyio.to_thread.run_sync(_ask, question, again, abandon_on_cancel=True)
        self._edited = answer.arguments
        return answer


def can_ask() -> bool:
    """Return whether there is a person at a terminal; questions go to stderr."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def person() -> str:
    """The name of the person who decides here, for the record."""
    try:
        return f"{getpass.getuser()} (cli)"
    except (OSError, KeyError):  # a user without a name, as in some containers
        return "cli"


def _ask(question: Question, again: bool) -> Answer:
    try:
        answer = _ask_once(question, again)
        while answer is None:
            answer = _ask_once(question, True)
    except click.Abort:
        return Answer("dismiss", by=person())
    return Answer(answer.decision, answer.arguments, person())


def _ask_once(question: Question, again: bool) -> Answer | None:
    """Show the question and take the choice; None after an edit that changes nothing, which is no consent."""
    click.echo(f"\n{question.message}\n", err=True)
    remember = question.remember and not again
    longer = " · [c] for this chat · [a]lways, this definition" if remember else ""
    chosen = click.prompt(
        f"[y]es, once{longer} · [e]dit {'again' if again else 'the arguments'} · [n]o",
        type=click.Choice([key for key in _ANSWERS if remember or key not in "ca"], case_sensitive=False),
        show_choices=False,
        err=True,
    )
    if chosen != "e":
        return Answer(_ANSWERS[chosen])  # type: ignore[arg-type]
    answer = _edit(question)
    return None if answer.arguments is None else answer


def _edit(question: Question) -> Answer:
    """Ask for each editable argument, with its value as the default. Edited arguments are approved once."""
    content: dict[str, Any] = {DECISION: APPROVE_ONCE}
    for key, field in build_form(question)["properties"].items():
        if key == DECISION:
            continue
        text = click.prompt(field["title"], default=_text(field["default"]), err=True)
        content[key] = field["default"] if text == _text(field["default"]) else _value(field["type"], text)
    return parse_answer(question.tool, question.arguments, {"action": "accept", "content": content})


def _text(value: Any) -> str:
    return ("true" if value else "false") if isinstance(value, bool) else str(value)


def _value(kind: str, text: str) -> Any:
    try:
        if kind == "boolean":
            return {"true": True, "false": False}[text.lower()]
        return {"integer": int, "number": float}.get(kind, str)(text)
    except (KeyError, ValueError):
        raise click.UsageError(f"{text!r} is not of the type {kind}") from None


def read_secret(variable: str, owner: str) -> str:
    """Ask for a value without echo, or read it from the standard input where that is no terminal."""
    clear_progress()
    if sys.stdin.isatty():
        question = f"{variable} (stored for {owner} only)"
        return str(click.prompt(question, hide_input=True, err=True, default="", show_default=False))
    value = sys.stdin.read(64 * 1024).removesuffix("\n").removesuffix("\r")
    if not value:
        raise Invalid(f"no value for {variable}; write it to the standard input")
    return value
