/** What the gateway announces while the console is open: approvals that wait, and whether we hear of it. */

import {formatTime} from "../core/format.js";
import {api} from "./api.js";

const listeners = new Set();

export const live = {
  /** "connecting", "live" or "lost". */
  state: "connecting",
  /** The time at which the connection was lost, as text. */
  since: "",
  /** Approvals that wait. */
  waiting: 0,

  start() {
    api.stream("/api/events", receive, {onState: setState});
  },

  /** Call `listener(event)` after every event, and with null when the state changed. Returns a function that ends it. */
  onChange(listener) {
    listeners.add(listener);
    return () => listeners.delete(listener);
  },
};

function receive(event) {
  if (event.event === "approvals") live.waiting = event.data.waiting;
  announce(event);
}

function setState(state) {
  if (state === "lost" && live.state !== "lost") live.since = formatTime(new Date());
  live.state = state;
  announce(null);
}

function announce(event) {
  for (const listener of [...listeners]) listener(event);
}
