/** Try a tool: its form, the running call with progress and cancellation, its result, and the same call for elsewhere. */

import {copyText, h, replace} from "../../core/dom.js";
import {schemaForm} from "../../core/form.js";
import {formatDuration, formatTime} from "../../core/format.js";
import {icon, state} from "../../core/icons.js";
import {errorBanner} from "../messages.js";
import {drawValue} from "../../core/values.js";
import {jsonBlock} from "./catalog.js";

const CANCEL_TRIES = 240;
const CANCEL_PAUSE_MS = 250;
const HISTORY = 10;

/** Draw the trial of a tool into `body`; `view` is the page Tools. */
export async function drawTrial(view, tool, body) {
  const {context, api} = view;
  const principal = context.principal.id;
  const from = context.query.get("from");
  const filled = from ? await api.get(`/api/calls/${encodeURIComponent(from)}`).catch((error) => ({error})) : null;
  const form = schemaForm({schema: tool.input_schema, value: filled?.args ?? {}, testid: "try.form"});
  const chat = h("input", {type: "text", id: "try-chat", value: filled?.chat_id ?? `console-${principal.replace(/[^\w.-]+/g, "-").slice(0, 60)}`, "data-testid": "try.chat", spellcheck: "false"});
  const trial = new Trial(view, tool, form, chat);
  const last = h("button", {class: "button button--quiet button--small push", type: "button", "data-testid": "try.fill", onclick: () => trial.fillFromLast()}, "Fill from last call");
  form.node.querySelector(".form__head")?.append(last);
  const asks = tool.requires_confirmation ? h("span", {class: "try__asks"}, icon("approvals"), "Will ask you first") : null;
  replace(
    body,
    filled?.error ? errorBanner(filled.error) : null,
    filled?.args?.truncated ? h("div", {class: "banner banner--warn"}, icon("warn"), h("p", {}, "The arguments of that call were too large to be kept whole.")) : null,
    form.node,
    h("details", {class: "form__optional"}, h("summary", {}, "Chat whose files it works on"), h("div", {class: "field"}, h("label", {for: "try-chat"}, "Chat"), chat)),
    h("div", {class: "row row--wrap"}, trial.run, trial.cancel, copyMenu(trial), asks),
    trial.output, trial.history,
  );
  body.onkeydown = (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); trial.start(); }
  };
  context.onLeave(() => trial.stop());
  await trial.showHistory();
}

class Trial {
  /** @type {string | null} */ callId = null;
  /** @type {any} */ stream = null;
  timer = 0;
  started = 0;
  status = h("div", {class: "row"});
  elapsed = h("span", {});
  progress = h("progress", {});
  message = h("p", {class: "meta"});
  question = h("div", {});

  constructor(view, tool, form, chat) {
    this.view = view;
    this.tool = tool;
    this.form = form;
    this.chat = chat;
    this.api = view.api;
    this.run = h("button", {class: "button button--primary", type: "button", "data-testid": "try.run", onclick: () => this.start()}, icon("play"), "Run ", h("kbd", {class: "kbd"}, "Ctrl ↵"));
    this.cancel = h("button", {class: "button", type: "button", hidden: true, "data-testid": "try.cancel", onclick: () => this.end()}, "Cancel");
    this.output = h("div", {class: "try__output", "aria-live": "polite", "data-testid": "try.output"});
    this.history = h("div", {class: "try__history"});
  }

  get request() {
    return {path: `/api/chats/${encodeURIComponent(this.chat.value)}/stream`, body: {tool: this.tool.name, args: this.form.get() ?? {}}};
  }

  async fillFromLast() {
    try {
      const {items: [last]} = await this.api.get("/api/calls", {tool: this.tool.id, limit: 1});
      if (!last) return this.view.context.toast("This tool was not called yet", {kind: "warn"});
      const call = await this.api.get(`/api/calls/${last.id}`);
      return this.form.set(call.args ?? {});
    } catch (error) {
      return this.view.context.toast(error.message, {kind: "bad"});
    }
  }

  start() {
    if (this.stream) return;
    const problem = this.form.check();
    if (problem) return;
    const {path, body} = this.request;
    this.started = performance.now();
    this.callId = null;
    this.elapsed = h("span", {class: "meta"}, "0.0 s");
    this.status = h("div", {class: "row try__state"}, state("running"), this.elapsed);
    this.progress = h("progress", {hidden: true, max: 1, "aria-label": "Progress"});
    this.message = h("p", {class: "meta"});
    this.question = h("div", {});
    replace(this.output, this.status, this.progress, this.message, this.question);
    this.timer = setInterval(() => { this.elapsed.textContent = formatDuration(performance.now() - this.started); }, 100);
    this.run.disabled = true;
    this.cancel.hidden = false;
    let ended = false;
    const stream = this.api.stream(path, (event) => {
      if (event.event === "result") ended = true;
      this.receive(event, body);
    }, {method: "POST", body});
    this.stream = stream;
    stream.done.then(() => { if (!ended && this.stream === stream) this.fail(new Error("The connection ended before the call did. See Calls for its end.")); }, (error) => this.fail(error));
  }

  receive({event, data}, sent) {
    if (event === "started") this.callId = data.call_id;
    else if (event === "progress") this.showProgress(data);
    else if (event === "approval_required") this.showQuestion(data);
    else if (event === "result") this.showResult(data, sent);
  }

  showProgress({progress, total, message}) {
    this.progress.hidden = false;
    if (total) this.progress.value = progress / total;
    else this.progress.removeAttribute("value");
    this.message.textContent = message ?? (total ? `${progress} of ${total}` : String(progress));
  }

  showQuestion(asked) {
    replace(this.status, state("waiting", "Waiting for your approval"), this.elapsed);
    replace(this.question, h("div", {class: "banner banner--warn"}, icon("approvals"), h("p", {}, asked.message || asked.reason),
      h("a", {class: "button", href: `/console/approvals/${encodeURIComponent(asked.approval_id)}`, target: "_blank", "data-testid": "try.approve"}, "Decide")));
  }

  /** Cancel the call. Its record, and the question it waits for, may be written a moment after it began. */
  async end() {
    this.cancel.disabled = true;
    for (let tries = 0; tries < CANCEL_TRIES && this.stream; tries += 1) {
      try {
        if (this.callId) await this.api.send("POST", `/api/calls/${this.callId}/cancel`);
        if (this.callId) break;
      } catch (error) {
        if (error.code !== "UNKNOWN_CALL" && error.code !== "NOT_RUNNING") { this.view.context.toast(error.message, {kind: "bad"}); break; }
      }
      await new Promise((resolve) => { setTimeout(resolve, CANCEL_PAUSE_MS); });
    }
    this.cancel.disabled = false;
  }

  stop() {
    clearInterval(this.timer);
    this.stream?.close();
    this.stream = null;
    this.run.disabled = false;
    this.cancel.hidden = true;
  }

  fail(error) {
    this.stop();
    replace(this.output, errorBanner(error));
  }

  showResult(answer, sent) {
    const took = formatDuration(performance.now() - this.started);
    this.stop();
    const code = answer.error?.code;
    const kind = answer.ok ? "done" : code === "CANCELLED" ? "cancelled" : /DENIED|FORBIDDEN|DECLINED/.test(code ?? "") ? "denied" : "failed";
    const id = answer.call_id;
    /** @type {Record<string, [string, () => import("../../core/dom.js").Child]>} */
    const parts = {
      result: ["Result", () => (answer.ok ? drawValue(answer.value ?? answer.content, "Result") : errorBanner({message: answer.error.message, code}))],
      ...(answer.render_plan ? {view: ["View", () => drawView(answer, id)]} : {}),
      request: ["Request", () => jsonBlock({method: "POST", path: this.request.path, body: sent}, "Request")],
      response: ["Response", () => jsonBlock(answer, "Response", {maxLines: 200})],
      meta: ["_meta", () => jsonBlock({"dev.toolgate/call_id": id, pre_manifest_id: answer.pre_manifest_id ?? null, post_manifest_id: answer.post_manifest_id ?? null, details: answer.error?.details}, "_meta")],
    };
    const place = h("div", {class: "try__part", id: "try-part", role: "tabpanel"});
    const show = (key) => {
      for (const tab of tabs) tab.setAttribute("aria-selected", String(tab.dataset.key === key));
      replace(place, parts[key][1]());
    };
    const tabs = Object.entries(parts).map(([key, [word]]) => h("button", {type: "button", role: "tab", "aria-controls": "try-part", "data-testid": "try.tab", "data-key": key, onclick: () => show(key)}, word));
    replace(this.output,
      h("div", {class: "row try__state", "data-testid": "try.state", "data-key": kind}, state(kind), h("span", {class: "meta"}, took), id ? h("a", {class: "push", href: `/console/calls/${encodeURIComponent(id)}`, "data-testid": "try.call"}, "Open call") : null),
      h("div", {class: "tabs", role: "tablist", "aria-label": "Parts of the answer"}, tabs), place);
    show(answer.render_plan ? "view" : "result");
    this.showHistory();
  }

  async showHistory() {
    const {items} = await this.api.get("/api/calls", {tool: this.tool.id, limit: HISTORY}).catch(() => ({items: []}));
    if (!items.length) return;
    const row = (call) => h("li", {}, h("a", {class: "list-link", href: this.view.address(this.tool.name, {tab: "try", from: call.id}), "data-testid": "try.again", "data-key": call.id},
      state({success: "done", error: "failed", pending: "waiting", running: "running"}[call.status], null), h("span", {class: "meta"}, `${formatTime(call.started_at)} · ${call.client ?? call.surface}`), h("span", {class: "meta"}, formatDuration(call.duration_ms))));
    replace(this.history, h("details", {class: "form__optional"}, h("summary", {"data-testid": "try.history"}, "Earlier calls, to fill the form from"), h("ul", {class: "plain-list"}, items.map(row))));
  }
}

/** The rendered view, in a frame without rights over the console. */
function drawView(answer, id) {
  return h("iframe", {class: "try__view", sandbox: "allow-scripts", title: "Rendered view", src: `/api/calls/${encodeURIComponent(id)}/view`, "data-testid": "try.view"});
}

/** The call for a shell, the command line and Python. Keys are variables. */
export function describeCall(tool, args, chat, origin) {
  const quote = (text) => `'${text.replaceAll("'", "'\\''")}'`;
  const body = JSON.stringify({args, chat});
  const path = `/api/tools/${encodeURIComponent(tool)}/invoke`;
  return {
    curl: `curl -s ${quote(origin + path)} \\\n  -H "Authorization: Bearer $TOOLGATE_KEY" -H 'Content-Type: application/json' \\\n  -d ${quote(body)}`,
    CLI: `toolgate tool call ${/^[\w.:-]+$/.test(tool) ? tool : quote(tool)} --chat ${quote(chat)} --json-args ${quote(JSON.stringify(args))}`,
    Python: `import json, os, urllib.request\n\nrequest = urllib.request.Request(\n    ${JSON.stringify(origin + path)},\n    data=json.dumps({"args": json.loads(${JSON.stringify(JSON.stringify(args))}), "chat": ${JSON.stringify(chat)}}).encode(),\n    headers={"Authorization": f"Bearer {os.environ['TOOLGATE_KEY']}", "Content-Type": "application/json"},\n)\nprint(json.load(urllib.request.urlopen(request))["value"])\n`,
  };
}

function copyMenu(trial) {
  const copy = async (kind, details) => {
    details.open = false;
    const args = trial.form.get();
    if (args === null) return trial.form.check();
    const text = describeCall(trial.tool.name, args, trial.chat.value, location.origin)[kind];
    return (await copyText(text)) ? trial.view.context.toast(`Copied as ${kind}`) : trial.view.context.toast("The browser refused to copy", {kind: "bad"});
  };
  const menu = h("details", {class: "menu-button"}, h("summary", {class: "button", "data-testid": "try.copy"}, "Copy as"));
  menu.append(h("div", {class: "menu"}, ["curl", "CLI", "Python"].map((kind) => h("button", {type: "button", "data-testid": "try.copy-as", "data-key": kind, onclick: () => copy(kind, menu)}, kind))));
  menu.addEventListener("keydown", (event) => { if (event.key === "Escape") { menu.open = false; menu.querySelector("summary")?.focus(); } });
  menu.addEventListener("focusout", (event) => { if (!menu.contains(/** @type {Node | null} */ (event.relatedTarget))) menu.open = false; });
  return menu;
}
