"""Versioning: the files before and after every call that may change them."""

from __future__ import annotations

from dataclasses import replace

import anyio

from ..calls import Call, Outcome, Proceed
from ..tools import Access, Tool
from ..workspace.versions import HeldChat, Versions
from . import Extension


class Versioning(Extension):
    """A call that may write is alone with the chat's files and leaves a version, also when it fails
    or is cancelled. One that only reads costs nothing, unless it names a message to stand at."""

    def __init__(self, versions: Versions) -> None:
        self._versions = versions

    def concerns(self, tool: Tool) -> bool:
        return tool.access is not Access.NONE

    async def call_tool(self, call: Call, proceed: Proceed) -> Outcome:
        access = call.target.access
        if access is Access.WRITE:
            return await self._writing(call, proceed)
        if access is Access.READ and call.message is not None:
            async with self._versions.hold(call.chat, call.caller.principal) as files:
                await _stand(files, call)
                return await proceed(call)
        return await proceed(call)

    async def _writing(self, call: Call, proceed: Proceed) -> Outcome:
        async with self._versions.hold(call.chat, call.caller.principal) as files:
            await _stand(files, call)
            before = await files.save("edit")  # what a person changed since is not the tool's doing
            after = before
            try:
                async with files.changing(call.id):
                    outcome = await proceed(call)
            finally:
                with anyio.CancelScope(shield=True):
                    after = await files.save("tool_run", call.id)
            return replace(outcome, pre_manifest=before, post_manifest=after)


async def _stand(files: HeldChat, call: Call) -> None:
    if call.message is not None:
        await files.switch(call.message, call.parent_message)
