// A host of MCP Apps on the official AppBridge. The page around it has `mcp(method, params)`, which a real MCP client
// answers; `behaviour` is what this host does not do.
import { AppBridge, PostMessageTransport } from "@modelcontextprotocol/ext-apps/app-bridge";

const tools = new Map();
const state = { sizes: [], messages: [], links: [], refused: [], calls: [], reads: [] };
window.host = { state, listTools, show };

async function listTools() {
  for (const tool of (await window.mcp("tools/list", {})).tools) tools.set(tool.name, tool);
  return [...tools.keys()];
}

/** Call a tool as a model would, and show its view. */
async function show(name, args, behaviour = {}) {
  const tool = tools.get(name);
  const uri = tool._meta?.ui?.resourceUri ?? tool._meta?.["ui/resourceUri"];
  const { contents } = await window.mcp("resources/read", { uri });
  const [view] = contents;
  if (view.mimeType !== "text/html;profile=mcp-app") throw new Error(`not a view: ${view.mimeType}`);
  const result = await window.mcp("tools/call", { name, arguments: args });
  const frame = document.createElement("iframe");
  frame.setAttribute("sandbox", "allow-scripts allow-forms");
  frame.title = name;
  frame.style.cssText = "width: 100%; height: 600px; border: 0";
  document.body.replaceChildren(frame);

  const capabilities = { openLinks: {}, logging: {} };
  if (!behaviour.noTools) capabilities.serverTools = {};
  if (!behaviour.noResources) capabilities.serverResources = {};
  const hostContext = { theme: behaviour.theme ?? "light", displayMode: "inline", toolInfo: { id: 1, tool } };
  const bridge = new AppBridge(null, { name: "test-host", version: "1" }, capabilities, { hostContext });
  bridge.oncalltool = async (params) => {
    const visibility = tools.get(params.name)?._meta?.ui?.visibility ?? ["model", "app"];
    if (!tools.has(params.name) || !visibility.includes("app")) {
      state.refused.push(params.name);
      throw new Error(`a view may not call ${params.name}`);
    }
    state.calls.push(params.name);
    return await window.mcp("tools/call", { name: params.name, arguments: params.arguments ?? {} });
  };
  bridge.onreadresource = (params) => (state.reads.push(params.uri), window.mcp("resources/read", { uri: params.uri }));
  bridge.onlistresources = () => window.mcp("resources/list", {});
  bridge.onsizechange = (size) => state.sizes.push(size);
  bridge.onmessage = async (message) => (state.messages.push(message), {});
  bridge.onopenlink = async ({ url }) => (state.links.push(url), {});
  const ready = new Promise((resolve) => (bridge.oninitialized = resolve));
  await bridge.connect(new PostMessageTransport(frame.contentWindow, frame.contentWindow));
  frame.srcdoc = withPolicy(view);
  await ready;
  if (behaviour.silent) return result;
  if (!behaviour.noInput) await bridge.sendToolInput({ arguments: args });
  const passed = { ...result, content: result.content ?? [] };
  if (behaviour.stripMeta) delete passed._meta;
  if (behaviour.stripStructured) delete passed.structuredContent;
  if (behaviour.stripLinks) passed.content = passed.content.filter((block) => block.type !== "resource_link");
  await bridge.sendToolResult(passed);
  return result;
}

/** The view with the policy that the specification demands of a host. */
function withPolicy(view) {
  const csp = view._meta?.ui?.csp ?? {};
  const list = (domains) => (domains ?? []).join(" ");
  const policy = [
    "default-src 'none'",
    `script-src 'unsafe-inline' ${list(csp.resourceDomains)}`,
    `style-src 'unsafe-inline' ${list(csp.resourceDomains)}`,
    `img-src data: ${list(csp.resourceDomains)}`,
    `font-src data: ${list(csp.resourceDomains)}`,
    `connect-src ${list(csp.connectDomains) || "'none'"}`,
    `frame-src ${list(csp.frameDomains) || "'none'"}`,
    "base-uri 'none'",
  ].join("; ");
  const meta = `<meta http-equiv="Content-Security-Policy" content="${policy}">`;
  return view.text.replace(/^(\s*<!doctype[^>]*>)?/i, (doctype) => `${doctype}${meta}`);
}
