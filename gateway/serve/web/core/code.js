/** A code block: numbered lines, copy, a fold for long text. Highlighting is HTML of the server. */
import { copyText, fromServerHtml, h, replace } from "./dom.js";
import { plural } from "./format.js";
import { icon } from "./icons.js";

/** Characters above which code is shown without colours. */
export const HIGHLIGHT_LIMIT = 64 * 1024;
/** Lines above which the rest is not drawn before somebody asks. */
const DRAWN_LINES = 5000;
/** Lines above which the browser lays out only those in sight; the width of the others is estimated. */
const LONG = 300;

/**
 * @typedef {object} CodeOptions
 * @property {string} [text] the code; copied, and shown if there is no `html`
 * @property {string} [html] the same text highlighted by the server, line for line
 * @property {string} [language] for the accessible name
 * @property {number} [startLine] number of the first line
 * @property {number} [maxLines] lines shown before "Show 34 more lines"
 * @property {[number, number]} [marked] first and last line to mark
 * @property {boolean} [copy] whether there is a copy button
 * @property {string} [label] the accessible name
 * @property {(line: number, extend: boolean) => void} [onLine] called for a click on a line number
 * @property {() => void} [onExpand] called when all lines are shown
 */

/** @param {CodeOptions} options @returns {HTMLElement} */
export function codeBlock({ text = "", html, language, startLine = 1, maxLines, marked, copy = true, label, onLine, onExpand }) {
  const lines = splitLines(html ?? text);
  const limit = Math.min(maxLines ?? DRAWN_LINES, DRAWN_LINES);
  const shown = lines.length > limit + 3 ? limit : lines.length;
  const body = h("code", { class: "code__body" });
  const draw = (/** @type {number} */ from, /** @type {number} */ to) =>
    body.append(drawLines(lines.slice(from, to), html !== undefined, startLine + from, marked));
  draw(0, shown);
  const digits = Math.max(2, String(startLine + lines.length).length);
  const name = label ?? (language && language !== "auto" ? `Code, ${language}` : "Code");
  const style = { "--digits": digits, "--start": startLine - 1 };
  if (lines.length > LONG) {
    const longest = splitLines(text).reduce((most, line) => Math.max(most, line.length), 0);
    body.classList.add("code__body--long");
    body.style.setProperty("--width", `calc(${Math.min(longest, 5000) + digits}ch + 48px)`);
  }
  const pre = h("pre", { class: "code__lines", tabindex: 0, role: "region", "aria-label": name, style }, body);
  if (onLine) pre.addEventListener("click", (event) => clickLine(event, pre, onLine));
  const block = h("div", { class: "code" }, pre);
  if (shown < lines.length) block.append(moreButton(lines.length - shown, () => (draw(shown, lines.length), onExpand?.())));
  if (html === undefined && text.length > HIGHLIGHT_LIMIT) block.append(h("p", { class: "code__note" }, "Too long for colours; shown as plain text."));
  if (copy) block.prepend(copyButton(() => text, "code__copy"));
  return block;
}

/** @param {string} text */
export function splitLines(text) {
  const lines = text.split("\n");
  if (lines.length > 1 && lines[lines.length - 1] === "") lines.pop();
  return lines;
}

/** @param {string[]} lines @param {boolean} isHtml @param {number} first @param {[number, number]} [marked] */
function drawLines(lines, isHtml, first, marked) {
  const classOf = (/** @type {number} */ line) =>
    marked && line >= marked[0] && line <= marked[1] ? "code__line code__line--marked" : "code__line";
  if (isHtml) {
    return fromServerHtml(lines.map((line, index) => `<span class="${classOf(first + index)}" id="L${first + index}">${line}\n</span>`).join(""));
  }
  const fragment = document.createDocumentFragment();
  lines.forEach((line, index) => fragment.append(h("span", { class: classOf(first + index), id: `L${first + index}` }, `${line}\n`)));
  return fragment;
}

/** @param {MouseEvent} event @param {HTMLElement} pre @param {(line: number, extend: boolean) => void} onLine */
function clickLine(event, pre, onLine) {
  const line = /** @type {Element} */ (event.target).closest(".code__line");
  const gutter = parseFloat(getComputedStyle(/** @type {Element} */ (line ?? pre), "::before").width);
  if (line && event.clientX - pre.getBoundingClientRect().left < gutter) onLine(Number(line.id.slice(1)), event.shiftKey);
}

/**
 * "Show 34 more lines"; it removes itself.
 * @param {number} count
 * @param {() => void} show
 */
export function moreButton(count, show) {
  const button = h("button", { type: "button", class: "button button--quiet code__more", "data-testid": "code.more" }, `Show ${plural(count, "more line")}`);
  button.addEventListener("click", () => {
    const next = button.previousElementSibling;
    button.remove();
    show();
    if (next instanceof HTMLElement) next.focus();
  });
  return button;
}

/**
 * A button that copies, and says so.
 * @param {() => string} text
 * @param {string} [extra] another class
 * @param {string} [label]
 */
export function copyButton(text, extra = "", label = "Copy") {
  const button = h("button", { type: "button", class: `button button--quiet button--icon button--small ${extra}`, "aria-label": label, title: label, "data-testid": "code.copy" }, icon("copy"));
  button.addEventListener("click", async () => {
    const copied = await copyText(text());
    replace(button, icon(copied ? "tick" : "x"));
    button.setAttribute("aria-label", copied ? "Copied" : "The browser refused to copy");
    setTimeout(() => {
      replace(button, icon("copy"));
      button.setAttribute("aria-label", label);
    }, 1500);
  });
  return button;
}
