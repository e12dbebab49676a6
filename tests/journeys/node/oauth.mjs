// A login in which the person is a test: the URL goes to stdout, the address the browser is sent to comes on stdin.

import { createInterface } from "node:readline/promises";

export const target = JSON.parse(process.argv[2]);

const lines = createInterface({ input: process.stdin });

export class Login {
  redirectUrl = "http://127.0.0.1:7777/callback";
  clientMetadata = { client_name: "TypeScript", redirect_uris: [this.redirectUrl], grant_types: ["authorization_code", "refresh_token"], response_types: ["code"], token_endpoint_auth_method: "none" };
  clientInformation() { return this.client; }
  saveClientInformation(client) { this.client = client; }
  tokens() { return this.saved; }
  saveTokens(tokens) { this.saved = tokens; }
  saveCodeVerifier(verifier) { this.verifier = verifier; }
  codeVerifier() { return this.verifier; }
  saveDiscoveryState(state) { this.discovered = state; }
  discoveryState() { return this.discovered; }
  redirectToAuthorization(url) { process.stdout.write(`${url}\n`); }
  async redirected() {
    for await (const line of lines) return new URL(line).searchParams;
  }
}

// Connect; where that needs a login, finish it and connect again.
export async function connect(makeClient, makeTransport) {
  const login = new Login();
  const transport = makeTransport(login);
  try {
    const client = makeClient();
    await client.connect(transport);
    return client;
  } catch (error) {
    if (login.verifier === undefined) throw error;
  }
  const answer = await login.redirected();
  await transport.finishAuth(answer.get("code"), answer.get("iss"));
  const client = makeClient();
  await client.connect(makeTransport(login));
  return client;
}

export async function journey(client, era) {
  const written = await client.callTool({ name: "write_file", arguments: { path: "ts.txt", content: "hi" } });
  process.stdout.write(JSON.stringify({ era, written }));
  await client.close();
  lines.close();
}
