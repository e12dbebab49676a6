// The TypeScript client 2.x logs in by OAuth, in the era the test asks for.

import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";
import { connect, journey, target } from "./oauth.mjs";

const mode = target.era === "2026-07-28" ? "auto" : "legacy";
const client = await connect(
  () => new Client({ name: "oauth-client", version: "1.0.0" }, { versionNegotiation: { mode } }),
  (authProvider) => new StreamableHTTPClientTransport(new URL(target.url), { authProvider }),
);
await journey(client, client.getNegotiatedProtocolVersion());
