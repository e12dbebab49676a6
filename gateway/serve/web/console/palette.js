/** Ctrl-K: tools as models find them, calls, chats, pages and actions. */

import {h, replace} from "../core/dom.js";
import {formatDuration, formatTime} from "../core/format.js";
import {icon} from "../core/icons.js";
import {api} from "./api.js";

const WAIT_MS = 120;
const PER_GROUP = 5;
const ICONS = {tool: "tools", toolset: "toolsets", upstream: "servers", category: "tools"};
const ADDRESSES = {
  tool: (id) => `/console/tools/${encodeURIComponent(id)}`,
  toolset: (id) => `/console/toolsets/${encodeURIComponent(id)}`,
  upstream: (id) => `/console/servers/${encodeURIComponent(id)}`,
  category: (id) => `/console/tools?q=${encodeURIComponent(id)}`,
};

/**
 * @typedef {{group: string, icon: string, text: string, about?: string, end?: string, url: string, tryUrl?: string}} Row
 */

/**
 * Open the palette, with a text to look for.
 * @param {{admin: boolean}} principal
 * @param {(url: string) => void} navigate
 * @param {{title: string, icon: string, under: string}[]} pages
 * @param {string} [text]
 */
export function openPalette(principal, navigate, pages, text = "") {
  if (document.querySelector("dialog.palette")) return;
  /** @type {Row[]} */
  let rows = [];
  let selected = 0;
  let abort = new AbortController();
  let timer = 0;
  const input = h("input", {
    type: "text", value: text, placeholder: "Search tools, calls, chats and pages", role: "combobox", autocomplete: "off", spellcheck: "false",
    "aria-label": "Search", "aria-expanded": "true", "aria-controls": "palette-list", "data-testid": "palette.input",
  });
  const list = h("div", {id: "palette-list", class: "palette-list", role: "listbox", "aria-label": "Results", "data-testid": "palette.list"});
  const status = h("span", {role: "status"});
  const dialog = h(
    "dialog", {class: "palette", "aria-label": "Search", "data-testid": "palette"},
    h("div", {class: "palette-field"}, icon("search"), input, h("kbd", {class: "kbd"}, "Esc")),
    list,
    h("div", {class: "palette-foot"}, h("span", {}, "↑ ↓ move"), h("span", {}, "Enter opens"), h("span", {}, "Ctrl+Enter tries a tool"), status),
  );

  const draw = () => {
    const nodes = [];
    let group = "";
    rows.forEach((row, index) => {
      if (row.group !== group) {
        group = row.group;
        nodes.push(h("div", {class: "palette-group", role: "presentation"}, group));
      }
      nodes.push(drawRow(row, index));
    });
    if (!rows.length) nodes.push(h("div", {class: "empty", role: "presentation"}, input.value.trim() ? "Nothing matches." : "Type to search."));
    replace(list, ...nodes);
    status.textContent = `${rows.length} found`;
    mark();
  };
  const drawRow = (row, index) => h(
    "div",
    {class: "palette-row", role: "option", id: `palette-${index}`, "aria-selected": "false", "data-testid": "palette.row", "data-key": row.url, onclick: () => open(row.url), onmousemove: () => { selected = index; mark(); }},
    icon(row.icon), h("span", {class: "mono"}, ...highlight(row.text, input.value.trim())), h("span", {class: "palette-about"}, row.about || ""), row.end ? h("span", {class: "meta"}, row.end) : null,
  );
  const mark = () => {
    selected = Math.max(0, Math.min(selected, rows.length - 1));
    for (const node of list.querySelectorAll("[role=option]")) {
      const isSelected = node.id === `palette-${selected}`;
      node.setAttribute("aria-selected", String(isSelected));
      if (isSelected) node.scrollIntoView({block: "nearest"});
    }
    if (rows.length) input.setAttribute("aria-activedescendant", `palette-${selected}`);
    else input.removeAttribute("aria-activedescendant");
  };
  const open = (url) => { dialog.close(); navigate(url); };
  const look = async () => {
    abort.abort();
    abort = new AbortController();
    const {signal} = abort;
    const query = input.value.trim();
    const onlyActions = query.startsWith(">");
    const found = onlyActions ? [] : await search(query, signal);
    if (signal.aborted) return;
    rows = [...found, ...findPages(query.replace(/^>\s*/, ""), pages, principal)];
    selected = 0;
    draw();
  };

  input.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(look, WAIT_MS);
  });
  dialog.addEventListener("keydown", (event) => {
    const step = {ArrowDown: 1, ArrowUp: -1}[event.key];
    if (step) {
      event.preventDefault();
      selected = (selected + step + rows.length) % Math.max(rows.length, 1);
      mark();
    } else if (event.key === "Enter" && rows[selected]) {
      event.preventDefault();
      const row = rows[selected];
      open((event.ctrlKey && row.tryUrl) || row.url);
    }
  });
  dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
  dialog.addEventListener("close", () => { abort.abort(); clearTimeout(timer); dialog.remove(); });
  document.body.append(dialog);
  dialog.showModal();
  input.select();
  look();
}

/** @returns {Promise<Row[]>} */
async function search(query, signal) {
  if (!query) return [];
  const get = (path, params) => api.get(path, params, {signal}).catch(() => ({items: []}));
  const [found, calls, chats] = await Promise.all([
    get("/api/search", {q: query.slice(0, 200), limit: 12}),
    get("/api/calls", {limit: 200}),
    get("/api/chats", {limit: 1000}),
  ]);
  const has = (text) => String(text || "").toLowerCase().includes(query.toLowerCase());
  const tools = found.items.map((each) => ({
    group: each.kind === "tool" ? "Tools" : "Catalog", icon: ICONS[each.kind], text: each.name, about: each.description.split("\n", 1)[0],
    url: ADDRESSES[each.kind](each.kind === "tool" ? each.name : each.id), tryUrl: each.kind === "tool" ? `${ADDRESSES.tool(each.name)}?tab=try` : undefined,
  }));
  const made = calls.items.filter((call) => has(call.tool_name) || has(call.chat_id) || call.id.startsWith(query)).slice(0, PER_GROUP);
  const rooms = chats.items.filter((chat) => has(chat.id) || has(chat.title)).slice(0, PER_GROUP);
  return [
    ...tools.filter((row) => row.group === "Tools").slice(0, 2 * PER_GROUP),
    ...tools.filter((row) => row.group !== "Tools").slice(0, PER_GROUP),
    ...made.map((call) => ({
      group: "Calls", icon: "calls", text: call.tool_name, about: `${call.chat_id}, ${call.status === "success" ? formatDuration(call.duration_ms) : call.status}`,
      end: formatTime(call.started_at), url: `/console/calls/${encodeURIComponent(call.id)}`,
    })),
    ...rooms.map((chat) => ({group: "Chats", icon: "files", text: chat.id, url: `/console/chats/${encodeURIComponent(chat.id)}`})),
  ];
}

function findPages(query, pages, principal) {
  const actions = principal.admin
    ? [
      ["plus", "Add a server", "/console/servers/add"],
      ["plus", "Install a toolset", "/console/toolsets?import=1"],
      ["plus", "Make a key", "/console/access/keys?new=1"],
    ]
    : [];
  const rows = [
    ...pages.map((page) => ({group: "Pages", icon: page.icon, text: page.title, url: page.under})),
    ...actions.map(([name, text, url]) => ({group: "Actions", icon: name, text, url})),
  ];
  return rows.filter((row) => row.text.toLowerCase().includes(query.toLowerCase()));
}

function highlight(text, query) {
  const at = query ? text.toLowerCase().indexOf(query.toLowerCase()) : -1;
  if (at < 0) return [text];
  return [text.slice(0, at), h("mark", {}, text.slice(at, at + query.length)), text.slice(at + query.length)];
}
