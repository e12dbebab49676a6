/** Code and documents: read, edit, save on top of the revision that was read, and what to do if somebody else saved first. */
import { codeBlock, moreButton, splitLines } from "../core/code.js";
import { fromServerHtml, h, replace } from "../core/dom.js";
import { diffHunks, diffView } from "../core/diff.js";
import { makeEditor } from "../core/editor.js";
import { formatSize, formatTime, plural } from "../core/format.js";
import { icon, state } from "../core/icons.js";
import { errorNote, INLINE_LINES, inlineLines, textActions, viewHead } from "./layout.js";

/** @typedef {import("./bridge.js").Host} Host */
/** @typedef {import("./bridge.js").Shown} Shown */
/** @typedef {import("./bridge.js").Content} Content */
/** @typedef {{manifest?: string, time: number} | null} Saved */

/** Milliseconds after which somebody who wants to edit gets the text area, since a host may never answer. */
const PATIENCE = 5000;
const ACRONYMS = new Set(["css", "csv", "html", "ini", "json", "php", "sql", "toml", "xml", "yaml"]);

/**
 * The view of a code or document plan.
 * @param {Host} host
 * @param {Shown} shown
 */
export async function drawFile(host, shown) {
  const view = h("div", { class: "view" });
  const content = shown.content ?? (await loadContent(host, shown));
  drawReading(view, host, shown, content, null);
  return view;
}

/** The text and its HTML from the gateway; the text alone from a host that lets views call nothing. @param {Host} host @param {Shown} shown @returns {Promise<Content>} */
async function loadContent(host, shown) {
  const config = shown.plan?.config ?? {};
  if (shown.uri && host.can.serverTools) {
    const described = await host.call("render_plan", { uri: shown.uri }).catch(() => null);
    if (described?.content) return described.content;
  }
  const text = typeof config.content === "string" ? config.content : config.uri ? await host.read(config.manifest ? `${config.uri}?manifest=${config.manifest}` : config.uri) : "";
  const cut = (shown.plan?.truncated ?? []).find((each) => each.at === "config.content");
  return { text, html: "", language: config.language ?? "", size: cut?.bytes ?? text.length, truncated: cut !== undefined, binary: false, revision: null, editable: false };
}

/** @param {Shown} shown */
function nameOf(shown) {
  return shown.plan?.config.file ?? shown.plan?.tool.title ?? "Result";
}

/** @param {HTMLElement} view @param {Host} host @param {Shown} shown @param {Content} content @param {Saved} saved */
function drawReading(view, host, shown, content, saved) {
  const isDocument = shown.plan?.renderer === "document";
  const name = nameOf(shown);
  const lines = splitLines(content.text).length;
  const language = content.language && !["text", "auto", ""].includes(content.language) ? `${titled(content.language)}, ` : "";
  const facts = content.binary ? formatSize(content.size) : isDocument ? plural(content.text.split(/\s+/).filter(Boolean).length, "word") : language + plural(lines, "line");
  const edit = () => drawEditing(view, host, shown, content, content.text);
  const canEdit = content.editable && content.revision !== null && host.can.serverTools && shown.uri;
  const actions = [
    content.binary ? null : textActions(host, name, content.text),
    canEdit ? h("button", { type: "button", class: "button", onclick: edit, "data-testid": "view.edit", "aria-label": `Edit ${name}` }, icon("edit"), h("span", { class: "button__word" }, "Edit")) : null,
  ];
  replace(view, viewHead({ icon: "file", name, facts, actions }), drawContent(content, isDocument, host), footer(host, content, saved));
}

/** @param {Content} content @param {boolean} isDocument @param {Host} host */
function drawContent(content, isDocument, host) {
  if (content.binary) return h("p", { class: "view__note" }, `It is not text; it has ${formatSize(content.size)}.`);
  if (!content.text) return h("p", { class: "view__note" }, "It is empty.");
  if (!isDocument) {
    return codeBlock({ text: content.text, html: content.html || undefined, language: content.language, maxLines: inlineLines(host), copy: false });
  }
  const article = h("article", { class: "prose" }, content.html ? withoutRemoteImages(fromServerHtml(content.html)) : h("pre", null, content.text));
  for (const pre of article.querySelectorAll("pre, table")) pre.setAttribute("tabindex", "0");
  article.addEventListener("click", (event) => openLinks(event, host));
  return content.text.length > 3000 && !host.isWhole ? fold(article, lengthOf(content)) : article;
}

/** A view loads nothing: an image of another place becomes a link to it. @param {DocumentFragment} fragment not yet in the document */
function withoutRemoteImages(fragment) {
  for (const image of fragment.querySelectorAll("img:not([src^='data:'])")) {
    const [source, text] = [image.getAttribute("src") ?? "", image.getAttribute("alt") || "image"];
    image.replaceWith(/^https?:/i.test(source) ? h("a", { href: source, target: "_blank", rel: "noopener noreferrer" }, text) : text);
  }
  return fragment;
}

/** @param {Content} content */
function lengthOf(content) {
  return Math.max(1, splitLines(content.text).length - INLINE_LINES);
}

/** The beginning of something long. @param {HTMLElement} content @param {number} lines */
function fold(content, lines) {
  const box = h("div", { class: "fold" }, content);
  content.inert = true;
  const more = moreButton(lines, () => {
    content.inert = false;
    box.replaceWith(content);
  });
  return h("div", null, box, more);
}

/** A host opens links; the frame may not. @param {MouseEvent} event @param {Host} host */
function openLinks(event, host) {
  const link = /** @type {Element} */ (event.target).closest("a[href]");
  if (!link || !host.can.openLinks) return;
  event.preventDefault();
  host.openLink(/** @type {HTMLAnchorElement} */ (link).href).catch(() => {});
}

/** @param {Host} host @param {Content} content @param {Saved} saved */
function footer(host, content, saved) {
  const parts = [];
  if (saved) {
    parts.push(h("span", { role: "status", "data-testid": "view.saved" }, state("done", saved.manifest ? "Saved as " : "Saved")), saved.manifest ? h("code", null, saved.manifest.slice(0, 10)) : null, h("span", { class: "meta" }, formatTime(saved.time)));
  }
  if (content.truncated) parts.push(`Only the beginning is shown; the whole has ${formatSize(content.size)}.`);
  if (host.canFill && splitLines(content.text).length > INLINE_LINES) parts.push(h("button", { type: "button", class: "link push", onclick: () => host.fill().catch(() => {}), "data-testid": "view.fill" }, "Open large"));
  return parts.length ? h("footer", { class: "view__foot" }, parts) : null;
}

/** @param {HTMLElement} view @param {Host} host @param {Shown} shown @param {Content} content the text on whose revision a change is based @param {string} text */
async function drawEditing(view, host, shown, content, text) {
  const name = nameOf(shown);
  const isProse = shown.plan?.renderer === "document";
  const area = await makeEditor(editorLoader(host), { text, label: `Text of ${name}`, language: isProse ? "markdown" : content.language, isProse, testid: "view.text" });
  area.element.style.height = `${Math.min(460, Math.max(160, text.split("\n").length * 20 + 40))}px`;
  const note = h("div", { "aria-live": "polite" });
  const button = h("button", { type: "submit", class: "button button--primary", "data-testid": "view.save" }, "Save");
  const cancel = () => drawReading(view, host, shown, content, null);
  const save = async () => {
    if (button.getAttribute("aria-busy") === "true") return;
    button.setAttribute("aria-busy", "true");
    replace(button, icon("ring"), "Saving");
    try {
      const written = await host.call("view_write_file", { uri: shown.uri, text: area.value, base_revision: content.revision });
      host.tellModel(`The user edited ${name} in the view and saved it${written.manifest ? ` as version ${written.manifest}` : ""}.`);
      const fresh = (await host.call("view_read_file", { uri: shown.uri }).catch(() => null))?.content;
      drawReading(view, host, shown, fresh ?? { ...content, text: area.value, html: "", revision: written.revision }, { manifest: written.manifest, time: Date.now() });
      focusFirst(view, "view.edit");
    } catch (error) {
      const fault = /** @type {import("./bridge.js").ViewError} */ (error);
      replace(note, fault.code === "CONFLICT" ? conflictNote(view, host, shown, area) : errorNote(fault));
    }
    button.removeAttribute("aria-busy");
    replace(button, "Save");
  };
  const form = h("form", { onsubmit: (/** @type {Event} */ event) => (event.preventDefault(), save()) },
    viewHead({ icon: "edit", name, facts: "Editing", actions: [h("button", { type: "button", class: "button button--quiet", onclick: cancel, "data-testid": "view.cancel" }, "Cancel"), button] }), note, area.element);
  form.addEventListener("keydown", (event) => {
    if ((event.ctrlKey || event.metaKey) && event.key === "s") {
      event.preventDefault();
      save();
    } else if (event.key === "Escape" && !event.defaultPrevented && area.value === text) cancel();
  });
  replace(view, form);
  area.focus();
}

/** Where the editor of the built file is read; null where there is none, or the host reads nothing for views. @param {Host} host */
function editorLoader(host) {
  const uri = document.getElementById("root")?.dataset.editor;
  if (!uri || !host.can.serverResources) return null;
  return async () => {
    const code = await Promise.race([host.read(uri), new Promise((resolve) => setTimeout(resolve, PATIENCE, ""))]);
    document.head.append(h("script", null, code));
  };
}

/** Somebody saved first: nothing was overwritten. @param {HTMLElement} view @param {Host} host @param {Shown} shown @param {import("../core/editor.js").Editor} area */
function conflictNote(view, host, shown, area) {
  const read = async () => /** @type {Content} */ ((await host.call("view_read_file", { uri: shown.uri })).content);
  const box = h("div", null);
  const attempt = (/** @type {() => Promise<void>} */ work) => () => work().catch((error) => void replace(box, errorNote(error)));
  const reload = attempt(async () => drawReading(view, host, shown, await read(), null));
  const compare = attempt(async () => {
    const current = await read();
    const go = () => drawEditing(view, host, shown, current, area.value);
    replace(box, diffView({ hunks: diffHunks(current.text, area.value), label: "what is saved now and what you wrote", limit: INLINE_LINES }),
      h("div", { class: "view__foot" }, "Minus is what is saved now, plus is what you wrote.", h("button", { type: "button", class: "button button--small push", onclick: go, "data-testid": "view.rebase" }, "Edit on top of what is saved")));
  });
  return h("div", { class: "view" },
    h("div", { class: "banner banner--warn", role: "alert", "data-testid": "view.conflict" }, icon("warn"), h("p", null, h("strong", null, "Not saved."), " The file has changed since you began to edit. Nothing was overwritten."),
      h("div", { class: "row" }, h("button", { type: "button", class: "button button--small", onclick: compare, "data-testid": "view.compare" }, "Compare"), h("button", { type: "button", class: "button button--small", onclick: reload, "data-testid": "view.reload" }, "Reload"))), box);
}

/** @param {HTMLElement} view @param {string} testid */
function focusFirst(view, testid) {
  const found = view.querySelector(`[data-testid="${testid}"]`);
  if (found instanceof HTMLElement) found.focus();
}

/** @param {string} word */
function titled(word) {
  return ACRONYMS.has(word) ? word.toUpperCase() : word[0].toUpperCase() + word.slice(1);
}
