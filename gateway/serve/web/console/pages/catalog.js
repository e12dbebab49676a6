/** Parts that the pages Tools, Toolsets and Servers share: lists read whole, badges, tabs, list beside detail. */

import {codeBlock} from "../../core/code.js";
import {h} from "../../core/dom.js";
import {formatTokens} from "../../core/format.js";
import {icon} from "../../core/icons.js";

const LEVELS = {"read-only": "", "read-write": "badge--accent", execute: "badge--warn"};
const ORIGINS = {builtin: ["lock", "Builtin"], toolset: ["toolsets", "Toolset"], server: ["servers", "Server"]};
const NARROWEST = 320;

/** Every item of a list of the gateway, page by page. */
export async function readAll(api, path, query = {}) {
  const items = [];
  let token = null;
  do {
    const page = await api.get(path, {...query, limit: 1000, page_token: token});
    items.push(...page.items);
    token = page.next_page_token;
  } while (token);
  return items;
}

export function levelBadge(level) {
  return level ? h("span", {class: `badge ${LEVELS[level] ?? ""}`}, level) : null;
}

export function originBadge(tool) {
  const [shape, word] = ORIGINS[tool.origin];
  return h("span", {class: "badge"}, icon(shape), tool.owner ? `${word} ${tool.owner}` : word);
}

/** The badges of a tool in the fixed order; `all` for the detail, else those of a table row. */
export function toolBadges(tool, all = false) {
  return [
    all ? originBadge(tool) : null,
    all ? levelBadge(tool.permission) : null,
    tool.requires_confirmation ? h("span", {class: "badge badge--warn"}, icon("approvals"), "asks") : null,
    tool.destructive && (all || !tool.requires_confirmation) ? h("span", {class: "badge badge--bad"}, "destructive") : null,
    tool.app_only ? h("span", {class: "badge"}, "app only") : null,
    tool.renderer ? h("span", {class: "badge badge--view"}, icon("eye"), tool.renderer) : null,
    all ? h("span", {class: "badge", title: "An estimate: four bytes of its definition are about one token"}, formatTokens(tool.tokens)) : null,
  ];
}

/** Tabs as links: `names` is {key: [word, count]}, `href` makes the address of one. */
export function tabLinks(names, current, href, testid) {
  return h(
    "nav", {class: "tabs", "aria-label": "Parts"},
    Object.entries(names).map(([key, [word, count]]) =>
      h("a", {href: href(key), "aria-current": key === current ? "page" : null, "data-testid": `${testid}.tab`, "data-key": key}, word, count ? h("span", {class: "count"}, count) : null)),
  );
}

/** A value as JSON, or a text as it is. */
export function jsonBlock(value, label, options = {}) {
  const text = typeof value === "string" ? value : JSON.stringify(value, null, 2) ?? "null";
  return codeBlock({text, label, language: typeof value === "string" ? undefined : "json", ...options});
}

/** Names and values side by side; what is null is left out. */
export function facts(pairs) {
  const known = Object.entries(pairs).filter(([, value]) => value !== null && value !== undefined && value !== "");
  return h("dl", {class: "facts"}, known.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
}

/**
 * A list with the detail beside it. The divider drags and moves with arrow keys; its place is kept per page. Below
 * 900 px only one of the two is shown: the detail if `isOpen`.
 */
export function splitPane(list, detail, {page, isOpen, side = "detail", width = 424}) {
  const kept = Number(localStorage.getItem(`split.${page}`)) || width;
  const node = h("div", {class: `split split--${side}${isOpen ? " split--open" : ""}`});
  const bar = h("div", {class: "split__bar", role: "separator", tabindex: "0", "aria-orientation": "vertical", "aria-label": "Width of the parts", "data-testid": `${page}.divider`});
  let now = kept;
  const resize = (pixels) => {
    const most = Math.max(NARROWEST, (node.clientWidth || 1400) - NARROWEST);
    now = Math.round(Math.min(Math.max(pixels, NARROWEST - 60), most));
    node.style.setProperty("--side", `${now}px`);
    bar.setAttribute("aria-valuenow", String(now));
    bar.setAttribute("aria-valuemin", String(NARROWEST - 60));
    bar.setAttribute("aria-valuemax", String(most));
  };
  const keep = () => localStorage.setItem(`split.${page}`, String(now));
  const sign = side === "detail" ? -1 : 1;
  bar.addEventListener("keydown", (event) => {
    const step = {ArrowLeft: -16, ArrowRight: 16}[event.key];
    if (!step) return;
    event.preventDefault();
    resize(now + sign * step);
    keep();
  });
  bar.addEventListener("pointerdown", (event) => {
    const [from, before] = [event.clientX, now];
    bar.setPointerCapture(event.pointerId);
    const move = (moved) => resize(before + sign * (moved.clientX - from));
    bar.addEventListener("pointermove", move);
    bar.addEventListener("lostpointercapture", () => { bar.removeEventListener("pointermove", move); keep(); }, {once: true});
  });
  resize(kept);
  node.append(list, bar, detail);
  return node;
}

/** Give the focus to a title that was just opened. */
export function focusTitle(node) {
  const title = node.querySelector("h2");
  if (!title) return;
  title.tabIndex = -1;
  title.focus({preventScroll: true});
}

/**
 * An empty place: one icon, what would be here, and what to do.
 * @param {string} shape @param {string} title @param {string} text @param {HTMLElement | null} action
 */
export function emptyState(shape, title, text, action = null) {
  return h("div", {class: "empty"}, icon(shape), h("strong", {}, title), h("p", {}, text), action);
}

/** Run an action of a button: busy while it lasts, and an error as a toast. */
export async function runAction(button, toast, action) {
  button.setAttribute("aria-busy", "true");
  button.disabled = true;
  try {
    return await action();
  } catch (error) {
    toast(error.code ? `${error.message} (${error.code})` : error.message, {kind: "bad"});
    return null;
  } finally {
    button.removeAttribute("aria-busy");
    button.disabled = false;
  }
}
