"""The program inside the sandbox: it reads calls from its channel, runs the toolset's functions and sends answers.

It imports the standard library and `covalt_toolset`, nothing else of the gateway: inside the sandbox
this package lies alone on a shelf, under the name `toolgate_worker`, and `main` is all that is called.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from .calls import Calls
from .channel import Channel


def main(setup: str) -> None:
    """Serve until the gateway closes the channel. `setup` is JSON, the only thing said by command line."""
    said = json.loads(setup)
    channel = Channel(said["channel"], said["limit"])
    with open(os.devnull, "rb") as nothing:  # noqa: PTH123 - the one file there is in every sandbox
        os.dup2(nothing.fileno(), 0)
    if "filter" in said:
        from .rights import install_filter  # brings ctypes, which most workers do not need

        install_filter(bytes.fromhex(said["filter"]))
    Calls(channel, said["toolset"], Path(said["directory"]).resolve(), Path(said["workspace"])).serve()
