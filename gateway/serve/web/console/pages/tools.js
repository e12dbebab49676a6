/** Tools: every tool by its origin, switched on and off, and one tool with its schema, trial, overrides and usage. */

import {copyButton} from "../../core/code.js";
import {h, replace} from "../../core/dom.js";
import {formatCount, formatDuration, formatPercent, formatTime, plural, shorten} from "../../core/format.js";
import {icon} from "../../core/icons.js";
import {dataTable} from "../../core/table.js";
import {errorBanner} from "../messages.js";
import {emptyState, facts, focusTitle, jsonBlock, levelBadge, originBadge, readAll, runAction, splitPane, tabLinks, toolBadges} from "./catalog.js";
import {drawTrial} from "./try.js";

const FILTERS = ["q", "source", "level", "state", "sort"];
const ORIGINS = {"": "All", builtin: "Builtin", toolset: "Toolset", server: "Server"};
const LEVELS = {"": "Every level", "read-only": "read-only", "read-write": "read-write", execute: "execute"};
const STATES = {"": "On and off", on: "On", off: "Off", asks: "Asks first"};
const RENDERERS = ["code", "document", "html", "frame"];
const USAGE_LIMIT = 1000;
const PHONE = "(max-width: 899px)";

export const page = {path: "/console/tools/{name?}", title: "Tools", icon: "tools", render};

async function render(context) {
  const view = new ToolsPage(context);
  await view.load();
  await view.update(context);
  context.onLeave(context.live.onChange((event) => { if (event?.event === "tools") view.refresh().catch(() => {}); }));
  return view;
}

function groupOf(tool) {
  return `${tool.origin}:${tool.owner ?? tool.category}`;
}

class ToolsPage {
  /** @type {any[]} */ tools = [];
  calls = new Map();
  /** @type {Record<string, string>} */ filters = {};
  /** @type {string | null} */ name = null;
  /** @type {any} made by `draw`, as are the two below */ table;
  /** @type {any} */ split;
  /** @type {any} */ sources;

  constructor(context) {
    this.context = context;
    this.api = context.api;
    this.isAdmin = context.principal.admin;
    this.detail = h("section", {class: "split__detail", "aria-label": "Tool"});
    this.bar = h("div", {class: "action-bar", role: "region", "aria-label": "Selected tools", hidden: true});
    this.head = h("header", {class: "page-head"});
  }

  /** Read every tool; those that are off are for administrators. */
  async load() {
    const [offered, withheld, counts] = await Promise.all([
      readAll(this.api, "/api/tools"),
      this.isAdmin ? readAll(this.api, "/api/withheld-tools") : [],
      this.api.get("/api/usage", {by: "tool", limit: USAGE_LIMIT}),
    ]);
    this.calls = new Map(counts.items.map((each) => [each.tool, each]));
    const order = {builtin: 0, toolset: 1, server: 2};
    const live = new Set(offered.map(groupOf));
    this.tools = [...offered.map((tool) => ({...tool, on: true})), ...withheld.map((tool) => ({...tool, on: false}))]
      .map((tool) => ({...tool, group: groupOf(tool), isKnown: Boolean(tool.on || tool.description), text: `${tool.name} ${tool.id} ${tool.title ?? ""} ${tool.description} ${tool.tags.join(" ")}`.toLowerCase()}))
      .sort((a, b) => order[a.origin] - order[b.origin] || Number(live.has(b.group)) - Number(live.has(a.group)) || a.group.localeCompare(b.group) || (a.name < b.name ? -1 : 1));
  }

  async refresh() {
    await this.load();
    this.showRows();
  }

  /** Follow the address. */
  async update(context) {
    this.context = context;
    const {query, params} = context;
    this.filters = Object.fromEntries(FILTERS.map((name) => [name, query.get(name) ?? ""]));
    const opened = params.name !== this.name;
    this.name = params.name ?? null;
    if (!this.table || !this.split?.isConnected) this.draw();
    this.split.classList.toggle("split--open", Boolean(this.name));
    this.split.classList.toggle("split--alone", !this.name);
    this.showRows();
    this.table.setCurrent(this.name);
    await this.drawDetail(query.get("tab") ?? "details", opened && context.root.contains(document.activeElement));
  }

  address(name, extra = {}) {
    const query = new URLSearchParams(Object.entries({...this.filters, ...extra}).filter(([, value]) => value));
    return `/console/tools${name ? `/${encodeURIComponent(name)}` : ""}${query.size ? `?${query}` : ""}`;
  }

  draw() {
    const phone = matchMedia(PHONE).matches;
    const search = h("input", {type: "search", class: "input", placeholder: `Filter ${plural(this.tools.length, "tool")}`, "aria-label": "Filter tools", value: this.filters.q, "data-testid": "tools.filter", oninput: () => this.filter({q: search.value})});
    const choose = (name, options, label) => {
      const select = h("select", {class: "input filters__select", "aria-label": label, "data-testid": `tools.${name}`, onchange: () => this.filter({[name]: select.value})}, Object.entries(options).map(([value, word]) => h("option", {value}, word)));
      select.value = this.filters[name];
      return select;
    };
    this.sources = h("div", {class: "segmented", role: "radiogroup", "aria-label": "Origin"}, Object.entries(ORIGINS).map(([value, word]) =>
      h("button", {type: "button", role: "radio", "data-testid": "tools.source", "data-key": value || "all", onclick: () => this.filter({source: value})}, word)));
    const align = /** @type {"right"} */ ("right");
    const toggle = (tool) => h("input", {type: "checkbox", class: "toggle", role: "switch", checked: tool.on, "aria-label": `${tool.name} on`, "data-testid": "tools.toggle", "data-key": tool.name, onchange: (event) => this.switchTools([tool], event.target.checked)});
    /** @type {import("../../core/table.js").Column<any>[]} */
    const columns = [
      {key: "name", title: "Name", render: (tool) => h("span", {class: "tool-name", title: tool.reason ?? tool.name}, h("span", {class: "mono"}, shorten(tool.name, phone ? 30 : 56)), phone ? levelBadge(tool.permission) : null, toolBadges(tool), !tool.on && tool.reason ? h("span", {class: "meta tool-reason", "data-testid": "tools.reason"}, tool.reason) : null)},
      ...(phone ? [] : [{key: "permission", title: "Level", width: "92px", render: (tool) => (tool.isKnown ? levelBadge(tool.permission) : "–")}]),
      {key: "tokens", title: "Tokens", width: "76px", align, wideOnly: true, render: (tool) => (tool.isKnown ? formatCount(tool.tokens) : "–")},
      {key: "calls", title: "7 days", width: "72px", align, wideOnly: true, value: (tool) => this.calls.get(tool.id)?.calls ?? 0, render: (tool) => formatCount(this.calls.get(tool.id)?.calls ?? 0)},
      ...(this.isAdmin ? [
        {key: "on", title: "On", width: "58px", align, value: (tool) => Number(!tool.on), render: toggle},
      ] : []),
    ];
    this.table = dataTable({
      columns, rows: [], label: "Tools", testid: "tools", key: (tool) => tool.name, rowHeight: phone ? 60 : 34, selectable: this.isAdmin,
      sort: this.filters.sort, onSort: (sort) => this.filter({sort}, false), href: (tool) => this.address(tool.name, {tab: this.context.query.get("tab")}),
      group: (tool) => tool.group, groupCells: (name, rows) => this.groupCells(name, rows), onSelect: (keys) => this.showBar(keys),
      empty: this.tools.length ? emptyState("search", "No tool matches", "Change the filter to see more.", h("button", {class: "button", type: "button", "data-testid": "tools.clear", onclick: () => { search.value = ""; this.filter({q: "", source: "", level: "", state: ""}); this.draw(); this.update(this.context); }}, "Clear filter")) : emptyState("tools", "No tools yet", "Install a toolset or add a server, and its tools are here.", h("a", {class: "button", href: "/console/toolsets"}, "Go to Toolsets")),
    });
    this.table.classList.add("table--fill");
    const filters = h("div", {class: "filters"}, h("div", {class: "filters__search"}, search), this.sources, choose("level", LEVELS, "Level"), choose("state", STATES, "State"));
    this.search = search;
    const list = h("section", {class: "split__list", "aria-label": "All tools"}, filters, h("div", {class: "split__fill"}, this.table), this.bar);
    this.split = splitPane(list, this.detail, {page: "tools", isOpen: Boolean(this.name)});
    replace(this.context.root, this.head, this.split);
    this.context.root.classList.add("page--fixed");
  }

  /** Change filters: the address is replaced, and the list drawn again. */
  filter(changes, draws = true) {
    Object.assign(this.filters, changes);
    this.context.navigate(this.address(this.name, {tab: this.context.query.get("tab")}), {replace: true});
    if (draws) this.showRows();
  }

  matching() {
    const {q, source, level, state} = this.filters;
    const words = q.toLowerCase().split(/\s+/).filter(Boolean);
    const [origin, owner] = source.split(/:(.*)/);
    return this.tools.filter((tool) =>
      words.every((word) => tool.text.includes(word)) && (!origin || tool.origin === origin) && (!owner || tool.owner === owner || tool.category === owner)
      && (!level || tool.permission === level) && (!state || (state === "asks" ? tool.requires_confirmation : tool.on === (state === "on"))));
  }

  showRows() {
    const on = this.tools.filter((tool) => tool.on);
    const tokens = on.reduce((sum, tool) => sum + tool.tokens, 0);
    replace(
      this.head, h("h1", {}, "Tools"),
      h("span", {class: "meta", role: "status", "data-testid": "tools.summary"}, this.isAdmin ? `${formatCount(on.length)} of ${formatCount(this.tools.length)} on` : plural(on.length, "tool")),
      h("span", {class: "badge", title: "An estimate of what all definitions take of a model's context"}, `about ${plural(tokens, "token")}`),
      h("a", {class: "button push", href: "/api/available-tools", download: "tools.json", "data-testid": "tools.export"}, icon("download"), "Export"),
    );
    for (const button of this.sources.children) button.setAttribute("aria-checked", String((button.dataset.key === "all" ? "" : button.dataset.key) === this.filters.source.split(":")[0]));
    this.table.setRows(this.matching());
  }

  groupCells(name, rows) {
    const [origin, owner] = name.split(/:(.*)/);
    const on = rows.filter((tool) => tool.on).length;
    const toggle = h("input", {type: "checkbox", class: "toggle", role: "switch", checked: on === rows.length, indeterminate: on > 0 && on < rows.length, "aria-label": `${ORIGINS[origin]} ${owner} on`, "data-testid": "tools.group-toggle", "data-key": name, onchange: (event) => this.switchGroup(origin, owner, rows, event.target.checked)});
    return {
      name: h("span", {class: "tool-name"}, icon({builtin: "lock", toolset: "toolsets", server: "servers"}[origin]), h("span", {}, `${ORIGINS[origin]} `, h("strong", {}, owner)), h("span", {class: "meta"}, this.isAdmin ? `${on} of ${rows.length} on` : rows.length)),
      tokens: formatCount(rows.reduce((sum, tool) => sum + (tool.isKnown ? tool.tokens : 0), 0)), on: toggle,
    };
  }

  showBar(keys) {
    const chosen = this.tools.filter((tool) => keys.has(tool.name));
    this.bar.hidden = !chosen.length;
    const act = (word, testid, action) => h("button", {class: "button", type: "button", "data-testid": `tools.${testid}`, onclick: action}, word);
    replace(
      this.bar, h("strong", {role: "status"}, `${formatCount(chosen.length)} selected`),
      act("Enable", "enable", () => this.switchTools(chosen, true)), act("Disable", "disable", () => this.switchTools(chosen, false)),
      act("Always ask", "ask", (event) => this.alwaysAsk(event.target, chosen)),
      h("button", {class: "button button--quiet push", type: "button", "data-testid": "tools.clear-selection", onclick: () => this.table.clearSelection()}, "Clear ", h("kbd", {class: "kbd"}, "Esc")),
    );
  }

  /** Switch a group. Builtins of a category that is off come with the category. */
  async switchGroup(origin, owner, rows, on) {
    if (origin === "builtin" && on && rows.every((tool) => !tool.on)) {
      try {
        await this.api.send("PATCH", `/api/categories/${encodeURIComponent(owner)}`, {enabled: true});
        await this.load();
      } catch (error) {
        this.context.toast(error.message, {kind: "bad"});
      }
      rows = this.tools.filter((tool) => rows.some((each) => each.id === tool.id));
      this.showRows();
      if (rows.every((tool) => tool.on)) return this.context.toast(`${plural(rows.length, "tool")} enabled`, {undo: () => this.switchTools(rows, false, true)});
    }
    return this.switchTools(rows, on);
  }

  /** Switch tools: shown at once, taken back where the gateway refuses, and undone with one click. */
  async switchTools(tools, on, isUndo = false) {
    const changed = tools.filter((tool) => tool.on !== on);
    if (!changed.length) return;
    const mark = (names, value) => {
      this.tools = this.tools.map((tool) => (names.has(tool.id) ? {...tool, on: value} : tool));
      this.showRows();
    };
    mark(new Set(changed.map((tool) => tool.id)), on);
    try {
      const {items} = await this.api.send("PATCH", "/api/tools", {tools: changed.map((tool) => tool.id), enabled: on});
      const refused = items.filter((item) => item.offered !== on);
      await this.refresh();
      if (refused.length) this.context.toast(`${plural(refused.length, "tool")} could not be turned ${on ? "on" : "off"}: ${refused[0].withheld}`, {kind: "bad"});
      const done = changed.filter((tool) => !refused.some((item) => item.id === tool.id));
      if (done.some((tool) => tool.name === this.name)) this.drawDetail(this.context.query.get("tab") ?? "details", false);
      if (done.length) this.context.toast(`${done.length === 1 ? done[0].name : plural(done.length, "tool")} ${on ? "enabled" : "disabled"}`, isUndo ? {} : {undo: () => this.switchTools(this.tools.filter((tool) => done.some((each) => each.id === tool.id)), !on, true)});
    } catch (error) {
      mark(new Set(changed.map((tool) => tool.id)), !on);
      this.context.toast(error.message, {kind: "bad"});
    }
  }

  async alwaysAsk(button, tools) {
    await runAction(button, this.context.toast, async () => {
      const refused = [];
      for (const tool of tools) {
        try {
          await this.api.send("PATCH", `/api/tools/${encodeURIComponent(tool.id)}`, {requires_confirmation: true});
        } catch (error) {
          refused.push(error);
        }
      }
      await this.refresh();
      if (refused.length) this.context.toast(`${plural(refused.length, "tool")} unchanged: ${refused[0].message}`, {kind: "bad"});
      else this.context.toast(`${plural(tools.length, "tool")} will ask first`);
    });
  }

  // One tool.

  async drawDetail(tab, focuses) {
    if (!this.name) return replace(this.detail, emptyState("tools", "No tool is open", "Choose one to see its schema and try it."));
    const name = this.name;
    let tool = this.tools.find((each) => each.name === name || each.id === name);
    const isOffered = tool?.on !== false;
    try {
      if (isOffered) tool = await this.api.get(`/api/tools/${encodeURIComponent(name)}`);
    } catch (error) {
      return replace(this.detail, this.backLink(), errorBanner(error, () => this.drawDetail(tab, focuses)));
    }
    if (name !== this.name) return undefined;
    const tabs = isOffered ? {details: ["Details"], try: ["Try it"], ...(this.isAdmin ? {overrides: ["Overrides"]} : {}), usage: ["Usage"]} : {details: ["Details"]};
    const current = tabs[tab] ? tab : "details";
    const body = h("div", {class: "detail__body stack"});
    replace(
      this.detail, this.backLink(),
      h("header", {class: "detail__head stack"},
        h("div", {class: "row"}, h("h2", {class: "mono detail__title", title: tool.name}, tool.name), copyButton(() => tool.name, "", "Copy the name"),
          h("a", {class: "button button--quiet button--icon push", href: this.address(null), "aria-label": "Close", "data-testid": "tools.close"}, icon("x"))),
        tool.title && tool.title !== tool.name ? h("p", {}, tool.title) : null,
        h("div", {class: "row row--wrap"}, toolBadges(tool, true)),
        isOffered ? null : h("div", {class: "banner banner--warn"}, icon("warn"), h("p", {}, `Not offered: ${tool.reason ?? "it is turned off"}`),
          tool.origin === "server" && /definition/.test(tool.reason ?? "") ? h("a", {class: "button", href: `/console/servers/${encodeURIComponent(tool.owner)}?tab=definitions`, "data-testid": "tools.compare"}, "Compare") : null)),
      tabLinks(tabs, current, (key) => this.address(name, {tab: key}), "tools"), body);
    if (focuses) focusTitle(this.detail);
    const draw = {details: drawDetails, try: drawTrial, overrides: drawOverrides, usage: drawUsage}[current];
    try {
      await draw(this, tool, body);
    } catch (error) {
      replace(body, errorBanner(error, () => this.drawDetail(tab, false)));
    }
    return undefined;
  }

  backLink() {
    return h("a", {class: "detail__back", href: this.address(null), "data-testid": "tools.back"}, icon("chevron"), "Tools");
  }
}

function drawDetails(view, tool, body) {
  replace(
    body,
    h("div", {class: "stack"}, h("h3", {}, tool.on === false ? "Description, which models do not see" : "Description, as models see it"), h("p", {class: "prose-text", "data-testid": "tools.description"}, tool.description || "It has no description.")),
    facts({Id: h("span", {class: "mono"}, tool.id), Origin: originBadge(tool), Category: tool.category, Level: levelBadge(tool.permission), Kind: tool.kind, Tags: tool.tags.join(", "), Calls: view.calls.has(tool.id) ? `${formatCount(view.calls.get(tool.id).calls)} in 7 days` : null}),
    tool.input_schema ? [h("h3", {}, "Input schema"), jsonBlock(tool.input_schema, "Input schema", {maxLines: 60})] : null,
    tool.output_schema ? [h("h3", {}, "Output schema"), jsonBlock(tool.output_schema, "Output schema", {maxLines: 40})] : null,
    tool.annotations ? [h("h3", {}, "Annotations"), jsonBlock(tool.annotations, "Annotations")] : null,
  );
}

async function drawUsage(view, tool, body) {
  const usage = await view.api.get(`/api/tools/${encodeURIComponent(tool.id)}/usage`);
  if (!usage.calls) return replace(body, emptyState("calls", "Not called yet", "Its calls, failures and durations show up here."));
  return replace(
    body,
    facts({
      Calls: usage.calls === 1000 ? "the last 1,000" : formatCount(usage.calls),
      Failed: `${formatCount(usage.errors)} (${formatPercent(usage.errors / usage.calls)})`,
      Median: formatDuration(usage.median_ms), "95 %": formatDuration(usage.p95_ms),
    }),
    h("h3", {}, "Last callers"),
    h("div", {class: "wide-table"}, h("table", {}, h("thead", {}, h("tr", {}, ["Who", "Client", "Calls", "Last"].map((title) => h("th", {scope: "col"}, title)))),
      h("tbody", {}, usage.callers.map((caller) => h("tr", {}, h("td", {}, caller.principal), h("td", {}, caller.client ?? "–"), h("td", {}, formatCount(caller.calls)), h("td", {}, formatTime(caller.last_at))))))),
    h("p", {}, h("a", {href: `/console/calls?tool=${encodeURIComponent(tool.id)}`, "data-testid": "tools.calls"}, "Show its calls")),
  );
}

/** Name, description, consent and renderer, each beside the original. */
function drawOverrides(view, tool, body) {
  const {original} = tool;
  if (!original) {
    const reason = tool.origin === "builtin" ? "A builtin can be turned on and off; nothing else of it changes." : `The server ${tool.owner} is set up in the settings file. Change its tools there, under overrides.`;
    return replace(body, emptyState("lock", "Nothing to change here", reason));
  }
  const input = (props) => h("input", {type: "text", ...props});
  const now = {name: tool.title ?? original.name, description: tool.description, asks: tool.requires_confirmation, renderer: tool.renderer ?? "", config: tool.render_config?.config ?? {}};
  const fields = {
    name: input({value: now.name, maxlength: 200}),
    description: h("textarea", {rows: 5, value: now.description}),
    asks: h("select", {}, h("option", {value: "true"}, "Asks first"), h("option", {value: "false"}, "Does not ask")),
    renderer: h("select", {}, h("option", {value: ""}, "None"), RENDERERS.map((kind) => h("option", {value: kind}, kind))),
    config: h("textarea", {rows: 5, class: "mono", spellcheck: "false", value: JSON.stringify(now.config, null, 2)}),
  };
  fields.asks.value = String(now.asks);
  fields.renderer.value = now.renderer;
  const originals = {name: original.name, description: original.description, asks: original.requires_confirmation ? "Asks first" : "Does not ask", renderer: original.renderer ?? "None"};
  const words = {name: "Name", description: "Description", asks: "Consent", renderer: "Renderer", config: "Renderer configuration, JSON"};
  const send = (button, changes, word) => runAction(button, view.context.toast, async () => {
    await view.api.send("PATCH", `/api/tools/${encodeURIComponent(tool.id)}`, changes);
    view.context.toast(word);
    await view.refresh();
    await view.drawDetail("overrides", false);
  });
  const resets = {name: {name_override: null}, description: {description_override: null}, asks: {requires_confirmation: null}, renderer: {renderer: null, renderer_config: null}};
  const isChanged = {name: now.name !== original.name, description: now.description !== original.description, asks: now.asks !== original.requires_confirmation, renderer: now.renderer !== (original.renderer ?? "")};
  const save = h("button", {class: "button button--primary", type: "submit", "data-testid": "tools.save"}, "Save");
  const row = (key) => {
    const id = `override-${key}`;
    fields[key].id = id;
    fields[key].dataset.testid = `tools.override-${key}`;
    return h(
      "div", {class: "override"},
      h("div", {class: "field"}, h("label", {for: id}, words[key], isChanged[key] ? h("span", {class: "badge badge--accent"}, "changed") : null), fields[key]),
      key in originals ? h("div", {class: "override__original"}, h("span", {class: "meta"}, "Original"), h("p", {class: "prose-text"}, originals[key] || "none"),
        h("button", {class: "button button--small", type: "button", disabled: !isChanged[key], "data-testid": "tools.reset", "data-key": key, onclick: (event) => send(event.target, resets[key], `${words[key]} reset`)}, "Reset")) : null,
    );
  };
  const form = h("form", {class: "stack", onsubmit: (event) => {
    event.preventDefault();
    let config;
    try {
      config = JSON.parse(fields.config.value || "{}");
    } catch (error) {
      view.context.toast(`The renderer's configuration is not JSON: ${error.message}`, {kind: "bad"});
      return;
    }
    const changes = {};
    if (fields.name.value !== now.name) changes.name_override = fields.name.value || null;
    if (fields.description.value !== now.description) changes.description_override = fields.description.value || null;
    if (fields.asks.value !== String(now.asks)) changes.requires_confirmation = fields.asks.value === "true";
    if (fields.renderer.value !== now.renderer || JSON.stringify(config) !== JSON.stringify(now.config)) Object.assign(changes, fields.renderer.value ? {renderer: fields.renderer.value, renderer_config: config} : {renderer: null, renderer_config: null});
    if (Object.keys(changes).length) send(save, changes, "Saved");
  }}, Object.keys(words).map(row), h("div", {class: "row"}, save));
  return replace(body, form);
}
