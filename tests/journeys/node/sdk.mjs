// The TypeScript SDK 1.x: the handshake era, as most hosts in the field speak it.

import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { journey, target } from "./journey.mjs";

async function connect() {
  const client = new Client({ name: "journeys-sdk", version: "1.0.0" });
  await client.connect(
    target.url === undefined ? new StdioClientTransport(target) : new StreamableHTTPClientTransport(new URL(target.url)),
  );
  return client;
}

await journey(connect());
