/** Arguments and results as a person reads them: texts with their lines, pictures and differences as such, the rest as JSON. */

import { codeBlock } from "./code.js";
import { diffView } from "./diff.js";
import { h } from "./dom.js";
import { formatCount } from "./format.js";

const LINES = 200;
const PICTURE = /^image\/(png|jpeg|gif|webp)$/;

/**
 * @param {any} value a value, a text, the blocks of a result, or the beginning of what was too large for the record
 * @param {string} label
 * @returns {import("./dom.js").Child}
 */
export function drawValue(value, label) {
  if (value && value.truncated === true && typeof value.preview === "string") {
    return [h("p", {class: "meta call-note"}, `The record keeps the beginning only, of ${formatCount(value.bytes)} bytes.`), drawText(value.preview, label)];
  }
  if (typeof value === "string") return drawText(value, label);
  if (isBlocks(value)) return value.length === 1 ? drawBlock(value[0], label) : h("div", {class: "stack"}, value.map((/** @type {any} */ block) => drawBlock(block, label)));
  const isObject = value !== null && typeof value === "object" && !Array.isArray(value);
  if (isObject && Object.values(value).some((each) => typeof each === "string" && each.includes("\n"))) {
    return drawFields(value, label);
  }
  return drawJson(value, label);
}

/** The values of an object under their names. @param {Record<string, any>} value @param {string} label */
export function drawFields(value, label) {
  return h("dl", {class: "call-values"}, Object.entries(value).map(([name, each]) => [h("dt", {class: "mono"}, name), h("dd", {}, drawPart(each, `${label}: ${name}`))]));
}

/** Whether a value is what a tool returned as content of MCP. @param {any} value */
function isBlocks(value) {
  return Array.isArray(value) && value.length > 0 && value.every((block) => typeof block?.type === "string" && ("text" in block || "data" in block || "resource" in block || "uri" in block));
}

/** @param {any} block @param {string} label */
function drawBlock(block, label) {
  if (block.type === "text") return drawText(block.text, label);
  if (block.type === "image" && PICTURE.test(block.mimeType)) return h("img", {class: "picture", alt: "Image that the tool returned", src: `data:${block.mimeType};base64,${block.data}`});
  return drawJson(block, `${label}: ${block.type}`);
}

/** One value of an object: short ones in a line. @param {any} value @param {string} label */
function drawPart(value, label) {
  if (typeof value === "string" && value.includes("\n")) return drawText(value, label);
  return value !== null && typeof value === "object" ? drawJson(value, label) : h("code", {class: "prose-text"}, typeof value === "string" ? value : JSON.stringify(value));
}

/** @param {string} text @param {string} label */
function drawText(text, label) {
  return /^--- .*\n\+\+\+ .*\n@@ /.test(text) ? h("div", {class: "card"}, diffView({unified: text, label})) : codeBlock({text, label, maxLines: LINES});
}

/** @param {any} value @param {string} label */
function drawJson(value, label) {
  return codeBlock({text: JSON.stringify(value ?? null, null, 2), language: "json", label, maxLines: LINES});
}
