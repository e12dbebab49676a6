// Chromium, driven over its DevTools protocol with Node's own WebSocket.

import { spawn } from "node:child_process";
import { writeFileSync } from "node:fs";

const PATIENCE = 120_000;

export async function open(binary, profile, options = []) {
  const flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0", `--user-data-dir=${profile}`];
  const process_ = spawn(binary, [...flags, ...options, "about:blank"], { stdio: ["ignore", "ignore", "pipe"] });
  const address = await new Promise((resolve, reject) => {
    let text = "";
    process_.stderr.on("data", (chunk) => {
      text += chunk;
      const found = text.match(/DevTools listening on ws:\/\/([^/]+)\//);
      if (found) resolve(found[1]);
    });
    process_.on("exit", () => reject(new Error(`the browser ended: ${text}`)));
  });
  const [target] = (await (await fetch(`http://${address}/json`)).json()).filter((each) => each.type === "page");
  const page = new Page(new WebSocket(target.webSocketDebuggerUrl));
  await page.ready;
  page.close = () => process_.kill("SIGKILL");
  return page;
}

class Page {
  #pending = new Map();
  #number = 0;

  constructor(socket) {
    this.socket = socket;
    this.ready = new Promise((resolve) => socket.addEventListener("open", resolve));
    socket.addEventListener("message", ({ data }) => {
      const { id, result, error } = JSON.parse(data);
      if (id === undefined) return;
      const { resolve, reject } = this.#pending.get(id);
      error ? reject(new Error(error.message)) : resolve(result);
    });
  }

  send(method, params = {}) {
    const id = ++this.#number;
    this.socket.send(JSON.stringify({ id, method, params }));
    return new Promise((resolve, reject) => this.#pending.set(id, { resolve, reject }));
  }

  async evaluate(expression) {
    const { result, exceptionDetails } = await this.send("Runtime.evaluate", { expression, awaitPromise: true, returnByValue: true });
    if (exceptionDetails) throw new Error(exceptionDetails.exception?.description ?? exceptionDetails.text);
    return result.value;
  }

  // Wait until an expression is true, through navigations.
  async until(expression) {
    const deadline = Date.now() + PATIENCE;
    for (;;) {
      const value = await this.evaluate(`Boolean(${expression})`).catch(() => undefined);
      if (value) return value;
      if (Date.now() > deadline) throw new Error(`still not true: ${expression}\n${await this.evaluate("location.href + document.body.innerText")}`);
      await new Promise((resolve) => setTimeout(resolve, 100));
    }
  }

  async resize(width, height, scheme = "light") {
    await this.send("Emulation.setDeviceMetricsOverride", { width, height, deviceScaleFactor: 1, mobile: width < 500 });
    await this.send("Emulation.setEmulatedMedia", { features: [{ name: "prefers-color-scheme", value: scheme }] });
  }

  async screenshot(path) {
    const { data } = await this.send("Page.captureScreenshot", { format: "png" });
    writeFileSync(path, Buffer.from(data, "base64"));
  }
}
