/** Servers from packages: searched in the registry or sent as an `.mcpb` file, and shown with all they run first. */

import {h, replace} from "../../core/dom.js";
import {plural} from "../../core/format.js";
import {icon} from "../../core/icons.js";
import {errorBanner} from "../messages.js";
import {emptyState} from "./catalog.js";

/** Search the registry. A server that is chosen is shown with its plan. */
export function drawRegistry(view, body) {
  const search = h("input", {type: "search", class: "input", id: "registry-search", value: view.context.query.get("q") ?? "", placeholder: "A part of its name", "data-testid": "servers.registry-search"});
  const results = h("div", {class: "stack", "aria-live": "polite"});
  let turn = 0;
  const show = async (word, token = null, shown = []) => {
    turn += 1;
    const mine = turn;
    try {
      const page = await view.api.get("/api/registry", {search: word, page_token: token});
      if (mine !== turn) return;
      const items = [...shown, ...page.items];
      replace(
        results, h("p", {class: "meta", role: "status"}, items.length ? plural(items.length, "server") : null),
        items.length ? h("ul", {class: "plain-list stack"}, items.map((item) => drawEntry(item, (kind) => openPlan(view, body, {registered: item.name, package: kind})))) : emptyState("search", "No server has that name", "Try another word, or a part of it."),
        page.next_page_token ? h("div", {class: "row"}, h("button", {class: "button", type: "button", "data-testid": "servers.registry-more", onclick: () => show(word, page.next_page_token, items)}, "More")) : null,
      );
    } catch (error) {
      replace(results, errorBanner(error, () => show(word, token, shown)));
    }
  };
  replace(
    body, h("form", {class: "stack", onsubmit: (event) => { event.preventDefault(); show(search.value.trim()); }},
      h("div", {class: "field"}, h("label", {for: "registry-search"}, "Search the registry"), search, h("p", {class: "field__hint"}, "Anybody can publish there. Look at the author and at what it runs before you add a server.")),
      h("div", {class: "row"}, h("button", {class: "button button--primary", type: "submit", "data-testid": "servers.registry-go"}, icon("search"), "Search"))),
    results);
  if (search.value) show(search.value);
}

function drawEntry(item, choose) {
  const usable = item.choices.filter((each) => !each.problem);
  const kinds = [...new Set(usable.map((each) => each.kind))];
  return h(
    "li", {class: "card", "data-testid": "servers.registered", "data-key": item.name},
    h("div", {class: "card__head"}, h("strong", {class: "mono name"}, item.name), h("span", {class: "badge"}, item.version), item.status && item.status !== "active" ? h("span", {class: "badge badge--warn"}, item.status) : null),
    h("div", {class: "card__body stack"}, h("p", {class: "prose-text"}, item.description), item.repository ? h("p", {class: "meta"}, item.repository) : null,
      usable.length ? null : h("p", {class: "warn-text"}, item.choices[0]?.problem ?? "It names no package and no address.")),
    h("div", {class: "card__foot"}, kinds.map((kind) => h("button", {class: "button", type: "button", "data-testid": "servers.registry-choose", "data-key": `${item.name} ${kind}`, onclick: () => choose(kind)}, kind === "remote" ? "Show its address" : `Show what the ${kind} package runs`))),
  );
}

/** Take an `.mcpb` file; nothing of it runs before the plan is agreed to. */
export function drawBundle(view, body) {
  const problem = h("div", {});
  const file = h("input", {type: "file", accept: ".mcpb", id: "bundle-file", "data-testid": "servers.bundle-file", onchange: () => send(file.files?.[0])});
  const send = async (chosen) => {
    if (!chosen) return;
    replace(problem, h("p", {class: "meta", role: "status"}, `Reading ${chosen.name}`));
    const form = new FormData();
    form.append("file", chosen);
    try {
      const plan = await view.api.send("POST", "/api/upstream-bundles", form);
      drawPlan(view, body, {bundle: plan.settings.bundle}, plan);
    } catch (error) {
      replace(problem, errorBanner(error));
      file.value = "";
    }
  };
  const drop = h("div", {class: "field", ondragover: (event) => event.preventDefault(), ondrop: (event) => { event.preventDefault(); send(event.dataTransfer?.files[0]); }},
    h("label", {for: "bundle-file"}, "An .mcpb file"), file, h("p", {class: "field__hint"}, "A desktop extension: one server with all it needs. It is unpacked and read, and nothing of it runs before you agree."));
  replace(body, drop, problem);
}

async function openPlan(view, body, request) {
  replace(body, h("p", {class: "meta", role: "status"}, "Reading what it runs"));
  try {
    drawPlan(view, body, request, await view.api.send("POST", "/api/upstream-plans", request));
  } catch (error) {
    replace(body, errorBanner(error, () => openPlan(view, body, request)), h("div", {class: "row"}, again(view, body)));
  }
}

function again(view, body) {
  return h("button", {class: "button", type: "button", "data-testid": "servers.plan-back", onclick: () => (view.context.query.get("how") === "mcpb" ? drawBundle : drawRegistry)(view, body)}, "Back");
}

/** What would run, what it asks for, and the button that agrees to exactly that. */
function drawPlan(view, body, request, plan) {
  let current = plan;
  const name = h("input", {type: "text", id: "plan-name", required: true, maxlength: 64, value: plan.name, autocomplete: "off", "data-testid": "servers.plan-name"});
  const inputs = plan.inputs.map((each) => ({each, field: drawInput(each)}));
  const runs = h("dl", {class: "facts", "data-testid": "servers.plan-lines"});
  const notes = h("div", {class: "stack"});
  const problem = h("div", {"aria-live": "polite"});
  const values = () => Object.fromEntries(inputs.map(({each, field}) => [each.name, (each.multiple ? field.value.split("\n") : [field.value]).map((text) => text.trim()).filter(Boolean)]).filter(([, texts]) => texts.length));
  const draw = () => {
    replace(runs, current.lines.map((line) => [h("dt", {}, line.label), h("dd", {class: "mono"}, line.text)]));
    replace(notes, current.notes.map((note) => h("div", {class: "banner banner--warn"}, icon("warn"), h("p", {}, note))));
  };
  // Secrets are not sent with a plan: that one is given is enough.
  const shown = () => Object.fromEntries(Object.entries(values()).map(([key, texts]) => [key, inputs.some(({each}) => each.name === key && each.secret) ? ["given"] : texts]));
  const plan_ = async () => {
    current = await view.api.send("POST", "/api/upstream-plans", {...request, name: name.value, values: shown()});
    draw();
  };
  const refresh = () => plan_().then(() => replace(problem), (error) => replace(problem, errorBanner(error)));
  const add = h("button", {class: "button button--primary", type: "submit", "data-testid": "servers.plan-add"}, "Add");
  const submit = async () => {
    const agreed = JSON.stringify(current.settings);
    add.setAttribute("aria-busy", "true");
    try {
      await plan_();
      if (JSON.stringify(current.settings) !== agreed) {
        replace(problem, h("div", {class: "banner banner--warn"}, icon("warn"), h("p", {}, "What it runs has changed with your values. Look at it, then add it.")));
        return;
      }
      const given = values();
      const secrets = Object.fromEntries(current.inputs.filter((each) => each.variable && given[each.name]).map((each) => [each.variable, given[each.name][0]]));
      const {probe} = await view.api.send("POST", "/api/upstreams", {name: name.value, settings: current.settings, secrets});
      await view.load();
      view.context.toast(probe.ok ? `${name.value} added${probe.result ? `: ${plural(probe.result.tools.length, "tool")}` : ""}` : probe.error.message, {kind: probe.ok ? "ok" : "warn"});
      view.context.navigate(`/console/servers/${encodeURIComponent(name.value)}`);
    } catch (error) {
      replace(problem, errorBanner(error));
    } finally {
      add.removeAttribute("aria-busy");
    }
  };
  draw();
  replace(
    body, h("div", {class: "row row--wrap"}, h("h3", {}, plan.title), h("span", {class: "badge"}, plan.version), h("span", {class: "meta"}, plan.source)),
    h("p", {class: "prose-text"}, plan.description),
    h("form", {class: "stack", onchange: refresh, onsubmit: (event) => { event.preventDefault(); submit(); }},
      h("div", {class: "field"}, h("label", {for: "plan-name"}, "Name"), name),
      inputs.map(({each, field}) => h("div", {class: "field"}, h("label", {for: field.id}, `${each.title}${each.required ? "" : " (optional)"}`), field, h("p", {class: "field__hint"}, each.description, each.multiple ? " One per line." : null, each.type === "directory" ? " It may read and write there." : each.type === "file" ? " It may read this file." : null))),
      h("section", {class: "card", "aria-label": "What it runs"}, h("div", {class: "card__head"}, icon("lock"), h("strong", {}, "What it runs")), h("div", {class: "card__body stack"}, runs, notes)),
      problem, h("div", {class: "row"}, add, again(view, body))));
}

function drawInput(each) {
  const shared = {id: `plan-${each.name}`, required: each.required && !each.default.length, "data-testid": "servers.plan-input", "data-key": each.name};
  if (each.choices.length) {
    const select = h("select", shared, each.required ? null : h("option", {value: ""}, ""), each.choices.map((value) => h("option", {value}, value)));
    select.value = each.default[0] ?? "";
    return select;
  }
  if (each.multiple) return h("textarea", {...shared, rows: 2, placeholder: each.default.join("\n")});
  return h("input", {...shared, type: each.secret ? "password" : each.type === "number" ? "number" : "text", step: each.type === "number" ? "any" : null, placeholder: each.default.join(", "), autocomplete: "off"});
}
