"""Settings of approval: when a person is asked, and where."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from gateway.config.section import Section


def _listed(value: object) -> object:
    return [value] if isinstance(value, str) else value


# One pattern or several, `*` and `?` as in a shell; one of them must fit.
Patterns = Annotated[list[str], BeforeValidator(_listed)]


class ApprovalCondition(Section):
    """What the arguments must be for a rule to speak; all that is given must hold.

    `path`, `host` and `command` look into every text among the arguments, however deep: at a path and its endings
    (`*.env`), at the hosts of addresses, at each command of a line. A `path` speaks of what a call names, and of the
    directories it names itself (`secrets/*` of `secrets`); what it denies to `read_file` is left out of searches and
    diffs, and cannot be read as a resource. A `command` reminds and does not confine: a shell has more ways to say a
    thing than patterns can foresee. `arguments` names arguments (`{branch: main, "options.force": "true"}`).
    `overwrites` asks whether a file of the chat is there already under one of the paths. What there is too much of to
    look at fits.
    """

    path: Patterns = []
    host: Patterns = []
    command: Patterns = []
    arguments: dict[str, Patterns] = {}
    overwrites: bool | None = None


class ApprovalRule(Section):
    """`tool` is a pattern of ids (`read_file`, `git:*`), `toolset` and `server` of owners; all that is given must
    fit. `then` asks a person, lets the call through unasked, refuses it, or asks in the queue alone, where no
    client can answer for the person. `why` is shown with the question or the refusal. Without `remember` the
    answer counts for one call only.
    """

    tool: Patterns = []
    toolset: Patterns = []
    server: Patterns = []
    category: Patterns = []
    when: ApprovalCondition = ApprovalCondition()
    then: Literal["ask", "allow", "deny", "queue"] = "ask"
    why: str | None = Field(default=None, max_length=500)
    remember: bool = True

    @model_validator(mode="after")
    def _trusts_only_what_it_names(self) -> ApprovalRule:
        said = self.when
        if self.then == "allow" and (said.path or said.host or said.command):
            raise ValueError(
                "a rule that allows must name the arguments it trusts: instead of 'path', 'host' or 'command' "
                "write 'when: {arguments: {path: ...}}'"
            )
        return self


class ApprovalSettings(Section):
    """When a person is asked before a call, and where.

    The first of `rules` that fits decides; where none does, `mode` does: `unsafe_only` asks what the tool itself
    asks for. A client that cannot be asked is refused (`deny`), or its call waits in the queue for
    `toolgate approval allow` (`queue`), the caller for `queue_wait` seconds of that. Tools named in `out_of_band`
    are asked for in the queue alone: a client without a person could answer its own question. `timeout` is how
    long a question may be answered, `pending` how many of one principal may be open. `keys` seal questions that
    travel through clients (32 characters or more each; the first seals, all open); without any, a key is kept in
    data_dir.
    """

    mode: Literal["never", "unsafe_only", "always"] = "unsafe_only"
    without_elicitation: Literal["deny", "queue"] = "deny"
    rules: list[ApprovalRule] = []
    out_of_band: Patterns = []
    timeout: float = Field(default=600, gt=0, le=7 * 86400)
    queue_wait: float = Field(default=15, ge=0, le=600)
    pending: int = Field(default=500, ge=1, le=10_000)
    keys: list[str] = []
