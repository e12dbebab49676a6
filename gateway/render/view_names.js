// The first script of an upstream's view of MCP Apps. The view uses its server's own names of tools and resources; the
// host knows the gateway's. Messages to the host get the gateway's names, and messages from it the server's.
// Not a boundary: a view that wants to can send any name.
((names, [scheme, pages]) => {
  const host = window.parent;
  const ownNames = new Map(Object.entries(names).map(([own, name]) => [name, own]));
  const asked = new Map(); // methods by the ids of the view's requests
  const isObject = (value) => typeof value === "object" && value !== null;
  const toolName = (name) => (Object.hasOwn(names, name) ? names[name] : name);
  const ownTool = (name) => ownNames.get(name) ?? name;

  const publicUri = (uri) => {
    if (!scheme || typeof uri !== "string" || uri.startsWith(scheme) || uri.startsWith(pages)) return uri;
    return uri.startsWith("ui://") ? pages + uri.slice("ui://".length) : scheme + uri;
  };
  const ownUri = (uri) => {
    if (!scheme || typeof uri !== "string") return uri;
    if (uri.startsWith(pages)) return `ui://${uri.slice(pages.length)}`;
    return uri.startsWith(scheme) ? uri.slice(scheme.length) : uri;
  };
  const isOwn = (uri) => !scheme || (typeof uri === "string" && (uri.startsWith(scheme) || uri.startsWith(pages)));

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
  // Lists have only what belongs to the view's own server.
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
    "resources/read": (result) => ({ ...result, contents: result.contents?.map(withUri) }),
  };
  const notices = {
    "ui/notifications/tool-result": toolResult,
    "ui/notifications/host-context-changed": hostContext,
  };

  const outgoing = (message) => {
    if (!isObject(message) || message.jsonrpc !== "2.0" || !("method" in message)) return message;
    const { id, method, params } = message;
    if (id !== undefined && Object.hasOwn(answers, method)) asked.set(id, method);
    if (method === "tools/call" && isObject(params)) {
      return { ...message, params: { ...params, name: toolName(params.name) } };
    }
    if (method.startsWith("resources/") && isObject(params) && "uri" in params) {
      return { ...message, params: { ...params, uri: publicUri(params.uri) } };
    }
    return message;
  };
  const incoming = (message) => {
    if (!isObject(message) || message.jsonrpc !== "2.0") return message;
    if ("method" in message) {
      const change = Object.hasOwn(notices, message.method) && notices[message.method];
      return change && isObject(message.params) ? { ...message, params: change(message.params) } : message;
    }
    const method = asked.get(message.id);
    asked.delete(message.id);
    return method && isObject(message.result) ? { ...message, result: answers[method](message.result) } : message;
  };

  const face = { postMessage: (message, ...rest) => host.postMessage(outgoing(message), ...rest) };
  const seen = new WeakMap();
  const patch = (property, change) => {
    const { get } = Object.getOwnPropertyDescriptor(MessageEvent.prototype, property);
    Object.defineProperty(MessageEvent.prototype, property, {
      configurable: true,
      enumerable: true,
      get() {
        return change(this, get.call(this));
      },
    });
    return get;
  };
  const source = patch("source", (_, value) => (value === host ? face : value));
  patch("data", (event, value) => {
    if (source.call(event) !== host) return value;
    if (!seen.has(event)) seen.set(event, incoming(value));
    return seen.get(event);
  });
  window.parent = face; // [Replaceable], so it can be assigned
})(...JSON.parse(document.currentScript.dataset.names));
