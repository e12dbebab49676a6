/** Home: what works, what needs a person, what happened lately, and how a client is connected. */

import {chatName, chatTitle, stateOf} from "../../core/calls.js";
import {codeBlock} from "../../core/code.js";
import {h, replace} from "../../core/dom.js";
import {formatCount, formatDuration, formatPercent, formatRelative, formatTime, plural} from "../../core/format.js";
import {icon, state} from "../../core/icons.js";
import {errorBanner} from "../messages.js";

const RECENT = 8;
const STATES = {ok: "done", note: "needs", fail: "failed"};
const ORDER = ["ok", "note", "fail"];

export const page = {
  path: "/",
  title: "Home",
  icon: "home",
  async render(context) {
    const {root, principal, api, live, onLeave} = context;
    const strip = h("section", {class: "strip", "aria-label": "Health"});
    const guide = h("div", {});
    const needs = h("section", {class: "card", "aria-label": "Needs you", "data-testid": "home.needs"});
    const recent = h("section", {class: "card", "aria-label": "Recent calls", "data-testid": "home.calls"});
    const connect = h("section", {class: "card", "aria-label": "Connect a client", "data-testid": "home.connect"});
    const used = h("section", {class: "card", "aria-label": "Most used tools", "data-testid": "home.used"});
    const actions = principal.admin
      ? [h("a", {class: "button", href: "/console/servers/add"}, "Add a server"), h("a", {class: "button", href: "/console/toolsets?import=1"}, "Install a toolset")]
      : [];
    root.append(
      h("header", {class: "page-head"}, h("h1", {}, "Home"), h("span", {class: "push"}), actions),
      h("div", {class: "page-body"}, strip, guide, h("div", {class: "home-columns"}, h("div", {class: "home-column"}, needs, recent), h("div", {class: "home-column"}, connect, used))),
    );
    const quiet = (promise, empty) => promise.catch((error) => { if (error.name === "AbortError") throw error; return empty; });
    const connected = drawConnect(connect, api, context);
    const asAdmin = (path, query, empty) => principal.admin ? quiet(api.get(path, query), empty) : empty;
    const [servers, tools, health] = await Promise.all([
      asAdmin("/api/upstreams", {limit: 500}, {items: []}),
      quiet(api.get("/api/tools", {limit: 1000}), {items: []}),
      asAdmin("/api/health", {}, {checks: []}),
    ]);
    const drawCalls = async () => {
      const [calls, usage, waiting] = await Promise.all([
        api.get("/api/calls", {kind: "tools", limit: RECENT}),
        quiet(api.get("/api/usage", {by: "tool", limit: 5, since: today(-1)}), null),
        api.get("/api/approvals", {status: "waiting", limit: 50}),
      ]);
      drawNeeds(needs, waiting.items, servers.items, principal);
      drawRecent(recent, calls.items);
      drawUsed(used, usage);
      drawCallCount(callCount, usage);
      drawGuide(guide, calls.items, tools, servers.items);
    };
    const callCount = h("div", {class: "strip-part", "data-testid": "home.count"});
    replace(strip, ...(principal.admin ? healthParts(health, servers.items) : []), callCount);
    await drawCalls();
    onLeave(live.onChange((event) => { if (event) drawCalls().catch(() => {}); }));
    await connected;
  },
};

function today(days) {
  return new Date(Date.now() + days * 86_400_000).toISOString().slice(0, 10);
}

// The strip.

function healthParts(health, servers) {
  const of = (...subjects) => health.checks.filter((check) => subjects.includes(check.subject));
  const bad = servers.filter((server) => server.error || server.missing.length || server.waiting);
  const store = of("store", "journal", "database", "data");
  const sandbox = of("sandbox");
  const problem = bad[0];
  return [
    part("Store", worst(store), worst(store) === "ok" ? "Healthy" : "Needs care", firstMessage(store), null),
    part(
      "Servers", bad.length ? "note" : "ok", servers.length ? `${servers.length - bad.length} of ${servers.length} ready` : "None yet",
      problem ? `${problem.name}: ${serverProblem(problem)}` : servers.length ? "All answered when they were last asked" : "Tools of other MCP servers appear here.",
      problem ? [`/console/servers/${encodeURIComponent(problem.name)}`, "Repair"] : ["/console/servers/add", "Add one"],
    ),
    part("Sandbox", worst(sandbox), {ok: "Ready", note: "Works, with limits", fail: "Not available"}[worst(sandbox)], firstMessage(sandbox), null),
  ];
}

function worst(checks) {
  return checks.reduce((found, check) => (ORDER.indexOf(check.state) > ORDER.indexOf(found) ? check.state : found), "ok");
}

function firstMessage(checks) {
  const level = worst(checks);
  return (checks.find((check) => check.state === level) || {message: ""}).message;
}

function part(title, level, word, text, link) {
  return h(
    "div", {class: "strip-part", "data-testid": `home.${title.toLowerCase()}`},
    h("p", {class: "strip-title"}, state(STATES[level], title)),
    h("p", {class: "strip-word"}, word),
    h("p", {class: "meta strip-text", title: text}, text, " ", link ? h("a", {href: link[0]}, link[1]) : null),
  );
}

/** Tools that failed, apart from calls that a person, a rule or a limit refused. @param {{errors: number, refused: number}} total */
function callEndings({errors, refused}) {
  const failed = errors - refused;
  const text = failed ? `${formatCount(failed)} failed` : "None failed";
  return refused ? `${text}, ${formatCount(refused)} refused or cancelled` : text;
}

function drawCallCount(place, usage) {
  const total = usage ? usage.total : {calls: 0, errors: 0, refused: 0};
  replace(
    place,
    h("p", {class: "strip-title"}, icon("calls"), " Calls since yesterday"),
    h("p", {class: "strip-word"}, formatCount(total.calls)),
    h("p", {class: "meta strip-text"}, total.calls ? callEndings(total) : "None yet"),
  );
}

// What needs a person.

function serverProblem(server) {
  if (server.error) return server.error;
  if (server.missing.length) return `${server.missing.join(", ")} has no value`;
  return `${plural(server.waiting, "definition")} held back until you have looked`;
}

function drawNeeds(place, approvals, servers, principal) {
  const rows = approvals
    .sort((a, b) => a.expires_at.localeCompare(b.expires_at))
    .map((each) => needRow("waiting", each.tool_id, "asks first", `${each.folder ? "Folder" : "Chat"} ${chatName(each)}: ${withoutName(each.reason, each.tool_id)}`, `expires ${formatRelative(each.expires_at)}`, `/console/approvals/${each.id}`, principal.admin ? "Review" : "Look"));
  for (const server of servers.filter((each) => each.error || each.missing.length || each.waiting)) {
    rows.push(needRow("needs", server.name, server.error ? "does not answer" : server.missing.length ? "misses a value" : "changed its tools", serverProblem(server), "", `/console/servers/${encodeURIComponent(server.name)}`, server.waiting ? "Compare" : "Repair"));
  }
  replace(
    place,
    h("div", {class: "card__head"}, h("h2", {}, "Needs you"), h("span", {class: "count"}, String(rows.length))),
    rows.length ? rows : h("div", {class: "empty"}, icon("approvals"), h("p", {}, "Nothing waits for you.")),
  );
}

/** A reason without the name of its tool, which is beside it. @param {string} reason @param {string} name */
function withoutName(reason, name) {
  return reason.startsWith(`${name} `) ? reason.slice(name.length + 1) : reason;
}

function needRow(kind, name, word, text, end, url, verb) {
  return h(
    "div", {class: "need", "data-testid": "home.need", "data-key": name},
    state(kind, null),
    h("div", {class: "need-text"}, h("p", {}, h("span", {class: "mono"}, name), " ", word), h("p", {class: "meta", title: text}, text)),
    end ? h("span", {class: "meta"}, end) : null,
    h("a", {class: kind === "waiting" ? "button button--primary" : "button", href: url}, verb),
  );
}

// Calls.

function drawRecent(place, calls) {
  const rows = calls.map((call) => {
    const kind = stateOf(call);
    const took = ["done", "failed"].includes(kind) ? formatDuration(call.duration_ms) : kind;
    return h(
      "a", {class: "call-row", href: `/console/calls/${encodeURIComponent(call.id)}`, "data-testid": "home.call", "data-key": call.id},
      state(kind, null), h("span", {class: "name"}, call.tool_name), h("span", {class: "call-chat", title: chatTitle(call)}, chatName(call)), h("span", {class: "call-client"}, call.client || call.surface),
      h("span", {class: `call-took ${kind === "denied" || kind === "failed" ? "bad-text" : kind === "waiting" ? "warn-text" : ""}`}, took), h("span", {class: "meta"}, formatTime(call.started_at)),
    );
  });
  replace(
    place,
    h("div", {class: "card__head"}, h("h2", {}, "Recent calls"), h("a", {class: "push", href: "/console/calls"}, "All calls")),
    rows.length ? rows : h("div", {class: "empty"}, icon("calls"), h("p", {}, "No call was made yet. Connect a client, then ask it to use a tool.")),
  );
}

function drawUsed(place, usage) {
  const items = usage ? usage.items.filter((each) => each.calls) : [];
  const most = Math.max(1, ...items.map((each) => each.calls));
  replace(
    place,
    h("div", {class: "card__head"}, h("h2", {}, "Most used tools"), h("span", {class: "push meta"}, "since yesterday")),
    items.length
      ? h("ul", {class: "used"}, items.map((each) => h(
        "li", {},
        h("span", {class: "name"}, each.tool), h("span", {class: "used-number"}, formatCount(each.calls)),
        h("span", {class: `used-number meta ${each.errors > each.refused ? "bad-text" : ""}`, title: callEndings(each)}, formatPercent((each.errors - each.refused) / each.calls)),
        h("progress", {max: most, value: each.calls, "aria-hidden": "true"}),
      )))
      : h("div", {class: "empty"}, h("p", {}, "Counted once calls were made.")),
  );
}

// The first run.

function drawGuide(place, calls, tools, servers) {
  if (calls.length) {
    replace(place);
    return;
  }
  const steps = [
    [false, "Connect a client", "Paste the lines below into its settings, or use its link."],
    [servers.length > 0 || tools.items.some((tool) => tool.origin !== "builtin"), "Add tools", `${tools.next_page_token ? "More than " : ""}${plural(tools.items.length, "tool")} are here already. Add a server or install a toolset for more.`],
    [false, "Make a call", "Ask the client to use a tool, or try one on the page Tools."],
  ];
  replace(
    place,
    h(
      "section", {class: "card", "aria-label": "First steps", "data-testid": "home.guide"},
      h("div", {class: "card__head"}, h("h2", {}, "First steps")),
      h("ol", {class: "guide"}, steps.map(([done, title, text], index) => h("li", {}, done ? state("done", null) : h("span", {class: "count"}, String(index + 1)), h("div", {}, h("p", {}, h("strong", {}, title)), h("p", {class: "meta"}, text))))),
    ),
  );
}

// Connecting a client.

async function drawConnect(place, api, {query, navigate}) {
  let clients;
  try {
    clients = await api.get("/api/clients");
  } catch (error) {
    if (error.name !== "AbortError") replace(place, errorBanner(error));
    return;
  }
  const body = h("div", {class: "card__body stack"});
  const tabs = h("div", {class: "tabs connect-tabs", role: "tablist", "aria-label": "Clients"});
  const choose = (name) => {
    const chosen = clients.items.find((each) => each.client === name) || clients.items[0];
    for (const tab of /** @type {Iterable<HTMLElement>} */ (tabs.children)) {
      tab.setAttribute("aria-selected", String(tab.dataset.key === chosen.client));
      tab.tabIndex = tab.dataset.key === chosen.client ? 0 : -1;
    }
    replace(
      body,
      h("p", {class: "connect-file"}, "Add to ", h("code", {}, chosen.file), ". ", chosen.restart),
      codeBlock({text: chosen.text, language: chosen.file.endsWith("json") ? "json" : "text", label: `Lines for ${chosen.title}`}),
      clients.needs_key ? h("p", {class: "meta"}, "The client also sends a key, as the header Authorization: Bearer tg_…") : null,
      chosen.note ? h("p", {class: "meta"}, chosen.note) : null,
      h("div", {class: "row row--wrap"}, chosen.link ? h("a", {class: "button", href: chosen.link, "data-testid": "home.link"}, icon("external"), `Add to ${chosen.title}`) : null, h("span", {class: "meta"}, "MCP over HTTP: ", h("code", {}, clients.url))),
    );
  };
  for (const each of clients.items) {
    tabs.append(h("button", {type: "button", role: "tab", "data-key": each.client, "data-testid": "home.client", onclick: () => { choose(each.client); navigate(`/?client=${each.client}`, {replace: true}); }}, each.title));
  }
  tabs.addEventListener("keydown", (event) => {
    const step = {ArrowRight: 1, ArrowLeft: -1}[event.key];
    if (!step) return;
    const all = /** @type {HTMLElement[]} */ ([...tabs.children]);
    const next = all[(all.findIndex((each) => each === document.activeElement) + step + all.length) % all.length];
    next.focus();
    next.click();
  });
  replace(place, h("div", {class: "card__head"}, h("h2", {}, "Connect a client")), tabs, body);
  choose(query.get("client"));
}
