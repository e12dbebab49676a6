"""Runs the gateway with the extension that `toolgate.yaml` names."""

import asyncio
import tempfile
from pathlib import Path

from gateway import Gateway, config

SETTINGS = Path(__file__).with_name("toolgate.yaml")


async def main() -> None:
    with tempfile.TemporaryDirectory() as data:
        async with Gateway.open(config.load(SETTINGS, {"data_dir": data})) as gateway:
            print("write:", (await gateway.call("write_file", {"path": "a.txt", "content": "x"})).to_dict())
            print("list: ", (await gateway.call("list_directory", {"path": "."})).to_dict())


asyncio.run(main())
