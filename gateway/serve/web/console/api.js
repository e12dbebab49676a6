/** The REST API of the gateway. The browser's session cookie authenticates; no script sees a credential. */

/** @typedef {{headers?: Record<string, string>, signal?: AbortSignal}} RequestOptions */
/** @typedef {{method?: string, body?: any, onState?: (state: "live" | "lost", error?: Error) => void}} StreamOptions */

const RETRY_FIRST_MS = 1000;
const RETRY_MOST_MS = 15000;

/** A refusal by the gateway: `message` says what to do, `code` is stable. */
export class ApiError extends Error {
  constructor(status, error = {}) {
    super(error.message || `The gateway answered with status ${status}.`);
    this.name = "ApiError";
    this.status = status;
    this.code = error.code || "INTERNAL";
    this.details = error.details || {};
    this.requestId = this.details.request_id || null;
  }
}

export const api = {
  /** Get JSON. `query` are parameters; null and undefined are left out, lists are repeated. */
  get(path, query, options = {}) {
    return request("GET", addQuery(path, query), undefined, options);
  },

  /** Send a change. `body` is JSON, a form or a file; returns the answer, null for none. */
  send(method, path, body, options = {}) {
    return request(method, path, body, options);
  },

  /**
   * Follow server-sent events; `onEvent` gets `{event, data, id}` with `data` parsed. A GET is made again after the
   * connection was lost, with the last id. Returns a function that ends it; its `done` is a promise.
   * Options: `method` and `body` of a POST, `onState("live" | "lost", error)`.
   * @param {string} path @param {(event: any) => void} onEvent @param {StreamOptions} options
   */
  stream(path, onEvent, options = {}) {
    const abort = new AbortController();
    const close = () => abort.abort();
    close.close = close;
    close.done = follow(path, onEvent, options, abort.signal);
    close.done.catch(() => {});
    return close;
  },
};

function addQuery(path, query) {
  const params = query instanceof URLSearchParams ? query : new URLSearchParams();
  if (params !== query) {
    for (const [name, value] of Object.entries(query || {})) {
      for (const each of Array.isArray(value) ? value : [value]) {
        if (each !== null && each !== undefined && each !== "") params.append(name, String(each));
      }
    }
  }
  const text = params.toString();
  return text ? `${path}${path.includes("?") ? "&" : "?"}${text}` : path;
}

async function request(method, path, body, options) {
  const response = await open(method, path, body, options);
  if (response.status === 204) return null;
  const isJson = (response.headers.get("content-type") || "").startsWith("application/json");
  return isJson ? response.json() : response.text();
}

/** @param {string} method @param {string} path @param {any} body @param {RequestOptions} options @returns {Promise<any>} */
async function open(method, path, body, {headers = {}, signal}) {
  /** @type {RequestInit & {headers: Record<string, string>}} */
  const init = {method, headers: {accept: "application/json", ...headers}, signal, credentials: "same-origin"};
  if (body instanceof FormData || body instanceof Blob) {
    init.body = body;
  } else if (body !== undefined) {
    init.body = JSON.stringify(body);
    init.headers["content-type"] = "application/json";
  }
  let response;
  try {
    response = await fetch(path, init);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, {code: "UNREACHABLE", message: "The gateway does not answer. Check that it runs, then try again."});
  }
  if (response.ok) return response;
  const answer = await response.json().catch(() => ({}));
  if (response.status === 401) signIn();
  throw new ApiError(response.status, answer.error);
}

/** Go to the sign-in page, and from there back to this address. */
export function signIn() {
  location.assign(`/sign-in?next=${encodeURIComponent(location.pathname + location.search)}`);
}

/** @param {string} path @param {(event: any) => void} onEvent @param {StreamOptions} options @param {AbortSignal} signal */
async function follow(path, onEvent, {method = "GET", body, onState = () => {}}, signal) {
  let lastId = null;
  let wait = RETRY_FIRST_MS;
  while (!signal.aborted) {
    try {
      /** @type {Record<string, string>} */
      const headers = {accept: "text/event-stream"};
      if (lastId) headers["last-event-id"] = lastId;
      const response = await open(method, path, body, {headers, signal});
      onState("live");
      wait = RETRY_FIRST_MS;
      await readEvents(response.body, (event) => {
        lastId = event.id || lastId;
        onEvent(event);
      });
      if (method !== "GET") return;
    } catch (error) {
      if (signal.aborted) return;
      const isFinal = error instanceof ApiError && error.status >= 400 && error.status < 500;
      if (method !== "GET" || isFinal) throw error;
      onState("lost", error);
    }
    await /** @type {Promise<void>} */ (new Promise((resolve) => {
      const timer = setTimeout(resolve, wait);
      signal.addEventListener("abort", () => { clearTimeout(timer); resolve(); }, {once: true});
    }));
    wait = Math.min(wait * 2, RETRY_MOST_MS);
  }
}

async function readEvents(stream, onEvent) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const {value, done} = await reader.read();
    if (done) return;
    text = (text + value).replaceAll("\r\n", "\n");
    for (let end = text.indexOf("\n\n"); end >= 0; end = text.indexOf("\n\n")) {
      const event = parseEvent(text.slice(0, end));
      text = text.slice(end + 2);
      if (event) onEvent(event);
    }
  }
}

function parseEvent(block) {
  /** @type {{event: string, data: any, id: string | null}} */
  const event = {event: "message", data: null, id: null};
  const data = [];
  for (const line of block.split("\n")) {
    const colon = line.indexOf(":");
    if (colon <= 0) continue;
    const value = line.slice(colon + 1).replace(/^ /, "");
    if (line.startsWith("event:")) event.event = value;
    else if (line.startsWith("id:")) event.id = value;
    else if (line.startsWith("data:")) data.push(value);
  }
  if (!data.length) return null;
  try {
    event.data = JSON.parse(data.join("\n"));
  } catch {
    event.data = data.join("\n");
  }
  return event;
}
