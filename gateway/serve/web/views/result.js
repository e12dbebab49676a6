/** Results of tools without a renderer: differences, tables, images, text. */
import { codeBlock } from "../core/code.js";
import { h } from "../core/dom.js";
import { changeCounts, diffView, parseUnified } from "../core/diff.js";
import { formatCount, plural } from "../core/format.js";
import { dataTable } from "../core/table.js";
import { textOf } from "./bridge.js";
import { iconButton, inlineLines, textActions, viewHead } from "./layout.js";

/** @typedef {import("./bridge.js").Host} Host */
/** @typedef {import("./bridge.js").Shown} Shown */
/** @typedef {import("./bridge.js").ToolResult} ToolResult */

const COLUMNS = 12;
const ROW_HEIGHT = 34;
/** Pixels of the longer side of an image as drawn; its download is whole. */
const LARGEST = 2048;
const IMAGE = /^image\/(png|jpeg|gif|webp|avif|bmp|svg\+xml)$/;

/** The value of a result: structured, or JSON in its text. @param {ToolResult | undefined} result */
export function valueOf(result) {
  if (result?.structuredContent !== undefined) return result.structuredContent;
  const text = textOf(result).trim();
  if (!/^[[{]/.test(text)) return undefined;
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

/** @param {ToolResult | undefined} result @returns {{data: string, mimeType: string}[]} */
function imagesOf(result) {
  return (result?.content ?? []).filter((block) => block.type === "image" && IMAGE.test(block.mimeType));
}

/** The text of a diff in a result. @param {ToolResult | undefined} result @returns {string | null} */
function unifiedOf(result) {
  const value = valueOf(result);
  const text = typeof value?.diff === "string" ? value.diff : textOf(result);
  const start = text.search(/^(diff --git |--- |@@ -\d)/m);
  return start >= 0 && /^@@ -\d/m.test(text) ? text.slice(start) : null;
}

/** The rows of a result: a list of objects, alone or as the only list of an object. @param {any} value @returns {Record<string, any>[] | null} */
function rowsOf(value) {
  const lists = Array.isArray(value) ? [value] : value && typeof value === "object" ? Object.values(value).filter(Array.isArray) : [];
  const rows = lists.length === 1 ? lists[0] : null;
  return rows?.length && rows.every((/** @type {any} */ row) => row && typeof row === "object" && !Array.isArray(row)) ? rows : null;
}

/**
 * What fits a result best.
 * @param {Host} host
 * @param {Shown} shown
 * @returns {HTMLElement | Promise<HTMLElement>}
 */
export function drawResult(host, shown) {
  if (imagesOf(shown.result).length) return drawImages(host, shown);
  if (unifiedOf(shown.result)) return drawDiff(host, shown);
  return rowsOf(valueOf(shown.result)) ? drawTable(host, shown) : drawText(host, shown);
}

/** @param {Shown} shown @param {Host} host */
function titleOf(shown, host) {
  const tool = host.context.toolInfo?.tool ?? {};
  return String(shown.plan?.tool.title ?? tool.title ?? tool.name ?? "Result");
}

/** What a call changed: as its result says, else as the gateway compares the versions around it. @param {Host} host @param {Shown} shown */
export async function drawDiff(host, shown) {
  let [unified, value] = [unifiedOf(shown.result), valueOf(shown.result) ?? {}];
  if (unified === null && host.can.serverTools) {
    const call = shown.result?._meta?.["dev.toolgate/call_id"];
    value = await host.call("view_changes", call ? { call } : {}).catch(() => ({}));
    unified = value.diff || null;
  }
  if (unified === null) return drawText(host, shown);
  const files = parseUnified(unified);
  const sum = (/** @type {"added" | "removed"} */ key) => files.reduce((total, file) => total + file[key], 0);
  const name = files.length === 1 && !files[0].path ? titleOf(shown, host) : `${plural(files.length, "file")} changed`;
  const [from, to] = [value.from ?? value.pre_manifest ?? shown.plan?.call.preManifest, value.to ?? value.post_manifest ?? shown.plan?.call.postManifest];
  return h("div", { class: "view" },
    viewHead({ icon: "branch", name, facts: changeCounts(sum("added"), sum("removed")), actions: textActions(host, "changes.diff", unified, "text/x-diff") }),
    diffView({ files, open: files.length > 3 ? 1 : 2, limit: inlineLines(host) }),
    value.truncated ? h("p", { class: "view__note" }, "The rest of the changes is too long to be shown.") : null,
    from && to ? h("footer", { class: "view__foot" }, h("span", null, "From ", h("code", null, String(from).slice(0, 10)), " to ", h("code", null, String(to).slice(0, 10)))) : null);
}

/** @param {Host} host @param {Shown} shown */
export function drawTable(host, shown) {
  const rows = rowsOf(valueOf(shown.result));
  if (!rows) return drawText(host, shown);
  const keys = [...new Set(rows.slice(0, 200).flatMap((row) => Object.keys(row)))];
  const used = keys.slice(0, COLUMNS);
  const isNumber = (/** @type {string} */ key) => rows.every((row) => row[key] === null || row[key] === undefined || typeof row[key] === "number");
  const columns = used.map((key, place) => ({
    key, title: key, align: isNumber(key) ? /** @type {const} */ ("right") : undefined, wideOnly: place > 3,
    value: (/** @type {Record<string, any>} */ row) => row[key],
    render: (/** @type {Record<string, any>} */ row) => cell(row[key]),
  }));
  const table = dataTable({ columns, rows, rowHeight: ROW_HEIGHT, key: (row) => String(rows.indexOf(row)), label: titleOf(shown, host), testid: "view" });
  table.style.minWidth = used.length > 6 ? "720px" : "";
  const csv = [used, ...rows.map((row) => used.map((key) => row[key]))].map((line) => line.map(quote).join(",")).join("\n");
  return h("div", { class: "view" },
    viewHead({ icon: "menu", name: titleOf(shown, host), facts: plural(rows.length, "row"), actions: textActions(host, "result.csv", csv, "text/csv") }), table,
    keys.length > used.length ? h("p", { class: "view__note" }, `${plural(keys.length - used.length, "more column")}: ${keys.slice(COLUMNS).join(", ")}`) : null);
}

/** @param {any} value */
function cell(value) {
  if (value === null || value === undefined) return "";
  const text = typeof value === "object" ? JSON.stringify(value) : typeof value === "number" ? formatCount(value) : String(value);
  return h("span", { title: text.length > 20 ? text.slice(0, 2000) : null }, text.slice(0, 400));
}

/** @param {any} value */
function quote(value) {
  const text = value === null || value === undefined ? "" : typeof value === "object" ? JSON.stringify(value) : String(value);
  // A spreadsheet would run a cell that begins with one of these.
  const safe = /^[=+@\t\r]|^-(?![\d.])/.test(text) ? `'${text}` : text;
  return /[",\n\r]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

/** @param {Host} host @param {Shown} shown */
async function drawImages(host, shown) {
  const images = imagesOf(shown.result);
  const title = titleOf(shown, host);
  const text = textOf(shown.result).trim();
  const figures = images.map(async ({ data, mimeType }, place) => {
    const name = `${images.length > 1 ? `image ${place + 1}` : "image"}.${mimeType.slice(6).replace("+xml", "")}`;
    const save = host.can.downloadFile ? iconButton("download", `Download ${name}`, () => host.download(name, mimeType, { blob: data }).catch(() => {}), "view.download") : null;
    return [viewHead({ icon: "eye", name: title, facts: images.length > 1 ? `${place + 1} of ${images.length}` : mimeType, actions: save }),
      h("figure", { class: "picture" }, await drawImage(data, mimeType, text.slice(0, 300) || `Image of ${title}`))];
  });
  return h("div", { class: "view" }, await Promise.all(figures), text ? h("p", { class: "view__text" }, text) : null);
}

/**
 * An image drawn from its bytes, since the policies of some hosts refuse `data:` addresses; what moves or has no pixels
 * (GIF, SVG) needs one.
 * @param {string} data @param {string} mimeType @param {string} alt
 */
async function drawImage(data, mimeType, alt) {
  const testid = { "data-testid": "view.image" };
  const bitmap = /gif|svg/.test(mimeType) ? null : await decodeImage(data).catch(() => null);
  if (bitmap === null) return h("img", { src: `data:${mimeType};base64,${data}`, alt, ...testid });
  const scale = Math.min(1, LARGEST / Math.max(bitmap.width, bitmap.height));
  const [width, height] = [bitmap.width, bitmap.height].map((side) => Math.max(1, Math.round(side * scale)));
  const canvas = h("canvas", { role: "img", "aria-label": alt, width, height, ...testid });
  canvas.getContext("2d")?.drawImage(bitmap, 0, 0, width, height);
  return canvas;
}

/** @param {string} data in base64 */
async function decodeImage(data) {
  const bytes = Uint8Array.from(atob(data), (character) => character.charCodeAt(0));
  return createImageBitmap(new Blob([bytes]));
}

/** @param {Host} host @param {Shown} shown */
export function drawText(host, shown) {
  const value = valueOf(shown.result);
  const text = value === undefined ? textOf(shown.result) : JSON.stringify(value, null, 2);
  const title = titleOf(shown, host);
  return h("div", { class: "view" }, viewHead({ icon: "file", name: title, facts: "", actions: textActions(host, "result.txt", text) }),
    text ? codeBlock({ text, maxLines: inlineLines(host), copy: false, label: title }) : h("p", { class: "view__note" }, "The call returned nothing."));
}
