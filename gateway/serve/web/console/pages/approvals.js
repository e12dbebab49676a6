/** Approvals: the queue, and one question with everything a decision needs. */

import {chatName, chatTitle} from "../../core/calls.js";
import {codeBlock, copyButton} from "../../core/code.js";
import {diffView} from "../../core/diff.js";
import {h, replace} from "../../core/dom.js";
import {formatExactTime, formatTime, formatRelative} from "../../core/format.js";
import {icon, state} from "../../core/icons.js";
import {ask, errorBanner} from "../messages.js";

const ARM_MS = 500;
const SHOWN = 50;
const SOON_MS = 5 * 60_000;
const ENDINGS = {
  allowed: ["done", "approved"], used: ["done", "approved"], denied: ["denied", "denied"], dismissed: ["cancelled", "closed without an answer"],
  cancelled: ["cancelled", "cancelled"], expired: ["cancelled", "expired, nobody answered"],
  unused: ["cancelled", "allowed, not used in time"],
};

// Expired after somebody agreed: the call was not made again in time.
const ending = (record) => record.status === "expired" && record.scope ? "unused" : record.status;
const SCOPES = {once: "once", chat: "for this chat", always: "always, for this definition"};

export const page = {
  path: "/console/approvals/{id?}",
  title: "Approvals",
  icon: "approvals",
  async render(context) {
    const view = new ApprovalsPage(context);
    await view.load();
    return view;
  },
};

class ApprovalsPage {
  constructor(context) {
    this.context = context;
    this.id = context.params.id || null;
    this.chosen = null;
    this.shown = null;
    this.count = h("span", {class: "meta", "data-testid": "approvals.count"});
    this.list = h("nav", {class: "queue-list", "aria-label": "Approvals"});
    this.detail = h("section", {class: "queue-detail", "aria-label": "One approval"});
    this.queue = h("div", {class: "queue"}, this.list, this.detail);
    context.root.append(
      h("header", {class: "page-head"}, h("h1", {}, "Approvals"), this.count, h("span", {class: "push"}), notifyButton(context.live)),
      this.queue,
    );
    context.onLeave(context.live.onChange((event) => { if (event && event.event === "approvals") this.load(); }));
    const timer = setInterval(() => this.tick(), 1000);
    context.onLeave(() => clearInterval(timer));
  }

  update(context) {
    this.id = context.params.id || null;
    this.draw();
  }

  async load() {
    const {api, signal} = this.context;
    const [waiting, all] = await Promise.all([
      api.get("/api/approvals", {status: "waiting", limit: 200}, {signal}),
      api.get("/api/approvals", {status: "all", limit: SHOWN}, {signal}),
    ]);
    this.waiting = waiting.items.sort((a, b) => a.expires_at.localeCompare(b.expires_at));
    this.decided = all.items.filter((each) => each.status !== "waiting");
    this.draw();
  }

  draw() {
    this.count.textContent = this.waiting.length ? `${this.waiting.length} waiting` : "Nothing waits";
    const isWide = matchMedia("(min-width: 900px)").matches;
    const chosen = this.id || (isWide && this.waiting.length ? this.waiting[0].id : null);
    this.queue.dataset.open = String(Boolean(this.id));
    replace(
      this.list,
      group("Waiting", this.waiting, chosen, "Nothing waits for you. Calls that need consent appear here."),
      group("Decided", this.decided, chosen, "Nothing was decided yet."),
    );
    this.show(chosen);
  }

  async show(id) {
    this.chosen = id;
    if (!id) {
      this.shown = null;
      replace(this.detail, h("div", {class: "empty"}, icon("approvals"), h("strong", {}, "Nothing is open"), h("p", {}, "Choose one from the list.")));
      return;
    }
    const {api, signal} = this.context;
    try {
      const record = await api.get(`/api/approvals/${encodeURIComponent(id)}`, null, {signal});
      const call = await api.get(`/api/calls/${encodeURIComponent(record.call_id)}`, null, {signal}).catch(() => null);
      if (this.chosen !== id) return; // another was chosen meanwhile
      if (this.shown && this.shown.record.id === record.id && this.shown.record.status === record.status) return;
      this.shown = {record};
      drawApproval(this, record, call);
    } catch (error) {
      if (error.name !== "AbortError" && this.chosen === id) replace(this.detail, errorBanner(error, () => this.show(id)));
    }
  }

  tick() {
    for (const place of this.context.root.querySelectorAll("[data-expires]")) {
      const left = new Date(place.dataset.expires).getTime() - Date.now();
      place.textContent = `${place.dataset.words}${left > 0 ? formatRelative(place.dataset.expires) : "now"}`;
      place.classList.toggle("warn-text", left < SOON_MS);
    }
  }

  async decide(record, body, done) {
    const {api, toast} = this.context;
    await api.send("POST", `/api/approvals/${encodeURIComponent(record.id)}`, body);
    toast(done);
    this.shown = null;
    this.id = record.id;
    this.context.navigate(`/console/approvals/${record.id}`, {replace: true});
    await this.load();
  }
}

function group(title, items, chosen, empty) {
  return h(
    "div", {class: "queue-group"},
    h("h2", {class: "queue-title"}, title, h("span", {class: "push meta"}, String(items.length))),
    items.length ? items.map((item) => row(item, chosen)) : h("p", {class: "queue-empty meta"}, empty),
  );
}

function row(item, chosen) {
  const waits = item.status === "waiting";
  const [kind, word] = waits ? ["waiting", "waiting"] : ENDINGS[ending(item)] || ["cancelled", item.status];
  const how = item.edited_args ? " with edited arguments" : item.scope && item.scope !== "once" ? ` ${SCOPES[item.scope]}` : "";
  const about = waits ? chatName(item) : `${word}${how}${item.note ? `: “${item.note}”` : item.decided_by && word === "approved" ? ` by ${item.decided_by}` : ""}`;
  const end = waits
    ? h("span", {class: "meta", "data-expires": item.expires_at, "data-words": ""}, formatRelative(item.expires_at))
    : h("span", {class: "meta"}, formatTime(item.decided_at || item.created_at));
  return h(
    "a", {class: "list-link", href: `/console/approvals/${item.id}`, "aria-current": item.id === chosen ? "true" : false, "data-testid": "approvals.row", "data-key": item.id},
    state(kind, null),
    h("span", {class: "name"}, item.tool_id), end,
    h("span", {}), h("span", {class: "meta list-about"}, about), h("span", {}),
  );
}

// One approval.

function drawApproval(view, record, call) {
  const waits = record.status === "waiting";
  const title = h("h2", {class: "approval-title", tabindex: "-1"}, waits ? "Run " : "", h("span", {class: "mono"}, record.tool_id), waits ? "?" : "");
  const expiry = waits
    ? h("span", {class: "push row"}, icon("clock"), h("span", {"data-expires": record.expires_at, "data-words": "Expires ", title: formatExactTime(record.expires_at)}, `Expires ${formatRelative(record.expires_at)}`))
    : null;
  // `local` is whoever reaches a gateway without keys.
  const owner = record.principal !== "local" ? record.principal : view.context.principal.id === "local" ? "you on this computer" : "the person on this computer";
  const who = call && call.client ? `${call.client} for ${owner}` : owner;
  replace(
    view.detail,
    h(
      "div", {class: "approval", "data-testid": "approval", "data-key": record.id},
      h("a", {class: "queue-back", href: "/console/approvals"}, "‹ All approvals"),
      h("div", {class: "row row--wrap meta"}, h("span", {}, "Approval ", h("span", {class: "mono"}, record.id.slice(0, 18))), expiry),
      title,
      h("p", {class: "approval-who"}, "Called by ", who, record.folder ? " in the folder " : " in chat ", h("a", {href: `/console/chats/${encodeURIComponent(record.chat_id)}`, title: chatTitle(record)}, record.folder ?? record.chat_id), ". ", h("a", {href: `/console/calls/${encodeURIComponent(record.call_id)}`}, "Show the call")),
      h("div", {class: "banner banner--warn"}, icon("warn"), h("p", {"data-testid": "approval.reason"}, h("strong", {}, "Asks because "), showHidden(record.reason), ".")),
      record.changes ? changesCard(showHidden(record.changes)) : null,
      argumentsCard(record),
      boundCard(record),
    ),
    decisionBar(view, record),
  );
}

function changesCard(changes) {
  const isDiff = /^(---|\+\+\+|@@) /m.test(changes);
  const content = isDiff ? diffView({unified: changes, label: "What would change"}) : h("p", {class: "card__body pre-wrap"}, changes);
  return h("section", {class: "card", "data-testid": "approval.changes"}, h("div", {class: "card__head"}, h("h3", {}, "What would change")), content);
}

function argumentsCard(record) {
  const text = showHidden(JSON.stringify(record.args ?? {}, null, 2));
  const edited = record.edited_args ? showHidden(JSON.stringify(record.edited_args, null, 2)) : null;
  return h(
    "section", {class: "card"},
    h("div", {class: "card__head"}, h("h3", {}, edited ? "Arguments as asked" : "Exact arguments"), h("span", {class: "push"}), copyButton(() => text, "", "Copy the arguments")),
    h("div", {class: "approval-code", "data-testid": "approval.arguments"}, codeBlock({text, language: "json", copy: false, maxLines: 40, label: "Arguments"})),
    edited ? h("div", {class: "card__body"}, h("h3", {}, "As approved"), codeBlock({text: edited, language: "json", copy: false, label: "Edited arguments"})) : null,
  );
}

function boundCard(record) {
  return h(
    "details", {class: "card", "data-testid": "approval.details"},
    h("summary", {class: "card__head"}, "Details"),
    h(
      "dl", {class: "facts card__body"},
      h("dt", {}, "Question"), h("dd", {class: "mono", title: record.question}, `sha256 ${record.question.slice(0, 8)}…${record.question.slice(-4)}`),
      h("dt", {}, "Definition"), h("dd", {class: "mono", title: record.tool_digest}, `sha256 ${record.tool_digest.slice(0, 8)}…${record.tool_digest.slice(-4)}`),
      h("dt", {}, "Asked"), h("dd", {}, formatExactTime(record.created_at)),
      record.decided_by ? [h("dt", {}, "Decided"), h("dd", {}, `${formatExactTime(record.decided_at)} by ${record.decided_by}`)] : null,
      record.note ? [h("dt", {}, "Reason"), h("dd", {}, record.note)] : null,
    ),
  );
}

function decisionBar(view, record) {
  const bar = (...children) => h("div", {class: "decision-bar", "data-testid": "approval.bar"}, ...children);
  if (record.status !== "waiting") {
    const [kind, word] = ENDINGS[ending(record)] || ["cancelled", record.status];
    const by = record.decided_by ? ` by ${record.decided_by}` : "";
    return bar(state(kind, `${word[0].toUpperCase()}${word.slice(1)}${by}, ${formatTime(record.decided_at || record.expires_at)}`));
  }
  if (record.via !== "queue") return bar(h("p", {class: "meta"}, "It was asked in the client that made the call, and is answered there."));
  if (!view.context.principal.admin) return bar(h("p", {class: "meta"}, "An administrator decides."));
  return activeBar(view, record, bar);
}

function activeBar(view, record, bar) {
  let scope = "once";
  const problem = h("div", {});
  const editor = h("textarea", {class: "input mono approval-editor", rows: 8, spellcheck: "false", "aria-label": "Edited arguments, as JSON", "data-testid": "approval.editor", value: JSON.stringify(record.args ?? {}, null, 2)});
  const editing = h("div", {class: "approval-edit", hidden: true}, h("p", {class: "meta"}, "Edited arguments are approved once. The model is told what you changed."), editor);
  const approve = h("button", {class: "button button--primary", type: "button", disabled: true, "data-testid": "approval.approve"}, "Approve once");
  setTimeout(() => { approve.disabled = false; }, ARM_MS);
  const scopes = record.remember ? ["once", "chat", "always"] : ["once"];
  const words = {once: "Once", chat: "This chat", always: "Always, this definition"};
  const choice = h(
    "div", {class: "segmented", role: "group", "aria-label": "Approve for"},
    scopes.map((name) => h("button", {type: "button", "aria-pressed": name === scope, "data-testid": `approval.scope.${name}`, onclick: () => choose(name)}, words[name])),
  );
  const choose = (name) => {
    scope = name;
    [...choice.children].forEach((button, index) => button.setAttribute("aria-pressed", String(scopes[index] === name)));
    approve.textContent = `Approve ${SCOPES[name]}`;
  };
  const toggle = () => {
    editing.hidden = !editing.hidden;
    if (!editing.hidden) { choose("once"); editor.focus(); }
    choice.hidden = !editing.hidden;
    approve.textContent = editing.hidden ? "Approve once" : "Approve with these arguments";
  };
  approve.addEventListener("click", async () => {
    approve.disabled = true;
    try {
      const changes = editing.hidden ? null : findChanges(record.args ?? {}, editor.value);
      const body = {decision: "allow", ...(scope === "once" ? {} : {remember: scope}), ...(changes && Object.keys(changes).length ? {arguments: changes} : {})};
      await view.decide(record, body, `${record.tool_id} approved ${SCOPES[scope]}`);
    } catch (error) {
      replace(problem, errorBanner(error));
      approve.disabled = false;
    }
  });
  const deny = () => ask({
    title: `Deny ${record.tool_id}?`, verb: "Deny",
    body: h("div", {class: "field"}, h("label", {for: "deny-reason"}, "Reason, which the model gets"), h("textarea", {id: "deny-reason", name: "reason", rows: 3, maxlength: 1000, "data-testid": "approval.reason-field"})),
    accept: (form) => view.decide(record, {decision: "deny", reason: String(new FormData(form).get("reason")).trim() || null}, `${record.tool_id} denied`),
  });
  return bar(
    problem, editing,
    h(
      "div", {class: "decision-row"}, choice, approve, h("span", {class: "push"}),
      h("button", {class: "button", type: "button", "data-testid": "approval.edit", onclick: toggle}, icon("edit"), "Edit arguments"),
      h("button", {class: "button button--danger", type: "button", "data-testid": "approval.deny", onclick: deny}, "Deny…"),
    ),
  );
}

/** The arguments that were edited. @param {Record<string, any>} args @param {string} text */
function findChanges(args, text) {
  let edited;
  try {
    edited = JSON.parse(text);
  } catch (error) {
    throw new Error(`The arguments are not JSON: ${error.message}`);
  }
  if (edited === null || typeof edited !== "object" || Array.isArray(edited)) throw new Error("The arguments must be a JSON object.");
  const missing = Object.keys(args).find((name) => !(name in edited));
  if (missing) throw new Error(`"${missing}" cannot be left out. Change its value instead.`);
  return Object.fromEntries(Object.entries(edited).filter(([name, value]) => JSON.stringify(args[name]) !== JSON.stringify(value)));
}

/** Text with characters that one cannot see, or that turn its direction, written as escapes. @param {string} text */
function showHidden(text) {
  return text.replace(/[\p{Cc}\p{Cf}\p{Co}\p{Cn}\p{Zl}\p{Zp}]/gu, (character) => (
    character === "\n" || character === "\t" ? character : [...character].map((each) => `\\u{${Number(each.codePointAt(0)).toString(16)}}`).join("")
  ));
}

function notifyButton(live) {
  if (!("Notification" in window)) return null;
  const button = h("button", {class: "button", type: "button", "data-testid": "approvals.notify"});
  const draw = () => {
    button.textContent = live.notifies ? "Notifications on" : "Notify me";
    button.setAttribute("aria-pressed", String(live.notifies));
  };
  button.addEventListener("click", async () => {
    await live.setNotifies(!live.notifies);
    draw();
  });
  draw();
  return button;
}
