// The page around an upstream's view of MCP Apps. The host sees one server, the gateway, and would let any view call any
// server's tools. So the view runs in a frame without an origin, and the host, which hears only this page, gets from
// it only requests to the view's own server: the view uses its server's names, the host knows the gateway's.
(([page, title, names, [scheme, pages]]) => {
  const host = window.parent;
  const ownNames = new Map(Object.entries(names).map(([own, name]) => [name, own]));
  const asked = new Map(); // methods by the ids of the view's requests
  const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);
  const ownTool = (name) => ownNames.get(name) ?? name;

  // Of a server without a prefix: what belongs to the gateway or to other servers.
  const FOREIGN = /^(?:workspace|manifest|render|instructions|ui|mcp\+[^:]*):/i;
  const publicUri = (uri) => {
    if (typeof uri !== "string" || (!scheme && FOREIGN.test(uri))) return null;
    if (!scheme || uri.startsWith(scheme) || uri.startsWith(pages)) return uri;
    return uri.startsWith("ui://") ? pages + uri.slice("ui://".length) : scheme + uri;
  };
  const ownUri = (uri) => {
    if (!scheme || typeof uri !== "string") return uri;
    if (uri.startsWith(pages)) return `ui://${uri.slice(pages.length)}`;
    return uri.startsWith(scheme) ? uri.slice(scheme.length) : uri;
  };
  const isOwn = (uri) => typeof uri === "string" && (scheme ? uri.startsWith(scheme) || uri.startsWith(pages) : !FOREIGN.test(uri));

  const withUri = (item) => (isObject(item) && "uri" in item ? { ...item, uri: ownUri(item.uri) } : item);
  const block = (item) => {
    if (!isObject(item)) return item;
    return item.type === "resource" ? { ...item, resource: withUri(item.resource) } : withUri(item);
  };
  const toolResult = (result) =>
    isObject(result) && Array.isArray(result.content) ? { ...result, content: result.content.map(block) } : result;
  const hostContext = (context) => {
    const tool = context?.toolInfo?.tool;
    if (!isObject(tool)) return context;
    return { ...context, toolInfo: { ...context.toolInfo, tool: { ...tool, name: ownTool(tool.name) } } };
  };
  // The methods that reach a server. Lists have only what belongs to the view's own.
  const answers = {
    "ui/initialize": (result) => ({ ...result, hostContext: hostContext(result.hostContext) }),
    "tools/call": toolResult,
    "tools/list": (result) => ({
      ...result,
      tools: result.tools?.filter((tool) => ownNames.has(tool.name)).map((tool) => ({ ...tool, name: ownTool(tool.name) })),
    }),
    "resources/list": (result) => ({
      ...result,
      resources: result.resources?.filter((resource) => isOwn(resource.uri)).map(withUri),
    }),
    "resources/templates/list": (result) => ({
      ...result,
      resourceTemplates: result.resourceTemplates?.filter((each) => isOwn(each.uriTemplate)).map((each) => ({ ...each, uriTemplate: ownUri(each.uriTemplate) })),
    }),
    "resources/read": (result) => ({ ...result, contents: result.contents?.map(withUri) }),
  };
  const notices = {
    "ui/notifications/tool-result": toolResult,
    "ui/notifications/host-context-changed": hostContext,
  };

  // Parameters for the host; null for what is not of the view's own server.
  const toPublic = (method, params) => {
    if (method === "tools/call") return Object.hasOwn(names, params.name) ? { ...params, name: names[params.name] } : null;
    if (method === "resources/read") return publicUri(params.uri) === null ? null : { ...params, uri: publicUri(params.uri) };
    return Object.hasOwn(answers, method) || /^(?:ui|notifications|sampling)\/|^ping$/.test(method) ? params : null;
  };
  const toHost = (message) => {
    const { id, method, result, error } = message;
    if (typeof method !== "string") return host.postMessage({ jsonrpc: "2.0", id, ...(error ? { error } : { result }) }, "*");
    const params = toPublic(method, isObject(message.params) ? message.params : {});
    if (params !== null) {
      if (id !== undefined && asked.has(id)) return; // else one answer would be taken for another's
      if (id !== undefined) asked.set(id, method);
      host.postMessage({ jsonrpc: "2.0", ...(id === undefined ? {} : { id }), method, params }, "*");
    } else if (id !== undefined) {
      const text = `${method}: a view reaches only its own server`;
      frame.contentWindow.postMessage({ jsonrpc: "2.0", id, error: { code: -32602, message: text } }, "*");
    }
  };
  const toView = (message) => {
    if ("method" in message) {
      const change = Object.hasOwn(notices, message.method) && notices[message.method];
      return change && isObject(message.params) ? { ...message, params: change(message.params) } : message;
    }
    const method = asked.get(message.id);
    asked.delete(message.id);
    return Object.hasOwn(answers, method) && isObject(message.result) ? { ...message, result: answers[method](message.result) } : message;
  };

  const frame = document.createElement("iframe");
  frame.title = title;
  frame.setAttribute("sandbox", "allow-scripts allow-forms allow-popups allow-modals allow-downloads allow-pointer-lock");
  frame.allow = "camera *; microphone *; geolocation *; clipboard-write *; fullscreen *";
  window.addEventListener("message", ({ source, data }) => {
    if (!isObject(data) || data.jsonrpc !== "2.0") return;
    if (source === host) frame.contentWindow.postMessage(toView(data), "*");
    else if (source === frame.contentWindow) toHost(data);
  });
  frame.srcdoc = page;
  document.body.append(frame);
})(JSON.parse(document.getElementById("toolgate-view").textContent));
