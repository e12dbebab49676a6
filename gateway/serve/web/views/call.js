/** The page of a call whose tool has no renderer: what came of it, its arguments, what it changed, what it returned. */
import { stateOf } from "../core/calls.js";
import { h } from "../core/dom.js";
import { formatDuration, formatExactTime } from "../core/format.js";
import { state } from "../core/icons.js";
import { drawFields, drawValue } from "../core/values.js";
import { errorNote, startView, viewHead } from "./layout.js";
import { drawDiff, drawResult } from "./result.js";

/** @typedef {import("./bridge.js").Host} Host */
/** @typedef {import("./bridge.js").Shown} Shown */

/** @param {Host} host @param {Shown} shown */
async function drawCall(host, shown) {
  const { call, changes } = shown.plan?.config ?? {};
  const took = typeof call.duration_ms === "number" ? `${formatDuration(call.duration_ms)}, ` : "";
  return h("div", { class: "call" },
    viewHead({ icon: "calls", name: call.tool_name, facts: [state(stateOf(call)), ` ${took}`, h("time", { datetime: call.started_at }, formatExactTime(call.started_at))] }),
    call.error ? errorNote({ code: call.error_code ?? "FAILED", message: call.error }) : null,
    part("Arguments", Object.keys(call.args ?? {}).length ? drawFields(call.args, "Arguments") : h("p", { class: "meta" }, "It was called without arguments.")),
    changes?.diff ? part("Changed files", await drawDiff(host, { result: { structuredContent: changes } })) : null,
    call.result === undefined ? null : part("Result", await drawReturned(host, call.result, Boolean(changes?.diff))),
    part("Record", drawFields(Object.fromEntries(Object.entries({
      Call: call.id, Folder: call.folder, Chat: call.folder ? undefined : call.chat_id, Client: call.client ?? call.surface, Principal: call.principal, "Step of": call.parent_call_id,
    }).filter(([, value]) => value)), "Record")));
}

/** @param {string} title @param {import("../core/dom.js").Child} content */
function part(title, content) {
  return h("section", { class: "call__part" }, h("h2", null, title), content);
}

/** A list of objects is a table, other objects are fields; the difference is shown already. @param {Host} host @param {any} result @param {boolean} hasDiff */
function drawReturned(host, result, hasDiff) {
  if (result === null || typeof result !== "object" || Array.isArray(result) || result.truncated === true && typeof result.preview === "string") return drawValue(result, "Result");
  if (Object.values(result).some(Array.isArray)) return drawResult(host, { result: { structuredContent: result } });
  const { diff: _diff, ...others } = result;
  return drawFields(hasDiff ? others : result, "Result");
}

startView("call", drawCall);
