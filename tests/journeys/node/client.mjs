// The TypeScript client 2.x, in the era the test asks for: `auto` settles on 2026-07-28 by asking the server first.

import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";
import { StdioClientTransport } from "@modelcontextprotocol/client/stdio";
import { journey, target } from "./journey.mjs";

async function connect() {
  const mode = target.era === "2026-07-28" ? "auto" : "legacy";
  const client = new Client({ name: "journeys-client", version: "1.0.0" }, { versionNegotiation: { mode } });
  await client.connect(
    target.url === undefined ? new StdioClientTransport(target) : new StreamableHTTPClientTransport(new URL(target.url)),
  );
  if (client.getNegotiatedProtocolVersion() !== target.era) {
    throw new Error(`settled on ${client.getNegotiatedProtocolVersion()} instead of ${target.era}`);
  }
  return client;
}

await journey(connect());
