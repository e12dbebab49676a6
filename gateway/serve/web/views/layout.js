/** The parts that every view is made of: what it is, the content, what happened to it. */
import { copyButton } from "../core/code.js";
import { h, replace } from "../core/dom.js";
import { icon } from "../core/icons.js";
import { Host, textOf, toError, ViewError } from "./bridge.js";

/** @typedef {import("../core/dom.js").Child} Child */
/** @typedef {import("./bridge.js").Shown} Shown */
/** @typedef {(host: Host, shown: Shown) => HTMLElement | Promise<HTMLElement>} Draw */

/** Lines shown inline before the rest is folded, about 480 px. */
export const INLINE_LINES = 22;

/** The lines shown before the rest is folded; undefined where nothing is. @param {Host} host */
export function inlineLines(host) {
  return host.isWhole ? undefined : INLINE_LINES;
}

/**
 * Start the view of this document.
 * @param {string} name
 * @param {Draw} draw
 * @param {{plan?: "required" | "optional" | "none"}} [options] whether the calls it shows have a plan
 */
export function startView(name, draw, { plan = "required" } = {}) {
  const root = /** @type {HTMLElement} */ (document.getElementById("root"));
  document.body.dataset.gwView = name;
  const host = new Host(name, plan !== "none");
  let drawing = 0;
  /** @param {Promise<HTMLElement> | HTMLElement} content */
  const show = async (content) => {
    const mine = ++drawing;
    const drawn = await Promise.resolve(content).catch((error) => errorNote(error, host));
    if (mine !== drawing || host.isClosed) return;
    replace(root, drawn);
    document.body.dataset.gwReady = "true";
  };
  host.onShown = (shown) => {
    if (shown.plan?.error) show(errorNote(shown.plan.error, host));
    else if (!shown.plan && shown.result?.isError) show(errorNote(toError(shown.result), host));
    else if (!shown.plan && plan === "required") show(fallback(host, new ViewError("NO_PLAN", "The host passed on no plan of this call.")));
    else show((async () => draw(host, shown))());
  };
  host.onFailed = (error) => show(fallback(host, error));
  replace(root, h("div", { class: "view__wait", role: "status", "aria-label": "Loading" }, h("span", { class: "skeleton" }), h("span", { class: "skeleton skeleton--short" })));
  host.connect().catch((error) => show(errorNote(error, host)));
}

/**
 * One line that says what is shown, with at most three actions.
 * @param {{icon: string, name: Child, facts?: Child, actions?: Child}} parts
 */
export function viewHead({ icon: shape, name, facts, actions }) {
  return h("header", { class: "view__head" }, icon(shape), h("div", { class: "view__title" }, h("h1", { class: "name", title: typeof name === "string" ? name : null }, name), h("span", { class: "meta" }, facts)), h("div", { class: "row push" }, actions));
}

/** @param {string} shape @param {string} label @param {() => void} onclick @param {string} testid */
export function iconButton(shape, label, onclick, testid) {
  return h("button", { type: "button", class: "button button--quiet button--icon", "aria-label": label, title: label, onclick, "data-testid": testid }, icon(shape));
}

/** Copy and download, as far as the host can. @param {Host} host @param {string} name @param {string} text @param {string} [mimeType] */
export function textActions(host, name, text, mimeType = "text/plain") {
  return [copyButton(() => text, "", `Copy ${name}`),
    host.can.downloadFile ? iconButton("download", `Download ${name}`, () => host.download(name.split("/").pop() ?? name, mimeType, { text }).catch(() => {}), "view.download") : null];
}

/** What happened, what to do, the code. @param {{code: string, message: string, details?: any} | Error} error @param {Host} [host] */
export function errorNote(error, host) {
  const { code, message } = /** @type {any} */ ({ code: "VIEW_FAILED", ...error, message: error.message || "The call failed." });
  document.body.dataset.gwError = code;
  return h("div", { class: "banner banner--bad", role: "alert", "data-testid": "view.error" }, icon("octagon"), h("h1", { class: "visually-hidden" }, "Not shown"), h("p", null, message, " ", h("code", null, code)),
    host && code !== "CANCELLED" ? reloadButton(host) : null);
}

/** The text of a result that has no plan. @param {Host} host @param {ViewError} error */
function fallback(host, error) {
  const text = textOf(host.result ?? undefined);
  return text ? h("div", { class: "view" }, h("pre", { class: "view__text", tabindex: 0 }, text), h("footer", { class: "view__foot" }, reloadButton(host))) : errorNote(error, host);
}

/** @param {Host} host */
function reloadButton(host) {
  return h("button", { type: "button", class: "button button--small", onclick: () => host.reload(), "data-testid": "view.reload" }, "Load again");
}
