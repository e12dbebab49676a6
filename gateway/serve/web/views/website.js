/** A page of another address in a frame; a card with "Open in browser" where the host forbids frames. */
import { copyButton } from "../core/code.js";
import { h, replace } from "../core/dom.js";
import { icon } from "../core/icons.js";
import { viewHead } from "./layout.js";

/** @typedef {import("./bridge.js").Host} Host */
/** @typedef {import("./bridge.js").Shown} Shown */

const HEIGHT = 460;

/**
 * @param {Host} host
 * @param {Shown} shown
 */
export function drawWebsite(host, shown) {
  const { url, origin } = shown.plan?.config ?? {};
  if (typeof url !== "string" || !/^https?:/i.test(url)) return h("p", { class: "view__note" }, "This call named no address.");
  const open = (/** @type {string} */ kind) => host.can.openLinks
    ? h("button", { type: "button", class: `button ${kind}`, onclick: () => host.openLink(url).catch(() => {}), "data-testid": "view.open" }, icon("external"), "Open in browser")
    : copyButton(() => url, "", "Copy the address");
  const view = h("div", { class: "view" });
  const block = () => {
    document.body.dataset.gwBlocked = "true";
    replace(view, h("div", { class: "empty", "data-testid": "view.blocked" }, icon("external"), h("h1", null, "This host shows no pages of other addresses"), h("p", { class: "mono" }, url), open("button--primary")));
  };
  const allowed = host.can.sandbox?.csp?.frameDomains;
  if (Array.isArray(allowed) && !allowed.some((each) => matches(each, origin ?? url))) {
    block();
    return view;
  }
  document.addEventListener("securitypolicyviolation", (event) => {
    if (/^(frame|child|default)-src/.test(event.violatedDirective)) block();
  });
  const frame = h("iframe", { src: url, title: shown.plan?.tool.title ?? url, sandbox: "allow-scripts allow-forms allow-popups", referrerpolicy: "no-referrer", style: { height: `${HEIGHT}px` }, "data-testid": "view.page" });
  replace(view, viewHead({ icon: "external", name: url, actions: open("button--small") }), frame);
  return view;
}

/** @param {string} source of a policy, perhaps with `*` @param {string} origin */
function matches(source, origin) {
  const pattern = source.replace(/[.+?^${}()|[\]\\]/g, "\\$&").replace(/\*/g, "[^/]*");
  return new RegExp(`^${pattern}/?$`, "i").test(origin);
}
