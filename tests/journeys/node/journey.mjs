// What every client of the TypeScript family does with the gateway, and what it saw, as one line of JSON.

const MODERN = "2026-07-28";

/** The gateway to reach, as the test wrote it: {era, url} over HTTP, {era, command, args, env, cwd} over stdio. */
export const target = JSON.parse(process.argv[2]);

export async function journey(connected) {
  const client = await connected;
  try {
    const calls = await makeCalls(client);
    process.stdout.write(JSON.stringify({ ...calls, server: client.getServerVersion() }) + "\n");
  } finally {
    await client.close();
  }
}

async function makeCalls(client) {
  const call = (name, args) => client.callTool({ name, arguments: args });
  const tools = await allTools(client);
  const written = await call("write_file", { path: "notes.txt", content: "from node\n" });
  const read = await call("read_file", { path: "notes.txt" });
  const { resources } = await client.listResources();
  const { uri } = resources.find((resource) => resource.name === "notes.txt");
  const resource = (await client.readResource({ uri })).contents[0].text;
  const listed = await call("list_directory", { path: "." });
  const missing = await call("read_file", { path: "nowhere.txt" });
  const refused = await call("delete_file", { path: "notes.txt" });
  const together = await Promise.all(
    Array.from({ length: 20 }, (_, number) => call("write_file", { path: `many-${number}.txt`, content: `${number}` })),
  );
  const ping = target.era === MODERN ? null : await client.ping();
  return { tools, written, read, resource, listed, missing, refused, together, ping };
}

async function allTools(client) {
  const tools = [];
  let cursor;
  do {
    const page = await client.listTools(cursor === undefined ? undefined : { cursor });
    tools.push(...page.tools);
    cursor = page.nextCursor;
  } while (cursor !== undefined);
  return tools;
}
