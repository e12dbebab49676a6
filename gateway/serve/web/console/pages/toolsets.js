/** Toolsets: what is installed, imports with a dry run, updates, problems with their lines. */

import {codeBlock} from "../../core/code.js";
import {h, replace} from "../../core/dom.js";
import {formatTime, plural} from "../../core/format.js";
import {icon} from "../../core/icons.js";
import {ask, errorBanner} from "../messages.js";
import {emptyState, facts, focusTitle, jsonBlock, levelBadge, readAll, runAction, splitPane, tabLinks, toolBadges} from "./catalog.js";

const WAYS = {zip: "ZIP file", url: "URL", openapi: "OpenAPI document"};

export const page = {path: ["/console/toolsets/import", "/console/toolsets/{id?}"], title: "Toolsets", icon: "toolsets", render};

async function render(context) {
  const view = new ToolsetsPage(context);
  await view.load();
  await view.update(context);
  return view;
}

class ToolsetsPage {
  /** @type {any[]} */ toolsets = [];
  /** @type {string | null} */ id = null;
  /** @type {File | null} */ dropped = null;

  constructor(context) {
    this.context = context;
    this.api = context.api;
    this.head = h("header", {class: "page-head"});
    this.list = h("section", {class: "split__list", "aria-label": "Installed toolsets"});
    this.detail = h("section", {class: "split__detail", "aria-label": "Toolset"});
    const over = (event) => { if ([...(event.dataTransfer?.types ?? [])].includes("Files")) event.preventDefault(); };
    const drop = (event) => {
      const file = event.dataTransfer?.files[0];
      if (!file) return;
      event.preventDefault();
      this.dropped = file;
      context.navigate("/console/toolsets/import?how=zip");
    };
    context.root.addEventListener("dragover", over);
    context.root.addEventListener("drop", drop);
  }

  async load() {
    this.toolsets = await readAll(this.api, "/api/toolsets");
  }

  async refresh() {
    await this.load();
    this.drawList();
  }

  async update(context) {
    this.context = context;
    const isImport = location.pathname.endsWith("/toolsets/import");
    const opened = this.id !== (context.params.id ?? null) || isImport;
    this.id = isImport ? null : context.params.id ?? null;
    if (!this.split?.isConnected) {
      this.split = splitPane(this.list, this.detail, {page: "toolsets", isOpen: false, side: "list", width: 320});
      replace(context.root, this.head, this.split);
      context.root.classList.add("page--fixed");
    }
    this.split.classList.toggle("split--open", Boolean(this.id) || isImport);
    this.split.classList.toggle("split--alone", !this.toolsets.length && !this.id && !isImport);
    this.drawList();
    if (isImport) this.drawImport(context.query.get("how") ?? "zip");
    else await this.drawDetail(context.query.get("tab") ?? "tools");
    if (opened && context.root.contains(document.activeElement)) focusTitle(this.detail);
  }

  drawList() {
    const on = this.toolsets.filter((each) => each.enabled).length;
    replace(this.head, h("h1", {}, "Toolsets"), h("span", {class: "meta", role: "status", "data-testid": "toolsets.summary"}, `${on} of ${this.toolsets.length} on`),
      h("a", {class: "button button--primary push", href: "/console/toolsets/import", "data-testid": "toolsets.import"}, icon("plus"), "Import"));
    if (!this.toolsets.length) {
      replace(this.list, emptyState("toolsets", "No toolset is installed", "Drop a ZIP file here, or import one from a URL or an OpenAPI document.", h("a", {class: "button", href: "/console/toolsets/import"}, "Import a toolset")));
      return;
    }
    replace(this.list, h("ul", {class: "plain-list"}, this.toolsets.map((each) => h(
      "li", {class: "pick", "aria-current": each.id === this.id ? "true" : null, "data-testid": "toolsets.row", "data-key": each.id},
      h("a", {class: "pick__link", href: `/console/toolsets/${encodeURIComponent(each.id)}`},
        h("span", {class: "row"}, each.problem_count ? h("span", {class: "warn-text"}, icon("warn")) : icon("toolsets"), h("strong", {class: "name"}, each.id), h("span", {class: "meta"}, each.version)),
        h("span", {class: "row row--wrap meta"}, h("span", {}, `${each.offered} of ${plural(each.tool_count, "tool")} on`), each.permission ? levelBadge(each.permission) : null, each.problem_count ? h("span", {class: "warn-text"}, plural(each.problem_count, "problem")) : null)),
      this.toggle(each),
    ))));
  }

  toggle(toolset) {
    const input = h("input", {type: "checkbox", class: "toggle", role: "switch", checked: toolset.enabled, "aria-label": `${toolset.id} on`, "data-testid": "toolsets.toggle", "data-key": toolset.id, onchange: () => this.enable(toolset.id, input.checked)});
    return input;
  }

  async enable(id, enabled, isUndo = false) {
    try {
      await this.api.send("POST", `/api/toolsets/${encodeURIComponent(id)}/enable`, {enabled});
      this.context.toast(`${id} ${enabled ? "enabled" : "disabled"}`, isUndo ? {} : {undo: () => this.enable(id, !enabled, true)});
    } catch (error) {
      this.context.toast(error.message, {kind: "bad"});
    }
    await this.refresh();
    if (this.id === id) await this.drawDetail(this.context.query.get("tab") ?? "tools");
  }

  // One toolset.

  async drawDetail(tab) {
    if (!this.id) return replace(this.detail, emptyState("toolsets", "No toolset is open", "Choose one to see its tools, problems and settings."));
    const id = this.id;
    let toolset;
    try {
      toolset = await this.api.get(`/api/toolsets/${encodeURIComponent(id)}`);
    } catch (error) {
      return replace(this.detail, back(), errorBanner(error, () => this.drawDetail(tab)));
    }
    if (id !== this.id) return undefined;
    const tabs = {tools: ["Tools", toolset.tools.length], files: ["toolset.yaml"], problems: ["Problems", toolset.problems.length], settings: ["Settings"]};
    const current = tabs[tab] ? tab : "tools";
    const canUpdate = toolset.source_type === "url" || toolset.source_type === "local";
    const held = toolset.servers.filter((server) => server.state === "held back");
    replace(
      this.detail, back(),
      h("header", {class: "detail__head stack"},
        h("div", {class: "row row--wrap"}, h("h2", {class: "mono"}, toolset.id), h("span", {class: "badge"}, toolset.version), toolset.live ? h("span", {class: "badge badge--accent"}, "follows its folder") : null, levelBadge(toolset.permission),
          h("span", {class: "row push"},
            h("button", {class: "button", type: "button", disabled: !canUpdate, title: canUpdate ? toolset.source_ref : "It was uploaded. Import its new version.", "data-testid": "toolsets.update", onclick: (event) => this.updateFromSource(event.target, toolset)}, icon("refresh"), "Update"),
            h("a", {class: "button", href: `/api/toolsets/${encodeURIComponent(toolset.id)}/export`, download: "", "data-testid": "toolsets.export"}, icon("download"), "Export"),
            h("button", {class: "button button--danger", type: "button", "data-testid": "toolsets.uninstall", onclick: () => this.uninstall(toolset)}, "Uninstall…"))),
        toolset.description ? h("p", {class: "prose-text"}, toolset.description) : null,
        held.length ? h("div", {class: "banner banner--warn"}, icon("warn"), h("p", {}, `It brings ${plural(held.length, "server")} that ${held.length === 1 ? "waits" : "wait"} for your consent.`), h("a", {class: "button", href: `/console/toolsets/${encodeURIComponent(toolset.id)}?tab=settings`}, "Look")) : null),
      tabLinks(tabs, current, (key) => `/console/toolsets/${encodeURIComponent(toolset.id)}?tab=${key}`, "toolsets"),
      h("div", {class: "detail__body stack"}, {tools: drawTools, files: drawManifest, problems: drawProblems, settings: drawSettings}[current](toolset, this)));
    if (current === "files") this.detail.querySelector(".code__line--marked")?.scrollIntoView({block: "center"});
    return undefined;
  }

  uninstall(toolset) {
    const name = h("input", {type: "text", id: "uninstall-name", autocomplete: "off", "data-testid": "toolsets.uninstall-name"});
    ask({
      title: `Uninstall ${toolset.id}?`, verb: "Uninstall", final: true,
      body: [h("p", {}, `${plural(toolset.tool_count, "tool")} and your changes to them disappear from every client. Files of chats stay.`), h("div", {class: "field"}, h("label", {for: "uninstall-name"}, "Type ", h("code", {}, toolset.id), " to confirm"), name)],
      accept: async () => {
        if (name.value !== toolset.id) throw new Error(`Type ${toolset.id} to confirm.`);
        await this.api.send("POST", `/api/toolsets/${encodeURIComponent(toolset.id)}/uninstall`);
        await this.load();
        this.context.toast(`${toolset.id} uninstalled`);
        this.context.navigate("/console/toolsets");
      },
    });
  }

  updateFromSource(button, toolset) {
    return runAction(button, this.context.toast, async () => {
      const path = `/api/toolsets/${encodeURIComponent(toolset.id)}/update`;
      const {difference} = await this.api.send("POST", `${path}?dry_run=true`);
      if (!difference.changed) return this.context.toast(`${toolset.id} is up to date`);
      return ask({title: `Update ${toolset.id} to ${difference.version}?`, verb: "Update", body: drawDifference(difference), accept: async () => {
        await this.api.send("POST", path);
        this.context.toast(`${toolset.id} updated`);
        await this.refresh();
        await this.drawDetail("tools");
      }});
    });
  }

  allow(button, toolset, server) {
    return runAction(button, this.context.toast, async () => {
      const {results} = await this.api.send("POST", `/api/toolsets/${encodeURIComponent(toolset.id)}/servers/allow`, {digests: {[server.id]: server.digest}});
      this.context.toast(`${server.id}: ${results[server.id]}`);
      await this.refresh();
      await this.drawDetail("settings");
    });
  }

  // Import: always a dry run first.

  drawImport(how) {
    const result = h("div", {class: "stack", "aria-live": "polite"});
    const file = h("input", {type: "file", accept: ".zip,application/zip", id: "import-file", "data-testid": "toolsets.file", onchange: () => tryIt()});
    const url = h("input", {type: "url", id: "import-url", placeholder: "https://", value: this.context.query.get("url") ?? "", "data-testid": "toolsets.url"});
    const documentText = h("textarea", {rows: 8, class: "mono", id: "import-document", spellcheck: "false", "data-testid": "toolsets.document"});
    const id = h("input", {type: "text", id: "import-id", placeholder: "made from its title", pattern: "[a-z0-9][a-z0-9_\\-]{0,63}", "data-testid": "toolsets.import-id"});
    const field = (/** @type {string} */ label, /** @type {HTMLElement} */ input, hint = "") => h("div", {class: "field"}, h("label", {for: input.id}, label), input, hint ? h("p", {class: "field__hint"}, hint) : null);
    const fields = {
      zip: [field("ZIP file", file, "Or drop it anywhere on this page.")],
      url: [field("Address of a ZIP file or a tools.yaml", url)],
      openapi: [field("Address of the document", url), field("Or the document itself, JSON or YAML", documentText), field("Id of the toolset", id)],
    }[how] ?? [];
    const go = h("button", {class: "button button--primary", type: "submit", "data-testid": "toolsets.try"}, "Show what changes");
    const send = (dryRun) => {
      const query = `?dry_run=${dryRun}`;
      if (how === "openapi") return this.api.send("POST", `/api/openapi-imports${query}`, {...(documentText.value ? {document: documentText.value} : {url: url.value}), ...(id.value ? {id: id.value} : {})});
      if (how === "url") return this.api.send("POST", `/api/toolsets/import${query}`, {url: url.value});
      const chosen = file.files?.[0] ?? this.dropped;
      if (!chosen) throw new Error("Choose a ZIP file first.");
      const form = new FormData();
      form.append("file", chosen, chosen.name);
      return this.api.send("POST", `/api/toolsets/import${query}`, form);
    };
    const tryIt = async () => {
      go.setAttribute("aria-busy", "true");
      try {
        const answer = await send(true);
        const install = h("button", {class: "button button--primary", type: "button", "data-testid": "toolsets.install", onclick: () => runAction(install, this.context.toast, async () => {
          const done = await send(false);
          this.dropped = null;
          await this.load();
          const installed = done.difference?.id ?? done.id;
          this.context.toast(`${installed} installed`);
          for (const hint of done.hints ?? []) this.context.toast(hint, {kind: "warn"});
          this.context.navigate(`/console/toolsets/${encodeURIComponent(installed)}`);
        })}, "Install");
        install.hidden = answer.difference?.changed === false;
        replace(result, h("div", {class: "card", "data-testid": "toolsets.difference"}, h("div", {class: "card__body stack"}, answer.difference ? drawDifference(answer.difference) : drawOpenApi(answer)), install.hidden ? null : h("div", {class: "card__foot"}, install)));
      } catch (error) {
        const problems = error.details?.problems ?? [];
        replace(result, errorBanner(error), problems.length > 1 ? h("ul", {class: "problem-list"}, problems.map((problem) => h("li", {}, problem))) : null);
      } finally {
        go.removeAttribute("aria-busy");
      }
    };
    replace(
      this.detail, back(),
      h("header", {class: "detail__head stack"}, h("h2", {}, "Import a toolset"),
        h("nav", {class: "segmented", "aria-label": "Where from"}, Object.entries(WAYS).map(([key, word]) => h("a", {href: `/console/toolsets/import?how=${key}`, "aria-selected": null, "aria-pressed": null, "aria-current": key === how ? "page" : null, "data-testid": "toolsets.how", "data-key": key}, word)))),
      h("div", {class: "detail__body stack"}, h("form", {class: "stack", onsubmit: (event) => { event.preventDefault(); tryIt(); }}, fields, h("div", {class: "row"}, go, h("span", {class: "meta"}, "Nothing is installed and no code runs before you have seen it."))), result));
    if (how === "zip" && this.dropped) tryIt();
  }
}

function back() {
  return h("a", {class: "detail__back", href: "/console/toolsets", "data-testid": "toolsets.back"}, icon("chevron"), "Toolsets");
}

/** Tools with levels, secrets wanted, commands, and files of a dry run. */
function drawDifference(difference) {
  const {tools, servers, files, levels, variables, commands} = difference;
  const rows = [["added", "+", "badge--ok"], ["changed", "~", "badge--warn"], ["removed", "−", "badge--bad"]].flatMap(([kind, , badge]) =>
    tools[kind].map((name) => h("tr", {}, h("td", {}, h("span", {class: `badge ${badge}`}, kind)), h("td", {class: "mono"}, name), h("td", {}, kind === "removed" ? null : levelBadge(levels[name]) ?? h("span", {class: "meta"}, "level in its code")))));
  const title = difference.installed_version ? `${difference.id} ${difference.installed_version} → ${difference.version}` : `${difference.id} ${difference.version}, new`;
  return [
    h("h3", {}, title),
    difference.changed ? null : h("p", {}, "It is installed already, exactly like this."),
    rows.length ? h("div", {class: "wide-table"}, h("table", {}, h("thead", {class: "visually-hidden"}, h("tr", {}, ["Change", "Tool", "Level"].map((word) => h("th", {scope: "col"}, word)))), h("tbody", {}, rows))) : h("p", {class: "meta"}, "No tool is added, changed or removed."),
    facts({
      "Secrets wanted": variables.length ? h("span", {class: "mono"}, variables.join(", ")) : "none",
      Files: `${files.added.length} added, ${files.changed.length} changed, ${files.removed.length} removed`,
      Servers: servers.added.length + servers.changed.length ? `${[...servers.added, ...servers.changed].join(", ")}: they wait for your consent` : null,
    }),
    Object.entries(commands).map(([name, described]) => h("div", {class: "stack"}, h("h3", {}, `Server ${name} would run`), facts(Object.fromEntries(Object.entries(described).map(([key, text]) => [key, h("code", {class: "prose-text"}, text)]))))),
  ];
}

function drawOpenApi(answer) {
  const skipped = Object.entries(answer.skipped);
  return [
    h("h3", {}, `${answer.id}: ${answer.tools.length} of ${plural(answer.operations, "operation")} become tools`),
    facts({"Secrets wanted": answer.variables.length ? h("span", {class: "mono"}, answer.variables.join(", ")) : "none", Hosts: answer.hosts.join(", "), Tags: Object.entries(answer.tags).map(([tag, count]) => `${tag} ${count}`).join(", ")}),
    h("details", {open: answer.tools.length <= 12}, h("summary", {}, plural(answer.tools.length, "tool")), h("p", {class: "mono prose-text"}, answer.tools.join("\n"))),
    skipped.length ? h("details", {}, h("summary", {}, `${skipped.length} not imported`), h("ul", {class: "problem-list"}, skipped.map(([place, reason]) => h("li", {}, `${place}: ${reason}`)))) : null,
    answer.remarks.length ? h("ul", {class: "problem-list"}, answer.remarks.map((remark) => h("li", {}, remark))) : null,
    answer.changes ? jsonBlock(answer.changes, "Changes since the last import") : null,
  ];
}

function drawTools(toolset) {
  if (!toolset.tools.length) return emptyState("tools", "It has no tools", "Its servers may bring some.");
  return h("ul", {class: "plain-list"}, toolset.tools.map((tool) => h("li", {}, h(
    "a", {class: "list-link tool-link", href: `/console/tools/${encodeURIComponent(tool.id)}`, "data-testid": "toolsets.tool", "data-key": tool.id},
    h("span", {class: "row row--wrap"}, h("span", {class: "mono"}, tool.id), levelBadge(tool.permission), toolBadges({...tool, destructive: false}), tool.withheld ? h("span", {class: "badge"}, "off") : null),
    h("span", {class: "meta prose-text"}, tool.withheld ?? tool.description)))));
}

function drawManifest(toolset) {
  const line = Number(/^#L(\d+)$/.exec(location.hash)?.[1]) || undefined;
  return codeBlock({text: toolset.manifest, language: "yaml", label: "toolset.yaml", marked: line ? [line, line] : undefined});
}

function drawProblems(toolset) {
  if (!toolset.problems.length) return emptyState("check", "No problems", "Nothing of it needs to be corrected.");
  return h("ul", {class: "problem-list", "data-testid": "toolsets.problems"}, toolset.problems.map((problem) => h(
    "li", {}, h("p", {}, problem.message),
    problem.line ? h("a", {class: "mono", href: `/console/toolsets/${encodeURIComponent(toolset.id)}?tab=files#L${problem.line}`, "data-testid": "toolsets.problem-line"}, `${problem.file} line ${problem.line}`) : null)));
}

function drawSettings(toolset, view) {
  return [
    facts({
      Name: toolset.name, Source: `${toolset.source_type}${toolset.source_ref ? `, ${toolset.source_ref}` : ""}`, Installed: formatTime(toolset.installed_at), Digest: h("code", {}, toolset.digest),
      "Variables it wants": toolset.variables.length ? h("span", {class: "mono"}, toolset.variables.join(", ")) : "none",
    }),
    toolset.dependencies && Object.keys(toolset.dependencies).length ? [h("h3", {}, "Dependencies"), jsonBlock(toolset.dependencies, "Dependencies")] : null,
    toolset.servers.map((server) => {
      const {state, digest, agreed, ...declared} = server;
      return h("div", {class: "card"}, h("div", {class: "card__head"}, h("strong", {class: "mono"}, server.id), h("span", {class: `badge ${state === "allowed" ? "badge--ok" : "badge--warn"}`}, state)),
        h("div", {class: "card__body"}, jsonBlock(declared, `What ${server.id} runs`, {copy: false})),
        h("div", {class: "card__foot"}, state === "held back" ? h("button", {class: "button", type: "button", "data-testid": "toolsets.allow", "data-key": server.id, onclick: (event) => view.allow(event.target, toolset, server)}, "Allow exactly this") : h("span", {class: "meta"}, agreed ? `Allowed by ${agreed.by}, ${formatTime(agreed.at)}` : "Off")));
    }),
  ];
}
