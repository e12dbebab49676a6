/** Calls: the live list with its filters, and one call with everything that is known of it. */

import {chatName, chatTitle, stateOf} from "../../core/calls.js";
import {copyButton} from "../../core/code.js";
import {diffView, parseUnified} from "../../core/diff.js";
import {copyText, h, replace} from "../../core/dom.js";
import {formatCount, formatDuration, formatExactTime, formatTime, plural, shorten} from "../../core/format.js";
import {icon, state} from "../../core/icons.js";
import {dataTable} from "../../core/table.js";
import {timeline} from "../../core/timeline.js";
import {errorBanner} from "../messages.js";
import {renderParts} from "../subpages.js";
import {drawValue} from "../../core/values.js";

const PAGE = 100; // several screens; the answer is half the time of a filter
const KEPT = 10_000;
const TYPING_MS = 50;
// What each extension does, by its name in the plan of a call.
const ABOUT = {
  Approval: "asks a person before a dangerous call",
  Audit: "writes the call into the record",
  CallRetry: "repeats a harmless call that failed for a passing reason",
  ChatClaim: "gives a new chat to its first caller",
  Concurrency: "limits how many calls run at once, and for how long",
  LargeResults: "saves a very long result as a file",
  Ownership: "keeps others out of a chat",
  Permissions: "checks that the caller may use the tool",
  Quotas: "checks how much the caller has used",
  RateLimit: "limits calls per minute",
  Rendering: "prepares the view of the result",
  Telemetry: "counts calls and measures their time",
  Tracing: "sends the call to OpenTelemetry",
  UpstreamTracing: "sends requests to servers to OpenTelemetry",
  Validation: "checks arguments and results against the tool's schemas",
  Versioning: "keeps a version of the files before and after",
};
const STATES = {running: "running", waiting: "pending", done: "success", failed: "error"};
// Filters of the address, and the parameters of REST that they are.
const FILTERS = {q: "text", tool: "tool", chat: "chat", client: "client", who: "principal", from: "since", to: "until"};
const CHIPS = {tool: "Tool", chat: "Chat", client: "Client", who: "Who", from: "From", to: "Until"};
const SANDBOX = "allow-scripts allow-forms allow-popups allow-popups-to-escape-sandbox";

export const page = {
  path: "/console/calls/{id?}",
  title: "Calls",
  icon: "calls",
  render(context) {
    return renderParts(context, ({params}) => ({key: params.id ?? "", render: params.id ? renderCall : renderList}));
  },
};

// The list.

async function renderList(context) {
  const {api, root, navigate, onLeave} = context;
  const filters = new URLSearchParams(context.query);
  /** @type {any[]} */
  let calls = [];
  let nextPage = null;
  let waiting = new Map(); // changes that are not shown yet, by id
  let isPaused = false;
  let close = () => {};
  let turn = 0;

  const live = h("span", {class: "meta", role: "status", "data-testid": "calls.live"});
  const pause = h("button", {class: "button", type: "button", "data-testid": "calls.pause", "aria-pressed": false, onclick: () => setPaused(!isPaused)}, icon("pause"), "Pause");
  const search = h("input", {class: "input calls-search", type: "search", "aria-label": "Filter calls by tool, client, person or error", placeholder: "Filter by tool, client, person or error", value: filters.get("q") ?? "", "data-testid": "calls.filter"});
  const states = h("select", {class: "input calls-state", "aria-label": "State", "data-testid": "calls.state"}, [["", "All states"], ["running", "Running"], ["waiting", "Waiting"], ["done", "Done"], ["failed", "Failed"]].map(([value, word]) => h("option", {value}, word)));
  states.value = filters.get("state") ?? "";
  const requests = h("input", {type: "checkbox", class: "toggle", role: "switch", checked: filters.get("kind") === "all", "data-testid": "calls.requests"});
  const chips = h("div", {class: "row row--wrap"});
  const news = h("button", {class: "button calls-news", type: "button", hidden: true, "data-testid": "calls.news", onclick: () => { setPaused(false); table.scrollTop = 0; flush(); }});
  const problem = h("div", {});
  const older = h("button", {class: "button button--quiet", type: "button", hidden: true, "data-testid": "calls.older", onclick: () => loadOlder()}, "Show older calls");
  const count = h("span", {class: "meta", "data-testid": "calls.count"});
  const emptyText = h("p", {});
  const isPhone = matchMedia("(max-width: 480px)").matches;
  const table = dataTable({
    rows: calls, testid: "calls", label: "Calls", key: (call) => call.id,
    href: (call) => `/console/calls/${encodeURIComponent(call.id)}`,
    empty: h("div", {class: "empty"}, icon("calls"), h("strong", {}, "No calls"), emptyText),
    columns: [
      {key: "tool", title: "Tool", sortable: false, render: (call) => h("span", {class: "row"}, state(stateOf(call), null), h("span", {class: "name", title: call.tool_name}, shorten(call.tool_name, isPhone ? 17 : 56)), call.parent_call_id ? h("span", {class: "badge"}, "step") : null)},
      {key: "error", title: "Error", width: "150px", sortable: false, wideOnly: true, render: (call) => (call.status === "error" ? h("span", {class: "name", title: call.error ?? ""}, call.error_code) : "")},
      {key: "chat", title: "Chat", width: "18%", sortable: false, wideOnly: true, render: (call) => h("span", {title: chatTitle(call)}, shorten(chatName(call), 28))},
      {key: "who", title: "Who", width: "18%", sortable: false, wideOnly: true, render: (call) => whoOf(call)},
      {key: "started", title: "Started", width: "104px", align: "right", sortable: false, render: (call) => h("time", {datetime: call.started_at, title: formatExactTime(call.started_at)}, formatTime(call.started_at))},
      {key: "took", title: "Took", width: "80px", align: "right", sortable: false, render: (call) => (call.duration_ms === null ? stateOf(call) : formatDuration(call.duration_ms))},
    ],
  });
  table.classList.add("calls-table");
  table.addEventListener("scroll", () => { if (table.scrollTop < 8 && !isPaused) flush(); });

  root.append(
    h("header", {class: "page-head"}, h("h1", {}, "Calls"), live, h("span", {class: "push"}), pause),
    h("div", {class: "calls-filters"}, search, states, h("label", {class: "row calls-kind"}, requests, "File requests too"), chips),
    problem, h("div", {class: "calls-list"}, news, table), h("div", {class: "calls-foot row"}, count, older),
  );
  let typing = 0;
  search.addEventListener("input", () => { clearTimeout(typing); typing = setTimeout(() => change("q", search.value.trim()), TYPING_MS); });
  states.addEventListener("change", () => change("state", states.value));
  requests.addEventListener("change", () => change("kind", requests.checked ? "all" : ""));
  onLeave(() => { turn += 1; clearTimeout(typing); close(); });

  function restQuery() {
    const query = {kind: filters.get("kind") === "all" ? null : "tools", status: STATES[filters.get("state")] ?? null};
    for (const [name, parameter] of Object.entries(FILTERS)) query[parameter] = filters.get(name) || null;
    for (const name of ["since", "until"]) if (query[name]) query[name] = toMoment(query[name]);
    return query;
  }

  function change(name, value) {
    if (value) filters.set(name, value);
    else filters.delete(name);
    navigate(`/console/calls${filters.size ? `?${filters}` : ""}`, {replace: true});
    start();
  }

  async function start() {
    const mine = (turn += 1);
    close();
    waiting = new Map();
    drawChips();
    const query = restQuery();
    try {
      const answer = await api.get("/api/calls", {...query, limit: PAGE}, {signal: context.signal});
      if (mine !== turn) return;
      replace(problem);
      calls = answer.items;
      nextPage = answer.next_page_token;
      table.scrollTop = 0;
      draw();
    } catch (error) {
      if (mine === turn && error.name !== "AbortError") replace(problem, errorBanner(error, start));
      return;
    }
    const path = new URLSearchParams(Object.entries(query).filter(([, value]) => value));
    close = api.stream(`/api/calls/events?${path}`, receive, {onState: setLive});
  }

  async function loadOlder() {
    older.disabled = true;
    try {
      const answer = await api.get("/api/calls", {...restQuery(), limit: 999, page_token: nextPage});
      calls = [...calls, ...answer.items].slice(0, KEPT);
      nextPage = calls.length < KEPT ? answer.next_page_token : null;
      draw();
    } catch (error) {
      replace(problem, errorBanner(error, loadOlder));
    } finally {
      older.disabled = false;
    }
  }

  function receive({event, data}) {
    if (event === "gap") { start(); return; }
    if (event !== "call") return;
    waiting.set(data.id, data);
    if (waiting.size > KEPT) { start(); return; }
    if (!isPaused && table.scrollTop < 8) flush();
    else drawNews();
  }

  /** Show what has changed since. */
  function flush() {
    if (!waiting.size) return;
    const wanted = restQuery().status;
    const known = new Map(calls.map((call) => [call.id, call]));
    for (const [id, call] of waiting) {
      if (wanted && call.status !== wanted) known.delete(id);
      else known.set(id, call);
    }
    waiting = new Map();
    calls = [...known.values()].sort((a, b) => (a.id < b.id ? 1 : -1)).slice(0, KEPT);
    draw();
  }

  function draw() {
    emptyText.textContent = filters.size ? "None fits these filters. Change or remove them to see more." : "Calls of every client show up here as they happen.";
    table.setRows(calls);
    older.hidden = nextPage === null;
    count.textContent = calls.length ? `${plural(calls.length, "call")} shown${nextPage === null ? "" : ", newest first"}` : "";
    drawNews();
  }

  function drawNews() {
    const known = new Set(calls.map((call) => call.id));
    const added = [...waiting.keys()].filter((id) => !known.has(id)).length;
    news.hidden = waiting.size === 0;
    news.textContent = added ? plural(added, "new call") : plural(waiting.size, "changed call");
  }

  function drawChips() {
    replace(chips, Object.entries(CHIPS).filter(([name]) => filters.get(name)).map(([name, word]) => h(
      "button", {class: "badge calls-chip", type: "button", "data-testid": "calls.chip", "data-key": name, "aria-label": `Remove the filter ${word}: ${filters.get(name)}`, onclick: () => change(name, "")},
      `${word}: ${shorten(filters.get(name) ?? "", 32)}`, icon("x"),
    )));
  }

  function setPaused(paused) {
    isPaused = paused;
    pause.setAttribute("aria-pressed", String(paused));
    replace(pause, icon(paused ? "play" : "pause"), paused ? "Continue" : "Pause");
    setLive(live.dataset.state);
    if (!paused) flush();
  }

  function setLive(now) {
    if (now === "lost" && live.dataset.state !== "lost") live.dataset.since = formatTime(new Date());
    live.dataset.state = now ?? "";
    live.textContent = isPaused ? "Paused" : now === "live" ? "Live" : now === "lost" ? `Not live since ${live.dataset.since}. Reconnecting` : "";
  }

  await start();
}

/** A day or a time of the address, in the browser's time zone, as a moment for REST. */
function toMoment(text) {
  const moment = new Date(/^\d{4}-\d\d-\d\d$/.test(text) ? `${text}T00:00` : text);
  return Number.isNaN(moment.getTime()) ? null : moment.toISOString();
}

function whoOf(call) {
  const who = call.principal === "local" ? "" : call.principal;
  return [call.client ?? call.surface, who].filter(Boolean).join(", ");
}

// One call.

async function renderCall(context) {
  const {api, root, params, signal, toast, onLeave} = context;
  const base = `/api/calls/${encodeURIComponent(params.id)}`;
  let call = await api.get(base, null, {signal});
  const head = h("header", {class: "page-head"});
  const body = h("div", {class: "call"});
  root.append(head, body);
  let tab = "";
  let closeStream = () => {};
  onLeave(() => closeStream());

  // One shape for what a tab or a panel loads once: the promise is kept with the call it was made for.
  let loaded = new Map();
  const load = (name, path, query) => {
    if (!loaded.has(name)) loaded.set(name, api.get(path, query, {signal}));
    return loaded.get(name);
  };
  const changes = () => load("changes", `/api/chats/${encodeURIComponent(call.chat_id)}/diff`, {from: call.pre_manifest_id, to: call.post_manifest_id});
  const hasChanges = () => call.post_manifest_id !== null && call.post_manifest_id !== call.pre_manifest_id;

  function listTabs() {
    return [
      ...(call.render_plan ? [["view", "View"]] : []),
      ["result", "Result"], ["files", "Changed files"], ["request", "Request"], ["response", "Response"],
    ];
  }

  function draw(query) {
    const tabs = listTabs();
    tab = tabs.some(([name]) => name === query.get("tab")) ? query.get("tab") : tabs[0][0];
    drawHead();
    const content = h("div", {class: "call-content", id: "call-content"});
    const files = h("span", {class: "meta"});
    if (hasChanges()) changes().then((diff) => { files.textContent = String(parseUnified(diff.diff).length); }, () => {});
    else files.textContent = "0";
    const link = (/** @type {string[]} */ [name, word]) => h("a", {href: `/console/calls/${encodeURIComponent(call.id)}?tab=${name}`, "aria-current": name === tab ? "page" : null, "data-testid": "call.tab", "data-key": name}, word, name === "files" ? files : null);
    replace(
      body,
      h("div", {class: "call-main"},
        h("div", {class: "call-title"},
          h("div", {class: "row row--wrap"}, state(stateOf(call), null), h("h1", {class: "mono", title: call.tool_name}, call.tool_name), stateBadge(), call.category ? h("span", {class: "badge"}, call.category) : null),
          facts(),
          call.status === "error" ? h("div", {class: "banner banner--bad", "data-testid": "call.error"}, icon("octagon"), h("div", {}, h("p", {}, call.error ?? "The call failed."), h("p", {class: "meta mono"}, call.error_code ?? ""))) : null),
        h("nav", {class: "tabs call-tabs", "aria-label": "Parts of the call"}, tabs.map(link)),
        content,
        tab === "request" ? null : h("section", {class: "call-arguments"}, h("h2", {}, "Arguments"), drawValue(call.args, "Arguments"))),
      h("aside", {class: "call-side", "aria-label": "About the call"}, timelinePanel(), workspacePanel(), approvalPanel(), recordPanel(), samePanel()),
    );
    fill(content);
  }

  function drawHead() {
    const isOpen = call.status === "running" || call.status === "pending";
    replace(
      head,
      h("nav", {class: "row", "aria-label": "You are here"}, h("a", {href: "/console/calls", "data-testid": "call.back"}, "Calls"), icon("chevron"), h("span", {class: "mono call-id", title: call.id}, shorten(call.id, 22)), copyButton(() => call.id, "", "Copy the id")),
      h("span", {class: "push"}),
      isOpen ? h("button", {class: "button button--danger", type: "button", "data-testid": "call.cancel", onclick: cancel}, "Cancel call") : null,
      isTool() ? h("button", {class: "button", type: "button", "data-testid": "call.curl", onclick: copyCurl}, icon("copy"), "Copy as curl") : null,
      isTool() ? h("a", {class: "button", href: `/console/tools/${encodeURIComponent(call.tool_name)}?tab=try&from=${encodeURIComponent(call.id)}`, "data-testid": "call.again"}, icon("play"), "Run again") : null,
    );
  }

  const isTool = () => !call.tool_name.includes("/");

  function stateBadge() {
    const now = stateOf(call);
    const [word, kind] = {done: ["Done", "ok"], running: ["Running", "accent"], waiting: ["Waiting", "warn"], cancelled: ["Cancelled", ""], denied: ["Denied", "bad"], failed: ["Failed", "bad"]}[now];
    return h("span", {class: `badge ${kind ? `badge--${kind}` : ""}`, "data-testid": "call.state"}, word);
  }

  function facts() {
    const chat = h("a", {href: `/console/chats/${encodeURIComponent(call.chat_id)}`, title: chatTitle(call), "data-testid": "call.chat"}, shorten(chatName(call), 40));
    const parts = [
      call.duration_ms === null ? null : formatDuration(call.duration_ms),
      h("time", {datetime: call.started_at, title: formatExactTime(call.started_at)}, formatTime(call.started_at)),
      call.client ?? call.surface, call.principal === "local" ? null : call.principal, h("span", {}, call.folder ? "folder " : "chat ", chat),
    ];
    return h("p", {class: "call-facts"}, parts.filter((part) => part !== null).map((part) => h("span", {}, part)));
  }

  async function fill(content) {
    const mine = tab;
    try {
      const parts = await {view: viewTab, result: resultTab, files: filesTab, request: requestTab, response: responseTab}[tab]();
      if (mine === tab && content.isConnected) replace(content, parts);
    } catch (error) {
      if (mine === tab && error.name !== "AbortError") replace(content, errorBanner(error, () => { loaded = new Map(); fill(content); }));
    }
  }

  async function viewTab() {
    await load("view", `${base}/view`);
    return h("iframe", {class: "call-view", src: `${base}/view`, sandbox: SANDBOX, referrerpolicy: "no-referrer", title: `${call.tool_name}, as its renderer shows it`, "data-testid": "call.view"});
  }

  function resultTab() {
    if (call.status === "running" || call.status === "pending") return h("div", {class: "empty"}, h("p", {}, call.status === "running" ? "The call runs; its result appears here." : "The call waits for a person."));
    if (call.result === null) return h("div", {class: "empty"}, h("p", {}, call.error ? "The call failed, so there is no result." : "The record has no result: contents of files are not kept."));
    return drawValue(call.result, "Result");
  }

  async function filesTab() {
    if (!hasChanges()) return h("div", {class: "empty"}, icon("files"), h("p", {}, "The call changed no file."));
    const diff = await changes();
    return [diff.truncated ? h("p", {class: "banner banner--warn"}, "The difference is too large to be shown whole.") : null, diffView({unified: diff.diff})];
  }

  const requestTab = () => [h("p", {class: "meta call-note"}, "As recorded, with secrets masked."), drawValue({method: isTool() ? "tools/call" : call.tool_name, params: isTool() ? {name: call.tool_name, arguments: call.args} : call.args}, "Request")];
  const responseTab = () => drawValue(call.error ? {isError: true, error: {code: call.error_code, message: call.error}} : {structuredContent: call.result, renderPlan: call.render_plan}, "Response");

  function timelinePanel() {
    const place = h("div", {});
    const count = h("span", {class: "meta"});
    const child = load("children", "/api/calls", {parent: call.id, limit: 100});
    const approvals = load("approvals", "/api/approvals", {call: call.id, status: "all"});
    const plan = load("steps", `${base}/steps`);
    Promise.all([plan, approvals, child]).then(
      ([answer, asked, children]) => {
        const steps = makeSteps(call, answer, asked.items, children.items);
        count.textContent = plural(steps.length, "step");
        replace(place, timeline(steps, {label: "Timeline of the call"}), stepsGuide(steps), answer.measured ? null : h("p", {class: "meta"}, "The times of single steps are measured while somebody has Calls open."));
      },
      (error) => { if (error.name !== "AbortError") replace(place, errorBanner(error)); },
    );
    return panel("Timeline", place, count);
  }

  function workspacePanel() {
    const at = (version) => h("a", {class: "mono", href: `/console/chats/${encodeURIComponent(call.chat_id)}?at=${version}`, "data-testid": "call.version", "data-key": version}, version.slice(0, 18));
    const rows = [];
    const [before, after] = [call.pre_manifest_id, call.post_manifest_id];
    if (before && (!after || before === after)) rows.push(["Version", h("span", {}, at(before), " unchanged")]);
    else if (after) {
      rows.push(["Before", before ? at(before) : "no files"], ["After", at(after)]);
      const files = h("span", {class: "call-files"}, "…");
      changes().then((diff) => replace(files, parseUnified(diff.diff).slice(0, 20).map((file) => h("a", {class: "mono", href: `/console/chats/${encodeURIComponent(call.chat_id)}/compare/${before ?? ""}...${after}?file=${encodeURIComponent(file.path)}`, "data-testid": "call.file", "data-key": file.path}, file.path))), (error) => { files.textContent = error.message; });
      rows.push(["Changed", files]);
    }
    return rows.length ? panel("Workspace", list(rows)) : null;
  }

  function approvalPanel() {
    const place = h("div", {hidden: true});
    load("approvals", "/api/approvals", {call: call.id, status: "all"}).then(({items}) => {
      if (!items.length) return;
      place.hidden = false;
      replace(place, panel("Approval", items.map((approval) => list([
        ["Asked", h("span", {}, formatTime(approval.created_at), `, ${approval.reason}`)],
        ["Answer", `${approval.status === "used" ? "allowed" : approval.status}${approval.decided_by ? ` by ${approval.decided_by}` : ""}${approval.decided_at ? ` at ${formatTime(approval.decided_at)}` : ""}${approval.scope ? `, ${approval.scope}` : ""}`],
        ...(approval.edited_args ? [["Changed", drawValue(approval.edited_args, "Changed arguments")]] : []),
        ["Question", h("a", {class: "mono", href: `/console/approvals/${approval.id}`, "data-testid": "call.approval"}, approval.id.slice(0, 18))],
      ]))));
    }, () => {});
    return place;
  }

  function recordPanel() {
    return panel("Record", list([
      ["Call", h("span", {class: "mono"}, call.id)],
      ["Tool", h("span", {class: "mono"}, call.tool_id)],
      ["Surface", call.surface],
      ...(call.message_id ? [["Message", h("span", {class: "mono"}, call.message_id)]] : []),
      ...(call.parent_call_id ? [["Step of", h("a", {class: "mono", href: `/console/calls/${call.parent_call_id}`, "data-testid": "call.parent"}, call.parent_call_id.slice(0, 18))]] : []),
      ...(call.attempts ? [["Attempts", formatCount(call.attempts)]] : []),
    ]));
  }

  function samePanel() {
    if (!isTool()) return null;
    const text = h("span", {}, "");
    load("same", "/api/calls", {tool: call.tool_id, since: new Date(Date.now() - 86_400_000).toISOString(), limit: 999}).then(({items, next_page_token: more}) => {
      const failed = items.filter((each) => each.status === "error").length;
      text.textContent = `${more ? "More than " : ""}${plural(items.length, "call")} in 24 h, ${failed ? `${formatCount(failed)} failed` : "none failed"}. ${typical(items)}`;
    }, () => {});
    return panel("Same tool", h("div", {class: "call-same"}, text, h("a", {href: `/console/calls?tool=${encodeURIComponent(call.tool_id)}`, "data-testid": "call.same"}, "Show calls")));
  }

  async function cancel(event) {
    event.currentTarget.disabled = true;
    try {
      await api.send("POST", `${base}/cancel`);
      toast("The call is being cancelled");
    } catch (error) {
      toast(error.message, {kind: "bad"});
    }
    await reload();
  }

  async function copyCurl() {
    const quote = (text) => `'${text.replaceAll("'", "'\\''")}'`;
    const document_ = JSON.stringify({args: call.args, chat: call.chat_id});
    const line = `curl -s ${quote(`${location.origin}/api/tools/${encodeURIComponent(call.tool_id)}/invoke`)} -H "Authorization: Bearer $TOOLGATE_KEY" -H 'Content-Type: application/json' -d ${quote(document_)}`;
    toast((await copyText(line)) ? "Copied as curl" : "The browser refused to copy", {});
  }

  async function reload() {
    call = await api.get(base, null, {signal});
    loaded = new Map();
    draw(new URLSearchParams(location.search));
    follow();
  }

  /** While the call goes on, show it again whenever something happened to it. */
  function follow() {
    closeStream();
    if (call.status !== "running" && call.status !== "pending") return;
    closeStream = api.stream(`/api/calls/events?chat=${encodeURIComponent(call.chat_id)}`, ({event, data}) => {
      if (event === "ready" || (event === "call" && data.id === call.id && data.status !== call.status)) refresh();
    });
  }

  async function refresh() {
    const now = await api.get(base, null, {signal}).catch(() => call);
    if (now.status === call.status) return;
    await reload();
  }

  draw(context.query);
  follow();
  return {update: (next) => draw(next.query)};
}

/** The steps of a call: the extensions around it, waits for people, the tool, and the calls it made. */
function makeSteps(call, {steps, measured}, approvals, children) {
  const began = Date.parse(call.started_at);
  const waits = approvals.map((approval) => ({
    name: "Approval", about: ABOUT.Approval, isWait: true, kind: {waiting: "waiting", denied: "denied", expired: "cancelled", cancelled: "cancelled", dismissed: "denied"}[approval.status] ?? "done",
    start: Math.max(0, Date.parse(approval.created_at) - began),
    duration: Math.max(0, Date.parse(approval.decided_at ?? new Date().toISOString()) - Date.parse(approval.created_at)),
  }));
  const ended = call.status === "success";
  const shown = steps.map((step) => {
    const name = step.kind === "tool" ? call.tool_name : words(step.name);
    const kind = step.failed ? (stateOf(call) === "done" ? "failed" : stateOf(call)) : measured ? (step.duration_ms === null ? "skipped" : "done") : ended ? "done" : step.kind === "tool" ? stateOf(call) : "skipped";
    const note = measured ? (step.duration_ms === null ? "not reached" : undefined) : step.kind === "tool" ? undefined : ended ? "passed" : "";
    const whole = step.kind === "tool" && !measured ? {start: 0, duration: call.duration_ms} : {start: step.start_ms, duration: step.duration_ms};
    return {name, kind, note, isTool: step.kind === "tool", about: step.kind === "tool" ? undefined : ABOUT[step.name], ...whole};
  });
  const inner = children.map((child) => ({
    name: child.tool_name, isTool: true, kind: stateOf(child), href: `/console/calls/${child.id}`,
    start: Math.max(0, Date.parse(child.started_at) - began), duration: child.duration_ms,
  })).reverse();
  if (!waits.length) return [...shown, ...inner];
  const place = shown.findIndex((step) => step.name === "Approval");
  const at = place < 0 ? shown.findIndex((step) => step.isTool) : place;
  return [...shown.slice(0, at), ...waits, ...shown.slice(place < 0 ? at : at + 1), ...inner];
}

/** The extensions of the timeline in one line each, for who does not know their names. */
function stepsGuide(steps) {
  const known = new Map(steps.filter((step) => step.about).map((step) => [step.name, step.about]));
  return known.size ? h("details", {class: "form__optional", "data-testid": "call.steps"}, h("summary", {}, "What these steps do"), list([...known])) : null;
}

/** `LargeResults` as `Large results`. */
function words(name) {
  const text = name.replaceAll(/([a-z])([A-Z])/g, "$1 $2").toLowerCase();
  return text.charAt(0).toUpperCase() + text.slice(1);
}

function typical(calls) {
  const times = calls.map((call) => call.duration_ms).filter((time) => time !== null).sort((a, b) => a - b);
  return times.length ? `Median ${formatDuration(times[Math.floor(times.length / 2)])}, 95\u00a0% under ${formatDuration(times[Math.min(times.length - 1, Math.floor(times.length * 0.95))])}.` : "";
}

/** @param {string} title @param {import("../../core/dom.js").Child} content @param {import("../../core/dom.js").Child} extra */
function panel(title, content, extra = null) {
  return h("section", {class: "call-panel"}, h("div", {class: "row"}, h("h2", {}, title), extra), content);
}

function list(rows) {
  return h("dl", {class: "facts"}, rows.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
}
