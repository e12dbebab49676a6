// The TypeScript SDK 1.x logs in by OAuth.

import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { connect, journey, target } from "./oauth.mjs";

const client = await connect(
  () => new Client({ name: "oauth-sdk", version: "1.0.0" }),
  (authProvider) => new StreamableHTTPClientTransport(new URL(target.url), { authProvider }),
);
await journey(client, target.era);
