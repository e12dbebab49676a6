/** Servers: their state, tools, definitions to accept or reject, logs, login and settings, and how to add one. */

import {diffView} from "../../core/diff.js";
import {h, replace} from "../../core/dom.js";
import {formatDuration, formatTime, plural} from "../../core/format.js";
import {icon, state} from "../../core/icons.js";
import {ask, errorBanner} from "../messages.js";
import {emptyState, facts, focusTitle, jsonBlock, levelBadge, readAll, runAction, splitPane, tabLinks} from "./catalog.js";
import {drawBundle, drawRegistry} from "./packages.js";

const WAYS = {form: "Form", paste: "Paste a config", registry: "Registry", mcpb: ".mcpb file"};
const LOG_MS = 2000;
const LOGIN_MS = 1500;
const LOGIN_TRIES = 200;
const ADDED = "added by hand";
/** State of a server: the shape, the word, the badge, and whether it needs a person. */
const STATES = {
  ok: ["done", "Connected", "badge--ok", false], new: ["cancelled", "Not used yet", "", false], off: ["cancelled", "Off", "", false],
  failed: ["failed", "Failed", "badge--bad", true], "not logged in": ["needs", "Needs a login", "badge--warn", true], "held back": ["needs", "Held back", "badge--warn", true],
};

export const page = {path: ["/console/servers/add", "/console/servers/{name?}"], title: "Servers", icon: "servers", render};

async function render(context) {
  const view = new ServersPage(context);
  await view.load();
  await view.update(context);
  context.onLeave(() => view.stop());
  return view;
}

function needsPerson(server) {
  return server.waiting > 0 || server.missing.length > 0 || STATES[server.state]?.[3];
}

class ServersPage {
  /** @type {any[]} */ servers = [];
  /** @type {string | null} */ name = null;
  timer = 0;
  q = "";

  constructor(context) {
    this.context = context;
    this.api = context.api;
    this.head = h("header", {class: "page-head"});
    this.rows = h("ul", {class: "plain-list"});
    const search = h("input", {type: "search", class: "input", "aria-label": "Filter servers", placeholder: "Filter servers", "data-testid": "servers.filter", oninput: () => { this.q = search.value.toLowerCase(); this.drawList(); }});
    this.list = h("section", {class: "split__list", "aria-label": "All servers"}, h("div", {class: "filters"}, search), this.rows);
    this.detail = h("section", {class: "split__detail", "aria-label": "Server"});
  }

  async load() {
    const servers = await readAll(this.api, "/api/upstreams");
    this.servers = servers.sort((a, b) => Number(Boolean(needsPerson(b))) - Number(Boolean(needsPerson(a))) || a.name.localeCompare(b.name));
  }

  stop() {
    clearInterval(this.timer);
    this.leftLogin = true;
  }

  async update(context) {
    this.context = context;
    this.stop();
    const isAdd = location.pathname.endsWith("/servers/add");
    const name = isAdd ? null : context.params.name ?? null;
    const opened = name !== this.name || isAdd;
    this.name = name;
    if (!this.split?.isConnected) {
      this.split = splitPane(this.list, this.detail, {page: "servers", isOpen: false, side: "list", width: 300});
      replace(context.root, this.head, this.split);
      context.root.classList.add("page--fixed");
    }
    this.split.classList.toggle("split--open", Boolean(name) || isAdd);
    this.split.classList.toggle("split--alone", !this.servers.length && !name && !isAdd);
    this.drawList();
    if (isAdd) this.drawAdd(context.query.get("how") ?? "form");
    else await this.drawDetail(context.query.get("tab") ?? "");
    if (opened && context.root.contains(document.activeElement)) focusTitle(this.detail);
  }

  async refresh(tab) {
    await this.load();
    this.drawList();
    if (this.name) await this.drawDetail(tab ?? this.context.query.get("tab") ?? "");
  }

  drawList() {
    const ready = this.servers.filter((server) => !needsPerson(server) && server.state !== "off").length;
    replace(this.head, h("h1", {}, "Servers"), h("span", {class: "meta", role: "status", "data-testid": "servers.summary"}, `${ready} of ${this.servers.length} ready`),
      h("a", {class: "button push", href: "/console/servers/add?how=paste", "data-testid": "servers.paste"}, "Paste a config"),
      h("a", {class: "button button--primary", href: "/console/servers/add", "data-testid": "servers.add"}, icon("plus"), "Add a server"));
    const shown = this.servers.filter((server) => server.name.toLowerCase().includes(this.q));
    if (!shown.length) {
      replace(this.rows, h("li", {}, this.servers.length ? emptyState("search", "No server matches", "Change the filter.") : emptyState("servers", "No server yet", "Add an MCP server, and its tools are offered beside the others.", h("a", {class: "button", href: "/console/servers/add"}, "Add a server"))));
      return;
    }
    replace(this.rows, shown.map((server) => {
      const [kind, word, badge] = STATES[server.state] ?? STATES.failed;
      const note = server.waiting ? h("span", {class: "badge badge--warn push"}, `${server.waiting} held back`) : needsPerson(server) ? h("span", {class: `badge push ${badge}`}, word) : h("span", {class: "meta push"}, server.state === "ok" ? null : word.toLowerCase());
      return h("li", {class: "pick", "aria-current": server.name === this.name ? "true" : null, "data-testid": "servers.row", "data-key": server.name},
        h("a", {class: "pick__link", href: `/console/servers/${encodeURIComponent(server.name)}`},
          h("span", {class: "row"}, state(server.waiting ? "needs" : kind, null), h("strong", {class: "name"}, server.name), note),
          h("span", {class: "meta"}, `${describeTransport(server)} · ${server.offered === server.tool_count ? plural(server.tool_count, "tool") : `${server.offered} of ${plural(server.tool_count, "tool")}`}`)));
    }));
  }

  // One server.

  async drawDetail(tab) {
    clearInterval(this.timer);
    if (!this.name) return replace(this.detail, emptyState("servers", "No server is open", "Choose one to see its tools, definitions and logs."));
    const name = this.name;
    let server;
    let review = [];
    try {
      [server, review] = await Promise.all([this.api.get(`/api/upstreams/${encodeURIComponent(name)}`), readAll(this.api, `/api/upstreams/${encodeURIComponent(name)}/review`)]);
    } catch (error) {
      const listed = this.servers.find((each) => each.name === name);
      return replace(this.detail, back(), listed?.state === "held back" ? emptyState("warn", `${name} is held back`, `It comes with ${listed.origin}. Look at what it runs, then allow it.`, h("a", {class: "button", href: "/console/toolsets"}, "Go to Toolsets")) : errorBanner(error, () => this.drawDetail(tab)));
    }
    if (name !== this.name) return undefined;
    const tabs = {overview: ["Overview"], tools: ["Tools", server.tools.length], definitions: ["Definitions", review.length], logs: ["Logs"], settings: ["Settings"]};
    const current = tabs[tab] ? tab : review.length ? "definitions" : "overview";
    const [kind, word, badge] = STATES[server.state] ?? STATES.failed;
    const isOwn = server.origin === ADDED;
    const toggle = h("input", {type: "checkbox", class: "toggle", role: "switch", checked: server.state !== "off", disabled: !isOwn, title: isOwn ? null : `Set up in ${server.origin}; change it there`, "aria-label": `${server.name} on`, "data-testid": "servers.toggle", onchange: () => this.enable(server, toggle.checked)});
    const body = h("div", {class: "detail__body stack"});
    replace(
      this.detail, back(),
      h("header", {class: "detail__head stack"}, h("div", {class: "row row--wrap"},
        state(review.length ? "needs" : kind, null), h("h2", {}, server.name), h("span", {class: `badge ${badge}`, "data-testid": "servers.state"}, word), h("span", {class: "badge"}, server.sandbox.startsWith("yes") ? icon("lock") : null, describeTransport(server)), server.era ? h("span", {class: "badge"}, `MCP ${server.era}`) : null,
        h("span", {class: "row push"},
          h("button", {class: "button", type: "button", "data-testid": "servers.test", onclick: (event) => this.test(event.target, server)}, icon("refresh"), "List again"),
          h("button", {class: "button", type: "button", "data-testid": "servers.restart", disabled: server.state === "off", onclick: (event) => this.act(event.target, "restart", `${server.name} restarts`)}, "Restart"), toggle))),
      tabLinks(tabs, current, (key) => `/console/servers/${encodeURIComponent(server.name)}?tab=${key}`, "servers"), body);
    ({overview: drawOverview, tools: drawTools, definitions: drawDefinitions, logs: drawLogs, settings: drawSettings})[current](this, server, body, {review, isOwn});
    return undefined;
  }

  path(rest = "") {
    return `/api/upstreams/${encodeURIComponent(this.name ?? "")}${rest ? `/${rest}` : ""}`;
  }

  async act(button, action, word, body) {
    await runAction(button, this.context.toast, async () => {
      await this.api.send("POST", this.path(action), body);
      this.context.toast(word);
      await this.refresh();
    });
  }

  async test(button, server) {
    await runAction(button, this.context.toast, async () => {
      const {ok, result, error} = await this.api.send("POST", this.path("test"));
      if (ok) this.context.toast(`${server.name} answered in ${formatDuration(result.connect_ms + result.list_ms)}: ${plural(result.tools.length, "tool")}`);
      else this.context.toast(error.message, {kind: "bad"});
      await this.refresh();
    });
  }

  async enable(server, enabled, isUndo = false) {
    try {
      await this.api.send("POST", `/api/upstreams/${encodeURIComponent(server.name)}/enable`, {enabled});
      this.context.toast(`${server.name} ${enabled ? "enabled" : "disabled"}`, isUndo ? {} : {undo: () => this.enable(server, !enabled, true)});
    } catch (error) {
      this.context.toast(error.message, {kind: "bad"});
    }
    await this.refresh();
  }

  /** Open the page to log in at, and look at the state until it changes. */
  async logIn(button) {
    await runAction(button, this.context.toast, async () => {
      const opened = window.open("about:blank", "_blank");
      try {
        const {url} = await this.api.send("POST", this.path("login"));
        if (opened) { opened.opener = null; opened.location.href = url; }
        else this.context.toast(`Open ${url} to log in`, {kind: "warn"});
      } catch (error) {
        opened?.close();
        throw error;
      }
      this.leftLogin = false;
      const name = this.name;
      for (let tries = 0; tries < LOGIN_TRIES && !this.leftLogin && this.name === name; tries += 1) {
        await new Promise((resolve) => { setTimeout(resolve, LOGIN_MS); });
        const {state: now} = await this.api.get(this.path());
        if (now !== "not logged in") return this.refresh();
      }
      return undefined;
    });
  }

  /** Decide on definitions, by the digests that were shown. */
  async decide(button, verb, items, word) {
    await runAction(button, this.context.toast, async () => {
      await this.api.send("POST", this.path(verb), {subjects: items.map((item) => `${item.kind}:${item.name}@${item.digest}`)});
      this.context.toast(word);
      await this.refresh("definitions");
    });
  }

  // Adding servers.

  drawAdd(how) {
    const body = h("div", {class: "detail__body stack"});
    replace(
      this.detail, back(),
      h("header", {class: "detail__head stack"}, h("h2", {}, "Add a server"), h("nav", {class: "segmented", "aria-label": "How"}, Object.entries(WAYS).map(([key, word]) => h("a", {href: `/console/servers/add?how=${key}`, "aria-current": key === how ? "page" : null, "data-testid": "servers.how", "data-key": key}, word)))),
      body);
    ({paste: drawPaste, registry: drawRegistry, mcpb: drawBundle}[how] ?? drawForm)(this, body);
  }
}

function back() {
  return h("a", {class: "detail__back", href: "/console/servers", "data-testid": "servers.back"}, icon("chevron"), "Servers");
}

function describeTransport(server) {
  return server.transport === "stdio" ? (server.sandbox.startsWith("yes") ? "stdio, sandboxed" : "stdio") : server.transport === "sse" ? "SSE" : server.transport === "http" ? "HTTP" : "not started";
}

function drawOverview(view, server, body, {isOwn}) {
  const settings = server.settings;
  const secret = (name) => {
    const input = h("input", {type: "password", id: `secret-${name}`, autocomplete: "off", "data-testid": "servers.secret", "data-key": name});
    return h("form", {class: "row", onsubmit: (event) => { event.preventDefault(); runAction(event.submitter, view.context.toast, async () => { await view.api.send("PUT", view.path(`secrets/${encodeURIComponent(name)}`), {value: input.value}); view.context.toast(`${name} is kept`); await view.refresh(); }); }},
      h("div", {class: "field grow"}, h("label", {for: `secret-${name}`}, h("code", {}, name)), input), h("button", {class: "button", type: "submit", "data-testid": "servers.keep-secret"}, "Keep"));
  };
  const canLogIn = server.transport !== "stdio" && server.state !== "off";
  replace(
    body,
    server.error ? h("div", {class: `banner ${server.state === "not logged in" ? "banner--warn" : "banner--bad"}`}, icon(server.state === "not logged in" ? "warn" : "octagon"), h("p", {"data-testid": "servers.error"}, server.error)) : null,
    server.missing.length ? h("div", {class: "card"}, h("div", {class: "card__head"}, h("strong", {}, "Values it needs")), h("div", {class: "card__body stack"}, isOwn ? server.missing.map(secret) : h("p", {}, `Set in the environment of the gateway: ${server.missing.join(", ")}`))) : null,
    facts({
      Transport: describeTransport(server), Command: settings.command ? h("code", {class: "prose-text"}, [settings.command, ...(settings.args ?? [])].join(" ")) : null, Address: settings.url ? h("code", {}, settings.url) : null,
      Sandbox: server.sandbox === "-" ? null : server.sandbox, "Set up in": server.origin, "Last answered": formatTime(server.seen_at), Tools: `${server.offered} of ${server.tool_count} offered`,
    }),
    canLogIn ? h("div", {class: "row"}, h("button", {class: "button", type: "button", "data-testid": "servers.login", onclick: (event) => view.logIn(event.target)}, server.state === "not logged in" ? "Log in" : "Log in again"),
      h("button", {class: "button button--quiet", type: "button", "data-testid": "servers.logout", onclick: (event) => view.act(event.target, "logout", `Logged out of ${server.name}`)}, "Log out")) : null,
  );
}

function drawTools(view, server, body) {
  const badges = {offered: "badge--ok", waits: "badge--warn", rejected: "badge--bad", "left out": ""};
  replace(body, server.tools.length ? h("ul", {class: "plain-list"}, server.tools.map((tool) => h("li", {}, h(
    "a", {class: "list-link tool-link", href: `/console/tools/${encodeURIComponent(`${server.name}:${tool.name}`)}`, "data-testid": "servers.tool", "data-key": tool.name},
    h("span", {class: "row row--wrap"}, h("span", {class: "mono"}, tool.name), levelBadge(tool.permission), h("span", {class: `badge ${badges[tool.state] ?? ""}`}, tool.state)),
    h("span", {class: "meta prose-text"}, tool.reason ?? tool.description))))) : emptyState("tools", "No tools are known", "They are listed when the server answers.", h("button", {class: "button", type: "button", onclick: (event) => view.test(event.target, server)}, "List again")));
}

/** A card per definition that changed, with what is suspicious about it. */
function drawDefinitions(view, server, body, {review}) {
  if (!review.length) return replace(body, emptyState("check", "Nothing waits for you", "Definitions that change are held back and shown here, before models see them."));
  const changed = review.filter((item) => item.accepted_digest).length;
  const title = changed === review.length ? `${plural(changed, "definition")} changed.` : changed ? `${plural(review.length, "definition")} new or changed.` : `${plural(review.length, "new definition")}.`;
  return replace(
    body,
    h("div", {class: "banner banner--warn"}, icon("warn"), h("p", {}, h("strong", {}, title), ` Models do not get ${review.length === 1 ? "it before you accept it" : "them before you accept them"}.`), h("button", {class: "button", type: "button", "data-testid": "servers.reject-all", onclick: (event) => view.decide(event.target, "reject", review, `${plural(review.length, "definition")} rejected`)}, "Reject all")),
    review.sort((a, b) => b.findings.length - a.findings.length).map((item) => drawDefinition(view, server, item)),
  );
}

function drawDefinition(view, server, item) {
  const flagged = item.findings.length > 0;
  const accept = (event) => view.decide(event.target, "accept", [item], `${item.name} accepted`);
  const confirm = () => ask({title: `Accept ${item.name} although it looks hostile?`, verb: "Accept new", final: true, body: h("ul", {class: "problem-list"}, item.findings.map((finding) => h("li", {}, finding.what))), accept: () => view.decide(document.body, "accept", [item], `${item.name} accepted`)});
  const keep = h("button", {class: `button ${flagged ? "button--primary" : ""}`, type: "button", "data-testid": "servers.reject", "data-key": item.name, onclick: (event) => view.decide(event.target, "reject", [item], `${item.name} stays held back`)}, "Keep held back");
  const take = h("button", {class: `button ${flagged ? "button--danger" : ""}`, type: "button", "data-testid": "servers.accept", "data-key": item.name, onclick: flagged ? confirm : accept}, flagged ? "Accept new…" : "Accept new");
  const disable = item.kind === "tool" ? h("button", {class: "button button--quiet", type: "button", "data-testid": "servers.disable-tool", "data-key": item.name, onclick: (event) => runAction(event.target, view.context.toast, async () => {
    await view.api.send("PATCH", "/api/tools", {tools: [`${server.name}:${item.name}`], enabled: false});
    view.context.toast(`${item.name} disabled`);
    await view.refresh("definitions");
  })}, "Disable tool") : null;
  return h(
    "article", {class: "card", "data-testid": "servers.definition", "data-key": item.name},
    h("div", {class: "card__head"}, h("strong", {class: "mono name"}, item.name), h("span", {class: "badge"}, item.kind), item.accepted_digest ? h("span", {class: "badge badge--warn"}, "changed") : h("span", {class: "badge badge--accent"}, "new"), h("span", {class: "meta push"}, item.held_at ? formatTime(item.held_at) : null)),
    // The headers name the states; without them the lines are one text.
    diffView({unified: item.difference.replace(/^--- .*\n\+\+\+ .*\n/, ""), wrap: true, numbers: false, label: item.name}),
    flagged ? h("div", {class: "banner banner--bad definition__note"}, icon("octagon"), h("div", {}, item.findings.map((finding) => h("p", {}, h("strong", {}, finding.what), ` `, h("span", {class: "mono"}, finding.excerpt))))) : null,
    h("div", {class: "card__foot"}, flagged ? [keep, take] : [take, keep], disable),
  );
}

function drawLogs(view, server, body) {
  if (server.transport !== "stdio") return replace(body, emptyState("calls", "Its log is elsewhere", `${server.name} is reached by a URL and keeps its log where it runs.`));
  let lines = [];
  let isPaused = false;
  const text = h("pre", {class: "log", tabindex: "0", role: "region", "aria-label": "Log", "data-testid": "servers.log"});
  const draw = () => {
    const shown = lines.filter((line) => line.toLowerCase().includes(filter.value.toLowerCase()));
    const atEnd = text.scrollTop + text.clientHeight >= text.scrollHeight - 4;
    text.textContent = shown.join("\n") || (lines.length ? "No line matches." : "It wrote nothing to its stderr yet.");
    if (atEnd) text.scrollTop = text.scrollHeight;
  };
  const filter = h("input", {type: "search", class: "input", "aria-label": "Filter the log", placeholder: "Filter", "data-testid": "servers.log-filter", oninput: draw});
  const pause = h("button", {class: "button", type: "button", "aria-pressed": "false", "data-testid": "servers.log-pause", onclick: () => { isPaused = !isPaused; pause.setAttribute("aria-pressed", String(isPaused)); pause.textContent = isPaused ? "Go on" : "Pause"; }}, "Pause");
  const read = async () => {
    if (isPaused || document.hidden) return;
    try {
      ({lines} = await view.api.get(view.path("logs"), {lines: 500}));
      draw();
    } catch (error) {
      clearInterval(view.timer);
      replace(body, errorBanner(error, () => drawLogs(view, server, body)));
    }
  };
  replace(body, h("div", {class: "row"}, filter, pause), text);
  view.timer = setInterval(read, LOG_MS);
  return read();
}

function drawSettings(view, server, body, {isOwn}) {
  replace(
    body, h("h3", {}, "Settings, as in mcpServers"), jsonBlock(server.settings, "Settings"),
    server.secrets.length ? [h("h3", {}, "Kept values"), h("ul", {class: "plain-list"}, server.secrets.map((name) => h("li", {class: "row"}, h("code", {}, name), h("button", {class: "button button--small button--danger push", type: "button", "data-testid": "servers.forget-secret", "data-key": name, onclick: (event) => runAction(event.target, view.context.toast, async () => { await view.api.send("DELETE", view.path(`secrets/${encodeURIComponent(name)}`)); await view.refresh("settings"); })}, "Forget"))))] : null,
    isOwn ? h("div", {class: "row"}, h("button", {class: "button button--danger", type: "button", "data-testid": "servers.remove", onclick: () => ask({
      title: `Remove ${server.name}?`, verb: "Remove", final: true, body: h("p", {}, `${plural(server.tool_count, "tool")}, its login, kept values and accepted definitions are removed. This cannot be undone.`),
      accept: async () => {
        await view.api.send("DELETE", view.path());
        await view.load();
        view.context.toast(`${server.name} removed`);
        view.context.navigate("/console/servers");
      },
    })}, "Remove…")) : h("p", {class: "meta"}, `It is set up in ${server.origin}; change it there.`),
  );
}

/** Texts of a line each, as a mapping by the first `=` or `:`. */
function parsePairs(text, separator) {
  return Object.fromEntries(text.split("\n").map((line) => line.trim()).filter(Boolean).map((line) => {
    const at = line.indexOf(separator);
    if (at < 1) throw new Error(`Write each line as NAME${separator}value: ${line}`);
    return [line.slice(0, at).trim(), line.slice(at + 1).trim()];
  }));
}

function drawForm(view, body) {
  const fields = {
    name: h("input", {type: "text", required: true, maxlength: 64, pattern: "[A-Za-z0-9][A-Za-z0-9_\\-]*", autocomplete: "off"}),
    kind: h("select", {}, h("option", {value: "stdio"}, "A program on this machine (stdio)"), h("option", {value: "http"}, "An address (HTTP)"), h("option", {value: "sse"}, "An address (SSE, older servers)")),
    command: h("input", {type: "text", placeholder: "uvx"}), args: h("textarea", {rows: 3, placeholder: "mcp-server-time"}), env: h("textarea", {rows: 2, placeholder: "API_TOKEN=${API_TOKEN}"}),
    url: h("input", {type: "url", placeholder: "https://host/mcp"}), headers: h("textarea", {rows: 2, placeholder: "Authorization: Bearer ${TOKEN}"}),
    sandbox: h("input", {type: "checkbox", class: "toggle", role: "switch", checked: true}),
    secrets: h("textarea", {rows: 2, placeholder: "API_TOKEN=the value"}), test: h("input", {type: "checkbox", class: "toggle", role: "switch", checked: true}),
  };
  const labels = {name: "Name", kind: "How it is reached", command: "Command", args: "Arguments, one per line", env: "Environment, NAME=value per line", url: "Address", headers: "Headers, Name: value per line", sandbox: "Run it in the sandbox", secrets: "Values of ${VARIABLES}, NAME=value per line; only the gateway's account can read them", test: "Connect to it once before it is added"};
  const isProgram = () => fields.kind.value === "stdio";
  const preview = h("div", {class: "banner"});
  const problem = h("div", {});
  const settings = () => (isProgram()
    ? {command: fields.command.value, args: fields.args.value.split("\n").map((line) => line.trim()).filter(Boolean), ...(fields.env.value.trim() ? {env: parsePairs(fields.env.value, "=")} : {}), sandbox: fields.sandbox.checked}
    : {url: fields.url.value, ...(fields.kind.value === "sse" ? {type: "sse"} : {}), ...(fields.headers.value.trim() ? {headers: parsePairs(fields.headers.value, ":")} : {})});
  const rows = Object.fromEntries(Object.entries(fields).map(([key, input]) => {
    Object.assign(input, {id: `server-${key}`});
    input.dataset.testid = `servers.form-${key}`;
    const isToggle = input.classList.contains("toggle");
    return [key, h("div", {class: isToggle ? "row" : "field"}, isToggle ? [input, h("label", {for: input.id}, labels[key])] : [h("label", {for: input.id}, labels[key]), input])];
  }));
  const draw = () => {
    for (const key of ["command", "args", "env", "sandbox"]) rows[key].hidden = !isProgram();
    for (const key of ["url", "headers"]) rows[key].hidden = isProgram();
    const line = isProgram() ? [fields.command.value, ...fields.args.value.split("\n")].filter(Boolean).join(" ") : fields.url.value;
    const rights = !isProgram() ? "It runs elsewhere, and is sent the headers above and the arguments of each call." : fields.sandbox.checked ? "It runs in the sandbox: no folders of yours, and the network only as its settings say." : "It runs outside the sandbox, with all rights of the gateway's account.";
    replace(preview, icon(isProgram() && !fields.sandbox.checked ? "warn" : "lock"), h("div", {}, h("p", {}, h("code", {"data-testid": "servers.preview"}, line || "…")), h("p", {class: "meta"}, rights)));
  };
  const add = h("button", {class: "button button--primary", type: "submit", "data-testid": "servers.form-add"}, "Add");
  const form = h("form", {class: "stack", oninput: draw, onsubmit: async (event) => {
    event.preventDefault();
    replace(problem);
    add.setAttribute("aria-busy", "true");
    try {
      const {probe} = await view.api.send("POST", "/api/upstreams", {name: fields.name.value, settings: settings(), secrets: parsePairs(fields.secrets.value, "="), test: fields.test.checked});
      await view.load();
      view.context.toast(probe.ok ? `${fields.name.value} added${probe.result ? `: ${plural(probe.result.tools.length, "tool")}` : ""}` : probe.error.message, {kind: probe.ok ? "ok" : "warn"});
      view.context.navigate(`/console/servers/${encodeURIComponent(fields.name.value)}`);
    } catch (error) {
      replace(problem, errorBanner(error));
    } finally {
      add.removeAttribute("aria-busy");
    }
  }}, Object.values(rows), preview, problem, h("div", {class: "row"}, add));
  draw();
  replace(body, form);
}

function drawPaste(view, body) {
  const text = h("textarea", {rows: 10, class: "mono", id: "paste-text", spellcheck: "false", placeholder: '{"mcpServers": {…}}', "data-testid": "servers.paste-text"});
  const swap = h("input", {type: "checkbox", class: "toggle", role: "switch", id: "paste-replace", "data-testid": "servers.paste-replace"});
  const result = h("div", {class: "stack", "aria-live": "polite"});
  const send = (dryRun) => view.api.send("POST", "/api/upstream-imports", {text: text.value, replace: swap.checked, dry_run: dryRun});
  const drawItems = (items) => h("ul", {class: "plain-list stack"}, items.map((item) => h("li", {class: "card", "data-testid": "servers.pasted", "data-key": item.name},
    h("div", {class: "card__head"}, h("strong", {class: "mono"}, item.name), h("span", {class: `badge ${item.outcome.includes("skipped") ? "badge--warn" : "badge--ok"}`}, item.outcome)),
    h("div", {class: "card__body stack"}, item.reason ? h("p", {}, item.reason) : null, item.settings ? jsonBlock(item.settings, `Settings of ${item.name}`, {copy: false}) : null,
      item.variables.length ? h("p", {class: "meta"}, `Values that are kept, readable by the gateway's account only: ${item.variables.join(", ")}`) : null, item.missing.length ? h("p", {class: "warn-text"}, `Values missing: ${item.missing.join(", ")}`) : null))));
  const check = async () => {
    try {
      const {items} = await send(true);
      const wanted = items.filter((item) => !item.outcome.includes("skipped")).length;
      const add = h("button", {class: "button button--primary", type: "button", disabled: !wanted, "data-testid": "servers.paste-add", onclick: () => runAction(add, view.context.toast, async () => {
        const done = await send(false);
        await view.load();
        view.drawList();
        view.context.toast(`${plural(done.items.filter((item) => item.outcome !== "skipped").length, "server")} added`);
        replace(result, drawItems(done.items));
      })}, `Add ${plural(wanted, "server")}`);
      replace(result, drawItems(items), h("div", {class: "row"}, add));
    } catch (error) {
      replace(result, errorBanner(error));
    }
  };
  replace(body, h("form", {class: "stack", onsubmit: (event) => { event.preventDefault(); check(); }},
    h("div", {class: "field"}, h("label", {for: "paste-text"}, "Settings of a client"), text, h("p", {class: "field__hint"}, "Of Claude, Cursor, VS Code, Windsurf, Codex and others: JSON, YAML or TOML.")),
    h("div", {class: "row"}, swap, h("label", {for: "paste-replace"}, "Replace servers of the same name")),
    h("div", {class: "row"}, h("button", {class: "button button--primary", type: "submit", "data-testid": "servers.paste-check"}, "Show what is added"))), result);
}
