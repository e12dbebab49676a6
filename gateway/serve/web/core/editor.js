/** Editors of a text: one that highlights, which is loaded when somebody edits, else a text area with line numbers. */
import { h } from "./dom.js";

/** @typedef {{text: string, label: string, language: string, isProse: boolean, testid: string, onChange?: () => void}} EditorOptions */
/** @typedef {{element: HTMLElement, focus: () => void, readonly value: string}} Editor */

/**
 * Make an editor. `load` runs the script of the built file; without it, or if that fails, it is the text area.
 * @param {(() => Promise<unknown>) | null} load
 * @param {EditorOptions} options
 * @returns {Promise<Editor>}
 */
export async function makeEditor(load, options) {
  const loaded = /** @type {{toolgateEditor?: (options: EditorOptions) => Editor}} */ (window);
  if (load && !loaded.toolgateEditor) await load().catch(() => null);
  const made = (loaded.toolgateEditor ?? textArea)(options);
  const element = h("div", { class: `edit${options.isProse ? " edit--prose" : ""}` }, made.element);
  return { element, focus: made.focus, get value() { return made.value; } };
}

/** Tab leaves it, as everywhere. @param {EditorOptions} options @returns {Editor} */
function textArea({ text, label, isProse, testid, onChange }) {
  const numbers = h("div", { class: "edit__numbers", "aria-hidden": "true" });
  const area = h("textarea", { "aria-label": label, spellcheck: isProse ? "true" : "false", autocomplete: "off", autocapitalize: "off", value: text, "data-testid": testid });
  let count = 0;
  const renumber = () => {
    const lines = area.value.split("\n").length;
    if (lines !== count) numbers.textContent = Array.from({ length: (count = lines) }, (_, index) => index + 1).join("\n");
  };
  area.addEventListener("input", () => (renumber(), onChange?.()));
  area.addEventListener("scroll", () => void (numbers.scrollTop = area.scrollTop));
  renumber();
  // A text area has no other line breaks.
  const isWindows = /\r\n/.test(text) && !/(^|[^\r])\n/.test(text);
  const focus = () => (area.setSelectionRange(0, 0), area.focus(), void (area.scrollTop = 0));
  return { element: h("div", { class: "edit__plain" }, numbers, area), focus, get value() { return isWindows ? area.value.replaceAll("\n", "\r\n") : area.value; } };
}
