/** A toolset's page in a nested frame without an origin: it has its data and a height, and no way to the host. */
import { h } from "../core/dom.js";
import { formatSize } from "../core/format.js";
import { readEmbedded } from "./bridge.js";

/** @typedef {import("./bridge.js").Host} Host */
/** @typedef {import("./bridge.js").Shown} Shown */

const START = /^\ufeff?\s*(?:<!-[-][^]*?-->\s*)*(?:<!doctype[^>]*>)?/i;
const TALLEST = 4000;
// Tells the frame's height to the view, which listens to nothing else from it.
const REPORTER = [
  "(() => { const page = document.documentElement;",
  'const report = () => parent.postMessage({ toolgateHeight: Math.ceil(page.getBoundingClientRect().height) }, "*");',
  'new ResizeObserver(report).observe(page); addEventListener("load", report); })();',
].join("\n");

/**
 * @param {Host} host
 * @param {Shown} shown
 */
export async function drawArtifact(host, shown) {
  const config = shown.plan?.config ?? {};
  const cut = (shown.plan?.truncated ?? []).find((each) => each.at === "config.data" || each.at === "config");
  if (cut) return h("p", { class: "view__note" }, `The data of this call has ${formatSize(cut.bytes)}, too much to be shown.`);
  const artifact = readEmbedded("toolgate-artifact");
  const page = typeof artifact === "string" ? insertFirst(artifact, `window.__TOOL_DATA__ = ${literal(config.data ?? null)};`) : await host.read(`${shown.uri}/view`);
  const frame = h("iframe", { sandbox: "allow-scripts", title: shown.plan?.tool.title ?? "Result", srcdoc: insertFirst(page, REPORTER), style: { height: "160px" }, "data-testid": "view.artifact" });
  window.addEventListener("message", (event) => {
    const height = event.data?.toolgateHeight;
    if (event.source === frame.contentWindow && Number.isFinite(height) && height > 0) frame.style.height = `${Math.min(height, TALLEST)}px`;
  });
  return h("div", { class: "view" }, h("h1", { class: "visually-hidden" }, frame.title), frame);
}

/** A value as an expression that cannot end its script. @param {any} value */
function literal(value) {
  const text = JSON.stringify(JSON.stringify(value));
  return `JSON.parse(${text.replace(/[<>&\u2028\u2029]/g, (character) => `\\u${character.charCodeAt(0).toString(16).padStart(4, "0")}`)})`;
}

/** @param {string} page @param {string} script */
function insertFirst(page, script) {
  const place = START.exec(page)?.[0].length ?? 0;
  const tag = "script"; // written so that no tool takes it for an element of this document
  return `${page.slice(0, place)}<${tag}>${script}</${tag}>${page.slice(place)}`;
}
