/** Elements without a framework. Text becomes text nodes; nothing here parses HTML, except what the server sanitised. */

/** @typedef {Node | string | number | boolean | null | undefined} Leaf */
/** @typedef {Leaf | Leaf[] | (Leaf | Leaf[] | Leaf[][])[]} Child */
/** @typedef {Record<string, any>} Props */

const PROPERTIES = new Set(["value", "checked", "indeterminate", "selected", "srcdoc", "tabIndex"]);

/**
 * Make an HTML element. Props: attributes; `class`; `onclick` and other listeners; `style` as an object; `value`,
 * `checked` and `indeterminate` as properties. False, null and undefined leave a prop out; aria-* is always written.
 * @template {keyof HTMLElementTagNameMap} Tag
 * @param {Tag} tag
 * @param {Props | null} [props]
 * @param {...Child} children
 * @returns {HTMLElementTagNameMap[Tag]}
 */
export function h(tag, props, ...children) {
  return fill(document.createElement(tag), props, children);
}

/**
 * Make an SVG element, with the same props.
 * @template {keyof SVGElementTagNameMap} Tag
 * @param {Tag} tag
 * @param {Props | null} [props]
 * @param {...Child} children
 * @returns {SVGElementTagNameMap[Tag]}
 */
export function svg(tag, props, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), props, children);
}

/**
 * @template {HTMLElement | SVGElement} E
 * @param {E} element
 * @param {Props | null | undefined} props
 * @param {Child[]} children
 */
function fill(element, props, children) {
  for (const [name, value] of Object.entries(props ?? {})) setProp(element, name, value);
  element.append(...toNodes(children));
  return element;
}

/** @param {HTMLElement | SVGElement} element @param {string} name @param {any} value */
function setProp(element, name, value) {
  if (name.startsWith("on")) {
    if (value) element.addEventListener(name.slice(2).toLowerCase(), value);
  } else if (name === "style") {
    for (const [property, text] of Object.entries(value ?? {})) element.style.setProperty(property, String(text));
  } else if (PROPERTIES.has(name)) {
    /** @type {any} */ (element)[name] = value ?? "";
  } else if (name.startsWith("aria-") && typeof value === "boolean") {
    element.setAttribute(name, String(value));
  } else if (value === true) {
    element.setAttribute(name, "");
  } else if (value !== false && value !== null && value !== undefined) {
    element.setAttribute(name, String(value));
  }
}

/** @param {Child[]} children @returns {(Node | string)[]} */
function toNodes(children) {
  const leaves = /** @type {Leaf[]} */ (children.flat(Infinity));
  return leaves
    .filter((leaf) => leaf !== null && leaf !== undefined && typeof leaf !== "boolean")
    .map((leaf) => (leaf instanceof Node ? leaf : String(leaf)));
}

/**
 * Replace all children of a node.
 * @template {Element | DocumentFragment} E
 * @param {E} node
 * @param {...Child} children
 */
export function replace(node, ...children) {
  node.replaceChildren(...toNodes(children));
  return node;
}

/**
 * Nodes of HTML that the server sanitised or escaped, and of nothing else.
 * @param {string} html
 */
export function fromServerHtml(html) {
  const template = document.createElement("template");
  template.innerHTML = html;
  return template.content;
}

/**
 * Copy text; false if the browser or the frame forbids it.
 * @param {string} text
 */
export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const active = /** @type {HTMLElement | null} */ (document.activeElement);
    const area = h("textarea", { value: text, class: "visually-hidden", "aria-label": "Text to copy" });
    document.body.append(area);
    area.select();
    const copied = document.execCommand("copy");
    area.remove();
    active?.focus();
    return copied;
  }
}
