/** A timeline: a row per step with its state, name, bar on one axis, and duration. */
import { h } from "./dom.js";
import { formatDuration } from "./format.js";
import { state } from "./icons.js";

// Part of the axis that a wait may take at most; its text has the true time.
const WAIT_SHARE = 0.3;
const LEAST = 0.01;

/**
 * @typedef {object} TimelineStep
 * @property {string} name
 * @property {import("./icons.js").StateKind | "skipped"} kind
 * @property {number | null} [start] milliseconds after the beginning
 * @property {number | null} [duration] milliseconds
 * @property {boolean} [isWait] a wait for a person, hatched and drawn shorter
 * @property {boolean} [isTool] a tool, whose name is mono
 * @property {string} [note] in place of the duration
 * @property {string} [href]
 * @property {string} [about] what the step does, as a tooltip
 */

/** @param {TimelineStep[]} steps @param {{label?: string}} [options] */
export function timeline(steps, { label = "Timeline" } = {}) {
  const place = makeAxis(steps);
  return h("ol", { class: "timeline", "aria-label": label }, steps.map((step) => drawStep(step, place(step))));
}

/** Return the begin and width of each step's bar as fractions. @param {TimelineStep[]} steps */
function makeAxis(steps) {
  const timed = steps.filter((step) => typeof step.start === "number" && typeof step.duration === "number");
  const waits = timed.filter((step) => step.isWait);
  const end = Math.max(0.001, ...timed.map((step) => Number(step.start) + Number(step.duration)));
  const waited = waits.reduce((sum, step) => sum + Number(step.duration), 0);
  const busy = Math.max(end - waited, 0.001);
  const scale = waited > busy * WAIT_SHARE ? (busy * WAIT_SHARE) / (1 - WAIT_SHARE) / waited : 1;
  const toAxis = (/** @type {number} */ moment) =>
    waits.reduce((at, wait) => {
      const inside = Math.min(Math.max(moment - Number(wait.start), 0), Number(wait.duration));
      return at - inside * (1 - scale);
    }, moment);
  const whole = Math.max(toAxis(end), 0.001);
  return (/** @type {TimelineStep} */ step) => {
    if (!timed.includes(step)) return null;
    const from = toAxis(Number(step.start)) / whole;
    const to = toAxis(Number(step.start) + Number(step.duration)) / whole;
    return { from, width: Math.max(to - from, 0) };
  };
}

/** @param {TimelineStep} step @param {{from: number, width: number} | null} bar */
function drawStep(step, bar) {
  const skipped = step.kind === "skipped";
  const name = step.href ? h("a", { href: step.href, "data-testid": "timeline.step" }, step.name) : step.name;
  const time = step.note ?? (typeof step.duration === "number" ? formatDuration(step.duration) : "");
  return h(
    "li",
    { class: `timeline__step${skipped ? " timeline__step--skipped" : ""}` },
    skipped ? h("span", { class: "timeline__dash", "aria-hidden": "true" }, "–") : state(/** @type {any} */ (step.kind), null),
    h("span", { class: step.isTool ? "timeline__name mono" : "timeline__name", title: step.about ? `${step.name}: ${step.about}` : step.name }, name),
    h("span", { class: "timeline__axis", "aria-hidden": "true" }, bar && !skipped ? drawBar(step, bar) : null),
    h("span", { class: "timeline__time" }, time),
  );
}

/** @param {TimelineStep} step @param {{from: number, width: number}} bar */
function drawBar(step, { from, width }) {
  const small = width < LEAST;
  const style = { left: `${Math.min(from, 0.99) * 100}%`, width: small ? "2px" : `${width * 100}%` };
  return h("span", { class: `timeline__bar${step.isWait ? " timeline__bar--wait" : ""}`, style });
}
