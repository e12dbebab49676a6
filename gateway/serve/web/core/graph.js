/** A graph of versions: a list, newest first, with a decorative drawing of its branches. */
import { h, svg } from "./dom.js";

const LANE = 14;
const LANES = 6;
const HEIGHT = 52;
const MIDDLE = 18;

/**
 * @typedef {{id: string, parent: string | null, head: boolean}} GraphVersion
 * @typedef {{lane: number, from: number[], through: number[], hasChild: boolean, hasParent: boolean}} GraphRow
 */

/**
 * Give each version a lane. Versions are newest first; the first lane is the line of the current version.
 * @param {GraphVersion[]} versions
 * @returns {GraphRow[]}
 */
export function layoutGraph(versions) {
  const head = versions.find((version) => version.head)?.id ?? versions[0]?.id ?? null;
  /** @type {(string | null)[]} the version that each lane leads to */
  const lanes = [head];
  let isHeadSeen = false;
  return versions.map((version) => {
    const waiting = lanes.flatMap((id, lane) => (id === version.id ? [lane] : []));
    const lane = waiting.length ? waiting[0] : findFree(lanes);
    const from = waiting.slice(1);
    for (const other of from) lanes[other] = null;
    const isDrawn = (/** @type {number} */ other) => other > 0 || isHeadSeen; // the first lane begins at the head
    const through = lanes.flatMap((id, other) => (id !== null && other !== lane && isDrawn(other) ? [other] : []));
    const hasChild = waiting.length > 0 && isDrawn(lane);
    lanes[lane] = version.parent;
    if (version.id === head) isHeadSeen = true;
    return { lane, from, through, hasChild, hasParent: version.parent !== null };
  });
}

/** @param {(string | null)[]} lanes */
function findFree(lanes) {
  const free = lanes.indexOf(null, 1);
  if (free > 0) return free;
  lanes.push(null);
  return lanes.length - 1;
}

/**
 * Draw the part of the graph beside one row.
 * @param {GraphRow} row
 * @param {{width: number, isCurrent: boolean}} options `width` in lanes
 */
export function graphCell(row, { width, isCurrent }) {
  const x = (/** @type {number} */ lane) => 8 + Math.min(lane, LANES - 1) * LANE;
  const line = (/** @type {number} */ lane, /** @type {string} */ d) => svg("path", { d, class: `graph__line graph__line--${Math.min(lane, LANES - 1) % 4}`, fill: "none" });
  const own = x(row.lane);
  const parts = row.through.map((lane) => line(lane, `M${x(lane)} 0V${HEIGHT}`));
  if (row.hasChild) parts.push(line(row.lane, `M${own} 0V${MIDDLE}`));
  if (row.hasParent) parts.push(line(row.lane, `M${own} ${MIDDLE}V${HEIGHT}`));
  for (const lane of row.from) parts.push(line(lane, `M${x(lane)} 0C${x(lane)} ${MIDDLE - 4} ${own} 2 ${own} ${MIDDLE}`));
  const node = svg("circle", { cx: own, cy: MIDDLE, r: isCurrent ? 5 : 4, class: `graph__node graph__node--${row.lane % 4}${isCurrent ? " graph__node--current" : ""}` });
  const size = { width: graphWidth(width), height: HEIGHT };
  return svg("svg", { class: "graph", "aria-hidden": "true", viewBox: `0 0 ${size.width} ${size.height}`, ...size }, parts, node);
}

/** The lanes that a graph needs. @param {GraphRow[]} rows */
export function countLanes(rows) {
  return Math.min(LANES, Math.max(1, ...rows.map((row) => Math.max(row.lane, ...row.through, ...row.from) + 1)));
}

/** @param {number} lanes */
function graphWidth(lanes) {
  return 16 + (lanes - 1) * LANE;
}

/**
 * A list of versions with their graph. `draw` returns what stands beside the node.
 * @template {GraphVersion} V
 * @param {V[]} versions
 * @param {{draw: (version: V) => Node[], props: (version: V) => Record<string, any>, label?: string}} options
 */
export function versionGraph(versions, { draw, props, label = "Versions" }) {
  const rows = layoutGraph(versions);
  const width = countLanes(rows);
  const items = versions.map((version, index) => h("li", { class: "version" }, h("button", { class: "version__button", type: "button", ...props(version) }, graphCell(rows[index], { width, isCurrent: version.head }), h("span", { class: "version__text" }, draw(version)))));
  const hidden = rows.some((row) => row.lane >= LANES);
  return h("div", null, h("ol", { class: "versions", "aria-label": label }, items), hidden ? h("p", { class: "meta" }, "More branches share the last line.") : null);
}
