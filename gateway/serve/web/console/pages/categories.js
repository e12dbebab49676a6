/** Categories: what each kind of tools may do at most, how often, and whether it is on. */

import {h, replace} from "../../core/dom.js";
import {plural} from "../../core/format.js";
import {emptyState, levelBadge, readAll} from "./catalog.js";

const LEVELS = {"read-only": "read-only: looks at things", "read-write": "read-write: changes things", execute: "execute: runs programs"};

export const page = {path: "/console/categories", title: "Categories", icon: "tools", render};

async function render(context) {
  const view = new CategoriesPage(context);
  await view.refresh();
  context.onLeave(context.live.onChange((event) => { if (event?.event === "tools") view.refresh().catch(() => {}); }));
  return view;
}

class CategoriesPage {
  constructor(context) {
    this.context = context;
    this.api = context.api;
    this.isAdmin = context.principal.admin;
    this.off = new Map(); // how many tools of a category are off
  }

  async update(context) {
    this.context = context;
  }

  async refresh() {
    const [items, withheld] = await Promise.all([readAll(this.api, "/api/categories"), this.isAdmin ? readAll(this.api, "/api/withheld-tools") : []]);
    this.off = new Map();
    for (const tool of withheld) this.off.set(tool.category, (this.off.get(tool.category) ?? 0) + 1);
    const on = items.filter((each) => each.enabled).length;
    const active = document.activeElement instanceof HTMLElement ? document.activeElement : null;
    const focused = active?.id || (active?.dataset.key ? `level-${active.dataset.key}` : ""); // the button to undo goes
    replace(
      this.context.root,
      h("header", {class: "page-head"}, h("h1", {}, "Categories"), h("span", {class: "meta", role: "status", "data-testid": "categories.summary"}, `${on} of ${items.length} on`), h("a", {class: "button push", href: "/console/tools"}, "Tools")),
      h("div", {class: "page-body stack"}, h("p", {class: "meta"}, "A tool is offered if its category is on and allows its level. What you change here wins over settings and flags."),
        items.length ? h("ul", {class: "plain-list stack"}, items.map((each) => this.drawCategory(each))) : emptyState("tools", "No categories", "You may call no tools yet.")),
    );
    if (focused) document.getElementById(focused)?.focus();
  }

  drawCategory(each) {
    const off = this.off.get(each.id) ?? 0;
    const control = (name, node) => {
      node.id = `${name}-${each.id}`;
      node.dataset.testid = `categories.${name}`;
      node.dataset.key = each.id;
      return node;
    };
    const toggle = control("enabled", h("input", {type: "checkbox", class: "toggle", role: "switch", checked: each.enabled, disabled: !this.isAdmin, "aria-label": `${each.name} on`, onchange: () => this.change(each, {enabled: toggle.checked})}));
    const level = control("level", h("select", {class: "input", onchange: () => this.change(each, {permission: level.value})}, Object.entries(LEVELS).map(([value, word]) => h("option", {value}, word))));
    level.value = each.permission;
    const limit = control("limit", h("input", {type: "number", class: "input", min: 0, max: 1e9, step: 1, value: each.calls_per_minute ?? "", placeholder: "no limit", onchange: () => this.change(each, {calls_per_minute: Number(limit.value) || 0})}));
    return h(
      "li", {class: "card", "data-testid": "categories.row", "data-key": each.id},
      h("div", {class: "card__head row--wrap"}, h("strong", {}, each.name), levelBadge(each.permission), h("a", {class: "badge", href: `/console/tools?source=${encodeURIComponent(`:${each.id}`)}`, "data-testid": "categories.tools", "data-key": each.id}, off ? `${each.tools} of ${plural(each.tools + off, "tool")} on` : plural(each.tools, "tool")), h("span", {class: "push"}, toggle)),
      h("div", {class: "card__body stack"}, h("p", {class: "prose-text"}, each.description, h("code", {class: "meta category__id"}, each.id)),
        this.isAdmin ? h("div", {class: "row row--wrap row--end"},
          h("div", {class: "field"}, h("label", {for: level.id}, "Highest level"), level),
          h("div", {class: "field"}, h("label", {for: limit.id}, "Calls per minute of each caller"), limit),
          each.changed ? h("button", {class: "button button--quiet", type: "button", "data-testid": "categories.reset", "data-key": each.id, onclick: () => this.send(each, () => this.api.send("DELETE", this.path(each)), `${each.name} is as the settings say`)}, "Undo changes") : null) : h("p", {class: "meta"}, each.calls_per_minute ? `${plural(each.calls_per_minute, "call")} a minute` : "No limit of calls")),
    );
  }

  path(each) {
    return `/api/categories/${encodeURIComponent(each.id)}`;
  }

  change(each, changes) {
    const [[key, value]] = Object.entries(changes);
    const word = key === "enabled" ? (value ? "is on" : "is off") : key === "permission" ? `allows ${value} at most` : value ? `allows ${plural(value, "call")} a minute` : "has no limit of calls";
    const before = {enabled: each.enabled, permission: each.permission, calls_per_minute: each.calls_per_minute ?? 0}[key];
    return this.send(each, () => this.api.send("PATCH", this.path(each), changes), `${each.name} ${word}`, () => this.send(each, () => this.api.send("PATCH", this.path(each), {[key]: before}), `${each.name} is as before`));
  }

  /** @param {any} each @param {() => unknown} action @param {string} word @param {(() => unknown) | null} undo */
  async send(each, action, word, undo = null) {
    try {
      await action();
      this.context.toast(word, undo ? {undo} : {});
    } catch (error) {
      this.context.toast(error.message, {kind: "bad"});
    }
    await this.refresh();
  }
}
