/** Workspace: chats, their files, the versions of these as a graph, differences, and going back. */

import {chatName} from "../../core/calls.js";
import {codeBlock} from "../../core/code.js";
import {diffView, parseUnified} from "../../core/diff.js";
import {fromServerHtml, h, replace} from "../../core/dom.js";
import {makeEditor} from "../../core/editor.js";
import {formatExactTime, formatSize, formatTime, plural, shorten} from "../../core/format.js";
import {versionGraph} from "../../core/graph.js";
import {icon} from "../../core/icons.js";
import {dataTable} from "../../core/table.js";
import {baseName, fileTree, folderOf} from "../../core/tree.js";
import {ApiError} from "../api.js";
import {ask, errorBanner} from "../messages.js";
import {renderParts} from "../subpages.js";

const FOLDER_PAGE = 1000;
const MOST_FILES = 20_000;
const VERSIONS = 100;
const MOST_PAGES = 20;
const EDIT_BYTES = 1024 * 1024;
const SOURCES = {user_upload: "Upload", edit: "Files edited", branch: "Branch", undone: "Undo", interrupted: "Interrupted call", kept: "Copy of ignored files", tool_run: "Tool"};

export const page = {
  path: ["/console/chats", "/console/chats/{chat}", "/console/chats/{chat}/files/{+path}", "/console/chats/{chat}/compare/{range}"],
  title: "Workspace",
  icon: "files",
  render(context) {
    return renderParts(context, ({params}) => ({key: params.chat ?? "", render: params.chat ? renderChat : renderChats}));
  },
};

/** The address of a file, a comparison or a chat in the console. @param {string} chat @param {Record<string, any>} place */
function urlOf(chat, {path = "", compare = null, ...query} = {}) {
  const base = `/console/chats/${encodeURIComponent(chat)}`;
  const place = compare ? `/compare/${compare.map(encodeURIComponent).join("...")}` : path ? `/files/${encodePath(path)}` : "";
  const given = new URLSearchParams(Object.entries(query).filter(([, value]) => value));
  return `${base}${place}${given.size ? `?${given}` : ""}`;
}

function encodePath(path) {
  return path.split("/").map(encodeURIComponent).join("/");
}

function isDocument(path) {
  return /\.(md|markdown)$/i.test(path);
}

/** Run the script of the editor that highlights; there is none where the package was built without npm. */
async function loadEditor() {
  const src = document.body.dataset.editor;
  if (src) await new Promise((resolve, reject) => document.head.append(h("script", {src, onload: resolve, onerror: reject})));
}

// The chats.

async function renderChats({api, root, signal, query, navigate, principal}) {
  const chats = await loadAll((token) => api.get("/api/chats", {limit: 1000, page_token: token}, {signal}), 10_000);
  const filter = h("input", {class: "input calls-search", type: "search", "aria-label": "Filter chats", placeholder: `Filter ${plural(chats.length, "chat")}`, value: query.get("q") ?? "", "data-testid": "chats.filter"});
  const table = dataTable({
    rows: chats, testid: "chats", label: "Chats", key: (chat) => chat.id, href: (chat) => urlOf(chat.id),
    empty: h("div", {class: "empty"}, icon("files"), h("strong", {}, "No chats"), h("p", {}, "Each conversation of a client gets a workspace here with its first call.")),
    columns: [
      {key: "id", title: "Chat", render: (chat) => (chat.folder ? h("span", {class: "name", title: `${chat.folder} (${chat.id})`}, h("strong", {}, chatName({folder: chat.folder, chat_id: chat.id})), " ", h("span", {class: "meta"}, chat.folder)) : h("span", {class: "name", title: chat.id}, shorten(chat.id, 60)))},
      ...(principal.admin ? [{key: "principal", title: "Owner", width: "24%", wideOnly: true}] : []),
      {key: "manifest_id", title: "Version", width: "20%", wideOnly: true, sortable: false, render: (chat) => (chat.manifest_id ? h("span", {class: "mono"}, chat.manifest_id.slice(0, 18)) : "no version yet")},
      {key: "created_at", title: "Created", width: "130px", align: "right", render: (chat) => h("time", {title: formatExactTime(chat.created_at)}, formatTime(chat.created_at))},
    ],
  });
  table.classList.add("calls-table");
  const draw = () => table.setRows(chats.filter((chat) => `${chat.id} ${chat.folder ?? ""} ${chat.principal}`.toLowerCase().includes(filter.value.trim().toLowerCase())));
  filter.addEventListener("input", () => {
    navigate(`/console/chats${filter.value ? `?q=${encodeURIComponent(filter.value)}` : ""}`, {replace: true});
    draw();
  });
  root.append(h("header", {class: "page-head"}, h("h1", {}, "Workspace"), h("span", {class: "meta"}, plural(chats.length, "chat"))), h("div", {class: "calls-filters"}, filter), h("div", {class: "calls-list"}, table));
  draw();
}

/** All items of a list, up to a number. */
async function loadAll(load, most) {
  const items = [];
  let token = null;
  do {
    const answer = await load(token);
    items.push(...answer.items);
    token = answer.next_page_token;
  } while (token && items.length < most);
  return items;
}

// One chat.

/** Texts that somebody typed and did not save, by chat and path. */
const drafts = new Map();

async function renderChat(context) {
  const {api, root, params, signal, navigate, toast, onLeave, principal} = context;
  const chat = params.chat;
  const base = `/api/chats/${encodeURIComponent(chat)}`;
  const mayWrite = principal.permission !== "read-only";
  let place = readPlace(context);
  let versions = [];
  let nextVersions = null;
  let treeVersion = ""; // of the files that the tree shows; "" for now
  let allFiles = null;
  let turn = 0;

  const title = h("h1", {class: "mono", title: chat}, shorten(chat, 40));
  const about = h("span", {class: "meta", "data-testid": "workspace.about"});
  const filter = h("input", {class: "input", type: "search", "aria-label": "Filter files", placeholder: "Filter files", "data-testid": "workspace.filter"});
  const changedOnly = h("input", {type: "checkbox", class: "toggle", role: "switch", "data-testid": "workspace.changed"});
  const changedCount = h("span", {class: "meta"});
  const tree = fileTree({load: loadFolder, testid: "workspace.tree", href: (path) => urlOf(chat, {path, at: place.at}), open: (path) => navigate(urlOf(chat, {path, at: place.at}))});
  const middle = h("div", {class: "files-middle", "data-testid": "workspace.content"});
  const side = h("aside", {class: "files-side", "aria-label": "Versions of the files"});
  const picker = h("input", {type: "file", multiple: true, hidden: true, "aria-label": "Files to upload", "data-testid": "workspace.picker", onchange: () => { upload([...(picker.files ?? [])].map((file) => ({file, folder: here()}))); picker.value = ""; }});
  const body = h("div", {class: "files"},
    h("div", {class: "files-tree"}, h("div", {class: "files-filter"}, filter, h("label", {class: "row"}, "Only changed files", changedCount, h("span", {class: "push"}), changedOnly)), tree.element),
    middle, side);
  root.append(
    h("header", {class: "page-head files-page-head"},
      h("nav", {class: "row", "aria-label": "You are here"}, h("a", {href: "/console/chats", "data-testid": "workspace.back"}, "Workspace"), icon("chevron")), title, about, h("span", {class: "push"}),
      h("a", {class: "button files-narrow", href: urlOf(chat), "data-testid": "workspace.files"}, "Files"),
      h("a", {class: "button files-narrow", href: urlOf(chat, {show: "versions"}), "data-testid": "workspace.versions"}, "Versions"),
      mayWrite ? h("button", {class: "button", type: "button", "data-testid": "workspace.new", onclick: askNew}, icon("plus"), h("span", {}, "New file")) : null,
      mayWrite ? h("button", {class: "button", type: "button", "data-testid": "workspace.upload", onclick: () => picker.click()}, icon("upload"), h("span", {}, "Upload")) : null,
      h("a", {class: "button", href: `${base}/archive`, download: "workspace.zip", "data-testid": "workspace.download"}, icon("download"), h("span", {}, "Download")),
      mayWrite ? h("button", {class: "button", type: "button", "data-testid": "workspace.undo", onclick: undo}, icon("undo"), h("span", {}, "Undo last change")) : null),
    picker, body, h("p", {class: "files-drop", "aria-hidden": "true"}, "Drop to upload"),
  );
  if (mayWrite) acceptDrops();
  filter.addEventListener("focus", () => loadEverything().catch(() => (allFiles = null))); // before the first letter
  filter.addEventListener("input", () => filterFiles());
  changedOnly.addEventListener("change", () => filterFiles());
  const warn = (event) => { if (drafts.size) event.preventDefault(); };
  addEventListener("beforeunload", warn);
  onLeave(() => { turn += 1; removeEventListener("beforeunload", warn); });

  // What the address says.

  function readPlace({params: given, query}) {
    const [a, b] = given.range ? given.range.split("...") : [];
    return {
      path: given.path ?? "", at: query.get("at") ?? "", show: query.get("show") ?? "", edit: query.get("edit") === "1",
      compare: given.range ? [a ?? "", b ?? ""] : null, file: query.get("file") ?? "",
    };
  }

  const here = () => folderOf(place.path) || ".";
  const find = (id) => (id ? versions.find((version) => version.id.startsWith(id)) : null) ?? null;
  const head = () => versions.find((version) => version.head) ?? null;
  /** The version that is looked at: the one of the address, or the current one. */
  const looked = () => (place.at ? find(place.at) : head());

  // Files.

  async function loadFolder(folder) {
    const query = {path: folder || ".", recursive: false, limit: FOLDER_PAGE, manifest: treeVersion || null};
    return loadAll((token) => api.get(`${base}/files`, {...query, page_token: token}, {signal}), MOST_FILES);
  }

  async function loadEverything() {
    const query = {path: ".", recursive: true, limit: FOLDER_PAGE, manifest: treeVersion || null};
    allFiles ??= loadAll((token) => api.get(`${base}/files`, {...query, page_token: token}, {signal}), MOST_FILES).then((files) => files.filter((file) => file.kind !== "directory"));
    return allFiles;
  }

  async function filterFiles() {
    const words = filter.value.trim().toLowerCase();
    if (changedOnly.checked) {
      const marks = marksOf();
      tree.show([...marks.keys()].filter((path) => path.toLowerCase().includes(words)).map((path) => ({path, kind: "file"})));
    } else if (!words) tree.show(null);
    else {
      const files = await loadEverything();
      if (filter.value.trim().toLowerCase() === words) tree.show(files.filter((file) => file.path.toLowerCase().includes(words)));
    }
  }

  function marksOf() {
    const changes = looked()?.changes;
    return new Map(changes ? [...changes.added.map((path) => [path, "A"]), ...changes.changed.map((path) => [path, "M"]), ...changes.deleted.map((path) => [path, "D"])] : []);
  }

  async function refresh() {
    allFiles = null;
    const answer = await api.get(`${base}/versions`, {limit: VERSIONS}, {signal});
    versions = answer.items;
    nextVersions = answer.next_page_token;
    await findVersion();
    await tree.reload();
    drawAll();
  }

  /** Load older versions until the one of the address is among them. */
  async function findVersion() {
    for (let round = 0; place.at && !find(place.at) && nextVersions && round < MOST_PAGES; round += 1) await loadOlder();
  }

  async function loadOlder() {
    const answer = await api.get(`${base}/versions`, {limit: VERSIONS, page_token: nextVersions}, {signal});
    versions = [...versions, ...answer.items];
    nextVersions = answer.next_page_token;
  }

  function drawAll() {
    const branches = new Set(versions.map((version) => version.id));
    for (const version of versions) branches.delete(version.parent);
    about.textContent = versions.length ? `${plural(versions.length, "version")}${nextVersions ? " and more" : ""}${branches.size > 1 ? `, ${plural(branches.size, "branch", "branches")}` : ""}` : "";
    const marks = marksOf();
    changedCount.textContent = String(marks.size);
    tree.mark(marks);
    tree.select(place.path || place.file);
    if (changedOnly.checked) filterFiles();
    body.dataset.pane = place.show === "versions" ? "versions" : place.path || place.compare || place.at ? "content" : "tree";
    drawVersions();
    drawMiddle();
  }

  async function drawMiddle() {
    const mine = (turn += 1);
    try {
      const parts = await (place.compare ? comparePart() : place.path ? filePart() : versionPart());
      if (mine === turn) {
        replace(middle, parts);
        showLines();
      }
    } catch (error) {
      if (mine === turn && error.name !== "AbortError") replace(middle, errorBanner(error, drawMiddle));
    }
  }

  // Versions.

  function nameOf(version) {
    return version.tool ?? SOURCES[version.source] ?? version.source;
  }

  function drawVersions() {
    const chosen = looked();
    const [a, b] = place.compare ?? [];
    const mark = (version) => (version.id === a ? "A" : version.id === b ? "B" : "");
    const draw = (version) => [
      h("span", {class: "version__line"}, h("span", {class: version.tool ? "version__name mono" : "version__name", title: nameOf(version)}, nameOf(version)), mark(version) ? h("span", {class: `version__mark version__mark--${mark(version)}`}, mark(version)) : null),
      h("span", {class: "version__line meta"}, h("time", {title: formatExactTime(version.created)}, formatTime(version.created)), fileCounts(version.changes), version.head ? h("span", {class: "badge badge--ok"}, "current") : version.source === "branch" && version.source_ref ? h("span", {class: "badge", title: version.source_ref}, icon("branch"), shorten(version.source_ref, 16)) : null),
    ];
    const pick = (version) => (event) => {
      if (event.shiftKey && chosen && chosen.id !== version.id) navigate(compareUrl(chosen, version));
      else navigate(urlOf(chat, {path: place.path, at: version.id, show: place.path ? place.show : ""}));
    };
    const props = (version) => ({onclick: pick(version), "data-testid": "workspace.version", "data-key": version.id, "aria-current": (place.compare ? mark(version) : version === chosen) ? "true" : null, title: "Look at this version; with Shift, compare with it"});
    const list = versions.length ? versionGraph(versions, {draw, props}) : h("div", {class: "empty"}, icon("clock"), h("p", {}, "No version yet: no call has changed the files."));
    const target = place.compare ? find(a) : chosen;
    replace(
      side,
      h("div", {class: "files-side__head"}, h("h2", {}, "Versions"), h("span", {class: "meta"}, nextVersions ? `${versions.length} and more` : String(versions.length))),
      h("div", {class: "files-side__list"}, list, nextVersions ? h("button", {class: "button button--quiet", type: "button", "data-testid": "workspace.older", onclick: () => loadOlder().then(drawVersions).catch((error) => toast(error.message, {kind: "bad"}))}, "Show older versions") : null),
      target ? h("div", {class: "files-side__foot row row--wrap"},
        mayWrite && !target.head ? h("button", {class: "button", type: "button", "data-testid": "workspace.restore", onclick: () => askRestore(target)}, place.compare ? "Restore A…" : "Restore…") : null,
        mayWrite ? h("button", {class: "button", type: "button", "data-testid": "workspace.branch", onclick: () => askBranch(target)}, place.compare ? "Branch from A…" : "Branch…") : null,
        !place.compare && !target.head && head() ? h("a", {class: "button", href: compareUrl(target, head()), "data-testid": "workspace.compare"}, "Compare with current") : null) : null,
    );
  }

  /** The comparison of two versions, the older one first. */
  function compareUrl(one, other) {
    const [a, b] = [one, other].sort((x, y) => (x.id < y.id ? -1 : 1));
    return urlOf(chat, {compare: [a.id, b.id], file: place.path});
  }

  function fileCounts(changes) {
    const parts = [["+", changes.added.length, "added"], ["~", changes.changed.length, "changed"], ["−", changes.deleted.length, "deleted"]].filter(([, count]) => count);
    if (!parts.length) return h("span", {}, "no change");
    const words = parts.map(([, count, word]) => `${plural(count, "file")} ${word}`).join(", ");
    return h("span", {title: words}, h("span", {"aria-hidden": "true"}, parts.map(([sign, count]) => `${sign}${count}`).join(" ")), h("span", {class: "visually-hidden"}, words));
  }

  /** What a version changed; for the current one, what the last call changed. */
  async function versionPart() {
    const version = looked();
    if (!version && place.at) return h("div", {class: "empty"}, icon("clock"), h("strong", {}, "No such version"), h("p", {}, "It is not among the versions of this chat. Choose one from the list."));
    if (!version) return h("div", {class: "empty"}, icon("files"), h("strong", {}, "Nothing has changed yet"), h("p", {}, mayWrite ? "Choose a file, or drop files here to upload them." : "Choose a file."));
    const diff = await api.get(`${base}/diff`, {to: version.id}, {signal});
    const call = version.tool && version.source_ref ? h("a", {href: `/console/calls/${encodeURIComponent(version.source_ref)}`, "data-testid": "workspace.call"}, "Show the call") : null;
    return [
      h("div", {class: "files-head"}, h("h2", {}, version.head && !place.at ? "Last change" : "Change"), h("span", {class: version.tool ? "mono" : ""}, nameOf(version)), h("span", {class: "meta"}, formatTime(version.created)), fileCounts(version.changes), h("span", {class: "push"}), call),
      diff.truncated ? h("p", {class: "banner banner--warn"}, "The difference is too large to be shown whole.") : null,
      diffView({unified: diff.diff}),
    ];
  }

  async function comparePart() {
    const [a, b] = place.compare ?? [];
    const diff = await api.get(`${base}/diff`, {from: a || null, to: b || null, path: place.file || null}, {signal});
    const files = parseUnified(diff.diff);
    const select = (name, value) => {
      const known = versions.some((version) => version.id === value);
      const options = [known ? null : h("option", {value}, value.slice(0, 18)), versions.map((version) => h("option", {value: version.id}, `${formatTime(version.created)}  ${nameOf(version)}`))];
      const field = h("select", {class: "input", "aria-label": `Version ${name}`, "data-testid": `workspace.${name}`}, options);
      field.value = value;
      field.addEventListener("change", () => navigate(urlOf(chat, {compare: name === "a" ? [field.value, b] : [a, field.value], file: place.file})));
      return h("span", {class: "row files-pick"}, h("span", {class: `version__mark version__mark--${name.toUpperCase()}`}, name.toUpperCase()), field);
    };
    const added = files.reduce((sum, file) => sum + file.added, 0);
    const removed = files.reduce((sum, file) => sum + file.removed, 0);
    return [
      h("div", {class: "files-head"}, h("h2", {class: "visually-hidden"}, "Comparison"), select("a", diff.from ?? a), h("a", {class: "button button--quiet button--icon", href: urlOf(chat, {compare: [b, a], file: place.file}), "aria-label": "Swap A and B", title: "Swap A and B", "data-testid": "workspace.swap"}, icon("refresh")), select("b", diff.to ?? b),
        h("span", {class: "push"}), h("span", {class: "meta", "data-testid": "workspace.sum"}, `${plural(files.length, "file")} +${added} −${removed}`),
        place.file ? h("a", {href: urlOf(chat, {compare: [a, b]}), "data-testid": "workspace.all"}, "All files") : null),
      diff.truncated ? h("p", {class: "banner banner--warn"}, "The difference is too large to be shown whole.") : null,
      diffView({files, open: place.file ? files.length : 3}),
    ];
  }

  // One file.

  async function filePart() {
    const {path, at} = place;
    const raw = `${base}/files/${encodePath(path)}`;
    const suffix = at ? `?manifest=${encodeURIComponent(at)}` : "";
    if (place.edit && mayWrite) return editPart(raw);
    const tab = ["source", "changes", "history"].includes(place.show) ? place.show : "file";
    const view = (show, word) => h("a", {href: urlOf(chat, {path, at, show: show === "file" ? "" : show}), "aria-current": tab === show ? "page" : null, "data-testid": "workspace.show", "data-key": show}, word);
    const bar = (facts, isText = true) => h("div", {class: "files-head"},
      h("h2", {class: "mono files-path", title: path}, path), facts, h("span", {class: "push"}),
      h("nav", {class: "segmented files-tabs", "aria-label": "Ways to look at the file"}, view("file", "File"), isDocument(path) || /\.svg$/i.test(path) ? view("source", "Source") : null, view("changes", "Changes"), view("history", "History")),
      mayWrite && isText ? h("a", {class: "button button--icon", href: urlOf(chat, {path, edit: "1"}), "aria-label": "Edit", title: at ? "Edit the current file" : "Edit", "data-testid": "workspace.edit"}, icon("edit")) : null,
      h("a", {class: "button button--icon", href: `${raw}${suffix}`, download: baseName(path), "aria-label": "Download the file", title: "Download the file", "data-testid": "workspace.save-as"}, icon("download")));
    const old = at && find(at) && !find(at).head ? h("p", {class: "banner files-note"}, icon("clock"), h("span", {}, `As it was at ${formatTime(find(at).created)}. `), h("a", {href: urlOf(chat, {path}), "data-testid": "workspace.now"}, "Show it now")) : null;
    if (tab === "history") return [bar(null), fileHistory(path)];
    if (tab === "changes") {
      const version = looked();
      const diff = version ? await api.get(`${base}/diff`, {to: version.id, path}, {signal}) : {diff: ""};
      return [bar(null), old, diffView({unified: diff.diff, open: 1})];
    }
    const preview = await api.get(`${base}/preview/${encodePath(path)}`, {manifest: at || null, source: tab === "source"}, {signal});
    const facts = h("span", {class: "meta"}, [formatSize(preview.size), preview.language].filter(Boolean).join(", "));
    return [bar(facts, preview.html !== null || preview.media_type === "image/svg+xml"), old, preview.truncated && preview.html !== null ? h("p", {class: "banner banner--warn files-note"}, `Only the beginning is shown; the file has ${formatSize(preview.size)}.`) : null, drawPreview(preview, raw, suffix)];
  }

  function drawPreview(preview, raw, suffix) {
    if (preview.kind === "image") return h("div", {class: "files-image"}, h("img", {src: `${raw}${suffix}`, alt: baseName(preview.path)}));
    if (preview.html === null) return h("div", {class: "empty"}, icon("file"), h("strong", {}, "Not text"), h("p", {}, `${formatSize(preview.size)}, ${preview.media_type}. Download it to look at it.`));
    if (preview.size === 0) return h("div", {class: "empty"}, h("p", {}, "The file is empty."));
    const nodes = fromServerHtml(preview.html);
    if (preview.kind === "document") return h("article", {class: "prose files-prose"}, localise(nodes, folderOf(preview.path), suffix));
    const marked = lineRange();
    return codeBlock({html: preview.html, text: nodes.textContent, language: preview.language, marked: marked ?? undefined, onLine: markLine, label: preview.path});
  }

  /** Pictures beside a document are files of the chat; nothing is loaded from elsewhere. */
  function localise(nodes, folder, suffix) {
    const resolve = (address) => {
      if (/^([a-z][a-z0-9+.-]*:|\/|#|\?)/i.test(address)) return null;
      try {
        const path = new URL(address, `http://x/${encodePath(folder)}${folder ? "/" : ""}`).pathname.slice(1);
        return decodeURIComponent(path);
      } catch {
        return null;
      }
    };
    for (const image of nodes.querySelectorAll("img")) {
      const source = image.getAttribute("src") ?? "";
      const path = resolve(source);
      if (path) image.setAttribute("src", `${base}/files/${encodePath(path)}${suffix}`);
      else if (!source.startsWith("data:")) image.replaceWith(h("a", {href: /^https?:/i.test(source) ? source : null, target: "_blank", rel: "noopener noreferrer nofollow"}, image.getAttribute("alt") || source));
    }
    for (const link of nodes.querySelectorAll("a[href]")) {
      const path = resolve(link.getAttribute("href"));
      if (!path) continue;
      link.setAttribute("href", urlOf(chat, {path, at: place.at}));
      link.removeAttribute("target");
    }
    return nodes;
  }

  /** @returns {[number, number] | null} */
  function lineRange() {
    const match = /^#L(\d+)(?:-L(\d+))?$/.exec(location.hash);
    return match ? [Number(match[1]), Number(match[2] ?? match[1])] : null;
  }

  function markLine(line, extend) {
    const [first] = lineRange() ?? [line];
    const [from, to] = extend ? [Math.min(first, line), Math.max(first, line)] : [line, line];
    history.replaceState(null, "", `${location.pathname}${location.search}#L${from}${to > from ? `-L${to}` : ""}`);
    drawMiddle();
  }

  function showLines() {
    const range = lineRange();
    if (range) document.getElementById(`L${range[0]}`)?.scrollIntoView({block: "center"});
  }

  function fileHistory(path) {
    const touched = versions.filter(({changes}) => [...changes.added, ...changes.changed, ...changes.deleted].includes(path));
    if (!touched.length) return h("div", {class: "empty"}, icon("clock"), h("p", {}, nextVersions ? "None of the shown versions changed this file. Show older versions." : "No version changed this file."));
    return h("ul", {class: "files-history"}, touched.map((version) => h("li", {}, h("a", {class: "list-link", href: urlOf(chat, {path, at: version.id, show: "changes"}), "data-testid": "workspace.touched", "data-key": version.id},
      icon("clock"), h("span", {class: version.tool ? "mono" : ""}, nameOf(version), version.changes.added.includes(path) ? " (added)" : version.changes.deleted.includes(path) ? " (deleted)" : ""), h("span", {class: "meta"}, formatTime(version.created))))));
  }

  // Editing.

  /** The text of a file and its entity tag; null if there is none. */
  async function readText(raw) {
    const response = await fetch(raw, {signal, credentials: "same-origin"});
    if (response.status === 404) return null;
    if (!response.ok) throw new ApiError(response.status, (await response.json().catch(() => ({}))).error);
    if (Number(response.headers.get("content-length")) > EDIT_BYTES) throw new ApiError(413, {code: "TOO_LARGE", message: `The file is larger than ${formatSize(EDIT_BYTES)}. Download it, change it, and upload it again.`});
    const bytes = await response.arrayBuffer();
    try {
      return {text: new TextDecoder("utf-8", {fatal: true, ignoreBOM: true}).decode(bytes), etag: response.headers.get("etag")};
    } catch {
      throw new ApiError(415, {code: "NOT_TEXT", message: "The file is not text. Download it, change it, and upload it again."});
    }
  }

  async function editPart(raw) {
    const {path} = place;
    const key = JSON.stringify([chat, path]);
    const current = await readText(raw);
    const known = drafts.get(key);
    let etag = known ? known.etag : (current?.etag ?? null);
    const original = current?.text ?? "";
    const area = await makeEditor(loadEditor, {
      text: known ? known.text : original, label: `Content of ${path}`, language: baseName(path).split(".").at(-1) ?? "", isProse: isDocument(path), testid: "workspace.editor",
      onChange: () => { if (area.value === original) drafts.delete(key); else drafts.set(key, {text: area.value, etag}); },
    });
    area.element.classList.add("files-editor");
    const problem = h("div", {});
    const save = h("button", {class: "button button--primary", type: "button", "data-testid": "workspace.save", onclick: () => store()}, "Save");
    const leave = () => { drafts.delete(key); navigate(current || etag ? urlOf(chat, {path}) : urlOf(chat)); };
    area.element.addEventListener("keydown", (event) => {
      if ((event.ctrlKey || event.metaKey) && event.key === "s") { event.preventDefault(); store(); }
      else if (event.key === "Escape" && !event.defaultPrevented && !drafts.has(key)) leave();
    });

    async function store() {
      save.disabled = true;
      try {
        const headers = etag ? {"if-match": etag} : {"if-none-match": "*"};
        const body_ = new Blob([area.value], {type: "application/octet-stream"});
        const written = await api.send("PUT", raw, body_, {headers});
        drafts.delete(key);
        await refresh();
        const before = find(written.manifest_id)?.parent;
        toast(`${baseName(path)} saved`, before ? {undo: () => restore(before)} : {});
        navigate(urlOf(chat, {path}));
      } catch (error) {
        if (error.code === "PRECONDITION_FAILED") await showConflict();
        else replace(problem, errorBanner(error));
      } finally {
        save.disabled = false;
      }
    }

    async function showConflict() {
      const theirs = await readText(raw);
      replace(problem, h("div", {class: "banner banner--warn", role: "alert", "data-testid": "workspace.conflict"}, icon("warn"),
        h("div", {class: "stack"}, h("p", {}, theirs ? "Somebody changed the file since you opened it. Nothing was overwritten. The file as it is now:" : "The file is gone since you opened it."),
          theirs ? codeBlock({text: theirs.text, maxLines: 20, label: "The file as it is now"}) : null,
          h("div", {class: "row row--wrap"},
            h("button", {class: "button", type: "button", "data-testid": "workspace.theirs", onclick: () => { drafts.delete(key); drawMiddle(); }}, "Discard mine and reload"),
            h("button", {class: "button button--danger", type: "button", "data-testid": "workspace.mine", onclick: () => { etag = theirs?.etag ?? null; store(); }}, "Save mine over it")))));
    }

    setTimeout(() => area.focus()); // when it is on the page
    return [
      h("div", {class: "files-head"}, h("h2", {class: "mono files-path"}, path), h("span", {class: "meta"}, known ? "not saved yet" : current ? "" : "new file"), h("span", {class: "push"}), h("button", {class: "button", type: "button", "data-testid": "workspace.discard", onclick: leave}, "Cancel"), save),
      problem, area.element,
    ];
  }

  function askNew() {
    const field = h("input", {class: "input mono", name: "path", required: true, value: here() === "." ? "" : `${here()}/`, "data-testid": "workspace.new-path", autocomplete: "off"});
    ask({
      title: "New file", verb: "Edit", body: h("label", {class: "field"}, "Path", field),
      accept: () => navigate(urlOf(chat, {path: field.value.trim().replace(/^\/+/, ""), edit: "1"})),
    });
  }

  // Changes of the whole workspace.

  async function upload(files) {
    let before = null;
    let done = 0;
    for (const {file, folder} of files) {
      const form = new FormData();
      form.set("directory", folder || ".");
      form.set("file", file);
      try {
        const result = await api.send("POST", `${base}/upload`, form, {signal});
        before ??= result.previous;
        done += 1;
      } catch (error) {
        toast(`${file.name}: ${error.message}`, {kind: "bad"});
      }
    }
    if (!done) return;
    toast(`${plural(done, "file")} uploaded`, before ? {undo: () => restore(before)} : {});
    await refresh();
  }

  function acceptDrops() {
    let depth = 0;
    const isFiles = (event) => event.dataTransfer?.types.includes("Files");
    root.addEventListener("dragenter", (event) => { if (isFiles(event)) { depth += 1; root.classList.add("is-dropping"); } });
    root.addEventListener("dragleave", () => { depth = Math.max(0, depth - 1); if (!depth) root.classList.remove("is-dropping"); });
    root.addEventListener("dragover", (event) => { if (isFiles(event)) event.preventDefault(); });
    root.addEventListener("drop", async (event) => {
      if (!isFiles(event)) return;
      event.preventDefault();
      depth = 0;
      root.classList.remove("is-dropping");
      const row = event.target instanceof Element ? event.target.closest("[role=treeitem]") : null;
      const folder = row ? (row.tagName === "A" ? folderOf(row.dataset.key) : row.dataset.key) : here();
      const entries = [...event.dataTransfer.items].map((item) => item.webkitGetAsEntry?.()).filter(Boolean);
      const plain = [...event.dataTransfer.files].map((file) => ({file, folder}));
      upload(entries.length ? (await Promise.all(entries.map((entry) => listEntry(entry, folder)))).flat() : plain);
    });
    onLeave(() => root.classList.remove("is-dropping"));
  }

  /** Show what happened to the files, and offer the way back. */
  async function report(verb, result) {
    const {added, changed, deleted} = result.changes;
    const count = added.length + changed.length + deleted.length;
    toast(count ? `${verb}: ${plural(count, "file")} changed` : `${verb}: no file changed`, result.previous && count ? {undo: () => restore(result.previous)} : {});
    navigate(urlOf(chat), {replace: true});
    place = readPlace({params: {chat}, query: new URLSearchParams()});
    await refresh();
  }

  async function restore(manifest) {
    try {
      await report("Restored", await api.send("POST", `${base}/restore`, {manifest}));
    } catch (error) {
      toast(error.message, {kind: "bad"});
    }
  }

  async function undo() {
    try {
      await report("Undone", await api.send("POST", `${base}/undo`));
    } catch (error) {
      toast(error.message, {kind: "bad"});
    }
  }

  async function askRestore(version) {
    const effect = h("p", {}, "Comparing…");
    const names = h("ul", {class: "files-effect"});
    ask({
      title: `Restore the files of ${formatTime(version.created)}?`, verb: "Restore", body: h("div", {class: "stack"}, effect, names, h("p", {class: "meta"}, "The files as they are now stay a version, so this can be undone.")),
      accept: () => api.send("POST", `${base}/restore`, {manifest: version.id}).then((result) => report("Restored", result)),
    });
    try {
      const files = parseUnified((await api.get(`${base}/diff`, {from: head().id, to: version.id}, {signal})).diff);
      effect.textContent = files.length ? `${plural(files.length, "file")} will change:` : "The files are the same.";
      replace(names, files.slice(0, 12).map((file) => h("li", {class: "mono"}, file.path, file.status === "changed" ? "" : ` (${file.status})`)), files.length > 12 ? h("li", {}, `and ${files.length - 12} more`) : null);
    } catch (error) {
      effect.textContent = error.message;
    }
  }

  function askBranch(version) {
    const field = h("input", {class: "input mono", name: "message", required: true, maxlength: 128, value: `branch-${Date.now().toString(36)}`, "data-testid": "workspace.branch-name", autocomplete: "off"});
    ask({
      title: `Branch from ${formatTime(version.created)}?`, verb: "Branch",
      body: h("div", {class: "stack"}, h("label", {class: "field"}, "Name", field), h("p", {class: "meta"}, "The files go back to this version, and later changes branch off from it.")),
      accept: () => api.send("POST", `${base}/branch`, {manifest: version.id, message_id: field.value.trim()}).then((result) => report("Branched", result)),
    });
  }

  treeVersion = place.at;
  await refresh();
  return {
    async update(next) {
      place = readPlace(next);
      if (treeVersion !== place.at) {
        treeVersion = place.at;
        allFiles = null;
        await findVersion().then(() => tree.reload()).catch((error) => toast(error.message, {kind: "bad"}));
      }
      drawAll();
    },
  };
}

/** The files of something that was dropped, with the folder of each. */
async function listEntry(entry, folder) {
  if (entry.isFile) return [{file: await new Promise((resolve, reject) => entry.file(resolve, reject)), folder}];
  const reader = entry.createReader();
  const inside = folder === "." || !folder ? entry.name : `${folder}/${entry.name}`;
  const found = [];
  for (;;) {
    const entries = await new Promise((resolve, reject) => reader.readEntries(resolve, reject));
    if (!entries.length) return found;
    for (const each of entries) found.push(...(await listEntry(each, inside)));
  }
}
