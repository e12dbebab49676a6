"""git, pushing: a branch to where others can see it, after a person has agreed."""

from __future__ import annotations

import dataclasses
import re
from typing import Annotated

from pydantic import Field

from gateway.errors import Invalid, NotFound
from gateway.sources.builtin.decorator import Shape, builtin
from gateway.sources.development.call_context import Bench
from gateway.sources.development.git import Repository, Where, plain, revision
from gateway.tools import Access, Permission

_SECRET = re.compile(r"//[^/@\s]*@")
_REWRITTEN = re.compile(r"url\..*\.(insteadof|pushinsteadof)", re.IGNORECASE | re.DOTALL)

Remote = Annotated[str, Field(min_length=1, max_length=200, description="Name of a remote")]
Which = Annotated[str | None, Field(max_length=200, description="Which branch; else the one checked out")]


class Pushed(Shape):
    remote: str
    url: str
    branch: str
    commit: str
    said: str = Field(description="What git and the server said")


async def _reason(
    bench: Bench, repository: str = ".", remote: str = "origin", branch: str | None = None, force: bool = False
) -> str:
    found = await Repository.open(bench, repository)
    name = branch or plain(await found.read("branch", "--show-current")).strip()
    forced = ", replacing what is there" if force else ""
    return f"git_push sends branch {name!r} to {_masked(_url(found, remote))}{forced}"


@builtin(
    title="Git push",
    category="development",
    permission=Permission.EXECUTE,
    access=Access.WRITE,
    requires_confirmation=_reason,
    destructive=True,
    path_arguments=(),
)
async def git_push(
    bench: Bench,
    repository: Where = ".",
    remote: Remote = "origin",
    branch: Which = None,
    force: Annotated[bool, Field(description="Replace what is there, if nobody else has pushed meanwhile")] = False,
) -> tuple[Pushed, str]:
    """Push a branch of a git repository to a remote, after a person has agreed to where it goes.

    Only over http and https, through the gateway's guarded network; no credentials of the machine are used."""
    found = await Repository.open(bench, repository)
    url = _url(found, remote)
    name = branch or plain(await found.read("branch", "--show-current")).strip()
    if not name:
        raise Invalid("no branch is checked out; say which one to push", code="INVALID_REVISION")
    bench.require_network()
    spec = f"refs/heads/{revision(name)}:refs/heads/{name}"
    online = dataclasses.replace(found, online=True)
    options = ["--force-with-lease"] if force else []
    said = await online.change("push", "--porcelain", "--no-verify", "--no-signed", *options, url, spec)
    commit = (await found.read("rev-parse", f"refs/heads/{name}")).strip()
    answer = Pushed(remote=remote, url=_masked(url), branch=name, commit=commit, said=_masked(plain(said)))
    return answer, f"{name} is at {commit[:12]} on {answer.url}\n{answer.said}"


def _url(repository: Repository, remote: str) -> str:
    """Where a remote is, as the person who agrees is told: nothing may rewrite it afterwards."""
    url = repository.value(f"remote.{remote}.pushurl") or repository.value(f"remote.{remote}.url")
    if not url:
        raise NotFound(f"the repository has no remote {remote!r}", code="UNKNOWN_REMOTE")
    if not re.match(r"https?://", url):
        raise Invalid(
            f"{_masked(url)!r} cannot be reached from the sandbox: only http and https can", code="INVALID_URL"
        )
    rewriting = [key for key, _ in repository.config if _REWRITTEN.fullmatch(key)]
    if rewriting:
        message = (
            f"the repository rewrites addresses with {rewriting[0]!r}, so that nobody could agree to one; remove it"
        )
        raise Invalid(message, code="INVALID_URL")
    return url


def _masked(text: str) -> str:
    return _SECRET.sub("//…@", text)
