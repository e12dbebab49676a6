/** A tree of files, drawn in a window so that 10,000 of them are fast; folders are loaded when they are opened. */
import { h, replace } from "./dom.js";
import { formatSize } from "./format.js";
import { icon } from "./icons.js";

const ROW = 27;
const SPARE = 12; // rows drawn above and below the window
const WORDS = { A: "added", M: "changed", D: "deleted" };

/**
 * @typedef {{path: string, kind: string, size?: number | null}} FileEntry
 * @typedef {{path: string, name: string, level: number, isFolder: boolean, isOpen: boolean, note?: string, size?: number | null}} Row
 * @typedef {object} TreeOptions
 * @property {(folder: string) => Promise<FileEntry[]>} load the entries of a folder; "" is the root
 * @property {(path: string) => string} href
 * @property {(path: string) => void} open
 * @property {string} testid
 */

/** @param {TreeOptions} options */
export function fileTree({ load, href, open, testid }) {
  /** @type {Map<string, FileEntry[] | null>} null while it is loaded */
  const folders = new Map();
  /** @type {Set<string>} */
  const opened = new Set([""]);
  /** @type {Map<string, string>} */
  let marks = new Map();
  /** @type {Row[]} */
  let rows = [];
  /** @type {FileEntry[] | null} the files to show instead of the folders */
  let found = null;
  let selected = "";
  let active = 0;
  let typed = "";
  let typedAt = 0;

  const list = h("div", { class: "tree__rows", role: "tree", tabindex: "0", "aria-label": "Files", "data-testid": testid, onkeydown, onfocus: () => draw() });
  const element = h("div", { class: "tree", onscroll: () => draw() }, list);
  new ResizeObserver(() => draw()).observe(element);

  /** @param {string} folder */
  async function fetchFolder(folder) {
    if (folders.has(folder)) return;
    folders.set(folder, null);
    try {
      folders.set(folder, sortEntries(await load(folder)));
    } catch (error) {
      folders.delete(folder);
      opened.delete(folder);
      if (folder === "") throw error;
    }
    refresh();
  }

  /** @param {string} folder @param {number} level @param {Row[]} into */
  function collect(folder, level, into) {
    const entries = folders.get(folder);
    if (entries === null) into.push({ path: `${folder}/`, name: "", level, isFolder: false, isOpen: false, note: "Loading" });
    for (const entry of entries ?? []) {
      const isFolder = entry.kind === "directory";
      const isOpen = isFolder && opened.has(entry.path);
      into.push({ path: entry.path, name: baseName(entry.path), level, isFolder, isOpen, size: entry.size });
      if (isOpen) collect(entry.path, level + 1, into);
    }
  }

  function refresh() {
    const path = rows[active]?.path ?? selected;
    rows = [];
    if (found) rows = found.map((entry) => ({ path: entry.path, name: entry.path, level: 1, isFolder: false, isOpen: false, size: entry.size }));
    else collect("", 1, rows);
    active = Math.max(0, rows.findIndex((row) => row.path === path));
    draw();
  }

  function draw() {
    const height = element.clientHeight || 600;
    const first = Math.max(0, Math.floor(element.scrollTop / ROW) - SPARE);
    const last = Math.min(rows.length, Math.ceil((element.scrollTop + height) / ROW) + SPARE);
    list.style.paddingTop = `${first * ROW}px`;
    list.style.paddingBottom = `${Math.max(0, rows.length - last) * ROW}px`;
    replace(list, rows.slice(first, last).map((row, index) => drawRow(row, first + index)));
    const current = rows[active] && active >= first && active < last ? `${testid}-${active}` : "";
    if (current) list.setAttribute("aria-activedescendant", current);
    else list.removeAttribute("aria-activedescendant");
  }

  /** @param {Row} row @param {number} index */
  function drawRow(row, index) {
    if (row.note) return h("div", { class: "tree__row tree__row--note", role: "treeitem", "aria-level": row.level, style: { "padding-left": indent(row) } }, row.note);
    const mark = marks.get(row.path) ?? (row.isFolder && !row.isOpen && hasMarks(row.path) ? "•" : "");
    const props = {
      id: `${testid}-${index}`,
      class: `tree__row${index === active ? " tree__row--active" : ""}`,
      role: "treeitem",
      tabindex: "-1",
      title: row.size === null || row.size === undefined ? row.path : `${row.path}, ${formatSize(row.size)}`,
      "aria-level": row.level,
      "aria-selected": row.path === selected,
      "aria-setsize": rows.length,
      "aria-posinset": index + 1,
      "aria-expanded": row.isFolder ? row.isOpen : undefined,
      "data-testid": `${testid}.row`,
      "data-key": row.path,
      style: { "padding-left": indent(row) },
      onclick: (/** @type {MouseEvent} */ event) => onclick(event, row, index),
    };
    const parts = [
      h("span", { class: "tree__fold" }, row.isFolder ? icon("chevron") : null),
      icon(row.isFolder ? "folder" : "file"),
      h("span", { class: "tree__name" }, row.name),
      mark ? h("span", { class: `tree__mark tree__mark--${mark}`, "aria-label": WORDS[/** @type {"A"} */ (mark)] ?? "changes inside", role: "img" }, mark) : null,
    ];
    return row.isFolder ? h("div", props, parts) : h("a", { ...props, href: href(row.path) }, parts);
  }

  /** @param {string} folder */
  function hasMarks(folder) {
    for (const path of marks.keys()) if (path.startsWith(`${folder}/`)) return true;
    return false;
  }

  /** @param {MouseEvent} event @param {Row} row @param {number} index */
  function onclick(event, row, index) {
    if (event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
    event.preventDefault();
    active = index;
    list.focus({ preventScroll: true });
    choose(row);
  }

  /** @param {Row} row */
  function choose(row) {
    if (row.note) return;
    if (row.isFolder) toggle(row.path);
    else open(row.path);
  }

  /** @param {string} folder @param {boolean} [want] */
  function toggle(folder, want = !opened.has(folder)) {
    if (want) {
      opened.add(folder);
      fetchFolder(folder).catch(() => {});
    } else opened.delete(folder);
    refresh();
  }

  /** @param {number} index */
  function move(index) {
    active = Math.max(0, Math.min(rows.length - 1, index));
    const top = active * ROW;
    if (top < element.scrollTop) element.scrollTop = top;
    else if (top + ROW > element.scrollTop + element.clientHeight) element.scrollTop = top + ROW - element.clientHeight;
    draw();
  }

  /** @param {KeyboardEvent} event */
  function onkeydown(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const row = rows[active];
    const page = Math.max(1, Math.floor(element.clientHeight / ROW) - 1);
    /** @type {Record<string, () => void>} */
    const keys = {
      ArrowDown: () => move(active + 1),
      ArrowUp: () => move(active - 1),
      PageDown: () => move(active + page),
      PageUp: () => move(active - page),
      Home: () => move(0),
      End: () => move(rows.length - 1),
      Enter: () => row && choose(row),
      " ": () => row && choose(row),
      ArrowRight: () => {
        if (row?.isFolder && !row.isOpen) toggle(row.path, true);
        else if (row?.isFolder) move(active + 1);
      },
      ArrowLeft: () => {
        if (row?.isOpen) toggle(row.path, false);
        else if (row && row.level > 1) move(rows.findIndex((each) => each.path === folderOf(row.path)));
      },
    };
    const act = Object.hasOwn(keys, event.key) ? keys[event.key] : null;
    if (act) act();
    else if (event.key.length === 1) search(event);
    else return;
    event.preventDefault();
  }

  /** Go to the next name that begins with what was typed. @param {KeyboardEvent} event */
  function search(event) {
    typed = event.timeStamp - typedAt < 700 ? typed + event.key.toLowerCase() : event.key.toLowerCase();
    typedAt = event.timeStamp;
    const from = typed.length > 1 ? active : active + 1;
    const order = [...rows.slice(from), ...rows.slice(0, from)];
    const next = order.find((row) => row.name.toLowerCase().startsWith(typed));
    if (next) move(rows.indexOf(next));
  }

  return {
    element,
    /** Load the tree anew, with the folders that are open; rejects if the root cannot be loaded. */
    async reload() {
      folders.clear();
      await fetchFolder("");
      await Promise.allSettled([...opened].filter(Boolean).map((folder) => fetchFolder(folder)));
    },
    /** Mark changed files (A, M, D), and open their folders. @param {Map<string, string>} changed */
    mark(changed) {
      marks = changed;
      for (const path of [...changed.keys()].slice(0, 50)) this.expand(path);
      refresh();
    },
    /** Open the folders above a path. @param {string} path */
    expand(path) {
      for (let folder = folderOf(path); folder; folder = folderOf(folder)) {
        opened.add(folder);
        fetchFolder(folder).catch(() => {});
      }
    },
    /** @param {string} path */
    select(path) {
      selected = path;
      if (path) this.expand(path);
      refresh();
      const index = rows.findIndex((row) => row.path === path);
      if (index >= 0) move(index);
    },
    /** Show these files in place of the folders; null shows the folders again. @param {FileEntry[] | null} files */
    show(files) {
      found = files;
      element.scrollTop = 0;
      active = 0;
      rows = [];
      refresh();
    },
  };
}

/** @param {Row} row */
function indent(row) {
  return `${8 + (row.level - 1) * 14}px`;
}

/** Folders first, then by name. @param {FileEntry[]} entries */
function sortEntries(entries) {
  const rank = (/** @type {FileEntry} */ entry) => (entry.kind === "directory" ? 0 : 1);
  const names = new Intl.Collator("en", { numeric: true });
  return [...entries].sort((a, b) => rank(a) - rank(b) || names.compare(a.path, b.path));
}

/** @param {string} path */
export function baseName(path) {
  return path.slice(path.lastIndexOf("/") + 1);
}

/** @param {string} path */
export function folderOf(path) {
  return path.slice(0, Math.max(0, path.lastIndexOf("/")));
}
