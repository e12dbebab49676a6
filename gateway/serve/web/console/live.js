/** What the gateway announces while the console is open: approvals that wait, calls, and whether we hear of them. */

import {formatTime} from "../core/format.js";
import {api} from "./api.js";

const listeners = new Set();
const NOTIFY = "notify";

export const live = {
  /** "connecting", "live" or "lost". */
  state: "connecting",
  /** The time at which the connection was lost, as text. */
  since: "",
  /** Approvals that wait. */
  waiting: 0,

  /** Follow events while the page is in sight: a browser opens only six connections to a host, for all its tabs. */
  start() {
    let close = null;
    const follow = () => {
      const wanted = !document.hidden || live.notifies;
      if (wanted && !close) close = api.stream("/api/events", receive, {onState: setState});
      if (!wanted && close) {
        close();
        close = null;
      }
    };
    document.addEventListener("visibilitychange", follow);
    follow();
  },

  /** Call `listener(event)` after every event, and with null when the state changed. Returns a function that ends it. */
  onChange(listener) {
    listeners.add(listener);
    return () => listeners.delete(listener);
  },

  /** Whether the browser shows a notification for a new approval. */
  get notifies() {
    return "Notification" in window && Notification.permission === "granted" && localStorage.getItem(NOTIFY) === "on";
  },

  /** Switch notifications; the browser asks the person first. @param {boolean} on */
  async setNotifies(on) {
    if (on && (await Notification.requestPermission()) !== "granted") return;
    localStorage.setItem(NOTIFY, on ? "on" : "off");
  },
};

function receive(event) {
  if (event.event === "approvals") {
    const isMore = event.data.waiting > live.waiting;
    live.waiting = event.data.waiting;
    if (isMore && live.notifies && document.hidden) {
      const shown = new Notification("Toolgate: a call waits for you", {body: `${live.waiting} waiting`, tag: "toolgate-approvals"});
      shown.onclick = () => { focus(); location.assign("/console/approvals"); };
    }
  }
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
