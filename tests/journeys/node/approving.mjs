// Calls that need a person, made by the TypeScript SDK 1.x or its 2.x client; what was asked and what came of it, as JSON.

const target = JSON.parse(process.argv[2]);
const questions = [];
let reply;

/** Accept the form as it is prefilled, but for what is edited. */
const choose = (decision, edits = {}) => (params) => {
  const fields = Object.entries(params.requestedSchema.properties);
  const filled = Object.fromEntries(fields.filter(([, field]) => "default" in field).map(([key, field]) => [key, field.default]));
  return { action: "accept", content: { ...filled, ...edits, decision } };
};

async function answer(request) {
  questions.push(request.params.message);
  return reply(request.params);
}

async function connect() {
  const who = { name: "journeys-approving", version: "1.0.0" };
  const capabilities = { elicitation: { form: {} } };
  if (target.sdk === 1) {
    const { Client } = await import("@modelcontextprotocol/sdk/client/index.js");
    const { StdioClientTransport } = await import("@modelcontextprotocol/sdk/client/stdio.js");
    const { StreamableHTTPClientTransport } = await import("@modelcontextprotocol/sdk/client/streamableHttp.js");
    const { ElicitRequestSchema } = await import("@modelcontextprotocol/sdk/types.js");
    const client = new Client(who, { capabilities });
    client.setRequestHandler(ElicitRequestSchema, answer);
    await client.connect(way(StdioClientTransport, StreamableHTTPClientTransport));
    return client;
  }
  const { Client, StreamableHTTPClientTransport } = await import("@modelcontextprotocol/client");
  const { StdioClientTransport } = await import("@modelcontextprotocol/client/stdio");
  const mode = target.era === "2026-07-28" ? "auto" : "legacy";
  const client = new Client(who, { capabilities, versionNegotiation: { mode } });
  client.setRequestHandler("elicitation/create", answer);
  await client.connect(way(StdioClientTransport, StreamableHTTPClientTransport));
  if (client.getNegotiatedProtocolVersion() !== target.era) {
    throw new Error(`settled on ${client.getNegotiatedProtocolVersion()} instead of ${target.era}`);
  }
  return client;
}

function way(Stdio, Http) {
  return target.url === undefined ? new Stdio(target) : new Http(new URL(target.url));
}

const client = await connect();
try {
  const call = (name, args) => client.callTool({ name, arguments: args });
  const overwrite = (content) => call("write_file", { path: "notes.txt", content });
  const answered = async (given, content) => ((reply = given), await overwrite(content));
  await overwrite("first");
  const approved = await answered(choose("approve once"), "approved");
  const denied = await answered(choose("deny"), "denied");
  const declined = await answered(() => ({ action: "decline" }), "declined");
  const cancelled = await answered(() => ({ action: "cancel" }), "cancelled");
  const edited = await answered(choose("approve once", { argument_content: "edited" }), "unedited");
  const read = await call("read_file", { path: "notes.txt" });
  const remembered = [await answered(choose("approve for this chat"), "one"), await answered(undefined, "two")];
  process.stdout.write(JSON.stringify({ approved, denied, declined, cancelled, edited, read, remembered, questions }) + "\n");
} finally {
  await client.close();
}
