/** Access: keys, roles, profiles with their cost, and sessions in browsers. */

import {copyButton} from "../../core/code.js";
import {h, replace} from "../../core/dom.js";
import {formatCount, formatExactTime, formatTime, formatTokens, plural} from "../../core/format.js";
import {icon} from "../../core/icons.js";
import {ask, errorBanner} from "../messages.js";

const TABS = {keys: "Keys", roles: "Roles", profiles: "Profiles", sessions: "Sessions"};
const LEVELS = {"read-only": "badge", "read-write": "badge badge--accent", execute: "badge badge--warn"};

export const page = {
  path: "/console/access/{tab?}",
  title: "Access",
  icon: "access",
  async render(context) {
    const {root, params, navigate} = context;
    if (!params.tab) {
      navigate(`/console/access/keys${location.search}`, {replace: true});
      return;
    }
    const tab = params.tab in TABS ? params.tab : "keys";
    const summary = h("span", {class: "meta", "data-testid": "access.summary"});
    const actions = h("span", {class: "push row"});
    const body = h("div", {class: "page-body"});
    root.append(
      h("header", {class: "page-head"}, h("h1", {}, "Access"), summary, actions),
      h("nav", {class: "tabs page-tabs", "aria-label": "Parts of access"}, Object.entries(TABS).map(([name, title]) => h("a", {href: `/console/access/${name}`, "aria-current": name === tab ? "page" : false, "data-testid": `access.${name}`}, title))),
      body,
    );
    await {keys: drawKeys, roles: drawRoles, profiles: drawProfiles, sessions: drawSessions}[tab]({...context, summary, actions, body});
  },
};

/** A table of plain rows; `columns` are titles, those that begin with > are right-aligned. */
function table(label, columns, rows, empty) {
  if (!rows.length) return h("div", {class: "card"}, h("div", {class: "empty"}, icon("access"), h("p", {}, empty)));
  const cell = (content, index, tag) => h(tag, {class: columns[index].startsWith(">") ? "align-right" : "", scope: tag === "th" ? "col" : false}, content);
  return h(
    "div", {class: "card table-card", tabindex: "0", role: "region", "aria-label": label},
    h(
      "table", {class: "plain-table"},
      h("thead", {}, h("tr", {}, columns.map((title, index) => cell(title.replace(/^>/, "") || h("span", {class: "visually-hidden"}, "Actions"), index, "th")))),
      h("tbody", {}, rows.map(({key, cells, kind}) => h("tr", {"data-testid": kind, "data-key": key}, cells.map((content, index) => cell(content, index, "td"))))),
    ),
  );
}

function level(permission) {
  return h("span", {class: LEVELS[permission]}, permission);
}

// Keys.

async function drawKeys(context) {
  const {api, summary, actions, body, toast, query} = context;
  const load = async () => {
    const {items} = await api.get("/api/keys", {limit: 1000});
    const active = items.filter((key) => key.status === "active");
    summary.textContent = items.length ? `${active.length} of ${items.length} active` : "No keys: whoever reaches this gateway owns it";
    const rows = items.reverse().map((key) => ({
      key: key.id, kind: "access.key",
      cells: [
        h("span", {class: "mono"}, key.name), key.role + (key.profile ? `, ${key.profile}` : ""), h("span", {class: "mono"}, `${key.hint}…`),
        h("span", {class: key.status === "active" ? "badge badge--ok" : "badge"}, key.status),
        h("span", {title: key.last_used_at ? formatExactTime(key.last_used_at) : ""}, formatTime(key.last_used_at)),
        `${formatTime(key.created_at)} by ${key.created_by}`, key.expires_at ? formatTime(key.expires_at) : "never",
        key.status === "active" ? h("button", {class: "button button--danger button--small", type: "button", "data-testid": "access.revoke", onclick: () => revoke(key)}, "Revoke…") : "",
      ],
    }));
    replace(body, table("Keys", ["Name", "Role", "Key", "State", "Last used", "Made", "Expires", ">"], rows, "No key exists. Make one before others can reach this gateway."));
  };
  const revoke = (key) => ask({
    title: `Revoke the key of ${key.name}?`, verb: "Revoke", final: true,
    body: h("p", {}, "The next request with it is refused, and the sessions opened with it end. This cannot be undone."),
    accept: async () => {
      await api.send("DELETE", `/api/keys/${encodeURIComponent(key.id)}`);
      toast(`The key of ${key.name} is revoked`);
      await load();
    },
  });
  const make = async () => {
    const [roles, profiles] = await Promise.all([api.get("/api/roles"), api.get("/api/profiles")]);
    const option = (name) => h("option", {value: name, selected: name === "user"}, name || "none");
    const field = (id, label, control, hint) => h("div", {class: "field"}, h("label", {for: id}, label), control, hint ? h("p", {class: "field__hint"}, hint) : null);
    ask({
      title: "Make a key", verb: "Make the key",
      body: [
        field("key-name", "Name", h("input", {id: "key-name", name: "name", required: true, maxlength: 64, autocomplete: "off", "data-testid": "access.name"}), "Its principal: keys of the same name share chats and files."),
        field("key-role", "Role", h("select", {id: "key-role", name: "role", "data-testid": "access.role"}, roles.items.map((role) => option(role.name)))),
        field("key-profile", "Profile", h("select", {id: "key-profile", name: "profile"}, option(""), profiles.items.filter((each) => each.name !== "default").map((each) => option(each.name)))),
        field("key-days", "Days until it expires", h("input", {id: "key-days", name: "days", type: "number", min: "1", max: "36500", placeholder: "never"})),
      ],
      accept: async (form) => {
        const {name, role, profile, days} = Object.fromEntries(new FormData(form));
        const made = await api.send("POST", "/api/keys", {name, role, ...(profile ? {profile} : {}), ...(days ? {days: Number(days)} : {})});
        showSecret(made, context);
        await load().catch(() => {});
      },
    });
  };
  replace(actions, h("button", {class: "button button--primary", type: "button", "data-testid": "access.make", onclick: make}, icon("plus"), "Make a key"));
  await load();
  if (query.get("new")) await make();
}

/** Show a new key once, until the person closes it by hand. */
function showSecret({key, secret}, {session}) {
  const dialog = h(
    "dialog", {class: "dialog stack", "aria-label": "The new key", "data-testid": "access.secret"},
    h("h2", {}, `The key of ${key.name}`),
    h("p", {}, "Copy it now: it is stored as a digest and cannot be shown again."),
    h("div", {class: "secret"}, h("code", {"data-testid": "access.secret-text"}, secret), copyButton(() => secret, "", "Copy the key")),
    session.principal.id === "local" ? h("p", {class: "meta"}, "From now on every request needs a key, and this page too: sign in with it.") : null,
    h("div", {class: "dialog__actions"}, h("button", {class: "button button--primary", type: "button", "data-testid": "access.secret-close", onclick: () => dialog.close()}, "I have copied it")),
  );
  dialog.addEventListener("cancel", (event) => event.preventDefault());
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}

// Roles, profiles and sessions.

async function drawRoles({api, summary, body}) {
  const {items} = await api.get("/api/roles", {limit: 1000});
  summary.textContent = plural(items.length, "role");
  const names = (list) => (list && list.length ? list.join(", ") : "–");
  const rows = items.map((role) => ({
    key: role.name, kind: "access.role-row",
    cells: [
      h("span", {class: "mono"}, role.name), role.admin ? h("span", {class: "badge badge--bad"}, "changes the gateway") : "", level(role.permission),
      role.categories ? names(role.categories) : "all", role.allow.length ? names(role.allow) : "all", names(role.deny), role.servers.includes("*") ? "all" : names(role.servers), role.builtin ? "built in" : "settings",
    ],
  }));
  replace(
    body,
    table("Roles", ["Role", "Administration", "Level", "Categories", "Tools", "Except", "Servers", "From"], rows, "No roles."),
    h("p", {class: "meta"}, "Roles are set under ", h("code", {}, "roles"), " in toolgate.yaml."),
  );
}

async function drawProfiles({api, summary, body}) {
  const {items} = await api.get("/api/profiles", {limit: 1000});
  summary.textContent = plural(items.length, "profile");
  const rows = items.map((each) => ({
    key: each.name, kind: "access.profile-row",
    cells: [
      h("span", {class: "mono"}, each.name), h("code", {}, each.name === "default" ? "/mcp" : `/mcp/${each.name}`), each.mode, level(each.permission),
      each.allow.length ? each.allow.join(", ") : "all", each.deny.join(", ") || "–", formatCount(each.tools), h("span", {title: "An estimate: a fourth of the characters"}, formatTokens(each.tokens, true)),
    ],
  }));
  replace(
    body,
    table("Profiles", ["Profile", "Address", "Mode", "Level", "Tools", "Except", ">Count", ">Cost"], rows, "No profiles."),
    h("p", {class: "meta"}, "Profiles are set under ", h("code", {}, "profiles"), " in toolgate.yaml."),
  );
}

async function drawSessions(context) {
  const {api, summary, body, toast} = context;
  const load = async () => {
    const {items} = await api.get("/api/sessions", {limit: 1000});
    summary.textContent = items.length ? plural(items.length, "session") : "Nobody is signed in";
    const rows = items.map((each) => ({
      key: each.id, kind: "access.session",
      cells: [
        h("span", {class: "mono"}, each.principal), each.role, h("span", {class: "session-browser", title: each.browser}, each.browser || "unknown"),
        formatTime(each.created_at), formatTime(each.last_used_at), formatTime(each.expires_at),
        each.current ? h("span", {class: "badge badge--accent"}, "this one") : h("button", {class: "button button--small", type: "button", "data-testid": "access.end", onclick: () => end(each)}, "Sign out"),
      ],
    }));
    replace(body, table("Sessions", ["Who", "Role", "Browser", "Since", "Last used", "Ends", ">"], rows, "No browser is signed in. Sessions begin on the sign-in page."));
  };
  const end = async (each) => {
    try {
      await api.send("DELETE", `/api/sessions/${encodeURIComponent(each.id)}`);
      toast(`A session of ${each.principal} has ended`);
      await load();
    } catch (error) {
      body.prepend(errorBanner(error));
    }
  };
  await load();
}
