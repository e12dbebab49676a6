"""The gateway as a library: no server, the same tools, the same checks."""

import asyncio
import tempfile

from gateway import Gateway


async def main() -> None:
    with tempfile.TemporaryDirectory() as data:
        async with Gateway.open({"data_dir": data}) as gateway:
            tools = gateway.catalog.to_openai_tools()
            print("offered to the model:", ", ".join(tool["function"]["name"] for tool in tools))

            written = await gateway.call("write_file", {"path": "notes.txt", "content": "hello\n"}, chat="demo")
            print("written:", written.value)

            refused = await gateway.call("delete_file", {"path": "notes.txt"}, chat="demo")
            print("refused:", refused.error.code if refused.error else "it was not")

            allowed = await gateway.call("delete_file", {"path": "notes.txt"}, chat="demo", confirmed=True)
            print("deleted:", allowed.value["deleted"])


asyncio.run(main())
