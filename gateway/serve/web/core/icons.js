/** Our own icons: 16 px grid, 1.5 px stroke, the colour of the text. Filled shapes are states. */
import { h, svg } from "./dom.js";

/** @type {Record<string, string>} */
const STROKES = {
  home: "M2.5 7.2 8 2.5l5.5 4.7v6.3h-4v-4h-3v4h-4z",
  approvals: "M8 1.8 13.2 4v4c0 3-2.2 5.2-5.2 6.2C5 13.2 2.8 11 2.8 8V4zM5.7 8l1.7 1.7 3-3.2",
  calls: "M2.5 8h2.7l1.6-4.5 2.8 9L11.2 8h2.3",
  files: "M2 12.5v-9h4l1.5 2H14v7z",
  folder: "M2 12.5v-9h4l1.5 2H14v7z",
  file: "M4 1.8h5l3.2 3.2v9.2H4zM8.8 2v3.3h3.3M6.2 8.5h3.8M6.2 11h3.8",
  tools: "M10.2 2.3a3.4 3.4 0 0 0-3.4 4.6L2.3 11.4a1.6 1.6 0 0 0 2.3 2.3l4.5-4.5a3.4 3.4 0 0 0 4.3-4.6l-2 2-1.8-.4-.4-1.8z",
  toolsets: "M8 1.8 13.5 5v6L8 14.2 2.5 11V5zM2.7 5.1 8 8.2l5.3-3.1M8 8.2v5.8",
  servers: "M2.5 2.5h11v4.5h-11zM2.5 9h11v4.5h-11zM5 4.7h.1M5 11.2h.1",
  access: "M5.2 11.5a3 3 0 1 1 2.6-4.5H14v2.2h-1.7v2h-2.2v-2H7.8a3 3 0 0 1-2.6 2.3zM5.1 8.5h.1",
  search: "M7 2.5a4.5 4.5 0 1 1 0 9 4.5 4.5 0 0 1 0-9zM10.3 10.3 13.7 13.7",
  tick: "M3 8.5 6.3 11.8 13 4.5",
  x: "M3.5 3.5l9 9M12.5 3.5l-9 9",
  clock: "M8 2.2a5.8 5.8 0 1 1 0 11.6A5.8 5.8 0 0 1 8 2.2zM8 5v3.2l2.2 1.3",
  denied: "M8 2.2a5.8 5.8 0 1 1 0 11.6A5.8 5.8 0 0 1 8 2.2zM4 12 12 4",
  dash: "M8 2.2a5.8 5.8 0 1 1 0 11.6A5.8 5.8 0 0 1 8 2.2zM5.2 8h5.6",
  ring: "M8 2.2A5.8 5.8 0 1 1 2.2 8",
  copy: "M5.5 5.5h8v8h-8zM10.5 5.3V2.5h-8v8h2.8",
  download: "M8 2v8M4.7 7 8 10.3 11.3 7M2.5 13.5h11",
  upload: "M8 10.3V2.3M4.7 5.5 8 2.2l3.3 3.3M2.5 13.5h11",
  edit: "M2.5 13.5 3.2 10.3 10.5 3l2.5 2.5-7.3 7.3zM9 4.5 11.5 7",
  trash: "M2.5 4h11M6 4V2.3h4V4M4 4l.6 9.7h6.8L12 4M6.7 6.8v4.2M9.3 6.8v4.2",
  chevron: "M6 3.5 10.5 8 6 12.5",
  external: "M9.5 2.5h4v4M13.3 2.7 7.5 8.5M6.5 3.5h-4v10h10v-4",
  play: "M4.5 2.8 12.5 8 4.5 13.2z",
  pause: "M5 3v10M11 3v10",
  plus: "M8 3v10M3 8h10",
  undo: "M5.5 3 2.5 6l3 3M2.8 6h6.7a3.7 3.7 0 0 1 0 7.4H6.5",
  refresh: "M13 6.5A5.3 5.3 0 1 0 13.3 9.5M13.3 3v3.7H9.6",
  moon: "M13.3 9.7A5.7 5.7 0 0 1 6.3 2.7a5.7 5.7 0 1 0 7 7z",
  sun: "M8 5.2a2.8 2.8 0 1 1 0 5.6 2.8 2.8 0 0 1 0-5.6zM8 1v1.5M8 13.5V15M1 8h1.5M13.5 8H15M3 3l1.1 1.1M11.9 11.9 13 13M13 3l-1.1 1.1M4.1 11.9 3 13",
  user: "M8 2.3a2.7 2.7 0 1 1 0 5.4 2.7 2.7 0 0 1 0-5.4zM2.8 13.7c.5-2.7 2.5-4.2 5.2-4.2s4.7 1.5 5.2 4.2",
  eye: "M1.5 8S3.8 3.8 8 3.8 14.5 8 14.5 8 12.2 12.2 8 12.2 1.5 8 1.5 8zM8 6a2 2 0 1 1 0 4 2 2 0 0 1 0-4z",
  lock: "M3.5 7h9v6.5h-9zM5.5 7V5a2.5 2.5 0 0 1 5 0v2",
  branch: "M4.5 3v10M11.5 3.5v2c0 2.5-7 2-7 5M4.5 2.5h.1M4.5 13.5h.1M11.5 2.5h.1",
  more: "M3.5 8h.1M8 8h.1M12.5 8h.1",
  menu: "M2.5 4h11M2.5 8h11M2.5 12h11",
};

/** Filled outlines, each with the stroke drawn on top in the colour of the background. @type {Record<string, [string, string]>} */
const FILLS = {
  check: ["M8 1.5a6.5 6.5 0 1 1 0 13 6.5 6.5 0 0 1 0-13z", "M5 8.2l2.2 2.2L11.2 6"],
  octagon: ["M5.3 1.5h5.4l3.8 3.8v5.4l-3.8 3.8H5.3l-3.8-3.8V5.3z", "M5.8 5.8l4.4 4.4M10.2 5.8l-4.4 4.4"],
  warn: ["M8 1.5 15 14H1z", "M8 6v3.7M8 11.9v.1"],
};

/**
 * An icon as inline SVG. Without a label it is decoration, and a word must stand nearby.
 * @param {string} name
 * @param {{label?: string}} [options]
 */
export function icon(name, { label } = {}) {
  const fill = FILLS[name];
  const line = { fill: "none", "stroke-width": name === "more" ? 2 : 1.5, "stroke-linecap": "round", "stroke-linejoin": "round" };
  const shapes = fill
    ? [svg("path", { d: fill[0], fill: "currentColor" }), svg("path", { d: fill[1], ...line, stroke: "var(--surface)" })]
    : [svg("path", { d: STROKES[name] ?? STROKES.dash, ...line, stroke: "currentColor" })];
  const named = label ? { role: "img", "aria-label": label } : { "aria-hidden": "true" };
  return svg("svg", { class: `icon icon--${name}`, viewBox: "0 0 16 16", width: 16, height: 16, ...named }, shapes);
}

/** @typedef {"running" | "waiting" | "done" | "failed" | "denied" | "cancelled" | "needs"} StateKind */
/** @type {Record<StateKind, [string, string]>} */
const STATES = {
  running: ["ring", "Running"],
  waiting: ["clock", "Waiting"],
  done: ["check", "Done"],
  failed: ["octagon", "Failed"],
  denied: ["denied", "Denied"],
  cancelled: ["dash", "Cancelled"],
  needs: ["warn", "Needs you"],
};

/**
 * A state as a shape and a word; `word: null` shows the shape alone, with the word as its name.
 * @param {StateKind} kind
 * @param {string | null} [word]
 */
export function state(kind, word) {
  const [shape, usual] = STATES[kind];
  const label = word === null ? { label: usual } : {};
  return h("span", { class: `state state--${kind}` }, icon(shape, label), word === null ? null : h("span", null, word ?? usual));
}
