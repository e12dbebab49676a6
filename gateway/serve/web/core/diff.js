/** Differences: unified, with two number columns, word marks and folded context. Reads unified diffs and git's format. */
import { moreButton } from "./code.js";
import { h } from "./dom.js";
import { plural } from "./format.js";
import { icon } from "./icons.js";

/** @typedef {{kind: " " | "+" | "-", text: string}} DiffLine */
/** @typedef {{oldStart: number, newStart: number, lines: DiffLine[]}} Hunk */
/** @typedef {{path: string, was: string | null, status: "added" | "changed" | "deleted" | "renamed", hunks: Hunk[], note: string | null, added: number, removed: number}} FileDiff */

const DRAWN_LINES = 2000;
const HUNK = /^@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@/;

/**
 * Files and hunks of a unified diff; a diff without a file header is one file without a path.
 * @param {string} text
 * @returns {FileDiff[]}
 */
export function parseUnified(text) {
  /** @type {FileDiff[]} */
  const files = [];
  /** @type {FileDiff | null} */
  let file = null;
  /** @type {Hunk | null} */
  let hunk = null;
  let [oldLeft, newLeft] = [0, 0];
  const open = (/** @type {string} */ path) => {
    file = { path, was: null, status: "changed", hunks: [], note: null, added: 0, removed: 0 };
    files.push(file);
    hunk = null;
    return file;
  };
  for (const line of text.split("\n")) {
    if (hunk && (oldLeft > 0 || newLeft > 0) && /^[ +-]/.test(line)) {
      const kind = /** @type {DiffLine["kind"]} */ (line[0]);
      hunk.lines.push({ kind, text: line.slice(1) });
      if (kind !== "+") oldLeft--;
      if (kind !== "-") newLeft--;
      if (file && kind === "+") file.added++;
      if (file && kind === "-") file.removed++;
      continue;
    }
    const start = HUNK.exec(line);
    if (start) {
      const sizes = /^@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))?/.exec(line) ?? [];
      [oldLeft, newLeft] = [Number(sizes[1] ?? 1), Number(sizes[2] ?? 1)];
      const opened = file ?? open("");
      hunk = { oldStart: Number(start[1]), newStart: Number(start[2]), lines: [] };
      opened.hunks.push(hunk);
    } else if (line.startsWith("diff --git ")) {
      open(/ b\/(.*?)"?$/.exec(line)?.[1] ?? "");
    } else {
      file = readHeader(line, file, open);
    }
  }
  return files;
}

/** @param {string} line @param {FileDiff | null} file @param {(path: string) => FileDiff} open */
function readHeader(line, file, open) {
  const named = /^(---|\+\+\+) "?(?:[ab]\/)?(.*?)"?(?:\t.*)?$/.exec(line);
  if (named && named[1] === "---") {
    if (!file || file.hunks.length) file = open("");
    if (named[2] === "/dev/null") file.status = "added";
    else file.path = named[2];
  } else if (named && file) {
    if (named[2] === "/dev/null") file.status = "deleted";
    else file.path = named[2];
  } else if (file) {
    if (line.startsWith("new file")) file.status = "added";
    else if (line.startsWith("deleted file")) file.status = "deleted";
    else if (line.startsWith("rename from ")) [file.status, file.was] = ["renamed", line.slice(12)];
    else if (line.startsWith("rename to ")) file.path = line.slice(10);
    else if (/^(Binary files|GIT binary)/.test(line)) file.note = "Not text; only that it changed is known.";
    else if (line.startsWith("new mode")) file.note = "The kind of file changed.";
  }
  return file;
}

/**
 * A view of a diff. Give `unified` text of one or many files, `hunks` of one file, or parsed `files`.
 * @param {{unified?: string, hunks?: Hunk[], files?: FileDiff[], label?: string, wrap?: boolean, numbers?: boolean, open?: number, limit?: number}} options
 *   `wrap` for prose and definitions; `open` is the number of files that are unfolded, `limit` the lines of each before "Show 34 more lines"
 * @returns {HTMLElement}
 */
export function diffView({ unified, hunks, files, label = "Changes", wrap = false, numbers = true, open = 3, limit = DRAWN_LINES }) {
  const all = files ?? (hunks ? [{ path: "", was: null, status: "changed", hunks, note: null, added: 0, removed: 0 }] : parseUnified(unified ?? ""));
  const root = h("div", { class: `diff${wrap ? " diff--wrap" : ""}${numbers ? "" : " diff--plain"}` });
  all.forEach((file, index) => root.append(file.path ? drawFile(/** @type {FileDiff} */ (file), index < open, limit) : drawHunks(file.hunks, label, limit)));
  if (!all.length) root.append(h("p", { class: "empty" }, "Nothing changed."));
  return root;
}

/** `+6 −4`, with words for readers. @param {number} added @param {number} removed */
export function changeCounts(added, removed) {
  const count = (/** @type {string} */ name, /** @type {string} */ sign, /** @type {number} */ value, /** @type {string} */ word) =>
    value ? h("span", { class: `diff__${name}` }, h("span", { "aria-hidden": "true" }, ` ${sign}${value}`), h("span", { class: "visually-hidden" }, `${plural(value, "line")} ${word} `)) : null;
  return h("span", { class: "diff__counts" }, count("added", "+", added, "added"), count("removed", "−", removed, "removed"));
}

/** @param {FileDiff} file @param {boolean} isOpen @param {number} limit */
function drawFile(file, isOpen, limit) {
  const badge = { added: "new", deleted: "deleted", renamed: "renamed", changed: null }[file.status];
  const summary = h("summary", { "data-testid": "diff.file", "data-key": file.path }, icon("chevron"),
    h("span", { class: "name", title: file.path }, file.was ? `${file.was} → ${file.path}` : file.path),
    badge ? h("span", { class: "badge" }, badge) : null, changeCounts(file.added, file.removed));
  const details = h("details", { class: "diff__file", open: isOpen }, summary);
  const draw = () => {
    if (details.open && details.childElementCount === 1) details.append(drawHunks(file.hunks, file.path, limit, file.note));
  };
  details.addEventListener("toggle", draw);
  draw();
  return details;
}

/** @param {Hunk[]} hunks @param {string} label @param {number} limit @param {string | null} [note] */
function drawHunks(hunks, label, limit, note) {
  if (!hunks.length) return h("p", { class: "code__note" }, note ?? "No line changed.");
  const rows = hunks.flatMap((hunk, index) => drawHunk(hunk, hunks[index - 1]));
  const shown = rows.length > limit + 3 ? limit : rows.length;
  const body = h("tbody", null, rows.slice(0, shown));
  const head = h("thead", { class: "visually-hidden" }, h("tr", null, ["Old line", "New line", "Change", "Text"].map((title) => h("th", { scope: "col" }, title))));
  const region = h("div", { class: "diff__lines", tabindex: 0, role: "region", "aria-label": `Changes in ${label}` }, h("table", null, head, body));
  return shown < rows.length ? h("div", null, region, moreButton(rows.length - shown, () => body.append(...rows.slice(shown)))) : region;
}

/** @param {Hunk} hunk @param {Hunk | undefined} previous */
function drawHunk(hunk, previous) {
  let [oldLine, newLine] = [hunk.oldStart, hunk.newStart];
  const skipped = oldLine - (previous ? previous.oldStart + previous.lines.filter((line) => line.kind !== "+").length : 1);
  const rows = skipped > 0 ? [h("tr", { class: "diff__fold" }, h("td", { colspan: 4 }, `${plural(skipped, "line")} unchanged`))] : [];
  const words = pairWords(hunk.lines);
  hunk.lines.forEach((line, index) => {
    const kind = { " ": "same", "+": "add", "-": "del" }[line.kind];
    rows.push(h("tr", { class: `diff__${kind}` },
      h("td", { class: "diff__number diff__number--old" }, line.kind === "+" ? "" : oldLine++),
      h("td", { class: "diff__number diff__number--new", "data-old": line.kind === "-" ? oldLine - 1 : null }, line.kind === "-" ? "" : newLine++),
      h("td", { class: "diff__sign" }, line.kind.trim()),
      h("td", null, words.get(index) ?? line.text)));
  });
  return rows;
}

/** Marked words of removed lines that are followed by as many added ones. @param {DiffLine[]} lines */
function pairWords(lines) {
  /** @type {Map<number, (Node | string)[]>} */
  const marked = new Map();
  for (let start = 0; start < lines.length; start++) {
    if (lines[start].kind !== "-") continue;
    let middle = start;
    while (lines[middle]?.kind === "-") middle++;
    let end = middle;
    while (lines[end]?.kind === "+") end++;
    for (let index = 0; index < Math.min(middle - start, end - middle); index++) {
      const pair = markWords(lines[start + index].text, lines[middle + index].text);
      if (pair) marked.set(start + index, pair[0]).set(middle + index, pair[1]);
    }
    start = end - 1;
  }
  return marked;
}

/**
 * Two lines with their different words marked; null if they have little in common.
 * @param {string} before
 * @param {string} after
 * @returns {[(Node | string)[], (Node | string)[]] | null}
 */
export function markWords(before, after) {
  const [old, now] = [before, after].map((text) => text.match(/\w+|\s+|[^\w\s]/g) ?? []);
  if (old.length * now.length > 40_000) return null;
  const common = commonWords(old, now);
  const kept = common.reduce((sum, [index]) => sum + old[index].trim().length, 0);
  if (kept * 3 < Math.max(before.trim().length, after.trim().length)) return null;
  const draw = (/** @type {string[]} */ words, /** @type {Set<number>} */ same, /** @type {"ins" | "del"} */ tag) => {
    /** @type {(Node | string)[]} */
    const parts = [];
    for (let index = 0; index < words.length; ) {
      const from = index;
      const isSame = same.has(index);
      while (index < words.length && same.has(index) === isSame) index++;
      const text = words.slice(from, index).join("");
      parts.push(isSame ? text : h(tag, null, text));
    }
    return parts;
  };
  return [draw(old, new Set(common.map(([index]) => index)), "del"), draw(now, new Set(common.map(([, index]) => index)), "ins")];
}

/** Positions of the longest common words. @param {string[]} old @param {string[]} now @returns {[number, number][]} */
function commonWords(old, now) {
  const width = now.length + 1;
  const table = new Uint16Array((old.length + 1) * width);
  for (let i = old.length - 1; i >= 0; i--) {
    for (let j = now.length - 1; j >= 0; j--) {
      const [down, right] = [table[(i + 1) * width + j], table[i * width + j + 1]];
      table[i * width + j] = old[i] === now[j] ? table[(i + 1) * width + j + 1] + 1 : Math.max(down, right);
    }
  }
  /** @type {[number, number][]} */
  const pairs = [];
  for (let i = 0, j = 0; i < old.length && j < now.length; ) {
    if (old[i] === now[j]) pairs.push([i++, j++]);
    else if (table[(i + 1) * width + j] >= table[i * width + j + 1]) i++;
    else j++;
  }
  return pairs;
}

/**
 * The hunks between two texts, for what only the browser has; the server compares versions.
 * @param {string} before
 * @param {string} after
 * @returns {Hunk[]}
 */
export function diffHunks(before, after) {
  const [old, now] = [before.split("\n"), after.split("\n")];
  let head = 0;
  while (head < Math.min(old.length, now.length) && old[head] === now[head]) head++;
  let tail = 0;
  while (tail < Math.min(old.length, now.length) - head && old[old.length - 1 - tail] === now[now.length - 1 - tail]) tail++;
  const [oldPart, newPart] = [old.slice(head, old.length - tail), now.slice(head, now.length - tail)];
  if (!oldPart.length && !newPart.length) return [];
  const pairs = oldPart.length * newPart.length > 4_000_000 ? [] : commonWords(oldPart, newPart);
  /** @type {DiffLine[]} */
  const lines = old.slice(Math.max(0, head - 3), head).map((text) => ({ kind: " ", text }));
  let [i, j] = [0, 0];
  for (const [oldPlace, newPlace] of [...pairs, [oldPart.length, newPart.length]]) {
    while (i < oldPlace) lines.push({ kind: "-", text: oldPart[i++] });
    while (j < newPlace) lines.push({ kind: "+", text: newPart[j++] });
    if (i < oldPart.length && j < newPart.length) lines.push({ kind: " ", text: oldPart[i] });
    i++;
    j++;
  }
  for (const text of old.slice(old.length - tail, old.length - tail + 3)) lines.push({ kind: " ", text });
  const start = Math.max(0, head - 3) + 1;
  return [{ oldStart: start, newStart: start, lines }];
}
