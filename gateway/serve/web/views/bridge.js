/** The bridge of a view to its host: JSON-RPC over postMessage (MCP Apps 2026-01-26), and the plan of the call it shows. */
import { applyTheme } from "./theme.js";

/** @typedef {{code: string, message: string, details?: Record<string, any>}} Fault */
/**
 * @typedef {object} Plan what a call came to, and how to show it
 * @property {string} renderer
 * @property {Record<string, any>} config
 * @property {{id: string, name: string, title: string}} tool
 * @property {{id: string, chat: string, startedAt: string, preManifest: string | null, postManifest: string | null}} call
 * @property {Record<string, any>} input
 * @property {string} status
 * @property {Fault} [error]
 * @property {{at: string, bytes: number}[]} [truncated]
 */
/** @typedef {{text: string, html: string, language: string, size: number, truncated: boolean, binary: boolean, revision: string | null, editable: boolean}} Content */
/** @typedef {{content?: any[], structuredContent?: any, isError?: boolean, _meta?: Record<string, any>}} ToolResult */
/** @typedef {{uri?: string, plan?: Plan, content?: Content, result?: ToolResult, input?: Record<string, any>}} Shown */
/** @typedef {(shown: Shown) => void} Listener */

const RENDER = "dev.toolgate/render";
const ERROR = "dev.toolgate/error";
/** Milliseconds without a plan after which the view asks for the latest call of its tool. */
const SILENCE = 3000;
const SIZE_DELAY = 40;
/** The name of a frame that fills a window and has no host (`gateway/cli/browser.py`). */
const WHOLE = "toolgate-whole";

/** A refusal, by the gateway or by the host. */
export class ViewError extends Error {
  /** @param {string} code @param {string} message @param {Record<string, any>} [details] */
  constructor(code, message, details = {}) {
    super(message);
    this.code = code;
    this.details = details;
  }
}

/** The host of this view. Handlers are registered before `connect`; a host says nothing before that. */
export class Host {
  /** @param {string} name of the view @param {boolean} wantsPlan whether the calls it shows have a plan */
  constructor(name, wantsPlan) {
    this.name = name;
    this.wantsPlan = wantsPlan;
    /** @type {Record<string, any>} */
    this.context = {};
    /** @type {Record<string, any>} what the host offers */
    this.can = {};
    /** @type {ToolResult | null} */
    this.result = null;
    /** @type {Record<string, any> | null} */
    this.input = null;
    /** @type {Listener} */
    this.onShown = () => {};
    /** @type {(error: ViewError) => void} */
    this.onFailed = () => {};
    this.isClosed = false;
    this._serial = 0;
    /** @type {Map<number, {resolve: (value: any) => void, reject: (error: ViewError) => void}>} */
    this._pending = new Map();
    this._attempt = 0;
    this._size = "";
    this._timer = 0;
  }

  /** Register the handlers, say hello and begin to look for the plan. */
  async connect() {
    window.addEventListener("message", (event) => {
      if (event.source === window.parent && event.data?.jsonrpc === "2.0") this._receive(event.data);
    });
    const embedded = readEmbedded("toolgate-plan");
    if (embedded) {
      document.documentElement.dataset.page = ""; // without a host
      if (window.name === WHOLE) this.context = { displayMode: "fullscreen" };
      this._show(embedded, "page");
    }
    if (window.parent === window) return;
    if (!embedded) setTimeout(() => this._resolve(null), SILENCE);
    const answer = await this.request("ui/initialize", {
      protocolVersion: "2026-01-26",
      appInfo: { name: `toolgate-${this.name}`, version: "1.0.0" },
      appCapabilities: { availableDisplayModes: ["inline", "fullscreen"] },
    });
    delete document.documentElement.dataset.page;
    this.can = answer.hostCapabilities ?? {};
    this._changeContext(answer.hostContext ?? {});
    this._notify("ui/notifications/initialized", {});
    this._watchSize();
  }

  /** @param {string} method @param {Record<string, any>} params @returns {Promise<any>} */
  request(method, params) {
    const id = ++this._serial;
    return new Promise((resolve, reject) => {
      this._pending.set(id, { resolve, reject });
      this._post({ id, method, params });
    });
  }

  /**
   * Call a tool that is for views only; return its value or throw what it refused.
   * @param {string} name
   * @param {Record<string, any>} args
   */
  async call(name, args) {
    if (!this.can.serverTools) throw new ViewError("NOT_OFFERED", "this host lets no view call tools");
    const result = await this.request("tools/call", { name, arguments: args });
    if (result.isError) throw toError(result);
    return result.structuredContent ?? JSON.parse(textOf(result));
  }

  /** Read a resource as text. @param {string} uri @returns {Promise<string>} */
  async read(uri) {
    if (!this.can.serverResources) throw new ViewError("NOT_OFFERED", "this host lets no view read resources");
    const [first] = (await this.request("resources/read", { uri })).contents ?? [];
    if (typeof first?.text !== "string") throw new ViewError("NOT_TEXT", `${uri} is not text`);
    return first.text;
  }

  /** @param {string} url */
  openLink(url) {
    return this.request("ui/open-link", { url });
  }

  /** Offer a file to the person. @param {string} name @param {string} mimeType @param {{text?: string, blob?: string}} data */
  async download(name, mimeType, data) {
    if (this.can.downloadFile) {
      const resource = { uri: `file:///${encodeURIComponent(name)}`, mimeType, ...data };
      return this.request("ui/download-file", { contents: [{ type: "resource", resource }] });
    }
    throw new ViewError("NOT_OFFERED", "this host offers no downloads");
  }

  /** Tell the model what a person did in the view, if the host passes that on. @param {string} text */
  async tellModel(text) {
    if (this.can.updateModelContext) await this.request("ui/update-model-context", { content: [{ type: "text", text }] }).catch(() => {});
  }

  /** Whether this is all that its window shows. */
  get isWhole() {
    return this.context.displayMode === "fullscreen";
  }

  get canFill() {
    return !this.isWhole && (this.context.availableDisplayModes ?? []).includes("fullscreen");
  }

  /** Ask for the whole window. */
  fill() {
    return this.request("ui/request-display-mode", { mode: "fullscreen" });
  }

  /** Look for the plan again. */
  reload() {
    return this._resolve(this.result);
  }

  /** @param {any} message */
  _receive(message) {
    const waiting = this._pending.get(message.id);
    if (message.method === undefined) {
      this._pending.delete(message.id);
      if (message.error) waiting?.reject(new ViewError(String(message.error.data?.code ?? "HOST_REFUSED"), message.error.message, message.error.data));
      else waiting?.resolve(message.result);
      return;
    }
    const params = message.params ?? {};
    if (message.method === "ui/notifications/tool-input") this.input = params.arguments ?? {};
    else if (message.method === "ui/notifications/tool-result") this._resolve((this.result = params));
    else if (message.method === "ui/notifications/tool-cancelled") this._fail(new ViewError("CANCELLED", params.reason ?? "The call was cancelled."));
    else if (message.method === "ui/notifications/host-context-changed") this._changeContext(params);
    if (message.id === undefined) return;
    if (message.method === "ui/resource-teardown") this.isClosed = true;
    const isKnown = message.method === "ui/resource-teardown" || message.method === "ping";
    this._post({ id: message.id, ...(isKnown ? { result: {} } : { error: { code: -32601, message: `${message.method}: not offered` } }) });
  }

  /** @param {Record<string, any>} message */
  _post(message) {
    window.parent.postMessage({ jsonrpc: "2.0", ...message }, "*");
  }

  /** @param {string} method @param {Record<string, any>} params */
  _notify(method, params) {
    this._post({ method, params });
  }

  /** @param {Record<string, any>} changed */
  _changeContext(changed) {
    this.context = { ...this.context, ...changed };
    applyTheme(this.context);
  }

  /** Report the height of the content whenever it changes. */
  _watchSize() {
    const root = /** @type {HTMLElement} */ (document.getElementById("root"));
    const report = () => {
      const [width, height] = [document.documentElement.clientWidth, Math.ceil(root.getBoundingClientRect().height)];
      if (this.isClosed || this._size === `${width} ${height}`) return;
      this._size = `${width} ${height}`;
      this._notify("ui/notifications/size-changed", { width, height });
    };
    new ResizeObserver(() => {
      clearTimeout(this._timer);
      this._timer = window.setTimeout(report, SIZE_DELAY);
    }).observe(root);
    report();
  }

  /**
   * Find the plan: in the result's `_meta`, by its link as a resource, by the same link through `render_plan`, or as
   * the latest call of the tool. Hosts strip any of these.
   * @param {ToolResult | null} result
   */
  async _resolve(result) {
    // After tool-input the call may still run, and the latest one with a plan would be another.
    if (result === null && (this.result || this.input)) return;
    const attempt = ++this._attempt;
    const own = result?._meta?.[RENDER] ?? {};
    if (own.plan) return this._show({ uri: own.uri, plan: own.plan }, "meta");
    const uri = own.uri ?? result?.content?.find((block) => block.type === "resource_link" && String(block.uri).startsWith("render://"))?.uri;
    const tool = this.context.toolInfo?.tool?.name;
    /** @type {[string, () => Promise<Shown>][]} */
    const ways = uri && this.wantsPlan
      ? [["resource", async () => ({ uri, plan: JSON.parse(await this.read(uri)) })], ["tool", () => this.call("render_plan", { uri })]]
      : [];
    if (tool && this.wantsPlan) ways.push(["latest", () => this.call("render_plan", { tool })]);
    for (const [via, find] of ways) {
      const found = await Promise.race([find().catch(() => null), wait(SILENCE)]);
      if (attempt !== this._attempt) return;
      if (found?.plan) return this._show(found, via);
    }
    if (result) this._show({}, "result");
    else this._fail(new ViewError("NO_RESULT", "The host passed on no result of this call."));
  }

  /** @param {Shown} shown @param {string} via */
  _show(shown, via) {
    document.body.dataset.gwPlanVia = via;
    this.onShown({ ...shown, result: this.result ?? shown.result, input: shown.plan?.input ?? this.input ?? undefined });
  }

  /** @param {ViewError} error */
  _fail(error) {
    if (!this.isClosed) this.onFailed(error);
  }
}

/** The text blocks of a result. @param {ToolResult | undefined} result */
export function textOf(result) {
  return (result?.content ?? []).filter((block) => block.type === "text").map((block) => block.text).join("\n");
}

/** The refusal that a result holds. @param {ToolResult} result */
export function toError(result) {
  const fault = result._meta?.[ERROR];
  const [, code, message] = /^([A-Z][A-Z_]+): ([^]*)$/.exec(textOf(result)) ?? [null, "FAILED", textOf(result)];
  return new ViewError(fault?.code ?? code, fault?.message ?? message, fault?.details);
}

/** JSON in a script element of the document; null if there is none. @param {string} id */
export function readEmbedded(id) {
  const text = document.getElementById(id)?.textContent;
  return text ? JSON.parse(text) : null;
}

/** @param {number} milliseconds @returns {Promise<null>} */
function wait(milliseconds) {
  return new Promise((resolve) => setTimeout(() => resolve(null), milliseconds));
}
