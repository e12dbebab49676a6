/** Calls as every page names them: their state, and the chat they belong to. */

const DENIED = new Set(["DENIED", "DENIED_BY_RULE", "DECLINED", "DISMISSED", "FORBIDDEN", "APPROVAL_DENIED", "PERMISSION_DENIED"]);

/** @param {{status: string, error_code?: string | null}} call @returns {import("./icons.js").StateKind} */
export function stateOf(call) {
  if (call.status === "running") return "running";
  if (call.status === "pending") return "waiting";
  if (call.status === "success") return "done";
  if (call.error_code === "CANCELLED" || call.error_code === "APPROVAL_EXPIRED") return "cancelled";
  return DENIED.has(call.error_code ?? "") ? "denied" : "failed";
}

/** A chat as people know it: the last part of the path of its folder, else its id. @param {{folder?: string | null, chat_id: string}} record */
export function chatName({ folder, chat_id }) {
  return folder?.split("/").filter(Boolean).pop() ?? chat_id;
}

/** The whole of it, for tooltips. @param {{folder?: string | null, chat_id: string}} record */
export function chatTitle({ folder, chat_id }) {
  return folder ? `${folder} (${chat_id})` : chat_id;
}
