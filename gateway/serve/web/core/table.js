/** A table drawn in a window, so that 10,000 rows are as fast as 50: sort, groups that fold, selection, arrow keys. */
import { h, replace } from "./dom.js";
import { plural } from "./format.js";
import { icon } from "./icons.js";

/** @typedef {import("./dom.js").Child} Child */
/**
 * @template Row
 * @typedef {object} Column
 * @property {string} key
 * @property {string} title
 * @property {string} [width] a CSS length; columns without one share the rest
 * @property {"right"} [align] numbers
 * @property {boolean} [sortable] true unless said otherwise
 * @property {(row: Row) => any} [value] to sort by, and to show without `render`; the row's `key` otherwise
 * @property {(row: Row) => Child} [render]
 * @property {boolean} [wideOnly] left out in a container under 480 px
 * @property {boolean} [hiddenTitle] the title is for readers only
 */
/**
 * @template Row
 * @typedef {object} TableOptions
 * @property {Column<Row>[]} columns
 * @property {Row[]} rows
 * @property {number} [rowHeight]
 * @property {string} [label] the accessible name
 * @property {string} [testid] "tools" gives `data-testid="tools.row"` and `data-key`
 * @property {(row: Row) => string} [key] of a row; `row.id`, `row.name` or its place otherwise
 * @property {string} [sort] `"tokens"`, `"-tokens"` for descending
 * @property {(sort: string) => void} [onSort]
 * @property {(row: Row) => string} [href] address of a row; its first cell becomes the link
 * @property {(row: Row) => void} [onOpen] Enter or click, where there is no `href`
 * @property {string} [current] key of the open row
 * @property {(row: Row) => string} [group] name of a row's group
 * @property {(name: string, rows: Row[]) => Record<string, Child>} [groupCells] cells of a group row, by column key
 * @property {boolean} [selectable]
 * @property {(keys: Set<string>) => void} [onSelect]
 * @property {Child} [empty] shown if there are no rows
 */
/**
 * @template Row
 * @typedef {HTMLDivElement & {setRows(rows: Row[]): void, setCurrent(key: string | null): void, readonly selected: Set<string>, clearSelection(): void, focusRow(key: string): void}} Table
 */
/**
 * @template Row
 * @typedef {{key: string, row?: Row, group?: string, rows?: Row[]}} Item
 */

const AROUND = 10;
const collator = new Intl.Collator("en", { numeric: true, sensitivity: "base" });

/**
 * @template Row
 * @param {TableOptions<Row>} options
 * @returns {Table<Row>}
 */
export function dataTable(options) {
  const { columns, rowHeight = 34, label = "Table", testid = "table", selectable = false } = options;
  let rows = options.rows;
  let sort = options.sort ?? "";
  let current = options.current ?? null;
  /** @type {Item<Row>[]} */
  let items = [];
  let active = 0;
  let anchor = 0;
  /** @type {Set<string>} */
  const selected = new Set();
  /** @type {Set<string>} */
  const folded = new Set();
  /** @type {Map<string, {item: Item<Row>, node: HTMLTableRowElement}>} */
  let drawn = new Map();

  /** @type {Map<Row, number>} */
  let places = new Map();
  const keyOf = options.key ?? ((/** @type {any} */ row) => String(row?.id ?? row?.name ?? places.get(row)));
  const space = () => h("tr", { class: "table__space", "aria-hidden": "true" }, h("td"));
  const [above, below] = [space(), space()];
  const body = h("tbody", null, above, below);
  const head = h("tr", { "aria-rowindex": 1 });
  const widths = h("colgroup", null, selectable ? h("col", { class: "table__pick" }) : null,
    columns.map((column) => h("col", { class: column.wideOnly ? "wide-only" : null, style: column.width ? { width: column.width } : {} })));
  const table = h("table", { role: "grid", "aria-label": label, "aria-multiselectable": selectable ? "true" : null }, widths, h("thead", null, head), body);
  const none = h("div", null, options.empty ?? h("p", { class: "empty" }, "Nothing here."));
  const root = /** @type {Table<Row>} */ (h("div", { class: "table", tabindex: -1, style: { "--row-height": `${rowHeight}px` } }, table));

  const valueOf = (/** @type {Column<Row>} */ column, /** @type {Row} */ row) => (column.value ? column.value(row) : /** @type {any} */ (row)[column.key]);

  /** Order, group and fold the rows. */
  function arrange() {
    places = new Map(rows.map((row, place) => [row, place]));
    const ordered = sort ? orderRows() : rows;
    items = [];
    if (!options.group) items = ordered.map((row) => ({ key: keyOf(row), row }));
    else {
      for (const [group, members] of groupRows(ordered, options.group)) {
        items.push({ key: `group:${group}`, group, rows: members });
        if (!folded.has(group)) items.push(...members.map((row) => ({ key: keyOf(row), row })));
      }
    }
    active = Math.min(active, Math.max(0, items.length - 1));
    table.setAttribute("aria-rowcount", String(items.length + 1));
    drawn = new Map();
    drawHead();
    draw(true);
    if (rows.length) none.remove();
    else root.append(none);
  }

  function orderRows() {
    const descending = sort.startsWith("-");
    const column = columns.find((each) => each.key === sort.replace(/^-/, ""));
    if (!column) return rows;
    const ordered = rows.map((row) => ({ row, value: valueOf(column, row) })).sort((a, b) => compare(a.value, b.value));
    return (descending ? ordered.reverse() : ordered).map((each) => each.row);
  }

  function drawHead() {
    const all = rows.length > 0 && selected.size >= rows.length && rows.every((row) => selected.has(keyOf(row)));
    const pick = h("input", { type: "checkbox", "aria-label": `Select all ${rows.length}`, checked: all, indeterminate: !all && selected.size > 0, "data-testid": `${testid}.select-all`,
      onchange: () => select(all ? [] : rows.map(keyOf), true) });
    replace(head, selectable ? h("th", { class: "table__pick" }, pick) : null, columns.map(drawTitle));
  }

  /** @param {Column<Row>} column */
  function drawTitle(column) {
    const direction = sort === column.key ? "ascending" : sort === `-${column.key}` ? "descending" : null;
    const classes = [column.align === "right" ? "align-right" : "", column.wideOnly ? "wide-only" : ""].join(" ").trim();
    const title = column.hiddenTitle ? h("span", { class: "visually-hidden" }, column.title) : column.title;
    const sortBy = () => {
      sort = direction === "ascending" ? `-${column.key}` : column.key;
      options.onSort?.(sort);
      arrange();
      /** @type {HTMLElement | null} */ (head.querySelector(`[data-key="${CSS.escape(column.key)}"]`))?.focus();
    };
    return h("th", { scope: "col", class: classes || null, "aria-sort": direction },
      column.sortable === false ? title : h("button", { type: "button", onclick: sortBy, "data-testid": `${testid}.sort`, "data-key": column.key }, title));
  }

  /** Draw the rows near the visible part. @param {boolean} [all] also those that are drawn already */
  function draw(all = false) {
    const first = Math.max(0, Math.floor(root.scrollTop / rowHeight) - AROUND);
    const last = Math.min(items.length, Math.ceil((root.scrollTop + (root.clientHeight || 600)) / rowHeight) + AROUND);
    const next = new Map();
    const hadFocus = body.contains(document.activeElement);
    for (let index = first; index < last; index++) {
      const item = items[index];
      const old = drawn.get(item.key);
      const node = old && !all && old.item === item ? old.node : drawRow(item, index);
      next.set(item.key, { item, node });
    }
    setHeight(above, first * rowHeight);
    setHeight(below, (items.length - last) * rowHeight);
    const nodes = [...next.values()].map((each) => each.node);
    const shown = [...body.children].slice(1, -1);
    if (nodes.length !== shown.length || nodes.some((node, index) => node !== shown[index])) body.replaceChildren(above, ...nodes, below);
    drawn = next;
    rove();
    if (hadFocus && !body.contains(document.activeElement)) focusActive();
  }

  /** @param {Item<Row>} item @param {number} index */
  function drawRow(item, index) {
    const common = { "aria-rowindex": index + 2, "data-key": item.key, tabindex: -1 };
    if (item.group !== undefined) return drawGroup(item, common);
    const row = /** @type {Row} */ (item.row);
    const isSelected = selected.has(item.key);
    const pick = selectable ? h("td", { class: "table__pick" }, h("input", { type: "checkbox", checked: isSelected, "aria-label": `Select ${item.key}`, "data-testid": `${testid}.select` })) : null;
    const cells = columns.map((column, place) => drawCell(column, row, place === 0 ? options.href?.(row) : undefined));
    return h("tr", { ...common, "data-testid": `${testid}.row`, "aria-selected": selectable ? isSelected : undefined, "aria-current": item.key === current ? "true" : null }, pick, cells);
  }

  /** @param {Column<Row>} column @param {Row} row @param {string | undefined} href */
  function drawCell(column, row, href) {
    const classes = [column.align === "right" ? "align-right" : "", column.wideOnly ? "wide-only" : ""].join(" ").trim();
    const content = column.render ? column.render(row) : String(valueOf(column, row) ?? "");
    return h("td", { class: classes || null }, href ? h("a", { href }, content) : content);
  }

  /** @param {Item<Row>} item @param {Record<string, any>} common */
  function drawGroup(item, common) {
    const name = /** @type {string} */ (item.group);
    const isOpen = !folded.has(name);
    const cells = options.groupCells?.(name, item.rows ?? []) ?? {};
    const chevron = icon("chevron");
    if (isOpen) chevron.style.setProperty("transform", "rotate(90deg)");
    const fold = h("button", { type: "button", class: "table__fold", "aria-expanded": isOpen, "data-testid": `${testid}.fold` }, chevron,
      cells[columns[0].key] ?? [h("strong", null, name), " ", h("span", { class: "meta" }, plural(item.rows?.length ?? 0, "row"))]);
    return h("tr", { ...common, class: "table__group", "data-testid": `${testid}.group` }, h("td", { colspan: selectable ? 2 : 1 }, fold),
      columns.slice(1).map((column) => h("td", { class: [column.align === "right" ? "align-right" : "", column.wideOnly ? "wide-only" : ""].join(" ").trim() || null }, cells[column.key])));
  }

  /** One tab stop: only the active row and its controls can be reached by Tab. */
  function rove() {
    for (const { item, node } of drawn.values()) {
      const isActive = items[active] === item;
      node.tabIndex = isActive ? 0 : -1;
      for (const control of node.querySelectorAll("a, button, input, select")) /** @type {HTMLElement} */ (control).tabIndex = isActive ? 0 : -1;
    }
  }

  function focusActive() {
    const node = drawn.get(items[active]?.key)?.node;
    (node ?? root).focus({ preventScroll: true });
  }

  /** @param {number} index */
  function moveTo(index) {
    active = Math.max(0, Math.min(items.length - 1, index));
    const [top, bottom] = [active * rowHeight, (active + 1) * rowHeight + (head.offsetHeight || 0)];
    if (top < root.scrollTop) root.scrollTop = top;
    else if (bottom > root.scrollTop + root.clientHeight) root.scrollTop = bottom - root.clientHeight;
    draw();
    focusActive();
  }

  /** @param {string[]} keys @param {boolean} [only] */
  function select(keys, only = false) {
    if (only) selected.clear();
    for (const key of keys) {
      if (selected.has(key) && !only) selected.delete(key);
      else selected.add(key);
    }
    drawHead();
    draw(true);
    options.onSelect?.(new Set(selected));
  }

  /** @param {string} name */
  function fold(name) {
    if (!folded.delete(name)) folded.add(name);
    const hadFocus = body.contains(document.activeElement);
    arrange();
    if (hadFocus) focusActive();
  }

  /** @param {Item<Row>} item */
  function openItem(item) {
    if (item.group !== undefined) fold(item.group);
    else if (options.href) /** @type {HTMLElement | null} */ (drawn.get(item.key)?.node.querySelector("a"))?.click();
    else if (item.row !== undefined) options.onOpen?.(item.row);
  }

  root.addEventListener("keydown", (event) => {
    const target = /** @type {HTMLElement} */ (event.target);
    if (!items.length || (target !== root && target.tagName !== "TR")) return;
    const page = Math.max(1, Math.floor(root.clientHeight / rowHeight) - 2);
    const item = items[active];
    /** @type {Record<string, () => void>} */
    const keys = {
      ArrowDown: () => moveTo(active + 1),
      ArrowUp: () => moveTo(active - 1),
      PageDown: () => moveTo(active + page),
      PageUp: () => moveTo(active - page),
      Home: () => moveTo(0),
      End: () => moveTo(items.length - 1),
      Enter: () => openItem(item),
    };
    if (item.group !== undefined && folded.has(item.group) === (event.key === "ArrowRight")) keys.ArrowLeft = keys.ArrowRight = () => fold(String(item.group));
    if (selectable && item.row !== undefined) keys[" "] = () => select([item.key]);
    if (selected.size) keys.Escape = () => select([], true);
    if (event.ctrlKey || event.metaKey || event.altKey || !keys[event.key]) return;
    event.preventDefault();
    keys[event.key]();
  });

  body.addEventListener("click", (event) => {
    const target = /** @type {Element} */ (event.target);
    const node = target.closest("tr");
    const index = items.findIndex((item) => item.key === node?.dataset.key);
    if (index < 0) return;
    const item = items[index];
    active = index;
    rove();
    if (target.closest(".table__pick")) {
      const range = event.shiftKey ? items.slice(Math.min(anchor, index), Math.max(anchor, index) + 1) : [item];
      anchor = index;
      const isOn = selected.has(item.key);
      select(range.filter((each) => each.row !== undefined && selected.has(each.key) === isOn).map((each) => each.key));
    } else if (item.group !== undefined) {
      if (!target.closest("input, select, a, button:not([aria-expanded])")) fold(item.group);
    } else if (!target.closest("a, button, input, select, label")) openItem(item);
  });
  body.addEventListener("focusin", (event) => {
    const key = /** @type {Element} */ (event.target).closest("tr")?.dataset.key;
    const index = items.findIndex((item) => item.key === key);
    if (index >= 0 && index !== active) {
      active = index;
      rove();
    }
  });
  let isWaiting = false;
  root.addEventListener("scroll", () => {
    if (isWaiting) return;
    isWaiting = true;
    requestAnimationFrame(() => {
      isWaiting = false;
      draw();
    });
  });
  new ResizeObserver(() => draw()).observe(root);

  Object.defineProperties(root, {
    selected: { get: () => new Set(selected) },
    clearSelection: { value: () => select([], true) },
    focusRow: { value: (/** @type {string} */ key) => moveTo(items.findIndex((item) => item.key === key)) },
    setCurrent: { value: (/** @type {string | null} */ key) => { current = key; draw(true); } },
    setRows: {
      value: (/** @type {Row[]} */ changed) => {
        const key = items[active]?.key;
        rows = changed;
        if (selected.size) {
          places = new Map(rows.map((row, place) => [row, place]));
          const known = new Set(rows.map(keyOf));
          for (const each of selected) if (!known.has(each)) selected.delete(each);
        }
        arrange();
        const index = items.findIndex((item) => item.key === key);
        if (index >= 0) active = index;
        rove();
      },
    },
  });
  arrange();
  return root;
}

/** @param {HTMLTableRowElement} space @param {number} pixels */
function setHeight(space, pixels) {
  space.hidden = pixels <= 0;
  space.cells[0].style.setProperty("height", `${Math.max(0, pixels)}px`);
}

/** Missing values come last. @param {any} a @param {any} b */
function compare(a, b) {
  if (a === null || a === undefined) return b === null || b === undefined ? 0 : 1;
  if (b === null || b === undefined) return -1;
  return typeof a === "number" && typeof b === "number" ? a - b : collator.compare(String(a), String(b));
}

/**
 * @template Row
 * @param {Row[]} rows
 * @param {(row: Row) => string} group
 */
function groupRows(rows, group) {
  /** @type {Map<string, Row[]>} */
  const groups = new Map();
  for (const row of rows) {
    const name = group(row);
    const members = groups.get(name);
    if (members) members.push(row);
    else groups.set(name, [row]);
  }
  return groups;
}
