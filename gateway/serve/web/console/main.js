/** The console: its pages, the frame around them, and what every page is given. */

import {h, replace, svg} from "../core/dom.js";
import {icon} from "../core/icons.js";
import {api, ApiError} from "./api.js";
import {live} from "./live.js";
import {matchPath, startRouter} from "./router.js";
import {openPalette} from "./palette.js";
import {errorBanner, toast} from "./messages.js";

/**
 * Every page: the address it lives under, and its module `pages/MODULE.js`, which is loaded when it is opened. The
 * module exports `page = {path, title, render(context)}`; `path` is a pattern of `router.js` or a list of them. If
 * `render` returns an object with `update(context)`, that is called when the address changes within the page.
 * `for` says who sees it: "admin", or everybody.
 */
export const PAGES = [
  {module: "home", under: "/", title: "Home", icon: "home", key: "h"},
  {module: "approvals", under: "/console/approvals", title: "Approvals", icon: "approvals", key: "a"},
  {module: "calls", under: "/console/calls", title: "Calls", icon: "calls", key: "c"},
  {module: "workspace", under: "/console/chats", title: "Workspace", short: "Files", icon: "files", key: "w"},
  {module: "tools", under: "/console/tools", title: "Tools", icon: "tools", group: "Catalog", key: "t"},
  {module: "categories", under: "/console/categories", title: "Categories", icon: "lock", group: "Catalog", key: "g"},
  {module: "toolsets", under: "/console/toolsets", title: "Toolsets", icon: "toolsets", group: "Catalog", key: "b", for: "admin"},
  {module: "servers", under: "/console/servers", title: "Servers", icon: "servers", group: "Catalog", key: "s", for: "admin"},
  {module: "access", under: "/console/access", title: "Access", icon: "access", group: "Admin", key: "k", for: "admin"},
];
const IN_BAR = ["home", "approvals", "calls", "workspace"];
const SKELETON_MS = 300;
const SLOW_MS = 10_000;

/** The pages that somebody may see. */
export function listPages(principal) {
  return PAGES.filter((page) => page.for !== "admin" || principal.admin);
}

const main = h("main", {id: "content", class: "console-main", tabindex: "-1"});
let session = null;
let navigate = null;
let current = null;
let turn = 0;

async function start() {
  const wait = h("main", {class: "console-wait"});
  const timer = setTimeout(() => drawSkeleton(wait), SKELETON_MS); // the gateway loads its REST surface with the first request
  document.body.append(wait);
  try {
    session = await api.get("/api/me");
  } catch (error) {
    if (!(error instanceof ApiError) || error.status === 401) return;
    replace(wait, errorBanner(error, () => location.reload()));
    return;
  } finally {
    clearTimeout(timer);
  }
  wait.remove();
  navigate = startRouter(show);
  drawFrame();
  live.start();
  addEventListener("keydown", onKey);
  await show("load");
  const find = new URLSearchParams(location.search).get("find");
  if (find !== null) openPalette(session.principal, navigate, listPages(session.principal), find);
}

// The frame.

function drawFrame() {
  const pages = listPages(session.principal);
  const rows = [];
  let group;
  for (const page of pages) {
    if (page.group !== group) {
      group = page.group;
      rows.push(h("p", {class: "nav-group"}, group));
    }
    rows.push(navLink(page, "nav-link"));
  }
  const search = h(
    "button",
    {class: "nav-search", type: "button", "data-testid": "shell.search", onclick: find},
    icon("search"), h("span", {}, "Search"), h("kbd", {class: "kbd"}, "Ctrl K"),
  );
  const sidebar = h(
    "aside", {class: "sidebar"},
    h("a", {class: "brand", href: "/", "data-testid": "shell.brand"}, logo(), h("span", {}, "Toolgate"), h("small", {}, session.version)),
    search,
    h("nav", {"aria-label": "Pages", class: "nav"}, ...rows),
    drawFoot(),
  );
  const bar = h(
    "nav", {class: "bottom-bar", "aria-label": "Main pages"},
    ...pages.filter((page) => IN_BAR.includes(page.module)).map((page) => navLink(page, "bar-link")),
    h("button", {class: "bar-link", type: "button", "data-testid": "shell.more", onclick: openMore}, icon("menu"), h("span", {}, "More")),
  );
  const skip = h("a", {class: "skip-link", href: "#content"}, "Skip to content");
  skip.addEventListener("click", (event) => { event.preventDefault(); main.focus(); });
  document.body.append(skip, sidebar, main, bar);
  live.onChange(drawLive);
}

function navLink(page, kind) {
  return h(
    "a", {class: kind, href: page.under, "data-testid": "shell.page", "data-key": page.module},
    icon(page.icon), h("span", {}, (kind === "bar-link" && page.short) || page.title),
    page.module === "approvals" ? h("span", {class: "nav-count", hidden: true}) : null,
  );
}

function drawFoot() {
  const {principal} = session;
  const name = principal.id === "local" ? "This computer" : principal.id;
  const theme = h("button", {class: "foot-button", type: "button", "data-testid": "shell.theme", onclick: switchTheme}, icon("moon"));
  const out = session.signed_in
    ? h("button", {class: "foot-button", type: "button", title: "Sign out", "aria-label": "Sign out", "data-testid": "shell.sign-out", onclick: signOut}, icon("external"))
    : null;
  theme.setAttribute("aria-label", "Switch between light and dark");
  theme.title = "Light or dark";
  return h(
    "div", {class: "foot"},
    h("p", {class: "foot-live", role: "status", "data-testid": "shell.live"}),
    h("div", {class: "foot-who"}, icon("user"), h("span", {class: "foot-name", title: principal.role || ""}, name), out, theme),
  );
}

function drawLive() {
  for (const place of /** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll(".foot-live"))) {
    place.textContent = live.state === "lost" ? `Not live since ${live.since}. Reconnecting` : live.state === "live" ? "Live" : "";
    place.dataset.state = live.state;
  }
  for (const count of /** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll(".nav-count"))) {
    count.hidden = !live.waiting;
    count.textContent = String(live.waiting);
    count.setAttribute("aria-label", `${live.waiting} waiting`);
  }
}

async function signOut() {
  try {
    await api.send("POST", "/sign-out");
  } catch (error) {
    toast(error.message, {kind: "bad"});
    return;
  }
  location.assign("/sign-in");
}

function switchTheme() {
  const chosen = document.documentElement.dataset.theme;
  const isDark = chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  const theme = isDark ? "light" : "dark";
  document.documentElement.dataset.theme = theme;
  document.cookie = `theme=${theme}; path=/; max-age=31536000; samesite=lax`;
}

function openMore() {
  const dialog = h(
    "dialog", {class: "more", "aria-label": "More pages"},
    h("nav", {class: "nav", "aria-label": "All pages"}, ...listPages(session.principal).map((page) => navLink(page, "nav-link"))),
    h("button", {class: "nav-link", type: "button", onclick: () => { dialog.close(); find(); }}, icon("search"), h("span", {}, "Search")),
    drawFoot(),
  );
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog || (event.target instanceof Element && event.target.closest("a"))) dialog.close();
  });
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  drawLive();
  dialog.showModal();
}

function find() {
  openPalette(session.principal, navigate, listPages(session.principal));
}

// Keys: Ctrl-K, and `g` then the letter of a page. Letters do nothing while somebody types.

let isGoing = false;

function onKey(event) {
  if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") {
    event.preventDefault();
    find();
    return;
  }
  const [target] = event.composedPath(); // also inside the editor, which has a shadow root
  const typing = target instanceof Element && target.closest("input, textarea, select, [contenteditable], dialog");
  if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
  if (isGoing) {
    isGoing = false;
    const page = listPages(session.principal).find((each) => each.key === event.key);
    if (page) navigate(page.under);
  } else if (event.key === "g") {
    isGoing = true;
  } else if (event.key === "/") {
    const filter = main.querySelector("input[type=search]");
    if (filter instanceof HTMLElement) { event.preventDefault(); filter.focus(); }
  }
}

// Pages.

function findPage(path) {
  const pages = listPages(session.principal);
  return pages.find((page) => page.under === path || (page.under !== "/" && path.startsWith(`${page.under}/`)));
}

async function show(change) {
  const mine = turn += 1;
  const path = location.pathname === "/console" ? "/" : location.pathname;
  const row = findPage(path);
  markCurrent(row);
  if (!row) {
    await leave();
    showMissing("There is no such page", `Nothing is at ${location.pathname}, or your role does not allow it.`);
    return;
  }
  let page;
  try {
    ({page} = await import(`./pages/${row.module}.js`));
  } catch (error) {
    if (mine !== turn) return;
    await leave();
    showMissing(`${row.title} is not part of this installation`, `The module console/pages/${row.module}.js could not be loaded (${error.message}). Install Toolgate again.`);
    return;
  }
  if (mine !== turn) return;
  const patterns = Array.isArray(page.path) ? page.path : [page.path];
  const params = patterns.map((pattern) => matchPath(pattern, path)).find(Boolean);
  if (!params) {
    await leave();
    showMissing("There is no such page", `${row.title} has nothing at ${location.pathname}.`);
    return;
  }
  if (current && current.page === page && current.update) {
    current.update({...current.context, params, query: new URLSearchParams(location.search)});
    return;
  }
  await leave();
  await render(page, row, params, change, mine);
}

async function leave() {
  const left = current;
  current = null;
  for (const end of left ? left.endings.reverse() : []) {
    try {
      await end();
    } catch (error) {
      console.warn("a page could not end", error);
    }
  }
}

async function render(page, row, params, change, mine) {
  const root = h("div", {class: "page", "data-testid": `page.${row.module}`});
  const endings = [];
  const abort = new AbortController();
  endings.push(() => abort.abort());
  const context = {
    params, query: new URLSearchParams(location.search), api, root, navigate, toast, live,
    principal: session.principal, session, signal: abort.signal, onLeave: (end) => endings.push(end),
  };
  current = {page, context, endings, update: null};
  document.title = `${page.title || row.title} · Toolgate`;
  replace(main, root);
  if (change !== "pop") scrollTo(0, 0);
  const timers = [setTimeout(() => drawSkeleton(root), SKELETON_MS), setTimeout(() => drawSlow(root), SLOW_MS)];
  endings.push(() => timers.forEach(clearTimeout));
  try {
    const handle = await page.render(context);
    if (current && current.context === context) current.update = handle && handle.update ? handle.update.bind(handle) : null;
  } catch (error) {
    if (mine === turn && error.name !== "AbortError") replace(root, errorBanner(error, () => show("replace")));
  } finally {
    timers.forEach(clearTimeout);
    root.querySelector(":scope > .page-skeleton")?.remove();
  }
  if (mine === turn && change !== "load" && !root.contains(document.activeElement)) focusTitle(root);
}

function focusTitle(root) {
  const title = root.querySelector("h1");
  if (!title) return;
  title.tabIndex = -1;
  title.focus({preventScroll: true});
}

/** Grey rows for data that a page is still loading, below what it shows already; styles hide its empty parts. */
function drawSkeleton(root) {
  root.append(h("div", {class: "page-skeleton", role: "status", "aria-label": "Loading"}, ...Array.from({length: 8}, () => h("div", {class: "skeleton"}))));
}

function drawSlow(root) {
  root.querySelector(":scope > .page-skeleton")?.prepend(h("p", {}, "Still loading. The gateway is slow to answer."));
}

function markCurrent(row) {
  for (const link of /** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll("[data-testid='shell.page']"))) {
    if (row && link.dataset.key === row.module) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
}

function showMissing(title, text) {
  document.title = `${title} · Toolgate`;
  replace(
    main,
    h("div", {class: "page", "data-testid": "page.missing"}, h("div", {class: "empty"}, icon("warn"), h("h1", {}, title), h("p", {}, text), h("a", {class: "button", href: "/"}, "Go to Home"))),
  );
}

function logo() {
  return svg("svg", {viewBox: "0 0 16 16", class: "logo", "aria-hidden": "true"}, svg("path", {d: "M2 15V8a6 6 0 0 1 12 0v7M5.3 15V9.5M8 15V8M10.7 15V9.5"}));
}

start();
